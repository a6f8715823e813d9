"""Nothing that a capture contains moves the cursor, or changes colours or titles beyond our own."""

import asyncio
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tui.screens import Screen, screen

from pulsarctl_wire.tui.strips import to_strip
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.frame import build_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import MessageMetadata

HOSTILE = Path(__file__).parents[1] / "hostile"
ESCAPES = [
    "\x1b[2J",
    "\x1b]0;title\x07",
    "\x1b[31m",
    "\x1b]8;;http://x\x1b\\y",
    "\x9b1;1H",
    "\r",
    "\n",
    "\x00",
    "\u202e",
]
texts = st.lists(st.sampled_from(ESCAPES) | st.text(max_size=8), min_size=1, max_size=8).map("".join)
PANES = ("enter", "escape", "2", "3", "4", "5", "6", "7", "1")
SAFE = re.compile(r"\x1b\[[0-9;]*m")


@given(texts)
@settings(max_examples=300)
def test_lines(text: str) -> None:
    for segment in to_strip(text):
        assert segment.text.isprintable()
        assert segment.control is None
        assert segment.style is None or segment.style.link is None


async def check(shown: Screen, *keys: str) -> None:
    """Look at everything that is drawn after each of some keys."""
    for key in keys:
        await shown.press(key)
        for strip in shown.app.screen._compositor.render_strips():
            for segment in strip:
                assert segment.text.isprintable(), segment
                assert segment.style is None or segment.style.link is None
        assert SAFE.sub("", shown.picture()).replace("\n", "").isprintable()


@pytest.mark.slow
@given(st.lists(texts, min_size=4, max_size=4))
@settings(max_examples=3)
def test_names_and_payloads(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    topic, name, subscription, payload = names
    commands = [
        build_frame(build_command("CONNECT", client_version=name)),
        build_frame(build_command("PRODUCER", topic=topic, producer_id=1, request_id=1, producer_name=name)),
        build_frame(
            build_command(
                "SUBSCRIBE", topic=topic, subscription=subscription, subType=0, consumer_id=1, request_id=2
            )
        ),
        build_frame(
            build_command("SEND", producer_id=1, sequence_id=0),
            MessageMetadata(producer_name=name, sequence_id=0, publish_time=1, partition_key=topic),
            payload.encode(errors="surrogatepass"),
        ),
        build_frame(build_command("ERROR", request_id=2, error=4, message=payload)),
    ]
    directory = tmp_path_factory.mktemp("store")
    source = directory / "frames.bin"
    source.write_bytes(b"".join(commands))

    async def look() -> None:
        (directory / "events").mkdir()
        async with screen(directory / "events", source) as shown:
            assert shown.app.model.row_count == len(commands)
            await check(shown, *"jjjj", *PANES)

    asyncio.run(look())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["connect-type-last.hex", "command-type-beyond-int32.pcapng", "gzip-twice.gz"]
)
def test_captures_that_broke_promises(tmp_path: Path, name: str) -> None:
    async def look() -> None:
        async with screen(tmp_path, HOSTILE / name) as shown:
            await check(shown, *PANES)

    asyncio.run(look())
