"""Renders the consumers of `pwire permits` for people: what is remarkable about each, and its rows.

The records come from `stats/permits_report.py`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from rich.console import RenderableType
from rich.text import Text

from pulsarctl_wire.render.columns import PERSISTENT, Column, counted, fit, grid, measured
from pulsarctl_wire.render.line import Clock
from pulsarctl_wire.render.text import clean, human_time, rich_text
from pulsarctl_wire.stats.report import Figures
from pulsarctl_wire.wire.session.counts import MAX_PERMITS

DETAILED: Final = 10
"""Consumers that are shown with rows or a plot; of the others there is only a line."""

_QUIET_NS: Final = 1_000_000_000  # shorter pauses are not worth a word
_USUAL_GRANT: Final = 10  # smaller first FLOWs say nothing about the size of the queue


class Shown(NamedTuple):
    """A consumer as it is shown: its record, and the records of its rows."""

    consumer: Figures
    rows: list[Figures]


def page(
    shown: Sequence[Shown],
    width: int | None,
    colour: bool,
    detail: Callable[[Shown, int | None], Iterable[RenderableType]],
) -> str:
    """The text of all consumers, for a terminal of `width` cells; None for a pipe.

    `detail` gives the table or plot of a consumer.
    """
    parts: list[RenderableType] = []
    if len(shown) > 1:
        parts += [*_overview(shown, width), ""]
    for each in detailed(shown):
        parts += [*_heading(each.consumer), *detail(each, width), ""]
    if more := without_detail(shown):
        parts.append(Text(more, "dim"))
    return rich_text(parts, width or 1_000_000, "standard" if colour else None).rstrip("\n") + "\n"


def detailed(shown: Sequence[Shown]) -> list[Shown]:
    """The consumers that are shown in detail, at most `DETAILED`: first those of which there is a warning."""
    chosen = sorted(range(len(shown)), key=lambda at: not any(warnings(shown[at].consumer)))[:DETAILED]
    return [shown[at] for at in sorted(chosen)]


def without_detail(shown: Sequence[Shown]) -> str:
    """How many consumers are not shown in detail, and how to choose them; "" if none."""
    more = counted(len(shown) - DETAILED, "consumer") if len(shown) > DETAILED else ""
    return more and f"{more} without details: choose by --subscription, --topic, --connection, --consumer"


# -- what is said of a consumer


def name_of(consumer: Figures) -> str:
    """The name of a consumer: its id, its name if it has one, and its connection."""
    name = f' "{clean(consumer["consumer_name"])}"' if consumer["consumer_name"] else ""
    ends = f" ({consumer['client']} → {consumer['server']})" if consumer["client"] else ""
    return f"consumer {consumer['consumer_id']}{name} on connection {consumer['connection']}{ends}"


def subscription_of(consumer: Figures) -> str:
    """Its subscription, and the topic and type of that."""
    if consumer["subscription"] is None:
        return "subscription unknown"
    topic = clean(consumer["topic"].removeprefix(PERSISTENT))
    return f"subscription {clean(consumer['subscription'])} of {topic}, {consumer['type'] or 'unknown type'}"


def sums(consumer: Figures) -> str:
    """What it was granted, and what came of it."""
    flows, delivered = counted(consumer["flows"], "FLOW"), counted(consumer["delivered"], "message")
    text = (
        f"granted {consumer['granted']:,} by {flows}, used {consumer['used']:,}; "
        f"{delivered} delivered, {consumer['acked']:,} acknowledged, "
        f"{consumer['unacked']:,} unacknowledged ({_entries(consumer['pending'])})"
    )
    if consumer["asked"] or consumer["redelivered"]:
        text += f"; {_entries(consumer['asked'])} asked for again, {consumer['redelivered']:,} came again"
    return text


def warnings(consumer: Figures) -> Iterator[str]:
    """What is remarkable about a consumer: sentences, the most important first."""
    empty, quiet = consumer["empty_ns"] or 0, consumer["quiet_ns"] or 0
    unacked = f"{counted(consumer['unacked'], 'message')} unacknowledged" if consumer["unacked"] else ""
    if empty >= _QUIET_NS:
        rest = f"; {unacked or 'all is acknowledged'}" if consumer["delivered"] else ""
        yield f"no permits in its last {human_time(empty)}: no FLOW came, so nothing is delivered{rest}"
    elif quiet >= _QUIET_NS and unacked and consumer["permits"] > 0 and consumer["exact"]:
        left = counted(consumer["permits"], "permit")
        yield f"nothing delivered in its last {human_time(quiet)}, with {left} left and {unacked}"
    highest, first = consumer["highest_permits"], consumer["first_grant"]
    if highest > MAX_PERMITS:
        yield f"{highest:,} permits: more than the {MAX_PERMITS:,} that a broker can count"
    elif consumer["flows"] > 1 and highest > 2 * max(first, _USUAL_GRANT):
        yield f"permits grew to {highest:,}: {highest / max(first, 1):.3g} times the first FLOW"
    if consumer["asked"] > 2 * consumer["acked"]:
        yield f"{_entries(consumer['asked'])} asked for again, but {consumer['acked']:,} acknowledged"
    if (consumer["stalled_ns"] or 0) >= _QUIET_NS:
        yield f"waited up to {human_time(consumer['stalled_ns'])} without permits for a FLOW"


def doubts(consumer: Figures) -> str:
    """Why its figures are not exact; "" if they are."""
    if not consumer["subscribe_seen"]:
        return "its SUBSCRIBE was not captured: permits (~) count from 0 at its first frame: not exact"
    if not consumer["exact"]:
        return "bytes are missing from the capture: from there on permits are not exact (~)"
    return ""


def moments(row: Figures) -> Iterator[str]:
    """What happened in a row, in words."""
    rare = [text if count == 1 else f"{text} ({count} times)" for text, count in row["moments"].items()]
    yield from (text for text in rare if text.startswith("SUBSCRIBE"))
    if row["flows"]:
        flows = "FLOW" if row["flows"] == 1 else f"{row['flows']:,} FLOWs"
        stalled = row["stalled_ns"] or 0
        after = f" after {human_time(stalled)} without permits" if stalled >= _QUIET_NS else ""
        yield f"{flows} +{row['granted']:,}{after}"
    if row["asked"]:
        yield f"REDELIVER {_entries(row['asked'])}"
    yield from (text for text in rare if not text.startswith("SUBSCRIBE"))
    if row["used"] and is_empty(row):
        yield "no permits left"


def is_empty(row: Figures) -> bool:
    """Whether a row or consumer has certainly no permits."""
    return bool(row["permits"] <= 0 and row["exact"])


def permits_text(row: Figures) -> str:
    """The permits of a row or consumer; ~ if they are not exact."""
    return f"{'' if row['exact'] else '~'}{row['permits']:,}"


def _entries(count: int) -> str:
    return counted(count, "entry", "entries")


# -- in the terminal


def _heading(consumer: Figures) -> Iterator[Text]:
    yield Text.assemble((name_of(consumer), "bold"), f", {clean(consumer['how'])}")
    yield Text(f"  {subscription_of(consumer)}", "cyan")
    yield Text(f"  {sums(consumer)}")
    for warning in warnings(consumer):
        yield Text(f"  {warning}", "bold red")
    if doubt := doubts(consumer):
        yield Text(f"  {doubt}", "yellow")


def _overview(shown: Sequence[Shown], width: int | None) -> Iterator[RenderableType]:
    consumers = [each.consumer for each in shown]
    yield Text(counted(len(consumers), "consumer"), "bold")
    yield _table(consumer_columns(consumers), consumers, width)


def rows_table(shown: Shown, width: int | None, clock: Clock) -> Iterator[RenderableType]:
    """A consumer's rows as a table."""
    yield _table(row_columns(shown.rows, clock), shown.rows, width)
    if span := row_span(shown.consumer):
        yield Text(span, "dim")


def row_span(consumer: Figures) -> str:
    """How much its rows sum up; "" if each is one moment."""
    if consumer["row_ns"] is None:
        return ""
    return f"a row is what happened within {human_time(consumer['row_ns'])} (--rows, --every)"


def consumer_columns(consumers: Sequence[Figures]) -> list[Column]:
    """The columns of a table of these consumers."""
    return [
        Column("conn", lambda each: str(each["connection"])),
        Column("id", lambda each: str(each["consumer_id"])),
        Column("subscription", lambda each: each["subscription"] or "unknown", 0, "cyan", True),
        Column("topic", lambda each: (each["topic"] or "").removeprefix(PERSISTENT), 9, "", True),
        *_figures(consumers),
        Column("", lambda each: next(warnings(each), each["how"]), is_name=True),
    ]


def row_columns(rows: Sequence[Figures], clock: Clock) -> list[Column]:
    """The columns of a table of these rows."""
    time = Column("time", lambda row: clock(row["time_ns"]), style="dim")
    return [time, *_figures(rows), Column("", lambda row: ", ".join(moments(row)), is_name=True)]


def _figures(records: Sequence[Figures]) -> Iterator[Column]:
    """The columns of numbers, without those of redeliveries where there are none."""
    for column in _FIGURES:
        if column.title not in ("asked", "redelivered") or any(record[column.title] for record in records):
            yield column


def _table(columns: Sequence[Column], records: Sequence[Figures], width: int | None) -> RenderableType:
    texts, widths = measured(columns, records)
    kept = fit(columns, widths, width or 1_000_000)
    table = grid()
    for at in kept:
        justify: Literal["left", "right"] = "left" if columns[at].is_name or at == 0 else "right"
        table.add_column(columns[at].title, justify=justify, width=widths[at], overflow="fold")
    for record, row in zip(records, texts, strict=True):
        table.add_row(*(Text(row[at], _style(columns[at], record, row[at])) for at in kept))
    return table


def _style(column: Column, record: Figures, text: str) -> str:
    if column.title == "permits" and is_empty(record):
        return "bold red"
    return "dim" if text == "0" else column.style


def _number(title: str, rank: int, style: str = "") -> Column:
    return Column(title, lambda record: f"{record[title]:,}", rank, style)


_FIGURES: Final = [
    _number("granted", 5, "green"),
    _number("used", 6),
    Column("permits", permits_text),
    _number("delivered", 4),
    _number("acked", 3, "green"),
    _number("unacked", 1, "yellow"),
    _number("pending", 7),
    _number("asked", 2, "magenta"),
    _number("redelivered", 8, "magenta"),
]
