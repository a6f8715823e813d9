"""Hypothesis strategies for traffic: commands, frames, and ways to cut bytes."""

import itertools

from hypothesis import strategies as st

from pulsarctl_wire.wire.frame import build_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, BrokerEntryMetadata, MessageMetadata

uint64 = st.integers(0, 2**64 - 1)
names = st.text(min_size=1, max_size=12)
readable = st.text(st.characters(min_codepoint=32, exclude_categories=["Cs"]), min_size=1, max_size=12)
"""Names without control characters: a LOOKUP, which may carry credentials, is masked where it has some."""
PAYLOADS = st.binary(max_size=60)


@st.composite
def send_frames(draw: st.DrawFn, payloads: st.SearchStrategy[bytes] = PAYLOADS) -> bytes:
    """A SEND with metadata and payload, with or without checksum."""
    base = BaseCommand(type=BaseCommand.SEND)
    base.send.producer_id = draw(st.integers(0, 3))
    base.send.sequence_id = draw(uint64)
    metadata = MessageMetadata(producer_name=draw(names), sequence_id=1, publish_time=draw(uint64))
    return build_frame(base, metadata, draw(payloads), checksum=draw(st.booleans()))


@st.composite
def request_frames(draw: st.DrawFn) -> bytes:
    """A command without payload, from client to broker."""
    kind = draw(st.sampled_from(["ping", "flow", "lookup", "subscribe"]))
    base = BaseCommand(type=BaseCommand.PING)
    if kind == "ping":
        base.ping.SetInParent()
    elif kind == "flow":
        base.type = BaseCommand.FLOW
        base.flow.consumer_id, base.flow.messagePermits = draw(uint64), draw(st.integers(0, 2**32 - 1))
    elif kind == "lookup":
        base.type = BaseCommand.LOOKUP
        base.lookupTopic.topic, base.lookupTopic.request_id = draw(readable), draw(uint64)
    else:
        base.type = BaseCommand.SUBSCRIBE
        base.subscribe.topic, base.subscribe.subscription = draw(names), draw(names)
        base.subscribe.subType = draw(st.sampled_from([0, 1, 2, 3]))  # type: ignore[assignment]
        base.subscribe.consumer_id, base.subscribe.request_id = draw(uint64), draw(uint64)
    return build_frame(base)


@st.composite
def message_frames(draw: st.DrawFn) -> bytes:
    """A MESSAGE, maybe with broker entry metadata."""
    base = BaseCommand(type=BaseCommand.MESSAGE)
    base.message.consumer_id = draw(uint64)
    base.message.message_id.ledgerId, base.message.message_id.entryId = draw(uint64), draw(uint64)
    metadata = MessageMetadata(producer_name=draw(names), sequence_id=draw(uint64), publish_time=1)
    entry = BrokerEntryMetadata(broker_timestamp=draw(uint64)) if draw(st.booleans()) else None
    return build_frame(base, metadata, draw(st.binary(max_size=60)), broker_entry=entry)


frames_to_broker = st.lists(st.one_of(send_frames(), request_frames()), min_size=1, max_size=8)


@st.composite
def cuts(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """`data` cut into chunks anywhere."""
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    edges = [0, *places, len(data)]
    return [data[start:stop] for start, stop in itertools.pairwise(edges) if stop > start]
