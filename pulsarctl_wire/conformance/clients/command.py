"""Clients that are commands: each run is a process, and all that it starts ends with it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from pulsarctl_wire.conformance.clients.stage import SECONDS, Run, Stage
from pulsarctl_wire.errors import SettingsError

_MAX_LINE: Final = 1 << 20  # bytes
_GRACE: Final = 2.0  # seconds for output that is left when the process has ended


class ProcessRun(Run):
    """A run of a command."""

    process: asyncio.subprocess.Process
    _tasks: Sequence[asyncio.Task[None]] = ()

    async def launch(self, words: Sequence[str], note: Callable[[str], None]) -> None:
        """Start the command `words`; `note` gets the lines of stderr. Raises SettingsError."""
        pipe = asyncio.subprocess.PIPE
        try:
            self.process = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=pipe,
                stderr=pipe,
                limit=_MAX_LINE,
                start_new_session=True,  # so that it is killed with all that it has started
            )
        except OSError as error:
            raise SettingsError(f"{words[0]}: {error.strerror or error}") from None
        readers = [
            asyncio.create_task(_read(self.process.stdout, self.add_line)),
            asyncio.create_task(_read(self.process.stderr, note)),
        ]
        self._tasks = [*readers, asyncio.create_task(self._wait(readers))]

    async def _wait(self, readers: Sequence[asyncio.Task[None]]) -> None:
        code = await self.process.wait()
        await asyncio.wait(readers, timeout=_GRACE)
        self.end(code)

    async def kill(self) -> None:
        """End the process group."""
        with suppress(ProcessLookupError):  # all have ended
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _read(stream: asyncio.StreamReader | None, keep: Callable[[str], None]) -> None:
    """Call `keep` with each line; lines over the limit are left out."""
    assert stream is not None
    is_rest = False
    while True:
        try:
            line = await stream.readuntil()
        except asyncio.IncompleteReadError as error:
            line = error.partial
        except asyncio.LimitOverrunError as error:
            await stream.readexactly(error.consumed)
            is_rest = True
            continue
        if line and not is_rest:
            keep(line.decode("utf-8", "replace"))
        if not line.endswith(b"\n"):
            return
        is_rest = False


class CommandStage(Stage):
    """A stage for commands, by mode; their words have the placeholders of `fill`."""

    def __init__(self, commands: Mapping[str, Sequence[str]], seconds: Mapping[str, float] = SECONDS) -> None:
        super().__init__(seconds)
        self._commands = commands

    async def start(self, mode: str, url: str, number: int) -> Run:
        """Start the command of this mode."""
        values = {name: f"{value:g}" for name, value in self.seconds.items()}
        run = ProcessRun(self)
        words = fill(self._commands[mode], url=url, topic=self.topic, count=str(number), **values)
        await run.launch(words, self.note)
        return run


def fill(words: Sequence[str], **values: str) -> list[str]:
    """Replace {url}, {topic}, {count} and so on in the words of a command."""
    result = []
    for word in words:
        for name, value in values.items():
            word = word.replace(f"{{{name}}}", value)
        result.append(word)
    return result
