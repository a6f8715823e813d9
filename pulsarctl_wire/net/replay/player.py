"""Plays one recorded connection again on a new connection; `net/replay/replay.py` says what is compared."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any, Final

from pulsarctl_wire.errors import LinkClosed
from pulsarctl_wire.net.frame_socket import Tap
from pulsarctl_wire.net.replay.comparison import Comparison
from pulsarctl_wire.net.replay.differences import Difference, Key, RequestLog
from pulsarctl_wire.net.replay.remap import is_redacted
from pulsarctl_wire.net.session.link import Link, open_first_link
from pulsarctl_wire.net.settings import Auth, Settings
from pulsarctl_wire.wire.commands import REQUESTS
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Connection, Event, Frame, Gap, replace_command
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.names import full_topic
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, CommandSubscribe
from pulsarctl_wire.wire.session.exchanges import ExchangeState
from pulsarctl_wire.wire.session.knowledge import MAX_PENDING, Knowledge, bound
from pulsarctl_wire.wire.session.state import FIELDS, NO_REQUEST

_UNCOMPARED_TYPES: Final = {BaseCommand.PING, BaseCommand.AUTH_CHALLENGE}  # sent at the broker's own times
_RECEIPTS: Final = {BaseCommand.SEND_RECEIPT, BaseCommand.SEND_ERROR}
_REQUEST_TYPES: Final = {*REQUESTS, BaseCommand.SEND, BaseCommand.PING}
_OWNER_FIELDS: Final = ("consumer_id", "producer_id", "watcher_id", "resource_id", "session_id", "watch_id")


class Player:
    """Plays one recorded connection on a new link, whose answers go to `comparison`."""

    link: Link

    def __init__(self, comparison: Comparison, settings: Settings, tap: Tap | None, connect: Frame) -> None:
        self.index = connect.connection.index
        self._comparison = comparison
        self._remap = comparison.remap
        self._settings = settings
        self._tap = tap
        self._credentials = connect.body.auth_data
        self._is_redacted = is_redacted(self._credentials)
        connection = Connection(self.index)
        self._frame_stream = FrameStream(connection, True)
        knowledge = Knowledge(join_chunks=False, schemas=False)
        self._session = ExchangeState(connection, knowledge, (self._frame_stream,))
        self.log = RequestLog(self.index)
        self.has_strayed = False  # whether the latest difference was in the command
        self._recorded_numbers: dict[int, int] = {}  # number of a request in the replay -> in the recording
        self._streams: dict[int, Key] = {}  # consumer id -> key of the stream that its messages belong to
        self._has_ended_early = False  # whether the connection ended earlier than the recorded one
        method = as_text(connect.body.auth_method_name)
        self._auth = Auth(method, lambda: self._credentials) if method and not self._is_redacted else Auth()

    # -- opening and sending

    async def open(self) -> None:
        """Connect to the first host of the URL that can be reached. Raises Unreachable, RequestTimeout."""
        settings = self._settings
        if settings.auth.method == "none":
            settings = replace(settings, auth=self._auth)
            if self._is_redacted:
                self._comparison.warn(
                    f"connection {self.index}: its credentials are redacted in the capture, and not sent; "
                    "give some with --token, --token-file or --basic",
                    "connections without their credentials",
                )
        self._auth = settings.auth
        connect = partial(
            Link.open, settings=settings, numbers=iter((self.index,)), tap=self._tap, handshake=False
        )
        self.link = await open_first_link(settings.url.addresses, settings, connect)
        self.link.observe = self._on_frame

    async def play(self, frame: Frame) -> None:
        """Send a recorded frame of the client, but no PONG or AUTH_RESPONSE: the link itself sends those."""
        body = frame.body
        if frame.type == BaseCommand.AUTH_RESPONSE and body is not None:
            self._credentials = body.response.auth_data
        if frame.type in (BaseCommand.PONG, BaseCommand.AUTH_RESPONSE):
            return
        if frame.type == BaseCommand.SUBSCRIBE and body is not None:
            self._add_stream(body)
        self.log.add(frame)
        stream = self._find_stream(frame)
        stream = stream if stream in self._comparison.ordered_streams else None
        is_connect = frame.type == BaseCommand.CONNECT and body is not None
        data = self._make_connect(frame) if is_connect else self._remap.make_outgoing(frame, stream)
        try:
            self.link.send(data)
        except LinkClosed:
            self._comparison.totals.unsent += 1
            self._report_closed()
            return
        self._comparison.totals.sent += 1
        events = self._frame_stream.feed(data)
        self._session.track(events)
        for event in events:
            if isinstance(event, Frame) and frame.type in _REQUEST_TYPES:
                self._recorded_numbers[event.number] = frame.number
                bound(self._recorded_numbers, MAX_PENDING)
        await self._drain()

    def _add_stream(self, body: Any) -> None:
        """Remember the stream of a consumer's messages; the consumers of a Shared subscription share one."""
        shared = body.subType == CommandSubscribe.Shared
        topic, name = full_topic(body.topic), as_text(body.subscription)
        self._streams[body.consumer_id] = (
            ("shared", topic, name) if shared else (self.index, "consumer", body.consumer_id)
        )
        bound(self._streams, MAX_PENDING)

    def _find_stream(self, frame: Frame) -> Key | None:
        """Return the stream of messages that a frame is about or belongs to; None for other frames."""
        if "consumer_id" not in FIELDS.get(frame.type, ()) or frame.body is None:
            return None
        consumer: int = frame.body.consumer_id
        return self._streams.get(consumer, (self.index, "consumer", consumer))

    def _make_connect(self, frame: Frame) -> bytes:
        """Return CONNECT with our credentials, if there are any, and without proxy_to_broker_url."""
        base = BaseCommand()
        base.CopyFrom(frame.base)  # type: ignore[arg-type]
        body = base.connect
        body.CopyFrom(self._remap.translate(body, frame))
        body.ClearField("proxy_to_broker_url")
        auth = self._auth
        if auth.method != "none":
            body.auth_method_name, body.auth_data = auth.method, auth.data()
        return frame.raw if base == frame.base else replace_command(frame.raw, base)

    async def _drain(self) -> None:
        """Wait until the socket accepts more bytes; drop the link if the broker reads nothing."""
        seconds = self._comparison.answer_timeout
        task = asyncio.ensure_future(self.link.drain())
        try:
            # not wait_for: before Python 3.12 it may ignore its own cancellation
            _, pending = await asyncio.wait([task], timeout=seconds)
        finally:
            task.cancel()
        if pending:
            self.link.drop(f"the broker read nothing for {seconds:g} s")

    def _report_closed(self) -> None:
        """Report once that the connection has ended, while the recorded one went on."""
        if not self._has_ended_early:
            self._has_ended_early = True
            self._comparison.add_difference(
                Difference("closed", self.index, text=str(self.link.protocol.end_error))
            )

    # -- frames from the broker

    def find_keys(self, difference: Difference) -> tuple[list[Key], list[Key]]:
        """Return what a difference is about, and what cannot be as recorded because of it."""
        recorded, replayed = difference.recorded, difference.replayed
        if recorded is not None:
            is_absent = difference.kind != "differs" or "command" in difference.fields
            return self.log.find_subjects(recorded, recorded.request), self.log.find_dependents(
                recorded
            ) if is_absent else []
        if replayed is not None:
            subjects = self.log.find_subjects(replayed, self._recorded_numbers.get(replayed.request or 0))
            return subjects, self.log.find_dependents(replayed) if difference.kind == "closed" else []
        return [(self.index,)], [(self.index,)]

    def note_damage(self, event: Event) -> None:
        """Warn once that a part of the recording is missing or damaged, and mark the connection as lossy."""
        lossy = self._comparison.lossy
        if self.index not in lossy:
            sender = "the client" if event.to_broker else "the broker"
            damage = f"{event.size} bytes are missing" if isinstance(event, Gap) else "it is damaged"
            self._comparison.warn(
                f"connection {self.index}: {damage} in what {sender} sent, after byte {event.offset}; "
                "such frames are neither sent nor compared",
                "connections of which a part is missing",
            )
        lossy.add(self.index)

    async def expect(self, frame: Frame) -> None:
        """Wait for the counterpart of a recorded frame of the broker, if it has to have one."""
        comparison = self._comparison
        is_answer = frame.type in _RECEIPTS or "request_id" in FIELDS.get(frame.type, ())
        if self.index in comparison.lossy and is_answer and frame.request is None:
            return  # its request may be in the missing part
        if frame.type in _UNCOMPARED_TYPES or frame.body is None:
            return
        stream = self._find_stream(frame) if frame.type == BaseCommand.MESSAGE else None
        key = self._key(frame, frame.request, stream, recorded=True)
        if comparison.take(key, stream, frame, recorded=True):
            return
        if await comparison.wait_for_counterpart(key, self._kind(frame, stream), frame, self.link.closed):
            return
        if self.link.closed.done():
            self._report_closed()
        elif stream is not None and self._is_foreign(stream, frame):
            self._match_by_order(stream)

    def _on_frame(self, event: Event) -> None:
        """Compare a frame that the link has received."""
        if not isinstance(event, Frame) or event.partial:
            return
        if event.type == BaseCommand.CONNECTED:
            self._session.apply_limit(event)
        self._session.track([event])
        if event.type in _UNCOMPARED_TYPES or event.body is None:
            return
        request = None if event.request is None else self._recorded_numbers.get(event.request)
        stream = self._find_stream(event) if event.type == BaseCommand.MESSAGE else None
        key = self._key(event, request, stream, recorded=False)
        self._comparison.take(key, stream, event, recorded=False)
        self._comparison.notify()

    def _key(self, frame: Frame, request: int | None, stream: Key | None, *, recorded: bool) -> Key:
        """Return the key that a frame shares with its counterpart; `request` is a number in the recording."""
        body = frame.body
        if frame.type == BaseCommand.CONNECTED or (
            frame.type == BaseCommand.ERROR and body.request_id == NO_REQUEST
        ):
            return self.index, "handshake"
        if request is not None:
            return self.index, "answer", request
        if stream is not None:
            in_order = stream in self._comparison.ordered_streams
            return stream if in_order else (*stream, self._remap.identify(frame, recorded))
        fields = FIELDS.get(frame.type, frozenset())
        return self.index, frame.type, *(getattr(body, name) for name in _OWNER_FIELDS if name in fields)

    def _kind(self, frame: Frame, stream: Key | None) -> Key:
        """Return the key of all frames that share a timeout (see `Comparison.timeout`)."""
        if stream is not None:
            return stream
        if frame.type in _RECEIPTS:
            return self.index, "producer", frame.body.producer_id
        return (self.index, "requests") if frame.request is not None else (self.index, frame.type)

    def _is_foreign(self, stream: Key, frame: Frame) -> bool:
        """Return whether the missing message `frame` shows that the stream has other messages now."""
        if stream in self._comparison.matched_streams or stream in self._comparison.ordered_streams:
            return False
        return not self._remap.has_id(frame.body.message_id)

    def _match_by_order(self, stream: Key) -> None:
        """Compare the nth message with the nth recorded one, as other messages come than were recorded."""
        comparison, size = self._comparison, len(stream)
        comparison.ordered_streams.add(stream)
        for recorded in (True, False):
            for frame in comparison.pairs.pop(lambda key: key[:size] == stream, recorded):
                comparison.take(stream, stream, frame, recorded)

    # -- the end

    async def end(self, by_broker: bool) -> None:
        """End as the recorded connection did: if the broker closed that one, wait for it to close this one.

        Do not wait if the latest difference was in the command: then the broker has no reason to close.
        """
        if by_broker and not self.has_strayed and not self.link.closed.done():
            await asyncio.wait([self.link.closed], timeout=self._comparison.answer_timeout)
            if not self.link.closed.done():
                text = "the broker closed the recorded connection here, but not this one"
                self._comparison.add_difference(Difference("closed", self.index, text=text))
        self.link.observe = None
        self._comparison.report_unpaired(lambda key: key[0] == self.index)
        await self.link.close()
