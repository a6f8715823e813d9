"""`-o tree`: every field of every frame, its messages and payloads, as a tree."""

from io import StringIO
from typing import Any, Final

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from pulsarctl_wire.cli.console import clean, human_time
from pulsarctl_wire.cli.line import LineRenderer
from pulsarctl_wire.record import Record, Recorder
from pulsarctl_wire.wire.annotate import annotated
from pulsarctl_wire.wire.frame import Event, Frame, Malformed
from pulsarctl_wire.wire.redaction import event_spans, hex_digits

_SHOWN: Final = 2_000
"""Characters of a value that are shown; JSON has them all."""

_DIGITS: Final = 16  # bytes of each part of a malformed stretch that are shown

_WIDTH: Final = 100_000
"""Columns: the terminal may wrap lines, the tree does not."""

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


class TreeRenderer:
    """Renders events as trees, headed by their lines."""

    def __init__(
        self, line: LineRenderer, recorder: Recorder, *, colour: bool, show_secrets: bool = False
    ) -> None:
        self._line = line
        self._show_secrets = show_secrets
        self._recorder = recorder
        self._console = Console(
            file=StringIO(),
            force_terminal=colour,
            no_color=not colour,
            color_system="standard" if colour else None,
            width=_WIDTH,
            highlight=False,
            emoji=False,
            legacy_windows=False,
        )

    def __call__(self, event: Event) -> str:
        """The tree of `event`, without the last line end."""
        record = self._recorder(event)
        tree = Tree(Text.from_ansi(self._line(event)), guide_style="dim")
        where = f"{record['client']} {'→' if record['to_broker'] else '←'} {record['server']}"
        packets = event.packets or (event.packet,)
        span = f"packet {packets[-1]}" if len(packets) == 1 else f"packets {packets[0]}…{packets[-1]}"
        tree.add(Text(f"{where}, {span}, offset {event.offset}", style="dim"))
        if isinstance(event, Frame):
            self._frame(tree, record)
        elif isinstance(event, Malformed):
            self._broken(tree, event, record)
        else:
            self._values(tree, {key: value for key, value in record.items() if key not in _PLAIN})
        with self._console.capture() as captured:
            self._console.print(tree, soft_wrap=True)
        return captured.get().rstrip("\n")

    def _broken(self, tree: Tree, event: Malformed, record: Record) -> None:
        """What is no frame: why, and its bytes as `-o hex` has them."""
        self._values(tree, {name: record[name] for name in ("malformed", "size")})
        hidden = [] if self._show_secrets else event_spans(event)
        digits = hex_digits(event.raw, hidden).split()
        branch = tree.add(Text("bytes", style="blue"))
        for part in annotated(event, hidden):
            first = " ".join(digits[part.start : min(part.stop, part.start + _DIGITS)])
            more = f" … ({part.stop - part.start} bytes)" if part.stop - part.start > _DIGITS else ""
            branch.add(
                Text.assemble((f"{part.start:08x} ", "dim"), f"{first}{more} ", (clean(part.label), "cyan"))
            )

    def _frame(self, tree: Tree, record: Record) -> None:
        self._values(tree.add(Text(record["command"], style="bold")), record["fields"] or {})
        for part in ("broker_entry_metadata", "metadata"):
            if record[part] is not None:
                self._values(tree.add(Text(part, style="bold")), record[part])
        if record["checksum"]:
            style = {"valid": "green", "invalid": "bold red"}.get(record["checksum"], "yellow")
            tree.add(Text.assemble(("checksum ", "bold"), (record["checksum"], style)))
        for message in record["messages"]:
            index = "message" if message["index"] is None else f"message {message['index']}"
            branch = tree.add(Text(index, style="bold"))
            self._values(branch, {key: value for key, value in message.items() if key != "index"})
        if record["request"] is not None:
            took = "" if record["latency_ns"] is None else f" after {human_time(record['latency_ns'])}"
            tree.add(Text(f"answers frame {record['request']}{took}", style="cyan"))
        for note in record["notes"]:
            tree.add(Text(f"! {clean(note)}", style="yellow"))

    def _values(self, tree: Tree, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if value is None or value in ({}, []):
                continue
            self._value(tree, clean(str(name)), value)

    def _value(self, tree: Tree, name: str, value: Any) -> None:
        if isinstance(value, dict):
            if set(value) >= {"view", "value"}:
                name = f"{name} ({value['view']})"
                rest = {key: each for key, each in value.items() if key not in ("view", "value")}
                self._value(tree, name, value["value"])
                self._values(tree, rest)
                return
            self._values(tree.add(Text(name, style="blue")), value)
        elif isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
            branch = tree.add(Text(f"{name} ({len(value)})", style="blue"))
            for index, item in enumerate(value):
                self._value(branch, f"[{index}]", item)
        else:
            tree.add(Text.assemble((f"{name}: ", "blue"), _text(value)))


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
