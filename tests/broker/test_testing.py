"""The broker for tests: `pulsarctl_wire.testing`, and the fixture of the pytest plugin."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from broker.raw import PATIENCE, RawClient

from pulsarctl_wire.broker.cluster.coordinators import ASSIGN
from pulsarctl_wire.conformance.basics.frames import make_send, make_subscription
from pulsarctl_wire.errors import FilterError, InUse, RequestTimeout, SettingsError
from pulsarctl_wire.testing import AsyncBroker, Broker, traffic
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandTopicMigrated

T = "persistent://public/default/t"


def test_each_broker_is_fresh_and_leaves_nothing() -> None:
    before = threading.active_count()
    for _ in range(3):
        with Broker() as broker, RawClient(broker.service_url) as client:
            assert client.produce("t", b"a") == [(0, 0)]
            assert broker.http_url.startswith("http://127.0.0.1:")
            assert broker.service_url_tls == broker.https_url == ""
    assert threading.active_count() == before


def test_several_at_a_time() -> None:
    with Broker() as first, Broker() as second:
        assert first.service_url != second.service_url
        with RawClient(first.service_url) as client:
            client.produce("t", b"a")
        assert T in first.state()["brokers"][0]["topics"]
        assert not second.state()["brokers"][0]["topics"]


def test_data_stays_in_a_directory_that_nobody_else_may_use(tmp_path: Path) -> None:
    with Broker(data=tmp_path) as broker, RawClient(broker.service_url) as client:
        client.produce("t", b"a")
        with pytest.raises(InUse, match="another broker uses this directory"), Broker(data=tmp_path):
            pass
    with Broker(data=tmp_path) as broker, RawClient(broker.service_url) as client:
        client.subscribe("t", 1)
        assert client.message() == b"a"


def test_settings_partitions_and_brokers() -> None:
    settings = {"allowAutoTopicCreation": False, "clusterName": "c", "loadBalancerEnabled": False}
    with Broker(settings=settings, partitions={"orders": 2}, brokers=2) as broker:
        assert broker.service_urls[0] == broker.service_url
        with RawClient(broker.service_url) as client:
            owner = client.lookup("orders-partition-1")
        assert owner in broker.service_urls
        with RawClient(owner) as client:
            assert client.produce("orders-partition-1", b"a")
        assert broker.state()["partitioned"] == {"persistent://public/default/orders": 2}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"settings": {"maxMessageSize": "big"}}, "maxMessageSize=big: it must be a whole number"),
        ({"settings": {"maxMesageSize": 1}}, "Pulsar has no such setting; did you mean maxMessageSize"),
        ({"partitions": {"a/b": 2}}, "a/b=2: Invalid short topic name"),
        ({"settings": {"advertisedListeners": "a:http://b"}}, "advertisedListeners=a:http://b: use NAME:"),
        ({"settings": {"internalListenerName": "a"}}, "internalListenerName=a: it must be in"),
        ({"port": 70_000}, "--port: there is no port 70000"),
        ({"settings": {"tokenSecretKey": "?"}}, "tokenSecretKey: neither a file nor base64"),
    ],
)
def test_what_cannot_be(options: dict[str, object], text: str) -> None:
    before = threading.active_count()
    broker = Broker(**options)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=text), broker:
        pass
    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match="the broker does not run"):
        broker.advance(1)


def test_tls() -> None:
    with Broker(tls=True) as broker:
        context = ssl.create_default_context(cafile=broker.ca_file)
        with RawClient(broker.service_url_tls, context) as client:
            assert client.produce("t", b"secret")


def test_time_passes_when_the_test_says_so() -> None:
    with Broker() as broker, RawClient(broker.service_url) as client:
        before = broker.state()["time_ms"]
        broker.advance(3600)
        assert broker.state()["time_ms"] - before >= 3_600_000
        assert client.ended()  # it has not answered PING


def test_topics_and_connections() -> None:
    with Broker() as broker:
        with RawClient(broker.service_url) as client:
            client.produce("t", b"a", b"b")
            client.subscribe("t", 10)
            assert [client.message(), client.message()] == [b"a", b"b"]
            (connection,) = broker.state()["brokers"][0]["connections"]
            assert connection["producers"].keys() == connection["consumers"].keys() == {"1"}
            broker.unload("t")
            assert {client.received().command for _ in range(2)} == {"CLOSE_PRODUCER", "CLOSE_CONSUMER"}  # type: ignore[union-attr]
            assert T not in broker.state()["brokers"][0]["topics"]
            client.subscribe("t", 10)
            assert [client.message(), client.message()] == [b"a", b"b"]
            (ledger, entry) = broker.terminate(T)
            assert (ledger, entry) == (0, 1)
            assert broker.state()["brokers"][0]["topics"][T]["terminated"]
            assert broker.cut(connection["number"]) == 1
            assert client.ended()
        assert broker.cut() == 0
        with pytest.raises(SettingsError, match="there is no connection 7"):
            broker.cut(7)
        with pytest.raises(SettingsError, match="Topic not found"):
            broker.unload("none")
        with pytest.raises(SettingsError, match="nonsense: not one of state, advance, "):
            broker.ask("nonsense")


def test_a_topic_is_compacted_when_it_is_large_enough() -> None:
    with Broker(settings={"brokerServiceCompactionThresholdInBytes": 1000}) as broker:
        with RawClient(broker.service_url) as client:
            client.subscribe("t")
            client.produce("t")
            for size, last in ((800, None), (400, [0, 1])):
                sequence = 0 if last is None else 1
                client.socket.sendall(make_send(sequence, bytes(size), meta_partition_key="k"))
                client.expect("SEND_RECEIPT")
                broker.housekeeping()
                (topic,) = broker.state()["brokers"][0]["topics"].values()
                assert topic["compacted_until"] == last
            broker.unload("t")
        with RawClient(broker.service_url) as client:
            client.lookup("t")
            fields = make_subscription("t", subscription="r", durable=False, read_compacted=True)
            client.request("SUBSCRIBE", "SUCCESS", **fields)
            client.send("FLOW", consumer_id=1, messagePermits=10)
            assert client.message() == bytes(400)


def test_the_state_of_subscriptions() -> None:
    with Broker() as broker, RawClient(broker.service_url) as client:
        client.lookup("t")
        for number, name in ((1, "a"), (2, "b")):
            fields = make_subscription("t", "Key_Shared", number, consumer_name=name)
            client.request("SUBSCRIBE", "SUCCESS", **fields)
        later = broker.state()["time_ms"] + 60_000
        client.produce("t")
        for number, more in enumerate(({}, {}, {"meta_deliver_at_time": later})):
            client.socket.sendall(make_send(number, meta_partition_key="k", **more))
            client.expect("SEND_RECEIPT")
        client.send("FLOW", consumer_id=1, messagePermits=10)
        client.send("FLOW", consumer_id=2, messagePermits=10)
        assert [client.message(), client.message()] == [b"hello", b"hello"]
        topic = broker.state()["brokers"][0]["topics"][T]
        shown = topic["subscriptions"]["s"]
        (holder,) = (each for each in shown["consumers"] if each["pending"])
        assert holder["pending"] == [[0, 0], [0, 1]]
        assert (holder["permits"], holder["unacknowledged"]) == (8, 2)
        slots = [span for each in shown["consumers"] for span in each["key_ranges"]]
        assert sum(end - start + 1 for start, end in slots) == 65_535
        assert (shown["backlog"], shown["delayed"], shown["unacknowledged"]) == (3, 1, 2)

        client.send("ACK", consumer_id=holder["id"], ack_type=0, message_id=[{"ledgerId": 0, "entryId": 1}])
        client.send(
            "REDELIVER_UNACKNOWLEDGED_MESSAGES",
            consumer_id=holder["id"],
            message_ids=[{"ledgerId": 0, "entryId": 0}],
        )
        assert client.message() == b"hello"
        shown = broker.state()["brokers"][0]["topics"][T]["subscriptions"]["s"]
        assert (shown["acknowledged"], shown["redelivered"]) == ([[[0, 1], [0, 1]]], [[0, 0, 1]])
        assert (shown["mark_delete"], shown["backlog"]) == ([0, -1], 2)


def test_the_state_of_transactions_schemas_and_faults() -> None:
    settings = {"transactionCoordinatorEnabled": True, "brokerDeduplicationEnabled": True}
    with Broker(settings=settings) as broker, RawClient(broker.service_url) as client:
        assert broker.state()["faults"] == []
        broker.add_fault("drop command=PONG")
        assert [each["fault"] for each in broker.state()["faults"]] == ["drop command=PONG"]
        client.lookup(ASSIGN + "-partition-0")
        client.request("TC_CLIENT_CONNECT_REQUEST", "TC_CLIENT_CONNECT_RESPONSE", tc_id=0)
        found = client.request("NEW_TXN", "NEW_TXN_RESPONSE", tc_id=0, txn_ttl_millis=60_000)
        txn = {"txnid_most_bits": found.txnid_most_bits, "txnid_least_bits": found.txnid_least_bits}
        client.lookup("t")
        schema = {"name": "t", "schema_data": b"", "type": 1}
        client.request("PRODUCER", "PRODUCER_SUCCESS", topic="t", producer_id=1, schema=schema)
        client.request("ADD_PARTITION_TO_TXN", "ADD_PARTITION_TO_TXN_RESPONSE", partitions=[T], **txn)
        client.socket.sendall(make_send(7, **txn, **{f"meta_{name}": value for name, value in txn.items()}))
        client.expect("SEND_RECEIPT")
        state = broker.state()
        key = f"{found.txnid_most_bits}/{found.txnid_least_bits}"
        assert {
            name: (each["timeout_ms"], each["topics"]) for name, each in state["transactions"].items()
        } == {key: (60_000, [T])}
        topic = state["brokers"][0]["topics"][T]
        assert (topic["transactions"], topic["schema"]) == ([key], {"type": "String", "version": 0})
        assert topic["producers"][0]["last_sequence_id"] == 7
        broker.advance(60)
        state = broker.state()
        assert not state["transactions"]
        assert not state["brokers"][0]["topics"][T]["transactions"]


def test_a_bundle_moves_and_a_broker_dies() -> None:
    with Broker(brokers=2) as broker:
        first, second = broker.service_urls
        broker.move("t", 0)
        with RawClient(first) as client:
            client.produce("t", b"a")
            broker.move("t", 1)
            assert client.expect("CLOSE_PRODUCER").assignedBrokerServiceUrl == second
            assert client.lookup("t") == second
        with RawClient(second) as client:
            client.subscribe("t", 10)
            assert client.message() == b"a"
            broker.kill_broker(1)
            assert client.ended()
        with pytest.raises(ConnectionRefusedError), RawClient(second):
            pass
        with RawClient(first) as client:
            client.subscribe("t", 10)
            assert client.message() == b"a"
        assert [each["alive"] for each in broker.state()["brokers"]] == [True, False]
        for wrong in (1, 2):
            with pytest.raises(SettingsError, match=f"broker {wrong}"):
                broker.move("t", wrong)
        with pytest.raises(SettingsError, match="the last broker cannot be killed"):
            broker.kill_broker(0)


def test_a_topic_moves_to_another_cluster() -> None:
    with Broker() as broker, Broker() as other:
        with RawClient(broker.service_url) as client:
            client.produce("t", b"a")
            client.subscribe("t")
            broker.migrate("t", other.service_url, "pulsar+ssl://other:6651")
            moved = client.expect("TOPIC_MIGRATED")
            assert (moved.brokerServiceUrl, moved.brokerServiceUrlTls) == (
                other.service_url,
                "pulsar+ssl://other:6651",
            )
            assert (moved.resource_id, moved.resource_type) == (1, moved.Producer)
            assert client.expect("CLOSE_PRODUCER").producer_id == 1
            client.send("FLOW", consumer_id=1, messagePermits=1)
            assert client.message() == b"a"
            client.send("ACK", consumer_id=1, ack_type=0, message_id=[{"ledgerId": 0, "entryId": 0}])
            assert client.expect("TOPIC_MIGRATED").resource_type == moved.Consumer
            assert client.expect("CLOSE_CONSUMER").consumer_id == 1
        with pytest.raises(SettingsError, match="http://x: it must begin with pulsar://"):
            broker.migrate("t", "http://x")
        with pytest.raises(SettingsError, match="give service_url or service_url_tls"):
            broker.migrate("t")


def test_a_consumer_whose_messages_are_skipped_moves_too() -> None:
    with Broker() as broker, RawClient(broker.service_url) as client:
        client.produce("t", b"a")
        client.subscribe("t")
        broker.migrate("t", "pulsar://other:6650")
        assert client.expect("TOPIC_MIGRATED").resource_type == CommandTopicMigrated.Producer
        assert client.expect("CLOSE_PRODUCER").producer_id == 1
        skip = f"{broker.http_url}/admin/v2/persistent/public/default/t/subscription/s/skip_all"
        urlopen(Request(skip, method="POST"), timeout=PATIENCE).close()
        assert client.expect("TOPIC_MIGRATED").resource_type == CommandTopicMigrated.Consumer
        assert client.expect("CLOSE_CONSUMER").consumer_id == 1


def test_a_broker_that_died_comes_back() -> None:
    with Broker(brokers=2, tls=True) as broker:
        urls = [broker.state()["brokers"][1][each] for each in ("service_url", "http_url")]
        for _ in range(2):
            for url in urls:
                assert answers(url)
            broker.move("t", 1)
            broker.kill_broker(1)
            for url in urls:
                with pytest.raises(ConnectionRefusedError):
                    answers(url)
            broker.start_broker(1)
        with pytest.raises(SettingsError, match="broker 1 is running"):
            broker.start_broker(1)
        broker.move("t", 1)
        with RawClient(broker.service_url) as client:
            assert client.lookup("t") == urls[0]
        context = ssl.create_default_context(cafile=broker.ca_file)
        with (
            RawClient(broker.service_urls[1]) as client,
            RawClient(broker._url("service_url_tls", 1), context),
        ):
            assert client.produce("t", b"again")
        assert answers(urls[1])


def answers(url: str) -> bool:
    """Whether a broker answers at a URL. Raises ConnectionRefusedError."""
    if url.startswith("http"):
        split = urlsplit(url)
        connection = HTTPConnection(split.hostname or "", split.port, PATIENCE)
        with closing(connection):
            connection.request("GET", "/admin/v2/brokers/health")
            return connection.getresponse().status == 200
    with RawClient(url):
        return True


def test_a_broker_is_started_while_it_is_being_killed() -> None:
    async def check() -> None:
        async with Broker(brokers=2) as broker:
            url = broker.service_urls[1]
            for _ in range(5):
                await asyncio.gather(broker.aio.kill_broker(1), broker.aio.start_broker(1))
                assert await asyncio.to_thread(answers, url)

    asyncio.run(check())


def test_the_only_broker_restarts() -> None:
    with Broker() as broker:
        with RawClient(broker.service_url) as client:
            assert client.produce("t", b"a") == [(0, 0)]
            broker.restart_broker()
            assert client.ended()
        with RawClient(broker.service_url) as client:
            ((ledger, entry),) = client.produce("t", b"b")
            assert (ledger > 0, entry) == (True, 0)
            client.subscribe("t", 10)
            assert [client.message(), client.message()] == [b"a", b"b"]
        with pytest.raises(SettingsError, match="there is no broker 1"):
            broker.restart_broker(1)


def test_a_transaction_ends_though_the_first_broker_is_dead() -> None:
    with Broker(settings={"transactionCoordinatorEnabled": True}, brokers=2) as broker:
        first, second = broker.service_urls
        broker.move("t", 0)
        broker.move(f"{ASSIGN}-partition-0", 1)
        with RawClient(first) as client:
            client.produce("t", b"a")
        with RawClient(second) as client:
            client.request("TC_CLIENT_CONNECT_REQUEST", "TC_CLIENT_CONNECT_RESPONSE", tc_id=0)
            found = client.request("NEW_TXN", "NEW_TXN_RESPONSE", tc_id=0, txn_ttl_millis=10_000)
            txn = {"txnid_most_bits": found.txnid_most_bits, "txnid_least_bits": found.txnid_least_bits}
            client.request("ADD_PARTITION_TO_TXN", "ADD_PARTITION_TO_TXN_RESPONSE", partitions=[T], **txn)
            broker.kill_broker(0)
            broker.advance(10)
            assert not broker.state()["transactions"]
            assert client.lookup("t") == second


def test_a_broker_can_be_asked_to_kill_itself() -> None:
    with Broker(brokers=2) as broker:
        split = urlsplit(broker.state()["brokers"][1]["http_url"])
        for _ in range(2):
            with closing(HTTPConnection(split.hostname or "", split.port, PATIENCE)) as connection:
                connection.request("POST", "/pwire/kill", '{"broker": 1}')
                assert connection.getresponse().status == 200
            broker.start_broker(1)


def test_housekeeping_and_compaction_run_when_asked() -> None:
    settings = {"ttlDurationDefaultInSeconds": 60, "messageExpiryCheckIntervalInMinutes": 10_000}
    with Broker(settings=settings) as broker, RawClient(broker.service_url) as client:
        client.subscribe("t")
        client.produce("t", b"a", b"b")
        for expected in (2, 0):
            (topic,) = broker.state()["brokers"][0]["topics"].values()
            assert topic["subscriptions"]["s"]["backlog"] == expected
            broker.housekeeping()  # they are older than their time to live
        broker.compact("t")
        (topic,) = broker.state()["brokers"][0]["topics"].values()
        assert topic["subscriptions"]["__compaction"]["backlog"] == 0
        volatile = "non-persistent://public/default/v"
        client.lookup(volatile)
        client.request("PRODUCER", "PRODUCER_SUCCESS", topic=volatile, producer_id=2)
        with pytest.raises(SettingsError, match=f"{volatile} is not persistent"):
            broker.compact(volatile)


def test_clients_choose_a_listener() -> None:
    listeners = "in:pulsar://in.example:6650,out:pulsar://out.example:1,out:pulsar+ssl://out.example:2"
    settings = {"advertisedListeners": listeners, "internalListenerName": "out"}
    with Broker(settings=settings) as broker:
        assert broker.service_url == "pulsar://out.example:1"
        with RawClient(f"pulsar://127.0.0.1:{broker.port}") as client:
            assert client.lookup("t") == "pulsar://out.example:1"
            for name, plain, secure in (
                ("in", "pulsar://in.example:6650", ""),
                ("out", "pulsar://out.example:1", "pulsar+ssl://out.example:2"),
            ):
                fields = {"topic": "t", "advertised_listener_name": name}
                found = client.request("LOOKUP", "LOOKUP_RESPONSE", **fields)
                assert (found.brokerServiceUrl, found.brokerServiceUrlTls) == (plain, secure)
            fields = {"topic": "t", "advertised_listener_name": "none"}
            found = client.request("LOOKUP", "LOOKUP_RESPONSE", **fields)
            assert found.message == "the broker do not have none listener"


def test_faults_act_on_what_the_broker_sends() -> None:
    with Broker() as broker:
        number = broker.add_fault("drop command=SEND_RECEIPT nth=1")
        with RawClient(broker.service_url) as client:
            client.lookup("t")
            client.request("PRODUCER", "PRODUCER_SUCCESS", topic="t", producer_id=1)
            for sequence in range(2):
                client.socket.sendall(make_send(sequence))
            assert client.expect("SEND_RECEIPT").sequence_id == 1
            (fault,) = broker.faults()
            assert (fault["number"], fault["matched"], fault["hits"]) == (number, 2, 1)
            broker.remove_fault(number)
            client.socket.sendall(make_send(2))
            assert client.expect("SEND_RECEIPT").sequence_id == 2
            assert broker.faults() == []


def test_what_faults_did_to_frames_for_the_client_is_noted() -> None:
    with Broker() as broker, RawClient(broker.service_url) as client:
        broker.add_fault("flip command=MESSAGE nth=2")
        broker.add_fault("answer command=PARTITIONED_METADATA error=ServiceNotReady")
        client.request("PARTITIONED_METADATA", "PARTITIONED_METADATA_RESPONSE", topic="t")
        client.produce("t", b"one", b"two")
        client.subscribe("t", 2)
        broker.wait_for("command=MESSAGE", count=2)
        answer, one, two = broker.frames("command=PARTITIONED_METADATA_RESPONSE,MESSAGE")
        assert answer.notes == ["by pwire: answered in the peer's place"]
        assert not one.notes
        assert two.notes[0] == "by pwire: changed"


def test_faults_of_topics_and_filters() -> None:
    with Broker() as broker, RawClient(broker.service_url) as client:
        broker.add_fault("drop command=SEND_RECEIPT topic=other")
        broker.add_fault("drop command=PARTITIONED_METADATA filter=\"topic =~ '.*/dropped'\"")
        assert client.produce("t", b"a")
        client.send("PARTITIONED_METADATA", topic="dropped", request_id=2)
        client.request("PARTITIONED_METADATA", "PARTITIONED_METADATA_RESPONSE", topic="t")
        assert [each["hits"] for each in broker.faults()] == [0, 1]


def test_waiting_for_a_fault() -> None:
    with Broker() as broker, RawClient(broker.service_url) as client, ThreadPoolExecutor() as pool:
        number = broker.add_fault("delay command=LOOKUP time=60m")
        waiting = pool.submit(broker.wait_for_fault, number, hits=3)
        for _ in range(3):
            assert not waiting.done()
            client.send("LOOKUP", topic="t", request_id=1)
        assert waiting.result(PATIENCE) == 3
        assert broker.wait_for_fault(number, 2, timeout=0) == 3
        with pytest.raises(RequestTimeout, match=r"fault 1 had 3 of 4 hits after 0.01 seconds"):
            broker.wait_for_fault(number, 4, timeout=0.01)
        waiting = pool.submit(broker.wait_for_fault, number, hits=4)
        while not broker_waits(broker):
            broker.state()
        broker.clear_faults()
        with pytest.raises(SettingsError, match="fault 1 was removed after 3 of 4 hits"):
            waiting.result(PATIENCE)
        with pytest.raises(SettingsError, match="there is no fault 1"):
            broker.wait_for_fault(number)


def broker_waits(broker: Broker) -> bool:
    """Whether somebody waits for a fault of a broker."""
    assert broker._running is not None
    assert broker._running.server.faults is not None
    return any(rule.watchers for rule in broker._running.server.faults.list_active())


def test_delays_end_when_the_clock_is_moved() -> None:
    settings = {"keepAliveIntervalSeconds": 10_000}
    with Broker(settings=settings) as broker, RawClient(broker.service_url) as client:
        broker.add_fault("delay time=30m command=LOOKUP_RESPONSE")
        client.send("LOOKUP", topic="t", request_id=5)
        broker.wait_for_fault(1)
        broker.advance(1700)
        client.socket.settimeout(0)
        with pytest.raises(BlockingIOError):
            client.received()
        client.socket.settimeout(PATIENCE)
        broker.advance(100)
        assert client.expect("LOOKUP_RESPONSE").request_id == 5


def test_faults_act_on_what_clients_send() -> None:
    with Broker() as broker, RawClient(broker.service_url) as client:
        client.lookup("t")
        client.request("PRODUCER", "PRODUCER_SUCCESS", topic="t", producer_id=1)
        broker.add_fault("flip command=SEND")
        client.socket.sendall(make_send(0))
        assert client.expect("SEND_ERROR").sequence_id == 0


@pytest.mark.parametrize("fault", ["disconnect", "reset"])
def test_faults_end_connections(fault: str) -> None:
    with Broker() as broker, RawClient(broker.service_url) as client:
        client.produce("t", b"a")
        broker.add_fault(f"{fault} command=LOOKUP")
        client.send("LOOKUP", topic="t", request_id=5)
        assert client.ended()
        assert broker.cut() == 0


def test_a_frame_that_is_delayed_is_not_lost_when_its_client_leaves() -> None:
    with Broker() as broker:
        with RawClient(broker.service_url) as client:
            client.produce("t", b"a")
            broker.add_fault("delay time=60m command=SEND")
            client.socket.sendall(make_send(1, b"late"))
        with RawClient(broker.service_url) as client:
            client.subscribe("t", 10)
            assert [client.message(), client.message()] == [b"a", b"late"]


def test_what_is_delayed_is_bounded_and_goes_on() -> None:
    """Messages of a MiB wait for long: the core does not send all of them meanwhile."""
    with Broker() as broker, RawClient(broker.service_url) as client:
        payload = bytes(1 << 20)
        number = broker.add_fault("delay time=30m command=MESSAGE")
        client.produce("t", *[payload] * 20)
        client.subscribe("t", 100)
        (consumer,) = broker.state()["brokers"][0]["topics"][T]["subscriptions"]["s"]["consumers"]
        assert 4 <= consumer["messages_out"] < 20
        broker.remove_fault(number)
        assert [client.message() == payload for _ in range(20)] == [True] * 20


def test_faults_that_are_wrong() -> None:
    with Broker() as broker:
        with pytest.raises(SettingsError, match="unknown fault"):
            broker.add_fault("nonsense")
        with pytest.raises(FilterError, match="drop: filter"):
            broker.add_fault("drop filter=(((")
        with pytest.raises(SettingsError, match="there is no fault 7"):
            broker.remove_fault(7)


def test_the_same_with_async() -> None:
    async def check() -> None:
        async with Broker() as broker:
            with RawClient(broker.service_url) as client:
                number = await broker.aio.add_fault("delay command=SEND_RECEIPT time=0s")
                waiting = asyncio.create_task(broker.aio.wait_for_fault(number))
                await asyncio.to_thread(client.produce, "t", b"a")
                assert await waiting == 1
                with pytest.raises(SettingsError, match="Topic not found"):
                    await broker.aio.unload("none")
                await broker.aio.unload("t")
                assert await broker.aio.terminate("t") == (0, 0)
                before = (await broker.aio.state())["time_ms"]
                await broker.aio.advance(10)
                assert (await broker.aio.state())["time_ms"] - before >= 10_000
                assert await broker.aio.cut() == 1

    asyncio.run(check())


def test_each_coroutine_has_its_blocking_twin() -> None:
    calls = {name for name in vars(AsyncBroker) if not name.startswith("_")}
    assert {"advance", "wait_for_fault", "state"} < calls <= vars(Broker).keys()


def run_pytest(folder: Path, test: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest with our plugin on a file."""
    path = folder / "test_it.py"
    path.write_text(test)
    places = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": places, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "pulsarctl_wire.pytest_plugin",
        *options,
        str(path),
    ]
    return subprocess.run(
        [*command, *options, str(path)], cwd=folder, env=environment, capture_output=True, text=True
    )


def test_the_fixture(tmp_path: Path) -> None:
    done = run_pytest(
        tmp_path,
        "urls = set()\n"
        "def test_one(pulsar_broker):\n    urls.add(pulsar_broker.service_url)\n"
        "def test_two(pulsar_broker):\n    pulsar_broker.advance(5)\n",
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


WRONG = """
from broker.raw import RawClient

def test_it(pulsar_broker):
    with RawClient(pulsar_broker.service_url) as client:
        client.send("ACK", consumer_id=9, ack_type=0, message_id=[{"ledgerId": 1, "entryId": 1}])
        pulsar_broker.wait_for("command=ACK")
"""


@pytest.mark.slow
def test_a_client_that_breaks_a_must_fails_its_test_if_that_is_strict(tmp_path: Path) -> None:
    assert run_pytest(tmp_path, WRONG).returncode == 0
    captures = tmp_path / "captures"
    done = run_pytest(tmp_path, WRONG, "--pwire-strict", "--pwire-captures", str(captures))
    assert done.returncode == 1
    assert "the protocol was broken:\nack_without_consumer: ACK is for consumer 9, which" in done.stdout
    assert "    #3 ACK: consumer 9 is not open" in done.stdout
    (path,) = captures.iterdir()
    assert path.name == "test_it.py-test_it.pcapng"
    assert f"{path}: what went over the wire; pwire decode or pwire doctor shows it" in done.stdout
    text = "from pulsarctl_wire.cli import main; main()"
    found = subprocess.run([sys.executable, "-c", text, "doctor", str(path)], capture_output=True, text=True)
    assert found.stdout.startswith("ack_without_consumer  certain")


def test_the_traffic_of_a_failed_test_is_kept(tmp_path: Path) -> None:
    test = "def test_it(pulsar_broker):\n    assert not pulsar_broker.service_url\n"
    done = run_pytest(tmp_path, test, "--pwire-captures", "kept")
    assert done.returncode == 1
    assert "kept/test_it.py-test_it.pcapng: what went over the wire" in done.stdout


def test_frames_are_chosen_as_for_faults_or_by_an_expression() -> None:
    with Broker() as broker, RawClient(broker.service_url) as client:
        client.produce("t", b"a", b"b")
        assert broker.wait_for("command=SEND_RECEIPT topic=t", count=2).body.sequence_id == 1
        assert [frame.command for frame in broker.frames("topic=t direction=to-broker")] == [
            *("LOOKUP", "PRODUCER", "SEND", "SEND"),
        ]
        (frame,) = broker.frames('command == "SEND" and fields.sequence_id == 1')
        assert (frame.payload, frame.topic) == (b"b", T)
        assert not broker.frames("command=ACK")
        with pytest.raises(RequestTimeout, match=r"command=ACK: 0 of 1 frames came within 0\.01 s"):
            broker.wait_for("command=ACK", timeout=0.01)
        with pytest.raises(SettingsError, match="it has no parameter comand"):
            broker.frames("command=ACK comand=SEND")
        with pytest.raises(FilterError):
            broker.frames("command ==")
        assert asyncio.run(broker.aio.wait_for("command=CONNECTED")).body.protocol_version == 21
    assert len(broker.frames()) > 8
    assert {finding.rule for finding in broker.findings()} == {
        "producer_name_mismatch",
        "publish_time_skewed",
    }


def test_findings_are_those_of_the_doctor() -> None:
    with Broker() as broker:
        with RawClient(broker.service_url) as client:
            client.send("FLOW", consumer_id=4, messagePermits=1)
            broker.wait_for("command=FLOW")
        assert [finding.rule for finding in broker.findings()] == ["flow_without_consumer"]


def test_more_traffic_than_is_kept_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "MAX_BYTES", 100)
    with Broker() as broker, RawClient(broker.service_url) as client:
        assert broker.traffic.is_complete
        client.produce("t", b"x" * 100)
        broker.wait_for("command=CONNECT")
        assert not broker.traffic.is_complete


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"brokers": 0}, "brokers=0: there can be 1 to 100"),
        ({"partitions": {"a": 0}}, "a=0: a topic can have 1 to 100,000 partitions"),
        ({"partitions": {"a": "3"}}, "a=3: a topic can have"),
    ],
)
def test_what_cannot_be_run(arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(SettingsError, match=error):
        Broker(**arguments).start()
