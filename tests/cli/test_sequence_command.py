"""`pwire sequence` from the outside: what is selected, where it goes, what it says of bad input."""

from __future__ import annotations

import re
import xml.etree.ElementTree as Xml
from pathlib import Path

import pytest
from pwire_run import SAMPLES, Run, decode, pwire
from rich.cells import cell_len
from test_decode_terminal import _dangerous, _frames

from pulsarctl_wire.cli import console


def sequence(*args: str | Path, stdin: bytes = b"") -> Run:
    """Run `pwire sequence ARGS`; a name of a sample stands for its path."""
    named = (SAMPLES / arg if isinstance(arg, str) and (SAMPLES / arg).is_file() else arg for arg in args)
    return pwire("sequence", *named, stdin=stdin)


def numbers(run: Run) -> list[int]:
    """The numbers of the frames that have a row."""
    return [int(found[1]) for line in run.lines if (found := re.match(r"[▶ ]*(\d+) ", line))]


# -- which frames


@pytest.mark.parametrize(
    "options",
    [
        ["--command", "SEND*"],
        ["--topic", "errors-room"],
        ["--connection", "2"],
        ["--filter", "latency_ns > 2000000"],
        ["--time-range", "+1..+2"],
    ],
    ids=lambda options: options[0],
)
def test_frames_are_selected_as_by_decode(options: list[str]) -> None:
    run = sequence("--no-fold", *options, "errors.pcap")
    lines = decode(*options, "errors.pcap").lines
    assert numbers(run) == [int(line.split()[0]) for line in lines]
    assert run.code == 0
    assert run.err == ""


def test_ends_of_other_connections_are_left_out() -> None:
    text = sequence("--connection", "2", "errors.pcap").out.decode()
    assert "connection 2 from port" in text
    assert "connection 0" not in text
    assert text.count("closed by") == 1


def test_connections_without_a_byte_are_shown_unless_frames_are_selected() -> None:
    silent = "advertised-address-silent.pcap"
    assert "never answered" in sequence(silent).out.decode()
    assert "never answered" in sequence("--connection", "1", silent).out.decode()
    assert "never answered" not in sequence("--connection", "0", silent).out.decode()
    assert "never answered" not in sequence("--topic", "adv", silent).out.decode()


def test_around_shows_the_frame_and_those_before_and_after_it_that_are_selected() -> None:
    run = sequence("--around", "19", "--context", "2", "--connection", "0", "corrupt-in-transit.pcap")
    assert numbers(run) == [10, 11, 19, 31, 32]
    assert [line for line in run.lines if line.startswith("▶ 19 ")]


def test_a_frame_that_is_not_there() -> None:
    run = sequence("--around", "999", "java-simple.pcap")
    assert run.err == "pwire: --around 999: there is no such frame in 51 frames\n"
    assert run.out == b""


def test_nothing_that_matches_is_said() -> None:
    run = sequence("--command", "SEEK", "java-simple.pcap")
    assert run.err == "pwire: sequence: there is nothing to draw: none of 51 frames matched\n"
    assert run.lines == []


def test_rows_beyond_the_limit_are_counted() -> None:
    run = sequence("--no-fold", "--rows", "10", "java-simple.pcap")
    assert len(run.lines) == 12
    assert run.lines[-1] == "… and 43 more frames and marks: see --rows"  # 51 frames, 2 marks


# -- forms


def test_svg_goes_to_stdout_and_is_xml() -> None:
    run = sequence("-o", "svg", "errors.pcap")
    root = Xml.fromstring(run.out.decode())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(root.findall("{*}g")) == len(sequence("errors.pcap").lines) - 1  # all but the line of names


def test_a_page_goes_to_stdout_or_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    printed = sequence("-o", "html", "java-simple.pcap").out.decode()
    run = sequence("--html", path, "java-simple.pcap")
    assert run.out == b""
    assert path.read_text() == printed
    assert "<svg " in printed
    assert "prefers-color-scheme:dark" in printed
    assert not re.search(r"<script|https?://(?!www\.w3\.org/2000/svg)|@import|url\(", printed)


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    run = sequence("--html", tmp_path / "no" / "page.html", "java-simple.pcap")
    assert run.code == console.EXIT_OUTPUT
    assert run.err.startswith("pwire: --html ")
    assert run.err.count("\n") == 1


def test_colours_are_those_of_other_verbs() -> None:
    assert b"\x1b" not in sequence("errors.pcap").out
    coloured = sequence("--color", "always", "errors.pcap").out.decode()
    assert "\x1b[1;31mERROR\x1b[0m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == sequence("errors.pcap").out.decode()


@pytest.mark.parametrize("form", ["text", "svg", "html"])
def test_nothing_in_a_capture_acts_on_the_terminal_or_the_page(form: str) -> None:
    run = sequence("-o", form, "--wide", "--no-fold", "-", stdin=_frames())
    assert run.code == 0
    assert "markup" in run.out.decode()
    shown = run.out.decode()
    if form == "html":
        shown = shown[shown.index("<svg") : shown.index("</svg>") + 6]
    if form == "text":
        assert _dangerous(run) == set()
        assert len(numbers(run)) >= 21
    else:
        assert not {character for character in shown if not (character.isprintable() or character == "\n")}
        assert len(Xml.fromstring(shown).findall("{*}g")) >= 21


def test_lines_are_100_cells_wide_where_there_is_no_terminal_but_not_if_wide() -> None:
    assert {cell_len(line) for line in sequence("errors.pcap").lines} == {100}
    (width,) = {cell_len(line) for line in sequence("--wide", "errors.pcap").lines}
    assert width > 200
    assert "…" not in sequence("--wide", "--connection", "2", "mixed.pcapng.gz").out.decode()


# -- sources


def test_several_files_and_stdin() -> None:
    whole = (SAMPLES / "java-simple.pcap").read_bytes()
    assert sequence("-", stdin=whole).out == sequence("java-simple.pcap").out
    assert numbers(sequence("--no-fold", "java-simple.pcap", "ipv6.pcap")) == list(range(1, 103))


def test_what_comes_before_damage_is_shown() -> None:
    whole = (SAMPLES / "java-simple.pcap").read_bytes()
    run = sequence("--no-fold", "-", stdin=whole[:3_000])
    assert run.code == console.EXIT_DAMAGED
    assert len(run.complaints) == 1
    assert numbers(run) == list(range(1, 1 + len(numbers(run))))
    assert len(numbers(run)) > 10


def test_a_source_that_cannot_be_read() -> None:
    run = sequence("no-such-file.pcap")
    assert run.code == console.EXIT_SOURCE
    assert run.err == "pwire: no-such-file.pcap: no such file\n"
    assert run.out == b""


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "sequence: missing argument SOURCE"),
        (["--rows", "0", "x"], "--rows"),
        (["--command", "SENT", "x"], "did you mean SEND?"),
        (["--time-range", "noon", "x"], "--time-range"),
        (["-o", "png", "x"], "--output"),
    ],
)
def test_bad_arguments(args: list[str], said: str) -> None:
    run = sequence(*args)
    assert run.code == console.EXIT_USAGE
    assert said in run.err
    assert run.err.count("\n") == 1
