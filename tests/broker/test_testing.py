"""The broker for tests: `pulsarctl_wire.testing`, and the fixture of the pytest plugin."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from broker.probe import sent
from broker.raw import RawClient

from pulsarctl_wire.errors import InUse, SettingsError
from pulsarctl_wire.testing import Broker

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
        ({"settings": {"tokenSecretKey": "?"}}, "tokenSecretKey=.*: neither a file nor base64"),
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
            broker.kill(1)
            assert client.ended()
        with pytest.raises((OSError, AssertionError)), RawClient(second):
            pass
        with RawClient(first) as client:
            client.subscribe("t", 10)
            assert client.message() == b"a"
        assert [each["alive"] for each in broker.state()["brokers"]] == [True, False]
        for wrong in (1, 2):
            with pytest.raises(SettingsError, match=f"broker {wrong}"):
                broker.move("t", wrong)
        with pytest.raises(SettingsError, match="the last broker cannot be killed"):
            broker.kill(0)


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
                client.socket.sendall(sent(sequence))
            assert client.expect("SEND_RECEIPT").sequence_id == 1
            (fault,) = broker.faults()
            assert (fault["number"], fault["matched"], fault["hits"]) == (number, 2, 1)
            broker.remove_fault(number)
            client.socket.sendall(sent(2))
            assert client.expect("SEND_RECEIPT").sequence_id == 2
            assert broker.faults() == []


def test_faults_act_on_what_clients_send() -> None:
    with Broker() as broker, RawClient(broker.service_url) as client:
        client.lookup("t")
        client.request("PRODUCER", "PRODUCER_SUCCESS", topic="t", producer_id=1)
        broker.add_fault("flip command=SEND")
        client.socket.sendall(sent(0))
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
            client.socket.sendall(sent(1, b"late"))
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
        with pytest.raises(SettingsError, match="topic and filter are not available here"):
            broker.add_fault("drop topic=t")
        with pytest.raises(SettingsError, match="there is no fault 7"):
            broker.remove_fault(7)


def test_the_same_with_async() -> None:
    async def check() -> None:
        async with Broker() as broker:
            with RawClient(broker.service_url) as client:
                client.produce("t", b"a")
                await broker.aio.unload("t")
                assert await broker.aio.terminate("t") == (0, 0)
                before = (await broker.aio.state())["time_ms"]
                await broker.aio.advance(10)
                assert (await broker.aio.state())["time_ms"] - before >= 10_000
                assert await broker.aio.cut() == 1

    asyncio.run(check())


def test_the_fixture(tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(
        "urls = set()\n"
        "def test_one(pulsar_broker):\n    urls.add(pulsar_broker.service_url)\n"
        "def test_two(pulsar_broker):\n    pulsar_broker.advance(5)\n"
    )
    places = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": places, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pulsarctl_wire.pytest_plugin", str(path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
