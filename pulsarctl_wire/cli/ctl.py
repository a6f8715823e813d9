"""What `ctl` of proxies and brokers shares: finds a running one by its socket, and changes its faults."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, get_type_hints

import typer

from pulsarctl_wire.cli import completion, console
from pulsarctl_wire.cli.command import Command, Group
from pulsarctl_wire.cli.signature import argument, option, takes
from pulsarctl_wire.render.text import clean

if TYPE_CHECKING:
    from pathlib import Path

_PATIENCE: Final = 60.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Running:
    """Selects a running proxy or broker. `process` is its verb."""

    process: ClassVar[str]

    control: str | None = option("--control PATH", "Its socket, if several are running.", show_default=False)
    port: int | None = option("--port PORT", "The port it listens on.", show_default=False)

    def ask(self, do: str, *, patience: float = _PATIENCE, **request: Any) -> dict[str, Any]:
        """Send the request `do` with the values in `request`; return the answer. Errors end the command.

        The answer may take `patience` seconds.
        """
        from pulsarctl_wire.net.control import ask

        with console.errors_reported():
            return ask(self._socket(), {"do": do, **request}, patience, self.process)

    def _socket(self) -> Path:
        from pathlib import Path

        from pulsarctl_wire.net.control import directory, is_served

        if self.control is not None:
            return Path(self.control)
        home, process = directory(os.environ), self.process
        if self.port is not None:
            return home / f"{process}-{self.port}.sock"
        paths = [path for path in sorted(home.glob(f"{process}-*.sock")) if is_served(path)]
        if not paths:
            console.fail(f"no {process} is running on this machine; pwire {process} starts one")
        if len(paths) > 1:
            ports = ", ".join(path.stem.removeprefix(f"{process}-") for path in paths)
            plural = {"proxy": "proxies"}.get(process, f"{process}s")
            console.fail(f"several {plural} are running (ports {ports}): choose one with --port")
        return paths[0]


class RunningProxy(Running):
    """Selects a running proxy."""

    process = "proxy"


class RunningBroker(Running):
    """Selects a running broker."""

    process = "broker"


def write(text: str) -> None:
    """Write an answer to stdout."""
    with console.errors_reported():
        sys.stdout.write(text)
        sys.stdout.flush()


# -- faults


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
        f"{fault['number']}  {fault['fault']}  {fault['matched']} matched, {fault['hits']} hit"
        for fault in running.ask("fault-list").get("faults", ())
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
    patience = seconds + 5  # the process waits for `seconds` itself, and then still has to answer
    answer = running.ask(
        "fault-wait", patience=patience, number=options.number, hits=options.hits, timeout=seconds
    )
    write(f"{answer.get('hits')}\n")


def remove(options: FaultNumber, running: Running) -> None:
    """Remove a fault."""
    running.ask("fault-remove", number=options.number)


def clear(running: Running) -> None:
    """Remove all faults."""
    running.ask("fault-clear")


def make_fault_commands(running: type[Running]) -> typer.Typer:
    """Make the commands of `ctl fault`, for proxies or for brokers."""
    text = f"Add, list, await and remove the faults of a running {running.process}."
    app = typer.Typer(cls=Group, help=text, no_args_is_help=True)
    for command in (add, list_, wait, remove, clear):
        kinds = {**get_type_hints(command), "running": running}
        del kinds["return"]
        app.command(command.__name__.rstrip("_"), cls=Command)(takes(command, kinds))
    return app
