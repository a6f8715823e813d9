"""`pwire proxy ctl fault` and `pwire broker ctl fault`: faults of a running proxy or broker."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import get_type_hints

import typer

from pulsarctl_wire.cli import completion
from pulsarctl_wire.cli.command import Command, Group
from pulsarctl_wire.cli.running import Running, write
from pulsarctl_wire.cli.signature import argument, option, takes
from pulsarctl_wire.render.text import clean


@dataclass(frozen=True, kw_only=True)
class AddOptions:
    """The arguments of `ctl fault add`."""

    fault: list[str] = argument(
        "FAULT", "A fault, as for --fault: drop command=PONG.", autocompletion=completion.faults
    )


def add(options: AddOptions, running: Running) -> None:
    """Add a fault, and print its number."""
    fault = options.fault[0] if len(options.fault) == 1 else shlex.join(options.fault)
    write(f"{running.ask('fault-add', fault=fault).get('number')}\n")


def list_(running: Running) -> None:
    """List the faults: number, fault, and how many frames matched and were hit."""
    lines = [
        f"{each['number']}  {each['fault']}  {each['matched']} matched, {each['hits']} hit"
        for each in running.ask("fault-list").get("faults", ())
    ]
    write("".join(f"{clean(line)}\n" for line in lines))


@dataclass(frozen=True, kw_only=True)
class FaultNumber:
    """Which fault."""

    number: int = argument("NUMBER", "The fault's number, as shown by list.")


@dataclass(frozen=True, kw_only=True)
class WaitOptions(FaultNumber):
    """The options of `ctl fault wait`."""

    hits: int = option("--hits N", "How many frames it must have hit, since it was added.", default=1, min=1)
    timeout: float = option("--timeout SECONDS", "How long to wait.", default=30.0, min=0)


def wait(options: WaitOptions, running: Running) -> None:
    """Wait until a fault has hit frames, and print how many; exit code 8 if it has not in time."""
    seconds = options.timeout
    answer = running.ask(
        "fault-wait", patience=seconds + 5, number=options.number, hits=options.hits, timeout=seconds
    )
    write(f"{answer.get('hits')}\n")


def remove(options: FaultNumber, running: Running) -> None:
    """Remove a fault."""
    running.ask("fault-remove", number=options.number)


def clear(running: Running) -> None:
    """Remove all faults."""
    running.ask("fault-clear")


def commands(running: type[Running]) -> typer.Typer:
    """The commands, for proxies or for brokers."""
    text = f"Add, list, await and remove the faults of a running {running.who}."
    app = typer.Typer(cls=Group, help=text, no_args_is_help=True)
    for command in (add, list_, wait, remove, clear):
        kinds = {**get_type_hints(command), "running": running}
        del kinds["return"]
        app.command(command.__name__.rstrip("_"), cls=Command)(takes(command, kinds))
    return app
