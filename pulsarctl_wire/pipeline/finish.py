"""A draft finished: its rows mended and those of the edges beside them, as Parquet files.

A file has a temporary name until it is whole, and its final name is that of its split: whoever writes it
once more writes the same.
"""

import io
import json
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import ArrowException

from pulsarctl_wire.pipeline.decode import KINDS, Draft
from pulsarctl_wire.pipeline.splits import filesystem
from pulsarctl_wire.pipeline.stitch import Mend, Stitched
from pulsarctl_wire.table import FRAMES, GAPS, writer
from pulsarctl_wire.table.columns import number_array, text_array
from pulsarctl_wire.wire.commands import ANSWERS, NUMBERS, REQUESTS
from pulsarctl_wire.wire.session import FIELDS, Asked
from pulsarctl_wire.wire.topics import about

_SCHEMAS: Final = dict(zip(KINDS, (FRAMES, GAPS), strict=True))


class Finished(NamedTuple):
    """What was written for a split: its frames, gaps, and bytes of Parquet."""

    frames: int
    gaps: int
    size: int


def finish_split(name: str, stitched: Stitched, drafts: str, out: str) -> Finished:
    """Write the Parquet files of the split `name` under `out`/frames and `out`/gaps, and delete its draft."""
    draft = Draft(drafts, name)
    counts = []
    size = 0
    for kind, path, edges in zip(KINDS, draft.paths, (stitched.frames, stitched.gaps), strict=True):
        system, inside = filesystem(f"{out}/{kind}/{name}.parquet")
        file = _ParquetFile(system, inside, _SCHEMAS[kind])
        try:
            if edges:
                for batch in pa.ipc.open_stream(io.BytesIO(edges)):
                    file.write(batch)
            for batch in _draft_batches(system, path):
                file.write(_mended(batch, stitched.mends))
        except BaseException:
            file.discard()
            raise
        size += file.close()
        counts.append(file.rows)
        with suppress(FileNotFoundError):
            system.delete_file(path)
    return Finished(counts[0], counts[1], size)


def _draft_batches(system: Any, path: str) -> Any:
    try:
        stream = system.open_input_stream(path)
    except FileNotFoundError:
        return
    with stream:
        yield from pa.ipc.open_stream(stream)


class _ParquetFile:
    """A Parquet file that has its name only once it is whole; there is none without rows."""

    def __init__(self, system: Any, path: str, schema: Any) -> None:
        self.rows = 0
        self._system = system
        self._path = path
        self._unfinished = f"{path}.unfinished"
        self._schema = schema
        self._open: tuple[Any, Any] | None = None

    def write(self, batch: Any) -> None:
        """Append a batch."""
        if not batch.num_rows:
            return
        if self._open is None:
            stream = self._system.open_output_stream(self._unfinished)
            self._open = stream, writer(stream, self._schema)
        self._open[1].write_batch(batch)
        self.rows += batch.num_rows

    def close(self) -> int:
        """Finish the file and give it its name; its size in bytes. What had the name before is gone."""
        if self._open is None:
            with suppress(FileNotFoundError):
                self._system.delete_file(self._path)
            return 0
        stream, parquet = self._open
        parquet.close()
        size: int = stream.tell()
        stream.close()
        self._system.move(self._unfinished, self._path)
        return size

    def discard(self) -> None:
        """Leave nothing of the file."""
        if self._open is not None:
            for each in reversed(self._open):
                with suppress(ArrowException, OSError):
                    each.close()
            with suppress(OSError):
                self._system.delete_file(self._unfinished)


# -- mending


def _mended(batch: Any, mends: dict[int, Mend]) -> Any:
    """The rows of a draft as they would be if all that came before had been known."""
    local = batch.column("connection").to_numpy()
    size = int(local.max(initial=0)) + 1
    numbers = np.full(size, -1, np.int64)
    shifts = np.zeros((size, 2), np.int64)
    for index, mend in mends.items():
        if index < size:
            numbers[index], shifts[index] = mend.connection, mend.shifts
    right = numbers[local] >= 0
    if not right.all():
        batch = batch.filter(number_array(right, None, pa.bool_()))
        local = local[right]
    to_broker = batch.column("to_broker").to_numpy(zero_copy_only=False).astype(np.int64)
    offsets = batch.column("stream_offset").to_numpy() + shifts[local, to_broker]
    batch = _replaced(batch, "stream_offset", number_array(offsets, None, pa.int64()))
    if "command" in batch.schema.names:
        batch = _with_topics(batch, local, mends)
    return _replaced(batch, "connection", number_array(numbers[local], None, pa.int64()))


def _replaced(batch: Any, name: str, column: Any) -> Any:
    return batch.set_column(batch.schema.get_field_index(name), batch.schema.field(name), column)


def _with_topics(batch: Any, local: Any, mends: dict[int, Mend]) -> Any:
    """Fill in topics and subscriptions by what was known before the split."""
    knowing = [index for index, mend in mends.items() if any(mend.tables)]
    known = np.isin(local, knowing)
    if not known.any():
        return batch
    types = _types(batch)
    unnamed = batch.column("topic").is_null().to_numpy(zero_copy_only=False)
    unknown = np.flatnonzero(known & unnamed & ~np.isin(types, _NAMING))
    owners, codes = _owners(batch, local, unknown)
    found = [
        about(mends[index].tables, (kind == _CONSUMER, number & _UNSIGNED)) if kind else (None, None)
        for index, kind, number in owners
    ]
    _tell_answers(batch, np.where(known, types, -1), local, unknown, mends, codes, found)
    if not len(unknown):
        return batch
    for name, position in (("topic", 0), ("subscription", 1)):
        column = batch.column(name)
        texts = dict.fromkeys([*column.dictionary.to_pylist(), *(each[position] for each in found)])
        texts.pop(None, None)
        places = {text: place for place, text in enumerate(texts)}
        indices = column.indices.fill_null(-1).to_numpy().copy()
        learnt = np.array([places.get(each[position], -1) for each in found])[codes]
        indices[unknown] = np.where(learnt >= 0, learnt, indices[unknown])  # a topic may have no name
        filled = number_array(indices, indices >= 0, pa.int32())
        batch = _replaced(batch, name, pa.DictionaryArray.from_arrays(filled, text_array(list(texts))))
    return batch


_Topic = tuple[str | None, str | None]
"""Topic and subscription."""

_NEITHER, _CONSUMER, _PRODUCER = 0, 1, 2
_UNSIGNED: Final = 2**64 - 1
_MIGRATED: Final = NUMBERS["TOPIC_MIGRATED"]
_ANSWERS: Final = {*ANSWERS, _MIGRATED}
_NAMING: Final = [number for number in REQUESTS if "topic" in FIELDS[number]]
"""Requests that name their topic themselves, be it an empty name."""

_UNNUMBERED: Final = [number for number, how in REQUESTS.items() if how.key != "request_id"]
"""Requests that are told by another number than a request id."""

_ASKED_BY: Final = ["request_id", "to_broker", "command_json", "topic", "subscription"]


def _types(batch: Any) -> Any:
    """The type number of each row's command; -1 for an unknown one."""
    commands = batch.column("command")
    numbers = [NUMBERS.get(name, -1) for name in commands.dictionary.to_pylist()]
    return np.array(numbers)[commands.indices.to_numpy()]


def _tell_answers(
    batch: Any,
    types: Any,
    local: Any,
    unknown: Any,
    mends: dict[int, Mend],
    codes: Any,
    found: list[_Topic],
) -> None:
    """Give answers the topics of their requests, in the order of capture: `found`, and in `codes` which.

    A request whose topic is known matters too if it has the number of one before the split: it takes that
    one's place.
    """
    numbers = batch.column("request_id")
    numbered = numbers.is_valid().to_numpy(zero_copy_only=False)
    asking = (np.isin(types, list(REQUESTS)) & numbered) | np.isin(types, _UNNUMBERED)  # most ACKs do not
    place = np.full(len(types), -1)
    place[unknown] = np.arange(len(unknown))
    before = np.array([key[1] for mend in mends.values() for key in mend.tables[2]], np.uint64)
    again = (np.isin(numbers.fill_null(0).to_numpy(), before.astype(np.int64)) & numbered) | ~numbered
    concerned = np.flatnonzero((asking | np.isin(types, list(_ANSWERS))) & (again | (place >= 0)))
    captured = batch.column("packet_offset").to_numpy()[concerned]
    files = batch.column("file").indices.to_numpy()[concerned]
    if len(np.unique(files)) > 1:  # read side by side: the times tell
        times = batch.column("time_ns").fill_null(0).to_numpy()[concerned]
        concerned = concerned[np.lexsort((captured, times))]
    else:
        concerned = concerned[np.argsort(captured, kind="stable")]
    rows = batch.select(_ASKED_BY).take(number_array(concerned, None, pa.int64())).to_pylist()
    for at, row in zip(concerned.tolist(), rows, strict=True):
        mend, number, mine = mends[int(local[at])], int(types[at]), int(place[at])
        if asking[at]:
            topic = found[codes[mine]] if mine >= 0 else (row["topic"], row["subscription"])
            _remember(row, number, mend, topic)
        elif (answered := _of_answer(row, number, mend)) is not None and mine >= 0:
            codes[mine] = len(found)
            found.append(answered)


def _owners(batch: Any, local: Any, rows: Any) -> tuple[list[tuple[int, int, int]], Any]:
    """The different (connection, kind of its id, id) that `rows` have, and which of them each row has."""
    kinds = np.full(len(rows), _NEITHER, np.int64)
    ids = np.zeros(len(rows), np.int64)
    for kind, name in ((_PRODUCER, "producer_id"), (_CONSUMER, "consumer_id")):
        column = batch.column(name).take(number_array(rows, None, pa.int64()))
        there = column.is_valid().to_numpy(zero_copy_only=False)
        kinds[there] = kind
        ids[there] = column.fill_null(0).to_numpy()[there]
    different, codes = np.unique(ids, return_inverse=True)
    _, first, codes = np.unique(
        (local[rows] * 3 + kinds) * len(different) + codes, return_index=True, return_inverse=True
    )
    columns = (local[rows][first], kinds[first], ids[first])
    return list(zip(*(column.tolist() for column in columns), strict=True)), codes


def _remember(row: dict[str, Any], number: int, mend: Mend, topic: _Topic) -> None:
    """Let the answer of a request know its topic."""
    how = REQUESTS[number]
    key = row["request_id"]
    if how.key != "request_id":
        key = json.loads(row["command_json"] or "{}").get(how.key)
    if row["to_broker"] and key is not None:
        mend.tables[2][how.family, key & _UNSIGNED] = Asked(0, None, number, *topic)


def _of_answer(row: dict[str, Any], number: int, mend: Mend) -> _Topic | None:
    """What an answer or a TOPIC_MIGRATED is about; None if that is not known."""
    fields = json.loads(row["command_json"] or "{}")
    if number == _MIGRATED:
        is_consumer = fields.get("resource_type") != "Producer"
        return about(mend.tables, (is_consumer, fields.get("resource_id", -1) & _UNSIGNED))
    for family, name in ANSWERS[number]:
        value = row["request_id"] if name == "request_id" else fields.get(name)
        key = family, -1 if value is None else value & _UNSIGNED
        asked = mend.tables[2].get(key)
        if asked is not None and number in REQUESTS[asked.type].answers:
            if fields.get("producer_ready", True):
                del mend.tables[2][key]  # as a session does: the next answer is somebody else's
            return asked.topic, asked.subscription
    return None
