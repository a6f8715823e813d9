"""The rows of a sequence diagram (a frame, similar frames, beginnings and ends), and its lifelines."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pulsarctl_wire.record import notes_of
from pulsarctl_wire.render.http import http_fields, http_style
from pulsarctl_wire.render.line import LineRenderer, command_style
from pulsarctl_wire.render.text import clean, human_bytes, human_time
from pulsarctl_wire.stats.latencies import Latencies
from pulsarctl_wire.wire.commands import NUMBERS
from pulsarctl_wire.wire.frame import Connection, Event, Frame, Gap, HttpMessage
from pulsarctl_wire.wire.names import MAX_NAME_LENGTH
from pulsarctl_wire.wire.session.counts import error_of, latency_of, messages_in
from pulsarctl_wire.wire.session.ending import CLOSED, OPEN, REFUSED, UNANSWERED, EndedConnection

TIMES: Final = "\N{MULTIPLICATION SIGN}"
"""Stands before the number of frames, and where a connection ends."""

_MAX_TEXT: Final = 300  # characters of a name, of all fields, and of what is wrong
_MAX_SHORT_FIELD: Final = 24  # characters; longer fields follow the others, as they may be cut
_HIDDEN_FIELDS: Final = ("req=", "auth=", "authoritative=", "max_message_size=")
_BEGINNING: Final = "begins"
_END: Final = "ends"
_FLOW: Final = NUMBERS["FLOW"]
_STYLES: Final = {CLOSED: "dim", OPEN: "dim"}
"""How connections usually end; everything else is red."""

Key = tuple[object, ...]
"""What similar rows have in common."""
Styled = tuple[str, str]
"""A style of `render.text.Paint` and a text."""


@dataclass(slots=True)
class Row:
    """An arrow: a frame or `count` similar frames; damage (red), or the beginning or end of a connection.

    `to_broker` is None for an end that neither side caused. `number` is that of the first frame; 0: no frame.
    Times are in ns since the epoch. All texts are clean.
    """

    key: Key
    connection: Connection
    to_broker: bool | None
    time_ns: int | None
    title: str
    style: str
    number: int = 0
    topic: str = ""
    fields: list[str] = field(default_factory=list)
    problem: str = ""
    request: int | None = None
    """For an answer: number of its request's frame."""
    latency_ns: int | None = None
    """For an answer: ns since its request. For the end of a connection: ns since its first packet."""
    size: int = 0
    """Bytes of all frames."""
    amount: int = 0
    """Messages of SEND and MESSAGE, permits of FLOW."""
    count: int = 1
    last_ns: int | None = None
    last_number: int = 0
    """Number of the last frame."""
    has_several_connections: bool = False
    """Whether it has frames of several connections."""
    latencies: Latencies | None = None
    is_focus: bool = False
    """Whether it is the frame that `Diagram` was asked to show with those around it."""
    period: int = 0
    """How many rows are repeated together, if it is one of them."""
    is_in_run: bool = False
    """Whether it belongs to a run that may go on."""

    @property
    def is_end(self) -> bool:
        """Whether it is the end of a connection."""
        return self.key[0] == _END

    @property
    def is_mark(self) -> bool:
        """Whether it is the beginning or the end of a connection."""
        return self.key[0] in (_BEGINNING, _END)

    @property
    def index(self) -> str:
        """The number of its connection, with + if there are more."""
        return f"{self.connection.index}{'+' if self.has_several_connections else ''}"

    @property
    def colour(self) -> str:
        """The style of its arrow."""
        if not self.number:
            return self.style
        return "yellow" if self.to_broker else "cyan"

    def merge(self, other: "Row") -> None:
        """Add a later, similar row."""
        if self.latencies is None:
            self.latencies = Latencies()
            self._add_latency(self)
        self._add_latency(other)
        if other.latencies is not None:
            self.latencies.merge(other.latencies)
        self.fields = [text for text in self.fields if text in other.fields]
        self.has_several_connections |= (
            other.has_several_connections or other.connection.index != self.connection.index
        )
        self.count += other.count
        self.size += other.size
        self.amount += other.amount
        self.last_number, self.last_ns = other.last_number, other.last_ns

    def _add_latency(self, row: "Row") -> None:
        if self.latencies is not None and row.latency_ns is not None and row.count == 1:
            self.latencies.add([row.latency_ns])

    def label(self) -> list[Styled]:
        """Return what the row is: command, number of frames, topic, fields."""
        parts = [(self.style, self.title)]
        if self.count > 1:
            parts.append(("", f"{TIMES} {self.count:,}"))
        topic = ("blue", self.topic)
        parts += [topic] if self.topic and self.request is None else []
        parts += [("", " ".join(self.fields))] if self.fields else []
        parts += [topic] if self.topic and self.request is not None else []
        if self.count > 1 and self.number:
            parts += [("", text) for text in self._sums()]
        return parts

    def _sums(self) -> Iterable[str]:
        if self.amount and self.title == "FLOW":
            yield f"{self.amount:,} permits"
        elif self.amount:
            yield from [f"{self.amount:,} messages"] * (self.amount != self.count)
            yield human_bytes(self.size)
        yield f"to #{self.last_number}"

    def tail(self) -> list[Styled]:
        """Return how long it took, and what is wrong with it."""
        parts = []
        times = self.latencies.record() if self.latencies is not None else None
        if times is not None:
            parts.append(("", f"p50 {human_time(times['p50'])}, p99 {human_time(times['p99'])}"))
        elif self.count > 1 and self.time_ns is not None and self.last_ns is not None:
            parts.append(("dim", f"in {human_time(self.last_ns - self.time_ns)}"))
        elif self.latency_ns is not None:
            parts.append(("", f"{'after ' * self.is_end}{human_time(self.latency_ns)}"))
        if self.count == 1 and self.request is not None and self.request != self.number - 1:
            parts.append(("dim", f"after #{self.request}"))
        return parts + ([("yellow", f"! {self.problem}")] if self.problem else [])


def row_of(event: Event, key: Key, problem: str, line: LineRenderer) -> Row:
    """Make the row of an event; `line` renders its fields."""
    if isinstance(event, HttpMessage):
        return _http_row(event, key, problem)
    if not isinstance(event, Frame):
        row = Row(key, event.connection, event.to_broker, event.time_ns, problem, "red")
        row.size, row.last_ns = event.size, event.time_ns
        return row
    fields = [text for text in line.fields(event) if not text.startswith(_HIDDEN_FIELDS)]
    fields.sort(key=lambda text: len(text) > _MAX_SHORT_FIELD)
    shortened = [text.removeprefix("brokerServiceUrl=").removeprefix("pulsar://") for text in fields]
    row = _frame_row(event, key, _cut_all(shortened))
    row.problem = problem
    return row


def _http_row(message: HttpMessage, key: Key, problem: str) -> Row:
    title = f"HTTP {message.status or message.method}"
    row = Row(key, message.connection, message.to_broker, message.time_ns, title, http_style(message))
    row.topic, row.fields = _topic(message.topic), _cut_all(http_fields(message))
    row.problem, row.latency_ns = problem, message.latency_ns
    row.size, row.last_ns = message.size, message.time_ns
    return row


def brief_row(frame: Any, key: Key) -> Row:
    """Make the row of a frame, without the fields in which similar frames differ."""
    return _frame_row(frame, key, list(_shared_fields(frame)))


def _frame_row(frame: Any, key: Key, fields: list[str]) -> Row:
    number, time_ns = frame.number, frame.time_ns
    has_subscription = frame.subscription is not None and frame.request is None
    sub = [f"sub={_short(frame.subscription)}"] if has_subscription else []
    return Row(
        key,
        frame.connection,
        frame.to_broker,
        time_ns,
        frame.command,
        "red" if error_of(frame) is not None else command_style(frame.command),
        number,
        _topic(frame.topic),
        [*sub, *fields],
        request=frame.request,
        latency_ns=latency_of(frame),
        size=len(frame.raw),
        amount=frame.base.flow.messagePermits if frame.type == _FLOW else messages_in(frame),
        last_ns=time_ns,
        last_number=number,
    )


def beginning_of(event: Event) -> Row:
    """Make the row of a connection's beginning; `event` is its first event."""
    connection = event.connection
    fields = [str(connection.index), f"from port {connection.client.rpartition(':')[2]}"]
    row = Row((_BEGINNING, *_ends(connection)), connection, True, event.time_ns, "connection", "dim")
    row.fields, row.last_ns = fields, event.time_ns
    return row


def end_of(ending: EndedConnection) -> Row:
    """Make the row of a connection's end; without a time if it was open when the capture ended."""
    connection = ending.connection
    time_ns = None if ending.end == OPEN else ending.end_ns or ending.last_ns
    to_broker = None if ending.by_broker is None else not ending.by_broker
    if ending.end in (REFUSED, UNANSWERED):
        to_broker = ending.end == UNANSWERED
    style = _STYLES.get(ending.end, "red")
    key = (_END, *_ends(connection), ending.how)
    row = Row(key, connection, to_broker, time_ns, clean(ending.how), style, last_ns=time_ns)
    if ending.time_ns is not None and time_ns is not None:
        row.latency_ns = time_ns - ending.time_ns
    return row


def problem_of(event: Event) -> str:
    """Describe what is wrong with an event; "" if nothing is."""
    if isinstance(event, Frame):
        texts = [*(["PARTIAL"] if event.partial else []), *notes_of(event)]
        return _short(", ".join(texts))
    if isinstance(event, HttpMessage):
        return "PARTIAL" if event.partial else ""
    if isinstance(event, Gap):
        return f"GAP {event.size:,} bytes were not captured"
    return _short(f"MALFORMED {event.size:,} bytes: {event.reason}")


def key_of(event: Event, problem: str) -> Key:
    """Return the key that similar events share."""
    ends = _ends(event.connection)
    if isinstance(event, HttpMessage):
        return (*ends, event.to_broker, event.kind, event.status, event.topic, event.namespace, problem)
    if not isinstance(event, Frame):
        return (*ends, event.to_broker, problem)
    subscription = event.subscription and event.subscription[:MAX_NAME_LENGTH]
    return (*ends, event.to_broker, event.type, event.topic, subscription, _shared_fields(event), problem)


def _shared_fields(frame: Any) -> tuple[str, ...]:
    """Return the fields that similar frames share: producer or consumer, and the values of enums."""
    body = frame.body
    texts = []
    for descriptor, value in () if body is None else body.ListFields():
        if descriptor.name in ("producer_id", "consumer_id"):
            texts.append(f"{descriptor.name[:8]}={value}")
        elif descriptor.enum_type is not None and not descriptor.is_repeated:
            texts.append(descriptor.enum_type.values_by_number[value].name)
    return tuple(texts)


def _topic(topic: str | None) -> str:
    text = (topic or "").removeprefix("persistent://")
    return _short(text.removeprefix("public/default/"))


def _short(text: str) -> str:
    """Return the beginning of a text, clean."""
    return clean(text) if len(text) <= _MAX_TEXT else f"{clean(text[:_MAX_TEXT])}…"


def _cut_all(fields: list[str]) -> list[str]:
    result: list[str] = []
    free = _MAX_TEXT
    for text in fields:
        if free < len(text):
            return [*result, f"{text[:free]}…"]
        result.append(text)
        free -= len(text)
    return result


# -- lifelines


class Lifelines(NamedTuple):
    """The vertical lines: hosts of clients at the left, addresses of brokers at the right."""

    clients: list[str]
    brokers: list[str]

    def of(self, row: Row) -> tuple[int, int]:
        """Return the lines of a row's client and broker; the last line stands for all others."""
        client, broker = _ends(row.connection)
        return _index_of(self.clients, client), _index_of(self.brokers, broker)


def lifelines(rows: Iterable[Row], limit: int) -> Lifelines:
    """Make the lifelines of `rows`, in the order of their first rows, at most `limit` at each side."""
    ends = [_ends(row.connection) for row in rows]
    return Lifelines(
        _limit([client for client, _ in ends], limit), _limit([broker for _, broker in ends], limit)
    )


def _limit(names: list[str], limit: int) -> list[str]:
    names = list(dict.fromkeys(names))
    return names if len(names) <= limit else [*names[: limit - 1], f"{len(names) - limit + 1} others"]


def _index_of(names: list[str], name: str) -> int:
    return names.index(name) if name in names else len(names) - 1


def _ends(connection: Connection) -> tuple[str, str]:
    """Return the names of a connection's client and broker."""
    client = connection.client.rpartition(":")[0] or connection.client
    return clean(client) or "client", clean(connection.server) or "broker"
