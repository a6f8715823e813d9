"""Two windows of one table, and a window beside what is usual, beside the same in plain Python."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pwire_run import SAMPLES, pwire

from pulsarctl_wire import data
from pulsarctl_wire.errors import QueryError

DAY: Final = 86_400 * 10**9
HOUR: Final = 3600 * 10**9
MIDNIGHT: Final = 1_795_132_800 * 10**9  # before the captures
DAYS: Final = 8
"""Days of the table: the traffic of a capture, each day at the same time. The last one is the odd one."""
ODD: Final = (MIDNIGHT + (DAYS - 1) * DAY, MIDNIGHT + DAYS * DAY)
ORDERS, MAIL = (
    "persistent://public/default/java-simple-orders",
    "persistent://public/default/java-nack-dlq-mail",
)
Row = dict[str, Any]


def shifted(table: Any, by_ns: int, latency: int = 1) -> Any:
    """The frames, later, and with latencies that many times as long."""
    for name, change in (
        ("time_ns", lambda column: pc.add(column, by_ns)),
        ("latency_ns", lambda column: pc.multiply(column, latency)),
    ):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), change(table.column(at)))  # type: ignore[no-untyped-call]
    return table


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight days of two captures. On the last one mail is missing, and orders come five times, and slowly."""
    folder = tmp_path_factory.mktemp("days")
    tables = {}
    for name in ("java-simple", "java-nack-dlq"):
        pwire("table", SAMPLES / f"{name}.pcap", "--out", folder / f"{name}.parquet")
        tables[name] = pq.read_table(folder / f"{name}.parquet")
    simple, mail = tables["java-simple"], tables["java-nack-dlq"]
    # the edges of the table are no part of a baseline
    edges = [shifted(simple.slice(0, 1), by - HOUR * 10) for by in (0, (DAYS + 1) * DAY)]
    usual = [
        shifted(part, number * DAY) for number in range(DAYS - 1) for part in (*[simple] * 2, *[mail] * 3)
    ]
    odd = [shifted(simple, (DAYS - 1) * DAY, latency=20)] * 10
    pq.write_table(pa.concat_tables([*edges, *usual, *odd]), folder / "days.parquet")
    return folder / "days.parquet"


@pytest.fixture(scope="module")
def opened(days: Path) -> Iterator[data.Tables]:
    with data.tables(days) as tables:
        yield tables


def test_a_day_that_is_unusual(opened: data.Tables) -> None:
    rows = opened.report("unusual", window=ODD).rows()
    found = {(row["topic"], row["measure"]): row for row in rows}
    assert rows == sorted(rows, key=lambda row: -row["factor"])
    assert {topic for topic, _ in found} >= {ORDERS, MAIL}
    published, mail = found[ORDERS, "published"], found[MAIL, "delivered"]
    assert [published[name] for name in ("value", "low", "middle", "high", "days")] == [100, 20, 20, 20, 7]
    assert published["factor"] == pytest.approx((100 + 10) / (20 + 10))
    assert (mail["value"], mail["low"], mail["days"]) == (0, 27, 7)
    slow = found[ORDERS, "p50_ns"]
    assert (slow["value"], slow["middle"]) == (2458000 * 20, 2458000)
    assert (slow["count"], slow["days"]) == (100, 7)
    assert (ORDERS, "p99_ns") not in found, "20 publishes are too few for a p99"
    assert rows == opened.report("unusual", window=ODD, against=(MIDNIGHT, ODD[0])).rows()


def test_a_day_like_the_others_is_not_unusual(opened: data.Tables) -> None:
    day = (MIDNIGHT + 2 * DAY, MIDNIGHT + 3 * DAY)
    against = (MIDNIGHT, ODD[0])
    assert opened.report("unusual", window=day, against=against).rows() == []


def test_the_fewer_days_the_more_a_value_must_differ(opened: data.Tables) -> None:
    for days, measures in ((1, {"p50_ns"}), (7, {"p50_ns", "published", "delivered", "bytes"})):
        against = (ODD[0] - days * DAY, ODD[0])
        rows = opened.report("unusual", window=ODD, against=against).rows()
        assert {row["measure"] for row in rows if row["topic"] == ORDERS} == measures


def test_hours_without_a_baseline_are_said(opened: data.Tables) -> None:
    rows = opened.report("unusual", window=ODD, against=(0, DAY)).rows()
    assert {(row["measure"], row["days"]) for row in rows} == {("no baseline", 0)}
    assert all(ODD[0] <= row["time_ns"] < ODD[1] for row in rows)


def test_windows_of_one_table(opened: data.Tables) -> None:
    (before, after) = ((ODD[0] - DAY, ODD[0]), ODD)
    rows = {(row["kind"], row["name"]): row for row in opened.report("compare", window=after).rows()}
    orders = rows["topic", ORDERS]
    assert (orders["before"], orders["after"], orders["change"]) == (2 * 49, 10 * 49, 4)
    assert orders["clear"]
    gone = rows["topic", MAIL]
    assert (gone["after"], gone["change"], gone["clear"]) == (None, None, True)
    slow = rows["publish p99_ns", ORDERS]
    assert (slow["before_count"], slow["after_count"], slow["change"]) == (20, 100, 19)
    assert not slow["clear"]
    again = opened.report("compare", window=after, against=before).rows()
    assert again == list(rows.values())
    week = opened.report("compare", window=after, against=(ODD[0] - 7 * DAY, ODD[0])).rows()
    (longer,) = [row for row in week if (row["kind"], row["name"]) == ("topic", ORDERS)]
    assert longer["before"] == 7 * 2 * 49
    assert longer["change"] == pytest.approx(4)  # by day


def test_windows_are_compared_as_two_captures_are() -> None:
    """A capture cut in two by time is what its two halves are."""
    sample = SAMPLES / "java-nack-dlq.pcap"
    seen = pwire("decode", "-o", "json", sample).records
    times = sorted(frame["time_ns"] for frame in seen)
    middle = times[len(times) // 2]
    span = max(middle - times[0], times[-1] + 1 - middle)
    windows = {"against": (middle - span, middle), "window": (middle, middle + span)}
    with data.tables(sample) as tables:
        rows = tables.report("compare", **windows).rows()  # type: ignore[arg-type]
    expected: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for frame in seen:
        if frame["topic"]:
            expected[frame["topic"]][frame["time_ns"] >= middle] += 1
    found = {row["name"]: [row["before"] or 0, row["after"] or 0] for row in rows if row["kind"] == "topic"}
    assert found == {name: counts for name, counts in expected.items() if counts[0] != counts[1]}
    for row in rows:
        if row["kind"] == "topic":
            before, after = row["before"] or 0, row["after"] or 0
            assert row["clear"] == (abs(after - before) > 3 * math.sqrt(after + before))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare", "x"], "two sources, the earlier one first, or a --window"),
        (["unusual", "x"], "name the time to look at: --window FROM..TO"),
        (["unusual", "x", "--window", "noon"], "--window noon: use FROM..TO, or a date"),
        (["unusual", "x", "--window", "2026-11-20..2026-11-19"], "ends before it begins"),
        (["unusual", "x", "--window", "2026-11-20..late"], "--window late: not a time"),
        (["unusual", "x", "--against", "2026-11-20"], "--against: name the time to look at"),
        (["topics", "x", "--window", "2026-11-20"], "report topics: has no --window"),
    ],
)
def test_what_makes_no_sense_is_said_in_one_line(arguments: list[str], said: str) -> None:
    run = pwire("report", *arguments)
    assert (run.code, run.err.count("\n")) == (2, 1)
    assert said in run.err


def test_the_command_takes_a_date(days: Path, opened: data.Tables) -> None:
    run = pwire("report", "unusual", days, "--window", "2026-11-27", "-o", "json")
    assert len(run.lines) == len(opened.report("unusual", window=ODD).rows()) > 0
    with pytest.raises(QueryError, match="a day must be a multiple of the bucket"):
        opened.report("unusual", window=ODD, bucket="7m")
    with pytest.raises(QueryError, match="ends before it begins"):
        opened.report("unusual", window=(2, 1))
