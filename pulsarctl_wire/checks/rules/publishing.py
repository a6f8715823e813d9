"""Rules about what producers must not do: batches, sequence ids, names, times, chunks, and waste."""

from typing import Any, ClassVar, Final

from pulsarctl_wire.checks.conduct import MAX_SKEW_MS, REPLICATOR, is_miscounted
from pulsarctl_wire.checks.facts import NOWHERE, Send, find_client_host
from pulsarctl_wire.checks.finding import CERTAIN, SUSPECTED, WARNING, Sighting, Subject
from pulsarctl_wire.checks.ledgers import Producer
from pulsarctl_wire.checks.rule import CONNECTION, FRAME, SECOND, ConductRule, Reporter, Rule, format_ns
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.session.ending import EndedConnection
from pulsarctl_wire.wire.session.knowledge import bound

_PROBE: Final = "probe"  # the client version in our own hand-made captures
_MANY: Final = 10  # connections or producers with one message each: so many are a habit
_SOON: Final = 10 * SECOND  # the longest time between two of these connections
_MAX_CLIENTS: Final = 1_024
_MAX_CHUNKED: Final = 1_024  # chunked messages of a connection that are followed
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS


def make_send_subject(state: CheckState, frame: Frame) -> Subject:
    """Return the subject of a finding about a SEND's producer."""
    return Subject(frame.topic, producer_id=frame.ids.owner)


class _Batch(ConductRule):
    """A batch is not what its metadata says."""

    relies_on = FRAME

    def report_batch(self, state: CheckState, frame: Frame, sighting: Sighting, text: str) -> None:
        """Report a SEND, or a MESSAGE whose SEND was not seen."""
        if sighting.to_broker:
            subject = make_send_subject(state, frame)
        else:
            subject = Subject(frame.topic, frame.subscription, consumer_id=frame.ids.owner)
        self.report_mistake(state, subject, [(sighting, text)], f"A batch {text}.")


class BatchCountMismatch(_Batch):
    """A batch does not hold as many messages as its metadata says.

    Must: set num_messages_in_batch to the number of messages in the batch.

    Wire: SEND (or MESSAGE) whose batch, with all sizes right, has another number of messages than
    num_messages_in_batch, or SEND.num_messages is not that number. Brokers store it; clients lose messages or
    fail, and permits are counted wrong.

    Advice: Look at how the client counts the messages of its batches.

    Source: Pulsar binary protocol, "Message metadata".
    """

    id = "batch_count_mismatch"

    def on_odd_batch(self, state: CheckState, frame: Frame, sighting: Sighting, count: int) -> None:
        """Report a batch with another number of messages."""
        stated_count = frame.head.batch if frame.head is not None else 0
        if count >= 0:
            self.report_batch(
                state, frame, sighting, f"holds {count} messages, and its metadata says {stated_count}"
            )

    def on_odd_send(self, state: CheckState, frame: Frame, producer: Producer | None, send: Send) -> None:
        """Report a SEND that says another number than its metadata."""
        head, count = frame.head, frame.ids.count
        if head is not None and is_miscounted(count, head):
            self.report_batch(state, frame, send, f"has {head.batch} messages, and its SEND says {count}")


class BatchDoesNotOpen(_Batch):
    """The sizes in a batch do not fit its bytes, so that its messages cannot be told apart.

    Must: put before each message of a batch the size of its metadata, and into that the size of its payload.

    Wire: SEND (or MESSAGE) with num_messages_in_batch, whose payload does not divide into messages. Brokers
    store it; clients throw it away, or reconnect again and again.

    Advice: Look at how the client writes batches, and skip the message by its id.

    Source: Pulsar binary protocol, "Batch messages".
    """

    id = "batch_does_not_open"

    def on_odd_batch(self, state: CheckState, frame: Frame, sighting: Sighting, count: int) -> None:
        """Report a batch that does not divide into messages."""
        if count < 0:
            self.report_batch(state, frame, sighting, "cannot be divided into messages by its sizes")


class SequenceIdMismatch(ConductRule):
    """The sequence ids of a SEND and of its metadata differ.

    Must: use the same sequence id in SEND and in its metadata.

    Wire: SEND.sequence_id is not MessageMetadata.sequence_id, of which consumers know only the latter, and
    deduplication only the former.

    Advice: Let the client take both from one counter.

    Source: Pulsar binary protocol, "Command Send", "Message metadata".
    """

    id = "sequence_id_mismatch"
    relies_on = FRAME

    def on_odd_send(self, state: CheckState, frame: Frame, producer: Producer | None, send: Send) -> None:
        """Report a SEND whose metadata has another sequence id."""
        head, sequence = frame.head, frame.ids.sequence
        if head is not None and head.sequence != sequence and not _is_replicated(frame):
            text = f"SEND has sequence id {sequence}, and its metadata {head.sequence}"
            self.report_mistake(state, make_send_subject(state, frame), [(send, text)], f"{text}.")


class SequenceIdRange(ConductRule):
    """The highest sequence id of a SEND is below its lowest.

    Must: set sequence_id of a batch to that of its first message, and highest_sequence_id to its last one's.

    Wire: SEND.highest_sequence_id is below SEND.sequence_id. The broker ignores such a highest one, so
    deduplication counts only the first message.

    Advice: Look at which ids the client puts into its batches.

    Source: PIP-6; the broker's ServerCnx.handleSend.
    """

    id = "sequence_id_range"
    relies_on = FRAME

    def on_odd_send(self, state: CheckState, frame: Frame, producer: Producer | None, send: Send) -> None:
        """Report a SEND whose range is empty."""
        highest, sequence = frame.ids.highest, frame.ids.sequence
        if highest is not None and highest < sequence and not _is_replicated(frame):
            text = f"SEND has sequence ids from {sequence} to {highest}"
            self.report_mistake(state, make_send_subject(state, frame), [(send, text)], f"{text}.")


class SequenceIdOutOfOrder(ConductRule):
    """A producer uses a sequence id that is not above those it used before.

    Must: number the messages of a producer by a counter that rises.

    Wire: SEND with a sequence id that is not above the highest one since PRODUCER, with another payload than
    the earlier SEND with that id (if there is one), and with a receipt that says that it was stored. Where
    deduplication is on, the broker drops it instead (`dropped_as_duplicate`).

    Advice: Let the client draw the ids from one counter, and send messages in that order.

    Source: Pulsar binary protocol, "Command Send".
    """

    id = "sequence_id_out_of_order"

    def on_possible_duplicate(self, state: CheckState, frame: Frame, producer: Producer, send: Send) -> None:
        """Report a stored message whose sequence id does not rise."""
        previous = send.previous
        if send.is_rising or send.has_same_payload or send.stored_id == NOWHERE or not self.can_judge(state):
            return
        is_usual = send.chunk or producer.name.startswith(REPLICATOR) or (previous and previous.is_failed)
        if is_usual or not state.is_whole:
            return
        text = f"The producer used sequence id {send.sequence} after {max(send.highest_before, 0)}"
        rows: list[tuple[Sighting | None, str]] = [
            (previous, "has the same sequence id"),
            (send, f"sequence id {send.sequence}"),
            (state.sighting, "stored"),
        ]
        self.report(state, producer.subject(), rows, f"{text}, and the broker stored the message.")


class ProducerNameMismatch(ConductRule):
    """The metadata of a message names another producer than the one that sends it.

    Must: put the name that PRODUCER_SUCCESS gives into the metadata of each message.

    Wire: MessageMetadata.producer_name is not PRODUCER_SUCCESS.producer_name of SEND's producer. Consumers
    join chunks by the name in the metadata, and replicators deduplicate by it. Clients of version `probe` are
    left out: they occur only in pwire's own hand-made captures.

    Advice: Let the client take the name from PRODUCER_SUCCESS.

    Source: Pulsar binary protocol, "Message metadata", "Command ProducerSuccess".
    """

    id = "producer_name_mismatch"

    def on_odd_send(self, state: CheckState, frame: Frame, producer: Producer | None, send: Send) -> None:
        """Report a SEND whose metadata names another producer."""
        head = frame.head
        if producer is None or head is None or not producer.name or producer.name == head.producer:
            return
        if state.greeting.client_version == _PROBE or producer.name.startswith(REPLICATOR):
            return
        if not _is_replicated(frame) and self.can_judge(state):
            rows = [(producer.success, f"opens {producer.name!r}"), (send, f"names {head.producer!r}")]
            text = f"The producer {producer.name!r} sends messages that name {head.producer!r}."
            self.report_mistake(state, producer.subject(), rows, text)


class ProducerNameNotKept(ConductRule):
    """A client opens a producer again after a reconnect, and does not ask for its name.

    Should: let the broker choose a name when a producer is opened first, and use that name from then on.

    Wire: PRODUCER with an epoch above 0 and no producer_name, by a client host that got a name for this
    topic and producer id before. The broker gives it another name: to deduplication it is another producer,
    and messages that are sent again are stored twice.

    Advice: Let the client put the name from PRODUCER_SUCCESS into its next PRODUCER.

    Source: Pulsar binary protocol, "Command Producer".
    """

    id = "producer_name_not_kept"
    severity = WARNING
    relies_on = FRAME
    handlers: ClassVar = {"PRODUCER": "on_producer", "PRODUCER_SUCCESS": "on_success"}

    def __init__(self, doctor: Reporter) -> None:
        super().__init__(doctor)
        # by client host, topic, producer id
        self._successes: dict[tuple[str, str | None, int], Sighting] = {}

    def on_success(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note that a producer got its name."""
        request = state.answered_request
        if request is not None and request.owner is not None:
            self._successes[find_client_host(state.connection), request.topic, request.owner[1]] = sighting
            bound(self._successes, _MAX_CLIENTS)

    def on_producer(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Report a PRODUCER that comes again without its name."""
        body: Any = frame.body
        if body is None or not body.epoch or body.producer_name:
            return
        success = self._successes.get((find_client_host(state.connection), frame.topic, body.producer_id))
        if success is not None:
            rows = [(success, "gave it a name"), (sighting, f"epoch {body.epoch}, no producer_name")]
            self.report_mistake(state, Subject(frame.topic, producer_id=body.producer_id), rows)


class PublishTimeSkewed(ConductRule):
    """The publish time of messages is far from the time at which they were sent.

    Must: set publish_time to the time of sending, in milliseconds since 1970.

    Wire: MessageMetadata.publish_time is more than 60 s from the time of the capture, in a message that was
    not sent before. Certain if it is more than an hour. Seconds or microseconds instead of milliseconds, or
    local time instead of UTC, are the usual causes, or a wrong clock.

    Advice: Look at the clock of the client's host and at the unit: retention, seeks by time and delayed
    delivery rely on it.

    Source: Pulsar binary protocol, "Message metadata".
    """

    id = "publish_time_skewed"
    severity = WARNING

    def on_odd_send(self, state: CheckState, frame: Frame, producer: Producer | None, send: Send) -> None:
        """Report a SEND whose publish time is far off."""
        head = frame.head
        if head is None or not send.time_ns or send.previous is not None or _is_replicated(frame):
            return
        skew_ms = head.publish_time - send.time_ns // 1_000_000
        may_be_resend = producer is None or producer.epoch > 0 or frame.resend_of is not None
        if abs(skew_ms) <= MAX_SKEW_MS or (skew_ms < 0 and may_be_resend) or not self.can_judge(state):
            return
        unit = _find_unit(head.publish_time, send.time_ns)
        skew = f"{format_ns(abs(skew_ms) * 1_000_000)} {'ahead of' if skew_ms > 0 else 'behind'} the capture"
        problem = f"looks like {unit}" if unit else f"is {skew}"
        rows = [(send, f"publish_time {head.publish_time} {problem}")]
        certainty = CERTAIN if abs(skew_ms) > _HOUR_MS else SUSPECTED
        subject = make_send_subject(state, frame)
        self.report_mistake(state, subject, rows, f"The publish time of messages {problem}.", certainty)


_UNITS: Final = {"seconds": 1, "microseconds": 1_000_000, "nanoseconds": 1_000_000_000}
"""Units that publish times may have by mistake, per second."""


def _find_unit(publish_time: int, time_ns: int) -> str:
    """Return the unit in which a publish time is within some hours of a time; "" if there is none."""
    for name, per_second in _UNITS.items():
        expected = time_ns / SECOND * per_second
        if abs(publish_time - expected) < expected * 1e-5:
            return name
    return ""


class ChunkSizeMismatch(ConductRule):
    """The chunks of a message are not as long together as each of them says.

    Must: set total_chunk_msg_size to the size of all chunks of a message together.

    Wire: SENDs with all chunk ids of one uuid, not encrypted, whose payloads together are not
    total_chunk_msg_size long. Consumers reserve that much, and fail.

    Advice: Look at whether the client counts the payload before or after compression.

    Source: PIP-37.
    """

    id = "chunk_size_mismatch"

    def on_chunk(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Add a chunk, and judge the message if it is the last one."""
        metadata = frame.metadata
        if not isinstance(sighting, Send) or metadata is None or metadata.encryption_keys:
            return
        # by uuid: the first chunk, the chunk id that comes next, and the bytes so far
        messages: dict[str, tuple[Send, int, int]] = state.notes.setdefault(self.id, {})
        uuid, number = as_text(metadata.uuid), metadata.chunk_id
        message = (sighting, 0, 0) if number == 0 else messages.pop(uuid, None)
        if message is None or message[1] != number:
            return
        first, _, size = message
        size += sighting.size
        if number + 1 < metadata.num_chunks_from_msg:
            messages[uuid] = first, number + 1, size
            bound(messages, _MAX_CHUNKED)
        elif size != metadata.total_chunk_msg_size and self.can_judge(state):
            stated_size = metadata.total_chunk_msg_size
            rows = [(first, f"total_chunk_msg_size {stated_size}"), (sighting, f"{size} bytes with this one")]
            subject = Subject(frame.topic, producer_id=frame.ids.owner, uuid=uuid)
            text = f"The chunks of a message have {size} bytes, and say that they have {stated_size}."
            self.report_mistake(state, subject, rows, text)


class ChunkFieldsMissing(ConductRule):
    """A chunk of a message lacks what consumers need to join it with the others.

    Must: set uuid, num_chunks_from_msg, total_chunk_msg_size and chunk_id, below num_chunks_from_msg, in each
    chunk.

    Wire: SEND whose metadata has num_chunks_from_msg above 1, and one of the others is missing, or chunk_id
    is not below it. Consumers cannot join the message; with deduplication the broker closes the connection at
    a chunk without uuid.

    Advice: Look at how the client fills in the metadata of chunks.

    Source: PIP-37.
    """

    id = "chunk_fields_missing"
    relies_on = FRAME

    def on_chunk(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Report a SEND with a chunk that is not complete."""
        metadata = frame.metadata
        if not sighting.to_broker or metadata is None:
            return
        problems = [f"no {name}" for name in ("uuid", "total_chunk_msg_size") if not getattr(metadata, name)]
        if not 0 <= metadata.chunk_id < metadata.num_chunks_from_msg:
            problems.append(f"chunk_id {metadata.chunk_id} of {metadata.num_chunks_from_msg}")
        if problems:
            text = " and ".join(problems)
            self.report_mistake(
                state, make_send_subject(state, frame), [(sighting, text)], f"A chunk has {text}."
            )


class ConnectionPerMessage(Rule):
    """A client opens a connection for each message.

    Should: keep a connection, and its producers, for many messages.

    Wire: ten connections or more of a client host to a server, one after the other, each SEND at most 10 s
    after the end of the connection before, each with one SEND and no consumer, and closed by the client.

    Advice: Keep the client and its producer, and use them again: a connection takes many round trips.

    Source: Pulsar binary protocol, "Connection sharing".
    """

    id = "connection_per_message"
    severity = WARNING
    cause = ("client", "server")

    def __init__(self, doctor: Reporter) -> None:
        super().__init__(doctor)
        # by client host and server: connections with one SEND, that SEND, and when they ended (ns)
        self._rows: dict[tuple[str, str], list[tuple[CheckState, Sighting, int]]] = {}

    def on_closed(self, state: CheckState, ending: EndedConnection) -> None:
        """Count a connection that has sent one message."""
        sends = state.sent_count
        key = find_client_host(state.connection), state.connection.server
        if not sends and key not in self._rows:
            return
        first = state.first_send
        if sends != 1 or first is None or ending.by_broker is not False or state.has_consumers:
            if sends:
                self._rows.pop(key, None)
            return
        rows = self._rows.pop(key, [])
        end_ns = ending.end_ns or first.time_ns
        if rows and first.time_ns - rows[-1][2] > _SOON:
            rows = []
        rows.append((state, first, end_ns))
        self._rows[key] = rows[:2] + rows[-_MANY:] if len(rows) > 2 * _MANY else rows
        bound(self._rows, _MAX_CLIENTS)
        if len(rows) >= _MANY:
            evidence = [(row[1], "the only message of its connection") for row in (*rows[:2], rows[-1])]
            self.report(rows[0][0], Subject(), evidence)


class ProducerPerMessage(Rule):
    """A client opens a producer for each message.

    Should: keep a producer for many messages.

    Wire: ten producers or more of a connection for one topic, one after the other, each with one SEND, and
    closed by the client.

    Advice: Keep the producer, and use it again: opening one takes at least two round trips.

    Source: Pulsar binary protocol, "Producer".
    """

    id = "producer_per_message"
    severity = WARNING
    cause = ("client", "topic")
    relies_on = CONNECTION
    handlers: ClassVar = {"CLOSE_PRODUCER": "on_close"}

    def on_close(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Count a producer that has sent one message."""
        if not sighting.to_broker or frame.body is None or frame.topic is None:
            return
        producer = state.producer(frame.body.producer_id)
        topics: dict[str, list[Sighting]] = state.notes.setdefault(self.id, {})
        if producer is None or producer.send_count != 1 or producer.last_send is None:
            topics.pop(frame.topic, None)
            return
        sends = topics.setdefault(frame.topic, [])
        sends.append(producer.last_send)
        bound(topics, _MAX_CLIENTS)
        if len(sends) >= _MANY and self.can_judge(state):
            rows = [(send, "the only message of its producer") for send in (*sends[:2], sends[-1])]
            self.report(state, Subject(frame.topic), rows)
        del sends[2:-_MANY]


def _is_replicated(frame: Frame) -> bool:
    """Return whether a SEND carries what another producer has numbered, named and timed.

    Also True for a SEND whose metadata cannot be read.
    """
    if frame.head is None or frame.head.producer.startswith(REPLICATOR):
        return True
    metadata = None if frame.head.is_plain else frame.metadata
    return metadata is not None and (metadata.HasField("replicated_from") or metadata.HasField("marker_type"))
