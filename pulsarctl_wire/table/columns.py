"""Columns of a batch: records packed while frames pass, and the Arrow arrays that they become."""

import struct
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pulsarctl_wire.table.schema import METADATA
from pulsarctl_wire.wire.fields import as_text

_LETTERS: Final = {"i1": "b", "i4": "i", "u4": "I", "i8": "q", "u8": "Q"}


class Records:
    """Binary records of one kind, with the number of the row that each belongs to."""

    def __init__(self, **fields: str) -> None:
        self.dtype = np.dtype(list(fields.items()))
        self.pack = struct.Struct("<" + "".join(_LETTERS[kind] for kind in fields.values())).pack
        self.packed: list[bytes] = []

    def take(self, order: Any = None) -> Any:
        """The records so far as a numpy array, their rows moved to where `order` says; begins anew."""
        records = np.frombuffer(bytearray().join(self.packed), self.dtype)
        self.packed.clear()
        if order is not None:
            records["row"] = order[records["row"]]
        return records


class Codes(dict[Any, int]):
    """Numbers values in order of appearance; None is 0."""

    def __init__(self) -> None:
        self[None] = 0

    def __missing__(self, value: Any) -> int:
        code = self[value] = len(self)
        return code


class Columns:
    """The columns of a batch of `size` rows while they are filled; what is not put is null.

    `sparse` are columns as (row, value) pairs, to be moved to where `order` says; `present` the rows in
    which a struct is not null.
    """

    def __init__(
        self,
        size: int,
        sparse: dict[str, list[tuple[int, Any]]],
        order: Any = None,
        *,
        is_nested: bool = False,
    ) -> None:
        self.arrays: dict[str, Any] = {}
        self.sparse = sparse
        self._order = order
        self.present: Any = None
        self._size = size
        self._filled: dict[str, tuple[Any, Any]] = {}
        self._texts: dict[str, dict[int, str]] = {}
        if not is_nested:
            self.nested = Columns(size, {}, is_nested=True)

    def numbers(self, name: str, values: Any, valid: Any = None) -> None:
        """A column of which all rows are there, but for those where `valid` is False."""
        self._filled[name] = values, valid

    def texts(self, name: str, codes: Any, texts: list[Any]) -> None:
        """A column of texts by their numbers; -1 is null."""
        self.arrays[name] = pa.DictionaryArray.from_arrays(
            pa.array(codes.astype(np.int32), mask=codes < 0), pa.array(list(map(as_text, texts)), pa.string())
        )

    def put(self, name: str, rows: Any, values: Any) -> None:
        """Fill in `values` at `rows`."""
        if name not in self._filled:
            kind = bool if values.dtype == bool else np.int64
            self._filled[name] = np.zeros(self._size, kind), np.zeros(self._size, bool)
        column, valid = self._filled[name]
        column[rows] = values.astype(column.dtype, copy=False)  # uint64 of all ones becomes -1
        valid[rows] = True

    def put_texts(self, name: str, rows: Any, codes: Any, texts: dict[int, str]) -> None:
        """Fill in texts by their numbers at `rows`; numbers without text stay null."""
        column = np.full(self._size, -1, np.int64)
        known = list(texts)
        places = np.full(max(known, default=0) + 2, -1, np.int64)
        places[known] = np.arange(len(known))
        codes = np.where((codes >= 0) & (codes < len(places)), codes, len(places) - 1)
        column[rows] = places[codes]
        self.texts(name, column, list(texts.values()))

    def sparse_rest(self) -> None:
        """Fill in the sparse columns."""
        for name, pairs in self.sparse.items():
            rows = np.array([row for row, _ in pairs], np.int64)
            if self._order is not None:
                rows = self._order[rows]
            if isinstance(pairs[0][1], int):
                self.put(name, rows, np.array([value for _, value in pairs], np.int64))
                continue
            values: Any = np.empty(self._size, object)
            for row, (_, value) in zip(rows.tolist(), pairs, strict=True):
                values[row] = value
            self.arrays[name] = values

    def array(self, field: Any) -> Any:
        """The column as the Arrow array that `field` of the schema asks for."""
        name = field.name
        found = self.arrays.get(name)
        if name == "metadata" and self.nested.present is not None:
            absent = np.ones(self._size, bool)
            absent[self.nested.present] = False
            arrays = [self.nested.array(each) for each in METADATA]
            return pa.StructArray.from_arrays(arrays, fields=list(METADATA), mask=pa.array(absent))
        if name in self._filled:
            values, valid = self._filled[name]
            return pa.array(values, field.type, mask=None if valid is None else ~valid)
        if found is None:
            return pa.nulls(self._size, field.type)
        if isinstance(found, np.ndarray):
            if pa.types.is_list(field.type):
                return pa.array([_message_ids(value) for value in found], field.type)
            return pa.array(found, pa.string()).cast(field.type)
        return found

    def batch(self, schema: Any) -> Any:
        """The batch."""
        return pa.RecordBatch.from_arrays([self.array(field) for field in schema], schema=schema)


def _message_ids(pairs: list[tuple[int, int]] | None) -> list[dict[str, int]] | None:
    if pairs is None:
        return None
    return [{"ledger_id": signed(ledger), "entry_id": signed(entry)} for ledger, entry in pairs]


def signed(value: int) -> int:
    """A uint64 as the int64 with the same bits."""
    return value - 2**64 if value >= 2**63 else value
