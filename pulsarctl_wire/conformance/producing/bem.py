"""Metadata that the broker puts in front of entries."""

from __future__ import annotations

from typing import Any

from pulsarctl_wire.checks.requirement import MUST, OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import equal
from pulsarctl_wire.conformance.basics.frames import tail
from pulsarctl_wire.conformance.basics.target import Target
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.frame_layout import MAGIC_CHECKSUM

_FLAG = {"supports_broker_entry_metadata": True}


async def _receive(broker: Target, **fields: Any) -> list[Frame]:
    """Return a batch of 3 and a single message, as a consumer gets them; `fields` are of its CONNECT."""
    topic = broker.topic()
    probe, consumer = await broker.produce(topic), await broker.connect(**fields)
    probe.publish_digits(0, 3)
    await probe.expect("SEND_RECEIPT", sequence_id=0)
    await probe.publish_all(b"m", first=3)
    await consumer.subscribe(topic)
    consumer.flow(10)
    return await consumer.messages(2)


@case(SHOULD, needs=("bem",))
async def index_counts_batch(broker: Target) -> None:
    """A batch of 3, then a message; the consumer's CONNECT has supports_broker_entry_metadata.

    Expected: Index 2, then 3 (index of the last message of the entry).

    Source: PIP-70, PIP-90.
    """
    result = [item.broker_entry_metadata for item in await _receive(broker, feature_flags=_FLAG)]
    equal([item and item.index for item in result], [2, 3], "index")


async def _expect_none(broker: Target, fields: dict[str, Any]) -> None:
    for message in await _receive(broker, **fields):
        equal(tail(message)[:2], MAGIC_CHECKSUM, "the first bytes of the entry")


@case(MUST, needs=("bem",))
async def no_flag(broker: Target) -> None:
    """A batch of 3, then a message; the consumer's CONNECT has no supports_broker_entry_metadata.

    Expected: No 0x0e02; the entry begins with 0x0e01.

    Source: PIP-70, PIP-90.
    """
    await _expect_none(broker, {})


@case(OBSERVED, needs=("bem",))
async def version_17(broker: Target) -> None:
    """supports_broker_entry_metadata is set, but protocol_version=17.

    Expected: No 0x0e02.

    Source: Broker: PulsarCommandSenderImpl (from protocol version 18 on).
    """
    await _expect_none(broker, {"feature_flags": _FLAG, "protocol_version": 17})


@case(OBSERVED, needs=("bem",))
async def num_messages_counts(broker: Target) -> None:
    """SEND of plain messages with num_messages=5, 0, -1, 1.

    Expected: Index 4; no 0x0e02 on the second and third message; index 5: num_messages decides.

    Source: PIP-70; broker: PersistentTopic.
    """
    topic = broker.topic()
    probe, consumer = await broker.produce(topic), await broker.connect(feature_flags=_FLAG)
    for number, count in enumerate((5, 0, -1, 1)):
        await probe.publish_all(b"m", first=number, num_messages=count)
    await consumer.subscribe(topic)
    consumer.flow(10)
    result = [item.broker_entry_metadata for item in await consumer.messages(4)]
    equal([item and item.index for item in result], [4, None, None, 5], "index")


@case(OBSERVED, needs=("bem",))
async def version_10(broker: Target) -> None:
    """supports_broker_entry_metadata is set, but protocol_version=10.

    Expected: Neither 0x0e02 nor 0x0e01.

    Source: Broker: PulsarCommandSenderImpl (from protocol version 11 on).
    """
    for message in await _receive(broker, feature_flags=_FLAG, protocol_version=10):
        equal(tail(message)[:2], bytes(2), "tail")  # the first half of the metadata's size
