"""Payload views: an application's bytes as something a person can read.

    from pulsarctl_wire.views import Content, parse_schema, show

    show(Content(b"hello"))                               # Shown("text", "hello")
    show(Content(payload, parse_schema("avro:user.avsc")))  # Shown("avro", {"id": 7, ...})
    encode(b'{"id": 7}', parse_schema("avro:user.avsc"))    # Encoded(b"\\x0e"), the way back

Every view scores a payload with its schema and the best one shows it. Without a schema that is
text or hexadecimal digits: nothing is guessed. To add a view, write a module with ``score`` and
``show`` and add it to VIEWS.

Payload and schema are untrusted: `show` raises nothing, goes no deeper and builds no more than
the limits in ``content.py``. What a schema's type needs beyond the standard library is imported
when the first such schema comes.
"""

from __future__ import annotations

from pulsarctl_wire.views import avro, hex_view, json_view, keyvalue, primitives, protobuf, text
from pulsarctl_wire.views.content import FAILED_COST, MAX_FRAME_VALUES, Content, Room, Shown, View, reason
from pulsarctl_wire.views.encoding import Encoded, encode
from pulsarctl_wire.views.schemas import parse_schema
from pulsarctl_wire.views.values import plain_text
from pulsarctl_wire.wire import PulsarApi_pb2

__all__ = [
    "MAX_FRAME_VALUES",
    "VIEWS",
    "Content",
    "Encoded",
    "Room",
    "Shown",
    "View",
    "encode",
    "parse_schema",
    "show",
    "show_plain",
]

VIEWS: tuple[View, ...] = (json_view, avro, protobuf, keyvalue, primitives, text, hex_view)
"""All views; of equal scores the first wins. Text comes late: it looks at every byte."""


def show_plain(payload: bytes) -> tuple[str, str]:
    """The view and value of a payload without schema, which most are: text, else hexadecimal digits."""
    text_value = plain_text(payload)
    return ("hex", payload.hex()) if text_value is None else ("text", text_value)


def show(content: Content) -> Shown:
    """``content`` by the view with the highest score; never raises.

    When that view fails, the payload is shown as if it had no schema, as text or hexadecimal
    digits, and a note says why.
    """
    if content.schema is None:
        return Shown(*show_plain(content.payload))
    best, high = VIEWS[0], -1.0
    for view in VIEWS:
        score = view.score(content)
        if score > high:
            best, high = view, score
            if score >= 1.0:
                break
    try:
        return best.show(content)
    except Exception as error:  # hostile bytes find ways to fail that no list foresees
        content.room.values -= FAILED_COST
        return show(Content(content.payload))._replace(note=_why(content, error))


def _why(content: Content, error: Exception) -> str:
    # Without a schema the views are text and hex, which can fail for want of memory only.
    if content.schema is None:
        return f"Not shown: {reason(error)}."
    kind = PulsarApi_pb2.Schema.Type.Name(content.schema.type)
    return f"Not shown by its {kind} schema: {reason(error)}."
