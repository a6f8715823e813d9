"""Calls of the admin API."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
from typing import Any, Final
from urllib.parse import urlsplit

from pulsarctl_wire.errors import SessionError, Unreachable
from pulsarctl_wire.net.sockets import TlsContext

_MAX_REQUESTS: Final = 5
"""Requests that one call may send: the first, and those that follow redirects."""


class RestError(SessionError):
    """An unsuccessful answer of the admin API; `status` is its HTTP status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status}: {text[:500]}")
        self.status = status


class Admin:
    """The admin API at a URL; `headers` hold credentials."""

    def __init__(
        self,
        url: str,
        headers: dict[str, str] | None = None,
        tls: TlsContext | None = None,
        timeout: float = 30,
    ) -> None:
        self.url = url.rstrip("/")
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        self._tls = tls
        self._timeout = timeout

    async def call(self, method: str, path: str, body: object = None) -> Any:
        """Do what `call_now` does, without blocking the event loop."""
        return await asyncio.to_thread(self.call_now, method, path, body)

    def call_now(self, method: str, path: str, body: object = None) -> Any:
        """Call a path, or another broker's URL; follow redirects.

        `body` is sent as JSON, unless None. Returns the value of the answer's JSON, or else its text.
        Raises RestError, and Unreachable if there is no answer.
        """
        url = urlsplit(path if "://" in path else self.url + path)
        try:
            for _ in range(_MAX_REQUESTS):
                with contextlib.closing(self._connect(url.scheme, url.netloc)) as connection:
                    target = url._replace(scheme="", netloc="").geturl()
                    text = None if body is None else json.dumps(body)
                    connection.request(method, target, text, self._headers)
                    answer = connection.getresponse()
                    content = answer.read().decode("utf-8", "replace")
                location = answer.headers["Location"]
                if answer.status != 307 or not location:  # 307: another broker owns the resource
                    break
                url = urlsplit(location)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{self.url}: no answer of the admin API: {error}") from None
        if answer.status >= 300:
            raise RestError(answer.status, content)
        return read_answer(content)

    def _connect(self, scheme: str, netloc: str) -> http.client.HTTPConnection:
        if scheme == "https":
            return http.client.HTTPSConnection(netloc, timeout=self._timeout, context=self._tls)
        return http.client.HTTPConnection(netloc, timeout=self._timeout)


def read_answer(text: str) -> Any:
    """Return the value of an answer in JSON, or the text of any other answer."""
    try:
        return json.loads(text)
    except ValueError:
        return text.strip()
