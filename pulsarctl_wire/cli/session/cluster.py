"""`pwire cluster`: lists brokers, topics, partitions and who serves them, like `kcat -L`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.options import OUTPUT
from pulsarctl_wire.cli.session.lookup import REGEX, Mode, Output, check_pattern, say
from pulsarctl_wire.cli.session.verb import Session, parse_namespace
from pulsarctl_wire.cli.signature import argument, option
from pulsarctl_wire.errors import BrokerError, SessionError
from pulsarctl_wire.render.text import clean, count_of

if TYPE_CHECKING:
    from pulsarctl_wire.net.session.client import Client

MAX_TOPICS: Final = 10_000
"""Maximum number of topics and partitions whose owners are looked up."""


class _Ownership(NamedTuple):
    """A topic or partition, with the broker that serves it, or the error of the lookup."""

    topic: str
    partition: int | None
    owner: str | None
    error: SessionError | None


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """The options of `cluster`."""

    service: str | None = argument("[URL]", "Service URL; same as --url.", default=None)
    namespace: str = option(
        "--namespace NAMESPACE", "The namespace, as tenant/namespace.", default="public/default"
    )
    regex: str | None = REGEX()
    mode: Mode = option("--mode", "Which topics to list.", default="persistent")
    output: Output = OUTPUT(default="text")


async def cluster(session: Session, options: ClusterOptions) -> int:
    """List the brokers seen, the topics of a namespace, their partitions, and who serves them.

    Owners are found with LOOKUP, which also assigns topics without an owner to a broker.
    """
    from pulsarctl_wire.net.session.client import run_each
    from pulsarctl_wire.net.session.watch import list_topics

    name = parse_namespace(options.namespace)
    if options.service is not None:
        session.options = replace(session.options, url=options.service)
    async with session.make_client() as client:
        names = await list_topics(
            client, name, mode=options.mode, pattern=check_pattern(options.regex), exists=True
        )
        counts = await _count_partitions(client, names)
        partitions = islice(_list_partitions(counts), MAX_TOPICS)
        ownerships = await run_each(partitions, lambda partition: _find_owner(client, *partition))
        link = await client.open_service_link()
        peer = link.protocol
        summary = {"asked": str(link.address), "server": peer.server, "protocol_version": peer.server_version}
    _show(summary | {"namespace": name}, counts, ownerships, options.output)
    total = sum(max(count, 1) for count in counts.values())
    if total > MAX_TOPICS:
        console.warn(f"{total - MAX_TOPICS} more topics and partitions: their owners were not looked up")
    return next((console.find_code(entry.error) for entry in ownerships if entry.error is not None), 0)


async def _count_partitions(client: Client, names: list[str]) -> dict[str, int]:
    """Return the partition count of each topic; 0: not partitioned. `names` has each partition by itself."""
    from pulsarctl_wire.net.session.client import run_each
    from pulsarctl_wire.wire.names import partition_index, without_partition

    async def ask(topic: str) -> int:
        try:
            return await client.count_partitions(topic, create=False)
        except BrokerError as error:
            if error.code != "TopicNotFound":
                raise
            return 0  # the names only look like those of partitions

    topics = list(dict.fromkeys(without_partition(name) for name in names if partition_index(name) >= 0))
    partition_counts = dict(zip(topics, await run_each(topics, ask), strict=True))
    counts = {}
    for topic in names:
        parent = without_partition(topic)
        if partition_index(topic) >= 0 and partition_counts[parent]:
            counts[parent] = partition_counts[parent]
        else:
            counts[topic] = 0
    return counts


def _list_partitions(counts: dict[str, int]) -> Iterator[tuple[str, int | None]]:
    for topic, count in counts.items():
        yield from ((topic, index) for index in range(count)) if count else [(topic, None)]


async def _find_owner(client: Client, topic: str, partition: int | None) -> _Ownership:
    from pulsarctl_wire.wire.names import partition_name

    name = topic if partition is None else partition_name(topic, partition)

    async def look_up() -> str:
        *_, last = [hop async for hop in client.trace_lookup(name)]
        urls = (last.url_tls, last.url) if client.settings.url.tls else (last.url, last.url_tls)
        return urls[0] or urls[1]

    try:
        return _Ownership(topic, partition, await client.retry(look_up, f"LOOKUP of {name}"), None)
    except SessionError as error:
        return _Ownership(topic, partition, None, error)


def _show(
    summary: dict[str, Any], counts: dict[str, int], ownerships: list[_Ownership], output: Output
) -> None:
    brokers = Counter(entry.owner for entry in ownerships if entry.owner is not None)
    rows: dict[str, list[_Ownership]] = {topic: [] for topic in counts}
    for entry in ownerships:
        rows[entry.topic].append(entry)
    if output == "json":
        for topic, parts in rows.items():
            owners = [
                {
                    "partition": part.partition,
                    "broker_service_url": part.owner,
                    "error": None if part.error is None else str(part.error),
                }
                for part in parts
            ]
            say({"topic": topic, "partitions": counts[topic], "owners": owners}, "", output)
        say(summary | {"topics": len(counts), "brokers": dict(brokers)}, "", output)
        return
    lines = ["{asked}: {server}, protocol version {protocol_version}".format_map(summary)]
    lines.append(count_of(len(brokers), "broker"))
    lines += [f"  {url} serves {count}" for url, count in sorted(brokers.items())]
    lines.append(f"{count_of(len(counts), 'topic')} of {summary['namespace']}")
    for topic, parts in rows.items():
        if counts[topic]:
            lines.append(f"  {topic}, {count_of(counts[topic], 'partition')}")
        indent = f"  {topic} " if not counts[topic] else "    "
        for part in parts:
            number = "" if part.partition is None else f"{part.partition} "
            lines.append(f"{indent}{number}→ {part.owner or f'unknown: {part.error}'}")
    say({}, "\n".join(map(clean, lines)), output)
