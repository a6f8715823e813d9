"""Runs the doctor on rows of tables: `diagnose` takes rows in order, and gives a row for each finding.

    rows, by cluster and time -> usual.py, recall.py: events -> a Doctor for each cluster -> rows of findings

Besides frames, gaps and malformed stretches there are rows for what TCP did, made from the connections table:

    opened    a connection's first packet
    closed    the first FIN or RST, at `end_ns`
    ended     the last packet that belongs to it, or the end of the capture: `how`, and whether `both_sides`

Nothing is kept of rows but what the doctor keeps, so any number of them takes no more memory.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from pulsarctl_wire.checks.doctor import Doctor
from pulsarctl_wire.checks.facts import Sent
from pulsarctl_wire.checks.finding import rows_of
from pulsarctl_wire.checks.recall import Columns, Recall, Recalled
from pulsarctl_wire.checks.rule import DEFAULTS, Thresholds
from pulsarctl_wire.checks.state import LARGEST_HEAD, CheckState
from pulsarctl_wire.checks.usual import TableRows
from pulsarctl_wire.wire.frame import Connection, Frame
from pulsarctl_wire.wire.session.ending import EndedConnection
from pulsarctl_wire.wire.session.knowledge import Knowledge


class TableState(CheckState):
    """Tracks a connection of a table, whose frames are `Recalled`."""

    def compare(self, frame: Frame, sent: Sent) -> None:
        """Remember what its row says of the payload of a SEND. Overrides the parent's method."""
        assert isinstance(frame, Recalled)
        sent.size = frame.size if frame.payload_size is None else frame.payload_size
        sent.digest = frame.payload_crc or 0
        if 0 < frame.payload_at <= LARGEST_HEAD:
            sent.head = frame.raw[4:]
        before = sent.before
        sent.repeats = before is not None and (before.size, before.digest) == (sent.size, sent.digest)

    def checksum_of(self, frame: Frame) -> bytes:
        """What the SEND and the MESSAGE of an entry have in common, if anything is wrong with it.

        Overrides the parent's method.
        """
        assert isinstance(frame, Recalled)
        crc = frame.head_crc
        if crc is None:
            return b"%d:%d:%d" % (frame.connection.index, frame.to_broker, frame.offset)  # of no other one
        return crc.to_bytes(8, "big", signed=True)

    def misstated(self, frame: Frame) -> int | None:
        """As its row says. Overrides the parent's method."""
        assert isinstance(frame, Recalled)
        return frame.unpacked_size


class _Cluster:
    """The rows of one cluster."""

    def __init__(self, name: str, thresholds: Thresholds, recall: Recall) -> None:
        self.name = name
        self.doctor = Doctor(thresholds=thresholds, state_type=TableState)
        self._recall = recall
        self._knowledge = Knowledge(join_chunks=False, schemas=False)
        self._last_ns = 0
        self._looked = False

    def add_usual(self, rows: TableRows, row: int) -> None:
        """Take the next row, which is a usual one."""
        time_ns = rows.time_ns(row)
        if time_ns > self._last_ns:
            self._last_ns = time_ns
        state = self.doctor.states.get(rows.connection(row))
        if state is None:
            state = self._open(rows.values(row), 0)
        state.track([rows.frame(row, state.connection)])

    def add(self, rows: Columns, row: int) -> None:
        """Take the next row, one of those that are not usual."""
        event, number = rows["event"][row], _connection(rows, row)
        self._last_ns = max(self._last_ns, rows["time_ns"][row] or 0, rows["last_ns"][row] or 0)
        known = self.doctor.states.get(number)
        state = known if known is not None else self._open(rows, row)
        if rows["at_end"][row]:
            self._look()
        if event == "closed":
            state.closed_ns = rows["end_ns"][row]
        elif event == "ended":
            state.end()
            self.doctor.ended(_ending(rows, row, state))
        elif event != "opened":
            state.track([self._recall.event(rows, row, state.connection)])

    def _open(self, rows: Columns, row: int) -> CheckState:
        client, server = rows["client"][row] or "", rows["server"][row] or ""
        return self.doctor.new_state(Connection(_connection(rows, row), client, server), self._knowledge)

    def _look(self) -> None:
        """The last packet was captured; connections may still be open."""
        if not self._looked:
            self._looked = True
            self.doctor.last_look(self._last_ns)

    def findings(self) -> Iterator[dict[str, Any]]:
        """The rows of what was found."""
        self._look()
        self.doctor.finish()
        return rows_of(self.doctor.findings.values(), self.doctor.left_out, self.name, self._recall.files)


def _connection(rows: Columns, row: int) -> int:
    """The number of a row's connection; -1 if it has none, which no capture has."""
    number = rows["connection"][row]
    return -1 if number is None else number


def _ending(rows: Columns, row: int, state: CheckState) -> EndedConnection:
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
    """The findings in rows, which are in order: by cluster, and for each as they were captured.

    `batches` are Arrow's, with the columns `recall.COLUMNS` and `recall.METADATA`, and those of the places
    and connections that are named above. Raises CaptureError if a row's values cannot be.
    """
    cluster: _Cluster | None = None
    recall = Recall()
    for batch in batches:
        rows = TableRows(batch, recall)
        other = 0
        for row, name in enumerate(rows.clusters):
            if cluster is None or cluster.name != name:
                if cluster is not None:
                    yield from cluster.findings()
                cluster = _Cluster(name, thresholds, recall)
            if rows.is_usual[row]:
                cluster.add_usual(rows, row)
            else:
                cluster.add(rows.others, other)
                other += 1
    if cluster is not None:
        yield from cluster.findings()
