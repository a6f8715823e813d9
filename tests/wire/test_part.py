"""Connections that are followed in two parts: what is told of their frames is the same as of one."""

import itertools
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsarctl_wire.capture import Decoder, open_source
from pulsarctl_wire.wire.frame import Connection, Event, Frame, build_frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, CommandSend, MessageMetadata
from pulsarctl_wire.wire.session.exchanges import ExchangeState
from pulsarctl_wire.wire.session.knowledge import Knowledge
from pulsarctl_wire.wire.session.part import KnownState, PartState

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
    assert isinstance(event, Frame)
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
            left, known = pickle.loads(pickle.dumps((part.part(), part.known())))
            resent: dict[str, list[tuple[int, int, int]]] = {}
            for producer, sequence, at in [*((*each, 0) for each in whole.waiting()), *left.maybe_resent]:
                resent.setdefault(producer, []).append((sequence, sequence, at))
            if whole.contradicts(left, resent):
                refused += 1
                continue
            followed += 1
            names = whole.names(left)
            deferred = whole.resolve(left.deferred, names, (0, 0))
            whole.go_on(known, left, names, knowledge.frames, 0)
            rest = iter(deferred)
            found = [next(rest) if isinstance(each, Frame) and not each.number else each for each in after]
            assert next(rest, None) is None
            assert [*map(told, before), *(told(each, names) for each in found)] == [*map(told, expected)]
            assert as_told(whole.known()) == as_told(known_of(frames))
    has_chunks = name == "chunks-out-of-order.pcap"
    assert followed > refused or has_chunks or name == "http-client-on-binary-port.pcap"  # no frames


def known_of(frames: list[tuple[bytes, bool, int | None]]) -> Any:
    whole, _ = state(KnownState)
    whole.track(parsed(frames, whole.connection))
    return whole.known()


def as_told(known: Any) -> Any:
    """What a state knows, but for numbers of frames."""
    asked = {key: each._replace(number=0) for key, each in known.asked.items()}
    sends = {
        producer: each._replace(doubtful=0, pending=[(n, (sent[1], *sent[3:])) for n, sent in each.pending])
        for producer, each in known.sends.items()
        if each.pending or each.chunks
    }
    return known.producers, known.consumers, asked, sends, known.chunks


def test_late_packets_of_a_connection_that_has_ended_add_nothing() -> None:
    part, _ = state(PartState)
    part.begin("?")
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    send = BaseCommand(type=BaseCommand.SEND, send=CommandSend(producer_id=1, sequence_id=1))
    part.track(parsed([(build_frame(send, metadata), True, 5)], part.connection))
    for _ in range(3):
        part.end()
    assert part.part().maybe_resent == [("p", 1, 1)]
