"""Parses what Netty's LoggingHandler logs of a channel: its id, addresses, READ or WRITE, and a hex dump.

    12:00:00.123 [io-1] DEBUG Handler - [id: 0x1c2d3e4f, L:/10.0.0.1:5000 - R:b/10.0.0.2:6650] WRITE: 45B
             +-------------------------------------------------+
             |  0  1  2  3  4  5  6  7  8  9  a  b  c  d  e  f |
    +--------+-------------------------------------------------+----------------+
    |00000000| 00 00 00 29 00 00 00 25 08 02 12 21 0a 11 50 75 |...)...%...!..Pu|

Netty 3 and 4.0 write `/10.0.0.1:5000 => b/10.0.0.2:6650`, Reactor Netty `[1c2d3e4f-1, L:...`. Collectors
of logs put something in front of every line.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from pulsarctl_wire.capture.text.dump import Dump, LogConnection
from pulsarctl_wire.capture.text.lines import Line
from pulsarctl_wire.capture.text.times import time_in
from pulsarctl_wire.errors import CaptureError

MAX_CHANNELS: Final = 4_096
"""Channels whose addresses are known from an earlier line; the least recently used are forgotten."""

_EVENT: Final = re.compile(
    r"\[(?:id: )?(?:0x)?(?P<id>[0-9a-f]{8}(?:[0-9a-f]{8,64})?(?:-[0-9]+)?)(?:, (?P<ends>[^\s,].{0,600}?))?\] "
    r"(?P<event>READ COMPLETE|[A-Z_]+)\b(?:[:(] ?(?P<rest>[^\\\"]*))?"  # the line may be JSON
)
_ENDS: Final = re.compile(r"(?:L:)?(?P<near>\S+)(?: (?:-|!|=>|:>|<=|<:) (?:R:)?(?P<far>\S+))?")
_SIZE: Final = re.compile(r"(?:^|[ ,(])([0-9]{1,10})B?\)?$")
_ROW: Final = re.compile(r"\|([0-9a-f]{8})\| ((?:[0-9a-f]{2} ){1,16}) *(?:\||$)")
_OLD_DUMP: Final = re.compile(r"\(HEXDUMP: ([0-9a-f]+)\)")
_IN: Final = {"READ", "RECEIVED"}
_OUT: Final = {"WRITE"}


def parse_netty(lines: Iterable[Line]) -> Iterator[Dump]:
    """Parse a log of Netty's LoggingHandler among other lines.

    Raises CaptureError at a dump that contradicts itself, or at the end if only sizes were logged.
    """
    channels: dict[str, LogConnection] = {}
    record: Dump | None = None
    size = 0
    data = bytearray()
    first_size_line = 0
    has_dumps = False
    for number, line in lines:
        if record is not None and (match := _ROW.search(line)):
            if int(match[1], 16) != len(data):
                raise CaptureError(f"line {number}: the offset is {match[1]}, expected {len(data):08x}")
            data += bytes.fromhex(match[2])
            has_dumps = True
            continue
        event = _EVENT.search(line)
        if event is None:
            continue
        if record is not None:
            yield _finish(record, data, size)
            record = None
        connection = _connection_of(event, channels)
        time_ns = time_in(line[: event.start()])
        kind = event["event"]
        if kind in _IN or kind in _OUT:
            size_match = _SIZE.search(event["rest"] or "")
            if size_match is None:
                continue  # a message that is no buffer
            size = int(size_match[1])
            first_size_line = first_size_line or number
            data = bytearray(bytes.fromhex(dump[1]) if (dump := _OLD_DUMP.search(line)) else b"")
            has_dumps |= bool(data)
            record = Dump(b"", time_ns, connection=connection, is_inbound=kind in _IN, line=number)
        elif kind in ("CLOSE", "INACTIVE"):
            is_inbound = kind == "INACTIVE"
            yield Dump(b"", time_ns, connection=connection, is_inbound=is_inbound, is_last=True, line=number)
    if record is not None:
        yield _finish(record, data, size)
    if first_size_line and not has_dumps:
        raise CaptureError(
            f"line {first_size_line}: only the sizes are logged, not the bytes; "
            "make the LoggingHandler with ByteBufFormat.HEX_DUMP"
        )


def _finish(record: Dump, data: bytearray, size: int) -> Dump:
    return replace(record, data=bytes(data), missing=max(size - len(data), 0))


def _connection_of(event: re.Match[str], channels: dict[str, LogConnection]) -> LogConnection:
    """Return the channel of an event, with the ends that this line or an earlier one names."""
    name = event["id"]
    connection = channels.pop(name, LogConnection(name))
    ends = _ENDS.match(event["ends"] or "")
    if ends is not None and ends["far"]:
        connection = connection._replace(near=ends["near"], far=ends["far"])
    if event["event"] == "CONNECT":
        connection = connection._replace(client="near")
    channels[name] = connection
    if len(channels) > MAX_CHANNELS:
        del channels[next(iter(channels))]
    return connection
