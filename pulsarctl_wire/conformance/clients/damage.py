"""Messages that are damaged, or are not for the consumer."""

from __future__ import annotations

from typing import Any

from pulsarctl_wire.checks.requirement import MUST, OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.checking import equal
from pulsarctl_wire.conformance.basics.frames import NOT_METADATA
from pulsarctl_wire.conformance.clients.messages import (
    Backlog,
    Entry,
    Slot,
    make_entries,
    make_numbered_entry,
    make_raw_entry,
    make_texts,
    spoil_checksum,
)
from pulsarctl_wire.conformance.clients.scripted import Peer, ScriptedBroker
from pulsarctl_wire.conformance.clients.stage import (
    CONSUME,
    Stage,
    client_case,
    expect_acked,
    expect_texts,
    require_feature,
)
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandAck, CompressionType

_NEEDS = (CONSUME,)
_TEXTS = make_texts(3)
_GOOD_TEXTS = [_TEXTS[0], _TEXTS[2]]
_LZ4_FIELDS: dict[str, Any] = {"compression": CompressionType.LZ4, "uncompressed_size": 100}


def _surround(broker: ScriptedBroker, bad_entry: Entry, **fields: object) -> Backlog:
    """Return a backlog of two good entries with `bad_entry` between them, which is sent only once.

    `fields` are for `make_entries`, which makes the good ones.
    """
    first, _, last = make_entries(_TEXTS, **fields)
    return Backlog(broker, first, Slot(bad_entry, is_sent_once=True), last)


async def _expect_good(stage: Stage, broker: ScriptedBroker, feature: str = "") -> None:
    """Start the client; require the feature, if any, and that it prints the good messages only, in order."""
    run = await stage.consume(broker.url, 2 * len(_TEXTS))
    if feature:
        await require_feature(stage, broker, feature)
    await stage.until(lambda: _TEXTS[2] in run.lines, f"the payloads {_GOOD_TEXTS}")
    equal(list(dict.fromkeys(run.list_texts(_TEXTS))), _GOOD_TEXTS, "payloads")


@client_case(MUST, needs=_NEEDS)
async def message_bad_crc(stage: Stage) -> None:
    """A MESSAGE with a wrong checksum between two good ones.

    Expected: It is not printed, the good ones are.

    Source: Protocol: Payload commands; Client: ConsumerImpl.messageReceived.
    """
    broker = await stage.open_broker()
    _surround(broker, spoil_checksum(make_numbered_entry(1, _TEXTS[1].encode())))
    await _expect_good(stage, broker)


@client_case(MUST, needs=_NEEDS)
async def message_bad_crc_behind_0e02(stage: Stage) -> None:
    """A MESSAGE with a wrong checksum between two good ones, all with broker entry metadata in front, which
    the client has said that it reads.

    Expected: It is not printed, the good ones are.

    Source: Protocol: Payload commands; PIP-70.
    """
    broker = await stage.open_broker()
    _surround(
        broker, spoil_checksum(make_numbered_entry(1, _TEXTS[1].encode(), prefixed=True)), prefixed=True
    )
    await _expect_good(stage, broker, "supports_broker_entry_metadata")


@client_case(OBSERVED, needs=_NEEDS)
async def message_bad_crc_ack(stage: Stage) -> None:
    """A MESSAGE with a wrong checksum between two good ones.

    Expected: ACK with validation_error ChecksumMismatch.

    Source: Client: ConsumerImpl.discardCorruptedMessage.
    """
    broker = await stage.open_broker()
    backlog = _surround(broker, spoil_checksum(make_numbered_entry(1, _TEXTS[1].encode())))
    await _expect_good(stage, broker)
    await expect_acked(stage, backlog, [0, 1, 2])
    equal(backlog.errors, {1: CommandAck.ChecksumMismatch}, "validation errors by entry")


@client_case(MUST, needs=_NEEDS)
async def message_bad_metadata(stage: Stage) -> None:
    """A MESSAGE whose metadata cannot be parsed, with the right checksum, between two good ones.

    Expected: The good ones are printed, also if the client connects again in between.

    Source: Client: ConsumerImpl.messageReceived.
    """
    broker = await stage.open_broker()
    _surround(broker, make_raw_entry(1, NOT_METADATA))
    await _expect_good(stage, broker)


@client_case(MUST, needs=_NEEDS)
async def message_bad_compression(stage: Stage) -> None:
    """A MESSAGE that says LZ4, with a payload that is not, between two good ones.

    Expected: The good ones are printed, also if the client connects again in between.

    Source: Client: ConsumerImpl.uncompressPayloadIfNeeded.
    """
    broker = await stage.open_broker()
    _surround(broker, make_numbered_entry(1, _TEXTS[1].encode(), **_LZ4_FIELDS))
    await _expect_good(stage, broker)


@client_case(MUST, needs=_NEEDS)
async def message_unknown_consumer(stage: Stage) -> None:
    """A MESSAGE for consumer 99, which does not exist, between two for the client's.

    Expected: It is ignored, and the connection stays.

    Source: Protocol: Consumer.
    """
    broker = await stage.open_broker()
    stray = make_numbered_entry(1, _TEXTS[1].encode())
    backlog = _surround(broker, lambda consumer: stray(99))
    await _expect_good(stage, broker)
    await expect_acked(stage, backlog, [0, 2])
    equal(len(broker.list_frames("SUBSCRIBE")), 1, "SUBSCRIBEs")


@client_case(SHOULD, needs=_NEEDS)
async def message_twice(stage: Stage) -> None:
    """The first MESSAGE comes again after it was acknowledged, then the others.

    Expected: It may be printed again, as delivery is at least once; the others are, and the connection stays.

    Source: Protocol: Consumer.
    """
    broker = await stage.open_broker()
    backlog = Backlog(broker, *make_entries(_TEXTS))
    first = backlog.entries[0].entry

    def begin(peer: Peer, frame: Frame) -> bytes:
        return first(frame.body.consumer_id)

    def repeat(peer: Peer, frame: Frame) -> bytes:
        backlog.acknowledge(peer, frame)
        rest = b"".join(slot.entry(frame.body.consumer_id) for slot in backlog.entries[1:])
        return first(frame.body.consumer_id) + rest

    broker.once("FLOW", begin)
    broker.once("ACK", repeat)
    await expect_texts(stage, await stage.consume(broker.url, 2 * len(_TEXTS)), _TEXTS)
    await expect_acked(stage, backlog, range(len(_TEXTS)))
    equal(len(broker.list_frames("SUBSCRIBE")), 1, "SUBSCRIBEs")
