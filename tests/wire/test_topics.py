"""A session that only knows topics tells the same ones as a session that knows everything."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from pulsarctl_wire.capture import Decoder, open_source
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.session.exchanges import ExchangeState
from pulsarctl_wire.wire.session.state import TopicState

SAMPLES = Path(__file__).parents[2] / "samples" / "pcaps"
CAPTURES = sorted(path.name for path in SAMPLES.glob("*.pcap*"))


def topics(name: str, session: type[TopicState]) -> list[tuple[str, str | None, str | None]]:
    decoder = Decoder(join_chunks=False, new_state=session)
    with (source := open_source(str(SAMPLES / name))).stream:
        events = list(itertools.chain(*decoder.read(source), *decoder.finish()))
    return [(each.command, each.topic, each.subscription) for each in events if isinstance(each, Frame)]


@pytest.mark.parametrize("name", CAPTURES)
def test_topics_are_those_of_a_whole_session(name: str) -> None:
    assert topics(name, TopicState) == topics(name, ExchangeState)
