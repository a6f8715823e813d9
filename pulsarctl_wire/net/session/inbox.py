"""Holds the deliveries to the consumers of a subscription until they are taken.

    MESSAGE -> `Delivery`, still compressed -> `Inbox` -> its consumer opens the entry -> taken

An entry waits as its frame, compressed as it came, and is opened (decompressed and split into messages) only
when it is taken, one at a time. Consumers ask for no more than they expect to fit.
"""

from collections import deque
from collections.abc import Sized
from typing import Any, Final, Generic, Protocol, TypeVar

from pulsarctl_wire.net.session.acks import Position
from pulsarctl_wire.wire.chunks import ChunkJoiner
from pulsarctl_wire.wire.encryption import Opened
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.payload import Budget, Message

ROOM: Final = 64 * 1024 * 1024
"""Bytes of deliveries that all consumers of a subscription together ask for."""

MAX_BYTES: Final = 2 * ROOM
"""Maximum bytes of waiting deliveries. More than `ROOM` may come, as a broker never splits a batch."""

_COST: Final = 1024  # bytes of overhead for each waiting frame
_PARSED: Final = 12  # bytes that a byte of command or metadata can take once it is parsed


class Receiver(Protocol):
    """The part of a consumer that an inbox uses."""

    @property
    def generation(self) -> int:
        """A number that is raised whenever the broker redelivers everything."""

    def open_entry(self, delivery: "Delivery[Any]") -> bool:
        """Open the entry of a delivery; return False if it has no message to be consumed."""

    def resume(self) -> None:
        """Ask again for the messages that were dropped."""


R = TypeVar("R", bound=Receiver)
"""The class of the consumers."""


class Delivery(Generic[R]):
    """An entry that was delivered: its `frame`, `metadata` and, once opened, the `messages` to be consumed.

    `id` is (ledger, entry); for a chunked message it is the last chunk's, and `ids` has those of all chunks.
    `permits` is how many it used, `weight` the bytes of memory it takes while it waits. `left` has a bit for
    each message (by batch index) that is not acknowledged yet. `decryption` says how it was decrypted; None:
    it was not. `redelivered` is the broker's redelivery count, and `refused` says whether `nack` was called.
    """

    __slots__ = (
        *("consumer", "decryption", "frame", "generation", "id", "ids", "left", "messages", "metadata"),
        *("permits", "redelivered", "refused", "weight"),
    )

    def __init__(self, consumer: R, frame: Frame, ids: list[tuple[int, int]], permits: int) -> None:
        assert frame.metadata is not None  # without it the frame is reported as corrupt
        self.consumer = consumer
        self.frame = frame
        self.metadata = frame.metadata
        self.messages: list[Message] = []
        self.ids = ids
        self.id = ids[-1]
        self.generation = consumer.generation
        self.redelivered: int = frame.body.redelivery_count
        self.permits = permits
        self.weight = _COST + _PARSED * frame.payload_at + len(frame.raw) + len(frame.joined or b"")
        self.decryption: Opened | None = None
        self.refused = False
        self.left = 0

    @property
    def is_current(self) -> bool:
        """Whether the broker has not redelivered everything since (see `ReceiveQueue.generation`)."""
        return self.generation == self.consumer.generation

    def position(self, message: Message) -> Position:
        """Return the position of `message`, which is in this entry."""
        return (*self.id, -1 if message.index is None else message.index)


class Inbox(Generic[R]):
    """The waiting deliveries of all `consumers`, in order, and the `chunks` of incomplete messages.

    `budget` limits how much is decompressed in relation to the bytes received.
    """

    def __init__(self, consumers: Sized, budget: Budget) -> None:
        self.bytes = 0
        self.budget = budget
        self.chunks = ChunkJoiner()
        self._consumers = consumers
        self._queue: deque[Delivery[R]] = deque()
        self._halted: list[R] = []

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def share(self) -> int:
        """Bytes that each consumer may ask for."""
        return ROOM // max(len(self._consumers), 1)

    def put(self, delivery: Delivery[R]) -> bool:
        """Add a delivery; return False if there is no room. Its consumer is resumed once all are taken."""
        if self._queue and self.bytes + delivery.weight > MAX_BYTES:
            self._halted.append(delivery.consumer)
            return False
        self.bytes += delivery.weight
        self._queue.append(delivery)
        return True

    def next(self) -> Delivery[R] | None:
        """Return the next current delivery, opened; None if there is none.

        An empty inbox resumes the consumers whose deliveries it had no room for. Raises DecryptionError as
        `ReceiveQueue.open_entry` does.
        """
        while self._queue:
            delivery = self._queue.popleft()
            self.bytes -= delivery.weight
            if delivery.is_current and delivery.consumer.open_entry(delivery):
                return delivery
        halted, self._halted = self._halted, []
        for consumer in halted:
            consumer.resume()
        return None
