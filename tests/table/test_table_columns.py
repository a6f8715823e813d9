"""What rows say of their connection, its host and broker, of topics, and of requests."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from pipeline.comparing import Row, alone, first_difference, run, stored, together
from segments import Tcp, build, captured, conversation, pcap

from pulsarctl_wire.capture.hosts import host_of
from pulsarctl_wire.pipeline.decoding.edges import Options
from pulsarctl_wire.wire.detail import DETAILS

SAMPLES = Path(__file__).parents[2] / "samples" / "pcaps"
CAPTURES = sorted(path.name for path in SAMPLES.glob("*.pcap*"))


def rows(paths: list[Any], **options: Any) -> dict[str, list[Row]]:
    return alone(list(map(str, paths)), Options(**options)).tables


# ---- Connections ----


def test_a_connection_has_the_same_uid_in_any_table() -> None:
    names = ["errors.pcap", "mixed.pcapng.gz", "snaplen96.pcap"]
    one, apart = rows([SAMPLES / name for name in names]), [rows([SAMPLES / name]) for name in names]
    for table in ("frames", "connections"):
        uids = [row["uid"] for row in one[table]]
        assert sorted(uids) == sorted(row["uid"] for each in apart for row in each[table])
    connections = {(row["connection"], row["uid"]) for row in one["frames"]}
    assert len(connections) == len({uid for _, uid in connections}) > len(names)


def test_frames_without_packets_have_no_uid(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(build("PING"))
    (row,) = rows([tmp_path / "raw"])["frames"]
    assert (row["uid"], row["broker"], row["time"]) == (None, None, None)


def proxied(tmp_path: Path, *urls: str) -> Path:
    """A capture of connections to a proxy that is asked for these brokers; "" is for none."""
    packets = []
    for port, url in enumerate(urls, 40_000):
        more = {"proxy_to_broker_url": url} if url else {}
        hello = [(True, build("CONNECT", client_version="c", **more))]
        turns = [*hello, *islice(conversation([b"x" * 90] * 9), 1, None)]
        packets += captured(Tcp(client=("10.0.0.1", port)).whole(turns))
    path = tmp_path / "proxied.pcap"
    path.write_bytes(pcap(packets))
    return path


@pytest.mark.parametrize("parts", [1, 3, 12])
def test_the_broker_behind_a_proxy(tmp_path: Path, parts: int) -> None:
    path = proxied(tmp_path, "pulsar://broker-1:6650", "broker-2:6651", "")
    options = Options(path.stat().st_size // parts + 1)
    expected = alone([str(path)], options)
    assert not first_difference(expected, together([str(path)], tmp_path / "out", options))
    for table in ("frames", "connections"):
        brokers = {row["connection"]: row["broker"] for row in expected.tables[table]}
        assert brokers == {0: "broker-1:6650", 1: "broker-2:6651", 2: "10.0.0.2:6650"}


# ---- Hosts ----


@pytest.mark.parametrize(
    ("file", "option", "host"),
    [
        ("captures/a.pcap", None, None),
        ("captures/a.pcap", "broker-1", "broker-1"),
        ("captures/host=broker-1/a.pcap", None, "broker-1"),
        ("s3://bucket/date=2026-01-02/host=b%2F1/a.pcap", None, "b/1"),
        ("host=__HIVE_DEFAULT_PARTITION__/a.pcap", None, None),
        ("my-host=1/a.pcap", None, None),
        ("captures/broker-1/a.pcap", "captures/{host}/*", "broker-1"),
        ("/data/captures/broker-1/2026/a.pcap", "captures/{host}", "broker-1"),
        ("captures/broker-1_0001.pcap.gz", "{host}_*", "broker-1"),
        ("captures/broker-1_0001.pcap.gz", "{host}_????.pcap*", "broker-1"),
        ("a/x/y/broker-1/b.pcap", "a/**/{host}/*.pcap", "broker-1"),
        ("recaptures/broker-1/a.pcap", "captures/{host}/*", None),
        ("host=other/a.pcap", "captures/{host}/*", "other"),
        ("a+b/c.pcap", "a+b/{host}.pcap", "c"),
        ("a/b1/b1.pcap", "{host}/{host}.pcap", "b1"),
        ("a/b1/b2.pcap", "{host}/{host}.pcap", None),
    ],
)
def test_the_host_of_a_file(file: str, option: str | None, host: str | None) -> None:
    assert host_of(file, option) == host


def test_all_tables_tell_the_host(tmp_path: Path) -> None:
    (tmp_path / "host=b1").mkdir()
    path = tmp_path / "host=b1" / "it.pcap"
    path.write_bytes((SAMPLES / "snaplen96.pcap").read_bytes())
    for table, found in rows([path]).items():
        assert {row["host"] for row in found} == ({"b1"} if table != "messages" else set())
    assert {row["host"] for row in rows([path], host="other")["frames"]} == {"other"}


# ---- Topics, times, requests ----


@pytest.mark.parametrize("name", CAPTURES)
def test_columns_that_follow_from_others(name: str) -> None:
    found = rows([SAMPLES / name])
    for row in chain.from_iterable(found.values()):
        for time, ns in (("time", "time_ns"), ("end_time", "end_ns"), ("last_time", "last_ns")):
            since = row.get(time) and duckdb.execute("SELECT epoch_us(?)", [row[time]]).fetchone()
            assert (since and since[0]) == (row.get(ns) and row[ns] // 1_000)
    for row in found["frames"]:
        parts = (row["topic"] or "").partition("://")[2].split("/")
        assert (row["tenant"], row["namespace"]) == (
            (parts[0], "/".join(parts[:2])) if row["topic"] else (None, None)
        )
    frames = {
        (row["connection"], row["to_broker"], row["stream_offset"]): row["command"] for row in found["frames"]
    }
    for row in found["frames"]:
        asked = frames.get((row["connection"], not row["to_broker"], row["request"]))
        assert asked == row["answers"]


# ---- Detail ----


@pytest.mark.parametrize("detail", DETAILS)
def test_detail(tmp_path: Path, detail: str) -> None:
    path = SAMPLES / "java-nack-dlq.pcap"
    everything, chosen = rows([path]), rows([path], detail=detail)
    deliveries = {"MESSAGE", "ACK", "FLOW", "PING", "PONG", "REDELIVER_UNACKNOWLEDGED_MESSAGES"}
    wanted = {
        "frames": everything["frames"],
        "exchanges": [
            row
            for row in everything["frames"]
            if row["command"] not in deliveries or (row["command"] == "ACK" and row["request_id"] is not None)
        ],
        "connections": [],
    }
    assert chosen == {**everything, "frames": wanted[detail]}
    run([str(path)], tmp_path / "out", Options(3_000, detail=detail))
    assert {name: stored(tmp_path / "out", name) for name in chosen} == chosen


def test_a_table_without_rows_can_be_read(tmp_path: Path) -> None:
    path = str(SAMPLES / "python-simple.pcap")
    for by in ((), ("date", "cluster")):
        out = tmp_path / "-".join(("out", *by))
        run([path], out, Options(partition_by=by))
        assert pq.read_table(out / "gaps", partitioning=None).num_rows == 0
        query = f"SELECT count(*) FROM read_parquet('{out}/gaps/**/*.parquet', hive_partitioning = true)"
        assert duckdb.execute(query).fetchall() == [(0,)]
        assert not list((out / "messages").rglob("*"))
