"""Faults that a proxy injects on purpose, at the level of Pulsar's protocol; a seed makes them reproducible.

    from pulsarctl_wire.faults.lanes import FaultLane, Faults
    from pulsarctl_wire.faults.text import parse_fault

    faults = Faults(seed=7)
    faults.add(parse_fault("drop command=SEND_RECEIPT nth=1"))
    lane = FaultLane(faults, connection=0, to_broker=False)
    lane.take(raw, frame, now)          # the actions to carry out, in order

A fault is a frozen dataclass in the module of its family; its fields are its parameters. `lanes.py` applies
faults to traffic, `text.py` parses and formats them. Nothing here waits, sends or reads a clock: the owner of
the sockets carries out the actions.
"""

from typing import Final

from pulsarctl_wire.faults.answers import Answer, RedirectLoop
from pulsarctl_wire.faults.base import Fault
from pulsarctl_wire.faults.content import Flip, StaleEpoch
from pulsarctl_wire.faults.ends import BlackholeFault, Disconnect, ResetFault
from pulsarctl_wire.faults.hold import Hold
from pulsarctl_wire.faults.order import Drop, Duplicate, Reorder
from pulsarctl_wire.faults.pace import Bandwidth, Delay, Slice

FAULTS: Final[tuple[type[Fault], ...]] = (
    Delay,
    Bandwidth,
    Slice,
    Disconnect,
    ResetFault,
    BlackholeFault,
    Drop,
    Duplicate,
    Reorder,
    Flip,
    StaleEpoch,
    Answer,
    RedirectLoop,
    Hold,
)
"""All faults; to add one, write its class and list it here."""

BY_NAME: Final = {name: fault for fault in FAULTS for name in (fault.name, *fault.aliases)}
"""Every name and alias -> its fault."""
