"""The faults of a running proxy or broker: requests to add, list, await and remove them (control.py)."""

import asyncio
import math
from collections.abc import Mapping
from typing import Any, Protocol

from pulsarctl_wire.errors import RequestTimeout, SettingsError
from pulsarctl_wire.faults.lanes import Faults, Rule
from pulsarctl_wire.net.control import FAULT_REQUESTS


class Injecting(Protocol):
    """A proxy or a broker."""

    @property
    def note(self) -> Any:
        """Called with a text for the user."""

    def renew_faults(self) -> None:
        """The faults were changed."""


async def answer_faults(running: Injecting, faults: Faults, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Execute a request about the faults of `running`; returns the answer. Raises WireError."""
    do = asked.get("do")
    if do == "fault-list":
        return {"faults": [_shown(rule) for rule in faults.list_rules()]}
    if do == "fault-wait":
        return await _wait(faults, asked)
    answer = {}
    if do == "fault-add":
        answer = {"number": _add(running, faults, str(asked.get("fault", "")))}
    elif do == "fault-remove":
        number = _find(faults, asked).number
        faults.remove(number)
        running.note(f"fault #{number} was removed")
    elif do == "fault-clear":
        faults.clear()
        running.note("all faults were removed")
    else:
        raise SettingsError(f"{do}: not one of {', '.join(FAULT_REQUESTS)}")
    running.renew_faults()
    return answer


def _shown(rule: Rule) -> dict[str, Any]:
    from pulsarctl_wire.faults.text import format_fault

    return {
        "number": rule.number,
        "fault": format_fault(rule.fault),
        "matched": rule.matched,
        "hits": rule.hits,
    }


def _add(running: Injecting, faults: Faults, text: str) -> int:
    from pulsarctl_wire.faults.text import format_fault, parse_fault

    fault = parse_fault(text)
    seed = "" if faults else f"; seed {faults.seed}"
    number = faults.add(fault)
    running.note(f"fault #{number}: {format_fault(fault)}{seed}")
    return number


def _find(faults: Faults, asked: Mapping[str, Any]) -> Rule:
    number = asked.get("number")
    rule = faults.get(number) if type(number) is int else None
    if rule is None:
        raise SettingsError(f"there is no fault {number}; see ctl fault list")
    return rule


async def _wait(faults: Faults, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Wait until a fault has had so many hits."""
    rule = _find(faults, asked)
    hits, seconds = asked.get("hits", 1), asked.get("timeout", 30)
    if type(hits) is not int or hits < 1:
        raise SettingsError(f"hits={hits}: it must be a whole number from 1")
    if type(seconds) not in (int, float) or not 0 <= seconds < math.inf:
        raise SettingsError(f"timeout={seconds}: it must be a number of seconds")
    changed = asyncio.Event()

    async def reached() -> None:
        while rule.hits < hits:
            await changed.wait()
            changed.clear()
            if faults.get(rule.number) is not rule:
                raise SettingsError(f"fault {rule.number} was removed after {rule.hits} of {hits} hits")

    rule.watchers.append(changed.set)
    try:
        if rule.hits < hits:
            await asyncio.wait_for(reached(), seconds)
    except (TimeoutError, asyncio.TimeoutError):  # two classes in Python 3.10
        text = f"fault {rule.number} had {rule.hits} of {hits} hits after {seconds:g} seconds"
        raise RequestTimeout(text) from None
    finally:
        rule.watchers.remove(changed.set)
    return _shown(rule)
