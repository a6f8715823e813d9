"""Runs the doctor on rows of tables: `diagnose` takes rows in order, and gives a row for each finding.

    rows by cluster and time -> row_events.py: events -> a Doctor per cluster -> finding rows

Besides frames, gaps and malformed stretches there are rows for what TCP did, made from the connections table:

    opened    a connection's first packet
    closed    the first FIN or RST, at `end_ns`
    ended     its last packet, or the end of the capture: `how` it ended, and whether for `both_sides`

Only the doctor keeps anything of the rows, so memory does not grow with their number.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from pulsarctl_wire.checks.doctor import Doctor
from pulsarctl_wire.checks.facts import Send
from pulsarctl_wire.checks.finding import make_rows
from pulsarctl_wire.checks.row_events import Columns, RowFrame, RowReader, read_rows
from pulsarctl_wire.checks.rule import DEFAULTS, Thresholds
from pulsarctl_wire.checks.state import LARGEST_HEAD, CheckState
from pulsarctl_wire.wire.frame import Connection, Frame
from pulsarctl_wire.wire.inspection import Inspection
from pulsarctl_wire.wire.session.ending import EndedConnection
from pulsarctl_wire.wire.session.knowledge import Knowledge


class TableState(CheckState):
    """Tracks a connection of a table, whose frames are `RowFrame`."""

    def compare(self, frame: Frame, send: Send) -> None:
        """Remember the row's columns about the payload of a SEND. Overrides the parent's method."""
        assert isinstance(frame, RowFrame)
        payload_size = frame.read("payload_size")
        send.size = frame.size if payload_size is None else payload_size
        send.digest = frame.read("payload_crc") or 0
        if 0 < frame.payload_at <= LARGEST_HEAD:
            send.head = frame.encode_head()
        previous = send.previous
        send.has_same_payload = previous is not None and (previous.size, previous.digest) == (
            send.size,
            send.digest,
        )

    def identify_entry(self, frame: Frame) -> bytes:
        """Return bytes that the SEND and the MESSAGE of a bad entry have in common; unique ones for others.

        Overrides the parent's method.
        """
        assert isinstance(frame, RowFrame)
        crc: int | None = frame.read("head_crc")
        if crc is None:
            return b"%d:%d:%d" % (frame.connection.index, frame.to_broker, frame.offset)  # unique
        return crc.to_bytes(8, "big", signed=True)

    def inspect(self, frame: Frame) -> Inspection:
        """Return the row's `unpacked_size` and `batch_messages`. Overrides the parent's method."""
        assert isinstance(frame, RowFrame)
        return Inspection(frame.read("unpacked_size"), frame.read("batch_messages"))


class _Cluster:
    """Runs a doctor on the rows of one cluster."""

    def __init__(self, name: str, thresholds: Thresholds, reader: RowReader) -> None:
        self.name = name
        self.doctor = Doctor(thresholds=thresholds, state_type=TableState)
        self._reader = reader
        self._knowledge = Knowledge(join_chunks=False, schemas=False)
        self._last_ns = 0
        self._has_checked = False

    def add(self, rows: Columns, row: int) -> None:
        """Add the next row."""
        event, number = rows["event"][row], _read_connection(rows, row)
        time_ns, last_ns = rows["time_ns"][row], rows["last_ns"][row]
        if time_ns is not None and time_ns > self._last_ns:
            self._last_ns = time_ns
        if last_ns is not None and last_ns > self._last_ns:
            self._last_ns = last_ns
        state = self.doctor.states.get(number)
        if state is None:
            state = self._open(rows, row)
        if rows["at_end"][row]:
            self._check_silences()
        if event == "closed":
            state.closed_ns = rows["end_ns"][row]
        elif event == "ended":
            state.end()
            self.doctor.end_connection(_make_ending(rows, row, state))
        elif event != "opened":
            state.track([self._reader.make_event(rows, row, state.connection)])

    def _open(self, rows: Columns, row: int) -> CheckState:
        client, server = rows["client"][row] or "", rows["server"][row] or ""
        return self.doctor.new_state(Connection(_read_connection(rows, row), client, server), self._knowledge)

    def _check_silences(self) -> None:
        """Check silences until the last packet, once; connections may still be open."""
        if not self._has_checked:
            self._has_checked = True
            self.doctor.check_last_silences(self._last_ns)

    def make_findings(self) -> Iterator[dict[str, Any]]:
        """Return the rows of all findings."""
        self._check_silences()
        self.doctor.finish()
        return make_rows(
            self.doctor.findings.values(), self.doctor.omitted_count, self.name, self._reader.files
        )


def _read_connection(rows: Columns, row: int) -> int:
    """Return the number of a row's connection; if it has none, -1, which is no number of a capture."""
    number = rows["connection"][row]
    return -1 if number is None else number


def _make_ending(rows: Columns, row: int, state: CheckState) -> EndedConnection:
    return EndedConnection(
        connection=state.connection,
        state=state,
        packet=0,
        time_ns=rows["time_ns"][row],
        last_ns=rows["last_ns"][row],
        syns=rows["syns"][row] or 0,
        joined=bool(rows["joined"][row]),
        end=rows["how"][row],
        by_broker=rows["by_broker"][row],
        end_ns=rows["end_ns"][row],
        both=bool(rows["both_sides"][row]),
        protocol=rows["protocol"][row],
        sizes=(rows["bytes_to_client"][row] or 0, rows["bytes_to_broker"][row] or 0),
    )


def diagnose(batches: Iterable[Any], thresholds: Thresholds = DEFAULTS) -> Iterator[dict[str, Any]]:
    """Yield a row for each finding. The rows of `batches` are ordered by cluster, then as they were captured.

    `batches` are Arrow's, with the columns `row_events.COLUMNS` and `row_events.METADATA`, and those of
    `reports.findings` that say where a frame is and what TCP did. Raises CaptureError for impossible values.
    """
    cluster: _Cluster | None = None
    reader = RowReader()
    for rows in read_rows(batches):
        for row, name in enumerate(rows["cluster"]):
            if cluster is None or cluster.name != name:
                if cluster is not None:
                    yield from cluster.make_findings()
                cluster = _Cluster(name, thresholds, reader)
            cluster.add(rows, row)
    if cluster is not None:
        yield from cluster.make_findings()
