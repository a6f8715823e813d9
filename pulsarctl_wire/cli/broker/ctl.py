"""`pwire broker ctl`: shows the state of a running broker, moves its clock, and disturbs its clients."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from pulsarctl_wire.cli.command import Command, Group
from pulsarctl_wire.cli.ctl import RunningBroker, make_fault_commands, write
from pulsarctl_wire.cli.signature import argument, takes

app = typer.Typer(
    cls=Group,
    help="Look into a running broker, move its clock, unload topics, cut connections, inject faults.",
    no_args_is_help=True,
)


def state(running: RunningBroker) -> None:
    """Print connections, topics, subscriptions, transactions and faults as JSON."""
    import json

    write(json.dumps(running.ask("state"), indent=2) + "\n")


@dataclass(frozen=True, kw_only=True)
class Duration:
    """How long."""

    seconds: float = argument("SECONDS", "By how much.", min=0)


def advance(duration: Duration, running: RunningBroker) -> None:
    """Move the broker's clock forward; what is due by then happens."""
    running.ask("advance", seconds=duration.seconds)


def housekeeping(running: RunningBroker) -> None:
    """Apply expiry, quotas and retention now, and delete what nobody has used for long enough."""
    running.ask("housekeeping")


@dataclass(frozen=True, kw_only=True)
class Topic:
    """Which topic."""

    topic: str = argument("TOPIC", "A topic, short or full.")


def compact(topic: Topic, running: RunningBroker) -> None:
    """Compact a topic now."""
    running.ask("compact", topic=topic.topic)


def unload(topic: Topic, running: RunningBroker) -> None:
    """Close a topic: its clients are told to connect again."""
    running.ask("unload", topic=topic.topic)


def terminate(topic: Topic, running: RunningBroker) -> None:
    """Let a topic take no more messages, and print the id of the last one."""
    write(":".join(map(str, running.ask("terminate", topic=topic.topic).get("last", ()))) + "\n")


@dataclass(frozen=True, kw_only=True)
class Connection:
    """Which connection."""

    connection: int | None = argument(
        "[CONNECTION]", "The number of a connection, as shown by state. Default: all.", default=None
    )


def cut(connection: Connection, running: RunningBroker) -> None:
    """End connections without a word, and print how many."""
    write(f"{running.ask('cut', connection=connection.connection).get('connections')}\n")


@dataclass(frozen=True, kw_only=True)
class Broker:
    """Which broker of the cluster."""

    broker: int = argument("BROKER", "The number of a broker, from 0.")


def move(topic: Topic, broker: Broker, running: RunningBroker) -> None:
    """Give a topic's bundle to another broker of the cluster; its clients are told."""
    running.ask("move", topic=topic.topic, broker=broker.broker)


@dataclass(frozen=True, kw_only=True)
class OtherCluster:
    """Where another cluster is."""

    urls: list[str] = argument("URL...", "Its service URLs: pulsar://HOST:PORT, pulsar+ssl://HOST:PORT.")


def migrate(topic: Topic, cluster: OtherCluster, running: RunningBroker) -> None:
    """Tell the clients of a topic that it has moved to another cluster."""
    tls = [url for url in cluster.urls if url.startswith("pulsar+ssl:")]
    plain = [url for url in cluster.urls if url not in tls]
    running.ask("migrate", topic=topic.topic, service_url=",".join(plain), service_url_tls=",".join(tls))


def kill(broker: Broker, running: RunningBroker) -> None:
    """Have a broker of the cluster die: its connections end, and others take its topics."""
    running.ask("kill", broker=broker.broker)


def start(broker: Broker, running: RunningBroker) -> None:
    """Start a broker again that was killed, at the same ports."""
    running.ask("start", broker=broker.broker)


@dataclass(frozen=True, kw_only=True)
class BrokerOrFirst:
    """Which broker, by default the first one."""

    broker: int = argument("[BROKER]", "The number of a broker, from 0. Default: 0.", default=0)


def restart(broker: BrokerOrFirst, running: RunningBroker) -> None:
    """Have a broker die and start again at once: its connections end, its topics are loaded anew."""
    running.ask("restart", broker=broker.broker)


for _command in (
    state,
    advance,
    housekeeping,
    compact,
    unload,
    terminate,
    cut,
    move,
    migrate,
    kill,
    start,
    restart,
):
    app.command(_command.__name__, cls=Command)(takes(_command))
app.add_typer(make_fault_commands(RunningBroker), name="fault")
