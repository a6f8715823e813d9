"""`pwire` as a process: pipes that close, Ctrl-C, terminals, and what it imports."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from forked import Fork, Forked
from pwire_run import SAMPLES, Pcap, decode
from rich.cells import cell_len

from pulsarctl_wire import __version__
from pulsarctl_wire.cli.console import EXIT_DAMAGED, EXIT_INTERRUPTED, EXIT_OUTPUT, EXIT_PIPE

MAIN = "import sys; from pulsarctl_wire.cli import main; sys.argv[0] = 'pwire'; main()"
PWIRE = [sys.executable, "-c", MAIN]
WAIT = 60
"""Seconds after which a process that should have ended is given up."""


def _environment(**more: str) -> dict[str, str]:
    left = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH", "LANG") if name in os.environ}
    return {**left, "TERM": "xterm-256color", "COLUMNS": "120", **more}


def _run(*args: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PWIRE, *args],
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
        env=_environment(**environment),
        stdin=subprocess.DEVNULL,
    )


def _run_forked(*args: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The same, where how it starts does not matter."""
    with Forked(list(map(str, args)), _environment(**environment)) as process:
        out, err = process.communicate(timeout=WAIT)
        return subprocess.CompletedProcess(process.args, process.wait(), out, err)


# -- endings


@pytest.mark.parametrize("form", ["line", "tree", "json", "hex"])
def test_a_pipe_whose_reader_has_gone(form: str) -> None:
    with subprocess.Popen(
        [*PWIRE, "decode", "-o", form, "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(),
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        data = (SAMPLES / "errors.pcap").read_bytes()
        process.stdin.write(data[:3000])
        process.stdin.flush()
        assert b"CONNECT" in process.stdout.readline()
        process.stdout.close()
        with suppress(BrokenPipeError):  # it may end before it has read all
            process.stdin.write(data[3000:])
            process.stdin.close()
        said = process.stderr.read().decode()
        assert process.wait(WAIT) == EXIT_PIPE
    assert "Traceback" not in said
    assert "Exception ignored" not in said


def test_head_takes_one_line() -> None:
    head = subprocess.run(
        f"{sys.executable} -c \"{MAIN}\" decode -o json '{SAMPLES / 'errors.pcap'}' | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=True,
        env=_environment(),
    )
    assert head.stdout.startswith('{"number":1,')
    assert head.stdout.count("\n") == 1
    assert "Traceback" not in head.stderr


@pytest.mark.parametrize("form", ["line", "json"])
def test_interrupted_while_it_waits_for_more(form: str) -> None:
    """All that has come is shown before it waits, so the last line tells that it does."""
    data = (SAMPLES / "nano.pcap").read_bytes()[:3000]
    expected = decode("-o", form, "-", stdin=data)
    with subprocess.Popen(
        [*PWIRE, "decode", "-o", form, "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(),
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdin.write(data)
        process.stdin.flush()
        shown = [process.stdout.readline().decode().rstrip("\n") for _ in expected.lines]
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT) == EXIT_INTERRUPTED
        rest, said = process.stdout.read(), process.stderr.read().decode()
    assert shown == expected.lines
    assert rest == b""
    assert said.splitlines() == [
        line for line in expected.err.splitlines() if line not in expected.complaints
    ]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("form", ["line", "json"])
def test_a_full_disk(form: str) -> None:
    with open("/dev/full", "wb") as full:
        process = subprocess.run(
            [*PWIRE, "decode", "-o", form, SAMPLES / "nano.pcap"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=WAIT,
            check=False,
            env=_environment(),
        )
    assert process.returncode == EXIT_OUTPUT
    assert "Traceback" not in process.stderr
    assert "No space left on device" in process.stderr


# -- terminals


def _on_a_terminal(*args: str | Path, **environment: str) -> bytes:
    """What `pwire ARGS` writes to a terminal, on stdout and stderr."""
    ours, its = pty.openpty()
    try:
        process = Fork(list(map(str, args)), _environment(**environment), its, its, its)
        os.close(its)
        its = -1
        written = b""
        with suppress(OSError):  # Linux says the end of a terminal like that
            while data := os.read(ours, 65536):
                written += data
        assert process.wait(WAIT) == 0
        return written
    finally:
        os.close(ours)
        if its >= 0:
            os.close(its)


@pytest.mark.parametrize("form", ["line", "tree", "hex"])
def test_a_terminal_gets_colours(form: str) -> None:
    written = _on_a_terminal("decode", "-o", form, SAMPLES / "corrupt-in-transit.pcap")
    assert re.search(rb"\x1b\[1;31mcrc=BAD\x1b\[0m", written)
    assert re.search(rb"\x1b\[[0-9;]*mSEND\x1b\[0m", written)
    assert re.search(rb"\x1b\[1;31m1 invalid\x1b\[0m", written)  # in the summary


def test_json_is_never_coloured() -> None:
    written = _on_a_terminal("decode", "-o", "json", "--no-color", SAMPLES / "nano.pcap")
    assert b"\x1b" not in written
    written = _on_a_terminal("decode", "-o", "json", SAMPLES / "nano.pcap")
    assert not any(b"\x1b" in line for line in written.splitlines() if line.startswith(b"{"))


@pytest.mark.parametrize(
    ("args", "environment"),
    [
        (["--no-color"], {}),
        ([], {"NO_COLOR": "1"}),
        ([], {"TERM": "dumb"}),
    ],
    ids=["--no-color", "NO_COLOR", "TERM=dumb"],
)
@pytest.mark.parametrize("form", ["line", "tree"])
def test_a_terminal_without_colours(args: list[str], environment: dict[str, str], form: str) -> None:
    written = _on_a_terminal("decode", "-o", form, *args, SAMPLES / "corrupt-in-transit.pcap", **environment)
    assert b"crc=BAD" in written
    assert b"\x1b" not in written


def test_an_empty_no_color_is_none() -> None:
    """no-color.org: "when present and not an empty string"."""
    written = _on_a_terminal("decode", SAMPLES / "corrupt-in-transit.pcap", NO_COLOR="")
    assert b"\x1b[1;31mcrc=BAD" in written


@pytest.mark.parametrize(
    ("args", "environment", "coloured"),
    [
        ([], {}, False),
        (["--color", "always"], {}, True),
        (["--color", "always"], {"NO_COLOR": "1"}, True),
        (["--color", "auto"], {"FORCE_COLOR": "1"}, True),
        (["--color", "never"], {"FORCE_COLOR": "1"}, False),
        (["--no-color"], {"FORCE_COLOR": "1"}, False),
        ([], {"FORCE_COLOR": "1"}, True),
        ([], {"FORCE_COLOR": ""}, False),
        ([], {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
@pytest.mark.parametrize("command", ["decode", "stats"])
def test_colours_in_a_pipe(
    command: str, args: list[str], environment: dict[str, str], coloured: bool
) -> None:
    ran = _run_forked(command, *args, SAMPLES / "corrupt-in-transit.pcap", **environment)
    assert ("\x1b[" in ran.stdout) == coloured
    if command == "decode":
        assert ("\x1b[" in ran.stderr) == coloured


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [
        ({}, False),
        ({"NO_COLOR": "1"}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"GITHUB_ACTIONS": "true"}, False),
    ],
)
@pytest.mark.parametrize("command", ["", "schema", "proxy ctl fault add"])
def test_colours_of_a_help_page_in_a_pipe(command: str, environment: dict[str, str], coloured: bool) -> None:
    page = _run(*command.split(), "--help", **environment)
    assert page.returncode == 0
    assert ("\x1b[" in page.stdout) == coloured
    assert command in page.stdout


@pytest.mark.parametrize(
    ("args", "environment", "coloured"),
    [
        ([], {}, True),
        ([], {"NO_COLOR": "1"}, False),
        ([], {"TERM": "dumb"}, False),
        (["--color", "never"], {}, False),
        (["--no-color"], {}, False),
    ],
)
def test_colours_of_a_help_page_on_a_terminal(
    args: list[str], environment: dict[str, str], coloured: bool
) -> None:
    page = _on_a_terminal("proxy", "ctl", "fault", "add", *args, "--help", **environment)
    assert (b"\x1b[" in page) == coloured


def test_lines_on_a_terminal_are_as_long_as_it_is_wide() -> None:
    sample = SAMPLES / "java-keyshared.pcap"
    written = _on_a_terminal("decode", sample, COLUMNS="80")
    text = re.sub(rb"\x1b\[[0-9;]*m", b"", written).decode()
    lines = text[: text.index(" packets, ")].splitlines()[:-1]
    whole = decode(sample).lines
    assert len(lines) == len(whole)
    assert max(map(cell_len, lines)) == 80
    assert all(
        line == all_of_it or (line[-1] == "…" and all_of_it.startswith(line[:-1]))
        for line, all_of_it in zip(lines, whole, strict=True)
    )
    wide = _on_a_terminal("decode", "--wide", "--no-color", sample, COLUMNS="80").decode()
    assert wide.splitlines()[: len(whole)] == whole


def test_colours_do_not_change_the_text() -> None:
    sample = SAMPLES / "corrupt-in-transit.pcap"
    for form in ("line", "tree", "hex"):
        written = _on_a_terminal("decode", "-o", form, "--wide", sample)
        plain = re.sub(rb"\x1b\[[0-9;]*m", b"", written).decode()
        piped = _run_forked("decode", "-o", form, sample)
        texts = (plain, piped.stdout + piped.stderr)
        assert len({tuple(line.rstrip() for line in text.splitlines()) for text in texts}) == 1


def test_the_progress_bar_takes_a_file_name_as_it_is(tmp_path: Path) -> None:
    """A large file, damaged at its beginning, whose name is markup that closes what was never opened."""
    (tmp_path / "[").mkdir()
    with open(tmp_path / "[" / "nope].pcap", "wb") as file:
        nano = Pcap.read("nano.pcap")
        file.write(nano._replace(packets=nano.packets[:24]).file)
        file.write(b"\xff" * 600_000)
        file.truncate(60_000_000)
    ours, its = pty.openpty()
    with subprocess.Popen(
        [*PWIRE, "decode", "[/nope].pcap"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=its,
        cwd=tmp_path,
        env=_environment(),
    ) as process:
        os.close(its)
        assert process.stdout
        lines = process.stdout.read().splitlines()
        said = b""
        with suppress(OSError):
            while data := os.read(ours, 65536):
                said += data
        os.close(ours)
        assert process.wait(WAIT) == EXIT_DAMAGED
    assert len(lines) == 18
    assert b"Traceback" not in said
    assert b"[/nope].pcap: the packet at byte" in said


# -- help, version, completion, imports


def test_help_says_all_commands_and_options() -> None:
    run = _run("--help")
    assert run.returncode == 0
    assert "decode" in run.stdout
    assert "capture" in run.stdout
    run = _run("decode", "-h")
    assert run.returncode == 0
    for option in ("--filter", "--command", "--topic", "--connection", "--time-range", "--first-error"):
        assert option in run.stdout


def test_no_arguments_are_a_question_for_help() -> None:
    run = _run()
    assert run.returncode == 2
    assert "Usage: pwire" in run.stdout + run.stderr


def test_version() -> None:
    run = _run("--version")
    assert run.returncode == 0
    assert run.stdout in (f"pwire {__version__}\n", f"pwire {__version__} (compiled)\n")


@pytest.mark.parametrize(
    ("shell", "word"), [("bash", "complete -o default"), ("zsh", "compdef"), ("fish", "complete")]
)
def test_a_completion_script(shell: str, word: str) -> None:
    run = _run(_PWIRE_COMPLETE=f"source_{shell}")
    assert run.returncode == 0
    assert word in run.stdout
    assert "pwire" in run.stdout


def test_show_completion_asks_the_shell() -> None:
    run = _run("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert run.returncode == 0
    assert "_PWIRE_COMPLETE" in run.stdout


def test_completion_knows_the_commands() -> None:
    run = _run(_PWIRE_COMPLETE="complete_bash", COMP_WORDS="pwire de", COMP_CWORD="1")
    assert "decode" in run.stdout.split()


def _imported(*args: str | Path) -> set[str]:
    process = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", MAIN, *args],
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=True,
        env=_environment(),
    )
    return {
        line.rsplit("|", 1)[1].strip()
        for line in process.stderr.splitlines()
        if line.startswith("import time:")
    }


def _of(modules: set[str], *packages: str) -> set[str]:
    return {name for name in modules if any(name == each or name.startswith(f"{each}.") for each in packages)}


HEAVY = ("scapy", "google.protobuf", "orjson", "rule_engine", "zstandard", "asyncio", "pyspark")
OTHER_VERBS = (
    "pulsarctl_wire.cli.session.verb",
    "pulsarctl_wire.cli.capture.stats",
    "pulsarctl_wire.cli.proxy.proxy",
)


@pytest.mark.parametrize("args", [["--help"], ["decode", "--help"], ["--version"]], ids=" ".join)
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    modules = _imported(*args)
    assert "typer" in modules
    assert _of(modules, *HEAVY, *OTHER_VERBS) == set()


def test_decoding_imports_only_what_it_needs() -> None:
    modules = _imported("decode", SAMPLES / "python-simple.pcap")
    assert _of(modules, "google.protobuf")
    assert _of(modules, *OTHER_VERBS) == set()
    assert _of(modules, "scapy", "rule_engine", "orjson", "asyncio", "rich.tree", "multiprocessing") == set()
