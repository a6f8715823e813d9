"""Two processes that follow half of the connections each: what they give together is what one gives."""

from __future__ import annotations

import io
import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from segments import Tcp, captured, pcap

from pulsarctl_wire.capture import Decoder, Source, files, open_source, sharing
from pulsarctl_wire.capture.compression import reader
from pulsarctl_wire.capture.files import RawPacket
from pulsarctl_wire.capture.sharing import Sharing
from pulsarctl_wire.cli.jsonl import json_line
from pulsarctl_wire.errors import WireError
from pulsarctl_wire.record import Recorder
from pulsarctl_wire.wire.commands import BODIES, NUMBERS
from pulsarctl_wire.wire.frame import Event, build_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata, Schema

SAMPLES = Path(__file__).parents[2] / "samples" / "pcaps"


class Peer:
    """One end of a way between two threads."""

    def __init__(self, out: Queue[Any], into: Queue[Any]) -> None:
        self.send = out.put
        self._into = into

    def receive(self) -> Any:
        return self._into.get(timeout=30)


def render(events: list[Event]) -> bytes:
    recorder = Recorder()
    return b"".join(json_line(recorder(event)) for event in events)


def alone(capture: bytes) -> bytes:
    decoder = Decoder()
    events = [*decoder.read(Source("it", io.BytesIO(capture))), *decoder.finish()]
    return b"".join(map(render, events))


def together(*captures: bytes) -> tuple[bytes, int | None]:
    """What two threads give of a capture (or each of its own), and the time of the first event."""
    one, other = Queue[Any](), Queue[Any]()
    written: list[bytes] = []

    def part(number: int) -> Sharing:
        decoder = Decoder(share=(number, 2))
        peer = Peer(one, other) if number else Peer(other, one)
        shared = Sharing(decoder, peer, render, None if number else written.append)
        for _ in decoder.read(Source("it", io.BytesIO(captures[number % len(captures)]))):
            pass
        shared.finish()
        return shared

    with ThreadPoolExecutor(2) as pool:
        shares = list(pool.map(part, range(2)))
    assert shares[0].first_ns == shares[1].first_ns
    return b"".join(written), shares[0].first_ns


def command(name: str, **fields: Any) -> bytes:
    base = BaseCommand(type=NUMBERS[name])  # type: ignore[arg-type]
    body = getattr(base, BODIES[NUMBERS[name]])
    body.MergeFrom(type(body)(**fields))
    return build_frame(base)


def packets_of(name: str) -> list[RawPacket]:
    with open_source(str(SAMPLES / name)).stream as stream:
        read = reader(stream)
        return list(files.read_packets(read(), read))


ETHERNET = [
    packets
    for path in sorted(SAMPLES.glob("*.pcap"))
    if (packets := packets_of(path.name)) and all(packet[1] == 1 for packet in packets)
]


def test_there_are_captures_to_share() -> None:
    assert len(ETHERNET) > 5


@settings(max_examples=30)
@given(st.randoms(use_true_random=False), st.sampled_from([0, 3_000, 30_000, 10**9]), st.booleans())
def test_what_two_give_is_what_one_gives(rng: random.Random, block: int, damaged: bool) -> None:
    """Captures shuffled into one another: many connections, schemas seen on others, ports used again."""
    queues = [list(reversed(packets)) for packets in rng.sample(ETHERNET, 4)]
    mixed: list[RawPacket] = []
    while queues := [queue for queue in queues if queue]:
        queue = rng.choice(queues)
        mixed += [queue.pop() for _ in range(min(len(queue), rng.randrange(1, 30)))]
    if damaged:
        mixed = [packet for packet in mixed if rng.random() > 0.02]
    capture = pcap(mixed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "BLOCK", block)
        given_together, first_ns = together(capture)
    assert given_together == alone(capture)
    assert (first_ns is None) == (given_together == b"")


@pytest.mark.parametrize("block", [0, 10**9])
def test_a_schema_learned_on_another_connection_is_known_at_once(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer's connection says no schema: it is the producer's that teaches it, before or after."""
    monkeypatch.setattr(sharing, "BLOCK", block)
    schema = Schema(name="s", type=Schema.Int32, schema_data=b"")
    producer = command("PRODUCER", topic="t", producer_id=1, request_id=1, schema=schema)
    success = command("PRODUCER_SUCCESS", request_id=1, producer_name="p", schema_version=b"v1")
    subscribe = command("SUBSCRIBE", topic="t", subscription="s", subType=0, consumer_id=1, request_id=1)
    base = BaseCommand(type=BaseCommand.MESSAGE)
    base.message.consumer_id = 1
    base.message.message_id.ledgerId = base.message.message_id.entryId = 1
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, schema_version=b"v1")
    message = build_frame(base, metadata, b"\x00\x00\x00\x07")
    teacher, pupil = Tcp(client=("10.0.0.1", 1)), Tcp(client=("10.0.0.1", 2))
    segments = [
        *teacher.handshake(),
        *pupil.handshake(),
        *(pupil.send(True, subscribe), pupil.send(False, message)),
        *(teacher.send(True, producer), pupil.send(False, message)),
        *(teacher.send(False, success), pupil.send(False, message)),
    ]
    output, _ = together(pcap(captured(segments)))
    assert output == alone(pcap(captured(segments)))
    views = [json.loads(line)["messages"][0]["payload"] for line in output.splitlines() if b"MESSAGE" in line]
    assert [view["view"] for view in views] == ["hex", "hex", "int32"]
    assert views[2]["value"] == 7


def test_a_capture_without_frames() -> None:
    assert together(pcap([])) == (b"", None)


def test_a_capture_that_grows_meanwhile_is_an_error() -> None:
    packets = ETHERNET[0]
    with pytest.raises(WireError, match="changed while it was read"):
        together(pcap(packets), pcap(packets[:-1]))
