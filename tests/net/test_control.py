"""The socket by which a running proxy is told what to do: lines of JSON, and whoever else writes to it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from net.scripted import awaited, run

from pulsarctl_wire.errors import SettingsError, Unreachable, WireError
from pulsarctl_wire.net.control import LONGEST, Control, ask, directory, ensure_directory, is_served


async def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """What a proxy does that only repeats what it is asked."""
    if asked.get("do") == "refuse":
        raise WireError("no, says the test")
    return {"asked": asked}


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory whose name leaves room for a socket's."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@asynccontextmanager
async def served(path: Path) -> AsyncIterator[Control]:
    control = Control(path, answer)
    await control.open()
    try:
        yield control
    finally:
        await control.close()


class Caller:
    """A connection by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def line(self) -> Any:
        """The next answer; None at the end."""
        line = await self._reader.readline()
        return json.loads(line) if line else None

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


@asynccontextmanager
async def calling(path: Path) -> AsyncIterator[Caller]:
    reader, writer = await asyncio.open_unix_connection(str(path))
    caller = Caller(reader, writer)
    try:
        yield caller
    finally:
        await caller.close()


def test_where_sockets_are() -> None:
    assert directory({"XDG_RUNTIME_DIR": "/run/user/7", "TMPDIR": "/x"}) == Path("/run/user/7/pwire")
    assert directory({"TMPDIR": "/var/tmp"}) == Path(f"/var/tmp/pwire-{os.getuid()}")
    assert directory({"XDG_RUNTIME_DIR": "", "TMPDIR": ""}) == Path(f"/tmp/pwire-{os.getuid()}")


# ---- Asked and answered ----


def test_it_is_asked_and_answers(home: Path) -> None:
    async def test() -> None:
        async with served(home / "s"):
            for request in ({"do": "list"}, {"do": "add", "fault": "drop é \n"}, {}):
                assert await asyncio.to_thread(ask, home / "s", request) == {"asked": request}
            with pytest.raises(SettingsError, match="no, says the test"):
                await asyncio.to_thread(ask, home / "s", {"do": "refuse"})

    run(test())


def test_several_lines_and_pieces_of_lines(home: Path) -> None:
    async def test() -> None:
        async with served(home / "s"), calling(home / "s") as caller, calling(home / "s") as other:
            await caller.send(b'{"a": 1}\n{"a": 2}\n{"a"')
            assert await caller.line() == {"asked": {"a": 1}}
            assert await caller.line() == {"asked": {"a": 2}}
            await other.send(b"{}\n")  # nobody waits for the rest of a line but who sends it
            assert await other.line() == {"asked": {}}
            for byte in b": 3}\n":
                await caller.send(bytes([byte]))
            assert await caller.line() == {"asked": {"a": 3}}

    run(test())


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"", "the request is not JSON"),
        (b"list", "the request is not JSON"),
        (b'{"do"', "the request is not JSON"),
        (b"\xff\xfe", "the request is not JSON"),
        (b"[" * 30_000, "the request is not JSON"),
        (b"[]", "the request must be a JSON object"),
        (b"7", "the request must be a JSON object"),
        (b'"list"', "the request must be a JSON object"),
        (b"null", "the request must be a JSON object"),
        (b'{"do": "refuse"}', "no, says the test"),
    ],
    ids=lambda value: repr(value)[:12],
)
def test_what_cannot_be_done_is_said(home: Path, line: bytes, error: str) -> None:
    async def test() -> None:
        async with served(home / "s"), calling(home / "s") as caller:
            for _ in range(2):  # and the next line is heard
                await caller.send(line + b"\n")
                assert await caller.line() == {"error": error}

    run(test())


@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line), max_size=5))
@settings(max_examples=30)
def test_each_line_has_an_answer(lines: list[bytes]) -> None:
    async def test(path: Path) -> None:
        async with served(path), calling(path) as caller:
            await caller.send(b"".join(line + b"\n" for line in lines))
            for _ in lines:
                assert set(await caller.line()) <= {"asked", "error"}

    with tempfile.TemporaryDirectory() as home:
        run(test(Path(home, "s")))


def test_a_line_without_end_is_not_kept(home: Path) -> None:
    async def test() -> None:
        async with served(home / "s"):
            async with calling(home / "s") as caller:
                with suppress(BrokenPipeError, ConnectionResetError):
                    await caller.send(b"x" * (4 * LONGEST))
                    assert await caller.line() is None
            assert await asyncio.to_thread(ask, home / "s", {}) == {"asked": {}}

    run(test())


def test_callers_that_leave(home: Path) -> None:
    async def test() -> None:
        async with served(home / "s"):
            for data in (b"", b"{", b"{}\n" * 100):
                async with calling(home / "s") as caller:
                    await caller.send(data)
            assert await asyncio.to_thread(ask, home / "s", {}) == {"asked": {}}

    run(test())


# ---- The socket ----


def test_nobody_else_may_open_it(home: Path) -> None:
    async def test() -> None:
        mask = os.umask(0)
        try:
            path = ensure_directory({"XDG_RUNTIME_DIR": str(home / "made")}) / "s"
            async with served(path):
                assert stat.S_IMODE(path.stat().st_mode) & 0o177 == 0
                assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
                assert os.umask(0) == 0
        finally:
            os.umask(mask)

    run(test())


def test_it_goes_with_the_proxy(home: Path) -> None:
    async def test() -> None:
        control = Control(home / "s", answer)
        await control.close()  # never opened
        await control.open()
        assert is_served(home / "s")
        await control.close()
        assert not (home / "s").exists()
        assert not is_served(home / "s")
        await control.open()
        (home / "s").unlink()  # by whoever
        await control.close()

    run(test())


async def refused(path: Path, match: str) -> None:
    with pytest.raises(SettingsError, match=match) as caught:
        await Control(path, answer).open()
    assert str(caught.value).startswith(f"--control {path}: ")
    assert "\n" not in str(caught.value)


def test_a_directory_that_others_write_to(home: Path) -> None:
    shared = ensure_directory({"XDG_RUNTIME_DIR": str(home)})
    for mode in (0o777, 0o770):
        shared.chmod(mode)
        with pytest.raises(SettingsError, match="other users can write there; name another path"):
            ensure_directory({"XDG_RUNTIME_DIR": str(home)})


def test_a_socket_that_is_left_over(home: Path) -> None:
    async def test() -> None:
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(home / "s"))
        assert not is_served(home / "s")
        async with served(home / "s"):
            assert await asyncio.to_thread(ask, home / "s", {}) == {"asked": {}}

    run(test())


def test_a_socket_of_another_proxy(home: Path) -> None:
    async def test() -> None:
        async with served(home / "s"):
            await refused(home / "s", "another proxy listens there; name another path")
            assert await asyncio.to_thread(ask, home / "s", {}) == {"asked": {}}

    run(test())


def test_a_file_that_is_no_socket_is_left_alone(home: Path) -> None:
    (home / "s").write_text("precious")
    run(refused(home / "s", "Address already in use"))
    assert (home / "s").read_text() == "precious"


def test_paths_that_cannot_be(home: Path) -> None:
    (home / "file").write_text("")
    run(refused(home / "file" / "s", "name another path"))
    run(refused(home / ("s" * 200), "path too long; name another path"))


# ---- Asking ----


def test_nobody_there(home: Path) -> None:
    with pytest.raises(Unreachable, match=r"no proxy answers at .*No such file.*is pwire proxy running"):
        ask(home / "s", {})
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(home / "s"))
    with pytest.raises(Unreachable, match="refused"):
        ask(home / "s", {})


def reply(path: Path, data: bytes) -> Callable[[socket.socket], None]:
    """Answer anything by `data`, and end."""

    def serve(listening: socket.socket) -> None:
        peer, _ = listening.accept()
        with peer:
            peer.recv(1000)
            peer.sendall(data)

    return serve


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"hello\n",
        b'{"a": ',
        b"5\n",
        b"[]\n",
        b"[" * 100_000 + b"\n",
    ],
    ids=lambda data: repr(data)[:12],
)
def test_others_that_answer(home: Path, data: bytes) -> None:
    async def test() -> None:
        with closing(socket.socket(socket.AF_UNIX)) as listening:
            listening.bind(str(home / "s"))
            listening.listen()
            serving = asyncio.create_task(asyncio.to_thread(reply(home / "s", data), listening))
            with pytest.raises(Unreachable, match="no proxy answers at"):
                await asyncio.to_thread(ask, home / "s", {})
            await serving

    run(test())


@awaited
async def test_somebody_who_says_nothing() -> None:
    with tempfile.TemporaryDirectory() as home, closing(socket.socket(socket.AF_UNIX)) as listening:
        path = Path(home, "s")
        listening.bind(str(path))
        listening.listen()
        with pytest.raises(Unreachable, match="timed out"):
            await asyncio.to_thread(ask, path, {}, 0.05)
