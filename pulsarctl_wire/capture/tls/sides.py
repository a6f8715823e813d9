"""Keeps one direction of a TLS connection: its records, its key, and what waits to be opened."""

from collections import deque
from typing import Final

from pulsarctl_wire.capture.tls.facts import DirectionFacts
from pulsarctl_wire.capture.tls.records import RecordReader
from pulsarctl_wire.capture.tls.schedule import Opener, next_secret, open_13

CLEAR: Final = 0
EARLY: Final = 1
"""A client's early data (0-RTT), as far as it offered some."""
HANDSHAKE: Final = 2
"""The handshake of TLS 1.3, once it is encrypted."""
APPLICATION: Final = 3
"""Everything encrypted in TLS 1.2; what comes after the handshake in TLS 1.3."""

ENTRY_COST: Final = 512
"""Memory for a record that waits, besides its bytes."""


class Entry:
    """A record that waits for its turn: for a secret, or for earlier ones of the other direction.

    Without a header it is a hole: lost records, and it is not known how many.
    """

    __slots__ = (
        *("body", "data", "from_client", "header", "holes", "is_done", "missing", "more"),
        *("packet", "size", "time_ns"),
    )

    def __init__(
        self, from_client: bool, header: bytes, body: bytes, time_ns: int | None, packet: int
    ) -> None:
        self.from_client = from_client
        self.header = header
        self.body = body
        self.time_ns = time_ns
        self.packet = packet
        self.is_done = False
        self.data = b""  # what was in it, as far as that is application data
        self.missing = 0  # bytes lost before that; of a hole: its size
        self.holes: list[tuple[int, int]] = []  # where bytes of the body are missing
        self.more: list[tuple[int, bytes]] = []  # missing and data of the parts after holes in the record
        self.size = len(body) + ENTRY_COST  # in memory


class Side:
    """One direction of a connection."""

    __slots__ = (
        *(
            "explicit_base",
            "facts",
            "from_client",
            "holes",
            "is_closed",
            "is_placed",
            "lacks_secret",
            "lost_bytes",
        ),
        *("message_skip", "messages", "missing", "number", "opened", "opener", "reader", "skips", "stage"),
        *("tried", "waiting"),
    )

    def __init__(self, from_client: bool, facts: DirectionFacts) -> None:
        self.from_client = from_client
        self.facts = facts
        self.reader = RecordReader()
        self.messages = bytearray()  # handshake messages that are not whole yet
        self.message_skip = 0  # bytes of a message too large to keep
        self.stage = CLEAR
        self.opener: Opener | None = None
        self.number = 0  # of the next record; below 0: as many records are left closed first
        self.is_placed = True  # whether that is known
        self.is_closed = False  # nothing more is opened
        self.lacks_secret = False  # ... as there is no secret yet
        self.opened = 0  # records opened with this key
        self.skips = 0  # records with another key that may come before the first that this one opens
        self.explicit_base = 0  # the nonce in record 0, of TLS 1.2
        # records that were tried in vain since the number was lost; midway: by the last search
        self.tried = 0
        self.lost_bytes = 0  # since the number was lost
        self.missing = 0  # bytes lost before the next application data
        self.holes = 0  # that wait
        self.waiting: deque[Entry] = deque()

    def enter(self, stage: int, skips: int = 0) -> None:
        """Begin with another key, which is not known yet."""
        self.stage = stage
        self.skips = skips
        self.number = self.opened = 0
        self.opener = None
        self.is_placed = True

    def use(self, opener: Opener, number: int = 0) -> None:
        """Open the next records with this key, from this number on."""
        self.opener = opener
        self.number = number
        self.opened = 0

    def place(self, opener: Opener, number: int) -> None:
        """Use this key, which is known to be right; the next record has this number."""
        self.use(opener, number)
        self.opened = 1  # so a tag that does not fit is no reason to give up
        self.is_placed = True
        self.tried = self.lost_bytes = 0

    def update(self) -> None:
        """Go on with the key after a key update of TLS 1.3."""
        if self.opener is not None:
            self.facts.key_updates += 1
            self.place(open_13(self.opener.suite, next_secret(self.opener.secret, self.opener.suite.hash)), 0)

    def lose_place(self, lost: int) -> None:
        """Note that the next record's number is not known, as so many bytes were lost."""
        self.is_placed = False
        self.lost_bytes += lost
        self.missing += lost
        self.messages.clear()
        self.message_skip = 0
