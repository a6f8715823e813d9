"""What rules read of a row are the numbers in its command and metadata, whatever a table says."""

from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st
from pwire_run import SAMPLES
from test_findings import IDS, numbers_of

from pulsarctl_wire import data
from pulsarctl_wire.checks.row_events import COLUMNS, METADATA, RowFrame, RowReader, read_rows
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.reports.findings import events
from pulsarctl_wire.wire.frame import Connection, Frame

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
def test_numbers_are_those_of_the_command_and_the_metadata(drawn: st.DataObject) -> None:
    whole = table()
    before = whole.slice(drawn.draw(st.integers(0, len(whole) - 1), "row"), 1).to_pylist()[0]
    names = drawn.draw(st.lists(st.sampled_from(CHANGED), max_size=3), "columns")
    values = before | {name: drawn.draw(valid(whole.schema.field(name).type), name) for name in names}
    (batch,) = pa.Table.from_pylist([before, values], whole.schema).slice(1).to_batches()
    rows = next(read_rows([batch]))
    try:
        frame = RowReader().make_event(rows, 0, Connection(0))
        assert isinstance(frame, RowFrame)
        base, metadata = frame.base, frame.metadata
    except CaptureError as error:
        assert "the table has an impossible " in str(error)  # noqa: PT017
        return
    parsed = Frame(frame.raw, base, frame.type, Connection(0), frame.to_broker)
    parsed.metadata = metadata
    if frame.command in IDS and frame.command_size > 2:
        assert numbers_of(frame) == numbers_of(parsed)


@given(st.data())
def test_heads_are_equal_if_the_doctor_reads_the_same_of_both(drawn: st.DataObject) -> None:
    whole = table().filter(pc.field("command") == "SEND")
    before = whole.slice(drawn.draw(st.integers(0, len(whole) - 1), "row"), 1).to_pylist()[0]
    names = drawn.draw(st.lists(st.sampled_from(sorted({"checksum", "sequence_id", *METADATA})), max_size=2))
    values = before | {name: drawn.draw(valid(whole.schema.field(name).type), name) for name in names}
    (batch,) = pa.Table.from_pylist([before, values], whole.schema).combine_chunks().to_batches()
    heads, numbers = [], []
    for row in (0, 1):
        frame = RowReader().make_event(next(read_rows([batch])), row, Connection(0))
        assert isinstance(frame, RowFrame)
        assert frame.head is not None
        try:
            heads.append(frame.encode_head())
        except CaptureError:
            return
        metadata = None if frame.head.is_plain else frame.metadata
        numbers.append((numbers_of(frame), metadata, frame.checksum == "absent"))
    assert (heads[0] == heads[1]) is (numbers[0] == numbers[1])
