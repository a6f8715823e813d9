"""Frames made from the numbers of rows are those made from their values, whatever a table says."""

from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pwire_run import SAMPLES
from test_findings import numbers_of

from pulsarctl_wire import data
from pulsarctl_wire.checks import plain_rows
from pulsarctl_wire.checks.plain_rows import TableRows
from pulsarctl_wire.checks.row_events import COLUMNS, METADATA, RowFrame, RowReader
from pulsarctl_wire.checks.tables import diagnose
from pulsarctl_wire.reports.findings import ORDER, events
from pulsarctl_wire.wire.frame import Connection

NAMES: Final = ("java-batch-zlib", "java-batchindexack", "java-simple")
POWERS: Final = (0, 31, 32, 61, 62, 63)
NUMBERS: Final = sorted(
    {sign * 2**power + more for power in POWERS for sign in (-1, 1) for more in (-1, 0, 1)}
)
TEXTS: Final = (
    "",
    "SEND",
    "MESSAGE",
    "ACK",
    "SEND_RECEIPT",
    "FLOW",
    "valid",
    "absent",
    "LZ4",
    "Cumulative",
    "é",
)


CHANGED: Final = (
    *("at_end", "file", "packet_offset", "time_ns", "stream_offset", "to_broker", "has_metadata"),
    *(*COLUMNS, *METADATA),
)


@cache
def table() -> pa.Table:
    """Rows of usual commands."""
    with data.tables(*(SAMPLES / f"{name}.pcap" for name in NAMES)) as tables:
        usual = "command IN ('SEND', 'SEND_RECEIPT', 'MESSAGE', 'ACK')"
        rows = tables.engine.arrow(f"SELECT * FROM ({events(data.Choice(), {})}) WHERE {usual}")
    return rows.combine_chunks()


def valid(kind: Any) -> st.SearchStrategy[Any]:
    """A value of a column's type, or null."""
    if pa.types.is_boolean(kind):
        values: st.SearchStrategy[Any] = st.booleans()
    elif pa.types.is_integer(kind):
        least = -(2 ** (kind.bit_width - 1))
        values = st.sampled_from([each for each in NUMBERS if least <= each < -least])
    elif pa.types.is_list(kind):
        values = st.lists(valid(kind.value_type), max_size=3)
    elif pa.types.is_struct(kind):
        values = st.fixed_dictionaries({each.name: valid(each.type) for each in kind})
    else:
        values = st.sampled_from(TEXTS)
    return st.none() | values


@settings(max_examples=100)
@given(st.data())
def test_frames_from_numbers_are_those_from_values(drawn: st.DataObject) -> None:
    whole = table()
    before = whole.slice(drawn.draw(st.integers(0, len(whole) - 1), "row"), 1).to_pylist()[0]
    names = drawn.draw(st.lists(st.sampled_from(CHANGED), max_size=3), "columns")
    values = before | {name: drawn.draw(valid(whole.schema.field(name).type), name) for name in names}
    (batch,) = pa.Table.from_pylist([before, values], whole.schema).slice(1).to_batches()
    rows = TableRows(batch, RowReader())
    assert len(rows.other_rows["event"]) == 1 - sum(rows.is_plain)
    if rows.is_plain[0]:
        connection = Connection(values["connection"])
        expected = RowReader().event(batch.to_pydict(), 0, connection)
        assert isinstance(expected, RowFrame)
        assert told(rows.frame(0, connection)) == told(expected)


@cache
def in_order(name: str) -> pa.Table:
    """All rows of a capture for the doctor."""
    with data.tables(SAMPLES / f"{name}.pcap") as tables:
        return tables.engine.arrow(f"SELECT * FROM ({events(data.Choice(), {})}) ORDER BY {ORDER}")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_frames_of_either_kind_lead_to_the_same_findings(
    monkeypatch: pytest.MonkeyPatch, drawn: st.DataObject
) -> None:
    """Frames are also compared with each other: here some are missing, others come again or elsewhere."""
    rows = in_order(drawn.draw(st.sampled_from(NAMES), "capture"))
    places = st.integers(0, len(rows) - 1)
    order = [*range(len(rows))]
    for at, other in drawn.draw(st.lists(st.tuples(places, places), max_size=20), "rows in place of others"):
        order[at] = other
    batches = rows.take(order).to_batches(drawn.draw(st.sampled_from((7, 100, len(rows))), "size of batches"))
    found = list(diagnose(batches))
    with monkeypatch.context() as none_usual:
        none_usual.setattr(
            plain_rows._Columns, "find_plain", lambda columns: np.zeros(len(columns._types), bool)
        )
        assert list(diagnose(batches)) == found


def told(frame: RowFrame) -> list[object]:
    found: list[object] = [frame.to_broker, frame.offset, frame.time_ns, frame.packet, frame.size, frame.base]
    found += [frame.head_crc, frame.unpacked_size, *numbers_of(frame)]
    if frame.command in ("SEND", "MESSAGE"):
        found += [
            frame.checksum,
            frame.payload_at,
            frame.payload_size,
            frame.payload_crc or 0,
            frame.metadata,
        ]
    return found
