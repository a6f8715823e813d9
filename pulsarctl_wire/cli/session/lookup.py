"""`pwire lookup`, `partitions`, `topics` and `watch`: a topic's broker and partitions, and all topics."""

from __future__ import annotations

import re
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, Final, Literal

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.options import OUTPUT
from pulsarctl_wire.cli.session.verb import Session, parse_namespace, parse_topic
from pulsarctl_wire.cli.signature import argument, flag, option
from pulsarctl_wire.render.text import Paint, clean, human_time

Output = Literal["text", "json"]
"""How answers are shown."""
Mode = Literal["persistent", "non-persistent", "all"]
"""Which topics to list."""
Change = tuple[str, str]
"""What happened ("added", "removed", or "ended": the watch has failed), and the topic."""

TOPIC: Final = partial(argument, "TOPIC", "orders, tenant/namespace/orders or persistent://…")
NAMESPACE: Final = partial(
    argument, "NAMESPACE", "tenant/namespace", default="public/default", show_default=True
)
REGEX: Final = partial(option, "--regex PATTERN", "Only topics whose tenant/namespace/topic matches.")


def say(record: dict[str, Any], text: str, output: Output) -> None:
    """Print an answer on stdout, as text or as a line of JSON."""
    if output == "json":
        from pulsarctl_wire.render.jsonl import json_line

        sys.stdout.buffer.write(json_line(record))
    else:
        sys.stdout.write(text + "\n")
    sys.stdout.flush()


@dataclass(frozen=True, kw_only=True)
class LookupOptions:
    """The options of `lookup`."""

    topic: str = TOPIC()
    connect: bool = flag("--connect", "Also connect to the broker that was found, and print its version.")
    output: Output = OUTPUT(default="text")


async def lookup(session: Session, options: LookupOptions) -> None:
    """Find the broker that serves a topic, and show every hop on the way."""
    name = parse_topic(options.topic)
    paint = Paint(console.has_colour(sys.stdout))
    async with session.make_client() as client:
        hop = None
        async for hop in client.trace_lookup(name):
            record = {
                "topic": name,
                "asked": str(hop.asked),
                "asked_authoritatively": hop.authoritative,
                "response": hop.response,
                "broker_service_url": hop.url or None,
                "broker_service_url_tls": hop.url_tls or None,
                "authoritative": hop.says_authoritative,
                "proxy_through_service_url": hop.through_proxy,
                "latency_ns": hop.latency_ns,
            }
            if hop.call:  # a lookup over HTTP
                record |= {"request": hop.call, "status": hop.status}
            flags = [name for name in ("authoritative", "proxy_through_service_url") if record[name]]
            style = "yellow" if hop.response == "Redirect" else "green"
            urls = ", ".join(clean(url) for url in (hop.url, hop.url_tls) if url)
            about = f" ({', '.join(flags)})" if flags else ""
            answer = f"{hop.status} {hop.response}" if hop.call else hop.response
            question = f"{hop.asked} {clean(hop.call)}".rstrip()
            text = f"{question} → {paint(style, answer)} {urls}{about} {human_time(hop.latency_ns)}"
            say(record, text, options.output)
        assert hop is not None
        if options.connect:
            broker = client.find_broker(hop)
            link = await client.open_link(broker)
            record = {"connected": str(broker.address), "proxy_to": broker.proxy_to or None}
            peer = link.protocol
            record |= {"server": peer.server, "protocol_version": peer.server_version}
            record |= {"max_message_size": peer.max_message_size, "local": link.connection.client}
            through = f" through the proxy to {clean(broker.proxy_to)}" if broker.proxy_to else ""
            about = f"protocol version {peer.server_version}, messages up to {peer.max_message_size} bytes"
            text = f"connected to {broker.address}{through}: {clean(peer.server)}, {about}"
            say(record, text, options.output)


@dataclass(frozen=True, kw_only=True)
class PartitionsOptions:
    """The options of `partitions`."""

    topic: str = TOPIC()
    output: Output = OUTPUT(default="text")


async def partitions(session: Session, options: PartitionsOptions) -> None:
    """Print how many partitions a topic has, and their names; 0 if it is not partitioned."""
    from pulsarctl_wire.wire.names import partition_name

    name = parse_topic(options.topic)
    async with session.make_client() as client:
        count = await client.count_partitions(name, create=False)
    names = [partition_name(name, index) for index in range(count)]
    text = "\n".join([f"{name}: {count} partitions", *(f"  {partition}" for partition in names)])
    say({"topic": name, "partitions": count, "names": names}, text, options.output)


@dataclass(frozen=True, kw_only=True)
class TopicsOptions:
    """The options of `topics`."""

    namespace: str = NAMESPACE()
    regex: str | None = REGEX()
    mode: Mode = option("--mode", "Which topics to list.", default="persistent")
    output: Output = OUTPUT(default="text")


async def topics(session: Session, options: TopicsOptions) -> None:
    """List the topics of a namespace, one per line; each partition is listed."""
    from pulsarctl_wire.net.session.watch import list_topics

    name = parse_namespace(options.namespace)
    async with session.make_client() as client:
        names = await list_topics(
            client, name, mode=options.mode, pattern=check_pattern(options.regex), exists=True
        )
    for topic in names:
        say({"topic": topic}, clean(topic), options.output)


def check_pattern(pattern: str | None) -> str | None:
    """Return `pattern`. If it is not a regular expression, end the command."""
    try:
        if pattern is not None:
            re.compile(pattern)
    except re.error as error:
        console.fail(f"{pattern}: not a regular expression: {error}")
    return pattern


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """The options of `watch`."""

    namespace: str = NAMESPACE()
    regex: str | None = REGEX()
    count: int | None = option("-c --count N", "End after N changes.", min=1)
    seconds: float | None = option("--for SECONDS", "End after this time.", min=0)
    output: Output = OUTPUT(default="text")


async def watch(session: Session, options: WatchOptions) -> None:
    """List the topics of a namespace, then print + for new and - for deleted ones until Ctrl-C."""
    import asyncio

    from pulsarctl_wire.net.session.watch import POLL_PAUSE, TopicWatch

    name = parse_namespace(options.namespace)
    pattern = check_pattern(options.regex) or ".*"
    changes: asyncio.Queue[Change] = asyncio.Queue()
    paint = Paint(console.has_colour(sys.stdout))

    def show(event: str, topic: str) -> None:
        record = {"time_ns": time.time_ns(), "event": event, "topic": topic}
        sign = paint("red", "-") if event == "removed" else paint("green", "+")
        say(record, f"{sign} {clean(topic)}", options.output)

    def queue_changes(new_topics: list[str], deleted_topics: list[str]) -> None:
        for event, topics in (("added", new_topics), ("removed", deleted_topics)):
            for topic in topics:
                changes.put_nowait((event, topic))
        if topic_watch.error is not None:
            changes.put_nowait(("ended", ""))

    async def follow() -> None:
        for _ in repeat(None) if options.count is None else range(options.count):
            event, topic = await changes.get()
            if topic_watch.error is not None and event == "ended":
                raise topic_watch.error
            show(event, topic)

    async with session.make_client() as client:
        topic_watch = TopicWatch(client, name, pattern, queue_changes)
        for topic in await topic_watch.open():
            show("present", topic)
        if topic_watch.polls:
            console.warn(
                "the broker does not report changes (it has no topic watchers, or the pattern is too long "
                f"for them): it is polled every {POLL_PAUSE:g} s"
            )
        with suppress(asyncio.CancelledError, TimeoutError, asyncio.TimeoutError):  # Ctrl-C is a normal end
            await asyncio.wait_for(follow(), options.seconds)
        await topic_watch.close()
