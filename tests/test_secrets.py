"""Credentials in frames of every encoding, damaged and cut ones too: none is in any output or recording."""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

import pytest
from credential_frames import BINARY, TEXT, case

from pulsarctl_wire.record import Recorder
from pulsarctl_wire.render.hexview import HexRenderer
from pulsarctl_wire.render.jsonl import json_line
from pulsarctl_wire.render.line import LineRenderer, TimeFormatter
from pulsarctl_wire.render.sequence import Diagram
from pulsarctl_wire.render.sequence_text import text
from pulsarctl_wire.render.text import Paint
from pulsarctl_wire.render.tree import TreeRenderer
from pulsarctl_wire.wire.frame import Connection, Event, build_frame
from pulsarctl_wire.wire.frame_layout import MAGIC_CHECKSUM
from pulsarctl_wire.wire.framing.redaction import Redactor
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, CommandSend
from pulsarctl_wire.wire.session.exchanges import ExchangeState
from pulsarctl_wire.wire.session.knowledge import Knowledge
from pulsarctl_wire.wire.varint import VARINT, sized_field, tag, varint

PIECE = 8
"""Bytes of a credential that must not be seen in a row."""

_ALPHABETS = [re.compile(b"[%s]{%d}" % (re.escape(letters), PIECE)) for letters in (TEXT, BINARY)]
_HEX_ROW = re.compile(r"^  [0-9a-f]{8}  ((?:(?:[0-9a-f]{2}|xx) )+)", re.MULTILINE)
_HEX_WORD = re.compile(r"(?:[0-9a-f]{2} ?){8,}")
_ESCAPE = re.compile(rb"\\\\?x([0-9a-f]{2})")
_BASE64 = re.compile(rb'"([A-Za-z0-9+/]{8,}={0,2})"')


class Outputs(NamedTuple):
    line: str
    json: bytes
    hex: str
    tree: str
    sequence: str


class DisplayOptions:
    """All forms of output."""

    def __init__(self, *, show_secrets: bool = False) -> None:
        self.recorder = Recorder(show_secrets=show_secrets)
        self.line = LineRenderer(Paint(False), show_secrets=show_secrets)
        self.hex = HexRenderer(self.line, Paint(False), show_secrets=show_secrets)
        self.tree = TreeRenderer(self.line, self.recorder, Paint(False), show_secrets=show_secrets)

    def __call__(self, events: list[Event], *, tree: bool) -> Outputs:
        return Outputs(
            "\n".join(map(self.line, events)),
            b"".join(json_line(self.recorder(event)) for event in events),
            "\n".join(map(self.hex, events)),
            "\n".join(map(self.tree, events)) if tree else "",
            "\n".join(self._sequence(events)),
        )

    def _sequence(self, events: list[Event]) -> Iterator[str]:
        diagram = Diagram(self.line)
        for event in events:
            diagram.add(event)
        yield from text(diagram.rows, Paint(False), TimeFormatter(), None)


def decoded(data: bytes, to_broker: bool) -> list[Event]:
    connection = Connection(0, "c:1", "s:2")
    streams = FrameStream(connection, False), FrameStream(connection, True)
    session = ExchangeState(connection, Knowledge(), streams)
    events = [*streams[to_broker].feed(data), *streams[to_broker].close()]
    session.track(events)
    return events


def recorded(source: Random, data: bytes) -> bytes:
    redacted = Redactor()
    at = 0
    shown: list[bytes] = []
    while at < len(data):
        size = source.choice((1, 7, 40, len(data)))
        shown += redacted.feed(data[at : at + size])
        at += size
    shown.append(redacted.end())
    return b"".join(shown)


def _seen(outputs: Outputs) -> Iterator[bytes]:
    """All bytes that a reader sees: as they are, unescaped, as base64, as hexadecimal digits."""
    for shown in (outputs.line, outputs.tree, outputs.sequence):
        raw = shown.encode()
        yield raw
        if b"\\x" in raw:
            yield _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), raw)
        for word in _HEX_WORD.findall(shown):
            yield bytes.fromhex(word)
    yield outputs.json
    if b"\\x" in outputs.json:
        yield _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), outputs.json)
    for found in _BASE64.findall(outputs.json):
        with suppress(ValueError):
            yield base64.b64decode(found, validate=True)
    yield outputs.hex.encode()
    yield bytes.fromhex("".join(row.replace("xx", "2a") for row in _HEX_ROW.findall(outputs.hex)))


def _pieces(secrets: list[bytes]) -> set[bytes]:
    return {
        each[at : at + PIECE]
        for each in secrets
        if len(each) >= 16 and len(set(each)) > 12  # others are written in the alphabets
        for at in range(len(each) - PIECE + 1)
    }


def leaks(seen: Iterator[bytes], secrets: list[bytes]) -> list[bytes]:
    """The pieces of credentials in what is seen."""
    pieces = _pieces(secrets)
    found = []
    for data in seen:
        found += [match[0] for letters in _ALPHABETS for match in letters.finditer(data)]
        if pieces:
            found += [
                data[at : at + PIECE]
                for at in range(len(data) - PIECE + 1)
                if data[at : at + PIECE] in pieces
            ]
    return found


def check(seed: int, count: int, tree_share: float) -> None:
    source = Random(seed)
    show = DisplayOptions()
    for number in range(count):
        one = case(source)
        events = decoded(one.data, one.to_broker)
        outputs = show(events, tree=source.random() < tree_share)
        record = recorded(source, one.data)
        assert len(record) == len(one.data)
        for name, seen in (("outputs", _seen(outputs)), ("recording", iter([record]))):
            found = leaks(seen, one.secrets)
            assert not found, (name, seed, number, found[:3], one.data.hex(), events)


def test_the_search_sees_what_is_shown() -> None:
    source = Random(1)
    show = DisplayOptions(show_secrets=True)
    shown = 0
    for _ in range(200):
        one = case(source)
        events = decoded(one.data, one.to_broker)
        for form in Outputs._fields:
            empty: dict[str, Any] = {"line": "", "json": b"", "hex": "", "tree": "", "sequence": ""}
            outputs = show(events, tree=True)
            only = Outputs(**(empty | {form: getattr(outputs, form)}))
            shown += bool(leaks(_seen(only), one.secrets))
    assert shown > 200


@pytest.mark.parametrize("seed", range(5))
def test_no_secret_of_mutated_frames(seed: int) -> None:
    check(seed, 1_000, 0.1)


def test_no_secret_where_a_send_swallows_a_frame_of_unknown_type() -> None:
    """Found by `.ci/explore`: the size of a SEND is too large, the type of the next frame no number."""
    secret = bytes(BINARY[number % len(BINARY)] for number in range(61))
    command = b"\x0a\x02\x12\x40" + sized_field(3, secret) + sized_field(5, b"token")
    connect = struct.pack(">II", len(command) + 4, len(command)) + command
    send = build_frame(BaseCommand(type=BaseCommand.SEND, send=CommandSend(producer_id=1, sequence_id=1)))
    entry = MAGIC_CHECKSUM + b"abcd" + struct.pack(">I", 0) + b"hello"
    total = len(send) - 4 + len(entry) + len(connect)
    data = struct.pack(">I", total) + send[4:] + entry + connect
    assert not leaks(_seen(DisplayOptions()(decoded(data, True), tree=True)), [secret])
    assert not leaks(iter([recorded(Random(1), data)]), [secret])


def test_no_secret_where_type_and_tag_are_both_damaged() -> None:
    """Found by `.ci/explore`: neither the type nor the field is one that the schema has."""
    secret = b"4rJJP2vtwwxZc7miNHh8N5zXrpwR_TEW1bj"
    body = sized_field(1, b"a topic") + tag(2, VARINT) + varint(1) + sized_field(4, secret)
    command = sized_field(1941, body) + tag(1, VARINT) + varint(226492437)
    data = struct.pack(">II", len(command) + 4, len(command)) + command
    events = decoded(data, True)
    assert not leaks(_seen(DisplayOptions()(events, tree=True)), [secret])
    assert not leaks(iter([recorded(Random(1), data)]), [secret])
    assert leaks(_seen(DisplayOptions(show_secrets=True)(events, tree=True)), [secret])
