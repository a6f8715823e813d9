"""Subscriptions to several topics, topics that come and go, and messages that nobody can take."""

from __future__ import annotations

from typing import Any

import pytest
from net.scripted import (
    LEDGER,
    TOPIC,
    Peer,
    ScriptedBroker,
    acked,
    answer,
    awaited,
    build,
    deliver,
    entry,
    hang_up,
    payloads,
    places,
    refuse,
    send_error,
    silence,
    subscribed,
    take,
)

from pulsarctl_wire.errors import BrokerError, SessionError
from pulsarctl_wire.net.session.client import Client
from pulsarctl_wire.net.session.dead_letters import DeadLetters
from pulsarctl_wire.net.session.receive_queue import ConsumerOptions
from pulsarctl_wire.net.session.subscription import Subscription
from pulsarctl_wire.net.session.watch import TopicWatch
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe

SHARED: dict[str, Any] = {"type": CommandSubscribe.Shared}
PATTERN = "persistent://public/default/t.*"
WATCHING: dict[str, Any] = {"feature_flags": {"supports_topic_watchers": True}}


def again(number: int, payload: bytes, count: int, **fields: Any) -> Any:
    """An entry that was delivered `count` times before."""

    def whole(consumer: int) -> bytes:
        frame = entry(number, payload, **fields)(consumer)
        tail = frame[8 + int.from_bytes(frame[4:8], "big") :]
        at = {"ledgerId": LEDGER, "entryId": number}
        head = build("MESSAGE", consumer_id=consumer, message_id=at, redelivery_count=count)
        return (len(head) - 4 + len(tail)).to_bytes(4, "big") + head[4:] + tail

    return whole


def properties(frame: Frame) -> dict[str, str]:
    assert frame.metadata is not None
    return {str(each.key): str(each.value) for each in frame.metadata.properties}


# ---- Dead letters ----


@awaited
async def test_redelivery_count_big() -> None:
    """What was delivered too often goes to the dead letter topic with its origin; then it is acknowledged."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once(
            "FLOW", deliver(again(0, b"a", 10, partition_key="k", properties=[{"key": "x", "value": "y"}]))
        )
        letters = DeadLetters(client, TOPIC, "s", limit=2)
        async with subscribed(client, **SHARED) as subscription:
            (delivery,) = await take(subscription, 1)
            assert delivery.redelivered == 10
            await letters.bury(delivery, delivery.messages[0])
            await letters.close()
        (sent,) = broker.seen("SEND")
        assert broker.bodies("PRODUCER")[0].topic == f"{TOPIC}-s-DLQ"
        assert sent.payload == b"a"
        assert sent.metadata is not None
        assert sent.metadata.partition_key == "k"
        assert properties(sent) == {
            "x": "y",
            "REAL_TOPIC": TOPIC,
            "REAL_SUBSCRIPTION": "s",
            "ORIGIN_MESSAGE_ID": "7:0:-1",
            "ORIGIN_MESSAGE_IDY_TIME": "7:0:-1",
        }
        assert acked(broker) == [(LEDGER, 0)]
        assert broker.peers[0].commands.index("SEND") < broker.peers[0].commands.index("ACK")
        assert letters.buried == 1


@awaited
async def test_dead_letter_not_stored() -> None:
    """A dead letter that could not be stored is not acknowledged: it stays where it is."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(again(0, b"a", 10)))
        broker.once("SEND", send_error("NotAllowedError", "too large here"))
        letters = DeadLetters(client, TOPIC, "s", limit=2)
        async with subscribed(client, **SHARED) as subscription:
            (delivery,) = await take(subscription, 1)
            with pytest.raises(BrokerError, match="too large here"):
                await letters.bury(delivery, delivery.messages[0])
            await letters.close()
        assert acked(broker) == []
        assert letters.buried == 0


@awaited
async def test_dead_letter_over_a_link_that_is_lost() -> None:
    """A dead letter whose connection ends is sent again, then acknowledged."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(again(0, b"a", 10)))
        broker.once("SEND", hang_up)
        letters = DeadLetters(client, TOPIC, "s", limit=2)
        async with subscribed(client, **SHARED) as subscription:
            (delivery,) = await take(subscription, 1)
            await letters.bury(delivery, delivery.messages[0])
            await letters.close()
            await broker.saw("ACK")
        assert [body.sequence_id for body in broker.bodies("SEND")] == [0, 0]


@awaited
async def test_dead_letter_topic_with_partitions() -> None:
    """A dead letter topic with partitions gets its letters there: nobody would see them elsewhere."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(again(0, b"a", 10)))
        letters = DeadLetters(client, TOPIC, "s", limit=2)
        async with subscribed(client, **SHARED) as subscription:
            broker.always("PARTITIONED_METADATA", answer("PARTITIONED_METADATA_RESPONSE", partitions=2))
            (delivery,) = await take(subscription, 1)
            await letters.bury(delivery, delivery.messages[0])
            await letters.close()
        assert broker.bodies("PRODUCER")[0].topic.startswith(f"{TOPIC}-s-DLQ-partition-")


@awaited
async def test_retry_then_bury() -> None:
    """What is to be tried later goes to the retry topic, counted and delayed; too often: it is buried."""
    async with ScriptedBroker() as broker, broker.client() as client:
        tried = [{"key": "RECONSUMETIMES", "value": "1"}, {"key": "REAL_TOPIC", "value": "first"}]
        broker.once("FLOW", deliver(entry(0, b"a"), entry(1, b"b", properties=tried)))
        letters = DeadLetters(client, TOPIC, "s", limit=1)
        async with subscribed(client, **SHARED) as subscription:
            for delivery in await take(subscription, 2):
                await letters.retry(delivery, delivery.messages[0], 60)
            await letters.close()
        topics = [body.topic for body in broker.bodies("PRODUCER")]
        assert topics == [f"{TOPIC}-s-RETRY", f"{TOPIC}-s-DLQ"]
        later, dead = broker.seen("SEND")
        assert properties(later)["RECONSUMETIMES"] == "1"
        assert properties(later)["DELAY_TIME"] == "60000"
        assert later.metadata is not None
        assert later.metadata.deliver_at_time > later.metadata.publish_time
        assert properties(dead)["REAL_TOPIC"] == "first"
        assert (letters.retried, letters.buried) == (1, 1)
        assert acked(broker) == [(LEDGER, 0), (LEDGER, 1)]


# ---- Several topics ----


@awaited
async def test_several_partitions() -> None:
    """All partitions are subscribed to, each by a consumer of its own, over one connection."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.always("PARTITIONED_METADATA", answer("PARTITIONED_METADATA_RESPONSE", partitions=3))
        broker.always("FLOW", deliver(entry(0, b"a")))
        async with subscribed(client, queue_size=100) as subscription:
            taken = await take(subscription, 3)
            assert sorted(each.consumer.partition for each in taken) == [0, 1, 2]
        topics = [body.topic for body in broker.bodies("SUBSCRIBE")]
        assert topics == [f"{TOPIC}-partition-{each}" for each in range(3)]
        assert len(broker.peers) == 1


@awaited
async def test_one_partition_refused() -> None:
    """A partition that refuses lets the whole subscription fail; those that are open can be closed."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.always("PARTITIONED_METADATA", answer("PARTITIONED_METADATA_RESPONSE", partitions=2))
        broker.once("SUBSCRIBE", answer("SUCCESS"), refuse("ConsumerBusy"))
        subscription = Subscription(client, [TOPIC], ConsumerOptions("s"))
        with pytest.raises(BrokerError):
            await subscription.open()
        await subscription.close()
        assert len(broker.seen("CLOSE_CONSUMER")) == 1


@awaited
async def test_close_of_one_refused() -> None:
    """A consumer whose closing is refused keeps nobody from closing the others; it is warned of."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.always("PARTITIONED_METADATA", answer("PARTITIONED_METADATA_RESPONSE", partitions=2))
        broker.once("CLOSE_CONSUMER", refuse("UnknownError", "cannot close"))
        async with subscribed(client):
            pass
        assert len(broker.seen("CLOSE_CONSUMER")) == 2
        assert broker.warnings("cannot close")


# ---- Topics that come and go ----


def watched(*topics: str) -> Any:
    """Answer WATCH_TOPIC_LIST by these topics."""

    def reaction(peer: Peer, frame: Frame) -> bytes:
        ids = {"request_id": frame.body.request_id, "watcher_id": frame.body.watcher_id}
        return build("WATCH_TOPIC_LIST_SUCCESS", **ids, topic=topics, topics_hash="x")

    return reaction


def update(broker: ScriptedBroker, *, added: tuple[str, ...] = (), gone: tuple[str, ...] = ()) -> bytes:
    watcher = broker.bodies("WATCH_TOPIC_LIST")[-1].watcher_id
    fields = {"new_topics": added, "deleted_topics": gone, "topics_hash": "y"}
    return build("WATCH_TOPIC_UPDATE", watcher_id=watcher, **fields)


class Changes(list[tuple[list[str], list[str]]]):
    """What a watch told: topics that came, topics that went."""

    def __init__(self, broker: ScriptedBroker) -> None:
        super().__init__()
        self._broker = broker

    def add(self, added: list[str], removed: list[str]) -> None:
        self.append((added, removed))
        self._broker.bell.ring()


async def watching(client: Client, changes: Changes) -> TopicWatch:
    watch = TopicWatch(client, "public/default", PATTERN, changes.add)
    await watch.open()
    return watch


@awaited
async def test_topic_appears() -> None:
    """A topic that appears and matches the pattern is subscribed to, from its beginning."""
    async with ScriptedBroker(**WATCHING) as broker, broker.client() as client:
        broker.always("WATCH_TOPIC_LIST", watched(f"{TOPIC}1"))
        subscription = Subscription(client, [], ConsumerOptions("s"), pattern=PATTERN)
        await subscription.open()
        assert list(subscription.consumers) == [f"{TOPIC}1"]
        broker.peers[0].send(update(broker, added=(f"{TOPIC}2", "persistent://public/default/other")))
        _, late = await broker.saw("SUBSCRIBE", 2)
        assert (late.topic, late.initialPosition) == (f"{TOPIC}2", CommandSubscribe.Earliest)
        await broker.saw("FLOW", 2)
        await subscription.close()
        assert len(broker.seen("CLOSE_CONSUMER")) == 2
        assert len(broker.seen("WATCH_TOPIC_LIST_CLOSE")) == 1


@pytest.mark.parametrize("command", ["LOOKUP", "SUBSCRIBE"])
@awaited
async def test_topic_that_is_removed_while_it_is_added(command: str) -> None:
    """Its consumer is not opened any more; what the broker says of it is a warning."""
    async with ScriptedBroker(**WATCHING) as broker, broker.client() as client:
        broker.always("WATCH_TOPIC_LIST", watched(f"{TOPIC}1"))
        subscription = Subscription(client, [], ConsumerOptions("s"), pattern=PATTERN)
        await subscription.open()
        held: list[Any] = []
        broker.once(command, lambda *request: held.append(request))
        broker.peers[0].send(update(broker, added=(f"{TOPIC}2",)))
        await broker.saw(command, 2)
        broker.peers[0].send(update(broker, gone=(f"{TOPIC}2",)) + build("PING"))
        await broker.saw("PONG")
        assert list(subscription.consumers) == [f"{TOPIC}1"]
        late: Any = broker.find_reaction(command) if command == "LOOKUP" else refuse("TopicNotFound")
        broker.peers[0].send(late(*held[0]))
        await broker.warned("was closed before it was open" if command == "LOOKUP" else "TopicNotFound")
        assert len(broker.seen("SUBSCRIBE")) == (1 if command == "LOOKUP" else 2)
        await subscription.close()


@awaited
async def test_watch_over_a_link_that_is_lost() -> None:
    """The topics are watched again over the next connection; what has changed meanwhile is told."""
    async with ScriptedBroker(**WATCHING) as broker, broker.client() as client:
        changes = Changes(broker)
        broker.once("WATCH_TOPIC_LIST", watched(f"{TOPIC}1"), watched(f"{TOPIC}2"))
        watch = await watching(client, changes)
        broker.peers[0].hang_up()
        await broker.until(lambda: changes)
        assert changes == [([f"{TOPIC}2"], [f"{TOPIC}1"])]
        await watch.close()


@awaited
async def test_watch_whose_link_is_lost_again() -> None:
    """A connection that ends while the watch is begun again changes nothing: it is begun once."""
    async with ScriptedBroker(**WATCHING) as broker, broker.client() as client:
        changes = Changes(broker)
        broker.once("WATCH_TOPIC_LIST", watched(f"{TOPIC}1"), hang_up)
        broker.always("WATCH_TOPIC_LIST", watched(f"{TOPIC}2"))
        watch = await watching(client, changes)
        broker.peers[0].hang_up()
        await broker.until(lambda: changes)
        await watch.close()
        assert broker.warnings("watching again") == 1


@awaited
async def test_watch_whose_link_is_lost_at_once() -> None:
    """Nor is it begun twice if the connection ends while it is begun for the first time."""
    async with ScriptedBroker(**WATCHING) as broker, broker.client() as client:
        changes = Changes(broker)
        broker.once("WATCH_TOPIC_LIST", hang_up)
        broker.always("WATCH_TOPIC_LIST", watched(f"{TOPIC}1"))
        watch = await watching(client, changes)
        await watch.close()
        assert not broker.warnings("watching again")


@pytest.mark.parametrize(
    "reaction", [hang_up, silence, refuse("UnknownError")], ids=["hang up", "silence", "no"]
)
@awaited
async def test_watch_that_cannot_be_closed(reaction: Any) -> None:
    """A watch that cannot be closed is warned of; the consumers are closed all the same."""
    async with ScriptedBroker(**WATCHING) as broker, broker.client(timeout=0.2) as client:
        broker.always("WATCH_TOPIC_LIST", watched(TOPIC))
        broker.always("WATCH_TOPIC_LIST_CLOSE", reaction)
        subscription = Subscription(client, [], ConsumerOptions("s"), pattern=PATTERN)
        await subscription.open()
        try:
            await subscription.close()
        except SessionError as error:
            pytest.fail(str(error))


@awaited
async def test_broker_without_watching() -> None:
    """A broker that does not tell of changes is asked for its topics."""
    async with ScriptedBroker() as broker, broker.client() as client:
        listed = answer("GET_TOPICS_OF_NAMESPACE_RESPONSE", topics=[f"{TOPIC}1", "persistent://a/b/c"])
        broker.always("GET_TOPICS_OF_NAMESPACE", listed)
        broker.once("FLOW", deliver(entry(0, b"a")))
        subscription = Subscription(client, [], ConsumerOptions("s"), pattern=PATTERN)
        await subscription.open()
        assert list(subscription.consumers) == [f"{TOPIC}1"]
        (delivery,) = await take(subscription, 1)
        assert payloads([delivery]) == [b"a"]
        assert places([delivery.frame.body.message_id]) == [(LEDGER, 0)]
        await subscription.close()
