"""The view of payloads with a primitive schema: text, and fixed-size big-endian numbers, dates and times.

The layouts are those of the Java client's schema classes (LongSchema, InstantSchema and so on):

    Bool, Int8          1 byte          Float           4 bytes, IEEE 754 binary32
    Int16               2 bytes         Double          8 bytes, IEEE 754 binary64
    Int32               4 bytes         Instant         int64 seconds, int32 nanoseconds
    Int64               8 bytes         LocalDate       int64 days since 1970-01-01
    Date, Timestamp     int64 ms        LocalTime       int64 nanoseconds of the day
    Time                int64 ms        LocalDateTime   int64 days, int64 nanoseconds of the day

Date, Time and Timestamp count from 1970-01-01T00:00Z.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from pulsarctl_wire.views.content import Content, Json, Shown
from pulsarctl_wire.views.values import DAY, NANOS, iso_date, iso_time, iso_timestamp, to_double, to_single
from pulsarctl_wire.wire import PulsarApi_pb2

_MILLI = 1_000_000  # nanoseconds


def _time(millis: int) -> str | None:
    # java.sql.Time is a time of day on 1970-01-01 in the writer's time zone: east of Greenwich, early hours
    # are before 1970 in UTC.
    nanos = millis * _MILLI
    return iso_time(nanos) or iso_timestamp(nanos)


def _instant(seconds: int, nanos: int) -> str | None:
    return iso_timestamp(seconds * NANOS + nanos) if 0 <= nanos < NANOS else None


def _local_date_time(days: int, nanos: int) -> str | None:
    return iso_timestamp(days * DAY * NANOS + nanos, zone="") if 0 <= nanos < DAY * NANOS else None


def _timestamp(millis: int) -> str | None:
    return iso_timestamp(millis * _MILLI)


def _number(number: int) -> int:
    return number


_Schema = PulsarApi_pb2.Schema
FORMS: dict[int, tuple[struct.Struct, Callable[..., Json]]] = {
    _Schema.Bool: (struct.Struct(">?"), bool),
    _Schema.Int8: (struct.Struct(">b"), _number),
    _Schema.Int16: (struct.Struct(">h"), _number),
    _Schema.Int32: (struct.Struct(">i"), _number),
    _Schema.Int64: (struct.Struct(">q"), _number),
    _Schema.Float: (struct.Struct(">f"), to_single),
    _Schema.Double: (struct.Struct(">d"), to_double),
    _Schema.Date: (struct.Struct(">q"), _timestamp),
    _Schema.Time: (struct.Struct(">q"), _time),
    _Schema.Timestamp: (struct.Struct(">q"), _timestamp),
    _Schema.Instant: (struct.Struct(">qi"), _instant),
    _Schema.LocalDate: (struct.Struct(">q"), iso_date),
    _Schema.LocalTime: (struct.Struct(">q"), iso_time),
    _Schema.LocalDateTime: (struct.Struct(">qq"), _local_date_time),
}
"""Layout of each type, and the function that makes its values readable."""


def fits(schema: PulsarApi_pb2.Schema) -> bool:
    """Return whether ``schema`` is a primitive schema."""
    return schema.type == _Schema.String or schema.type in FORMS


def show(content: Content) -> Shown:
    """Read the text, number, boolean, date or time; ValueError if it is not UTF-8, or has the wrong size.

    A date that ISO 8601 cannot write is shown as the stored integer, or list of integers.
    """
    assert content.schema is not None
    if content.schema.type == _Schema.String:
        return Shown("text", content.payload.decode())
    layout, convert = FORMS[content.schema.type]
    if len(content.payload) != layout.size:
        raise ValueError(f"the payload has {len(content.payload)} bytes, not {layout.size}")
    numbers: tuple[Any, ...] = layout.unpack(content.payload)
    name, value = _Schema.Type.Name(content.schema.type).lower(), convert(*numbers)
    if value is not None:
        return Shown(name, value)
    return Shown(name, numbers[0] if len(numbers) == 1 else list(numbers), "Out of range: shown as stored.")
