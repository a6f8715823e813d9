"""What a broker can make a session keep is bounded, whatever it sends; what is beyond is said and counted."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard
from net.scripted import (
    LEDGER,
    TOPIC,
    Entry,
    Peer,
    Reaction,
    ScriptedBroker,
    acked,
    answer,
    awaited,
    build,
    confirmed,
    connect_to,
    deliver,
    entry,
    frame_of,
    payloads,
    places,
    producing,
    send,
    send_error,
    silence,
    subscribed,
    take,
    take_one,
)

from pulsarctl_wire.errors import LinkClosed, LocalProtocolError, Unreachable
from pulsarctl_wire.net import frame_socket
from pulsarctl_wire.net.driver import MAX_WARNINGS
from pulsarctl_wire.net.session import acks, dead_letters, inbox, receive_queue, watch
from pulsarctl_wire.net.session import client as client_module
from pulsarctl_wire.net.session import subscription as subscription_module
from pulsarctl_wire.net.session.receive_queue import ConsumerOptions
from pulsarctl_wire.net.session.subscription import Subscription
from pulsarctl_wire.net.session.transaction import _ack_ids
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.payload import MAX_MESSAGES, MAX_METADATA, MAX_PAYLOAD, MESSAGE_COST, Budget
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    CommandLookupTopicResponse,
    CommandSubscribe,
    CompressionType,
    MessageMetadata,
)

SHARED: dict[str, Any] = {"type": CommandSubscribe.Shared}


def zipped(number: int, size: int, said: int | None = None) -> Entry:
    """An entry of `size` zeros that says it holds `said`."""
    fields: dict[str, Any] = {
        "compression": CompressionType.ZSTD,
        "uncompressed_size": size if said is None else said,
    }
    return entry(number, zstd_zeros(size), **fields)


@cache
def zstd_zeros(size: int) -> bytes:
    return zstandard.ZstdCompressor().compress(bytes(size))


async def heard_all(broker: ScriptedBroker) -> None:
    """Wait until our side has taken in all that the broker sent."""
    count = len(broker.seen("PONG"))
    broker.peers[0].send(build("PING"))
    await broker.saw("PONG", count + 1)


# ---- Deliveries that wait ----


@awaited
async def test_entries_wait_compressed() -> None:
    """A hundred entries of 64 MiB wait as they came, and are opened one by one."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(*(zipped(each, MAX_PAYLOAD) for each in range(100))))
        async with subscribed(client) as subscription:
            await broker.saw("FLOW")
            await heard_all(broker)
            assert len(subscription.inbox) == 100
            assert subscription.inbox.bytes < 1024 * 1024
            delivery = await take_one(subscription)
            assert payloads([delivery]) == [bytes(MAX_PAYLOAD)]
            assert len(subscription.inbox) == 99


@awaited
async def test_fewer_permits_for_large_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that keeps to its permits never sends more than there is room for."""
    monkeypatch.setattr(inbox, "ROOM", 100_000)
    async with ScriptedBroker() as broker, broker.client() as client:

        def as_asked(peer: Peer, frame: Frame) -> Any:
            first = sum(body.messagePermits for body in broker.bodies("FLOW")[:-1])
            return flood(first, frame.body.messagePermits, 10_000)(peer, frame)

        broker.always("FLOW", as_asked)
        async with subscribed(client) as subscription:
            for number in range(100):
                (delivery,) = await take(subscription, 1)
                assert delivery.id[1] == number
                await heard_all(broker)
                assert subscription.inbox.bytes <= 100_000
        flows = [body.messagePermits for body in broker.bodies("FLOW")]
        assert sum(flows) / len(flows) > 3
        assert not subscription.counts


@awaited
async def test_partitions_share_the_room() -> None:
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.always("PARTITIONED_METADATA", answer("PARTITIONED_METADATA_RESPONSE", partitions=10))
        async with subscribed(client):
            flows = await broker.saw("FLOW", 10)
            assert sum(body.messagePermits for body in flows) < 3 * 1000
            assert flows[-1].messagePermits == 100


def flood(first: int, count: int, size: int) -> Reaction:
    return deliver(*(entry(each, bytes([each]) * size) for each in range(first, first + count)))


@pytest.mark.parametrize("kind", [{}, SHARED, {"durable": False, "start": (-1, -1, -1)}], ids=str)
@awaited
async def test_more_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch, kind: dict[str, Any]) -> None:
    """What does not fit is dropped, reported and counted; it comes again once the waiting ones are taken."""
    monkeypatch.setattr(inbox, "MAX_BYTES", 100_000)
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", flood(0, 30, 10_000))
        async with subscribed(client, queue_size=5, **kind) as subscription:
            await broker.warned("new ones are dropped")
            await heard_all(broker)
            kept = len(subscription.inbox)
            assert 5 <= kept < 10
            assert subscription.inbox.bytes <= 100_000
            assert subscription.counts["dropped"] == 30 - kept
            assert broker.warnings("messages more than were asked for")
            assert len(broker.seen("FLOW")) == 1

            broker.once("FLOW", flood(kept, 3, 10_000))
            for number in range(kept):
                (delivery,) = await take(subscription, 1)
                assert delivery.id == (LEDGER, number)
                if subscription.options.durable:
                    delivery.consumer.ack(delivery)
            more = await take(subscription, 3)
            assert [delivery.id[1] for delivery in more] == [kept, kept + 1, kept + 2]
            commands = broker.peers[0].commands
            assert commands.index("CLOSE_CONSUMER") < len(commands) - commands[::-1].index("SUBSCRIBE")
            assert broker.warnings("messages were dropped") == 1
        if subscription.options.durable:
            assert acked(broker) == [(LEDGER, each) for each in range(kept)]
        else:
            assert places([broker.bodies("SUBSCRIBE")[1].start_message_id]) == [(LEDGER, kept - 1)]


@awaited
async def test_a_large_message_alone_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MAX_BYTES", 1_000)
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", flood(0, 1, 10_000))
        async with subscribed(client) as subscription:
            assert payloads(await take(subscription, 1)) == [bytes(10_000)]
            assert not subscription.counts


# ---- Entries that are not opened ----


@awaited
async def test_too_large_to_be_opened() -> None:
    """It is said and counted, and gives its permits back; it is not acknowledged, as it may be intact."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(zipped(0, 100, MAX_PAYLOAD + 1), entry(1, b"b")))
        async with subscribed(client, queue_size=2) as subscription:
            (delivery,) = await take(subscription, 1)
            delivery.consumer.ack(delivery)
            assert payloads([delivery]) == [b"b"]
            assert subscription.counts == {"unopened": 1}
            await broker.saw("FLOW", 3)
        assert acked(broker) == [(LEDGER, 1)]
        assert broker.warnings("7:0: left unopened and unacknowledged: ZSTD payload of")


@awaited
async def test_cumulative_acknowledgements_stop_at_what_is_not_opened() -> None:
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(entry(0, b"a"), zipped(1, 100, MAX_PAYLOAD + 1), entry(2, b"c")))
        async with subscribed(client) as subscription:
            for delivery in await take(subscription, 2):
                delivery.consumer.ack_cumulatively(delivery, delivery.messages[0])
        assert acked(broker) == [(LEDGER, 0)]


@pytest.mark.parametrize("how", ["individual", "cumulative"])
@awaited
async def test_a_batch_of_more_than_is_opened(how: str) -> None:
    """Its rest has not been seen, so it is not acknowledged."""
    count = MAX_MESSAGES + 1
    async with ScriptedBroker() as broker, broker.client() as client:
        batch = (b"\0\0\0\2" + b"\x18\0") * count  # payload_size 0
        broker.once("FLOW", deliver(entry(0, batch, num_messages_in_batch=count), entry(1)))
        async with subscribed(client, batch_index_ack=True) as subscription:
            for delivery, opened in zip(await take(subscription, 2), (MAX_MESSAGES, 1), strict=True):
                assert len(delivery.messages) == opened
                if how == "individual":
                    delivery.consumer.ack(delivery)
                else:
                    delivery.consumer.ack_cumulatively(delivery, delivery.messages[-1])
        assert acked(broker) == ([(LEDGER, 1)] if how == "individual" else [])
        assert broker.warnings(f"{MAX_MESSAGES} messages in a batch that says {count}")


@awaited
async def test_more_than_the_budget_opens() -> None:
    """What a few bytes ask for beyond it is said, counted and not acknowledged; the rest is."""
    async with ScriptedBroker() as broker, broker.client() as client:
        entries = [zipped(number, MAX_PAYLOAD) for number in range(4)]
        broker.once("FLOW", deliver(*entries, entry(4, b"e")))
        async with subscribed(client) as subscription:
            deliveries = await take(subscription, 3)
            for delivery in deliveries:
                delivery.consumer.ack(delivery)
            assert [delivery.id[1] for delivery in deliveries] == [0, 1, 4]
            assert subscription.counts == {"unopened": 2}
        assert acked(broker) == [(LEDGER, 0), (LEDGER, 1), (LEDGER, 4)]
        assert broker.warnings("left unopened and unacknowledged: 67108864 bytes left compressed") == 2


@pytest.mark.parametrize("opened", [0, 3])
@pytest.mark.parametrize("how", ["individual", "cumulative"])
@awaited
async def test_a_batch_that_the_budget_ends_within(how: str, opened: int) -> None:
    """What is not opened of it is not acknowledged, and it is not taken for corrupt."""
    count = 10
    async with ScriptedBroker() as broker, broker.client() as client:
        batch = (b"\0\0\0\2" + b"\x18\0") * count
        broker.once("FLOW", deliver(entry(0, batch, num_messages_in_batch=count), entry(1)))
        async with subscribed(client) as subscription:
            subscription.inbox.budget.left = opened * MESSAGE_COST
            for delivery in await take(subscription, 1 + bool(opened)):
                assert len(delivery.messages) == (opened if delivery.id[1] == 0 else 1)
                if how == "individual":
                    delivery.consumer.ack(delivery)
                else:
                    delivery.consumer.ack_cumulatively(delivery, delivery.messages[-1])
            assert subscription.counts == {"unopened": 1}
        assert acked(broker) == ([(LEDGER, 1)] if how == "individual" else [])
        assert not broker.warnings("corrupt")
        assert broker.warnings(f"{opened} of {count} messages opened")


@awaited
async def test_the_ratio_of_the_budget() -> None:
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(entry(0, bytes(Budget.FREE)), entry(1, bytes(1000))))
        async with subscribed(client, payload_ratio=7) as subscription:
            await take(subscription, 2)
            grown = subscription.inbox.budget.left - Budget.START
            assert 7 * 1000 < grown < 7 * 1400


@awaited
async def test_warnings_of_a_session_are_folded() -> None:
    async with ScriptedBroker() as broker:
        async with broker.client() as client:
            link = await client.open_service_link()
            broker.peers[0].send(frame_of(b"\x08\xe7\x07") * 100)
            await heard_all(broker)
            assert link.is_open
            assert broker.warnings("an unknown command") == MAX_WARNINGS
        assert broker.said[-1] == "unknown commands: 90 more times"


# ---- Acknowledging ----


@awaited
async def test_refused_messages_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """When too many wait to come again they are asked for before their time, and that is said."""
    monkeypatch.setattr(receive_queue, "REMEMBERED", 10)
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(*(entry(each) for each in range(11))))
        async with subscribed(client, nack_delay=60, **SHARED) as subscription:
            for delivery in await take(subscription, 11):
                delivery.consumer.nack(delivery)
            (asked,) = await broker.saw("REDELIVER_UNACKNOWLEDGED_MESSAGES")
            assert places(asked.message_ids) == [(LEDGER, each) for each in range(11)]
            assert broker.warnings("more than 10 messages wait for redelivery")


@awaited
async def test_messages_that_are_not_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """So too those that wait for the acknowledgement timeout."""
    monkeypatch.setattr(receive_queue, "REMEMBERED", 10)
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(*(entry(each) for each in range(11))))
        async with subscribed(client, ack_timeout=60, **SHARED) as subscription:
            await take(subscription, 11)
            (asked,) = await broker.saw("REDELIVER_UNACKNOWLEDGED_MESSAGES")
            assert len(asked.message_ids) == 11


@awaited
async def test_batches_that_are_partly_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those known longest nothing is known any more: they come again whole."""
    monkeypatch.setattr(receive_queue, "MAX_PARTLY_ACKED", 2)
    batch = (b"\0\0\0\2" + b"\x18\0") * 2
    entries = [entry(each, batch, num_messages_in_batch=2) for each in range(3)]
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(*entries, *entries))
        async with subscribed(client) as subscription:
            for delivery in await take(subscription, 3):
                delivery.consumer.ack(delivery, delivery.messages[0])
            assert [len(delivery.messages) for delivery in await take(subscription, 3)] == [2, 1, 1]


@awaited
async def test_acknowledgements_that_are_not_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are given up, which is said; the others are sent again over the next link."""
    monkeypatch.setattr(acks, "MAX_UNCONFIRMED", 3 * 11)
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.always("ACK", silence)
        broker.once("FLOW", deliver(*(entry(each) for each in range(6))))
        async with subscribed(client) as subscription:
            for delivery in await take(subscription, 6):
                delivery.consumer.ack_cumulatively(delivery, delivery.messages[0])
            await broker.saw("ACK", 6)
            assert broker.warnings("acknowledgements are not confirmed; older ones are not sent again")
            broker.always("ACK", confirmed)
            broker.peers[0].hang_up()
            await broker.saw("ACK", 9)
        again = [place for body in broker.bodies("ACK")[6:] for place in places(body.message_id)]
        assert sorted(again) == [(LEDGER, 3), (LEDGER, 4), (LEDGER, 5)]


def test_a_batch_that_claims_too_much_is_not_acknowledged_in_a_transaction() -> None:
    """To acknowledge one message of it by a bit for each would take gigabytes."""
    metadata = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=0, num_messages_in_batch=2**31 - 1
    )
    delivery: Any = SimpleNamespace(
        id=(LEDGER, 0),
        ids=[(LEDGER, 0)],
        metadata=metadata,
        consumer=SimpleNamespace(topic=TOPIC),
    )
    with pytest.raises(LocalProtocolError, match="2147483647 messages in a batch"):
        _ack_ids(delivery, [])


# ---- Topics ----


def listed(*topics: str) -> Reaction:
    return answer("WATCH_TOPIC_LIST_SUCCESS", watcher_id=1, topic=topics, topics_hash="")


@awaited
async def test_topics_of_a_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those there is no room for are left out, said and counted; when others go there is room again."""
    names = [f"persistent://public/default/{each}" for each in "abcdef"]
    monkeypatch.setattr(watch, "MAX_NAME_BYTES", 3 * watch._weight(names[0]))
    async with (
        ScriptedBroker(feature_flags={"supports_topic_watchers": True}) as broker,
        broker.client() as client,
    ):
        broker.once("WATCH_TOPIC_LIST", listed(*names[:2], "x" * 2049))
        changes: list[tuple[list[str], list[str]]] = []
        following = watch.TopicWatch(client, "public/default", ".*", lambda *change: changes.append(change))
        assert await following.open() == names[:2]
        assert broker.warnings("room for 2 only; others are left out") == 1

        def update(new: list[str], deleted: list[str]) -> bytes:
            return build(
                "WATCH_TOPIC_UPDATE", watcher_id=1, new_topics=new, deleted_topics=deleted, topics_hash=""
            )

        broker.peers[0].send(update(names[2:5], []), update(names[4:5], []), update(names[5:], names[:1]))
        await heard_all(broker)
        assert changes == [([names[2]], []), ([names[5]], [names[0]])]
        assert following.known.names == {names[1], names[2], names[5]}
        await following.close()
        assert broker.warnings("no room for a topic 4 times")


@awaited
async def test_changes_of_topics_without_the_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that sends nothing but changes is left."""
    monkeypatch.setattr(watch, "MAX_NAME_BYTES", 1000)
    async with (
        ScriptedBroker(feature_flags={"supports_topic_watchers": True}) as broker,
        broker.client() as client,
    ):
        update = build("WATCH_TOPIC_UPDATE", watcher_id=1, new_topics=["a"], topics_hash="")
        broker.always("WATCH_TOPIC_LIST", lambda peer, frame: update * 20)
        following = watch.TopicWatch(client, "public/default", ".*", lambda *change: None)
        client.settings = replace(client.settings, reconnect=False)
        with pytest.raises(LinkClosed, match="too many changes of topics of public/default came before"):
            await following.open()
        await following.close()


@awaited
async def test_partitions_that_are_consumed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.always("PARTITIONED_METADATA", answer("PARTITIONED_METADATA_RESPONSE", partitions=10_001))
        with pytest.raises(Unreachable, match="more than 10000 topics and partitions"):
            async with subscribed(client):
                pass
        assert not broker.seen("SUBSCRIBE")


@awaited
async def test_topics_that_are_consumed_without_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them counts as one."""
    monkeypatch.setattr(subscription_module, "MAX_TOPICS", 2)
    names = [f"persistent://public/default/{each}" for each in "abc"]
    async with ScriptedBroker() as broker, broker.client() as client:
        subscription = Subscription(client, names, ConsumerOptions("s"))
        with pytest.raises(Unreachable, match="default/c: more than 2 topics and partitions"):
            await subscription.open()
        assert [body.topic for body in broker.bodies("SUBSCRIBE")] == names[:2]
        await subscription.close()


@awaited
async def test_topics_that_are_consumed_by_a_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_module, "MAX_TOPICS", 2)
    names = [f"persistent://public/default/{each}" for each in "abc"]
    async with (
        ScriptedBroker(feature_flags={"supports_topic_watchers": True}) as broker,
        broker.client() as client,
    ):
        broker.once("WATCH_TOPIC_LIST", listed(*names))
        subscription = Subscription(
            client, [], ConsumerOptions("s"), pattern="persistent://public/default/.*"
        )
        await subscription.open()
        assert broker.warnings("1 topics are left out")
        update = build(
            "WATCH_TOPIC_UPDATE", watcher_id=1, new_topics=["persistent://public/default/d"], topics_hash=""
        )
        broker.peers[0].send(update)
        await heard_all(broker)
        assert broker.warnings("2 topics are left out")
        assert list(subscription.consumers) == names[:2]
        await subscription.close()


# ---- Schemas, links ----


@awaited
async def test_schemas_that_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """By their bytes; what is forgotten is asked for again."""
    monkeypatch.setattr(client_module, "MAX_SCHEMA_BYTES", 30_000)
    async with ScriptedBroker() as broker, broker.client() as client:
        schema = {"name": "s", "schema_data": bytes(10_000), "type": 4}
        broker.always("GET_SCHEMA", answer("GET_SCHEMA_RESPONSE", schema=schema))
        for version in (b"1", b"2", b"1", b"2", b"3", b"1"):
            assert await client.fetch_schema(TOPIC, version) is not None
        assert [body.schema_version for body in broker.bodies("GET_SCHEMA")] == [b"1", b"2", b"3", b"1"]


@awaited
async def test_brokers_that_are_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that names ever other brokers does not get us to connect to all of them."""
    monkeypatch.setattr(client_module, "MAX_LINKS", 2)
    async with (
        ScriptedBroker() as one,
        ScriptedBroker() as two,
        ScriptedBroker() as three,
        one.client() as client,
    ):
        redirect = CommandLookupTopicResponse.Redirect
        one.always("LOOKUP", connect_to(two, response=redirect))
        two.always("LOOKUP", connect_to(three, response=redirect))
        with pytest.raises(Unreachable, match="2 brokers are connected, the maximum"):
            await client.lookup(TOPIC)
        assert not three.peers
        assert not client._locks


@awaited
async def test_bytes_that_wait_to_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that reads nothing is left when too much waits for it."""
    monkeypatch.setattr(frame_socket, "MAX_UNSENT_BYTES", 1024 * 1024)
    async with ScriptedBroker() as broker, broker.client() as client:
        link = await client.open_service_link()
        broker.peers[0].transport.pause_reading()
        pings = build("PING") * 10_000
        while link.is_open:
            link.send(pings)
        await link.closed
        assert "the broker reads nothing: 1048576 bytes wait to be sent" in link.protocol.failure
        broker.peers[0].transport.resume_reading()


@awaited
async def test_checksum_errors_without_end() -> None:
    """All that is pending is sent again once; a broker that refuses it again gets a new connection."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client) as (producer, results),
    ):
        broker.once("SEND", send_error("ChecksumError"), send_error("ChecksumError"))
        await send(producer, b"a")
        await producer.flush()
        assert results.stored == [0]
        assert len(broker.peers) == 2
        assert len(broker.seen("SEND")) == 3


@awaited
async def test_acknowledged_entries_that_are_known_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that were acknowledged longest ago nothing is known any more: they are delivered again."""
    monkeypatch.setattr(receive_queue, "REMEMBERED", 2)
    entries = [entry(each) for each in range(3)]
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(*entries, *entries))
        async with subscribed(client) as subscription:
            for delivery in await take(subscription, 3):
                delivery.consumer.ack(delivery)
            assert (await take_one(subscription)).id == (LEDGER, 0)
            await heard_all(broker)
            assert len(delivery.consumer.queue._acked) == 2


@awaited
async def test_producers_of_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer for each version of a schema; the one that was opened first is closed for another."""
    monkeypatch.setattr(dead_letters, "_MAX_PUBLISHERS", 2)
    entries = [entry(each, schema_version=bytes((each,))) for each in range(1, 5)]
    async with ScriptedBroker() as broker, broker.client() as client:
        schema = {"name": "s", "schema_data": b"", "type": 1}
        broker.always("GET_SCHEMA", answer("GET_SCHEMA_RESPONSE", schema=schema))
        broker.once("FLOW", deliver(*entries))
        letters = dead_letters.DeadLetters(client, TOPIC, "s", limit=0)
        async with subscribed(client, **SHARED) as subscription:
            for delivery in await take(subscription, 4):
                await letters.bury(delivery, delivery.messages[0])
                assert len(letters._publishers) <= 2
            await broker.saw("CLOSE_PRODUCER", 2)
            await letters.close()
        assert letters.buried == 4


@pytest.mark.parametrize("opened", [0, 3])
@awaited
async def test_a_batch_with_metadata_that_is_too_large_to_parse(opened: int) -> None:
    """It may be intact, so it is neither taken for corrupt nor acknowledged."""
    async with ScriptedBroker() as broker, broker.client() as client:
        large = (MAX_METADATA + 1).to_bytes(4, "big") + bytes(MAX_METADATA + 1)
        batch = (b"\0\0\0\2" + b"\x18\0") * opened + large
        broker.once("FLOW", deliver(entry(0, batch, num_messages_in_batch=opened + 1), entry(1)))
        async with subscribed(client) as subscription:
            for delivery in await take(subscription, 1 + bool(opened)):
                delivery.consumer.ack(delivery)
            assert subscription.counts == {"unopened": 1}
        assert acked(broker) == [(LEDGER, 1)]
        assert broker.warnings(f"message {opened} of the batch: metadata of {MAX_METADATA + 1} bytes")


@awaited
async def test_a_reader_that_has_read_nothing_begins_at_the_same_time_again() -> None:
    async with ScriptedBroker() as broker, broker.client() as client:
        async with subscribed(client, durable=False, rollback=600):
            broker.peers[0].hang_up()
            await broker.saw("SUBSCRIBE", 2)
        first, second = broker.bodies("SUBSCRIBE")
        assert first.start_message_rollback_duration_sec == 600
        assert second.start_message_rollback_duration_sec >= 600
