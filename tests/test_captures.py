"""Real captures give what their `expected.json` says: frames, checksums, gaps, messages, every entry.

The samples are compared always; PWIRE_CAPTURES may name more folders of the same form (separated as in
PATH), each with an `expected.json` beside its captures.
"""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsarctl_wire import Frame, Gap, Malformed, open_entry, read_events
from pulsarctl_wire.record import Recorder
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.payload import Message
from pulsarctl_wire.wire.PulsarApi_pb2 import CompressionType

SAMPLES = Path(__file__).parent.parent / "samples" / "pcaps"
FOLDERS = [SAMPLES, *map(Path, filter(None, os.environ.get("PWIRE_CAPTURES", "").split(os.pathsep)))]


def rows() -> list[Any]:
    return [
        pytest.param(folder, row, id=f"{folder.name}/{row['file']}")
        for folder in FOLDERS
        for row in json.loads((folder / "expected.json").read_text())
        if "by_command" in row
    ]


def entry(frame: Frame, message: Message, record: dict[str, Any]) -> dict[str, Any]:
    """A message in the words of expected.json; the payload's text is the one that JSON output shows."""
    metadata, own = frame.metadata, message.metadata
    assert metadata is not None
    body: Any = frame.body
    row: dict[str, Any] = {
        "frame_command": frame.command,
        "connection": frame.connection.index,
        "packet": frame.packet,
        "producer_name": metadata.producer_name,
        "sequence_id": own.sequence_id if own.HasField("sequence_id") else metadata.sequence_id,
        "publish_time": metadata.publish_time,
        "compression": CompressionType.Name(metadata.compression),
    }
    if frame.command == "SEND":
        row["producer_id"] = body.producer_id
    else:
        row["consumer_id"] = body.consumer_id
        row["message_id"] = f"{body.message_id.ledgerId}:{body.message_id.entryId}"
        row["redelivery_count"] = body.redelivery_count
    if message.index is not None:
        row["batch_index"] = message.index
    if own.HasField("event_time"):
        row["event_time"] = own.event_time
    if metadata.HasField("deliver_at_time"):
        row["deliver_at_time"] = metadata.deliver_at_time
    if metadata.HasField("schema_version"):
        row["schema_version"] = metadata.schema_version.hex()
    row |= _key_and_flags(message)
    if frame.joined is not None:
        row["chunks"] = metadata.num_chunks_from_msg
    if metadata.encryption_keys:
        row["encrypted"] = True
        row["encryption_keys"] = [key.key for key in metadata.encryption_keys]
        if metadata.HasField("num_messages_in_batch"):
            row["num_messages_in_batch"] = metadata.num_messages_in_batch
    if metadata.replicate_to:
        row["replicate_to"] = list(metadata.replicate_to)
    if metadata.HasField("marker_type"):
        row["marker_type"] = metadata.marker_type
    broker = frame.broker_entry_metadata
    if broker is not None:
        row["broker_entry"] = {"broker_timestamp": broker.broker_timestamp, "index": broker.index}
    if message.payload is not None:
        row["size"] = len(message.payload)
        row["payload_sha256"] = hashlib.sha256(message.payload).hexdigest()
        row |= _text(message.payload, record["messages"][message.index or 0]["payload"])
    return row


def _key_and_flags(message: Message) -> dict[str, Any]:
    own = message.metadata
    row: dict[str, Any] = {}
    if own.HasField("partition_key"):
        row["key"] = own.partition_key
    if own.partition_key_b64_encoded:
        row["key_is_base64"] = True
    if own.HasField("ordering_key"):
        try:
            row["ordering_key"] = own.ordering_key.decode()
        except UnicodeDecodeError:
            row["ordering_key"] = f"hex:{own.ordering_key.hex()}"
    if own.properties:
        row["properties"] = [[as_text(each.key), as_text(each.value)] for each in own.properties]
    if message.skipped:
        row["already_acked"] = True
    for flag in ("null_value", "null_partition_key", "compacted_out"):
        if flag in own.DESCRIPTOR.fields_by_name and getattr(own, flag):
            row[flag] = True
    return row


def _text(payload: bytes, shown: dict[str, Any] | None) -> dict[str, str]:
    if shown is None or len(payload) > 200:
        return {}
    if shown["view"] in ("hex", "encrypted"):
        assert bytes.fromhex(shown["value"]) == payload
        return {}
    if shown["view"] == "text":
        return {"payload_text": shown["value"]}
    try:
        return {"payload_text": payload.decode()}
    except UnicodeDecodeError:
        return {}


@pytest.mark.parametrize(("folder", "row"), rows())
def test_a_capture_holds_what_is_expected(folder: Path, row: dict[str, Any]) -> None:
    recorder = Recorder()
    commands: Counter[str] = Counter()
    partial: Counter[str] = Counter()
    checksums = Counter({"crc_valid": 0, "crc_absent": 0, "crc_invalid": 0})
    messages = Counter({"sent": 0, "delivered": 0})
    totals: Counter[str] = Counter()
    connections: set[int] = set()
    entries: list[dict[str, Any]] = []
    for event in read_events(folder / row["file"]):
        if isinstance(event, Gap):
            totals["gaps"] += 1
        elif isinstance(event, Malformed):
            totals["skipped"] += event.size
        elif isinstance(event, Frame):
            connections.add(event.connection.index)
            record = recorder(event)
            assert record["command"] == event.command
            if event.partial:
                partial[event.command] += 1
                continue
            commands[event.command] += 1
            if event.metadata is None:
                continue
            checksums[f"crc_{record['checksum']}"] += 1
            totals["broker_entry"] += record["broker_entry_metadata"] is not None
            opened = open_entry(event).messages
            count = event.metadata.num_messages_in_batch if event.metadata.encryption_keys else len(opened)
            messages["sent" if event.command == "SEND" else "delivered"] += count
            entries += [entry(event, message, record) for message in opened]
    assert len(connections) == row["connections"]
    assert dict(commands) == row["by_command"]
    assert dict(partial) == row["partial_by_command"]
    assert dict(checksums) == row["payload_frames"]
    assert dict(messages) == row["messages"]
    assert totals["broker_entry"] == row["broker_entry_metadata"]
    assert (totals["gaps"], totals["skipped"]) == (row["gaps"], row["skipped_bytes"])
    expected = [
        {key: value for key, value in each.items() if key != "first_chunk_message_id"}
        for each in row["entries"]
    ]
    assert entries[: len(expected)] == expected


# -- what the clients themselves say


def told(folder: Path, file: str) -> Iterator[tuple[str, str, str]]:
    """(ledger:entry, batch index or "", payload or its SHA-256) of each message a client sent or received.

    From NAME.notes.json (anything in it with an id and a payload) and client-logs/NAME.jsonl beside the
    capture.
    """
    name = file.split(".pcap")[0]
    notes = folder / f"{name}.notes.json"
    if notes.exists():
        yield from _told_in_notes(json.loads(notes.read_text()))
    log = folder / "client-logs" / f"{name}.jsonl"
    for line in log.read_text().splitlines() if log.exists() else ():
        row = json.loads(line)
        if row["op"] in ("sent", "received") and "ledger" in row and "error" not in row:
            index = row.get("batch_index", -1)
            yield f"{row['ledger']}:{row['entry']}", "" if index < 0 else str(index), row["sha256"]


def _told_in_notes(notes: Any) -> Iterator[tuple[str, str, str]]:
    if isinstance(notes, dict):
        if "id" in notes and ("payload" in notes or "sha256" in notes):
            yield (*_message_id(notes["id"]), notes.get("sha256") or _digest(notes["payload"].encode()))
        else:
            for name, value in notes.items():
                if not name.startswith("tls_session"):  # what went through TLS cannot be seen
                    yield from _told_in_notes(value)
    elif isinstance(notes, list):
        if len(notes) == 2 and all(isinstance(each, str) for each in notes) and notes[0].count(":") == 2:
            yield (*_message_id(notes[0]), _digest(notes[1].encode()))
        else:
            for value in notes:
                yield from _told_in_notes(value)


def _message_id(text: str) -> tuple[str, str]:
    ledger, entry_id, *rest = re.findall(r"-?\d+", text)
    index = rest[1] if len(rest) > 1 and rest[1] != "-1" else ""
    return f"{ledger}:{entry_id}", index


def _signed(number: int) -> int:
    return -1 if number == 2**64 - 1 else number


def _digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()


def _captures_with_clients() -> list[Any]:
    damaged = {"midstream.pcap", "lost-packets.pcap", "snaplen96.pcap", "java-encrypted.pcap"}
    return [
        pytest.param(folder, path.name, id=f"{folder.name}/{path.name}")
        for folder in FOLDERS
        for path in sorted(folder.glob("*.pcap*"))
        if path.name not in damaged and any(told(folder, path.name))
    ]


@pytest.mark.parametrize(("folder", "file"), _captures_with_clients())
def test_every_message_that_a_client_sent_or_received_is_found(folder: Path, file: str) -> None:
    found: set[tuple[str, str, str]] = set()
    sent: dict[int, list[Message]] = {}
    for event in read_events(folder / file):
        if not isinstance(event, Frame) or event.partial:
            continue
        body: Any = event.body
        opened: list[Message] = []
        if event.command == "SEND":
            sent[event.number] = open_entry(event).messages
        elif event.command == "SEND_RECEIPT" and event.request is not None:
            opened = sent[event.request]
        elif event.command == "MESSAGE":
            opened = open_entry(event).messages
        for message in opened:
            where = f"{_signed(body.message_id.ledgerId)}:{_signed(body.message_id.entryId)}"
            assert message.payload is not None
            index = "" if message.index is None else str(message.index)
            found.add((where, index, _digest(message.payload)))
    assert found.issuperset(told(folder, file))
