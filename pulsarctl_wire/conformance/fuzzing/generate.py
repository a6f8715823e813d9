"""Valid sessions at random, from a seed: what a client may send, in an order in which it may send it.

A session has groups of steps: a producer with its messages, a consumer with what it does, lookups, a
transaction. Their steps are mixed, but stay in order within a group. Each consumer has a subscription of its
own.
"""

from __future__ import annotations

import json
import zlib
from random import Random
from typing import Any, Final

from pulsarctl_wire.conformance.basics.frames import EARLIEST, LATEST, make_batch
from pulsarctl_wire.conformance.fuzzing.session import TOKEN, Later, Session, Step
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    CommandSubscribe,
    CompressionType,
    KeySharedMode,
    ProducerAccessMode,
    Schema,
)

NAMESPACE: Final = "public/default"
_SUBSCRIPTION_TYPES: Final = range(4)
_PAYLOADS: Final = (b"", b"hello", b"x" * 100, b"\x00\xff" * 50)
_LARGE: Final = b"large" * 14_000
_AVRO: Final = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}).encode()
_SCHEMAS: Final[tuple[dict[str, Any], ...]] = (
    {"name": "s", "type": Schema.String, "schema_data": b""},
    {"name": "r", "type": Schema.Avro, "schema_data": _AVRO},
    {"name": "r", "type": Schema.Json, "schema_data": _AVRO, "properties": [{"key": "k", "value": "v"}]},
)
_TRANSACTION: Final = {"txnid_most_bits": Later("txn_most"), "txnid_least_bits": Later("txn_least")}


class Draft:
    """A session that is being written. `last_request_id` is the latest request id."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.last_request_id = random.choice((0, 0, 1000, 2**40))
        self._groups: list[list[Step]] = []
        self._endpoints = 0
        domain = "non-persistent" if self.rarely() else "persistent"
        self.topic = f"{domain}://{NAMESPACE}/fuzz-{TOKEN}"

    def rarely(self) -> bool:
        """Return True one time in eight."""
        return self.random.random() < 1 / 8

    def number_request(self) -> int:
        """Return the next request id."""
        self.last_request_id += 1
        return self.last_request_id

    def number_endpoint(self) -> int:
        """Return the next id of a producer, consumer or watcher."""
        self._endpoints += 1
        return self._endpoints

    def begin(self) -> None:
        """Begin a group."""
        self._groups.append([])

    def add(self, command: str, fields: dict[str, Any], **parts: Any) -> None:
        """Add a step to the group; `parts` are its metadata and payload, if it has them."""
        self._groups[-1].append(Step(command, fields, group=len(self._groups) - 1, **parts))

    def request(self, command: str, **fields: Any) -> None:
        """Add a request to the group."""
        self.add(command, {"request_id": self.number_request(), **fields})

    def finish(self) -> tuple[Step, ...]:
        """Return the steps: those of the first group, then those of the others, half of the time mixed."""
        first, *others = self._groups
        order = [index for index, group in enumerate(others) for _ in group]
        if self.random.random() < 0.5:
            self.random.shuffle(order)
        queues = [iter(group) for group in others]
        return (*first, *(next(queues[index]) for index in order))


def generate(random: Random, number: int = 0) -> Session:
    """Return a valid session with this number."""
    draft = Draft(random)
    _connect(draft)
    writers = random.choices(_WRITERS, (3, 3, 1, 1), k=random.choice((1, 1, 2, 2, 3)))
    if _consume in writers and random.random() < 0.7:  # something to receive
        writers = [_produce, *(writer for writer in writers if writer != _produce)]
    for write in writers:
        write(draft)
    return Session(number, draft.finish())


def _connect(draft: Draft) -> None:
    draft.begin()
    fields: dict[str, Any] = {
        "client_version": "pwire-fuzz",
        "protocol_version": draft.random.choice((21, 21, 21, 20, 15, 12)),
    }
    if draft.random.random() < 0.5:
        fields["feature_flags"] = {"supports_broker_entry_metadata": True, "supports_topic_watchers": True}
    draft.add("CONNECT", fields)
    if draft.rarely():
        draft.add("PING", {})


def _look_up(draft: Draft, topic: str) -> None:
    draft.request("LOOKUP", topic=topic, authoritative=False)


# -- producers


def _produce(draft: Draft) -> None:
    """Write a producer and its messages."""
    draft.begin()
    random, producer = draft.random, draft.number_endpoint()
    topic, fields = draft.topic, dict[str, Any](producer_id=producer)
    if draft.rarely():
        topic = f"{topic}-schema-{producer}"
        fields["schema"] = random.choice(_SCHEMAS)
    elif draft.rarely():
        topic = f"{topic}-exclusive-{producer}"
        fields["producer_access_mode"] = ProducerAccessMode.Value("Exclusive")
    if draft.rarely():
        fields |= {"producer_name": f"p-{TOKEN}-{producer}", "user_provided_producer_name": True, "epoch": 0}
    if draft.rarely():
        fields |= {"metadata": [{"key": "k", "value": "v"}], "initial_subscription_name": "first"}
    _look_up(draft, topic)
    draft.request("PRODUCER", topic=topic, **fields)
    sequence = 0
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        write = random.choice((_write_plain, _write_plain, _write_batch, _write_compressed, _write_chunks))
        sequence = write(draft, producer, sequence)
    if random.random() < 0.3:
        draft.request("CLOSE_PRODUCER", producer_id=producer)


def _send(draft: Draft, producer: int, sequence: int, payload: bytes, *, command: Any, metadata: Any) -> None:
    """Write SEND; `command` and `metadata` are fields besides the usual ones."""
    fields = {"producer_id": producer, "sequence_id": sequence, **command}
    head = {"producer_name": "p", "sequence_id": sequence, "publish_time": 1_700_000_000_000, **metadata}
    draft.add("SEND", fields, metadata=head, payload=payload)


def _write_plain(draft: Draft, producer: int, sequence: int) -> int:
    """Write a message; return the next sequence id."""
    random = draft.random
    metadata: dict[str, Any] = {}
    if random.random() < 0.3:
        metadata |= {"partition_key": random.choice(("k", "l")), "properties": [{"key": "a", "value": "b"}]}
    if draft.rarely():
        metadata |= {"null_value": True, "ordering_key": b"o", "event_time": 1}
    if draft.rarely():
        metadata["deliver_at_time"] = 1_700_000_001_000
    if draft.rarely():
        keys = [{"key": "key", "value": b"sealed"}]
        metadata |= {"encryption_keys": keys, "encryption_param": bytes(12), "schema_version": bytes(8)}
    payload = _LARGE if draft.rarely() else random.choice(_PAYLOADS)
    _send(draft, producer, sequence, payload, command={}, metadata=metadata)
    return sequence + 1


def _write_batch(draft: Draft, producer: int, sequence: int) -> int:
    """Write a batch; return the next sequence id."""
    size = draft.random.choice((1, 2, 3, 70))
    command: dict[str, Any] = {"num_messages": size}
    metadata: dict[str, Any] = {"num_messages_in_batch": size}
    if draft.random.random() < 0.7:
        command["highest_sequence_id"] = metadata["highest_sequence_id"] = sequence + size - 1
    payload = make_batch(*(b"m%d" % index for index in range(size)), first=sequence)
    _send(draft, producer, sequence, payload, command=command, metadata=metadata)
    return sequence + size


def _write_compressed(draft: Draft, producer: int, sequence: int) -> int:
    """Write a compressed message; return the next sequence id."""
    payload = b"hello pulsar " * 10
    metadata = {"compression": CompressionType.ZLIB, "uncompressed_size": len(payload)}
    _send(draft, producer, sequence, zlib.compress(payload), command={}, metadata=metadata)
    return sequence + 1


def _write_chunks(draft: Draft, producer: int, sequence: int) -> int:
    """Write a message in chunks; return the next sequence id."""
    number = draft.random.choice((2, 3))
    for index in range(number):
        metadata = {"uuid": f"u-{TOKEN}", "chunk_id": index, "num_chunks_from_msg": number}
        metadata["total_chunk_msg_size"] = 5 * number
        _send(draft, producer, sequence, b"chunk", command={"is_chunk": True}, metadata=metadata)
    return sequence + 1


# -- consumers


def _consume(draft: Draft) -> None:
    """Write a consumer and what it does."""
    draft.begin()
    consumer = draft.number_endpoint()
    subscription = _make_subscription(draft, consumer)
    _look_up(draft, subscription["topic"])
    draft.request("SUBSCRIBE", **subscription)
    draft.add("FLOW", {"consumer_id": consumer, "messagePermits": draft.random.choice((1, 2, 10, 1000))})
    for _ in range(draft.random.choice((0, 1, 2, 3))):
        draft.random.choice((_acknowledge, _acknowledge, _redeliver, _ask))(draft, consumer)
    end = draft.random.choice(("SEEK", "CLOSE_CONSUMER", "UNSUBSCRIBE", "UNSUBSCRIBE", ""))
    if end == "SEEK":
        place = draft.random.choice(
            (
                {"message_id": EARLIEST},
                {"message_id": LATEST},
                {"message_publish_time": 1},
                {"message_id": Later("message")},
            )
        )
        draft.request(end, consumer_id=consumer, **place)
        if draft.random.random() < 0.5:
            draft.request("SUBSCRIBE", **subscription)
    elif end:
        draft.request(end, consumer_id=consumer)


def _make_subscription(draft: Draft, consumer: int) -> dict[str, Any]:
    """Return the fields of SUBSCRIBE, but for the request id."""
    random = draft.random
    kind = random.choice(_SUBSCRIPTION_TYPES)
    fields: dict[str, Any] = {"topic": draft.topic, "subscription": f"s{consumer}", "consumer_id": consumer}
    fields |= {"subType": kind, "initialPosition": random.choice((0, 1, 1))}
    if random.random() < 0.5:
        fields |= {"durable": False, "start_message_id": random.choice((EARLIEST, LATEST))}
    if kind == CommandSubscribe.Key_Shared:
        modes: tuple[dict[str, Any], ...] = (
            {"keySharedMode": KeySharedMode.AUTO_SPLIT},
            {"keySharedMode": KeySharedMode.AUTO_SPLIT, "allowOutOfOrderDelivery": True},
            {"keySharedMode": KeySharedMode.STICKY, "hashRanges": [{"start": 0, "end": 65535}]},
        )
        fields["keySharedMeta"] = random.choice(modes)
    if draft.rarely():
        fields |= {
            "consumer_name": f"c{consumer}",
            "priority_level": 1,
            "metadata": [{"key": "k", "value": "v"}],
        }
    if draft.rarely():
        fields |= {"topic": f"{draft.topic}-schema-{consumer}", "schema": random.choice(_SCHEMAS)}
    if draft.rarely():
        fields["subscription_properties"] = [{"key": "k", "value": "v"}]
    return fields


def _acknowledge(draft: Draft, consumer: int) -> None:
    random = draft.random
    fields: dict[str, Any] = {"consumer_id": consumer, "ack_type": 0}
    numbers = random.sample(range(8), random.choice((1, 1, 2, 3)))
    fields["message_id"] = [Later("message", number) for number in numbers]
    shape = random.choice(("individual", "individual", "cumulative", "batch"))
    if shape == "cumulative":
        fields |= {"ack_type": 1, "message_id": fields["message_id"][:1]}
    elif shape == "batch":
        fields["message_id"] = [Later("message", numbers[0], {"ack_set": [0b101], "batch_size": 3})]
    if random.random() < 0.5:
        fields["request_id"] = draft.number_request()
    draft.add("ACK", fields)


def _redeliver(draft: Draft, consumer: int) -> None:
    ids = [Later("message", draft.random.randrange(8))] if draft.random.random() < 0.5 else []
    draft.add("REDELIVER_UNACKNOWLEDGED_MESSAGES", {"consumer_id": consumer, "message_ids": ids})


def _ask(draft: Draft, consumer: int) -> None:
    draft.request(draft.random.choice(("GET_LAST_MESSAGE_ID", "CONSUMER_STATS")), consumer_id=consumer)


# -- other groups


def _discover(draft: Draft) -> None:
    """Write lookups of several kinds, schemas, and a watcher."""
    draft.begin()
    random = draft.random
    requests: list[tuple[str, dict[str, Any]]] = [
        ("LOOKUP", {"topic": draft.topic, "properties": [{"key": "k", "value": "v"}]}),
        ("PARTITIONED_METADATA", {"topic": draft.topic, "metadata_auto_creation_enabled": True}),
        ("GET_TOPICS_OF_NAMESPACE", {"namespace": NAMESPACE, "mode": 2, "topics_pattern": f".*{TOKEN}.*"}),
        ("GET_SCHEMA", {"topic": draft.topic}),
        ("GET_SCHEMA", {"topic": draft.topic, "schema_version": bytes(8)}),
        ("GET_OR_CREATE_SCHEMA", {"topic": f"{draft.topic}-schema", "schema": random.choice(_SCHEMAS)}),
    ]
    for command, fields in random.sample(requests, random.choice((1, 2, 3))):
        draft.request(command, **fields)
    if random.random() < 0.4:
        watcher = draft.number_endpoint()
        pattern = f"persistent://{NAMESPACE}/fuzz-{TOKEN}.*"
        draft.request("WATCH_TOPIC_LIST", watcher_id=watcher, namespace=NAMESPACE, topics_pattern=pattern)
        if random.random() < 0.7:
            draft.request("WATCH_TOPIC_LIST_CLOSE", watcher_id=watcher)


def _transact(draft: Draft) -> None:
    """Write a transaction; brokers without transactions answer with errors."""
    draft.begin()
    draft.request("TC_CLIENT_CONNECT_REQUEST", tc_id=0)
    draft.request("NEW_TXN", tc_id=0, txn_ttl_millis=2_000)
    if draft.random.random() < 0.7:
        draft.request("ADD_PARTITION_TO_TXN", partitions=[draft.topic], **_TRANSACTION)
    if draft.random.random() < 0.3:
        subscription = {"topic": draft.topic, "subscription": "s"}
        draft.request("ADD_SUBSCRIPTION_TO_TXN", subscription=[subscription], **_TRANSACTION)
    if draft.random.random() < 0.7:
        draft.request("END_TXN", txn_action=draft.random.choice((0, 1)), **_TRANSACTION)


_WRITERS: Final = (_produce, _consume, _discover, _transact)
"""Functions that each write a group of steps."""
