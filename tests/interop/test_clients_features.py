"""What the official clients can do, each by itself: Python's, Java's and Go's, with the same features."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pulsar
import pytest
from interop.brokers import Broker, run_java
from interop.conftest import Go
from interop.test_produce import partitioned

WAIT = 20_000
"""Milliseconds for a message that will come."""

COUNT = 20
TYPES = {
    "exclusive": pulsar.ConsumerType.Exclusive,
    "shared": pulsar.ConsumerType.Shared,
    "failover": pulsar.ConsumerType.Failover,
    "key-shared": pulsar.ConsumerType.KeyShared,
}
CODECS = {"none": "NONE", "lz4": "LZ4", "zlib": "ZLib", "zstd": "ZSTD", "snappy": "SNAPPY"}


@contextmanager
def wheel(url: str, **options: object) -> Iterator[Any]:
    """The Python client."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), **options)
    try:
        yield client
    finally:
        client.close()


def send(client: Any, topic: str, *texts: str, **options: object) -> list[Any]:
    """Send texts, all at once, with keys; the ids."""
    producer = client.create_producer(topic, **options)
    ids: list[Any] = []
    for number, text in enumerate(texts):
        producer.send_async(text.encode(), lambda _, id_: ids.append(id_), partition_key=f"k{number % 5}")
    producer.flush()
    assert len(ids) == len(texts)
    producer.close()
    return ids


def receive(consumer: Any, count: int) -> list[str]:
    """The next messages, which are acknowledged."""
    found = []
    for _ in range(count):
        message = consumer.receive(WAIT)
        consumer.acknowledge(message)
        found.append(message.data().decode())
    return found


def nothing(*consumers: Any) -> None:
    """No message is there that was not acknowledged."""
    for consumer in consumers:
        with pytest.raises(pulsar.Timeout):
            consumer.receive(100)


TEXTS = [str(number) for number in range(COUNT)]


@pytest.mark.parametrize("kind", TYPES)
def test_subscription_types(broker: Broker, topic: str, kind: str) -> None:
    with wheel(broker.url) as client:
        first = client.subscribe(topic, "s", TYPES[kind], consumer_name="a")
        if kind == "exclusive":
            with pytest.raises(pulsar.ConsumerBusy):
                client.subscribe(topic, "s", TYPES[kind])
            consumers = [first]
        else:
            consumers = [first, client.subscribe(topic, "s", TYPES[kind], consumer_name="b")]
        send(client, topic, *TEXTS, batching_type=pulsar.BatchingType.KeyBased)
        found: list[tuple[str, str, str]] = []
        while len(found) < COUNT:
            for consumer in consumers:
                try:
                    message = consumer.receive(100)
                except pulsar.Timeout:
                    continue
                consumer.acknowledge(message)
                found.append((consumer.consumer_name(), message.partition_key(), message.data().decode()))
        assert sorted(int(text) for _, _, text in found) == list(range(COUNT))
        by_key = {(name, key) for name, key, _ in found}
        if kind == "key-shared":
            assert len(by_key) == 5
        elif kind != "shared":
            assert len({name for name, _ in by_key}) == 1
        nothing(*consumers)


def test_failover(broker: Broker, topic: str) -> None:
    """The next consumer goes on where the first one stops."""
    topic, *_ = partitioned(broker, topic, 1)  # there the first one by name is active
    with wheel(broker.url) as client:
        first = client.subscribe(topic, "s", pulsar.ConsumerType.Failover, consumer_name="a")
        second = client.subscribe(topic, "s", pulsar.ConsumerType.Failover, consumer_name="b")
        send(client, topic, *TEXTS, batching_enabled=False)
        assert receive(first, 5) == TEXTS[:5]
        first.close()
        assert receive(second, COUNT - 5) == TEXTS[5:]


def test_partitions(broker: Broker, topic: str) -> None:
    partitions = partitioned(broker, topic, 3)
    with wheel(broker.url) as client:
        assert client.get_topic_partitions(topic) == partitions
        consumer = client.subscribe(topic, "s")
        send(client, topic, *TEXTS, batching_enabled=False)
        assert sorted(receive(consumer, COUNT), key=int) == TEXTS


def test_topics_by_pattern(broker: Broker, topic: str) -> None:
    """Those that are there; the wheel does not ask for new ones, whatever its period (Java does, below)."""
    with wheel(broker.url) as client:
        for each in ("a", "b"):
            send(client, f"{topic}-{each}", each)
        earliest = pulsar.InitialPosition.Earliest
        consumer = client.subscribe(pulsar.re.compile(f"{topic}-.*"), "s", initial_position=earliest)
        assert sorted(receive(consumer, 2)) == ["a", "b"]
        nothing(consumer)


def test_dead_letters(broker: Broker, topic: str) -> None:
    shared = pulsar.ConsumerType.Shared
    with wheel(broker.url) as client:
        consumer = client.subscribe(
            topic,
            "s",
            shared,
            negative_ack_redelivery_delay_ms=100,
            dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(2),
        )
        dead = client.subscribe(f"{topic}-s-DLQ", "d")
        send(client, topic, "bad")
        for count in range(3):
            message = consumer.receive(WAIT)
            assert message.redelivery_count() == count
            consumer.negative_acknowledge(message)
        assert receive(dead, 1) == ["bad"]


def test_negative_acknowledgements(broker: Broker, topic: str) -> None:
    with wheel(broker.url) as client:
        shared = pulsar.ConsumerType.Shared
        consumer = client.subscribe(topic, "s", shared, negative_ack_redelivery_delay_ms=100)
        send(client, topic, "a", "b", "c", batching_enabled=False)
        for _ in range(3):
            message = consumer.receive(WAIT)
            if message.data() == b"b":
                consumer.negative_acknowledge(message)
            else:
                consumer.acknowledge(message)
        assert receive(consumer, 1) == ["b"]
        nothing(consumer)


def test_seek(broker: Broker, topic: str) -> None:
    with wheel(broker.url) as client:
        consumer = client.subscribe(topic, "s")
        ids = send(client, topic, *TEXTS, batching_enabled=False)
        assert receive(consumer, COUNT) == TEXTS
        consumer.seek(ids[4])
        assert receive(consumer, COUNT - 5) == TEXTS[5:]
        consumer.seek(pulsar.MessageId.earliest)
        assert receive(consumer, COUNT) == TEXTS
        consumer.seek(1)  # a time
        assert receive(consumer, COUNT) == TEXTS
        consumer.seek(pulsar.MessageId.latest)
        nothing(consumer)


def test_cumulative_acknowledgements(broker: Broker, topic: str) -> None:
    with wheel(broker.url) as client:
        consumer = client.subscribe(topic, "s")
        send(client, topic, *TEXTS, batching_enabled=False)
        messages = [consumer.receive(WAIT) for _ in TEXTS]
        consumer.acknowledge_cumulative(messages[9])
        consumer.close()
        consumer = client.subscribe(topic, "s")
        assert receive(consumer, 10) == TEXTS[10:]


def test_parts_of_a_batch(broker: Broker, topic: str) -> None:
    """What was not acknowledged of it comes again, and nothing else."""
    with wheel(broker.url) as client:
        shared = pulsar.ConsumerType.Shared
        options = {"batch_index_ack_enabled": True}
        consumer = client.subscribe(topic, "s", shared, **options)
        send(client, topic, "a", "b", "c", "d", batching_max_publish_delay_ms=60_000)
        for message in [consumer.receive(WAIT) for _ in range(4)]:
            if message.data() in (b"b", b"d"):
                consumer.acknowledge(message)
        consumer.close()
        consumer = client.subscribe(topic, "s", shared, **options)
        assert receive(consumer, 2) == ["a", "c"]
        nothing(consumer)


@pytest.mark.parametrize("batched", [True, False], ids=["batched", "alone"])
@pytest.mark.parametrize("codec", CODECS)
def test_codecs(broker: Broker, topic: str, codec: str, batched: bool) -> None:
    with wheel(broker.url) as client:
        consumer = client.subscribe(topic, "s")
        kind = getattr(pulsar.CompressionType, CODECS[codec])
        send(client, topic, *TEXTS, compression_type=kind, batching_enabled=batched)
        assert receive(consumer, COUNT) == TEXTS


def test_chunks(broker: Broker, topic: str) -> None:
    text = secrets.token_hex(6_000_000)
    with wheel(broker.url) as client:
        consumer = client.subscribe(topic, "s")
        send(client, topic, text, "small", chunking_enabled=True, batching_enabled=False)
        assert receive(consumer, 2) == [text, "small"]


class Order(pulsar.schema.Record):  # type: ignore[misc]
    what = pulsar.schema.String()
    count = pulsar.schema.Integer()


SCHEMAS: dict[str, tuple[Any, Any]] = {
    "string": (pulsar.schema.StringSchema(), "grüße"),
    "json": (pulsar.schema.JsonSchema(Order), Order(what="tea", count=2)),
    "avro": (pulsar.schema.AvroSchema(Order), Order(what="tea", count=2)),
}


@pytest.mark.parametrize("kind", SCHEMAS)
def test_schemas(broker: Broker, topic: str, kind: str) -> None:
    """Another one that does not fit is refused."""
    schema, value = SCHEMAS[kind]
    with wheel(broker.url) as client:
        consumer = client.subscribe(topic, "s", schema=schema)
        client.create_producer(topic, schema=schema).send(value)
        assert consumer.receive(WAIT).value() == value
        other = pulsar.schema.JsonSchema(Order) if kind == "string" else pulsar.schema.StringSchema()
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer(topic, schema=other)


def test_exclusive_producers(broker: Broker, topic: str) -> None:
    exclusive = pulsar.ProducerAccessMode.Exclusive
    with wheel(broker.url) as client:
        first = client.create_producer(topic, access_mode=exclusive)
        for mode in (exclusive, pulsar.ProducerAccessMode.Shared):
            with pytest.raises((pulsar.ProducerFenced, pulsar.ProducerBusy)):
                client.create_producer(topic, access_mode=mode)
        first.close()
        client.create_producer(topic, access_mode=exclusive)


def test_readers_and_tables(broker: Broker, topic: str) -> None:
    with wheel(broker.url) as client:
        ids = send(client, topic, *TEXTS, batching_enabled=False)
        reader = client.create_reader(topic, ids[9])
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(WAIT).data().decode())
        assert found == TEXTS[10:]
        table = client.create_table_view(topic)
        assert {key: table.get(key) for key in ("k0", "k4")} == {"k0": b"15", "k4": b"19"}


REFUSED = {
    "stranger": pulsar.AuthorizationError,
    "forged": (pulsar.AuthenticationError, pulsar.ConnectError, pulsar.Timeout),  # it tries again
}


def test_tls_and_tokens(secure: Broker, topic: str) -> None:
    trust = {"tls_trust_certs_file_path": str(secure.tls.ca), "tls_validate_hostname": True}
    for url, options in ((secure.url, {}), (secure.url_tls, trust)):
        mine = pulsar.AuthenticationToken(secure.tokens["client"])
        with wheel(url, authentication=mine, **options) as client:
            consumer = client.subscribe(topic, "s")
            send(client, topic, *TEXTS)
            assert receive(consumer, COUNT) == TEXTS
        for kind, error in REFUSED.items():
            token = pulsar.AuthenticationToken(secure.tokens[kind])
            limited = {"authentication": token, "operation_timeout_seconds": 1, **options}
            with wheel(url, **limited) as client, pytest.raises(error):
                client.subscribe(topic, "s")


def test_client_certificates(secure: Broker, topic: str) -> None:
    files = secure.tls
    mine = pulsar.AuthenticationTLS(str(files.client_cert), str(files.client_key))
    with wheel(secure.url_tls, authentication=mine, tls_trust_certs_file_path=str(files.ca)) as client:
        consumer = client.subscribe(topic, "s")
        send(client, topic, "a")
        assert receive(consumer, 1) == ["a"]


# -- Java and Go

JAVA = [
    *(f"type-{kind}" for kind in ("Exclusive", "Shared", "Failover", "Key_Shared")),
    *("partitions", "pattern", "nack", "dead-letters", "seek", "batch-parts"),
    *(f"codec-{codec}" for codec in ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")),
    *("chunks", "transactions", "delayed"),
]
GO = dict.fromkeys(JAVA, "ok") | {
    **dict.fromkeys(("failover", "cumulative", "exclusive-producers", "readers", "table-views"), "ok"),
    **dict.fromkeys(("schema-string", "schema-json", "schema-avro"), "ok"),
    "seek-ends": "invalid partition index -1 expected a partition between [0-1]",
    "aborted-messages": "a message too many: a",  # their metadata does not name the transaction
}
"""It cannot do the last two. Nor has it schemas of keys with values, or news of topics: it asks for those."""

_UNANSWERED = "context deadline exceeded connection error"  # it tries again, whatever the broker has said
GO_SECURE = {
    **dict.fromkeys(("token", "tls-token", "tls-certificate"), "ok"),
    **dict.fromkeys(("stranger", "tls-stranger"), "AuthorizationError"),
    **dict.fromkeys(("forged", "tls-forged", "nobody", "tls-untrusted"), _UNANSWERED),
}


def new_base(broker: Broker) -> str:
    """What the names of a program's topics begin with."""
    base = f"persistent://public/default/{secrets.token_hex(4)}"
    partitioned(broker, f"{base}-partitions", 3)
    return base


def features(lines: str) -> dict[str, str]:
    """What a program said of each feature."""
    return dict(line.split(" ", 1) for line in lines.splitlines())


@pytest.fixture(scope="module")
def java(obtainable: None, broker: Broker) -> dict[str, str]:
    program = Path(__file__).with_name("java") / "Features.java"
    return features(run_java(program, broker.url, new_base(broker)))


@pytest.fixture(scope="module")
def go_features(go: Go, broker: Broker) -> dict[str, str]:
    return features(go("run", ".", new_base(broker), json.dumps(broker.describe())))


@pytest.fixture(scope="module")
def go_secure(go: Go, secure: Broker) -> dict[str, str]:
    return features(go("run", ".", new_base(secure), json.dumps(secure.describe())))


@pytest.mark.parametrize("feature", JAVA)
def test_java(java: dict[str, str], feature: str) -> None:
    assert java[feature] == "ok"


@pytest.mark.parametrize("feature", GO)
def test_go(go_features: dict[str, str], feature: str) -> None:
    assert go_features[feature] == GO[feature]


@pytest.mark.parametrize("feature", GO_SECURE)
def test_go_with_tls_and_tokens(go_secure: dict[str, str], feature: str) -> None:
    assert go_secure[feature] == GO_SECURE[feature]
