"""`pwire send`: sends commands (JSON lines) or bytes (hex digits) to a broker, and shows the replies.

`Talk` is the sink of the connection: it prints frames, and knows which requests have no answer yet. The
script runs concurrently, line by line.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.options import OUTPUT, Output
from pulsarctl_wire.cli.session.verb import Session
from pulsarctl_wire.cli.signature import argument, flag, option
from pulsarctl_wire.errors import LinkClosed

if TYPE_CHECKING:
    import asyncio

    from pulsarctl_wire.cli.session.talk import Talk
    from pulsarctl_wire.net.session.link import Link
    from pulsarctl_wire.wire.json_command import Expect, Wait

WHEN = "When it ends"


@dataclass(frozen=True, kw_only=True)
class SendOptions:
    """The options of `send`."""

    files: list[str] = argument(
        "FILE...", "What to send, line by line; - is stdin.", default=list, show_default="-"
    )
    output: Output = OUTPUT(default="line")
    sent: bool = flag("--sent", "Also show what is sent.")
    no_handshake: bool = flag(
        "--no-handshake", "Do not send CONNECT first; implied if the first line is a CONNECT."
    )
    idle: float = option("--idle SECONDS", "End after this time without a reply.", WHEN, default=3.0, min=0)
    wait: float = option("--wait SECONDS", "Listen at least this long.", WHEN, default=0.0, min=0)


async def send(session: Session, options: SendOptions) -> int:
    """Send commands (JSON lines) or raw bytes (hex), even invalid ones, and show the replies.

    A line is a record as decode -o json prints it; or a BaseCommand in protobuf's JSON, such as
    {"type": "LOOKUP", "lookupTopic": {"topic": "t", "request_id": 1}}; or hex digits;
    or {"wait": SECONDS}; or {"expect": "COMMAND"}, which waits for such a frame, for --timeout at most.
    Empty lines and comments (#) are ignored.

    Beside the command, JSON may have metadata, payload (text) or payload_base64, and deliberate errors:
    checksum ("invalid", "absent"), force_total_size, force_command_size, force_metadata_size.
    Ids are sent as given, and missing fields are not filled in.

    pwire itself answers PING and AUTH_CHALLENGE. It ends when everything sent is answered, or when nothing
    has come for --idle seconds. Exit code 6: the broker closed the connection; 7: it refused something;
    8: an answer is missing.
    """
    import asyncio

    from pulsarctl_wire.cli.session.talk import Talk
    from pulsarctl_wire.net.session.client import find_broker_url
    from pulsarctl_wire.net.session.link import Link, open_first_link

    settings = await find_broker_url(session.make_settings())
    show_secrets = session.options.show_secrets
    talk = Talk(options.output, show_sent=options.sent, show_secrets=show_secrets, keys=session.keys)
    tap = session.make_tap(talk)
    lines = _lines(options.files or ["-"])
    first = await anext(lines, None)
    has_handshake = not (options.no_handshake or (first is not None and _is_connect(first[1])))
    connect = partial(Link.open, settings=settings, numbers=count(), tap=tap, handshake=has_handshake)
    link = await open_first_link(settings.url.addresses, settings, connect)
    talk.begin()
    task = asyncio.create_task(
        _run(link, talk, _chain(first, lines), settings.timeout, options.wait, options.idle)
    )
    try:
        ends: list[asyncio.Future[Any]] = [task, link.closed, talk.broken]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        code = 0
        if link.closed.done():
            code = _report_loss(link, talk)
        elif task.done():
            code = task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await link.close()
    if talk.error is not None:
        raise talk.error
    if code in (console.EXIT_UNREACHABLE, console.EXIT_REFUSED, console.EXIT_UNANSWERED):
        talk.blame()
    return code


Line = tuple[str, "bytes | Wait | Expect"]
"""The place of a line (file:number), and what it means."""


async def _lines(paths: list[str]) -> AsyncIterator[Line]:
    """Yield lines of the files, without empty lines and comments. An invalid line ends the command."""
    from pulsarctl_wire.cli.session.lines import read_lines
    from pulsarctl_wire.wire.json_command import parse_line

    for path in paths:
        number = 0
        async for lines in read_lines(path):
            for line in lines:
                number += 1
                place = f"{'stdin' if path == '-' else path}:{number}"
                try:
                    meaning = parse_line(line.decode("utf-8", "surrogateescape"))
                except ValueError as error:
                    console.fail(f"{place}: {error}")
                if meaning is not None:
                    yield place, meaning


async def _chain(first: Line | None, lines: AsyncIterator[Line]) -> AsyncIterator[Line]:
    if first is not None:
        yield first
        async for line in lines:
            yield line


def _is_connect(line: bytes | Wait | Expect) -> bool:
    """Return whether a line sends a CONNECT."""
    from pulsarctl_wire.wire.commands import NUMBERS
    from pulsarctl_wire.wire.frame import Connection, Frame
    from pulsarctl_wire.wire.framing.stream import FrameStream

    events = FrameStream(Connection(0), True).feed(line) if isinstance(line, bytes) else []
    return bool(events) and isinstance(events[0], Frame) and events[0].type == NUMBERS["CONNECT"]


async def _run(
    link: Link, talk: Talk, lines: AsyncIterator[Line], timeout: float, wait: float, idle: float
) -> int:
    """Send all lines, and wait for the replies; returns the exit code."""
    import asyncio

    from pulsarctl_wire.wire.json_command import Wait

    try:
        async for place, line in lines:
            if isinstance(line, bytes):
                link.send(line)
                await link.drain()
                await asyncio.sleep(0)  # let replies be read, so that their times are right
            elif isinstance(line, Wait):
                await asyncio.sleep(line.seconds)
            else:
                await talk.expect(line.command, timeout, place)
    except LinkClosed:
        await asyncio.wait([link.closed])  # `send` ends the command
    except SystemExit as end:  # the error is already printed; a task must not raise it
        return end.code if isinstance(end.code, int) else console.EXIT_USAGE
    since = time.monotonic()
    await asyncio.sleep(wait)
    await talk.settle(idle, since)
    return talk.report_missing(idle)


def _report_loss(link: Link, talk: Talk) -> int:
    """Print why the connection ended; returns the exit code."""
    try:
        link.send(b"")  # raises LinkClosed with the reason
    except LinkClosed as error:
        console.warn(str(error))
    # if the broker refused something before, that is the reason
    return console.EXIT_REFUSED if talk.refused else console.EXIT_UNREACHABLE
