"""Acknowledgements of one consumer: gathered, sent with a request id, confirmed, or sent again.

Those that wait go together, `PAUSE` after the first or `COUNT` at a time. Those not confirmed when the link
is lost are kept until the consumer is subscribed again.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from pulsarctl_wire.errors import LinkClosed, SessionError
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandAck

PAUSE: Final = 0.1
"""Seconds that acknowledgements are gathered for, as in Pulsar's clients."""
COUNT: Final = 1_000
"""Ids that are acknowledged at once at the most."""
MOST: Final = 100_000
"""Ids that wait to be confirmed, an ACK counting as ten more; older ones are given up, oldest first."""
_ACK: Final = 10

Position = tuple[int, int, int]
"""Ledger, entry and batch index (-1: all of the entry)."""
Ids = list[dict[str, Any]]
"""Fields of MessageIdData, each."""


class Acks:
    """The acknowledgements of a consumer. `ask` sends an ACK (ids, type) and waits until it is confirmed.

    `ready` tells whether the broker takes them: `opened` and `lost` say so.
    """

    def __init__(self, ask: Callable[[Ids, int], Awaitable[object]], warn: Callable[[str], None]) -> None:
        self.ready = False
        self._ask = ask
        self._warn = warn
        self._waiting: Ids = []
        self._unconfirmed: deque[tuple[Ids, int]] = deque()
        self._tasks: dict[asyncio.Task[None], int] = {}
        self._open = 0  # ids of the tasks and of what is not confirmed, and _ACK for each
        self._told = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def open(self) -> int:
        """Ids that wait, or wait to be sent again."""
        return len(self._waiting) + sum(len(ids) for ids, _ in self._unconfirmed)

    def add(self, ids: Ids) -> None:
        """Acknowledge these, with others."""
        self._waiting += ids
        if len(self._waiting) >= COUNT:
            self.send_waiting()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PAUSE, self.send_waiting)

    def send_waiting(self) -> None:
        """Send what waits, if the broker takes it."""
        self.stop()
        if self._waiting and (self.ready or len(self._waiting) >= COUNT):
            ids, self._waiting = self._waiting, []
            self.send(ids)

    def send(self, ids: Ids, kind: int = CommandAck.Individual) -> None:
        """Send an ACK at once, or as soon as the broker takes it."""
        if not self.ready:
            self._keep(ids, kind)
        else:
            task = asyncio.get_running_loop().create_task(self._confirm(ids, kind))
            self._tasks[task] = len(ids) + _ACK
            self._open += len(ids) + _ACK
            task.add_done_callback(self._done)
        while self._open > MOST and len(self._tasks) + len(self._unconfirmed) > 1:
            self._give_up()

    def _keep(self, ids: Ids, kind: int) -> None:
        self._unconfirmed.append((ids, kind))
        self._open += len(ids) + _ACK

    def _done(self, task: asyncio.Task[None]) -> None:
        self._open -= self._tasks.pop(task, 0)

    def _give_up(self) -> None:
        """Let go of the oldest that is not confirmed: it is not sent again if the link is lost."""
        if self._unconfirmed:
            self._open -= len(self._unconfirmed.popleft()[0]) + _ACK
        else:
            task = next(iter(self._tasks))
            self._done(task)
            asyncio.get_running_loop().call_soon(task.cancel)  # not before it is sent
        if not self._told:
            self._told = True
            self._warn(f"{MOST} acknowledgements are not confirmed: what is older is not sent again")

    async def _confirm(self, ids: Ids, kind: int) -> None:
        try:
            await self._ask(ids, kind)
        except LinkClosed:
            self._keep(ids, kind)
        except SessionError as error:
            self._warn(str(error))

    def opened(self) -> None:
        """The consumer is subscribed: what was not confirmed is sent again, what waits is sent."""
        self.ready = True
        unconfirmed = list(self._unconfirmed)
        self._unconfirmed.clear()
        for ids, kind in unconfirmed:
            self._open -= len(ids) + _ACK
            self.send(ids, kind)
        self.send_waiting()

    def lost(self) -> None:
        """The consumer is not subscribed any more."""
        self.ready = False

    def forget(self) -> None:
        """Drop what waits or is not answered: the subscription may have been moved back."""
        self._waiting.clear()
        for ids, _ in self._unconfirmed:
            self._open -= len(ids) + _ACK
        self._unconfirmed.clear()
        for task in self._tasks:
            task.cancel()

    def stop(self) -> None:
        """Let the timer be."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def flush(self) -> None:
        """Send what waits, and wait until all is confirmed."""
        self.send_waiting()
        while self._tasks:
            await asyncio.wait(list(self._tasks))


def id_data(position: Position, left: int = 0, size: int = 0) -> dict[str, Any]:
    """A position as the fields of MessageIdData; `left` are the bits of a batch of `size` that stay open."""
    fields: dict[str, Any] = {"ledgerId": position[0] & 2**64 - 1, "entryId": position[1] & 2**64 - 1}
    if position[2] >= 0:
        fields["batch_index"] = position[2]
    if left:
        words = left.to_bytes((left.bit_length() + 63) // 64 * 8, "little")
        fields["ack_set"] = [
            int.from_bytes(words[at : at + 8], "little", signed=True) for at in range(0, len(words), 8)
        ]
        fields["batch_size"] = size
    return fields
