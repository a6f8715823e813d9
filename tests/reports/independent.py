"""The reports, calculated in plain Python from `pwire decode -o json` and the documents alone.

What the JSON lines do not say is worked out from what they do:

- where a packet is in its file: from its number and the headers of the packets' records,
- where something is in its stream: by adding up the sizes of all that came before it,
- the size of a payload on the wire: what remains of the frame after its command and its metadata, whose sizes
  show when they are encoded again. It is unknown, and taken as 0, if the metadata does not parse.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import mmh3

Line = dict[str, Any]
Row = dict[str, Any]
Id = tuple[int, int, int]
"""Cluster, ledger and entry."""

SECOND = 1_000_000_000
WORD = 2**64 - 1
PROTO = (Path(__file__).parents[2] / "proto" / "PulsarApi.proto").read_text()


# -- sizes of encoded messages


def _fields_of(body: str) -> dict[str, tuple[str, int]]:
    found = re.findall(r"(?:required|optional|repeated) (\w+) (\w+) = (\d+)", body)
    return {name: (kind, int(number)) for kind, name, number in found}


MESSAGES = {
    name: _fields_of(body) for name, body in re.findall(r"^message (\w+) \{(.*?)^\}", PROTO, re.S | re.M)
}


def _varint_size(value: int) -> int:
    return max(1, -(-(value & WORD).bit_length() // 7))


def _value_size(kind: str, value: Any) -> int:
    if kind in MESSAGES:
        size = _message_size(kind, value)
    elif kind == "bytes":
        size = len(base64.b64decode(value))
    elif kind == "string":
        size = len(value.encode())
    elif isinstance(value, int):
        return _varint_size(value)
    else:  # an enum's name: all their values take one byte
        return 1
    return _varint_size(size) + size


def _message_size(name: str, fields: dict[str, Any]) -> int:
    size = 0
    for field, value in fields.items():
        kind, number = MESSAGES[name][field]
        for each in value if isinstance(value, list) else [value]:
            size += _varint_size(number << 3) + _value_size(kind, each)
    return size


def payload_size(frame: Line) -> int:
    """Bytes of the payload of a SEND or MESSAGE on the wire; 0 if its metadata is unknown."""
    if frame["metadata"] is None:
        return 0
    command = _message_size(f"Command{frame['command'].capitalize()}", frame["fields"])
    size = 4 + 2 + 1 + _varint_size(command) + command  # its size, type, tag and length
    if frame["broker_entry_metadata"] is not None:
        size += 2 + 4 + _message_size("BrokerEntryMetadata", frame["broker_entry_metadata"])
    if frame["checksum"] != "absent":
        size += 2 + 4
    size += 4 + _message_size("MessageMetadata", frame["metadata"])
    return int(frame["total_size"]) - size


# -- places of packets


def _records(data: bytes) -> Iterator[int]:
    """Where the record of each packet begins in a pcap or pcapng file."""
    if data[:4] == b"\x0a\x0d\x0d\x0a":
        order = "<" if data[8:12] == b"\x4d\x3c\x2b\x1a" else ">"
        at = 0
        while at < len(data):
            kind, size = struct.unpack_from(f"{order}II", data, at)
            if kind in (2, 3, 6):
                yield at
            at += size
    else:
        order = "<" if data[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
        at = 24
        while at < len(data):
            yield at
            at += 16 + int(struct.unpack_from(f"{order}I", data, at + 8)[0])


# -- a capture


@dataclass
class Capture:
    """A capture's JSON lines, and what can be told from them about each."""

    path: Path
    lines: list[Line]
    endings: list[Line]

    @cached_property
    def packets(self) -> list[int]:
        data = self.path.read_bytes()
        return list(_records(gzip.decompress(data) if self.path.suffix == ".gz" else data))

    def place(self, line: Line) -> Row:
        return {"file": str(self.path), "packet_offset": self.packets[line["packet"] - 1]}

    @cached_property
    def frames(self) -> list[Line]:
        """Those that are complete: no report counts others."""
        return [line for line in self.lines if "command" in line and not line["partial"]]

    @cached_property
    def by_time(self) -> list[Line]:
        """Those frames in the order of time: behind a hole they are decoded later than they were captured."""
        return sorted(self.frames, key=lambda frame: int(frame["time_ns"]))

    @cached_property
    def by_number(self) -> dict[int, Line]:
        return {line["number"]: line for line in self.lines if "command" in line}

    @cached_property
    def answered(self) -> list[tuple[Line, Line]]:
        """Requests and their answers; of a request that was answered twice, the last one."""
        last = {frame["request"]: frame for frame in self.frames if frame["request"] is not None}
        return [(self.by_number[number], answer) for number, answer in last.items()]

    @cached_property
    def stream_offsets(self) -> dict[int, int]:
        """By the position among the lines."""
        offsets: dict[int, int] = {}
        ends: dict[tuple[int, bool], int] = defaultdict(int)
        for at, line in enumerate(self.lines):
            direction = (line["connection"], line["to_broker"])
            offsets[at] = ends[direction]
            ends[direction] += _length(line)
        return offsets

    @cached_property
    def messages(self) -> dict[int, int]:
        """Application messages in each SEND and MESSAGE, by frame number."""
        counts: dict[int, int] = {}
        chunks: dict[tuple[Any, ...], int] = {}  # how many of a message were seen, without a hole
        for frame in self.frames:
            metadata = frame["metadata"]
            if metadata is None:
                continue
            count = metadata.get("num_messages_in_batch", 1)
            total = metadata.get("num_chunks_from_msg", 1)
            if total > 1:
                owner = frame["fields"].get("producer_id"), frame["fields"].get("consumer_id")
                message = (frame["connection"], frame["command"], owner, metadata["uuid"])
                chunk = metadata["chunk_id"]
                if chunk == 0:
                    chunks[message] = 1
                elif chunks.get(message) == chunk:
                    chunks[message] += 1
                count = 1 if chunk == total - 1 and chunks.pop(message, 0) == total else 0
            counts[frame["number"]] = count
        return counts

    @cached_property
    def clusters(self) -> dict[str, int]:
        """Broker -> number of its cluster. If there are several, that of a broker without lookups is -1."""
        groups: list[set[str]] = []
        for frame in _named(self.frames, "LOOKUP_RESPONSE"):
            group = {frame["server"]}
            for name in ("brokerServiceUrl", "brokerServiceUrlTls"):
                if url := frame["fields"].get(name):
                    group.add(url.split("://")[1])
            for other in [other for other in groups if other & group]:
                groups.remove(other)
                group |= other
            groups.append(group)
        if len(groups) < 2:
            return defaultdict(int)
        groups.sort(key=min)
        return defaultdict(lambda: -1, {broker: at for at, group in enumerate(groups) for broker in group})

    def id_of(self, frame: Line, message_id: dict[str, int]) -> Id:
        return self.clusters[frame["server"]], message_id["ledgerId"], message_id["entryId"]


def read(path: Path, decoded: Iterable[str | bytes], connections: Iterable[str | bytes]) -> Capture:
    return Capture(path, *([json.loads(line) for line in lines] for lines in (decoded, connections)))


def _length(line: Line) -> int:
    if "gap" in line:
        return int(line["gap"])
    if "malformed" in line:
        return int(line["size"])
    for note in line["notes"]:
        if cut := re.match(r"cut: (\d+) of \d+ bytes", note):
            return int(cut[1])
    return 4 + int(line["total_size"])


def _error(frame: Line) -> str | None:
    fields: dict[str, str] = frame["fields"] or {}
    return fields.get("error", fields.get("error_code"))


def _error_text(frame: Line) -> str | None:
    fields: dict[str, str] = frame["fields"]
    return fields.get("message", fields.get("error_message"))


def _producer(send: Line) -> str | None:
    return (send["metadata"] or {}).get("producer_name")


def _bytes(frames: Iterable[Line]) -> int:
    return sum(4 + frame["total_size"] for frame in frames)


def _named(frames: Iterable[Line], command: str) -> list[Line]:
    return [frame for frame in frames if frame["command"] == command]


def _wrong(frames: Iterable[Line]) -> list[Line]:
    return [frame for frame in frames if frame["checksum"] == "invalid"]


def _subscriptions(frames: Iterable[Line]) -> int:
    return len({(each["topic"], each["subscription"]) for each in frames if each["subscription"] is not None})


def _producers(frames: Iterable[Line]) -> int:
    return len({_producer(frame) for frame in _named(frames, "SEND")} - {None})


def _bucket(time_ns: int, width: int) -> int:
    return time_ns - time_ns % width


def _lowest_null(*values: Any) -> tuple[Any, ...]:
    """A sort key whose nulls come first."""
    return tuple((value is not None, value) for value in values)


def _grouped(items: Iterable[Any], key: Callable[[Any], tuple[Any, ...]]) -> dict[tuple[Any, ...], list[Any]]:
    groups: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups


def _percentiles(values: Iterable[int]) -> Row:
    """By nearest rank."""
    ordered = sorted(values)
    row: Row = {"count": len(ordered)}
    for name, thousandths in (("p50", 500), ("p90", 900), ("p99", 990), ("p999", 999), ("max", 1000)):
        rank = -(-len(ordered) * thousandths // 1000)
        row[f"{name}_ns"] = ordered[rank - 1] if ordered else None
    return row


# -- the reports


def summary(capture: Capture) -> list[Row]:
    frames, lines = capture.frames, capture.lines
    times = [line["time_ns"] for line in lines if "command" in line]
    gaps = [line["gap"] for line in lines if "gap" in line]
    malformed = [line["size"] for line in lines if "malformed" in line]
    return [
        {
            "first_ns": min(times, default=None),
            "last_ns": max(times, default=None),
            "frames": len(frames),
            "bytes": _bytes(frames),
            "published": _messages(capture, frames, "SEND"),
            "delivered": _messages(capture, frames, "MESSAGE"),
            "errors": sum(_error(frame) is not None for frame in frames),
            "bad_checksums": len(_wrong(frames)),
            "partial": len(times) - len(frames),
            "connections": len({line["connection"] for line in lines if "command" in line}),
            "topics": len({frame["topic"] for frame in frames} - {None}),
            "producers": _producers(frames),
            "subscriptions": _subscriptions(frames),
            "gaps": len(gaps),
            "malformed": len(malformed),
            "gap_bytes": sum(gaps),
            "malformed_bytes": sum(malformed),
        }
    ]


def _messages(capture: Capture, frames: Iterable[Line], command: str) -> int:
    return sum(capture.messages.get(frame["number"], 0) for frame in _named(frames, command))


def _sent_at(answer: Line) -> int:
    return int(answer["time_ns"] - answer["latency_ns"])


def publish_latency(capture: Capture, bucket_ns: int | None = None) -> list[Row]:
    publishes = [pair for pair in capture.answered if pair[1]["command"] == "SEND_RECEIPT"]

    def key(pair: tuple[Line, Line]) -> tuple[Any, ...]:
        time = (_bucket(_sent_at(pair[1]), bucket_ns),) if bucket_ns else ()
        return (*time, pair[1]["topic"], _producer(pair[0]))

    names = ("time_ns", "topic", "producer") if bucket_ns else ("topic", "producer")
    rows = []
    for group, pairs in _grouped(publishes, key).items():
        latencies = _percentiles(answer["latency_ns"] for _, answer in pairs)
        rows.append({**dict(zip(names, group, strict=True)), **latencies})
    return sorted(
        rows,
        key=lambda row: (row.get("time_ns", 0), -row["count"], _lowest_null(row["topic"], row["producer"])),
    )


def request_latency(capture: Capture, bucket_ns: int | None = None) -> list[Row]:
    requests = [pair for pair in capture.answered if pair[1]["command"] != "SEND_RECEIPT"]

    def key(pair: tuple[Line, Line]) -> tuple[Any, ...]:
        time = (_bucket(_sent_at(pair[1]), bucket_ns),) if bucket_ns else ()
        return (*time, pair[0]["command"])

    names = ("time_ns", "command") if bucket_ns else ("command",)
    rows = []
    for group, pairs in _grouped(requests, key).items():
        row = {
            **dict(zip(names, group, strict=True)),
            **_percentiles(answer["latency_ns"] for _, answer in pairs),
        }
        row["errors"] = sum(_error(answer) is not None for _, answer in pairs)
        rows.append(row)
    return sorted(rows, key=lambda row: (row.get("time_ns", 0), -row["count"], row["command"]))


def slowest(capture: Capture, top: int = 20) -> list[Row]:
    rows = []
    for request, answer in capture.answered:
        is_send = request["command"] == "SEND"
        fields = answer["fields"]
        message_id = fields.get("message_id", {}) if answer["command"] == "SEND_RECEIPT" else {}
        rows.append(
            {
                "latency_ns": answer["latency_ns"],
                "time_ns": _sent_at(answer),
                "command": request["command"],
                "answer": answer["command"],
                "error": _error(answer),
                "topic": answer["topic"],
                "subscription": answer["subscription"],
                "producer": _producer(request) if is_send else None,
                "connection": answer["connection"],
                "request_id": fields.get("request_id"),
                "producer_id": fields.get("producer_id"),
                "sequence_id": fields.get("sequence_id"),
                "bytes": 4 + request["total_size"] if is_send else None,
                "messages": capture.messages.get(request["number"], 0) if is_send else None,
                "ledger_id": message_id.get("ledgerId"),
                "entry_id": message_id.get("entryId"),
                **capture.place(answer),
            }
        )
    return sorted(rows, key=lambda row: -row["latency_ns"])[:top]


def _traffic(capture: Capture, frames: list[Line]) -> Row:
    return {
        "frames": len(frames),
        "bytes": _bytes(frames),
        "published": _messages(capture, frames, "SEND"),
        "delivered": _messages(capture, frames, "MESSAGE"),
        "published_bytes": sum(map(payload_size, _named(frames, "SEND"))),
        "delivered_bytes": sum(map(payload_size, _named(frames, "MESSAGE"))),
    }


def throughput(capture: Capture, bucket_ns: int = SECOND) -> list[Row]:
    def key(frame: Line) -> tuple[Any, ...]:
        return _bucket(frame["time_ns"], bucket_ns), frame["topic"]

    rows = []
    for (time_ns, topic), frames in _grouped(capture.frames, key).items():
        if topic is not None:
            row = {"time_ns": time_ns, "topic": topic, **_traffic(capture, frames)}
            seconds = bucket_ns / SECOND
            row |= {f"{name}_per_s": row[name] / seconds for name in ("bytes", "published", "delivered")}
            rows.append(row)
    return sorted(rows, key=lambda row: (row["time_ns"], -row["bytes"], row["topic"]))


def topics(capture: Capture) -> list[Row]:
    rows = []
    for (topic,), frames in _grouped(capture.frames, lambda frame: (frame["topic"],)).items():
        if topic is not None:
            rows.append(
                {
                    "topic": topic,
                    "share": _bytes(frames) / _bytes(capture.frames),
                    **_traffic(capture, frames),
                    "errors": sum(_error(frame) is not None for frame in frames),
                    "bad_checksums": len(_wrong(frames)),
                    "producers": _producers(frames),
                    "subscriptions": _subscriptions(frames),
                }
            )
    return sorted(rows, key=lambda row: (-row["bytes"], row["topic"]))


def totals_by(capture: Capture, name: str, value: Callable[[Line], Any]) -> list[Row]:
    """What `topics` and `tenants` have, for groups of frames by a value that is not None."""
    rows = []
    for (group,), frames in _grouped(capture.frames, lambda frame: (value(frame),)).items():
        if group is not None:
            rows.append(
                {
                    name: group,
                    "share": _bytes(frames) / _bytes(capture.frames),
                    **_traffic(capture, frames),
                    "errors": sum(_error(frame) is not None for frame in frames),
                    "bad_checksums": len(_wrong(frames)),
                    "producers": _producers(frames),
                    "subscriptions": _subscriptions(frames),
                    "topics": len({frame["topic"] for frame in frames} - {None}),
                    "connections": len({frame["connection"] for frame in frames}),
                }
            )
    return sorted(rows, key=lambda row: (-row["bytes"], row[name]))


def tenant(line: Line) -> str | None:
    return str(line["topic"]).split("/")[2] if line["topic"] else None


def tenants(capture: Capture) -> list[Row]:
    return totals_by(capture, "tenant", tenant)


def _key_hash(metadata: dict[str, Any]) -> int | None:
    if "ordering_key" in metadata:
        key = base64.b64decode(metadata["ordering_key"])
    elif "partition_key" in metadata:
        text = metadata["partition_key"]
        key = base64.b64decode(text) if metadata.get("partition_key_b64_encoded") else text.encode()
    else:
        return None
    return mmh3.hash(key, signed=False) & 0x7FFFFFFF


def hot_keys(capture: Capture) -> list[Row]:
    sends = [frame for frame in _named(capture.frames, "SEND") if frame["metadata"] is not None]
    keyed = _grouped(sends, lambda send: (send["topic"], _key_hash(send["metadata"])))
    keyed = {group: frames for group, frames in keyed.items() if group[1] is not None}
    totals: dict[str, int] = defaultdict(int)
    for (topic, _), frames in keyed.items():
        totals[topic] += _messages(capture, frames, "SEND")
    rows = [
        {
            "topic": topic,
            "key_hash": key_hash,
            "messages": _messages(capture, frames, "SEND"),
            "bytes": sum(map(payload_size, frames)),
            "producers": _producers(frames),
            "share": _messages(capture, frames, "SEND") / totals[topic],
        }
        for (topic, key_hash), frames in keyed.items()
    ]
    return sorted(rows, key=lambda row: (-row["messages"], _lowest_null(row["topic"]), row["key_hash"]))


ENDING = ("CLOSE_PRODUCER", "CLOSE_CONSUMER", "UNSUBSCRIBE")


def _ended(capture: Capture, frames: list[Line], last: Line | None) -> str:
    if last is None:
        return "open"
    command, fields = last["command"], last["fields"] or {}
    if command == "SUCCESS" and last["request"] and capture.by_number[last["request"]]["command"] in ENDING:
        return "closed"
    if command == "ERROR" and not _named(frames, "CONNECTED"):
        return "refused"
    if command in ("ERROR", "SEND_ERROR"):
        return "error"
    asks = command in ("SEND", "CONNECT") or ("request_id" in fields and command != "ACK")
    return "unanswered" if asks and last["to_broker"] else "open"


def connections(capture: Capture) -> list[Row]:
    rows = []
    lines = _grouped(capture.lines, lambda line: (line["connection"],))
    for ending in capture.endings:
        number = ending["connection"]
        group = lines.get((number,), [])
        frames = [line for line in group if "command" in line and not line["partial"]]
        sides = {
            name: [each for each in frames if each["to_broker"] == (name == "to")] for name in ("to", "from")
        }
        first, last = ending["time_ns"], ending["last_ns"]
        if frames:
            first, last = (pick(frame["time_ns"] for frame in frames) for pick in (min, max))
        connect, connected = _named(frames, "CONNECT"), _named(frames, "CONNECTED")
        spoken = [frame for frame in frames if frame["command"] not in ("PING", "PONG")]
        end = spoken[-1] if spoken else None
        holes = [line for line in group if "command" not in line]
        rows.append(
            {
                "connection": number,
                "client": ending["client"],
                "server": ending["server"],
                "client_version": connect[0]["fields"]["client_version"] if connect else None,
                "server_version": connected[0]["fields"]["server_version"] if connected else None,
                "first_ns": first,
                "last_ns": last,
                "life_ns": last - first,
                **{f"frames_{side}_broker": len(sides[side]) for side in sides},
                **{f"bytes_{side}_broker": _bytes(sides[side]) for side in sides},
                "published": _messages(capture, frames, "SEND"),
                "delivered": _messages(capture, frames, "MESSAGE"),
                "errors": sum(_error(frame) is not None for frame in frames),
                "gaps": len(holes),
                "gap_bytes": sum(map(_length, holes)),
                "last_command": end and end["command"],
                "ended": _ended(capture, frames, end) if frames else None,
                "protocol": ending["protocol"],
                "tcp_end": ending["end"],
                "by_broker": ending["by_broker"],
            }
        )
    return sorted(rows, key=lambda row: (row["first_ns"], row["connection"]))


# -- the path of entries


@dataclass
class Seen:
    """What one subscription saw of an entry."""

    first: Line
    deliveries: int = 0
    redelivery_count: int = 0
    acked_ns: int | None = None


Subscription = tuple[int, str | None, str | None]
"""Cluster, topic and name."""


def _left(message_id: dict[str, Any]) -> int:
    """Messages of the entry that an ACK leaves unacknowledged."""
    return _bits(message_id.get("ack_set", []))


def _bits(words: Iterable[int]) -> int:
    return sum((word & WORD).bit_count() for word in words)


def _entries(capture: Capture) -> dict[Id, tuple[Line, Line | None]]:
    """The receipt of each entry, and the SEND if it is known."""
    entries: dict[Id, tuple[Line, Line | None]] = {}
    for receipt in _named(capture.frames, "SEND_RECEIPT"):
        message_id = receipt["fields"].get("message_id")
        if message_id is not None and message_id["ledgerId"] != -1 and _is_stored(receipt["topic"]):
            send = None if receipt["request"] is None else capture.by_number[receipt["request"]]
            entries.setdefault(capture.id_of(receipt, message_id), (receipt, send))
    return entries


def _is_stored(topic: str | None) -> bool:
    return topic is None or not topic.startswith("non-persistent://")


def _subscription(capture: Capture, frame: Line) -> Subscription:
    return capture.clusters[frame["server"]], frame["topic"], frame["subscription"]


def _seen(capture: Capture) -> dict[tuple[Subscription, Id], Seen]:
    """What each subscription saw of each entry."""
    seen: dict[Subscription, dict[Id, Seen]] = defaultdict(dict)
    for frame in capture.by_time:
        entries = seen[_subscription(capture, frame)]
        if frame["command"] == "MESSAGE" and _is_stored(frame["topic"]):
            entry = entries.setdefault(capture.id_of(frame, frame["fields"]["message_id"]), Seen(frame))
            entry.deliveries += 1
            entry.redelivery_count = max(entry.redelivery_count, frame["fields"].get("redelivery_count", 0))
        elif frame["command"] == "ACK":
            for at in _acknowledged(capture, frame, entries):
                if at in entries and entries[at].acked_ns is None:
                    entries[at].acked_ns = frame["time_ns"]
    return {
        (subscription, at): entry for subscription, entries in seen.items() for at, entry in entries.items()
    }


def _acknowledged(capture: Capture, ack: Line, known: Iterable[Id]) -> set[Id]:
    """The entries that an ACK acknowledges: those that it names, and known ones that it covers."""
    found = set()
    for message_id in ack["fields"].get("message_id", []):
        named = capture.id_of(ack, message_id)
        if not _left(message_id):
            found.add(named)
        if ack["fields"]["ack_type"] == "Cumulative":
            found |= {at for at in known if at < named}
    return found


def journey(capture: Capture) -> list[Row]:
    entries, seen = _entries(capture), _seen(capture)
    delivered = {at for _, at in seen}
    paths: list[tuple[Id, Subscription | None]] = [(at, subscription) for subscription, at in seen]
    paths += [(at, None) for at, (_, send) in entries.items() if send and at not in delivered]
    rows = []
    for at, subscription in paths:
        receipt, send = entries.get(at, (None, None))
        if send is None:
            receipt = None  # a publish is a SEND with its receipt
        entry = seen[subscription, at] if subscription else None
        sent_ns = _sent_at(receipt) if receipt else None
        delivered_ns = entry.first["time_ns"] if entry else None
        acked_ns = entry.acked_ns if entry else None
        source = send or (entry and entry.first)
        topic = receipt["topic"] if receipt else None
        if entry:
            topic = topic or entry.first["topic"]
        rows.append(
            {
                "cluster": at[0],
                "topic": topic,
                "ledger_id": at[1],
                "entry_id": at[2],
                "subscription": subscription[2] if subscription else None,
                "producer": _producer(send) if send else None,
                "messages": capture.messages.get(source["number"], 0) if source else None,
                "bytes": 4 + send["total_size"] if send else None,
                "sent_ns": sent_ns,
                "receipt_ns": receipt["time_ns"] if receipt else None,
                "delivered_ns": delivered_ns,
                "acked_ns": acked_ns,
                "publish_latency_ns": receipt["latency_ns"] if receipt else None,
                "delivery_latency_ns": _span(sent_ns, delivered_ns),
                "ack_latency_ns": _span(delivered_ns, acked_ns),
                "deliveries": entry.deliveries if entry else 0,
                "redelivery_count": entry.redelivery_count if entry else None,
                "producer_client": send["client"] if send else None,
                "consumer_client": entry.first["client"] if entry else None,
            }
        )

    def order(row: Row) -> tuple[Any, ...]:
        begin = next(row[name] for name in ("sent_ns", "delivered_ns", "receipt_ns") if row[name] is not None)
        return begin, row["ledger_id"], row["entry_id"], _lowest_null(row["subscription"])

    return sorted(rows, key=order)


def _span(begin: int | None, end: int | None) -> int | None:
    return None if begin is None or end is None else end - begin


def delivery(capture: Capture) -> list[Row]:
    journeys = [row for row in journey(capture) if row["deliveries"]]
    names = ("cluster", "topic", "subscription")
    groups = _grouped(journeys, lambda row: tuple(row[name] for name in names))
    rows = []
    for group in sorted(groups, key=lambda group: _lowest_null(*group)):
        for step in ("delivery", "ack"):
            latencies = [row[f"{step}_latency_ns"] for row in groups[group]]
            known = [each for each in latencies if each is not None]
            row = dict(zip(names, group, strict=True)) | {"step": step, **_percentiles(known)}
            rows.append(row | {"missing": len(latencies) - len(known)})
    return rows


def end_to_end(capture: Capture) -> list[Row]:
    entries = _entries(capture)
    seen: set[tuple[Subscription, Id]] = set()
    groups: dict[tuple[Any, ...], list[tuple[int, int]]] = defaultdict(list)
    for message in capture.by_time:
        if message["command"] != "MESSAGE" or not _is_stored(message["topic"]):
            continue
        at, subscription = (
            capture.id_of(message, message["fields"]["message_id"]),
            _subscription(capture, message),
        )
        receipt, send = entries.get(at, (None, None))
        again = (subscription, at) in seen or message["fields"].get("redelivery_count", 0) > 0
        seen.add((subscription, at))
        topic = message["topic"]
        if receipt and send:
            topic, sent_by, sent_ns = receipt["topic"] or topic, "SEND", _sent_at(receipt)
        elif message["metadata"] is not None:
            sent_by, sent_ns = "publish_time", message["metadata"]["publish_time"] * 1_000_000
        else:
            continue
        latency = message["time_ns"] - sent_ns
        group = (subscription[0], topic, subscription[2], sent_by, again)
        groups[group].append((latency, capture.messages.get(message["number"], 0)))
    names = ("cluster", "topic", "subscription", "sent_by", "again")
    return [
        {
            **dict(zip(names, group, strict=True)),
            **_percentiles(latency for latency, _ in groups[group]),
            "messages": sum(messages for _, messages in groups[group]),
        }
        for group in sorted(groups, key=lambda group: _lowest_null(*group))
    ]


# -- backlog


@dataclass
class Changes:
    """What changed for a subscription in a bucket; also the sum of such."""

    published: int = 0
    delivered: int = 0
    acked: int = 0
    permits: int = 0

    def add(self, other: Changes) -> None:
        self.published += other.published
        self.delivered += other.delivered
        self.acked += other.acked
        self.permits += other.permits


Timed = Iterator[tuple[Subscription, int, Changes]]


def backlog(capture: Capture, bucket_ns: int = SECOND) -> list[Row]:
    changes: dict[Subscription, dict[int, Changes]] = defaultdict(lambda: defaultdict(Changes))
    for each in (_published, _delivered, _acked, _permits):
        for subscription, time_ns, change in each(capture):
            if None not in subscription:
                changes[subscription][_bucket(time_ns, bucket_ns)].add(change)
    unknown_from = _unknown_from(capture)
    rows = []
    for subscription, by_time in changes.items():
        total = Changes()
        for time_ns, change in sorted(by_time.items()):
            total.add(change)
            is_known = unknown_from.get(subscription, time_ns + bucket_ns) >= time_ns + bucket_ns
            rows.append(
                {
                    "time_ns": time_ns,
                    **dict(zip(("cluster", "topic", "subscription"), subscription, strict=True)),
                    **{name: getattr(change, name) for name in ("published", "delivered", "acked")},
                    "backlog": total.published - total.acked if is_known else None,
                    "unacked": total.delivered - total.acked,
                    "permits": total.permits,
                }
            )
    return sorted(rows, key=lambda row: (row["time_ns"], row["cluster"], row["topic"], row["subscription"]))


def _published(capture: Capture) -> Timed:
    """Entries that got a receipt after the subscription was first seen."""
    begins: dict[Subscription, int] = {}
    for frame in capture.by_time:
        if frame["subscription"] is not None:
            begins.setdefault(_subscription(capture, frame), frame["time_ns"])
    for (cluster, _, _), (receipt, _) in _entries(capture).items():
        for subscription, begin in begins.items():
            if subscription[:2] == (cluster, receipt["topic"]) and receipt["time_ns"] >= begin:
                yield subscription, receipt["time_ns"], Changes(published=1)


def _delivered(capture: Capture) -> Timed:
    for (subscription, _), entry in _seen(capture).items():
        yield subscription, entry.first["time_ns"], Changes(delivered=1)


def _acked(capture: Capture) -> Timed:
    """Entries of before the capture too: those that an ACK names, and that a cumulative ACK covers."""
    known: dict[Subscription, set[Id]] = defaultdict(set)
    for subscription, at in _seen(capture):
        known[subscription].add(at)
    acks = [ack for ack in _named(capture.by_time, "ACK") if _is_stored(ack["topic"])]
    for ack in acks:
        known[_subscription(capture, ack)] |= _acknowledged(capture, ack, ())
    for ack in acks:
        subscription = _subscription(capture, ack)
        found = _acknowledged(capture, ack, known[subscription]) & known[subscription]
        known[subscription] -= found
        if found:
            yield subscription, ack["time_ns"], Changes(acked=len(found))


def _permits(capture: Capture) -> Timed:
    """Also a change of nothing: where a consumer begins or ends, and by a MESSAGE that costs nothing."""
    permits: dict[tuple[int, int | None], int] = defaultdict(int)  # of each consumer
    refused = {request["number"] for request, answer in capture.answered if answer["command"] == "ERROR"}
    for frame in capture.by_time:
        command = frame["command"]
        consumer = (frame["connection"], (frame["fields"] or {}).get("consumer_id"))
        if command == "CLOSE_CONSUMER" or (command == "UNSUBSCRIBE" and frame["number"] not in refused):
            change = -permits[consumer]
        elif command == "FLOW":
            change = frame["fields"]["messagePermits"]
        elif command == "MESSAGE":
            change = -_cost(frame)
        else:
            change = 0
        permits[consumer] += change
        if change or command in ("SUBSCRIBE", "CLOSE_CONSUMER", "MESSAGE"):
            yield _subscription(capture, frame), frame["time_ns"], Changes(permits=change)


def _cost(message: Line) -> int:
    """Permits that a MESSAGE costs."""
    metadata = message["metadata"] or {}
    if "marker_type" in metadata:
        return 0
    if "ack_set" in message["fields"]:
        return max(1, _bits(message["fields"]["ack_set"]))
    return max(1, int(metadata.get("num_messages_in_batch", 1)))


def _unknown_from(capture: Capture) -> dict[Subscription, int]:
    """From when the backlog of a subscription is not known."""
    times: dict[Subscription, int] = {}
    for frame in capture.by_time:
        is_reader = frame["command"] == "SUBSCRIBE" and not frame["fields"].get("durable", True)
        if is_reader or frame["command"] == "SEEK":
            times.setdefault(_subscription(capture, frame), frame["time_ns"])
    return times


# -- what went wrong


def errors(capture: Capture) -> list[Row]:
    found = [frame for frame in capture.frames if _error(frame) is not None]

    def key(frame: Line) -> tuple[Any, ...]:
        return _error(frame), frame["command"], frame["topic"], frame["client"].rpartition(":")[0].strip("[]")

    rows = []
    for group, frames in _grouped(found, key).items():
        times = [frame["time_ns"] for frame in frames]
        rows.append(
            {
                **dict(zip(("error", "command", "topic", "client"), group, strict=True)),
                "count": len(frames),
                "connections": len({frame["connection"] for frame in frames}),
                "first_ns": min(times),
                "last_ns": max(times),
                "example": {_error_text(frame) for frame in frames},
            }
        )
    return sorted(
        rows, key=lambda row: (-row["count"], row["error"], _lowest_null(row["command"], row["topic"]))
    )


def _ends(line: Line) -> Row:
    client, server = line["client"], line["server"]
    return {"src": client, "dst": server} if line["to_broker"] else {"src": server, "dst": client}


def checksums(capture: Capture) -> list[Row]:
    rows = []
    for at, frame in enumerate(capture.lines):
        if frame.get("checksum") == "invalid":
            fields = frame["fields"]
            message_id = fields.get("message_id") or {}
            rows.append(
                {
                    "time_ns": frame["time_ns"],
                    **{name: frame[name] for name in ("command", "topic", "subscription", "connection")},
                    **_ends(frame),
                    **{name: fields.get(name) for name in ("producer_id", "consumer_id", "sequence_id")},
                    "ledger_id": message_id.get("ledgerId"),
                    "entry_id": message_id.get("entryId"),
                    "bytes": 4 + frame["total_size"],
                    **capture.place(frame),
                    "stream_offset": capture.stream_offsets[at],
                }
            )
    return sorted(rows, key=lambda row: row["time_ns"])


def gaps(capture: Capture) -> list[Row]:
    rows = []
    for at, line in enumerate(capture.lines):
        if "command" not in line:
            rows.append(
                {
                    "time_ns": line["time_ns"],
                    "kind": "gap" if "gap" in line else "malformed",
                    "size": _length(line),
                    "reason": line.get("malformed"),
                    "connection": line["connection"],
                    "to_broker": line["to_broker"],
                    **_ends(line),
                    **capture.place(line),
                    "stream_offset": capture.stream_offsets[at],
                }
            )
    return sorted(rows, key=lambda row: _lowest_null(row["time_ns"]))


REPORTS: dict[str, Callable[..., list[Row]]] = {
    "summary": summary,
    "publish-latency": publish_latency,
    "request-latency": request_latency,
    "slowest": slowest,
    "throughput": throughput,
    "topics": topics,
    "tenants": tenants,
    "hot-keys": hot_keys,
    "connections": connections,
    "journey": journey,
    "delivery": delivery,
    "end-to-end": end_to_end,
    "backlog": backlog,
    "errors": errors,
    "checksums": checksums,
    "gaps": gaps,
}
