"""What runs the SQL of reports: an engine reads tables, and makes the views that a query names."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

from pulsarctl_wire.errors import CaptureError, QueryError
from pulsarctl_wire.reports import findings
from pulsarctl_wire.reports.sql import Choice
from pulsarctl_wire.reports.views import KEPT, VIEWS, clustered
from pulsarctl_wire.wire.detail import TABLE_NAMES

EngineName = Literal["duckdb", "spark"]
"""What runs queries."""

Row = dict[str, Any]
"""A row of a report: column name -> value."""

T = TypeVar("T")

MAX_AGAIN: Final = 2
"""How often a query starts over because files vanished."""
_VANISHED: Final = re.compile(
    "No files found that match|No such file|Path does not exist|FILE_NOT_EXIST|PATH_NOT_FOUND"
)
"""How DuckDB, pyarrow and Spark say that a file is not there."""
_END: Final = re.compile(r"[;\s]+\Z")
_WORD: Final = re.compile(r"[A-Za-z_]+")
_READS_MESSAGES: Final = re.compile(r"\b(from|join)\s+messages\b", re.IGNORECASE)


class Answer(NamedTuple):
    """The result of a query: the names of its columns, and its rows as lists of values, read once."""

    columns: list[str]
    values: Iterator[Iterable[Any]]

    def rows(self) -> Iterator[Row]:
        """Return the rows."""
        return (dict(zip(self.columns, row, strict=True)) for row in self.values)


class Engine(ABC):
    """Runs SQL over tables, whose rows together are the views `all_frames`, `all_gaps`, ….

    `choice` says which of their rows are read; `found` are the tables (`pipeline.storage.tables.Found`), and
    `find_again` finds them anew. A query that has given no row yet starts over, at most `MAX_AGAIN` times, if
    a file has vanished and a table has other files by now, as after a rebuild.
    """

    def __init__(
        self, found: Sequence[Any], choice: Choice, find_again: Callable[[], Sequence[Any]] | None = None
    ) -> None:
        conditions = choice.conditions()
        views = VIEWS | {name: f"SELECT * FROM all_{name}" for name in (*TABLE_NAMES, "findings")}
        self._views = {
            name: f"SELECT * FROM ({sql}) v WHERE {conditions[name]}" if name in conditions else sql
            for name, sql in views.items()
        }
        self._found = found
        self._find_again = find_again
        self._is_open = False
        self._stored: set[str] = set()  # views of `keep`
        self._unmade: set[str] = set()  # views that no query has named yet
        self._choice = choice
        self._has_messages = any(table.files["messages"].paths for table in found)

    def query(self, sql: str, most: int | None = None) -> Answer:
        """Run a query; `most` is the maximum number of rows. Raises WireError if it fails."""
        return self._again(lambda: _begin_reading(self._run(self._complete_query(sql, most))))

    def rows(self, sql: str, most: int | None = None) -> list[Row]:
        """Return the rows of a query."""
        return self._again(lambda: self._rows(self._complete_query(sql, most)))

    def arrow(self, sql: str, most: int | None = None) -> Any:
        """Return the rows of a query as a `pyarrow.Table`."""
        return self._again(lambda: self._arrow(self._complete_query(sql, most)))

    def lazy(self, sql: str, most: int | None = None) -> Any:
        """Return a query that has not run yet, as the engine's own type: it does not start over."""
        return self._again(lambda: self._lazy(self._complete_query(sql, most)))

    def keep(self, name: str, sql: str) -> None:
        """Compute a query once; queries to come read the result as the view `name`."""

        def store() -> None:
            self.prepare(sql)
            self._store(name, sql)

        self._again(store)
        self._stored.add(name)
        self._unmade.discard(name)

    def _again(self, attempt: Callable[[], T], tries: int = MAX_AGAIN) -> T:
        """Run `attempt`; if a file vanished, start over with the files that the table has by now."""
        try:
            if not self._is_open:
                self._open(self._found)
                self._unmade = {"clustered", "all_findings", *self._views} - self._stored
                self._is_open = True
            return attempt()
        except Exception as error:
            if not tries or self._find_again is None or not _VANISHED.search(str(error)):
                raise
            found = self._find_again()
            if found == self._found:
                raise
        self._found, self._is_open = found, False
        return self._again(attempt, tries - 1)

    def _complete_query(self, sql: str, most: int | None) -> str:
        self.prepare(sql)
        sql = _END.sub("", sql)
        # the line break ends a comment in the query
        return sql if most is None else f"SELECT * FROM ({sql}\n) LIMIT {most}"

    def prepare(self, sql: str) -> None:
        """Make the views that a query names, and those that these name.

        Raises QueryError if the query reads messages and there are none.
        """
        if not self._has_messages and _READS_MESSAGES.search(sql):
            raise QueryError("there are no messages: make a table with them by pwire table --messages")
        for name in map(str.lower, _WORD.findall(sql)):
            if name not in self._unmade:
                continue
            self._unmade.remove(name)
            if name == "clustered":
                servers = self.query("SELECT * FROM named_servers ORDER BY 1, 2, 3").values
                self._define(name, clustered(clusters(servers)))
            elif name == "all_findings":
                self._make_findings(name)
            else:
                self.prepare(self._views[name])
                (self._store if name in KEPT else self._define)(name, self._views[name])

    def _make_findings(self, name: str) -> None:
        """Make a view of the findings that were written with the tables, or else diagnose the rows."""
        choice = self._choice
        numbers = clusters(self.query(findings.servers(choice)).values)
        rows = self._stored_findings(choice.cluster, is_one=not numbers) if choice.host is None else None
        if rows is not None:
            self._give(name, rows)
            return
        self._check_connections()
        self._diagnose(name, findings.events(choice, numbers))

    def _check_connections(self) -> None:
        """Raise CaptureError if frames have addresses, but the table has no connections, which rules need."""
        frames = "SELECT connection FROM all_frames WHERE src_ip IS NOT NULL"
        if not self.rows("SELECT connection FROM all_connections", 1) and self.rows(frames, 1):
            text = "findings: the table has no connections (yet): pwire table or pwire analyze writes them"
            raise CaptureError(text)

    @abstractmethod
    def _open(self, found: Sequence[Any]) -> None:
        """Make the views `all_frames`, `all_gaps`, … of files."""

    @abstractmethod
    def close(self) -> None:
        """Free everything that queries have left."""

    @abstractmethod
    def _define(self, name: str, sql: str) -> None:
        """Make a view."""

    @abstractmethod
    def _store(self, name: str, sql: str) -> None:
        """Make a view whose rows are computed once."""

    @abstractmethod
    def _stored_findings(self, cluster: str | None, *, is_one: bool) -> Any:
        """Return the findings that were written with the tables; None if they do not cover all tables.

        `is_one`: all rows without a label are of one cluster. See `pipeline.storage.findings.read`.
        """

    @abstractmethod
    def _give(self, name: str, rows: Any) -> None:
        """Make a view of a `pyarrow.Table`."""

    @abstractmethod
    def _diagnose(self, name: str, sql: str) -> None:
        """Make a view of what the doctor finds in the rows of `findings.events`.

        Its columns are `table.schema.FINDINGS`.

        Raises CaptureError if a row has impossible values.
        """

    @abstractmethod
    def _run(self, sql: str) -> Answer: ...

    def _rows(self, sql: str) -> list[Row]:
        return list(self._run(sql).rows())

    @abstractmethod
    def _arrow(self, sql: str) -> Any: ...

    @abstractmethod
    def _lazy(self, sql: str) -> Any: ...


def _begin_reading(answer: Answer) -> Answer:
    """Read the first row of an answer; return the answer. A file that vanishes later gives a CaptureError."""
    values = iter(answer.values)
    first = list(islice(values, 1))

    def read() -> Iterator[Iterable[Any]]:
        yield from first
        try:
            yield from values
        except Exception as error:
            if not _VANISHED.search(str(error)):
                raise
            raise CaptureError("the table was replaced while its rows were read: start again") from None

    return Answer(answer.columns, read())


def clusters(rows: Iterable[Iterable[str | None]]) -> dict[str, int]:
    """Return server -> number of its cluster; empty if all are one. `rows`: a server, and URLs that it named.

    A broker and those that it names in LOOKUP_RESPONSE form a cluster.
    """
    groups: list[set[str]] = []
    for server, *urls in rows:
        if server is None:
            continue
        group = {server}
        for url in filter(None, urls):
            with suppress(ValueError):  # it is no URL
                group.add(urlsplit(url).netloc)
        for other_group in [other_group for other_group in groups if other_group & group]:
            groups.remove(other_group)
            group |= other_group
        groups.append(group)
    if len(groups) < 2:
        return {}
    return {server: number for number, group in enumerate(groups) for server in group}
