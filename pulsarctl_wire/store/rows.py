"""Packs events as rows of plain data in segments, and makes events from rows again.

The row of a frame has its bytes, and what its connection's state knew. The rest is read from the bytes again.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

from pulsarctl_wire.errors import StoreError
from pulsarctl_wire.store.segment import Segment, Special, encode
from pulsarctl_wire.wire.encryption import Seal
from pulsarctl_wire.wire.frame import Connection, Event, Frame, Gap, HttpMessage, Malformed
from pulsarctl_wire.wire.frame_entry import build_cut_frame, read_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import Schema

_CONNECTION: Final[Sequence[str]] = ["index", "client", "server", "broker", "listener", "since", "flipped"]
_PLACE: Final[Sequence[str]] = ["to_broker", "offset", "time_ns", "packet", "packets", "reported"]
_HTTP: Final[Sequence[str]] = [
    *("size", "status", "method", "target", "kind", "topic", "namespace", "latency_ns", "partial"),
]

_pack_connection: Final = attrgetter(*_CONNECTION)
_pack_malformed: Final = attrgetter(*_PLACE, "reason", "raw", "size", "protocol")
_pack_gap: Final = attrgetter(*_PLACE, "size")
_pack_http: Final = attrgetter(*_PLACE, *_HTTP, "fields")


def pack(events: Sequence[Event]) -> bytes:
    """Pack events into a segment."""
    frames = [event for event in events if event.__class__ is Frame]
    others = [] if len(frames) == len(events) else _pack_others(events)
    connections = {event.connection.index: event.connection for event in events}
    specials: dict[int, Special] = {}
    schemas: dict[bytes, int] = {}
    for index, frame in enumerate(frames):
        if frame.schema is not None or frame.joined is not None:
            specials[index] = _pack_special(frame, schemas)
    rows = [_pack_frame(frame) for frame in frames]
    return encode((list(map(_pack_connection, connections.values())), rows, others, specials, list(schemas)))


def _pack_frame(frame: Frame) -> tuple[Any, ...]:
    """Return a frame's row: its connection, its bytes, its `_PLACE`, and what its bytes do not tell."""
    # fmt: off
    return (
        frame.connection.index, frame.raw, frame.partial, frame.to_broker, frame.offset, frame.time_ns,
        frame.packet, frame.packets, frame.reported, frame.number, frame.start_ns, frame.topic,
        frame.subscription, frame.producer, frame.sent, frame.request, frame.request_offset,
        frame.request_type, frame.resend_of, frame.latency_ns, frame.notes,
    )
    # fmt: on


def _pack_special(frame: Frame, schemas: dict[bytes, int]) -> Special:
    schema = -1
    if frame.schema is not None:
        schema = schemas.setdefault(frame.schema.SerializePartialToString(), len(schemas))
    return Special(frame.joined, list(frame.seals), schema)  # type: ignore[arg-type]


def _pack_others(events: Sequence[Event]) -> list[tuple[int, int, str, Any]]:
    rows: list[tuple[int, int, str, Any]] = []
    for position, event in enumerate(events):
        index = event.connection.index
        if isinstance(event, Malformed):
            rows.append((position, index, "malformed", _pack_malformed(event)))
        elif isinstance(event, Gap):
            rows.append((position, index, "gap", _pack_gap(event)))
        elif isinstance(event, HttpMessage):
            request = None if event.request is None else _pack_http(event.request)
            rows.append((position, index, "http", (_pack_http(event), request)))
    return rows


def restore(segment: Segment) -> list[Event]:
    """Make the events of a segment again. Raises StoreError if it is damaged."""
    try:
        return _restore(segment)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise StoreError(f"a segment is damaged: {error}") from error


def _restore(segment: Segment) -> list[Event]:
    connections = {}
    for row in segment.connections:
        connection = connections[row[0]] = Connection(row[0])
        _set_fields(connection, _CONNECTION, row)
    schemas = list(map(Schema.FromString, segment.schemas))
    events: list[Event] = [_restore_frame(values, connections) for values in segment.frames]
    for index, special in segment.specials.items():
        frame: Any = events[index]
        frame.joined = special.joined
        frame.seals = [(None if seal is None else _seal(*seal), size) for seal, size in special.seals]
        frame.schema = schemas[special.schema] if special.schema >= 0 else None
    for position, index, kind, values in segment.others:
        events.insert(position, _restore_other(kind, values, connections[index]))
    return events


def _seal(nonce: bytes, recipients: list[tuple[str, bytes]]) -> Seal:
    return Seal(nonce, tuple(recipients))


def _set_fields(target: Any, names: Sequence[str], values: Sequence[Any]) -> None:
    for name, value in zip(names, values, strict=True):
        is_pair = name == "reported" and value is not None
        setattr(target, name, tuple(value) if is_pair else value)  # msgpack has only lists


def _restore_frame(row: list[Any], connections: dict[int, Connection]) -> Frame:
    index, raw, partial, to_broker, offset, time_ns, packet, packets, reported, *fields = row
    make = build_cut_frame if partial else read_frame
    frame = make(raw, connections[index], to_broker, offset, time_ns, packet)
    frame.packets, frame.reported = packets, None if reported is None else tuple(reported)
    frame.number, frame.start_ns, frame.topic, frame.subscription, frame.producer = fields[:5]
    sent, frame.request, frame.request_offset, frame.request_type, frame.resend_of = fields[5:10]
    frame.latency_ns, frame.notes = fields[10:]
    frame.sent = None if sent is None else tuple(sent)
    return frame


def _restore_other(kind: str, values: list[Any], connection: Connection) -> Event:
    if kind == "gap":
        gap = Gap(0, connection, True)
        _set_fields(gap, (*_PLACE, "size"), values)
        return gap
    if kind == "malformed":
        malformed = Malformed("", b"", 0, connection, True)
        _set_fields(malformed, (*_PLACE, "reason", "raw", "size", "protocol"), values)
        return malformed
    message = HttpMessage(connection, True)
    _set_fields(message, (*_PLACE, *_HTTP, "fields"), values[0])
    if values[1] is not None:
        message.request = HttpMessage(connection, True)
        _set_fields(message.request, (*_PLACE, *_HTTP, "fields"), values[1])
    return message
