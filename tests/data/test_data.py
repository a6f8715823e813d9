"""`pulsarctl_wire.data`: results in every form, what is chosen, several sources, errors."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import polars
import pyarrow as pa
import pytest
from pwire_run import SAMPLES, pwire

from pulsarctl_wire import data
from pulsarctl_wire.errors import CaptureError, QueryError, WireError, how_to_install
from pulsarctl_wire.reports.views import VIEWS

MAIL = SAMPLES / "java-nack-dlq.pcap"
SIMPLE, SCHEMAS = SAMPLES / "java-simple.pcap", SAMPLES / "python-schemas.pcap"


@pytest.fixture(scope="module")
def opened() -> Iterator[data.Tables]:
    with data.tables(MAIL) as tables:
        yield tables


# -- forms

QUERIES: dict[str, Callable[[data.Tables], data.Result]] = {
    "journey": lambda tables: tables.report("journey"),
    "consumers": lambda tables: tables.report("consumers", top=2),
    "producers": lambda tables: tables.report("producers"),
    "backlog": lambda tables: tables.report("backlog", bucket="500ms"),
    "nested": lambda tables: tables.sql("SELECT metadata, acked, to_broker FROM frames ORDER BY time_ns"),
    "nothing": lambda tables: tables.report("checksums"),
}


@pytest.mark.parametrize("name", QUERIES)
def test_all_forms_hold_the_same(name: str, opened: data.Tables) -> None:
    made = QUERIES[name](opened)
    rows, arrow, frame = made.rows(), made.arrow(), made.polars()
    assert isinstance(arrow, pa.Table)
    assert isinstance(frame, polars.DataFrame)
    assert arrow.to_pylist() == frame.to_dicts() == rows
    assert arrow.column_names == frame.columns == list(made.pandas().columns) == made.answer().columns
    assert plain(made.pandas()) == rows
    assert made.lazy().fetchall() == [tuple(row.values()) for row in rows]


def plain(frame: Any) -> list[dict[str, Any]]:
    """The rows of a pandas DataFrame with None for its kinds of null, and lists for its arrays."""
    import pandas as pd

    def value(of: Any) -> Any:
        if hasattr(of, "tolist"):
            of = of.tolist()
        return None if pd.api.types.is_scalar(of) and pd.isna(of) else of

    return [{name: value(cell) for name, cell in row.items()} for row in frame.to_dict("records")]


def test_times_beside_nulls_are_exact_in_pandas(opened: data.Tables) -> None:
    query = "SELECT * FROM (VALUES (1795196873041000001), (NULL)) AS times(time_ns)"
    for frame in (opened.sql(query).pandas(), opened.sql(query).arrow().to_pandas()):
        assert str(frame.time_ns.dtype) == "Int64"
        assert frame.time_ns[0] == 1795196873041000001
        assert frame.time_ns.isna().tolist() == [False, True]


def test_sums_are_integers_in_all_forms(opened: data.Tables) -> None:
    made = opened.sql("SELECT sum(total_size) AS bytes FROM frames")
    assert made.arrow().schema.field("bytes").type == pa.int64()
    assert made.pandas().bytes[0] == made.rows()[0]["bytes"]


@pytest.mark.slow
def test_each_view_can_be_the_first_that_is_read() -> None:
    for name in VIEWS:
        with data.tables(MAIL) as tables:
            assert tables.sql(f"SELECT count(*) AS number FROM {name}").rows()[0]["number"] >= 0, name


def test_results_are_read_beside_each_other(opened: data.Tables, tmp_path: Path) -> None:
    pwire("table", MAIL, "--out", tmp_path / "mail.parquet")
    query = "SELECT packet_offset FROM frames CROSS JOIN range(1000) ORDER BY 1"
    with data.tables(f"file://{tmp_path}/mail.parquet") as at_uri:
        for tables in (opened, at_uri):
            answers = [tables.sql(query).answer() for _ in range(2)]
            pairs = zip(*(answer.rows() for answer in answers), strict=True)
            assert all(one == other for one, other in pairs)
            unread = tables.sql(query).answer()
            assert tables.report("topics").rows()
            assert unread.columns == ["packet_offset"]


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_package_that_is_missing_is_named(package: str, opened: data.Tables) -> None:
    with mock.patch.dict(sys.modules, {package: None}), pytest.raises(QueryError) as error:
        getattr(opened.report("topics"), package)()
    assert str(error.value) == f"{package} is not installed: {how_to_install('data')}"


# -- choice


def count(*sources: Path, choice: data.Choice) -> int:
    with data.tables(*sources, choice=choice) as tables:
        (row,) = tables.sql("SELECT count(*) AS n FROM frames").rows()
    return int(row["n"])


def test_rows_are_chosen_by_topic_and_time(opened: data.Tables) -> None:
    times = [row["time_ns"] for row in opened.sql("SELECT time_ns FROM frames ORDER BY 1").rows()]
    (mail,) = opened.sql(
        "SELECT count(*) AS n FROM frames WHERE topic = 'persistent://public/default/java-nack-dlq-mail'"
    ).rows()
    assert count(MAIL, choice=data.Choice("java-nack-dlq-mail")) == mail["n"] > 0
    assert count(MAIL, choice=data.Choice("java-nack-dlq-*")) > mail["n"]
    assert count(MAIL, choice=data.Choice("none")) == 0
    middle = times[len(times) // 2]
    earlier = count(MAIL, choice=data.Choice(until=middle))
    later = count(MAIL, choice=data.Choice(since=middle))
    assert earlier == sum(time < middle for time in times)
    assert earlier + later == len(times)


def test_rows_are_chosen_by_label(tmp_path: Path) -> None:
    for label, source in (("east", MAIL), ("west", SIMPLE)):
        pwire("table", source, "--out", tmp_path / f"{label}.parquet", "--cluster", label)
    both = (tmp_path / "east.parquet", tmp_path / "west.parquet")
    with data.tables(SIMPLE) as simple:
        (row,) = simple.report("summary").rows()
    assert count(*both, choice=data.Choice(cluster="west")) == row["frames"]


def test_buckets(opened: data.Tables) -> None:
    by_text = opened.report("throughput", bucket="250ms").rows()
    assert by_text == opened.report("throughput", bucket=250_000_000).rows()
    assert {row["time_ns"] % 250_000_000 for row in by_text} == {0}
    assert len(by_text) > len(opened.report("throughput").rows())


# -- several sources


def connections(tables: data.Tables) -> list[int]:
    rows = tables.sql("SELECT DISTINCT connection FROM frames ORDER BY 1").rows()
    return [row["connection"] for row in rows]


def test_captures_are_one_table_or_one_each(tmp_path: Path) -> None:
    with data.tables(SIMPLE, SCHEMAS) as together, data.tables(SIMPLE, SCHEMAS, apart=True) as apart:
        assert together.first is None
        assert apart.first == 1
        assert connections(together) == connections(apart) == [0, 1]
        topics = [row["topic"] for row in together.report("topics").rows()]
        assert topics == [row["topic"] for row in apart.report("topics").rows()]
    pwire("table", SCHEMAS, "--out", tmp_path / "schemas.parquet")
    with data.tables(SIMPLE, tmp_path / "schemas.parquet") as mixed:
        assert topics == [row["topic"] for row in mixed.report("topics").rows()]


def test_the_name_of_a_directory_above_a_table_is_no_column(tmp_path: Path) -> None:
    directory = tmp_path / "connection=70"
    directory.mkdir()
    assert pwire("table", SAMPLES / "java-simple.pcap", "--out", directory / "t.parquet").code == 0
    with data.tables(directory / "t.parquet", SAMPLES / "nano.pcap", apart=True) as tables:
        assert tables.first is not None
        assert tables.first < 70


def test_a_pattern_and_a_directory(tmp_path: Path) -> None:
    for path in (SIMPLE, SCHEMAS):
        shutil.copy(path, tmp_path)
    notes: list[str] = []
    (tmp_path / "notes.txt").write_text("none")
    with data.tables(tmp_path, say=notes.append) as folder, data.tables(tmp_path / "*.pcap") as pattern:
        assert folder.report("summary").rows() == pattern.report("summary").rows()
    assert len(notes) == 1
    assert "notes.txt" in notes[0]


def test_a_capture_that_changed_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "it.pcap"
    shutil.copy(SIMPLE, path)
    before = count(path, choice=data.Choice())
    shutil.copy(SCHEMAS, path)
    assert count(path, choice=data.Choice()) != before


# -- errors


def test_what_is_unknown_is_said(opened: data.Tables) -> None:
    with pytest.raises(QueryError, match="report summry: no such report; use one of summary, "):
        opened.report("summry")
    with pytest.raises(QueryError, match="5 parsec: use a time such as 500ms"):
        opened.report("throughput", bucket="5 parsec")
    with pytest.raises(QueryError, match="no_such_table"):
        opened.sql("SELECT * FROM no_such_table").rows()
    with pytest.raises(QueryError, match="sqlite: no such engine; use one of duckdb, spark"):
        data.tables(MAIL, engine="sqlite")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ([], "no source: name a capture or a table"),
        (["/no/such.pcap"], "/no/such.pcap: no such file"),
        ([SAMPLES / "README.md"], "README.md is not a frames table"),
        ([SIMPLE, "/no/such.parquet"], "/no/such.parquet: no such file"),
    ],
)
def test_sources_that_cannot_be_read(sources: list[str | Path], said: str) -> None:
    with pytest.raises(CaptureError, match=said):
        data.tables(*sources)


def test_one_source_cannot_be_compared(opened: data.Tables) -> None:
    with data.tables(SIMPLE, SCHEMAS) as together:
        for tables in (opened, together):
            with pytest.raises(QueryError, match="open two sources with apart=True"):
                tables.report("compare")


def test_closed_tables_answer_nothing() -> None:
    tables = data.tables(SIMPLE)
    made = tables.report("topics")
    assert made.rows()
    tables.close()
    with pytest.raises(WireError):
        made.rows()


def test_what_was_opened_with_tables_sees_the_errors_of_their_block(opened: data.Tables) -> None:
    """As a Spark session does, which turns them into one line."""

    @contextmanager
    def translating() -> Iterator[None]:
        try:
            yield
        except LookupError:
            raise QueryError("told in one line") from None

    stack = ExitStack()
    stack.enter_context(translating())
    with (
        pytest.raises(QueryError, match="told in one line"),
        data.Tables(opened.engine, frozenset(), None, (), stack),
    ):
        raise LookupError


# -- ends

UNCLOSED = """
import sys
from pulsarctl_wire import data
print(data.tables(sys.argv[1], master="local[1]").sql("SELECT count(*) n FROM frames").rows())
opened = data.tables(sys.argv[1], master="local[1]")
opened.sql(sys.argv[2]).rows()
raise ValueError("the script's own")
"""


@pytest.mark.slow
@pytest.mark.usefixtures("quick_spark")
@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("SELECT 1", "the script's own"),
        ("SELECT raise_error('the job failed') FROM frames", "the job failed"),
    ],
)
def test_python_ends_with_tables_of_spark_open(query: str, error: str) -> None:
    command = [sys.executable, "-c", UNCLOSED, str(SIMPLE), query]
    quick = os.environ | {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}
    ended = subprocess.run(command, capture_output=True, text=True, env=quick)
    assert ended.stdout == "[{'n': 51}]\n"
    assert error in ended.stderr.splitlines()[-1]
    assert "Exception ignored" not in ended.stderr
    assert ended.returncode == 1
