"""The rows of sequence diagrams: what is folded, what stays, what is counted. All of it can be drawn."""

from __future__ import annotations

import io
import xml.etree.ElementTree as Xml
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from pulsarctl_wire.capture.sources import Decoder, Source
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.render.line import LineRenderer, TimeFormatter
from pulsarctl_wire.render.sequence import MAX_UNFOLDED, Diagram
from pulsarctl_wire.render.sequence_rows import Row, lifelines
from pulsarctl_wire.render.sequence_svg import svg
from pulsarctl_wire.render.sequence_text import text
from pulsarctl_wire.render.text import Paint
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.frame import Connection, Event, Frame, build_frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.PulsarApi_pb2 import MessageMetadata
from pulsarctl_wire.wire.session.ending import REFUSED, EndedConnection
from pulsarctl_wire.wire.session.exchanges import ExchangeState
from pulsarctl_wire.wire.session.knowledge import Knowledge

SAMPLES = Path(__file__).parents[1] / "samples" / "pcaps"
SMALL = ("corrupt-in-transit.pcap", "http-client-on-binary-port.pcap", "snaplen96.pcap", "no-checksum.pcap")
MS = 1_000_000


class Traffic:
    """Frames of several connections, a millisecond apart."""

    def __init__(self) -> None:
        self.knowledge = Knowledge()
        self.now = 0
        self._states: dict[int, ExchangeState] = {}
        self._streams: dict[tuple[int, bool], FrameStream] = {}

    def open(self, index: int, client: str = "10.0.0.1:4000", server: str = "10.0.0.2:6650") -> None:
        connection = Connection(index, client, server)
        self._states[index] = ExchangeState(connection, self.knowledge)
        for to_broker in (False, True):
            self._streams[index, to_broker] = FrameStream(connection, to_broker)

    def bytes(self, index: int, to_broker: bool, data: bytes) -> list[Event]:
        self.now += MS
        events = self._streams[index, to_broker].feed(data, self.now)
        self._states[index].track(events)
        return events

    def __call__(self, index: int, to_broker: bool, command: str, **fields: Any) -> list[Event]:
        entry = (MessageMetadata(producer_name="p", sequence_id=1, publish_time=1), b"x")
        with_entry = entry if command in ("SEND", "MESSAGE") else ()
        return self.bytes(index, to_broker, build_frame(build_command(command, **fields), *with_entry))

    def publish(self, index: int, number: int) -> list[Event]:
        sent = self(index, True, "SEND", producer_id=7, sequence_id=number)
        return sent + self(index, False, "SEND_RECEIPT", producer_id=7, sequence_id=number)

    def lookup(self, index: int, to: str, number: int = 1) -> list[Event]:
        asked = self(index, True, "LOOKUP", topic="t", request_id=number)
        return asked + self(
            *(index, False, "LOOKUP_RESPONSE"), request_id=number, response=0, brokerServiceUrl=to
        )

    def ending(self, index: int) -> EndedConnection:
        connection = self._states[index].connection
        whole = (connection, None, 1, 0, self.now, 1, False)
        return EndedConnection(*whole, "closed", True, self.now, True, "Pulsar", (0, 0))


def diagram(events: list[Event], **options: Any) -> Diagram:
    made = Diagram(LineRenderer(Paint(False)), **options)
    for event in events:
        made.add(event)
    made.finish()
    return made


def titles(rows: list[Row]) -> list[tuple[str, int]]:
    return [(row.title, row.count) for row in rows if row.number]


def drawn(rows: list[Row], width: int | None = 100) -> list[str]:
    return list(text(rows, Paint(False), TimeFormatter("relative"), width))


# -- folding


def test_a_short_run_stays_as_it_is() -> None:
    traffic = Traffic()
    traffic.open(0)
    events = [event for number in range(MAX_UNFOLDED // 2) for event in traffic.publish(0, number)]
    assert titles(diagram(events).rows) == [("SEND", 1), ("SEND_RECEIPT", 1)] * (MAX_UNFOLDED // 2)


def test_a_long_run_has_a_row_for_all_frames_that_are_alike() -> None:
    traffic = Traffic()
    traffic.open(0)
    events = [event for number in range(300) for event in traffic.publish(0, number)]
    mark, send, receipt = diagram(events).rows
    assert (mark.title, mark.fields) == ("connection", ["0", "from port 4000"])
    assert (send.title, send.count, send.number, send.last_number) == ("SEND", 300, 1, 599)
    assert receipt.count == 300
    assert receipt.tail() == [("", "p50 1.00 ms, p99 1.00 ms")]
    assert send.tail() == [("dim", "in 598.00 ms")]
    assert ("", "producer=7") in send.label()
    assert ("", "× 300") in send.label()  # noqa: RUF001


def test_other_commands_end_a_run() -> None:
    traffic = Traffic()
    traffic.open(0)
    events = [event for number in range(20) for event in traffic.publish(0, number)]
    events += traffic(0, True, "CLOSE_PRODUCER", producer_id=7, request_id=1)
    events += [event for number in range(20, 40) for event in traffic.publish(0, number)]
    assert titles(diagram(events).rows) == [
        *[("SEND", 20), ("SEND_RECEIPT", 20), ("CLOSE_PRODUCER", 1), ("SEND", 20), ("SEND_RECEIPT", 20)]
    ]


def test_a_run_goes_on_whatever_other_connections_do() -> None:
    traffic = Traffic()
    traffic.open(0)
    traffic.open(1)
    events = []
    for number in range(20):
        events += traffic.publish(0, number)
        events += traffic(1, True, "PRODUCER", topic=f"t{number}", producer_id=1, request_id=number)
    assert titles(diagram(events).rows)[:2] == [("SEND", 20), ("SEND_RECEIPT", 20)]


def test_a_damaged_frame_of_a_run_has_its_own_row() -> None:
    traffic = Traffic()
    traffic.open(0)
    events = [event for number in range(20) for event in traffic.publish(0, number)]
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    bad = build_frame(build_command("SEND", producer_id=7, sequence_id=20), metadata, b"x")
    events += traffic.bytes(0, True, bad[:-1] + b"y")
    events += [event for number in range(21, 41) for event in traffic.publish(0, number)]
    rows = diagram(events).rows
    assert titles(rows) == [
        *[("SEND", 20), ("SEND_RECEIPT", 20), ("SEND", 1), ("SEND", 20), ("SEND_RECEIPT", 20)]
    ]
    assert rows[3].problem.startswith("CRC32-C is ")


def test_a_redirect_loop_over_two_brokers_is_one_round_of_it() -> None:
    traffic = Traffic()
    traffic.open(0, server="10.0.0.2:6650")
    traffic.open(1, server="10.0.0.3:6650")
    events = []
    for number in range(30):
        events += traffic.lookup(0, "pulsar://10.0.0.3:6650", number)
        events += traffic.lookup(1, "pulsar://10.0.0.2:6650", number)
    rows = [row for row in diagram(events).rows if row.count > 1]
    assert sorted(titles(rows)) == [("LOOKUP", 29)] * 2 + [("LOOKUP_RESPONSE", 29)] * 2
    assert sorted(row.fields[1] for row in rows if row.fields) == [
        "10.0.0.2:6650",
        "10.0.0.3:6650",
    ]
    assert lifelines(rows, 4) == (["10.0.0.1"], ["10.0.0.3:6650", "10.0.0.2:6650"])


def test_a_client_that_connects_again_and_again_is_one_round_of_it() -> None:
    traffic = Traffic()
    made = Diagram(LineRenderer(Paint(False)))
    for index in range(50):
        traffic.open(index, client=f"10.0.0.1:{4000 + index}")
        events = traffic(index, True, "CONNECT", client_version="c", protocol_version=20)
        events += traffic(index, False, "ERROR", request_id=2**64 - 1, error=3, message="no")
        for event in events:
            made.add(event)
        made.end(traffic.ending(index))
    made.finish()
    assert [(row.title, row.count) for row in made.rows] == [
        *[("connection", 50), ("CONNECT", 50), ("ERROR", 50), ("closed by broker", 50)]
    ]
    assert all(row.index == "0+" for row in made.rows)
    assert made.rows[2].style == "red"
    assert made.rows[3].is_end


def test_a_few_rounds_stay_as_they_are() -> None:
    traffic = Traffic()
    traffic.open(0)
    events = [event for number in range(3) for event in traffic.lookup(0, "pulsar://b:1", number)]
    assert titles(diagram(events).rows) == [("LOOKUP", 1), ("LOOKUP_RESPONSE", 1)] * 3


def test_nothing_is_folded_on_request() -> None:
    traffic = Traffic()
    traffic.open(0)
    events = [event for number in range(50) for event in traffic.publish(0, number)]
    assert titles(diagram(events, fold=False).rows) == [("SEND", 1), ("SEND_RECEIPT", 1)] * 50


# -- marks


def test_the_end_of_a_connection_stands_where_it_happened() -> None:
    traffic = Traffic()
    traffic.open(0)
    traffic.open(1)
    made = Diagram(LineRenderer(Paint(False)))
    for event in traffic.lookup(0, "pulsar://b:1"):
        made.add(event)
    ending = traffic.ending(0)
    for event in traffic.lookup(1, "pulsar://b:1"):
        made.add(event)
    made.end(ending)  # a capture that reports it late
    assert [row.title for row in made.rows][2:5] == ["LOOKUP_RESPONSE", "closed by broker", "connection"]


def test_a_connection_that_was_refused_has_only_its_end() -> None:
    made = Diagram(LineRenderer(Paint(False)))
    connection = Connection(0, "[::1]:4000", "[::2]:6650")
    assert not made.shows(connection)
    made.end(EndedConnection(connection, None, 1, 0, MS, 1, False, REFUSED, None, MS, True, None, (0, 0)))
    assert lifelines(made.rows, 4) == (["[::1]"], ["[::2]:6650"])
    (line,) = drawn(made.rows, 70)[1:]
    assert line == "- 0.001000 0 │× refused (reset by [::2]:6650) ╌╌╌╌╌╌╌ after 1.00 ms ╌┤"  # noqa: RUF001


# -- limits


def test_what_is_beyond_the_limit_is_counted() -> None:
    traffic = Traffic()
    traffic.open(0)
    events = []
    for number in range(1_000):
        events += traffic(0, True, "LOOKUP", topic=f"t{number}", request_id=number)
    made = diagram(events, limit=100)
    assert len(made.rows) == 100
    assert made.left_out == 1_001 - 100  # with the mark of the connection
    assert made.note == "… and 901 more frames and marks: see --rows"
    assert diagram(events, limit=2_000).note == ""


def test_names_and_fields_are_cut() -> None:
    traffic = Traffic()
    traffic.open(0)
    events = traffic(
        *(0, True, "SUBSCRIBE"), topic="t" * 5_000, subscription="s" * 5_000, subType=0, consumer_id=1,
        request_id=1, consumer_name="c" * 5_000,
    )  # fmt: skip
    _, row = diagram(events).rows
    assert max(map(len, [row.topic, *row.fields])) < 310
    assert sum(map(len, row.fields)) < 1_000
    assert len(svg([row] * 100, TimeFormatter())) < 300_000


def test_of_many_lifelines_the_last_one_is_of_all_others() -> None:
    traffic = Traffic()
    events = []
    for index in range(20):
        traffic.open(index, client=f"10.0.0.{index}:4000", server=f"10.0.1.{index}:6650")
        events += traffic.lookup(index, "pulsar://b:1")
    made = diagram(events)
    lines = lifelines(made.rows, 4)
    assert lines.clients == ["10.0.0.0", "10.0.0.1", "10.0.0.2", "17 others"]
    assert lines.of(made.rows[-1]) == (3, 3)
    assert all(cell_len(line) == 80 for line in drawn(made.rows, 80)[4:])


# -- around a frame


@pytest.mark.parametrize(("frame", "most", "expected"), [(10, 2, [8, 9, 10, 11, 12]), (1, 3, [1, 2, 3, 4])])
def test_around_a_frame(frame: int, most: int, expected: list[int]) -> None:
    traffic = Traffic()
    traffic.open(0, client="", server="")
    events = [event for number in range(50) for event in traffic.publish(0, number)]
    made = diagram(events, around=(frame, most))
    assert [row.number for row in made.rows] == expected
    assert [row.number for row in made.rows if row.is_focus] == [frame]
    assert made.is_done
    assert [line for line in drawn(made.rows) if line.startswith("▶")]


def test_around_a_frame_that_is_not_there() -> None:
    traffic = Traffic()
    traffic.open(0)
    made = diagram(traffic.publish(0, 1), around=(99, 5))
    assert made.rows == []
    assert not made.is_done


# -- any capture


def mutated(data: bytes, changes: list[tuple[int, bytes]]) -> bytes:
    changed = bytearray(data)
    for at, new in changes:
        where = 24 + at % (len(changed) - 24)  # the header of the file stays
        changed[where : where + len(new)] = new
    return bytes(changed)


changes = st.lists(st.tuples(st.integers(0, 2**20), st.binary(min_size=1, max_size=6)), max_size=30)


@given(st.sampled_from(SMALL), changes, st.integers(1, 60), st.booleans(), st.integers(1, 140))
def test_any_capture_can_be_drawn(
    name: str, damage: list[tuple[int, bytes]], limit: int, fold: bool, width: int
) -> None:
    """Whatever it holds; and each frame and each damage is in a row, or counted."""
    made = Diagram(LineRenderer(Paint(False)), fold=fold, limit=limit)
    ended: list[EndedConnection] = []
    decoder = Decoder(on_end=ended.append)
    events: list[Event] = []
    try:
        for batch in decoder.read(Source(name, io.BytesIO(mutated((SAMPLES / name).read_bytes(), damage)))):
            events += batch
    except CaptureError:
        pass
    for batch in decoder.finish():
        events += batch
    for event in events:
        made.add(event)
    begun = {event.connection.index for event in events if event.connection.client}
    for ending in ended:
        made.end(ending)
    made.finish()
    assert len(made.rows) <= limit
    assert sum(row.count for row in made.rows) + made.left_out == len(events) + len(begun) + len(ended)
    lines = list(text(made.rows, Paint(False), TimeFormatter(), width, made.note))
    assert all(line.isprintable() and cell_len(line) <= width for line in lines)
    Xml.fromstring(svg(made.rows, TimeFormatter(), made.note))


@pytest.mark.parametrize("name", sorted(path.name for path in SAMPLES.iterdir() if ".pcap" in path.name))
def test_without_folding_every_frame_has_its_row(name: str) -> None:
    decoder = Decoder()
    with open(SAMPLES / name, "rb") as file:
        events = [event for batch in decoder.read(Source(name, file)) for event in batch]
    events += [event for batch in decoder.finish() for event in batch]
    made = diagram(events, fold=False, limit=10_000)
    frames = [event for event in events if isinstance(event, Frame)]
    assert [row.number for row in made.rows if row.number] == [frame.number for frame in frames]
    assert all(
        frame.command == row.title
        for frame, row in zip(frames, (r for r in made.rows if r.number), strict=True)
    )
    Xml.fromstring(svg(made.rows, TimeFormatter()))
