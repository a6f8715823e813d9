"""`-o tree`: every field of every frame, its messages and payloads, as a tree.

A frame may have a hundred thousand fields, so the guides are drawn here: rich takes 0.1 ms for each line.
"""

from typing import Any, Final

from pulsarctl_wire.cli.console import Paint, clean, human_time
from pulsarctl_wire.cli.line import LineRenderer
from pulsarctl_wire.record import Record, Recorder
from pulsarctl_wire.wire.annotate import annotated
from pulsarctl_wire.wire.frame import Event, Frame, Malformed
from pulsarctl_wire.wire.redaction import event_spans, hex_digits

_SHOWN: Final = 2_000
"""Characters of a value that are shown; JSON has them all."""

_DIGITS: Final = 16  # bytes of each part of a malformed stretch that are shown

_PLAIN: Final = {
    "command",
    "number",
    "packet",
    "connection",
    "client",
    "server",
    "to_broker",
    "time_ns",
    "notes",
}


class _Branch:
    """A line of a tree, and those below it."""

    __slots__ = ("below", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.below: list[_Branch] = []

    def add(self, text: str) -> "_Branch":
        """Add a line below this one; gives it."""
        branch = _Branch(text)
        self.below.append(branch)
        return branch


class TreeRenderer:
    """Renders events as trees, headed by their lines."""

    def __init__(
        self, line: LineRenderer, recorder: Recorder, paint: Paint, *, show_secrets: bool = False
    ) -> None:
        self._line = line
        self._show_secrets = show_secrets
        self._recorder = recorder
        self._paint = paint

    def __call__(self, event: Event) -> str:
        """The tree of `event`, without the last line end."""
        record = self._recorder(event)
        tree = _Branch(self._line(event))
        where = f"{record['client']} {'→' if record['to_broker'] else '←'} {record['server']}"
        packets = event.packets or (event.packet,)
        span = f"packet {packets[-1]}" if len(packets) == 1 else f"packets {packets[0]}…{packets[-1]}"
        tree.add(self._paint("dim", f"{where}, {span}, offset {event.offset}"))
        if isinstance(event, Frame):
            self._frame(tree, record)
        elif isinstance(event, Malformed):
            self._broken(tree, event, record)
        else:
            self._values(tree, {key: value for key, value in record.items() if key not in _PLAIN})
        lines = [tree.text]
        self._draw(tree, "", lines)
        return "\n".join(lines)

    def _draw(self, tree: _Branch, guides: str, lines: list[str]) -> None:
        """Add what is below `tree` to `lines`, each behind `guides`."""
        paint = self._paint
        for number, branch in enumerate(tree.below, 1):
            last = number == len(tree.below)
            lines.append(paint("dim", f"{guides}{'└── ' if last else '├── '}") + branch.text)
            if branch.below:
                self._draw(branch, f"{guides}{'    ' if last else '│   '}", lines)

    def _broken(self, tree: _Branch, event: Malformed, record: Record) -> None:
        """What is no frame: why, and its bytes as `-o hex` has them."""
        paint = self._paint
        self._values(tree, {name: record[name] for name in ("malformed", "size")})
        hidden = [] if self._show_secrets else event_spans(event)
        digits = hex_digits(event.raw, hidden).split()
        branch = tree.add(paint("blue", "bytes"))
        for part in annotated(event, hidden):
            first = " ".join(digits[part.start : min(part.stop, part.start + _DIGITS)])
            more = f" … ({part.stop - part.start} bytes)" if part.stop - part.start > _DIGITS else ""
            branch.add(
                f"{paint('dim', f'{part.start:08x} ')}{first}{more} {paint('cyan', clean(part.label))}"
            )

    def _frame(self, tree: _Branch, record: Record) -> None:
        paint = self._paint
        self._values(tree.add(paint("bold", record["command"])), record["fields"] or {})
        for part in ("broker_entry_metadata", "metadata"):
            if record[part] is not None:
                self._values(tree.add(paint("bold", part)), record[part])
        if record["checksum"]:
            style = {"valid": "green", "invalid": "red"}.get(record["checksum"], "yellow")
            tree.add(f"{paint('bold', 'checksum')} {paint(style, record['checksum'])}")
        for message in record["messages"]:
            index = "message" if message["index"] is None else f"message {message['index']}"
            branch = tree.add(paint("bold", index))
            self._values(branch, {key: value for key, value in message.items() if key != "index"})
        if record["request"] is not None:
            took = "" if record["latency_ns"] is None else f" after {human_time(record['latency_ns'])}"
            tree.add(paint("cyan", f"answers frame {record['request']}{took}"))
        for note in record["notes"]:
            tree.add(paint("yellow", f"! {clean(note)}"))

    def _values(self, tree: _Branch, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if value is None or value in ({}, []):
                continue
            self._value(tree, clean(str(name)), value)

    def _value(self, tree: _Branch, name: str, value: Any) -> None:
        if isinstance(value, dict):
            if set(value) >= {"view", "value"}:
                name = f"{name} ({value['view']})"
                rest = {key: each for key, each in value.items() if key not in ("view", "value")}
                self._value(tree, name, value["value"])
                self._values(tree, rest)
                return
            self._values(tree.add(self._paint("blue", name)), value)
        elif isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
            branch = tree.add(self._paint("blue", f"{name} ({len(value)})"))
            for index, item in enumerate(value):
                self._value(branch, f"[{index}]", item)
        else:
            tree.add(self._paint("blue", f"{name}: ") + _text(value))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = (
        value
        if isinstance(value, str)
        else ", ".join(map(str, value))
        if isinstance(value, list)
        else str(value)
    )
    rest = len(text) - _SHOWN
    return clean(text[:_SHOWN]) + (f"… and {rest} characters more" if rest > 0 else "")
