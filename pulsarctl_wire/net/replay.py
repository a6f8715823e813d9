"""The client side of recorded sessions, played again; and how the answers differ from the recorded ones.

One walk over the recording, in the order in which it was captured, over all its connections. What a client
sent is sent on a connection of its own (`Player`), in terms of this broker (`net.remap`). Of what a broker
sent the counterpart is waited for: so nothing is sent before what it followed has come, and a session that
depends on another one finds it as far as it was. A counterpart (`Pairs`) is

    an answer or receipt   what answers the same request
    a MESSAGE              the one with the same producer, sequence id and chunk that came to the same
                           consumer, of a Shared subscription to any of its consumers; if messages are
                           foreign (no recorded client sent them) and others come, the nth for the nth
    anything else          the next one of that command for that producer, consumer, watcher

What does not come in time is said, and the walk goes on; what is of the same kind (requests; a producer's
receipts; a consumer's messages; a command that comes unasked) is waited for half as long from then on.
PING is answered and AUTH_CHALLENGE too, by whoever holds the connection: neither is part of the comparison.

Memory: `MAX_WAITING` bytes of frames that came and were not recorded so far, or the other way round, and what
`net.remap` remembers; the recording itself is taken as a stream.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterable, Callable, Iterable
from dataclasses import replace
from itertools import count
from typing import Any, Final, NamedTuple

from pulsarctl_wire.errors import LinkClosed, SessionError, Unanswered, Unreachable
from pulsarctl_wire.net.causes import CLOSES, Asked, Causes, Key
from pulsarctl_wire.net.differences import differences
from pulsarctl_wire.net.link import Link, Tap
from pulsarctl_wire.net.pairs import Pairs
from pulsarctl_wire.net.remap import Names, Remap, redacted
from pulsarctl_wire.net.settings import Auth, Settings
from pulsarctl_wire.net.warnings import Warnings
from pulsarctl_wire.wire.commands import NUMBERS, REQUESTS
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Connection, Event, Frame, Gap, with_command
from pulsarctl_wire.wire.names import full_topic
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, CommandSubscribe
from pulsarctl_wire.wire.session import FIELDS, MAX_PENDING, NO_REQUEST, Knowledge, Session, bound
from pulsarctl_wire.wire.stream import FrameStream

_CONNECT, _CONNECTED, _AUTH_RESPONSE = NUMBERS["CONNECT"], NUMBERS["CONNECTED"], NUMBERS["AUTH_RESPONSE"]
_MESSAGE, _ERROR, _SEND, _PONG = NUMBERS["MESSAGE"], NUMBERS["ERROR"], NUMBERS["SEND"], NUMBERS["PONG"]
_BY_CLOCK: Final = {NUMBERS["PING"], NUMBERS["AUTH_CHALLENGE"]}
_SUBSCRIBE: Final = NUMBERS["SUBSCRIBE"]
_RECEIPTS: Final = {NUMBERS["SEND_RECEIPT"], NUMBERS["SEND_ERROR"]}
_ANSWERED: Final = {*REQUESTS, _SEND, NUMBERS["PING"]}
_PASSED_OVER: Final = "connections that are passed over"
_OWNERS: Final = ("consumer_id", "producer_id", "watcher_id", "resource_id", "session_id", "watch_id")


class Ended(NamedTuple):
    """A recorded connection ended: who closed it, and when (ns since the epoch)."""

    connection: Connection
    by_broker: bool
    time_ns: int | None


class Difference(NamedTuple):
    """An answer that is another one than the recorded one.

    `kind` is "differs" (both frames are there, and `fields` name -> (recorded, now)), "missing" (nothing
    came), "unexpected" (nothing was recorded), or "closed" (`text` says why the connection ended, or what the
    broker closed otherwise). Differences are numbered from 1; `cause` is the number of the one that this one
    follows from.
    """

    kind: str
    connection: int
    recorded: Frame | None = None
    replayed: Frame | None = None
    fields: dict[str, tuple[Any, Any]] = {}  # noqa: RUF012 (never changed)
    text: str = ""
    number: int = 0
    cause: int | None = None


class Totals:
    """What a replay came to: connections, frames sent and not, answers (`exchanges`) by how they compare.

    Those of which one side is missing count too: as `unanswered`, or, if nothing was recorded, as `differ`;
    `differ` also has the connections that ended otherwise. What follows from another difference is counted
    among the `consequences` only.
    """

    def __init__(self) -> None:
        self.connections = self.sent = self.unsent = 0
        self.exchanges = self.differ = self.unanswered = self.consequences = 0


class Options(NamedTuple):
    """`speed` times as fast as recorded (0: as fast as answers allow); `answer_timeout` in seconds."""

    speed: float = 0.0
    answer_timeout: float = 30.0


class Replay:
    """One replay: `run` it over the events of a capture. `tell` hears of differences, `note` of all else;
    of a kind that has many a few times.

    Attributes: `totals`, and `remap`, which is what it has learnt.
    """

    def __init__(
        self,
        settings: Settings,
        names: Names,
        options: Options,
        *,
        tell: Callable[[Difference], None],
        note: Callable[[str], None],
        tap: Tap | None = None,
    ) -> None:
        self.settings = settings
        self.options = options
        self.remap = Remap(names)
        self.totals = Totals()
        self.note = Warnings(note)
        self._tell = tell
        self.tap = tap
        self.pairs = Pairs()
        self.lossy: set[int] = set()  # connections of which a part is missing
        self.met: set[Key] = set()  # streams of messages that came as they were recorded
        self.in_order: set[Key] = set()  # streams whose messages are told by their order
        self.causes = Causes()
        self._numbers = count(1)
        self._found: list[Difference] = []  # to be told behind the step that is being made
        self._misses: Counter[Key] = Counter()  # what did not come in time, by kind
        self._news: asyncio.Future[None] | None = None
        self._players: dict[int, Player | None] = {}
        self._clock = 0.0  # when, by the loop's clock, the step before is to have happened
        self._before: int | None = None  # when it was recorded

    async def run(self, batches: AsyncIterable[Iterable[Event | Ended]]) -> Totals:
        """Play what clients sent, and compare; events come in the order of capture, some at a time.

        Raises Unreachable, Unanswered if a connection cannot be made; `totals` are of what was played before.
        """
        self._clock = asyncio.get_running_loop().time()
        try:
            async for events in batches:
                for event in events:
                    await self._step(event)
                    self._tell_found()
            self._settle()
        except SessionError:
            self._settle()
            raise
        finally:
            self.note.close()
            links = [player.link for player in self._players.values() if player is not None]
            await asyncio.gather(*(link.close() for link in links))
        return self.totals

    # -- pairs

    def take(self, key: Key, stream: Key | None, frame: Frame, recorded: bool) -> bool:
        """Compare `frame` with its counterpart if that is there, else let it wait.

        `stream` tells of a MESSAGE whose messages it is one of.
        """
        other = self.pairs.take(key, frame, recorded)
        if other is None:
            for side in (True, False):
                self._count_alone(self.pairs.excess(side), side)
            return False
        old, new = (frame, other) if recorded else (other, frame)
        in_order = stream in self.in_order
        self.remap.learn(old, new, stream if in_order else None)
        if stream is not None and not in_order:
            self.met.add(stream)
        self.totals.exchanges += 1
        fields = differences(old, new, self.remap)
        player = self._players.get(old.connection.index)
        if fields:
            self.differs(Difference("differs", old.connection.index, old, new, fields))
            if player is not None:
                player.strayed = "command" in fields
        if player is not None and "command" not in fields:
            self.causes.mend(player.asked.needs(old))
        return True

    def alone(self, wanted: Callable[[Key], bool]) -> None:
        """What waits under such keys has no counterpart: count and tell it."""
        for recorded in (True, False):
            self._count_alone(self.pairs.pop(wanted, recorded), recorded)

    def _count_alone(self, frames: Iterable[Frame], recorded: bool) -> None:
        for frame in frames:
            index = frame.connection.index
            if not recorded and index in self.lossy:
                continue
            self.totals.exchanges += 1
            difference = (
                Difference("missing", index, frame)
                if recorded
                else Difference("unexpected", index, None, frame)
            )
            closed = CLOSES.get(frame.type) if frame.request is None else None
            if closed is not None:
                otherwise = (
                    f"the recorded {closed} here, but not this one"
                    if recorded
                    else f"this {closed}, unlike then"
                )
                difference = difference._replace(kind="closed", text=f"the broker closed {otherwise}")
            self.differs(difference)

    def differs(self, difference: Difference) -> None:
        """Count a difference; it is told when the step that is being made is over."""
        number = next(self._numbers)
        player = self._players.get(difference.connection)
        about, needs = ([], []) if player is None else player.place(difference)
        cause = self.causes.of(about)
        if cause is not None:
            self.totals.consequences += 1
        elif difference.kind == "missing":
            self.totals.unanswered += 1
        else:
            self.totals.differ += 1
        self.causes.fail(needs, cause or number)
        self._found.append(difference._replace(number=number, cause=cause))

    def news(self) -> None:
        """Something came: look whether it is what is waited for."""
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def patience(self, kind: Key) -> float:
        """How long something of this kind is waited for, in seconds."""
        return self.options.answer_timeout * 0.5 ** min(self._misses[kind], 30)

    async def arrival(self, key: Key, kind: Key, frame: Frame, closed: "asyncio.Future[None]") -> bool:
        """Whether the counterpart of `frame` comes in time, before its connection is `closed`."""
        loop = asyncio.get_running_loop()
        seconds = self.patience(kind)
        due = loop.time() + seconds
        while self.pairs.waits(key, frame):
            left = due - loop.time()
            if left <= 0 or closed.done():
                break
            self._news = loop.create_future()
            await asyncio.wait([self._news, closed], timeout=left, return_when=asyncio.FIRST_COMPLETED)
        else:
            return True
        self._misses[kind] += 1
        if self._misses[kind] == 1 and not closed.done():
            self.note(
                f"connection {frame.connection.index}: {frame.command} (#{frame.number}) did not come within "
                f"{seconds:g} s; going on, and waiting half as long for what is like it",
                "frames that did not come",
            )
        return False

    # -- the walk

    def _settle(self) -> None:
        """Nothing more is played: what waits has no counterpart."""
        for player in self._players.values():
            if player is not None:
                player.link.observe = None
        self.alone(lambda key: True)
        self._tell_found()

    def _tell_found(self) -> None:
        found, self._found = self._found, []
        for difference in found:
            self._tell(difference)

    async def _step(self, event: Event | Ended) -> None:
        index = event.connection.index
        if index not in self._players:
            if isinstance(event, Ended):
                return
            await self._pace(event.time_ns)
            self._players[index] = await self._open(event)
        player = self._players[index]
        if player is None:
            return
        due = await self._pace(event.time_ns, wait=isinstance(event, Ended) or event.to_broker)
        if isinstance(event, Ended):
            await player.end(event.by_broker)
            self._players[index] = None
        elif not isinstance(event, Frame) or event.partial or event.base is None:
            player.damaged(event)
        elif event.to_broker:
            await player.play(event)
        else:
            await player.expect(event)
            self._clock = max(due, asyncio.get_running_loop().time())

    async def _pace(self, time_ns: int | None, *, wait: bool = True) -> float:
        """When the next step is due, by the loop's clock; waits until then if we are to."""
        speed = self.options.speed
        if speed and time_ns is not None:
            if self._before is not None:
                self._clock += max(0, time_ns - self._before) / 1e9 / speed
            self._before = time_ns
            left = self._clock - asyncio.get_running_loop().time()
            if wait and left > 0:
                await asyncio.sleep(left)
        return self._clock

    async def _open(self, first: Event) -> "Player | None":
        """The player of a connection that begins with `first`; None, with a word, if it cannot be played."""
        where = f"connection {first.connection.index}"
        if not isinstance(first, Frame):
            spoken = getattr(first, "protocol", "")
            why = f"it speaks {spoken}" if spoken else "its beginning is missing or damaged"
            self.note(f"{where} is passed over: {why}", _PASSED_OVER)
            return None
        if first.type != _CONNECT or not first.to_broker or first.partial or first.body is None:
            self.note(f"{where} is passed over: it does not begin with a whole CONNECT", _PASSED_OVER)
            return None
        player = Player(self, first)
        await player.open()
        self.totals.connections += 1
        return player


class Player:
    """One recorded connection, played on one of our own. See the module for what it does."""

    link: Link

    def __init__(self, whole: Replay, connect: Frame) -> None:
        self.index = connect.connection.index
        self._whole = whole
        self._remap = whole.remap
        self._credentials = connect.body.auth_data
        self._redacted = redacted(self._credentials)
        connection = Connection(self.index)
        self._sending = FrameStream(connection, True)
        self._session = Session(connection, Knowledge(join_chunks=False, schemas=False), (self._sending,))
        self.asked = Asked(self.index)
        self.strayed = False  # the latest difference was in the command
        self._sent: dict[int, int] = {}  # numbers of requests here -> in the recording
        self._streams: dict[int, Key] = {}  # of the messages of Shared consumers
        self._lost = False  # the connection ended before the recorded one
        method = as_text(connect.body.auth_method_name)
        self._auth = Auth(method, lambda: self._credentials) if method and not self._redacted else Auth()

    # -- opening and sending

    async def open(self) -> None:
        """Connect to the first host of the URL that can be reached. Raises Unreachable, Unanswered."""
        settings = self._whole.settings
        if settings.auth.method == "none":
            settings = replace(settings, auth=self._auth)
            if self._redacted:
                self._whole.note(
                    f"connection {self.index}: its credentials are redacted in the capture, and left out; "
                    "give some with --token, --token-file or --basic",
                    "connections without their credentials",
                )
        self._auth = settings.auth
        tried: list[Unreachable | Unanswered] = []
        addresses = settings.url.addresses
        while len(tried) < len(addresses):
            address = addresses[len(tried)]
            tap = self._whole.tap
            try:
                self.link = await Link.open(address, settings, index=self.index, tap=tap, handshake=False)
            except (Unreachable, Unanswered) as error:
                tried.append(error)
            else:
                self.link.observe = self._came
                return
        raise type(tried[0])(f"{'; '.join(map(str, tried))} (tried {settings.url})")

    async def play(self, frame: Frame) -> None:
        """Send what a client sent; a PONG is ours to send, and so is an AUTH_RESPONSE."""
        body = frame.body
        if frame.type == _AUTH_RESPONSE and body is not None:
            self._credentials = body.response.auth_data
        if frame.type in (_PONG, _AUTH_RESPONSE):
            return
        if frame.type == _SUBSCRIBE and body is not None:
            self._subscribe(body)
        self.asked.ask(frame)
        owner = self._stream(frame)
        owner = owner if owner in self._whole.in_order else None
        connects = frame.type == _CONNECT and body is not None
        data = self._connect(frame) if connects else self._remap.outgoing(frame, owner)
        try:
            self.link.send(data)
        except LinkClosed:
            self._whole.totals.unsent += 1
            self._closed()
            return
        self._whole.totals.sent += 1
        events = self._sending.feed(data)
        self._session.track(events)
        for event in events:
            if isinstance(event, Frame) and frame.type in _ANSWERED:
                self._sent[event.number] = frame.number
                bound(self._sent, MAX_PENDING)
        await self._drain()

    def _subscribe(self, body: Any) -> None:
        """Remember where the messages of a consumer may come instead."""
        shared = body.subType == CommandSubscribe.Shared
        topic, name = full_topic(body.topic), as_text(body.subscription)
        self._streams[body.consumer_id] = (
            ("shared", topic, name) if shared else (self.index, "consumer", body.consumer_id)
        )
        bound(self._streams, MAX_PENDING)

    def _stream(self, frame: Frame) -> Key | None:
        """Whose messages a frame is about, or one of; None for other frames."""
        if "consumer_id" not in FIELDS.get(frame.type, ()) or frame.body is None:
            return None
        consumer: int = frame.body.consumer_id
        return self._streams.get(consumer, (self.index, "consumer", consumer))

    def _connect(self, frame: Frame) -> bytes:
        """CONNECT with our credentials if there are any, and to the broker itself."""
        base = BaseCommand()
        base.CopyFrom(frame.base)  # type: ignore[arg-type]
        body = base.connect
        body.CopyFrom(self._remap.translated(body, frame))
        body.ClearField("proxy_to_broker_url")
        auth = self._auth
        if auth.method != "none":
            body.auth_method_name, body.auth_data = auth.method, auth.data()
        return frame.raw if base == frame.base else with_command(frame.raw, base)

    async def _drain(self) -> None:
        """Wait until the socket takes more; a broker that reads nothing is given up."""
        seconds = self._whole.options.answer_timeout
        task = asyncio.ensure_future(self.link.drain())
        try:
            # not wait_for: before Python 3.12 it may miss that it is cancelled
            _, late = await asyncio.wait([task], timeout=seconds)
        finally:
            task.cancel()
        if late:
            self.link.drop(f"the broker took nothing for {seconds:g} s")

    def _closed(self) -> None:
        """Tell once that the connection is gone, though the recorded one went on."""
        try:
            self.link.send(b"")
        except LinkClosed as error:
            if not self._lost:
                self._whole.differs(Difference("closed", self.index, text=str(error)))
            self._lost = True

    # -- what comes

    def place(self, difference: Difference) -> tuple[list[Key], list[Key]]:
        """What a difference is about, and what cannot be as it was recorded for it."""
        recorded, replayed = difference.recorded, difference.replayed
        if recorded is not None:
            fails = difference.kind != "differs" or "command" in difference.fields
            return self.asked.about(recorded, recorded.request), self.asked.needs(recorded) if fails else []
        if replayed is not None:
            about = self.asked.about(replayed, self._sent.get(replayed.request or 0))
            return about, self.asked.needs(replayed) if difference.kind == "closed" else []
        return [(self.index,)], [(self.index,)]

    def damaged(self, event: Event) -> None:
        """Something of the recording is missing, or makes no sense: say so, once."""
        lossy = self._whole.lossy
        if self.index not in lossy:
            whose = "the client" if event.to_broker else "the broker"
            what = f"{event.size} bytes are missing" if isinstance(event, Gap) else "it is damaged"
            self._whole.note(
                f"connection {self.index}: {what} in what {whose} sent, behind byte {event.offset}; "
                "such frames are neither sent nor compared",
                "connections of which a part is missing",
            )
        lossy.add(self.index)

    async def expect(self, frame: Frame) -> None:
        """Wait for the counterpart of what the broker sent, unless it is not to be waited for."""
        whole = self._whole
        paired = frame.type in _RECEIPTS or "request_id" in FIELDS.get(frame.type, ())
        if self.index in whole.lossy and paired and frame.request is None:
            return  # perhaps its request is what is missing
        if frame.type in _BY_CLOCK or frame.body is None:
            return
        stream = self._stream(frame) if frame.type == _MESSAGE else None
        key = self._key(frame, frame.request, stream, recorded=True)
        if whole.take(key, stream, frame, recorded=True):
            return
        if await whole.arrival(key, self._kind(frame, stream), frame, self.link.closed):
            return
        if self.link.closed.done():
            self._closed()
        elif stream is not None and self._foreign(stream, frame):
            self._tell_by_order(stream)

    def _came(self, event: Event) -> None:
        """A frame of the broker is here (its link calls this)."""
        if not isinstance(event, Frame) or event.partial:
            return
        if event.type == _CONNECTED:
            self._session.heed_limit(event)
        self._session.track([event])
        if event.type in _BY_CLOCK or event.body is None:
            return
        request = None if event.request is None else self._sent.get(event.request)
        stream = self._stream(event) if event.type == _MESSAGE else None
        key = self._key(event, request, stream, recorded=False)
        self._whole.take(key, stream, event, recorded=False)
        self._whole.news()

    def _key(self, frame: Frame, request: int | None, stream: Key | None, *, recorded: bool) -> Key:
        body = frame.body
        if frame.type == _CONNECTED or (frame.type == _ERROR and body.request_id == NO_REQUEST):
            return self.index, "handshake"
        if request is not None:
            return self.index, "answer", request
        if stream is not None:
            in_order = stream in self._whole.in_order
            return stream if in_order else (*stream, self._remap.content(frame, recorded))
        fields = FIELDS.get(frame.type, frozenset())
        return self.index, frame.type, *(getattr(body, name) for name in _OWNERS if name in fields)

    def _kind(self, frame: Frame, stream: Key | None) -> Key:
        """What is waited for together."""
        if stream is not None:
            return stream
        if frame.type in _RECEIPTS:
            return self.index, "producer", frame.body.producer_id
        return (self.index, "requests") if frame.request is not None else (self.index, frame.type)

    def _foreign(self, stream: Key, frame: Frame) -> bool:
        """Whether a message that did not come says that other ones do than were recorded."""
        if stream in self._whole.met or stream in self._whole.in_order:
            return False
        return not self._remap.knows(frame.body.message_id)

    def _tell_by_order(self, stream: Key) -> None:
        """Other messages come than were recorded: from now on the nth stands for the nth."""
        whole, size = self._whole, len(stream)
        whole.in_order.add(stream)
        for recorded in (True, False):
            for frame in whole.pairs.pop(lambda key: key[:size] == stream, recorded):
                whole.take(stream, stream, frame, recorded)

    # -- the end

    async def end(self, by_broker: bool) -> None:
        """End as the recorded connection did; a broker that closed that one is waited for.

        Unless its last answer was another one already: then it has no reason to.
        """
        if by_broker and not self.strayed and not self.link.closed.done():
            await asyncio.wait([self.link.closed], timeout=self._whole.options.answer_timeout)
            if not self.link.closed.done():
                text = "the broker closed the recorded connection here, but not this one"
                self._whole.differs(Difference("closed", self.index, text=text))
        self.link.observe = None
        self._whole.alone(lambda key: key[0] == self.index)
        await self.link.close()
