"""The fast path of rendering: encoded messages become text without parsing, by plans made from the schema.

It handles what clients and brokers usually send: known fields in the order of their numbers, with all
required ones, and values in the range of their types. For anything else `walk` returns False, and the caller
takes the slow path, which uses the parsed message. Both paths give the same text.

    producer_id = 3     08 03       Plan.steps[0x08] is the Step for it: prefix " producer=", then "3"
"""

from collections.abc import Callable
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from mypy_extensions import i64

from pulsarctl_wire.wire.commands import BODIES
from pulsarctl_wire.wire.credentials import WITH_SECRETS
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand
from pulsarctl_wire.wire.varint import SIZED, VARINT, read_signed, tag, varint, wire_type

MAX_FAST: Final = 65_535
"""Maximum bytes of a command or metadata; larger ones, which may have too many items, take the slow path."""

ALWAYS: Final = -2
"""`Step.hidden_value` of fields that are always shown: no field has this value."""

_RANGES: Final = {
    FieldDescriptor.TYPE_INT32: (-1, 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-1, 2**63 - 1),
    FieldDescriptor.TYPE_UINT64: (-1, 2**63 - 1),  # all ones: Pulsar's -1
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_BOOL: (0, 1),
    FieldDescriptor.TYPE_ENUM: (0, 2**31 - 1),
}
"""Types of fields -> the smallest and largest value that are handled here."""


class Step:
    """The rendering of a field: `prefix` and the value's text. Without a prefix it is not shown.

    `format_number` formats a varint (by default as digits; it returns None for unusual values),
    `format_sized` formats bytes, and `plan` a message. Fields whose varint or size equals `hidden_value` are
    not shown. If `slot` is not negative, the text is also stored in that slot, for the caller.
    """

    def __init__(
        self,
        field: Any,
        prefix: str | None,
        *,
        format_number: Callable[[int], str | None] | None = None,
        format_sized: Callable[[bytes], str] | None = None,
        plan: "Plan | None" = None,
        hidden_value: int = ALWAYS,
        slot: int = -1,
    ) -> None:
        self.is_shown = prefix is not None
        self.prefix = self.opening = prefix or ""  # `opening` replaces it in the first field shown
        self.format_number = format_number
        self.format_sized = format_sized
        self.plan = plan
        self.hidden_value: i64 = hidden_value
        self.slot: i64 = slot
        self.is_sized = wire_type(field) == SIZED
        smallest, largest = (0, MAX_FAST) if self.is_sized else _RANGES.get(field.type, (0, -1))
        self.smallest: i64 = smallest
        self.largest: i64 = largest  # -1: fields of this type take the slow path
        self.required: i64 = int(field.is_required)
        self.is_repeated: bool = field.is_repeated
        self.is_silent = prefix is None and slot < 0 and format_number is None


class Plan:
    """The rendering of one type of message. Fields without a step need the slow path.

    `gather` joins the texts of a repeated field. With `has_braces`, all fields are put in braces; the opening
    brace replaces the first character (a comma) of the first field's prefix.
    """

    def __init__(self, gather: Callable[[list[str]], str], *, has_braces: bool = False) -> None:
        self.steps: list[Step | None] = []  # by tag
        self.gather = gather
        self.has_braces = has_braces
        self.required_count: i64 = 0
        self.head = b""
        """The first bytes of a command with this sub-message: its type, and the sub-message's tag."""

    def fill(self, descriptor: Any, step_of: Callable[[Any], Step | None]) -> "Plan":
        """Add the steps that `step_of` returns for the fields. Returns the plan."""
        for field in descriptor.fields:
            self.required_count += int(field.is_required)
            step = step_of(field)
            if step is not None and step.largest >= 0:
                field_tag = field.number << 3 | wire_type(field)
                self.steps += [None] * (field_tag + 1 - len(self.steps))
                self.steps[field_tag] = step
                if self.has_braces:
                    step.opening = f"{{{step.prefix[1:]}"
        return self


def command_plans(plan_of: Callable[[Any], Plan]) -> dict[int, Plan]:
    """Make the plans of sub-messages by type number, for all commands that carry no credentials."""
    plans = {}
    for number in BODIES:
        if number not in WITH_SECRETS:
            plan = plans[number] = plan_of(BaseCommand.DESCRIPTOR.fields_by_number[number].message_type)
            plan.head = tag(1, VARINT) + varint(number) + tag(number, SIZED)
    return plans


def walk_command(frame: Frame, plan: Plan, parts: list[str]) -> bool:
    """Add the text of a complete frame's command to `parts`, as `walk` does.

    Also returns False if the command has more than its type and the sub-message of `plan`.
    """
    raw, head = frame.raw, plan.head
    pos: i64 = 8 + len(head)
    end: i64 = 8 + (raw[6] << 8 | raw[7])
    if pos >= end or end > len(raw) or raw[4] or raw[5] or raw[8 : 8 + len(head)] != head:
        return False
    size, begin = read_signed(raw, pos, end)
    return begin > pos and begin + size == end and walk(raw, begin, end, plan, parts, [])


def metadata_at(frame: Frame) -> int:
    """Return the offset of the metadata in a frame; -1 if it is large, or not covered by a valid checksum."""
    raw = frame.raw
    if frame.checksum != "valid" or frame.head is None or raw[4] or raw[5]:
        return -1
    return frame.metadata_at if frame.payload_at - frame.metadata_at <= MAX_FAST else -1


def walk(data: bytes, pos: i64, end: i64, plan: Plan, parts: list[str], slots: list[str]) -> bool:
    """Add the text of the message at `data[pos:end]` to `parts`.

    Returns False if anything in it is unusual; `parts` may then have a part of it. Raises UnicodeDecodeError
    if a text is not UTF-8.
    """
    steps, has_braces, required_count = plan.steps, plan.has_braces, plan.required_count
    last_tag: i64 = 0
    items: list[str] | None = None
    first = len(parts)
    while pos < end:
        start = pos
        field_tag, begin = read_signed(data, start, end)
        if begin >= end or field_tag >= len(steps) or (field_tag <= last_tag and items is None):
            return False
        step = steps[field_tag]
        value, pos = read_signed(data, begin, end)
        if step is None or pos == begin or value < step.smallest or value > step.largest:
            return False
        stop = pos + value if step.is_sized else pos
        if stop > end:
            return False
        last_tag = field_tag
        required_count -= step.required
        if step.plan is not None and not step.is_repeated:
            parts.append(step.opening if len(parts) == first else step.prefix)
            if not walk(data, pos, stop, step.plan, parts, slots):
                return False
            pos = stop
            continue
        text = _field_text(data, pos, stop, value, step, slots)
        if text is None:
            return False
        pos = stop
        if step.is_repeated:
            if items is None:
                items = []
            items.append(text)
            if pos < end and data.startswith(data[start:begin], pos):
                continue
            text, items = plan.gather(items), None
        if step.slot >= 0:
            slots[step.slot] = text
        if step.is_shown and value != step.hidden_value:
            parts.append(step.opening if len(parts) == first else step.prefix)
            parts.append(text)
    if has_braces:
        parts.append("{}" if len(parts) == first else "}")
    return pos == end and required_count == 0


def _field_text(data: bytes, pos: i64, stop: i64, value: i64, step: Step, slots: list[str]) -> str | None:
    """Render one field; None if it is unusual."""
    if step.plan is not None:
        parts: list[str] = []
        return "".join(parts) if walk(data, pos, stop, step.plan, parts, slots) else None
    if step.is_sized:
        return "" if step.format_sized is None else step.format_sized(data[pos:stop])
    if step.format_number is not None:
        return step.format_number(value)
    return "" if step.is_silent else str(value)
