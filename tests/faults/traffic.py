"""Frames for the tests of faults, lanes to send them through, and Hypothesis strategies for both."""

import struct
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from strategies import frames_to_broker, message_frames

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.faults import FAULTS
from pulsarctl_wire.faults.base import Action, Close, Fault, Note, Send
from pulsarctl_wire.faults.lanes import FaultLane, Faults
from pulsarctl_wire.faults.text import parse_fault
from pulsarctl_wire.wire.commands import BODIES, PAYLOAD_TYPES, TO_BROKER, build_command
from pulsarctl_wire.wire.frame import Connection, Frame, build_frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata, ServerError


def decoded(raw: bytes, to_broker: bool = True) -> Frame:
    (frame,) = FrameStream(Connection(0), to_broker).feed(raw)
    assert isinstance(frame, Frame)
    return frame


def command(name: str, **fields: Any) -> Frame:
    """A frame without payload."""
    base = build_command(name, **fields)
    return decoded(build_frame(base), TO_BROKER.get(base.type, True))


def send(sequence: int, payload: bytes = b"hello", *, checksum: bool = True) -> Frame:
    metadata = MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=1)
    base = build_command("SEND", producer_id=1, sequence_id=sequence)
    return decoded(build_frame(base, metadata, payload, checksum=checksum))


def receipt(sequence: int) -> Frame:
    return command("SEND_RECEIPT", producer_id=1, sequence_id=sequence)


def lane(*texts: str, to_broker: bool = True, seed: int = 7, url: str = "") -> FaultLane:
    """A lane with these faults in force."""
    faults = Faults(seed)
    for text in texts:
        faults.add(parse_fault(text))
    return FaultLane(faults, 0, to_broker, url)


def passed(lane: FaultLane, frame: Frame, now: float = 0.0) -> list[Action]:
    """What the lane does about a frame, notes left out."""
    return [action for action in lane.take(frame.raw, frame, now) if not isinstance(action, Note)]


def sent(actions: list[Action]) -> bytes:
    """The bytes that go on."""
    return b"".join(action.data for action in actions if isinstance(action, Send) and not action.back)


def through(lane: FaultLane, *frames: Frame) -> list[bool]:
    """Which of the frames go on, one by one."""
    return [sent(passed(lane, frame)) == frame.raw for frame in frames]


def answered(lane: FaultLane, frame: Frame) -> tuple[Frame, list[Action]]:
    """What the sender of the frame is answered, and what else happens."""
    back, *others = passed(lane, frame)
    assert isinstance(back, Send)
    assert back.back
    return decoded(back.data, to_broker=False), others


def ends(actions: list[Action]) -> bool:
    return any(isinstance(action, Close) for action in actions)


_seconds = st.floats(0, 100, allow_subnormal=False)
_counts = st.none() | st.integers(1, 4)
_PARAMETERS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("time", "jitter", "hold", "pause"), _seconds),
    **dict.fromkeys(("nth", "every", "times"), _counts),
    **dict.fromkeys(("copies", "behind"), st.integers(1, 3)),
    "rate": st.integers(1, 10**9),
    "size": st.integers(1, 100_000),
    "variation": st.integers(0, 50),
    "bytes": st.none() | st.integers(1, 10_000),
    "bits": st.integers(1, 1000),
    "by": st.integers(1, 10**15),
    "where": st.sampled_from(["payload", "metadata", "command", "checksum"]),
    "crc": st.sampled_from(["keep", "fix"]),
    "error": st.sampled_from(ServerError.keys()),
    "message": st.text(),
    "to": st.just("") | st.text().map("pulsar://".__add__),
    "command": st.lists(st.sampled_from(["SEND", "LOOKUP", "*", "S*", "message", "PING"]), max_size=2).map(
        tuple
    ),
    "direction": st.sampled_from(["to-broker", "to-client", "both"]),
    "probability": st.floats(0, 1),
    "per": st.sampled_from(["proxy", "connection"]),
    "topic": st.just(()),  # need a tester
    "filter": st.just(""),
}


@st.composite
def any_fault(draw: st.DrawFn, kinds: tuple[type[Fault], ...] = FAULTS) -> Fault:
    """A fault with any of its parameters given."""
    kind = draw(st.sampled_from(kinds))
    names = draw(st.sets(st.sampled_from(sorted(set(_PARAMETERS) & set(kind.__dataclass_fields__)))))
    if kind.name == "answer":
        names |= {"command", "error"}
    try:
        return kind(**{name: draw(_PARAMETERS[name]) for name in sorted(names)})
    except SettingsError:
        assume(False)
        raise


@st.composite
def odd_frames(draw: st.DrawFn) -> bytes:
    """A command of any type that may lack its sub-message, or fields of it that it must have."""
    number = draw(st.sampled_from(sorted(BODIES)))
    base = BaseCommand(type=number)  # type: ignore[arg-type]
    body: Any = getattr(base, BODIES[number])
    for field in body.DESCRIPTOR.fields:
        if field.cpp_type == field.CPPTYPE_UINT64 and field.has_presence and draw(st.booleans()):
            setattr(body, field.name, draw(st.integers(0, 9)))
    head = base.SerializePartialToString()
    tail = draw(st.binary(max_size=9)) if number in PAYLOAD_TYPES else b""
    return struct.pack(">II", 4 + len(head) + len(tail), len(head)) + head + tail


any_frames = st.one_of(
    st.tuples(st.booleans(), st.lists(odd_frames(), min_size=1, max_size=4)),
    st.tuples(st.just(True), frames_to_broker),
    st.tuples(st.just(False), st.lists(message_frames(), min_size=1, max_size=8)),
).map(lambda drawn: [decoded(raw, drawn[0]) for raw in drawn[1]])
"""Frames of one direction."""

units = any_frames.flatmap(
    lambda frames: st.lists(
        st.sampled_from(frames) | st.binary(min_size=1, max_size=20), min_size=1, max_size=12
    )
)
"""Frames, and between them bytes that are none."""
