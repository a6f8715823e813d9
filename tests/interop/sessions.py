"""The proxy, and sessions of the official clients to be led through it.

Both clients take a session as `java/Sessions.java` describes it (the wheel without `again` and `keep_alive`),
and give what came of it in the same form.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar
from interop.processes import HOST, connected_to, open_files
from interop.releases import program
from interop.running import PATIENCE, Program, Running, start

from pulsarctl_wire.wire.frame import build_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, CommandConnect

if TYPE_CHECKING:
    from interop.brokers import Pulsar
    from interop.conftest import Pwire
    from typing_extensions import Self  # Python 3.10 has none

HELLO = BaseCommand(type=BaseCommand.CONNECT, connect=CommandConnect(client_version="test"))
TYPES = {
    "Exclusive": pulsar.ConsumerType.Exclusive,
    "Shared": pulsar.ConsumerType.Shared,
    "Key_Shared": pulsar.ConsumerType.KeyShared,
}


class Proxy(Running):
    """`pwire proxy --to TO …` on a port of its own; `url` is what it tells clients to use."""

    def __init__(self, pwire: Pwire, to: str, *options: object) -> None:
        listen = ("--listen", "127.0.0.1:0", *(() if "--control" in options else ("--control", "")))
        super().__init__(pwire, "proxy", *listen, "--to", to, *options, url="")
        try:
            self.says("for clients: ")
        except BaseException:
            self.__exit__()
            raise
        found = re.search(r"for clients: (\S+:(\d+))", self.said)
        assert found
        self.url, self.port = found[1], int(found[2])

    def frames(self, *commands: str) -> list[dict[str, Any]]:
        """What `--tap -o json` has shown until now; of these commands, if any are named."""
        found = [json.loads(line) for line in list(self.out)]
        return [frame for frame in found if not commands or frame.get("command") in commands]

    def until_frames(self, count: int, *commands: str) -> list[dict[str, Any]]:
        """Wait for so many frames."""
        self.until(lambda: len(self.frames(*commands)) >= count)
        return self.frames(*commands)


class Java(Program):
    """The Java client."""

    def __init__(self) -> None:
        source = Path(__file__).with_name("java") / "Sessions.java"
        super().__init__(start(program(source)))

    def ask(self, url: str, topic: str, **asked: object) -> None:
        """Begin a session."""
        self.send(json.dumps({"url": url, "topic": topic, **asked}))

    def answer(self) -> dict[str, Any]:
        """What came of the session that was begun before all others."""
        found: dict[str, Any] = json.loads(self.line())
        return found

    def run(self, url: str, topic: str, **asked: object) -> dict[str, Any]:
        """What comes of a session."""
        self.ask(url, topic, **asked)
        return self.answer()


class Wheel:
    """The official Python client, in this process."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._begun: list[Future[dict[str, Any]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def ask(self, url: str, topic: str, **asked: Any) -> None:
        """Begin a session."""
        self._begun.append(self._pool.submit(self._run, url, topic, asked))

    def answer(self) -> dict[str, Any]:
        """What came of the session that was begun before all others."""
        return self._begun.pop(0).result(PATIENCE)

    def run(self, url: str, topic: str, **asked: Any) -> dict[str, Any]:
        """What comes of a session."""
        self.ask(url, topic, **asked)
        return self.answer()

    def _run(self, url: str, topic: str, asked: dict[str, Any]) -> dict[str, Any]:
        try:
            with ExitStack() as stack:
                return _session(stack, url, topic, asked)
        except pulsar.PulsarException as failed:
            return {"error": type(failed).__name__, "text": str(failed)}


def _client(stack: ExitStack, url: str, asked: dict[str, Any]) -> Any:
    token = asked.get("token")
    client = pulsar.Client(
        url,
        authentication=pulsar.AuthenticationToken(token) if token else None,
        operation_timeout_seconds=asked.get("operation_timeout", 30_000) // 1000,
        tls_trust_certs_file_path=asked.get("trust"),
        tls_validate_hostname="trust" in asked,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    stack.callback(_close, client)
    return client


def _close(client: Any) -> None:
    with suppress(pulsar.PulsarException):  # nobody may answer any more
        client.close()


def _session(stack: ExitStack, url: str, topic: str, asked: dict[str, Any]) -> dict[str, Any]:
    type_ = TYPES[asked.get("type", "Exclusive")]
    first = pulsar.InitialPosition.Earliest
    consumers = [
        _client(stack, url, asked).subscribe(topic, "s", type_, initial_position=first)
        for _ in range(asked.get("consumers", 0))
    ]
    said: dict[str, Any] = {}
    if "produce" in asked:
        said["sent"] = _produce(_client(stack, url, asked), topic, asked)
    said["received"] = _consume(consumers, asked.get("consume", 0))
    return said


def _produce(client: Any, topic: str, asked: dict[str, Any]) -> list[str | None]:
    producer = client.create_producer(
        topic,
        batching_enabled=asked.get("batching", False),
        block_if_queue_full=True,
        batching_type=pulsar.BatchingType.KeyBased if "keys" in asked else pulsar.BatchingType.Default,
        send_timeout_millis=asked.get("send_timeout", 30_000),
    )
    outcomes: list[Future[str | None]] = []

    def told(outcome: Future[str | None]) -> Callable[[Any, Any], None]:
        return lambda result, _: outcome.set_result(None if result == pulsar.Result.Ok else result.name)

    first = asked.get("first", 0)
    for number in range(first, first + asked["produce"]):
        outcomes.append(Future())
        key = {"partition_key": f"key-{number % asked['keys']}"} if "keys" in asked else {}
        producer.send_async(b"%d" % number + b" " * asked.get("size", 0), told(outcomes[-1]), **key)
        time.sleep(asked.get("pause", 0) / 1000)
    return [outcome.result(PATIENCE) for outcome in outcomes]


def _consume(consumers: list[Any], count: int) -> list[list[list[str | None]]]:
    received: list[list[list[str | None]]] = [[] for _ in consumers]
    different: set[bytes] = set()
    deadline = time.monotonic() + PATIENCE
    while len(different) < count and time.monotonic() < deadline:
        for consumer, messages in zip(consumers, received, strict=True):
            try:
                message = consumer.receive(20)
            except pulsar.Timeout:
                continue
            different.add(message.data())
            messages.append([message.data().decode().strip(), message.partition_key() or None])
            with suppress(pulsar.NotConnected):  # it will come again, when the broker is back
                consumer.acknowledge(message)
    return received


Client = Java | Wheel
Clients = dict[str, Client]


class Alone:
    """Between `with` and its end nobody but proxies is connected to a broker, besides Pulsar's own processes.

    Looks again and again; at the end raises AssertionError if anybody was, or one of the proxies never. A
    connection that ends between two looks is not seen.
    """

    def __init__(self, broker: Pulsar, *proxies: Proxy) -> None:
        self._broker = broker
        self._ports = [proxy.port for proxy in proxies]
        self._proxies = {proxy.process.pid for proxy in proxies}
        self._owners: dict[str, int] = {}  # of sockets; 0: none of those that may
        self._seen = threading.Event()  # when all proxies were seen
        self._others = threading.Event()  # when somebody else was
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def until_seen(self) -> None:
        """Have each proxy connect, and wait until it was seen: sessions of clients may be too short."""
        with ExitStack() as stack:
            for port in self._ports:
                stack.enter_context(socket.create_connection((HOST, port))).sendall(build_frame(HELLO))
            assert self._seen.wait(PATIENCE), "a proxy was not seen"

    def until_others(self) -> None:
        """Wait until somebody else was seen."""
        assert self._others.wait(PATIENCE), "nobody else was seen"

    def _look(self) -> None:
        ports = self._broker.ports
        while not self._over.wait(0.1):  # to list the machine's connections takes the kernel milliseconds
            found = connected_to(ports) - self._owners.keys()
            for pid in self._proxies if found else ():  # first, for Pulsar has many files
                self._owners |= dict.fromkeys(found.intersection(open_files(pid)), pid)
            found -= self._owners.keys()
            if found:
                owners = {name: pid for pid in self._broker.pids().values() for name in open_files(pid)}
                stayed = found & connected_to(ports)
                self._owners |= {name: owners.get(name, 0) for name in stayed}
            if self._proxies <= set(self._owners.values()):
                self._seen.set()
            if 0 in self._owners.values():
                self._others.set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if kind is None:
            assert not self._others.is_set(), "others were connected to the broker"
            assert self._seen.is_set(), "a proxy was not seen"
