"""What was delivered to the consumers of a subscription and nobody has taken yet.

    MESSAGE -> `Delivery`, its entry closed -> `Inbox` -> its entry opened by its consumer -> taken

An entry waits as its frame, compressed as it came, and is opened when it is taken: one at a time. How much
may wait is counted in bytes. Consumers ask for no more than they expect to fit; a broker that sends more
than it was asked for comes up against `MOST_BYTES`.
"""

from collections import deque
from collections.abc import Sized
from typing import TYPE_CHECKING, Final

from pulsarctl_wire.net.acks import Position
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.payload import Budget, ChunkJoiner, Message

if TYPE_CHECKING:
    from pulsarctl_wire.net.consumer import Consumer

ROOM: Final = 64 * 1024 * 1024
"""Bytes of deliveries that the consumers of a subscription ask for together."""

MOST_BYTES: Final = 2 * ROOM
"""Bytes of deliveries that wait at the most, whatever a broker sends: it never splits a batch."""

_COST: Final = 1024  # bytes of keeping a frame, beside its own
_PARSED: Final = 12  # bytes that a byte of command or metadata can take when it is parsed


def permits_of(frame: Frame) -> int:
    """Permits that a MESSAGE used: one a message, but for those its ack_set masks."""
    metadata = frame.metadata
    if metadata is None:
        return 1
    count = metadata.num_messages_in_batch
    masked = frame.body.ack_set
    if masked:
        count = sum(bin(word & 2**64 - 1).count("1") for word in masked)
    return max(count, 1)


class Delivery:
    """An entry that was delivered: its `frame` and, once it is opened, the `messages` to be consumed.

    `id` is (ledger, entry), of a chunked message its last chunk's, all of whose ids are in `ids`. `size` are
    the permits it took, `weight` the bytes it takes while it waits. `left` has a bit for each message (by
    batch index) that is not acknowledged yet.
    """

    __slots__ = (
        "consumer",
        "frame",
        "generation",
        "id",
        "ids",
        "left",
        "messages",
        "redelivered",
        "refused",
        "size",
        "weight",
    )

    def __init__(self, consumer: "Consumer", frame: Frame, ids: list[tuple[int, int]], size: int) -> None:
        self.consumer = consumer
        self.frame = frame
        self.messages: list[Message] = []
        self.ids = ids
        self.id = ids[-1]
        self.generation = consumer.generation
        self.redelivered: int = frame.body.redelivery_count
        self.size = size
        self.weight = _COST + _PARSED * frame.payload_at + len(frame.raw) + len(frame.joined or b"")
        self.refused = False
        self.left = 0

    @property
    def is_current(self) -> bool:
        """Whether its consumer was not opened again since: then it comes once more."""
        return self.generation == self.consumer.generation

    def position(self, message: Message) -> Position:
        """Where `message` of this entry is."""
        return (*self.id, -1 if message.index is None else message.index)


class Inbox:
    """The deliveries of all `consumers` that wait, in order, and the `chunks` that wait for more.

    `budget` bounds what is opened of all that comes.
    """

    def __init__(self, consumers: Sized, budget: Budget) -> None:
        self.bytes = 0
        self.budget = budget
        self.chunks = ChunkJoiner()
        self._consumers = consumers
        self._queue: deque[Delivery] = deque()
        self._halted: list[Consumer] = []

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def share(self) -> int:
        """Bytes that each consumer may ask for."""
        return ROOM // max(len(self._consumers), 1)

    def put(self, delivery: Delivery) -> bool:
        """Take a delivery. False if there is no room for it: its consumer is told when there is."""
        if self._queue and self.bytes + delivery.weight > MOST_BYTES:
            self._halted.append(delivery.consumer)
            return False
        self.bytes += delivery.weight
        self._queue.append(delivery)
        return True

    def next(self) -> Delivery | None:
        """The next delivery, opened, unless its consumer was opened again since. None if nothing waits."""
        while self._queue:
            delivery = self._queue.popleft()
            self.bytes -= delivery.weight
            if delivery.is_current and delivery.consumer.opens(delivery):
                return delivery
        halted, self._halted = self._halted, []
        for consumer in halted:
            consumer.resume()
        return None
