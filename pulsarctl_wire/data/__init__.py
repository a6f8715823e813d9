"""Reads captures, and tables of them, as data: for notebooks, scripts, and `pwire report`.

    from pulsarctl_wire import data

    with data.tables("capture.pcap", choice=data.Choice(topic="orders")) as opened:
        print(opened.report("publish-latency", bucket="1s").pandas())
        opened.sql("SELECT command, count(*) AS n FROM frames GROUP BY 1").polars()

docs/data.md describes it; docs/tables.md the tables, docs/reports.md the reports.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from pulsarctl_wire.data.cache import table_of
from pulsarctl_wire.errors import QueryError, how_to_install
from pulsarctl_wire.pipeline.tables import find, is_table
from pulsarctl_wire.reports import REPORTS
from pulsarctl_wire.reports.engine import Answer, Engine, Row
from pulsarctl_wire.reports.sql import Choice, Options, nanoseconds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LARGE", "Choice", "EngineName", "Result", "Tables", "tables"]

LARGE: Final = 1_000_000_000
"""Rows from which Spark runs reports if no engine is named."""

EngineName = Literal["duckdb", "spark"]
"""What runs queries."""


@dataclass(frozen=True)
class Result:
    """The result of a report or query. It is computed anew by each method."""

    engine: Engine
    query: str
    most: int | None = None
    """The maximum number of rows."""

    def answer(self) -> Answer:
        """The names of its columns, and its rows one after the other. Raises WireError if the query fails."""
        return self.engine.query(self.query, self.most)

    def rows(self) -> list[Row]:
        """All rows, as dictionaries."""
        return list(self.answer().rows())

    def arrow(self) -> Any:
        """All rows, as a `pyarrow.Table`."""
        return self.engine.arrow(self.query, self.most)

    def pandas(self) -> Any:
        """All rows, as a `pandas.DataFrame`."""
        return self.arrow().to_pandas()

    def polars(self) -> Any:
        """All rows, as a `polars.DataFrame`."""
        import polars

        return polars.from_arrow(self.arrow())

    def lazy(self) -> Any:
        """The rows as the engine's own type: a `DuckDBPyRelation`, or a `DataFrame` of Spark."""
        return self.engine.lazy(self.query, self.most)


@dataclass(frozen=True)
class Tables:
    """Tables that are open; see `tables`."""

    engine: Engine
    lacks: frozenset[str]
    """Columns that some or all files do not have, as `error`, `metadata.uuid`, `gaps.size`: they are null."""

    first: int = 0
    """How many connection numbers the first source has; those of the others follow."""

    def report(
        self, name: str, *, bucket: str | int | None = None, top: int | None = None, key: str | None = None
    ) -> Result:
        """A report of docs/reports.md; `bucket` is a text such as "1s", or ns. Raises QueryError."""
        if name not in REPORTS:
            raise QueryError(f"report {name}: no such report; use one of {', '.join(REPORTS)}")
        width = nanoseconds(bucket) if isinstance(bucket, str) else bucket
        return Result(self.engine, REPORTS[name].sql(Options(width, top, key, self.first)), top)

    def sql(self, query: str) -> Result:
        """A query in the SQL of the engine; it may read the tables, and the views of `reports/views.py`."""
        return Result(self.engine, query)


@contextmanager
def tables(
    *sources: str,
    choice: Choice = Choice(),  # noqa: B008 - it is frozen
    engine: EngineName | None = None,
    spark: "SparkSession | None" = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    apart: bool = False,
    say: Callable[[str], object] = lambda note: None,
) -> Iterator[Tables]:
    """Open tables, or captures, as one; close them at the end of the block.

    A source is a path or URI: a table of `pwire table` or `pwire analyze`, or a capture, pattern or directory
    of captures, of which a table is made and kept (see `data.cache`): one of all captures, or with `apart`
    one of each source. `engine` runs the queries: DuckDB in
    this process, or Spark, in the session `spark` or one of `master` with `conf`. The default is DuckDB,
    except with a `spark`, `master` or `conf`, or for more than `LARGE` rows. `say` gets notes about files.

    Raises CaptureError if a source cannot be read, QueryError if the engine is not installed.
    """
    found = find(_as_tables(sources, apart, say))
    lacks = frozenset[str]().union(*(each.lacks for each in found))
    large = sum(each.rows for each in found) > LARGE
    with ExitStack() as stack:
        running: Engine
        if engine == "duckdb" or (engine is None and not (spark or master or conf or large)):
            from pulsarctl_wire.data.duck import DuckEngine

            running = DuckEngine(found, choice)
        else:
            try:
                from pulsarctl_wire.spark.engine import SparkEngine, settings
            except ImportError:
                raise QueryError(f"Spark is not installed: {how_to_install('spark')}") from None
            from pulsarctl_wire.spark.session import session

            given = settings(found) | dict(conf or {})
            running = SparkEngine(
                spark or stack.enter_context(session(master or "local[*]", given)), found, choice
            )
        stack.callback(running.close)
        yield Tables(running, lacks, found[0].connections if found else 0)


def _as_tables(sources: Sequence[str], apart: bool, say: Callable[[str], object]) -> list[str]:
    """The sources, with a table in place of all captures, or of each."""
    captures = [source for source in sources if not is_table(source)]
    if apart:
        return [table_of([source], say) if source in captures else source for source in sources]
    made = [table_of(captures, say)] if captures else []
    return [*(source for source in sources if source not in captures), *made]
