"""`pwire lookup`, `partitions`, `topics`: who serves a topic, how it is cut up, what there is."""

from __future__ import annotations

import sys
from enum import Enum
from typing import Annotated, Any

import typer

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.options import OUTPUT
from pulsarctl_wire.cli.session import Session, namespace_name, topic_name


class Output(str, Enum):
    """How answers are shown."""

    text = "text"
    json = "json"


class Mode(str, Enum):
    """Which topics."""

    persistent = "persistent"
    non_persistent = "non-persistent"
    all = "all"


TOPIC = typer.Argument(
    metavar="TOPIC", help="orders, tenant/namespace/orders or persistent://…", show_default=False
)

NAMESPACE = typer.Argument(metavar="NAMESPACE", help="tenant/namespace")
REGEX = typer.Option(
    "--regex", metavar="PATTERN", help="Those whose whole name (tenant/namespace/topic) matches."
)


def say(record: dict[str, Any], text: str, output: Output) -> None:
    """Print an answer on stdout, as text or as a line of JSON."""
    if output is Output.json:
        from pulsarctl_wire.cli.jsonl import json_line

        sys.stdout.buffer.write(json_line(record))
    else:
        sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def lookup(
    session: Session,
    topic: Annotated[str, TOPIC],
    connect: Annotated[
        bool, typer.Option("--connect", help="Also connect to the broker that was found, and say what it is.")
    ] = False,
    output: Annotated[Output, OUTPUT] = Output.text,
) -> None:
    """Find the broker that serves a topic, and show every hop on the way."""
    name = topic_name(topic)
    paint = console.Paint(console.use_colour(sys.stdout))
    async with session.client() as client:
        hop = None
        async for hop in client.hops(name):
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
            flags = [
                *(["authoritative"] if hop.says_authoritative else []),
                *(["proxy_through_service_url"] if hop.through_proxy else []),
            ]
            style = "yellow" if hop.response == "Redirect" else "green"
            urls = ", ".join(console.clean(url) for url in (hop.url, hop.url_tls) if url)
            say(
                record,
                f"{hop.asked} → {paint(style, hop.response)} {urls}"
                f"{' (' + ', '.join(flags) + ')' if flags else ''} {console.human_time(hop.latency_ns)}",
                output,
            )
        assert hop is not None
        if connect:
            broker = client.broker_of(hop)
            link = await client.link(broker)
            record = {"connected": str(broker.address), "proxy_to": broker.proxy_to or None}
            record |= {"server": link.server, "protocol_version": link.server_version}
            record |= {"max_message_size": link.max_message_size, "local": link.connection.client}
            through = f" through the proxy to {console.clean(broker.proxy_to)}" if broker.proxy_to else ""
            say(
                record,
                f"connected to {broker.address}{through}: {console.clean(link.server)}, "
                f"protocol version {link.server_version}, messages up to {link.max_message_size} bytes",
                output,
            )


async def partitions(
    session: Session, topic: Annotated[str, TOPIC], output: Annotated[Output, OUTPUT] = Output.text
) -> None:
    """Say how many partitions a topic has, and their names; 0 if it is not partitioned."""
    from pulsarctl_wire.wire.names import partition_name

    name = topic_name(topic)
    async with session.client() as client:
        count = await client.partitions(name, create=False)
    names = [partition_name(name, index) for index in range(count)]
    text = "\n".join([f"{name}: {count} partitions", *(f"  {each}" for each in names)])
    say({"topic": name, "partitions": count, "names": names}, text, output)


async def topics(
    session: Session,
    namespace: Annotated[str, NAMESPACE] = "public/default",
    regex: Annotated[str | None, REGEX] = None,
    mode: Annotated[Mode, typer.Option("--mode", help="Which of them.")] = Mode.persistent,
    output: Annotated[Output, OUTPUT] = Output.text,
) -> None:
    """List the topics of a namespace, one a line; partitions one by one."""
    from pulsarctl_wire.net.watch import check_namespace, topics_of

    name = namespace_name(namespace)
    async with session.client() as client:
        found = await topics_of(client, name, mode=mode.value, pattern=checked_pattern(regex))
        if not found:
            await check_namespace(client, name)
    for each in found:
        say({"topic": each}, console.clean(each), output)


def checked_pattern(pattern: str | None) -> str | None:
    """`pattern` if it is a regular expression; else the command ends."""
    import re

    try:
        if pattern is not None:
            re.compile(pattern)
    except re.error as error:
        console.fail(f"{pattern}: no regular expression: {error}", console.EXIT_USAGE)
    return pattern
