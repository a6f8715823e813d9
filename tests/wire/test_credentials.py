"""Credentials are found by their fields, in every encoding; of an odd command all counts as such."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

import pytest
from credential_frames import COMMANDS, Writer, secret

from pulsarctl_wire.record import HIDDEN, Recorder
from pulsarctl_wire.wire.commands import NAMES
from pulsarctl_wire.wire.credentials import WITH_SECRETS, find_secrets
from pulsarctl_wire.wire.frame import Connection, Frame
from pulsarctl_wire.wire.framing.redaction import mask_spans
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand
from pulsarctl_wire.wire.varint import sized_field, tag, varint

CONNECT = b"\x08\x02"
VERSION = sized_field(1, b"x")


class Careful(Writer):
    """All that protobuf allows of what the schema has."""

    def tag(self, number: int, wire: int) -> bytes:
        return self.varint(number << 3 | wire, 5)

    def unknown(self, secrets: list[bytes]) -> bytes:
        return b""


def command(source: Random, number: int) -> tuple[bytes, list[bytes]]:
    secrets = [secret(source, text=number in (BaseCommand.LOOKUP, BaseCommand.PARTITIONED_METADATA))]
    values = {"type": number, **COMMANDS[number](source, secrets)}  # type: ignore[index]
    data = Careful(source, source.choice((0, 0.3, 0.7))).message(BaseCommand.DESCRIPTOR, values, secrets)
    return b"".join(data), secrets


def frame(data: bytes) -> Frame:
    (one,) = FrameStream(Connection(0), True).feed(struct.pack(">II", 4 + len(data), len(data)) + data)
    assert isinstance(one, Frame)
    return one


@pytest.mark.parametrize("number", sorted(WITH_SECRETS), ids=NAMES.get)
def test_just_the_credentials_are_found_in_every_encoding(number: int) -> None:
    """Short ones too, which may be anywhere else in the frame."""
    source = Random(number)
    for _ in range(300):
        data, secrets = command(source, number)
        found = find_secrets(b"before" + data + b"behind", 6, 6 + len(data))
        assert found.is_known
        assert sorted(data[start - 6 : stop - 6] for start, stop in found.spans) == sorted(secrets)
        spans = [(start - 6, stop - 6) for start, stop in found.spans]
        plain, starred = BaseCommand.FromString(data), BaseCommand.FromString(mask_spans(data, spans))
        assert plain.type == starred.type
        assert plain.ByteSize() == starred.ByteSize()


def whole(spans: list[tuple[int, int]], start: int, stop: int) -> bool:
    return spans == [(start, stop)]


@pytest.mark.parametrize(
    "connect",
    [
        VERSION + sized_field(3, b"secret") + sized_field(77, b"more"),
        VERSION + tag(3, 3) + sized_field(1, b"secret") + tag(3, 4),
        VERSION + tag(3, 1) + b"8 bytes.",
        VERSION + sized_field(3, b"one") + sized_field(3, b"two"),
        VERSION + sized_field(1, b"secret"),
        VERSION + sized_field(5, b"token") + sized_field(6, b"secret"),  # a method without its data
        VERSION + sized_field(7, b"admin\x1a\x06secret"),  # a size that takes in the next field
        VERSION + tag(2, 0) + varint(99),
    ],
    ids=["unknown", "group", "wire type", "twice", "text twice", "no data", "size", "enum"],
)
def test_all_of_an_odd_command(connect: bytes) -> None:
    data = CONNECT + sized_field(2, connect)
    found = find_secrets(data, 0, len(data))
    assert not found.is_known
    assert whole(found.spans, 2, len(data))
    record = Recorder()(frame(data))
    assert HIDDEN in record["notes"]
    assert "secret" not in str(record)
    assert "c2VjcmV0" not in str(record)


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (
            sized_field(2, VERSION + sized_field(3, b"secret")) + b"\x08\x12\x92\x01\x00",
            0,
        ),  # says that it is PING
        (b"\x08\x12" + sized_field(2, VERSION + sized_field(3, b"secret")), 2),
        (CONNECT + sized_field(3, VERSION), 2),
        (CONNECT + tag(2, 3) + VERSION + tag(2, 4), 2),
        (sized_field(100, b"secret") + CONNECT, 0),
        (
            b"\x08\x09" + sized_field(485, VERSION + sized_field(3, b"secret")),
            2,
        ),  # MESSAGE without its sub-message
    ],
)
def test_whatever_the_type_says(data: bytes, shown: int) -> None:
    assert whole(find_secrets(data, 0, len(data)).spans, shown, len(data))


@pytest.mark.parametrize(
    "data", [b"\x08\x12\x92\x01\x00", b"\x08\x63\x9a\x06\x03abc", b"\x08\x03" + sized_field(3, VERSION)]
)
def test_other_commands_have_none(data: bytes) -> None:
    assert find_secrets(data, 0, len(data)) == ([], True)


@pytest.mark.parametrize("method", [b"none", b"tls", b""])
def test_methods_that_send_no_data(method: bytes) -> None:
    data = CONNECT + sized_field(2, VERSION + sized_field(5, method))
    assert find_secrets(data, 0, len(data)) == ([], True)


def test_values_that_are_no_secret_stay() -> None:
    inside = sized_field(1, b"token") + sized_field(2, b"PulsarAuthRefresh")
    data: Any = b"\x08\x24" + sized_field(36, sized_field(2, inside))
    assert find_secrets(data, 0, len(data)) == ([], True)
