"""Screens of `pwire tui` without a terminal: jobs run in this process, a pilot presses the keys."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

from rich.color import ColorSystem
from rich.segment import Segment
from textual.pilot import Pilot

from pulsarctl_wire.cli.tui import jobs
from pulsarctl_wire.cli.tui.job import Job
from pulsarctl_wire.cli.tui.screen import make_session
from pulsarctl_wire.cli.tui.tui import TuiOptions
from pulsarctl_wire.tui.app import PwireApp

SAMPLES = Path(__file__).parents[2] / "samples" / "pcaps"


def run(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of an asynchronous function."""

    @wraps(test)
    def wrapper(*arguments: Any, **more: Any) -> None:
        asyncio.run(test(*arguments, **more))

    return wrapper


class Inline:
    """Jobs that are done as soon as they are asked for."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.filters: list[str] = []

    def filter(self, expression: str) -> str:
        self.filters.append(expression)
        name = f"match.{len(self.filters)}"
        jobs.filter_events(self._job, name, expression)
        return name

    def stop_filter(self) -> None:
        pass

    def adopt(self, process: int) -> None:
        pass


class Screen:
    """The screen under test."""

    def __init__(self, app: PwireApp, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot

    async def press(self, *keys: str) -> "Screen":
        """Press keys, and wait until they were handled."""
        await self.pilot.press(*keys)
        await self.pilot.pause()
        return self

    async def type(self, text: str) -> "Screen":
        """Write a text."""
        names = {" ": "space", '"': "quotation_mark", "=": "equals_sign", "_": "underscore", ".": "full_stop"}
        names |= {
            "<": "less_than_sign",
            ">": "greater_than_sign",
            "/": "slash",
            "-": "minus",
            "#": "number_sign",
        }
        return await self.press(*[names.get(character, character) for character in text])

    def get(self, selector: str) -> Any:
        """Return a part of the screen."""
        return self.app.query_one(selector)

    @property
    def lines(self) -> list[str]:
        """What is shown."""
        strips = self.app.screen._compositor.render_strips()
        return ["".join(segment.text for segment in strip).rstrip() for strip in strips]

    @property
    def text(self) -> str:
        """The same as one text."""
        return "\n".join(self.lines)

    @property
    def status(self) -> str:
        """The last line."""
        return self.lines[-1]

    @property
    def number(self) -> int:
        """The number of the frame under the cursor."""
        event: Any = self.app.event
        return int(event.number)

    def picture(self) -> str:
        """What is shown, line by line, with its colours as codes of a terminal."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join("".join(_coloured(segment) for segment in strip).rstrip() for strip in strips)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds."""
        for _ in range(1000):
            if holds():
                return
            await self.pilot.pause(0.02)
        raise AssertionError(self.text)


def _coloured(segment: Segment) -> str:
    return (
        segment.style.render(segment.text, color_system=ColorSystem.TRUECOLOR)
        if segment.style
        else segment.text
    )


@asynccontextmanager
async def screen(
    directory: Path, *sources: Path, size: tuple[int, int] = (140, 40), **options: Any
) -> AsyncIterator[Screen]:
    """Open a screen of captures."""
    given = TuiOptions(sources=list(map(str, sources)))
    first = options.pop("first", None)
    given = replace(given, **options)
    job = Job(directory, given.sources, given.read, given.display, given.checks, is_kept=False)
    jobs.read(job)
    jobs.examine(job)
    title = ", ".join(source.name for source in sources)
    app = PwireApp(make_session(job, title, Inline(job), first=first, expression=given.expression))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield Screen(app, pilot)
