"""A broker as it should be: the embedded one, also where the network is slow or breaks off."""

from __future__ import annotations

from pulsarctl_wire.checks.requirement import MUST, SHOULD
from pulsarctl_wire.conformance.basics.checking import equal
from pulsarctl_wire.conformance.clients.conduct import check_conduct
from pulsarctl_wire.conformance.clients.embedded import EmbeddedBroker, open_embedded
from pulsarctl_wire.conformance.clients.stage import CONSUME, PRODUCE, Run, Stage, client_case, expect_texts

_MESSAGE_COUNT = 20
_SLOW_FAULTS = ("delay time=50ms", "slice size=3 pause=1ms direction=to-client")


async def _expect_in_order(run: Run, broker: EmbeddedBroker) -> None:
    """Require that all messages are stored once, in the order of their sequence ids."""
    await run.succeed()
    frames = await broker.read()
    sizes = [frame.metadata.num_messages_in_batch for frame in frames if frame.metadata]
    equal(sum(sizes), _MESSAGE_COUNT, "messages that are stored")
    ids = [frame.metadata.sequence_id for frame in frames if frame.metadata]
    equal(ids, sorted(set(ids)), "sequence ids of the entries")


async def _expect_all(run: Run, broker: EmbeddedBroker, texts: list[str]) -> None:
    """Require that all messages were printed, in order, and acknowledged."""
    await run.succeed()
    equal(run.list_texts(texts), texts, "payloads")
    equal(await broker.wait_for_acks(), 0, "entries that are not acknowledged")


@client_case(MUST, needs=(PRODUCE,))
async def produce(stage: Stage) -> None:
    """The client produces 20 messages, at a broker that does all right.

    Expected: They are stored once, in the order of their sequence ids.

    Source: Protocol: Producer.
    """
    broker = await open_embedded(stage)
    await _expect_in_order(await stage.produce(broker.url, _MESSAGE_COUNT), broker)


@client_case(MUST, needs=(PRODUCE,))
async def produce_slow(stage: Stage) -> None:
    """The client produces 20 messages; each frame takes 50 ms, and those of the broker come in pieces.

    Expected: They are stored once, in the order of their sequence ids.

    Source: Protocol: Producer.
    """
    broker = await open_embedded(stage)
    broker.set_faults(*_SLOW_FAULTS)
    await _expect_in_order(await stage.produce(broker.url, _MESSAGE_COUNT), broker)


@client_case(MUST, needs=(PRODUCE,))
async def produce_reset(stage: Stage) -> None:
    """The connection is reset in the middle of the first and the third receipt; duplicates are dropped.

    Expected: All messages are stored once, in the order of their sequence ids.

    Source: PIP-6.
    """
    broker = await open_embedded(stage, brokerDeduplicationEnabled=True)
    broker.set_faults(*(f"reset command=SEND_RECEIPT nth={number} bytes=10" for number in (1, 3)))
    await _expect_in_order(await stage.produce(broker.url, _MESSAGE_COUNT), broker)


@client_case(MUST, needs=(CONSUME,))
async def consume(stage: Stage) -> None:
    """The client consumes 20 messages, at a broker that does all right.

    Expected: It prints them in order, and acknowledges each.

    Source: Protocol: Consumer.
    """
    broker = await open_embedded(stage)
    texts = await broker.fill(_MESSAGE_COUNT)
    await _expect_all(await stage.consume(broker.url, _MESSAGE_COUNT), broker, texts)


@client_case(MUST, needs=(CONSUME,))
async def consume_slow(stage: Stage) -> None:
    """The client consumes 20 messages; each frame takes 50 ms, and those of the broker come in pieces.

    Expected: It prints them in order, and acknowledges each.

    Source: Protocol: Consumer.
    """
    broker = await open_embedded(stage)
    texts = await broker.fill(_MESSAGE_COUNT)
    broker.set_faults(*_SLOW_FAULTS)
    await _expect_all(await stage.consume(broker.url, _MESSAGE_COUNT), broker, texts)


@client_case(MUST, needs=(CONSUME,))
async def consume_reset(stage: Stage) -> None:
    """The connection is reset in the middle of the second and of the fifth MESSAGE.

    Expected: The client prints all messages; those that came before may come again. It acknowledges each.

    Source: Protocol: Consumer.
    """
    broker = await open_embedded(stage)
    texts = await broker.fill(_MESSAGE_COUNT)
    broker.set_faults(*(f"reset command=MESSAGE nth={number} bytes=10" for number in (2, 5)))
    await expect_texts(stage, await stage.consume(broker.url, 2 * _MESSAGE_COUNT), texts)
    equal(await broker.wait_for_acks(), 0, "entries that are not acknowledged")


@client_case(SHOULD, needs=(PRODUCE,))
async def produce_conduct(stage: Stage) -> None:
    """The client produces 20 messages, at a broker that does all right.

    Expected: The doctor finds nothing that clients should not do. (All cases expect that it finds nothing
    that they must not do.)

    Source: Rules of the doctor.
    """
    broker = await open_embedded(stage)
    await (await stage.produce(broker.url, _MESSAGE_COUNT)).succeed()
    check_conduct(stage.transcript, SHOULD)


@client_case(SHOULD, needs=(CONSUME,))
async def consume_conduct(stage: Stage) -> None:
    """The client consumes 20 messages, at a broker that does all right.

    Expected: The doctor finds nothing that clients should not do. (All cases expect that it finds nothing
    that they must not do.)

    Source: Rules of the doctor.
    """
    broker = await open_embedded(stage)
    await broker.fill(_MESSAGE_COUNT)
    await (await stage.consume(broker.url, _MESSAGE_COUNT)).succeed()
    check_conduct(stage.transcript, SHOULD)
