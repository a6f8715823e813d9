"""Records are what docs/json.md and docs/json.schema.json say, for every sample and for odd frames."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zlib
from base64 import b64decode
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pulsarctl_wire import Frame, read_events
from pulsarctl_wire.record import INSIDE, MAX_NOTES, MAX_SHOWN, RECORD_NAMES, Recorder
from pulsarctl_wire.render.jsonl import json_line
from pulsarctl_wire.views import MAX_FRAME_VALUES, parse_schema
from pulsarctl_wire.wire.fields import MAX_ITEMS
from pulsarctl_wire.wire.frame import Connection, Gap, Malformed, build_frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.payload import ESCAPED_COST, MESSAGE_COST, PROPERTY_COST, WIDE_COST, Budget
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    BaseCommand,
    BrokerEntryMetadata,
    CommandAck,
    CompressionType,
    KeySharedMode,
    MarkerType,
    MessageMetadata,
    SingleMessageMetadata,
)

ROOT = Path(__file__).parent.parent
SAMPLES = sorted(path for path in (ROOT / "samples" / "pcaps").iterdir() if ".pcap" in path.name)
SCHEMA = json.loads((ROOT / "docs" / "json.schema.json").read_text())
DOCUMENT = (ROOT / "docs" / "json.md").read_text()

VALIDATOR = Draft202012Validator(SCHEMA)

Record = dict[str, Any]


def _record(event: Any, **options: Any) -> Record:
    """The record of an event as it is read from a line of JSON, held against the schema."""
    line = json_line(Recorder(**options)(event))
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    record: Record = json.loads(line)
    problems = [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(record)]
    assert problems == [], line
    return record


@cache
def _records(sample: Path) -> list[Record]:
    return [_record(event) for event in read_events(sample)]


# -- the documents


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def _tables() -> dict[str, list[str]]:
    """The names in the first column of each table of the document that describes keys, by its heading."""
    tables: dict[str, list[str]] = {}
    heading, inside = "", False
    for line in DOCUMENT.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        inside = line.startswith("|") and (inside or line.startswith("| key |"))
        if inside and (cell := re.match(r"\| `(\w+)` \|", line)):
            tables.setdefault(heading, []).append(cell[1])
    return tables


def _names(kind: str) -> set[str]:
    return set(SCHEMA["$defs"][kind]["properties"])


def test_every_name_is_documented() -> None:
    tables = _tables()
    everywhere = set(tables["Every line"])
    assert everywhere | set(tables["A frame"]) == _names("frame")
    assert everywhere | set(tables["A malformed stretch"]) == _names("malformed")
    assert everywhere | set(tables["A gap"]) == _names("gap")
    assert set(tables["Messages"]) == _names("message")
    assert set(tables["Findings"]) == _names("finding") | _names("evidence")


def test_the_filter_knows_the_documented_names() -> None:
    names = [_names(kind) for kind in ("frame", "malformed", "gap", "http")]
    assert frozenset().union(*names) == RECORD_NAMES


def test_every_view_is_documented() -> None:
    views: set[str] = set()
    for choice in SCHEMA["$defs"]["payload"]["oneOf"]:
        view = choice.get("properties", {}).get("view", {})
        views |= {*view.get("enum", ()), *filter(None, [view.get("const")])}
    document = DOCUMENT.partition("### Payloads")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in document.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == views


def _expressions() -> list[str]:
    section = DOCUMENT.partition("## Asking")[2].partition("\n## ")[0]
    return re.findall(r"\| `([^|]+)` \|$", section, re.MULTILINE)


@pytest.mark.parametrize(
    "expression",
    _expressions(),
)
def test_the_documented_expressions_find_something(expression: str) -> None:
    from pulsarctl_wire.cli.capture.select import Expression

    wanted = Expression(expression, Recorder(answers=True))
    assert any(
        wanted.matches({"answer": None, **record} if record["number"] else record)
        for sample in SAMPLES
        for record in _records(sample)
    )


def _blocks() -> Iterator[Any]:
    """The shell commands of the document, each with the output shown below it."""
    for command, output in re.findall(r"```sh\n(.*?)```\n\n```text\n(.*?)```\n", DOCUMENT, re.DOTALL):
        yield pytest.param(command, output, id=shlex.split(command)[-1][:50])


@pytest.mark.parametrize(("command", "output"), [*_blocks()])
def test_the_documented_commands_print_what_is_shown(command: str, output: str) -> None:
    tools = Path(sys.executable).parent
    if not (tools / "pwire").exists():
        pytest.skip("the command pwire is not installed beside python")
    if "jq " in command and not shutil.which("jq"):
        pytest.skip("jq is not installed")
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"},
    )
    assert done.returncode == 0, done.stderr
    assert output
    assert done.stdout == output


# -- the samples


def test_outlines_are_records_without_what_is_inside() -> None:
    recorder = Recorder(answers=True)
    frames = [event for sample in SAMPLES for event in read_events(sample) if isinstance(event, Frame)]
    assert len(frames) > 1000
    for frame in frames:
        outline, record = recorder.outline(frame), recorder.frame(frame)
        assert list(outline) == list(record)
        assert outline == record | {name: outline[name] for name in INSIDE - {"decrypted"}}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_every_line_of_a_sample_fits_the_schema(sample: Path) -> None:
    assert _records(sample)
    numbers = [record["number"] for record in _records(sample) if record["number"] is not None]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_options_change_no_names(sample: Path) -> None:
    for event, plain in zip(read_events(sample), _records(sample), strict=True):
        shown = _record(event, show_secrets=True, answers=True, schema=parse_schema("json"))
        assert set(shown) - set(plain) == ({"answer"} if plain["number"] else set())


def test_the_samples_have_every_name() -> None:
    seen: set[str] = {"answer", "resend_of", "findings", "wireshark", "file", "decrypted"}
    in_messages: set[str] = {"null_value"}
    views: set[str] = set()
    for sample in SAMPLES:
        for record in _records(sample):
            seen |= set(record)
            for message in record.get("messages", ()):
                in_messages |= set(message)
                views.add(message["payload"]["view"])
    assert seen == RECORD_NAMES
    assert in_messages == _names("message")
    assert {
        "text",
        "hex",
        "json",
        "avro",
        "protobuf",
        "keyvalue",
        "int64",
        "double",
        "bool",
        "encrypted",
    } <= views


# -- frames made for the purpose


def _frames(*frames: bytes, to_broker: bool = True) -> list[Any]:
    stream = FrameStream(Connection(0, "10.0.0.1:50000", "10.0.0.2:6650"), to_broker)
    events = [*stream.feed(b"".join(frames), 1_700_000_000_000_000_000, 1), *stream.close()]
    for number, event in enumerate(events, start=1):
        if isinstance(event, Frame):
            event.number = number
    return events


def _frame(frame: bytes, *, to_broker: bool = True) -> Record:
    (event,) = _frames(frame, to_broker=to_broker)
    return _record(event)


def _send(metadata: MessageMetadata, payload: bytes = b"", **options: Any) -> bytes:
    base = BaseCommand(type=BaseCommand.SEND)
    base.send.producer_id = 1
    base.send.sequence_id = 2
    return build_frame(base, metadata, payload, **options)


def _metadata(**fields: Any) -> MessageMetadata:
    return MessageMetadata(producer_name="p", sequence_id=2, publish_time=1_700_000_000_000, **fields)


def test_integers_stay_exact() -> None:
    base = BaseCommand(type=BaseCommand.SEND_RECEIPT)
    receipt = base.send_receipt
    receipt.producer_id = 2**64 - 2
    receipt.sequence_id = 2**53 + 1
    receipt.message_id.ledgerId = 2**63
    receipt.message_id.entryId = 2**64 - 1
    receipt.message_id.partition = -1
    receipt.highest_sequence_id = 0
    fields = _frame(build_frame(base), to_broker=False)["fields"]
    assert fields == {
        "producer_id": 2**64 - 2,
        "sequence_id": 2**53 + 1,
        "message_id": {"ledgerId": 2**63, "entryId": -1, "partition": -1},
        "highest_sequence_id": 0,
    }


def test_enums_are_names_and_bytes_base64() -> None:
    base = BaseCommand(type=BaseCommand.SUBSCRIBE)
    subscribe = base.subscribe
    subscribe.topic, subscribe.subscription = "t", "s"
    subscribe.subType = subscribe.Key_Shared
    subscribe.consumer_id = subscribe.request_id = 1
    subscribe.schema.name = "n"
    subscribe.schema.type = subscribe.schema.Avro
    subscribe.schema.schema_data = b"\x00\xff"
    subscribe.keySharedMeta.keySharedMode = KeySharedMode.STICKY
    record = _frame(build_frame(base))
    assert record["fields"] == {
        "topic": "t",
        "subscription": "s",
        "subType": "Key_Shared",
        "consumer_id": 1,
        "request_id": 1,
        "schema": {"name": "n", "schema_data": "AP8=", "type": "Avro"},
        "keySharedMeta": {"keySharedMode": "STICKY"},
    }


def test_a_command_nobody_knows() -> None:
    # type 99, with a sub-message of its own in field 99
    command = b"\x08\x63" + b"\x9a\x06\x03abc"
    frame = (len(command) + 4).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command
    ping = BaseCommand(type=BaseCommand.PING)
    ping.ping.SetInParent()
    record = _record(_frames(build_frame(ping), frame)[1])
    assert record["command"] == "UNKNOWN(99)"
    assert record["fields"]["unknown_field_99"] == "YWJj"
    assert record["notes"] != []


def test_a_field_nobody_knows() -> None:
    base = BaseCommand(type=BaseCommand.PING)
    base.ping.MergeFromString(b"\xf8\x06\x05" + b"\xfa\x06\x02hi")
    record = _frame(build_frame(base))
    assert record["fields"] == {"unknown_field_111": [5, "aGk="]}
    assert any("unknown field 111" in note for note in record["notes"])


def test_a_message_with_all_it_can_have() -> None:
    metadata = _metadata(
        partition_key="azE=",
        partition_key_b64_encoded=True,
        ordering_key=b"\xffo",
        event_time=5,
        properties=[{"key": "a", "value": "1"}, {"key": "a", "value": "2"}],
    )
    record = _frame(_send(metadata, b"hello"))
    assert record["messages"] == [
        {
            "index": None,
            "key": "azE=",
            "properties": {"a": "2"},
            "event_time": 5,
            "size": 5,
            "payload": {"view": "text", "value": "hello"},
            "sequence_id": 2,
            "ordering_key": "\\xffo",
        }
    ]
    assert record["metadata"]["properties"] == [{"key": "a", "value": "1"}, {"key": "a", "value": "2"}]
    assert record["metadata"]["ordering_key"] == "/28="
    assert record["checksum"] == "valid"


def test_a_batch() -> None:
    payload = b""
    for text in (b"one", b"", b"\xff\xfe"):
        single = SingleMessageMetadata(payload_size=len(text), sequence_id=7, null_value=not text)
        head = single.SerializeToString()
        payload += len(head).to_bytes(4, "big") + head + text
    record = _frame(_send(_metadata(num_messages_in_batch=3), payload))
    assert [message["index"] for message in record["messages"]] == [0, 1, 2]
    assert [message["size"] for message in record["messages"]] == [3, 0, 2]
    assert [message["payload"] for message in record["messages"]] == [
        {"view": "text", "value": "one"},
        None,
        {"view": "hex", "value": "fffe"},
    ]
    assert record["messages"][1]["null_value"] is True
    assert record["notes"] == []


def test_a_payload_that_does_not_decompress() -> None:
    metadata = _metadata(compression=CompressionType.LZ4, uncompressed_size=99)
    record = _frame(_send(metadata, b"not LZ4"))
    assert record["messages"][0]["payload"] is None
    assert record["messages"][0]["size"] is None
    assert len(record["notes"]) == 1
    assert "LZ4" in record["notes"][0]


def test_an_encrypted_payload() -> None:
    metadata = _metadata(num_messages_in_batch=3)
    metadata.encryption_keys.add(key="agency", value=b"wrapped")
    record = _frame(_send(metadata, b"\x01\x02"))
    assert [message["payload"] for message in record["messages"]] == [
        {"view": "encrypted", "value": "0102", "keys": ["agency"]}
    ]
    assert record["notes"] == []


@pytest.mark.parametrize(
    "kind",
    [
        0,
        *MarkerType.values()[1:],
        99,
    ],
)
def test_a_marker(kind: int) -> None:
    record = _frame(_send(_metadata(marker_type=kind), b"\x0a\x01x"))
    payload = record["messages"][0]["payload"]
    assert payload["view"] == "marker"
    assert payload["value"]["type"] == (MarkerType.Name(kind) if kind != 99 else 99)  # type: ignore[arg-type]


def test_checksums() -> None:
    good = _send(_metadata(), b"hello")
    states = [
        (good, "valid"),
        (_send(_metadata(), b"hello", checksum=False), "absent"),
        (good[:-1] + b"!", "invalid"),
    ]
    for frame, state in states:
        record = _frame(frame)
        assert record["checksum"] == state
        assert bool(record["notes"]) is ("checksum_cause" in record) is (state == "invalid")


def test_broker_entry_metadata() -> None:
    base = BaseCommand(type=BaseCommand.MESSAGE)
    base.message.consumer_id = 1
    base.message.message_id.ledgerId = base.message.message_id.entryId = 3
    entry = BrokerEntryMetadata(broker_timestamp=4, index=2**64 - 2)
    record = _frame(build_frame(base, _metadata(), b"m", broker_entry=entry), to_broker=False)
    assert record["broker_entry_metadata"] == {"broker_timestamp": 4, "index": 2**64 - 2}


@pytest.mark.parametrize("cut", range(8, 56, 3))
def test_a_partial_frame(cut: int) -> None:
    whole = _send(_metadata(), b"hello, this is cut")
    assert len(whole) >= 56
    record = _frame(whole[:cut])
    assert record["partial"] is True
    assert record["checksum"] is None
    assert record["messages"] == []
    assert record["total_size"] == len(whole) - 4
    assert record["command"] == ("?" if cut < 8 + 8 else "SEND")
    assert record["notes"] == [f"cut: {cut} of {len(whole)} bytes"]


def test_a_malformed_stretch() -> None:
    connection = Connection(3, "10.0.0.1:50000", "10.0.0.2:6650")
    record = _record(Malformed("no frame", bytes(5000), 70_000, connection, True, packet=9))
    assert record == {
        "number": None,
        "time_ns": None,
        "connection": 3,
        "to_broker": True,
        "packet": 9,
        "client": "10.0.0.1:50000",
        "server": "10.0.0.2:6650",
        "malformed": "no frame",
        "size": 70_000,
        "bytes": record["bytes"],
    }
    assert b64decode(record["bytes"], validate=True) == b"*" * 4096


def test_a_gap() -> None:
    record = _record(Gap(12, Connection(0), False, time_ns=5))
    assert record == {
        "number": None,
        "time_ns": 5,
        "connection": 0,
        "to_broker": False,
        "packet": 0,
        "client": "",
        "server": "",
        "gap": 12,
    }


def test_a_chunked_message_is_in_the_line_of_its_last_chunk(tmp_path: Path) -> None:
    frames = b""
    for chunk, part in enumerate((b"one ", b"two ", b"three")):
        metadata = _metadata(uuid="p-2", num_chunks_from_msg=3, chunk_id=chunk, total_chunk_msg_size=13)
        frames += _send(metadata, part)
    (tmp_path / "frames").write_bytes(frames)
    records = [_record(event) for event in read_events(tmp_path / "frames")]
    assert [[message["payload"] for message in record["messages"]] for record in records] == [
        [],
        [],
        [{"view": "text", "value": "one two three"}],
    ]
    assert records[2]["messages"][0]["size"] == 13


def test_missing_required_fields_are_noted() -> None:
    base = BaseCommand(type=BaseCommand.PRODUCER)
    base.producer.MergeFromString(b"\x10\x01")  # a producer_id alone
    command = base.SerializePartialToString()
    frame = (len(command) + 4).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command
    record = _frame(frame)
    assert record["fields"] == {"producer_id": 1}
    assert record["notes"] == ["CommandProducer lacks request_id, topic"]


# -- bounds of a frame, and of all that is opened


def _batch(count: int, payload: bytes = b"") -> bytes:
    single = SingleMessageMetadata(payload_size=len(payload)).SerializeToString()
    return (len(single).to_bytes(4, "big") + single + payload) * count


def test_what_was_opened_for_too_few_bytes_is_left_unopened_and_counted() -> None:
    small = {"compression": CompressionType.ZLIB, "uncompressed_size": 1000}
    (frame,) = _frames(_send(_metadata(**small), zlib.compress(bytes(1000))))
    budget = Budget()
    budget.left = 2500
    recorder = Recorder(budget=budget)
    records = [recorder(frame) for _ in range(3)]
    assert [record["messages"][0]["size"] for record in records] == [1000, 1000, None]
    assert records[2]["notes"] == [
        "1000 bytes left compressed: too much was opened for so few bytes read (--payload-ratio)"
    ]
    assert budget.unopened == 1


def test_a_budget_grows_with_what_is_read() -> None:
    budget = Budget(ratio=10)
    budget.count_input(Budget.FREE)
    assert budget.left == Budget.START
    budget.count_input(100)
    assert budget.left == Budget.START + 1000


def test_messages_cost_of_the_budget() -> None:
    budget = Budget()
    budget.left = 3 * MESSAGE_COST
    (frame,) = _frames(_send(_metadata(num_messages_in_batch=5), _batch(5)))
    record = Recorder(budget=budget)(frame)
    assert len(record["messages"]) == 3
    assert "3 of 5 messages opened" in record["notes"][0]
    assert budget.unopened == 1


def test_payloads_are_shown_up_to_a_bound() -> None:
    size = MAX_SHOWN // 2 - 100  # their metadata counts as well
    payload = _batch(3, b"x" * size)
    fields = {"compression": CompressionType.ZLIB, "uncompressed_size": len(payload)}
    (frame,) = _frames(_send(_metadata(num_messages_in_batch=3, **fields), zlib.compress(payload)))
    record = Recorder()(frame)
    assert [message["payload"] is not None for message in record["messages"]] == [True, True, False]
    assert [message["size"] for message in record["messages"]] == [size] * 3
    assert record["notes"] == [f"messages are not shown beyond {MAX_SHOWN} bytes of a frame"]


@pytest.mark.parametrize(("text", "shown"), [("x", 2), ("é", 1)])
def test_payloads_that_are_not_ascii_count_twice(text: str, shown: int) -> None:
    payload = _batch(2, text.encode() * (MAX_SHOWN // 3 // len(text.encode())))
    fields = {"compression": CompressionType.ZLIB, "uncompressed_size": len(payload)}
    (frame,) = _frames(_send(_metadata(num_messages_in_batch=2, **fields), zlib.compress(payload)))
    budget = Budget()
    record = Recorder(budget=budget)(frame)
    assert [message["payload"] is not None for message in record["messages"]] == [True, True][:shown] + [
        False
    ] * (2 - shown)
    spent = Budget.START - budget.left - len(payload)
    assert (spent > WIDE_COST * len(payload) // 2 - 100) == (text == "é")


def test_keys_and_properties_are_shown_up_to_a_bound() -> None:
    single = SingleMessageMetadata(payload_size=1, partition_key="k" * 1_000_000)
    single.properties.add(key="a", value="b")
    head = single.SerializeToString()
    payload = (len(head).to_bytes(4, "big") + head + b"x") * 10
    fields = {"compression": CompressionType.ZLIB, "uncompressed_size": len(payload)}
    (frame,) = _frames(_send(_metadata(num_messages_in_batch=10, **fields), zlib.compress(payload)))
    record = Recorder()(frame)
    assert [message["key"] is not None for message in record["messages"]] == [True] * 8 + [False] * 2
    assert [message["properties"] for message in record["messages"]] == [{"a": "b"}] * 8 + [{}] * 2
    assert [message["payload"] is not None for message in record["messages"]] == [True] * 8 + [False] * 2
    assert [message["size"] for message in record["messages"]] == [1] * 10
    assert record["notes"] == [f"messages are not shown beyond {MAX_SHOWN} bytes of a frame"]


@pytest.mark.parametrize("field", ["partition_key", "ordering_key", "key", "value"])
def test_metadata_costs_of_the_budget_and_more_if_it_is_no_utf_8(field: str) -> None:
    def cost(text: bytes) -> int:
        single = SingleMessageMetadata(payload_size=0)
        pair = single.properties.add(key="", value="")
        length = len(text).to_bytes(1, "big")
        if field in ("key", "value"):
            pair.MergeFromString((b"\x0a" if field == "key" else b"\x12") + length + text)
        else:
            single.MergeFromString((b"\x12" if field == "partition_key" else b"\x3a") + length + text)
        head = single.SerializeToString()
        (frame,) = _frames(_send(_metadata(num_messages_in_batch=1), len(head).to_bytes(4, "big") + head))
        budget = Budget()
        Recorder(budget=budget)(frame)
        return (Budget.START - budget.left - MESSAGE_COST - PROPERTY_COST) // len(head)

    assert cost(b"x" * 100) == WIDE_COST
    assert cost(b"x" * 99 + b"\xff") == WIDE_COST + ESCAPED_COST


def test_a_marker_that_is_no_utf_8() -> None:
    marker = b"\x0a" + b"\x7f" + b"\xff" * 127
    fields = {"marker_type": MarkerType.REPLICATED_SUBSCRIPTION_SNAPSHOT_REQUEST}
    (frame,) = _frames(_send(_metadata(**fields), marker))
    budget = Budget()
    record = Recorder(budget=budget)(frame)
    assert record["messages"][0]["payload"]["value"]["snapshot_id"] == r"\xff" * 127
    assert Budget.START - budget.left == 127 * ESCAPED_COST + WIDE_COST * len(marker)


def test_values_are_built_up_to_a_bound_of_the_frame() -> None:
    endless = b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"  # the items of an array
    (frame,) = _frames(_send(_metadata(num_messages_in_batch=8), _batch(8, endless)))
    schema = parse_schema("avro:" + json.dumps({"type": "array", "items": "null"}))
    record = Recorder(schema=schema)(frame)
    sizes = [len(message["payload"]["value"]) for message in record["messages"]]
    assert sizes[:4] == [100_000] * 4
    assert sum(sizes) <= MAX_FRAME_VALUES
    assert all("Cut" in note for note in record["notes"])


def test_items_and_notes_are_shown_up_to_a_bound() -> None:
    base = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)
    base.getTopicsOfNamespaceResponse.request_id = 1
    base.getTopicsOfNamespaceResponse.topics.extend([""] * (MAX_ITEMS + 5))
    record = _frame(build_frame(base), to_broker=False)
    assert len(record["fields"]["topics"]) == MAX_ITEMS
    assert record["notes"] == [f"only {MAX_ITEMS} of {MAX_ITEMS + 5} items are shown"]
    (frame,) = _frames(_send(_metadata(num_messages_in_batch=300), b"\x00\x00\x00\x00" * 300))
    record = Recorder()(frame)
    assert len(record["notes"]) == MAX_NOTES + 1
    assert record["notes"][-1].endswith("notes more")


def test_notes_are_those_of_the_record_however_deep() -> None:
    unknown = b"\x98\x06\x01"  # field 99
    ack = BaseCommand(type=BaseCommand.ACK)
    ack.ack.consumer_id, ack.ack.ack_type = 1, CommandAck.Individual
    ack.ack.message_id.add().ParseFromString(b"\x08\x01\x10\x02" + unknown)
    metadata = _metadata()
    metadata.properties.add().ParseFromString(b"\x0a\x01k\x12\x01v" + unknown)
    frames = _frames(build_frame(ack) + _send(metadata, b"x"))
    for frame, name in zip(frames, ("MessageIdData", "KeyValue"), strict=True):
        expected = [f"{name} has the unknown field 99"]
        assert Recorder().notes(frame) == Recorder()(frame)["notes"] == expected
