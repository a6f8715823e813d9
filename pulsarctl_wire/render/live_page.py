"""`--stats`: renders a page of live counters.

It has a heading, the busiest topics and connections, and latencies. If space is short, fewer rows are shown,
and less important columns are dropped. Long names are shortened in the middle, as names of partitions differ
at the end.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from pulsarctl_wire.render.columns import GAP, PERSISTENT, Column, counted, drop, grid, measured, rate_text
from pulsarctl_wire.render.text import clean, human_bytes, human_time
from pulsarctl_wire.stats.snapshot import ConnectionRow, Snapshot, Times

_MAX_ROWS: Final = 20  # without a height
_AROUND: Final = 3  # lines of a table apart from its rows
_LEAST_ROWS: Final = 2
_LEAST_NAME: Final = 33  # cells: fits two IPv4 addresses with ports
_ERRORS: Final = 4  # codes that are listed
_SECOND: Final = 1_000_000_000


def page(found: Snapshot, width: int, height: int, *, recent: bool) -> RenderableType:
    """The page of a snapshot, at most `width` cells wide and `height` lines high.

    If `height` is 0, tables have up to `_MAX_ROWS` rows. If `recent`, rates and latencies are those of the
    last seconds, else those of the whole time.
    """
    if not recent:
        found = found.averaged()
    heading = list(_heading(found, width))
    times = list(_times(found, recent))
    latencies = connections = topics = _MAX_ROWS
    if height:
        room = height - len(heading) - 3 * _AROUND
        latencies = min(len(times), max(room // 4, 1))
        room = max(room - latencies, 2 * _LEAST_ROWS)
        connections = min(len(found.connections), max(room // 3, room - len(found.topics)))
        topics = room - connections
    return Group(
        *heading,
        *_table(_TOPIC, found.topics, topics, len(found.topics), width),
        *_table(_CONNECTION, found.connections, connections, found.kept_connections, width),
        *_table(_LATENCY, times, latencies, len(times), width),
    )


# -- the heading


def _heading(found: Snapshot, width: int) -> Iterator[Text]:
    seconds = max(found.now_ns - found.started_ns, 0) // _SECOND
    backlog = found.backlog
    opened = f"{found.open_connections:,} open of {counted(found.all_connections, 'connection')}"
    owners = f"{counted(backlog.producers, 'producer')}, {counted(backlog.consumers, 'consumer')}"
    yield _line(("bold", _clock_text(seconds)), ("", f"  {opened}, {owners}"), width=width)
    for name, traffic in (("to broker", found.to_broker), ("to client", found.to_client)):
        yield _line(
            ("dim", f"{name}  "),
            ("cyan", f"{rate_text(traffic.messages_per_s):>7} msg/s "),
            ("cyan", f"{_bytes(traffic.bytes_per_s):>9}/s "),
            ("", f"{rate_text(traffic.frames_per_s):>7} frames/s"),
            ("dim", f"  {traffic.messages:,} msg, {_bytes(traffic.size)}, {traffic.frames:,} frames"),
            width=width,
        )
    pending = f"{backlog.pending_sends:,} pending"
    if backlog.oldest_send_ns is not None:
        pending += f", the oldest {human_time(backlog.oldest_send_ns)}"
    about = "" if backlog.exact else "about "
    waits = f"; permits {about}{backlog.permits:,}, unacked {backlog.unacked:,}"
    old = (backlog.oldest_send_ns or 0) > _SECOND
    yield _line(("dim", "sends      "), ("yellow" if old else "", pending), ("", waits), width=width)
    wrong = list(_wrongs(found))
    if wrong:
        yield _line(("dim", "trouble    "), ("bold red", ", ".join(wrong)), width=width)


def _wrongs(found: Snapshot) -> Iterator[str]:
    ranked = sorted(found.errors.items(), key=lambda item: (-item[1], item[0]))
    for name, count in ranked[:_ERRORS]:
        yield f"{count:,} {clean(name)}"
    if len(ranked) > _ERRORS:
        yield f"{counted(sum(count for _, count in ranked[_ERRORS:]), 'other error')}"
    if found.checksum_failures:
        yield f"{found.checksum_failures:,} bad CRC"
    if found.malformed:
        yield f"{found.malformed:,} malformed ({_bytes(found.malformed_bytes)})"
    if found.missed_frames:
        yield f"{counted(found.missed_frames, 'frame')} not shown"
    if found.gaps:
        yield f"{counted(found.gaps, 'gap')} ({_bytes(found.missed_bytes)})"


def _line(*parts: tuple[str, str], width: int) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    for style, text in parts:
        line.append(text, style)
    line.truncate(width, overflow="ellipsis")
    return line


# -- tables


def _table(
    columns: list[Column], rows: list[Any], shown: int, all_rows: int, width: int
) -> list[RenderableType]:
    """A blank line and a table of the first `shown` rows of `all_rows`; an empty list without rows."""
    if not rows:
        return []
    shown = min(shown, len(rows))
    texts, widths = measured(columns, rows[:shown])
    kept = list(range(len(columns)))
    while (room := width - sum(widths[at] + GAP for at in kept[1:])) < min(widths[0], _LEAST_NAME):
        if not drop(columns, kept):
            break
    widths[0] = min(widths[0], max(room, 1))
    table = grid()
    for at in kept:
        table.add_column(
            Text(columns[at].title, "bold" if at == 0 else "dim"),
            justify="right" if at else "left",
            width=widths[at],
            no_wrap=True,
        )
    for row in texts:
        cells = [Text(cut(row[0], widths[0]), columns[0].style)]
        cells += [Text(row[at], "dim" if row[at] in ("0", "-") else columns[at].style) for at in kept[1:]]
        table.add_row(*cells)
    more = [Text(f"… and {all_rows - shown:,} more", "dim")] if all_rows > shown else []
    return [Text(), table, *more]


def cut(text: str, width: int) -> str:
    """`text`, shortened in the middle to at most `width` cells."""
    if cell_len(text) <= width:
        return text
    head, tail = text, text
    while cell_len(head) > max(width - 1, 0) // 2:
        head = head[:-1]
    while tail and cell_len(tail) > width - 1 - cell_len(head):
        tail = tail[1:]
    return f"{head}…{tail}"


def _times(found: Snapshot, recent: bool) -> Iterator[tuple[str, int, dict[str, int] | None]]:
    """Rows of latencies, the most frequent first: name, count, percentiles."""

    def row(name: str, times: Times) -> tuple[str, int, dict[str, int] | None]:
        return name, times.count, times.recent if recent else times.whole

    if found.publishes.count:
        yield row("SEND", found.publishes)
    for name, times in sorted(found.requests.items(), key=lambda item: (-item[1].count, item[0])):
        yield row(name, times)


def _quantile(name: str) -> Callable[[Any], str]:
    return lambda row: human_time(row[2][name]) if row[2] else "-"


def _permits(row: Any) -> str:
    return f"{'' if row.backlog.exact else '~'}{row.backlog.permits:,}"


def _ends(row: ConnectionRow) -> str:
    ends = f"{row.client} → {row.server}" if row.client or row.server else "?"
    return f"{row.index} {ends}" if row.is_open else f"{row.index} {ends} (ended)"


_WAITING: Final = [
    Column("prod", lambda row: f"{row.backlog.producers:,}", 3),
    Column("cons", lambda row: f"{row.backlog.consumers:,}", 3),
    Column("pending", lambda row: f"{row.backlog.pending_sends:,}", 0, "yellow"),
    Column("permits", _permits, 1),
    Column("unacked", lambda row: f"{row.backlog.unacked:,}", 2),
    Column("errors", lambda row: f"{row.errors:,}", 2, "bold red"),
]

_TOPIC: Final = [
    Column("topic", lambda row: str(row.topic).removeprefix(PERSISTENT), 0, "cyan"),
    Column("in/s", lambda row: rate_text(row.sent.messages_per_s)),
    Column("out/s", lambda row: rate_text(row.delivered.messages_per_s)),
    Column("bytes/s", lambda row: f"{_bytes(row.sent.bytes_per_s + row.delivered.bytes_per_s)}/s", 4),
    Column("in", lambda row: f"{row.sent.messages:,}", 5),
    Column("out", lambda row: f"{row.delivered.messages:,}", 5),
    *_WAITING,
]
_CONNECTION: Final = [
    Column("connection", _ends, 0, "cyan"),
    Column("to broker", lambda row: f"{_bytes(row.to_broker.bytes_per_s)}/s"),
    Column("to client", lambda row: f"{_bytes(row.to_client.bytes_per_s)}/s"),
    Column("sent", lambda row: _bytes(row.to_broker.size), 5),
    Column("received", lambda row: _bytes(row.to_client.size), 5),
    *_WAITING,
]
_LATENCY: Final = [
    Column("latency", lambda row: row[0], 0, "cyan"),
    Column("times", lambda row: f"{row[1]:,}"),
    Column("p50", _quantile("p50")),
    Column("p90", _quantile("p90"), 2),
    Column("p99", _quantile("p99")),
    Column("p99.9", _quantile("p999"), 2),
    Column("max", _quantile("max"), 1),
]


# -- texts


def _bytes(size: float) -> str:
    return human_bytes(round(size))


def _clock_text(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
