"""Watchers are started again when they fail, with their reason told to the next one."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from pulsarctl_wire.cli.console import EXIT_OUTPUT
from pulsarctl_wire.cli.proxy.keeper import RESTARTED, Start, Watch, Watcher
from pulsarctl_wire.net.proxy.tap import NOTE, TapRecord, TapRing


class Kept:
    """A ring whose watchers are `watch`; what they write to `said` can be read."""

    def __init__(self, stack: ExitStack, watch: Callable[[Kept, Start], int]) -> None:
        self.ring = TapRing(capacity=4_096)
        self._said, self.say = os.pipe()
        sock = stack.enter_context(socket.socket())
        bound: Watch = lambda start: watch(self, start)  # noqa: E731
        self.watcher = Watcher(bound, self.ring, sock.close)
        os.close(self.say)
        self.ring.use_in_proxy()

    def end(self) -> tuple[int, str]:
        """The exit code, and all that was said."""
        self.ring.end()
        code = self.watcher.wait()
        with open(self._said) as said:
            return code, said.read()


def notes(kept: Kept, start: Start) -> int:
    """Say what comes; fail as it asks for."""
    os.write(kept.say, f"<{start.reason}>".encode())
    start.ready()
    for record in kept.ring.records(0.05):
        if record is not None and record.kind == NOTE:
            _obey(kept, record)
    return 0


def _obey(kept: Kept, record: TapRecord) -> None:
    text = record.data.decode()
    os.write(kept.say, text.encode())
    if text == "raise":
        raise RuntimeError("as asked")
    if text == "exit":
        raise SystemExit(3)
    if text == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


def test_one_that_ends_well_ends_it_all() -> None:
    with ExitStack() as stack:
        kept = Kept(stack, notes)
        kept.ring.note("a")
        assert kept.end() == (0, "<>a")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("raise", "RuntimeError: as asked at test_keeping.py:"),
        ("kill", "killed by SIGKILL"),
        ("exit", "it could not start"),
    ],
)
def test_one_that_fails_is_followed_by_another_that_goes_on_behind(how: str, why: str) -> None:
    with ExitStack() as stack:
        kept = Kept(stack, notes)
        kept.ring.note("a")
        kept.ring.note(how)
        kept.ring.note("b")
        assert kept.watcher.read_news() == RESTARTED
        kept.ring.note("c")
        code, said = kept.end()
    assert code == EXIT_OUTPUT
    assert said.startswith(f"<>a{how}<{why}")
    assert said.endswith(">bc")


def test_those_that_fail_again_and_again_wait_longer_and_longer() -> None:
    def fails(kept: Kept, start: Start) -> int:
        os.write(kept.say, f"{start.delay:g} ".encode())
        start.ready()
        if start.delay < 60:
            raise RuntimeError
        return 0

    with ExitStack() as stack:
        kept = Kept(stack, fails)
        began = time.monotonic()
        code, said = kept.end() if kept.watcher.read_news() else (0, "")
        assert time.monotonic() - began < 60  # nobody waited here
    assert code == EXIT_OUTPUT
    assert "0 0 1 2 4 8 16 32 60 ".startswith(said)


def test_one_that_cannot_begin_ends_the_command() -> None:
    def fails(kept: Kept, start: Start) -> int:
        raise SystemExit(7)

    with ExitStack() as stack, pytest.raises(SystemExit) as ended:
        Kept(stack, fails)
    assert ended.value.code == 7


def test_one_that_is_killed_before_it_has_begun_ends_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    def dies(kept: Kept, start: Start) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    with ExitStack() as stack, pytest.raises(SystemExit) as ended:
        Kept(stack, dies)
    assert ended.value.code == EXIT_OUTPUT
    assert "pwire: the watcher died (killed by SIGKILL)\n" in capfd.readouterr().err
