"""Producers that encrypt, and consumers that decrypt, without sockets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from net.scripted import TOPIC, entry
from net.test_protocol import SUCCESS, Consuming, at, frame_of

from pulsarctl_wire.errors import DecryptionError
from pulsarctl_wire.net.outbox import Warned
from pulsarctl_wire.net.session.encryption import LIFE, Encryptor, Recipient, load_public_key
from pulsarctl_wire.net.session.inbox import Delivery
from pulsarctl_wire.net.session.send_queue import ProducerOptions, SendQueue
from pulsarctl_wire.wire.chunks import ChunkJoiner
from pulsarctl_wire.wire.encryption import KeyRing, load_private_key
from pulsarctl_wire.wire.entry import Outgoing
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.payload import open_entry
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandAck, CompressionType, MessageMetadata

KEYS = Path(__file__).parents[1] / "encrypted"
NAMES = ("rsa", "other", "ec", "p256")
RECIPIENTS = [Recipient(name, load_public_key((KEYS / f"{name}.pub").read_bytes())) for name in NAMES]
RINGS = {name: KeyRing([load_private_key((KEYS / f"{name}.pem").read_bytes())]) for name in NAMES}
LARGEST = 5_000


def send(payloads: list[bytes], **options: Any) -> list[Frame]:
    """The SENDs of a producer with all recipients; the last chunk of a message has the whole of it."""
    options = {"recipients": RECIPIENTS, "codec": CompressionType.LZ4, **options}
    queue = SendQueue(TOPIC, 1, ProducerOptions(**options))
    assert queue.make_command(at(0)).producer.encrypted
    queue.on_registered(SUCCESS, LARGEST)
    queue.on_open(at(0))
    for payload in payloads:
        queue.add(Outgoing(payload, key="k"), at(0))
    queue.send_batches(at(0))
    frames, joiner = [frame_of(data, to_broker=True) for data in queue.take_bytes()], ChunkJoiner()
    for frame in frames:
        frame.connection = frames[0].connection
        metadata = frame.metadata
        assert metadata is not None
        assert [key.key for key in metadata.encryption_keys] == [*NAMES]
        if metadata.num_chunks_from_msg:
            joiner.add(frame, metadata, 1)
    return frames


def read(frame: Frame, name: str) -> list[bytes | None]:
    opened = open_entry(frame, keys=RINGS[name])
    assert opened.messages == [] or (opened.opened is not None and opened.opened.key == name)
    return [message.payload for message in opened.messages]


@pytest.mark.parametrize("name", NAMES)
def test_every_recipient_reads_batches_and_chunks(name: str) -> None:
    payloads = [b"one", b"two", b"three"]
    (batch,) = send(payloads)
    assert read(batch, name) == payloads
    assert [read(frame, name) for frame in send(payloads, batch_count=1)] == [[each] for each in payloads]
    large = bytes(range(256)) * 40
    chunks = send([large], batch_count=1, chunking=True, codec=0)
    assert len(chunks) > 2
    assert [read(frame, name) for frame in chunks] == [*[[]] * (len(chunks) - 1), [large]]
    assert max(len(frame.raw) for frame in chunks) <= LARGEST


def test_producers_without_recipients_do_not_say_that_they_encrypt() -> None:
    assert not SendQueue(TOPIC, 1, ProducerOptions()).make_command(at(0)).producer.HasField("encrypted")


def test_a_data_key_is_renewed_after_four_hours() -> None:
    queue = SendQueue(TOPIC, 1, ProducerOptions(recipients=RECIPIENTS[:1], batch_count=1))
    queue.on_registered(SUCCESS, LARGEST)
    queue.on_open(at(0))
    for seconds in (0, LIFE / 1e9 - 1, LIFE / 1e9):
        queue.add(Outgoing(b"a"), at(seconds))
    metadata = [frame_of(data, to_broker=True).metadata for data in queue.take_bytes()]
    first, second, third = (each.encryption_keys[0].value for each in metadata if each is not None)
    assert first == second != third


def deliver(name: str, **options: Any) -> tuple[Consuming, Delivery[Any]]:
    """A consumer with an encrypted message."""
    consumer, metadata = Consuming(**options), MessageMetadata()
    recipient = RECIPIENTS[NAMES.index(name)]
    payload = Encryptor([recipient]).encrypt(metadata, b"secret", 0)
    fields: dict[str, Any] = {"encryption_keys": metadata.encryption_keys}
    fields["encryption_param"] = metadata.encryption_param
    consumer.queue.on_frame(frame_of(entry(1, payload, **fields)(1)), at(1))
    consumer.sent()
    return consumer, consumer.inbox._queue.popleft()


@pytest.mark.parametrize("action", ["fail", "discard", "consume"])
def test_what_a_key_opens_is_consumed(action: str) -> None:
    consumer, delivery = deliver("rsa", keys=RINGS["rsa"], crypto_failure=action)
    assert consumer.queue.open_entry(delivery)
    assert [message.payload for message in delivery.messages] == [b"secret"]
    assert delivery.decryption is not None


@pytest.mark.parametrize("keys", [None, RINGS["ec"]])
def test_what_no_key_opens_ends_the_consumer(keys: KeyRing | None) -> None:
    consumer, delivery = deliver("rsa", keys=keys, crypto_failure="fail")
    reason = "encrypted, and no private key was given" if keys is None else "opens the data key of rsa"
    with pytest.raises(DecryptionError, match=f"{reason}; it stays unacknowledged"):
        consumer.queue.open_entry(delivery)
    assert consumer.sent() == []


def test_what_no_key_opens_is_acknowledged_with_the_reason() -> None:
    consumer, delivery = deliver("rsa", keys=RINGS["ec"], crypto_failure="discard")
    assert not consumer.queue.open_entry(delivery)
    (ack,) = (frame_of(data, to_broker=True) for data in consumer.queue.take_bytes())
    assert (ack.command, ack.body.validation_error) == ("ACK", CommandAck.DecryptionError)
    assert consumer.queue.counts["undecryptable"] == 1
    (warned,) = (event for event in consumer.queue.take_events() if isinstance(event, Warned))
    assert "undecryptable, acknowledged with validation_error DecryptionError" in warned.text


def test_what_no_key_opens_is_consumed_as_it_is() -> None:
    consumer, delivery = deliver("rsa", keys=RINGS["ec"], crypto_failure="consume")
    assert consumer.queue.open_entry(delivery)
    assert [message.payload for message in delivery.messages] == [delivery.frame.payload]
    assert delivery.decryption is None
