"""PDUs that Wireshark exports: their tags, and the segments made of them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsarctl_wire.capture.links import EXPORTED
from pulsarctl_wire.capture.packets import ACK, FIN, NEXT, Dissector, Segment
from pulsarctl_wire.capture.reassembly import Reassembler
from pulsarctl_wire.wire.frame import Event, Frame
from pulsarctl_wire.wire.session.knowledge import Knowledge

PING = bytes.fromhex("00000009000000050812920100")
PONG = bytes.fromhex("000000090000000508139a0100")
CLIENT, SERVER = b"\x0a\0\0\1", b"\x0a\0\0\2"
KEY = CLIENT + SERVER + struct.pack(">HH", 50_000, 6650)
BACK = SERVER + CLIENT + struct.pack(">HH", 6650, 50_000)


def tag(number: int, value: bytes) -> bytes:
    return struct.pack(">HH", number, len(value)) + value


def details(sequence: int, acknowledged: int, flags: int = 0x18) -> bytes:
    return tag(34, struct.pack(">HIIIBHH", 1, sequence, 0, acknowledged, 0, flags, 0))


def pdu(payload: bytes, key: bytes = KEY, name: bytes = b"pulsar", more: bytes = b"", kind: int = 2) -> bytes:
    size = len(key) // 2 - 2
    source, target = (20, 21) if size == 4 else (22, 23)
    ports = struct.unpack(">HH", key[-4:])
    return (
        tag(12, name.ljust(8, b"\0"))
        + tag(source, key[:size])
        + tag(target, key[size : 2 * size])
        + tag(24, struct.pack(">I", kind))
        + tag(25, struct.pack(">I", ports[0]))
        + tag(26, struct.pack(">I", ports[1]))
        + more
        + tag(30, struct.pack(">I", 7))
        + tag(0, b"")
        + payload
    )


def dissect(data: bytes) -> Segment | str:
    dissector = Dissector()
    segment = dissector.segment(EXPORTED, data, len(data))
    return next(iter(dissector.skipped)) if segment is None else segment


def decode(*packets: bytes) -> list[Event]:
    dissector, reassembler = Dissector(), Reassembler(Knowledge())
    events: list[Event] = []
    for number, data in enumerate(packets, 1):
        segment = dissector.segment(EXPORTED, data, len(data))
        assert segment is not None
        events += reassembler.add(segment, number, number)
        while more := reassembler.take_more():
            events += more
    return [*events, *(event for batch in reassembler.close() for event in batch)]


def test_a_pdu_is_what_comes_next() -> None:
    assert dissect(pdu(PING)) == (KEY, 1, 0, NEXT, PING, 0)
    key6 = bytes(range(32)) + KEY[-4:]
    assert dissect(pdu(PING, key6)) == (key6, 1, 0, NEXT, PING, 0)
    data = pdu(PING)
    assert Dissector().segment(EXPORTED, data[:-3], len(data)) == (KEY, 1, 0, NEXT, PING[:-3], 3)


def test_numbers_that_wireshark_knows_are_taken() -> None:
    assert dissect(pdu(PING, more=details(5, 9))) == (KEY, 5, 9, ACK, PING, 0)
    assert dissect(pdu(PING, more=details(5, 9, flags=0x19))) == (KEY, 5, 9, ACK | FIN, PING, 0)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (pdu(PING, kind=3), "exported, but not of TCP"),
        (tag(12, b"pulsar") + tag(0, b"") + PING, "exported, but not of TCP"),
        (pdu(PING, CLIENT + CLIENT + KEY[-4:-2] * 2), "exported, but not of TCP"),
        (pdu(PING)[:40], "cut headers"),
        (b"", "cut headers"),
    ],
)
def test_what_is_no_pdu_of_a_connection(data: bytes, reason: str) -> None:
    assert dissect(data) == reason


@pytest.mark.parametrize(("name", "head"), [(b"ip", b""), (b"eth", bytes(12) + b"\x08\0")])
def test_packets_that_were_exported_whole(name: bytes, head: bytes) -> None:
    tcp = KEY[-4:] + struct.pack(">IIBBHHH", 5, 9, 0x50, 0x18, 0, 0, 0) + PING
    packet = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0) + CLIENT + SERVER + tcp
    assert dissect(tag(12, name) + tag(0, b"") + head + packet) == (KEY, 5, 9, 0x18, PING, 0)


def test_pdus_of_two_directions_are_one_connection() -> None:
    events = decode(pdu(PING), pdu(PONG, BACK), pdu(PING), pdu(PONG, BACK))
    assert [(event.to_broker, event.raw) for event in events if isinstance(event, Frame)] == [
        *((True, PING), (False, PONG)) * 2
    ]
    assert {event.connection.index for event in events} == {0}


def test_pdus_with_and_without_numbers_in_one_connection() -> None:
    size = len(PING)
    events = decode(pdu(PING), pdu(PING, more=details(1 + size, 1)), pdu(PING))
    assert [type(event) for event in events] == [Frame] * 3


def test_what_was_exported_twice_counts_once() -> None:
    """Wireshark exports the first segment of a PDU, and the whole PDU when it is complete."""
    size, half = len(PING), 5
    first = pdu(PING + PING[:half], more=details(1, 1))
    whole = pdu(PING, more=details(1 + size, 1))
    assert [type(event) for event in decode(first, whole)] == [Frame] * 2


@given(data=st.binary(max_size=80), cut=st.integers(0, 200), at=st.integers(0, 120), byte=st.integers(0, 255))
@settings(max_examples=200)
def test_no_bytes_raise_anything(data: bytes, cut: int, at: int, byte: int) -> None:
    dissect(data)
    changed = bytearray(pdu(data, more=details(1, 1)))
    changed[at % len(changed)] = byte
    result = dissect(bytes(changed[:cut]))
    assert isinstance(result, str) or result[4] in changed
