"""`pwire tui` in a real terminal: what it leaves behind, whatever ends it."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyte
import pytest
from tui.screens import SAMPLES

from pulsarctl_wire.cli.tui.job import is_complete
from pulsarctl_wire.store.directory import write_json
from pulsarctl_wire.testing import Broker

NACKS = SAMPLES / "java-nack-dlq.pcap"
PWIRE = Path(sys.executable).with_name("pwire")
LIMIT = 30  # seconds

pytestmark = pytest.mark.slow


class Terminal:
    """A terminal of 120 by 30 cells, with a command in it. `written` is all that was written to it."""

    def __init__(self, cache: Path, *words: str, verb: str = "tui", **environment: str) -> None:
        self._screen = pyte.Screen(120, 30)
        self._stream = pyte.ByteStream(self._screen)
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs
        self.written = b""
        kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            ["env", "--default-signal", str(PWIRE), verb, *words],  # nohup and the like ignore some
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**kept, "XDG_CACHE_HOME": str(cache), "TERM": "xterm-256color", **environment},
            start_new_session=True,
        )

    @property
    def text(self) -> str:
        """What is on the screen."""
        return "\n".join(line.rstrip() for line in self._screen.display)

    def _read(self) -> None:
        if select.select([self._ours], [], [], 0.05)[0]:
            data = os.read(self._ours, 1 << 16)
            self.written += data
            self._stream.feed(data)

    def until(self, *texts: str) -> str:
        """Wait until all texts are on the screen, and return all that is there."""
        deadline = time.monotonic() + LIMIT
        while not all(text in self.text for text in texts):
            assert time.monotonic() < deadline, (texts, self.text)
            self._read()
        return self.text

    def until_shown(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds of what is on the screen."""
        deadline = time.monotonic() + LIMIT
        while not holds():
            assert time.monotonic() < deadline, self.text
            self._read()

    def is_marked_after(self, text: str) -> bool:
        """Return whether the cell after a text has another background than the next one, as a cursor has."""
        rows = [(row, line.find(text)) for row, line in enumerate(self._screen.display) if text in line]
        cells = [self._screen.buffer[row][column + len(text)] for row, column in rows]
        nexts = [self._screen.buffer[row][column + len(text) + 1] for row, column in rows]
        return [cell.bg for cell in cells] != [cell.bg for cell in nexts]

    def until_written(self, *codes: bytes) -> None:
        """Wait until all codes were written."""
        deadline = time.monotonic() + LIMIT
        while not all(code in self.written for code in codes):
            assert time.monotonic() < deadline, (codes, self.written[-2000:])
            self._read()

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def wait(self) -> int:
        """Read on until the command has ended; return its exit code."""
        deadline = time.monotonic() + LIMIT
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.text
            self._read()
        return self.process.returncode

    @property
    def modes(self) -> list[object]:
        return termios.tcgetattr(self._theirs)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._theirs)
        os.close(self._ours)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path, str(NACKS))
    yield terminal
    terminal.close()


def test_it_ends_by_a_key(terminal: Terminal, tmp_path: Path) -> None:
    terminal.until("CONNECT", "PARTITIONED_METADATA")
    assert b"\x1b[?1049h" in terminal.written
    terminal.press("q")
    assert terminal.wait() == 0
    terminal.until_written(b"\x1b[?1049l", b"\x1b[?25h")
    assert terminal.modes == terminal.before
    (kept,) = (tmp_path / "pwire" / "events").iterdir()
    assert {path.name for path in kept.iterdir()} >= {"events.0", "index", "answers", "findings.json"}
    assert kept.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGQUIT])
def test_a_signal_leaves_no_broken_terminal(terminal: Terminal, number: signal.Signals) -> None:
    terminal.until("CONNECT")
    terminal.process.send_signal(number)
    assert terminal.wait() == -number
    terminal.until_written(b"\x1b[?1049l", b"\x1b[?25h", b"\x1b[?1000l")
    deadline = time.monotonic() + LIMIT
    while terminal.modes != terminal.before:
        assert time.monotonic() < deadline, terminal.modes
        select.select([], [], [], 0.01)


def test_a_closed_terminal_ends_everything(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, str(NACKS))
    terminal.until("CONNECT")
    os.close(terminal._theirs)
    os.close(terminal._ours)
    assert terminal.process.wait(LIMIT) != 0
    deadline = time.monotonic() + LIMIT
    while _environments(str(tmp_path)):  # of the processes beside it
        assert time.monotonic() < deadline
        select.select([], [], [], 0.05)


def _environments(text: str) -> list[Path]:
    """The running processes whose environment has a text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if text in path.read_text(errors="replace"):
                found.append(path)
    return found


def test_no_colours(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, str(NACKS), NO_COLOR="1")
    terminal.until("CONNECT", "PARTITIONED_METADATA")
    written = terminal.written
    terminal.press("q")
    terminal.wait()
    terminal.close()
    codes = {
        int(code) for sgr in re.findall(rb"\x1b\[([\d;]*)m", written) for code in sgr.split(b";") if code
    }
    assert codes <= {0, 1, 3, 4, 7}  # no colours; bold, italic, underlined, reversed


def test_wrong_sources_are_said_in_a_line(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "missing.pcap")
    assert terminal.wait() == 3
    terminal.until("missing.pcap: no such file")
    assert b"\x1b[?1049h" not in terminal.written
    terminal.close()


def test_without_a_terminal() -> None:
    run = subprocess.run(
        [PWIRE, "tui", NACKS], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert run.returncode == 2
    assert run.stderr == (
        "pwire: tui: this is no terminal; --web PORT shows the screen in a browser, "
        "pwire decode prints frames anywhere\n"
    )


def test_a_selection_is_replayed_to_another_broker(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, str(NACKS))
    terminal.until("1/131")
    with Broker() as broker:
        terminal.press("vG")
        terminal.until("131 selected")
        terminal.press("x")
        terminal.until("131 to FILE")
        terminal.press(f"{broker.service_url} --suffix=-again\r")
        terminal.until("replay to pulsar://", "exit code")
        topics = {frame.topic for frame in broker.frames("command=SEND")}
    terminal.press("\x03")
    terminal.wait()
    terminal.close()
    assert topics
    assert all(topic and topic.endswith("-again") for topic in topics)


def test_what_tls_hid_is_not_kept(tmp_path: Path) -> None:
    write_json(tmp_path, "findings", {"is_done": True})
    write_json(tmp_path, "reading", {"is_done": True, "has_secrets": False})
    assert is_complete(tmp_path)
    write_json(tmp_path, "reading", {"is_done": True, "has_secrets": True})
    assert not is_complete(tmp_path)
