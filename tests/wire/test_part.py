"""Connections that are followed in two parts: what is told of their frames is the same as of one."""

import itertools
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsarctl_wire.capture import Decoder, open_source
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.frame import Connection, Event, Frame, Gap, build_frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, CommandSend, MessageMetadata
from pulsarctl_wire.wire.session.exchanges import ExchangeState
from pulsarctl_wire.wire.session.knowledge import Knowledge
from pulsarctl_wire.wire.session.partial_state import KnownState, PartState

SAMPLES = Path(__file__).parents[2] / "samples" / "pcaps"
CAPTURES = sorted(path.name for path in SAMPLES.glob("*.pcap*"))
CUTS = 12


def connections(name: str) -> Iterator[list[tuple[bytes, bool, int | None]]]:
    """The frames of each connection of a capture: bytes, direction, time."""
    decoder = Decoder(join_chunks=False, new_state=ExchangeState)
    with (source := open_source(str(SAMPLES / name))).stream:
        events = list(itertools.chain(*decoder.read(source), *decoder.finish()))
    whole = [each for each in events if isinstance(each, Frame) and not each.partial]
    for _, frames in itertools.groupby(sorted(whole, key=_index), _index):
        yield [(each.raw, each.to_broker, each.time_ns) for each in frames]


def _index(frame: Frame) -> int:
    return frame.connection.index


def parsed(frames: list[tuple[bytes, bool, int | None]], connection: Connection) -> list[Event]:
    """Frames anew, of which nothing is known."""
    return [
        event
        for raw, to_broker, time_ns in frames
        for event in FrameStream(connection, to_broker).feed(raw, time_ns)
    ]


def told(event: Event, names: dict[str, str | None] | None = None) -> tuple[Any, ...]:
    """What a state tells of a frame; `names` says what stand-ins stand for."""
    if not isinstance(event, Frame):
        return ()
    topic, subscription = event.topic, event.subscription
    if names:
        topic, subscription = (names.get(text or "", text) for text in (topic, subscription))
    return (
        *(event.command, topic, subscription, event.request_type, event.latency_ns, event.producer),
        *(event.sent, event.joined is None),
    )


def state(kind: type[ExchangeState]) -> tuple[Any, Knowledge]:
    knowledge = Knowledge(join_chunks=False, schemas=False)
    return kind(Connection(0), knowledge), knowledge


@pytest.mark.parametrize("name", CAPTURES)
def test_two_parts_tell_what_one_tells(name: str) -> None:
    followed = refused = 0
    for frames in connections(name):
        alone, _ = state(ExchangeState)
        alone.track(expected := parsed(frames, alone.connection))
        step = max(1, len(frames) // CUTS)
        for cut in range(0, len(frames), step):
            whole, knowledge = state(KnownState)
            whole.track(before := parsed(frames[:cut], whole.connection))
            part, _ = state(PartState)
            part.begin("?")
            part.track(after := parsed(frames[cut:], part.connection))
            left, known = pickle.loads(pickle.dumps((part.export_part(), part.snapshot())))
            resent: dict[str, list[tuple[int, int, int]]] = {}
            for producer, sequence, at in [
                *((*each, 0) for each in whole.list_pending()),
                *left.maybe_resent,
            ]:
                resent.setdefault(producer, []).append((sequence, sequence, at))
            if whole.contradicts(left, resent):
                refused += 1
                continue
            followed += 1
            names = whole.resolve_names(left)
            deferred = whole.resolve(left.deferred, names, (0, 0))
            whole.join(known, left, names, knowledge.frames, 0)
            rest = iter(deferred)
            found = [next(rest) if isinstance(each, Frame) and not each.number else each for each in after]
            assert next(rest, None) is None
            assert [*map(told, before), *(told(each, names) for each in found)] == [*map(told, expected)]
            assert as_told(whole.snapshot()) == as_told(known_of(frames))
    has_chunks = name == "chunks-out-of-order.pcap"
    assert followed > refused or has_chunks or name == "http-client-on-binary-port.pcap"  # no frames


def known_of(frames: list[tuple[bytes, bool, int | None]]) -> Any:
    whole, _ = state(KnownState)
    whole.track(parsed(frames, whole.connection))
    return whole.snapshot()


def as_told(known: Any) -> Any:
    """What a state knows, but for numbers of frames."""
    asked = {key: each._replace(number=0) for key, each in known.asked.items()}
    sends = {
        producer: each._replace(doubtful=0, pending=[(n, (sent[1], *sent[3:])) for n, sent in each.pending])
        for producer, each in known.sends.items()
        if each.pending or each.chunks
    }
    return known.producers, known.consumers, {*known.in_use}, asked, sends, known.chunks


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.sampled_from("ab")),
        st.tuples(st.just("answer"), st.integers(0, 1), st.booleans()),
        st.tuples(st.just("close"), st.booleans()),
        st.sampled_from([("use",), ("gap",)]),
    ),
    min_size=3,
    max_size=12,
)


def said(kind: str, steps: list[tuple[Any, ...]]) -> list[tuple[bytes, bool, int | None] | None]:
    """The frames of what a client and a broker do with producer or consumer 1; None for a gap."""
    frames: list[tuple[bytes, bool, int | None] | None] = []
    pending: list[int] = []

    def say(to_broker: bool, name: str, **fields: Any) -> None:
        metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
        entry = metadata if name in ("SEND", "MESSAGE") else None
        frames.append((build_frame(build_command(name, **fields), entry), to_broker, len(frames)))

    for number, (step, *values) in enumerate(steps):
        if step == "open":
            (topic,) = values
            if kind == "producer":
                say(True, "PRODUCER", topic=topic, producer_id=1, request_id=number)
            else:
                ids = {"consumer_id": 1, "request_id": number, "subType": 0}
                say(True, "SUBSCRIBE", topic=topic, subscription=topic, **ids)
            pending.append(number)
        elif step == "answer" and values[0] < len(pending):
            request = pending.pop(values[0])
            if values[1]:
                say(False, "ERROR", request_id=request, error=0, message="")
            elif kind == "producer":
                say(False, "PRODUCER_SUCCESS", request_id=request, producer_name="p")
            else:
                say(False, "SUCCESS", request_id=request)
        elif step == "close":
            say(values[0], f"CLOSE_{kind.upper()}", request_id=number, **{f"{kind}_id": 1})
        elif step == "use" and kind == "producer":
            say(True, "SEND", producer_id=1, sequence_id=number)
            say(False, "SEND_RECEIPT", producer_id=1, sequence_id=number)
        elif step == "use":
            say(False, "MESSAGE", consumer_id=1, message_id={"ledgerId": 1, "entryId": number})
        elif step == "gap":
            frames.append(None)
    return frames


@pytest.mark.parametrize("kind", ["producer", "consumer"])
@given(STEPS, st.integers(1, 8))
def test_ids_in_use_are_the_same_in_parts(kind: str, steps: list[tuple[Any, ...]], size: int) -> None:
    frames = said(kind, [*steps, ("use",)])
    alone, _ = state(KnownState)
    alone.track(expected := [*followed(frames, alone.connection)])
    for begin in range(len(frames)):
        whole, knowledge = state(KnownState)
        whole.track(before := [*followed(frames[:begin], whole.connection)])
        part, counted = state(PartState)
        part.begin("?")
        part.track(within := [*followed(frames[begin : begin + size], part.connection)])
        left, known = part.export_part(), part.snapshot()
        if whole.contradicts(left, {}):
            continue
        names = whole.resolve_names(left)
        rest = iter(whole.resolve(left.deferred, names, (0, 0)))
        whole.join(known, left, names, knowledge.frames, 0)
        knowledge.frames += counted.frames
        found = [next(rest) if isinstance(each, Frame) and not each.number else each for each in within]
        whole.track(after := [*followed(frames[begin + size :], whole.connection)])
        in_parts = [*map(told, before), *(told(each, names) for each in found), *map(told, after)]
        assert in_parts == [*map(told, expected)]
        assert as_told(whole.snapshot()) == as_told(alone.snapshot())


def followed(frames: list[tuple[bytes, bool, int | None] | None], connection: Connection) -> Iterator[Event]:
    """The events of `said`, anew."""
    for frame in frames:
        yield from [Gap(1, connection, True)] if frame is None else parsed([frame], connection)


def test_late_packets_of_a_connection_that_has_ended_add_nothing() -> None:
    part, _ = state(PartState)
    part.begin("?")
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    send = BaseCommand(type=BaseCommand.SEND, send=CommandSend(producer_id=1, sequence_id=1))
    part.track(parsed([(build_frame(send, metadata), True, 5)], part.connection))
    for _ in range(3):
        part.end()
    assert part.export_part().maybe_resent == [("p", 1, 1)]
