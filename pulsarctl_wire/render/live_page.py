"""`--stats`: a page of live counters.

It has a heading, the busiest topics and connections, and latencies. If space is short, fewer rows are shown,
and less important columns are dropped. Long names are shortened in the middle, as names of partitions differ
at the end.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from pulsarctl_wire.render.columns import GAP, PERSISTENT, Column, count_text, drop, grid, measure, rate_text
from pulsarctl_wire.render.text import clean, human_bytes, human_time
from pulsarctl_wire.stats.snapshot import ConnectionRow, Snapshot, Times

_MAX_ROWS: Final = 20  # without a height
_EXTRA_LINES: Final = 3  # lines of a table besides its rows
_MIN_ROWS: Final = 2
_MIN_NAME: Final = 33  # cells: fits two short IPv4 addresses with ports
_MAX_ERRORS: Final = 4  # codes that are listed
_SECOND: Final = 1_000_000_000


def page(snapshot: Snapshot, width: int, height: int, *, recent: bool) -> RenderableType:
    """Render the page of a snapshot, at most `width` cells wide and `height` lines high.

    If `height` is 0, tables have up to `_MAX_ROWS` rows. If `recent`, rates and latencies are those of the
    last seconds, else those of the whole time.
    """
    if not recent:
        snapshot = snapshot.averaged()
    heading = list(_heading(snapshot, width))
    latency_rows = list(_latency_rows(snapshot, recent))
    latencies = connections = topics = _MAX_ROWS
    if height:
        lines_left = height - len(heading) - 3 * _EXTRA_LINES
        latencies = min(len(latency_rows), max(lines_left // 4, 1))
        lines_left = max(lines_left - latencies, 2 * _MIN_ROWS)
        connections = min(len(snapshot.connections), max(lines_left // 3, lines_left - len(snapshot.topics)))
        topics = lines_left - connections
    return Group(
        *heading,
        *_table(_TOPIC, snapshot.topics, topics, len(snapshot.topics), width),
        *_table(_CONNECTION, snapshot.connections, connections, snapshot.kept_connections, width),
        *_table(_LATENCY, latency_rows, latencies, len(latency_rows), width),
    )


# -- the heading


def _heading(snapshot: Snapshot, width: int) -> Iterator[Text]:
    seconds = max(snapshot.now_ns - snapshot.started_ns, 0) // _SECOND
    backlog = snapshot.backlog
    text = f"{snapshot.open_connections:,} open of {count_text(snapshot.all_connections, 'connection')}"
    owners = f"{count_text(backlog.producers, 'producer')}, {count_text(backlog.consumers, 'consumer')}"
    yield _line(("bold", _clock_text(seconds)), ("", f"  {text}, {owners}"), width=width)
    for name, traffic in (("to broker", snapshot.to_broker), ("to client", snapshot.to_client)):
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
    prefix = "" if backlog.exact else "about "
    waits = f"; permits {prefix}{backlog.permits:,}, unacked {backlog.unacked:,}"
    is_old = (backlog.oldest_send_ns or 0) > _SECOND
    yield _line(("dim", "sends      "), ("yellow" if is_old else "", pending), ("", waits), width=width)
    problems = list(_problems(snapshot))
    if problems:
        yield _line(("dim", "trouble    "), ("bold red", ", ".join(problems)), width=width)


def _problems(snapshot: Snapshot) -> Iterator[str]:
    ranked = sorted(snapshot.errors.items(), key=lambda item: (-item[1], item[0]))
    for name, count in ranked[:_MAX_ERRORS]:
        yield f"{count:,} {clean(name)}"
    if len(ranked) > _MAX_ERRORS:
        yield f"{count_text(sum(count for _, count in ranked[_MAX_ERRORS:]), 'other error')}"
    if snapshot.checksum_failures:
        yield f"{snapshot.checksum_failures:,} bad CRC"
    if snapshot.malformed:
        yield f"{snapshot.malformed:,} malformed ({_bytes(snapshot.malformed_bytes)})"
    if snapshot.missed_frames:
        yield f"{count_text(snapshot.missed_frames, 'frame')} not shown"
    if snapshot.gaps:
        yield f"{count_text(snapshot.gaps, 'gap')} ({_bytes(snapshot.missed_bytes)})"


def _line(*parts: tuple[str, str], width: int) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    for style, text in parts:
        line.append(text, style)
    line.truncate(width, overflow="ellipsis")
    return line


# -- tables


def _table(
    columns: list[Column], rows: list[Any], row_count: int, total: int, width: int
) -> list[RenderableType]:
    """Render a blank line and a table of the first `row_count` of `total` rows; nothing if there are none."""
    if not rows:
        return []
    row_count = min(row_count, len(rows))
    texts, widths = measure(columns, rows[:row_count])
    indices = list(range(len(columns)))
    while (room := width - sum(widths[i] + GAP for i in indices[1:])) < min(widths[0], _MIN_NAME):
        if not drop(columns, indices):
            break
    widths[0] = min(widths[0], max(room, 1))
    table = grid()
    for i in indices:
        table.add_column(
            Text(columns[i].title, "bold" if i == 0 else "dim"),
            justify="right" if i else "left",
            width=widths[i],
            no_wrap=True,
        )
    for row in texts:
        cells = [Text(shorten(row[0], widths[0]), columns[0].style)]
        cells += [Text(row[i], "dim" if row[i] in ("0", "-") else columns[i].style) for i in indices[1:]]
        table.add_row(*cells)
    note = [Text(f"… and {total - row_count:,} more", "dim")] if total > row_count else []
    return [Text(), table, *note]


def shorten(text: str, width: int) -> str:
    """Shorten `text` in the middle to at most `width` cells."""
    if cell_len(text) <= width:
        return text
    head, tail = text, text
    while cell_len(head) > max(width - 1, 0) // 2:
        head = head[:-1]
    while tail and cell_len(tail) > width - 1 - cell_len(head):
        tail = tail[1:]
    return f"{head}…{tail}"


def _latency_rows(snapshot: Snapshot, recent: bool) -> Iterator[tuple[str, int, dict[str, int] | None]]:
    """Yield rows of latencies, the most frequent first: name, count, percentiles."""

    def row(name: str, times: Times) -> tuple[str, int, dict[str, int] | None]:
        return name, times.count, times.recent if recent else times.whole

    if snapshot.publishes.count:
        yield row("SEND", snapshot.publishes)
    for name, times in sorted(snapshot.requests.items(), key=lambda item: (-item[1].count, item[0])):
        yield row(name, times)


def _quantile(name: str) -> Callable[[Any], str]:
    return lambda row: human_time(row[2][name]) if row[2] else "-"


def _permits(row: Any) -> str:
    return f"{'' if row.backlog.exact else '~'}{row.backlog.permits:,}"


def _ends(row: ConnectionRow) -> str:
    ends = f"{row.client} → {row.server}" if row.client or row.server else "?"
    return f"{row.index} {ends}" if row.is_open else f"{row.index} {ends} (ended)"


_BACKLOG: Final = [
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
    *_BACKLOG,
]
_CONNECTION: Final = [
    Column("connection", _ends, 0, "cyan"),
    Column("to broker", lambda row: f"{_bytes(row.to_broker.bytes_per_s)}/s"),
    Column("to client", lambda row: f"{_bytes(row.to_client.bytes_per_s)}/s"),
    Column("sent", lambda row: _bytes(row.to_broker.size), 5),
    Column("received", lambda row: _bytes(row.to_client.size), 5),
    *_BACKLOG,
]
_LATENCY: Final = [
    Column("latency", lambda row: row[0], 0, "cyan"),
    Column("count", lambda row: f"{row[1]:,}"),
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
