"""The flow-control ledger of consumers over time: permits, deliveries, acknowledgements, redeliveries.

    frames -> PermitState   each connection's `LedgerState`, which has the figures of the moment
              Permits       the consumers of a capture
              Consumer      one of them: its rows, oldest first
              Row           what happened in a stretch of time, and the ledger at its end

What costs a permit, and what is a message, is said in `wire/session/counts.py`; permits, unacknowledged
messages and requested redeliveries are read from `ConsumerLedger`.

Memory is bounded: `MAX_CONSUMERS` are followed (others are counted), with up to twice `MAX_ROWS` rows each.
When there are more, neighbours are added up: at first a row is what happened at one time, later all that
happened in a stretch, whose width doubles as the capture goes on.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pulsarctl_wire.stats.report import Figures
from pulsarctl_wire.wire.commands import BODIES, NUMBERS, command_name
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Connection, Frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe
from pulsarctl_wire.wire.server_errors import error_name
from pulsarctl_wire.wire.session.counts import messages_in, permits_used
from pulsarctl_wire.wire.session.ending import OPEN, EndedConnection
from pulsarctl_wire.wire.session.knowledge import MAX_PENDING, Knowledge, bound
from pulsarctl_wire.wire.session.ledgers import ConsumerLedger, LedgerState
from pulsarctl_wire.wire.session.state import PRODUCER
from pulsarctl_wire.wire.session.state_data import Request

MAX_ROWS: Final = 256
"""Maximum number of rows of a consumer that are shown."""
MAX_CONSUMERS: Final = 256
"""How many consumers are followed: the first ones."""
MAX_NAMES: Final = 1_000
"""Names of subscriptions that are remembered, to suggest one for a typo."""
LONGEST: Final = 512
"""The first characters of a name that are kept."""

_MAX_MOMENTS: Final = 8  # different moments of a row
_STILL_OPEN: Final = "still open when the capture ends"
_FLOW, _MESSAGE, _ACK = NUMBERS["FLOW"], NUMBERS["MESSAGE"], NUMBERS["ACK"]
_SUBSCRIBE, _ERROR = NUMBERS["SUBSCRIBE"], NUMBERS["ERROR"]
_NOTABLE_REQUESTS: Final = {NUMBERS["SEEK"], NUMBERS["UNSUBSCRIBE"]}
_SUMS: Final = ("flows", "granted", "used", "delivered", "acked", "asked", "redelivered")
_STATES: Final = ("permits", "unacked", "pending")


@dataclass(slots=True)
class Row:
    """What happened to a consumer in a stretch of time. Times are ns since the epoch.

    Without times in the source, `first` and `last` are numbers of frames.
    """

    first: int
    last: int
    flows: int = 0
    """The number of FLOWs."""
    granted: int = 0
    """Permits that these FLOWs granted."""
    used: int = 0
    """Permits that MESSAGEs used."""
    delivered: int = 0
    """Messages in these MESSAGEs."""
    acked: int = 0
    """Messages acknowledged."""
    asked: int = 0
    """Entries that the consumer wanted to be delivered again."""
    redelivered: int = 0
    """MESSAGEs whose redelivery_count says that they were delivered before."""
    permits: int = 0
    """Permits left at the end of the stretch; `unacked` and `pending` are as they were then, too."""
    unacked: int = 0
    """Messages delivered, but not acknowledged."""
    pending: int = 0
    """Entries with unacknowledged messages."""
    lowest: int = 0
    """The fewest permits."""
    highest: int = 0
    """The most permits."""
    stalled: int = 0
    """The longest time without permits that ended here, in ns."""
    exact: bool = True
    """Whether the permits are the same as the broker's."""
    moments: dict[str, int] = field(default_factory=dict)
    """Rare events, in words, and how often they happened."""

    def absorb(self, later: "Row") -> None:
        """Add what happened in `later`, the next row."""
        self.last = later.last
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(later, name))
        for name in _STATES:
            setattr(self, name, getattr(later, name))
        self.lowest, self.highest = min(self.lowest, later.lowest), max(self.highest, later.highest)
        self.stalled = max(self.stalled, later.stalled)
        self.exact = self.exact and later.exact
        for text, count in later.moments.items():
            self.note(text, count)

    def note(self, text: str, count: int = 1) -> None:
        """Count a rare event."""
        if text not in self.moments and len(self.moments) >= _MAX_MOMENTS:
            text = "…"
        self.moments[text] = self.moments.get(text, 0) + count


def merged(rows: Iterable[Row], width: int) -> list[Row]:
    """Add up rows that begin in the same stretch of `width` (ns). Return new rows; `rows` do not change."""
    sums: list[Row] = []
    for row in rows:
        if sums and row.first // width == sums[-1].first // width:
            sums[-1].absorb(row)
        else:
            sums.append(replace(row, moments=dict(row.moments)))
    return sums


class Consumer:
    """A consumer on a connection, from its first SUBSCRIBE there on.

    If its SUBSCRIBE was not captured, topic, subscription and `kind` (the type of the subscription) are
    unknown: empty. All times are as in `Row`.
    """

    def __init__(self, connection: Connection, consumer_id: int, topic: str, subscription: str) -> None:
        self.connection = connection
        self.consumer_id = consumer_id
        self.topic = topic[:LONGEST]
        self.subscription = subscription[:LONGEST]
        self.name = self.kind = ""
        self.ledger = ConsumerLedger(topic, subscription)
        """The current ledger: there is a new one each time the consumer is opened."""
        self.timed = True
        """Whether the source has times."""
        self.first_grant = 0
        """Permits of its first FLOW."""
        self.last_flow: int | None = None
        self.last_message: int | None = None
        self.empty_since: int | None = None
        """Since when it has no permits."""
        self.closed: int | None = None
        """When it was closed, or its connection ended; None while it is open."""
        self.how = _STILL_OPEN
        """How it ended, in words."""
        self._rows: list[Row] = []
        self._width = 1

    @property
    def is_known(self) -> bool:
        """Whether its SUBSCRIBE was captured."""
        return bool(self.topic)

    @property
    def total(self) -> Row:
        """All rows added up."""
        first, *later = self._rows
        total = replace(first, moments=dict(first.moments))
        for row in later:
            total.absorb(row)
        total.exact = total.exact and self.ledger.has_exact_permits
        return total

    def rows(self, limit: int, width: int = 0) -> tuple[list[Row], int]:
        """Return at most `limit` rows, at least `width` ns wide if possible, and the width that they have."""
        width = max(width, self._width)
        while len(rows := merged(self._rows, width)) > limit:
            width *= 2
        return rows, width

    def row(self, frame: Frame) -> Row:
        """Return the row to which a frame adds."""
        rows = self._rows
        if not rows:
            self.timed = frame.time_ns is not None
        time = frame.number
        if self.timed:
            time = frame.time_ns if frame.time_ns is not None else rows[-1].last
        if rows and time // self._width <= rows[-1].first // self._width:
            rows[-1].last = max(rows[-1].last, time)
            return rows[-1]
        if len(rows) >= 2 * MAX_ROWS:
            self._rows, self._width = self.rows(MAX_ROWS, 2 * self._width)
            return self.row(frame)
        row = Row(time, time, lowest=self.ledger.permits, highest=self.ledger.permits)
        self._observe(row)
        self._rows.append(row)
        return row

    def opened(self, frame: Frame, ledger: ConsumerLedger) -> None:
        """Record that the consumer was opened, perhaps again: it has no permits yet."""
        self.ledger = ledger
        row = self.row(frame)
        self.closed, self.how = None, _STILL_OPEN
        self.empty_since = row.last
        self._observe(row)

    def moved(self, frame: Frame, unacked: int, redeliveries: int) -> None:
        """Record that a FLOW, MESSAGE, ACK or REDELIVER has changed the ledger.

        `unacked` and `redeliveries` are the ledger's values before that.
        """
        ledger, row = self.ledger, self.row(frame)
        row.asked += ledger.redeliveries - redeliveries
        if frame.type == _FLOW:
            permits = frame.base.flow.messagePermits  # type: ignore[union-attr]
            self.first_grant = self.first_grant or permits
            self.last_flow = row.last
            row.flows += 1
            row.granted += permits
        elif frame.type == _MESSAGE:
            self.last_message = row.last
            row.used += permits_used(frame)
            row.delivered += messages_in(frame)
            row.redelivered += frame.base.message.redelivery_count > 0  # type: ignore[union-attr]
        elif frame.type == _ACK:
            row.acked += unacked - ledger.unacked
        if ledger.permits > 0:
            if self.empty_since is not None and self.timed:
                row.stalled = max(row.stalled, row.last - self.empty_since)
            self.empty_since = None
        elif self.empty_since is None:
            self.empty_since = row.last
        self._observe(row)

    def _observe(self, row: Row) -> None:
        """Note the ledger as it is now."""
        ledger = self.ledger
        row.permits, row.unacked, row.pending = ledger.permits, ledger.unacked, len(ledger.entries)
        row.lowest, row.highest = min(row.lowest, row.permits), max(row.highest, row.permits)
        row.exact = row.exact and ledger.has_exact_permits

    def ended(self, time: int | None, how: str) -> None:
        """Record when it was closed, or its connection ended, and how."""
        if self.closed is None:
            self.closed = self._rows[-1].last if time is None else max(time, self._rows[-1].last)
            self.how = how


def id_of(frame: Frame) -> int:
    """Return the consumer id in a command that has one."""
    consumer_id: int = getattr(frame.base, BODIES[frame.type]).consumer_id
    return consumer_id


class Permits:
    """The consumers of a capture. `chosen` returns whether the consumer that a frame opens is wanted.

    `new_state` and `ended` are for a `Decoder`.
    """

    def __init__(self, chosen: Callable[[Frame], bool] = lambda frame: True) -> None:
        self.consumers: dict[tuple[int, int, str, str], Consumer] = {}
        self.left_out = 0
        """Consumers that were wanted, but not followed, as there are too many."""
        self.unknown = 0
        """Consumers that were not wanted, and whose SUBSCRIBE was not captured."""
        self.subscriptions: set[str] = set()
        """Names of subscriptions in the capture, also of those that are not wanted."""
        self._chosen = chosen

    def new_state(
        self, connection: Connection, knowledge: Knowledge, streams: Iterable[FrameStream] = ()
    ) -> "PermitState":
        """Return the state of a new connection: for `Decoder`'s `new_state`."""
        return PermitState(connection, knowledge, streams, permits=self)

    def consumer(self, frame: Frame, ledger: ConsumerLedger) -> Consumer | None:
        """Return the consumer that `frame` opens or shows for the first time; None if it is not followed."""
        if ledger.subscription and len(self.subscriptions) < MAX_NAMES:
            self.subscriptions.add(ledger.subscription[:LONGEST])
        if not self._chosen(frame):
            self.unknown += not ledger.subscription
            return None
        consumer_id = id_of(frame)
        key = frame.connection.index, consumer_id, ledger.topic, ledger.subscription
        consumer = self.consumers.get(key)
        if consumer is None:
            if len(self.consumers) >= MAX_CONSUMERS:
                self.left_out += 1
                return None
            consumer = Consumer(frame.connection, consumer_id, ledger.topic, ledger.subscription)
            self.consumers[key] = consumer
        consumer.opened(frame, ledger)
        return consumer

    def ended(self, ending: EndedConnection) -> None:
        """Record that a connection has ended: for `Decoder`'s `on_end`."""
        if ending.end != OPEN and isinstance(ending.state, PermitState):
            for consumer in ending.state.open_consumers():
                consumer.ended(ending.end_ns or ending.last_ns, f"connection {ending.how}")


class PermitState(LedgerState):
    """A `LedgerState` that tells the consumers of `permits` what moves their ledgers."""

    def __init__(
        self,
        connection: Connection,
        knowledge: Knowledge,
        streams: Iterable[FrameStream] = (),
        *,
        permits: Permits,
    ) -> None:
        super().__init__(connection, knowledge, streams)
        self._permits = permits
        self._followed: dict[int, Consumer] = {}  # by consumer id

    def open_consumers(self) -> Iterable[Consumer]:
        """Return the consumers that are followed and were not closed."""
        return self._followed.values()

    # -- what moves a ledger

    def _flow(self, frame: Frame) -> None:
        self._move(super()._flow, frame)

    def _message(self, frame: Frame) -> None:
        self._move(super()._message, frame)

    def _ack(self, frame: Frame) -> None:
        self._move(super()._ack, frame)

    def _redeliver(self, frame: Frame) -> None:
        self._move(super()._redeliver, frame)

    def _move(self, update: Callable[[Frame], None], frame: Frame) -> None:
        """Let `update`, a method of the base class, change the ledger; then tell the consumer."""
        consumer_id = id_of(frame)
        if consumer_id not in self._consumers and consumer_id not in self.consumers:
            self._meet(frame, consumer_id)
        consumer = self._followed.get(consumer_id)
        if consumer is None or self.consumers.get(consumer_id) is not consumer.ledger:
            update(frame)
            return
        unacked, redeliveries = consumer.ledger.unacked, consumer.ledger.redeliveries
        update(frame)
        consumer.moved(frame, unacked, redeliveries)

    def _meet(self, frame: Frame, consumer_id: int) -> None:
        """Add a consumer whose SUBSCRIBE was not captured, from its first frame on."""
        ledger = self.consumers[consumer_id] = ConsumerLedger("", "")
        ledger.has_exact_permits = False
        bound(self.consumers, MAX_PENDING)
        self._watch(frame, consumer_id, ledger)

    # -- rare events

    def _open(self, frame: Frame, body: Any) -> None:
        super()._open(frame, body)
        if frame.type == PRODUCER:
            return
        consumer = self._watch(frame, body.consumer_id, self.consumers[body.consumer_id])
        if consumer is not None:
            if frame.type == _SUBSCRIBE:
                consumer.kind = CommandSubscribe.SubType.Name(body.subType)
                consumer.name = as_text(body.consumer_name)[:LONGEST]
            consumer.row(frame).note(f"{frame.command} {consumer.kind}".rstrip())

    def _watch(self, frame: Frame, consumer_id: int, ledger: ConsumerLedger) -> Consumer | None:
        consumer = self._permits.consumer(frame, ledger)
        if consumer is None:
            self._followed.pop(consumer_id, None)
        else:
            self._followed[consumer_id] = consumer
        return consumer

    def _request(self, frame: Frame) -> None:
        super()._request(frame)
        # A SUBSCRIBE for an id in use opens nothing, so `_open` does not note it.
        is_repeat = frame.type == _SUBSCRIBE and self._in_use.get((True, id_of(frame))) != frame.number
        if (is_repeat or frame.type in _NOTABLE_REQUESTS) and id_of(frame) in self._followed:
            self._followed[id_of(frame)].row(frame).note(frame.command)

    def _pair_answer(self, frame: Frame, request: Request) -> None:
        super()._pair_answer(frame, request)
        owner = request.owner  # (is it a consumer, its id)
        consumer = self._followed.get(owner[1]) if owner is not None and owner[0] else None
        if consumer is None:
            return
        how = f"ended by {command_name(request.type)}"
        if frame.type == _ERROR:
            how = f"{command_name(request.type)} refused"
            consumer.row(frame).note(f"{how}: {error_name(frame.base.error.error)}")  # type: ignore[union-attr]
        if consumer.consumer_id not in self.consumers:
            self._leave(consumer, frame, how)

    def _close(self, frame: Frame) -> None:
        super()._close(frame)
        consumer = self._followed.get(id_of(frame))
        if consumer is not None:
            side = "client" if frame.to_broker else "broker"
            consumer.row(frame).note(f"CLOSE_CONSUMER by {side}")
            self._leave(consumer, frame, f"closed by {side}")

    def _leave(self, consumer: Consumer, frame: Frame, how: str) -> None:
        """Record that a consumer is not open any more."""
        consumer.ended(frame.time_ns, how)
        del self._followed[consumer.consumer_id]


# -- records (docs/json.md), which all outputs of `pwire permits` show


def ordered(consumers: Iterable[Consumer]) -> list[Consumer]:
    """Sort by subscription, then topic, unknown ones last; equal ones stay in the order of opening."""
    return sorted(consumers, key=lambda each: (not each.is_known, each.subscription, each.topic))


def consumer_records(consumer: Consumer, end_ns: int, limit: int, width: int) -> list[Figures]:
    """Return a consumer's totals, then its rows: at most `limit`, at least `width` ns wide if possible.

    `end_ns` is when the capture ends, in ns since the epoch.
    """
    rows, width = consumer.rows(limit, width)
    return [_total(consumer, end_ns, width), *(_row(consumer, row) for row in rows)]


def _total(consumer: Consumer, end_ns: int, width: int) -> Figures:
    total, timed = consumer.total, consumer.timed
    end = consumer.closed if consumer.closed is not None else max(end_ns, total.last)
    frame_times = [time for time in (consumer.last_flow, consumer.last_message) if time is not None]
    connection = consumer.connection
    return {
        "kind": "consumer",
        **_names(consumer),
        "type": consumer.kind or None,
        "consumer_name": consumer.name or None,
        "client": connection.client,
        "server": connection.server,
        "time_ns": total.first if timed else None,
        "last_ns": end if timed else None,
        "is_open": consumer.closed is None,
        "how": consumer.how,
        "subscribe_seen": consumer.is_known,
        "first_grant": consumer.first_grant,
        **_figures(total, timed),
        "empty_ns": _duration(consumer.empty_since, end, timed and total.exact),
        "quiet_ns": _duration(max(frame_times, default=total.first), end, timed),
        "row_ns": width if timed and width > 1 else None,
    }


def _row(consumer: Consumer, row: Row) -> Figures:
    return {
        "kind": "row",
        **_names(consumer),
        "time_ns": row.first if consumer.timed else None,
        "last_ns": row.last if consumer.timed else None,
        **_figures(row, consumer.timed),
    }


def _names(consumer: Consumer) -> Figures:
    return {
        "subscription": consumer.subscription if consumer.is_known else None,
        "topic": consumer.topic or None,
        "connection": consumer.connection.index,
        "consumer_id": consumer.consumer_id,
    }


def _figures(row: Row, timed: bool) -> Figures:
    return {
        "flows": row.flows,
        "granted": row.granted,
        "used": row.used,
        "delivered": row.delivered,
        "acked": row.acked,
        "asked": row.asked,
        "redelivered": row.redelivered,
        "permits": row.permits,
        "lowest_permits": row.lowest,
        "highest_permits": row.highest,
        "unacked": row.unacked,
        "pending": row.pending,
        "exact": row.exact,
        "stalled_ns": row.stalled if timed else None,
        "moments": row.moments,
    }


def _duration(start: int | None, end: int, timed: bool) -> int | None:
    return end - start if timed and start is not None else None
