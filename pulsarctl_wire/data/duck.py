"""Runs reports with DuckDB, in this process: no Java, and the first answer in under a second."""

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import pairwise, starmap
from typing import Any, Final

import duckdb
import pyarrow as pa

from pulsarctl_wire.errors import QueryError
from pulsarctl_wire.pipeline.cache import findings_in
from pulsarctl_wire.pipeline.files.filesystems import filesystem
from pulsarctl_wire.pipeline.files.paths import is_uri
from pulsarctl_wire.pipeline.storage.findings import read
from pulsarctl_wire.pipeline.storage.tables import Files, Found, parts_of
from pulsarctl_wire.reports.engine import Answer, Engine
from pulsarctl_wire.reports.findings import ORDER, between
from pulsarctl_wire.reports.sql import Choice, literal
from pulsarctl_wire.table.schema import FINDINGS, TABLES

_MACROS: Final = (
    "explode(list) AS unnest(list)",
    "get_json_object(text, path) AS CASE WHEN json_valid(text) THEN json_extract_string(text, path) END",
    "pmod(number, width) AS ((number % width) + width) % width",
    "rlike(text, pattern) AS regexp_matches(text, pattern)",
    "struct(one, two) AS row(one, two), (one, two, three) AS row(one, two, three)",
)
"""Spark's functions that DuckDB has under other names."""
_SETTINGS: Final = (
    "default_null_order = 'nulls_first_on_asc_last_on_desc'",  # as Spark orders
    "autoinstall_known_extensions = false",
    "autoload_known_extensions = false",
    "TimeZone = 'UTC'",
)
_ROWS: Final = 16_384  # fetched at a time
_SORTED: Final = 100_000  # about how many rows for the doctor are sorted at a time: a stretch
_DRAWN: Final = 100  # rows sampled for each stretch, to find out where the next one begins
LARGE: Final = 100_000
"""The number of rows from which the findings of tables are kept (`pipeline.cache`)."""


class DuckEngine(Engine):
    """An engine over tables that were found. Its SQL is DuckDB's, with some functions of Spark added."""

    def __init__(
        self, found: Sequence[Found], choice: Choice, find_again: Callable[[], Sequence[Found]] | None = None
    ) -> None:
        super().__init__(found, choice, find_again)
        self._database = duckdb.connect()
        self._datasets: dict[str, Any] = {}
        self._relation_connections: list[Any] = []  # the connections that relations need, but do not keep
        for setting in _SETTINGS:
            self._database.execute(f"SET {setting}")
        for macro in _MACROS:
            self._database.execute(f"CREATE MACRO {macro}")
        self._again(lambda: None)

    def _open(self, found: Sequence[Found]) -> None:
        for name, schema in TABLES.items():
            parts = [
                self._part(f"files_{name}_{number}", part.files, schema, part.first_number)
                for number, part in enumerate(parts_of(found, name))
            ]
            self._define(f"all_{name}", " UNION ALL BY NAME ".join(parts))

    def close(self) -> None:
        """Free everything."""
        self._database.close()

    def _part(self, name: str, files: Files, schema: Any, first_number: int) -> str:
        """Make the view `name` of some files; return the SQL that selects its rows as `schema` has them.

        Missing columns are null. Connections are numbered from `first_number`.
        """
        schema_types = {field.name: duckdb.type(_type(field.type)) for field in schema}
        if not files.paths:
            nulls = (f"CAST(NULL AS {type_}) AS {_quoted(column)}" for column, type_ in schema_types.items())
            self._define(name, f"SELECT {', '.join(nulls)} WHERE false")
        elif any(map(is_uri, files.paths)):
            self._datasets[name] = _dataset(files)
            self._database.register(name, self._datasets[name])
        else:
            paths = ", ".join(map(literal, files.paths))
            options = "true, hive_types_autocast = false" if files.base else "false"
            options += "" if files.is_uniform else ", union_by_name = true"
            self._define(name, f"SELECT * FROM read_parquet([{paths}], hive_partitioning = {options})")
        relation = self._database.table(name)
        types = dict(zip(relation.columns, relation.types, strict=True))
        values = {
            column: _convert_column(column, types.get(column), type_, first_number)
            for column, type_ in schema_types.items()
        }
        replaced = ", ".join(
            f"{value} AS {_quoted(name)}" for name, value in values.items() if value and name in types
        )
        missing = [
            f"{value} AS {_quoted(name)}" for name, value in values.items() if value and name not in types
        ]
        everything = f"* REPLACE ({replaced})" if replaced else "*"
        return f"SELECT {', '.join([everything, *missing])} FROM {name}"

    def _define(self, name: str, sql: str) -> None:
        with _errors():
            self._database.execute(f"CREATE OR REPLACE VIEW {name} AS {sql}")

    def _store(self, name: str, sql: str) -> None:
        with _errors():
            self._database.execute(f"CREATE OR REPLACE TABLE kept_{name} AS {sql}")
        self._define(name, f"SELECT * FROM kept_{name}")

    def _stored_findings(self, cluster: str | None, *, is_one: bool) -> Any:
        return read(
            [(table.findings, table.connections) for table in self._found],
            cluster,
            is_one=is_one,
        )

    def _give(self, name: str, rows: Any) -> None:
        self._datasets[name] = rows
        self._database.register(name, rows)

    def _diagnose(self, name: str, sql: str) -> None:
        paths = [path for table in self._found for files in table.files.values() for path in files.paths]
        if sum(table.rows for table in self._found) < LARGE or any(map(is_uri, paths)):
            rows = self._findings(sql)
        else:
            key: list[object] = [sql]
            for table in self._found:
                key += table.connections, *((files.base, files.is_uniform) for files in table.files.values())
            rows = findings_in(paths, key, partial(self._findings, sql))
        self._give(name, rows)

    def _findings(self, sql: str) -> pa.Table:
        from pulsarctl_wire.checks.tables import diagnose

        with _errors():
            return pa.Table.from_pylist(list(diagnose(self._in_order(sql))), schema=FINDINGS)

    def _in_order(self, sql: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of `findings.events` in order; while one stretch is read, the next one is sorted."""
        next_stretch: Future[pa.Table] | None = None
        with ThreadPoolExecutor(1) as executor:
            for condition in self._stretches(sql):
                rows = f"SELECT * FROM ({sql}) WHERE {condition} ORDER BY {ORDER}"
                stretch, next_stretch = next_stretch, executor.submit(self._table, rows)
                if stretch is not None:
                    yield from stretch.result().to_batches(_ROWS)
            if next_stretch is not None:
                yield from next_stretch.result().to_batches(_ROWS)

    def _table(self, sql: str) -> pa.Table:
        connection = self._make_connection()  # held here, as its result does not hold it
        return connection.sql(sql).to_arrow_table()

    def _stretches(self, sql: str) -> list[str]:
        """Return conditions in order, each of which selects about `_SORTED` rows of `findings.events`."""
        ends = self._database.sql(f"SELECT count(*), min(cluster), max(cluster) FROM ({sql})").fetchall()
        ((count, first, last),) = ends
        stretch_count = count // _SORTED
        if not stretch_count:
            return ["true"]
        sample = f"SELECT cluster, at_ns FROM ({sql}) USING SAMPLE reservoir({stretch_count * _DRAWN} ROWS)"
        sampled_rows = self._database.sql(f"SELECT * FROM ({sample}) ORDER BY ALL").fetchall()
        bounds = [(first, -(2**63)), *sampled_rows[_DRAWN::_DRAWN], (last, 2**63)]
        return list(starmap(between, pairwise(bounds)))

    def _make_connection(self) -> Any:
        """Return a connection for one result: while it is read, others may be."""
        connection = self._database.cursor()
        for name, dataset in self._datasets.items():
            connection.register(name, dataset)
        return connection

    def _run(self, sql: str) -> Answer:
        with _errors():
            result = self._make_connection().execute(sql)
        return Answer([column[0] for column in result.description], _fetched(result))

    def _lazy(self, sql: str) -> Any:
        with _errors():
            self._relation_connections.append(self._make_connection())
            return self._relation_connections[-1].sql(sql)

    def _arrow(self, sql: str) -> Any:
        with _errors():
            result = self._database.sql(sql)
            # DuckDB sums into 128 bits, which Arrow has no integers for
            columns = [
                f"{_quoted(name)}::BIGINT AS {_quoted(name)}" if str(type_) == "HUGEINT" else _quoted(name)
                for name, type_ in zip(result.columns, result.types, strict=True)
            ]
            return result.project(", ".join(columns)).to_arrow_table()


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        text = re.split(r"\n\nLINE|\n\n?Candidate functions", str(error))[0]
        raise QueryError(" ".join(text.split())) from None


def _fetched(result: Any) -> Iterator[Any]:
    with _errors():
        while rows := result.fetchmany(_ROWS):
            yield from rows


def _dataset(files: Files) -> Any:
    """Return a dataset of files at URIs: pyarrow reads these, not DuckDB."""
    import pyarrow.dataset as ds  # it imports pandas, which takes 0.2 s

    system, _ = filesystem(files.paths[0])
    paths = [filesystem(path)[1] for path in files.paths]
    base = filesystem(files.base)[1] if files.base else None
    hive = ds.HivePartitioning.discover(infer_dictionary=False) if base else None
    factory = ds.FileSystemDatasetFactory(
        system, paths, ds.ParquetFileFormat(), ds.FileSystemFactoryOptions(base, hive)
    )
    return factory.finish(factory.inspect(promote_options="permissive"))


def _convert_column(name: str, actual: Any, wanted: Any, first_number: int) -> str | None:
    """Return the SQL that gives a column its `wanted` type; None if the files have that type.

    `actual` is the column's type in the files, None if it is missing. Connections are numbered from
    `first_number`. If the column `partial` is missing it is false: all frames count as whole.
    """
    column = _quoted(name)
    if actual is None:
        return "false" if name == "partial" else f"CAST(NULL AS {wanted})"
    if name == "connection" and first_number:
        return f"CAST({column} AS {wanted}) + {first_number}"
    if actual == wanted:
        return None
    if wanted.id != "struct":
        return f"CAST({column} AS {wanted})"
    names = {part for part, _ in actual.children}
    parts = ", ".join(
        f"{_quoted(part)} := CAST({f'{column}.{_quoted(part)}' if part in names else 'NULL'} AS {type_})"
        for part, type_ in wanted.children
    )
    return f"CASE WHEN {column} IS NOT NULL THEN struct_pack({parts}) END"


_TYPES: Final = {
    "string": "VARCHAR",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "bool": "BOOLEAN",
    "binary": "BLOB",
    "timestamp[us, tz=UTC]": "TIMESTAMP WITH TIME ZONE",
}


def _type(type_: Any) -> str:
    """Return DuckDB's name of an Arrow type that a schema of ours has."""
    if pa.types.is_dictionary(type_):
        return _type(type_.value_type)
    if pa.types.is_list(type_):
        return f"{_type(type_.value_type)}[]"
    if pa.types.is_map(type_):
        return f"MAP({_type(type_.key_type)}, {_type(type_.item_type)})"
    if pa.types.is_struct(type_):
        return f"STRUCT({', '.join(f'{_quoted(part.name)} {_type(part.type)}' for part in type_)})"
    return _TYPES[str(type_)]


def _quoted(name: str) -> str:
    return f'"{name}"'
