"""`pwire proxy ctl`: the faults of a running proxy, changed; `pwire proxy faults`: which there are."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pulsarctl_wire.cli import completion, console
from pulsarctl_wire.cli.command import Command, Group

if TYPE_CHECKING:
    from pathlib import Path

    from pulsarctl_wire.net.proxy import Proxy

app = typer.Typer(
    cls=Group,
    help="Change the faults of a running proxy.",
    no_args_is_help=True,
)

SOCKET: Final[Any] = typer.Option(
    "--control", metavar="PATH", help="Its socket, if it is not the only proxy that runs.", show_default=False
)
PORT: Final[Any] = typer.Option("--port", metavar="PORT", help="The port it listens on.", show_default=False)


@app.command("list", cls=Command)
def list_(control: Annotated[str | None, SOCKET] = None, port: Annotated[int | None, PORT] = None) -> None:
    """List the faults in force: number, fault, how many frames matched and were hit."""
    lines = [
        f"{each['number']}  {each['fault']}  {each['matched']} matched, {each['hits']} hit"
        for each in _ask(control, port, {"do": "list"}).get("faults", ())
    ]
    _write("".join(f"{console.clean(line)}\n" for line in lines))


@app.command("add", cls=Command)
def add(
    fault: Annotated[
        list[str],
        typer.Argument(
            metavar="FAULT", help="As of --fault: drop command=PONG.", autocompletion=completion.faults
        ),
    ],
    control: Annotated[str | None, SOCKET] = None,
    port: Annotated[int | None, PORT] = None,
) -> None:
    """Put a fault into force; prints its number."""
    number = _ask(
        control, port, {"do": "add", "fault": fault[0] if len(fault) == 1 else shlex.join(fault)}
    ).get("number")
    _write(f"{number}\n")


@app.command("remove", cls=Command)
def remove(
    number: Annotated[int, typer.Argument(metavar="NUMBER", help="As list shows it.")],
    control: Annotated[str | None, SOCKET] = None,
    port: Annotated[int | None, PORT] = None,
) -> None:
    """Take a fault out of force."""
    _ask(control, port, {"do": "remove", "number": number})


@app.command("clear", cls=Command)
def clear(control: Annotated[str | None, SOCKET] = None, port: Annotated[int | None, PORT] = None) -> None:
    """Take all faults out of force."""
    _ask(control, port, {"do": "clear"})


def faults() -> None:
    """List the faults there are, and their parameters."""
    from pulsarctl_wire.faults import describe, selection

    def parameters(found: Any) -> str:
        return "".join(f"    {f'{each.name}={each.default}':24} {each.help}\n" for each in found)

    listed = [f"{each.name}\n  {each.text}\n{parameters(each.parameters)}\n" for each in describe()]
    _write("".join(listed) + f"all of them take, to say which frames are meant:\n{parameters(selection())}")


def answer(proxy: Proxy, asked: dict[str, Any]) -> dict[str, Any]:
    """What a proxy does when it is asked to (see net/control.py). Raises WireError."""
    from pulsarctl_wire.errors import SettingsError
    from pulsarctl_wire.faults import fault_text, parse_fault

    do, faults = asked.get("do"), proxy.faults
    if do == "list":
        return {
            "faults": [
                {
                    "number": each.number,
                    "fault": fault_text(each.fault),
                    "matched": each.matched,
                    "hits": each.hits,
                }
                for each in faults.listing()
            ]
        }
    added = {}
    if do == "add":
        fault = parse_fault(str(asked.get("fault", "")))
        seed = "" if faults else f"; seed {faults.seed}"
        added = {"number": faults.add(fault)}
        proxy.note(f"fault #{added['number']}: {fault_text(fault)}{seed}")
    elif do == "remove":
        try:
            faults.remove(int(asked.get("number", 0)))
        except (KeyError, TypeError, ValueError, OverflowError):
            raise SettingsError(
                f"there is no fault {asked.get('number')}; see pwire proxy ctl list"
            ) from None
        proxy.note(f"fault #{asked['number']} was removed")
    elif do == "clear":
        faults.clear()
        proxy.note("all faults were removed")
    else:
        raise SettingsError(f"{do}: one of list, add, remove, clear is wanted")
    proxy.renew_faults()
    return added


def _ask(control: str | None, port: int | None, request: dict[str, Any]) -> dict[str, Any]:
    from pulsarctl_wire.net.control import ask

    with console.errors_said():
        return ask(_socket(control, port), request)


def _write(text: str) -> None:
    with console.errors_said():
        sys.stdout.write(text)
        sys.stdout.flush()


def _socket(control: str | None, port: int | None) -> Path:
    from pathlib import Path

    from pulsarctl_wire.net.control import directory, is_served

    if control is not None:
        return Path(control)
    home = directory(os.environ)
    if port is not None:
        return home / f"proxy-{port}.sock"
    found = [path for path in sorted(home.glob("proxy-*.sock")) if is_served(path)]
    if len(found) != 1:
        names = ", ".join(path.stem.removeprefix("proxy-") for path in found)
        which = f"several run (ports {names}): name one with --port" if found else "none runs on this machine"
        console.fail(f"which proxy? {which}", console.EXIT_USAGE)
    return found[0]
