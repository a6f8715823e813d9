"""What pwire produces the official Python client consumes, and the other way round."""

from __future__ import annotations

import json
import random
from base64 import b64decode, b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.source_context_pb2 import SourceContext
from interop.brokers import Broker
from interop.test_produce import Recorded, done, records, stored, values, wheel

if TYPE_CHECKING:
    from interop.conftest import Pwire

CODECS = ["none", "lz4", "zlib", "zstd", "snappy"]

FORMS: dict[str, list[object]] = {
    "batched": ["-b", 10_000],
    "alone": ["-db"],
    "chunked": ["-c", "--chunk-size", 300],
}
"""Ways to send messages, and pwire's options for them."""

ENTRIES = {"batched": [4], "alone": [1] * 4, "chunked": [1, 0, 0, 0, 1, 1, 1]}
"""Messages of each entry that become of `ENVELOPES`; of chunks the last one has the message."""

BINARY = random.Random(1).randbytes(1000)
ENVELOPES: list[dict[str, Any]] = [
    {
        **{"payload": "grüße", "key": "kéy", "ordering_key": "oo", "event_time": 1_500_000_000_000},
        "properties": {"a": "1", "b": "ü"},
    },
    {"payload_base64": b64encode(BINARY).decode(), "key_base64": "AP8H"},
    {"payload": ""},
    {"payload": None, "key": "gone"},
]
"""Messages as `pwire produce --json` takes them."""

Facts = tuple[bytes, "str | None", bool, "str | None", dict[str, str], int]
"""Of a message: payload, key, whether that is base64, ordering key, properties, event time."""


def envelope_facts(envelope: dict[str, Any]) -> Facts:
    """Of a message to `produce --json`, or from `consume -o json`."""
    binary = envelope.get("payload_base64")
    return (
        (envelope["payload"] or "").encode() if binary is None else b64decode(binary),
        envelope.get("key_base64") or envelope.get("key"),
        envelope.get("key_base64") is not None,
        envelope.get("ordering_key"),
        envelope.get("properties", {}),
        envelope.get("event_time") or 0,
    )


def wheel_facts(message: Any) -> Facts:
    """The same of a message of the wheel, which does not tell of binary keys."""
    key = message.partition_key() or None
    ordering = message.ordering_key() or None
    return message.data(), key, key == "AP8H", ordering, message.properties(), message.event_timestamp()


def source_context_schema(folder: Path) -> str:
    """A schema as pwire takes it, of a message that every Protobuf library has."""
    files = FileDescriptorSet()
    SourceContext.DESCRIPTOR.file.CopyToProto(files.file.add())
    (folder / "descriptors").write_bytes(files.SerializeToString())
    return f"protobuf:{folder / 'descriptors'}:google.protobuf.SourceContext"


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("form", FORMS)
def test_the_wheel_reads_what_pwire_sends(
    broker: Broker, topic: str, pwire: Pwire, tmp_path: Path, codec: str, form: str
) -> None:
    options = ["--compression", codec, *FORMS[form], "--record", tmp_path / "capture"]
    # the wheel cannot read empty payloads that are compressed by zlib, its own neither
    some = ENVELOPES[:2] if codec == "zlib" and form != "batched" else ENVELOPES
    done(pwire("produce", topic, "--json", *options, stdin="\n".join(map(json.dumps, some))))
    entries = ENTRIES[form] if some is ENVELOPES else ENTRIES[form][:-2]
    assert Recorded(tmp_path / "capture").counts == entries
    messages = stored(broker, topic)
    assert [wheel_facts(each) for each in messages] == [envelope_facts(each) for each in some]
    assert [each.has_null_value() for each in messages] == [False, False, False, True][: len(some)]


@pytest.mark.parametrize("form", ["batched", "alone"])
def test_pwire_reads_what_the_wheel_sends(broker: Broker, topic: str, pwire: Pwire, form: str) -> None:
    with wheel(broker) as client:
        for codec in CODECS:
            producer = client.create_producer(
                topic,
                compression_type=getattr(pulsar.CompressionType, {"zlib": "ZLib"}.get(codec, codec.upper())),
                batching_enabled=form == "batched",
                batching_max_publish_delay_ms=60_000,
            )
            for each in ENVELOPES[:3]:
                data, key, _, ordering, properties, event_time = envelope_facts(each)
                more = {"partition_key": key, "ordering_key": ordering, "properties": properties}
                producer.send_async(data, lambda result, _: None, event_timestamp=event_time or None, **more)
            producer.flush()
    wanted = [envelope_facts(each) for each in ENVELOPES[:3]]
    wanted[1] = (*wanted[1][:2], False, *wanted[1][3:])  # the wheel sends keys as text
    run = pwire("consume", topic, "-s", "s", "-p", "Earliest", "-n", 0, "-e", "-o", "json")
    found = records(done(run))
    assert [envelope_facts(each) for each in found] == wanted * len(CODECS)
    indexes = [0, 1, 2] if form == "batched" else [None] * 3
    assert [each["batch_index"] for each in found] == indexes * len(CODECS)


def test_pwire_reads_the_chunks_of_the_wheel(broker: Broker, topic: str, pwire: Pwire) -> None:
    payload = random.Random(2).randbytes(11_000_000)
    with wheel(broker) as client:
        zstd = pulsar.CompressionType.ZSTD
        producer = client.create_producer(topic, chunking_enabled=True, compression_type=zstd)
        producer.send(payload, partition_key="k", properties={"a": "1"})
    run = pwire("consume", topic, "-s", "s", "-p", "Earliest", "-o", "json")
    (found,) = records(done(run))
    assert envelope_facts(found) == (payload, "k", False, None, {"a": "1"}, 0)
    first, last = found["id"].split("…")
    assert (first.rpartition(":")[2], last.rpartition(":")[2]) == ("0", "2")


def test_texts(broker: Broker, topic: str, pwire: Pwire) -> None:
    schema = pulsar.schema.StringSchema()
    done(pwire("produce", topic, "--schema", "string", "-m", "grüße"))
    with wheel(broker) as client:
        client.create_producer(topic, schema=schema).send("zurück")
    assert values(broker, topic, schema) == ["grüße", "zurück"]
    found = records(done(pwire("consume", topic, "-s", "s", "-p", "Earliest", "-n", 2, "-o", "json")))
    assert [(each["view"], each["payload"]) for each in found] == [("text", "grüße"), ("text", "zurück")]


def test_protobuf(broker: Broker, topic: str, pwire: Pwire, tmp_path: Path) -> None:
    schema = pulsar.schema.ProtobufNativeSchema(SourceContext)
    with wheel(broker) as client:
        client.create_producer(topic, schema=schema).send(SourceContext(file_name="theirs"))
    kind = source_context_schema(tmp_path)
    done(pwire("produce", topic, "--schema", kind, "-m", '{"file_name": "ours"}'))
    done(pwire("produce", topic, "--schema", "auto", "-m", '{"file_name": "ours too"}'))
    texts = ["theirs", "ours", "ours too"]
    assert [each.file_name for each in values(broker, topic, schema)] == texts
    found = records(done(pwire("consume", topic, "-s", "s", "-p", "Earliest", "-n", 3, "-o", "json")))
    assert [each["payload"] for each in found] == [{"file_name": text} for text in texts]
