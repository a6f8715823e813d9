"""`-o tree`: all fields of a frame, its messages and payloads, as a tree.

A frame may have a hundred thousand fields, so the guides are drawn here: rich would take 0.1 ms per line.
"""

from typing import Any, Final, TypeAlias

from pulsarctl_wire.record import Record, Recorder
from pulsarctl_wire.render.line import LineRenderer
from pulsarctl_wire.render.text import Paint, clean, human_time
from pulsarctl_wire.wire.checksum_cause import describe_checksum_cause
from pulsarctl_wire.wire.frame import Event, Frame, Gap, Malformed
from pulsarctl_wire.wire.framing.annotate import Path, annotate
from pulsarctl_wire.wire.framing.redaction import event_spans, hex_digits

_SHOWN: Final = 2_000
"""Maximum number of characters of a value that are shown; JSON has all."""

_DIGITS: Final = 16  # bytes shown of each part of a malformed stretch

_NESTED: Final = frozenset((dict, list))

Lines: TypeAlias = "list[tuple[str, Lines, Path]]"
"""Lines of a tree, each with the lines below it, and the place of its value in the record."""


class TreeRenderer:
    """A renderer of events as trees, below the line of the event."""

    def __init__(
        self, line: LineRenderer, recorder: Recorder, paint: Paint, *, show_secrets: bool = False
    ) -> None:
        self._line = line
        self._show_secrets = show_secrets
        self._recorder = recorder
        self._paint = paint

    def __call__(self, event: Event) -> str:
        """Render the tree of `event`, without a final line end."""
        children, record = self.lines(event)
        output = [self._line(event, record=record)]
        self._draw(children, "", output)
        return "\n".join(output)

    def lines(self, event: Event) -> tuple[Lines, Record | None]:
        """Return the lines below that of `event`, and the record if it is a frame."""
        connection, packets = event.connection, event.packets or (event.packet,)
        direction = f"{connection.client} {'→' if event.to_broker else '←'} {connection.server}"
        span = f"packet {packets[-1]}" if len(packets) == 1 else f"packets {packets[0]}…{packets[-1]}"
        file, number = self._recorder.find_packet(event.packet)
        if file is not None:
            span += f" ({number} of {clean(file)})"
        place = f"{span}, offset {event.offset}" if event.packet else f"offset {event.offset}"
        children: Lines = [(self._paint("dim", f"{direction}, {place}"), [], ())]
        record = None
        if isinstance(event, Frame):
            record = self._recorder(event)
            self._add_frame(children, record)
        elif isinstance(event, Malformed):
            self._add_malformed(children, event)
        elif isinstance(event, Gap):
            self._add_values(children, {"gap": event.size}, ())
        else:
            self._add_values(children, self._recorder(event)["http"], ())
        return children, record

    def _draw(self, lines: Lines, guides: str, output: list[str]) -> None:
        """Add `lines` to `output`, each after `guides`."""
        prefix, inside, last = self._paint("dim", f"{guides}├── "), f"{guides}│   ", len(lines) - 1
        for number, (text, children, _) in enumerate(lines):
            if number == last:
                prefix, inside = self._paint("dim", f"{guides}└── "), f"{guides}    "
            output.append(prefix + text)
            if children:
                self._draw(children, inside, output)

    def _add_malformed(self, lines: Lines, event: Malformed) -> None:
        """Add the reason and the bytes of a malformed stretch, split as in `-o hex`."""
        paint = self._paint
        self._add_values(lines, {"malformed": event.reason, "size": event.size}, ())
        hidden = [] if self._show_secrets else event_spans(event)
        digits = hex_digits(event.raw, hidden)
        children: Lines = []
        for start, stop, label, _ in annotate(event, hidden):
            first = digits[3 * start : 3 * min(stop, start + _DIGITS) - 1]
            rest = f" … ({stop - start} bytes)" if stop - start > _DIGITS else ""
            text = f"{paint('dim', f'{start:08x} ')}{first}{rest} {paint('cyan', clean(label))}"
            children.append((text, [], ()))
        lines.append((paint("blue", "bytes"), children, ()))

    def _add_frame(self, lines: Lines, record: Record) -> None:
        paint = self._paint
        self._add_branch(lines, paint("bold", record["command"]), record["fields"] or {}, ("fields",))
        for part in ("broker_entry_metadata", "metadata"):
            if record[part] is not None:
                self._add_branch(lines, paint("bold", part), record[part], (part,))
        if record["checksum"]:
            style = {"valid": "green", "invalid": "red"}.get(record["checksum"], "yellow")
            cause = record.get("checksum_cause")
            words = f": {describe_checksum_cause(cause)}" if cause else ""
            text = f"{paint('bold', 'checksum')} {paint(style, record['checksum'])}{words}"
            lines.append((text, [], ("checksum",)))
        if "decrypted" in record:
            self._add_branch(lines, paint("bold", "decrypted"), record["decrypted"], ("decrypted",))
        for message in record["messages"]:
            index = message.pop("index")
            text = paint("bold", "message" if index is None else f"message {index}")
            self._add_branch(lines, text, message, ("messages", index or 0))
        if record["request"] is not None:
            delay = "" if record["latency_ns"] is None else f" after {human_time(record['latency_ns'])}"
            repeat = f" that repeats frame {record['resend_of']}" if "resend_of" in record else ""
            lines.append((paint("cyan", f"answers frame {record['request']}{repeat}{delay}"), [], ()))
        elif "resend_of" in record:
            lines.append((paint("cyan", f"repeats frame {record['resend_of']}"), [], ()))
        lines += [(paint("yellow", f"! {clean(note)}"), [], ()) for note in record["notes"]]

    def _add_branch(self, lines: Lines, text: str, values: dict[str, Any], path: Path) -> None:
        """Add a line with `values` below it."""
        children: Lines = []
        self._add_values(children, values, path)
        lines.append((text, children, path))

    def _add_values(self, lines: Lines, values: dict[str, Any], path: Path) -> None:
        for name, value in values.items():
            if value is None or (not value and isinstance(value, (dict, list))):
                continue
            self._add_value(lines, clean(str(name)), value, (*path, name))

    def _add_value(self, lines: Lines, name: str, value: Any, path: Path) -> None:
        if isinstance(value, dict):
            if "view" in value and "value" in value:
                self._add_value(lines, f"{name} ({clean(str(value['view']))})", value["value"], path)
                if len(value) > 2:
                    details = {key: member for key, member in value.items() if key not in ("view", "value")}
                    self._add_values(lines, details, path)
            else:
                self._add_branch(lines, self._paint("blue", name), value, path)
        elif isinstance(value, list) and not _NESTED.isdisjoint(map(type, value)):
            children: Lines = []
            for index, item in enumerate(value):
                self._add_value(children, f"[{index}]", item, (*path, index))
            lines.append((self._paint("blue", f"{name} ({len(value)})"), children, path))
        else:
            lines.append((self._paint("blue", f"{name}: ") + _text(value), [], path))


def _text(value: Any) -> str:
    if isinstance(value, str):
        text = value
    elif isinstance(value, list):
        text = ", ".join(map(str, value))
    elif isinstance(value, bool):
        return "true" if value else "false"
    else:
        return str(value)
    cut_count = len(text) - _SHOWN
    return clean(text) if cut_count <= 0 else f"{clean(text[:_SHOWN])}… and {cut_count} characters more"
