"""`pwire`, and other programs, while a test goes on; numbered messages that show whether any was lost."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forked import Forked
    from interop.conftest import Pwire
    from typing_extensions import Self  # Python 3.10 has none

PATIENCE = 90.0
"""Seconds after which something that is waited for does not come: far more than it takes."""


def start(command: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """A program for `Program`."""
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=env, encoding="utf-8")


class Program:
    """A program while the test goes on.

    `out` and `err` are the lines it has written until now. `with` kills it in the end, if it still runs.
    """

    def __init__(self, process: subprocess.Popen[str] | Forked) -> None:
        self.out: list[str] = []
        self.err: list[str] = []
        self._taken = 0
        self._changed = threading.Condition()
        self.process = process
        self._reading = threading.Lock()
        streams = (
            (self.process.stdout, self.out, self._reading),
            (self.process.stderr, self.err, threading.Lock()),
        )
        self._threads = [threading.Thread(target=self._read, args=each, daemon=True) for each in streams]
        for thread in self._threads:
            thread.start()

    def _read(self, stream: Any, lines: list[str], reading: threading.Lock) -> None:
        for line in stream:
            with reading, self._changed:
                lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    @property
    def said(self) -> str:
        """All of its stderr."""
        return "\n".join(self.err)

    def until(self, holds: Callable[[], object], within: float = PATIENCE) -> None:
        """Wait until something about its output is true; fails when it has ended before."""
        deadline = time.monotonic() + within
        with self._changed:
            while not holds():
                alive = any(thread.is_alive() for thread in self._threads)
                left = deadline - time.monotonic()
                assert alive, f"it ended: {self.process.wait()}\n{self.said}"
                assert left > 0, f"{len(self.out)} lines: {self.out[-3:]}\n{self.said}"
                self._changed.wait(min(left, 1))

    def lines(self, count: int) -> None:
        """Wait until it has written so many lines to its stdout, in all."""
        self.until(lambda: len(self.out) >= count)

    def says(self, text: str, times: int = 1, within: float = PATIENCE) -> None:
        """Wait until so many lines of its stderr contain `text`."""
        self.until(lambda: sum(text in line for line in self.err) >= times, within)

    def unread(self) -> AbstractContextManager[object]:
        """Between `with` and its end its stdout is not read (but for what is on its way)."""
        return self._reading

    def send(self, *lines: object) -> None:
        """Write lines to its stdin."""
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):  # it has ended: its exit code tells more
            self.process.stdin.write("".join(f"{line}\n" for line in lines))
            self.process.stdin.flush()

    def end(self, within: float = PATIENCE) -> int:
        """End its stdin, and wait until it has ended; its exit code."""
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        code = self.process.wait(within)
        for thread in self._threads:
            thread.join(within)
        return code

    def line(self) -> str:
        """The next line of its stdout that was not taken yet."""
        self.lines(self._taken + 1)
        self._taken += 1
        return self.out[self._taken - 1]

    def line_with(self, text: str) -> str:
        """The next one that has `text` in it."""
        while text not in (line := self.line()):
            pass
        return line

    def finish(self, number: signal.Signals | None = signal.SIGINT) -> tuple[int, list[str]]:
        """Send it a signal, unless None; its exit code, and the lines that were not taken."""
        if number is not None:
            self.process.send_signal(number)
        code = self.end()
        return code, self.out[self._taken :]

    def interrupt(self, within: float = PATIENCE) -> int:
        """End it by Ctrl-C; its exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.end(within)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.end()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream
            stream.close()


class Running(Program):
    """`pwire` while the test goes on; arguments are those of the fixture."""

    def __init__(
        self, pwire: Pwire, *args: object, url: str | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(pwire.start(*args, url=url, env=env))


class Numbered(Running):
    """`pwire produce TOPIC -m - -o json …`, which is fed with numbers, WINDOW ahead of their receipts."""

    WINDOW = 300

    def __init__(self, pwire: Pwire, topic: str, *args: object, url: str | None = None) -> None:
        super().__init__(pwire, "produce", topic, "-m", "-", "-o", "json", "-r", 3000, *args, url=url)
        self.count = 0
        self._stopping = False
        self._feeder = threading.Thread(target=self._feed, daemon=True)
        self._feeder.start()

    def _feed(self) -> None:
        while self.process.poll() is None:
            with self._changed:
                if self._stopping:
                    return
                room = self.WINDOW - (self.count - len(self.out))
                if room <= 0:
                    self._changed.wait(1)
                    continue
            self.send(*range(self.count, self.count + room))
            self.count += room

    def end(self, within: float = PATIENCE) -> int:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._feeder.join(within)
        return super().end(within)


def stored(pwire: Pwire, url: str, topic: str, *options: str) -> list[dict[str, Any]]:
    """The messages of a topic, as `read` shows them."""
    done = pwire("read", topic, "-n", 0, "-e", "-o", "json", "--quiet", *options, url=url)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_numbers(run: Numbered, messages: list[dict[str, Any]], *, once: bool) -> None:
    """All numbers are stored, in order, and each where its receipt says; `once`: no number twice."""
    receipts = [json.loads(line) for line in run.out]
    assert len(receipts) == run.count, run.said
    numbers = [int(message["payload"]) for message in messages]
    assert list(dict.fromkeys(numbers)) == list(range(run.count))
    if once:
        assert len(numbers) == run.count
    found = {message["id"]: number for message, number in zip(messages, numbers, strict=True)}
    told = {each["id"]: number for number, each in enumerate(receipts) if not each["duplicate"]}
    assert told.items() <= found.items()
