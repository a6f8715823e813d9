"""Mutations of sessions at random, from a seed: in fields, order, sizes, checksums, bytes and commands."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor

from pulsarctl_wire.conformance.fuzzing.generate import generate
from pulsarctl_wire.conformance.fuzzing.session import (
    Change,
    Memory,
    Session,
    Step,
    encode_command,
    encode_metadata,
)
from pulsarctl_wire.wire.commands import BODIES, NAMES, NUMBERS, TO_BROKER
from pulsarctl_wire.wire.frame import MAX_FRAME_SIZE
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata
from pulsarctl_wire.wire.varint import (
    FIXED_32,
    FIXED_64,
    GROUP,
    SIZED,
    VARINT,
    fields,
    sized_field,
    tag,
    varint,
)

VALID: Final = 1 / 8
"""The share of sessions that stay valid."""

_INTEGERS: Final = (
    0,
    1,
    2,
    127,
    128,
    65_536,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
_TOTALS: Final = (0, 1, 3, 4, MAX_FRAME_SIZE - 4, MAX_FRAME_SIZE - 3, 2**31 - 1, 2**31, 2**32 - 1)
_SIZES: Final = (0, 1, 2, 2**16, 2**31 - 1, 2**31, 2**32 - 1)
_TEXTS: Final = (
    *(
        b"",
        b"\xff\xfe",
        b"\xc3\x28",
        b"\x00",
        b" ",
        b"/",
        b"a/b",
        b"%00",
        b"x" * 300,
        b"x" * 70_000,
        "ü".encode(),
    ),
    *(b"persistent://", b"foo://public/default/x", b"persistent://nobody/nowhere/x", b"(", b".*", b"[" * 60),
)
_BLOBS: Final = (b"", b"\x00", b"\xff" * 8, b"\x80" * 20, bytes(9), b"x" * 70_000)
_FROM_BROKER: Final = [name for number, name in NAMES.items() if TO_BROKER.get(number) is False]
_UNKNOWN_TYPES: Final = (0, 1, 41, 69, 82, 99, 1000, 2**31 - 1, 2**32 - 1)
_MAX_STEPS: Final = 40


def make_session(seed: int, number: int) -> Session:
    """Return a session of a run: the same for the same seed and number."""
    random = Random(f"{seed}/{number}")
    session = generate(random, number)
    if random.random() < VALID:
        return session
    for _ in range(random.choice((1, 1, 1, 2, 2, 3))):
        session = mutate(session, random)
    return session


def mutate(session: Session, random: Random) -> Session:
    """Return a session with one more mutation."""
    kind = random.choices(list(_MUTATIONS), [weight for weight, _ in _MUTATIONS.values()])[0]
    steps = _MUTATIONS[kind][1](list(session.steps), random)
    return Session(session.number, tuple(steps[:_MAX_STEPS]), (*session.mutations, kind))


Mutation = Callable[[list[Step], Random], list[Step]]


def _change(make: Callable[[Step, Random], Change]) -> Mutation:
    """Return the mutation that adds a change to one of the steps."""

    def change(steps: list[Step], random: Random) -> list[Step]:
        index = random.randrange(len(steps))
        step = steps[index]
        steps[index] = step._replace(changes=(*step.changes, make(step, random)))
        return steps

    return change


def _change_entry(make: Callable[[Step, Random], Change]) -> Mutation:
    """Return the mutation that adds a change to a step with an entry; without one, it changes any field."""

    def change(steps: list[Step], random: Random) -> list[Step]:
        indexes = [index for index, step in enumerate(steps) if step.metadata is not None]
        if not indexes:
            return _change(_change_field)(steps, random)
        index = random.choice(indexes)
        step = steps[index]
        steps[index] = step._replace(changes=(*step.changes, make(step, random)))
        return steps

    return change


# -- fields


def _change_field(step: Step, random: Random) -> Change:
    """Change a field of the command or the metadata, or add one."""
    memory = Memory()
    metadata = encode_metadata(step, memory)
    if metadata is not None and random.random() < 0.5:
        return _change_message("metadata", metadata, MessageMetadata.DESCRIPTOR, random)
    return _change_message("command", encode_command(step, memory), BaseCommand.DESCRIPTOR, random)


def _change_message(part: str, data: bytes, descriptor: Any, random: Random) -> Change:
    candidates = _list_paths(data, descriptor)
    if part == "command" and random.random() < 0.9:  # seldom change `type`, field 1 of BaseCommand
        candidates = [(path, field) for path, field in candidates if path[0] != 1]
    path, field = random.choice(candidates)
    action = random.choice(
        ("missing", "value", "value", "value", "value", "repeat", "unknown", "wire", "absent")
    )
    if action == "value":
        return _make_value(part, path, field, random)
    if action == "absent":  # another field, probably absent, of the message that has this one
        other = random.choice(field.containing_type.fields)
        return _make_value(part, (*path[:-1], other.number), other, random)
    value: int | bytes = 0
    if action == "repeat":
        value = random.choice((2, 2, 3, 1000))
    elif action == "wire":
        value = random.choice((VARINT, FIXED_64, SIZED, GROUP, FIXED_32, 6, 7))
    elif action == "unknown":
        value = _make_unknown(random)
    return Change(part, action, path, value)


def _list_paths(
    data: bytes, descriptor: Any, prefix: tuple[int, ...] = ()
) -> list[tuple[tuple[int, ...], Any]]:
    """Return the path of each field in a message, and its descriptor."""
    paths = []
    for field in fields(data, 0, len(data)):
        schema = descriptor.fields_by_number[field.number]
        path = (*prefix, field.number)
        paths.append((path, schema))
        if schema.message_type is not None:
            paths += _list_paths(data[field.at : field.stop], schema.message_type, path)
    return paths


def _make_value(part: str, path: tuple[int, ...], field: Any, random: Random) -> Change:
    """Return the change that gives a field another value."""
    if field.type == FieldDescriptor.TYPE_STRING:
        return Change(part, "bytes", path, random.choice(_TEXTS))
    if field.type in (FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE):
        return Change(part, "bytes", path, random.choice(_BLOBS))
    if field.enum_type is not None and random.random() < 0.5:
        return Change(part, "number", path, random.choice([*field.enum_type.values_by_number, 99]))
    return Change(part, "number", path, random.choice((*_INTEGERS, random.getrandbits(64))))


def _make_unknown(random: Random) -> bytes:
    """Return the bytes of a field that the protocol does not have."""
    number = random.choice((90, 500, 2**29 - 1))
    return random.choice(
        (
            tag(number, VARINT) + varint(random.getrandbits(64)),
            tag(number, FIXED_64) + bytes(8),
            tag(number, FIXED_32) + bytes(4),
            sized_field(number, b"zz"),
            sized_field(number, b"z" * 10_000),
        )
    )


def _change_type(step: Step, random: Random) -> Change:
    """Give the command an unknown type, another one, or none, or leave its sub-message out."""
    number = NUMBERS[step.command]
    return random.choice(
        (
            Change("command", "number", (1,), random.choice(_UNKNOWN_TYPES)),
            Change("command", "number", (1,), random.choice(list(NAMES))),
            Change("command", "missing", (1,)),
            Change("command", "missing", (number,)),
        )
    )


# -- sizes, checksums, bytes


def _change_size(step: Step, random: Random) -> Change:
    parts = ["total_size", "command_size"] + ["metadata_size"] * (step.metadata is not None)
    part = random.choice(parts)
    if random.random() < 0.5:
        return Change(part, "add", (), random.choice((-8, -4, -1, 1, 4, 100, 2**16)))
    return Change(part, "set", (), random.choice(_TOTALS if part == "total_size" else _SIZES))


def _change_checksum(step: Step, random: Random) -> Change:
    return Change("checksum", random.choice(("wrong", "absent", "polynomial")))


def _cut(step: Step, random: Random) -> Change:
    return Change("frame", "cut", (), random.choice((random.randrange(1000), 1, 500, 999)))


def _change_bytes(step: Step, random: Random) -> Change:
    if random.random() < 0.7:
        return Change("frame", "flip", (), random.getrandbits(16))
    return Change("frame", "insert", (), random.randbytes(random.choice((1, 4, 64))))


# -- order and commands


def _reorder(steps: list[Step], random: Random) -> list[Step]:
    """Swap two steps, leave some out, repeat one, move one before CONNECT, or add one of another session."""
    index, other = random.randrange(len(steps)), random.randrange(len(steps))
    action = random.choice(("swap", "drop", "drop", "repeat", "repeat", "first", "stranger"))
    if action == "swap":
        steps[index], steps[other] = steps[other], steps[index]
    elif action == "drop" and len(steps) > 1:
        del steps[index : index + random.choice((1, 1, 2))]
        steps = steps or [Step("PING", {})]
    elif action == "repeat":
        steps[other:other] = [steps[index]] * random.choice((1, 1, 2, 5))
    elif action == "first":
        steps.insert(0, steps.pop(index))
    else:  # a step of another session
        steps.insert(other, random.choice(generate(random).steps))
    return steps


def _add_command_of_broker(steps: list[Step], random: Random) -> list[Step]:
    """Add a command that only brokers send."""
    command = random.choice(_FROM_BROKER)
    descriptor = BaseCommand.DESCRIPTOR.fields_by_name[BODIES[NUMBERS[command]]].message_type
    steps.insert(random.randrange(len(steps) + 1), Step(command, _make_fields(descriptor, random)))
    return steps


def _add_rare_command(steps: list[Step], random: Random) -> list[Step]:
    """Add any command that clients may send, with its required fields and some others."""
    command = random.choice([name for number, name in NAMES.items() if TO_BROKER.get(number, True)])
    descriptor = BaseCommand.DESCRIPTOR.fields_by_name[BODIES[NUMBERS[command]]].message_type
    steps.insert(random.randrange(len(steps) + 1), Step(command, _make_fields(descriptor, random)))
    return steps


def _make_fields(descriptor: Any, random: Random, depth: int = 0) -> dict[str, Any]:
    """Return the required fields of a message, and some of the others."""
    values: dict[str, Any] = {}
    for field in descriptor.fields:
        if not field.is_required and (depth > 2 or random.random() < 0.7):
            continue
        value: Any = random.choice((0, 1, 2, 2**31 - 1))
        if field.type == FieldDescriptor.TYPE_STRING:
            value = random.choice(("x", "persistent://public/default/fuzz-rare", "public/default"))
        elif field.type == FieldDescriptor.TYPE_BYTES:
            value = b"x"
        elif field.type == FieldDescriptor.TYPE_BOOL:
            value = random.random() < 0.5
        elif field.enum_type is not None:
            value = random.choice(list(field.enum_type.values_by_number))
        elif field.message_type is not None:
            value = _make_fields(field.message_type, random, depth + 1)
        values[field.name] = [value] if field.is_repeated else value
    return values


_MUTATIONS: Final[dict[str, tuple[int, Mutation]]] = {
    "field": (8, _change(_change_field)),
    "order": (4, _reorder),
    "size": (2, _change(_change_size)),
    "checksum": (2, _change_entry(_change_checksum)),
    "cut": (1, _change(_cut)),
    "byte": (2, _change(_change_bytes)),
    "type": (1, _change(_change_type)),
    "broker's command": (1, _add_command_of_broker),
    "rare command": (1, _add_rare_command),
}
"""Kind of mutation -> its weight, and what it does to the steps."""

KINDS: Final = tuple(_MUTATIONS)
"""The kinds of mutations."""
