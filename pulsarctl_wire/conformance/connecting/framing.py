"""The frames themselves: sizes, undecodable commands, unknown fields, what a client must not send."""

from __future__ import annotations

from typing import Any

from pulsarctl_wire.checks.requirement import MUST, OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import equal
from pulsarctl_wire.conformance.basics.frames import make_frame, make_raw_frame, wrap
from pulsarctl_wire.conformance.basics.probe import CLIENT, SOON, Probe
from pulsarctl_wire.conformance.basics.target import Target
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.frame import MAX_FRAME_SIZE
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, CommandPing

_MAX_TOTAL_SIZE = MAX_FRAME_SIZE - 4  # TOTAL_SIZE does not count its own 4 bytes
_PING = build_command("PING").SerializeToString()
_MESSAGE_ID = {"ledgerId": 1, "entryId": 0}


async def _connect_and_send(broker: Target, data: bytes) -> Probe:
    probe = await broker.connect()
    probe.send(data)
    return probe


@case(OBSERVED, without=("limits",))
async def max_frame_header_ok(broker: Target) -> None:
    """After CONNECT only the 4 bytes TOTAL_SIZE=5253116 (5 MiB + 10 KiB - 4), then nothing for 1 s.

    Expected: Nothing; the connection stays open.

    Source: Common: FrameDecoderUtil; common: Commands.
    """
    probe = await _connect_and_send(broker, _MAX_TOTAL_SIZE.to_bytes(4, "big"))
    await broker.advance(1)
    await probe.expect_nothing()


@case(OBSERVED, without=("limits",))
async def max_frame_complete(broker: Target) -> None:
    """One PING frame padded with trailing zero bytes to TOTAL_SIZE=5253116.

    Expected: PONG.

    Source: Common: FrameDecoderUtil.
    """
    probe = await _connect_and_send(broker, wrap(_PING, bytes(_MAX_TOTAL_SIZE - 4 - len(_PING))))
    await probe.expect("PONG")


async def _expect_close_after(broker: Target, data: bytes) -> None:
    probe = await _connect_and_send(broker, data)
    await probe.expect_close(SOON)


@case(MUST)
async def oversize_length(broker: Target) -> None:
    """After CONNECT the 4 bytes TOTAL_SIZE=5253117, nothing more.

    Expected: No frame; the broker closes the connection within 1 s.

    Source: Protocol: Framing.
    """
    await _expect_close_after(broker, (_MAX_TOTAL_SIZE + 1).to_bytes(4, "big"))


@case(MUST)
async def huge_length(broker: Target) -> None:
    """TOTAL_SIZE=0xffffffff + 16 zero bytes.

    Expected: No frame; the broker closes the connection within 1 s.

    Source: Protocol: Framing.
    """
    await _expect_close_after(broker, b"\xff" * 4 + bytes(16))


@case(MUST)
async def min_negative_length(broker: Target) -> None:
    """TOTAL_SIZE=0x80000000.

    Expected: No frame; the broker closes the connection within 1 s.

    Source: Protocol: Framing.
    """
    await _expect_close_after(broker, b"\x80\0\0\0")


@case(SHOULD)
async def zero_length(broker: Target) -> None:
    """TOTAL_SIZE=0.

    Expected: No frame; the broker closes the connection within 1 s.

    Source: Broker: ServerCnx.exceptionCaught.
    """
    await _expect_close_after(broker, bytes(4))


@case(SHOULD)
async def total_size_two(broker: Target) -> None:
    """TOTAL_SIZE=2 + 2 zero bytes.

    Expected: No frame; the broker closes the connection within 1 s.

    Source: Broker: ServerCnx.exceptionCaught.
    """
    await _expect_close_after(broker, b"\0\0\0\2\0\0")


@case(SHOULD)
async def command_size_beyond_total(broker: Target) -> None:
    """PING bytes with TOTAL_SIZE=9, COMMAND_SIZE=100.

    Expected: No frame; the broker closes the connection within 1 s.

    Source: Broker: ServerCnx.exceptionCaught.
    """
    await _expect_close_after(broker, wrap(_PING, total=9, size=100))


@case(SHOULD)
async def command_size_negative(broker: Target) -> None:
    """PING bytes with COMMAND_SIZE=0xffffffff.

    Expected: No frame; the broker closes the connection within 1 s.

    Source: Broker: ServerCnx.exceptionCaught.
    """
    await _expect_close_after(broker, wrap(_PING, size=0xFFFFFFFF))


@case(SHOULD)
async def command_size_short(broker: Target) -> None:
    """PING bytes with COMMAND_SIZE=1.

    Expected: No frame; the broker closes the connection within 1 s.

    Source: Broker: ServerCnx.exceptionCaught.
    """
    await _expect_close_after(broker, wrap(_PING, size=1))


@case(SHOULD)
async def garbage_after_connect(broker: Target) -> None:
    """64 bytes 0xa5.

    Expected: No frame; the broker closes the connection within 1 s.

    Source: Broker: ServerCnx.exceptionCaught.
    """
    await _expect_close_after(broker, b"\xa5" * 64)


@case(SHOULD)
async def bad_wire_type(broker: Target) -> None:
    """Command bytes 08 12 97 01 (wire type 7).

    Expected: No frame; the broker closes the connection within 1 s.

    Source: Broker: ServerCnx.exceptionCaught.
    """
    await _expect_close_after(broker, wrap(b"\x08\x12\x97\x01"))


@case(SHOULD)
async def type_missing(broker: Target) -> None:
    """BaseCommand{ping={}} without type.

    Expected: No frame; the broker closes the connection within 1 s.

    Source: Broker: ServerCnx.exceptionCaught.
    """
    await _expect_close_after(broker, wrap(BaseCommand(ping=CommandPing()).SerializePartialToString()))


@case(OBSERVED)
async def missing_required_field(broker: Target) -> None:
    """PRODUCER without topic (producer_id=1, request_id=1).

    Expected: No frame; the broker closes the connection within 1 s.

    Source: lightproto required-field check; broker: ServerCnx.exceptionCaught.
    """
    await _expect_close_after(broker, make_raw_frame("PRODUCER", producer_id=1, request_id=1))


@case(OBSERVED)
async def server_only_send_receipt(broker: Target) -> None:
    """SEND_RECEIPT sent to the broker after CONNECT.

    Expected: No frame; the broker closes the connection within 1 s.

    Source: Common: PulsarDecoder.
    """
    await _expect_close_after(
        broker, make_frame("SEND_RECEIPT", producer_id=1, sequence_id=0, message_id=_MESSAGE_ID)
    )


@case(OBSERVED)
async def server_only_success(broker: Target) -> None:
    """SUCCESS sent to the broker after CONNECT.

    Expected: No frame; the broker closes the connection within 1 s.

    Source: Common: PulsarDecoder.
    """
    await _expect_close_after(broker, make_frame("SUCCESS", request_id=1))


@case(OBSERVED)
async def server_only_message(broker: Target) -> None:
    """MESSAGE sent to the broker after CONNECT.

    Expected: No frame; the broker closes the connection within 1 s.

    Source: Common: PulsarDecoder.
    """
    await _expect_close_after(broker, make_frame("MESSAGE", consumer_id=1, message_id=_MESSAGE_ID))


@case(OBSERVED)
async def server_only_auth_challenge(broker: Target) -> None:
    """AUTH_CHALLENGE sent to the broker after CONNECT.

    Expected: No frame; the broker closes the connection within 1 s.

    Source: Common: PulsarDecoder.
    """
    await _expect_close_after(
        broker, make_frame("AUTH_CHALLENGE", challenge={"auth_method_name": "token", "auth_data": b"x"})
    )


@case(SHOULD)
async def http_request(broker: Target) -> None:
    """'GET / HTTP/1.1', a Host header and an empty line as first bytes.

    Expected: No frame; the broker closes the connection within 1 s.

    Source: Broker: ServerCnx.exceptionCaught.
    """
    probe = await broker.open_connection()
    probe.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await probe.expect_close(SOON)


@case(OBSERVED)
async def wrong_sub_message(broker: Target) -> None:
    """BaseCommand{type=PRODUCER, lookupTopic={...}}.

    Expected: No frame; the broker closes the connection within 1 s.

    Source: Common: PulsarDecoder.
    """
    lookup: Any = {"topic": broker.topic(), "request_id": 1}
    command = BaseCommand(type=BaseCommand.PRODUCER, lookupTopic=lookup)
    probe = await _connect_and_send(broker, wrap(command.SerializeToString()))
    await probe.expect_close(SOON)


@case(OBSERVED)
async def extra_sub_message(broker: Target) -> None:
    """BaseCommand{type=PING, ping={}, lookupTopic={...}}.

    Expected: PONG only.

    Source: Common: PulsarDecoder.
    """
    lookup: Any = {"topic": broker.topic(), "request_id": 1}
    command = BaseCommand(type=BaseCommand.PING, ping=CommandPing(), lookupTopic=lookup)
    probe = await _connect_and_send(broker, wrap(command.SerializeToString()))
    await probe.expect("PONG")
    await probe.expect_nothing()


@case(MUST)
async def unknown_field_in_base(broker: Target) -> None:
    """PING with an extra unknown field 500 (varint 1).

    Expected: PONG (unknown fields ignored).

    Source: Protobuf's rules; PIP-68 style evolution.
    """
    probe = await _connect_and_send(broker, wrap(_PING + b"\xa0\x1f\x01"))
    await probe.expect("PONG")


@case(MUST)
async def unknown_field_in_command(broker: Target) -> None:
    """LOOKUP with unknown field 90 (bytes 'zz') in the sub-message.

    Expected: LOOKUP_RESPONSE Connect.

    Source: Protobuf's rules.
    """
    command = build_command("LOOKUP", topic=broker.topic(), request_id=1, authoritative=False)
    command.lookupTopic.MergeFromString(b"\xd2\x05\x02zz")
    probe = await _connect_and_send(broker, wrap(command.SerializeToString()))
    answer = await probe.expect("LOOKUP_RESPONSE", request_id=1)
    equal(answer.body.response, answer.body.Connect, "response")


@case(OBSERVED)
async def trailing_bytes_ping(broker: Target) -> None:
    """PING frame with 5 bytes after the command inside TOTAL_SIZE, then a clean PING.

    Expected: PONG, PONG (trailing bytes ignored).

    Source: Common: PulsarDecoder.
    """
    probe = await _connect_and_send(broker, wrap(_PING, b"\1\2\3\4\5") + wrap(_PING))
    await probe.expect("PONG")
    await probe.expect("PONG")


@case(OBSERVED)
async def trailing_bytes_connect(broker: Target) -> None:
    """CONNECT with 8 bytes after the command.

    Expected: CONNECTED.

    Source: Common: PulsarDecoder.
    """
    command = build_command("CONNECT", **CLIENT, **broker.credentials)
    probe = await broker.open_connection()
    probe.send(wrap(command.SerializeToString(), bytes(range(8))))
    await probe.expect("CONNECTED")


@case(MUST)
async def many_in_one_segment(broker: Target) -> None:
    """50 PING frames in one write.

    Expected: 50 PONG.

    Source: Protocol: Framing.
    """
    probe = await _connect_and_send(broker, wrap(_PING) * 50)
    for _ in range(50):
        await probe.expect("PONG")
    await probe.expect_nothing()


@case(MUST, without=("lookups",))
async def pipelined_requests(broker: Target) -> None:
    """LOOKUP request_id=1 and request_id=2, GET_TOPICS request_id=3 written together.

    Expected: Three answers with request_id 1, 2, 3 (any order).

    Source: Protocol: Connection sharing.
    """
    lookups = [make_frame("LOOKUP", topic=broker.topic(), request_id=number) for number in (1, 2)]
    topics_request = make_frame("GET_TOPICS_OF_NAMESPACE", namespace="public/default", request_id=3)
    probe = await _connect_and_send(broker, b"".join([*lookups, topics_request]))
    answers = {(frame.command, frame.body.request_id) for frame in [await probe.next() for _ in range(3)]}
    equal(
        answers,
        {
            ("LOOKUP_RESPONSE", 1),
            ("LOOKUP_RESPONSE", 2),
            ("GET_TOPICS_OF_NAMESPACE_RESPONSE", 3),
        },
        "answers",
    )


@case(OBSERVED)
async def half_close(broker: Target) -> None:
    """CONNECT; then the client shuts down its sending side.

    Expected: The broker closes the connection within 1 s.

    Source: Netty default (no half-close).
    """
    probe = await broker.connect()
    probe.transport.write_eof()
    await probe.expect_close(SOON)


@case(OBSERVED, without=("auth",))
async def invalid_utf8_string(broker: Target) -> None:
    """CONNECT {client_version=bytes ff fe, protocol_version=21}.

    Expected: CONNECTED.

    Source: lightproto (no UTF-8 check).
    """
    probe = await broker.open_connection()
    # the type, the head of the sub-message, client_version, protocol_version
    probe.send(wrap(b"\x08\x02\x12\x06" + b"\x0a\x02\xff\xfe" + b"\x20\x15"))
    await probe.expect("CONNECTED")
