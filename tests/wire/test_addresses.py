"""Every address of a broker in every command is found, and nothing but addresses is changed."""

from typing import Any, Final

import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from pulsarctl_wire.wire import PulsarApi_pb2
from pulsarctl_wire.wire.addresses import CARRIERS, rewrite
from pulsarctl_wire.wire.commands import BODIES, NAMES
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    BaseCommand,
    CommandCloseConsumer,
    CommandCloseProducer,
    CommandConnect,
    CommandLookupTopicResponse,
    CommandScalableTopicUpdate,
    CommandTopicMigrated,
    CommandWatchTcAssignmentsUpdate,
    ScalableTopicDAG,
    SegmentBrokerAddress,
    TcAssignment,
    TcAssignmentsSnapshot,
)

PAIRS: Final = {
    "CommandCloseConsumer": ("assignedBrokerServiceUrl", "assignedBrokerServiceUrlTls"),
    "CommandCloseProducer": ("assignedBrokerServiceUrl", "assignedBrokerServiceUrlTls"),
    "CommandLookupTopicResponse": ("brokerServiceUrl", "brokerServiceUrlTls"),
    "CommandTopicMigrated": ("brokerServiceUrl", "brokerServiceUrlTls"),
    "ScalableTopicDAG": ("controller_broker_url", "controller_broker_url_tls"),
    "SegmentBrokerAddress": ("broker_url", "broker_url_tls"),
    "TcAssignment": ("broker_service_url", "broker_service_url_tls"),
}
"""All messages of the schema that have addresses of brokers, and their fields."""

NO_PAIRS: Final = {
    ("CommandConnect", "proxy_to_broker_url"),  # of a client, for the proxy it speaks to
    ("CommandConsumerStatsResponse", "address"),  # of a consumer
}
"""Fields that sound like addresses of brokers and are not to be changed."""

COMMANDS: Final = [
    "CLOSE_CONSUMER",
    "CLOSE_PRODUCER",
    "LOOKUP_RESPONSE",
    "SCALABLE_TOPIC_UPDATE",
    "TOPIC_MIGRATED",
    "WATCH_TC_ASSIGNMENTS_UPDATE",
]

lookup_responses = st.builds(
    CommandLookupTopicResponse,
    brokerServiceUrl=st.none() | st.text(max_size=5),
    brokerServiceUrlTls=st.none() | st.text(max_size=5),
    request_id=st.integers(0, 2**64 - 1),
)


def command(body: Any) -> BaseCommand:
    """`body` in its command, as it comes from the wire."""
    for number, name in BODIES.items():
        if BaseCommand.DESCRIPTOR.fields_by_number[number].message_type is body.DESCRIPTOR:
            base = BaseCommand(**{"type": number, name: body})
            return BaseCommand.FromString(base.SerializePartialToString())
    raise AssertionError(f"{body.DESCRIPTOR.name} is no command")


def prefixed(plain: str, tls: str) -> tuple[str, str]:
    return plain and f"A-{plain}", tls and f"B-{tls}"


def lookup(**fields: Any) -> BaseCommand:
    return command(CommandLookupTopicResponse(request_id=7, **fields))


def test_the_schemas_addresses_are_all_known() -> None:
    """A new field that may be an address belongs into one of the tables above."""
    fields = {
        (message.name, field.name)
        for message in PulsarApi_pb2.DESCRIPTOR.message_types_by_name.values()
        for field in message.fields
        if field.type == field.TYPE_STRING
        and any(word in field.name.lower() for word in ("url", "address", "host"))
    }
    assert fields == {(name, field) for name, pair in PAIRS.items() for field in pair} | NO_PAIRS
    assert sorted(NAMES[number] for number in CARRIERS) == COMMANDS


def full(descriptor: Any, depth: int = 4) -> Any:
    """A message with all its fields, repeated ones twice."""
    values: dict[str, Any] = {}
    for field in descriptor.fields:
        if field.message_type is not None:
            if not depth:
                continue
            value: Any = [full(field.message_type, depth - 1) for _ in range(2)]
        elif field.enum_type is not None:
            value = [field.enum_type.values[0].number] * 2
        else:
            value = {field.TYPE_STRING: ["x", "y"], field.TYPE_BYTES: [b"x", b"y"]}.get(field.type, [1, 0])
        values[field.name] = value if field.is_repeated else value[0]
    return GetMessageClass(descriptor)(**values)


def replaced(message: Any) -> Any:
    """What `rewrite` by `prefixed` should make of a full message, by the table above."""
    copy = type(message).FromString(message.SerializePartialToString())
    for field, value in copy.ListFields():
        if field.name in PAIRS.get(message.DESCRIPTOR.name, ()):
            setattr(copy, field.name, ("B-" if field.name.lower().endswith("tls") else "A-") + value)
        elif field.message_type is not None:
            for each in value if field.is_repeated else [value]:
                each.CopyFrom(replaced(each))
    return copy


@pytest.mark.parametrize("number", BODIES, ids=NAMES.__getitem__)
def test_addresses_and_nothing_else_are_replaced(number: int) -> None:
    body = full(BaseCommand.DESCRIPTOR.fields_by_number[number].message_type)
    base, expected = command(body), command(replaced(body))
    assert rewrite(base, prefixed) is (number in CARRIERS)
    assert base == expected
    assert (base != command(body)) is (number in CARRIERS)


def test_each_pair_is_asked_for_at_any_depth() -> None:
    dag = ScalableTopicDAG(
        epoch=1,
        segment_brokers=[
            SegmentBrokerAddress(segment_id=1, broker_url="p1", broker_url_tls="t1"),
            SegmentBrokerAddress(segment_id=2, broker_url="p2"),
        ],
        controller_broker_url_tls="tc",
    )
    seen: list[tuple[str, str]] = []

    def change(plain: str, tls: str) -> tuple[str, str]:
        seen.append((plain, tls))
        return f"{plain}!", ""

    base = command(CommandScalableTopicUpdate(session_id=1, dag=dag))
    assert rewrite(base, change)
    assert sorted(seen) == [("", "tc"), ("p1", "t1"), ("p2", "")]
    changed = base.scalableTopicUpdate.dag
    assert [each.broker_url for each in changed.segment_brokers] == ["p1!", "p2!"]
    assert [each.HasField("broker_url_tls") for each in changed.segment_brokers] == [False, False]
    assert changed.controller_broker_url == "!"
    assert not changed.HasField("controller_broker_url_tls")

    assignments = [TcAssignment(tc_id=0, broker_service_url="p0"), TcAssignment(tc_id=1)]
    snapshot = TcAssignmentsSnapshot(parallelism=2, assignments=assignments)
    base = command(CommandWatchTcAssignmentsUpdate(watch_id=1, snapshot=snapshot))
    assert rewrite(base, prefixed)
    first, second = base.watchTcAssignmentsUpdate.snapshot.assignments
    assert first.broker_service_url == "A-p0"
    assert not second.HasField("broker_service_url")


@pytest.mark.parametrize(
    "body",
    [
        CommandCloseProducer(producer_id=1, request_id=2),
        CommandCloseConsumer(consumer_id=1, request_id=2, assignedBrokerServiceUrl=""),
        CommandLookupTopicResponse(request_id=1),
        CommandTopicMigrated(resource_id=1, resource_type=CommandTopicMigrated.Producer),
        CommandScalableTopicUpdate(session_id=1),
        CommandScalableTopicUpdate(session_id=1, dag=ScalableTopicDAG(epoch=1)),
        CommandWatchTcAssignmentsUpdate(watch_id=1),
        CommandConnect(client_version="c", proxy_to_broker_url="b:6650"),
    ],
)
def test_without_addresses_nobody_is_asked(body: Any) -> None:
    base = command(body)
    before = base.SerializeToString()
    assert not rewrite(base, lambda plain, tls: pytest.fail("asked"))
    assert base.SerializeToString() == before


@pytest.mark.parametrize("base", [BaseCommand(), BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)])
def test_a_command_without_its_body(base: BaseCommand) -> None:
    before = base.SerializePartialToString()
    assert not rewrite(base, prefixed)
    assert base.SerializePartialToString() == before


def test_the_same_again_is_no_change() -> None:
    base = lookup(brokerServiceUrl="p", brokerServiceUrlTls="")
    before = base.SerializeToString()
    assert not rewrite(base, lambda plain, tls: (plain, tls))
    assert base.SerializeToString() == before  # the empty field is still there


def test_one_can_be_added_and_taken_away() -> None:
    base = lookup(brokerServiceUrl="p")
    assert rewrite(base, lambda plain, tls: ("", f"{plain}s"))
    assert base == lookup(brokerServiceUrlTls="ps")


def test_a_required_one_stays_and_is_empty() -> None:
    dag = ScalableTopicDAG(epoch=1, segment_brokers=[SegmentBrokerAddress(segment_id=1, broker_url="p")])
    base = command(CommandScalableTopicUpdate(session_id=1, dag=dag))
    assert rewrite(base, lambda plain, tls: ("", ""))
    assert base.IsInitialized()
    assert base.scalableTopicUpdate.dag.segment_brokers[0].broker_url == ""


def test_texts_that_are_not_utf8() -> None:
    data = lookup(brokerServiceUrl="cafe", brokerServiceUrlTls="t").SerializeToString()
    data = data.replace(b"cafe", b"caf\xe9")
    base = BaseCommand.FromString(data)
    seen = []

    def half(plain: str, tls: str) -> tuple[str, str]:
        seen.append(plain)
        return plain, "T"

    assert rewrite(base, half)
    assert seen == [r"caf\xe9"]
    assert base.SerializeToString() == data.replace(b"\x12\x01t", b"\x12\x01T")  # its bytes are kept
    assert rewrite(base, lambda plain, tls: ("p", tls))
    assert base == lookup(brokerServiceUrl="p", brokerServiceUrlTls="T")


def test_what_the_schema_does_not_have_is_kept() -> None:
    base = lookup(brokerServiceUrl="p")
    base.lookupTopicResponse.MergeFromString(b"\xa8\x46\x96\x01")  # field 1125
    expected = base.SerializeToString().replace(b"\x0a\x01p", b"\x0a\x01q")
    assert rewrite(base, lambda plain, tls: ("q", tls))
    assert base.SerializeToString() == expected


@given(body=lookup_responses, plain=st.text(max_size=5), tls=st.text(max_size=5))
def test_what_is_given_stands_there(body: Any, plain: str, tls: str) -> None:
    base = command(body)
    old = body.brokerServiceUrl, body.brokerServiceUrlTls
    asked = any(old)
    assert rewrite(base, lambda *_: (plain, tls)) is (asked and old != (plain, tls))
    now = base.lookupTopicResponse
    assert (now.brokerServiceUrl, now.brokerServiceUrlTls) == ((plain, tls) if asked else old)
    assert now.request_id == body.request_id
    assert not rewrite(base, lambda *pair: pair)
