"""What pwire produces the Java client consumes, and the other way round; refused messages too."""

from __future__ import annotations

import json
import secrets
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from interop.brokers import Broker, run_java
from interop.conftest import Pwire
from interop.test_clients_wheel import (
    CODECS,
    ENTRIES,
    ENVELOPES,
    FORMS,
    Facts,
    envelope_facts,
    source_context_schema,
)
from interop.test_produce import RECORD, Recorded, done, records

pytestmark = pytest.mark.usefixtures("obtainable")

CLIENTS = Path(__file__).with_name("java") / "Clients.java"
ORDER = {"what": "tea", "count": 2}
AVRO = "avro:" + json.dumps(RECORD)
PAIR = {"key": "k", "value": ORDER}
KINDS = {
    "string": ("string", "grüße", "grüße"),
    "int64": ("int64", "42", "42"),
    "json": ("json:" + json.dumps(RECORD), json.dumps(ORDER), '{"what":"tea","count":2}'),
    "avro": (AVRO, json.dumps(ORDER), '{"what": "tea", "count": 2}'),
    "protobuf": ("", '{"file_name": "tea"}', 'file_name: "tea"'),
    "keyvalue-INLINE": (
        *(f"keyvalue:string,{AVRO}", json.dumps({"key": "k", "value": ORDER})),
        'k = {"what": "tea", "count": 2}',
    ),
    "keyvalue-SEPARATED": (
        *(f"keyvalue-separated:string,{AVRO}", json.dumps({"key": "k", "value": ORDER})),
        'k = {"what": "tea", "count": 2}',
    ),
}
"""Schemas: how pwire takes them and a value, and how Java shows that."""

Messages = dict[str, list[dict[str, Any]]]
"""By the ends of their topics' names."""

REFUSED = ["dead-s-DLQ", "retried-s-RETRY", "retried-s-DLQ"]
"""Topics of refused messages."""


def java(broker: Broker, base: str, verb: str, *topics: str) -> Messages:
    """Run the Java program; give the messages that it read, of topics that begin with `base`."""
    found: Messages = {}
    for each in records(run_java(CLIENTS, verb, broker.url, *topics)):
        found.setdefault(each["topic"].removeprefix(f"{base}-"), []).append(each)
    return found


def java_facts(message: dict[str, Any]) -> Facts:
    data = b64decode(message["data"] or "")
    key, ordering = message["key"], message["ordering_key"]
    return data, key, message["binary_key"], ordering, message["properties"], message["event_time"]


@pytest.fixture(scope="module")
def base() -> str:
    """What the names of all topics begin with."""
    return f"persistent://public/default/{secrets.token_hex(4)}"


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest) -> Pwire:
    """The fixture `pwire`, for a module."""
    return Pwire(request)


# -- Java to pwire


@pytest.fixture(scope="module")
def produced(broker: Broker, base: str, run: Pwire) -> tuple[Messages, Messages]:
    """What Java produced, as Java reads it and as pwire does."""
    theirs = java(broker, f"{base}-java", "produce", f"{base}-java")
    options = ["-s", "s", "-p", "Earliest", "-n", 0, "-e", "-o", "json"]
    ours: Messages = {}
    for each in records(done(run("consume", *(f"{base}-java-{name}" for name in theirs), *options))):
        ours.setdefault(each["topic"].removeprefix(f"{base}-java-"), []).append(each)
    return theirs, ours


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("form", FORMS)
def test_pwire_reads_what_java_sends(produced: tuple[Messages, Messages], codec: str, form: str) -> None:
    theirs, ours = (each[f"{form}-{codec.upper()}"] for each in produced)
    assert [envelope_facts(each) for each in ours] == [java_facts(each) for each in theirs]
    assert len(ours) == 4
    assert [each["view"] == "null" for each in ours] == [False, False, False, True]
    assert [each["batch_index"] for each in ours] == ([0, 1, 2, 3] if form == "batched" else [None] * 4)
    assert ["…" in each["id"] for each in ours] == [False, form == "chunked", False, False]


@pytest.mark.parametrize(
    ("name", "view", "payload"),
    [
        ("string", "text", "grüße"),
        ("int64", "int64", 42),
        ("json", "json", ORDER),
        ("avro", "avro", ORDER),
        ("protobuf", "protobuf", {"file_name": "tea"}),
        ("keyvalue-INLINE", "keyvalue", PAIR),
        ("keyvalue-SEPARATED", "keyvalue", PAIR),
    ],
)
def test_pwire_reads_what_java_encodes(
    produced: tuple[Messages, Messages], name: str, view: str, payload: object
) -> None:
    (ours,) = produced[1][name]
    assert (ours["view"], ours["payload"], ours["schema_version"]) == (view, payload, 0)


# -- pwire to Java


@pytest.fixture(scope="module")
def consumed(broker: Broker, base: str, run: Pwire, tmp_path_factory: pytest.TempPathFactory) -> Messages:
    """What pwire produced, and refused, as Java reads it."""
    place = tmp_path_factory.mktemp("java")
    base = f"{base}-pwire"
    lines = "\n".join(map(json.dumps, ENVELOPES))
    native = source_context_schema(place)

    def send(name: str, form: str, codec: str) -> None:
        options = [*FORMS[form], "--compression", codec, "--record", place / name]
        done(run("produce", f"{base}-{name}", "--json", *options, stdin=lines))
        assert Recorded(place / name).counts == ENTRIES[form]

    def encode(name: str, kind: str, text: str) -> None:
        done(run("produce", f"{base}-{name}", "--schema", kind or native, "-m", text))

    def refuse(name: str, *options: str) -> None:
        told = ["-k", "k", "--ordering-key", "o", "-p", "a=1", "--event-time", 5]
        bad = '{"what": "bad", "count": 1}'
        done(run("produce", f"{base}-{name}", "--schema", AVRO, "-m", bad, *told))
        refusing = ["-t", "Shared", "-s", "s", "-p", "Earliest", "--nack", "true", "--nack-delay", 0.1]
        done(run("consume", f"{base}-{name}", *refusing, "--max-redeliver", 2, "-n", 3, *options))

    with ThreadPoolExecutor(2) as pool:
        jobs = [
            *(pool.submit(send, f"{form}-{codec}", form, codec) for codec in CODECS for form in FORMS),
            *(pool.submit(encode, name, kind, text) for name, (kind, text, _) in KINDS.items()),
            pool.submit(refuse, "dead"),
            pool.submit(refuse, "retried", "--retry"),
        ]
    for job in jobs:
        job.result()
    names = [*(f"{form}-{codec}" for codec in CODECS for form in FORMS), *KINDS, *REFUSED]
    return java(broker, base, "consume", *(f"{base}-{name}" for name in names))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("form", FORMS)
def test_java_reads_what_pwire_sends(consumed: Messages, codec: str, form: str) -> None:
    theirs = consumed[f"{form}-{codec}"]
    assert [java_facts(each) for each in theirs] == [envelope_facts(each) for each in ENVELOPES]
    assert [each["data"] is None for each in theirs] == [False, False, False, True]


@pytest.mark.parametrize("name", KINDS)
def test_java_reads_what_pwire_encodes(consumed: Messages, name: str) -> None:
    (theirs,) = consumed[name]
    assert theirs["value"] == KINDS[name][2]
    named = {"protobuf": "PROTOBUF_NATIVE"}.get(name, name)
    assert theirs["schema"] == ("KEY_VALUE" if named.startswith("keyvalue") else named.upper())


# -- what is refused


@pytest.fixture(scope="module")
def refused(broker: Broker, base: str) -> Messages:
    """What Java sent to dead letter and retry topics."""
    return java(broker, f"{base}-java", "refuse", f"{base}-java-dead", f"{base}-java-retried")


def comparable(messages: list[dict[str, Any]], base: str) -> list[dict[str, Any]]:
    """Messages without what must differ."""
    kept = ("key", "ordering_key", "event_time", "properties")
    for each in messages:
        each["properties"]["REAL_TOPIC"] = each["properties"]["REAL_TOPIC"].removeprefix(base)
        for name in ("ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_IDY_TIME"):
            ledger, _, place = each["properties"][name].partition(":")
            assert ledger.isdigit()
            each["properties"][name] = place
    return [{name: each[name] for name in kept} for each in messages]


@pytest.mark.parametrize("topic", ["dead-s-DLQ", "retried-s-RETRY", "retried-s-DLQ"])
def test_refused_messages_are_as_javas(refused: Messages, consumed: Messages, base: str, topic: str) -> None:
    ours = comparable(consumed[topic], f"{base}-pwire")
    assert ours == comparable(refused[topic], f"{base}-java")
    assert len(ours) == (2 if topic.endswith("RETRY") else 1)


@pytest.mark.parametrize("topic", REFUSED)
def test_refused_messages_keep_their_schema(refused: Messages, consumed: Messages, topic: str) -> None:
    assert {each["schema"] for each in refused[topic]} == {"AVRO"}
    assert {each.get("schema") for each in consumed[topic]} == {"AVRO"}
