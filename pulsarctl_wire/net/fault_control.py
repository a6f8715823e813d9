"""The faults of a running proxy or broker: requests to add, list, await and remove them (control.py)."""

import asyncio
import math
from collections.abc import Mapping
from typing import Any, Final, Protocol

from pulsarctl_wire.errors import RequestTimeout, SettingsError
from pulsarctl_wire.faults.base import Decision, HeldFrame
from pulsarctl_wire.faults.lanes import ActiveFault, Faults
from pulsarctl_wire.net.control import FAULT_REQUESTS

MAX_SHOWN_BYTES: Final = 1024 * 1024
"""Bytes of the largest held frame that is shown. A larger one can only be dropped, or go on as it came."""


class FaultHost(Protocol):
    """A proxy or a broker."""

    @property
    def note(self) -> Any:
        """The function to call with a text for the user."""

    def renew_faults(self) -> None:
        """Apply the changed faults to all connections."""


async def answer_faults(host: FaultHost, faults: Faults, request: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out a request about the faults of `host`; return the answer. Raises WireError."""
    action = request.get("do")
    if action == "fault-list":
        return {"faults": [_describe(active_fault) for active_fault in faults.list_active()]}
    if action == "fault-wait":
        return await _wait(faults, request)
    if action == "held-list":
        return {"held": [_describe_held(held) for held in faults.held.list()]}
    answer = {}
    if action == "fault-add":
        answer = {"number": _add(host, faults, str(request.get("fault", "")))}
    elif action == "fault-remove":
        number = _find(faults, request).number
        faults.remove(number)
        host.note(f"fault #{number} was removed")
    elif action == "fault-clear":
        faults.clear()
        host.note("all faults were removed")
    elif action == "held-decide":
        _decide(faults, request)
    else:
        raise SettingsError(f"{action}: not one of {', '.join(FAULT_REQUESTS)}")
    host.renew_faults()
    return answer


def _describe(active_fault: ActiveFault) -> dict[str, Any]:
    from pulsarctl_wire.faults.text import format_fault

    return {
        "number": active_fault.number,
        "fault": format_fault(active_fault.fault),
        "matched": active_fault.matched,
        "hits": active_fault.hits,
    }


def _describe_held(held: HeldFrame) -> dict[str, Any]:
    frame, data = held.unit.frame, held.unit.data
    assert frame is not None
    return {
        "number": held.number,
        "connection": frame.connection.index,
        "client": frame.connection.client,
        "server": frame.connection.server,
        "to_broker": frame.to_broker,
        "time_ns": frame.time_ns,
        "topic": frame.topic,
        "subscription": frame.subscription,
        "data": data.hex() if len(data) <= MAX_SHOWN_BYTES else None,
        "size": len(data),
    }


def _decide(faults: Faults, request: Mapping[str, Any]) -> None:
    """Decide about a held frame: without `frames`, it goes on as it came."""
    number, frames, answers = request.get("number"), request.get("frames"), request.get("answers", [])
    try:
        decision = None
        if frames is not None or answers:
            decision = Decision(*(tuple(map(bytes.fromhex, texts)) for texts in (frames or [], answers)))
        if type(number) is not int:
            raise KeyError(number)
        faults.held.decide(number, decision)
    except KeyError:
        raise SettingsError(f"frame {number} is not held any more") from None
    except (TypeError, ValueError) as error:
        raise SettingsError(f"frames and answers must be lists of hex digits: {error}") from None


def _add(host: FaultHost, faults: Faults, text: str) -> int:
    from pulsarctl_wire.faults.text import format_fault, parse_fault

    fault = parse_fault(text)
    seed = "" if faults else f"; seed {faults.seed}"  # not noted again while other faults are in force
    number = faults.add(fault)
    host.note(f"fault #{number}: {format_fault(fault)}{seed}")
    return number


def _find(faults: Faults, request: Mapping[str, Any]) -> ActiveFault:
    number = request.get("number")
    active_fault = faults.get(number) if type(number) is int else None
    if active_fault is None:
        raise SettingsError(f"there is no fault {number}; see ctl fault list")
    return active_fault


async def _wait(faults: Faults, request: Mapping[str, Any]) -> dict[str, Any]:
    """Wait until a fault has had the requested number of hits."""
    active_fault = _find(faults, request)
    hits, seconds = request.get("hits", 1), request.get("timeout", 30)
    if type(hits) is not int or hits < 1:
        raise SettingsError(f"hits={hits}: it must be a whole number from 1")
    if type(seconds) not in (int, float) or not 0 <= seconds < math.inf:
        raise SettingsError(f"timeout={seconds}: it must be a number of seconds")
    hit_or_removal = asyncio.Event()

    async def wait_for_hits() -> None:
        while active_fault.hits < hits:
            await hit_or_removal.wait()
            hit_or_removal.clear()
            if faults.get(active_fault.number) is not active_fault:
                raise SettingsError(
                    f"fault {active_fault.number} was removed after {active_fault.hits} of {hits} hits"
                )

    active_fault.watchers.append(hit_or_removal.set)
    try:
        if active_fault.hits < hits:
            await asyncio.wait_for(wait_for_hits(), seconds)
    except (TimeoutError, asyncio.TimeoutError):  # two classes in Python 3.10
        text = f"fault {active_fault.number} had {active_fault.hits} of {hits} hits after {seconds:g} seconds"
        raise RequestTimeout(text) from None
    finally:
        active_fault.watchers.remove(hit_or_removal.set)
    return _describe(active_fault)
