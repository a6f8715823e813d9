"""Rules about frames and payloads: sizes, checksums, compression, metadata."""

from typing import Final, NamedTuple

from pulsarctl_wire.checks.facts import Send, format_entry
from pulsarctl_wire.checks.finding import WRONG_CHECKSUM, Sighting, Subject
from pulsarctl_wire.checks.ledgers import Consumer, Producer, UnackedDelivery
from pulsarctl_wire.checks.rule import SECOND, Reporter, Rule
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.checksum_cause import explain_checksum
from pulsarctl_wire.wire.commands import NUMBERS
from pulsarctl_wire.wire.frame import MAX_PARSED, Event, Frame, Gap
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandAck, ServerError
from pulsarctl_wire.wire.session.ending import EndedConnection
from pulsarctl_wire.wire.session.knowledge import bound
from pulsarctl_wire.wire.session.ledgers import entry_of

_SEND: Final = NUMBERS["SEND"]
_MESSAGE: Final = NUMBERS["MESSAGE"]
_MAX_SENDS: Final = 1_024  # corrupt ones that may be sent again

_SendKey = tuple[str | None, str, int, int]
"""Topic, name of the producer, sequence id and chunk of a SEND: they stay if it is sent again."""


def _make_key(producer: Producer, send: Send) -> _SendKey:
    return producer.topic, producer.name, send.sequence, send.chunk


def make_entry_subject(frame: Frame) -> Subject:
    """Return the subject of a finding about a SEND or MESSAGE."""
    if frame.type == _SEND:
        send = frame.base.send  # type: ignore[union-attr]
        return Subject(frame.topic, producer_id=send.producer_id, sequence_id=send.sequence_id)
    body = frame.base.message  # type: ignore[union-attr]
    entry = format_entry(entry_of(body.message_id))
    return Subject(frame.topic, frame.subscription, consumer_id=body.consumer_id, message_id=entry)


class _Oversized(NamedTuple):
    """A frame over the limit."""

    sighting: Sighting
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

    def on_oversized(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note a frame over the limit."""
        if not sighting.to_broker:
            state.notes[self.id] = _Oversized(sighting, frame.size, state.limit, Subject(frame.topic))

    def on_lost(self, state: CheckState, event: Event) -> None:
        """Forget a large frame that may not be the last one."""
        if isinstance(event, Gap) and not event.to_broker:
            state.notes.pop(self.id, None)

    def on_closed(self, state: CheckState, ending: EndedConnection) -> None:
        """Report a large frame that was the last one."""
        large: _Oversized | None = state.notes.get(self.id)
        if large is None or state.to_client.last is not large.sighting or ending.by_broker is not False:
            return
        if (ending.end_ns or 0) - large.sighting.time_ns <= SECOND:
            text = f"The broker's answer of {large.size} bytes is over the client's limit of {large.limit}"
            rows = [(large.sighting, f"{large.size} bytes")]
            self.report(state, large.subject, rows, f"{text}, so the client drops the connection.")


class MessageOverFrameLimit(Rule):
    """A message with its metadata is larger than the broker's frame limit, so the broker hangs up.

    Must: send no frame that is more than 10 KiB larger than the message size that CONNECTED states.

    Wire: SEND with TOTAL_SIZE + 4 above max_message_size + 10,240 bytes; the broker closes without an answer.
    The client reconnects and sends it again, with the same producer name and sequence id. Java from 4.0, C++
    and Go refuse such messages before they are sent.

    Advice: Make the message or its properties smaller, use chunking, raise maxMessageSize, or upgrade the
    client, which then refuses such messages itself.

    Source: apache/pulsar issues 6961 and 16643.
    """

    id = "message_over_frame_limit"
    cause = ("client", "topic")

    def on_oversized(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note a frame over the limit."""
        if sighting.to_broker and frame.type == _SEND:
            state.notes[self.id] = _Oversized(sighting, frame.size, state.limit, make_entry_subject(frame))

    def on_closed(self, state: CheckState, ending: EndedConnection) -> None:
        """Report a large SEND that the broker did not answer."""
        large: _Oversized | None = state.notes.get(self.id)
        if large is None or not ending.by_broker:
            return
        if isinstance(large.sighting, Send) and large.sighting.answer is not None:
            return
        text = (
            f"A message of {large.size} bytes with its metadata is over the broker's limit of {large.limit}"
        )
        rows = [(large.sighting, f"{large.size} bytes")]
        self.report(state, large.subject, rows, f"{text}, so the broker closes the connection.")


class ChecksumRule(Rule):
    """The base class of rules about wrong checksums: they find out why a checksum is wrong."""

    def on_corrupt(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note the cause of a wrong checksum."""
        if not sighting.checksum_cause:  # another of these rules may have set it
            sighting.checksum_cause = explain_checksum(frame)


class SendCorruptAtSource(ChecksumRule):
    """The producer sends a wrong checksum, and the same bytes again: it was wrong before it was sent.

    Must: send the CRC32-C of metadata size, metadata and payload with each message, or none.

    Wire: SEND with a wrong CRC32-C, which brokers answer by SEND_ERROR ChecksumError, and later the same
    producer name and sequence id with identical bytes.

    Advice: Look at the producing client (library, memory); the network is not to blame.

    Source: apache/pulsar issue 4051, pulsar-client-go issue 666.
    """

    id = "send_corrupt_at_source"
    cause = ("client",)

    def on_sent_again(self, state: CheckState, frame: Frame, producer: Producer, send: Send) -> None:
        """Report the same bytes with the same wrong checksum."""
        previous = send.previous
        if previous is not None and previous.is_corrupt and frame.checksum == "invalid" and send.is_copy:
            rows = [(previous, WRONG_CHECKSUM), (send, "the same bytes again")]
            refusals = [(previous.answer, "refused"), (send.answer, "refused")]
            self.report(state, producer.subject(send), [*rows, *refusals])


class SendCorruptInTransit(ChecksumRule):
    """The same message is good in one place and broken in another: it was damaged between client and broker.

    Wire: SEND with a wrong CRC32-C, and the same message with the right one later; or SEND whose CRC is
    correct in this capture, and SEND_ERROR ChecksumError for it. Java sends it again on the same connection,
    Go on another.

    Advice: Check the path between client and broker: proxies, network cards with offloading, memory.

    Source: apache/pulsar issue 21557.
    """

    id = "send_corrupt_in_transit"
    cause = ("client", "server")

    def on_sent_again(self, state: CheckState, frame: Frame, producer: Producer, send: Send) -> None:
        """Report the same message with the right checksum."""
        previous = send.previous
        if previous is None or not previous.is_corrupt or frame.checksum == "invalid":
            return
        if previous.size == send.size:
            rows = [
                (previous, WRONG_CHECKSUM),
                (previous.answer, "refused"),
                (send, "the same message, the CRC is right"),
            ]
            self.report(state, producer.subject(send), rows)

    def on_send_failed(self, state: CheckState, frame: Frame, producer: Producer, send: Send) -> None:
        """Report an error about a checksum that is correct in this capture."""
        error = frame.base.send_error.error  # type: ignore[union-attr]
        if error == ServerError.ChecksumError and not send.is_corrupt:
            rows = [(send, "the CRC is correct in this capture"), (state.sighting, "refused: ChecksumError")]
            self.report(state, producer.subject(send), rows)


class SendCorrupt(ChecksumRule):
    """A message arrives with a wrong checksum, and its client does not send it again: it is lost.

    Wire: SEND with a wrong CRC32-C, which brokers answer by SEND_ERROR ChecksumError, and no SEND with its
    producer name and sequence id for R. C++ and Python clients report the error to the application.

    Advice: Find out what changes bytes between producer and broker, and let the application handle the error.

    Source: Pulsar binary protocol, "Payload commands".
    """

    id = "send_corrupt"
    cause = ("client", "server")

    def __init__(self, doctor: Reporter) -> None:
        super().__init__(doctor)
        self._waiting: dict[_SendKey, tuple[CheckState, Producer, Send]] = {}

    def on_corrupt(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note a SEND with a wrong checksum."""
        super().on_corrupt(state, frame, sighting)
        if isinstance(sighting, Send) and not sighting.is_copy:
            producer = state.producer(sighting.producer)
            if producer is not None:
                self._waiting[_make_key(producer, sighting)] = state, producer, sighting
                bound(self._waiting, _MAX_SENDS)

    def on_sent_again(self, state: CheckState, frame: Frame, producer: Producer, send: Send) -> None:
        """Forget a SEND that is sent again: other rules are about it."""
        key = _make_key(producer, send)
        waiter = self._waiting.get(key)
        if waiter is not None and waiter[2] is send.previous:
            del self._waiting[key]

    def on_due(self, now_ns: int) -> None:
        """Report a SEND that is not sent again in time."""
        for key, (state, producer, send) in list(self._waiting.items()):
            if now_ns - send.time_ns >= self.thresholds.unanswered:
                del self._waiting[key]
                self._report(state, producer, send)

    def on_finished(self) -> None:
        """Report all SENDs that were not sent again."""
        for state, producer, send in self._waiting.values():
            self._report(state, producer, send)
        self._waiting.clear()

    def _report(self, state: CheckState, producer: Producer, send: Send) -> None:
        rows = [(send, WRONG_CHECKSUM), (send.answer, "refused")]
        self.report(state, producer.subject(send), rows)


class MessageCorrupt(ChecksumRule):
    """A message reaches the consumer with a wrong checksum: it was damaged between broker and here.

    Wire: MESSAGE with a wrong CRC32-C. Brokers check what they store, so the damage is younger.

    Advice: Check the path between broker and client; clients discard such messages or reconnect.

    Source: Pulsar binary protocol, "Payload commands".
    """

    id = "message_corrupt"
    cause = ("client", "server")

    def on_corrupt(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Report a MESSAGE with a wrong checksum."""
        super().on_corrupt(state, frame, sighting)
        if frame.type == _MESSAGE:
            self.report(state, make_entry_subject(frame), [(sighting, WRONG_CHECKSUM)])


class ClientDiscardedMessage(Rule):
    """The client could not read a message, threw it away and acknowledged it: the application never sees it.

    Wire: ACK with validation_error. The MESSAGE before it may be correct in this capture, and damaged later.

    Advice: Find out what is wrong with the message (pwire decode -o tree), or give the client the key that it
    lacks; read the message with another subscription if it matters, before retention deletes it.

    Source: CommandAck.validation_error in PulsarApi.proto; pulsar-client-go issue 1331.
    """

    id = "client_discarded_message"
    cause = ("client", "topic", "subscription")

    def on_discarded(self, state: CheckState, frame: Frame, consumer: Consumer) -> None:
        """Report the entries of an ACK with validation_error."""
        body = frame.base.ack  # type: ignore[union-attr]
        error = CommandAck.ValidationError.Name(body.validation_error)
        for message_id in body.message_id:
            entry = entry_of(message_id)
            delivery = consumer.entries.get(entry)
            rows = [(state.sighting, f"acknowledged with {error}")]
            crc = ""
            if isinstance(delivery, UnackedDelivery):
                rows.insert(0, (delivery.sighting, "the message"))
                crc = f"; its checksum is {'correct' if delivery.is_intact else 'wrong'} in this capture"
            text = f"The client could not read a message ({error}{crc}), threw it away and acknowledged it"
            end = ", as its crypto failure action DISCARD says." if error == "DecryptionError" else "."
            self.report(state, consumer.subject(entry), rows, text + end)


class BadUncompressedSize(Rule):
    """A compressed message carries a missing or wrong uncompressed_size: some clients read it as empty.

    Must: state the size of the payload before compression in uncompressed_size.

    Wire: SEND or MESSAGE with a compression other than NONE, the CRC is right, and uncompressed_size is not
    the length of the decompressed payload. Java delivers an empty message, C++ discards it, Go may ignore the
    size.

    Advice: Fix the producing client: uncompressed_size is the length before compression.

    Source: MessageMetadata in PulsarApi.proto; pulsar-rs pull request 220.
    """

    id = "bad_uncompressed_size"
    cause = ("topic",)

    def on_unreadable(self, state: CheckState, frame: Frame, sighting: Sighting, size: int | None) -> None:
        """Report a wrong or missing size."""
        metadata = frame.metadata
        if size is None or metadata is None:
            return
        stated_size = metadata.uncompressed_size if metadata.HasField("uncompressed_size") else "no"
        text = f"A compressed message carries {stated_size} uncompressed_size where {size} is right"
        text += ": some clients read it as empty, others throw it away."
        self.report(state, make_entry_subject(frame), [(sighting, "the message")], text)


class PayloadDoesNotDecompress(Rule):
    """A message is not compressed with the codec that its metadata names: no client can read it.

    Wire: SEND or MESSAGE with a compression other than NONE, the CRC is right, and the payload is not data of
    that codec, whatever its size. C++ acknowledges it with a validation_error; other clients may reconnect
    and get it again.

    Advice: Fix the producing client; let the subscription skip the message if consumers are stuck on it.

    Source: MessageMetadata.compression in PulsarApi.proto.
    """

    id = "payload_does_not_decompress"
    cause = ("topic",)

    def on_unreadable(self, state: CheckState, frame: Frame, sighting: Sighting, size: int | None) -> None:
        """Report a payload that its codec cannot read."""
        if size is None:
            self.report(state, make_entry_subject(frame), [(sighting, "the message")])


class UndecodableMetadata(Rule):
    """The broker accepts a message whose metadata nobody can decode; it is never delivered.

    Must: send metadata that is a valid MessageMetadata.

    Wire: SEND or MESSAGE with a right CRC whose MessageMetadata does not parse, or lacks a required field.
    The broker answers with a receipt, and skips the entry when it delivers.

    Advice: Fix the producing client; the message is lost.

    Source: MessageMetadata in PulsarApi.proto: producer_name, sequence_id and publish_time are required.
    """

    id = "undecodable_metadata"
    cause = ("topic",)

    def on_undecodable(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Report an entry whose metadata does not parse."""
        if frame.checksum == "valid" and frame.payload_at <= MAX_PARSED:  # larger heads are not parsed
            self.report(state, make_entry_subject(frame), [(sighting, "the message")])
