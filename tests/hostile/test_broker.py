"""Whatever clients send, `pwire broker` takes less than 400 MiB, and serves others."""

from __future__ import annotations

import json
import random
import re
import resource
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.request import urlopen

import pytest
from broker.raw import PATIENCE, RawClient
from broker.test_cli_broker import Started
from limited import MEMORY
from proxied import LINUX

from pulsarctl_wire.conformance.basics.frames import make_frame, make_send
from pulsarctl_wire.wire.frame import build_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata

TOPIC: Final = "persistent://public/default/t"
OTHER: Final = "persistent://public/default/other"
LARGEST: Final = (1 << 64) - 1
CONNECT: Final = make_frame("CONNECT", client_version="hostile", protocol_version=21)


@pytest.fixture
def broker() -> Iterator[Started]:
    with Started("--memory") as started:
        yield started


def opened(broker: Started) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(broker.url.rpartition(":")[2])), PATIENCE)


def mib(broker: Started) -> float:
    """The most memory that was resident."""
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{broker.said['pid']}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def check(broker: Started) -> None:
    """It serves a new client, has said nothing of bugs, and is not large."""
    with RawClient(broker.url) as client:
        assert len(client.produce(OTHER, b"a", b"b")) == 2
        client.request("CLOSE_PRODUCER", "SUCCESS", producer_id=1)
        client.subscribe(OTHER, 10)
        assert client.message() == b"a"
    said = [line for line in broker.err.lines if "broker at" not in line and "ready" not in line]
    assert not said
    if LINUX:
        assert mib(broker) < MEMORY


def poured(broker: Started, *pieces: bytes) -> None:
    """Send bytes on a new connection, until it is closed or all have gone; what comes back is dropped."""
    with opened(broker) as client:

        def drop() -> None:
            with suppress(OSError):
                while client.recv(1 << 16):
                    pass

        thread = threading.Thread(target=drop, daemon=True)
        thread.start()
        with suppress(OSError):
            for piece in pieces:
                client.sendall(piece)
            client.shutdown(socket.SHUT_WR)
        thread.join(PATIENCE)
        assert not thread.is_alive()


# -- bytes


def test_random_bytes(broker: Started) -> None:
    chance = random.Random(1)
    for number in range(100):
        head = CONNECT if number % 2 else b""
        poured(broker, head + chance.randbytes(chance.choice([1, 8, 100, 100_000])))
    check(broker)


SIZES: Final = [
    (0, 0),
    (1 << 31, 4),
    ((1 << 32) - 1, (1 << 32) - 1),
    (5 << 20, 1 << 30),
    (5_250_000, 5_249_996),
    (100, 96),
    (4, 0),
]


@pytest.mark.parametrize(("total", "size"), SIZES)
def test_giant_sizes(broker: Started, total: int, size: int) -> None:
    head = struct.pack(">II", total, size)
    for start in (b"", CONNECT):
        poured(broker, start + head, bytes(6 << 20))
        poured(broker, start + head, b"\x08\x06" * (3 << 20))
    check(broker)


def test_mutated_frames(broker: Started) -> None:
    chance = random.Random(2)
    usual = [
        make_frame("LOOKUP", topic=TOPIC, request_id=1),
        make_frame("PRODUCER", topic=TOPIC, producer_id=1, request_id=2),
        make_send(0, b"payload"),
        make_frame("SUBSCRIBE", topic=TOPIC, subscription="s", subType=1, consumer_id=1, request_id=3),
        make_frame("FLOW", consumer_id=1, messagePermits=1000),
        make_frame("ACK", consumer_id=1, ack_type=0, message_id=[{"ledgerId": 1, "entryId": 0}]),
        make_frame("SEEK", consumer_id=1, request_id=4, message_publish_time=1),
    ]
    for _ in range(300):
        frames = [bytearray(each) for each in usual]
        it = chance.choice(frames)
        it[chance.randrange(8, len(it))] ^= 1 << chance.randrange(8)
        poured(broker, CONNECT, *map(bytes, frames))
    check(broker)


def test_connections_that_stay_half_open(broker: Started) -> None:
    with ExitStack() as stack:
        for number in range(300):
            client = stack.enter_context(opened(broker))
            client.sendall([b"", CONNECT[:7], CONNECT, CONNECT + b"\x00\x50\x00\x00\x00"][number % 4])
        check(broker)
    check(broker)


# -- floods


def repeated(make: Callable[[int], bytes], number: int, chunk: int = 500) -> Iterator[bytes]:
    for start in range(0, number, chunk):
        yield b"".join(make(each) for each in range(start, min(start + chunk, number)))


class Flood(NamedTuple):
    """Frames by number, how many; `opens`: what the client has before; `lasts`: whether it is served on."""

    make: Callable[[int], bytes]
    number: int
    opens: str = ""
    lasts: bool = True


def opening(client: RawClient, what: str) -> None:
    """Have producer 1 with ten messages, and consumer 1 that got them."""
    if "p" in what:
        client.produce(TOPIC, *[b"x"] * 10)
    if what:
        client.lookup(TOPIC)
    if "c" in what:
        fields = {"subscription": "s", "subType": 1, "initialPosition": 1, "consumer_id": 1}
        client.request("SUBSCRIBE", "SUCCESS", topic=TOPIC, **fields)
        client.send("FLOW", consumer_id=1, messagePermits=1000)
        for _ in range(10):
            client.message()


def survives(broker: Started, flood: Flood) -> bool:
    """Whether a connection is served after it."""
    with RawClient(broker.url) as client:
        opening(client, flood.opens)
        answered = []

        def listen() -> None:
            while (found := client.received()) is not None:
                if found.command == "LOOKUP_RESPONSE" and found.body.request_id == LARGEST:
                    answered.append(found)
                    return

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        with suppress(OSError):
            for piece in repeated(flood.make, flood.number):
                client.socket.sendall(piece)
            client.send("LOOKUP", topic=OTHER, request_id=LARGEST)
        thread.join(2 * PATIENCE)
        assert not thread.is_alive()
        return bool(answered)


LOOKUP: Final = make_frame("LOOKUP", topic=TOPIC, request_id=1)
PRODUCER: Final = make_frame("PRODUCER", topic=TOPIC, producer_id=1, request_id=2)


def subscribe(consumer: int, name: str, **fields: Any) -> bytes:
    given = {"subType": 1, "initialPosition": 1, **fields}
    return make_frame(
        "SUBSCRIBE", topic=TOPIC, subscription=name, consumer_id=consumer, request_id=3, **given
    )


CONSUMER: Final = subscribe(1, "s")
MANY_IDS: Final = [{"ledgerId": 0, "entryId": each} for each in range(100_000)]
HUGE_IDS: Final[list[dict[str, Any]]] = [
    {"ledgerId": LARGEST, "entryId": LARGEST},
    {"ledgerId": 0, "entryId": 0, "ack_set": [-1] * 100_000, "batch_size": (1 << 31) - 1},
    {"ledgerId": 0, "entryId": 0, "batch_size": (1 << 31) - 1, "ack_set": [1]},
    {"ledgerId": 0, "entryId": 1, "partition": -(1 << 31), "batch_index": (1 << 31) - 1},
]


def acks(ids: list[dict[str, Any]], kind: int = 0) -> bytes:
    return make_frame("ACK", consumer_id=1, ack_type=kind, message_id=ids, request_id=9)


def topic(number: int) -> bytes:
    name = f"{TOPIC}-{number}"
    return make_frame("LOOKUP", topic=name, request_id=1) + make_frame(
        "PRODUCER", topic=name, producer_id=number, request_id=2
    )


def described(count: int, size: int) -> bytes:
    """A SEND whose metadata has many properties."""
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    for each in range(count):
        metadata.properties.add(key=str(each), value="x" * size)
    metadata.num_messages_in_batch = (1 << 31) - 1
    command = BaseCommand(type=BaseCommand.SEND)
    command.send.producer_id, command.send.sequence_id = 1, 0
    return build_frame(command, metadata, b"x")


OF_PAIRS: Final = [{"key": str(each), "value": "x" * 40} for each in range(20_000)]
FLOODS: Final = {
    "PING": Flood(lambda each: make_frame("PING"), 50_000),
    "producers": Flood(
        lambda each: make_frame("PRODUCER", topic=TOPIC, producer_id=each, request_id=each), 20_000, "l"
    ),
    "a producer again": Flood(lambda each: PRODUCER, 20_000, "l"),
    "topics": Flood(topic, 3_000),
    "lookups": Flood(lambda each: make_frame("LOOKUP", topic=f"{TOPIC}-{each}", request_id=each), 20_000),
    "subscriptions": Flood(lambda each: subscribe(each, f"s{each}"), 3_000, "l"),
    "consumers": Flood(lambda each: subscribe(each, "s"), 1_000, "l"),
    "failover consumers": Flood(lambda each: subscribe(each, "s", subType=2), 2_000, "l"),
    "key-shared consumers": Flood(lambda each: subscribe(each, "s", subType=3), 300, "l"),
    "FLOW": Flood(
        lambda each: make_frame("FLOW", consumer_id=1, messagePermits=(1 << 31) - 1), 100_000, "pc"
    ),
    "FLOW of none": Flood(
        lambda each: make_frame("FLOW", consumer_id=1, messagePermits=0), 10, "pc", lasts=False
    ),
    "ACK": Flood(lambda each: acks([{"ledgerId": each, "entryId": each}]), 50_000, "pc"),
    "ACK of many": Flood(lambda each: acks(MANY_IDS), 3, "pc"),
    "ACK of huge ids": Flood(lambda each: acks(HUGE_IDS), 5, "pc"),
    "cumulative ACK of huge ids": Flood(lambda each: acks(HUGE_IDS[each % 4 :][:1], 1), 40, "pc"),
    "redeliver": Flood(
        lambda each: make_frame("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1, message_ids=MANY_IDS),
        3,
        "pc",
    ),
    "SEEK": Flood(
        lambda each: make_frame(
            "SEEK", consumer_id=1, request_id=each, message_id={"ledgerId": LARGEST, "entryId": LARGEST}
        ),
        2_000,
        "pc",
    ),
    "large metadata": Flood(lambda each: described(50_000, 40), 10, "pc"),
    "metadata of a producer": Flood(
        lambda each: make_frame("PRODUCER", topic=TOPIC, producer_id=each, request_id=1, metadata=OF_PAIRS),
        20,
        "l",
    ),
    "metadata of a consumer": Flood(lambda each: subscribe(each, "s", metadata=OF_PAIRS), 20, "l"),
    "properties of a subscription": Flood(
        lambda each: subscribe(each, f"s{each}", subscription_properties=OF_PAIRS), 20, "l"
    ),
    "long names": Flood(
        lambda each: make_frame("LOOKUP", topic=TOPIC + "x" * 1_000_000 + str(each), request_id=1), 20
    ),
    "watchers": Flood(
        lambda each: make_frame(
            "WATCH_TOPIC_LIST", request_id=1, watcher_id=each, namespace="public/default", topics_pattern=".*"
        ),
        5_000,
    ),
    "transactions": Flood(lambda each: make_frame("NEW_TXN", request_id=each, tc_id=0), 5_000),
}


@pytest.mark.parametrize("name", FLOODS)
def test_floods(broker: Started, name: str) -> None:
    assert survives(broker, FLOODS[name]) is FLOODS[name].lasts
    check(broker)


# -- readers that do not read


def test_a_consumer_that_never_reads(broker: Started) -> None:
    with opened(broker) as lazy, RawClient(broker.url) as busy:
        lazy.sendall(CONNECT + LOOKUP + CONSUMER)
        lazy.sendall(make_frame("FLOW", consumer_id=1, messagePermits=1 << 30))
        busy.lookup(TOPIC)
        busy.request("PRODUCER", "PRODUCER_SUCCESS", topic=TOPIC, producer_id=1)
        for start in range(0, 100, 10):
            busy.socket.sendall(
                b"".join(make_send(each, bytes(1 << 20)) for each in range(start, start + 10))
            )
            for _ in range(10):
                busy.expect("SEND_RECEIPT")
        with RawClient(broker.url) as client:
            client.produce(OTHER, b"x")


@pytest.mark.slow
def test_answers_that_nobody_reads(broker: Started) -> None:
    with opened(broker) as client:
        client.sendall(CONNECT)
        client.settimeout(3)
        with suppress(TimeoutError):  # it stops reading
            for _ in range(4_000):
                client.sendall(make_frame("PING") * 10_000)
        check(broker)


# -- patterns

BOMBS: Final = [
    "(a+)+$",
    "(a|a)*b",
    "(.*)*(.*)*(.*)*x",
    "(?=(a+)+b).*",
    "((((a{999}){999}){999}){999}){999}",
    "(" * 49,
]


@pytest.mark.parametrize("pattern", BOMBS)
def test_patterns(broker: Started, pattern: str) -> None:
    with RawClient(broker.url) as client:
        for number, size in enumerate((30, 200, 2_000)):
            name = f"persistent://public/default/{'a' * size}"
            client.request("LOOKUP", "LOOKUP_RESPONSE", topic=name)
            client.request("PRODUCER", "PRODUCER_SUCCESS", topic=name, producer_id=number)
        fields = {"request_id": 5, "namespace": "public/default"}
        client.send("GET_TOPICS_OF_NAMESPACE", topics_pattern=pattern, **fields)
        assert client.received() is not None
        client.send("WATCH_TOPIC_LIST", topics_pattern=pattern, watcher_id=1, **fields)
        assert client.received() is not None
    check(broker)


# -- disks


def test_what_cannot_be_stored_is_not_confirmed_and_stored_later(tmp_path: Path) -> None:
    if not LINUX:
        pytest.skip("limits of another process")
    unlimited = resource.RLIM_INFINITY, resource.RLIM_INFINITY
    with Started("--data", tmp_path) as started, RawClient(started.url) as client:
        client.produce(TOPIC, b"a")
        pid = started.said["pid"]
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        client.socket.sendall(make_send(1, b"b"))
        assert started.err.line("cannot store, so nothing is confirmed")
        client.request("LOOKUP", "LOOKUP_RESPONSE", topic=TOPIC)  # there is no receipt before it
        client.socket.sendall(make_send(2, b"c"))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
        assert [client.expect("SEND_RECEIPT").message_id.entryId for _ in range(2)] == [1, 2]
        assert started.stop() == 0
    with Started("--data", tmp_path) as started, RawClient(started.url) as client:
        client.subscribe(TOPIC, 10)
        assert [client.message() for _ in range(3)] == [b"a", b"b", b"c"]


def test_it_ends_though_it_cannot_store(tmp_path: Path) -> None:
    if not LINUX:
        pytest.skip("limits of another process")
    with Started("--data", tmp_path) as started, RawClient(started.url) as client:
        client.produce(TOPIC, b"a")
        resource.prlimit(started.said["pid"], resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        client.socket.sendall(make_send(1, b"b"))
        assert started.err.line("cannot store, so nothing is confirmed")
        assert started.stop() == 0
    with Started("--data", tmp_path) as started, RawClient(started.url) as client:
        client.subscribe(TOPIC, 10)
        assert client.message() == b"a"


def test_what_cannot_be_read_is_not_skipped(tmp_path: Path) -> None:
    with Started("--data", tmp_path) as started, RawClient(started.url) as client:
        client.produce(TOPIC, *[b"%d" % each * 1_500 for each in range(10, 30)])
        client.subscribe(TOPIC)
        assert started.stop() == 0
    path = tmp_path / "broker.db"
    data = path.read_bytes()
    page = data.index(b"20" * 1_000) // 4_096 * 4_096
    path.write_bytes(data[:page] + b"\xff" * 4_096 + data[page + 4_096 :])
    with Started("--data", tmp_path) as started, RawClient(started.url) as client:
        client.subscribe(TOPIC, 10)
        assert started.err.line("cannot read, so nothing is delivered")
        with urlopen(f"{started.said['http_url']}/admin/v2/persistent/public/default/t/stats") as answer:
            assert json.load(answer)["subscriptions"]["s"]["msgBacklog"] == 20
