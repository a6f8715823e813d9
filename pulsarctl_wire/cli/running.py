"""Finds a running proxy or broker by its control socket, and asks it to do something."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.signature import option

if TYPE_CHECKING:
    from pathlib import Path

_PATIENCE: Final = 60.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Running:
    """Selects a running process of `pwire WHO`."""

    who: ClassVar[str]

    control: str | None = option("--control PATH", "Its socket, if several are running.", show_default=False)
    port: int | None = option("--port PORT", "The port it listens on.", show_default=False)

    def ask(self, do: str, *, patience: float = _PATIENCE, **request: Any) -> dict[str, Any]:
        """Send a request; returns the answer, which may take so many seconds. Errors end the command."""
        from pulsarctl_wire.net.control import ask

        with console.errors_reported():
            return ask(self._socket(), {"do": do, **request}, patience, self.who)

    def _socket(self) -> Path:
        from pathlib import Path

        from pulsarctl_wire.net.control import directory, is_served

        if self.control is not None:
            return Path(self.control)
        home, who = directory(os.environ), self.who
        if self.port is not None:
            return home / f"{who}-{self.port}.sock"
        found = [path for path in sorted(home.glob(f"{who}-*.sock")) if is_served(path)]
        if not found:
            console.fail(f"no {who} is running on this machine; pwire {who} starts one")
        if len(found) > 1:
            ports = ", ".join(path.stem.removeprefix(f"{who}-") for path in found)
            several = {"proxy": "proxies"}.get(who, f"{who}s")
            console.fail(f"several {several} are running (ports {ports}): choose one with --port")
        return found[0]


class RunningProxy(Running):
    """Selects a running proxy."""

    who = "proxy"


class RunningBroker(Running):
    """Selects a running broker."""

    who = "broker"


def write(text: str) -> None:
    """Write an answer to stdout."""
    with console.errors_reported():
        sys.stdout.write(text)
        sys.stdout.flush()
