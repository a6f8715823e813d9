"""Text on the screen: where lines are cut, and which name was probably meant."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pwire_run import pwire
from rich.cells import cell_len

from pulsarctl_wire.cli import console
from pulsarctl_wire.render.text import Paint, clean, cut_line, human_time

TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs", "Mn", "Me"]), max_size=40)


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@given(st.lists(st.tuples(TEXTS, st.booleans()), max_size=6), st.integers(2, 90))
def test_a_line_is_cut_at_cells(parts: list[tuple[str, bool]], width: int) -> None:
    paint = Paint(True)
    line = "".join(paint("red", text) if red else text for text, red in parts)
    shown = cut_line(line, width)
    assert cell_len(_plain(shown)) <= width
    if cell_len(_plain(line)) <= width:
        assert shown == line
    else:
        assert _plain(shown).endswith("…")
        assert cell_len(_plain(shown)) == width
        assert _plain(line).startswith(_plain(shown)[:-1].rstrip())


@given(st.lists(TEXTS, min_size=2, max_size=2), st.booleans(), st.integers(4, 90))
def test_the_middle_of_a_line_gives_way_to_its_end(texts: list[str], coloured: bool, width: int) -> None:
    before, end = texts
    kept = Paint(coloured)("red", end)
    shown = _plain(cut_line(before + kept, width, kept))
    assert cell_len(shown) <= width
    if cell_len(before + end) <= width:
        assert shown == before + end
    elif cell_len(end) <= width // 2:
        assert shown.endswith(end)
    else:
        assert shown.endswith("…")
        assert cell_len(shown) == width


def test_what_is_kept_of_a_line_has_all_the_room_there_is() -> None:
    assert cut_line("0123456789 BAD", 10, " BAD") == "01234… BAD"
    assert cut_line("01 very bad indeed", 10, " very bad indeed") == "01 very b…"
    assert cut_line("0123456789 very bad", 10, " very bad") == "0123… ver…"


def test_a_cut_line_ends_its_colours() -> None:
    assert cut_line(Paint(True)("red", "x" * 90), 10) == f"\x1b[1;31m{'x' * 9}…\x1b[0m"
    assert cut_line("日本語のテキスト", 9) == "日本語の…"
    assert cut_line("日本語のテキスト", 8) == "日本語 …"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            "decode --colr always x",
            "decode: no such option --colr; did you mean --color?",
        ),
        ("decod x", "no such command decod; did you mean decode?"),
        (
            "decode -o lin x",
            "decode: -o / --output: lin is not one of line, tree, json, hex",
        ),
        (
            "decode --color blue x",
            "decode: --color: blue is not one of always, auto, never",
        ),
        ("decode -c 0 x", "decode: -c / --count: 0 is not in the range x>=1"),
        ("decode -c many x", "decode: -c / --count: many is not a number"),
        ("decode -o", "decode: option -o requires an argument"),
        ("decode --quiet=3 x", "decode: option --quiet does not take a value"),
        ("table x", "table: missing option --out"),
        ("lookup", "lookup: missing argument TOPIC"),
        ("schema gett", "schema: no such command gett; did you mean get?"),
        ("proxy --lisen :0", "proxy: no such option --lisen; did you mean --listen?"),
        ("proxy ctl fault remove x", "proxy ctl fault remove: NUMBER: x is not a number"),
        ("-x", "no such option -x"),
    ],
)
def test_usage_errors_are_printed_in_one_line(arguments: str, said: str) -> None:
    run = pwire(*arguments.split(" "))
    assert run.code == console.EXIT_USAGE
    assert run.out == b""
    assert run.err.startswith(f"pwire: {said} (pwire ")
    assert run.err.endswith(" --help)\n")


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        *((873_000, "873 µs"), (999_499, "999 µs"), (999_500, "1.00 ms"), (999_994_999, "999.99 ms")),
        *((999_995_000, "1.00 s"), (59_400_000_000, "59.40 s"), (3_599_600_000_000, "1 h 00 m")),
    ],
)
def test_times_at_the_bounds_of_their_units(nanoseconds: int, text: str) -> None:
    assert human_time(nanoseconds) == text


def test_without_a_command_they_are_listed() -> None:
    run = pwire()
    assert run.code == console.EXIT_USAGE
    assert "decode" in run.out.decode() + run.err


def test_an_option_cannot_act_on_the_terminal() -> None:
    run = pwire("decode", "--\x1b[31m", "x")
    assert "\x1b" not in run.err
    assert "no such option --" in run.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("http://adm:secret@h:1 is a web service URL", "http://…@h:1 is a web service URL"),
        ("s3://KEY:sec/ret@bucket/x: no such file", "s3://…@bucket/x: no such file"),
        ("pulsar://token@h, pulsar://h:1/?token=secret: no", "pulsar://…@h, pulsar://h:1/?… no"),
        ("--dial b:1=adm:secret@h:x: no", "--dial …@h:x: no"),
        ("persistent://public/default/a@b: not found", "persistent://public/default/a@b: not found"),
    ],
)
def test_passwords_of_urls_are_not_said(text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    console.warn(text)
    assert capsys.readouterr().err == f"pwire: {said}\n"


@given(
    st.text(
        st.sampled_from([*"ab \\xu\n\t\x7f\0é\x9b\u200b\u2028😀\ud800\U000e0001"]) | st.characters(),
        max_size=30,
    )
)
def test_what_a_terminal_may_act_on_is_escaped(text: str) -> None:
    shown = clean(text)
    assert shown.isprintable()
    assert shown == "".join(
        each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode()
        for each in text
    )
