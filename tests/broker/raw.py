"""A client over a plain socket, for brokers in other threads and processes."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pulsarctl_wire.conformance.basics.frames import make_frame, make_send
from pulsarctl_wire.wire.frame import Connection, Frame
from pulsarctl_wire.wire.framing.stream import FrameStream

if TYPE_CHECKING:
    from typing_extensions import Self  # Python 3.10 has none

PATIENCE = 30.0
"""Seconds after which a test that waits for something has failed."""


class RawClient:
    """A connection to the broker at a service URL, with CONNECT; a context manager."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None, **fields: Any) -> None:
        split = urlsplit(url)
        self.socket = socket.create_connection((split.hostname or "", split.port or 0), PATIENCE)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=split.hostname)
        self._stream = FrameStream(Connection(0), False)
        self._frames: list[Frame] = []
        try:
            self.send("CONNECT", client_version="raw", protocol_version=21, **fields)
            self.expect("CONNECTED")
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.socket.close()

    def send(self, name: str, **fields: Any) -> None:
        self.socket.sendall(make_frame(name, **fields))

    def received(self) -> Frame | None:
        """The next frame that is no PING; None at the end of the connection."""
        while True:
            while self._frames:
                found = self._frames.pop(0)
                if found.command != "PING":
                    return found
            try:
                data = self.socket.recv(65_536)
            except ConnectionResetError:
                data = b""
            if not data:
                return None
            self._frames += [each for each in self._stream.feed(data, 0) if isinstance(each, Frame)]

    def expect(self, name: str) -> Any:
        """The sub-message of the next frame, which has to be this command."""
        found = self.received()
        assert found is not None, f"the connection ended before {name}"
        assert found.command == name, found.base
        return found.body

    def ended(self) -> bool:
        """Wait for the next frame, or the end of the connection; True if it ended."""
        return self.received() is None

    def request(self, name: str, answer: str, **fields: Any) -> Any:
        self.send(name, request_id=1, **fields)
        return self.expect(answer)

    def lookup(self, topic: str) -> str:
        """The URL in the answer to LOOKUP: of the owner, or of a broker to ask."""
        found = self.request("LOOKUP", "LOOKUP_RESPONSE", topic=topic)
        url: str = found.brokerServiceUrl
        return url

    def produce(self, topic: str, *payloads: bytes) -> list[tuple[int, int]]:
        """Send messages as producer 1; the ids in their receipts."""
        self.lookup(topic)
        self.request("PRODUCER", "PRODUCER_SUCCESS", topic=topic, producer_id=1)
        found = []
        for number, payload in enumerate(payloads):
            self.socket.sendall(make_send(number, payload))
            receipt = self.expect("SEND_RECEIPT")
            found.append((receipt.message_id.ledgerId, receipt.message_id.entryId))
        return found

    def subscribe(self, topic: str, permits: int = 0, name: str = "s") -> None:
        """Consumer 1 of an Exclusive subscription, from the beginning of the topic."""
        self.lookup(topic)
        fields = {"subscription": name, "subType": 0, "consumer_id": 1, "initialPosition": 1}
        self.request("SUBSCRIBE", "SUCCESS", topic=topic, **fields)
        if permits:
            self.send("FLOW", consumer_id=1, messagePermits=permits)

    def message(self) -> bytes:
        """The payload of the next frame, which has to be MESSAGE."""
        found = self.received()
        assert found is not None
        assert found.command == "MESSAGE"
        return found.payload
