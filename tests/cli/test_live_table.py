"""The live table fits where it is shown, and nothing in the traffic's names acts on the terminal."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from segments import build, receipt, send
from test_decode_terminal import EVIL

from pulsarctl_wire.cli.proxy.live_table import LiveTable
from pulsarctl_wire.render.live_page import page, shorten
from pulsarctl_wire.render.text import rich_text
from pulsarctl_wire.stats.live import Live
from pulsarctl_wire.stats.snapshot import Snapshot
from pulsarctl_wire.wire.frame import Connection
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.session.knowledge import Knowledge
from pulsarctl_wire.wire.session.ledgers import LedgerState

START = 1_700_000_000 * 10**9
SECOND = 10**9
LONG = "orders-of-a-shop-with-a-rather-long-name-partition-"


def traffic(connections: int, topic: str = LONG, *, numbered: bool = True) -> Live:
    """A producer on each connection; the first ones send most, and not all is answered."""
    live = Live(START)
    talks = []
    for number in range(connections):
        connection = Connection(
            number, f"10.0.0.{number % 250}:{50_000 + number}", "broker-1.example.org:6650"
        )
        streams = FrameStream(connection, False), FrameStream(connection, True)
        state = LedgerState(connection, Knowledge(), streams)
        live.opened(connection, START, state)
        name = f"{topic}{number}" if numbered else topic
        turns = [
            (True, build("PRODUCER", topic=name, producer_id=1, request_id=1)),
            (False, build("PRODUCER_SUCCESS", request_id=1, producer_name="p")),
        ]
        for sequence in range(connections - number):
            turns += [(True, send(b"x" * 100, sequence)), (False, receipt(sequence))]
        turns.append((True, send(b"x", 99)))
        talks.append((streams, state, turns))
    for step in range(2 * connections + 3):  # in the order of time
        for streams, state, turns in talks:
            for to_broker, raw in turns[step : step + 1]:
                events = streams[to_broker].feed(raw, START + step * 1_000_000)
                state.track(events)
                live.events(events)
    return live


def lines(found: Snapshot, width: int, height: int = 0, *, recent: bool = True) -> list[str]:
    return rich_text([page(found, width, height, recent=recent)], width).splitlines()


@cache
def seen(connections: int) -> Snapshot:
    """The traffic of so many connections after two seconds."""
    return traffic(connections).snapshot(START + 2 * SECOND)


# ---- The page ----


@pytest.mark.parametrize("connections", [0, 1, 3, 12, 300])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 23), (160, 50), (100, 30), (200, 70)])
def test_the_page_fits_the_terminal(connections: int, width: int, height: int) -> None:
    found = seen(connections)
    shown = lines(found, width, height)
    assert len(shown) <= height
    assert all(cell_len(line) <= width for line in shown)
    rows = [line for line in shown if line.startswith("public/default/")]
    assert bool(rows) == bool(connections)
    if connections:
        assert "partition-0" in rows[0]  # the busiest
        ends = next(line for line in shown if line.startswith("0 10.0.0.0:50000"))
        assert "6650" in ends
        assert any(line.startswith("SEND ") for line in shown)
    hidden = len(found.topics) - len(rows)
    assert (f"… and {hidden:,} more" in shown) == (hidden > 0)
    if connections > 20:
        assert len(shown) >= height - 2  # no room is wasted
        assert len(rows) >= 3


def test_what_has_no_room_goes_and_what_waits_stays() -> None:
    found = traffic(3).snapshot(START + SECOND)
    wide, narrow = lines(found, 160)[4:], lines(found, 80)[4:]
    titles = [next(line.split() for line in page if line.startswith("topic ")) for page in (wide, narrow)]
    assert set(titles[1]) < set(titles[0])
    assert {"topic", "in/s", "out/s", "pending", "permits"} <= set(titles[1])
    assert {"bytes/s", "in", "out", "prod", "cons", "unacked", "errors"} <= set(titles[0])


def test_a_very_narrow_terminal_is_survived() -> None:
    found = traffic(5).snapshot(START)
    for width in (1, 2, 10, 40):
        for height in (1, 5, 12):
            assert lines(found, width, height)


def test_what_went_wrong_is_said() -> None:
    live = traffic(1)
    assert not any(line.startswith("trouble") for line in lines(live.snapshot(START), 100))
    stream = FrameStream(Connection(0), False)
    for error in (9, 9, 11, 3, 4, 5, 6):
        live.events(stream.feed(build("ERROR", request_id=1, error=error, message="x"), START))
    live.missed_frames += 1234
    live.events(stream.gap(2_000, START))
    said = next(line for line in lines(live.snapshot(START), 200) if line.startswith("trouble"))
    assert said.startswith("trouble    2 ChecksumError, 1 AuthenticationError")
    assert said.endswith("2 other errors, 1,234 frames not shown, 1 gap (2.0 kB)")


def test_recent_latencies_are_shown_live_and_all_at_the_end() -> None:
    found = traffic(3).snapshot(START + 3_600 * SECOND)
    live, last = (
        next(line.split() for line in lines(found, 100, recent=recent) if line.startswith("SEND"))
        for recent in (True, False)
    )
    assert live == ["SEND", "6", "-", "-", "-", "-", "-"]
    assert last[:4] == ["SEND", "6", "1.00", "ms"]


@pytest.mark.parametrize("width", [60, 80, 160])
@pytest.mark.parametrize("colours", [None, "standard"])
def test_nothing_in_a_name_acts_on_the_terminal(width: int, colours: str | None) -> None:
    live = traffic(1, EVIL, numbered=False)
    live.opened(Connection(7, EVIL, EVIL), START)
    text = rich_text([page(live.snapshot(START), width, 40, recent=True)], width, colours)
    if colours:
        assert "\x1b[" in text
        text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert all(character.isprintable() or character == "\n" for character in text)


def test_names_are_no_markup() -> None:
    live = traffic(1, "[bold red]a[link=x]:smile:", numbered=False)
    text = rich_text([page(live.snapshot(START), 120, 40, recent=True)], 120)
    assert "public/default/[bold red]a[link=x]:smile: " in text


@given(st.text(), st.integers(1, 30))
def test_long_names_lose_their_middle(text: str, width: int) -> None:
    short = shorten(text, width)
    assert cell_len(short) <= max(width, 1)
    if cell_len(text) <= width:
        assert short == text
    else:
        head, _, tail = short.partition("…")
        assert text.startswith(head)
        assert text.endswith(tail)


def test_the_ends_of_names_that_are_cut_tell_them_apart() -> None:
    assert shorten("persistent://public/default/orders-partition-12", 24) == "persistent:…partition-12"


# ---- On stderr ----


@pytest.mark.parametrize("forced", ["", "FORCE_COLOR", "TTY_COMPATIBLE"])
def test_without_a_terminal_nothing_is_shown_before_the_end(
    forced: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    if forced:
        monkeypatch.setenv(forced, "1")
    live = traffic(40)
    with ExitStack() as stack:
        table = LiveTable(live.snapshot, stack, clock=lambda: START + 5 * SECOND)
        table.tick(START)
        assert err.getvalue() == ""
    assert ("\x1b[" in err.getvalue()) == (forced == "FORCE_COLOR")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", err.getvalue())
    assert shown.startswith("00:00:05  40 open of 40 connections, 40 producers")
    assert "\x1b" not in shown
    assert f"public/default/{LONG}19 " in shown
    assert shown.count("… and 20 more\n") == 2
    assert max(map(cell_len, shown.splitlines())) <= 160


def what_takes_nothing(kind: str) -> tuple[TextIO, Callable[[], None]]:
    """A stream, and what is to be called for it to take nothing any more."""
    if kind == "full":
        return open("/dev/full", "w", encoding="utf-8"), lambda: None
    ours, its = os.pipe() if kind == "pipe" else pty.openpty()
    if kind == "terminal gone before":
        os.close(ours)
        return open(its, "w", encoding="utf-8"), lambda: None
    return open(its, "w", encoding="utf-8"), lambda: os.close(ours)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("kind", ["full", "pipe", "terminal", "terminal gone before"])
def test_what_stderr_does_not_take_is_not_said(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    err, ends = what_takes_nothing(kind)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("TERM", "xterm")
    live = traffic(3)
    with ExitStack() as stack:
        table = LiveTable(live.snapshot, stack, clock=lambda: START + 5 * SECOND)
        table.tick(START)
        ends()
    assert sys.stderr is err
    with suppress(OSError):  # what it did not take is still to be written
        err.close()


_DRAWN = """
import sys
from contextlib import ExitStack
from test_live_table import START, SECOND, traffic
from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.proxy.live_table import LiveTable

live = traffic(30, "\\x1b[31me\\x07-")
with ExitStack() as stack:
    table = LiveTable(live.snapshot, stack, clock=lambda: START + 9 * SECOND)
    for second in range(3):
        table.tick(START + second * SECOND)
    console.warn("a remark")
    table.tick(START + 3 * SECOND)
print("stdout is left alone")
"""


def drawn(tmp_path: Path, columns: int, rows: int, **environment: str) -> tuple[str, str]:
    """What a terminal of that size was sent while a table was drawn on it, and what went to stdout."""
    controller, terminal = pty.openpty()
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parent / "capture"), str(here.parent)])
    size = {"COLUMNS": str(columns), "LINES": str(rows)}
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", _DRAWN],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=terminal,
            env={"PYTHONPATH": paths, "TERM": "xterm-256color", **size, **environment},
        )
    os.close(terminal)
    sent = b""
    while True:
        try:
            data = os.read(controller, 65_536)
        except OSError:  # EIO: nobody has it open any more
            break
        if not data:
            break
        sent += data
    os.close(controller)
    assert process.wait(timeout=30) == 0, sent.decode()
    return sent.decode(), (tmp_path / "out").read_text()


@pytest.mark.parametrize("no_colour", [False, True])
def test_on_a_terminal_the_page_is_drawn_in_its_place(tmp_path: Path, no_colour: bool) -> None:
    sent, out = drawn(tmp_path, 80, 24, **({"NO_COLOR": "1"} if no_colour else {}))
    assert out == "stdout is left alone\n"
    assert sent.count("30 open of 30") >= 5  # each drawing, and the last page
    assert "00:00:03" in sent
    assert "pwire: a remark" in sent
    last = sent[sent.rindex("00:00:09") :]
    assert last.count("\r\n") > 24  # the last page has all that it has to say
    assert "\x07" not in sent
    assert "\\x1b[31me\\x07-0" in sent
    colours = set(re.findall(r"\x1b\[([0-9;]*)m", sent)) - {"0", ""}
    assert bool(colours) != no_colour
    others = set(re.findall(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", re.sub(r"\x1b\[[0-9;]*m", "", sent)))
    assert {re.sub(r"\d+", "", each) for each in others} <= {"\x1b[A", "\x1b[K", "\x1b[?l", "\x1b[?h"}


def test_a_dumb_terminal_gets_the_last_page(tmp_path: Path) -> None:
    sent, _ = drawn(tmp_path, 80, 24, TERM="dumb")
    assert sent.count("30 open of 30") == 1
    assert "\x1b" not in sent
