"""SUBSCRIBE with type Shared: which consumer gets which message."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from pulsarctl_wire.checks.requirement import OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import Mismatch, equal, require
from pulsarctl_wire.conformance.basics.frames import make_frame, payloads
from pulsarctl_wire.conformance.basics.target import Target


@case(SHOULD)
async def chunks_of_one_message(broker: Target) -> None:
    """Shared, consumers a and b with permits; chunk 0 of 2, a plain message, chunk 1.

    Expected: Both chunks to the same consumer.

    Source: Broker: SharedConsumerAssignor.
    """
    producer = await broker.produce(topic := broker.topic())
    consumers = [await broker.subscribe(topic, "Shared", 100, consumer_name=name) for name in "ab"]
    await broker.settle()
    for number, chunk in enumerate((0, None, 1)):
        fields = {} if chunk is None else {"meta_uuid": "u", "meta_chunk_id": chunk, "is_chunk": True}
        if chunk is not None:
            fields |= {"meta_num_chunks_from_msg": 2, "meta_total_chunk_msg_size": 2}
        await producer.publish_all(b"c" if chunk is not None else b"p", first=number, **fields)
        await broker.advance(0.01)
    await broker.settle()
    results = [payloads(list(item.frames)).count(b"c") for item in consumers]
    equal(sorted(results), [0, 2], "results")


@case(OBSERVED, alone=True)
async def round_robin_live(broker: Target) -> None:
    """Shared, a and b with 1000 permits each; 20 messages published 10 ms apart.

    Expected: Strictly alternating.

    Source: Broker: AbstractDispatcherMultipleConsumers.
    """
    topic = broker.topic()
    consumers = [await broker.subscribe(topic, "Shared", 1000) for _ in "ab"]
    producer = await broker.produce(topic)
    await broker.settle()  # both have their permits
    for number in range(20):
        await producer.publish_all(b"%d" % number, first=number)
        await broker.advance(0.01)
    results = {tuple(int(item) for item in payloads(await consumer.messages(10))) for consumer in consumers}
    equal(results, {tuple(range(0, 20, 2)), tuple(range(1, 20, 2))}, "results")


@case(SHOULD, without=("limits",))
async def round_robin_backlog(broker: Target) -> None:
    """Shared, 200 stored messages, a and b with 1000 permits each.

    Expected: Both get about half; no run of one consumer longer than 20 while both have permits.

    Source: dispatcherMaxRoundRobinBatchSize=20.
    """
    topic = await broker.fill(200)
    probe = await broker.connect()
    for consumer_id in (1, 2):
        await probe.subscribe(topic, "Shared", consumer_id=consumer_id)
    probe.send(b"".join(make_frame("FLOW", consumer_id=item, messagePermits=1000) for item in (1, 2)))
    messages = sorted(await probe.messages(200), key=lambda message: int(message.payload[1:]))
    receivers = [item.body.consumer_id for item in messages]
    require(80 <= receivers.count(1) <= 120, "about half for each", receivers.count(1))
    longest = _find_longest_run(receivers)
    require(longest <= 20, _SHORT_RUNS, longest)


_SHORT_RUNS = "no more than 20 messages in a row for one consumer"


def _find_longest_run(values: Iterable[object]) -> int:
    return max(len(list(run)) for _, run in groupby(values))


async def _deliver_apart(broker: Target) -> list[bool]:
    """Deliver 200 messages to two consumers on two connections; return for each if the first got it."""
    topic = await broker.fill(200)
    probes = [await broker.subscribe(topic, "Shared") for _ in range(2)]
    for probe in probes:
        probe.flow(1000)
    await broker.settle(2)
    equal(sum(len(probe.frames) for probe in probes), 200, "number of messages")
    numbers = {int(message.payload[1:]) for message in probes[0].frames}
    return [number in numbers for number in range(200)]


@case(OBSERVED, without=("limits",), alone=True)
async def round_robin_apart(broker: Target) -> None:
    """Shared, 200 stored messages; a and b on connections of their own, with 1000 permits each at about the
    same time.

    Expected: 100 each, in runs of at most 20: what the first FLOW has read is shared with whoever has permits
    when it was read.

    Source: Broker: PersistentDispatcherMultipleConsumers.
    """
    attempts = []
    for _ in range(3):  # the first FLOW may be so early that all it has read is delivered before the second
        receivers = await _deliver_apart(broker)
        attempts.append((receivers.count(True), _find_longest_run(receivers)))
        if attempts[-1][0] == 100 and attempts[-1][1] <= 20:
            return
    raise Mismatch(f"100 for each, and {_SHORT_RUNS}", f"number for the first, and longest run: {attempts}")


@case(SHOULD)
async def priority_level(broker: Target) -> None:
    """Shared, A priority_level=0 and B priority_level=1 each with 10 permits; 10 messages.

    Expected: All 10 to A, none to B.

    Source: Broker: AbstractDispatcherMultipleConsumers.
    """
    topic = broker.topic()
    first = await broker.subscribe(topic, "Shared", 10, priority_level=0)
    second = await broker.subscribe(topic, "Shared", 10, priority_level=1)
    await broker.settle()
    await broker.fill(10, topic)
    await first.messages(10)
    await second.expect_nothing()


@case(OBSERVED)
async def turn_goes_on(broker: Target) -> None:
    """Shared: 3 stored messages, all to a; b joins; another message.

    Expected: Consumer b gets it: it is its turn.

    Source: Broker: AbstractDispatcherMultipleConsumers.
    """
    topic = await broker.fill(3)
    consumers = [await broker.subscribe(topic, "Shared", 10)]
    await consumers[0].messages(3)
    consumers.append(await broker.subscribe(topic, "Shared", 10))
    await broker.settle()
    producer = await broker.produce(topic)
    await producer.publish_all(b"new")
    equal(payloads(await consumers[1].messages(1)), [b"new"], "payloads")
