"""The report `findings` finds in tables what `pwire doctor` finds in captures."""

from __future__ import annotations

import gzip
import json
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from judge import SHORT, examine
from private_cache import cache
from pwire_run import SAMPLES, pwire
from united import united

from pulsarctl_wire import data
from pulsarctl_wire.capture import read_events
from pulsarctl_wire.checks.finding import Finding
from pulsarctl_wire.checks.row_events import RowReader, read_rows
from pulsarctl_wire.checks.rule import DEFAULTS, Thresholds
from pulsarctl_wire.checks.tables import diagnose
from pulsarctl_wire.data import duck
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline import cache as kept
from pulsarctl_wire.reports.engine import Engine, clusters
from pulsarctl_wire.reports.findings import ORDER, events, servers
from pulsarctl_wire.table.schema import FINDINGS
from pulsarctl_wire.wire.credentials import WITH_SECRETS, is_doubtful
from pulsarctl_wire.wire.fields import to_signed
from pulsarctl_wire.wire.frame import PACKET_OFFSET_BITS, Connection, Event, Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand
from pulsarctl_wire.wire.session.ledgers import acknowledged_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[dict[str, Any]]

__all__ = ["cache"]

FAILURES: Final = Path(__file__).parent / "captures"
generate: Final = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "generate.py"))["generate"]
CAPTURES: Final = [
    *sorted(SAMPLES.glob("*.pcap*")),
    # tables keep nothing of TLS
    *(path for path in sorted(FAILURES.glob("*.gz")) if path.name != "53-tls-certificate-expired.pcap.gz"),
]
QUICK: Final = (
    *("01-tls-client-on-plain-port.pcap.gz", "05-corrupt-before-send.pcap.gz", "08-permit-leak.pcap.gz"),
    *("06-client-discards-undecompressable.pcap.gz", "12-endless-redelivery-shared.pcap.gz"),
    *("17-dropped-as-duplicate.pcap.gz", "19-advertised-port-closed.pcap.gz", "22-client-frozen.pcap.gz"),
    *("23-token-expires-not-renewed.pcap.gz", "25-incomplete-chunks.pcap.gz", "snaplen96.pcap"),
    *("27-proxy-header-on-plain-broker.pcap.gz", "36-undecodable-metadata-lost.pcap.gz"),
)


def marked(path: Path, quick: Sequence[str] = QUICK) -> Any:
    return pytest.param(path, id=path.name, marks=[] if path.name in quick else pytest.mark.slow)


def of_doctor(path: Path, thresholds: Thresholds) -> Rows:
    """What `pwire doctor` finds, as the report tells it."""
    return in_order([told(each) for each in examine(path, thresholds=thresholds).findings.values()])


def told(finding: Finding) -> dict[str, Any]:
    connection = finding.connection
    subject = {
        name: to_signed(value) if isinstance(value, int) else value
        for name, value in finding.subject._asdict().items()
    }
    return {
        **{"rule": finding.rule, "severity": finding.severity, "certainty": finding.certainty},
        **subject,
        **{"connection": connection.index, "client": connection.client, "server": connection.server},
        **{"first_ns": finding.first_ns, "last_ns": finding.last_ns, "count": finding.count},
        **{"explanation": finding.explanation, "advice": finding.advice},
        "evidence": [
            (seen.time_ns, seen.connection.index, seen.to_broker, seen.command, why)
            for seen, why in finding.evidence
        ],
    }


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


def of_report(rows: Rows) -> Rows:
    """The same of rows of the report, whatever the cluster and the places of the evidence."""
    keys = ("time_ns", "connection", "to_broker", "command", "why")
    found = []
    for row in rows:
        evidence = [tuple(each[key] for key in keys) for each in json.loads(row["evidence"])]
        found.append({name: row[name] for name in row if name != "cluster"} | {"evidence": evidence})
    return in_order(found)


def diagnosed(engine: Engine, thresholds: Thresholds) -> Rows:
    """What is found with other thresholds than those of the report."""
    choice = data.Choice()
    named = engine.query(servers(choice)).values
    rows = engine.arrow(f"SELECT * FROM ({events(choice, clusters(named))}) ORDER BY {ORDER}")
    return of_report(list(diagnose(rows.to_batches(), thresholds)))


@pytest.mark.parametrize("path", [marked(path) for path in CAPTURES])
def test_a_table_tells_what_its_capture_does(path: Path) -> None:
    with data.tables(path) as tables:
        made = tables.report("findings")
        assert of_report(made.rows()) == of_doctor(path, DEFAULTS)
        assert made.arrow().schema == FINDINGS
        assert diagnosed(tables.engine, SHORT) == of_doctor(path, SHORT)


def test_the_captures_have_findings() -> None:
    found = {row["rule"] for path in CAPTURES if path.name in QUICK for row in of_doctor(path, SHORT)}
    assert len(found) >= len(QUICK) - 1


@pytest.mark.slow
def test_spark_finds_the_same(spark: SparkSession, tmp_path: Path) -> None:
    table = united(CAPTURES, tmp_path)
    with data.tables(table) as one, data.tables(table, spark=spark) as other:
        rows = one.report("findings").rows()
        assert rows == other.report("findings").rows()
    assert {row["cluster"] for row in rows} == {path.name for path in CAPTURES if of_doctor(path, DEFAULTS)}


def test_splits_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "it.pcap"
    path.write_bytes(gzip.decompress((FAILURES / "05-corrupt-before-send.pcap.gz").read_bytes()))
    pwire("analyze", str(path), "--out", str(tmp_path / "table"), "--split-size", "700")
    assert len(list((tmp_path / "table" / "frames").iterdir())) > 2
    with data.tables(tmp_path / "table") as tables:
        expected = of_doctor(path, DEFAULTS)
        assert of_report(tables.report("findings").rows()) == expected != []


def test_each_cluster_is_looked_at_alone(tmp_path: Path) -> None:
    names = ("35-producer-on-partitioned-parent", "08-permit-leak", "35-producer-on-partitioned-parent")
    named = dict(zip("abc", names, strict=True))
    for label, name in named.items():
        out = str(tmp_path / f"{label}.parquet")
        pwire("table", str(FAILURES / f"{name}.pcap.gz"), "--out", out, "--cluster", label)
    expected = {label: of_doctor(FAILURES / f"{name}.pcap.gz", DEFAULTS) for label, name in named.items()}
    with data.tables(*sorted(tmp_path.glob("[abc].parquet"))) as tables:
        rows = tables.report("findings").rows()
    assert {row["cluster"] for row in rows} == {"a", "c"}
    for label, findings in expected.items():
        mine = [row for row in rows if row["cluster"] == label]
        assert [row["explanation"] for row in mine] == [each["explanation"] for each in findings]
    with data.tables(tmp_path / "a.parquet", choice=data.Choice(cluster="b")) as tables:
        assert tables.report("findings").rows() == []


def test_clusters_may_have_the_same_addresses(tmp_path: Path) -> None:
    """A connection does not end as one of another cluster begins to use its addresses."""
    path = SAMPLES / "advertised-address-silent.pcap"
    for label in "ab":
        pwire("table", str(path), "--out", str(tmp_path / f"{label}.parquet"), "--cluster", label)
    with data.tables(*sorted(tmp_path.glob("[ab].parquet"))) as tables:
        rows = tables.report("findings").rows()
    assert [(row["cluster"], row["rule"]) for row in rows] == [
        (label, each["rule"]) for label in "ab" for each in of_doctor(path, DEFAULTS)
    ]


def test_topic_and_time_choose_findings_and_not_frames() -> None:
    path = FAILURES / "05-corrupt-before-send.pcap.gz"
    (expected,) = of_doctor(path, DEFAULTS)
    for choice, is_there in (
        (data.Choice(topic=expected["topic"]), True),
        (data.Choice(topic="another"), False),
        (data.Choice(since=expected["last_ns"], until=expected["first_ns"] + 1), True),
        (data.Choice(since=expected["last_ns"] + 1), False),
        (data.Choice(until=expected["first_ns"]), False),
    ):
        with data.tables(path, choice=choice) as tables:
            assert of_report(tables.report("findings").rows()) == ([expected] if is_there else [])


def test_evidence_says_where_its_frames_are() -> None:
    path = SAMPLES / "corrupt-in-transit.pcap"
    with data.tables(path) as tables:
        (row,) = tables.report("findings").rows()
        frames = tables.sql("SELECT file, packet_offset, command FROM frames").rows()
    for each in json.loads(row["evidence"]):
        assert {name: each[name] for name in ("file", "packet_offset", "command")} in frames


def test_without_connections_nothing_is_judged(tmp_path: Path) -> None:
    pwire("table", str(SAMPLES / "java-simple.pcap"), "--out", str(tmp_path / "it.parquet"))
    (tmp_path / "it.connections.parquet").unlink()
    run = pwire("report", "findings", str(tmp_path / "it.parquet"))
    assert (run.code, run.out) == (3, b"")
    assert run.complaints == [
        "pwire: findings: the table has no connections (yet): pwire table or pwire analyze writes them"
    ]


@pytest.mark.parametrize(("column", "value"), [("permits", -5), ("command_json", "{"), ("total_size", -1)])
def test_values_that_cannot_be_are_an_error(column: str, value: object, tmp_path: Path) -> None:
    path = str(tmp_path / "it.parquet")
    pwire("table", str(SAMPLES / "java-simple.pcap"), "--out", path)
    table = pq.read_table(path)
    column_type = table.schema.field(column).type
    there = pc.is_valid(table[column])
    table = table.set_column(
        table.schema.get_field_index(column),
        column,
        pc.if_else(there, pa.scalar(value, column_type), pa.scalar(None, column_type)),
    )
    pq.write_table(table, path)
    with data.tables(path) as tables, pytest.raises(CaptureError, match="the table has an impossible "):
        tables.report("findings").rows()


@pytest.mark.slow
def test_packets_may_be_captured_out_of_order(tmp_path: Path) -> None:
    """A receipt before its SEND, and a frame before the one that was sent before it, are no findings."""
    path = tmp_path / "it.pcap"
    with open(path, "wb") as file:
        generate(file, 20_000, connections=2)
    with data.tables(path) as tables:
        waited = tables.sql("SELECT count(*) AS n FROM frames WHERE reported_ns IS NOT NULL").rows()
        assert waited[0]["n"] > 100
        assert tables.report("findings").rows() == of_doctor(path, DEFAULTS) == []
    pwire("table", str(path), "--out", str(tmp_path / "it.parquet"))
    without = pq.read_table(tmp_path / "it.parquet").drop_columns(["reported_ns", "reported_place"])
    pq.write_table(without, tmp_path / "it.parquet")
    with data.tables(tmp_path / "it.parquet") as tables:
        assert tables.report("findings").rows() != []  # else this capture would show nothing


@pytest.mark.parametrize("name", ["01-tls-client-on-plain-port", "27-proxy-header-on-plain-broker"])
def test_tables_of_version_4_lack_first_bytes(name: str, tmp_path: Path) -> None:
    capture, path = FAILURES / f"{name}.pcap.gz", tmp_path / "it.parquet"
    pwire("table", str(capture), "--out", str(path))
    for each in tmp_path.iterdir():
        table = pq.read_table(each).drop_columns(["protocol", "head"] if ".gaps." in each.name else [])
        pq.write_table(table.replace_schema_metadata({"pwire.table": "4"}), each)
    first_bytes = {"tls_client_on_plain_port", "proxy_header_refused"}
    assert first_bytes & {row["rule"] for row in of_doctor(capture, DEFAULTS)}
    run = pwire("report", "findings", str(path), "-o", "json")
    assert not first_bytes & {json.loads(line)["rule"] for line in run.lines}
    text = "the table lacks gaps.head, gaps.protocol: reports that need them are incomplete"
    assert run.complaints == [f"pwire: report: {text}"]


def test_findings_in_large_tables_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(duck, "LARGE", 1)
    path = tmp_path / "it.parquet"
    pwire("table", str(FAILURES / "05-corrupt-before-send.pcap.gz"), "--out", str(path), "--cluster", "one")

    def found(**choice: Any) -> Rows:
        with data.tables(path, choice=data.Choice(**choice)) as tables:
            return tables.report("findings").rows()

    def kept_files() -> set[tuple[str, int]]:
        return {(str(each), each.stat().st_mtime_ns) for each in (tmp_path / "cache").rglob("*.parquet")}

    first = found()
    assert first != []
    (before,) = kept_files()
    assert (found(), found(topic="another")) == (first, [])
    assert kept_files() == {before}
    Path(before[0]).write_bytes(b"damaged")
    assert (found(), found()) == (first, first)
    (after,) = kept_files()
    assert (after[0], after[1] > before[1]) == (before[0], True)
    assert found(cluster="two") == []
    pq.write_table(pq.read_table(path).slice(0, 2), path)
    assert found() == []
    assert len(kept_files()) == 3
    assert pwire("report", "--clear-cache").err.startswith("3 kept results deleted, ")


def test_names_of_directories_are_values_only_below_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(duck, "LARGE", 1)
    pwire("table", str(FAILURES / "05-corrupt-before-send.pcap.gz"), "--out", str(tmp_path / "made"))
    for path in tmp_path.glob("made*"):
        name = path.name.removeprefix("made.") if "." in path.name else "frames"
        (tmp_path / "all" / name / "cluster=alpha").mkdir(parents=True)
        table = pq.read_table(path).drop_columns(["cluster"])
        pq.write_table(table, tmp_path / "all" / name / "cluster=alpha" / f"it.{name}.parquet")
    for _ in range(2):
        with data.tables(tmp_path / "all") as tables:
            assert {row["cluster"] for row in tables.report("findings").rows()} == {"alpha"}
    with data.tables(tmp_path / "made") as tables:
        assert {row["cluster"] for row in tables.report("findings").rows()} == {"0"}


def test_findings_are_made_where_they_cannot_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(duck, "LARGE", 1)
    path = FAILURES / "05-corrupt-before-send.pcap.gz"
    pwire("table", str(path), "--out", str(tmp_path / "it.parquet"))
    (tmp_path / "pwire").mkdir(mode=0o700)
    (tmp_path / "pwire" / "tables").touch()
    with data.tables(tmp_path / "it.parquet") as tables:
        assert [row["rule"] for row in tables.report("findings").rows()] == ["send_corrupt_at_source"]


def test_the_table_that_is_read_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(duck, "LARGE", 1)
    monkeypatch.setattr(kept, "MAX_CACHE_BYTES", 1)
    with data.tables(FAILURES / "05-corrupt-before-send.pcap.gz") as tables:
        assert tables.report("findings").rows() != []
        assert tables.report("summary").rows() != []


def test_rows_are_sorted_a_stretch_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duck, "_SORTED", 10)
    monkeypatch.setattr(duck, "_DRAWN", 3)
    captures = ("errors", "java-batchindexack", "java-simple")
    paths = [tmp_path / f"{name}.parquet" for name in captures]
    for name, path in zip(captures, paths, strict=True):
        pwire("table", str(SAMPLES / f"{name}.pcap"), "--out", str(path), "--cluster", name[:5])
    with data.tables(*paths) as tables:
        engine = tables.engine
        assert isinstance(engine, duck.DuckEngine)
        sql = events(data.Choice(), {})
        expected = engine.arrow(f"SELECT * FROM ({sql}) ORDER BY {ORDER}")
        assert len(engine._stretches(sql)) == len(expected) // 10 > 20
        assert pa.Table.from_batches(engine._in_order(sql)).equals(expected)


@pytest.mark.slow
def test_a_table_may_name_more_files_than_places_have_bits_for() -> None:
    rows: dict[str, list[Any]] = {"event": ["gap"], "to_broker": [True]}
    rows |= {name: [1] for name in ("stream_offset", "time_ns", "packet_offset", "size")}
    reader = RowReader()
    for number in range(2**19 + 2):
        event = reader.make_event(rows | {"file": [str(number)]}, 0, Connection(0))
        assert event.packet >> PACKET_OFFSET_BITS == number


FEW: Final = ("errors.pcap", "java-batchindexack.pcap", "java-encrypted.pcap", "auth-token.pcap")


@pytest.mark.parametrize("path", [marked(path, FEW) for path in CAPTURES])
def test_frames_are_those_of_the_capture(path: Path) -> None:
    with data.tables(path) as tables:
        batches = tables.engine.arrow(events(data.Choice(), {})).to_batches()
    reader = RowReader()
    made: dict[tuple[int, bool, int], Event] = {}
    for rows in read_rows(batches):
        frames = [
            reader.make_event(rows, row, Connection(rows["connection"][row]))
            for row, event in enumerate(rows["event"])
            if event == "frame"
        ]
        made |= {(frame.connection.index, frame.to_broker, frame.offset): frame for frame in frames}
    for event in read_events(path):
        if not isinstance(event, Frame):
            continue
        frame = made.pop((event.connection.index, event.to_broker, event.offset))
        assert isinstance(frame, Frame)
        assert (frame.type, frame.size, frame.time_ns) == (event.type, event.size, event.time_ns)
        assert (frame.checksum, frame.payload_at) == (
            event.checksum,
            0 if event.partial else event.payload_at,
        )
        assert (frame.metadata is None) is (event.metadata is None)
        if frame.type in WITH_SECRETS and frame.base is not None:
            assert is_doubtful(frame) is is_doubtful(event)
        if frame.command in IDS and frame.has_command:
            assert numbers_of(frame) == numbers_of(event)
        assert without_what_tables_lack(frame) == without_what_tables_lack(event)
    assert not made


IDS: Final = {
    "SEND": ("owner", "sequence", "highest"),
    "SEND_RECEIPT": ("owner", "sequence", "highest", "identified", "ledger", "entry"),
    "MESSAGE": ("owner", "ledger", "entry", "count"),
    "ACK": ("owner", "ledger", "entry", "count", "kind", "request"),
}
HEAD: Final = ("producer", "publish_time", "unpacked", "codec", "batch", "chunks", "chunk", "marker")


def numbers_of(frame: Frame) -> list[object]:
    """What rules read of a usual frame."""
    found = [getattr(frame.ids, name) for name in IDS[frame.command]]
    if frame.command in ("SEND", "MESSAGE") and frame.head is not None:
        found += [getattr(frame.head, name) for name in HEAD]
    if frame.command == "ACK":
        found += [entry for entry, _ in acknowledged_by(frame)]
    return found


def without_what_tables_lack(frame: Frame) -> BaseCommand:
    """A command without credentials, and without fields of message traffic that no rule reads."""
    base = BaseCommand()
    base.CopyFrom(frame.base or base)
    if base.HasField("connect"):
        base.connect.ClearField("auth_data")
    for each in (base.authChallenge.challenge, base.authResponse.response):
        each.ClearField("auth_data")
    for name in ("num_messages", "is_chunk", "txnid_least_bits", "txnid_most_bits", "marker"):
        base.send.ClearField(name)
    base.message.redelivery_count = base.message.redelivery_count  # absent means 0
    ids: list[Any] = [base.message.message_id, base.send_receipt.message_id, *base.ack.message_id]
    for message_id in ids:
        for name in ("partition", "batch_index", "batch_size", "first_chunk_message_id"):
            message_id.ClearField(name)
    return base
