"""Batches the acknowledgements of one consumer, tracks their confirmation, and resends them. Pure.

A batch is sent `PAUSE` after its first id or when it has `MAX_ACK_IDS` ids, with a request id. If the link is
lost before a batch is confirmed, the batch is sent again once the consumer has subscribed again.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pulsarctl_wire.net.outbox import Now, Warned
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandAck

PAUSE: Final = 100_000_000
"""Nanoseconds that acknowledgements are batched for, as in Pulsar's clients."""
MAX_ACK_IDS: Final = 1_000
"""Maximum number of ids in one ACK; a batch with this many is sent at once."""
MAX_UNCONFIRMED: Final = 100_000
"""Maximum number of unconfirmed ids; each ACK counts as ten more. Beyond it the oldest ACKs are given up."""
_ACK_COST: Final = 10  # in ids

Position = tuple[int, int, int]
"""Ledger, entry and batch index (-1: the whole entry)."""
Ids = list[dict[str, Any]]
"""Each item holds the fields of a MessageIdData."""


class AckRequest(NamedTuple):
    """An ACK of `kind` (CommandAck.AckType) to be sent and confirmed; `number` identifies it."""

    number: int
    ids: Ids
    kind: int

    @property
    def cost(self) -> int:
        """How much it counts towards `MAX_UNCONFIRMED`."""
        return len(self.ids) + _ACK_COST


class GivenUp(NamedTuple):
    """Stop waiting for the answer to the AckRequest with this `number`."""

    number: int


class Acks:
    """The acknowledgements of a consumer of `topic`.

    `emit` is called with each event. The owner of the link must send each AckRequest, and report its result
    to `settle`. `ready` is whether the broker accepts acknowledgements (see `on_open`).
    `wake_at` is when `send_waiting` must be called (ticks in ns), or None.
    """

    def __init__(self, topic: str, emit: Callable[[AckRequest | GivenUp | Warned], None]) -> None:
        self.ready = False
        self.wake_at: int | None = None
        self._topic = topic
        self._emit = emit
        self._last_number = 0
        self._waiting: Ids = []
        self._sent: dict[int, AckRequest] = {}
        self._backlog: deque[AckRequest] = deque()  # ACKs to be sent once the broker accepts them
        self._total_cost = 0  # the cost of `_sent` and `_backlog`
        self._warned = False

    @property
    def unsent_ids(self) -> int:
        """Number of ids that wait to be sent, for the first time or again."""
        return len(self._waiting) + sum(len(request.ids) for request in self._backlog)

    def add(self, ids: Ids, now: Now) -> None:
        """Add these ids to the current batch."""
        self._waiting += ids
        if len(self._waiting) >= MAX_ACK_IDS:
            self.send_waiting()
        elif self.wake_at is None:
            self.wake_at = now.ticks + PAUSE

    def send_waiting(self) -> None:
        """Send the current batch if the broker accepts it.

        Otherwise a full one moves to the backlog; a smaller one stays, and grows.
        """
        self.wake_at = None
        if self._waiting and (self.ready or len(self._waiting) >= MAX_ACK_IDS):
            ids, self._waiting = self._waiting, []
            self.send(ids)

    def send(self, ids: Ids, kind: int = CommandAck.Individual) -> None:
        """Send an ACK now, or as soon as the broker accepts it."""
        self._last_number += 1
        request = AckRequest(self._last_number, ids, kind)
        self._total_cost += request.cost
        if self.ready:
            self._sent[request.number] = request
            self._emit(request)
        else:
            self._backlog.append(request)
        while self._total_cost > MAX_UNCONFIRMED and len(self._sent) + len(self._backlog) > 1:
            self._give_up()

    def _give_up(self) -> None:
        """Forget the oldest ACK in the backlog, which is then never sent (again).

        If the backlog is empty, forget the oldest one sent: it is not sent again if the link is lost.
        """
        if self._backlog:
            request = self._backlog.popleft()
        else:
            request = self._sent.pop(next(iter(self._sent)))
            self._emit(GivenUp(request.number))
        self._total_cost -= request.cost
        if not self._warned:
            self._warned = True
            text = f"{MAX_UNCONFIRMED} acknowledgements are not confirmed; older ones are not sent again"
            self._emit(Warned(f"{self._topic}: {text}"))

    def settle(self, number: int, *, is_lost: bool) -> None:
        """Record the answer to ACK `number` (maybe an error); `is_lost`: the link was lost before it."""
        request = self._sent.pop(number, None)
        if request is not None and is_lost:
            self._backlog.append(request)
        elif request is not None:
            self._total_cost -= request.cost

    def on_open(self) -> None:
        """Resend unconfirmed ACKs, and send the current batch, as the consumer is subscribed."""
        self.ready = True
        requests, self._backlog = list(self._backlog), deque()
        for request in requests:
            self._total_cost -= request.cost
            self.send(request.ids, request.kind)
        self.send_waiting()

    def forget(self) -> None:
        """Drop all unsent and unconfirmed ACKs: the subscription may have been moved back."""
        for number in self._sent:
            self._emit(GivenUp(number))
        self._waiting.clear()
        self._backlog.clear()
        self._sent.clear()
        self._total_cost = 0


def make_id_fields(position: Position, remaining: int = 0, size: int = 0) -> dict[str, Any]:
    """Return a position as MessageIdData fields; `remaining`: unacknowledged bits of a batch of `size`."""
    fields: dict[str, Any] = {"ledgerId": position[0] & 2**64 - 1, "entryId": position[1] & 2**64 - 1}
    if position[2] >= 0:
        fields["batch_index"] = position[2]
    if remaining:
        words = remaining.to_bytes((remaining.bit_length() + 63) // 64 * 8, "little")
        fields["ack_set"] = [
            int.from_bytes(words[index : index + 8], "little", signed=True)
            for index in range(0, len(words), 8)
        ]
        fields["batch_size"] = size
    return fields
