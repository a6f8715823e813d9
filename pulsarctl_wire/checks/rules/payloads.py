"""Rules about frames and payloads: sizes, checksums, compression, metadata."""

from typing import Final, NamedTuple

from pulsarctl_wire.checks.facts import Sent, text_of
from pulsarctl_wire.checks.finding import Sighting, Subject
from pulsarctl_wire.checks.ledgers import Consumer, Held, Producer
from pulsarctl_wire.checks.rule import SECOND, Findings, Rule
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.commands import NUMBERS
from pulsarctl_wire.wire.frame import MAX_PARSED, Event, Frame, Gap
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandAck, ServerError
from pulsarctl_wire.wire.session.ending import EndedConnection
from pulsarctl_wire.wire.session.knowledge import bound
from pulsarctl_wire.wire.session.ledgers import entry_of

_SEND: Final = NUMBERS["SEND"]
_MESSAGE: Final = NUMBERS["MESSAGE"]
_MAX_DIGESTS: Final = 1_024  # entries that were reported as SEND


def about_entry(frame: Frame) -> Subject:
    """The subject of a finding about a SEND or MESSAGE."""
    if frame.type == _SEND:
        send = frame.base.send  # type: ignore[union-attr]
        return Subject(frame.topic, producer_id=send.producer_id, sequence_id=send.sequence_id)
    body = frame.base.message  # type: ignore[union-attr]
    entry = text_of(entry_of(body.message_id))
    return Subject(frame.topic, frame.subscription, consumer_id=body.consumer_id, message_id=entry)


class _Oversized(NamedTuple):
    seen: Sighting
    size: int
    limit: int
    subject: Subject


class ResponseOverFrameLimit(Rule):
    """The broker's answer is larger than the client accepts, so the client drops the connection.

    Wire: a frame to the client with TOTAL_SIZE + 4 above CONNECTED.max_message_size + 10,240 bytes is the
    last thing that the broker sends; the client closes within a second, often before all of it has arrived.
    Java and Go do this; C++ has no such limit.

    Advice: Narrow the request (namespace, pattern), or raise maxMessageSize on the broker: clients take their
    limit from it.

    Source: apache/pulsar issue 15688.
    """

    id = "response_over_frame_limit"

    def oversized(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """A frame over the limit."""
        if not seen.to_broker:
            state.marks[self.id] = _Oversized(seen, frame.size, state.limit, Subject(frame.topic))

    def lost(self, state: CheckState, event: Event) -> None:
        """It may not be the last one."""
        if isinstance(event, Gap) and not event.to_broker:
            state.marks.pop(self.id, None)

    def closed(self, state: CheckState, ending: EndedConnection) -> None:
        """It was the last one."""
        large: _Oversized | None = state.marks.get(self.id)
        if large is None or state.to_client.last is not large.seen or ending.by_broker is not False:
            return
        if (ending.end_ns or 0) - large.seen.time_ns <= SECOND:
            text = f"The broker's answer of {large.size} bytes is over the client's limit of {large.limit}"
            why = f"{large.size} bytes"
            self.found(
                state, large.subject, [(large.seen, why)], f"{text}, so the client drops the connection."
            )


class MessageOverFrameLimit(Rule):
    """A message with its metadata is larger than the broker's frame limit, so the broker hangs up.

    Wire: SEND with TOTAL_SIZE + 4 above max_message_size + 10,240 bytes; the broker closes without an answer.
    The client reconnects and sends it again, with the same producer name and sequence id. Java from 4.0, C++
    and Go refuse such messages before they are sent.

    Advice: Make the message or its properties smaller, use chunking, raise maxMessageSize, or upgrade the
    client, which then refuses such messages itself.

    Source: apache/pulsar issues 6961 and 16643.
    """

    id = "message_over_frame_limit"

    def oversized(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """A frame over the limit."""
        if seen.to_broker and frame.type == _SEND:
            state.marks[self.id] = _Oversized(seen, frame.size, state.limit, about_entry(frame))

    def closed(self, state: CheckState, ending: EndedConnection) -> None:
        """The broker has closed the connection."""
        large: _Oversized | None = state.marks.get(self.id)
        if large is None or not ending.by_broker:
            return
        if isinstance(large.seen, Sent) and large.seen.answer is not None:
            return
        text = (
            f"A message of {large.size} bytes with its metadata is over the broker's limit of {large.limit}"
        )
        why = f"{large.size} bytes"
        self.found(state, large.subject, [(large.seen, why)], f"{text}, so the broker closes the connection.")


class SendCorruptAtSource(Rule):
    """The producer sends a wrong checksum, and the same bytes again: it was wrong before it was sent.

    Wire: SEND with a wrong CRC32-C, answered by SEND_ERROR ChecksumError, and later the same producer name
    and sequence id with identical bytes.

    Advice: Look at the producing client (library, memory); the network is not to blame.

    Source: apache/pulsar issue 4051, pulsar-client-go issue 666.
    """

    id = "send_corrupt_at_source"

    def sent_again(self, state: CheckState, frame: Frame, producer: Producer, sent: Sent) -> None:
        """The same bytes with the same wrong checksum."""
        before = sent.before
        if before is not None and before.corrupt and frame.checksum == "invalid" and sent.is_copy:
            rows: list[tuple[Sighting, str]] = [(before, "the CRC is wrong"), (sent, "the same bytes again")]
            rows += [(each.answer, "refused") for each in (before, sent) if each.answer is not None]
            self.found(state, producer.subject(sent), rows)


class SendCorruptInTransit(Rule):
    """The same message is good in one place and broken in another: it was damaged between client and broker.

    Wire: SEND with a wrong CRC32-C, and the same message with the right one later; or SEND with the right
    CRC here, and SEND_ERROR ChecksumError for it. Java sends it again on the same connection, Go on another.

    Advice: Check the path between client and broker: proxies, network cards with offloading, memory.

    Source: apache/pulsar issue 21557.
    """

    id = "send_corrupt_in_transit"

    def sent_again(self, state: CheckState, frame: Frame, producer: Producer, sent: Sent) -> None:
        """The same message with the right checksum."""
        before = sent.before
        if before is not None and before.corrupt and frame.checksum != "invalid" and before.size == sent.size:
            rows: list[tuple[Sighting, str]] = [(before, "the CRC is wrong")]
            if before.answer is not None:
                rows.append((before.answer, "refused"))
            rows.append((sent, "the same message, the CRC is right"))
            self.found(state, producer.subject(sent), rows)

    def send_failed(self, state: CheckState, frame: Frame, producer: Producer, sent: Sent) -> None:
        """The broker found another checksum than is right here."""
        error = frame.base.send_error.error  # type: ignore[union-attr]
        if error == ServerError.ChecksumError and not sent.corrupt:
            rows: list[tuple[Sighting, str]] = [
                (sent, "the CRC is right here"),
                (state.seen, "refused: ChecksumError"),
            ]
            self.found(state, producer.subject(sent), rows)


class SendCorrupt(Rule):
    """A message arrives with a wrong checksum and is not sent again: it is lost unless repeated.

    Wire: SEND with a wrong CRC32-C, answered by SEND_ERROR ChecksumError, and no SEND with its producer name
    and sequence id for R. C++ and Python clients report the error to the application.

    Advice: Find out what changes bytes between producer and broker, and let the application handle the error.

    Source: Pulsar binary protocol, "Payload commands".
    """

    id = "send_corrupt"

    def __init__(self, doctor: Findings) -> None:
        super().__init__(doctor)
        self._waiting: dict[tuple[str | None, int, int], tuple[CheckState, Producer, Sent]] = {}

    def corrupt(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """A wrong checksum."""
        if isinstance(seen, Sent) and not seen.is_copy:
            producer = state.producer(seen.producer)
            if producer is not None:
                self._waiting[producer.topic, seen.sequence, seen.chunk] = state, producer, seen
                bound(self._waiting, _MAX_DIGESTS)

    def sent_again(self, state: CheckState, frame: Frame, producer: Producer, sent: Sent) -> None:
        """Another rule knows better."""
        before = sent.before
        waiting = self._waiting.get((producer.topic, sent.sequence, sent.chunk))
        if waiting is not None and waiting[2] is before:
            del self._waiting[producer.topic, sent.sequence, sent.chunk]

    def due(self, now_ns: int) -> None:
        """It is not sent again."""
        for key, (state, producer, sent) in list(self._waiting.items()):
            if now_ns - sent.time_ns >= self.thresholds.unanswered:
                del self._waiting[key]
                self._report(state, producer, sent)

    def finished(self) -> None:
        """It was not sent again."""
        for state, producer, sent in self._waiting.values():
            self._report(state, producer, sent)
        self._waiting.clear()

    def _report(self, state: CheckState, producer: Producer, sent: Sent) -> None:
        rows: list[tuple[Sighting, str]] = [(sent, "the CRC is wrong")]
        if sent.answer is not None:
            rows.append((sent.answer, "refused"))
        self.found(state, producer.subject(sent), rows)


class MessageCorrupt(Rule):
    """A message reaches the consumer with a wrong checksum: it was damaged between broker and here.

    Wire: MESSAGE with a wrong CRC32-C. Brokers check what they store, so the damage is younger.

    Advice: Check the path between broker and client; clients discard such messages or reconnect.

    Source: Pulsar binary protocol, "Payload commands".
    """

    id = "message_corrupt"

    def corrupt(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """A wrong checksum."""
        if frame.type == _MESSAGE:
            self.found(state, about_entry(frame), [(seen, "the CRC is wrong")])


class ClientDiscardedMessage(Rule):
    """The client could not read a message, threw it away and acknowledged it: the application never sees it.

    Wire: ACK with validation_error. The MESSAGE before it may be right here, and damaged later.

    Advice: Find out what is wrong with the message (pwire decode -o tree), or give the client the key that it
    lacks; read the message with another subscription if it matters, before retention deletes it.

    Source: CommandAck.validation_error in PulsarApi.proto; pulsar-client-go issue 1331.
    """

    id = "client_discarded_message"

    def discarded(self, state: CheckState, frame: Frame, consumer: Consumer) -> None:
        """ACK with validation_error."""
        body = frame.base.ack  # type: ignore[union-attr]
        error = CommandAck.ValidationError.Name(body.validation_error)
        for each in body.message_id:
            entry = entry_of(each)
            held = consumer.entries.get(entry)
            rows = [(state.seen, f"acknowledged with {error}")]
            where = ""
            if isinstance(held, Held):
                rows.insert(0, (held.seen, "the message"))
                where = f"; its checksum is {'right' if held.intact else 'wrong'} here"
            text = f"The client could not read a message ({error}{where}), threw it away and acknowledged it"
            end = ", as its crypto failure action DISCARD says." if error == "DecryptionError" else "."
            self.found(state, consumer.subject(entry), rows, text + end)


class BadUncompressedSize(Rule):
    """A compressed message carries a missing or wrong uncompressed_size: some clients read it as empty.

    Wire: SEND or MESSAGE with a compression other than NONE, the CRC is right, and uncompressed_size is not
    the length of the decompressed payload. Java delivers an empty message, C++ discards it, Go may ignore the
    size.

    Advice: Fix the producing client: uncompressed_size is the length before compression.

    Source: MessageMetadata in PulsarApi.proto; pulsar-rs pull request 220.
    """

    id = "bad_uncompressed_size"

    def unreadable(self, state: CheckState, frame: Frame, seen: Sighting, size: int | None) -> None:
        """The size is wrong."""
        metadata = frame.metadata
        if size is None or metadata is None:
            return
        stated = metadata.uncompressed_size if metadata.HasField("uncompressed_size") else "no"
        text = f"A compressed message carries {stated} uncompressed_size where {size} is right"
        text += ": some clients read it as empty, others throw it away."
        self.found(state, about_entry(frame), [(seen, "the message")], text)


class PayloadDoesNotDecompress(Rule):
    """A message is not compressed with the codec that its metadata names: no client can read it.

    Wire: SEND or MESSAGE with a compression other than NONE, the CRC is right, and the payload is not data of
    that codec, whatever its size. C++ acknowledges it with a validation_error; other clients may reconnect
    and get it again.

    Advice: Fix the producing client; let the subscription skip the message if consumers are stuck on it.

    Source: MessageMetadata.compression in PulsarApi.proto.
    """

    id = "payload_does_not_decompress"

    def unreadable(self, state: CheckState, frame: Frame, seen: Sighting, size: int | None) -> None:
        """The codec cannot read it."""
        if size is None:
            self.found(state, about_entry(frame), [(seen, "the message")])


class UndecodableMetadata(Rule):
    """The broker accepts a message whose metadata nobody can decode; it is never delivered.

    Wire: SEND or MESSAGE with a right CRC whose MessageMetadata does not parse, or lacks a required field.
    The broker answers with a receipt, and skips the entry when it delivers.

    Advice: Fix the producing client; the message is lost.

    Source: MessageMetadata in PulsarApi.proto: producer_name, sequence_id and publish_time are required.
    """

    id = "undecodable_metadata"

    def undecodable(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """The metadata does not parse."""
        if frame.checksum == "valid" and frame.payload_at <= MAX_PARSED:  # of more, nothing is parsed
            self.found(state, about_entry(frame), [(seen, "the message")])
