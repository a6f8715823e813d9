"""`pwire broker --tui` and `pwire proxy --tui` in a real terminal, with real clients."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tui.test_terminal import LIMIT, PWIRE, Terminal

Start = Callable[..., Terminal]

pytestmark = pytest.mark.slow


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    terminals = []

    def start(verb: str, *words: str) -> Terminal:
        terminals.append(Terminal(tmp_path, *words, verb=verb))
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.press("\x03")
        terminal.wait()
        terminal.close()


@pytest.fixture
def broker(start: Start) -> tuple[Terminal, str]:
    """A broker with a screen, and its URL."""
    terminal = start("broker", "--tui", "--memory", "--port", "0", "--http-port", "0")
    terminal.until("ready; Ctrl-C ends it")
    terminal.press("8")
    match = re.search(r"broker at (pulsar://127\.0\.0\.1:\d+)", terminal.until("broker at pulsar://"))
    assert match
    terminal.press("1")
    return terminal, match[1]


def produce(url: str, *words: str) -> subprocess.Popen[str]:
    command = [str(PWIRE), "produce", "orders", "-u", url, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def break_at_send(terminal: Terminal) -> None:
    """Make a breakpoint for frames like the SEND of the first producer."""
    terminal.press(":")
    terminal.until("the number of a frame")
    terminal.press("9\r")
    terminal.until("9/12")
    terminal.press("B")
    terminal.until("hold command=SEND")


def test_traffic_appears(broker: tuple[Terminal, str]) -> None:
    terminal, url = broker
    with produce(url, "-m", "hello") as client:
        terminal.until("CONNECT", "SEND_RECEIPT", '"hello"', "following")
        assert client.wait(LIMIT) == 0
    terminal.until("live 0 frames/s 0 B/s")


def test_a_fault_is_added_by_a_form(broker: tuple[Terminal, str]) -> None:
    terminal, _ = broker
    terminal.press("9")
    terminal.until("[9]Faults")
    terminal.press("+")
    terminal.until("add a fault", "hold")
    terminal.press("\r")
    terminal.until("Ctrl-S adds it", "time:")
    terminal.press("soon")
    terminal.until("soon")
    terminal.press("\x13")
    terminal.until("delay: time=soon: give a time")  # the form stays open
    terminal.press("\x7f" * 4)
    terminal.until("  100ms")  # the default, where nothing is written
    terminal.press("5ms")
    terminal.until("  5ms")
    terminal.press("\x13")
    terminal.until("#1 delay time=5ms  0 of 0 matches hit")
    terminal.press("D")
    terminal.until("fault #1 was removed", "no faults")


def test_a_breakpoint_holds_frames(broker: tuple[Terminal, str]) -> None:
    terminal, url = broker
    with produce(url, "-m", "first") as client:
        assert client.wait(LIMIT) == 0
    terminal.until("SEND_RECEIPT", "12/12")
    break_at_send(terminal)
    with produce(url, "-m", "second") as client:
        terminal.until("1 held: 0 shows them")
        terminal.press("0")
        terminal.until("[0]Held", "SEND", '"second"')
        terminal.press("i")
        terminal.until("Ctrl-S sends it", '"payload"')
        terminal.press("\x13")
        assert client.wait(LIMIT) == 0
    terminal.until("nothing is held")


def test_the_bytes_of_a_held_frame_are_changed(broker: tuple[Terminal, str]) -> None:
    terminal, url = broker
    with produce(url, "-m", "x") as client:
        assert client.wait(LIMIT) == 0
    terminal.until("12/12")
    break_at_send(terminal)
    with produce(url, "-m", "abc") as client:
        terminal.until("1 held: 0 shows them")
        terminal.press("0")
        terminal.until("[0]Held", '"abc"')
        terminal.press("A")
        terminal.until('"SEND_ERROR"', "Ctrl-S sends it")  # what a broker would say
        terminal.press("\x1b")
        terminal.until("[0]Held", '"abc"')
        terminal.press("h")
        terminal.until("Ctrl-S sends it", "61 62 63")
        terminal.press("\x1b[6~\x1b[F")  # PgDn, End
        terminal.until_shown(lambda: terminal.is_marked_after("61 62 63"))
        terminal.press(" 64 65")
        terminal.until("61 62 63 64 65")
        terminal.press("\x13")
        assert client.wait(LIMIT) == 0
    terminal.until("nothing is held")
    read = subprocess.run(
        [PWIRE, "consume", "orders", "-u", url, "-n", "2", "-s", "s", "-p", "Earliest"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=True,
    )
    assert "abcde" in read.stdout


def test_a_port_that_is_in_use_is_said(broker: tuple[Terminal, str], start: Start) -> None:
    port = broker[1].rpartition(":")[2]
    other = start("proxy", "--tui", "--listen", port, "--to", broker[1])
    assert other.wait() == 2
    other.until("Address already in use")
    assert b"\x1b[?1049l" in other.written


def test_a_proxy(broker: tuple[Terminal, str], start: Start) -> None:
    proxy = start("proxy", "--tui", "--listen", "0", "--to", broker[1])
    proxy.until("listening on")
    proxy.press("8")
    match = re.search(r"for clients: (pulsar://127\.0\.0\.1:\d+)", proxy.until("for clients: pulsar"))
    assert match
    proxy.press("1")
    with produce(match[1], "-m", "through", "-n", "3") as client:
        proxy.until("CONNECT", "SEND_RECEIPT", '"through"')
        assert client.wait(LIMIT) == 0
