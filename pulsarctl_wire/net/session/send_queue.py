"""The state of a producer: turns messages into entries, which wait for their receipts in order. Pure.

    add -> batch -> frame -> pending (FIFO) -> SEND_RECEIPT -> `SendResult`

docs/sessions.md ("What is tried again") says how receipts and errors are handled, so that nothing is lost.
Resent messages keep their sequence ids, so a broker that deduplicates stores them once. The owner of the link
passes in messages, frames and times, and takes the bytes to be sent and the events.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pulsarctl_wire.errors import BrokerError, LocalProtocolError, RequestTimeout, SessionError, WireError
from pulsarctl_wire.net.outbox import Now, Outbox, Warned
from pulsarctl_wire.net.session.encryption import Encryptor, Recipient
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.entry import Batch, Outgoing, Stamp, chunk, single_entry
from pulsarctl_wire.wire.fields import as_text, to_signed
from pulsarctl_wire.wire.frame import (
    FRAME_PADDING,
    MAX_MESSAGE_SIZE,
    Connection,
    Frame,
    build_frame,
)
from pulsarctl_wire.wire.frame_entry import read_entry
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata, ProducerAccessMode, Schema
from pulsarctl_wire.wire.server_errors import MEANINGS, error_name

METADATA_ROOM: Final = 1_024
"""Bytes of the message size limit that are reserved for metadata in batches and chunks."""


@dataclass(frozen=True)
class ProducerOptions:
    """The options of a producer. Times in seconds, sizes in bytes.

    Sequence ids start after `initial_sequence_id`. With `batch_count` 1 each message is sent alone. `by_key`
    makes a separate batch for each key. `max_pending` (messages) and `max_pending_bytes` are how much may
    wait for receipts before `send` waits. Payloads are encrypted for the `recipients`, if there are any.
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
    recipients: Sequence[Recipient] = ()


@dataclass(frozen=True, slots=True)
class SendResult:
    """The result of a send of `count` messages with sequence ids up to `highest`.

    `ledger` and `entry` are where it was stored (both -1: a duplicate, not stored again), `first` the id of a
    chunked message's first chunk. `error` is why it was not stored, or None. `batched`: it was sent as a
    batch. `latency_ns` is the time to the receipt, from when the entry was ready to be sent.
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


class Restart(NamedTuple):
    """The link must be dropped, because of `reason`: all pending sends are sent again over a new one."""

    reason: str


class Failed(NamedTuple):
    """The producer must end, because of `error`."""

    error: SessionError


@dataclass(slots=True, eq=False)
class _Sending:
    """An entry that waits for its receipt: `ids` are its lowest and its highest sequence id.

    `chunks_left` is the number of chunks of its message that come after it.
    """

    frame: bytes
    ids: tuple[int, int]
    count: int
    chunks_left: int
    sent_at: int


class SendQueue(Outbox[SendResult | Warned | Restart | Failed]):
    """The state of producer `producer_id` of `topic`.

    Attributes: its `name` at the broker, the `schema_version` of its messages, the `pending` sends without
    receipt, the number of their messages (`pending_messages`), and that of `batched_messages`.
    """

    def __init__(self, topic: str, producer_id: int, options: ProducerOptions) -> None:
        super().__init__()
        self.name = options.name or ""
        self.schema_version = b""
        self.pending: deque[_Sending] = deque()
        self.pending_messages = self.batched_messages = 0
        self._topic = topic
        self._id = producer_id
        self._options = options
        self._timeout = int(options.send_timeout * 1e9)
        self._epoch = 0
        self._topic_epoch: int | None = None
        self._stamp = Stamp("")
        self._encryptor = Encryptor(options.recipients) if options.recipients else None
        self._metadata_room = METADATA_ROOM + (self._encryptor.overhead if self._encryptor else 0)
        self._largest = MAX_MESSAGE_SIZE
        self._next_sequence_id: int | None = None
        if options.initial_sequence_id is not None:
            self._next_sequence_id = options.initial_sequence_id + 1
        self._pending_bytes = 0
        self._first_chunk: tuple[int, int] | None = None
        self._pending_ids: Counter[int] = Counter()  # the sequence ids of pending sends
        self._has_resent = False  # all pending sends were sent again since the last receipt
        self._batches: dict[str | None, Batch] = {}
        self._batched_bytes = 0
        self._batches_due_at: int | None = None  # when batches are due
        self._is_open = False

    # -- opening

    def make_command(self, now: Now) -> BaseCommand:
        """Return PRODUCER, for the first time or again."""
        options = self._options
        command = build_command(
            "PRODUCER",
            topic=self._topic,
            producer_id=self._id,
            producer_name=self.name or None,
            schema=options.schema,
            epoch=self._epoch,
            user_provided_producer_name=options.name is not None,
            producer_access_mode=options.access,
            topic_epoch=self._topic_epoch,
            metadata=[{"key": key, "value": value} for key, value in options.properties] or None,
            txn_enabled=True if options.txn else None,
            encrypted=True if options.recipients else None,
        )
        self._epoch += 1
        return command

    def on_registered(self, body: Any, largest: int) -> None:
        """Store the fields of PRODUCER_SUCCESS `body`; messages may have up to `largest` bytes."""
        self.name = as_text(body.producer_name)
        self.schema_version = body.schema_version
        if body.HasField("topic_epoch"):
            self._topic_epoch = body.topic_epoch
        if self._next_sequence_id is None:
            self._next_sequence_id = max(body.last_sequence_id + 1, 0)
        self._stamp = Stamp(self.name, self._options.codec, self.schema_version, self._options.txn)
        self._largest = largest

    def on_open(self, now: Now) -> None:
        """Begin to send, as the broker accepts sends: everything pending first."""
        if self.pending:
            text = f"producer of {self._topic}: open again, {len(self.pending)} sent again"
            self._events.append(Warned(text))
        self._is_open = True
        self._resend()

    def suspend(self) -> None:
        """Send nothing for now, as the broker accepts no sends."""
        self._is_open = False
        self._out.clear()

    def _resend(self) -> None:
        self._out = [sending.frame for sending in self.pending]

    @property
    def is_full(self) -> bool:
        """Whether so much is pending that callers must wait before they add more."""
        options = self._options
        return (
            self.pending_messages >= options.max_pending or self._pending_bytes >= options.max_pending_bytes
        )

    # -- sending

    def add(self, message: Outgoing, now: Now) -> bool:
        """Send `message` or add it to a batch; return False if it waits in a batch.

        Raises LocalProtocolError if the message is too large or cannot be encoded.
        """
        options = self._options
        sequence_id = (self._next_sequence_id or 0) if message.sequence_id is None else message.sequence_id
        self._next_sequence_id = sequence_id + 1
        size = message.weight
        try:
            if options.batch_count <= 1 or message.deliver_at is not None or size >= options.batch_bytes:
                self.send_batches(now)
                self._send_alone(message, sequence_id, now)
                return True
            self._add_to_batch(message, sequence_id, size, now)
        except ValueError as error:  # numbers and texts that do not fit into the protocol's fields
            raise LocalProtocolError(f"the message cannot be built: {error}") from None
        self.batched_messages += 1
        self._batched_bytes += size
        if self.batched_messages < options.batch_count:
            if self._batches_due_at is None:
                self._batches_due_at = now.ticks + int(options.batch_delay * 1e9)
            return False
        self.send_batches(now)
        return True

    def _add_to_batch(self, message: Outgoing, sequence_id: int, size: int, now: Now) -> None:
        if self._batched_bytes + size > self._options.batch_bytes:
            self.send_batches(now)
        key = message.key if self._options.by_key else None
        batch = self._batches.get(key)
        if batch is not None and batch.size + size > self._largest - self._metadata_room:
            self.send_batches(now)
            batch = None
        if batch is None:
            batch = self._batches[key] = Batch()
        batch.add(message, sequence_id)

    def _send_alone(self, message: Outgoing, sequence_id: int, now: Now) -> None:
        metadata, payload = single_entry(self._stamp, message, sequence_id, now.time_ns // 1_000_000)
        limit, ids = self._largest, (sequence_id, sequence_id)
        if self._options.chunking:
            room = min(self._options.chunk_bytes or limit, limit)
            if self._options.chunk_bytes is None:
                room -= metadata.ByteSize() + self._metadata_room
            for chunk_metadata, chunk_payload in chunk(metadata, payload, max(room, 1)):
                self._send_entry(chunk_metadata, chunk_payload, ids, 1, now)
            return
        if len(payload) > limit:
            raise LocalProtocolError(
                f"a message of {len(payload)} bytes: the broker's limit is {limit}; --chunking splits it"
            )
        self._send_entry(metadata, payload, ids, 1, now)

    def send_batches(self, now: Now) -> None:
        """Send all batches."""
        batches, self._batches = self._batches, {}
        self.batched_messages = self._batched_bytes = 0
        self._batches_due_at = None
        for batch in batches.values():
            if not batch.count:  # encoding its first message failed
                continue
            metadata, payload = batch.entry(self._stamp, now.time_ns // 1_000_000)
            ids = batch.lowest, batch.highest
            try:
                self._send_entry(metadata, payload, ids, batch.count, now)
            except LocalProtocolError as error:  # report it, and send the other batches
                self._events.append(SendResult(self._topic, *ids, batch.count, error=error))

    def _send_entry(
        self, metadata: MessageMetadata, payload: bytes, ids: tuple[int, int], count: int, now: Now
    ) -> None:
        chunks = metadata.num_chunks_from_msg
        high, low = self._options.txn or (None, None)
        command = build_command(
            "SEND",
            producer_id=self._id,
            sequence_id=ids[0],
            num_messages=count if count > 1 else None,
            highest_sequence_id=ids[1] if count > 1 else None,
            is_chunk=True if chunks > 1 else None,
            txnid_most_bits=high,
            txnid_least_bits=low,
        )
        if self._encryptor is not None:
            payload = self._encryptor.encrypt(metadata, payload, now.ticks)
        frame = build_frame(command, metadata, payload)
        if len(frame) > self._largest + FRAME_PADDING:
            raise LocalProtocolError(
                f"{count} messages in an entry of {len(frame)} bytes with its metadata: the broker's limit "
                f"is {self._largest}; use smaller properties, or a smaller --batch-bytes"
            )
        remaining = chunks - 1 - metadata.chunk_id if chunks > 1 else 0
        self.pending.append(_Sending(frame, ids, count, remaining, now.ticks))
        self._pending_ids.update(ids)
        self._pending_bytes += len(frame)
        self.pending_messages += count
        if self._is_open:
            self._out.append(frame)

    # -- frames received

    def on_frame(self, frame: Frame, now: Now) -> None:
        """Handle SEND_RECEIPT and SEND_ERROR."""
        if frame.type == BaseCommand.SEND_RECEIPT:
            self._handle_receipt(frame.body, now)
        elif frame.type == BaseCommand.SEND_ERROR:
            self._handle_send_error(frame.body)

    def _handle_receipt(self, body: Any, now: Now) -> None:
        pending = self.pending
        sequence_id = body.sequence_id
        if not pending or sequence_id < pending[0].ids[0]:
            return  # a receipt that we have already had
        head = pending[0]
        if sequence_id not in head.ids:
            self._restart(f"a receipt for sequence id {sequence_id}, none for {head.ids[0]}")
            return
        self._pop()
        message_id = to_signed(body.message_id.ledgerId), to_signed(body.message_id.entryId)
        if head.chunks_left:
            self._first_chunk = self._first_chunk or message_id
            return
        first, self._first_chunk = self._first_chunk, None
        latency = now.ticks - head.sent_at
        self._events.append(
            SendResult(self._topic, *head.ids, head.count, *message_id, head.count > 1, first, latency)
        )

    def _pop(self) -> None:
        head = self.pending.popleft()
        self._has_resent = False
        for sequence_id in head.ids:
            self._pending_ids[sequence_id] -= 1
            if not self._pending_ids[sequence_id]:
                del self._pending_ids[sequence_id]
        self._pending_bytes -= len(head.frame)
        self.pending_messages -= head.count

    def _fail_head(self, error: SessionError) -> None:
        head = self.pending[0]
        self._pop()
        self._first_chunk = None
        while head.chunks_left and self.pending and self.pending[0].ids[0] == head.ids[0]:
            self._pop()  # the message's other chunks
        self._events.append(
            SendResult(self._topic, *head.ids, head.count, batched=head.count > 1, error=error)
        )

    def _handle_send_error(self, body: Any) -> None:
        code = error_name(body.error)
        error = BrokerError(code, as_text(body.message), "SEND", MEANINGS.get(code, ""))
        if code == "TopicTerminatedError":
            self._events.append(Failed(error))
            return
        refused = []
        if body.sequence_id in self._pending_ids:
            refused = [sending for sending in self.pending if body.sequence_id in sending.ids]
        if code == "NotAllowedError" and not refused:
            return  # already failed: another chunk of the same message was refused, too
        if code not in ("NotAllowedError", "ChecksumError") or not refused:
            self._restart(str(error))
        elif code == "NotAllowedError" or not all(_is_intact(sending.frame) for sending in refused):
            self._fail_message(refused, error)
        elif self._has_resent:
            self._restart(f"{error}, again after all pending sends were sent again")
        else:
            text = f"{self._topic}: {error}; our copy is intact, so all pending sends are sent again"
            self._events.append(Warned(text))
            self._has_resent = True
            self._resend()

    def _fail_message(self, entries: list[_Sending], error: SessionError) -> None:
        """Fail a message whose `entries` may be anywhere in `pending`: move them to the head, and fail it."""
        # `_first_chunk` is of the message at the head, which another one overtakes now
        first = None if self.pending[0] is entries[0] else self._first_chunk
        for sending in reversed(entries):
            self.pending.remove(sending)
            self.pending.appendleft(sending)
        self._fail_head(error)
        self._first_chunk = first

    def _restart(self, reason: str) -> None:
        self._events.append(Restart(f"{self._topic}: {reason}"))

    # -- time, and the end

    @property
    def wake_at(self) -> int | None:
        """When `wake` must be called (ticks in ns), or None."""
        deadline = self.pending[0].sent_at + self._timeout if self.pending else None
        if deadline is None or self._batches_due_at is None:
            return self._batches_due_at if deadline is None else deadline
        return min(deadline, self._batches_due_at)

    def wake(self, now: Now) -> None:
        """Send batches that are due; fail sends whose receipt is late."""
        if self._batches_due_at is not None and self._batches_due_at <= now.ticks:
            self.send_batches(now)
        while self.pending and self.pending[0].sent_at + self._timeout <= now.ticks:
            text = (
                f"{self._topic}: SEND of sequence id {self.pending[0].ids[0]} was not answered by "
                f"SEND_RECEIPT within {self._options.send_timeout:g} s"
            )
            self._fail_head(RequestTimeout(text))

    def end(self, error: SessionError, now: Now) -> None:
        """End the producer: send nothing more, and fail everything that waits."""
        self.suspend()
        self.send_batches(now)  # only moves them to `pending`
        while self.pending:
            self._fail_head(error)


def _is_intact(raw: bytes) -> bool:
    """Return whether the checksum in our copy of a SEND still matches its bytes."""
    frame = Frame(raw, None, BaseCommand.SEND, Connection(0), True)
    read_entry(frame, 8 + frame.command_size)
    return frame.checksum == "valid"
