"""`Probe`: a raw connection to a broker, which checks what comes.

Its methods raise `Mismatch` as soon as something comes that a case does not expect.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Final, Protocol

from pulsarctl_wire.conformance.basics.checking import Mismatch, describe, describe_all, equal, show
from pulsarctl_wire.conformance.basics.frames import (
    id_of,
    make_batch,
    make_digit_batch,
    make_frame,
    make_send,
    make_subscription,
)
from pulsarctl_wire.errors import LinkClosed
from pulsarctl_wire.net.frame_socket import FrameSocket, Tap
from pulsarctl_wire.net.protocol import FrameProtocol
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.frame import Connection, Frame, Malformed
from pulsarctl_wire.wire.server_errors import error_name

PATIENCE: Final = 10.0
"""Seconds that a case waits for a frame, or for the end of a connection, by default."""

SOON: Final = 2.0
"""Seconds that a case waits for what should come within one second."""

CLIENT: Final = {"client_version": "pwire-conform", "protocol_version": 21}
"""The fields of CONNECT in all cases that do not test them."""


class Host(Protocol):
    """What a probe needs of its target: a tap, the usual credentials, and ways to wait."""

    @property
    def transcript(self) -> Tap:
        """The tap that keeps the bytes of probes."""

    @property
    def credentials(self) -> Mapping[str, Any]:
        """Fields of CONNECT."""

    async def settle(self, seconds: float) -> None:
        """Give the broker time to send everything that it is going to send now."""

    async def wait(self, probe: Probe, holds: Callable[[], object], within: float) -> bool:
        """Wait at most `within` seconds for `holds()`, a condition on a probe; return whether it is true."""


class Probe(FrameSocket):
    """A raw connection. Answers PING by PONG unless `answers_pings` is False.

    `frames` are the received frames that no method has returned yet, in order. PINGs are not among them, but
    counted in `pings`.
    """

    def __init__(self, target: Host, index: int) -> None:
        super().__init__(FrameProtocol(Connection(index), to_broker=False), target.transcript)
        self.target = target
        self.frames: deque[Frame] = deque()
        self.pings = 0
        self.bytes_sent = self.bytes_received = 0
        self.answers_pings = True
        self.garbage = ""
        """Why received bytes are not a frame; "" if all are."""
        self.changed = asyncio.Event()
        """Set at each frame, and at the end of the connection."""
        self._ids = count(1)

    def write(self, data: bytes) -> None:
        """Send bytes, and count them."""
        self.bytes_sent += len(data)
        super().write(data)

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes were received."""
        self.bytes_received += len(data)
        super().data_received(data)

    def handle(self, event: Any) -> None:
        """Keep a frame, or count and answer a PING. Bytes that are no frame make `protocol` fail."""
        if isinstance(event, Malformed):
            self.garbage = self.garbage or event.reason
        if not isinstance(event, Frame) or event.partial:
            return
        if event.command == "PING":
            self.pings += 1
            if self.answers_pings:
                self.write(make_frame("PONG"))
        else:
            self.frames.append(event)
        self.changed.set()

    def over(self) -> None:
        """Wake those who wait for `changed`."""
        self.changed.set()

    # -- sending

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        try:
            super().send(data)
        except LinkClosed:
            raise Mismatch("an open connection", self._describe_end()) from None

    def command(self, name: str, **fields: Any) -> None:
        """Send a command."""
        self.send(make_frame(name, **fields))

    def start(self, name: str, **fields: Any) -> int:
        """Send a request, with a new request id unless `fields` have one; return its request id."""
        number = fields.pop("request_id", None) or next(self._ids)
        self.command(name, request_id=number, **fields)
        return int(number)

    async def request(self, name: str, answer: str, **fields: Any) -> Any:
        """Send a request; return the body of its answer, which must be the next frame and be an `answer`."""
        number = self.start(name, **fields)
        return (await self.expect(answer, request_id=number)).body

    def publish(self, sequence_id: int = 0, payload: bytes = b"hello", **fields: Any) -> None:
        """Send SEND of one plain message for producer 1. Fields named meta_* are of the metadata."""
        self.send(make_send(sequence_id, payload, **fields))

    def publish_digits(self, sequence_id: int, number: int, highest: int | None = None) -> None:
        """Send SEND of a batch of so many messages, with a highest sequence id if one is given."""
        fields = {"num_messages": number, "meta_num_messages_in_batch": number}
        if highest is not None:
            fields |= {"highest_sequence_id": highest, "meta_highest_sequence_id": highest}
        self.publish(sequence_id, make_digit_batch(number), **fields)

    def flow(self, permits: int, consumer_id: int = 1) -> None:
        """Send FLOW."""
        self.command("FLOW", consumer_id=consumer_id, messagePermits=permits)

    def ack(self, *ids: Any, kind: str = "Individual", consumer_id: int = 1, **fields: Any) -> None:
        """Send ACK for message ids (MessageIdData, or dicts of its fields)."""
        number = build_command("ACK").ack.AckType.Value(kind)
        message_ids = [value if isinstance(value, dict) else id_of(value) for value in ids]
        self.command("ACK", consumer_id=consumer_id, ack_type=number, message_id=message_ids, **fields)

    def redeliver(self, *ids: Any, consumer_id: int = 1, **fields: Any) -> None:
        """Send REDELIVER_UNACKNOWLEDGED_MESSAGES for message ids, or without any for all."""
        name = "REDELIVER_UNACKNOWLEDGED_MESSAGES"
        self.command(name, consumer_id=consumer_id, message_ids=list(ids), **fields)

    # -- receiving

    async def next(self, within: float = PATIENCE, what: str = "a frame") -> Frame:
        """Return the next frame that is not PING. If none comes, Mismatch says that `what` was expected."""
        await self.until(lambda: self.frames or self.closed.done(), what, within)
        if not self.frames:
            raise Mismatch(what, self._describe_end())
        return self.frames.popleft()

    async def expect(self, name: str, /, within: float = PATIENCE, **fields: Any) -> Frame:
        """Return the next frame, which must be of this command and have these fields, explicitly."""
        what = f"{name} {{{', '.join(f'{key}={show(value)}' for key, value in fields.items())}}}"
        what = what.removesuffix(" {}")
        frame = await self.next(within, what)
        if frame.command != name or not all(
            frame.body.HasField(key) and getattr(frame.body, key) == value for key, value in fields.items()
        ):
            raise Mismatch(what, f"{describe(frame)} came")
        return frame

    async def expect_error(self, code: str, name: str, **fields: Any) -> Any:
        """Send a request that must be answered by ERROR with this code; return the body of the answer."""
        body = await self.request(name, "ERROR", **fields)
        equal(error_name(body.error), code, f"error of {name}")
        return body

    async def until(self, holds: Callable[[], object], what: str, within: float = PATIENCE) -> None:
        """Wait until `holds()` is true, as a frame or the end of the connection may bring about."""
        if not await self.target.wait(self, holds, within):
            arrivals = f"{describe_all(list(self.frames))} came" if self.frames else "nothing came"
            raise Mismatch(what, f"{arrivals} within {within:g} s")

    async def messages(self, number: int) -> list[Frame]:
        """Return the next `number` frames, which must be MESSAGEs."""
        return [await self.expect("MESSAGE") for _ in range(number)]

    async def expect_nothing(self, seconds: float = 0.4) -> None:
        """Require that nothing has been sent or will be, but that the connection stays open."""
        await self.target.settle(seconds)
        if self.frames:
            raise Mismatch("no frame", f"{describe_all(list(self.frames))} came")
        if self.closed.done():
            raise Mismatch("an open connection", self._describe_end())

    async def expect_close(self, within: float = PATIENCE) -> None:
        """Require that the broker closes the connection, without another frame."""
        await self.until(self.closed.done, "the end of the connection", within)
        if self.frames:
            raise Mismatch("the end of the connection", f"{describe_all(list(self.frames))} came before it")

    async def expect_pong(self) -> None:
        """Require that PING is answered by PONG, which is the next frame: the connection is open."""
        self.command("PING")
        await self.expect("PONG")

    def _describe_end(self) -> str:
        return f"the connection has ended: {self.protocol.failure or 'closed'}"

    # -- usual sequences

    async def connect(self, **fields: Any) -> Any:
        """Send CONNECT, with the credentials of the run unless there are others; return CONNECTED's body."""
        credentials = {} if "auth_method_name" in fields else self.target.credentials
        self.command("CONNECT", **{**CLIENT, **credentials, **fields})
        return (await self.expect("CONNECTED")).body

    async def look_up(self, topic: str) -> None:
        """Send LOOKUP, which must succeed."""
        body = await self.request("LOOKUP", "LOOKUP_RESPONSE", topic=topic, authoritative=False)
        equal(body.LookupType.Name(body.response), "Connect", f"response to LOOKUP of {topic}")

    async def list_topics(self, **fields: Any) -> Any:
        """Send GET_TOPICS_OF_NAMESPACE (public/default, by default); return the body of its answer."""
        fields = {"namespace": "public/default", **fields}
        return await self.request("GET_TOPICS_OF_NAMESPACE", "GET_TOPICS_OF_NAMESPACE_RESPONSE", **fields)

    async def create_producer(self, topic: str, producer_id: int = 1, **fields: Any) -> Any:
        """Send LOOKUP and PRODUCER; return the body of PRODUCER_SUCCESS."""
        await self.look_up(topic)
        fields = {"topic": topic, "producer_id": producer_id, **fields}
        return await self.request("PRODUCER", "PRODUCER_SUCCESS", **fields)

    async def publish_all(self, *payloads: bytes, first: int = 0, **fields: Any) -> list[Any]:
        """Send each payload, one at a time; return the message ids of their receipts."""
        ids = []
        for number, payload in enumerate(payloads, first):
            self.publish(number, payload, **fields)
            receipt = await self.expect("SEND_RECEIPT", sequence_id=number)
            ids.append(receipt.body.message_id)
        return ids

    async def publish_batch(self, *payloads: bytes, first: int = 0, **fields: Any) -> Any:
        """Send payloads as one entry; return the message id of its receipt."""
        fields = {"num_messages": len(payloads), "meta_num_messages_in_batch": len(payloads), **fields}
        (message_id,) = await self.publish_all(make_batch(*payloads, first=first), first=first, **fields)
        return message_id

    async def subscribe(
        self, topic: str, kind: str = "Exclusive", *, consumer_id: int = 1, **fields: Any
    ) -> None:
        """Send LOOKUP and SUBSCRIBE (to "s", at Earliest, by default), which must succeed."""
        await self.look_up(topic)
        await self.request("SUBSCRIBE", "SUCCESS", **make_subscription(topic, kind, consumer_id, **fields))

    async def resubscribe(
        self, topic: str, kind: str = "Exclusive", permits: int = 10, **fields: Any
    ) -> None:
        """Close consumer 1, subscribe again, and send FLOW with these permits, if any."""
        await self.request("CLOSE_CONSUMER", "SUCCESS", consumer_id=1)
        await self.subscribe(topic, kind, **fields)
        if permits:
            self.flow(permits)

    async def confirm_ack(self, *ids: Any, **fields: Any) -> Any:
        """Send ACK with a request id; return the body of ACK_RESPONSE, which must have no error."""
        number = fields.pop("request_id", None) or next(self._ids)
        self.ack(*ids, request_id=number, **fields)
        body = (await self.expect("ACK_RESPONSE", request_id=number)).body
        if body.HasField("error"):
            raise Mismatch("ACK_RESPONSE without an error", show(body))
        return body
