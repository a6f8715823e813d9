"""Rows of many batches become full row groups of Parquet."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from pulsarctl_wire.table.columns import batch_of
from pulsarctl_wire.table.parquet import GROUP_ROWS, RowGroups
from pulsarctl_wire.table.schema import GAPS


def written(batches: list[Any], **options: Any) -> pq.ParquetFile:
    out = io.BytesIO()
    with RowGroups(out, GAPS, **options) as groups:
        for batch in batches:
            groups.write(batch)
    return pq.ParquetFile(out)


def gaps(texts: list[str]) -> pa.RecordBatch:
    return batch_of([{"file": text, "kind": "gap", "size": len(text)} for text in texts], GAPS)


@given(st.lists(st.lists(st.text(st.characters(codec="utf-8"), max_size=3), max_size=5)), st.integers(1, 500))
def test_rows_keep_their_order(texts: list[list[str]], most: int) -> None:
    found = written([gaps(each) for each in texts], max_bytes=most)
    assert found.read()["file"].to_pylist() == [text for each in texts for text in each]
    assert found.schema_arrow.equals(GAPS, check_metadata=False)


def test_batches_become_row_groups() -> None:
    batches = [gaps([str(number)] * 1_000) for number in range(150)]
    found = written(batches)
    sizes = [found.metadata.row_group(number).num_rows for number in range(found.num_row_groups)]
    assert sizes == [66_000, 66_000, 18_000]
    assert min(sizes[:-1]) >= GROUP_ROWS
    small = written(batches, max_bytes=gaps(["1"] * 1_000).nbytes * 10)
    assert small.num_row_groups == 15
    encodings = small.metadata.row_group(0).column(0).encodings  # as texts they would be PLAIN
    assert "RLE_DICTIONARY" in encodings
