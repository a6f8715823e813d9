"""Mutated inputs give values, never an exception, and nothing that cannot be shown.

Others are tried by `.ci/explore`.
"""

import random
from collections.abc import Iterator

import orjson
import pytest

from pulsarctl_wire.capture.packets import Dissector
from pulsarctl_wire.cli.capture.select import FirstError
from pulsarctl_wire.record import Recorder
from pulsarctl_wire.render.hexview import HexRenderer
from pulsarctl_wire.render.line import LineRenderer
from pulsarctl_wire.render.text import Paint
from pulsarctl_wire.wire.commands import BODIES
from pulsarctl_wire.wire.frame import Connection, build_frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata
from pulsarctl_wire.wire.session.exchanges import ExchangeState
from pulsarctl_wire.wire.session.knowledge import Knowledge

ROUNDS = 5
PER_ROUND = 2_000


def _fill(message: object, depth: int = 0) -> None:
    """Give every field of a message some value, so that mutations reach all of them."""
    for field in message.DESCRIPTOR.fields:  # type: ignore[attr-defined]
        if field.message_type is not None:
            if depth < 2:
                target = getattr(message, field.name)
                _fill(target.add() if field.is_repeated else target, depth + 1)
            continue
        value: object = {field.CPPTYPE_STRING: "abc", field.CPPTYPE_BOOL: True}.get(field.cpp_type, 3)
        if field.type == field.TYPE_BYTES:
            value = b"\x01\x02"
        elif field.enum_type is not None:
            value = field.enum_type.values[-1].number
        if field.is_repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)


def every_command() -> Iterator[bytes]:
    """A frame of each command, all fields set; SEND and MESSAGE with all metadata, chunk and batch."""
    for number, name in BODIES.items():
        base = BaseCommand(type=number)  # type: ignore[arg-type]
        _fill(getattr(base, name))
        metadata = None
        if name in ("send", "message"):
            metadata = MessageMetadata()
            _fill(metadata)
            del metadata.encryption_keys[:]
        yield build_frame(base, metadata, b"\x00\x00\x00\x03\x18\x05\x20hello" if metadata else b"")


def mutate(data: bytes, source: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(source.choice((1, 1, 2, 5))):
        at = source.randrange(len(changed))
        action = source.randrange(5)
        if action == 0:
            changed[at] ^= 1 << source.randrange(8)
        elif action == 1:
            changed[at] = source.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif action == 2:
            del changed[at : at + source.randrange(1, 9)]
            changed += b"\x00" * (not changed)
        elif action == 3:
            changed[at:at] = source.randbytes(source.randrange(1, 9))
        else:
            changed[at : at + 4] = source.choice(
                (b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x7f\xff\xff\xff")
            )
    return bytes(changed)


def check(seed: int, count: int) -> None:
    """So many mutants, all of which follow from the seed."""
    source = random.Random(seed)
    frames = list(every_command())
    recorder, secretive = Recorder(show_secrets=True), Recorder()
    is_wrong = FirstError(recorder)
    line = LineRenderer(Paint(False))
    views = (line, HexRenderer(line, Paint(False)))
    connection = Connection(0, "10.0.0.1:1", "10.0.0.2:6650")
    knowledge = Knowledge()
    session = ExchangeState(connection, knowledge)
    for _ in range(count):
        to_broker = source.random() < 0.5
        stream = FrameStream(connection, to_broker, from_start=source.random() < 0.8, limit=100_000)
        data = mutate(source.choice(frames), source) + source.choice(frames)
        cut = source.randrange(len(data))
        events = stream.feed(data[:cut], 1, 1)
        if source.random() < 0.2:
            events += stream.gap(source.randrange(1, 100), 2, 2)
        events += stream.feed(data[cut:], 3, 3)
        events += stream.close()
        session.track(events)
        for event in events:
            record = (recorder if source.random() < 0.5 else secretive)(event)
            orjson.dumps(record)
            text = source.choice(views)(event)
            assert text.replace("\n", "").isprintable()
            is_wrong(event)


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_mutated_frames_are_values(seed: int) -> None:
    check(seed, PER_ROUND)


def test_random_packets_are_skipped_not_raised() -> None:
    source = random.Random(1)
    dissector = Dissector()
    for _ in range(20_000):
        data = source.randbytes(source.randrange(0, 120))
        link = source.choice((0, 1, 12, 101, 108, 113, 228, 276))
        dissector.segment(link, data, len(data))
    assert dissector.skipped
