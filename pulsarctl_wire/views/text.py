"""Text: what the String schema asks for, and the first guess where no schema is known."""

from __future__ import annotations

from pulsarctl_wire.views.content import Content, Shown
from pulsarctl_wire.views.values import plain_text
from pulsarctl_wire.wire import PulsarApi_pb2

_STRING = PulsarApi_pb2.Schema.String


def score(content: Content) -> float:
    """1 for the String schema, 0.5 for UTF-8 that looks like text, else 0."""
    if content.schema is not None and content.schema.type == _STRING:
        return 1.0
    return 0.0 if plain_text(content.payload) is None else 0.5


def show(content: Content) -> Shown:
    """The payload as UTF-8 text, control characters included; UnicodeDecodeError if it is none."""
    return Shown("text", content.payload.decode())
