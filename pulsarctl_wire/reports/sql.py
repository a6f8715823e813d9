"""Common parts of all reports, as SQL: literals, time buckets, percentiles, which frames are chosen.

The SQL is what Spark and DuckDB have in common. DuckDB has macros for the others (`data/duck.py`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pulsarctl_wire.errors import QueryError
from pulsarctl_wire.wire.names import full_topic

SECOND: Final = 1_000_000_000
"""Nanoseconds in a second."""

_UNITS: Final = {"us": 10**3, "ms": 10**6, "s": SECOND, "m": 60 * SECOND, "h": 3600 * SECOND}

PERCENTILES: Final = {"p50": 500, "p90": 900, "p99": 990, "p999": 999}
"""Name -> rank in thousandths, as in `pwire stats`."""


@dataclass(frozen=True)
class Options:
    """Options of a report. None: the report's default.

    `bucket_ns` is the width of a time bucket; buckets are counted from the epoch. `top` is the maximum number
    of rows, for reports that are sorted by size. `key` is what `journey` follows: a message's key, or its id
    as LEDGER:ENTRY. `first` is how many connection numbers the first table has, for `compare`.
    """

    bucket_ns: int | None = None
    top: int | None = None
    key: str | None = None
    first: int = 0


@dataclass(frozen=True)
class Choice:
    """Which rows of a table are read: times in ns, from `since` up to but without `until`.

    `topic` is a name in any spelling (with its partitions), or a pattern with * and ?. None: all.
    """

    topic: str | None = None
    since: int | None = None
    until: int | None = None
    cluster: str | None = None

    def frames(self) -> str:
        """The condition for frames, and for messages."""
        return " AND ".join([*self._common(), *self._about_topic()]) or "true"

    def gaps(self) -> str:
        """The condition for gaps. They have no topic: those of the connections that carry it are chosen."""
        return " AND ".join([*self._common(), *self._carrying()]) or "true"

    def connections(self) -> str:
        """The condition for connections: those that were open then."""
        return " AND ".join([*self._common("last_ns"), *self._carrying()]) or "true"

    def findings(self) -> str:
        """The condition for findings: those that reach into that time."""
        times = [
            *([f"last_ns >= {self.since}"] if self.since is not None else []),
            *([f"first_ns < {self.until}"] if self.until is not None else []),
        ]
        return " AND ".join([*times, *self._about_topic()]) or "true"

    def labelled(self) -> str:
        """The condition for all rows with the label, of whatever topic and time."""
        return " AND ".join(self._with_label()) or "true"

    def _with_label(self) -> list[str]:
        return [f"cluster = {literal(self.cluster)}"] if self.cluster is not None else []

    def _about_topic(self) -> list[str]:
        return [f"rlike(topic, {literal(topic_pattern(self.topic))})"] if self.topic else []

    def _carrying(self) -> list[str]:
        return ["connection IN (SELECT connection FROM frames)"] if self.topic else []

    def _common(self, last: str = "time_ns") -> list[str]:
        return [
            *([f"{last} >= {self.since}"] if self.since is not None else []),
            *([f"time_ns < {self.until}"] if self.until is not None else []),
            *self._with_label(),
        ]


def nanoseconds(text: str) -> int:
    """Parse the width of a bucket, such as 500ms or 1.5s, in ns. Raises QueryError if it is none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s|m|h)", text.strip().replace("µ", "u"))
    width = round(float(match[1]) * _UNITS[match[2]]) if match else 0
    if not 1000 <= width <= 10**18:
        raise QueryError(f"{text}: use a time such as 500ms, 1s, 5m or 1h")
    return width


def topic_pattern(topic: str) -> str:
    """A regular expression, for Java and RE2, that matches the full names of what `topic` names."""
    if re.search(r"[*?\[]", topic):
        return f"^(?s:{_regex(topic if '://' in topic else f'*://*{topic}')})$"
    return f"^{_quoted(full_topic(topic))}(-partition-(0|[1-9][0-9]*))?$"


def _regex(glob: str) -> str:
    parts = re.split(r"(\*|\?|\[[^\]]+\])", glob)
    special = {"*": ".*", "?": "."}
    return "".join(
        special.get(part) or (part.replace("[!", "[^") if part[:1] == "[" else _quoted(part))
        for part in parts
    )


def _quoted(text: str) -> str:
    return re.sub(r"([^\w/:-])", r"\\\1", text)


def literal(text: str) -> str:
    """A text as SQL that means the same to both engines, which differ about quotes and backslashes."""
    parts = re.split(r"(['\\])", text)
    pieces = [f"chr({ord(part)})" if part in ("'", "\\") else f"'{part}'" for part in parts if part]
    return f"concat({', '.join(pieces)})" if len(pieces) > 1 else (pieces or ["''"])[0]


def count_if(condition: str) -> str:
    """How many rows meet a condition, as SQL. (SQL's own count_if may be null in DuckDB.)"""
    return f"count(CASE WHEN {condition} THEN 1 END)"


def bucket(width_ns: int, of: str = "time_ns") -> str:
    """The start of the time bucket of a column, as SQL."""
    return f"{of} - pmod({of}, {width_ns})"


def by_bucket(options: Options) -> dict[str, str]:
    """`time_ns` -> the start of its bucket; nothing if there are no buckets."""
    return {"time_ns": bucket(options.bucket_ns)} if options.bucket_ns else {}


def address(end: str) -> str:
    """The address of a frame's "src" or "dst": 10.0.0.7:43118, [::1]:6650; null if it has none."""
    host, port = f"{end}_ip", f"{end}_port"
    return (
        f"CASE WHEN {host} LIKE '%:%' THEN '[' || {host} || ']:' || {port} ELSE {host} || ':' || {port} END"
    )


def percentiles(
    source: str,
    by: Mapping[str, str] | Sequence[str],
    *,
    also: Mapping[str, str] | None = None,
    order: str | None = None,
) -> str:
    """Exact percentiles of each group's `latency_ns`, by nearest rank: the smallest with enough at or below.

    `source` is what follows FROM; `by` are the columns to group by, maybe with their SQL. Nulls are not
    counted. `also` are more columns: aggregates that can be summed. Equal values are counted first, so that
    fewer rows are sorted. Without `order` the rows are ordered by time, then by count.
    """
    by = by if isinstance(by, Mapping) else {name: name for name in by}
    names = ", ".join(by)
    also = also or {}
    columns = "".join(f"{value} AS {name}, " for name, value in by.items())
    sums = "".join(f", {value} AS {name}" for name, value in also.items())
    places = ", ".join(str(place) for place in range(1, len(by) + 2))
    ranks = "".join(
        f"min(CASE WHEN up_to * 1000 >= total * {part} THEN latency_ns END) AS {name}_ns, "
        for name, part in PERCENTILES.items()
    )
    return f"""
        WITH counted AS (
            SELECT {columns}latency_ns, count(latency_ns) AS number{sums} FROM {source} GROUP BY {places}
        ),
        ranked AS (
            SELECT *, sum(number) OVER (PARTITION BY {names}) AS total,
                sum(number) OVER (PARTITION BY {names} ORDER BY latency_ns ROWS UNBOUNDED PRECEDING) AS up_to
            FROM counted
        )
        SELECT {names}, max(total) AS count, {ranks}max(latency_ns) AS max_ns{
        "".join(f", sum({name}) AS {name}" for name in also)
    }
        FROM ranked GROUP BY {names} ORDER BY {order or _first(by)}"""


def _first(by: Mapping[str, str]) -> str:
    """The order of groups: by bucket, if any, then the largest count first."""
    times = ["time_ns"] if "time_ns" in by else []
    return ", ".join([*times, "count DESC", *(name for name in by if name != "time_ns")])
