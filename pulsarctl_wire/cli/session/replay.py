"""`pwire replay`: sends the client side of a capture to a broker again, and shows how its answers differ.

A thread (`ReaderThread`) reads the capture as a stream, and hands its frames to `net.replay`. Differences go
to stdout as they are found, everything else to stderr.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.options import OUTPUT
from pulsarctl_wire.cli.session.lookup import Output, say
from pulsarctl_wire.cli.session.verb import Session
from pulsarctl_wire.cli.signature import argument, option, several
from pulsarctl_wire.errors import SessionError
from pulsarctl_wire.render.text import Paint, clean, count_of

if TYPE_CHECKING:
    import asyncio

    from pulsarctl_wire.cli.capture.reading import Sources
    from pulsarctl_wire.net.replay.comparison import ReplayTotals
    from pulsarctl_wire.net.replay.differences import Difference
    from pulsarctl_wire.net.replay.remap import Names
    from pulsarctl_wire.net.replay.replay import ConnectionEnded, Replay
    from pulsarctl_wire.wire.frame import Event, Frame
    from pulsarctl_wire.wire.session.ending import EndedConnection

NAMES = "Renaming"
_MAX_EVENTS: Final = 256  # handed over together
_MAX_HEADS: Final = 10_000  # differences whose consequences are counted
_KINDS: Final = {
    "differs": "differing",
    "missing": "missing",
    "unexpected": "not in the recording",
    "closed": "closed differently",
}


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """The options of `replay`."""

    sources: list[str] = argument(
        "SOURCE...", "Captures, as for decode; - is stdin. Several sources are read as one capture."
    )
    to: str | None = option("--to URL", "Service URL of the broker to replay to; required, or --url.")
    read_keylogs: list[str] = several(
        "--read-keylog FILE", "Read TLS of the captures with the keys in this log (SSLKEYLOGFILE)."
    )
    connection: list[str] = several(
        "--connection N|ADDRESS", "Only these connections: a number, a port, or part of an address."
    )
    speed: str = option(
        "--speed N", "N times as fast as recorded; max: as fast as answers allow.", default="max"
    )
    answer_timeout: float | None = option(
        "--answer-timeout SECONDS",
        "How long to wait for a recorded answer before going on.",
        min=0.01,
        show_default="--timeout",
    )
    rename: list[str] = several("--rename A=B", "Rename a topic, namespace or subscription.", NAMES)
    suffix: str = option("--suffix TEXT", "Append this to the name of every topic.", NAMES, default="")
    output: Output = OUTPUT(default="text")


async def replay(session: Session, options: ReplayOptions) -> int:
    """Send what the clients of a capture sent to a broker again, and show how its answers differ.

    Message ids, transaction ids, producer names and schema versions are replaced by this broker's. A frame is
    sent only after the answers that preceded it in the capture have come. Exit code 9: the answers differ.
    """
    from pulsarctl_wire.cli.capture.reading import Sources, find_captures
    from pulsarctl_wire.cli.capture.select import by_connection
    from pulsarctl_wire.net.replay.replay import Pace, Replay
    from pulsarctl_wire.net.session.client import find_broker_url

    if (options.to is None) == (session.options.url is None):
        console.fail("give --to URL, the broker to replay to (a replay writes to it)")
    session.options = replace(session.options, url=options.to or session.options.url)
    settings = await find_broker_url(session.make_settings())
    timeout = settings.timeout if options.answer_timeout is None else options.answer_timeout
    pace = Pace(_parse_speed(options.speed), timeout)
    names = _parse_names(options.rename, options.suffix)
    report = Report(options.output)
    is_selected = by_connection(options.connection) if options.connection else None
    with ExitStack() as stack:
        thread = ReaderThread(stack)
        paths = find_captures(options.sources)
        sources = Sources(paths, stack, bar=False, flush=thread.hand_over)
        events: Iterator[Event | ConnectionEnded] = read_events(sources, options.read_keylogs)
        if is_selected is not None:
            events = (event for event in events if is_selected(event))  # type: ignore[arg-type]
        player = Replay(
            settings, names, pace, on_difference=report.add, note=console.warn, tap=session.make_tap()
        )
        try:
            totals = await player.run(thread.read(events))
        except SessionError:
            if player.totals.connections:
                report.close(player.totals)
            raise
    _warn(names, player)
    if not totals.connections:
        if sources.code != console.EXIT_SOURCE:  # else the cause was already printed
            console.warn("nothing was replayed: no selected connection begins with a complete CONNECT")
        return console.EXIT_SOURCE
    report.close(totals)
    if sources.code == console.EXIT_SOURCE or not (totals.differ or totals.unanswered):
        return sources.code
    return console.EXIT_DIFFERS


def _warn(names: Names, player: Replay) -> None:
    """Print which names were not found, and what could not be translated."""
    remap = player.remap
    for name, new_name in names.unused.items():
        console.warn(f"--rename {name}={new_name}: nothing in the replay is named {name}")
    if remap.unknown_ids:
        console.warn(
            f"{remap.unknown_ids} message ids of messages not seen in the replay were sent as recorded"
        )
    if remap.removed_credentials:
        console.warn(
            "redacted credentials of clients behind a proxy were left out of "
            f"{remap.removed_credentials} frames"
        )


def _parse_speed(text: str) -> float:
    """Parse --speed; 0 means as fast as possible."""
    try:
        speed = 0.0 if text == "max" else float(text)
    except ValueError:
        speed = -1.0
    if not math.isfinite(speed) or speed < 0:
        console.fail(f"--speed {text}: use a number such as 2 or 0.5, or max")
    return speed


def _parse_names(rules: list[str], suffix: str) -> Names:
    from pulsarctl_wire.net.replay.remap import Names

    pairs = []
    for rule in rules:
        name, equals, new_name = rule.partition("=")
        if not (name and equals and new_name):
            console.fail(f"--rename {rule}: use A=B")
        pairs.append((name, new_name))
    return Names(pairs, suffix)


# ---- The recording ----


class ReaderThread:
    """Reads the capture in a thread, so that a silent pipe or a large capture does not block the event loop.

    The thread and the event loop take turns: a batch is replayed before the next one is read. So memory stays
    small, and messages about a source are printed in the right place. `stack` ends the thread.
    """

    def __init__(self, stack: ExitStack) -> None:
        import asyncio

        self._loop = asyncio.get_running_loop()
        self._batches: asyncio.Queue[list[Event | ConnectionEnded]] = asyncio.Queue()
        self._events: list[Event | ConnectionEnded] = []
        self._turn = threading.Semaphore(0)
        self._over = False
        self._error: Exception | None = None
        stack.callback(self._end)

    async def read(
        self, events: Iterator[Event | ConnectionEnded]
    ) -> AsyncIterator[list[Event | ConnectionEnded]]:
        """Yield the `events` in batches. Raises what they raise."""
        # a daemon, as it may still wait for a pipe at the end
        threading.Thread(target=self._read, args=(events,), daemon=True).start()
        while batch := await self._batches.get():
            yield batch
            self._turn.release()
        if self._error is not None:
            raise self._error

    def hand_over(self) -> None:
        """Hand over the events read, in the thread, and wait until they have been replayed."""
        if self._events:
            self._give(self._events)
            self._events = []
            self._turn.acquire()
        if self._over:
            raise SystemExit

    def _read(self, events: Iterator[Event | ConnectionEnded]) -> None:
        with suppress(SystemExit):  # raised by `hand_over` at the end
            try:
                for event in events:
                    self._events.append(event)
                    if len(self._events) == _MAX_EVENTS:
                        self.hand_over()
            except Exception as error:
                self._error = error
            self.hand_over()
            self._give([])

    def _give(self, batch: list[Event | ConnectionEnded]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._batches.put_nowait, batch)

    def _end(self) -> None:
        self._over = True
        self._turn.release()


def read_events(sources: Sources, keylogs: list[str]) -> Iterator[Event | ConnectionEnded]:
    """Yield the events of the sources, and a `ConnectionEnded` where a side closed its connection."""
    from pulsarctl_wire.capture.sources import Decoder, Reading
    from pulsarctl_wire.net.replay.replay import ConnectionEnded

    endings: list[ConnectionEnded] = []

    def note(ending: EndedConnection) -> None:
        if ending.by_broker is not None:
            endings.append(ConnectionEnded(ending.connection, ending.by_broker, ending.last_ns))

    decoder = Decoder(Reading(keylogs=tuple(keylogs)), join_chunks=False, on_end=note)
    for events in sources.read(decoder):
        index = events[0].connection.index if events else -1
        yield from (end for end in endings if end.connection.index != index)
        yield from events
        yield from (end for end in endings if end.connection.index == index)  # `events` are its last ones
        endings.clear()
    yield from endings
    for events in decoder.finish():
        yield from events


# ---- The report ----


class Report:
    """Prints differences, and at the end how many there were.

    As text, a consequence of another difference is not printed, but counted with its cause.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._paint = Paint(console.has_colour(sys.stdout))
        self._heads: dict[int, str] = {}  # number of a difference -> its head; only the latest ones
        self._consequences: dict[int, Counter[str]] = {}  # by the number of their cause

    def add(self, difference: Difference) -> None:
        """Print one difference."""
        from pulsarctl_wire.wire.session.knowledge import bound

        frame = difference.recorded or difference.replayed
        is_counted = difference.cause in self._consequences or len(self._consequences) < _MAX_HEADS
        if self._output == "text" and difference.cause in self._heads and is_counted:
            label = f"{frame.command if frame else 'connection'} {_KINDS[difference.kind]}"
            self._consequences.setdefault(difference.cause, Counter())[label] += 1
            return
        record: dict[str, Any] = {key: getattr(difference, key) for key in ("number", "connection", "kind")}
        if frame is not None:
            record |= {
                "frame": difference.recorded.number if difference.recorded else None,
                "request": difference.recorded.request if difference.recorded else None,
                "command": frame.command,
                "topic": frame.topic,
                "subscription": frame.subscription,
                **_ids(frame),
            }
        if difference.kind == "differs":
            record["fields"] = {
                name: {"recorded": first, "replayed": second}
                for name, (first, second) in difference.fields.items()
            }
        if difference.text:
            record["text"] = difference.text
        if difference.cause is not None:
            record["cause"] = difference.cause
        self._heads[difference.number] = self._head(difference, frame)
        bound(self._heads, _MAX_HEADS)
        say(record, f"{self._heads[difference.number]}: {self._text(difference)}", self._output)

    def _head(self, difference: Difference, frame: Frame | None) -> str:
        """Return what a difference is about: its connection, frame, topic and ids."""
        place = f"connection {difference.connection}"
        if frame is None:
            return place
        about = f" {clean(frame.topic)}" if frame.topic else ""
        about += f" sub={clean(frame.subscription)}" if frame.subscription else ""
        about += "".join(f" {name.removesuffix('_id')}={value}" for name, value in _ids(frame).items())
        number = f" #{difference.recorded.number}" if difference.recorded else ""
        return f"{place}{number} {frame.command}{about}"

    def _text(self, difference: Difference) -> str:
        """Describe what differs."""
        if difference.kind == "closed":
            return f"{self._paint('red', 'closed')}: {clean(difference.text)}"
        if difference.kind == "missing":
            return self._paint("red", "did not come")
        if difference.kind == "unexpected":
            return self._paint("yellow", "not in the recording")
        return ", ".join(
            f"{name} {self._paint('green', _format(recorded))} → {self._paint('red', _format(replayed))}"
            for name, (recorded, replayed) in difference.fields.items()
        )

    def close(self, totals: ReplayTotals) -> None:
        """Print the consequences of each difference, and the totals."""
        for number, counts in self._consequences.items():
            count = sum(counts.values())
            kinds = ", ".join(f"{times} {label}" for label, times in counts.most_common())
            head = self._heads.get(number, f"difference {number}")
            sys.stdout.write(f"{head}: and {count_of(count, 'consequence')} ({kinds})\n")
        names = ("exchanges", "differ", "unanswered", "consequences", "connections", "sent", "unsent")
        record = {name: getattr(totals, name) for name in names}
        text = f"{totals.exchanges} exchanges, {totals.differ} differ, {totals.unanswered} unanswered"
        if totals.consequences:
            text += f", {totals.consequences} consequences of these"
        if totals.unsent:
            text += f", {totals.unsent} frames could not be sent"
        say(record, text, self._output)


def _ids(frame: Frame) -> dict[str, int]:
    """Return the producer id, consumer id and sequence id of an answer."""
    from pulsarctl_wire.wire.fields import to_signed

    ids: dict[str, int] = {}
    for message in filter(None, (frame.body, frame.metadata)):
        for name in ("producer_id", "consumer_id", "sequence_id"):
            if name in message.DESCRIPTOR.fields_by_name and name not in ids and message.HasField(name):
                ids[name] = to_signed(getattr(message, name))
    return ids


def _format(value: Any) -> str:
    return "nothing" if value is None else clean(str(value))
