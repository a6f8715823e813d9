"""What options choose, and what rows are grouped by, beside the same in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pwire_run import SAMPLES, pwire
from reports import independent
from reports.independent import SECOND, Capture, read

from pulsarctl_wire import data
from pulsarctl_wire.errors import QueryError
from pulsarctl_wire.reports import GROUPING, REPORTS

CAPTURES = ("java-nack-dlq.pcap", "java-keyshared.pcap", "errors.pcap", "ipv6.pcap")
Line = dict[str, Any]


@cache
def captured(name: str) -> Capture:
    """A fresh view of a capture's lines."""
    path = SAMPLES / name
    decoded, ended = (pwire("decode", "-o", "json", *more, path).lines for more in ([], ["--connections"]))
    return read(path, decoded, ended)


def chosen(name: str, keep: Callable[[Line], bool]) -> Capture:
    """The capture as if it had only some of its frames; requests are still found by number."""
    whole = captured(name)
    part = Capture(whole.path, whole.lines, whole.endings)
    part.__dict__["frames"] = [frame for frame in whole.frames if keep(frame)]
    return part


def host(line: Line) -> str:
    return str(line["client"].rpartition(":")[0].strip("[]"))


def rows(name: str, report: str, choice: data.Choice, **options: Any) -> list[dict[str, Any]]:
    found = _opened(name, choice).report(report, **options).rows()
    return [{**row, "cluster": int(row["cluster"])} if "cluster" in row else row for row in found]


@cache
def _opened(name: str, choice: data.Choice) -> data.Tables:
    return closing.enter_context(data.tables(SAMPLES / name, choice=choice))


closing = ExitStack()


@pytest.fixture(autouse=True)
def _tables() -> Iterator[None]:
    """A test opens what it chooses of a capture once."""
    with closing:
        yield
    _opened.cache_clear()


def values(name: str, value: Callable[[Line], Any]) -> list[Any]:
    """All values of a capture's frames, and one that none has."""
    return [*sorted({value(frame) for frame in captured(name).frames} - {None}), "none"]


@pytest.mark.parametrize("name", CAPTURES)
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("tenant", independent.tenant),
        ("namespace", lambda line: line["topic"] and "/".join(line["topic"].split("/")[2:-1])),
        ("subscription", lambda line: line["subscription"]),
        ("client", lambda line: line["client"]),
        ("client", host),
    ],
)
def test_frames_are_chosen_by_their_values(name: str, option: str, value: Callable[[Line], Any]) -> None:
    for each in values(name, value):
        part = chosen(name, lambda line, each=each: value(line) == each)  # type: ignore[misc]
        choice = data.Choice(**{option: each})
        for report in ("throughput", "topics", "hot-keys"):
            assert rows(name, report, choice) == independent.REPORTS[report](part), (each, report)
        count = rows(name, "summary", choice)[0]["frames"]
        assert count == len(part.frames)


@pytest.mark.parametrize("name", CAPTURES)
def test_the_path_of_an_entry_is_chosen_as_a_whole(name: str) -> None:
    whole = captured(name)
    journeys = independent.journey(whole)
    for option in ("producer", "subscription"):
        for each in {row[option] for row in journeys} - {None}:
            expected = [row for row in journeys if row[option] == each]
            assert rows(name, "journey", data.Choice(**{option: each})) == expected
    for address in values(name, lambda line: line["client"]):
        ends = ("producer_client", "consumer_client")
        expected = [row for row in journeys if address in [row[end] for end in ends]]
        assert rows(name, "journey", data.Choice(client=address)) == expected
    for each in values(name, lambda line: line["subscription"]):
        for report in ("backlog", "end-to-end", "delivery"):
            expected = [row for row in independent.REPORTS[report](whole) if row["subscription"] == each]
            assert rows(name, report, data.Choice(subscription=each)) == expected


def test_choices_combine() -> None:
    name = "java-nack-dlq.pcap"
    choice = data.Choice(
        topic="java-nack-dlq-mail", tenant="pub*", client="127.0.0.?", subscription="postman"
    )
    part = chosen(
        name, lambda line: line["subscription"] == "postman" and (line["topic"] or "").endswith("-mail")
    )
    assert rows(name, "topics", choice) == independent.topics(part)
    assert rows(name, "topics", data.Choice(tenant="public", client="10.0.0.1")) == []


def test_what_a_producer_sent_and_who_got_it() -> None:
    name = "java-nack-dlq.pcap"
    choice = data.Choice(producer="outbox")
    (topic,) = rows(name, "topics", choice)
    (whole,) = [row for row in independent.topics(captured(name)) if row["topic"] == topic["topic"]]
    assert (topic["published"], topic["delivered"]) == (whole["published"], whole["delivered"]) == (4, 9)
    assert [row["subscription"] for row in rows(name, "consumers", choice)] == ["postman"]
    assert [row["producer"] for row in rows(name, "producers", choice)] == ["outbox"]
    backlog = [row for row in independent.backlog(captured(name)) if row["topic"] == topic["topic"]]
    assert rows(name, "backlog", choice) == backlog


def test_findings_are_chosen_by_their_subject() -> None:
    capture = SAMPLES / "errors.pcap"
    with data.tables(capture) as tables:
        (found, *_) = tables.report("findings").rows()
    for choice in (
        data.Choice(tenant="public"),
        data.Choice(client=found["client"]),
        data.Choice(client=found["client"].rpartition(":")[0]),
    ):
        with data.tables(capture, choice=choice) as tables:
            assert found in tables.report("findings").rows()
    for choice in (data.Choice(tenant="another"), data.Choice(client="10.0.0.1"), data.Choice(producer="x")):
        with data.tables(capture, choice=choice) as tables:
            assert tables.report("findings").rows() == []


@pytest.mark.parametrize("name", CAPTURES)
@pytest.mark.parametrize(
    ("by", "value"),
    [
        ("tenant", independent.tenant),
        ("client", host),
        ("subscription", lambda line: line["subscription"]),
        ("command", lambda line: line["command"]),
        ("hour", lambda line: line["time_ns"] - line["time_ns"] % (3600 * SECOND)),
    ],
)
def test_totals_are_grouped_by_other_values(name: str, by: str, value: Callable[[Line], Any]) -> None:
    column = "time_ns" if by == "hour" else by
    expected = independent.totals_by(captured(name), column, value)
    assert rows(name, "topics", data.Choice(), by=[by]) == expected
    assert rows(name, "tenants", data.Choice(), by=[by]) == expected
    throughput = rows(name, "throughput", data.Choice(), by=[by], bucket="1h")
    assert sum(row["bytes"] for row in throughput) == sum(row["bytes"] for row in expected)


def test_latencies_are_grouped_by_other_values() -> None:
    name = "java-nack-dlq.pcap"
    publishes = rows(name, "publish-latency", data.Choice())
    for by in ("tenant", "namespace", "client", "hour"):
        (row,) = rows(name, "publish-latency", data.Choice(), by=[by])
        assert row["count"] == sum(each["count"] for each in publishes)
        assert row["max_ns"] == max(each["max_ns"] for each in publishes)
    requests = rows(name, "request-latency", data.Choice())
    assert [
        {key: value for key, value in row.items() if key != "client"}
        for row in rows(name, "request-latency", data.Choice(), by=["client"])
    ] == requests
    arrivals = rows(name, "end-to-end", data.Choice())
    again = rows(name, "end-to-end", data.Choice(), by=["tenant", "client"])
    assert {row["client"] for row in again} == {"127.0.0.1"}
    assert sum(row["count"] for row in again) == sum(row["count"] for row in arrivals)


def test_what_cannot_be_grouped_is_said() -> None:
    with data.tables(SAMPLES / "java-simple.pcap") as tables:
        for name in REPORTS.keys() - GROUPING - {"compare"}:
            with pytest.raises(QueryError, match=f"report {name}: does not group"):
                tables.report(name, by=["tenant"])
        with pytest.raises(QueryError, match="by age: use some of tenant, namespace, "):
            tables.report("topics", by=["age"])
    run = pwire("report", "topics", SAMPLES / "java-simple.pcap", "--by", "tenant,hour", "-o", "json")
    assert (run.code, len(run.lines)) == (0, 1)
    run = pwire("report", "topics", SAMPLES / "java-simple.pcap", "--by", "age")
    assert (run.code, run.err.count("\n")) == (2, 1)


def test_a_host_is_chosen_as_if_only_it_had_captured(tmp_path: Path) -> None:
    """And what it sent is not timed by its clock when another host captured the delivery."""
    name = "java-nack-dlq.pcap"
    pwire("table", SAMPLES / name, "--out", tmp_path / "east.parquet", "--host", "east-1")
    pwire("table", SAMPLES / "errors.pcap", "--out", tmp_path / "west.parquet", "--host", "west-1")
    both = (tmp_path / "east.parquet", tmp_path / "west.parquet")
    for report in ("summary", "topics", "connections", "journey", "findings", "gaps", "end-to-end"):
        with data.tables(*both, choice=data.Choice(host="east-?")) as tables, data.tables(both[0]) as east:
            assert tables.report(report).rows() == east.report(report).rows(), report
    with data.tables(*both) as tables:
        hosts = [row["host"] for row in tables.report("topics", by=["host"]).rows()]
        assert sorted(hosts) == ["east-1", "west-1"]
        assert {row["host"] for row in tables.report("request-latency", by=["host"]).rows()} == {*hosts}
        assert {row["host"] for row in tables.report("end-to-end", by=["host"]).rows()} == {*hosts}
    frames = pq.read_table(both[0])
    delivered = pc.equal(frames.column("command"), "MESSAGE")
    at = frames.schema.get_field_index("host")
    hosts = pc.if_else(delivered, "east-2", "east-1").dictionary_encode()
    pq.write_table(frames.set_column(at, "host", hosts), tmp_path / "moved.parquet")
    with data.tables(tmp_path / "moved.parquet") as tables:
        assert {row["sent_by"] for row in tables.report("end-to-end").rows()} == {"SEND elsewhere"}


def test_the_command_chooses() -> None:
    sample = SAMPLES / "java-nack-dlq.pcap"
    for arguments, count in (
        (["--producer", "outbox"], 4),
        (["--subscription", "postman", "--tenant", "public"], 6),
        (["--client", "127.0.0.1", "--namespace", "public/default"], 9),
        (["--client", "10.*"], 0),
    ):
        run = pwire("report", "journey", sample, "-o", "json", *arguments)
        assert (run.code, len(run.lines)) == (0, count)
