"""`--stats`: shows live counters on stderr.

On a terminal the page is redrawn in place at each tick, and fills the terminal. Elsewhere nothing is drawn
until the end, when one page of plain text shows the counts of the whole time. Errors in writing to stderr
are ignored.
"""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Final

from rich.live import Live as Display

from pulsarctl_wire.cli.console import make_console
from pulsarctl_wire.render.live_page import page
from pulsarctl_wire.render.text import rich_text
from pulsarctl_wire.stats.snapshot import Snapshot
from pulsarctl_wire.wire.session.sinks import Sink

_PLAIN_WIDTH: Final = 160  # cells of a line, where stderr is no terminal


class LiveTable(Sink):
    """Shows a snapshot on stderr at each tick until `stack` closes, then a last page that stays.

    `snapshot` makes the snapshot of a time in ns since the epoch; `clock` returns that of the last page.
    """

    wants_events = False

    def __init__(
        self,
        snapshot: Callable[[int], Snapshot],
        stack: ExitStack,
        *,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._snapshot = snapshot
        self._clock = clock
        self._console = make_console(sys.stderr)
        self._display: Display | None = None
        stack.callback(self._end)
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            display = Display(
                console=self._console,
                auto_refresh=False,
                transient=True,
                vertical_overflow="crop",
                redirect_stdout=False,
            )
            with suppress(OSError):
                display.start()  # lines written to sys.stderr from now on appear above the page
                self._display = display

    def tick(self, now_ns: int) -> None:
        """Redraw the page, on a terminal."""
        if self._display is not None:
            size = self._console.size
            content = page(self._snapshot(now_ns), size.width, size.height - 1, recent=True)
            with suppress(OSError):
                self._display.update(content, refresh=True)

    def _end(self) -> None:
        """Write the last page, which covers the whole time."""
        width = _PLAIN_WIDTH
        if self._display is not None:
            width = self._console.width
            with suppress(OSError):
                self._display.stop()
        content = page(self._snapshot(self._clock()), width, 0, recent=False)
        with suppress(OSError):
            sys.stderr.write(rich_text([content], width, self._console.color_system))
            sys.stderr.flush()
