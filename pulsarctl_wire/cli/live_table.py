"""`--stats`: live counters on the terminal, drawn anew whenever somebody says so.

    heading       how long, connections, rates and counts of both directions, what went wrong
    topics        the busiest: messages a second, what waits
    connections   the busiest
    latencies     publishes and requests of the last seconds

Where stderr is a terminal the page stays in its place and is as high and as wide as that: fewer rows are
shown where there is little room, then columns that matter less go. Where it is none, nothing is drawn until
the end, when one page of plain text tells of the whole time. What stderr does not take is not said.
Names come from the traffic: control characters in them are escaped, long ones are cut in the middle, for
partitions are told apart by their ends.
"""

import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any, Final, NamedTuple

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live as Drawn
from rich.table import Table
from rich.text import Text

from pulsarctl_wire.cli.console import clean, human_bytes, human_time, rich_console
from pulsarctl_wire.stats.snapshot import Backlog, ConnectionRow, Snapshot, Times, TopicRow, Traffic

_PLAIN_WIDTH: Final = 160
_MOST_ROWS: Final = 20  # where the height does not say
_AROUND: Final = 3  # lines of a table beside its rows
_LEAST_ROWS: Final = 2
_LEAST_NAME: Final = 33  # cells: two IPv4 addresses with ports
_GAP: Final = 2
_ERRORS: Final = 4  # codes that are named
_SECOND: Final = 1_000_000_000
_PERSISTENT: Final = "persistent://"


class LiveTable:
    """Shows snapshots on stderr until `stack` closes; then the last page is shown, and stays.

    `snapshot` makes one at a time in ns since the epoch, which is what `clock` gives.
    """

    def __init__(
        self,
        snapshot: Callable[[int], Snapshot],
        stack: ExitStack,
        *,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._snapshot = snapshot
        self._clock = clock
        self._console = rich_console(sys.stderr)
        self._drawn: Drawn | None = None
        stack.callback(self._end)
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            drawn = Drawn(
                console=self._console,
                auto_refresh=False,
                transient=True,
                vertical_overflow="crop",
                redirect_stdout=False,
            )
            with suppress(OSError):
                drawn.start()  # what is said on sys.stderr meanwhile appears above the page
                self._drawn = drawn

    def refresh(self, now_ns: int) -> None:
        """Draw the page anew, on a terminal; call it twice a second or so."""
        if self._drawn is not None:
            size = self._console.size
            shown = page(self._snapshot(now_ns), size.width, size.height - 1, recent=True)
            self._drawn.update(shown, refresh=True)

    def _end(self) -> None:
        """The last page, of the whole time, stays."""
        width = _PLAIN_WIDTH
        if self._drawn is not None:
            width = self._console.width
            with suppress(OSError):
                self._drawn.stop()
        shown = page(self._snapshot(self._clock()), width, 0, recent=False)
        with suppress(OSError):
            sys.stderr.write(text_of(shown, width, self._console.color_system))
            sys.stderr.flush()


def text_of(shown: RenderableType, width: int, color_system: str | None = None) -> str:
    """A page as text, `width` cells wide; without escapes if there is no `color_system`."""
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color_system is not None,
        color_system=color_system,  # type: ignore[arg-type]
        no_color=False,
        legacy_windows=False,
    )
    with console.capture() as capture:
        console.print(shown)
    return "".join(line.rstrip() + "\n" for line in capture.get().splitlines())


def page(found: Snapshot, width: int, height: int, *, recent: bool) -> RenderableType:
    """The page of a snapshot, at most `width` cells wide and `height` lines high.

    If `height` is 0, tables have up to `_MOST_ROWS`. Rates and latencies are those of the last seconds if
    `recent`, else of the whole time.
    """
    if not recent:
        found = found.averaged()
    heading = list(_heading(found, width))
    times = list(_times(found, recent))
    latencies = connections = topics = _MOST_ROWS
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
    opened = f"{found.open_connections:,} open of {_count(found.all_connections, 'connection')}"
    owners = f"{_count(backlog.producers, 'producer')}, {_count(backlog.consumers, 'consumer')}"
    yield _line(("bold", _clock_text(seconds)), ("", f"  {opened}, {owners}"), width=width)
    for name, traffic in (("to broker", found.to_broker), ("to client", found.to_client)):
        yield _line(
            ("dim", f"{name}  "),
            ("cyan", f"{_rate(traffic.messages_per_s):>7} msg/s "),
            ("cyan", f"{_bytes(traffic.bytes_per_s):>9}/s "),
            ("", f"{_rate(traffic.frames_per_s):>7} frames/s"),
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
        yield f"{_count(sum(count for _, count in ranked[_ERRORS:]), 'other error')}"
    if found.checksum_failures:
        yield f"{found.checksum_failures:,} bad CRC"
    if found.malformed:
        yield f"{found.malformed:,} malformed ({_bytes(found.malformed_bytes)})"
    if found.missed_frames:
        yield f"{_count(found.missed_frames, 'frame')} not shown"
    if found.gaps:
        yield f"{_count(found.gaps, 'gap')} ({_bytes(found.missed_bytes)})"


def _line(*parts: tuple[str, str], width: int) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    for style, text in parts:
        line.append(text, style)
    line.truncate(width, overflow="ellipsis")
    return line


# -- tables


class _Column(NamedTuple):
    """A column: its title, the text of a row, how soon it goes where there is no room (0: never)."""

    title: str
    text: Callable[[Any], str]
    rank: int = 0
    style: str = ""


def _table(
    columns: list[_Column], rows: list[Any], shown: int, all_rows: int, width: int
) -> list[RenderableType]:
    """The first `shown` of `rows`, of which there are `all_rows`, below a blank line; nothing of none."""
    if not rows:
        return []
    shown = min(shown, len(rows))
    texts = [[clean(column.text(row)) for column in columns] for row in rows[:shown]]
    widths = [
        max(cell_len(column.title), *(cell_len(row[at]) for row in texts))
        for at, column in enumerate(columns)
    ]
    kept = list(range(len(columns)))
    while (room := width - sum(widths[at] + _GAP for at in kept[1:])) < min(widths[0], _LEAST_NAME):
        droppable = [at for at in kept if columns[at].rank]
        if not droppable:
            break
        kept.remove(max(droppable, key=lambda at: columns[at].rank))
    widths[0] = min(widths[0], max(room, 1))
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
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
    """`text` in at most `width` cells: a long one loses its middle."""
    if cell_len(text) <= width:
        return text
    head, tail = text, text
    while cell_len(head) > max(width - 1, 0) // 2:
        head = head[:-1]
    while tail and cell_len(tail) > width - 1 - cell_len(head):
        tail = tail[1:]
    return f"{head}…{tail}"


def _times(found: Snapshot, recent: bool) -> Iterator[tuple[str, int, dict[str, int] | None]]:
    """What was timed, the most frequent first: name, how often, percentiles."""

    def row(name: str, times: Times) -> tuple[str, int, dict[str, int] | None]:
        return name, times.count, times.recent if recent else times.whole

    if found.publishes.count:
        yield row("SEND", found.publishes)
    for name, times in sorted(found.requests.items(), key=lambda item: (-item[1].count, item[0])):
        yield row(name, times)


def _quantile(name: str) -> Callable[[Any], str]:
    return lambda row: human_time(row[2][name]) if row[2] else "-"


def _of_backlog(value: Callable[[Backlog], int]) -> Callable[[Any], str]:
    return lambda row: f"{value(row.backlog):,}"


def _permits(row: Any) -> str:
    return f"{'' if row.backlog.exact else '~'}{row.backlog.permits:,}"


def _topic_bytes(row: TopicRow) -> str:
    return f"{_bytes(row.sent.bytes_per_s + row.delivered.bytes_per_s)}/s"


def _ends(row: ConnectionRow) -> str:
    ends = f"{row.client} → {row.server}" if row.client or row.server else "?"
    return f"{row.index} {ends}" if row.is_open else f"{row.index} {ends} (ended)"


def _flow(traffic: Callable[[ConnectionRow], Traffic]) -> Callable[[Any], str]:
    return lambda row: f"{_bytes(traffic(row).bytes_per_s)}/s"


_WAITING: Final = [
    _Column("prod", _of_backlog(lambda each: each.producers), 3),
    _Column("cons", _of_backlog(lambda each: each.consumers), 3),
    _Column("pending", _of_backlog(lambda each: each.pending_sends), 0, "yellow"),
    _Column("permits", _permits, 1),
    _Column("unacked", _of_backlog(lambda each: each.unacked), 2),
    _Column("errors", lambda row: f"{row.errors:,}", 2, "bold red"),
]

_TOPIC: Final = [
    _Column("topic", lambda row: str(row.topic).removeprefix(_PERSISTENT), 0, "cyan"),
    _Column("in/s", lambda row: _rate(row.sent.messages_per_s)),
    _Column("out/s", lambda row: _rate(row.delivered.messages_per_s)),
    _Column("bytes/s", _topic_bytes, 4),
    _Column("in", lambda row: f"{row.sent.messages:,}", 5),
    _Column("out", lambda row: f"{row.delivered.messages:,}", 5),
    *_WAITING,
]
_CONNECTION: Final = [
    _Column("connection", _ends, 0, "cyan"),
    _Column("to broker", _flow(lambda row: row.to_broker)),
    _Column("to client", _flow(lambda row: row.to_client)),
    _Column("sent", lambda row: _bytes(row.to_broker.size), 5),
    _Column("received", lambda row: _bytes(row.to_client.size), 5),
    *_WAITING,
]
_LATENCY: Final = [
    _Column("latency", lambda row: row[0], 0, "cyan"),
    _Column("times", lambda row: f"{row[1]:,}"),
    _Column("p50", _quantile("p50")),
    _Column("p90", _quantile("p90"), 2),
    _Column("p99", _quantile("p99")),
    _Column("p99.9", _quantile("p999"), 2),
    _Column("max", _quantile("max"), 1),
]


# -- texts


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _bytes(size: float) -> str:
    return human_bytes(round(size))


def _clock_text(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
