"""Common parts of all reports, as SQL: literals, time buckets, percentiles, which frames are chosen.

Spark and DuckDB both run this SQL. Functions that only Spark has are macros in DuckDB (`data/duck.py`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pulsarctl_wire.errors import QueryError
from pulsarctl_wire.wire.names import full_topic

SECOND: Final = 1_000_000_000
"""Nanoseconds in a second."""

HOUR: Final = 3600 * SECOND
"""Nanoseconds in an hour."""

DAY: Final = 24 * HOUR
"""Nanoseconds in a day."""

_UNITS: Final = {"us": 10**3, "ms": 10**6, "s": SECOND, "m": 60 * SECOND, "h": 3600 * SECOND}

PERCENTILES: Final = {"p50": 500, "p90": 900, "p99": 990, "p999": 999}
"""Name -> rank in thousandths, as in `pwire stats`."""


_GLOB: Final = re.compile(r"[*?\[]")

TENANT: Final = "nullif(regexp_extract(topic, '^[^:/]+://([^/]+)/', 1), '')"
"""The tenant of a row's topic."""
NAMESPACE: Final = "nullif(regexp_extract(topic, '^[^:/]+://(.+)/', 1), '')"
"""The namespace of a row's topic, as TENANT/NAMESPACE."""
PRODUCER: Final = "coalesce(producer, metadata.producer_name)"
"""The name of a frame's producer. SEND, its answers, and MESSAGE have one."""
CLIENT: Final = "CASE WHEN to_broker THEN src_ip ELSE dst_ip END"
"""The address of a frame's client, without its port."""


class Window(NamedTuple):
    """A span of time, in ns: from `since` up to but without `until`."""

    since: int
    until: int

    def has(self) -> str:
        """Return the condition for rows in it."""
        return f"time_ns >= {self.since} AND time_ns < {self.until}"


@dataclass(frozen=True)
class Options:
    """Options of a report. None: the report's default.

    `bucket_ns` is the width of a time bucket; buckets are counted from the epoch. `top` is the maximum number
    of rows, for reports that are sorted by size. `key` is what `journey` follows: a message's key, or its id
    as LEDGER:ENTRY. `by` has the names in `BY` that rows are grouped by. `first` is how many connection
    numbers the first table has, for `compare`. `compare` and `unusual` compare `window` with `against`.
    """

    bucket_ns: int | None = None
    top: int | None = None
    key: str | None = None
    by: Sequence[str] = ()
    first: int = 0
    window: Window | None = None
    against: Window | None = None


@dataclass(frozen=True)
class Choice:
    """Which rows of a table are read: times in ns, from `since` up to but without `until`. None: all.

    `topic` is a name in any spelling (with its partitions), or a pattern with *, ? and […]. The others are
    exact names, or such patterns; `namespace` is TENANT/NAMESPACE, `client` an address, with its port or not.
    A frame is chosen if it has all these values. docs/reports.md says what is chosen of other rows.
    """

    topic: str | None = None
    since: int | None = None
    until: int | None = None
    cluster: str | None = None
    tenant: str | None = None
    namespace: str | None = None
    producer: str | None = None
    subscription: str | None = None
    client: str | None = None
    host: str | None = None

    def conditions(self) -> dict[str, str]:
        """Return view -> the condition for its rows, for the views that have a condition of their own."""
        common = [*self._common(), *self._about_topic()]
        ends = self._of_ends(producer=PRODUCER, client=client_address())
        conditions = {
            "frames": [*common, *ends],
            "followed": common,
            "messages": [*common, *self._of_ends(client=client_address())],
            "gaps": [*self._common(), *self._of_connections(client_address())],
            "connections": [*self._common("last_ns"), *self._of_connections(address("client"))],
            "findings": self._of_findings(),
            "consuming": [_in_chosen_frame("connection", "consumer_id")] if ends else [],
            "consumed": self._of_ends(client=None),
            "subscriptions": self._of_subscriptions(),
            "journeys": self._of_journeys(),
            "arrivals": self._of_ends(client="consumer_client"),
        }
        return {name: " AND ".join(parts) or "true" for name, parts in conditions.items()}

    def labelled(self) -> str:
        """Return the condition for all rows of the cluster and the host, of whatever topic and time."""
        return " AND ".join(self._with_label()) or "true"

    def _with_label(self) -> list[str]:
        label = [f"cluster = {literal(self.cluster)}"] if self.cluster is not None else []
        return [*label, *_matching("host", self.host)]

    def _about_topic(self) -> list[str]:
        return [
            *([f"rlike(topic, {literal(topic_pattern(self.topic))})"] if self.topic else []),
            *_matching(TENANT, self.tenant),
            *_matching(NAMESPACE, self.namespace),
        ]

    def _of_ends(
        self,
        producer: str | None = "producer",
        subscription: str | None = "subscription",
        client: str | None = "client",
    ) -> list[str]:
        """Return the conditions for producer, subscription and client, which not all frames of an entry have.

        A column that is None has no condition.
        """
        return [
            *(_matching(producer, self.producer) if producer else []),
            *(_matching(subscription, self.subscription) if subscription else []),
            *([f"rlike({client}, {literal(client_pattern(self.client))})"] if client and self.client else []),
        ]

    def _of_connections(self, client: str) -> list[str]:
        """Return the conditions for rows without topic: the client, and connections of chosen frames."""
        needs_frames = self._about_topic() or self.producer or self.subscription
        return [
            *(["connection IN (SELECT connection FROM frames)"] if needs_frames else []),
            *self._of_ends(None, None, client),
        ]

    def _of_findings(self) -> list[str]:
        """Return the conditions for findings, which need only overlap the chosen time."""
        return [
            *([f"last_ns >= {self.since}"] if self.since is not None else []),
            *([f"first_ns < {self.until}"] if self.until is not None else []),
            *self._about_topic(),
            *([_in_chosen_frame("connection", "producer_id")] if self.producer else []),
            *self._of_ends(producer=None),
        ]

    def _of_subscriptions(self) -> list[str]:
        """Return the conditions for subscriptions that chosen frames name or publish to."""
        if not (self.producer or self.client):
            return self._of_ends()
        published = "topic IN (SELECT topic FROM frames WHERE producer_id IS NOT NULL)"
        chosen_names = f"({_in_chosen_frame('topic', 'subscription')} OR {published})"
        return [chosen_names, *self._of_ends(producer=None, client=None)]

    def _of_journeys(self) -> list[str]:
        ends = [
            condition
            for name in ("producer_client", "consumer_client")
            for condition in self._of_ends(None, None, name)
        ]
        return [*self._of_ends(client=None), *([f"({' OR '.join(ends)})"] if ends else [])]

    def _common(self, last: str = "time_ns") -> list[str]:
        return [
            *([f"{last} >= {self.since}"] if self.since is not None else []),
            *([f"time_ns < {self.until}"] if self.until is not None else []),
            *self._with_label(),
        ]


def _matching(column: str, name: str | None) -> list[str]:
    """Return the condition for a name, or a pattern with *, ? and […]; none for None."""
    if name is None:
        return []
    if _GLOB.search(name):
        return [f"rlike({column}, {literal(f'^(?s:{_regex(name)})$')})"]
    return [f"{column} = {literal(name)}"]


def _in_chosen_frame(one: str, other: str) -> str:
    """Return the condition for rows whose values in two columns are those of a chosen frame."""
    return f"struct({one}, {other}) IN (SELECT struct({one}, {other}) FROM frames WHERE {other} IS NOT NULL)"


def nanoseconds(text: str) -> int:
    """Parse the width of a bucket, such as 500ms or 1.5s, in ns. Raises QueryError if it is none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s|m|h)", text.strip().replace("µ", "u"))
    width = round(float(match[1]) * _UNITS[match[2]]) if match else 0
    if not 1000 <= width <= 10**18:
        raise QueryError(f"{text}: use a time such as 500ms, 1s, 5m or 1h")
    return width


def topic_pattern(topic: str) -> str:
    """Return a regular expression, for Java and RE2, that matches the full names of what `topic` names."""
    if _GLOB.search(topic):
        return f"^(?s:{_regex(topic if '://' in topic else f'*://*{topic}')})$"
    return f"^{_quoted(full_topic(topic))}(-partition-(0|[1-9][0-9]*))?$"


def client_pattern(client: str) -> str:
    """Return a regular expression for ADDRESS:PORT that matches a client, with or without its port."""
    with_port = re.fullmatch(r"(\[.+\]|[^:]*):(\d+)", client)
    host, port = with_port.groups() if with_port else (client, "[0-9]+")
    address = host[1:-1] if re.fullmatch(r"\[[^][]*:[^][]*\]", host) else host
    return rf"^\[?{_regex(address)}\]?:{port}$"


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
    """Return a text as SQL that means the same to both engines, which differ about quotes and backslashes."""
    parts = re.split(r"(['\\])", text)
    pieces = [f"chr({ord(part)})" if part in ("'", "\\") else f"'{part}'" for part in parts if part]
    return f"concat({', '.join(pieces)})" if len(pieces) > 1 else (pieces or ["''"])[0]


def count_if(condition: str) -> str:
    """Return how many rows meet a condition, as SQL. (SQL's own count_if may be null in DuckDB.)"""
    return f"count(CASE WHEN {condition} THEN 1 END)"


def bucket(width_ns: int, column: str = "time_ns") -> str:
    """Return the start of the time bucket of a column, as SQL."""
    return f"{column} - pmod({column}, {width_ns})"


def by_bucket(options: Options) -> dict[str, str]:
    """Return `time_ns` -> the SQL of its bucket's start; empty if there are no buckets."""
    return {"time_ns": bucket(options.bucket_ns)} if options.bucket_ns else {}


def client_address() -> str:
    """Return the address of a frame's client, with its port."""
    return f"CASE WHEN to_broker THEN {address('src')} ELSE {address('dst')} END"


BY: Final = {
    "tenant": TENANT,
    "namespace": NAMESPACE,
    **{name: name for name in ("topic", "subscription", "producer", "client", "cluster")},
    "hour": bucket(HOUR),
}
"""What rows can be grouped by: name -> SQL."""
OF_FRAME: Final = {"producer": PRODUCER, "client": CLIENT, "host": "host", "command": "command"}
"""Entries for frames: some replace those of `BY`, others come in addition."""


def groups(options: Options, *default: str, **own: str) -> dict[str, str]:
    """Return column -> SQL of what a report groups by: the bucket, if any, then `options.by`, or `default`.

    `own` replaces and adds entries of `BY`. Hours are in the column `time_ns`. Raises QueryError for unknown
    names.
    """
    columns = {**BY, **own}
    if unknown := [name for name in options.by if name not in columns]:
        raise QueryError(f"by {unknown[0]}: use some of {', '.join(columns)}")
    names = options.by or default
    times = by_bucket(options) or ({"time_ns": columns["hour"]} if "hour" in names else {})
    return times | {name: columns[name] for name in names if name != "hour"}


def address(end: str) -> str:
    """Return the SQL of a frame's "src" or "dst": 10.0.0.7:43118, [::1]:6650; null if it has none."""
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
    """Select exact percentiles of each group's `latency_ns`, by nearest rank.

    That is the smallest value with enough values at or below it. `source` is what follows FROM; `by` are the
    columns to group by, maybe with their SQL. Nulls are not counted. `also` are more columns: aggregates that
    can be summed. Equal values are counted first, so that fewer rows are sorted. Without `order` the rows are
    ordered by time, then by count.
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
        FROM ranked GROUP BY {names} ORDER BY {order or _default_order(by)}"""


def _default_order(by: Mapping[str, str]) -> str:
    """Return the order of groups: by bucket, if any, then the largest count first."""
    times = ["time_ns"] if "time_ns" in by else []
    return ", ".join([*times, "count DESC", *(name for name in by if name != "time_ns")])
