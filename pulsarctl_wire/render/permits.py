"""The consumers of `pwire permits` for people: what is remarkable about each, and its rows.

The records come from `stats/permits.py`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from rich.console import RenderableType
from rich.text import Text

from pulsarctl_wire.render.columns import PERSISTENT, Column, count_text, fit, grid, measure
from pulsarctl_wire.render.line import TimeFormatter
from pulsarctl_wire.render.text import clean, human_time, rich_text
from pulsarctl_wire.stats.report import Figures
from pulsarctl_wire.wire.session.counts import MAX_PERMITS

MAX_DETAILED: Final = 10
"""Consumers that are shown with rows or a plot; of the others there is only a line."""

_MIN_PAUSE_NS: Final = 1_000_000_000  # shorter pauses are not worth a word
_MIN_GRANT: Final = 10  # smaller first FLOWs say nothing about the size of the queue


class ConsumerReport(NamedTuple):
    """A consumer as it is shown: its record, and the records of its rows."""

    consumer: Figures
    rows: list[Figures]


def page(
    reports: Sequence[ConsumerReport],
    width: int | None,
    colour: bool,
    detail: Callable[[ConsumerReport, int | None], Iterable[RenderableType]],
) -> str:
    """Render the text of all consumers, for a terminal of `width` cells; None for a pipe.

    `detail` gives the table or plot of a consumer.
    """
    parts: list[RenderableType] = []
    if len(reports) > 1:
        parts += [*_overview(reports, width), ""]
    for report in choose_detailed(reports):
        parts += [*_heading(report.consumer), *detail(report, width), ""]
    if note := rest_note(reports):
        parts.append(Text(note, "dim"))
    return rich_text(parts, width or 1_000_000, "standard" if colour else None).rstrip("\n") + "\n"


def choose_detailed(reports: Sequence[ConsumerReport]) -> list[ConsumerReport]:
    """Choose the consumers to show in detail, at most `MAX_DETAILED`: those with warnings come first."""
    indices = sorted(range(len(reports)), key=lambda i: not any(warnings(reports[i].consumer)))[:MAX_DETAILED]
    return [reports[i] for i in sorted(indices)]


def rest_note(reports: Sequence[ConsumerReport]) -> str:
    """Say how many consumers are not shown in detail, and how to choose them; "" if none."""
    count = count_text(len(reports) - MAX_DETAILED, "consumer") if len(reports) > MAX_DETAILED else ""
    return count and f"{count} without details: choose by --subscription, --topic, --connection, --consumer"


# -- sentences about a consumer


def name_of(consumer: Figures) -> str:
    """Format the name of a consumer: its id, its name if it has one, and its connection."""
    name = f' "{clean(consumer["consumer_name"])}"' if consumer["consumer_name"] else ""
    ends = f" ({consumer['client']} → {consumer['server']})" if consumer["client"] else ""
    return f"consumer {consumer['consumer_id']}{name} on connection {consumer['connection']}{ends}"


def subscription_of(consumer: Figures) -> str:
    """Format a consumer's subscription, with its topic and type."""
    if consumer["subscription"] is None:
        return "subscription unknown"
    topic = clean(consumer["topic"].removeprefix(PERSISTENT))
    return f"subscription {clean(consumer['subscription'])} of {topic}, {consumer['type'] or 'unknown type'}"


def sums_text(consumer: Figures) -> str:
    """Say what a consumer was granted, and how many messages were delivered and acknowledged."""
    flows, delivered = count_text(consumer["flows"], "FLOW"), count_text(consumer["delivered"], "message")
    text = (
        f"granted {consumer['granted']:,} by {flows}, used {consumer['used']:,}; "
        f"{delivered} delivered, {consumer['acked']:,} acknowledged, "
        f"{consumer['unacked']:,} unacknowledged ({_entries(consumer['pending'])})"
    )
    if consumer["asked"] or consumer["redelivered"]:
        text += f"; {_entries(consumer['asked'])} asked for again, {consumer['redelivered']:,} came again"
    return text


def warnings(consumer: Figures) -> Iterator[str]:
    """Yield what is remarkable about a consumer: sentences, the most important first."""
    empty_ns, quiet_ns = consumer["empty_ns"] or 0, consumer["quiet_ns"] or 0
    unacked = f"{count_text(consumer['unacked'], 'message')} unacknowledged" if consumer["unacked"] else ""
    if empty_ns >= _MIN_PAUSE_NS:
        backlog = f"; {unacked or 'all is acknowledged'}" if consumer["delivered"] else ""
        yield f"no permits in its last {human_time(empty_ns)}: no FLOW came, so nothing is delivered{backlog}"
    elif quiet_ns >= _MIN_PAUSE_NS and unacked and consumer["permits"] > 0 and consumer["exact"]:
        permits = count_text(consumer["permits"], "permit")
        yield f"nothing delivered in its last {human_time(quiet_ns)}, with {permits} left and {unacked}"
    highest_permits, first_grant = consumer["highest_permits"], consumer["first_grant"]
    if highest_permits > MAX_PERMITS:
        yield f"{highest_permits:,} permits: more than the {MAX_PERMITS:,} that a broker can count"
    elif consumer["flows"] > 1 and highest_permits > 2 * max(first_grant, _MIN_GRANT):
        ratio = highest_permits / max(first_grant, 1)
        yield f"permits grew to {highest_permits:,}: {ratio:.3g} times the first FLOW"
    if consumer["asked"] > 2 * consumer["acked"]:
        yield f"{_entries(consumer['asked'])} asked for again, but {consumer['acked']:,} acknowledged"
    if (consumer["stalled_ns"] or 0) >= _MIN_PAUSE_NS:
        yield f"waited up to {human_time(consumer['stalled_ns'])} without permits for a FLOW"


def doubt_text(consumer: Figures) -> str:
    """Say why a consumer's figures are not exact; "" if they are."""
    if not consumer["subscribe_seen"]:
        return (
            "its SUBSCRIBE was not captured, so permits (~) count from 0 at its first frame and are not exact"
        )
    if not consumer["exact"]:
        return "bytes are missing from the capture: from there on permits are not exact (~)"
    return ""


def describe_row(row: Figures) -> Iterator[str]:
    """Yield what has happened in a row: requests and closes, FLOWs, redeliveries, and the end of permits."""
    texts = [text if count == 1 else f"{text} ({count} times)" for text, count in row["moments"].items()]
    yield from (text for text in texts if text.startswith("SUBSCRIBE"))
    if row["flows"]:
        flows = "FLOW" if row["flows"] == 1 else f"{row['flows']:,} FLOWs"
        stalled_ns = row["stalled_ns"] or 0
        pause = f" after {human_time(stalled_ns)} without permits" if stalled_ns >= _MIN_PAUSE_NS else ""
        yield f"{flows} +{row['granted']:,}{pause}"
    if row["asked"]:
        yield f"REDELIVER {_entries(row['asked'])}"
    yield from (text for text in texts if not text.startswith("SUBSCRIBE"))
    if row["used"] and is_empty(row):
        yield "no permits left"


def is_empty(row: Figures) -> bool:
    """Return whether a row or consumer has certainly no permits."""
    return bool(row["permits"] <= 0 and row["exact"])


def permits_text(row: Figures) -> str:
    """Format the permits of a row or consumer; ~ if they are not exact."""
    return f"{'' if row['exact'] else '~'}{row['permits']:,}"


def _entries(count: int) -> str:
    return count_text(count, "entry", "entries")


# -- in the terminal


def _heading(consumer: Figures) -> Iterator[Text]:
    yield Text.assemble((name_of(consumer), "bold"), f", {clean(consumer['how'])}")
    yield Text(f"  {subscription_of(consumer)}", "cyan")
    yield Text(f"  {sums_text(consumer)}")
    for warning in warnings(consumer):
        yield Text(f"  {warning}", "bold red")
    if doubt := doubt_text(consumer):
        yield Text(f"  {doubt}", "yellow")


def _overview(reports: Sequence[ConsumerReport], width: int | None) -> Iterator[RenderableType]:
    consumers = [report.consumer for report in reports]
    yield Text(count_text(len(consumers), "consumer"), "bold")
    yield _table(consumer_columns(consumers), consumers, width)


def rows_table(report: ConsumerReport, width: int | None, clock: TimeFormatter) -> Iterator[RenderableType]:
    """Render a consumer's rows as a table."""
    yield _table(row_columns(report.rows, clock), report.rows, width)
    if span := row_span(report.consumer):
        yield Text(span, "dim")


def row_span(consumer: Figures) -> str:
    """Say how much time a consumer's rows sum up; "" if each is one moment."""
    if consumer["row_ns"] is None:
        return ""
    return f"each row covers {human_time(consumer['row_ns'])} (see --rows, --every)"


def consumer_columns(consumers: Sequence[Figures]) -> list[Column]:
    """Make the columns of a table of these consumers."""
    return [
        Column("conn", lambda consumer: str(consumer["connection"])),
        Column("id", lambda consumer: str(consumer["consumer_id"])),
        Column("subscription", lambda consumer: consumer["subscription"] or "unknown", 0, "cyan", True),
        Column("topic", lambda consumer: (consumer["topic"] or "").removeprefix(PERSISTENT), 9, "", True),
        *_figures(consumers),
        Column("", lambda consumer: next(warnings(consumer), consumer["how"]), is_name=True),
    ]


def row_columns(rows: Sequence[Figures], clock: TimeFormatter) -> list[Column]:
    """Make the columns of a table of these rows."""
    time = Column("time", lambda row: clock(row["time_ns"]), style="dim")
    return [time, *_figures(rows), Column("", lambda row: ", ".join(describe_row(row)), is_name=True)]


def _figures(records: Sequence[Figures]) -> Iterator[Column]:
    """Yield the columns of numbers, without those of redeliveries where there are none."""
    for column in _FIGURES:
        if column.title not in ("asked", "redelivered") or any(record[column.title] for record in records):
            yield column


def _table(columns: Sequence[Column], records: Sequence[Figures], width: int | None) -> RenderableType:
    texts, widths = measure(columns, records)
    indices = fit(columns, widths, width or 1_000_000)
    table = grid()
    for index in indices:
        justify: Literal["left", "right"] = "left" if columns[index].is_name or index == 0 else "right"
        table.add_column(columns[index].title, justify=justify, width=widths[index], overflow="fold")
    for record, row in zip(records, texts, strict=True):
        table.add_row(*(Text(row[index], _style(columns[index], record, row[index])) for index in indices))
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
