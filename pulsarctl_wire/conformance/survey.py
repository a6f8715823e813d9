"""Finds out which settings a broker has, as far as the protocol shows them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from pulsarctl_wire.conformance.basics.checking import Mismatch
from pulsarctl_wire.conformance.basics.frames import id_of
from pulsarctl_wire.conformance.basics.probe import CLIENT, Probe
from pulsarctl_wire.conformance.basics.target import Target
from pulsarctl_wire.errors import LinkClosed
from pulsarctl_wire.net.protocol import read_refusal
from pulsarctl_wire.wire.session.state import NO_REQUEST

_NOWHERE: Final = {"ledgerId": NO_REQUEST, "entryId": NO_REQUEST}
"""The message id in the receipt of a duplicate, which is not stored: -1:-1, as unsigned numbers."""

_FEATURE_FLAGS: Final = {"supports_broker_entry_metadata": True}


class Survey(NamedTuple):
    """What a broker says of itself, and the settings that it was seen to have."""

    server: str
    protocol_version: int
    settings: frozenset[str]


async def survey(target: Target) -> Survey:
    """Connect to a broker, and find out its settings.

    Raises SessionError if it cannot be reached, or refuses the credentials.
    """
    probe = await target.open_connection()
    probe.command("CONNECT", **CLIENT, **target.credentials)
    try:
        frame = await probe.next(what="CONNECTED")
    except Mismatch as error:
        raise LinkClosed(f"CONNECT: {error}; is this the port of a broker?") from None
    refusal = read_refusal(frame, "CONNECT")
    if refusal is not None:
        raise refusal
    server, version = frame.body.server_version, frame.body.protocol_version
    settings = [name for name, ask in _QUESTIONS.items() if await _is_true(ask, target)]
    return Survey(server, version, frozenset(settings))


async def _is_true(ask: Callable[[Target], Awaitable[bool]], target: Target) -> bool:
    try:
        return await ask(target)
    except Mismatch:  # a case will report it
        return False


async def _asks_for_credentials(target: Target) -> bool:
    probe = await target.open_connection()
    probe.command("CONNECT", **CLIENT)
    return (await probe.next()).command == "ERROR"


async def _has_transactions(target: Target) -> bool:
    probe = await target.connect()
    probe.start("NEW_TXN", tc_id=0, txn_ttl_millis=1)
    return (await probe.next()).command == "NEW_TXN_RESPONSE"


async def _creates_nothing(target: Target) -> bool:
    probe, topic = await target.connect(), target.topic()
    await probe.look_up(topic)
    probe.start("PRODUCER", topic=topic, producer_id=1)
    return (await probe.next()).command == "ERROR"


async def _removes_duplicates(target: Target) -> bool:
    probe = await target.produce(target.topic())
    await probe.publish_all(b"m")
    probe.publish()
    frame = await probe.next()
    return frame.command == "SEND_ERROR" or id_of(frame.body.message_id) == _NOWHERE


async def _deliver_batch(target: Target) -> tuple[str, Probe]:
    """Publish a batch to a new topic, and subscribe; return the topic, and the consumer's connection."""
    producer = await target.produce(topic := target.topic())
    await producer.publish_batch(b"0", b"1")
    consumer = await target.connect(feature_flags=_FEATURE_FLAGS)
    await consumer.subscribe(topic)
    consumer.flow(10)
    return topic, consumer


async def _keeps_partial_acks(target: Target) -> bool:
    topic, consumer = await _deliver_batch(target)
    (message,) = await consumer.messages(1)
    await consumer.confirm_ack({**id_of(message.body.message_id), "ack_set": [0b10], "batch_size": 2})
    await consumer.resubscribe(topic)
    (message,) = await consumer.messages(1)
    return bool(message.body.ack_set)


async def _exposes_metadata(target: Target) -> bool:
    _, consumer = await _deliver_batch(target)
    (message,) = await consumer.messages(1)
    return message.broker_entry_metadata is not None


_QUESTIONS: Final[dict[str, Callable[[Target], Awaitable[bool]]]] = {
    "auth": _asks_for_credentials,
    "txn": _has_transactions,
    "nocreate": _creates_nothing,
    "dedup": _removes_duplicates,
    "batchack": _keeps_partial_acks,
    "bem": _exposes_metadata,
}
"""Name of a setting -> the function that finds out whether a broker has it."""
