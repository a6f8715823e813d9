"""`pwire broker ctl`: looks into a running broker, and does to it what time, operators and networks do."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import typer

from pulsarctl_wire.cli import completion, console
from pulsarctl_wire.cli.command import Command, Group
from pulsarctl_wire.cli.signature import argument, group, option, takes
from pulsarctl_wire.render.text import clean

if TYPE_CHECKING:
    from pathlib import Path

app = typer.Typer(
    cls=Group,
    help="Look into a running broker, move its clock, unload topics, cut connections.",
    no_args_is_help=True,
)

_PATIENCE: Final = 60.0  # seconds


@dataclass(frozen=True, kw_only=True)
class BrokerSelector:
    """Selects a running broker."""

    control: str | None = option(
        "--control PATH", "The broker's socket, if several brokers run.", show_default=False
    )
    port: int | None = option("--port PORT", "The port the broker listens on.", show_default=False)

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request to the broker; returns its answer. Errors end the command."""
        from pulsarctl_wire.net.control import ask

        with console.errors_reported():
            return ask(self._socket(), request, _PATIENCE, "broker")

    def _socket(self) -> Path:
        from pathlib import Path

        from pulsarctl_wire.net.control import directory, is_served

        if self.control is not None:
            return Path(self.control)
        home = directory(os.environ)
        if self.port is not None:
            return home / f"broker-{self.port}.sock"
        found = [path for path in sorted(home.glob("broker-*.sock")) if is_served(path)]
        if len(found) != 1:
            names = ", ".join(path.stem.removeprefix("broker-") for path in found)
            several = f"several brokers are running (ports {names}): choose one with --port"
            console.fail(
                several if found else "no broker is running on this machine; pwire broker starts one"
            )
        return found[0]


def state(running: BrokerSelector) -> None:
    """Print connections, topics, subscriptions and consumers as JSON."""
    import json

    _write(json.dumps(running.ask(do="state"), indent=2) + "\n")


@dataclass(frozen=True, kw_only=True)
class AdvanceOptions:
    """The options of `broker ctl advance`."""

    seconds: float = argument("SECONDS", "By how much.", min=0)
    running: BrokerSelector = group(BrokerSelector)


def advance(options: AdvanceOptions) -> None:
    """Move the broker's clock forward; what is due by then happens."""
    options.running.ask(do="advance", seconds=options.seconds)


@dataclass(frozen=True, kw_only=True)
class TopicOptions:
    """The options of `broker ctl unload` and `terminate`."""

    topic: str = argument("TOPIC", "A topic, short or full.")
    running: BrokerSelector = group(BrokerSelector)


def unload(options: TopicOptions) -> None:
    """Close a topic: its clients are told to connect again."""
    options.running.ask(do="unload", topic=options.topic)


def terminate(options: TopicOptions) -> None:
    """Let a topic take no more messages, and print the id of the last one."""
    last = options.running.ask(do="terminate", topic=options.topic).get("last", ())
    _write(":".join(map(str, last)) + "\n")


@dataclass(frozen=True, kw_only=True)
class CutOptions:
    """The options of `broker ctl cut`."""

    connection: int | None = argument(
        "[CONNECTION]", "The number of a connection, as shown by state. Default: all.", default=None
    )
    running: BrokerSelector = group(BrokerSelector)


def cut(options: CutOptions) -> None:
    """End connections without a word, and print how many."""
    _write(f"{options.running.ask(do='cut', connection=options.connection).get('connections')}\n")


@dataclass(frozen=True, kw_only=True)
class MoveOptions:
    """The options of `broker ctl move`."""

    topic: str = argument("TOPIC", "A topic, short or full.")
    to: int = argument("BROKER", "The number of a broker, from 0.")
    running: BrokerSelector = group(BrokerSelector)


def move(options: MoveOptions) -> None:
    """Give a topic's bundle to another broker of the cluster; its clients are told."""
    options.running.ask(do="move", topic=options.topic, to=options.to)


@dataclass(frozen=True, kw_only=True)
class KillOptions:
    """The options of `broker ctl kill`."""

    broker: int = argument("BROKER", "The number of a broker, from 0.")
    running: BrokerSelector = group(BrokerSelector)


def kill(options: KillOptions) -> None:
    """Have a broker of the cluster die: its connections end, and others take its topics."""
    options.running.ask(do="kill", broker=options.broker)


def list_(running: BrokerSelector) -> None:
    """List the active faults: number, fault, and how many frames matched and were hit."""
    lines = [
        f"{each['number']}  {each['fault']}  {each['matched']} matched, {each['hits']} hit"
        for each in running.ask(do="list").get("faults", ())
    ]
    _write("".join(f"{clean(line)}\n" for line in lines))


@dataclass(frozen=True, kw_only=True)
class AddOptions:
    """The options of `broker ctl add`."""

    fault: list[str] = argument(
        "FAULT", "A fault, as for --fault: drop command=PONG.", autocompletion=completion.faults
    )
    running: BrokerSelector = group(BrokerSelector)


def add(options: AddOptions) -> None:
    """Add a fault, and print its number."""
    fault = options.fault[0] if len(options.fault) == 1 else shlex.join(options.fault)
    _write(f"{options.running.ask(do='add', fault=fault).get('number')}\n")


@dataclass(frozen=True, kw_only=True)
class RemoveOptions:
    """The options of `broker ctl remove`."""

    number: int = argument("NUMBER", "The fault's number, as shown by list.")
    running: BrokerSelector = group(BrokerSelector)


def remove(options: RemoveOptions) -> None:
    """Remove a fault."""
    options.running.ask(do="remove", number=options.number)


def clear(running: BrokerSelector) -> None:
    """Remove all faults."""
    running.ask(do="clear")


for _command in (state, advance, unload, terminate, cut, move, kill, list_, add, remove, clear):
    app.command(_command.__name__.rstrip("_"), cls=Command)(takes(_command))


def _write(text: str) -> None:
    with console.errors_reported():
        sys.stdout.write(text)
        sys.stdout.flush()
