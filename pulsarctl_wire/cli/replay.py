"""`pwire replay`: the client side of a capture, played to a broker again; how its answers differ.

The capture is read as a stream, in a thread of its own (`Aside`), and handed to `net.replay` as frames;
`Ends` adds where connections ended. Differences go to stdout as they are found, everything else to stderr.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.lookup import Output, say
from pulsarctl_wire.cli.options import OUTPUT, option
from pulsarctl_wire.cli.session import Session

if TYPE_CHECKING:
    import asyncio

    from pulsarctl_wire.capture.files import RawPacket
    from pulsarctl_wire.capture.halves import Tcp
    from pulsarctl_wire.capture.sources import Decoder, Source
    from pulsarctl_wire.cli.reading import Sources
    from pulsarctl_wire.net.remap import Names
    from pulsarctl_wire.net.replay import Difference, Ended, Totals
    from pulsarctl_wire.wire.frame import Event, Frame

NAMES = "What it is called there"
_MOST_EVENTS: Final = 256  # that are handed over together
_MOST_HEADS: Final = 10_000  # differences that others are counted for
_KINDS: Final = {
    "differs": "differing",
    "missing": "missing",
    "unexpected": "not in the recording",
    "closed": "closed otherwise",
}


async def replay(
    session: Session,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="Captures, as decode reads them; - is stdin. Several continue each other.",
            show_default=False,
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="URL", help="The broker to play to, a service URL. Needed, or --url."),
    ] = None,
    connection: Annotated[
        list[str] | None,
        typer.Option(
            "--connection", metavar="N|ADDRESS", help="Only these: a number, port, part of an address."
        ),
    ] = None,
    speed: Annotated[
        str,
        typer.Option(
            "--speed", metavar="N", help="Times as fast as recorded; max: as fast as answers allow."
        ),
    ] = "max",
    answer_timeout: Annotated[
        float | None,
        typer.Option(
            "--answer-timeout",
            metavar="SECONDS",
            min=0.01,
            help="How long a recorded answer is waited for before going on.",
            show_default="--timeout",
        ),
    ] = None,
    rename: Annotated[
        list[str] | None,
        option(NAMES, "--rename", metavar="A=B", help="A topic, namespace or subscription; several times."),
    ] = None,
    suffix: Annotated[
        str, option(NAMES, "--suffix", metavar="TEXT", help="Goes behind the name of every topic.")
    ] = "",
    output: Annotated[Output, OUTPUT] = Output.text,
) -> int:
    """Play what the clients of a capture sent to a broker again, and say how its answers differ.

    Message ids, transaction ids, producer names and schema versions become those of this broker. Nothing is
    sent before what it followed in the capture has come. Exit code 9: the answers differ.
    """
    from pulsarctl_wire.capture.sources import Decoder
    from pulsarctl_wire.cli.select import by_connection
    from pulsarctl_wire.errors import SessionError
    from pulsarctl_wire.net.replay import Options, Replay

    if (to is None) == (session.options["url"] is None):
        console.fail("give --to URL: the broker to play the session to (a replay writes)", console.EXIT_USAGE)
    session.options["url"] = to or session.options["url"]
    settings = session.settings()
    options = Options(_speed(speed), settings.timeout if answer_timeout is None else answer_timeout)
    names = _names(rename or [], suffix)
    report = Report(output)
    wanted = by_connection(connection) if connection else None
    with ExitStack() as stack:
        aside = Aside(stack)
        read = _sources(sources, stack, aside.hand_over)
        events: Iterator[Event | Ended] = recorded_events(read, Decoder(join_chunks=False))
        if wanted is not None:
            events = (event for event in events if wanted(event))  # type: ignore[arg-type]
        playing = Replay(
            settings, names, options, tell=report.difference, note=console.complain, tap=session.tap()
        )
        try:
            totals = await playing.run(aside.read(events))
        except SessionError:
            if playing.totals.connections:
                report.close(playing.totals)
            raise
    for old, new in names.unused.items():
        console.complain(f"--rename {old}={new}: nothing played is called {old}")
    if playing.remap.unknown_ids:
        console.complain(
            f"{playing.remap.unknown_ids} message ids are of no message seen in the replay: sent as recorded"
        )
    if playing.remap.left_out:
        console.complain(
            f"redacted credentials of clients behind a proxy were left out of {playing.remap.left_out} frames"
        )
    if not totals.connections:
        if read.code != console.EXIT_SOURCE:  # else that is why
            console.complain("nothing was played: no connection that was chosen begins with a whole CONNECT")
        return console.EXIT_SOURCE
    report.close(totals)
    if read.code == console.EXIT_SOURCE or not (totals.differ or totals.unanswered):
        return read.code
    return console.EXIT_DIFFERS


def _speed(text: str) -> float:
    """How many times as fast; 0 is as fast as can be."""
    try:
        speed = 0.0 if text == "max" else float(text)
    except ValueError:
        speed = -1.0
    if not math.isfinite(speed) or speed < 0:
        console.fail(f"--speed {text}: a number such as 2 or 0.5 is wanted, or max", console.EXIT_USAGE)
    return speed


def _names(rules: list[str], suffix: str) -> Names:
    from pulsarctl_wire.net.remap import Names

    pairs = []
    for rule in rules:
        old, equals, new = rule.partition("=")
        if not (old and equals and new):
            console.fail(f"--rename {rule}: A=B is wanted", console.EXIT_USAGE)
        pairs.append((old, new))
    return Names(pairs, suffix)


# ---- What was recorded ----


class Aside:
    """Reads in a thread of its own: nobody else is kept waiting by a silent pipe or a large capture.

    That thread and the event loop take turns. What was read is played before more is: little of it is ever
    kept, and what is said of a source comes where it belongs. `stack` ends the thread.
    """

    def __init__(self, stack: ExitStack) -> None:
        import asyncio

        self._loop = asyncio.get_running_loop()
        self._batches: asyncio.Queue[list[Event | Ended]] = asyncio.Queue()
        self._found: list[Event | Ended] = []
        self._turn = threading.Semaphore(0)
        self._over = False
        self._error: Exception | None = None
        stack.callback(self._end)

    async def read(self, events: Iterator[Event | Ended]) -> AsyncIterator[list[Event | Ended]]:
        """The `events`, some at a time. Raises what they raise."""
        # a daemon: one that waits for a pipe is not waited for at the end
        threading.Thread(target=self._read, args=(events,), daemon=True).start()
        while batch := await self._batches.get():
            yield batch
            self._turn.release()
        if self._error is not None:
            raise self._error

    def hand_over(self) -> None:
        """In the thread: hand over what was read, and wait until it has been played."""
        if self._found:
            self._give(self._found)
            self._found = []
            self._turn.acquire()
        if self._over:
            raise SystemExit

    def _read(self, events: Iterator[Event | Ended]) -> None:
        with suppress(SystemExit):  # nobody listens any more
            try:
                for event in events:
                    self._found.append(event)
                    if len(self._found) == _MOST_EVENTS:
                        self.hand_over()
            except Exception as error:
                self._error = error
            self.hand_over()
            self._give([])

    def _give(self, batch: list[Event | Ended]) -> None:
        with suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self._batches.put_nowait, batch)

    def _end(self) -> None:
        self._over = True
        self._turn.release()


def _sources(paths: list[str], stack: ExitStack, flush: Callable[[], None]) -> Sources:
    """Sources for a thread that may still read when the interpreter ends.

    It cannot end while that thread has the lock of a buffered stdin, so that buffers are passed by.
    """
    from pulsarctl_wire.cli.reading import Sources

    class Unbuffered(Sources):
        def _watched(self, source: Source, bar: bool) -> Source:
            raw = getattr(source.stream, "raw", source.stream)
            return super()._watched(source._replace(stream=raw), bar)

    return Unbuffered(paths, stack, bar=False, flush=flush)


def recorded_events(sources: Sources, decoder: Decoder) -> Iterator[Event | Ended]:
    """The events of the sources, and where each connection ended."""
    ends = Ends(decoder)
    for events in sources.read(decoder):
        yield from ends.before(decoder.packets)
        yield from events
    yield from ends.before(decoder.packets + 1)
    for events in decoder.finish():
        yield from events


class Ends:
    """Sees the packets of a decoder, and knows which connections have ended, and who ended them."""

    def __init__(self, decoder: Decoder) -> None:
        from pulsarctl_wire.capture.packets import Dissector

        self._dissector = Dissector()
        self._reassembler = decoder.reassembler
        self._closing: dict[int, tuple[Tcp, bool, int | None, int]] = {}
        decoder.tee = self._packet

    def _packet(self, number: int, packet: RawPacket) -> None:
        """Take note of a FIN or RST; that of a connection's first one says who closed it."""
        from pulsarctl_wire.capture.packets import FIN, RST

        time_ns, link, data, length = packet
        segment = self._dissector.segment(link, data, length)
        if segment is None or not segment[3] & (FIN | RST):
            return
        tcp = self._reassembler.connection(segment[0])
        if tcp is None:
            return
        sender = tcp.half if segment[0] == tcp.keys[0] else tcp.half.other
        index = tcp.session.connection.index
        first = self._closing.get(index)
        by_broker = first[1] if first else not sender.stream.to_broker
        self._closing[index] = tcp, by_broker, time_ns, number

    def before(self, packet: int) -> Iterator[Ended]:
        """The connections that ended before this packet and were not given yet."""
        from pulsarctl_wire.net.replay import Ended

        for index, (tcp, by_broker, time_ns, number) in list(self._closing.items()):
            if tcp.ended and number < packet:
                del self._closing[index]
                yield Ended(tcp.session.connection, by_broker, time_ns)


# ---- What is said ----


class Report:
    """Says differences, and at the end how many there were.

    In text what follows from another difference is not told by itself, but counted for that one.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._paint = console.Paint(console.use_colour(sys.stdout))
        self._heads: dict[int, str] = {}  # of differences by their numbers, the latest ones
        self._consequences: dict[int, Counter[str]] = {}  # by the number of what they follow from

    def difference(self, found: Difference) -> None:
        """Say one difference."""
        from pulsarctl_wire.wire.session import bound

        frame = found.recorded or found.replayed
        counted = found.cause in self._consequences or len(self._consequences) < _MOST_HEADS
        if self._output is Output.text and found.cause in self._heads and counted:
            what = f"{frame.command if frame else 'connection'} {_KINDS[found.kind]}"
            self._consequences.setdefault(found.cause, Counter())[what] += 1
            return
        record: dict[str, Any] = {"number": found.number, "connection": found.connection, "kind": found.kind}
        if frame is not None:
            record |= {
                "frame": found.recorded.number if found.recorded else None,
                "request": found.recorded.request if found.recorded else None,
                "command": frame.command,
                "topic": frame.topic,
                "subscription": frame.subscription,
                **_ids(frame),
            }
        if found.kind == "differs":
            record["fields"] = {
                name: {"recorded": old, "replayed": new} for name, (old, new) in found.fields.items()
            }
        if found.text:
            record["text"] = found.text
        if found.cause is not None:
            record["cause"] = found.cause
        self._heads[found.number] = self._head(found, frame)
        bound(self._heads, _MOST_HEADS)
        say(record, f"{self._heads[found.number]}: {self._told(found)}", self._output)

    def _head(self, found: Difference, frame: Frame | None) -> str:
        """What a difference is about."""
        where = f"connection {found.connection}"
        if frame is None:
            return where
        about = f" {console.clean(frame.topic)}" if frame.topic else ""
        about += f" sub={console.clean(frame.subscription)}" if frame.subscription else ""
        about += "".join(f" {name.removesuffix('_id')}={value}" for name, value in _ids(frame).items())
        number = f" #{found.recorded.number}" if found.recorded else ""
        return f"{where}{number} {frame.command}{about}"

    def _told(self, found: Difference) -> str:
        """What is otherwise."""
        if found.kind == "closed":
            return f"{self._paint('red', 'closed')}: {console.clean(found.text)}"
        if found.kind == "missing":
            return self._paint("red", "did not come")
        if found.kind == "unexpected":
            return self._paint("yellow", "came, and is not in the recording")
        return ", ".join(
            f"{name} {self._paint('green', _shown(old))} → {self._paint('red', _shown(new))}"
            for name, (old, new) in found.fields.items()
        )

    def close(self, totals: Totals) -> None:
        """Say how many there were."""
        for number, what in self._consequences.items():
            count = sum(what.values())
            listed = ", ".join(f"{times} {each}" for each, times in what.most_common())
            head = self._heads.get(number, f"difference {number}")
            sys.stdout.write(f"{head}: and {count} consequence{'s' * (count != 1)} ({listed})\n")
        record = {
            "exchanges": totals.exchanges,
            "differ": totals.differ,
            "unanswered": totals.unanswered,
            "consequences": totals.consequences,
            "connections": totals.connections,
            "sent": totals.sent,
            "unsent": totals.unsent,
        }
        unsent = f", {totals.unsent} frames could not be sent" if totals.unsent else ""
        text = f"{totals.exchanges} exchanges, {totals.differ} differ, {totals.unanswered} unanswered"
        if totals.consequences:
            text += f", {totals.consequences} consequences of these"
        text += unsent
        say(record, text, self._output)


def _ids(frame: Frame) -> dict[str, int]:
    """The producer, the consumer and the sequence id that an answer names."""
    from pulsarctl_wire.wire.fields import signed

    found: dict[str, int] = {}
    for message in filter(None, (frame.body, frame.metadata)):
        for name in ("producer_id", "consumer_id", "sequence_id"):
            if name in message.DESCRIPTOR.fields_by_name and name not in found and message.HasField(name):
                found[name] = signed(getattr(message, name))
    return found


def _shown(value: Any) -> str:
    return "nothing" if value is None else console.clean(str(value))
