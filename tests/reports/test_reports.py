"""Every report on real captures, with values read off `pwire decode -t relative` and worked out by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from examples import module

from pulsarctl_wire import data, read_frames

SAMPLES = Path(__file__).parents[2] / "samples" / "pcaps"
CAPTURES = ("java-simple", "java-nack-dlq", "errors", "corrupt-in-transit", "snaplen96")
"""Together they have ten connections: 0, 1, 2 to 4, 5 to 8 and 9."""

Rows = list[dict[str, Any]]
Make = Callable[..., Rows]

BILLING = "persistent://public/default/java-simple-orders"
MAIL = "persistent://public/default/java-nack-dlq-mail"
LOCKED = "persistent://public/default/errors-locked"
CORRUPT = "persistent://public/default/crc1-369"


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("tables")
    code = "import sys; from pulsarctl_wire.cli import main; sys.argv[0] = 'pwire'; main()"
    made = [str(folder / f"{name}.parquet") for name in CAPTURES]
    for name, path in zip(CAPTURES, made, strict=True):
        arguments = ["table", str(SAMPLES / f"{name}.pcap"), "--out", path]
        subprocess.run([sys.executable, "-c", code, *arguments], check=False, capture_output=True)
    return made


@pytest.fixture(scope="module")
def make(paths: list[str]) -> Iterator[Make]:
    with ExitStack() as stack:
        opened: dict[str | None, data.Tables] = {None: stack.enter_context(data.tables(*paths))}

        def rows(name: str, topic: str | None = None, bucket_ns: int | None = None, **options: Any) -> Rows:
            if topic not in opened:
                opened[topic] = stack.enter_context(data.tables(*paths, choice=data.Choice(topic)))
            return opened[topic].report(name, bucket=bucket_ns, **options).rows()

        yield rows


def microseconds(row: dict[str, Any], *names: str) -> list[int | None]:
    """Columns of ns as µs, which is as fine as these captures are."""
    return [None if row[f"{name}_ns"] is None else row[f"{name}_ns"] // 1000 for name in names]


PERCENTILES = ("p50", "p90", "p99", "p999", "max")


def test_publish_latency(make: Make) -> None:
    by_topic = {(row["topic"], row["producer"]): row for row in make("publish-latency")}
    # 1970, 2148, 2283, 2413, 2458, 2550, 2618, 2978, 3689, 5406 µs
    billing = by_topic[BILLING, "shop-1"]
    assert billing["count"] == 10
    assert microseconds(billing, *PERCENTILES) == [2458, 3689, 5406, 5406, 5406]
    # the one that was damaged got a SEND_ERROR; 2750, 2253 (sent again), 3028, 23313
    corrupt = by_topic[CORRUPT, "standalone-0-157"]
    assert corrupt["count"] == 4
    assert microseconds(corrupt, *PERCENTILES) == [2750, 23313, 23313, 23313, 23313]


def test_publish_latency_by_bucket(make: Make) -> None:
    rows = make("publish-latency", topic="java-nack-dlq-mail*", bucket_ns=10**9)
    # the capture begins 41 ms after a full second; 4958, 2758, 3275, 2628 in the first second
    first = next(row for row in rows if row["topic"] == MAIL)
    assert (first["time_ns"], first["count"]) == (1795196873 * 10**9, 4)
    assert microseconds(first, *PERCENTILES) == [2758, 4958, 4958, 4958, 4958]
    later = [
        (row["time_ns"] // 10**9 - 1795196873, row["count"]) for row in rows if row["topic"].endswith("DLQ")
    ]
    assert sum(count for _, count in later) == 3
    assert (6, 1) in later


def test_request_latency(make: Make) -> None:
    rows = {row["command"]: row for row in make("request-latency", topic="errors-locked")}
    # 506, 513, 1923, 5175, 6687, 8161, and 500871 of a producer that waited, and was told so after 462
    assert rows["PRODUCER"]["count"] == 7
    assert rows["PRODUCER"]["errors"] == 3
    assert microseconds(rows["PRODUCER"], *PERCENTILES) == [5175, 500871, 500871, 500871, 500871]
    assert rows["CLOSE_PRODUCER"]["count"] == 2
    assert microseconds(rows["CLOSE_PRODUCER"], "p50", "max") == [541, 1798]
    assert "SEND" not in rows


def test_failed_sends_count_among_the_requests(make: Make) -> None:
    (row,) = [row for row in make("request-latency", topic="crc1-369") if row["command"] == "SEND"]
    assert (row["count"], row["errors"], row["max_ns"]) == (1, 1, 486_000)


def test_slowest(make: Make) -> None:
    first, second = make("slowest", topic="errors-*", top=2)
    assert microseconds(first, "latency") == [500871]
    assert (first["command"], first["answer"], first["topic"]) == ("PRODUCER", "PRODUCER_SUCCESS", LOCKED)
    assert first["connection"] == 2
    assert microseconds(second, "latency") == [21427]


def test_throughput(make: Make) -> None:
    first, *later = [row for row in make("throughput", topic="java-nack-dlq-mail") if row["topic"] == MAIL]
    assert (first["published"], first["delivered"]) == (4, 6)  # two redeliveries among them
    assert (first["published_bytes"], first["published_per_s"]) == (24, 4.0)
    assert [row["delivered"] for row in later] == [1, 1, 1, 0, 0]


def test_topics(make: Make) -> None:
    (row,) = [row for row in make("topics") if row["topic"] == BILLING]
    assert (row["frames"], row["bytes"], row["published"], row["delivered"]) == (49, 3160, 10, 10)
    assert (row["producers"], row["subscriptions"], row["errors"], row["bad_checksums"]) == (1, 1, 0, 0)


def test_hot_keys(make: Make) -> None:
    rows = make("hot-keys", topic="java-simple-orders")
    # the ordering keys o0 and o1 in turns; they win over the keys. Of equals the smaller hash comes first
    assert [(row["key_hash"], row["messages"], row["share"]) for row in rows] == [
        (1433778533, 5, 0.5),
        (1879018441, 5, 0.5),
    ]


def test_connections(make: Make) -> None:
    rows = {row["connection"]: row for row in make("connections")}
    assert len(rows) == 10
    simple = rows[0]
    assert (simple["client_version"], simple["server_version"]) == (
        "Pulsar-Java-v4.0.8",
        "Pulsar Server4.0.8",
    )
    assert (simple["frames_to_broker"], simple["frames_from_broker"]) == (22, 29)
    assert (simple["published"], simple["delivered"], simple["life_ns"]) == (10, 10, 643_106_000)
    assert [rows[number]["ended"] for number in range(10)] == [
        *("closed", "closed", "unanswered", "open", "closed"),  # the third: a SEND to a fenced producer
        *("open", "open", "open", "closed", "closed"),
    ]
    assert (rows[9]["gaps"], rows[9]["gap_bytes"]) == (93, 15890 + 246)
    assert rows[8]["errors"] == 1


def test_journey(make: Make) -> None:
    rows = {(row["ledger_id"], row["entry_id"]): row for row in make("journey", topic="java-simple-orders")}
    steps = ("publish_latency", "delivery_latency", "ack_latency")
    assert len(rows) == 10
    assert microseconds(rows[47, 0], *steps) == [5406, 6693, 100214]  # a cumulative ACK covers 0 to 4
    assert microseconds(rows[47, 4], *steps) == [2148, 5581, 77554]
    assert microseconds(rows[47, 8], *steps) == [2413, 3001, 65258]  # one ACK names 5 to 8
    assert microseconds(rows[47, 9], *steps) == [2458, 9039, None]  # never acknowledged
    assert {(row["deliveries"], row["subscription"], row["producer"]) for row in rows.values()} == {
        (1, "billing", "shop-1")
    }


def test_journey_with_redeliveries(make: Make) -> None:
    rows = {(row["ledger_id"], row["entry_id"]): row for row in make("journey", topic="java-nack-dlq-mail*")}
    assert [(row["deliveries"], row["redelivery_count"]) for row in (rows[92, n] for n in range(4))] == [
        *((1, 0), (4, 3), (3, 2), (1, 0))
    ]
    assert microseconds(rows[92, 1], "delivery_latency", "ack_latency") == [4666, 847773]
    assert microseconds(rows[93, 2], "delivery_latency", "ack_latency") == [4345, 1559943]
    assert rows[93, 2]["subscription"] == "undertaker"


def test_delivery(make: Make) -> None:
    delivery, ack = make("delivery", topic="java-simple-orders")
    # 3001, 5311, 5581, 6693, 7251, 9039, 9213, 9248, 13080, 13964
    assert (delivery["step"], delivery["count"], delivery["missing"]) == ("delivery", 10, 0)
    assert microseconds(delivery, "p50", "p90", "p99") == [7251, 13080, 13964]
    # 65258, three of 65846, three of 77554, 88473, 100214
    assert (ack["step"], ack["count"], ack["missing"]) == ("ack", 9, 1)
    assert microseconds(ack, "p50", "p90", "max") == [77554, 100214, 100214]


def test_backlog(make: Make) -> None:
    rows = make("backlog", topic="java-nack-dlq-mail")
    assert [
        (row["time_ns"] // 10**9 - 1795196873, row["backlog"], row["unacked"], row["permits"]) for row in rows
    ] == [
        (0, 2, 2, 994),  # 1000 granted; 4 delivered, 2 of them again; 2 acknowledged
        (1, 1, 1, 993),
        (2, 1, 1, 992),
        (4, 1, 1, 991),
        (6, 0, 0, 991),
        (8, 0, 0, 0),  # closed
    ]


def test_errors(make: Make) -> None:
    rows = [
        (row["error"], row["command"], (row["topic"] or "").split("/")[-1], row["count"])
        for row in make("errors")
    ]
    assert rows == [
        ("ConsumerBusy", "ERROR", "errors-room", 2),
        ("ProducerFenced", "ERROR", "errors-locked", 2),
        ("ChecksumError", "SEND_ERROR", "crc1-369", 1),
        ("IncompatibleSchema", "ERROR", "errors-typed", 1),
        ("NotAllowedError", "SEND_ERROR", "errors-small", 1),
        ("ProducerBusy", "ERROR", "errors-locked", 1),
        ("ProducerBusy", "ERROR", "errors-room", 1),
        *(
            ("TopicNotFound", "PARTITIONED_METADATA_RESPONSE", name, 1)
            for name in ("postman-DLQ", "postman-RETRY")
        ),
        ("TopicNotFound", "PARTITIONED_METADATA_RESPONSE", "t", 1),
        ("TopicTerminatedError", "ERROR", "errors-room", 1),
    ]


def test_checksums(make: Make) -> None:
    (row,) = make("checksums")
    assert (row["command"], row["topic"], row["connection"]) == ("SEND", CORRUPT, 8)
    assert (row["sequence_id"], row["bytes"]) == (1, 64)


def test_gaps(make: Make) -> None:
    rows = make("gaps")
    assert len([row for row in rows if row["kind"] == "gap"]) == 84
    assert sum(row["size"] for row in rows if row["kind"] == "gap") == 15890
    assert sum(row["size"] for row in rows if row["kind"] == "malformed") == 246


def test_summary(make: Make) -> None:
    expected = {row["file"]: row for row in json.loads((SAMPLES / "expected.json").read_text())}
    known = [expected[f"{name}.pcap"] for name in CAPTURES if f"{name}.pcap" in expected]
    (row,) = make("summary")
    # corrupt-in-transit is not among the expected: 34 frames, 5 messages sent
    assert row["frames"] == sum(each["frames"] for each in known) + 34
    assert row["published"] == sum(each["messages"]["sent"] for each in known) + 5
    assert row["delivered"] == sum(each["messages"]["delivered"] for each in known)
    assert (row["connections"], row["partial"], row["errors"], row["bad_checksums"]) == (10, 75, 13, 1)
    assert (row["gaps"], row["gap_bytes"], row["malformed"], row["malformed_bytes"]) == (84, 15890, 9, 246)


# -- the command


@pytest.fixture
def command(paths: list[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs `pwire ARGS` on the tables at hand."""
    from typer.testing import CliRunner

    from pulsarctl_wire.cli.verbs import app

    def run(verb: str, *arguments: str) -> tuple[int, str, str]:
        at = 0 if verb == "sql" else 1
        ran = CliRunner().invoke(app, [verb, *arguments[:at], *paths, *arguments[at:]])
        return ran.exit_code, ran.stdout, ran.stderr

    return run


def test_a_report_as_table_json_and_csv(command: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = command("report", "hot-keys", "--topic", "java-simple-orders")
    assert code == 0
    assert out.splitlines()[0].split() == ["topic", "key", "hash", "messages", "bytes", "producers", "share"]
    assert "public/default/java-simple-orders" in out
    assert "50.0%" in out
    code, out, _ = command("report", "hot-keys", "-o", "json", "--top", "1", "--topic", "java-simple-orders")
    assert [json.loads(line)["share"] for line in out.splitlines()] == [0.5]
    code, out, _ = command("report", "checksums", "-o", "csv")
    heading, row = out.splitlines()
    assert heading.startswith("time_ns,command,topic,")
    assert row.split(",")[1:3] == ["SEND", CORRUPT]


def test_summary_as_tables_and_as_page(command: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    code, out, _ = command("report", "summary", "--html", str(page))
    assert (code, out) == (0, "")
    text = page.read_text()
    assert "500.87 ms" in text
    assert "ConsumerBusy" in text
    code, _, error = command("report", "gaps", "--html", str(tmp_path / "no" / "page.html"))
    assert (code, error.count("\n")) == (5, 1)


def test_sql(command: Callable[..., tuple[int, str, str]]) -> None:
    query = "select kind, count(*) n from gaps group by 1 order by 1"
    code, out, _ = command("sql", query, "-o", "csv")
    assert (code, out) == (0, "kind,n\ngap,84\nmalformed,9\n")
    for end in (" ; ", " -- malformed", "; ;\n"):
        code, out, _ = command("sql", query + end)
        assert (code, out.split()) == (0, ["kind", "n", "gap", "84", "malformed", "9"])
    code, out, error = command("sql", "selec 1")
    assert (code, out) == (2, "")
    assert error == 'pwire: Parser Error: syntax error at or near "1"\n'


# ---- `pwire stats` says the same ----


@pytest.fixture(scope="module")
def stats() -> Callable[[str], Rows]:
    """The records of `pwire stats` over the same captures, by what it counts by."""
    code = "import sys; from pulsarctl_wire.cli import main; sys.argv[0] = 'pwire'; main()"
    sources = [str(SAMPLES / f"{name}.pcap") for name in CAPTURES]
    command = [sys.executable, "-c", code, "stats", *sources, "-o", "json", "--top", "0"]
    out = subprocess.run(command, check=False, capture_output=True).stdout
    records = [json.loads(line) for line in out.splitlines()]
    return lambda by: [record for record in records if record["by"] == by]


def latencies(row: dict[str, Any]) -> list[int]:
    return [row["count"], *(row[f"{name}_ns"] for name in PERCENTILES)]


def test_stats_agree_on_totals(make: Make, stats: Callable[[str], Rows]) -> None:
    (one,), (other,) = make("summary"), stats("total")
    names = {"sent": "published", "invalid_checksums": "bad_checksums"}
    for name in ("frames", "bytes", "sent", "delivered", "errors", "partial", "gaps", "malformed"):
        assert other[name] == one[names.get(name, name)], name


def test_stats_agree_on_topics(make: Make, stats: Callable[[str], Rows]) -> None:
    reported = {
        row["topic"]: [row[name] for name in ("frames", "bytes", "published", "delivered")]
        for row in make("topics")
    }
    counted = {
        row["topic"]: [row[name] for name in ("frames", "bytes", "sent", "delivered")]
        for row in stats("topic")
    }
    assert {topic: reported[topic] for topic in counted} == counted


def test_stats_agree_on_publish_latencies(make: Make, stats: Callable[[str], Rows]) -> None:
    rows = [row for row in make("publish-latency") if row["producer"] is not None]
    reported = {(row["topic"], row["producer"]): latencies(row) for row in rows}
    counted = {
        (row["topic"], row["producer"]): list(row["publish_ns"].values())
        for row in stats("producer")
        if row["publish_ns"]
    }
    assert reported == counted


def test_stats_agree_on_request_latencies(make: Make, stats: Callable[[str], Rows]) -> None:
    reported = {row["command"]: latencies(row) for row in make("request-latency") if row["count"]}
    counted = {
        row["command"]: list((row["request_ns"] or row["publish_ns"]).values())
        for row in stats("command")
        if row["request_ns"]
    }
    assert reported == counted


def test_stats_agree_on_errors(make: Make, stats: Callable[[str], Rows]) -> None:
    reported: dict[str, int] = {}
    for row in make("errors"):
        reported[row["error"]] = reported.get(row["error"], 0) + row["count"]
    counted: dict[str, int] = {}
    for row in stats("error"):
        counted[row["error"]] = counted.get(row["error"], 0) + row["errors"]
    assert reported == counted


def test_the_report_of_the_document_is_made_like_all_others(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pulsarctl_wire import reports

    name = "redeliveries"
    written = module("A report", f"{reports.__name__}.{name}", monkeypatch)
    monkeypatch.setitem(
        reports.REPORTS, name, reports.Report(name, "messages delivered again", written.redeliveries)
    )
    again = [
        frame.body.redelivery_count
        for frame in read_frames(SAMPLES / "java-nack-dlq.pcap")
        if frame.command == "MESSAGE" and frame.body is not None and frame.body.redelivery_count
    ]
    row = {"topic": MAIL, "subscription": "postman", "deliveries": len(again), "most": max(again)}
    assert make(name) == [row]
