"""Makes the columns of a batch: collects values in packed records, and turns them into Arrow arrays."""

from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any, Final

import numpy as np
import pyarrow as pa
from librt.strings import BytesWriter

from pulsarctl_wire.table.schema import FRAMES, METADATA, TIME, TIMES
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.names import namespace_of

_KINDS: Final = {pa.int32(): np.int32, pa.int64(): np.int64, TIME: np.int64}
_LONG_TEXTS: Final = {"command_json", "reason"}
_ID_BYTES: Final = 24  # of a message id in `acked`: three int64


class Records:
    """Records of one kind, whose `fields` are int64. The field `row` is the index of the record's row.

    To add a record, write the values of all fields to `writer`, in order.
    """

    def __init__(self, *fields: str) -> None:
        self.writer = BytesWriter()
        self._dtype = np.dtype([(name, np.int64) for name in fields])

    def take(self, order: Any = None) -> Any:
        """Return the records as a numpy array, with row r changed to `order[r]`, and start over."""
        records = np.frombuffer(bytearray(self.writer.getvalue()), self._dtype)
        self.writer.truncate(0)
        if order is not None:
            records["row"] = order[records["row"]]
        return records


def select(records: Any, which: Any) -> Any:
    """Return `records[which]`, but faster: numpy would copy each record field by field."""
    return records.view(f"V{records.itemsize}")[which].view(records.dtype)


class Codes(dict[Any, int]):
    """Maps distinct values to 1, 2, … as they appear; None is 0. `size` is the total length of the texts."""

    def __init__(self) -> None:
        self[None] = 0
        self.size = 0

    def __missing__(self, value: Any) -> int:
        code = self[value] = len(self)
        if isinstance(value, (str, bytes)):
            self.size += len(value)
        return code

    @property
    def texts(self) -> dict[int, Any]:
        """The values by their codes, without None."""
        return {code: value for value, code in self.items() if code}


class Columns:
    """The columns of a batch of `size` rows, while they are filled in. Values that are not set are null.

    `sparse` has columns as (row, value) pairs; their row r is moved to `order[r]`. `nested` are the columns
    of the metadata struct; its `present` are the rows in which that struct is not null.
    """

    def __init__(
        self,
        size: int,
        sparse: dict[str, list[tuple[int, Any]]],
        order: Any = None,
        nested: "Columns | None" = None,
    ) -> None:
        self.arrays: dict[str, Any] = {}
        self.sparse = sparse
        self._order = order
        self.present: Any = None
        self._size = size
        self._filled: dict[str, tuple[Any, Any]] = {}
        self.nested = nested

    def set_numbers(self, name: str, values: Any, valid: Any = None) -> None:
        """Set a whole column; rows where `valid` is False are null."""
        self._filled[name] = values, valid

    def set_texts(self, name: str, indexes: Any, texts: Iterable[Any]) -> None:
        """Set a whole column of texts: `indexes` point into `texts`, which are distinct; -1 is null."""
        self.arrays[name] = _dictionary_array(indexes, list(texts))

    def put(self, name: str, rows: Any, values: Any) -> None:
        """Fill in a column's `values` at `rows`."""
        if name not in self._filled:
            kind = bool if values.dtype == bool else np.int64
            self._filled[name] = np.zeros(self._size, kind), np.zeros(self._size, bool)
        column, valid = self._filled[name]
        column[rows] = values.astype(column.dtype, copy=False)
        valid[rows] = True

    def put_all(self, records: Any, **fields: str) -> None:
        """Fill in fields of `records` at their rows: column=field."""
        for name, field in fields.items():
            self.put(name, records["row"], records[field])

    def put_texts(self, name: str, rows: Any, codes: Any, texts: dict[int, str]) -> None:
        """Fill in texts at `rows` by their codes; codes without a text stay null."""
        column = np.full(self._size, -1, np.int64)
        keys = list(texts)
        indexes = np.full(max(keys, default=0) + 2, -1, np.int64)
        indexes[keys] = np.arange(len(keys))
        codes = np.where((codes >= 0) & (codes < len(indexes)), codes, len(indexes) - 1)
        column[rows] = indexes[codes]
        self.set_texts(name, column, list(texts.values()))

    def put_sparse(self) -> None:
        """Fill in the sparse columns."""
        for name, pairs in self.sparse.items():
            rows = np.array([row for row, _ in pairs], np.int64)
            if self._order is not None:
                rows = self._order[rows]
            values = [value for _, value in pairs]
            if name in _LONG_TEXTS:
                texts = np.full(self._size, None, object)
                texts[rows] = values
                self.arrays[name] = text_array(texts.tolist())
            elif name == "acked":
                self.arrays[name] = _message_ids(self._size, rows, values)
            elif name == "ack_set":
                self.arrays[name] = _lists(self._size, rows, values)
            elif isinstance(values[0], int):
                self.put(name, rows, np.array(values, np.int64))
            else:
                codes = Codes()
                self.put_texts(name, rows, np.array([codes[value] for value in values]), codes.texts)

    def make_array(self, field: Any) -> Any:
        """Return the Arrow array of a column; `field` is its field in the schema."""
        name = field.name
        if name in self.arrays:
            return self.arrays[name]
        if name in self._filled:
            return number_array(*self._filled[name], field.type)
        if self.nested is not None and name == "metadata" and self.nested.present is not None:
            present = np.zeros(self._size, bool)
            present[self.nested.present] = True
            children = [self.nested.make_array(child) for child in METADATA]
            return pa.Array.from_buffers(METADATA, self._size, [_bitmap(present)], children=children)
        return pa.nulls(self._size, field.type)

    def make_batch(self, schema: Any) -> Any:
        """Return the columns as a `pyarrow.RecordBatch` of `schema`."""
        return pa.RecordBatch.from_arrays([self.make_array(field) for field in schema], schema=schema)


def batch_of(rows: Sequence[Mapping[str, Any]], schema: Any) -> Any:
    """Return a `pyarrow.RecordBatch` of `schema` with these rows, which have values by column name."""
    columns = Columns(len(rows), {})
    for field in schema:
        name, type_ = field.name, field.type
        values = [row.get(TIMES.get(name, name)) for row in rows]
        if pa.types.is_dictionary(type_):
            codes = Codes()
            numbers = np.array([codes[value] for value in values], np.int64)
            columns.set_texts(name, numbers - 1, list(codes)[1:])
        elif pa.types.is_string(type_):
            columns.arrays[name] = text_array(values)
        elif pa.types.is_binary(type_):
            columns.arrays[name] = bytes_array(values, type_)
        elif pa.types.is_map(type_):
            columns.arrays[name] = _maps_array(values)
        else:
            valid = np.array([value is not None for value in values], bool)
            numbers = np.array([value or 0 for value in values], np.int64)
            columns.set_numbers(name, microseconds(numbers) if name in TIMES else numbers, valid)
    if "topic" in columns.arrays:
        columns.arrays.update(make_topic_columns(columns.arrays["topic"]))
    return columns.make_batch(schema)


def microseconds(times_ns: Any) -> Any:
    """Return times in ns as values of a column of `TIMES`."""
    return times_ns // 1_000


def pick_texts(indexes: Any, values: Iterable[Any]) -> Any:
    """Return an Arrow array of the texts at `indexes` of `values`; index -1 and None are null."""
    codes = Codes()
    numbers = np.array([*(codes[value] for value in values), 0], np.int64) - 1
    return _dictionary_array(numbers[indexes], list(codes)[1:])


def make_topic_columns(topics: Any) -> dict[str, Any]:
    """Return the columns that depend on the column `topic`."""
    indexes, names = number_values(topics.indices), topics.dictionary.to_pylist()  # -1 is null
    namespaces = [namespace if "/" in (namespace := namespace_of(name)) else None for name in names]
    tenants = [namespace and namespace.partition("/")[0] for namespace in namespaces]
    return {"tenant": pick_texts(indexes, tenants), "namespace": pick_texts(indexes, namespaces)}


# Converts numpy to Arrow and back through buffers: pa.array and to_numpy import pandas if it is installed


def _bitmap(valid: Any) -> Any:
    return None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def number_array(values: Any, valid: Any, type_: Any) -> Any:
    """Return an Arrow array of numbers or booleans, null where `valid` is False."""
    if type_ == pa.bool_():
        data = np.packbits(values, bitorder="little")
    else:
        data = np.ascontiguousarray(values, _KINDS[type_])
    return pa.Array.from_buffers(type_, len(values), [_bitmap(valid), pa.py_buffer(data)])


def number_values(column: Any) -> Any:
    """Return the values that `number_array` was given, including those of nulls. Booleans are 0 and 1."""
    data: Any = np.frombuffer(column.buffers()[1], _KINDS.get(column.type, np.uint8))
    if column.type == pa.bool_():
        data = np.unpackbits(data, bitorder="little")
    return data[column.offset : column.offset + len(column)]


def _dictionary_array(indexes: Any, texts: list[Any]) -> Any:
    indices = number_array(indexes, indexes >= 0, pa.int32())
    return pa.DictionaryArray.from_arrays(indices, text_array(texts))


def shift(column: Any, by: Any) -> Any:
    """Return an Arrow array of int64 with a number added to each value; nulls stay null."""
    validity, data = column.buffers()
    values = np.frombuffer(data, np.int64).copy()
    values[column.offset : column.offset + len(column)] += by
    buffers = [validity, pa.py_buffer(values)]
    return pa.Array.from_buffers(column.type, len(column), buffers, offset=column.offset)


def text_array(texts: list[Any]) -> Any:
    """Return an Arrow array of texts; None is null."""
    data = [None if text is None else as_text(text).encode("utf-8", "backslashreplace") for text in texts]
    return bytes_array(data, pa.string())


def bytes_array(values: Sequence[bytes | None], type_: Any) -> Any:
    """Return an Arrow array of texts in UTF-8, or of bytes."""
    data = [value or b"" for value in values]
    valid = np.array([value is not None for value in values], bool)
    buffers = [_bitmap(valid), pa.py_buffer(_offsets(data)), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(type_, len(values), buffers)


def _maps_array(values: Sequence[dict[str, str] | None]) -> Any:
    """Return an Arrow array of maps of texts."""
    valid = np.array([*(value is not None for value in values), True], bool)
    maps = [value or {} for value in values]
    texts = [text_array([text for value in maps for text in get(value)]) for get in (dict.keys, dict.values)]
    return pa.MapArray.from_arrays(number_array(_offsets(maps), valid, pa.int32()), *texts)


def _offsets(values: Sequence[Sized]) -> Any:
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    return offsets


def _message_ids(size: int, rows: Any, values: list[Any]) -> Any:
    """Return an Arrow array of `acked` lists at `rows`, null elsewhere.

    A value is a pair: for each id three int64 (ledger id, entry id, unacknowledged messages), packed; and
    the ack_set of each id, or () if none has one.
    """
    lengths = np.zeros(size, np.int32)
    lengths[rows] = [len(ids) // _ID_BYTES for ids, _ in values]
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
    ordered = [values[index] for index in np.argsort(rows)]
    ids = np.frombuffer(b"".join([entry_ids for entry_ids, _ in ordered]), np.int64).reshape(-1, 3)
    type_ = FRAMES.field("acked").type
    columns = [number_array(ids[:, position], None, pa.int64()) for position in (0, 1, 2)]
    indexed_sets = []
    begin = 0
    for entry_ids, sets in ordered:
        indexed_sets += [(begin + index, words) for index, words in enumerate(sets) if words]
        begin += len(entry_ids) // _ID_BYTES
    indexes, words = zip(*indexed_sets, strict=True) if indexed_sets else ((), ())
    columns.append(_lists(len(ids), np.array(indexes, np.int64), list(words)))
    structs = pa.Array.from_buffers(type_.value_type, len(ids), [None], children=columns)
    buffers = [_bitmap(lengths != 0), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(type_, size, buffers, children=[structs])


def _lists(size: int, rows: Any, values: list[Any]) -> Any:
    """Return an Arrow array of lists of int64 at `rows`, null elsewhere."""
    lengths = np.zeros(size, np.int32)
    lengths[rows] = [len(value) for value in values]
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
    parts = [np.frombuffer(values[index], np.int64) for index in np.argsort(rows)]
    numbers = np.concatenate([np.zeros(0, np.int64), *parts])
    buffers = [_bitmap(lengths != 0), pa.py_buffer(offsets)]
    children = [number_array(numbers, None, pa.int64())]
    return pa.Array.from_buffers(pa.list_(pa.int64()), size, buffers, children=children)


def replace_column(batch: Any, name: str, column: Any) -> Any:
    """Return a batch with the column `name` replaced."""
    return batch.set_column(batch.schema.get_field_index(name), batch.schema.field(name), column)
