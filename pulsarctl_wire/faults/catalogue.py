"""The faults there are, by name, and what they are said to do: docstrings and fields speak for themselves."""

import inspect
from dataclasses import fields
from typing import Final, NamedTuple

from pulsarctl_wire.faults.answers import Answer, RedirectLoop
from pulsarctl_wire.faults.base import Fault
from pulsarctl_wire.faults.content import Flip, StaleEpoch
from pulsarctl_wire.faults.ends import Blackhole, Disconnect, Reset
from pulsarctl_wire.faults.order import Drop, Duplicate, Reorder
from pulsarctl_wire.faults.pace import Bandwidth, Delay, Slice

FAULTS: Final[tuple[type[Fault], ...]] = (
    Delay,
    Bandwidth,
    Slice,
    Disconnect,
    Reset,
    Blackhole,
    Drop,
    Duplicate,
    Reorder,
    Flip,
    StaleEpoch,
    Answer,
    RedirectLoop,
)
"""All faults; to add one, write its class and put it here."""

BY_NAME: Final = {name: fault for fault in FAULTS for name in (fault.name, *fault.aliases)}
"""Every name and alias -> its fault."""


class Parameter(NamedTuple):
    """A parameter of a fault: its name, its default as text ("" for none), what it is."""

    name: str
    default: str
    help: str


class Described(NamedTuple):
    """A fault: its name, what it does, its own parameters (those of `selection` not repeated)."""

    name: str
    text: str
    parameters: list[Parameter]


def describe() -> list[Described]:
    """All faults, for people to read."""
    common = {parameter.name for parameter in selection()}
    return [
        Described(
            fault.name,
            (inspect.getdoc(fault) or "").partition("\n\n")[0].replace("\n", " "),
            [parameter for parameter in _parameters(fault) if parameter.name not in common],
        )
        for fault in FAULTS
    ]


def selection() -> list[Parameter]:
    """The parameters that every fault has."""
    return _parameters(Fault)


def _parameters(fault: type[Fault]) -> list[Parameter]:
    return [
        Parameter(each.name, each.metadata["kind"].show(each.default), each.metadata["help"])
        for each in fields(fault)
    ]
