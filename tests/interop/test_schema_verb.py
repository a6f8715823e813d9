"""`pwire schema` against a broker: what is registered, and what it says of it."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

from interop.brokers import Broker
from interop.conftest import Pwire

INT = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
MORE = INT.replace("}]}", '},{"name":"b","type":["null","int"],"default":null}]}')
TEXT = INT.replace('"int"', '"string"')


def record(run: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def put(pwire: Pwire, topic: str, schema: str) -> int:
    return int(record(pwire("schema", "put", topic, schema, "-o", "json"))["version"])


def test_a_schema_is_registered_once(pwire: Pwire, topic: str) -> None:
    assert put(pwire, topic, f"avro:{INT}") == 0
    assert put(pwire, topic, f"avro:{INT}") == 0
    assert put(pwire, topic, f"avro:{MORE}") == 1
    assert pwire("schema", "put", topic, f"avro:{INT}").stdout == f"{topic}: Avro, version 0\n"


def test_every_version_can_be_read(pwire: Pwire, topic: str) -> None:
    for schema in (INT, MORE):
        put(pwire, topic, f"avro:{schema}")
    first = record(pwire("schema", "get", topic, "--version", 0, "-o", "json"))
    newest = record(pwire("schema", "get", topic, "-o", "json"))
    assert (first["version"], newest["version"]) == (0, 1)
    assert (first["definition"], newest["definition"]) == (json.loads(INT), json.loads(MORE))
    assert first["topic"] == topic
    assert first["type"] == "Avro"
    assert first["name"] == topic.partition("://")[2]
    assert first["properties"] == {}
    assert base64.b64decode(first["schema_data"]).decode() == INT
    assert record(pwire("schema", "get", topic, "--version", "latest", "-o", "json")) == newest


def test_text_and_raw(pwire: Pwire, topic: str) -> None:
    put(pwire, topic, f"avro:{INT}")
    shown = pwire("schema", "get", topic).stdout
    assert shown.startswith(f"topic: {topic}\ntype: Avro\n")
    assert "version: 0\n" in shown
    assert json.loads(shown[shown.index("{") :]) == json.loads(INT)
    assert pwire("schema", "get", topic, "--raw").stdout == INT


def test_a_definition_in_a_file(pwire: Pwire, topic: str, tmp_path: Path) -> None:
    (tmp_path / "r.avsc").write_text(INT)
    assert put(pwire, topic, f"json:{tmp_path / 'r.avsc'}") == 0
    assert record(pwire("schema", "get", topic, "-o", "json"))["type"] == "Json"


def test_without_definition(pwire: Pwire, topic: str) -> None:
    put(pwire, topic, "string")
    assert pwire("schema", "get", topic).stdout.splitlines()[1:] == [
        "type: String",
        f"name: {topic.partition('://')[2]}",
        "version: 0",
    ]


def test_key_and_value(pwire: Pwire, topic: str) -> None:
    put(pwire, topic, f"keyvalue:string,avro:{INT}")
    found = record(pwire("schema", "get", topic, "-o", "json"))
    assert found["definition"] == {"key": None, "value": json.loads(INT)}
    assert found["properties"]["kv.encoding.type"] == "INLINE"
    assert "property kv.encoding.type: INLINE" in pwire("schema", "get", topic).stdout.splitlines()


def test_partitions_share_the_schemas_of_their_topic(pwire: Pwire, broker: Broker, topic: str) -> None:
    broker.rest("PUT", f"/admin/v2/{topic.replace('://', '/')}/partitions", 2)
    assert put(pwire, topic, f"avro:{INT}") == 0
    for name in (topic, f"{topic}-partition-1"):
        assert record(pwire("schema", "get", name, "-o", "json"))["definition"] == json.loads(INT)


def test_a_loaded_topic_needs_no_producer(pwire: Pwire, topic: str) -> None:
    put(pwire, topic, f"avro:{INT}")
    run = pwire("schema", "put", topic, f"avro:{MORE}", "--trace")
    assert "GET_OR_CREATE_SCHEMA" in run.stderr
    assert " PRODUCER " not in run.stderr


def test_an_incompatible_schema(pwire: Pwire, topic: str) -> None:
    put(pwire, topic, f"avro:{INT}")
    run = pwire("schema", "put", topic, f"avro:{TEXT}")
    assert (run.returncode, run.stdout) == (7, "")
    assert "IncompatibleSchema" in run.stderr


def test_no_such_schema(pwire: Pwire, topic: str) -> None:
    put(pwire, topic, f"avro:{INT}")
    for arguments in ((f"{topic}-other",), (topic, "--version", 7)):
        run = pwire("schema", "get", *arguments)
        assert run.returncode == 7
        assert "TopicNotFound" in run.stderr


def test_what_makes_no_sense(pwire: Pwire, topic: str) -> None:
    for arguments, said in (
        (("get", topic, "--version", "first"), "--version first"),
        (("get", topic, "--raw", "-o", "json"), "cannot be combined"),
        (("put", topic, "bytes"), "is not a schema"),
        (("put", topic, "avro:{"), "cannot be used"),
        (("put", topic, "nonsense"), "unknown schema type"),
    ):
        run = pwire("schema", *arguments)
        assert run.returncode == 2
        assert said in run.stderr
