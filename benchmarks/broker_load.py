"""The load of `broker.py`: a client as fast as Python allows, in a process of its own.

    python benchmarks/broker_load.py PORT    requests on stdin, a line of JSON each: [name, arguments…];
                                             an answer on stdout, a line of JSON each

Frames are built beforehand, and of what the broker sends only as much is read as is needed.
"""

import json
import select
import socket
import statistics
import sys
import time
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Final

from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.entry import Batch, Outgoing, Stamp
from pulsarctl_wire.wire.frame import build_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata

PAYLOAD: Final = bytes(range(100))
PERMITS: Final = 1000
"""Messages that a consumer asks for at once, as clients do by default."""

_RECEIPT: Final = BaseCommand.SEND_RECEIPT
_MESSAGE: Final = BaseCommand.MESSAGE
_CHUNK: Final = 1 << 18


class Client:
    """A connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        self._requests = 0
        self.send("CONNECT", client_version="benchmark", protocol_version=21)
        self.expect("CONNECTED")

    def send(self, name: str, **fields: Any) -> None:
        """Send a command."""
        self.socket.sendall(build_frame(build_command(name, **fields)))

    def frames(self) -> list[tuple[int, bytes]]:
        """The frames that come next: number of the command, and all bytes."""
        data = self.socket.recv(_CHUNK)
        if not data:
            raise ConnectionError("the broker closed the connection")
        if self._rest:
            data = self._rest + data
        at, size = 0, len(data)
        found = []
        while at + 10 <= size:
            stop = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if stop > size:
                break
            if data[at + 9] == BaseCommand.PING:
                self.send("PONG")
            else:
                found.append((data[at + 9], data[at:stop]))
            at = stop
        self._rest = data[at:]
        return found

    def expect(self, name: str) -> Any:
        """Wait for a command, whatever comes before it."""
        number = BaseCommand.Type.Value(name)
        while True:
            for kind, raw in self.frames():
                if kind == number:
                    size = int.from_bytes(raw[4:8], "big")
                    return BaseCommand.FromString(raw[8 : 8 + size])
                if kind in (BaseCommand.ERROR, BaseCommand.SEND_ERROR):
                    raise ConnectionError(raw.decode(errors="replace"))

    def request(self, name: str, answer: str, **fields: Any) -> Any:
        """Send a command, and wait for its answer."""
        self._requests += 1
        self.send(name, request_id=self._requests, **fields)
        return self.expect(answer)

    def producer(self, topic: str) -> None:
        """Have producer 1 of a topic."""
        self.request("LOOKUP", "LOOKUP_RESPONSE", topic=topic)
        self.request("PRODUCER", "PRODUCER_SUCCESS", topic=topic, producer_id=1)

    def consumer(self, topic: str, name: str) -> None:
        """Have consumer 1 of a Shared subscription, from the beginning of the topic."""
        self.request("LOOKUP", "LOOKUP_RESPONSE", topic=topic)
        fields = {"subscription": name, "subType": 1, "consumer_id": 1, "initialPosition": 1}
        self.request("SUBSCRIBE", "SUCCESS", topic=topic, **fields)


def frames_of(entries: int, batch: int) -> list[bytes]:
    """SENDs of so many entries of `batch` messages."""
    found = []
    now = time.time_ns() // 1_000_000
    for number in range(entries):
        sequence = number * batch
        if batch == 1:
            metadata = MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=now)
            command = build_command("SEND", producer_id=1, sequence_id=sequence)
            found.append(build_frame(command, metadata, PAYLOAD))
            continue
        it = Batch()
        for each in range(batch):
            it.add(Outgoing(PAYLOAD), sequence + each)
        metadata, payload = it.entry(Stamp("p"), now)
        command = build_command("SEND", producer_id=1, sequence_id=sequence, num_messages=batch)
        found.append(build_frame(command, metadata, payload))
    return found


def produced(client: Client, frames: list[bytes], window: int) -> float:
    """Seconds until all frames have a receipt, at most `window` of them at a time without one."""
    data = memoryview(b"".join(frames))
    ends = [0, *accumulate(map(len, frames))]
    sent = received = 0
    total = len(frames)
    began = time.perf_counter()
    while received < total:
        until = min(received + window, total)
        if until > sent:
            client.socket.sendall(data[ends[sent] : ends[until]])
            sent = until
        for kind, raw in client.frames():
            if kind != _RECEIPT:
                raise ConnectionError(raw[:200].decode(errors="replace"))
            received += 1
    return time.perf_counter() - began


def produce(port: int, topic: str, entries: int, batch: int, window: int) -> float:
    """Messages in a second."""
    frames = frames_of(entries, batch)
    client = Client(port)
    client.producer(topic)
    return entries * batch / produced(client, frames, window)


def latency(port: int, topic: str, messages: int) -> float:
    """Milliseconds from a SEND to its receipt, one at a time: the median."""
    client = Client(port)
    client.producer(topic)
    times = [produced(client, [frame], 1) for frame in frames_of(messages, 1)]
    return statistics.median(times) * 1e3


def fill(port: int, topics: int, entries: int, batch: int) -> int:
    """Store messages in each of so many topics. Returns how many there are of all."""
    frames = frames_of(entries, batch)
    client = Client(port)
    for number in range(topics):
        client.producer(f"persistent://public/default/full-{number}")
        produced(client, frames, 100)
        client.request("CLOSE_PRODUCER", "SUCCESS", producer_id=1)
    return topics * entries * batch


def _id_at(raw: bytes) -> bytes:
    """The id in a MESSAGE of a consumer with a small id, as a field of ACK."""
    at = raw.index(b"\x12", 12)  # behind the sizes, the type, and the consumer's id
    return b"\x1a" + raw[at + 1 : at + 2 + raw[at + 1]]


def _ack(ids: list[bytes]) -> bytes:
    body = b"\x08\x01\x10\x00" + b"".join(ids)  # consumer 1, individual
    size = b""
    rest = len(body)
    while rest > 127:
        size += bytes((rest & 127 | 128,))
        rest >>= 7
    command = b"\x08\x0a\x52" + size + bytes((rest,)) + body
    return (len(command) + 4).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command


def consume(port: int, topic: str, entries: int, consumers: int) -> float:
    """Messages in a second, of a backlog of entries of one message that the consumers share.

    They acknowledge half a queue at a time, and ask for as much more.
    """
    name = f"s{time.time_ns()}"
    clients = {}
    for _ in range(consumers):
        client = Client(port)
        client.consumer(topic, name)
        clients[client.socket] = client
    flow = build_frame(build_command("FLOW", consumer_id=1, messagePermits=PERMITS // 2))
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
                if kind == _MESSAGE:
                    ids.append(_id_at(raw))
                    left -= 1
            while len(ids) >= PERMITS // 2:
                client.socket.sendall(_ack(ids[: PERMITS // 2]) + flow)
                del ids[: PERMITS // 2]
    took = time.perf_counter() - began
    for client in clients.values():
        client.socket.close()
    return entries / took


WORK: Final[dict[str, Callable[..., object]]] = {
    each.__name__: each for each in (produce, latency, fill, consume)
}


def main() -> None:
    """Do what stdin asks for."""
    port = int(sys.argv[1])
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(WORK[name](port, *arguments)), flush=True)


if __name__ == "__main__":
    main()
