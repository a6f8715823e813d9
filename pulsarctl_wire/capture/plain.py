"""Copies captures with TLS opened: connections whose records can be opened become plain ones.

Their packets are made up, as those of a recording are; all others stay as they are.
"""

from collections.abc import Callable, Iterator
from typing import BinaryIO

from pulsarctl_wire.capture.files import RawPacket
from pulsarctl_wire.capture.packets import Dissector, address_of, reverse
from pulsarctl_wire.capture.recording import SessionWriter
from pulsarctl_wire.capture.sources import Decoder, Reading
from pulsarctl_wire.wire.frame import Connection, Event
from pulsarctl_wire.wire.session.ending import RESET, EndedConnection
from pulsarctl_wire.wire.session.state import State

Read = Callable[[Decoder], Iterator[list[Event]]]
"""Lets a decoder read the sources, from their beginning each time."""


def copy_plain(read: Read, reading: Reading, stream: BinaryIO) -> int:
    """Write the packets of sources to `stream`; return how many connections were opened.

    The sources are read twice: only at its end is it certain whether a connection can be opened. Raises
    CaptureError if a key log cannot be read, and OSError if the stream cannot be written.
    """
    opened: set[tuple[str, str]] = set()

    def note(ending: EndedConnection) -> None:
        connection = ending.connection
        if connection.tls is not None and connection.tls.is_opened:
            opened.add((connection.client, connection.server))

    _drain(Decoder(reading, join_chunks=False, new_state=State, on_end=note), read)
    writer = _PlainWriter(stream, opened)
    decoder = Decoder(reading, join_chunks=False, new_state=State, on_end=writer.end, tee=writer.see)
    decoder.secrets.on_plain = writer.take
    _drain(decoder, read)
    return writer.count


def _drain(decoder: Decoder, read: Read) -> None:
    for _ in read(decoder):
        pass
    for _ in decoder.finish():
        pass


class _PlainWriter(SessionWriter):
    """Writes the packets of all connections but the `opened` ones, of which it writes the plain bytes."""

    def __init__(self, stream: BinaryIO, opened: set[tuple[str, str]]) -> None:
        super().__init__(stream)
        self.count = 0
        self._opened = opened
        self._dissector = Dissector()
        self._begun: set[int] = set()

    def see(self, number: int, packet: RawPacket) -> None:
        """Copy a packet, unless it belongs to an opened connection."""
        _, link, data, length = packet
        segment = self._dissector.segment(link, data, length)
        if segment is not None:
            ends = address_of(segment[0]), address_of(reverse(segment[0]))
            if ends in self._opened or ends[::-1] in self._opened:
                return
        self._writer.write(packet)

    def take(
        self, connection: Connection, from_client: bool, data: bytes, missing: int, time_ns: int | None
    ) -> None:
        """Write what was in TLS records, after a hole of `missing` bytes."""
        if connection.index not in self._begun:
            self._begun.add(connection.index)
            self.count += 1
            self.opened(connection, time_ns or 0)
        if missing:
            self.gap(connection, from_client, missing, time_ns or 0)
        if data:
            self.carried(connection, from_client, data, time_ns or 0)

    def end(self, ending: EndedConnection) -> None:
        """Write the end of an opened connection, if it was seen."""
        connection = ending.connection
        if connection.index in self._begun and ending.by_broker is not None:
            by_broker = ending.by_broker is not connection.flipped
            self.closed(connection, ending.end_ns or 0, by_broker, reset=ending.end == RESET)
