"""Producing: messages become entries, which wait for their receipts in order and are sent again if need be.

    send -> batch -> frame -> pending (FIFO) -> SEND_RECEIPT -> `Sent`

What the broker does, and what follows (the way that loses nothing):

    a receipt for the oldest pending send      it is done
    a receipt that was had before              passed over
    a receipt that leaves sends out            the link is given up, all pending is sent again over a new one
    SEND_ERROR ChecksumError                   if our copy is intact all pending is sent again; else it fails
    SEND_ERROR NotAllowedError                 that send fails, the others go on
    SEND_ERROR TopicTerminatedError            all pending fails, the producer ends
    SEND_ERROR with another code               as with a receipt that leaves sends out
    CLOSE_PRODUCER, TOPIC_MIGRATED, link lost  opened again (epoch + 1), all pending is sent again
    no receipt within the send timeout         the send fails

Sends keep their sequence ids when they are sent again, so that a broker that deduplicates stores them once.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pulsarctl_wire.errors import BrokerError, LocalProtocolError, SessionError, Unanswered, WireError
from pulsarctl_wire.net.client import FIRST_PAUSE, Client
from pulsarctl_wire.net.link import Link
from pulsarctl_wire.net.resident import Resident
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.entry import Batch, Outgoing, Stamp, chunked, single_entry
from pulsarctl_wire.wire.fields import as_text, signed
from pulsarctl_wire.wire.frame import (
    FRAME_PADDING,
    MAX_MESSAGE_SIZE,
    Connection,
    Frame,
    build_frame,
    read_entry,
)
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata, ProducerAccessMode, Schema
from pulsarctl_wire.wire.server_errors import MEANINGS, error_name

METADATA_ROOM: Final = 1_024
"""Bytes of a message's limit that are left for its metadata when it is cut into chunks."""

_NONE: Final = 2**64 - 1
_WATCHES: Final = 4  # looks at the oldest send, per send timeout


@dataclass(frozen=True)
class ProducerOptions:
    """How to produce. Times in seconds, sizes in bytes.

    `batch_count` 1 sends each message alone. `by_key` gathers messages of one key in a batch of their own.
    `max_pending` and `max_pending_bytes` are how much may wait for receipts before `send` waits.
    """

    name: str | None = None
    access: int = ProducerAccessMode.Shared
    initial_sequence_id: int | None = None
    schema: Schema | None = None
    codec: int = 0
    batch_count: int = 1000
    batch_bytes: int = 128 * 1024
    batch_delay: float = 0.001
    by_key: bool = False
    chunking: bool = False
    chunk_bytes: int | None = None
    max_pending: int = 50_000
    max_pending_bytes: int = 64 * 1024 * 1024
    send_timeout: float = 30.0
    properties: Sequence[tuple[str, str]] = ()
    txn: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """The fate of a send: of `count` messages with sequence ids up to `highest`.

    `ledger` and `entry` are where it was stored (both -1: a duplicate, not stored again), `first` the id of a
    chunked message's first chunk; `error` why it was not, None if it was. `batched`: it went as a batch.
    `latency_ns` is the time from the first sending to the receipt.
    """

    topic: str
    sequence_id: int
    highest: int
    count: int
    ledger: int = -1
    entry: int = -1
    batched: bool = False
    first: tuple[int, int] | None = None
    latency_ns: int = 0
    error: WireError | None = None


class _Sending:
    """An entry that waits for its receipt; `chunks_left` of its message are still to come."""

    __slots__ = ("bytes", "chunks_left", "count", "frame", "highest", "sent_ns", "sequence_id")

    def __init__(self, frame: bytes, sequence_id: int, highest: int, count: int, chunks_left: int) -> None:
        self.frame = frame
        self.bytes = len(frame)
        self.sequence_id = sequence_id
        self.highest = highest
        self.count = count
        self.chunks_left = chunks_left
        self.sent_ns = time.perf_counter_ns()


class Producer(Resident):
    """Produces to one topic that is not partitioned, or to one partition; `on_sent` hears of each send.

    Attributes beside those of Resident: `name` as the broker knows it, `schema_version` of what it produces,
    `pending_messages`.
    """

    KIND = "producer"

    def __init__(
        self, client: Client, topic: str, options: ProducerOptions, on_sent: Callable[[Sent], None]
    ) -> None:
        super().__init__(client, topic)
        self.name = options.name or ""
        self.schema_version = b""
        self.pending_messages = 0
        self._options = options
        self._on_sent = on_sent
        self._epoch = 0
        self._topic_epoch: int | None = None
        self._stamp = Stamp("")
        self._largest = MAX_MESSAGE_SIZE
        self._next = options.initial_sequence_id + 1 if options.initial_sequence_id is not None else 0
        self._pending: deque[_Sending] = deque()
        self._pending_bytes = 0
        self._first_chunk: tuple[int, int] | None = None
        self._known: Counter[int] = Counter()  # the sequence ids of what is pending
        self._resent = False  # since the last receipt
        self._batches: dict[str | None, Batch] = {}
        self._batched_count = self._batched_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []

    # -- opening

    async def _register(self, link: Link) -> None:
        options = self._options
        command = build_command(
            "PRODUCER",
            topic=self.topic,
            producer_id=self.id,
            producer_name=self.name or None,
            schema=options.schema,
            epoch=self._epoch,
            user_provided_producer_name=options.name is not None,
            producer_access_mode=options.access,
            topic_epoch=self._topic_epoch,
            metadata=[{"key": key, "value": value} for key, value in options.properties] or None,
            txn_enabled=True if options.txn else None,
        )
        self._epoch += 1
        body = (await link.request(command)).body
        self.name = as_text(body.producer_name)
        self.schema_version = body.schema_version
        if body.HasField("topic_epoch"):
            self._topic_epoch = body.topic_epoch
        if not self._opened and options.initial_sequence_id is None:
            self._next = max(body.last_sequence_id + 1, 0)
        self._stamp = Stamp(self.name, options.codec, self.schema_version, options.txn)
        self._largest = link.max_message_size

    def _settled(self) -> None:
        if self._watch is None:
            self._look()
        if self._pending:
            self._client.warn(f"producer of {self.topic}: open again, {len(self._pending)} sent again")
            self._resend()

    # -- sending

    async def send(self, message: Outgoing) -> None:
        """Send `message`, alone or with others; waits while too much is pending.

        Raises the SessionError that ended the producer, LocalProtocolError for a message too large.
        """
        if self.error is not None:
            raise self.error
        options = self._options
        sequence_id = self._next if message.sequence_id is None else message.sequence_id
        self._next = sequence_id + 1
        size = message.weight
        if options.batch_count <= 1 or message.deliver_at is not None or size >= options.batch_bytes:
            self._send_batches()
            try:
                self._send_alone(message, sequence_id)
            except ValueError as error:  # numbers and texts that the protocol has no room for
                raise LocalProtocolError(f"the message cannot be built: {error}") from None
        else:
            if self._batched_bytes + size > options.batch_bytes:
                self._send_batches()
            key = message.key if options.by_key else None
            batch = self._batches.get(key)
            if batch is not None and batch.size + size > self._largest - METADATA_ROOM:
                self._send_batches()
                batch = None
            if batch is None:
                batch = self._batches[key] = Batch()
            try:
                batch.add(message, sequence_id)
            except ValueError as error:
                raise LocalProtocolError(f"the message cannot be built: {error}") from None
            self._batched_count += 1
            self._batched_bytes += size
            if self._batched_count < options.batch_count:
                if self._timer is None:
                    loop = asyncio.get_running_loop()
                    self._timer = loop.call_later(options.batch_delay, self._send_batches)
                return
            self._send_batches()
        await self._room()

    @property
    def unsent_messages(self) -> int:
        """Messages that wait in a batch."""
        return self._batched_count

    def _send_alone(self, message: Outgoing, sequence_id: int) -> None:
        metadata, payload = single_entry(self._stamp, message, sequence_id, _now_ms())
        limit = self._largest
        if self._options.chunking:
            room = min(self._options.chunk_bytes or limit, limit)
            if self._options.chunk_bytes is None:
                room -= metadata.ByteSize() + METADATA_ROOM
            for part, piece in chunked(metadata, payload, max(room, 1)):
                self._send_entry(part, piece, sequence_id, sequence_id, 1)
            return
        if len(payload) > limit:
            raise LocalProtocolError(
                f"a message of {len(payload)} bytes: the broker takes {limit}; --chunking cuts it up"
            )
        self._send_entry(metadata, payload, sequence_id, sequence_id, 1)

    def _send_batches(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batches, self._batches = self._batches, {}
        self._batched_count = self._batched_bytes = 0
        for batch in batches.values():
            if not batch.count:  # what was to be in it could not be built
                continue
            metadata, payload = batch.entry(self._stamp, _now_ms())
            try:
                self._send_entry(metadata, payload, batch.lowest, batch.highest, batch.count)
            except LocalProtocolError as error:  # the others go on
                self._on_sent(Sent(self.topic, batch.lowest, batch.highest, batch.count, error=error))

    def _send_entry(
        self, metadata: MessageMetadata, payload: bytes, lowest: int, highest: int, count: int
    ) -> None:
        chunks = metadata.num_chunks_from_msg
        most, least = self._options.txn or (None, None)
        command = build_command(
            "SEND",
            producer_id=self.id,
            sequence_id=lowest,
            num_messages=count if count > 1 else None,
            highest_sequence_id=highest if count > 1 else None,
            is_chunk=True if chunks > 1 else None,
            txnid_most_bits=most,
            txnid_least_bits=least,
        )
        frame = build_frame(command, metadata, payload)
        if len(frame) > self._largest + FRAME_PADDING:
            raise LocalProtocolError(
                f"{count} messages in an entry of {len(frame)} bytes with its metadata: the broker takes "
                f"{self._largest}; smaller properties, or --batch-bytes"
            )
        sending = _Sending(frame, lowest, highest, count, chunks - 1 - metadata.chunk_id if chunks > 1 else 0)
        self._pending.append(sending)
        self._known.update((lowest, highest))
        self._pending_bytes += sending.bytes
        self.pending_messages += count
        ready = self._reopening is None and self.error is None
        if ready and self.link is not None and self.link.is_open:
            self.link.send(frame)

    async def _room(self) -> None:
        """Wait until there is room for more; let the loop see to what has come meanwhile."""
        await asyncio.sleep(0)
        link = self.link
        if link is not None:
            await link.drain()
        options = self._options
        while (
            self.pending_messages >= options.max_pending or self._pending_bytes >= options.max_pending_bytes
        ):
            if self.error is not None:
                return
            await self._progress()

    async def _progress(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    async def flush(self) -> None:
        """Send what is batched, and wait until all that is pending has its fate."""
        self._send_batches()
        while self._pending and self.error is None:
            await self._progress()

    async def close(self) -> None:
        """Close the producer; what is pending is not waited for (`flush` does)."""
        self._closing = True
        for timer in (self._timer, self._watch):
            if timer is not None:
                timer.cancel()
        if self._reopening is not None:
            self._reopening.cancel()
            return
        await self._leave()

    # -- what comes back

    def received(self, frame: Frame) -> None:
        """A frame about this producer."""
        body = frame.body
        if frame.type == BaseCommand.SEND_RECEIPT:
            self._receipt(body)
        elif frame.type == BaseCommand.SEND_ERROR:
            self._send_error(body)
        else:
            super().received(frame)

    def _receipt(self, body: Any) -> None:
        pending = self._pending
        sequence_id = body.sequence_id
        if not pending or sequence_id < pending[0].sequence_id:
            return  # had before
        head = pending[0]
        if sequence_id not in (head.sequence_id, head.highest):
            self._start_over(f"a receipt for sequence id {sequence_id}, none for {head.sequence_id}")
            return
        place = body.message_id
        ledger, entry = signed(place.ledgerId), signed(place.entryId)
        if head.chunks_left:
            self._first_chunk = self._first_chunk or (ledger, entry)
            self._pop()
            return
        first, self._first_chunk = self._first_chunk, None
        self._done(head, ledger, entry, first)

    def _done(self, head: _Sending, ledger: int, entry: int, first: tuple[int, int] | None) -> None:
        self._pop()
        self._pause = FIRST_PAUSE
        latency = time.perf_counter_ns() - head.sent_ns
        self._on_sent(
            Sent(
                self.topic,
                head.sequence_id,
                head.highest,
                head.count,
                ledger,
                entry,
                head.count > 1,
                first,
                latency,
            )
        )

    def _pop(self) -> None:
        head = self._pending.popleft()
        self._resent = False
        for each in (head.sequence_id, head.highest):
            self._known[each] -= 1
            if not self._known[each]:
                del self._known[each]
        self._pending_bytes -= head.bytes
        self.pending_messages -= head.count
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _fail_head(self, error: SessionError) -> None:
        head = self._pending[0]
        self._pop()
        self._first_chunk = None
        while head.chunks_left and self._pending and self._pending[0].sequence_id == head.sequence_id:
            self._pop()  # the message's other chunks
        self._on_sent(
            Sent(self.topic, head.sequence_id, head.highest, head.count, batched=head.count > 1, error=error)
        )

    def _send_error(self, body: Any) -> None:
        code = error_name(body.error)
        error = BrokerError(code, as_text(body.message), "SEND", MEANINGS.get(code, ""))
        if code == "TopicTerminatedError":
            self._end(error)
            return
        found = []
        if body.sequence_id in self._known:
            found = [each for each in self._pending if body.sequence_id in (each.sequence_id, each.highest)]
        if code == "NotAllowedError" and not found:
            return  # had before: another chunk of its message was refused too
        if code in ("NotAllowedError", "ChecksumError") and found:
            if code == "NotAllowedError" or not all(_is_intact(each.frame) for each in found):
                first = None if self._pending[0] is found[0] else self._first_chunk
                for each in reversed(found):
                    self._pending.remove(each)
                    self._pending.appendleft(each)
                self._fail_head(error)
                self._first_chunk = first
            elif self._resent:
                self._start_over(f"{error}; all pending was sent again already")
            else:
                self._client.warn(f"{self.topic}: {error}; our copy is intact, all pending is sent again")
                self._resent = True
                self._resend()
            return
        self._start_over(str(error))

    def _start_over(self, reason: str) -> None:
        if self.link is not None:
            self.link.drop(f"{self.topic}: {reason}")

    # -- losing the broker, and finding it again

    def _resend(self) -> None:
        link = self.link
        if link is not None and link.is_open:
            for sending in self._pending:
                link.send(sending.frame)

    def _ended(self) -> None:
        assert self.error is not None
        self._send_batches()  # into what is pending, no further
        while self._pending:
            self._fail_head(self.error)
        self._wake()

    def _look(self) -> None:
        """Fail what has waited for too long."""
        timeout = self._options.send_timeout
        late = time.perf_counter_ns() - int(timeout * 1e9)
        while self._pending and self._pending[0].sent_ns < late:
            head = self._pending[0]
            self._fail_head(
                Unanswered(
                    f"{self.topic}: SEND of sequence id {head.sequence_id} was not answered by SEND_RECEIPT "
                    f"within {timeout:g} s"
                )
            )
        self._watch = asyncio.get_running_loop().call_later(timeout / _WATCHES, self._look)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _is_intact(raw: bytes) -> bool:
    """Whether the checksum of a SEND we keep still fits its bytes."""
    frame = Frame(raw, None, BaseCommand.SEND, Connection(0), True)
    read_entry(frame, 8 + frame.command_size)
    return frame.checksum == "valid"
