"""Decoded events on disk: what comes back is what was put in."""

from contextlib import suppress
from pathlib import Path

import pytest

from pulsarctl_wire.capture.sources import Decoder, open_source
from pulsarctl_wire.errors import CaptureError, StoreError
from pulsarctl_wire.record import Recorder
from pulsarctl_wire.store import writer as writing
from pulsarctl_wire.store.directory import read_json, write_json
from pulsarctl_wire.store.reader import Dropped, StoreReader
from pulsarctl_wire.store.writer import StoreWriter
from pulsarctl_wire.wire.frame import Event, Frame

ROOT = Path(__file__).parents[2]
FOLDERS = ("samples/pcaps", "tests/checks/captures", "tests/encrypted")
FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).iterdir()) if ".pcap" in path.name]
KNOWN = (
    *(
        "number",
        "time_ns",
        "start_ns",
        "packet",
        "offset",
        "partial",
        "type",
        "checksum",
        "topic",
        "producer",
    ),
    *("subscription", "sent", "request", "request_offset", "request_type", "resend_of", "latency_ns"),
    *("joined", "schema", "metadata_at", "payload_at", "broker_entry", "reported", "raw", "base", "metadata"),
)


def decode(path: Path) -> list[Event]:
    decoder, events, source = Decoder(), list[Event](), open_source(str(path))
    with source.stream, suppress(CaptureError):
        for batch in decoder.read(source):
            events += batch
    for batch in decoder.finish():
        events += batch
    return events


def store(directory: Path, events: list[Event]) -> StoreReader:
    writer = StoreWriter(directory)
    for start in range(0, len(events), 37):
        writer.add(events[start : start + 37])
    writer.finish()
    reader = StoreReader(directory)
    reader.refresh()
    return reader


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_events_come_back_as_they_were(path: Path, tmp_path: Path) -> None:
    events = decode(path)
    reader = store(tmp_path, events)
    assert reader.count == len(events)
    again = [event for _, batch in reader.batches() for event in batch]
    one, other = Recorder(), Recorder()
    for event, copy in zip(events, again, strict=True):
        assert one(event) == other(copy)
        assert list(event.packets) == list(copy.packets)
        if isinstance(event, Frame):
            for name in KNOWN:
                assert getattr(event, name) == getattr(copy, name), name
            assert list(event.seals) == list(getattr(copy, "seals", ()))


@pytest.fixture
def events() -> list[Event]:
    return decode(ROOT / "samples/pcaps/java-nack-dlq.pcap")


def test_any_event_by_its_position_and_number(events: list[Event], tmp_path: Path) -> None:
    reader = store(tmp_path, events)
    for position in (0, 63, 64, 100, len(events) - 1):
        event = reader.event(position)
        assert repr(event) == repr(events[position])
        assert isinstance(event, Frame)
        assert reader.position_of(event.number) == position
    assert reader.position_of(0) is None
    assert reader.position_of(len(events) + 1) is None
    with pytest.raises(IndexError):
        reader.event(len(events))


def test_answers(events: list[Event], tmp_path: Path) -> None:
    reader = store(tmp_path, events)
    expected = {e.request: e.number for e in events if isinstance(e, Frame) and e.request is not None}
    assert expected
    assert {n: reader.answer_of(n) for n in range(len(events) + 2) if reader.answer_of(n)} == expected


def test_a_reader_follows_a_writer(events: list[Event], tmp_path: Path) -> None:
    writer, reader = StoreWriter(tmp_path), StoreReader(tmp_path)
    assert not reader.refresh()
    for count in (10, 70, 131):
        writer.add(events[writer.count : count])
        writer.flush()
        assert reader.refresh()
        assert reader.count == count
    writer.finish()
    assert not reader.refresh()


def test_a_ring_drops_the_oldest(
    events: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "FILE_SIZE", 10_000)
    writer = StoreWriter(tmp_path, limit=30_000)
    for _ in range(50):
        writer.add(events)
        writer.flush()
    writer.finish()
    assert sum(path.stat().st_size for path in tmp_path.glob("events.*")) <= 30_000
    reader = StoreReader(tmp_path)
    reader.refresh()
    assert reader.count == 50 * len(events)
    with pytest.raises(Dropped):
        reader.event(0)
    assert reader.position_of(1) is None
    first, kept = next(reader.batches())
    assert 0 < first < reader.count
    assert repr(reader.event(first)) == repr(kept[0]) == repr(events[first % len(events)])
    assert repr(reader.event(reader.count - 1)) == repr(events[-1])


def test_damage_is_said(events: list[Event], tmp_path: Path) -> None:
    store(tmp_path, events)
    path = tmp_path / "events.0"
    data = bytearray(path.read_bytes())
    for place in range(20, len(data), 97):
        data[place] ^= 0xFF
    path.write_bytes(bytes(data))
    reader = StoreReader(tmp_path)
    with pytest.raises(StoreError):
        reader.refresh()


def test_a_file_of_json_is_never_seen_half(tmp_path: Path) -> None:
    assert read_json(tmp_path, "state", 7) == 7
    write_json(tmp_path, "state", {"a": [1]})
    assert read_json(tmp_path, "state") == {"a": [1]}
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(StoreError):
        read_json(tmp_path, "state")
