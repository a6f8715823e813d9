"""Rows say of each frame what its record says."""

from __future__ import annotations

import base64
import io
import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from pulsarctl_wire.capture import Decoder, Source, open_source
from pulsarctl_wire.record import Recorder
from pulsarctl_wire.record.connections import connection_record
from pulsarctl_wire.table.builder import TableBuilder
from pulsarctl_wire.table.rows import parse_address
from pulsarctl_wire.wire.commands import BODIES, NUMBERS, command_name
from pulsarctl_wire.wire.frame import Connection, Event, Frame, Gap, Malformed, build_frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata, ServerError
from pulsarctl_wire.wire.session.counts import messages_in, permits_used
from pulsarctl_wire.wire.session.ending import Contents, EndedConnection
from pulsarctl_wire.wire.session.exchanges import ExchangeState

SAMPLES = Path(__file__).parents[2] / "samples" / "pcaps"
CAPTURES = sorted(path.name for path in SAMPLES.glob("*.pcap*"))
PLAIN = {"SEND", "SEND_RECEIPT", "MESSAGE", "ACK", "FLOW", "PING", "PONG", "ACK_RESPONSE", "?"}

Row = dict[str, Any]


def rows_of(events: list[Event], *, payload: bool = False, sources: tuple[str, ...] = ("it",)) -> list[Row]:
    builder = TableBuilder(sources, payload=payload)
    builder.add(events)
    rows: list[Row] = builder.take_frames().to_pylist()
    return rows


def frames_of(data: bytes) -> list[Event]:
    """The frames of raw bytes, and what is left of them."""
    stream = FrameStream(Connection(0, "10.0.0.1:5", "[fd00::1]:6650"), True)
    stream.is_direction_certain = False
    return [*stream.feed(data), *stream.close()]


def raw(command: bytes, behind: bytes = b"") -> bytes:
    size = len(command)
    return (4 + size + len(behind)).to_bytes(4, "big") + size.to_bytes(4, "big") + command + behind


def signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def decoded(name: str, *, places: bool) -> list[Event]:
    decoder = Decoder(places=places, join_chunks=False, new_state=ExchangeState)
    with (source := open_source(str(SAMPLES / name))).stream:
        batches = [*decoder.read(source), *decoder.finish()]
    return [event for events in batches for event in events]


def expected(frame: Frame, record: Row) -> Row:
    """The columns that a frame's record tells."""
    fields, metadata, command = record["fields"] or {}, record["metadata"], record["command"]
    ids = fields.get("message_id")
    acked = ids if command == "ACK" and ids else []
    first = acked[0] if acked else ids if command in ("MESSAGE", "SEND_RECEIPT") else None
    ends = [record["client"].rpartition(":"), record["server"].rpartition(":")]
    source, target = ends if record["to_broker"] else ends[::-1]
    row = {name: record[name] for name in ("time_ns", "connection", "to_broker", "command", "total_size")}
    row |= {name: record[name] for name in ("topic", "subscription", "partial", "checksum")}
    row |= {name: fields.get(name) for name in ("request_id", "producer_id", "consumer_id", "sequence_id")}
    row |= {
        "start_time_ns": None if frame.start_ns == frame.time_ns else frame.start_ns,
        "src_ip": source[0].strip("[]"),
        "src_port": int(source[2]),
        "dst_ip": target[0].strip("[]"),
        "dst_port": int(target[2]),
        "stream_offset": frame.offset,
        "command_size": frame.command_size,
        "ledger_id": first and first["ledgerId"],
        "entry_id": first and first["entryId"],
        "error": fields.get("error"),
        "permits": fields.get("messagePermits") if command == "FLOW" else None,
        "answers": None if frame.request_type is None else command_name(frame.request_type),
        "latency_ns": record["latency_ns"] if fields.get("producer_ready") is not False else None,
        "producer": frame.producer,
        "sent_size": frame.sent and frame.sent[0],
        "highest_sequence_id": fields.get("highest_sequence_id")
        if command in ("SEND", "SEND_RECEIPT")
        else None,
        "ack_set": (acked[0] if acked else fields).get("ack_set") if command in ("ACK", "MESSAGE") else None,
        "validation_error": fields.get("validation_error") if command == "ACK" else None,
        "series": "it",
        "cluster": None,
        "resend": None if command != "SEND" or frame.resend_of is None else True,
        "left": left_of(acked[0]) if acked else None,
        "redelivery_count": fields.get("redelivery_count", 0) if command == "MESSAGE" else None,
        "ack_type": fields.get("ack_type") if command == "ACK" else None,
        "ack_count": len(acked) if command == "ACK" else None,
        "acked": [
            {
                **{"ledger_id": each["ledgerId"], "entry_id": each["entryId"], "left": left_of(each)},
                "ack_set": each.get("ack_set"),
            }
            for each in acked
        ]
        if len(acked) > 1
        else None,
        "checksum_valid": {"valid": True, "invalid": False}.get(record["checksum"] or ""),
        "payload_size": frame.size - frame.payload_at if frame.payload_at and not frame.partial else None,
        "payload_crc": crc32c(frame.payload)
        if command == "SEND" and frame.payload_at and not frame.partial
        else None,
        "unpacked_size": None,
        "consumer_epoch": fields.get("consumer_epoch") if command == "MESSAGE" else None,
        "metadata": metadata and of_metadata(metadata),
        "payload": frame.payload if frame.payload_at else None,
    }
    start, stop = frame.parts.metadata if command in ("SEND", "MESSAGE") else (0, 0)
    row["metadata_size"] = stop - start if frame.payload_at else None
    count = metadata and metadata.get("num_messages_in_batch", 1)
    row["num_messages"] = fields.get("num_messages", 1) if command == "SEND" else count
    if command == "MESSAGE":
        row["permits"] = permits_used(frame)
    row["messages"] = frame.sent[1] if frame.sent else None if metadata is None else messages_in(frame)
    return row


def left_of(acked: Row) -> int:
    return sum((word % 2**64).bit_count() for word in acked.get("ack_set", []))


def of_metadata(metadata: Row) -> Row:
    names = (
        *("producer_name", "publish_time", "event_time", "deliver_at_time", "uuid", "num_chunks_from_msg"),
        *("chunk_id", "total_chunk_msg_size", "schema_version", "uncompressed_size", "null_value"),
        *("marker_type", "replicated_from", "txnid_least_bits", "txnid_most_bits"),
    )
    row = {name: metadata.get(name) for name in names}
    row["compression"] = metadata.get("compression", "NONE")
    row["num_messages_in_batch"] = metadata.get("num_messages_in_batch", 1)
    row["encrypted"] = True if metadata.get("encryption_keys") else None
    return row


@pytest.mark.parametrize("name", CAPTURES)
def test_rows_of_a_sample_say_what_its_records_say(name: str) -> None:
    events = decoded(name, places=False)
    recorder = Recorder()
    records = {
        (event.connection.index, event.to_broker, event.offset): (event, recorder(event))
        for event in events
        if isinstance(event, Frame)
    }
    rows = rows_of(events, payload=True)
    assert len(rows) == len(records)
    for row in rows:
        frame, record = records[row["connection"], row["to_broker"], row["stream_offset"]]
        wanted = expected(frame, record)
        if row["metadata"] is not None:
            has_key = bool({"partition_key", "ordering_key"} & record["metadata"].keys())
            assert (row["metadata"].pop("key_hash") is not None) is has_key
        assert {key: row[key] for key in wanted} == wanted
        text = row["command_json"]
        assert (text is None) is (record["command"] in PLAIN)
        assert text is None or json.loads(text) == record["fields"]


@pytest.mark.parametrize("name", CAPTURES)
def test_gaps_of_a_sample_say_what_its_records_say(name: str) -> None:
    damage = [event for event in decoded(name, places=False) if isinstance(event, Malformed | Gap)]
    builder = TableBuilder(["it"])
    builder.add([*damage])
    rows = builder.take_gaps().to_pylist()
    assert len(rows) == len(damage)
    for row, event in zip(rows, damage, strict=True):
        assert (row["time_ns"], row["to_broker"]) == (event.time_ns, event.to_broker)
        assert (row["stream_offset"], row["size"]) == (event.offset, event.size)
        assert row["kind"] == ("gap" if isinstance(event, Gap) else "malformed")
        if isinstance(event, Malformed):
            head = base64.b64decode(Recorder()(event)["bytes"])[:16]
            assert (row["reason"], row["protocol"] or "", row["head"]) == (event.reason, event.protocol, head)
        else:
            assert (row["reason"], row["protocol"], row["head"]) == (None, None, None)


@pytest.mark.parametrize("name", CAPTURES)
def test_connections_of_a_sample_say_what_their_records_say(name: str) -> None:
    records: list[Row] = []
    builder = TableBuilder(["it"])

    def say(ending: EndedConnection) -> None:
        records.append(connection_record(ending))

    for kind, on_end in ((Contents, say), (ExchangeState, builder.add_ended_connection)):
        decoder = Decoder(places=True, join_chunks=False, new_state=kind, on_end=on_end)
        with (source := open_source(str(SAMPLES / name))).stream:
            for _ in chain(decoder.read(source), decoder.finish()):
                pass
    rows = builder.take_connections().to_pylist()
    assert len(rows) == len(records) > 0
    same = ["connection", "time_ns", "end", "by_broker", "end_ns", "last_ns", "syns", "client_version"]
    same += ["protocol_version", "proxy_to_broker_url", "bytes_to_broker", "bytes_to_client", "protocol"]
    for row, record in zip(rows, records, strict=True):
        assert [row[each] for each in same] == [record[each] for each in same]
        assert (row["joined"], row["packet_offset"]) == (record["joined_midway"], record["packet"])
        ends = [(row[f"{side}_ip"], row[f"{side}_port"]) for side in ("client", "server")]
        assert ends == [parse_address(record["client"]), parse_address(record["server"])]


def test_gaps_keep_their_addresses_when_connections_are_renumbered() -> None:
    connections = [Connection(number, f"10.0.0.{number}:5", "10.0.1.1:6650") for number in range(2)]
    builder = TableBuilder(["it"])
    builder.add([Gap(1, connection, True) for connection in connections])
    connections[0].index, connections[1].index = 1, 7
    rows = builder.take_gaps().to_pylist()
    assert [(row["connection"], row["src_ip"]) for row in rows] == [(0, "10.0.0.0"), (1, "10.0.0.1")]


@pytest.mark.parametrize("name", [name for name in CAPTURES if not name.endswith(".gz")])
def test_a_row_tells_where_its_packet_is(name: str) -> None:
    """The packet at that byte of the file ends what it completed."""
    data = (SAMPLES / name).read_bytes()
    frames = [event for event in decoded(name, places=True) if isinstance(event, Frame)]
    for row in rows_of(list(frames), payload=True, sources=("named",)):
        assert row["file"] == "named"
        size = int.from_bytes(data[row["packet_offset"] + 8 : row["packet_offset"] + 12], "little")
        packet = data[row["packet_offset"] + 16 :][:size]
        assert not row["payload"] or row["payload"][-16:] in packet


def test_secrets_are_redacted() -> None:
    rows = rows_of(decoded("auth-token.pcap", places=False))
    told = [row["command_json"] for row in rows if "auth_data" in (row["command_json"] or "")]
    assert told
    assert all("[redacted: " in text or "PulsarAuthRefresh" in text for text in told)
    assert not any("eyJ" in text for text in told)


# ---- Key hashes ----

MURMUR3 = {
    "k1": 2110152746,
    "k2": 1479966664,
    "key1": 462881061,
    "key2": 1936800180,
    "key01": 39696932,
    "key02": 751761803,
    "my-key": 1844492593,
    "é": 269551495,
}
"""Of Pulsar's own HashTest.java, and two computed by a broker's classes."""


def send(metadata: MessageMetadata, payload: bytes = b"x", **fields: int) -> bytes:
    base = BaseCommand(type=BaseCommand.SEND)
    base.send.producer_id = fields.get("producer_id", 1)
    base.send.sequence_id = fields.get("sequence_id", 1)
    return build_frame(base, metadata, payload)


def metadata_of(**fields: Any) -> MessageMetadata:
    return MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, **fields)


def key_hash(**fields: Any) -> int | None:
    found: int | None = rows_of(frames_of(send(metadata_of(**fields))))[0]["metadata"]["key_hash"]
    return found


@pytest.mark.parametrize("key", MURMUR3)
def test_key_hashes_are_those_of_pulsar(key: str) -> None:
    assert key_hash(partition_key=key) == MURMUR3[key]
    assert key_hash(ordering_key=key.encode(), partition_key="other") == MURMUR3[key]


def test_binary_keys_are_hashed_as_bytes() -> None:
    assert key_hash(partition_key="bXkta2V5", partition_key_b64_encoded=True) == MURMUR3["my-key"]
    assert key_hash(partition_key="no base64", partition_key_b64_encoded=True) is not None
    assert key_hash() is None


# ---- Hostile frames ----


@pytest.mark.parametrize("number", sorted(NUMBERS.values()))
def test_a_command_without_its_sub_message_is_a_row(number: int) -> None:
    head = BaseCommand(type=number).SerializeToString()  # type: ignore[arg-type]
    (row,) = rows_of(frames_of(raw(head)))
    assert row["command"] == {each: name for name, each in NUMBERS.items()}[number]
    assert row["command_json"] is None
    assert row["producer_id"] is row["consumer_id"] is row["request_id"] is None


@pytest.mark.parametrize(
    "command", [b"\x08\x06\x92\x01\x00", b"\x08\x09\x92\x01\x00", b"\x08\x08\x92\x01\x00"]
)
def test_a_command_with_the_sub_message_of_another_type_is_a_row(command: bytes) -> None:
    (row,) = rows_of(frames_of(raw(command)))
    assert row["command"] in ("SEND", "MESSAGE", "SEND_ERROR")


@pytest.mark.parametrize("number", [99, 2**31 - 1])
def test_a_type_that_nobody_knows_is_a_row(number: int) -> None:
    head = BaseCommand(type=BaseCommand.PING).SerializePartialToString()[:1]
    varint = b""
    while number > 127:
        varint, number = varint + bytes([number & 127 | 128]), number >> 7
    (row,) = rows_of(frames_of(raw(head + varint + bytes([number]))))
    assert row["command"].startswith("UNKNOWN(")


def test_numbers_of_64_bits_are_kept() -> None:
    most = 2**64 - 1
    base = BaseCommand(type=BaseCommand.ACK)
    base.ack.consumer_id = 2**63
    base.ack.request_id = most
    base.ack.ack_type = 0  # type: ignore[assignment]
    for number in (most, 2**63, 0):
        base.ack.message_id.add(ledgerId=number, entryId=number)
    (row,) = rows_of(frames_of(build_frame(base)))
    assert (row["consumer_id"], row["request_id"], row["ledger_id"]) == (-(2**63), -1, -1)
    assert [each["entry_id"] for each in row["acked"]] == [-1, -(2**63), 0]
    base = BaseCommand(type=BaseCommand.FLOW)
    base.flow.consumer_id, base.flow.messagePermits = most, 2**32 - 1
    (row,) = rows_of(frames_of(build_frame(base)))
    assert (row["consumer_id"], row["permits"]) == (-1, 2**32 - 1)


def test_a_cut_frame_has_the_columns_of_what_is_there() -> None:
    whole = send(metadata_of(event_time=7), b"payload")
    (cut,) = rows_of(frames_of(whole[:-3]), payload=True)
    assert (cut["partial"], cut["checksum"], cut["payload"]) == (True, None, b"payl")
    assert (cut["payload_size"], cut["metadata"]["event_time"]) == (None, 7)
    (cut,) = rows_of(frames_of(whole[:9]))
    assert (cut["command"], cut["partial"]) == ("?", True)


def test_rows_of_raw_frames_have_no_addresses_and_no_times() -> None:
    decoder = Decoder(places=True, new_state=ExchangeState)
    source = Source("frames", io.BytesIO(send(metadata_of()) * 2))
    (events,) = [events for events in decoder.read(source) if events]
    rows = TableBuilder(decoder.sources)
    rows.add(events)
    for row in rows.take_frames().to_pylist():
        assert row["src_ip"] is row["src_port"] is row["time_ns"] is row["start_time_ns"] is None
        assert (row["file"], row["packet_offset"]) == ("frames", 0)


@pytest.mark.parametrize(("command", "field"), [("getSchemaResponse", "error_code"), ("success", "")])
def test_an_error_is_told_whatever_its_field_is_called(command: str, field: str) -> None:
    base = BaseCommand()
    body = getattr(base, command)
    body.request_id = 1
    if field:
        setattr(body, field, ServerError.Value("TopicNotFound"))
    base.type = next(number for number, name in BODIES.items() if name == command)  # type: ignore[assignment]
    builder = TableBuilder(["it"])
    builder.add(FrameStream(Connection(0), False).feed(build_frame(base)))
    assert builder.take_frames().to_pylist()[0]["error"] == ("TopicNotFound" if field else None)
