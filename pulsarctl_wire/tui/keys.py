"""The keys, as `?` lists them."""

from typing import Final

from pulsarctl_wire.render.text import Paint

KEYS: Final = (
    (
        "Moving",
        (
            ("j k ↓ ↑", "next, previous line"),
            ("Space b PgDn PgUp", "next, previous page; Ctrl-D Ctrl-U half a page"),
            ("g G Home End", "first, last line"),
            ("← →", "the rest of long lines; in bytes: byte before, after"),
            ("F", "follow the end, or stop"),
            (":", "go to a frame by its number"),
            ("Tab", "from the list to the fields, to the bytes"),
            ("Enter", "open the frame; fold a field; show only a row's frames; go to a frame of a finding"),
            ("d", "show or hide the details"),
        ),
    ),
    (
        "Searching",
        (
            ("f", "filter, in the language of decode --filter; → completes"),
            ("/", "search the lines; n N next, previous"),
            ("e E", "next, previous error or damage"),
            ("w W", "next, previous frame of a finding"),
            ("a", "to the answer, or to the request"),
            ("m", "the message's next step: SEND, receipt, MESSAGE, ACK"),
            ("c t s p u M", "only this connection, topic, subscription, producer, consumer, message"),
            ("Backspace", "the filter before"),
            ("Esc", "close, stop, go back; then show all"),
        ),
    ),
    (
        "Panes",
        (
            ("1 … 8", "frames, connections, topics, producers, subscriptions, findings, sequence, log"),
            ("9 0", "live: faults, and frames that are held at breakpoints"),
            ("o", "in a table: sort by bytes, unacknowledged, pending, errors"),
            ("?", "in findings: explain the rule; elsewhere: these keys (F1 everywhere)"),
        ),
    ),
    (
        "Live",
        (
            ("B", "make a breakpoint for frames like the one under the cursor"),
            ("+ D", "in faults: add one by a form, remove one"),
            ("i h", "in held: change the frame as JSON, as hex; Ctrl-S sends it"),
            ("r R D +", "in held: let the frame go on, let all go on, drop it, send it twice"),
            ("A", "in held: answer the frame in the peer's place"),
        ),
    ),
    (
        "Other",
        (
            ("v", "begin a selection at the cursor, or drop it"),
            (
                "x",
                "save the selection, or the frame: .pcapng .jsonl .send .py, or as lines; or replay to a URL",
            ),
            ("y Y K", "copy the frame as JSON, as hex, as a link"),
            ("L", "light or dark"),
            ("q Ctrl-C", "quit"),
        ),
    ),
)
"""Groups of keys, with what they do."""


def keys_text(paint: Paint) -> list[str]:
    """Return the keys as lines."""
    lines = []
    for title, keys in KEYS:
        lines += [
            paint("bold", title),
            *(f"  {paint('cyan', f'{key:<18}')} {text}" for key, text in keys),
            "",
        ]
    return lines[:-1]
