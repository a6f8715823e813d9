"""`-o hex`: renders the bytes of frames with labels for sizes, magics, checksum and protobuf fields."""

from collections.abc import Iterator
from typing import Final

from pulsarctl_wire.render.line import LineRenderer
from pulsarctl_wire.render.text import Paint, clean
from pulsarctl_wire.wire.credentials import Span
from pulsarctl_wire.wire.frame import Event, Gap, HttpMessage
from pulsarctl_wire.wire.framing.annotate import LabelledSpan, annotate
from pulsarctl_wire.wire.framing.redaction import event_spans, hex_digits, mask_spans

_SHOWN: Final = 256
"""Maximum number of bytes of a part that are shown."""

_WIDTH: Final = 16
_VISIBLE: Final = bytes(byte if 32 <= byte < 127 else ord(".") for byte in range(256))


class HexRenderer:
    """A renderer of events as annotated bytes, below the line of the event."""

    def __init__(self, line: LineRenderer, paint: Paint, *, show_secrets: bool = False) -> None:
        self._line = line
        self._paint = paint
        self._show_secrets = show_secrets

    def __call__(self, event: Event) -> str:
        """Return the annotated bytes of `event`, without a final line end."""
        lines = [self._line(event)]
        if not isinstance(event, Gap | HttpMessage):
            hidden = [] if self._show_secrets else event_spans(event)
            raw = event.raw
            for part in annotate(event, hidden):
                start, stop, label, _ = part
                if stop - start <= _WIDTH:
                    lines.append(self._row(raw, start, stop, label, hidden))
                else:
                    lines += self._rows(raw, part, hidden)
        return "\n".join(lines)

    def _rows(self, raw: bytes, part: LabelledSpan, hidden: list[Span]) -> Iterator[str]:
        stop = min(part.stop, part.start + _SHOWN)
        for start in range(part.start, stop, _WIDTH):
            label = part.label if start == part.start else ""
            yield self._row(raw, start, min(start + _WIDTH, stop), label, hidden)
        if part.stop > stop:
            yield f"            … {part.stop - stop} bytes more"

    def _row(self, raw: bytes, start: int, end: int, label: str, hidden: list[Span]) -> str:
        label, data = clean(label), raw[start:end]
        digits = data.hex(" ")
        if hidden:
            spans = [(begin - start, stop - start) for begin, stop in hidden if begin < end and stop > start]
            digits, data = hex_digits(data, spans), mask_spans(data, spans, b".")
        text = data.translate(_VISIBLE).decode("ascii")
        if self._paint.colour:
            place, text = self._paint("dim", f"{start:08x}"), self._paint("dim", f"{text:<{_WIDTH}}")
            return f"  {place}  {digits:<{3 * _WIDTH}} {text}  {self._paint('cyan', label)}".rstrip()
        return ("  %08x  %-48s %-16s  %s" % (start, digits, text, label)).rstrip()  # noqa: UP031  f-strings take longer
