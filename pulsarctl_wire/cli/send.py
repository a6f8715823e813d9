"""`pwire send`: commands as JSON lines, or bytes as hex digits, to a broker as they are, and what comes back.

A `Talk` is the tap of the connection: it follows both directions with the decoder's own streams and session,
prints frames, and knows which requests wait for answers. The script runs beside it, line by line.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.decode import Output
from pulsarctl_wire.cli.options import OUTPUT, option
from pulsarctl_wire.cli.session import Session

if TYPE_CHECKING:
    import asyncio

    from pulsarctl_wire.net.link import Link, Tap
    from pulsarctl_wire.net.settings import Settings
    from pulsarctl_wire.wire.frame import Connection, Event, Frame
    from pulsarctl_wire.wire.json_command import Expect, Wait

WHEN = "When it ends"
_NAMED: Final = 5  # requests without answer, and things that are wrong, that are named
_MOST_KINDS: Final = 1_000  # of commands that come and are not expected yet


async def send(
    session: Session,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE...", help="What to send, line by line; - is stdin.", show_default="-"),
    ] = None,
    output: Annotated[Output, OUTPUT] = Output.line,
    sent: Annotated[bool, typer.Option("--sent", help="Show what is sent, too.")] = False,
    no_handshake: Annotated[
        bool,
        typer.Option("--no-handshake", help="No CONNECT before the first line; nor if that is one itself."),
    ] = False,
    idle: Annotated[
        float, option(WHEN, "--idle", metavar="SECONDS", min=0, help="How long nothing may come, at the end.")
    ] = 3.0,
    wait: Annotated[
        float, option(WHEN, "--wait", metavar="SECONDS", min=0, help="Listen so long in any case.")
    ] = 0.0,
) -> int:
    """Send commands (JSON lines) or raw bytes (hex), even wrong ones, and show what comes back.

    A line is a record as decode -o json prints it; or a BaseCommand in protobuf's JSON, such as
    {"type": "LOOKUP", "lookupTopic": {"topic": "t", "request_id": 1}}; or hex digits;
    or {"wait": SECONDS}; or {"expect": "COMMAND"}, which waits for such a frame, --timeout at most.
    Empty lines and comments (#) are passed over.

    Beside the command JSON may have metadata, payload (text) or payload_base64, and what is to be wrong:
    checksum ("invalid", "absent"), force_total_size, force_command_size, force_metadata_size.
    Ids are sent as they are given, and what is missing is not filled in.

    pwire itself answers PING and AUTH_CHALLENGE. It ends when all that was sent is answered, or when nothing
    has come for --idle seconds. Exit code 6: the broker closed the connection; 7: it refused something;
    8: an answer is missing.
    """
    import asyncio

    settings = session.settings()
    talk = Talk(session, output, sent)
    lines = _lines(files or ["-"])
    first = await anext(lines, None)
    greeted = no_handshake or (first is not None and _is_connect(first[1]))
    link = await _open(settings, talk, handshake=not greeted)
    talk.begin()
    task = asyncio.create_task(_run(link, talk, _chain(first, lines), settings.timeout, wait, idle))
    try:
        ends: list[asyncio.Future[Any]] = [task, link.closed, talk.broken]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        code = 0
        if link.closed.done():
            code = _lost(link, talk)
        elif task.done():
            code = task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await link.close()
    if talk.failed is not None:
        raise talk.failed
    return code


Line = tuple[str, "bytes | Wait | Expect"]
"""Where it stands, and what it means."""


async def _lines(paths: list[str]) -> AsyncIterator[Line]:
    """The lines of files, but for those without meaning; one that is wrong ends the command."""
    from pulsarctl_wire.cli.lines import read_lines
    from pulsarctl_wire.wire.json_command import parse_line

    for path in paths:
        number = 0
        async for lines in read_lines(path):
            for line in lines:
                number += 1
                where = f"{'stdin' if path == '-' else path}:{number}"
                try:
                    meaning = parse_line(line.decode("utf-8", "surrogateescape"))
                except ValueError as error:
                    console.fail(f"{where}: {error}", console.EXIT_USAGE)
                if meaning is not None:
                    yield where, meaning


async def _chain(first: Line | None, rest: AsyncIterator[Line]) -> AsyncIterator[Line]:
    if first is not None:
        yield first
        async for line in rest:
            yield line


def _is_connect(line: bytes | Wait | Expect) -> bool:
    """Whether a line sends a CONNECT."""
    from pulsarctl_wire.wire.commands import NUMBERS
    from pulsarctl_wire.wire.frame import Connection, Frame
    from pulsarctl_wire.wire.stream import FrameStream

    events = FrameStream(Connection(0), True).feed(line) if isinstance(line, bytes) else []
    return bool(events) and isinstance(events[0], Frame) and events[0].type == NUMBERS["CONNECT"]


async def _open(settings: Settings, talk: Talk, *, handshake: bool) -> Link:
    """A link to the first of the hosts of the service URL that can be reached."""
    from pulsarctl_wire.errors import Unanswered, Unreachable
    from pulsarctl_wire.net.link import Link

    tried: list[Unreachable | Unanswered] = []
    addresses = settings.url.addresses
    while len(tried) < len(addresses):
        index = len(tried)
        try:
            return await Link.open(addresses[index], settings, index=index, tap=talk, handshake=handshake)
        except (Unreachable, Unanswered) as error:
            tried.append(error)
    raise type(tried[0])(f"{'; '.join(map(str, tried))} (tried {settings.url}; another: --url)")


async def _run(
    link: Link, talk: Talk, lines: AsyncIterator[Line], timeout: float, wait: float, idle: float
) -> int:
    """Send it all, and wait for what comes; give the exit code."""
    import asyncio

    from pulsarctl_wire.errors import LinkClosed
    from pulsarctl_wire.wire.json_command import Wait

    try:
        async for where, line in lines:
            if isinstance(line, bytes):
                link.send(line)
                await link.drain()
                await asyncio.sleep(0)  # what has come is read, so that its time is right
            elif isinstance(line, Wait):
                await asyncio.sleep(line.seconds)
            else:
                await talk.expect(line.command, timeout, where)
    except LinkClosed:
        await asyncio.wait([link.closed])  # and that ends the command
    except SystemExit as end:  # said already; no task may raise it
        return end.code if isinstance(end.code, int) else console.EXIT_USAGE
    ended = time.monotonic()
    await asyncio.sleep(wait)
    await talk.settle(idle, ended)
    return talk.verdict(idle)


def _lost(link: Link, talk: Talk) -> int:
    """Say why the connection ended; give the exit code."""
    from pulsarctl_wire.errors import LinkClosed

    try:
        link.send(b"")
    except LinkClosed as error:
        console.complain(str(error))
    talk.blame()
    # where it refused something first, that is why
    return console.EXIT_REFUSED if talk.refused else console.EXIT_UNREACHABLE


class Talk:
    """What goes to and fro on the connection; a `net.link.Tap`.

    Attributes: `refused` whether the broker refused something,
    `failed` why stdout takes no more; the future `broken` is done then.
    """

    def __init__(self, session: Session, output: Output, show_sent: bool) -> None:
        import asyncio

        from pulsarctl_wire.cli.render import renderer
        from pulsarctl_wire.record import Recorder
        from pulsarctl_wire.wire.session import Knowledge

        show_secrets = session.options["show_secrets"]
        self.refused = False
        self.failed: OSError | None = None
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._recorder = Recorder(show_secrets=show_secrets)
        self._wrong: list[str] = []  # of what was sent; the first few
        self._wrongs = 0
        self._render = renderer(
            output.value,
            self._recorder,
            console.Origin(),
            stream=sys.stdout,
            show_secrets=show_secrets,
        )
        self._tap: Tap | None = session.tap()
        self._show_sent = show_sent
        self._knowledge = Knowledge()
        self._begun = False
        self._news: asyncio.Future[None] | None = None  # done when something passes
        self._heard = 0.0  # when something came last
        self._fed = 0  # bytes sent
        self._came: Counter[str] = Counter()  # commands that no `expect` has taken
        self._waiting: dict[int, str] = {}  # number and command of requests without answer
        self._latest: dict[tuple[str, int], int] = {}  # numbers of requests by family and id
        self._pings: deque[int] = deque()
        self._unanswerable = False  # something was sent that gets no answer

    def begin(self) -> None:
        """Show what passes from now on: the handshake is over, or there is none."""
        self._begun = True

    # -- the tap

    def opened(self, connection: Connection, time_ns: int) -> None:
        """A connection was made."""
        from pulsarctl_wire.wire.session import Session as Following
        from pulsarctl_wire.wire.stream import FrameStream

        if self._tap is not None:
            self._tap.opened(connection, time_ns)
        self._streams = FrameStream(connection, False), FrameStream(connection, True)
        self._following = Following(connection, self._knowledge, self._streams)
        self._fed = 0

    def carried(self, connection: Connection, to_broker: bool, data: bytes, time_ns: int) -> None:
        """It carried `data`."""
        if self._tap is not None:
            self._tap.carried(connection, to_broker, data, time_ns)
        if to_broker:
            self._fed += len(data)
        else:
            self._heard = time.monotonic()
        self._passed(self._streams[to_broker].feed(data, time_ns), to_broker)

    def closed(self, connection: Connection, time_ns: int, by_broker: bool) -> None:
        """It ended."""
        for to_broker in (True, False):
            self._passed(self._streams[to_broker].close(), to_broker)
        if self._tap is not None:
            self._tap.closed(connection, time_ns, by_broker)

    def _passed(self, events: list[Event], to_broker: bool) -> None:
        self._following.track(events)
        if not self._begun:
            return
        for event in events:
            self._take(event)
        if events and (self._show_sent or not to_broker) and self.failed is None:
            try:
                sys.stdout.buffer.writelines(self._render(events))
                sys.stdout.buffer.flush()
            except OSError as error:  # in a callback nobody would hear of it
                self.failed = error
                self.broken.set_result(None)
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _take(self, event: Event) -> None:
        from pulsarctl_wire.wire.frame import Frame

        if event.to_broker:
            for text in self._what_is_wrong(event):
                self._wrongs += 1
                if self._wrongs <= _NAMED:
                    self._wrong.append(text)
        if not isinstance(event, Frame):
            self._unanswerable |= event.to_broker
        elif event.to_broker:
            self._went(event)
        else:
            self._arrived(event)

    def _what_is_wrong(self, event: Event) -> Iterator[str]:
        from pulsarctl_wire.wire.frame import Frame, Malformed

        if isinstance(event, Frame):
            for note in self._recorder.notes(event):
                yield f"sent: {event.command} (#{event.number}): {note}"
        elif isinstance(event, Malformed):
            yield f"sent: {event.size} bytes that are no frame: {event.reason}"

    def _went(self, frame: Frame) -> None:
        """Remember what was sent until it is answered."""
        from pulsarctl_wire.wire.commands import NUMBERS, REQUESTS

        body, how = frame.body, REQUESTS.get(frame.type)
        if body is not None and how is not None and body.HasField(how.key):
            key = how.family, getattr(body, how.key)
            self._waiting.pop(
                self._latest.get(key, 0), None
            )  # of two with one id, one is found by its answer
            self._latest[key] = frame.number
        elif body is None or frame.type not in (NUMBERS["CONNECT"], NUMBERS["SEND"], NUMBERS["PING"]):
            self._unanswerable = True
            return
        self._waiting[frame.number] = frame.command
        if frame.type == NUMBERS["PING"]:
            self._pings.append(frame.number)

    def _arrived(self, frame: Frame) -> None:
        from pulsarctl_wire.errors import BrokerError
        from pulsarctl_wire.net.link import raise_refusal
        from pulsarctl_wire.wire.commands import BODIES, NUMBERS

        if frame.type in BODIES or len(self._came) < _MOST_KINDS:  # of unknown types there may be any number
            self._came[frame.command] += 1
        try:
            raise_refusal(frame, frame.command)
        except BrokerError:
            self.refused = True
        if frame.type == NUMBERS["PONG"]:  # in order, and more than a session remembers
            self._waiting.pop(self._pings.popleft() if self._pings else 0, None)
        elif frame.request is not None:
            in_line = frame.type == NUMBERS["PRODUCER_SUCCESS"] and not frame.body.producer_ready
            if not in_line:  # else there is another answer to come
                self._waiting.pop(frame.request, None)

    # -- what the script asks

    async def expect(self, command: str, timeout: float, where: str) -> None:
        """Wait until a frame of `command` has come that was not expected before.

        Raises Unanswered after `timeout` seconds; `where` is the line that asks, for that.
        """
        from pulsarctl_wire.errors import Unanswered

        due = time.monotonic() + timeout
        while not self._came[command]:
            if not await self._more(due):
                raise Unanswered(f"{where}: no {command} has come within {timeout:g} s")
        self._came[command] -= 1

    async def settle(self, idle: float, ended: float) -> None:
        """Wait until all that was sent, by `ended`, is answered, or nothing has come for `idle` seconds."""
        while not self._settled and await self._more(max(ended, self._heard) + idle):
            pass

    @property
    def _settled(self) -> bool:
        stream = self._streams[True]
        whole = stream.in_step and stream.position == self._fed
        return whole and not self._unanswerable and not self._waiting

    async def _more(self, due: float) -> bool:
        """Wait until something passes; whether that was before `due`."""
        import asyncio

        self._news = asyncio.get_running_loop().create_future()
        # not wait_for: before Python 3.12 it may miss that it is cancelled
        await asyncio.wait([self._news], timeout=max(0.0, due - time.monotonic()))
        return self._news.done()

    def verdict(self, idle: float) -> int:
        """The exit code of a script that ran to its end; says which answers are missing."""
        waiting = list(self._waiting.items())
        if waiting:
            names = ", ".join(f"{name} (#{number})" for number, name in waiting[:_NAMED])
            more = f" and {len(waiting) - _NAMED} more" if len(waiting) > _NAMED else ""
            console.complain(f"no answer to {names}{more}: nothing came for {idle:g} s (--idle)")
        if self.refused or waiting:
            self._passed(self._streams[True].close(), True)  # nothing more is sent
            self.blame()
        if self.refused:
            return console.EXIT_REFUSED
        return console.EXIT_UNANSWERED if waiting else 0

    def blame(self) -> None:
        """Say what is wrong with the frames that were sent."""
        for text in self._wrong:
            console.complain(text)
        if self._wrongs > _NAMED:
            console.complain(f"and {self._wrongs - _NAMED} more of what was sent is wrong")
