"""The traffic of a broker for its watcher: --tap, --record, --stats and --metrics, as of the proxy."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.proxy.keeping import Watcher
from pulsarctl_wire.cli.proxy.watching import watch
from pulsarctl_wire.net.proxy.tap import RingTap, TapRing

if TYPE_CHECKING:
    from typing_extensions import Self  # Python 3.10 has none

    from pulsarctl_wire.broker.shell.running import Sockets
    from pulsarctl_wire.cli.proxy.options import WatchOptions


class Watched:
    """The watcher's process; at the end of the context it has ended, with the exit code `code`.

    It must be started before there are threads. It closes its copies of `sockets`.
    """

    def __init__(self, options: WatchOptions, sockets: list[Sockets]) -> None:
        self._ring = TapRing()
        self._watcher = Watcher(partial(watch, options, self._ring), self._ring, _All(sockets))
        self._ring.use_in_proxy()
        self.tap = RingTap(self._ring)
        self.note = self._ring.note
        self.code = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self._ring.end()
        self.code = self._watcher.wait()

    def follow(self) -> None:
        """From now on notice, in the event loop, what becomes of the watcher."""
        asyncio.get_running_loop().add_reader(self._watcher.fileno(), self._news)

    def _news(self) -> None:
        """Another watcher has started, or none reads the ring any more."""
        if self._watcher.news():
            self.tap.restart()
            return
        asyncio.get_running_loop().remove_reader(self._watcher.fileno())
        self._ring.wants_bytes = False
        text = "the watcher has ended; the broker goes on without it"
        threading.Thread(target=console.warn, args=(text,), daemon=True).start()  # as stderr may block


class _All:
    """All sockets, to be closed together."""

    def __init__(self, sockets: list[Sockets]) -> None:
        self._sockets = sockets

    def close(self) -> None:
        from pulsarctl_wire.broker.shell.running import close_all

        close_all(self._sockets)
