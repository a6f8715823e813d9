"""Controls a running proxy or broker over a unix socket: a line of JSON is a request, another one the answer.

    {"do": "fault-add", "fault": "drop …"}   {"number": 2}
    {"do": "fault-list"}   {"faults": [{"number": 2, "fault": "…", "matched": 3, "hits": 1}, …]}
    {"do": "fault-wait", "number": 2, "hits": 3, "timeout": 30}   the fault, as in a list, once it has 3 hits
    {"do": "fault-remove", "number": 2}      {}
    {"do": "fault-clear"}                    {}
    {"do": "held-list"}   {"held": [{"number": 5, "connection": 0, "to_broker": true, "data": "…", …}, …]}
    {"do": "held-decide", "number": 5, "frames": ["…"], "answers": ["…"]}   {}
    any request that fails                   {"error": "why"}, with "timed_out": true after waiting in vain

Only the user who started the proxy or broker can open the socket.
"""

import asyncio
import json
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pulsarctl_wire.errors import RequestTimeout, SettingsError, Unreachable, WireError

LONGEST: Final = 8 * 1024 * 1024
"""Maximum bytes of a request."""

_MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024
"""Maximum bytes of an answer: the state of a broker with tens of thousands of topics."""

FAULT_REQUESTS: Final = (
    *("fault-add", "fault-list", "fault-wait", "fault-remove", "fault-clear"),
    *("held-list", "held-decide"),
)
"""Requests that both the proxy and the broker answer."""

Answer = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Carries out a request and returns the answer; raises WireError if it cannot."""


def directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of this user's sockets: in XDG_RUNTIME_DIR, else in the temporary directory."""
    home = environ.get("XDG_RUNTIME_DIR")
    return Path(home, "pwire") if home else Path(environ.get("TMPDIR") or "/tmp", f"pwire-{os.getuid()}")


def ensure_directory(environ: Mapping[str, str]) -> Path:
    """Create `directory(environ)` if missing; return it. Raises SettingsError if others can write to it."""
    path = directory(environ)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}; name another path with --control") from None
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise SettingsError(f"{path}: other users can write there; name another path with --control")
    return path


class Control:
    """The control socket of a `kind` of server at `path`, served by the event loop from `open` to `close`."""

    def __init__(self, path: Path, answer: Answer, kind: str = "proxy") -> None:
        self._kind = kind
        self._path = path
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def open(self) -> None:
        """Start listening. Raises SettingsError if that fails."""
        path = self._path
        try:
            if path.is_socket():
                if await asyncio.to_thread(is_served, path):
                    text = f"--control {path}: another {self._kind} listens there; name another path"
                    raise SettingsError(text)
                path.unlink()
            self._server = await asyncio.start_unix_server(self._serve, sock=_bind(path), limit=LONGEST)
        except OSError as error:
            raise SettingsError(f"--control {path}: {error.strerror or error}; name another path") from None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        # ValueError: the line is too long
        with suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while line := await reader.readline():
                writer.write(json.dumps(await self._reply(line)).encode() + b"\n")
                await writer.drain()
        writer.close()
        del self._connections[task]

    async def _reply(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                return {"error": "the request must be a JSON object"}
            return await self._answer(request)
        except RequestTimeout as error:
            return {"error": str(error), "timed_out": True}
        except WireError as error:
            return {"error": str(error)}
        except (ValueError, RecursionError):
            return {"error": "the request is not JSON"}
        except Exception as error:
            return {"error": f"a bug: {type(error).__name__}: {error}"}

    async def close(self) -> None:
        """Stop listening, remove the socket, and close all connections to it."""
        if self._server is not None:
            self._server.close()
            with suppress(OSError):
                self._path.unlink()
            for task, writer in self._connections.items():
                writer.close()
                task.cancel()  # it may wait for a fault
            if self._connections:
                await asyncio.wait(self._connections, timeout=1)


def _bind(path: Path) -> socket.socket:
    """Return a socket at `path` that only the user can open. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX)
    umask = os.umask(0o177)
    try:
        sock.bind(str(path))
    except BaseException:
        sock.close()
        raise
    finally:
        os.umask(umask)
    return sock


def is_served(path: Path) -> bool:
    """Return whether a process is listening at `path`, rather than having left its socket there."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(1)
        return sock.connect_ex(str(path)) == 0


def ask(path: Path, request: dict[str, Any], seconds: float = 5.0, kind: str = "proxy") -> dict[str, Any]:
    """Send `request` to the `kind` of server at `path`; return the answer.

    Raises Unreachable, also if nothing comes for `seconds`; SettingsError if the server refuses the request;
    RequestTimeout if it answers that what the request waits for (`fault-wait`) has not happened in time.
    """
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(seconds)
            sock.connect(str(path))
            sock.sendall(json.dumps(request).encode() + b"\n")
            with sock.makefile("rb") as file:
                answer = json.loads(file.readline(_MAX_ANSWER_BYTES))
            if not isinstance(answer, dict):
                raise ValueError("its answer is not a JSON object")
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Unreachable(f"no {kind} answers at {path} ({reason}); is pwire {kind} running?") from None
    if "error" in answer:
        raise (RequestTimeout if answer.get("timed_out") else SettingsError)(str(answer["error"]))
    return answer
