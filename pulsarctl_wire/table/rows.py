"""Makes rows one by one, for gaps and connections. frames.py makes the rows of frames in batches."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from pulsarctl_wire.capture.hosts import host_of
from pulsarctl_wire.capture.series import series_of
from pulsarctl_wire.wire.frame import PACKET_OFFSET_BITS, PACKET_OFFSET_MASK, Event, Malformed
from pulsarctl_wire.wire.framing.foreign import SIGNATURE_SIZE
from pulsarctl_wire.wire.framing.redaction import mask_event
from pulsarctl_wire.wire.hashing import uid_of
from pulsarctl_wire.wire.session.ending import EndedConnection
from pulsarctl_wire.wire.session.greeting import Greeting

Row = dict[str, Any]
"""Column -> value; a column that is missing is null."""


class RowMaker:
    """Makes rows. The arguments are those of `TableBuilder`."""

    def __init__(
        self, sources: Sequence[str] | Mapping[int, str], cluster: str | None, host: str | None
    ) -> None:
        self._sources = sources
        self._cluster = cluster
        self._host = host

    def _make_packet_fields(self, packet: int, time_ns: int | None) -> Row:
        file = self._sources[packet >> PACKET_OFFSET_BITS]
        return {
            "file": file,
            "series": series_of(file),
            "cluster": self._cluster,
            "host": host_of(file, self._host),
            "packet_offset": packet & PACKET_OFFSET_MASK,
            "time_ns": time_ns,
        }

    def make_event_fields(self, event: Event) -> Row:
        """Return where an event is: the columns that the rows of all events have."""
        ends = event.connection.client, event.connection.server
        source, target = map(parse_address, ends if event.to_broker else ends[::-1])
        return self._make_packet_fields(event.packet, event.time_ns) | {
            **{"src_ip": source[0], "src_port": source[1], "dst_ip": target[0], "dst_port": target[1]},
            "connection": event.connection.index,
            "uid": uid_of(event.connection),
            "to_broker": event.to_broker,
            "stream_offset": event.offset,
        }

    def make_gap_row(self, event: Event) -> Row:
        """Return the row of a gap, or of malformed bytes."""
        reported_ns, place = event.reported or (None, None)
        row = self.make_event_fields(event)
        row |= {"kind": "gap", "size": event.size, "reported_ns": reported_ns, "reported_place": place}
        if isinstance(event, Malformed):
            row |= {"kind": "malformed", "reason": event.reason}
            row |= {"protocol": event.protocol or None, "head": mask_event(event)[:SIGNATURE_SIZE]}
        return row

    def make_connection_row(self, ending: EndedConnection) -> Row:
        """Return the row of a connection. If its state has no `greeting`, the greeting's columns are null."""
        connection = ending.connection
        client, server = parse_address(connection.client), parse_address(connection.server)
        greeting = getattr(ending.state, "greeting", None) or Greeting()
        return self._make_packet_fields(ending.packet, ending.time_ns) | {
            "connection": connection.index,
            "uid": uid_of(connection),
            **{"client_ip": client[0], "client_port": client[1]},
            **{"server_ip": server[0], "server_port": server[1]},
            "broker": connection.broker or connection.server or None,
            "protocol": ending.protocol,
            **greeting._asdict(),
            **{"syns": ending.syns, "joined": ending.joined},
            **{"end": ending.end, "by_broker": ending.by_broker, "both": ending.both},
            **{"end_ns": ending.end_ns, "last_ns": ending.last_ns},
            **{"bytes_to_client": ending.sizes[0], "bytes_to_broker": ending.sizes[1]},
        }


@lru_cache(4_096)
def parse_address(text: str) -> tuple[str | None, int | None]:
    """Return the IP address and port of "address:port"; None, None for an empty text."""
    host, _, port = text.rpartition(":")
    return (host.strip("[]"), int(port)) if host else (None, None)
