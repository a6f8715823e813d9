"""Opens the records of one TLS connection: bytes of both directions in, plain bytes and facts out.

Records are opened in order within their direction. What cannot be opened yet, because its secret may still
come or because only later records will show its number, waits, at most `limit` bytes of it. Plain bytes come
out in the order in which their records were captured, so those of one direction may wait for the other one.
Whatever comes in, nothing raises.
"""

from collections import deque
from typing import Final, NamedTuple

from pulsarctl_wire.capture.tls.facts import TlsFacts
from pulsarctl_wire.capture.tls.keylog import KeyLog
from pulsarctl_wire.capture.tls.opening import Opening
from pulsarctl_wire.capture.tls.records import (
    APPLICATION_DATA,
    HEADER_SIZE,
    Record,
    is_header,
    is_old_hello,
)
from pulsarctl_wire.capture.tls.sides import Entry, Side

MAX_HELD: Final = 4 * 1024 * 1024
"""Bytes of a connection that wait to be opened."""
_OLD_HELLO: Final = "the ClientHello has the form of SSL 2.0, which is not understood"


class Piece(NamedTuple):
    """Plain bytes, in the order in which their records were captured."""

    from_client: bool
    """As the caller named the direction."""
    data: bytes
    """Empty if bytes are missing at the end."""
    missing: int
    """Roughly how many plain bytes are lost before these."""
    time_ns: int | None
    packet: int


class TlsConnection:
    """A TLS connection, which the secrets in `keylog` may open.

    `limit` bounds the bytes that wait; beyond it, records whose secret is still missing are given up.
    """

    def __init__(self, keylog: KeyLog, *, limit: int = MAX_HELD) -> None:
        self._keylog = keylog
        self._version = keylog.version
        self._limit = limit
        self._facts = TlsFacts()
        self._client = Side(True, self._facts.client)
        self._server = Side(False, self._facts.server)
        self._opening = Opening(keylog, self._facts, self._client, self._server)
        self._queue: deque[Entry] = deque()
        self._queue_bytes = 0
        self._last: tuple[int | None, int] = None, 0

    @staticmethod
    def looks_like_tls(head: bytes) -> bool | None:
        """Return whether one direction's first bytes begin a TLS record; None if more bytes are needed."""
        if is_old_hello(head):
            return True
        if len(head) < HEADER_SIZE:
            return None if is_header(head) or head[:1] >= b"\x80" else False
        return is_header(head)

    @property
    def facts(self) -> TlsFacts:
        """What is known so far."""
        return self._facts

    @property
    def held_bytes(self) -> int:
        """The memory of what waits: records that are not whole, and those that are not opened yet."""
        return self._queue_bytes + self._client.reader.held_bytes + self._server.reader.held_bytes

    def take(self, from_client: bool, data: bytes, time_ns: int | None, packet: int) -> list[Piece]:
        """Take the next bytes of a direction; return what can be read now."""
        side = self._client if from_client else self._server
        reader = side.reader
        pieces: list[Piece] = []
        self._last = time_ns, packet
        while True:  # twice if the reader gets lost: then the rest is searched for the next record
            was_lost, lost_bytes = reader.is_lost, reader.lost_bytes
            records = reader.take(data)
            if was_lost and reader.lost_bytes > lost_bytes:
                self._mark_hole(side, reader.lost_bytes - lost_bytes, pieces)
            if records:
                self._take_records(side, records, time_ns, packet, pieces)
            if was_lost or not reader.is_lost:
                return pieces
            if not records and not side.facts.records and is_old_hello(data):
                for each in (self._client, self._server):
                    self._opening.close(each, _OLD_HELLO)
            self._mark_hole(side, 0, pieces)
            data = b""

    def gap(self, from_client: bool, size: int, time_ns: int | None, packet: int) -> list[Piece]:
        """Note that the next `size` bytes of a direction were not captured; return what can be read now."""
        side = self._client if from_client else self._server
        pieces: list[Piece] = []
        self._last = time_ns, packet
        records, rest = side.reader.skip(size)
        if records:
            self._take_records(side, records, time_ns, packet, pieces)
        if rest:
            self._mark_hole(side, rest, pieces)
        return pieces

    def retry(self) -> list[Piece]:
        """Return what can be read now that the key log has more secrets."""
        pieces: list[Piece] = []
        if self._keylog.version != self._version:
            self._advance(pieces)
        return pieces

    def give_up(self) -> list[Piece]:
        """Let nothing wait any longer; return what can be read. What comes later may be read nevertheless."""
        pieces: list[Piece] = []
        self._give_up(pieces)
        return pieces

    def end(self) -> list[Piece]:
        """Take no more bytes: return what waits, as far as it can be read, and what is missing at the end."""
        pieces = self.give_up()
        time_ns, packet = self._last
        for side in (self._client, self._server):
            if side.missing and side.facts.plain_bytes:
                pieces.append(Piece(side.from_client, b"", side.missing, time_ns, packet))
            side.missing = 0
        return pieces

    def _take_records(
        self, side: Side, records: list[Record], time_ns: int | None, packet: int, pieces: list[Piece]
    ) -> None:
        parts: list[bytes] = []
        holes = side.reader.take_holes() if side.reader.holes else []
        for header, body in records:
            opener = None if holes else side.opener
            if opener is not None and side.is_placed and not self._queue and header[0] == APPLICATION_DATA:
                plain = opener.open(side.number, header, body)  # the usual case
                if plain is not None:
                    side.number += 1
                    side.opened += 1
                    side.facts.records += 1
                    if not opener.is_13:
                        parts.append(plain)
                    elif plain.endswith(b"\x17"):
                        parts.append(plain[:-1])
                    else:
                        parts.append(self._opening.take_inner(side, 0, plain, time_ns, packet))
                    continue
            if parts:
                self._put(side, b"".join(parts), time_ns, packet, pieces)
                parts = []
            entry = Entry(side.from_client, header, body, time_ns, packet)
            entry.holes, holes = holes, []
            self._add(side, entry, pieces)
        if parts:
            self._put(side, b"".join(parts), time_ns, packet, pieces)

    def _put(self, side: Side, data: bytes, time_ns: int | None, packet: int, pieces: list[Piece]) -> None:
        """Pass application data on."""
        if data:
            side.facts.plain_bytes += len(data)
            pieces.append(Piece(side.from_client, data, side.missing, time_ns, packet))
            side.missing = 0

    def _mark_hole(self, side: Side, size: int, pieces: list[Piece]) -> None:
        """Add a hole of `size` lost bytes, after which it is not known which record comes next."""
        time_ns, packet = self._last
        entry = Entry(side.from_client, b"", b"", time_ns, packet)
        entry.missing = size
        side.holes += 1
        self._add(side, entry, pieces)

    def _add(self, side: Side, entry: Entry, pieces: list[Piece]) -> None:
        self._queue.append(entry)
        side.waiting.append(entry)
        self._queue_bytes += entry.size
        self._advance(pieces)
        if self._queue_bytes > self._limit:
            self._give_up(pieces)

    def _advance(self, pieces: list[Piece]) -> None:
        """Open what can be opened, and pass on the plain bytes of records up to the first one that waits."""
        if self._keylog.version != self._version:
            self._version = self._keylog.version
            self._opening.reopen()
        sides = self._client, self._server
        while sum([self._advance_side(side) for side in sides]):
            pass
        queue = self._queue
        while queue and queue[0].is_done:
            entry = queue.popleft()
            self._queue_bytes -= entry.size
            side = self._client if entry.from_client else self._server
            for missing, data in ((entry.missing, entry.data), *entry.more):
                if data:
                    side.facts.plain_bytes += len(data)
                    pieces.append(Piece(entry.from_client, data, missing, entry.time_ns, entry.packet))

    def _advance_side(self, side: Side) -> int:
        """Open the records of a side up to the first one that must wait; return their number."""
        waiting, number = side.waiting, 0
        while waiting and self._opening.step(side, waiting[0]):
            waiting.popleft()
            number += 1
        return number

    def _give_up(self, pieces: list[Piece]) -> None:
        """Let nothing wait any longer."""
        self._opening.is_final = True
        self._advance(pieces)
        self._opening.is_final = False
