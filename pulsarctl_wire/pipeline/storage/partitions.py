"""Places the rows of a split in directories by columns: `date=2026-01-02/series=a/NAME.parquet`.

All columns are in the files as well, so directories need not be read for their values. The columns of
`_DERIVED` are only in tables that are partitioned by them.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsarctl_wire.table.schema import COMMENT, TEXT


class _Derived(NamedTuple):
    """A column that is made from another one of a batch."""

    source: str
    type: Any
    make: Callable[[Any], Any]


def _utc(time_ns: Any) -> Any:
    return time_ns.cast(pa.timestamp("ns"))


_DERIVED: Final = {
    "date": _Derived("time_ns", pa.date32(), lambda time_ns: _utc(time_ns).cast(pa.date32())),
    "hour": _Derived("time_ns", pa.int32(), lambda time_ns: pc.hour(_utc(time_ns)).cast(pa.int32())),
}
MAX_OPEN: Final = 32
"""Files of a split that are written at a time; beyond that, a partition gets several files."""
PART: Final = re.compile(r"(_\d{5})?\.parquet$")
"""How the names of a split's files in a partition end."""
_LONGEST: Final = 200  # bytes of the name of a directory
_ESCAPED: Final = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""")  # as in Hive
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"

Values = tuple[str | None, ...]
"""The values of a partition, as texts."""


class File(Protocol):
    """A file that is being written."""

    rows: int

    def write(self, batch: Any) -> None:
        """Append a batch."""

    def close(self) -> int:
        """Complete the file; return its size in bytes."""

    def discard(self) -> None:
        """Delete the unfinished file."""


def add_partitions(schema: Any, columns: Sequence[str]) -> tuple[Any, tuple[str, ...]]:
    """Return the schema of files partitioned by `columns`, and those of the columns that it has.

    `schema` is one of `TABLES`, which may lack some of `columns`.
    """
    own_columns = tuple(name for name in columns if name in schema.names or _is_derived(name, schema))
    for name in own_columns:
        if name not in schema.names:
            source, type_, _ = _DERIVED[name]
            schema = schema.append(pa.field(name, type_, metadata={COMMENT: f"{name} of {source}, in UTC"}))
    return schema, own_columns


def find_sources(schema: Any, columns: Sequence[str]) -> list[str]:
    """Return the columns of `schema` that the partition `columns` are, or are made from."""
    return list(dict.fromkeys(name if name in schema.names else _DERIVED[name].source for name in columns))


def _is_derived(name: str, schema: Any) -> bool:
    return name in _DERIVED and _DERIVED[name].source in schema.names


def directory(columns: Sequence[str], values: Sequence[str | None]) -> str:
    """Return the path of a partition's directory below that of the table."""
    return "/".join(_directory_name(name, value) for name, value in zip(columns, values, strict=True))


def _directory_name(name: str, value: str | None) -> str:
    text = _NULL if value is None else _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", value)
    if len(text.encode()) > _LONGEST:
        digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        text = re.sub("%.?$", "", text.encode()[:_LONGEST].decode(errors="ignore")) + f"~{digest}"
    return f"{name}={text}"


class Partitioned:
    """The files of a split in the partitions that its rows are in.

    `begin_file` takes a path below the table's directory. Closed files stay if the rest is discarded:
    whoever writes the split again replaces them.
    """

    def __init__(self, name: str, columns: Sequence[str], begin_file: Callable[[str], File]) -> None:
        self.rows = 0
        self._name = name
        self._columns = columns
        self._begin_file = begin_file
        self._size = 0
        self._open: dict[Values, File] = {}  # the one that was used last comes last
        self._begun: Counter[Values] = Counter()

    def write(self, batch: Any) -> None:
        """Append a batch."""
        for values, rows in _split_batch(batch, self._columns):
            file = self._open.pop(values, None) or self._begin(values)
            self._open[values] = file
            file.write(rows)
        self.rows += batch.num_rows

    def _begin(self, values: Values) -> File:
        if len(self._open) >= MAX_OPEN:
            self._size += self._open.pop(next(iter(self._open))).close()
        suffix = f"_{self._begun[values]:05d}" if self._begun[values] else ""
        self._begun[values] += 1
        return self._begin_file(f"{directory(self._columns, values)}/{self._name}{suffix}.parquet")

    def close(self) -> int:
        """Complete the files; return the size of all in bytes."""
        return self._size + sum(file.close() for file in self._open.values())

    def discard(self) -> None:
        """Delete unfinished files."""
        for file in self._open.values():
            file.discard()


def _split_batch(batch: Any, names: Sequence[str]) -> Iterator[tuple[Values, Any]]:
    """Yield the rows of each partition in a batch, with the derived columns that they are partitioned by."""
    if not batch.num_rows:
        return
    codes, texts = [], []
    for name in names:
        if name not in batch.schema.names:
            batch = batch.append_column(name, _DERIVED[name].make(batch.column(_DERIVED[name].source)))
        column = batch.column(name)
        column = column if column.type == TEXT else column.cast(pa.string())
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        codes.append(np.asarray(encoded.indices.fill_null(-1)))
        texts.append([*encoded.dictionary.to_pylist(), None])
    groups, group_of_row = np.unique(np.stack(codes), axis=1, return_inverse=True)
    for number, columns in enumerate(groups.T):
        values = tuple(text[code] for text, code in zip(texts, columns, strict=True))
        rows = batch if groups.shape[1] == 1 else batch.filter(pa.array(group_of_row.reshape(-1) == number))
        yield values, rows
