"""Payload views: show an application's bytes in a form that people can read.

    from pulsarctl_wire.views import Content, encode, parse_schema, show

    show(Content(b"hello"))                               # Shown("text", "hello")
    show(Content(payload, parse_schema("avro:user.avsc")))  # Shown("avro", {"id": 7, ...})
    encode(b'{"id": 7}', parse_schema("avro:user.avsc"))    # Encoded(b"\\x0e"), the inverse

The first view that fits a payload's schema shows it. Without a schema the payload is shown as text or
hexadecimal digits: nothing is guessed. To add a view, write a module with ``fits`` and ``show``, and add
it to VIEWS.

Payload and schema are untrusted: `show` never raises, and keeps the limits in ``content.py`` of depth and
number of values. Libraries that a schema type needs are imported when the first such schema is used.
"""

from __future__ import annotations

from pulsarctl_wire.views import avro, json_view, primitives, protobuf
from pulsarctl_wire.views.content import (
    FAILED_COST,
    MAX_FRAME_VALUES,
    Content,
    Shown,
    ValueBudget,
    View,
    reason,
)
from pulsarctl_wire.views.encoding import Encoded, encode
from pulsarctl_wire.views.keyvalue import KeyValueView
from pulsarctl_wire.views.schemas import parse_schema
from pulsarctl_wire.views.values import plain_text
from pulsarctl_wire.wire import PulsarApi_pb2

__all__ = [
    "MAX_FRAME_VALUES",
    "VIEWS",
    "Content",
    "Encoded",
    "Shown",
    "ValueBudget",
    "View",
    "encode",
    "parse_schema",
    "show",
    "show_plain",
]


def show_plain(payload: bytes) -> tuple[str, str]:
    """Return the view and value of a payload without schema (the usual case): text, or hexadecimal digits."""
    text = plain_text(payload)
    return ("hex", payload.hex()) if text is None else ("text", text)


def show(content: Content) -> Shown:
    """Show ``content`` with the first view that fits its schema. Never raises.

    If no view fits, or if the view fails, the payload is shown as text or hexadecimal digits. If the view
    failed, a note says why.
    """
    schema = content.schema
    view = None if schema is None else next((view for view in VIEWS if view.fits(schema)), None)
    note = None
    if schema is not None and view is not None:
        try:
            return view.show(content)
        except Exception as error:  # hostile bytes may cause any kind of error
            content.budget.values -= FAILED_COST
            kind = PulsarApi_pb2.Schema.Type.Name(schema.type)
            note = f"Not shown by its {kind} schema: {reason(error)}."
    return Shown(*show_plain(content.payload), note)


VIEWS: tuple[View, ...] = (json_view, avro, protobuf, KeyValueView(show), primitives)
"""All views; the first one that fits a schema is used."""
