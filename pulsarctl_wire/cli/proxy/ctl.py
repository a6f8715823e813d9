"""`pwire proxy ctl` changes the faults of a running proxy; `pwire proxy faults` lists the kinds of faults."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from pulsarctl_wire.cli import completion, console
from pulsarctl_wire.cli.command import Command, Group
from pulsarctl_wire.cli.signature import argument, group, option, takes
from pulsarctl_wire.render.text import clean

if TYPE_CHECKING:
    from pathlib import Path

    from pulsarctl_wire.net.proxy import Proxy

app = typer.Typer(cls=Group, help="Change the faults of a running proxy.", no_args_is_help=True)


@dataclass(frozen=True, kw_only=True)
class ProxySelector:
    """Selects a running proxy."""

    control: str | None = option(
        "--control PATH", "The proxy's socket, if several proxies run.", show_default=False
    )
    port: int | None = option("--port PORT", "The port the proxy listens on.", show_default=False)

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request to the proxy; returns its answer. Errors end the command."""
        from pulsarctl_wire.net.control import ask

        with console.errors_reported():
            return ask(self._socket(), request)

    def _socket(self) -> Path:
        from pathlib import Path

        from pulsarctl_wire.net.control import directory, is_served

        if self.control is not None:
            return Path(self.control)
        home = directory(os.environ)
        if self.port is not None:
            return home / f"proxy-{self.port}.sock"
        found = [path for path in sorted(home.glob("proxy-*.sock")) if is_served(path)]
        if len(found) != 1:
            names = ", ".join(path.stem.removeprefix("proxy-") for path in found)
            several = f"several proxies are running (ports {names}): choose one with --port"
            console.fail(several if found else "no proxy is running on this machine")
        return found[0]


def list_(running: ProxySelector) -> None:
    """List the active faults: number, fault, and how many frames matched and were hit."""
    lines = [
        f"{each['number']}  {each['fault']}  {each['matched']} matched, {each['hits']} hit"
        for each in running.ask(do="list").get("faults", ())
    ]
    _write("".join(f"{clean(line)}\n" for line in lines))


@dataclass(frozen=True, kw_only=True)
class AddOptions:
    """The options of `proxy ctl add`."""

    fault: list[str] = argument(
        "FAULT", "A fault, as for --fault: drop command=PONG.", autocompletion=completion.faults
    )
    running: ProxySelector = group(ProxySelector)


def add(options: AddOptions) -> None:
    """Add a fault, and print its number."""
    fault = options.fault[0] if len(options.fault) == 1 else shlex.join(options.fault)
    _write(f"{options.running.ask(do='add', fault=fault).get('number')}\n")


@dataclass(frozen=True, kw_only=True)
class RemoveOptions:
    """The options of `proxy ctl remove`."""

    number: int = argument("NUMBER", "The fault's number, as shown by list.")
    running: ProxySelector = group(ProxySelector)


def remove(options: RemoveOptions) -> None:
    """Remove a fault."""
    options.running.ask(do="remove", number=options.number)


def clear(running: ProxySelector) -> None:
    """Remove all faults."""
    running.ask(do="clear")


for _name, _command in (("list", list_), ("add", add), ("remove", remove), ("clear", clear)):
    app.command(_name, cls=Command)(takes(_command))


def faults() -> None:
    """List the kinds of faults, with their parameters."""
    from pulsarctl_wire.faults import FAULTS
    from pulsarctl_wire.faults.base import Fault

    def parameters(fault: type[Fault]) -> str:
        found = fault.parameters()
        return "".join(f"    {f'{name}={default}':24} {text}\n" for name, default, text in found)

    listed = [f"{each.name}\n  {each.about()}\n{parameters(each)}\n" for each in FAULTS]
    _write("".join(listed) + f"all faults take these parameters, which select frames:\n{parameters(Fault)}")


def answer(proxy: Proxy, asked: dict[str, Any]) -> dict[str, Any]:
    """Execute a request to a proxy (see net/control.py); returns the answer. Raises WireError."""
    from pulsarctl_wire.net.fault_control import answer_faults

    return answer_faults(proxy, proxy.faults, asked)


def _write(text: str) -> None:
    with console.errors_reported():
        sys.stdout.write(text)
        sys.stdout.flush()
