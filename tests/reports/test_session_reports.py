"""The reports about sessions on real captures: worked out by hand, and in plain Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pwire_run import SAMPLES, Pcap, pwire
from reports import plain
from segments import Tcp, build, captured, pcap, receipt, send

from pulsarctl_wire import data

ROOT = Path(__file__).parents[2]
FAULTS = ROOT / "tests" / "checks" / "captures"
Row = dict[str, Any]

MAIL = "persistent://public/default/java-nack-dlq-mail"
LOGS = "persistent://public/default/java-batch-zlib-logs"


def report(name: str, *captures: Path, **options: Any) -> list[Row]:
    with data.tables(*captures, apart=True) as tables:
        return tables.report(name, **options).rows()


def sample(name: str) -> Path:
    return SAMPLES / f"{name}.pcap"


def frames(capture: Path) -> list[plain.Frame]:
    return pwire("decode", "-o", "json", capture).records


def milliseconds(row: Row, *names: str) -> list[float | None]:
    return [None if row[f"{name}_ns"] is None else row[f"{name}_ns"] / 1e6 for name in names]


# -- all rows, in plain Python

KEYS = {
    "clients": ("version", "protocol", "auth"),
    "producers": ("topic", "producer", "connection", "producer_id"),
    "consumers": ("topic", "subscription", "connection", "consumer_id"),
    "lookups": ("topic", "answer", "broker", "authoritative", "error"),
}
CAPTURES = [
    *("auth-token.pcap", "errors.pcap", "ipv6.pcap", "java-batch-zlib.pcap", "java-batchindexack.pcap"),
    *("java-keyshared.pcap", "java-nack-dlq.pcap", "permit-leak.pcap", "python-partitioned.pcap"),
    *("advertised-address-silent.pcap", "09-near-half-acked-batch.pcap.gz", "11-near-cumulative.pcap.gz"),
    *("12-near-unload-redelivery.pcap.gz", "17-near-resend-after-reconnect.pcap.gz"),
    *("18-near-redirected-back.pcap.gz", "24-near-seek.pcap.gz"),
]


@pytest.mark.parametrize("name", CAPTURES)
def test_rows_are_those_of_plain_python(name: str) -> None:
    capture = (FAULTS if name.endswith(".gz") else SAMPLES) / name
    seen = frames(capture)
    with data.tables(capture) as tables:
        for report_, key in KEYS.items():
            expected: plain.Rows = getattr(plain, report_)(seen)
            made = tables.report(report_).rows()
            found = {tuple(row[part] for part in key): row for row in made}
            assert len(found) == len(made), report_
            assert {
                of: {column: row[column] for column in expected.get(of, row)} for of, row in found.items()
            } == expected, report_
        slow = tables.report("slow", top=1000).rows()
    exchanges = [(row["latency_ns"], row["command"], row["answer"]) for row in slow]
    assert [latency for latency, *_ in exchanges] == [latency for latency, *_ in plain.slow(seen)]
    assert sorted(exchanges, reverse=True) == plain.slow(seen)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("errors", "java-nack-dlq"),
        ("java-simple", "ipv6"),
        ("python-simple", "auth-token"),
        ("errors", "errors"),
    ],
)
def test_differences_are_those_of_plain_python(before: str, after: str) -> None:
    rows = report("compare", sample(before), sample(after))
    found = {(row["kind"], row["name"]): (row["before"], row["after"]) for row in rows}
    assert len(found) == len(rows)
    assert found == plain.compare(frames(sample(before)), frames(sample(after)))
    for row in rows:
        if row["before"] is None or row["after"] is None:
            assert row["change"] is None
        else:
            assert row["change"] == pytest.approx(row["after"] / row["before"] - 1)


# -- by hand


def test_clients_are_those_of_the_story() -> None:
    (row,) = report("clients", sample("java-nack-dlq"))
    # 4 messages, 2 to the retry topic, 3 to that of dead letters; 5 redeliveries; two topics are not found
    assert (row["version"], row["protocol"], row["auth"]) == ("Pulsar-Java-v4.0.8", "21", "none")
    assert [row[name] for name in ("connections", "frames", "published", "delivered", "errors")] == [
        *(1, 131, 4 + 2 + 3, 4 + 2 + 3 + 5, 2)
    ]
    assert row["last_ns"] - row["first_ns"] == 8_109_652_000
    assert '"supports_auth_refresh":true' in row["features"]


def test_clients_without_connect_have_no_version() -> None:
    java, broker = report("clients", sample("errors"))
    assert (java["version"], java["connections"]) == ("Pulsar-Java-v4.0.8", 2)
    assert (broker["version"], broker["connections"], broker["auth"]) == (None, 1, None)
    assert java["frames"] + broker["frames"] == 146


def test_producers_batch_and_compress() -> None:
    rows = {
        row["topic"].removeprefix(f"{LOGS}-"): row for row in report("producers", sample("java-batch-zlib"))
    }
    # thirty messages in batches of up to twelve, then one alone
    for name, row in rows.items():
        assert (row["producer"], row["compression"]) == (f"agent-{name}", name)
        assert [row[each] for each in ("sends", "messages", "batches", "messages_per_send")] == [
            4,
            31,
            3,
            7.75,
        ]
        assert (row["resends"], row["without_receipt"]) == (0, 0)
        assert row["ratio"] == row["uncompressed_bytes"] / row["bytes"]
    # the texts differ only in the name of the codec, which is in each of the 31 messages
    plainly = rows["NONE"]["bytes"]
    assert {name: row["uncompressed_bytes"] - plainly for name, row in rows.items()} == {
        **{"NONE": 0, "ZLIB": 0, "ZSTD": 0, "LZ4": -31, "SNAPPY": 2 * 31}
    }
    assert rows["ZLIB"]["bytes"] < rows["LZ4"]["bytes"] < plainly


def test_the_chunks_of_a_message_have_one_size_together() -> None:
    again, first = sorted(
        report("producers", FAULTS / "25-near-chunks-resent.pcap.gz"), key=lambda row: -int(row["connection"])
    )
    # a message of 65,000 bytes in chunks of 10,000: three of them, then all seven on another connection
    assert (first["sends"], first["bytes"], first["uncompressed_bytes"]) == (3, 30_000, 65_000)
    assert (again["sends"], again["bytes"], again["uncompressed_bytes"]) == (7, 65_000, 65_000)
    assert (first["messages"], again["messages"], again["resends"]) == (0, 1, 3)


def test_failed_sends_have_no_receipt() -> None:
    rows = {row["producer"]: row for row in report("producers", sample("errors"))}
    assert (rows["verbose"]["sends"], rows["verbose"]["without_receipt"]) == (2, 1)  # one over the limit
    assert (rows["alice"]["sends"], rows["alice"]["without_receipt"]) == (1, 0)


def test_what_a_producer_sends_again_waits_once(tmp_path: Path) -> None:
    create = build("PRODUCER", topic="t", producer_id=1, request_id=1)
    turns = [
        *((True, create), (False, build("PRODUCER_SUCCESS", request_id=1, producer_name="p"))),
        *((True, send(b"one", 0)), (True, send(b"two", 1))),
        (False, build("CLOSE_PRODUCER", producer_id=1, request_id=2**64 - 1)),
        *((True, create), (False, build("PRODUCER_SUCCESS", request_id=1, producer_name="p"))),
        *((True, send(b"one", 0)), (True, send(b"two", 1))),
        *((False, receipt(0)), (False, receipt(1))),
    ]
    path = tmp_path / "again.pcap"
    path.write_bytes(pcap(captured(Tcp().whole(turns))))
    (row,) = report("producers", path)
    assert [row[name] for name in ("sends", "resends", "most_pending", "without_receipt")] == [4, 2, 2, 2]


def test_consumers_with_redeliveries() -> None:
    rows = {row["topic"].removeprefix(MAIL): row for row in report("consumers", sample("java-nack-dlq"))}
    mail, retry, dead = rows[""], rows["-postman-RETRY"], rows["-postman-DLQ"]
    names = ("type", "delivered", "entries", "unacked", "redelivered", "acks", "granted", "permits")
    assert [mail[name] for name in names] == ["Shared", 9, 4, 0, 5, 4, 1000, 991]
    assert [retry[name] for name in names] == ["Shared", 2, 2, 0, 0, 2, 1000, 998]
    assert [dead[name] for name in names] == ["Exclusive", 3, 3, 0, 0, 1, 1000, 997]  # an ACK for all three
    assert (mail["consumer"], mail["subscription"], dead["subscription"]) == (
        "zdGrE",
        "postman",
        "undertaker",
    )
    # 395.027-339.354, 497.505-362.738, 1199.536-351.763, 6310.537-362.738 ms, from the first delivery
    assert milliseconds(mail, "p50", "p99", "max") == [134.767, 5947.799, 5947.799]
    # 7849.835 less 613.037, 1119.988, 6289.892
    assert milliseconds(dead, "p50", "max") == [6729.847, 7236.798]


def test_a_consumer_that_leaves_hands_its_messages_on() -> None:
    rows = {row["consumer"]: row for row in report("consumers", sample("java-keyshared"))}
    # desk-1 got two, acknowledged none and left; others got and acknowledged them
    assert [rows["desk-1"][name] for name in ("delivered", "acks", "unacked", "granted", "permits")] == [
        *(2, 0, 0, 20, 18)
    ]
    assert sum(row["delivered"] for row in rows.values()) == 36 + 2
    assert {row["type"] for row in rows.values()} == {"Key_Shared"}


def test_a_consumer_without_permits() -> None:
    (row,) = report("consumers", sample("permit-leak"))
    assert [row[name] for name in ("granted", "delivered", "entries", "acks", "permits")] == [20, 20, 4, 4, 0]


def test_permits_are_gone_when_a_consumer_subscribes_again() -> None:
    (row,) = report("consumers", FAULTS / "12-near-unload-redelivery.pcap.gz")
    # five times: 1000 granted, then 3 delivered
    assert [row[name] for name in ("granted", "delivered", "entries", "permits")] == [5000, 15, 3, 997]


def test_lookups_that_redirect() -> None:
    rows = report("lookups", FAULTS / "18-near-redirected-back.pcap.gz")
    assert [(row["answer"], row["broker"], row["authoritative"], row["max_ns"]) for row in rows] == [
        ("Connect", "pulsar://127.0.0.1:45785", "true", 162_000),
        ("Redirect", "pulsar://127.0.0.1:45679", "false", 71_000),
        ("Redirect", "pulsar://127.0.0.1:45785", "true", 60_000),
    ]
    (row,) = report("lookups", sample("advertised-address-silent"))
    assert (row["answer"], row["broker"], row["count"]) == ("Connect", "pulsar://192.0.2.11:29198", 1)


def test_the_slowest_exchanges_and_where_they_are() -> None:
    first, second, *_ = report("slow", sample("java-nack-dlq"), top=3)
    assert (first["kind"], first["command"], first["answer"]) == ("delivery", "MESSAGE", "ACK")
    assert milliseconds(first, "latency") == [7236.798]  # 7849.835-613.037
    assert (first["ledger_id"], first["entry_id"], first["subscription"]) == (93, 0, "undertaker")
    assert (second["ledger_id"], second["entry_id"]) == (93, 1)
    by_number = {frame["number"]: frame["packet"] for frame in frames(sample("java-nack-dlq"))}
    packets = Pcap.read("java-nack-dlq.pcap").packets
    message, ack = (24 + sum(16 + len(data) for *_, data in packets[: by_number[n] - 1]) for n in (84, 115))
    assert (first["packet_offset"], first["answer_packet_offset"]) == (message, ack)
    assert first["file"] == first["answer_file"] == str(sample("java-nack-dlq"))
    (waited,) = report("slow", sample("errors"), top=1)  # a producer waits for its turn
    assert (waited["kind"], waited["command"], waited["answer"]) == (
        "request",
        "PRODUCER",
        "PRODUCER_SUCCESS",
    )
    assert milliseconds(waited, "latency") == [500.871]


def test_what_differs_between_two_captures() -> None:
    rows = report("compare", sample("errors"), sample("java-nack-dlq"))
    found = {(row["kind"], row["name"]): row for row in rows}
    client, missing = found["client", "Pulsar-Java-v4.0.8"], found["error", "TopicNotFound"]
    assert (client["before"], client["after"], client["change"]) == (2, 1, -0.5)
    assert (missing["before"], missing["after"], missing["change"]) == (1, 2, 1)
    assert (found["topic", MAIL]["before"], found["error", "ProducerBusy"]["after"]) == (None, None)
    for kind, clear in {(row["kind"], row["clear"]) for row in rows}:
        changes = [row["change"] for row in rows if (row["kind"], row["clear"]) == (kind, clear)]
        both = [abs(change) for change in changes if change is not None]
        assert changes[: -len(both) or None] == [None] * (len(changes) - len(both))
        assert both == sorted(both, reverse=True)
    assert report("compare", sample("errors"), sample("errors")) == []


def journeys(capture: str, key: str) -> dict[tuple[int, int], Row]:
    rows = report("journey", sample(capture), key=key)
    found = {(row["ledger_id"], row["entry_id"]): row for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize(
    ("key", "field", "value"),
    [
        ("stock-0", "partition_key", "stock-0"),
        ("stock-4", "partition_key", "stock-4"),
        ("desk-3", "ordering_key", "ZGVzay0z"),
        ("desk-9", "ordering_key", "ZGVzay05"),
    ],
)
def test_the_journey_of_a_key(key: str, field: str, value: str) -> None:
    seen = frames(sample("java-keyshared"))
    about = {"ordering_key": None, "partition_key": None}
    sent = {
        frame["number"]: frame
        for frame in seen
        if frame["command"] == "SEND" and (about | frame["metadata"])[field] == value
    }
    receipts = {
        (frame["fields"]["message_id"]["ledgerId"], frame["fields"]["message_id"]["entryId"]): frame
        for frame in seen
        if frame["command"] == "SEND_RECEIPT" and frame["request"] in sent
    }
    found = journeys("java-keyshared", key)
    assert set(found) == set(receipts)
    for entry, row in found.items():
        delivered = [
            frame["time_ns"]
            for frame in seen
            if frame["command"] == "MESSAGE"
            and (frame["fields"]["message_id"]["ledgerId"], frame["fields"]["message_id"]["entryId"]) == entry
        ]
        send_ = sent[receipts[entry]["request"]]
        assert (row["sent_ns"], row["receipt_ns"]) == (send_["time_ns"], receipts[entry]["time_ns"])
        assert (row["delivered_ns"], row["deliveries"]) == (delivered[0], len(delivered))
        assert (row["messages"], row["subscription"]) == (plain.messages(send_), "desk")
        assert row["bytes"] == send_["total_size"] + 4


def test_the_journey_of_an_id() -> None:
    found = journeys("java-nack-dlq", "92:1")
    assert list(found) == [(92, 1)]
    row = found[92, 1]
    assert (row["producer"], row["deliveries"], row["redelivery_count"]) == ("outbox", 4, 3)
    steps = ("publish_latency", "delivery_latency", "ack_latency")
    assert milliseconds(row, *steps) == [2.758, 4.666, 847.773]
    assert journeys("java-nack-dlq", "92:77") == {}
