"""Fields at the ends of what their types hold, types that no schema has, times beyond all calendars."""

from __future__ import annotations

import random
import struct
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from google.protobuf.descriptor import FieldDescriptor as Field
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline.comparing import alone, first_difference, together_in_memory
from pwire_run import pwire
from segments import Tcp, captured, enhanced, interface, option, section

from pulsarctl_wire.pipeline.decoding.edges import Options
from pulsarctl_wire.wire.commands import BODIES
from pulsarctl_wire.wire.frame import build_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata

HOSTILE = Path(__file__).parents[1] / "hostile"
_SIGNED = {32: (-(2**31), -1, 0, 1, 2**31 - 1), 64: (-(2**63), -1, 0, 1, 2**63 - 1)}
_UNSIGNED = {32: (0, 1, 2**31, 2**32 - 1), 64: (0, 1, 2**53, 2**63, 2**64 - 1)}
_NUMBERS = {
    Field.CPPTYPE_INT32: _SIGNED[32],
    Field.CPPTYPE_INT64: _SIGNED[64],
    Field.CPPTYPE_UINT32: _UNSIGNED[32],
    Field.CPPTYPE_UINT64: _UNSIGNED[64],
    Field.CPPTYPE_DOUBLE: (float("nan"), float("inf"), -0.0, 1e308),
    Field.CPPTYPE_FLOAT: (float("nan"), float("inf"), 3e38),
    Field.CPPTYPE_BOOL: (False, True),
}
_TICKS = (0, 1, 2**31 * 10**6, 2**32 * 10**6, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
_RESOLUTIONS = (0, 3, 6, 9, 18, 0x7F, 0x80, 0x9E, 0xFF)
_OFFSETS = (-(2**63), -(10**11), 0, 10**11, 2**63 - 1)
FORMS = ["line", "tree", "json", "hex"]


def filled(message: Any, rng: random.Random, depth: int = 0) -> Any:
    """The message with an extreme value in each field."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None:
            if depth < 3:
                part = getattr(message, field.name)
                filled(part.add() if field.is_repeated else part, rng, depth + 1)
                if not field.is_repeated:
                    part.SetInParent()
            continue
        if field.enum_type is not None:
            value: Any = rng.choice(field.enum_type.values).number
        elif field.cpp_type == Field.CPPTYPE_STRING:
            value = rng.choice(("", "a", "x" * 300))
            value = value.encode() if field.type == Field.TYPE_BYTES else value
        else:
            value = rng.choice(_NUMBERS[field.cpp_type])
        if field.is_repeated:
            getattr(message, field.name).extend([value] * rng.randrange(4))
        else:
            setattr(message, field.name, value)
    return message


def frame_of(number: int, rng: random.Random) -> bytes:
    """A frame of a known command."""
    base = BaseCommand(type=number)  # type: ignore[arg-type]
    filled(getattr(base, BODIES[number]), rng)
    if BODIES[number] not in ("send", "message"):
        return build_frame(base)
    return build_frame(base, filled(MessageMetadata(), rng), rng.randbytes(rng.randrange(40)))


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def unknown(number: int) -> bytes:
    """A frame of a command type that may be no schema's."""
    command = b"\x08" + varint(number) + b"\xfa\x06\x02\x08\x01"
    return struct.pack(">II", 4 + len(command), len(command)) + command


def written(frames: list[bytes], rng: random.Random) -> bytes:
    """A capture of these frames, at times beyond all calendars."""
    tcp = Tcp()
    segments = [*tcp.handshake(), *(tcp.send(rng.random() < 0.5, frame) for frame in frames)]
    ends = option("<", 14, struct.pack("<q", rng.choice(_OFFSETS))) + option("<", 0, b"")
    out = section()
    for _, _, data, length in captured(segments):
        if rng.random() < 0.3 or len(out) < 40:
            out += section() + interface(options=option("<", 9, bytes([rng.choice(_RESOLUTIONS)])) + ends)
        out += enhanced(rng.choice(_TICKS), data, length)
    return out


def shown(path: Path, place: Path) -> None:
    """Show a capture in every form."""
    table = place / "it.parquet"
    for form in FORMS:
        run = pwire("decode", "-o", form, path)
        assert run.code in (0, 3), run.err
    for command in (["stats"], ["stats", "-o", "json"], ["table", "--out", str(table)]):
        run = pwire(*command, path)
        assert run.code in (0, 3), run.err
    names = {
        record["command"] for record in pwire("decode", "-o", "json", path).records if "command" in record
    }
    assert set(pq.read_table(table, columns=["command"])["command"].to_pylist()) == names


UNKNOWN = st.one_of(
    st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 6, 2**63 - 1, 2**63, 2**64 - 1]),
    st.integers(0, 2**64 - 1),
)


@settings(max_examples=6)
@given(numbers=st.lists(UNKNOWN, max_size=12), seed=st.integers(0, 2**32))
def test_every_form_and_the_tables_take_them(numbers: list[int], seed: int) -> None:
    """Each time all commands of the schema, and some that it has not."""
    rng = random.Random(seed)
    frames = [*(frame_of(number, rng) for number in BODIES), *map(unknown, numbers)]
    rng.shuffle(frames)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "it.pcapng"
        path.write_bytes(written(frames, rng))
        shown(path, Path(place))
        options = Options(split_size=max(path.stat().st_size // 3, 100))
        found, _ = together_in_memory([str(path)], Path(place) / "out", options)
        assert not first_difference(alone([str(path)], options), found)


@pytest.mark.parametrize("name", ["command-type-beyond-int32.bin", "command-type-beyond-int32.pcapng"])
def test_types_beyond_int32(name: str, tmp_path: Path) -> None:
    shown(HOSTILE / name, tmp_path)
    if name.endswith(".pcapng"):
        assert pwire("analyze", HOSTILE / name, "--out", tmp_path / "out").code == 0
