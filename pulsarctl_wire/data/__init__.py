"""Reads captures, and tables of them, as data: for notebooks, scripts, and `pwire report`.

    from pulsarctl_wire import data

    with data.tables("capture.pcap", choice=data.Choice(topic="orders")) as opened:
        print(opened.report("publish-latency", bucket="1s").pandas())
        opened.sql("SELECT command, count(*) AS n FROM frames GROUP BY 1").polars()

docs/data.md describes it; docs/tables.md the tables, docs/reports.md the reports.
"""

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, get_args

from pulsarctl_wire.errors import CaptureError, QueryError, require
from pulsarctl_wire.pipeline.cache import table_of
from pulsarctl_wire.pipeline.files.paths import absolute
from pulsarctl_wire.pipeline.storage.tables import Found, find, is_table
from pulsarctl_wire.reports import GROUPING, REPORTS
from pulsarctl_wire.reports.ddl import Dialect, statements
from pulsarctl_wire.reports.engine import MAX_AGAIN, Answer, Engine, EngineName, Row, clusters
from pulsarctl_wire.reports.sql import Choice, Options, Window, nanoseconds
from pulsarctl_wire.table.schema import FRAMES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LARGE", "Choice", "EngineName", "Result", "Tables", "tables"]

LARGE: Final = 1_000_000_000
"""Rows from which Spark runs reports if no engine is named."""


@dataclass(frozen=True)
class Result:
    """The result of a report or query. It is computed anew by each method."""

    engine: Engine
    query: str
    most: int | None = None
    """The maximum number of rows."""

    def answer(self) -> Answer:
        """Return the names of its columns, and its rows one after the other. Raises WireError."""
        return self.engine.query(self.query, self.most)

    def rows(self) -> list[Row]:
        """Return all rows, as dictionaries."""
        return self.engine.rows(self.query, self.most)

    def arrow(self) -> Any:
        """Return all rows, as a `pyarrow.Table`."""
        from pulsarctl_wire.table.schema import for_pandas

        table = self.engine.arrow(self.query, self.most)
        return table.replace_schema_metadata(for_pandas(table.schema).metadata)

    def pandas(self) -> Any:
        """Return all rows as a `pandas.DataFrame`. Integers stay exact beside nulls: they are `Int64`."""
        require("pandas")
        return self.arrow().to_pandas()

    def polars(self) -> Any:
        """Return all rows, as a `polars.DataFrame`."""
        require("polars")
        import polars

        return polars.from_arrow(self.arrow())

    def lazy(self) -> Any:
        """Return the rows as the engine's own type: a `DuckDBPyRelation`, or a `DataFrame` of Spark."""
        return self.engine.lazy(self.query, self.most)


@dataclass(frozen=True)
class Tables:
    """Tables that are open until `close`, or the end of a `with` block; see `tables`."""

    engine: Engine
    lacks: frozenset[str]
    """Columns that some or all files do not have, as `error`, `metadata.uuid`, `gaps.size`: they are null."""

    first: int | None = None
    """How many connection numbers the first table has; those of the others follow. None: one table."""
    frames: tuple[str, ...] = ()
    """The paths or URIs of the files of frames, if there is one table."""
    _open: ExitStack = field(default_factory=ExitStack, repr=False)

    def __enter__(self) -> "Tables":
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)  # a session that was started for them turns Spark's errors into ours

    def close(self) -> None:
        """Free everything; a Spark session that was started for them stops."""
        self._open.close()

    def report(
        self,
        name: str,
        *,
        bucket: str | int | None = None,
        top: int | None = None,
        key: str | None = None,
        by: Sequence[str] = (),
        window: tuple[int, int] | None = None,
        against: tuple[int, int] | None = None,
    ) -> Result:
        """Return a report of docs/reports.md; `bucket` is a text such as "1s", or ns; windows are in ns.

        Raises QueryError.
        """
        if name not in REPORTS:
            raise QueryError(f"report {name}: no such report; use one of {', '.join(REPORTS)}")
        if name == "compare" and self.first is None and window is None:
            text = "open two sources with apart=True, the earlier one first, or name a window"
            raise QueryError(f"report compare: {text}")
        if by and name not in GROUPING:
            raise QueryError(f"report {name}: does not group; by is for {', '.join(sorted(GROUPING))}")
        width = nanoseconds(bucket) if isinstance(bucket, str) else bucket
        windows = {"window": _window(window), "against": _window(against)}
        options = Options(width, top, key, by, self.first or 0, **windows)
        return Result(self.engine, REPORTS[name].sql(options), top)

    def sql(self, query: str) -> Result:
        """Return the result of a query in the engine's SQL, over tables and views (`reports/views.py`)."""
        return Result(self.engine, query)

    def ddl(self, dialect: Dialect) -> str:
        """Return statements that make the views of `reports.ddl` on one table, in the SQL of another tool.

        Raises QueryError.
        """
        if not self.frames:
            raise QueryError("views are made on one table: name one that has frames")
        if missing := sorted(self.lacks & {*FRAMES.names}):
            raise QueryError(f"the table lacks {', '.join(missing)}, which views may read: make it again")
        servers = self.engine.query("SELECT * FROM named_servers ORDER BY 1, 2, 3").values
        return "\n".join(statements(dialect, self.frames, clusters(servers)))


def tables(
    *sources: str | os.PathLike[str],
    choice: Choice = Choice(),  # noqa: B008 - it is frozen
    engine: EngineName | None = None,
    spark: "SparkSession | None" = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    apart: bool = False,
    keylogs: Sequence[str | os.PathLike[str]] = (),
    say: Callable[[str], object] = lambda note: None,
) -> Tables:
    """Open tables, or captures, as one.

    A source is a path or URI: a table of `pwire table` or `pwire analyze`, or a capture, pattern or directory
    of captures. A table is made of all captures, or with `apart` one of each source, and kept
    (`pipeline.cache`). `choice` says which rows are read. `engine` runs the queries: DuckDB in this process,
    or Spark, in a new session next to `spark`, whose views are left alone, or in one at `master` with `conf`.
    The default is DuckDB, except with `spark`, `master` or `conf`, or for more than `LARGE` rows. The key
    logs at `keylogs` open TLS in captures, as do secrets inside these. `say` gets notes about files.

    Raises CaptureError if a source cannot be read, QueryError if the engine is unknown,
    MissingLibrary if it is not installed.
    """
    if engine not in (None, *get_args(EngineName)):
        raise QueryError(f"{engine}: no such engine; use one of {', '.join(get_args(EngineName))}")
    if not sources:
        raise CaptureError("no source: name a capture or a table")
    wants_spark = engine == "spark" or (engine is None and bool(spark or master or conf))
    require("pyspark" if wants_spark else "duckdb")
    logs = [os.fspath(path) for path in keylogs]
    make_table = partial(table_of, say=say, keylogs=logs)
    paths = _as_tables([os.fspath(source) for source in sources], apart, make_table)
    find_tables = partial(_find, paths)
    found = find_tables()
    lacks = frozenset[str]().union(*(table.lacks for table in found))
    is_large = sum(table.rows for table in found) > LARGE
    with ExitStack() as stack:
        query_engine: Engine
        if not wants_spark and (engine == "duckdb" or not is_large):
            from pulsarctl_wire.data.duck import DuckEngine

            query_engine = DuckEngine(found, choice, find_tables)
        else:
            require("pyspark")
            from pulsarctl_wire.spark.engine import SparkEngine, settings
            from pulsarctl_wire.spark.session import session

            url = master or "local[*]"
            settings_of_spark = settings(found, url) | dict(conf or {})
            session_stack = stack.enter_context(ExitStack())
            own_session = (
                spark.newSession() if spark else session_stack.enter_context(session(url, settings_of_spark))
            )
            query_engine = SparkEngine(own_session, found, choice, find_tables)
            # Python cannot end while the session runs, so it is closed even if nobody calls `close`
            weakref.finalize(query_engine, session_stack.close)
        stack.callback(query_engine.close)
        first = found[0].connections if len(found) > 1 else None
        frames = tuple(map(absolute, found[0].files["frames"].paths)) if len(found) == 1 else ()
        return Tables(query_engine, lacks, first, frames, stack.pop_all())


def _window(window: tuple[int, int] | None) -> Window | None:
    if window and window[0] >= window[1]:
        raise QueryError(f"window {window[0]}..{window[1]}: ends before it begins")
    return Window(*window) if window else None


def _find(paths: Sequence[str], tries: int = MAX_AGAIN) -> list[Found]:
    """Find the tables at `paths`, again if a file vanished between being listed and being read."""
    try:
        return find(paths)
    except CaptureError as error:
        if not tries or not isinstance(error.__context__, FileNotFoundError):
            raise
    return _find(paths, tries - 1)


def _as_tables(sources: Sequence[str], apart: bool, make_table: Callable[[Sequence[str]], str]) -> list[str]:
    """Return tables: one in place of all captures among `sources`, or with `apart` one in place of each."""
    captures = [source for source in sources if not is_table(source)]
    if apart:
        return [make_table([source]) if source in captures else source for source in sources]
    made_tables = [make_table(captures)] if captures else []
    return [*(source for source in sources if source not in captures), *made_tables]
