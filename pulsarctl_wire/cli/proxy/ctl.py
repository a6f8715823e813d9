"""`pwire proxy ctl` controls a running proxy; `pwire proxy faults` lists the kinds of faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from pulsarctl_wire.cli import fault
from pulsarctl_wire.cli.command import Group
from pulsarctl_wire.cli.running import RunningProxy, write

if TYPE_CHECKING:
    from pulsarctl_wire.net.proxy.proxy import Proxy

app = typer.Typer(cls=Group, help="Change the faults of a running proxy.", no_args_is_help=True)
app.add_typer(fault.commands(RunningProxy), name="fault")


def faults() -> None:
    """List the kinds of faults, with their parameters."""
    from pulsarctl_wire.faults import FAULTS
    from pulsarctl_wire.faults.base import Fault

    def parameters(fault: type[Fault]) -> str:
        found = fault.list_parameters()
        return "".join(f"    {f'{name}={default}':24} {text}\n" for name, default, text in found)

    listed = [f"{each.name}\n  {each.describe()}\n{parameters(each)}\n" for each in FAULTS]
    write("".join(listed) + f"all faults take these parameters, which select frames:\n{parameters(Fault)}")


async def answer(proxy: Proxy, asked: dict[str, Any]) -> dict[str, Any]:
    """Execute a request to a proxy (see net/control.py); returns the answer. Raises WireError."""
    from pulsarctl_wire.net.fault_control import answer_faults

    return await answer_faults(proxy, proxy.faults, asked)
