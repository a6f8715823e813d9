"""Lines of a script: the record of a frame gives its bytes again, and mistakes are made as asked for."""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import message_frames, request_frames, send_frames

from pulsarctl_wire.record import RECORD_NAMES, Recorder
from pulsarctl_wire.render.jsonl import json_line
from pulsarctl_wire.wire.commands import BODIES, NUMBERS, build_command
from pulsarctl_wire.wire.entry import Batch, Outgoing, Stamp, chunk, single_entry
from pulsarctl_wire.wire.frame import Connection, Frame, build_frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.json_command import DESCRIPTIVE_NAMES, Expect, Wait, parse_line
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, CompressionType, MessageMetadata, Schema

SENDING = {"type": "SEND", "send": {"producer_id": 1, "sequence_id": 2}}
METADATA = {"producer_name": "p", "sequence_id": 2, "publish_time": 1000}
PING = "000000090000000508129201 00"


def frame_of(data: bytes, schema: Schema | None = None) -> Frame:
    stream = FrameStream(Connection(0), True)
    (frame,) = [*stream.feed(data, 0), *stream.close()]
    assert isinstance(frame, Frame)
    frame.schema = schema
    return frame


def record(data: bytes, schema: Schema | None = None, **options: Any) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(json_line(Recorder(**options)(frame_of(data, schema))))
    return line


def parsed(*parts: dict[str, Any]) -> bytes:
    """The bytes of a line of all these names."""
    data = parse_line(json.dumps({name: value for part in parts for name, value in part.items()}))
    assert isinstance(data, bytes)
    return data


def refusal(line: str | dict[str, Any]) -> str:
    with pytest.raises(ValueError, match=r"\w") as caught:
        parse_line(line if isinstance(line, str) else json.dumps(line))
    (text,) = str(caught.value).splitlines()
    return text


# -- there and back


def scalars(field: Any) -> st.SearchStrategy[Any]:
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return st.sampled_from([each.number for each in field.enum_type.values])
    return {
        FieldDescriptor.CPPTYPE_UINT64: st.integers(0, 2**64 - 1),
        FieldDescriptor.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1),
        FieldDescriptor.CPPTYPE_UINT32: st.integers(0, 2**32 - 1),
        FieldDescriptor.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1),
        FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
        FieldDescriptor.CPPTYPE_DOUBLE: st.floats(allow_nan=False, allow_infinity=False),
        FieldDescriptor.CPPTYPE_STRING: st.binary(max_size=9)
        if field.type == FieldDescriptor.TYPE_BYTES
        else st.text(max_size=9),
    }[field.cpp_type]


def filled(draw: Callable[[st.SearchStrategy[Any]], Any], message: Message) -> None:
    """Give a message some of its fields, required or not."""
    message.SetInParent()
    fields = list(message.DESCRIPTOR.fields)
    for field in draw(st.lists(st.sampled_from(fields), unique=True)) if fields else ():
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            value = getattr(message, field.name)
            for part in [value.add() for _ in range(2)] if field.is_repeated else [value]:
                filled(draw, part)
        elif field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(scalars(field), max_size=3)))
        else:
            setattr(message, field.name, draw(scalars(field)))


def assembled(command: bytes) -> bytes:
    return struct.pack(">II", len(command) + 4, len(command)) + command


@st.composite
def commands(draw: st.DrawFn) -> BaseCommand:
    """A command of any type but those that carry payloads, with any fields."""
    number = draw(
        st.sampled_from([each for name, each in NUMBERS.items() if name not in ("SEND", "MESSAGE")])
    )
    base = BaseCommand(type=number)  # type: ignore[arg-type]
    filled(draw, getattr(base, BODIES[number]))
    return base


@given(st.one_of(send_frames(), request_frames(), message_frames()))
def test_the_record_of_a_frame_gives_its_bytes_again(data: bytes) -> None:
    assert parsed(record(data)) == data


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(commands())
def test_the_record_of_any_command_gives_its_bytes_again(base: BaseCommand) -> None:
    data = assembled(base.SerializePartialToString())
    assert parsed(record(data, show_secrets=True)) == data


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(commands(), st.booleans())
def test_protobufs_own_json_gives_the_bytes_too(base: BaseCommand, keep_names: bool) -> None:
    data = assembled(base.SerializePartialToString())
    line = MessageToJson(base, indent=None, preserving_proto_field_name=keep_names)
    assert parse_line(line) == data


@given(st.data())
def test_any_metadata_comes_back(data: st.DataObject) -> None:
    metadata = MessageMetadata()
    filled(data.draw, metadata)
    for name in ("compression", "num_messages_in_batch", "num_chunks_from_msg", "encryption_keys"):
        metadata.ClearField(name)
    metadata.ClearField("marker_type")
    metadata.ClearField("null_value")
    for each in metadata.properties:
        each.key, each.value = each.key, each.value  # both are there
    head = metadata.SerializePartialToString()
    command = parsed(SENDING)[8:]
    entry = struct.pack(">I", len(head)) + head + b"payload"
    entry = b"\x0e\x01" + struct.pack(">I", crc32c(entry)) + entry
    raw = struct.pack(">II", 4 + len(command) + len(entry), len(command)) + command + entry
    assert parsed(record(raw)) == raw


@pytest.mark.parametrize("payload", [b"hello", b"", b"\x00\xff", "ü\n\t".encode()])
def test_payloads_of_any_kind_come_back(payload: bytes) -> None:
    entry = single_entry(Stamp("p"), Outgoing(payload, key="k", properties=[("a", "b")]), 2, 1000)
    data = build_frame(build_command("SEND", producer_id=1, sequence_id=2), *entry)
    assert parsed(record(data)) == data


MESSAGES = [
    Outgoing(b"one", key="k", properties=[("a", "1"), ("b", "")], event_time=5, ordering_key=b"o"),
    Outgoing(b"\xff\x00"),
    Outgoing(b"", null=True),
    Outgoing(b""),
]


def batched(codec: int = CompressionType.NONE) -> bytes:
    batch = Batch()
    for sequence_id, message in enumerate(MESSAGES):
        batch.add(message, sequence_id)
    return build_frame(
        build_command("SEND", producer_id=1, sequence_id=0), *batch.entry(Stamp("p", codec), 1000)
    )


def test_a_batch_comes_back() -> None:
    assert parsed(record(batched())) == batched()


@pytest.mark.parametrize("codec", CompressionType.values())
def test_compressed_messages_come_back(codec: int) -> None:
    before = record(batched(codec))
    after = record(parsed(before))
    assert after["messages"] == before["messages"]
    assert after["notes"] == []


def test_ciphertext_comes_back_as_it_is() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=3)
    metadata.compression = CompressionType.ZLIB
    metadata.encryption_keys.add(key="agency", value=b"wrapped")
    data = build_frame(build_command("SEND", producer_id=1, sequence_id=2), metadata, b"\x01\x02")
    assert parsed(record(data)) == data


def test_json_payloads_are_written_without_spaces() -> None:
    data = build_frame(
        build_command("SEND", producer_id=1, sequence_id=2),
        MessageMetadata(producer_name="p", sequence_id=2, publish_time=1000),
        b'{"a":[1,"\xc3\xbc"]}',
    )
    shown = record(data, schema=Schema(name="s", type=Schema.Json, schema_data=b""))
    assert shown["messages"][0]["payload"]["view"] == "json"
    assert parsed(shown) == data


@pytest.mark.parametrize("type_", [99, 1, 0, 2**31 - 1])
def test_commands_nobody_knows_come_back(type_: int) -> None:
    data = parsed({"command": f"UNKNOWN({type_})", "fields": {"unknown_field_99": "YWJj"}})
    shown = record(data, show_secrets=type_ != 99)  # in a field of another number may be anything
    assert shown["command"] == f"UNKNOWN({type_})"
    assert parsed(shown) == data
    assert parsed({"type": type_, "unknown_field_99": "YWJj"}) == data


def test_a_command_without_its_sub_message_comes_back() -> None:
    data = parsed({"type": "LOOKUP"})
    assert data == bytes.fromhex("00000006000000020817")
    assert parsed(record(data)) == data


def test_a_command_without_fields_has_an_empty_sub_message() -> None:
    assert parsed({"command": "PING"}) == parsed({"command": "ping", "fields": {}}) == bytes.fromhex(PING)


def test_names_that_only_describe_are_those_of_records() -> None:
    assert DESCRIPTIVE_NAMES < RECORD_NAMES
    rest = {"command", "fields", "metadata", "broker_entry_metadata", "messages", "checksum", "decrypted"}
    assert rest | {"malformed", "gap", "bytes", "size", "http"} == RECORD_NAMES - DESCRIPTIVE_NAMES


def test_decrypted_messages_cannot_be_sent() -> None:
    line = {"command": "SEND", "fields": {}, "metadata": {}, "messages": [{"payload": "a"}]}
    assert parsed(line)
    with pytest.raises(ValueError, match="decode it without --private-key, or give the entry's payload"):
        parse_line(json.dumps({**line, "decrypted": {"key": "k", "algorithm": "a"}}))


def test_what_decode_says_of_sizes_and_times_does_not_count() -> None:
    shown = record(bytes.fromhex(PING)) | {
        "total_size": 77,
        "number": 5,
        "notes": ["odd"],
        "answer": 6,
        "findings": ["x"],
    }
    assert parsed(shown) == bytes.fromhex(PING)


# -- other lines


@pytest.mark.parametrize("line", ["", "   ", "\t\r", "# a comment", "  # {"])
def test_lines_to_be_skipped(line: str) -> None:
    assert parse_line(line) is None


@given(st.binary(min_size=1))
def test_hexadecimal_digits_are_bytes(data: bytes) -> None:
    assert parse_line(data.hex()) == parse_line(f"  {data.hex(' ', 4).upper()}\r") == data


def test_pauses() -> None:
    assert parse_line('{"wait": 0.5}') == Wait(0.5)
    assert parse_line('{"wait": 0}') == Wait(0)
    assert parse_line('{"expect": "LOOKUP_RESPONSE"}') == Expect("LOOKUP_RESPONSE")
    assert parse_line('{"expect": "pong"}') == Expect("PONG")
    assert parse_line('{"expect": "UNKNOWN(99)"}') == Expect("UNKNOWN(99)")


# -- wrong on purpose


def test_checksums() -> None:
    for checksum in ("valid", "invalid", "absent"):
        data = parsed(SENDING, {"metadata": METADATA, "payload": "hello", "checksum": checksum})
        assert frame_of(data).checksum == checksum
        assert frame_of(data).payload == b"hello"
    assert parsed(SENDING, {"metadata": METADATA, "payload": "x"}) == parsed(
        SENDING, {"metadata": METADATA, "payload_base64": "eA==", "checksum": "valid"}
    )


def test_a_record_says_that_its_checksum_was_invalid() -> None:
    data = parsed(SENDING, {"metadata": METADATA, "payload": "hello", "checksum": "invalid"})
    assert parsed(record(data)) == data


def test_sizes() -> None:
    ping = bytes.fromhex(PING)
    assert parsed({"command": "PING", "force_total_size": 77}) == ping.replace(b"\x00\x09", b"\x00\x4d")
    assert parsed({"type": "PING", "ping": {}, "force_command_size": 2**32 - 1}) == (
        ping[:4] + b"\xff" * 4 + ping[8:]
    )
    sent = parsed(SENDING, {"metadata": {}, "payload": "x", "force_metadata_size": 9})
    assert sent.endswith(b"\x00\x00\x00\x09x")
    assert frame_of(sent).checksum == "valid"


def test_what_is_missing_is_not_filled_in() -> None:
    assert frame_of(parsed({"command": "LOOKUP"})).body.ListFields() == []
    assert frame_of(parsed({"command": "SEND", "payload": "x"})).metadata == MessageMetadata()
    assert parsed({"command": "SEND"}) == bytes.fromhex("00000008000000040806") + b"\x32\x00"
    assert parsed({"command": "SEND", "fields": {"producer_id": None}}) == parsed({"command": "SEND"})


def test_any_command_can_have_a_payload() -> None:
    data = parsed({"command": "PING", "payload": "x", "checksum": "absent"})
    assert data == bytes.fromhex("0000000e0000000508129201000000000078")


def test_values_a_field_does_not_allow() -> None:
    fields = {
        "subType": 9,
        "unknown_field_5": "/w==",
        "unknown_field_1": 7,
        "unknown_field_200": [1, {"unknown_field_1": -1}],
    }
    body = frame_of(parsed({"command": "SUBSCRIBE", "fields": fields})).body
    assert body.SerializePartialToString()
    data = parsed({"command": "SUBSCRIBE", "fields": fields})
    assert data[8:].endswith(bytes.fromhex("080718092a01ffc00c01c30c08ffffffffffffffffff01c40c"))
    assert record(data)["fields"]["unknown_field_200"] == [1, {"unknown_field_1": 2**64 - 1}]


def test_numbers_in_all_their_forms() -> None:
    def ids(value: Any) -> int:
        found: int = frame_of(parsed({"command": "FLOW", "fields": {"consumer_id": value}})).body.consumer_id
        return found

    assert [ids(value) for value in (7, "7", 7.0, -1, 2**64 - 1)] == [7, 7, 7, 2**64 - 1, 2**64 - 1]


def test_bytes_that_are_no_text_are_sent_as_they_are() -> None:
    line = b'{"command": "LOOKUP", "fields": {"topic": "\xff"}}'.decode(errors="surrogateescape")
    assert parse_line(line) == parse_line(line.replace("\udcff", "\\udcff"))
    assert frame_of(parse_line(line)).raw.endswith(b"\x0a\x01\xff")  # type: ignore[arg-type]


# -- credentials


def connecting(**fields: Any) -> dict[str, Any]:
    return record(build_frame(build_command("CONNECT", client_version="t", **fields)))


@pytest.mark.parametrize("name", ["auth_data", "original_auth_data"])
def test_redacted_credentials_are_refused(name: str) -> None:
    value: Any = "secret" if name.startswith("original") else b"secret"
    shown = connecting(auth_method_name="token", **{name: value})
    assert refusal(shown) == (f"connect.{name} is redacted; decode with --show-secrets, or fill it in")
    shown["fields"][name] = "secret" if name.startswith("original") else b64encode(b"secret").decode()
    assert b"secret" in parsed(shown)


def test_nothing_redacted_is_sent() -> None:
    shown = connecting(auth_method_name="none")
    assert frame_of(parsed(shown)).body.client_version == "t"


def test_the_brokers_constant_is_no_secret() -> None:
    challenge = {"auth_method_name": "token", "auth_data": b"PulsarAuthRefresh"}
    data = build_frame(build_command("AUTH_CHALLENGE", challenge=challenge))
    assert parsed(record(data)) == parsed(record(data, show_secrets=True)) == data


# -- what is no line


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("hello", "neither a JSON object nor hexadecimal digits"),
        ("abc", "hexadecimal digits"),
        ("[1]", "hexadecimal digits"),
        ('{"command": "PING"', "invalid JSON"),
        ('{"command": "PING"} x', "invalid JSON: Extra data at character 21"),
        ('{"a":' * 100_000, "nested too deeply"),
        (
            '{"command":"PING","fields":{"unknown_field_9":'
            + '{"unknown_field_9":' * 5000
            + "1"
            + "}" * 5002,
            "JSON",
        ),
        ({}, "no command"),
        ({"fields": {}}, "no command"),
        ({"command": "LOOKUPS"}, 'there is no command "LOOKUPS"; did you mean LOOKUP?'),
        ({"command": 23}, "there is no command 23"),
        ({"command": "?"}, "was not captured"),
        ({"command": "PING", "partial": True}, "was not captured"),
        ({"command": "PING", "command_size": 3}, "force_command_size"),
        ({"type": "PING", "command_size": 3}, "BaseCommand has no such field"),
        ({"type": "PINGS"}, "type: there is no"),
        ({"type": "LOOKUP", "lookup": {}}, "did you mean lookupTopic?"),
        ({"command": "LOOKUP", "fields": []}, "expected an object"),
        ({"command": "LOOKUP", "fields": {"topik": "t"}}, "did you mean topic?"),
        ({"command": "LOOKUP", "fields": {"topic": 5}}, "lookupTopic.topic is 5; expected text"),
        ({"command": "LOOKUP", "fields": {"topic": "\ud800"}}, "lone surrogate"),
        ({"command": "LOOKUP", "fields": {"request_id": "x"}}, "unknown_field_2 can send any value"),
        ({"command": "LOOKUP", "fields": {"request_id": -2}}, "an integer from -1 to 18446744073709551615"),
        ({"command": "LOOKUP", "fields": {"request_id": 1.5}}, "expected an integer"),
        ({"command": "LOOKUP", "fields": {"request_id": True}}, "expected an integer"),
        ({"command": "LOOKUP", "fields": {"authoritative": 1}}, "expected true or false"),
        ({"command": "SUBSCRIBE", "fields": {"subType": "Shard"}}, "did you mean Shared?"),
        ({"command": "SUBSCRIBE", "fields": {"schema": "s"}}, "expected an object"),
        ({"command": "SUBSCRIBE", "fields": {"metadata": {}}}, "expected a list"),
        ({"command": "SUBSCRIBE", "fields": {"metadata": [1]}}, "expected an object"),
        ({"command": "CONNECT", "fields": {"auth_data": "a.b"}}, "connect.auth_data: expected base64; its"),
        (
            {"command": "LOOKUP", "fields": {"original_auth_data": ["a.b"]}},
            "expected text; its value",
        ),
        ({"command": "CONNECT", "fields": {"auth_data": 5}}, "expected base64"),
        ({"command": "CONSUMER_STATS_RESPONSE", "fields": {"msgRateOut": "x"}}, "expected a number"),
        ({"command": "PING", "fields": {"unknown_field_99999999999": 1}}, "no such field"),
        ({"command": "PING", "fields": {"unknown_field_9": 2**64}}, "a 64-bit integer"),
        ({"command": "PING", "fields": {"unknown_field_9": 1.5}}, "a 64-bit integer"),
        ({"command": "PING", "fields": {"unknown_field_9": "?"}}, "expected base64"),
        ({"command": "PING", "fields": {"unknown_field_9": {"a": 1}}}, "unknown_field_N"),
        ({"command": "PING", "force_total_size": -1}, "force_total_size is -1"),
        ({"command": "PING", "force_command_size": 2**32}, "force_command_size is 4294967296"),
        ({"command": "PING", "checksum": "valid"}, "no metadata"),
        ({"command": "SEND", "metadata": {}, "checksum": "wrong"}, '"valid", "invalid" or "absent"'),
        ({"command": "SEND", "metadata": 5}, "metadata is 5"),
        ({"command": "SEND", "metadata": {"publish_tim": 5}}, "did you mean publish_time?"),
        ({"command": "SEND", "payload": 5}, "payload is 5; expected text"),
        ({"command": "SEND", "payload": "a", "payload_base64": "YQ=="}, "give only one"),
        ({"command": "SEND", "payload_base64": "ä"}, "expected base64"),
        ({"command": "SEND", "payload": {"view": "hex", "value": "xx"}}, "not hexadecimal digits"),
        ({"command": "SEND", "payload": {"view": "hex", "value": 5}}, "not hexadecimal digits"),
        ({"command": "SEND", "payload": {"view": "avro", "value": {}}}, "--schema bytes"),
        ({"command": "SEND", "messages": 5, "metadata": {}}, "a list of objects"),
        ({"command": "SEND", "messages": [5], "metadata": {}}, "a list of objects"),
        ({"command": "SEND", "messages": [{}], "metadata": {}}, "messages.0 has no payload"),
        ({"command": "SEND", "messages": [{"payload": "a"}] * 2, "metadata": {}}, "num_messages_in_batch"),
        ({"command": "SEND", "messages": [], "metadata": {"num_messages_in_batch": 1}}, "payload_base64"),
        ({"wait": -1}, "a number of seconds"),
        ({"wait": "1"}, "a number of seconds"),
        ('{"wait": NaN}', "a number of seconds"),
        ('{"wait": Infinity}', "a number of seconds"),
        ({"wait": 1, "expect": "PONG"}, "the only name on its line"),
        ({"expect": "PONK"}, "did you mean PONG?"),
        ({"number": None, "malformed": "x", "bytes": "eA=="}, "a malformed stretch"),
        ({"number": None, "gap": 5}, "a gap"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(line: str | dict[str, Any], said: str) -> None:
    assert said in refusal(line)


NAMES = ["metadata", "messages", "payload", "view", "value", "payload_base64", "unknown_field_3", "topic"]
NAMES += ["checksum", "force_total_size", "broker_entry_metadata", "schema", "properties", "\u2028\n"]
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inside, max_size=3),
)


def refused_at_most(line: dict[str, Any]) -> None:
    try:
        parse_line(json.dumps(line))
    except ValueError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017


@given(ANYTHING)
def test_no_json_does_more_than_be_refused(value: Any) -> None:
    refused_at_most({"command": "SUBSCRIBE", "fields": value})
    refused_at_most({"command": "SEND", **(value if isinstance(value, dict) else {})})
    for name in ("type", "command", "wait", "expect"):
        refused_at_most({name: value})


def test_chunks_are_refused() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    first, *_ = chunk(metadata, b"x" * 10, 5)
    data = build_frame(build_command("SEND", producer_id=1, sequence_id=2), *first)
    shown = record(data)
    assert "payload_base64" in refusal(shown)
    assert parsed(shown, {"payload": "xxxxx"}) == data
