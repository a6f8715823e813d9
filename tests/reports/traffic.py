"""Traffic with what the recorded captures lack: two clusters, lost packets, transactions, and so on."""

from __future__ import annotations

import base64
import random
from collections import defaultdict
from typing import Any, NamedTuple

from segments import Tcp, Turn, acknowledge, build, captured, message, pcap, receipt, send

from pulsarctl_wire.capture.packets import Segment
from pulsarctl_wire.wire.PulsarApi_pb2 import MessageMetadata, ServerError

TOPICS = ("persistent://public/default/a", "persistent://public/default/b", "persistent://public/default/c")
KEYS = ("", "red", "green", "blue", "k" * 40)
PRODUCERS, CONSUMERS = 4, 6
NOT_STORED = {"ledgerId": 2**64 - 1, "entryId": 2**64 - 1}


class Sent(NamedTuple):
    """A SEND that waits for its answer."""

    producer: int
    metadata: MessageMetadata
    payload: bytes


class Client:
    """A connection, and what may be said on it."""

    def __init__(self, number: int, rng: random.Random) -> None:
        self.rng = rng
        self.cluster = number % 2
        broker = f"10.0.{self.cluster}.{2 + number % 4 // 2}"
        self.tcp = Tcp(("10.0.9.1", 50_000 + number), (broker, 6650))
        self.other = f"pulsar://10.0.{self.cluster}.{3 - number % 4 // 2}:6650"
        self.sequence = 0
        self.requests = 100
        self.open: list[Sent] = []  # not answered

    def say(self, to_broker: bool, *frames: bytes) -> list[Segment]:
        return self.tcp.say([(to_broker, b"".join(frames))])

    def ask(self, kind: str, answer: str, /, **fields: Any) -> list[Segment]:
        """A request and, mostly, its answer or an error."""
        self.requests += 1
        segments = self.say(True, build(kind, request_id=self.requests, **fields))
        luck = self.rng.random()
        if luck < 0.1:
            error = self.rng.choice((ServerError.ServiceNotReady, ServerError.ConsumerBusy))
            segments += self.say(
                False, build("ERROR", request_id=self.requests, error=error, message="later")
            )
        elif luck < 0.9:
            known = {"producer_name": "p"} if answer == "PRODUCER_SUCCESS" else {}
            segments += self.say(False, build(answer, request_id=self.requests, **known))
        return segments


class Traffic:
    """What all clients do, in turns."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clients = [Client(number, self.rng) for number in range(5)]
        self.entries: dict[tuple[int, str], list[Sent]] = {}  # of each cluster and topic
        self.delivered: dict[tuple[int, str, int], list[dict[str, Any]]] = defaultdict(list)
        for cluster in (0, 1):
            for number, topic in enumerate(TOPICS):  # one from before the capture began
                old = Sent(number, self.metadata(self.clients[cluster], number), b"old")
                self.entries[cluster, topic] = [old]

    def topic(self, producer_or_consumer: int) -> str:
        return TOPICS[producer_or_consumer % len(TOPICS)]

    def begin(self, client: Client) -> list[Segment]:
        segments = client.tcp.handshake()
        segments += client.say(True, build("CONNECT", client_version="test", protocol_version=21))
        segments += client.say(False, build("CONNECTED", server_version="broker", protocol_version=21))
        segments += self.look_up(client, TOPICS[0])
        for producer in range(PRODUCERS):
            topic = self.topic(producer)
            segments += client.ask("PRODUCER", "PRODUCER_SUCCESS", topic=topic, producer_id=producer)
        for consumer in range(CONSUMERS):
            segments += self.subscribe(client, consumer)
        return segments

    def subscribe(self, client: Client, consumer: int) -> list[Segment]:
        return client.ask(
            "SUBSCRIBE",
            "SUCCESS",
            topic=self.topic(consumer),
            subscription=f"s{consumer % 2}",
            consumer_id=consumer,
            subType=consumer % 4,
            durable=consumer != 5,
        )

    def metadata(self, client: Client, producer: int) -> MessageMetadata:
        made = MessageMetadata(
            producer_name=f"p{producer}",
            sequence_id=client.sequence,
            publish_time=1_700_000_000_000 + client.sequence,
        )
        count = self.rng.choice((None, None, 1, 3, 70))
        if count is not None:
            made.num_messages_in_batch = count
        key = self.rng.choice(KEYS)
        if self.rng.random() < 0.3:
            made.partition_key = base64.b64encode(key.encode()).decode()
            made.partition_key_b64_encoded = True
        elif key:
            made.partition_key = key
        if self.rng.random() < 0.2:
            made.ordering_key = self.rng.choice(KEYS[1:]).encode()
        if self.rng.random() < 0.1:
            made.txnid_most_bits, made.txnid_least_bits = 1, 2
        if self.rng.random() < 0.05:
            made.marker_type = 20
        return made

    def send(self, client: Client) -> list[Segment]:
        producer = self.rng.randrange(PRODUCERS)
        frames = []
        if self.rng.random() < 0.2:
            made = self.metadata(client, producer)
            made.ClearField("num_messages_in_batch")
            chunks = self.rng.randint(2, 3)
            made.uuid, made.num_chunks_from_msg, made.total_chunk_msg_size = (
                f"u{client.sequence}",
                chunks,
                10 * chunks,
            )
            for chunk in range(chunks):
                made.chunk_id = chunk
                if self.rng.random() < 0.9:
                    frames.append(self.sent(client, producer, made))
        else:
            frames += [self.sent(client, producer, self.metadata(client, producer))]
        client.sequence += 100
        return client.say(True, *frames) if frames else []

    def sent(self, client: Client, producer: int, metadata: MessageMetadata) -> bytes:
        fields: dict[str, Any] = {"producer_id": producer, "sequence_id": metadata.sequence_id}
        if metadata.num_messages_in_batch > 1:
            fields |= {"num_messages": metadata.num_messages_in_batch}
            fields |= {"highest_sequence_id": metadata.sequence_id + metadata.num_messages_in_batch - 1}
        payload = b"x" * self.rng.randrange(10, 200)
        kept = MessageMetadata()
        kept.CopyFrom(metadata)
        client.open.append(Sent(producer, kept, payload))
        raw = build("SEND", metadata, payload, **fields)
        if self.rng.random() < 0.03:
            raw = raw[:-1] + b"y"
        return raw

    def receive(self, client: Client) -> list[Segment]:
        """The answers to some SENDs."""
        frames = []
        for _ in range(self.rng.randint(1, 3)):
            if client.open:
                sent = client.open.pop(0)
                sequence = sent.metadata.sequence_id
                answer = {"producer_id": sent.producer, "sequence_id": sequence}
                luck = self.rng.random()
                if luck < 0.1:
                    answer["sequence_id"] += max(1, sent.metadata.num_messages_in_batch) - 1
                    error = ServerError.PersistenceError
                    frames.append(build("SEND_ERROR", error=error, message=f"no {sequence}", **answer))
                elif luck < 0.95:
                    at = self.store(client, sent) if luck < 0.9 else NOT_STORED
                    frames.append(build("SEND_RECEIPT", message_id=at, **answer))
        return client.say(False, *frames) if frames else []

    def store(self, client: Client, sent: Sent) -> dict[str, int]:
        topic = self.topic(sent.producer)
        entries = self.entries[client.cluster, topic]
        entries.append(sent)
        return self.id_of(topic, len(entries) - 1)

    def id_of(self, topic: str, entry: int) -> dict[str, int]:
        """A topic has a new ledger after every ten entries."""
        return {"ledgerId": 2 + 10 * TOPICS.index(topic) + entry // 10, "entryId": entry % 10}

    def deliver(self, client: Client) -> list[Segment]:
        consumer = self.rng.randrange(CONSUMERS)
        topic = self.topic(consumer)
        entries = self.entries[client.cluster, topic]
        known = self.delivered[client.cluster, topic, consumer % 2]  # the first ones, in order
        frames = []
        for _ in range(self.rng.randint(1, 3)):
            number = self.rng.randrange(min(len(known) + 1, len(entries)))
            if number == len(known):
                known.append(self.id_of(topic, number))
            metadata, payload = entries[number].metadata, entries[number].payload
            fields: dict[str, Any] = {"message_id": known[number]}
            if self.rng.random() < 0.3:
                fields["redelivery_count"] = self.rng.randrange(5)
            if metadata.num_messages_in_batch > 1 and self.rng.random() < 0.3:
                fields["ack_set"] = [self.rng.randrange(2 ** min(metadata.num_messages_in_batch, 63))]
            frames.append(build("MESSAGE", metadata, payload, consumer_id=consumer, **fields))
        return client.say(False, *frames)

    def acknowledge(self, client: Client) -> list[Segment]:
        """Entries that were delivered, or that were before the capture began."""
        consumer = self.rng.randrange(CONSUMERS)
        topic = self.topic(consumer)
        old = [{"ledgerId": 1 + 10 * TOPICS.index(topic), "entryId": entry} for entry in range(3)]
        known = [*old, *self.delivered[client.cluster, topic, consumer % 2]]
        if is_cumulative := len(known) > len(old) and self.rng.random() < 0.2:
            ids = [self.rng.choice(known[len(old) :])]
        else:
            ids = self.rng.sample(known, min(len(known), self.rng.randint(1, 4)))
        ids = [dict(each) for each in ids]
        for each in ids:
            if not is_cumulative and self.rng.random() < 0.2:
                each["ack_set"] = [self.rng.choice((0, 1, 6, -1))]
        return client.say(
            True, build("ACK", consumer_id=consumer, ack_type=int(is_cumulative), message_id=ids)
        )

    def control(self, client: Client) -> list[Segment]:
        consumer = self.rng.randrange(CONSUMERS)
        topic = self.topic(consumer)
        match self.rng.randrange(6):
            case 0:
                return client.ask("NEW_TXN", "NEW_TXN_RESPONSE", tc_id=0)
            case 1:
                closed = client.ask("CLOSE_CONSUMER", "SUCCESS", consumer_id=consumer)
                return [*closed, *self.subscribe(client, consumer)]
            case 2:
                closing = build("CLOSE_CONSUMER", consumer_id=consumer, request_id=2**64 - 1)
                return [*client.say(False, closing), *self.subscribe(client, consumer)]
            case 3:
                return client.say(True, build("PING")) + client.say(False, build("PONG"))
            case 4:
                schema = client.ask("GET_SCHEMA", "GET_SCHEMA_RESPONSE", topic=topic)
                return schema + client.ask(
                    "PARTITIONED_METADATA", "PARTITIONED_METADATA_RESPONSE", topic=topic
                )
            case _:
                return self.look_up(client, topic)

    def look_up(self, client: Client, topic: str) -> list[Segment]:
        client.requests += 1
        at = {"request_id": client.requests}
        answer: dict[str, Any] = {"response": 1, "brokerServiceUrl": client.other, "authoritative": True}
        if self.rng.random() < 0.2:
            answer = {"response": 2, "error": ServerError.ServiceNotReady, "message": "moving"}
        asked = client.say(True, build("LOOKUP", topic=topic, **at))
        return asked + client.say(False, build("LOOKUP_RESPONSE", **at, **answer))

    def flow(self, client: Client) -> list[Segment]:
        permits = self.rng.randrange(1, 100)
        return client.say(
            True, build("FLOW", consumer_id=self.rng.randrange(CONSUMERS), messagePermits=permits)
        )


def _conversation(topic: str, turns: list[Turn]) -> list[Turn]:
    """A producer and a consumer of a topic, and what they do then."""
    return [
        (True, build("CONNECT", client_version="test", protocol_version=21)),
        (False, build("CONNECTED", server_version="broker", protocol_version=21)),
        (True, build("PRODUCER", topic=topic, producer_id=1, request_id=1)),
        (False, build("PRODUCER_SUCCESS", request_id=1, producer_name="p")),
        (True, build("SUBSCRIBE", topic=topic, subscription="s", subType=1, consumer_id=2, request_id=2)),
        (False, build("SUCCESS", request_id=2)),
        (True, build("FLOW", consumer_id=2, messagePermits=10)),
        *turns,
    ]


def not_stored() -> bytes:
    """All messages of a non-persistent topic have the same id."""
    at = {"ledgerId": 0, "entryId": 0}
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    turns: list[Turn] = []
    for sequence in range(3):
        turns += [
            (True, send(b"x", sequence)),
            (False, build("SEND_RECEIPT", producer_id=1, sequence_id=sequence, message_id=at)),
            (False, build("MESSAGE", metadata, b"x", consumer_id=2, message_id=at)),
        ]
    return pcap(captured(Tcp().whole(_conversation("non-persistent://public/default/n", turns))))


def named_brokers() -> bytes:
    """In each of two clusters, a lookup names the broker where messages are then sent."""
    segments: list[Segment] = []
    for number in (1, 2):
        found = {"response": 1, "brokerServiceUrl": f"pulsar://10.0.{number}.3:6650", "authoritative": True}
        turns: list[Turn] = [
            (True, build("LOOKUP", topic="t", request_id=9)),
            (False, build("LOOKUP_RESPONSE", request_id=9, **found)),
        ]
        asked = Tcp(("10.0.0.1", 50_000 + number), (f"10.0.{number}.2", 6650))
        used = Tcp(("10.0.0.1", 51_000 + number), (f"10.0.{number}.3", 6650))
        segments += [*asked.handshake(), *asked.say(_conversation("t", turns))]
        segments += used.whole(_conversation("t", [(True, send(b"x" * number)), (False, receipt())]))
        segments += asked.say([(False, message(b"x" * number))])
    return pcap(captured(segments))


def acknowledged_twice() -> bytes:
    """An entry from before the capture is acknowledged, then delivered and acknowledged again."""
    turns: list[Turn] = [(True, acknowledge()), (False, message(b"x")), (True, acknowledge())]
    return pcap(captured(Tcp().whole(_conversation("t", turns))))


def empty_ordering_key() -> bytes:
    """It is an ordering key all the same, as brokers see it."""
    metadata = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, partition_key="k", ordering_key=b""
    )
    turns: list[Turn] = [
        (True, build("SEND", metadata, b"x", producer_id=1, sequence_id=0)),
        (False, receipt()),
    ]
    return pcap(captured(Tcp().whole(_conversation("t", turns))))


def random_traffic(seed: int, turns: int, lost: float) -> bytes:
    """A capture; the share `lost` of its packets is missing."""
    traffic = Traffic(seed)
    segments: list[Segment] = []
    begin = [segment for client in traffic.clients for segment in traffic.begin(client)]
    does = [
        traffic.send,
        traffic.receive,
        traffic.deliver,
        traffic.acknowledge,
        traffic.control,
        traffic.flow,
    ]
    weights = (5, 5, 5, 3, 1, 1)
    for _ in range(turns):
        (do,) = traffic.rng.choices(does, weights)
        segments += do(traffic.rng.choice(traffic.clients))
    segments = [each for each in segments if not each[4] or traffic.rng.random() >= lost]
    return pcap(captured([*begin, *segments], step_ns=7_000_000))
