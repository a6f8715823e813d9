"""Faults of a proxy: what goes wrong on purpose, in the protocol's own terms, and the same again from a seed.

    faults = Faults(seed=7)
    faults.add(parse_fault("drop command=SEND_RECEIPT nth=1"))
    lane = faults.lane(connection=0, to_broker=False)
    lane.take(raw, frame, now)          # the actions to carry out, in order

A fault is a frozen dataclass in the module of its family; its fields are its parameters, and its place in
`FAULTS` makes it known. Nothing here waits, sends or looks at a clock: whoever owns the sockets carries the
actions out.
"""

from pulsarctl_wire.faults.actions import Action, Blackhole, Close, Note, Reset, Send, Wake
from pulsarctl_wire.faults.base import Fault
from pulsarctl_wire.faults.catalogue import FAULTS, Described, Parameter, describe, selection
from pulsarctl_wire.faults.lanes import Faults, Lane, Listed
from pulsarctl_wire.faults.text import Scenario, fault_text, parse_fault, parse_scenario

__all__ = [
    "FAULTS",
    "Action",
    "Blackhole",
    "Close",
    "Described",
    "Fault",
    "Faults",
    "Lane",
    "Listed",
    "Note",
    "Parameter",
    "Reset",
    "Scenario",
    "Send",
    "Wake",
    "describe",
    "fault_text",
    "parse_fault",
    "parse_scenario",
    "selection",
]
