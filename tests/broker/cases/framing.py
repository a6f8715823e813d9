"""The frames themselves: sizes, undecodable commands, unknown fields, what a client must not send."""

from __future__ import annotations

from typing import Any

from broker.probe import SOON, Probe, Target, case, frame, framed, raw

from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.frame import MAX_FRAME_SIZE
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, CommandPing

LARGEST = MAX_FRAME_SIZE - 4
PING = build_command("PING").SerializeToString()
MESSAGE_ID = {"ledgerId": 1, "entryId": 0}


async def sending(broker: Target, data: bytes) -> Probe:
    probe = await broker.connected()
    probe.send(data)
    return probe


@case("framing/max_frame_header_ok")
async def header_only(broker: Target) -> None:
    probe = await sending(broker, LARGEST.to_bytes(4, "big"))
    await broker.advance(1)
    await probe.nothing()


@case("framing/max_frame_complete")
async def largest(broker: Target) -> None:
    probe = await sending(broker, framed(PING, bytes(LARGEST - 4 - len(PING))))
    await probe.expect("PONG")


@case("framing/oversize_length", (LARGEST + 1).to_bytes(4, "big"))
@case("framing/huge_length", b"\xff" * 4 + bytes(16))
@case("framing/min_negative_length", b"\x80\0\0\0")
@case("framing/zero_length", bytes(4))
@case("framing/total_size_two", b"\0\0\0\2\0\0")
@case("framing/command_size_beyond_total", framed(PING, total=9, size=100))
@case("framing/command_size_negative", framed(PING, size=0xFFFFFFFF))
@case("framing/command_size_short", framed(PING, size=1))
@case("framing/garbage_after_connect", b"\xa5" * 64)
@case("framing/bad_wire_type", framed(b"\x08\x12\x97\x01"))
@case("framing/type_missing", framed(BaseCommand(ping=CommandPing()).SerializePartialToString()))
@case("framing/missing_required_field", raw("PRODUCER", producer_id=1, request_id=1))
@case(
    "framing/server_only_send_receipt",
    frame("SEND_RECEIPT", producer_id=1, sequence_id=0, message_id=MESSAGE_ID),
)
@case("framing/server_only_success", frame("SUCCESS", request_id=1))
@case("framing/server_only_message", frame("MESSAGE", consumer_id=1, message_id=MESSAGE_ID))
@case(
    "framing/server_only_auth_challenge",
    frame("AUTH_CHALLENGE", challenge={"auth_method_name": "token", "auth_data": b"x"}),
)
async def closed_by(broker: Target, data: bytes) -> None:
    probe = await sending(broker, data)
    await probe.closes(SOON)


@case("framing/http_request")
async def http(broker: Target) -> None:
    probe = await broker.connection()
    probe.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await probe.closes(SOON)


@case("framing/wrong_sub_message")
async def wrong_sub_message(broker: Target) -> None:
    lookup: Any = {"topic": broker.topic(), "request_id": 1}
    command = BaseCommand(type=BaseCommand.PRODUCER, lookupTopic=lookup)
    probe = await sending(broker, framed(command.SerializeToString()))
    await probe.closes(SOON)


@case("framing/extra_sub_message")
async def extra_sub_message(broker: Target) -> None:
    lookup: Any = {"topic": broker.topic(), "request_id": 1}
    command = BaseCommand(type=BaseCommand.PING, ping=CommandPing(), lookupTopic=lookup)
    probe = await sending(broker, framed(command.SerializeToString()))
    await probe.expect("PONG")
    await probe.nothing()


@case("framing/unknown_field_in_base")
async def unknown_in_base(broker: Target) -> None:
    probe = await sending(broker, framed(PING + b"\xa0\x1f\x01"))
    await probe.expect("PONG")


@case("framing/unknown_field_in_command")
async def unknown_in_command(broker: Target) -> None:
    command = build_command("LOOKUP", topic=broker.topic(), request_id=1, authoritative=False)
    command.lookupTopic.MergeFromString(b"\xd2\x05\x02zz")
    probe = await sending(broker, framed(command.SerializeToString()))
    answer = await probe.expect("LOOKUP_RESPONSE", request_id=1)
    assert answer.body.response == answer.body.Connect, answer.body


@case("framing/trailing_bytes_ping")
async def trailing_bytes(broker: Target) -> None:
    probe = await sending(broker, framed(PING, b"\1\2\3\4\5") + framed(PING))
    await probe.expect("PONG")
    await probe.expect("PONG")


@case("framing/trailing_bytes_connect")
async def trailing_bytes_connect(broker: Target) -> None:
    command = build_command("CONNECT", client_version="probe", protocol_version=21)
    probe = await broker.connection()
    probe.send(framed(command.SerializeToString(), bytes(range(8))))
    await probe.expect("CONNECTED")


@case("framing/many_in_one_segment")
async def many(broker: Target) -> None:
    probe = await sending(broker, framed(PING) * 50)
    for _ in range(50):
        await probe.expect("PONG")
    await probe.nothing()


@case("framing/pipelined_requests")
async def pipelined(broker: Target) -> None:
    lookups = [frame("LOOKUP", topic=broker.topic(), request_id=number) for number in (1, 2)]
    listing = frame("GET_TOPICS_OF_NAMESPACE", namespace="public/default", request_id=3)
    probe = await sending(broker, b"".join([*lookups, listing]))
    answers = {(each.command, each.body.request_id) for each in [await probe.next() for _ in range(3)]}
    assert answers == {
        ("LOOKUP_RESPONSE", 1),
        ("LOOKUP_RESPONSE", 2),
        ("GET_TOPICS_OF_NAMESPACE_RESPONSE", 3),
    }


@case("framing/half_close")
async def half_close(broker: Target) -> None:
    probe = await broker.connected()
    probe.transport.write_eof()
    await probe.closes(SOON)


@case("framing/invalid_utf8_string")
async def invalid_utf8(broker: Target) -> None:
    probe = await broker.connection()
    probe.send(framed(b"\x08\x02\x12\x06" + b"\x0a\x02\xff\xfe" + b"\x20\x15"))
    await probe.expect("CONNECTED")
