"""Frames that carry credentials, in every encoding that protobuf allows and many that it does not.

All that is random comes from the generator that is given.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from pulsarctl_wire.wire.frame import build_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, CommandSend, MessageMetadata
from pulsarctl_wire.wire.varint import tag, varint

TEXT = b"QXZqxz"
BINARY = bytes([0xE7, 0xE9, 0xEB, 0xED, 0xEF, 0xF3])
"""Alphabets of credentials that are found by their bytes: nothing else in these frames is written in them."""

HARMLESS = [
    bytes.fromhex("00000009000000050812920100"),  # PING
    bytes.fromhex("000000090000000508139a0100"),  # PONG
    bytes.fromhex("0000000e0000000a080b5a0608021000180a"),  # FLOW
]


class Case(NamedTuple):
    """Bytes of a connection's direction, and the credentials in them."""

    data: bytes
    secrets: list[bytes]
    to_broker: bool


def secret(source: Random, text: bool = False) -> bytes:
    """A credential of 1 to 200 bytes; `text` if it has to be some."""
    size = source.choice((source.randint(1, 15), source.randint(16, 60), source.randint(60, 200)))
    kind = source.random()
    if kind < 0.4:
        return bytes(source.choices(TEXT, k=size))
    if kind < 0.6 and not text:
        return bytes(source.choices(BINARY, k=size))
    if kind < 0.8 and not text:
        return source.randbytes(size)
    return base64.urlsafe_b64encode(source.randbytes(size))[:size]


class Writer:
    """Writes messages in one of the many ways that there are; `odd` is how often it takes an unusual one."""

    def __init__(self, source: Random, odd: float) -> None:
        self.source = source
        self.odd = odd

    def is_odd(self) -> bool:
        return self.source.random() < self.odd

    def varint(self, value: int, longest: int) -> bytes:
        data = varint(value)
        if self.is_odd() and len(data) < longest:
            more = self.source.randint(1, longest - len(data))
            data = data[:-1] + bytes([data[-1] | 0x80]) + b"\x80" * (more - 1) + b"\x00"
        return data

    def tag(self, number: int, wire: int) -> bytes:
        if self.odd and self.source.random() < self.odd / 20:
            wire = self.source.randrange(8)
        return self.varint(number << 3 | wire, 5)

    def field(self, number: int, value: int | bytes) -> bytes:
        if isinstance(value, int):
            return self.tag(number, 0) + self.varint(value, 10)
        return self.tag(number, 2) + self.varint(len(value), 5) + value

    def unknown(self, secrets: list[bytes]) -> bytes:
        """A field that no schema has; now and then with a credential in it."""
        source = self.source
        number = source.choice((source.randint(100, 130), source.randint(1000, 2**29 - 1)))
        inside = source.choice(secrets) if secrets and source.random() < 0.3 else source.randbytes(3)
        return source.choice(
            (
                lambda: self.field(number, source.getrandbits(64)),
                lambda: self.field(number, inside),
                lambda: self.tag(number, 1) + source.randbytes(8),
                lambda: self.tag(number, 5) + source.randbytes(4),
                lambda: tag(number, 3) + self.field(source.randint(1, 200), inside) + tag(number, 4),
            )
        )()

    def message(self, descriptor: Any, values: dict[str, Any], secrets: list[bytes]) -> list[bytes]:
        """The fields of a message, in some order."""
        pieces = []
        for name, value in values.items():
            field = descriptor.fields_by_name[name]
            if isinstance(value, dict):
                pieces += self.inside(field, value, secrets)
            else:
                pieces.append(self.field(field.number, value))
        if self.is_odd():
            self.source.shuffle(pieces)
        if self.odd and self.source.random() < self.odd / 3:
            pieces.insert(self.source.randint(0, len(pieces)), self.unknown(secrets))
        return pieces

    def inside(self, field: Any, values: dict[str, Any], secrets: list[bytes]) -> list[bytes]:
        """A message in another one; maybe in several parts, which are to be merged."""
        pieces = self.message(field.message_type, values, secrets)
        if not self.is_odd():
            return [self.field(field.number, b"".join(pieces))]
        at = self.source.randint(0, len(pieces))
        return [self.field(field.number, b"".join(part)) for part in (pieces[:at], pieces[at:])]


def _connect(source: Random, secrets: list[bytes]) -> dict[str, Any]:
    values: dict[str, Any] = {"client_version": b"tool 1.0", "auth_data": secrets[0]}
    if source.random() < 0.8:
        values |= {"auth_method_name": b"token", "protocol_version": 21}
    if source.random() < 0.3:
        secrets.append(secret(source, text=True))
        values |= {"original_auth_data": secrets[-1], "original_auth_method": b"token"}
        values |= {"original_principal": b"admin", "proxy_to_broker_url": b"broker:6650"}
    if source.random() < 0.3:
        values["feature_flags"] = {"supports_auth_refresh": 1, "supports_broker_entry_metadata": 1}
    return {"connect": dict(sorted(values.items()))}


def _challenged(name: str, inner: str) -> Callable[[Random, list[bytes]], dict[str, Any]]:
    version = "client_version" if inner == "response" else "server_version"
    return lambda source, secrets: {
        name: {
            inner: {"auth_method_name": b"token", "auth_data": secrets[0]},
            version: b"tool 1.0",
            "protocol_version": 21,
        }
    }


def _about(name: str) -> Callable[[Random, list[bytes]], dict[str, Any]]:
    return lambda source, secrets: {
        name: {
            "topic": b"persistent://public/default/t",
            "request_id": source.randint(0, 300),
            "original_principal": b"admin",
            "original_auth_data": secrets[0],
            "original_auth_method": b"token",
        }
    }


COMMANDS = {
    BaseCommand.CONNECT: _connect,
    BaseCommand.AUTH_RESPONSE: _challenged("authResponse", "response"),
    BaseCommand.AUTH_CHALLENGE: _challenged("authChallenge", "challenge"),
    BaseCommand.LOOKUP: _about("lookupTopic"),
    BaseCommand.PARTITIONED_METADATA: _about("partitionMetadata"),
}


def command(source: Random, odd: float) -> tuple[bytes, list[bytes], int]:
    """A command with credentials, these, and its type."""
    number = source.choice(list(COMMANDS))
    secrets = [secret(source, text=number in (BaseCommand.LOOKUP, BaseCommand.PARTITIONED_METADATA))]
    values = {"type": int(number), **COMMANDS[number](source, secrets)}
    return b"".join(Writer(source, odd).message(BaseCommand.DESCRIPTOR, values, secrets)), secrets, number


def _damaged(source: Random, data: bytes) -> bytes:
    made = bytearray(data)
    for _ in range(source.choice((1, 1, 1, 2, 4))):
        made[source.randrange(len(made))] = source.randrange(256)
    return bytes(made)


def _wrong_sizes(source: Random, data: bytes) -> bytes:
    sizes = list(struct.unpack(">II", data[:8]))
    kind = source.randrange(5)
    if kind == 0:
        return struct.pack("<II", *sizes) + data[8:]
    if kind == 1:
        return data[4:]
    if kind == 2:
        return data[8:]
    for at in (0, 1) if kind == 3 else (source.randrange(2),):
        sizes[at] = max(sizes[at] + source.choice((-8, -4, -1, 1, 4, 13, source.randint(-60, 60))), 0)
    return struct.pack(">II", *sizes) + data[8:]


def _swallowing(source: Random, swallowed: bytes) -> bytes:
    """A SEND whose sizes take in what follows it, or a part of that."""
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    send = BaseCommand(type=BaseCommand.SEND, send=CommandSend(producer_id=0, sequence_id=0))
    made = bytearray(build_frame(send, metadata, b"hello", checksum=source.random() < 0.5))
    total = int.from_bytes(made[:4], "big")
    more = source.choice((len(swallowed), source.randint(1, len(swallowed)), 5_000_000, 20_000_000))
    made[:4] = (total + more).to_bytes(4, "big")
    if source.random() < 0.2:
        at = made.rindex(metadata.SerializeToString()) - 4
        made[at : at + 4] = source.randint(0, 2 * len(swallowed)).to_bytes(4, "big")
    return bytes(made) + swallowed


def case(source: Random) -> Case:
    """A mutated frame with credentials, alone or among others."""
    base, secrets, number = command(source, source.choice((0, 0.2, 0.5)))
    frame = struct.pack(">II", 4 + len(base), len(base)) + base
    kind = source.randrange(9)
    if kind == 0:
        frame = _damaged(source, frame)
    elif kind == 1:
        frame = _wrong_sizes(source, frame)
    elif kind == 2:
        frame = frame[source.randrange(len(frame)) :]
    elif kind == 3:
        frame = frame[: source.randrange(1, len(frame))]
    elif kind == 4:
        frame = _damaged(source, _wrong_sizes(source, frame))
    elif kind == 5:
        frame = _swallowing(source, frame)
    before = b"".join(source.choices(HARMLESS, k=source.choice((0, 0, 1, 3))))
    behind = b"".join(source.choices(HARMLESS, k=source.choice((0, 1, 3)))) if kind != 3 else b""
    return Case(before + frame + behind, secrets, number != BaseCommand.AUTH_CHALLENGE)
