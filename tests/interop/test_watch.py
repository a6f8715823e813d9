"""`pwire watch` against a broker: topics that are there, that come, and that go."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from interop.brokers import Broker
from interop.conftest import Pwire
from interop.running import Running


@pytest.fixture
def namespace(broker: Broker) -> str:
    """A namespace without topics."""
    name = f"public/watch-{secrets.token_hex(4)}"
    broker.rest("PUT", f"/admin/v2/namespaces/{name}")
    return name


def create(broker: Broker, namespace: str, *names: str) -> None:
    for name in names:
        broker.rest("PUT", f"/admin/v2/persistent/{namespace}/{name}")


def delete(broker: Broker, namespace: str, name: str) -> None:
    broker.rest("DELETE", f"/admin/v2/persistent/{namespace}/{name}")


def test_what_is_there_what_comes_and_what_goes(pwire: Pwire, broker: Broker, namespace: str) -> None:
    create(broker, namespace, "a")
    with Running(pwire, "watch", namespace) as running:
        assert running.line() == f"+ persistent://{namespace}/a"
        create(broker, namespace, "b")
        assert running.line() == f"+ persistent://{namespace}/b"
        delete(broker, namespace, "a")
        assert running.line() == f"- persistent://{namespace}/a"
        assert running.finish() == (0, [])


def test_json_and_an_end_after_so_many_changes(pwire: Pwire, broker: Broker, namespace: str) -> None:
    create(broker, namespace, "a")
    with Running(pwire, "watch", namespace, "-c", 2, "-o", "json") as running:
        present = json.loads(running.line())
        create(broker, namespace, "b")
        added = json.loads(running.line())
        delete(broker, namespace, "b")
        code, rest = running.finish(None)
    removed = json.loads(rest[0])
    assert (code, len(rest)) == (0, 1)
    assert [each["event"] for each in (present, added, removed)] == ["present", "added", "removed"]
    assert [each["topic"].rpartition("/")[2] for each in (present, added, removed)] == ["a", "b", "b"]
    assert present["time_ns"] <= added["time_ns"] <= removed["time_ns"]


def test_partitions_one_by_one(pwire: Pwire, broker: Broker, namespace: str) -> None:
    create(broker, namespace, "a")
    with Running(pwire, "watch", namespace, "-c", 2) as running:
        running.line()  # it is watching now
        broker.rest("PUT", f"/admin/v2/persistent/{namespace}/p/partitions", 2)
        code, lines = running.finish(None)
    assert code == 0
    assert sorted(lines) == [f"+ persistent://{namespace}/p-partition-{index}" for index in range(2)]


def test_only_what_matches_and_an_end_after_a_time(pwire: Pwire, broker: Broker, namespace: str) -> None:
    create(broker, namespace, "orders-1", "orders-2", "other")
    run = pwire("watch", namespace, "--regex", f"{namespace}/orders-.*", "--for", 0.2)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines() == [f"+ persistent://{namespace}/orders-{number}" for number in (1, 2)]


def test_a_broker_without_topic_watchers_is_polled(pwire: Pwire, broker: Broker, namespace: str) -> None:
    create(broker, namespace, "a")
    pattern = f"{namespace}/(a|{'b' * 50})"  # longer than watchers take
    run = pwire("watch", namespace, "--regex", pattern, "--for", 0.2)
    assert run.returncode == 0
    assert run.stdout.splitlines() == [f"+ persistent://{namespace}/a"]
    assert "it is polled every 60 s" in run.stderr


def test_no_pattern(pwire: Pwire) -> None:
    run = pwire("watch", "--regex", "(")
    assert run.returncode == 2
    assert "not a regular expression" in run.stderr


@contextlib.contextmanager
def relay(url: str) -> Iterator[tuple[str, socket.socket]]:
    """Another URL of a broker, for one connection; shutting the socket down ends that."""
    where = urlsplit(url)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as broker:
        clients: list[socket.socket] = []

        def carry(source: socket.socket, target: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(65536):
                    target.sendall(data)
            for each in (source, target):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

        def serve() -> None:
            client, _ = server.accept()
            clients.append(client)
            broker.connect((where.hostname, where.port))
            back = threading.Thread(target=carry, args=(broker, client))
            back.start()
            carry(client, broker)
            back.join()

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"pulsar://127.0.0.1:{server.getsockname()[1]}", broker
        thread.join()
        for client in clients:
            client.close()


def test_without_reconnecting_the_end_of_the_connection_ends_it(
    pwire: Pwire, broker: Broker, namespace: str
) -> None:
    create(broker, namespace, "a")
    with (
        relay(broker.url) as (url, connection),
        Running(pwire, "watch", namespace, "--no-reconnect", url=url) as running,
    ):
        running.line()
        connection.shutdown(socket.SHUT_RDWR)
        assert running.finish(None) == (6, [])
