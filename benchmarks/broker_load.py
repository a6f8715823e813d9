"""Loads for brokers: a client as fast as Python allows.

Frames are built beforehand, and of what the broker sends only as much is read as is needed.
"""

import select
import socket
import statistics
import time
from itertools import accumulate
from typing import Any, Final

from benchmarks.harness import HOST
from benchmarks.traffic import build, build_send
from pulsarctl_wire.wire.frame import build_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, CommandAck

PAYLOAD: Final = bytes(range(100))
PERMITS: Final = 1000
"""Messages that a consumer asks for at once, as clients do by default."""

_CHUNK: Final = 1 << 18


class Client:
    """A connection; raises OSError, also for an error of the broker. `timeout` (seconds) is for each step."""

    def __init__(self, port: int, timeout: float | None = None) -> None:
        self.socket = socket.create_connection((HOST, port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        self._requests = 0
        self.socket.sendall(build("CONNECT", client_version="benchmark", protocol_version=21))
        self.expect("CONNECTED")

    def frames(self) -> list[tuple[int, bytes]]:
        """Receive the frames that come next: number of the command, and all bytes."""
        data = self.socket.recv(_CHUNK)
        if not data:
            raise ConnectionError("the broker closed the connection")
        if self._rest:
            data = self._rest + data
        at, size = 0, len(data)
        frames = []
        while at + 10 <= size:
            stop = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if stop > size:
                break
            if data[at + 9] == BaseCommand.PING:
                self.socket.sendall(build("PONG"))
            else:
                frames.append((data[at + 9], data[at:stop]))
            at = stop
        self._rest = data[at:]
        return frames

    def expect(self, name: str) -> None:
        """Wait for a command, whatever comes before it."""
        number = BaseCommand.Type.Value(name)
        while True:
            for kind, raw in self.frames():
                if kind == number:
                    return
                if kind in (BaseCommand.ERROR, BaseCommand.SEND_ERROR):
                    raise ConnectionError(raw.decode(errors="replace"))

    def request(self, name: str, answer: str, **fields: Any) -> None:
        """Send a command, and wait for its answer."""
        self._requests += 1
        self.socket.sendall(build(name, request_id=self._requests, **fields))
        self.expect(answer)

    def open_producer(self, topic: str) -> None:
        """Open producer 1 of a topic."""
        self.request("LOOKUP", "LOOKUP_RESPONSE", topic=topic)
        self.request("PRODUCER", "PRODUCER_SUCCESS", topic=topic, producer_id=1)

    def open_consumer(self, topic: str, name: str) -> None:
        """Open consumer 1 of a Shared subscription, from the beginning of the topic."""
        self.request("LOOKUP", "LOOKUP_RESPONSE", topic=topic)
        fields = {"subscription": name, "subType": 1, "consumer_id": 1, "initialPosition": 1}
        self.request("SUBSCRIBE", "SUCCESS", topic=topic, **fields)

    def send(self, frames: list[bytes], window: int) -> float:
        """Send, with at most `window` frames without a receipt; returns seconds until the last receipt."""
        data = memoryview(b"".join(frames))
        ends = [0, *accumulate(map(len, frames))]
        sent = received = 0
        total = len(frames)
        began = time.perf_counter()
        while received < total:
            until = min(received + window, total)
            if until > sent:
                self.socket.sendall(data[ends[sent] : ends[until]])
                sent = until
            for kind, raw in self.frames():
                if kind != BaseCommand.SEND_RECEIPT:
                    raise ConnectionError(raw[:200].decode(errors="replace"))
                received += 1
        return time.perf_counter() - began


def build_sends(entries: int, batch: int) -> list[bytes]:
    """Return SENDs of so many entries of `batch` messages."""
    return [build_send([PAYLOAD] * batch, number * batch) for number in range(entries)]


def produce(port: int, topic: str, entries: int, batch: int, window: int) -> float:
    """Publish entries; returns messages in a second."""
    frames = build_sends(entries, batch)
    client = Client(port)
    client.open_producer(topic)
    return entries * batch / client.send(frames, window)


def measure_latency(port: int, topic: str, messages: int) -> float:
    """Publish one message at a time; returns the median of milliseconds until its receipt."""
    client = Client(port)
    client.open_producer(topic)
    return statistics.median(client.send([frame], 1) for frame in build_sends(messages, 1)) * 1e3


def fill(port: int, topics: int, entries: int, batch: int) -> int:
    """Publish entries to each of so many topics; returns the number of messages."""
    frames = build_sends(entries, batch)
    client = Client(port)
    for number in range(topics):
        client.open_producer(f"persistent://public/default/full-{number}")
        client.send(frames, 100)
        client.request("CLOSE_PRODUCER", "SUCCESS", producer_id=1)
    return topics * entries * batch


def _id_at(raw: bytes) -> bytes:
    """Return the id in a MESSAGE of a consumer with a small id, as a field of ACK."""
    at = raw.index(b"\x12", 12)  # behind the sizes, the type, and the consumer's id
    return b"\x1a" + raw[at + 1 : at + 2 + raw[at + 1]]


def _ack(ids: list[bytes]) -> bytes:
    ack = CommandAck(consumer_id=1, ack_type=CommandAck.Individual)
    ack.MergeFromString(b"".join(ids))
    return build_frame(BaseCommand(type=BaseCommand.ACK, ack=ack))


def consume(port: int, topic: str, entries: int, consumers: int) -> float:
    """Consume a backlog of entries of one message, which consumers share; returns messages in a second.

    They acknowledge half a queue at a time, and ask for as much more.
    """
    name = f"s{time.time_ns()}"
    clients = {}
    for _ in range(consumers):
        client = Client(port)
        client.open_consumer(topic, name)
        clients[client.socket] = client
    flow = build("FLOW", consumer_id=1, messagePermits=PERMITS // 2)
    waiting: dict[Client, list[bytes]] = {client: [] for client in clients.values()}
    left = entries
    began = time.perf_counter()
    for client in clients.values():
        client.socket.sendall(flow + flow)
    while left > 0:
        for sock in select.select(list(clients), [], [])[0]:
            client = clients[sock]
            ids = waiting[client]
            for kind, raw in client.frames():
                if kind == BaseCommand.MESSAGE:
                    ids.append(_id_at(raw))
                    left -= 1
            while len(ids) >= PERMITS // 2:
                client.socket.sendall(_ack(ids[: PERMITS // 2]) + flow)
                del ids[: PERMITS // 2]
    seconds = time.perf_counter() - began
    for client in clients.values():
        client.socket.close()
    return entries / seconds
