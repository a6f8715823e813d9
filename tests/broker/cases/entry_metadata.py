"""Metadata that the broker puts in front of entries."""

from __future__ import annotations

from typing import Any

from broker.entries import publish_batch, tail
from broker.probe import Target, case

from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.frame_layout import MAGIC_CHECKSUM

FLAG = {"supports_broker_entry_metadata": True}


async def received(broker: Target, **fields: Any) -> list[Frame]:
    """A batch of 3 and a single message, as a consumer gets them; `fields` are of its CONNECT."""
    topic = broker.topic()
    probe, consumer = await broker.producing(topic), await broker.connected(**fields)
    publish_batch(probe, 0, 3)
    await probe.expect("SEND_RECEIPT", sequence_id=0)
    await probe.publish_all(b"m", first=3)
    await consumer.subscribe(topic)
    consumer.flow(10)
    return await consumer.messages(2)


@case("bem/index_counts_batch")
async def index(broker: Target) -> None:
    found = [each.broker_entry_metadata for each in await received(broker, feature_flags=FLAG)]
    assert [each and each.index for each in found] == [2, 3]


@case("bem/no_flag", {})
@case("bem/version_17", {"feature_flags": FLAG, "protocol_version": 17})
async def not_exposed(broker: Target, fields: dict[str, Any]) -> None:
    for message in await received(broker, **fields):
        assert tail(message).startswith(MAGIC_CHECKSUM)


@case("bem/num_messages_counts")
async def num_messages_counts(broker: Target) -> None:
    topic = broker.topic()
    probe, consumer = await broker.producing(topic), await broker.connected(feature_flags=FLAG)
    for number, told in enumerate((5, 0, -1, 1)):
        await probe.publish_all(b"m", first=number, num_messages=told)
    await consumer.subscribe(topic)
    consumer.flow(10)
    found = [each.broker_entry_metadata for each in await consumer.messages(4)]
    assert [each and each.index for each in found] == [4, None, None, 5]


@case("bem/version_10")
async def without_checksum(broker: Target) -> None:
    for message in await received(broker, feature_flags=FLAG, protocol_version=10):
        assert tail(message)[:2] == bytes(2)  # the first half of the metadata's size
