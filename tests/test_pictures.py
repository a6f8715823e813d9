"""The pictures in docs/pictures show what pwire prints today. After a change, draw them again:

PWIRE_REWRITE_GOLDEN=1 pytest tests/test_pictures.py
"""

from __future__ import annotations

import asyncio
import io
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

import pytest
from pwire_run import pwire
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"

COLUMNS = 118
SCHEME = TerminalTheme(
    background=(23, 28, 39),
    foreground=(230, 233, 240),
    normal=[
        (58, 67, 87),  # black
        (255, 117, 145),
        (76, 199, 154),
        (234, 176, 76),
        (143, 176, 255),
        (216, 139, 232),
        (95, 196, 224),
        (230, 233, 240),  # white
    ],
)
TERMINAL = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
<style>.{unique_id}-matrix{{font:{char_height}px ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace}}
{styles}</style>
<rect width="{width}" height="{height}" rx="14" fill="#171c27"/>
<defs>{lines}</defs>
<g transform="translate(20, 20) scale(.972)">{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


def terminal(command: str, rows: int) -> str:
    """A terminal of this many rows after a command."""
    run = pwire(*shlex.split(command)[1:], "--color", "always")
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), no_color=False)
    lines = [f"\x1b[1m$ {command}\x1b[0m", *run.lines, *run.err.splitlines()]
    shown = lines if len(lines) <= rows else [*lines[: rows - 1], "…"]
    for line in shown:
        console.print(Text.from_ansi(line), no_wrap=True, overflow="ellipsis")
    return console.export_svg(theme=SCHEME, code_format=TERMINAL, unique_id="pwire")


def screen(capture: str, *keys: str, rows: int = 32) -> str:
    """The screen of `pwire tui` on a capture, after some keys."""
    from tui.screens import screen as open_screen

    async def look(directory: Path) -> str:
        async with open_screen(directory, Path(capture), size=(COLUMNS, rows)) as shown:
            await shown.press(*keys)
            return shown.picture()

    with TemporaryDirectory() as directory:
        lines = asyncio.run(look(Path(directory))).splitlines()
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), no_color=False)
    for line in lines:
        console.print(Text.from_ansi(line), no_wrap=True, overflow="crop")
    return console.export_svg(theme=SCHEME, code_format=TERMINAL, unique_id="pwire")


def diagram(command: str) -> str:
    """What a command draws itself."""
    return pwire(*shlex.split(command)[1:]).out.decode()


def page(command: str, height: int) -> str:
    """The upper part of an HTML page that a command writes, 1,280 pixels wide."""
    html = pwire(*shlex.split(command)[1:]).out.decode()
    style = html.partition("<style>")[2].partition("</style>")[0]
    style = style.replace("(max-width:640px)", "(max-width:0)")  # however small the picture is shown
    body = html.partition("</head>")[2].partition("</html>")[0]
    content = body.replace("<body", '<body xmlns="http://www.w3.org/1999/xhtml"')
    content = content.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1280 {height}"><style>{style}</style>'
        f'<foreignObject width="1280" height="{height}">{content}</foreignObject></svg>\n'
    )


DRAWN: dict[str, Callable[[], str]] = {
    "decode": lambda: terminal(
        "pwire decode --doctor --connection 3 samples/pcaps/corrupt-in-transit.pcap", 17
    ),
    "doctor": lambda: terminal("pwire doctor -T 5 samples/pcaps/permit-leak.pcap", 24),
    "screen": lambda: screen("samples/pcaps/java-nack-dlq.pcap", *"jjjjjj", "enter", *"jjj"),
    "screen-topics": lambda: screen("samples/pcaps/java-nack-dlq.pcap", "3", "j", rows=12),
    "screen-findings": lambda: screen("samples/pcaps/advertised-address-silent.pcap", "6", rows=18),
    "sequence": lambda: diagram("pwire sequence -o svg samples/pcaps/python-simple.pcap"),
    "permits": lambda: page("pwire permits -o html samples/pcaps/permit-leak.pcap", 560),
    "summary": lambda: page("pwire report summary -o html samples/pcaps/java-keyvalue-protobuf.pcap", 1000),
}


@pytest.mark.parametrize("name", DRAWN)
def test_it_shows_what_is_printed_today(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    picture = DRAWN[name]()
    ElementTree.fromstring(picture)
    path = PICTURES / f"{name}.svg"
    if os.environ.get("PWIRE_REWRITE_GOLDEN"):
        path.write_text(picture, encoding="utf-8")
    assert picture == path.read_text(encoding="utf-8")


def test_each_picture_is_drawn_here_and_shown_in_a_document() -> None:
    assert {path.stem for path in PICTURES.glob("*")} == DRAWN.keys()
    documents = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    text = "".join(path.read_text(encoding="utf-8") for path in documents)
    for name in DRAWN:
        assert f"pictures/{name}.svg" in text, name
