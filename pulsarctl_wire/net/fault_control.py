"""The faults of a running proxy or broker: requests to add, list, await and remove them (control.py)."""

import asyncio
import math
from collections.abc import Mapping
from typing import Any, Protocol

from pulsarctl_wire.errors import RequestTimeout, SettingsError
from pulsarctl_wire.faults.lanes import Faults, Rule
from pulsarctl_wire.net.control import FAULT_REQUESTS


class FaultHost(Protocol):
    """A proxy or a broker."""

    @property
    def note(self) -> Any:
        """The function to call with a text for the user."""

    def renew_faults(self) -> None:
        """Apply the changed faults to all connections."""


async def answer_faults(running: FaultHost, faults: Faults, request: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out a request about the faults of `running`; return the answer. Raises WireError."""
    do = request.get("do")
    if do == "fault-list":
        return {"faults": [_describe(rule) for rule in faults.list_rules()]}
    if do == "fault-wait":
        return await _wait(faults, request)
    answer = {}
    if do == "fault-add":
        answer = {"number": _add(running, faults, str(request.get("fault", "")))}
    elif do == "fault-remove":
        number = _find(faults, request).number
        faults.remove(number)
        running.note(f"fault #{number} was removed")
    elif do == "fault-clear":
        faults.clear()
        running.note("all faults were removed")
    else:
        raise SettingsError(f"{do}: not one of {', '.join(FAULT_REQUESTS)}")
    running.renew_faults()
    return answer


def _describe(rule: Rule) -> dict[str, Any]:
    from pulsarctl_wire.faults.text import format_fault

    return {
        "number": rule.number,
        "fault": format_fault(rule.fault),
        "matched": rule.matched,
        "hits": rule.hits,
    }


def _add(running: FaultHost, faults: Faults, text: str) -> int:
    from pulsarctl_wire.faults.text import format_fault, parse_fault

    fault = parse_fault(text)
    seed = "" if faults else f"; seed {faults.seed}"
    number = faults.add(fault)
    running.note(f"fault #{number}: {format_fault(fault)}{seed}")
    return number


def _find(faults: Faults, request: Mapping[str, Any]) -> Rule:
    number = request.get("number")
    rule = faults.get(number) if type(number) is int else None
    if rule is None:
        raise SettingsError(f"there is no fault {number}; see ctl fault list")
    return rule


async def _wait(faults: Faults, request: Mapping[str, Any]) -> dict[str, Any]:
    """Wait until a fault has had the requested number of hits."""
    rule = _find(faults, request)
    hits, seconds = request.get("hits", 1), request.get("timeout", 30)
    if type(hits) is not int or hits < 1:
        raise SettingsError(f"hits={hits}: it must be a whole number from 1")
    if type(seconds) not in (int, float) or not 0 <= seconds < math.inf:
        raise SettingsError(f"timeout={seconds}: it must be a number of seconds")
    hit_or_change = asyncio.Event()

    async def reached() -> None:
        while rule.hits < hits:
            await hit_or_change.wait()
            hit_or_change.clear()
            if faults.get(rule.number) is not rule:
                raise SettingsError(f"fault {rule.number} was removed after {rule.hits} of {hits} hits")

    rule.watchers.append(hit_or_change.set)
    try:
        if rule.hits < hits:
            await asyncio.wait_for(reached(), seconds)
    except (TimeoutError, asyncio.TimeoutError):  # two classes in Python 3.10
        text = f"fault {rule.number} had {rule.hits} of {hits} hits after {seconds:g} seconds"
        raise RequestTimeout(text) from None
    finally:
        rule.watchers.remove(hit_or_change.set)
    return _describe(rule)
