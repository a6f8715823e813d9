"""`pwire tui --web`: who is let in, and that a browser gets the same screen."""

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyte
import pytest
from aiohttp import ClientSession, ClientWebSocketResponse, CookieJar, WSMsgType, WSServerHandshakeError
from tui.screens import SAMPLES, run

NACKS = SAMPLES / "java-nack-dlq.pcap"
PWIRE = Path(sys.executable).with_name("pwire")
LIMIT = 30  # seconds

pytestmark = pytest.mark.slow


class Served:
    """A command that serves screens. `link` lets a browser in, once."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.link = self.next_link()

    def next_link(self) -> str:
        assert self.process.stdout is not None
        match = re.search(r"http://127.0.0.1:\d+/\?token=\S+", self.process.stdout.readline())
        assert match is not None
        return match[0]

    @property
    def page(self) -> str:
        return self.link.split("?")[0]


@contextmanager
def serving(tmp_path: Path, *words: str) -> Iterator[Served]:
    process = subprocess.Popen(
        [PWIRE, *words, "--web", "0"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
    )
    try:
        yield Served(process)
    finally:
        process.terminate()
        process.communicate(timeout=LIMIT)


def browser() -> ClientSession:
    return ClientSession(cookie_jar=CookieJar(unsafe=True))  # of IP addresses, too


def leftovers(path: Path) -> list[Path]:
    """What nobody needs when all has ended."""
    return [*path.glob("pwire-*"), *path.glob("pwire/events/*/match.*")]


class Page:
    """A page with a screen of 120 by 30 cells."""

    def __init__(self, socket: "ClientWebSocketResponse[Any]") -> None:
        self._socket = socket
        self._screen = pyte.Screen(120, 30)
        self._stream = pyte.ByteStream(self._screen)

    async def until(self, text: str) -> str:
        deadline = time.monotonic() + LIMIT
        while text not in (shown := "\n".join(self._screen.display)):
            assert time.monotonic() < deadline, (text, shown)
            message = await asyncio.wait_for(self._socket.receive(), LIMIT)
            assert message.type == WSMsgType.BINARY, (text, shown)
            self._stream.feed(message.data)
        return shown

    async def press(self, keys: str) -> None:
        await self._socket.send_json(["stdin", keys])

    async def until_closed(self) -> None:
        while (await asyncio.wait_for(self._socket.receive(), LIMIT)).type == WSMsgType.BINARY:
            pass


@asynccontextmanager
async def opened(session: ClientSession, served: Served) -> AsyncIterator[Page]:
    url, origin = f"{served.page}ws?width=120&height=30", served.page.rstrip("/")
    async with session.ws_connect(url, origin=origin) as socket:
        yield Page(socket)


@run
async def test_a_link_lets_one_browser_in(tmp_path: Path) -> None:
    with serving(tmp_path, "tui", str(NACKS)) as served:
        async with browser() as mine, browser() as other:
            assert (await mine.get(served.page)).status == 403
            assert (await mine.get(served.link[:-1])).status == 403
            answer = await mine.get(served.link)
            assert answer.status == 200
            assert str(answer.url) == served.page  # without the token
            page = await answer.text()
            assert f"ws://{answer.url.authority}/ws" in page
            assert not re.search(r"https?://(?!127\.0\.0\.1)", page)  # nothing is loaded from elsewhere
            assert answer.headers["Content-Security-Policy"].startswith("default-src 'self';")
            assert (await other.get(served.link)).status == 403
            assert (await other.get(served.page)).status == 403
            assert (await other.get(served.next_link())).status == 200
            assert (await mine.get(f"{served.page}static/js/textual.js")).status == 200
            assert (await mine.get(served.link)).status == 200  # it is in already


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Host": "evil.example"}, {"Host": "localhost:99999999"}],
)
@run
async def test_other_pages_are_refused(tmp_path: Path, headers: dict[str, str]) -> None:
    with serving(tmp_path, "tui", str(NACKS)) as served:
        async with browser() as mine:
            assert (await mine.get(served.link)).status == 200
            assert (await mine.get(served.page, headers=headers)).status == 403
            with pytest.raises(WSServerHandshakeError, match="403"):
                await mine.ws_connect(f"{served.page}ws", headers=headers)


@run
async def test_a_browser_has_the_screen(tmp_path: Path) -> None:
    with serving(tmp_path, "tui", str(NACKS)) as served:
        async with browser() as mine:
            await mine.get(served.link)
            async with opened(mine, served) as page, opened(mine, served) as second:
                await page.until("1/131")
                await second.until("1/131")
                await page.press("f")
                await page.until("total_size > 1000")
                await page.press('command == "SEND"\r')
                assert "PARTITIONED" not in await page.until("1/9")
                await second.press("G")
                await second.until("131/131")  # without that filter
                await page.press("q")
                await page.until_closed()
            async with opened(mine, served) as page:
                await page.until("1/131")
    assert not leftovers(tmp_path)


@run
async def test_a_page_closes_when_its_screen_was_killed(tmp_path: Path) -> None:
    with serving(tmp_path, "tui", str(NACKS)) as served:
        async with browser() as mine:
            await mine.get(served.link)
            async with opened(mine, served) as page:
                await page.until("1/131")
                children = psutil.Process(served.process.pid).children()
                (screen,) = [child for child in children if "PWIRE_STORE" in child.environ()]
                screen.kill()
                await page.until_closed()


@run
async def test_a_server_goes_on_without_a_page(tmp_path: Path) -> None:
    with serving(tmp_path, "broker", "--port", "0", "--http-port", "0") as served:
        async with browser() as mine:
            await mine.get(served.link)
            async with opened(mine, served) as page:
                await page.until("ready; Ctrl-C ends it")
                await page.press("9+")
                await page.until("delay")
                await page.press("\r\r")
                await page.until("Ctrl-S adds it")
                await page.press("\r\r")
                assert "#2 " not in await page.until("#1 ")
            async with opened(mine, served) as page:
                await page.until("live")
                await page.press("9")
                await page.until("#1 ")
    assert not leftovers(tmp_path)


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with serving(tmp_path, "tui", str(NACKS)) as served:
        port = served.page.rpartition(":")[2].rstrip("/")
        done = subprocess.run(
            [PWIRE, "tui", NACKS, "--web", port], capture_output=True, text=True, check=False
        )
    assert done.returncode == 10
    assert done.stderr == f"pwire: --web {port}: Address already in use; name another port, or 0\n"


def test_the_exit_code_is_that_of_the_server(tmp_path: Path) -> None:
    with serving(tmp_path, "broker", "--port", "0", "--http-port", "0") as served:
        port = served.page.rpartition(":")[2].rstrip("/")
        words = ["broker", "--port", port, "--web", "0"]
        done = subprocess.run([PWIRE, *words], capture_output=True, text=True, check=False, timeout=LIMIT)
    assert done.returncode == 10
    assert f"127.0.0.1:{port} is taken" in done.stderr
