"""Records what clients do against the protocol, and near misses of that, with a real broker:

    python tests/checks/record_mistakes.py pulsar://localhost:6650 [NAME…]

A bare client makes each mistake of `SCENARIOS` through `pwire proxy --record`. The captures and expected.json
in mistakes/ are what test_mistakes.py judges. Scenarios that begin with "near" break no rule.
"""

from __future__ import annotations

import gzip
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.frame import Connection, Frame, build_frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata

FOLDER: Final = Path(__file__).parent / "mistakes"
WITHIN: Final = 10.0
"""Seconds within which an answer must come."""


class Bare:
    """A connection of a client that sends what it is told to."""

    def __init__(self, url: str, *, connects: bool = True, **fields: Any) -> None:
        split = urlsplit(url)
        self.socket = socket.create_connection((split.hostname or "", split.port or 0), WITHIN)
        self._stream = FrameStream(Connection(0), False)
        self._frames: list[Frame] = []
        if connects:
            self.connect(**fields)

    def connect(self, **fields: Any) -> None:
        """CONNECT -> CONNECTED."""
        fields = {"client_version": "Pulsar-Java-v4.0.8", "protocol_version": 21, **fields}
        self.command("CONNECT", **fields)
        self.expect("CONNECTED")

    def command(self, name: str, **fields: Any) -> None:
        """Send a command."""
        self.socket.sendall(build_frame(build_command(name, **fields)))

    def ask(self, name: str, answer: str, **fields: Any) -> Any:
        """Send a request; return the body of its answer."""
        self.command(name, **fields)
        return self.expect(answer)

    def expect(self, name: str) -> Any:
        """Return the body of the next frame of this command; others are skipped."""
        while True:
            while self._frames:
                frame = self._frames.pop(0)
                if frame.command == "PING":
                    self.command("PONG")
                elif frame.command == name:
                    return frame.body
            self._read()

    def _read(self) -> None:
        data = self.socket.recv(65_536)
        assert data, "the broker closed the connection"
        self._frames += [event for event in self._stream.feed(data, 0) if isinstance(event, Frame)]

    def wait_for_the_end(self) -> None:
        """Read until the broker closes the connection."""
        while self.socket.recv(65_536):
            pass

    def look_up(self, topic: str, request: int = 100) -> None:
        """LOOKUP, as before each PRODUCER and SUBSCRIBE."""
        self.ask("LOOKUP", "LOOKUP_RESPONSE", topic=topic, request_id=request)

    def produce(self, topic: str, producer: int = 0, request: int = 10, **fields: Any) -> None:
        """Open a producer."""
        self.look_up(topic, request + 1000)
        fields = {"topic": topic, "producer_id": producer, "request_id": request, **fields}
        self.ask("PRODUCER", "PRODUCER_SUCCESS", **fields)

    def send(self, sequence: int, payload: bytes = b"", producer: int = 0, **fields: Any) -> bytes:
        """Send a message, wait for its receipt, and return its frame; fields meta_* are of its metadata."""
        meta = {key[5:]: fields.pop(key) for key in list(fields) if key.startswith("meta_")}
        waits = fields.pop("waits", True)
        stated = {"producer_name": "p", "sequence_id": sequence, "publish_time": time.time_ns() // 1_000_000}
        command = build_command("SEND", **{"producer_id": producer, "sequence_id": sequence, **fields})
        frame = build_frame(command, MessageMetadata(**{**stated, **meta}), payload or b"m%d" % sequence)
        self.socket.sendall(frame)
        if waits:
            self.expect("SEND_RECEIPT")
        return frame

    def subscribe(
        self, topic: str, kind: int = 0, consumer: int = 1, request: int = 20, permits: int = 100
    ) -> None:
        """Open a consumer from the beginning of the topic, and grant permits."""
        self.look_up(topic, request + 1000)
        fields = {"topic": topic, "subscription": "s", "subType": kind, "consumer_id": consumer}
        self.ask("SUBSCRIBE", "SUCCESS", **fields, request_id=request, initialPosition=1)
        if permits:
            self.command("FLOW", consumer_id=consumer, messagePermits=permits)

    def receive(self) -> Any:
        """Return the id of the next MESSAGE."""
        return self.expect("MESSAGE").message_id

    def acknowledge(self, *ids: Any, consumer: int = 1, kind: int = 0, ack_set: tuple[int, ...] = ()) -> None:
        """Send ACK, and wait until the broker has read it."""
        names = [{"ledgerId": each.ledgerId, "entryId": each.entryId, "ack_set": ack_set} for each in ids]
        self.command("ACK", consumer_id=consumer, ack_type=kind, message_id=names)
        self.ask("PING", "PONG")

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()


def batch(count: int) -> bytes:
    """The payload of a batch."""
    single = SingleMessageMetadata(payload_size=2).SerializeToString()
    return (len(single).to_bytes(4, "big") + single + b"ab") * count


# -- mistakes


def producer_id_twice(url: str, topic: str) -> None:
    client = Bare(url)
    client.produce(topic, producer_name="p")
    client.send(0)
    client.produce(f"{topic}-other", request=11, producer_name="p")
    client.send(1)
    client.close()


def connect_twice(url: str, topic: str) -> None:
    client = Bare(url)
    client.command("CONNECT", client_version="Pulsar-Java-v4.0.8", protocol_version=21)
    client.wait_for_the_end()


def redeliver_ids_on_exclusive(url: str, topic: str) -> None:
    client = Bare(url)
    client.produce(topic, producer_name="p")
    for number in range(3):
        client.send(number)
    client.subscribe(topic)
    ids = [client.receive() for _ in range(3)]
    names = [{"ledgerId": each.ledgerId, "entryId": each.entryId} for each in ids[1:2]]
    client.command("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1, message_ids=names)
    for message_id in [client.receive() for _ in range(3)]:
        client.acknowledge(message_id)
    client.close()


def flow_of_zero(url: str, topic: str) -> None:
    client = Bare(url)
    client.subscribe(topic, permits=0)
    client.command("FLOW", consumer_id=1, messagePermits=0)
    client.wait_for_the_end()


def range_upside_down(url: str, topic: str) -> None:
    client = Bare(url)
    client.produce(topic, producer_name="p")
    client.send(10, highest_sequence_id=5)
    client.close()


def sequence_goes_back(url: str, topic: str) -> None:
    client = Bare(url)
    client.produce(topic, producer_name="p")
    for number in (0, 1, 3, 2):
        client.send(number)
    client.close()


def sequence_twice(url: str, topic: str) -> None:
    client = Bare(url)
    client.produce(topic, producer_name="p")
    client.send(0, b"one")
    client.send(0, b"another")
    client.close()


def other_name(url: str, topic: str) -> None:
    client = Bare(url)
    client.produce(topic, producer_name="p")
    client.send(0, meta_producer_name="q")
    client.close()


def chunks_say_less(url: str, topic: str) -> None:
    client = Bare(url)
    client.produce(topic, producer_name="p")
    for number in range(3):
        chunk: dict[str, Any] = {"meta_uuid": "p-0", "meta_chunk_id": number, "meta_num_chunks_from_msg": 3}
        client.send(0, b"x" * 100, is_chunk=True, **chunk, meta_total_chunk_msg_size=250)
    client.close()


def producer_each(url: str, topic: str, count: int = 12) -> None:
    client = Bare(url)
    for number in range(count):
        client.produce(topic, request=10 + number, producer_name="p")
        client.send(number)
        client.ask("CLOSE_PRODUCER", "SUCCESS", producer_id=0, request_id=500 + number)
    client.close()


def send_while_queued(url: str, topic: str) -> None:
    holder, client = Bare(url), Bare(url)
    holder.produce(topic, producer_name="p", producer_access_mode=1)
    client.produce(topic, producer_name="q", producer_access_mode=2)
    client.send(0, meta_producer_name="q", waits=False)
    client.wait_for_the_end()
    holder.close()


def ack_of_the_future(url: str, topic: str) -> None:
    client = Bare(url)
    client.produce(topic, producer_name="p")
    client.send(0)
    client.subscribe(topic)
    message_id = client.receive()
    client.acknowledge(message_id)
    message_id.entryId += 7
    client.acknowledge(message_id)
    client.close()


def ack_of_a_stranger(url: str, topic: str) -> None:
    client = Bare(url)
    client.produce(topic, producer_name="p")
    client.send(0)
    client.subscribe(topic)
    message_id = client.receive()
    client.acknowledge(message_id, consumer=9)
    client.close()


def refused_again_and_again(url: str, topic: str) -> None:
    holder, client = Bare(url), Bare(url)
    holder.produce(topic, producer_name="p", producer_access_mode=1)
    client.look_up(topic)
    for number in range(5):
        fields = {"topic": topic, "producer_id": number, "producer_name": f"other-{number}"}
        client.ask("PRODUCER", "ERROR", request_id=10 + number, **fields)
    client.close()
    holder.close()


def seek_of_a_stranger(url: str, topic: str) -> None:
    client = Bare(url)
    client.subscribe(topic)
    client.ask("SEEK", "ERROR", consumer_id=7, request_id=30, message_publish_time=0)
    client.close()


def chunk_without_uuid(url: str, topic: str) -> None:
    client = Bare(url)
    client.produce(topic, producer_name="p")
    for number in range(2):
        chunk: dict[str, Any] = {"meta_chunk_id": number, "meta_num_chunks_from_msg": 2}
        client.send(0, b"x" * 100, is_chunk=True, **chunk, meta_total_chunk_msg_size=200)
    client.close()


def not_looked_up(url: str, topic: str) -> None:
    client = Bare(url)
    unknown = topic.replace("public/default", "public/unknown")
    client.ask("PRODUCER", "ERROR", topic=unknown, producer_id=0, request_id=10, producer_name="p")
    client.close()


def name_not_kept(url: str, topic: str) -> None:
    for epoch in (0, 1):
        client = Bare(url)
        client.look_up(topic)
        fields = {"topic": topic, "producer_id": 0, "request_id": 10, "epoch": epoch}
        body = client.ask("PRODUCER", "PRODUCER_SUCCESS", **fields)
        client.send(epoch, meta_producer_name=body.producer_name)
        client.close()


def flow_for_each(url: str, topic: str, count: int = 60) -> None:
    client = Bare(url)
    client.produce(topic, producer_name="p")
    for number in range(count):
        client.send(number)
    client.subscribe(topic, permits=30)
    for _ in range(count):
        client.receive()
        client.command("FLOW", consumer_id=1, messagePermits=1)
    client.close()


# -- near misses


def near_name_kept(url: str, topic: str) -> None:
    name = None
    for epoch in (0, 1):
        client = Bare(url)
        client.look_up(topic)
        fields = {"topic": topic, "producer_id": 0, "request_id": 10, "epoch": epoch}
        name = client.ask("PRODUCER", "PRODUCER_SUCCESS", **fields, producer_name=name).producer_name
        client.send(epoch, meta_producer_name=name)
        client.close()


def near_flow_for_some(url: str, topic: str) -> None:
    flow_for_each(url, topic, 40)


def near_id_free_again(url: str, topic: str) -> None:
    client = Bare(url)
    for request in (10, 11):
        client.produce(topic, request=request, producer_name="p")
        client.send(request)
        client.ask("CLOSE_PRODUCER", "SUCCESS", producer_id=0, request_id=50 + request)
    client.close()


def near_send_at_once(url: str, topic: str) -> None:
    client = Bare(url)
    client.look_up(topic)
    client.command("PRODUCER", topic=topic, producer_id=0, request_id=10, producer_name="p")
    client.send(0)
    client.close()


def near_ping_first(url: str, topic: str) -> None:
    client = Bare(url, connects=False)
    client.ask("PING", "PONG")
    client.connect()
    client.look_up(topic)
    client.close()


def near_redeliver_on_shared(url: str, topic: str) -> None:
    client = Bare(url)
    client.produce(topic, producer_name="p")
    client.send(0)
    client.subscribe(topic, kind=1)
    message_id = client.receive()
    names = [{"ledgerId": message_id.ledgerId, "entryId": message_id.entryId}]
    client.command("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1, message_ids=names)
    client.acknowledge(client.receive())
    client.close()


def near_redeliver_all_on_exclusive(url: str, topic: str) -> None:
    client = Bare(url)
    client.produce(topic, producer_name="p")
    client.send(0)
    client.subscribe(topic)
    client.receive()
    client.command("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1)
    client.acknowledge(client.receive())
    client.close()


def near_flow_of_one(url: str, topic: str) -> None:
    client = Bare(url)
    client.subscribe(topic, permits=1)
    client.ask("PING", "PONG")
    client.close()


def near_range_of_one(url: str, topic: str) -> None:
    client = Bare(url)
    client.produce(topic, producer_name="p")
    client.send(10, highest_sequence_id=10)
    client.close()


def copies(url: str, topic: str) -> None:
    client = Bare(url)
    client.produce(topic, producer_name="p")
    frames = [client.send(number) for number in range(3)]
    for frame in frames[1:]:
        client.socket.sendall(frame)
        client.expect("SEND_RECEIPT")
    client.close()


def near_given_name(url: str, topic: str) -> None:
    client = Bare(url)
    client.look_up(topic)
    body = client.ask("PRODUCER", "PRODUCER_SUCCESS", topic=topic, producer_id=0, request_id=10)
    client.send(0, meta_producer_name=body.producer_name)
    client.close()


def near_chunks(url: str, topic: str) -> None:
    client = Bare(url)
    client.produce(topic, producer_name="p")
    for number in range(3):
        chunk: dict[str, Any] = {"meta_uuid": "p-0", "meta_chunk_id": number, "meta_num_chunks_from_msg": 3}
        client.send(0, b"x" * (100 - number), is_chunk=True, **chunk, meta_total_chunk_msg_size=297)
    client.close()


def near_few_producers(url: str, topic: str) -> None:
    producer_each(url, topic, 5)


def near_two_counters(url: str, topic: str) -> None:
    client = Bare(url, client_version="Pulsar-CPP-v4.2.0")
    client.look_up(topic, 1)
    client.command("LOOKUP", topic=f"{topic}-other", request_id=2)
    client.ask("PRODUCER", "PRODUCER_SUCCESS", topic=topic, producer_id=0, request_id=2, producer_name="p")
    client.send(0)
    client.close()


def near_batches(url: str, topic: str) -> None:
    client = Bare(url)
    client.produce(topic, producer_name="p")
    client.send(0, batch(3), num_messages=3, meta_num_messages_in_batch=3)
    client.send(3, batch(1), num_messages=1, meta_num_messages_in_batch=1)
    client.subscribe(topic)
    client.acknowledge(*[client.receive() for _ in range(2)])
    client.close()


def near_batch_by_index(url: str, topic: str) -> None:
    client = Bare(url)
    client.produce(topic, producer_name="p")
    client.send(0, batch(3), num_messages=3, meta_num_messages_in_batch=3)
    client.subscribe(topic, kind=1)
    message_id = client.receive()
    for words in ((6,), (4,), ()):
        client.acknowledge(message_id, ack_set=words)
    client.close()


def near_acked_after_unsubscribe(url: str, topic: str) -> None:
    client = Bare(url)
    client.produce(topic, producer_name="p")
    client.send(0)
    client.subscribe(topic)
    message_id = client.receive()
    client.ask("UNSUBSCRIBE", "SUCCESS", consumer_id=1, request_id=30)
    client.acknowledge(message_id)
    client.close()


def near_acked_after_seek(url: str, topic: str) -> None:
    client = Bare(url)
    client.produce(topic, producer_name="p")
    client.send(0)
    client.subscribe(topic)
    message_id = client.receive()
    names = {"ledgerId": message_id.ledgerId, "entryId": message_id.entryId}
    client.ask("SEEK", "SUCCESS", consumer_id=1, request_id=30, message_id=names)
    client.acknowledge(message_id)
    client.subscribe(topic, request=31)
    client.acknowledge(client.receive())
    client.close()


def near_nothing_waits(url: str, topic: str) -> None:
    client = Bare(url)
    client.subscribe(topic, permits=0)
    time.sleep(6)
    client.ask("PING", "PONG")
    client.close()


def near_cumulative_on_failover(url: str, topic: str) -> None:
    client = Bare(url)
    client.produce(topic, producer_name="p")
    client.send(0)
    client.subscribe(topic, kind=2)
    client.acknowledge(client.receive(), kind=1)
    client.close()


def near_refused_then_free(url: str, topic: str) -> None:
    holder, client = Bare(url), Bare(url)
    holder.produce(topic, producer_name="p", producer_access_mode=1)
    client.look_up(topic)
    fields = {"topic": topic, "producer_id": 0, "producer_name": "q"}
    client.ask("PRODUCER", "ERROR", request_id=10, **fields)
    holder.ask("CLOSE_PRODUCER", "SUCCESS", producer_id=0, request_id=50)
    client.look_up(topic, 101)
    client.ask("PRODUCER", "PRODUCER_SUCCESS", request_id=11, **fields)
    client.close()
    holder.close()


def near_feature_agreed(url: str, topic: str) -> None:
    client = Bare(url, protocol_version=12)
    client.subscribe(topic)
    client.ask("GET_LAST_MESSAGE_ID", "GET_LAST_MESSAGE_ID_RESPONSE", consumer_id=1, request_id=30)
    client.close()


def near_few_connections(url: str, topic: str) -> None:
    for number in range(6):
        client = Bare(url)
        client.produce(topic, producer_name="p")
        client.send(number)
        client.ask("CLOSE_PRODUCER", "SUCCESS", producer_id=0, request_id=50)
        client.close()


def near_acked_by_the_next(url: str, topic: str) -> None:
    first, second = Bare(url), Bare(url)
    first.produce(topic, producer_name="p")
    first.send(0)
    first.subscribe(topic, kind=1)
    message_id = first.receive()
    names = [{"ledgerId": message_id.ledgerId, "entryId": message_id.entryId}]
    second.subscribe(topic, kind=1)
    first.ask("PING", "PONG")
    first.command("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1, message_ids=names)
    time.sleep(0.5)
    first.acknowledge(message_id)
    first.close()
    second.close()


SCENARIOS: Final[dict[str, tuple[str, Callable[[str, str], None]]]] = {
    "producer-id-twice": ("producer_id_in_use", producer_id_twice),
    "connect-twice": ("connect_repeated", connect_twice),
    "redeliver-ids-on-exclusive": ("redeliver_on_exclusive", redeliver_ids_on_exclusive),
    "flow-of-zero": ("flow_without_permits", flow_of_zero),
    "range-upside-down": ("sequence_id_range", range_upside_down),
    "sequence-goes-back": ("sequence_id_out_of_order", sequence_goes_back),
    "sequence-twice": ("sequence_id_out_of_order", sequence_twice),
    "other-name": ("producer_name_mismatch", other_name),
    "chunks-say-less": ("chunk_size_mismatch", chunks_say_less),
    "producer-each": ("producer_per_message", producer_each),
    "send-while-queued": ("send_without_producer", send_while_queued),
    "ack-of-the-future": ("ack_not_delivered", ack_of_the_future),
    "ack-of-a-stranger": ("ack_without_consumer", ack_of_a_stranger),
    "seek-of-a-stranger": ("consumer_not_open", seek_of_a_stranger),
    "chunk-without-uuid": ("chunk_fields_missing", chunk_without_uuid),
    "not-looked-up": ("not_looked_up", not_looked_up),
    "name-not-kept": ("producer_name_not_kept", name_not_kept),
    "flow-for-each": ("flow_per_message", flow_for_each),
    "refused-again-and-again": ("request_refused", refused_again_and_again),
    "copies": ("stored_twice", copies),
    **{
        name.replace("_", "-"): ("", function)
        for name, function in list(globals().items())
        if name.startswith("near_")
    },
}
"""Name -> the rule that is broken, and what the client does with a broker at a URL and a new topic."""


def record(name: str, target: str) -> None:
    """Record a scenario."""
    _, function = SCENARIOS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recording.pcapng"
        pwire = str(Path(sys.executable).parent / "pwire")
        command = [pwire, "proxy", "-l", "127.0.0.1:0", "--to", target]
        proxy = subprocess.Popen([*command, "--record", str(path)], stderr=subprocess.PIPE, text=True)
        assert proxy.stderr is not None
        url = proxy.stderr.readline().split()[-1]
        try:
            function(url, f"persistent://public/default/{name}-{time.time_ns()}")
        finally:
            proxy.send_signal(signal.SIGINT)
            proxy.communicate()
        (FOLDER / f"{name}.pcapng.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))


def main() -> None:
    """Record the scenarios that are named, or all, and write expected.json."""
    target, *names = sys.argv[1:]
    for name in names or SCENARIOS:
        record(name, target)
        sys.stdout.write(f"{name}\n")
    path = FOLDER / "expected.json"
    expected = json.loads(path.read_text()) | {name: SCENARIOS[name][0] for name in names or SCENARIOS}
    path.write_text(json.dumps(dict(sorted(expected.items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
