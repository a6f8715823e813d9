"""A broker that plays a file at whoever connects to it.

    with Peer(source) as peer:
        pwire(["consume", "t", "-s", "s", "--url", peer.url], 10)

A consumer gets the file's frames behind its first FLOW: a SEND as MESSAGE with an id of its own, a MESSAGE
for its consumer id, all else as it is. A PING gets all of them as they are, and nothing after that.
"""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from net.scripted import LEDGER, PATIENCE, ScriptedBroker, build, silence

from pulsarctl_wire.capture import read_events
from pulsarctl_wire.conformance.clients import scripted
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.wire.frame import Event, Frame, Malformed
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata, Schema

if TYPE_CHECKING:
    from typing_extensions import Self  # Python 3.10 has none

PLAYED: Final = 2_000_000
"""Bytes that are played of a file at the most: what is compressed as a whole may be much larger."""


def events_of(source: Path) -> list[Event]:
    """The frames of a file, in order; none if it is not a capture to its end."""
    events: list[Event] = []
    size = 0
    try:
        for event in read_events(source):
            events.append(event)
            size += len(getattr(event, "raw", b""))
            if size > PLAYED:
                break
    except CaptureError:
        pass
    return events


def raw_of(source: Path, events: list[Event]) -> bytes:
    """What a file holds as the bytes of a connection; the file's own bytes if it holds no frames."""
    if not any(isinstance(event, Frame) for event in events):
        return source.read_bytes()[:PLAYED]
    return b"".join(event.raw for event in events if isinstance(event, (Frame, Malformed)))


def schema_of(events: list[Event]) -> Schema | None:
    """The schema of the file's messages, if there is one."""
    for event in events:
        body = event.body if isinstance(event, Frame) else None
        if body is not None and "schema" in body.DESCRIPTOR.fields_by_name and body.HasField("schema"):
            schema: Schema = body.schema
            return schema
    return None


def for_consumer(event: Event, number: int, consumer: int, *, has_schema: bool) -> bytes:
    """The bytes of an event as they are sent to the consumer of this id."""
    if not isinstance(event, Frame):
        return getattr(event, "raw", b"")
    name = event.command
    if name not in ("SEND", "MESSAGE") or event.body is None:
        return event.raw
    base = BaseCommand(type=BaseCommand.MESSAGE)
    if name == "MESSAGE":
        base.CopyFrom(event.base)  # type: ignore[arg-type]
    else:
        base.message.message_id.ledgerId, base.message.message_id.entryId = LEDGER, number
    base.message.consumer_id = consumer
    command = base.SerializePartialToString()
    entry = event.raw[8 + event.command_size :]
    if has_schema and event.metadata is not None:
        metadata = MessageMetadata()
        metadata.CopyFrom(event.metadata)
        metadata.schema_version = bytes(8)
        head = metadata.SerializePartialToString()
        entry = len(head).to_bytes(4, "big") + head + event.payload
    sizes = (4 + len(command) + len(entry)).to_bytes(4, "big") + len(command).to_bytes(4, "big")
    return sizes + command + entry


class Peer:
    """The broker, in a thread of its own; a context manager. `url` is where it listens."""

    def __init__(self, source: Path) -> None:
        self._events = events_of(source)
        self._raw = raw_of(source, self._events)
        self._schema = schema_of(self._events)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self.url = ""

    def __enter__(self) -> "Self":
        self._thread.start()
        assert self._ready.wait(PATIENCE)
        return self

    def __exit__(self, *reason: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(PATIENCE)

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with ScriptedBroker() as broker:
            broker.always("FLOW", silence)
            broker.once("FLOW", self._to_consumer)
            broker.always("GET_SCHEMA", self._of_schema)
            broker.always("PING", self._to_anybody)
            self.url = broker.url
            self._ready.set()
            await self._over.wait()

    def _to_consumer(self, peer: scripted.Peer, frame: Frame) -> None:
        peer.send(*self._for_consumer(frame.body.consumer_id, has_schema=self._schema is not None))

    def _for_consumer(self, consumer: int, *, has_schema: bool) -> Iterator[bytes]:
        if not any(isinstance(event, Frame) for event in self._events):
            yield self._raw
            return
        for number, event in enumerate(self._events):
            yield for_consumer(event, number, consumer, has_schema=has_schema)

    def _to_anybody(self, peer: scripted.Peer, frame: Frame) -> None:
        peer.send(self._raw)
        peer.finish()

    def _of_schema(self, peer: scripted.Peer, frame: Frame) -> bytes:
        return build("GET_SCHEMA_RESPONSE", request_id=frame.body.request_id, schema=self._schema)
