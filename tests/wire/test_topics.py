"""A session that only knows topics tells the same ones as a session that knows everything."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import pytest

from pulsarctl_wire.capture import Decoder, open_source
from pulsarctl_wire.wire.commands import BODIES, NUMBERS
from pulsarctl_wire.wire.frame import Connection, Event, Frame, build_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand
from pulsarctl_wire.wire.session import Knowledge, Session
from pulsarctl_wire.wire.stream import FrameStream
from pulsarctl_wire.wire.topics import TopicSession, about

SAMPLES = Path(__file__).parents[2] / "samples" / "pcaps"
CAPTURES = sorted(path.name for path in SAMPLES.glob("*.pcap*"))


def topics(name: str, session: type[Session]) -> list[tuple[str, str | None, str | None]]:
    decoder = Decoder(join_chunks=False, new_session=session)
    with (source := open_source(str(SAMPLES / name))).stream:
        events = list(itertools.chain(*decoder.read(source), *decoder.finish()))
    return [(each.command, each.topic, each.subscription) for each in events if isinstance(each, Frame)]


@pytest.mark.parametrize("name", CAPTURES)
def test_topics_are_those_of_a_whole_session(name: str) -> None:
    assert topics(name, TopicSession) == topics(name, Session)


# ---- Two sessions of one connection, one after the other ----


def command(name: str, **fields: object) -> tuple[bool, bytes]:
    base = BaseCommand(type=NUMBERS[name])  # type: ignore[arg-type]
    body = getattr(base, BODIES[base.type])
    body.SetInParent()
    body.MergeFrom(type(body)(**fields))
    return name not in ("SUCCESS", "ERROR", "PRODUCER_SUCCESS", "ACK_RESPONSE"), build_frame(base)


def track(session: TopicSession, commands: Iterable[tuple[bool, bytes]]) -> list[Frame]:
    found: list[Frame] = []
    for to_broker, raw in commands:
        events: list[Event] = FrameStream(session.connection, to_broker).feed(raw)
        session.track(events)
        found += [event for event in events if isinstance(event, Frame)]
    return found


def session() -> TopicSession:
    return TopicSession(Connection(0), Knowledge(join_chunks=False, schemas=False), ())


SUBSCRIBE = command("SUBSCRIBE", topic="t", subscription="s", subType=1, consumer_id=1, request_id=1)
PRODUCER = command("PRODUCER", topic="u", producer_id=1, request_id=2)
T, U = "persistent://public/default/t", "persistent://public/default/u"


@pytest.mark.parametrize(
    ("asking", "answer", "expected"),
    [
        (command("CLOSE_CONSUMER", consumer_id=1, request_id=7), command("SUCCESS", request_id=7), (T, "s")),
        (command("CLOSE_PRODUCER", producer_id=1, request_id=7), command("SUCCESS", request_id=7), (U, None)),
        (
            command("CLOSE_CONSUMER", consumer_id=5, request_id=7),
            command("SUCCESS", request_id=7),
            (None, None),
        ),
        (
            command("ACK", consumer_id=1, ack_type=0, request_id=7),
            command("ACK_RESPONSE", consumer_id=1, request_id=7),
            (T, "s"),
        ),
    ],
)
def test_requests_know_later_whose_topic_they_were_about(
    asking: tuple[bool, bytes], answer: tuple[bool, bytes], expected: tuple[str | None, str | None]
) -> None:
    """One that begins in the middle remembers the owner; the one that knows it fills in the topic."""
    earlier, later = session(), session()
    track(earlier, [SUBSCRIBE, PRODUCER])
    assert [frame.topic for frame in track(later, [asking])] == [None]
    earlier.learn(later.tables())
    (frame,) = track(earlier, [answer])
    assert (frame.topic, frame.subscription) == expected


def test_what_was_known_later_is_what_counts() -> None:
    earlier, later = session(), session()
    track(earlier, [SUBSCRIBE, PRODUCER])
    track(later, [command("PRODUCER", topic="v", producer_id=1, request_id=9)])
    earlier.learn(later.tables())
    assert about(earlier.tables(), (False, 1)) == ("persistent://public/default/v", None)
    assert about(earlier.tables(), (True, 1)) == (T, "s")
    assert about(earlier.tables(), (True, 9)) == about(earlier.tables(), (False, 9)) == (None, None)
    (frame,) = track(earlier, [command("PRODUCER_SUCCESS", request_id=9, producer_name="p")])
    assert frame.topic == "persistent://public/default/v"
