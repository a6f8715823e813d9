"""`--web PORT`: a web server on loopback, each page of which is a screen in a process of its own.

A link with a token lets one browser in, which gets a cookie in exchange; then a new link is printed. All else
is refused: requests without the cookie, those for other hosts (another page may have a name that resolves to
loopback), and WebSockets that other pages open.
"""

import asyncio
import secrets
import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from socket import socket
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler
from textual_serve.app_service import AppService
from textual_serve.server import Server, to_int

HOSTS: Final = ("127.0.0.1", "localhost")
"""Names by which a browser may ask, also at the other end of a tunnel."""

_HEADERS: Final = {  # nothing is loaded from elsewhere, fonts included
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'unsafe-inline'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_GRACE: Final = 0.5  # seconds that open pages have to end
_HEARTBEAT: Final = 15.0  # seconds between two checks that a page is still open
_POLL_SECONDS: Final = 0.2  # between two calls of `has_ended`


def serve_screens(
    sock: socket, command: list[str], say: Callable[[str], object], has_ended: Callable[[], bool]
) -> None:
    """Serve pages on a listening socket until a signal comes, or until `has_ended` returns true.

    `say` gets the links. `command` shows a screen on pipes, as textual-serve starts it; textual-serve writes
    to stdout what a screen wrote to stderr.
    """
    screens = WebScreens(sock.getsockname()[1], command, say, has_ended)
    web.run_app(screens.make_app(), sock=sock, print=None, access_log=None, shutdown_timeout=_GRACE)


class WebScreens(Server):
    """Serves pages with screens on a port."""

    def __init__(
        self, port: int, command: list[str], say: Callable[[str], object], has_ended: Callable[[], bool]
    ) -> None:
        super().__init__(f"exec {shlex.join(command)}", port=port, templates_path=Path(__file__).parent)
        self._has_ended = has_ended
        self._say = say
        self._cookie_name = f"pwire-{port}"  # browsers do not tell ports apart
        self._cookie = secrets.token_urlsafe()
        self._token = ""

    async def make_app(self) -> web.Application:
        """Return the web application."""
        app = await self._make_app()
        app.middlewares.append(self._guard)
        app.on_response_prepare.append(self._add_headers)
        return app

    async def on_startup(self, app: web.Application) -> None:
        """Print the first link. Overrides the parent's method."""
        self._print_link("open in a browser, once")
        self._exit_if_ended()

    async def handle_index(self, request: web.Request) -> Any:
        """Answer with the page. Overrides the parent's method."""
        self.public_url = f"http://{request.host}"  # as the browser has it, also through a tunnel
        return await super().handle_index(request)

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Start a screen for a page, and stop it with the page. Overrides the parent's method."""
        page = web.WebSocketResponse(heartbeat=_HEARTBEAT)
        await page.prepare(request)

        async def close() -> None:
            await page.close()

        screen = AppService(
            self.command,
            write_bytes=page.send_bytes,
            write_str=page.send_str,
            close=close,
            download_manager=self.download_manager,
        )
        width, height = (to_int(request.query.get(name, ""), 0) for name in ("width", "height"))
        await screen.start(width, height)
        ending = asyncio.create_task(self._close_at_end(page, screen))
        try:
            await self._process_messages(page, screen)
        finally:
            ending.cancel()
            await screen.stop()
            if screen._process is not None:
                await screen._process.wait()
        return page

    async def _close_at_end(self, page: web.WebSocketResponse, screen: AppService) -> None:
        """Close a page when its screen has ended, whatever ended it."""
        if screen._task is not None:
            await asyncio.wait([screen._task])
            await page.close()

    def _print_link(self, text: str) -> None:
        self._token = secrets.token_urlsafe()
        with suppress(OSError):  # nobody reads links any more
            self._say(f"{text}: http://{HOSTS[0]}:{self.port}/?token={self._token}")

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse requests without cookie or link, and those of other hosts and pages."""
        if _find_host(request) not in HOSTS:
            raise web.HTTPForbidden(text=f"pwire: open this page as {HOSTS[0]} or {HOSTS[1]}\n")
        is_authenticated = _is_equal(request.cookies.get(self._cookie_name, ""), self._cookie)
        token = request.query.get("token", "")
        if token:
            if not is_authenticated and not _is_equal(token, self._token):
                raise web.HTTPForbidden(text="pwire: this link was used; pwire has printed another one\n")
            answer = web.HTTPSeeOther("/")  # without the token, which would stay in the history
            if not is_authenticated:
                answer.set_cookie(self._cookie_name, self._cookie, httponly=True, samesite="Lax")
                self._print_link("for another browser")
            raise answer
        if not is_authenticated:
            raise web.HTTPForbidden(text="pwire: open the link that pwire has printed\n")
        own_origin = f"http://{request.host}"
        if request.headers.get("Origin", own_origin) != own_origin:
            raise web.HTTPForbidden(
                text="pwire: the page of another site asks; open the link that pwire has printed\n"
            )
        return await handler(request)

    async def _add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(_HEADERS)

    def _exit_if_ended(self) -> None:
        """Exit when there is nothing more to show."""
        if self._has_ended():
            self.request_exit()
        asyncio.get_running_loop().call_later(_POLL_SECONDS, self._exit_if_ended)


def _find_host(request: web.Request) -> str | None:
    try:
        return request.url.host
    except ValueError:
        return None


def _is_equal(one: str, other: str) -> bool:
    return secrets.compare_digest(*(text.encode("utf-8", "surrogateescape") for text in (one, other)))
