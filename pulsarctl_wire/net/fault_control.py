"""The faults of a running proxy or broker: requests that list, add and remove them (see control.py)."""

from collections.abc import Mapping
from typing import Any, Final, Protocol

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.faults.lanes import Faults

REQUESTS: Final = ("list", "add", "remove", "clear")


class Injecting(Protocol):
    """A proxy or a broker."""

    @property
    def note(self) -> Any:
        """Called with a text for the user."""

    def renew_faults(self) -> None:
        """The faults were changed."""


def answer_faults(running: Injecting, faults: Faults, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Execute a request about the faults of `running`; returns the answer. Raises WireError."""
    from pulsarctl_wire.faults.text import fault_text, parse_fault

    do = asked.get("do")
    if do == "list":
        listed = [
            {"number": it.number, "fault": fault_text(it.fault), "matched": it.matched, "hits": it.hits}
            for it in faults.listing()
        ]
        return {"faults": listed}
    added = {}
    if do == "add":
        fault = parse_fault(str(asked.get("fault", "")))
        seed = "" if faults else f"; seed {faults.seed}"
        added = {"number": faults.add(fault)}
        running.note(f"fault #{added['number']}: {fault_text(fault)}{seed}")
    elif do == "remove":
        try:
            faults.remove(int(asked.get("number", 0)))
        except (KeyError, TypeError, ValueError, OverflowError):
            raise SettingsError(f"there is no fault {asked.get('number')}; see ctl list") from None
        running.note(f"fault #{asked['number']} was removed")
    elif do == "clear":
        faults.clear()
        running.note("all faults were removed")
    else:
        raise SettingsError(f"{do}: not one of {', '.join(REQUESTS)}")
    running.renew_faults()
    return added
