"""Every message of the schema becomes plain values: names as in the schema, nothing lost, no secret told."""

from base64 import b64decode, b64encode
from typing import Any, Final, NamedTuple

import orjson
import pytest
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pulsarctl_wire.wire import PulsarApi_pb2
from pulsarctl_wire.wire.fields import (
    MAX_ESCAPED,
    REFRESH,
    SECRETS,
    Walker,
    as_base64,
    as_text,
    has_unknown_fields,
    unknown_fields,
)
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    AuthData,
    BaseCommand,
    CommandAuthChallenge,
    CommandAuthResponse,
    CommandConnect,
    CommandConsumerStatsResponse,
    CommandError,
    CommandLookupTopic,
    CommandMessage,
    CommandPartitionedTopicMetadata,
    CommandPing,
    CommandSubscribe,
    KeyValue,
    MessageIdData,
    MessageMetadata,
    Schema,
)

MESSAGES: Final[dict[str, Any]] = dict(PulsarApi_pb2.DESCRIPTOR.message_types_by_name)
ALL_ONES: Final = 2**64 - 1

each_message = pytest.mark.parametrize("name", MESSAGES)


class Sample(NamedTuple):
    """A value of a field, what is shown of it, and what is shown where secrets are hidden."""

    value: Any
    shown: Any
    hidden: Any


def plain(value: Any) -> Sample:
    return Sample(value, value, value)


def scalar_samples(field: Any) -> st.SearchStrategy[Sample]:
    if field.enum_type is not None:
        values = st.sampled_from(list(field.enum_type.values))
        return values.map(lambda value: Sample(value.number, value.name, value.name))
    if field.full_name in SECRETS:
        secrets = (
            st.binary(min_size=1, max_size=20) if field.type == field.TYPE_BYTES else st.text(min_size=1)
        )
        return secrets.map(secret_sample)
    if field.type == field.TYPE_UINT64:
        whole = st.integers(0, ALL_ONES) | st.sampled_from([0, 2**53 + 1, 2**63, ALL_ONES - 1, ALL_ONES])
        return whole.map(lambda value: Sample(value, *[-1 if value == ALL_ONES else value] * 2))
    kinds: dict[int, st.SearchStrategy[Any]] = {
        field.TYPE_UINT32: st.integers(0, 2**32 - 1),
        field.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
        field.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
        field.TYPE_BOOL: st.booleans(),
        field.TYPE_DOUBLE: st.floats(allow_nan=False, allow_infinity=False),
        field.TYPE_STRING: st.text(max_size=20),
    }
    if field.type == field.TYPE_BYTES:
        return st.binary(max_size=20).map(lambda data: Sample(data, *[b64encode(data).decode()] * 2))
    return kinds[field.type].map(plain)


def secret_sample(value: str | bytes) -> Sample:
    data = value if isinstance(value, bytes) else value.encode()
    shown = b64encode(value).decode() if isinstance(value, bytes) else value
    if data == REFRESH:
        return Sample(value, shown, REFRESH.decode())
    return Sample(value, shown, f"[redacted: {len(data)} bytes]")


def samples(field: Any, depth: int) -> st.SearchStrategy[Sample]:
    return scalar_samples(field) if field.message_type is None else messages(field.message_type, depth - 1)


@st.composite
def messages(draw: st.DrawFn, descriptor: Any, depth: int = 3) -> Sample:
    """A message with any of its fields present, required or not."""
    values: dict[str, Any] = {}
    shown: dict[str, Any] = {}
    hidden: dict[str, Any] = {}
    oneofs: set[str] = set()
    for field in sorted(descriptor.fields, key=lambda each: each.number):
        if (field.message_type is not None and depth == 0) or not draw(st.booleans()):
            continue
        if field.containing_oneof is not None:
            if field.containing_oneof.name in oneofs:
                continue
            oneofs.add(field.containing_oneof.name)
        if field.is_repeated:
            items = draw(st.lists(samples(field, depth), min_size=1, max_size=2))
            sample = Sample(*(list(column) for column in zip(*items, strict=True)))
        else:
            sample = draw(samples(field, depth))
        values[field.name], shown[field.name], hidden[field.name] = sample
    return Sample(GetMessageClass(descriptor)(**values), shown, hidden)


def oddities(message: Any) -> list[str]:
    """What a walk over `message` finds wrong with it."""
    walk = Walker()
    walk(message)
    return walk.problems


def parsed(message: Any) -> Any:
    """`message` as it comes from the wire."""
    return type(message).FromString(message.SerializePartialToString())


@each_message
@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_message_shows_all_it_has(name: str, data: st.DataObject) -> None:
    sample = data.draw(messages(MESSAGES[name]))
    for message in (sample.value, parsed(sample.value)):
        shown, hidden = Walker(show_secrets=True)(message), Walker()(message)
        assert shown == sample.shown
        assert hidden == sample.hidden
        assert list(shown) == list(hidden) == list(sample.shown)  # in the order of their numbers
        assert orjson.loads(orjson.dumps(shown)) == shown
        assert orjson.loads(orjson.dumps(hidden)) == hidden


def full(descriptor: Any, depth: int = 2) -> Any:
    """A message with all its fields present, every text being `cafe`."""
    values: dict[str, Any] = {}
    oneofs = {
        field.containing_oneof.name: field.name for field in descriptor.fields if field.containing_oneof
    }
    for field in descriptor.fields:
        if field.containing_oneof is not None and oneofs[field.containing_oneof.name] != field.name:
            continue
        if field.message_type is not None:
            if not depth:
                continue
            value: Any = full(field.message_type, depth - 1)
        elif field.enum_type is not None:
            value = field.enum_type.values[-1].number
        else:
            value = {field.TYPE_STRING: "cafe", field.TYPE_BYTES: b"cafe"}.get(field.type, 1)
        values[field.name] = [value, value] if field.is_repeated else value
    return GetMessageClass(descriptor)(**values)


def texts(values: Any) -> list[str]:
    """All texts in `values`, however deep."""
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, list):
        return [text for value in values for text in texts(value)]
    return [values] if isinstance(values, str) else []


@each_message
def test_every_field_has_the_schemas_name(name: str) -> None:
    message = full(MESSAGES[name])
    shown = Walker(show_secrets=True)(message)
    missing = {field.name for field in MESSAGES[name].fields} - shown.keys()
    assert missing <= {"snapshot"}  # the other half of a oneof
    for field in MESSAGES[name].fields:
        if field.name not in missing:
            assert isinstance(shown[field.name], list) is field.is_repeated
    assert oddities(message) == []


@each_message
def test_texts_that_are_not_utf8(name: str) -> None:
    data = full(MESSAGES[name]).SerializeToString()
    message = GetMessageClass(MESSAGES[name]).FromString(data.replace(b"cafe", b"caf\xe9"))
    shown = Walker(show_secrets=True)(message)
    assert orjson.loads(orjson.dumps(shown)) == shown
    names = {value.name for enum in every_enum() for value in enum.values}
    assert set(texts(shown)) - names <= {r"caf\xe9", b64encode(b"caf\xe9").decode()}
    assert "cafe" not in texts(Walker()(message))


def every_enum() -> list[Any]:
    enums: list[Any] = list(PulsarApi_pb2.DESCRIPTOR.enum_types_by_name.values())
    return enums + [enum for message in MESSAGES.values() for enum in message.enum_types]


def test_a_command_as_its_schema_names_it() -> None:
    base = BaseCommand(type=BaseCommand.SUBSCRIBE)
    base.subscribe.topic = "t"
    base.subscribe.subType = CommandSubscribe.Key_Shared
    base.subscribe.consumer_id = 2**63
    base.subscribe.durable = False
    base.subscribe.start_message_id.ledgerId = ALL_ONES
    base.subscribe.start_message_id.ack_set.extend([-1, 5])
    base.subscribe.start_message_id.first_chunk_message_id.entryId = 0
    base.subscribe.metadata.add(key="k", value="")
    base.subscribe.schema.type = Schema.ProtobufNative
    base.subscribe.schema.schema_data = b"\x00\xff"
    assert Walker()(base) == {
        "type": "SUBSCRIBE",
        "subscribe": {
            "topic": "t",
            "subType": "Key_Shared",
            "consumer_id": 2**63,
            "durable": False,
            "start_message_id": {
                "ledgerId": -1,
                "ack_set": [-1, 5],
                "first_chunk_message_id": {"entryId": 0},
            },
            "metadata": [{"key": "k", "value": ""}],
            "schema": {"schema_data": "AP8=", "type": "ProtobufNative"},
        },
    }


def test_absent_fields_are_absent() -> None:
    """Also those that have a default; a sub-message without content is there."""
    assert Walker()(CommandMessage()) == {}
    message = CommandMessage()
    message.message_id.SetInParent()
    assert Walker()(message) == {"message_id": {}}
    assert Walker()(MessageMetadata(num_messages_in_batch=1)) == {"num_messages_in_batch": 1}


def test_only_unsigned_64_bits_of_ones_are_minus_one() -> None:
    metadata = MessageMetadata(
        sequence_id=ALL_ONES, publish_time=ALL_ONES - 1, uncompressed_size=2**32 - 1, deliver_at_time=-(2**63)
    )
    assert Walker()(metadata) == {
        "sequence_id": -1,
        "publish_time": ALL_ONES - 1,
        "uncompressed_size": 2**32 - 1,
        "deliver_at_time": -(2**63),
    }


def test_an_enum_value_named_none() -> None:
    assert Walker()(Schema(type=Schema.Type.Value("None"))) == {"type": "None"}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_json_does_not_have(number: float) -> None:
    walked = Walker()(CommandConsumerStatsResponse(request_id=1, msgRateOut=number))
    assert orjson.loads(orjson.dumps(walked)) == {"request_id": 1, "msgRateOut": None}


def test_one_walker_serves_all_messages() -> None:
    walk = Walker()
    for _ in range(2):
        assert [len(walk(full(each))) > 0 for each in MESSAGES.values()] == [
            bool(each.fields) for each in MESSAGES.values()
        ]


def test_texts() -> None:
    assert as_text("déjà") == "déjà"
    assert as_text("déjà".encode()) == "déjà"
    assert as_text(b"caf\xe9 \xff") == r"caf\xe9 \xff"
    assert as_base64(b"\x00\xff") == "AP8="
    assert as_base64(b"") == ""


@given(st.lists(st.sampled_from([*"\0\1\2\\udc8fx", "é", "😀", b"\xff", b"\x80", b"\xe2\x82", b"\xed\xb2"])))
def test_texts_that_are_no_utf_8(pieces: list[str | bytes]) -> None:
    data = b"".join(each if isinstance(each, bytes) else each.encode() for each in pieces)
    assert as_text(data) == data.decode(errors="backslashreplace")


def test_texts_that_are_no_utf_8_are_shown_up_to_a_bound() -> None:
    walk = Walker()
    size = MAX_ESCAPED * 2 // 3
    for _ in range(2):  # each frame anew
        assert walk.text("déjà".encode() * size) == "déjà" * size
        assert walk.text(b"\xff" * size) == r"\xff" * size
        assert walk.text(b"\xff" * size) == r"\xff" * (MAX_ESCAPED - size)
        assert walk.text(b"\xff") == ""
        assert walk.text("déjà".encode()) == "déjà"
        assert walk.is_used
        assert walk.take_problems() == [
            f"texts that are no UTF-8 are cut after {MAX_ESCAPED} bytes of a frame"
        ]
        assert not walk.is_used


# -- fields the schema does not have

VARINT: Final = b"\xa8\x46\x96\x01"  # field 1125: 150
FIXED64: Final = b"\xa9\x46" + (77).to_bytes(8, "little")
BYTES: Final = b"\xaa\x46\x03\x00\xffa"
GROUP: Final = b"\xab\x46\x08\x05\xac\x46"  # field 1125: {1: 5}
FIXED32: Final = b"\xad\x46" + (66).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("data", "value"),
    [(VARINT, 150), (FIXED64, 77), (BYTES, b64encode(b"\x00\xffa").decode()), (FIXED32, 66)],
)
def test_an_unknown_field_is_shown(data: bytes, value: int | str) -> None:
    message = CommandError.FromString(b"\x08\x07\x10\x01\x1a\x01m" + data)
    walked = Walker()(message)
    assert walked == {"request_id": 7, "error": "MetadataError", "message": "m", "unknown_field_1125": value}
    assert orjson.loads(orjson.dumps(walked)) == walked
    assert [number for number, _ in unknown_fields(message)] == [1125]
    assert oddities(message) == ["CommandError has the unknown field 1125"]


@pytest.mark.parametrize("size", [1, 1000])
def test_whether_there_are_unknown_fields(size: int) -> None:
    known = BaseCommand(type=BaseCommand.ERROR)
    known.error.message = "m" * size
    assert not has_unknown_fields(known)
    outside, inside = (BaseCommand.FromString(known.SerializePartialToString()) for _ in range(2))
    outside.MergeFromString(b"\xc0\x3e\x00")
    inside.error.MergeFromString(b"\xc0\x3e\x00\x1a\x01\xff")
    assert has_unknown_fields(outside)
    assert not has_unknown_fields(outside.error)
    assert not has_unknown_fields(inside)
    assert has_unknown_fields(inside.error)


def test_unknown_fields_in_sub_messages() -> None:
    base = BaseCommand(type=BaseCommand.PING)
    base.ping.MergeFromString(VARINT)
    assert Walker()(parsed(base)) == {"type": "PING", "ping": {"unknown_field_1125": 150}}
    assert oddities(base) == ["CommandPing has the unknown field 1125"]
    response = CommandAuthResponse(response=AuthData.FromString(BYTES))
    assert Walker()(parsed(response)) == {"response": {"unknown_field_1125": "AP9h"}}


def test_an_enum_value_the_schema_does_not_have() -> None:
    message = CommandError.FromString(b"\x08\x07\x10\x63\x1a\x01m")
    assert Walker()(message) == {"request_id": 7, "message": "m", "unknown_field_2": 99}
    assert oddities(message) == ["CommandError lacks error", "CommandError has the unknown field 2"]


def test_a_field_of_another_wire_type_is_unknown() -> None:
    message = CommandError.FromString(b"\x0a\x02hi")  # request_id as bytes
    assert Walker()(message) == {"unknown_field_1": b64encode(b"hi").decode()}


def test_unknown_fields_that_repeat_are_all_shown() -> None:
    message = CommandPing.FromString(VARINT + FIXED64 + BYTES)
    walked = Walker()(message)
    assert walked == {"unknown_field_1125": [150, 77, "AP9h"]}
    assert orjson.loads(orjson.dumps(walked)) == walked
    assert oddities(message) == ["CommandPing has the unknown field 1125"]


def test_an_unknown_group_is_shown() -> None:
    walked = Walker()(CommandPing.FromString(GROUP))
    assert walked == {"unknown_field_1125": {"unknown_field_1": 5}}
    assert orjson.loads(orjson.dumps(walked)) == walked


def test_unknown_groups_that_repeat_or_nest() -> None:
    inner = b"\x0b\x10\x07\x10\x08\x0c"  # field 1: {2: 7, 2: 8}
    nested = b"\xab\x46" + inner + b"\xac\x46"
    assert Walker()(CommandPing.FromString(GROUP + nested)) == {
        "unknown_field_1125": [{"unknown_field_1": 5}, {"unknown_field_1": {"unknown_field_2": [7, 8]}}]
    }


@settings(deadline=None, max_examples=300)
@given(data=st.binary(max_size=60), name=st.sampled_from(sorted(MESSAGES)))
def test_any_bytes_that_parse_can_be_shown(data: bytes, name: str) -> None:
    try:
        message = GetMessageClass(MESSAGES[name]).FromString(data)
    except DecodeError:
        message = GetMessageClass(MESSAGES[name])()
    for walk in (Walker(), Walker(show_secrets=True)):
        assert isinstance(orjson.dumps(walk(message)), bytes)
        lacks = [oddity for oddity in walk.problems if " lacks " in oddity]
        assert bool(lacks) is not message.IsInitialized()
        assert all(oddity in lacks or " has the unknown field " in oddity for oddity in walk.problems)


# -- secrets

SECRET: Final = b"tOp-SeCrEt"
HOLDERS: Final[list[tuple[str, Any]]] = [
    ("CommandConnect.auth_data", CommandConnect(client_version="c", auth_data=SECRET)),
    (
        "CommandConnect.original_auth_data",
        CommandConnect(client_version="c", original_auth_data=SECRET.decode()),
    ),
    (
        "CommandLookupTopic.original_auth_data",
        CommandLookupTopic(topic="t", request_id=1, original_auth_data=SECRET.decode()),
    ),
    (
        "CommandPartitionedTopicMetadata.original_auth_data",
        CommandPartitionedTopicMetadata(topic="t", request_id=1, original_auth_data=SECRET.decode()),
    ),
    ("AuthData.auth_data", AuthData(auth_data=SECRET)),
    ("AuthData.auth_data", CommandAuthResponse(response=AuthData(auth_method_name="m", auth_data=SECRET))),
    ("AuthData.auth_data", CommandAuthChallenge(challenge=AuthData(auth_method_name="m", auth_data=SECRET))),
]
each_holder = pytest.mark.parametrize("message", [message for _, message in HOLDERS])


def test_every_secret_is_tested() -> None:
    assert {f"pulsar.proto.{name}" for name, _ in HOLDERS} == SECRETS


def test_whatever_is_called_auth_data_is_a_secret() -> None:
    fields = [field for message in MESSAGES.values() for field in message.fields]
    assert {field.full_name for field in fields if field.name.endswith("auth_data")} == SECRETS


def in_command(message: Any) -> list[BaseCommand]:
    """The commands that carry `message`."""
    return [
        BaseCommand(**{"type": field.number, field.name: message})
        for field in BaseCommand.DESCRIPTOR.fields
        if field.message_type is message.DESCRIPTOR
    ]


@each_holder
def test_secrets_are_hidden(message: Any) -> None:
    for holder in [message, *in_command(message)]:
        shown = texts(Walker()(holder))
        assert "[redacted: 10 bytes]" in shown
        assert not {SECRET.decode(), b64encode(SECRET).decode()} & set(shown)
        assert SECRET.decode() not in str(shown)


@each_holder
def test_secrets_are_shown_where_asked_for(message: Any) -> None:
    for holder in [message, *in_command(message)]:
        shown = texts(Walker(show_secrets=True)(holder))
        assert {SECRET.decode(), b64encode(SECRET).decode()} & set(shown)
        assert not [text for text in shown if "redacted" in text]


def test_a_secret_that_is_not_utf8() -> None:
    data = CommandConnect(client_version="c", original_auth_data="cafe").SerializeToString()
    connect = CommandConnect.FromString(data.replace(b"cafe", b"caf\xe9"))
    assert Walker()(connect)["original_auth_data"] == "[redacted: 4 bytes]"
    assert Walker(show_secrets=True)(connect)["original_auth_data"] == r"caf\xe9"


def test_a_secret_is_measured_in_bytes() -> None:
    connect = CommandConnect(client_version="c", original_auth_data="déjà")
    assert Walker()(connect)["original_auth_data"] == "[redacted: 6 bytes]"


def test_asking_for_a_refresh_is_no_secret() -> None:
    challenge = CommandAuthChallenge(challenge=AuthData(auth_method_name="token", auth_data=REFRESH))
    assert REFRESH == b"PulsarAuthRefresh"
    assert Walker()(challenge)["challenge"]["auth_data"] == "PulsarAuthRefresh"
    assert b64decode(Walker(show_secrets=True)(challenge)["challenge"]["auth_data"]) == REFRESH


def test_an_empty_secret_is_empty() -> None:
    connect = CommandConnect(client_version="c", auth_data=b"", original_auth_data="")
    walked = {"client_version": "c", "auth_data": "", "original_auth_data": ""}
    assert Walker()(connect) == Walker(show_secrets=True)(connect) == walked


def test_keys_of_encryption_are_wrapped_and_shown() -> None:
    metadata = MessageMetadata()
    metadata.encryption_keys.add(key="k", value=b"wrapped")
    assert Walker()(metadata) == {"encryption_keys": [{"key": "k", "value": b64encode(b"wrapped").decode()}]}


# -- what is odd


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (MessageMetadata(), ["MessageMetadata lacks producer_name, publish_time, sequence_id"]),
        (MessageMetadata(producer_name="p", publish_time=1), ["MessageMetadata lacks sequence_id"]),
        (CommandError(request_id=1), ["CommandError lacks error, message"]),
        (
            CommandSubscribe(topic="t", subscription="s", request_id=1, schema=Schema(name="n")),
            ["Schema lacks schema_data, type", "CommandSubscribe lacks consumer_id, subType"],
        ),
        (
            CommandMessage(consumer_id=1, message_id=MessageIdData(ledgerId=1)),
            ["MessageIdData lacks entryId"],
        ),
        (BaseCommand(), ["BaseCommand lacks type"]),
        (CommandSubscribe(metadata=[KeyValue(key="k"), KeyValue(value="v")]), None),
    ],
)
def test_missing_fields_are_named(message: Any, expected: list[str] | None) -> None:
    if expected is None:
        assert oddities(message)[:2] == ["KeyValue lacks value", "KeyValue lacks key"]
    else:
        assert oddities(message) == expected


def test_nothing_is_odd_about_the_usual() -> None:
    assert oddities(MessageMetadata(producer_name="p", sequence_id=0, publish_time=0)) == []


def test_all_that_is_odd_is_told() -> None:
    assert sorted(oddities(CommandError.FromString(VARINT + b"\x0a\x02hi"))) == [
        "CommandError has the unknown field 1",
        "CommandError has the unknown field 1125",
        "CommandError lacks error, message, request_id",
    ]


def test_what_is_odd_is_collected_until_it_is_taken() -> None:
    walk = Walker()
    walk(BaseCommand())
    walk(CommandError(request_id=1))
    assert walk.problems == ["BaseCommand lacks type", "CommandError lacks error, message"]
    walk.problems.clear()
    walk(MessageMetadata(producer_name="p", sequence_id=0, publish_time=0))
    assert walk.problems == []
