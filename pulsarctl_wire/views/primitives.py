"""Pulsar's primitive schemas: fixed-size big-endian numbers, dates and times.

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
from pulsarctl_wire.views.values import DAY, NANOS, double, iso_date, iso_time, iso_timestamp, single
from pulsarctl_wire.wire import PulsarApi_pb2

_MILLI = 1_000_000  # nanoseconds


def _time(millis: int) -> str | None:
    # java.sql.Time holds the writer's local midnight, so east of Greenwich it begins before 1970.
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
_FORMS: dict[int, tuple[str, struct.Struct, Callable[..., Json]]] = {
    _Schema.Bool: ("bool", struct.Struct(">?"), bool),
    _Schema.Int8: ("int8", struct.Struct(">b"), _number),
    _Schema.Int16: ("int16", struct.Struct(">h"), _number),
    _Schema.Int32: ("int32", struct.Struct(">i"), _number),
    _Schema.Int64: ("int64", struct.Struct(">q"), _number),
    _Schema.Float: ("float", struct.Struct(">f"), single),
    _Schema.Double: ("double", struct.Struct(">d"), double),
    _Schema.Date: ("date", struct.Struct(">q"), _timestamp),
    _Schema.Time: ("time", struct.Struct(">q"), _time),
    _Schema.Timestamp: ("timestamp", struct.Struct(">q"), _timestamp),
    _Schema.Instant: ("instant", struct.Struct(">qi"), _instant),
    _Schema.LocalDate: ("localdate", struct.Struct(">q"), iso_date),
    _Schema.LocalTime: ("localtime", struct.Struct(">q"), iso_time),
    _Schema.LocalDateTime: ("localdatetime", struct.Struct(">qq"), _local_date_time),
}


def score(content: Content) -> float:
    """1 for a primitive schema other than String, else 0."""
    return 1.0 if content.schema is not None and content.schema.type in _FORMS else 0.0


def show(content: Content) -> Shown:
    """The number, boolean, date or time; ValueError when the payload has another size.

    A date that ISO 8601 cannot write is shown as the stored integer, or list of integers.
    """
    assert content.schema is not None, "score() was 0"
    name, form, readable = _FORMS[content.schema.type]
    if len(content.payload) != form.size:
        raise ValueError(f"the payload has {len(content.payload)} bytes, not {form.size}")
    stored: tuple[Any, ...] = form.unpack(content.payload)
    value = readable(*stored)
    if value is not None:
        return Shown(name, value)
    return Shown(name, stored[0] if len(stored) == 1 else list(stored), "Out of range: shown as stored.")
