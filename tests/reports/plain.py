"""The reports about sessions, calculated in plain Python from the lines of `pwire decode -o json`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

Frame = dict[str, Any]
Row = dict[str, Any]
Rows = dict[tuple[Any, ...], Row]


def clients(frames: list[Frame]) -> Rows:
    """By version, protocol and authentication."""
    connects = {frame["connection"]: frame["fields"] for frame in frames if frame["command"] == "CONNECT"}
    by: dict[tuple[Any, ...], list[Frame]] = defaultdict(list)
    for frame in frames:
        told = connects.get(frame["connection"], {"protocol_version": None})
        number = told["protocol_version"]
        protocol = None if number is None else str(number)
        by[told.get("client_version"), protocol, told.get("auth_method_name")].append(frame)
    return {
        key: {
            "connections": len({frame["connection"] for frame in group}),
            "hosts": len({frame["client"].rpartition(":")[0] for frame in group}),
            "frames": len(group),
            "published": sum(messages(frame) for frame in group if frame["command"] == "SEND"),
            "delivered": sum(messages(frame) for frame in group if frame["command"] == "MESSAGE"),
            "errors": sum(map(_reports_error, group)),
            **_times(group),
        }
        for key, group in by.items()
    }


def producers(frames: list[Frame]) -> Rows:
    """By topic, name, connection and id."""
    by_number = {frame["number"]: frame for frame in frames}
    sends: dict[tuple[Any, ...], list[Frame]] = defaultdict(list)
    receipts: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    waiting: dict[tuple[Any, ...], int] = defaultdict(int)
    most: dict[tuple[Any, ...], int] = defaultdict(int)
    for frame in frames:
        where = (frame["connection"], frame["fields"].get("producer_id"))
        if frame["command"] == "PRODUCER":
            waiting[where] = 0
        elif frame["command"] == "SEND":
            producer = (frame["topic"], frame["metadata"]["producer_name"], *where)
            sends[producer].append(frame)
            waiting[where] += 1
            most[where] = max(most[where], waiting[where])
        elif frame["command"] in ("SEND_RECEIPT", "SEND_ERROR") and frame["request"]:
            waiting[where] -= 1
            if frame["command"] == "SEND_RECEIPT":
                name = by_number[frame["request"]]["metadata"]["producer_name"]
                producer = (frame["topic"], name, *where)
                receipts[producer].append(frame["latency_ns"])
    return {
        key: {
            "sends": len(group),
            "messages": sum(map(messages, group)),
            "batches": sum(messages(frame) > 1 for frame in group),
            "most_pending": most[key[2:]],
            "without_receipt": len(group) - len(receipts[key]),
            **ranks(receipts[key]),
            **_times(group),
        }
        for key, group in sends.items()
    }


def consumers(frames: list[Frame]) -> Rows:
    """By topic, subscription, connection and id."""
    acked = _acknowledged(frames)
    by: dict[tuple[Any, ...], list[Frame]] = defaultdict(list)
    for frame in frames:
        if "consumer_id" in frame["fields"] and frame["subscription"] is not None:
            where = (frame["connection"], frame["fields"]["consumer_id"])
            consumer = (frame["topic"], frame["subscription"], *where)
            by[consumer].append(frame)
    return {key: _consumer(group, acked) for key, group in by.items()}


def lookups(frames: list[Frame]) -> Rows:
    """By topic, answer, broker, whether authoritative, and error."""
    commands = {frame["number"]: frame["command"] for frame in frames}
    by: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for frame in frames:
        if commands.get(frame["request"]) == "LOOKUP":
            told = frame["fields"]
            broker = told.get("brokerServiceUrl", told.get("brokerServiceUrlTls"))
            final = {None: None, True: "true", False: "false"}[told.get("authoritative")]
            key = (frame["topic"], told.get("response"), broker, final, told.get("error"))
            by[key].append(frame["latency_ns"])
    return {key: {"count": len(times), **ranks(times)} for key, times in by.items()}


def slow(frames: list[Frame]) -> list[tuple[int, str, str]]:
    """The latencies of all answers and deliveries, with both commands, the slowest first."""
    commands = {frame["number"]: frame["command"] for frame in frames}
    found = [
        (answer["latency_ns"], commands[request], answer["command"])
        for request, answer in _answers(frames).items()
    ]
    acked = _acknowledged(frames)
    for (topic, subscription, *_), group in _deliveries(frames).items():
        for entry, since in _firsts(group).items():
            times = [time for time in acked[topic, subscription, entry] if time >= since]
            found += [(min(times) - since, "MESSAGE", "ACK")] if times else []
    return sorted(found, reverse=True)


def compare(before: list[Frame], after: list[Frame]) -> dict[tuple[str, str], tuple[Any, Any]]:
    """What differs, by kind and name: the values before and after."""
    one, other = _compared(before), _compared(after)
    return {
        name: (one.get(name), other.get(name)) for name in {*one, *other} if one.get(name) != other.get(name)
    }


def ranks(latencies: Iterable[int]) -> Row:
    """Percentiles by nearest rank; None if there are no latencies."""
    values = sorted(latencies)
    ranked = {
        f"p{percent}_ns": values[-(-len(values) * percent // 100) - 1] if values else None
        for percent in (50, 99)
    }
    return ranked | {"max_ns": values[-1] if values else None}


def messages(frame: Frame) -> int:
    """Messages of a SEND or MESSAGE that is no chunk."""
    return int(frame["metadata"].get("num_messages_in_batch", 1))


def _answers(frames: list[Frame]) -> dict[int, Frame]:
    """The answer to each request; the last one to a producer that waits for its turn, and is told so."""
    return {frame["request"]: frame for frame in frames if frame["request"]}


def _reports_error(frame: Frame) -> bool:
    return frame["command"] in ("ERROR", "SEND_ERROR") or frame["fields"].get("error") is not None


def _times(frames: list[Frame]) -> Row:
    times = [frame["time_ns"] for frame in frames]
    return {"first_ns": min(times), "last_ns": max(times)}


def _consumer(group: list[Frame], acked: dict[tuple[Any, ...], list[int]]) -> Row:
    about = (group[0]["topic"], group[0]["subscription"])
    delivered = [frame for frame in group if frame["command"] == "MESSAGE"]
    first = _firsts(delivered)
    times = {
        entry: [time for time in acked[about[0], about[1], entry] if time >= since]
        for entry, since in first.items()
    }
    granted, permits = 0, 0
    for frame in group:
        if frame["command"] == "SUBSCRIBE":
            permits = 0
        elif frame["command"] == "FLOW":
            granted += frame["fields"]["messagePermits"]
            permits += frame["fields"]["messagePermits"]
        elif frame["command"] == "MESSAGE":
            permits -= _cost(frame)
    return {
        "delivered": sum(map(messages, delivered)),
        "entries": len(first),
        "unacked": sum(not each for each in times.values()),
        "redelivered": sum(frame["fields"].get("redelivery_count", 0) > 0 for frame in delivered),
        "acks": sum(frame["command"] == "ACK" for frame in group),
        "granted": granted,
        "permits": permits,
        **ranks(min(each) - first[entry] for entry, each in times.items() if each),
        **_times(group),
    }


def _cost(frame: Frame) -> int:
    words = frame["fields"].get("ack_set")
    if not words:
        return messages(frame)
    bits = sum((word % 2**64) << 64 * number for number, word in enumerate(words))
    return max(1, bin(bits & (1 << messages(frame)) - 1).count("1"))


def _id(fields: Row) -> tuple[int, int]:
    return fields["ledgerId"], fields["entryId"]


def _deliveries(frames: list[Frame]) -> dict[tuple[Any, ...], list[Frame]]:
    by: dict[tuple[Any, ...], list[Frame]] = defaultdict(list)
    for frame in frames:
        if frame["command"] == "MESSAGE" and frame["subscription"] is not None:
            where = (frame["connection"], frame["fields"]["consumer_id"])
            consumer = (frame["topic"], frame["subscription"], *where)
            by[consumer].append(frame)
    return by


def _firsts(delivered: list[Frame]) -> dict[tuple[int, int], int]:
    """When each entry was delivered first."""
    first: dict[tuple[int, int], int] = {}
    for frame in delivered:
        first.setdefault(_id(frame["fields"]["message_id"]), frame["time_ns"])
    return first


def _acknowledged(frames: list[Frame]) -> dict[tuple[Any, ...], list[int]]:
    """When each entry was acknowledged completely, by topic, subscription and id."""
    entries = [
        (topic, subscription, entry)
        for (topic, subscription, *_), group in _deliveries(frames).items()
        for entry in _firsts(group)
    ]
    times: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for frame in frames:
        for acked in frame["fields"]["message_id"] if frame["command"] == "ACK" else []:
            about, last = (frame["topic"], frame["subscription"]), _id(acked)
            covered = {last}
            if frame["fields"]["ack_type"] == "Cumulative":
                covered |= {entry for *of, entry in entries if tuple(of) == about and entry < last}
            if any(acked.get("ack_set", [])):
                covered.remove(last)
            for entry in covered:
                times[about[0], about[1], entry].append(frame["time_ns"])
    return times


def _compared(frames: list[Frame]) -> dict[tuple[str, str], int | None]:
    commands = {frame["number"]: frame["command"] for frame in frames}
    counts: dict[tuple[str, str], int | None] = {}
    times: dict[tuple[str, str], list[int]] = defaultdict(list)
    for frame in frames:
        names = [("topic", frame["topic"])] if frame["topic"] else []
        names += [("error", frame["fields"].get("error"))] if _reports_error(frame) else []
        names += [("client", frame["fields"]["client_version"])] if frame["command"] == "CONNECT" else []
        for name in names:
            counts[name] = (counts.get(name) or 0) + 1
    for request, answer in _answers(frames).items():
        published = answer["command"] == "SEND_RECEIPT"
        about = answer["topic"] if published else commands[request]
        times["publish p99_ns" if published else "request p99_ns", about].append(answer["latency_ns"])
    return counts | {name: ranks(latencies)["p99_ns"] for name, latencies in times.items()}
