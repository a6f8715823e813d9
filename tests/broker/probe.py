"""Cases that a broker must pass, and the raw connections they are made of.

A case is an async function that is registered under the id of its row in reactions.tsv:

    @case("ack/response")
    async def response(broker: Target) -> None:
        topic = await broker.filled(1)
        consumer = await broker.subscribed(topic)
        ...

It runs against the embedded broker and against a real one (`Target` has both). A case never waits for time by
itself: `settle` gives the broker time to send what it is going to send, `advance` lets seconds pass. With the
embedded broker neither takes any time.
"""

from __future__ import annotations

import asyncio
import csv
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

from pulsarctl_wire.net.frame_socket import FrameSocket
from pulsarctl_wire.net.protocol import FrameProtocol
from pulsarctl_wire.wire.commands import BODIES, NUMBERS, build_command
from pulsarctl_wire.wire.frame import Connection, Frame, build_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata, ServerError, SingleMessageMetadata
from pulsarctl_wire.wire.session.state import NO_REQUEST

if TYPE_CHECKING:
    from typing_extensions import Self  # Python 3.10 has none

PATIENCE = 10.0
"""Seconds within which a frame or the end of a connection must come that a case waits for."""

SOON = 2.0
"""Seconds for what a row says comes within one."""

EARLIEST = {"ledgerId": 2**64 - 1, "entryId": 2**64 - 1}
LATEST = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}


class Row(NamedTuple):
    """A row of reactions.tsv or further.tsv."""

    id: str
    setting: str
    stimulus: str
    reaction: str
    level: str
    source: str


def _rows() -> dict[str, Row]:
    rows = {}
    for name in ("reactions.tsv", "further.tsv"):
        text = Path(__file__).with_name(name).read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        for row in csv.reader(lines[1:], delimiter="\t", quoting=csv.QUOTE_NONE):
            rows[row[0]] = Row(*row)
    return rows


ROWS = _rows()
CASES: dict[str, Callable[[Target], Awaitable[None]]] = {}


def case(row: str, *arguments: Any) -> Callable[[Callable[..., Awaitable[None]]], Any]:
    """Register an async function as the case of the row with this id; it gets the target and `arguments`."""

    def register(function: Callable[..., Awaitable[None]]) -> Any:
        assert row in ROWS, f"there is no row {row}"
        assert row not in CASES, f"{row} has two cases"

        async def run(broker: Target) -> None:
            await function(broker, *arguments)

        CASES[row] = run
        return function

    return register


SETTINGS: dict[str, dict[str, object]] = {
    "default": {},
    "keepalive": {"keepAliveIntervalSeconds": 2},
    "txn": {"transactionCoordinatorEnabled": True},
    "batchack": {"acknowledgmentAtBatchIndexLevelEnabled": True},
    "bem": {
        "brokerEntryMetadataInterceptors": ",".join(
            f"org.apache.pulsar.common.intercept.Append{name}MetadataInterceptor"
            for name in ("BrokerTimestamp", "Index")
        ),
        "exposingBrokerEntryMetadataToClientEnabled": True,
    },
    "autosplit": {"subscriptionKeySharedUseConsistentHashing": False},
    "dedup": {"brokerDeduplicationEnabled": True},
    "limits": {
        "maxProducersPerTopic": 2,
        "maxConsumersPerSubscription": 2,
        "maxUnackedMessagesPerConsumer": 10,
        "maxMessageSize": 1024 * 1024,
    },
    "subscribing": {
        "strictlyVerifySubscriptionName": True,
        "subscriptionTypesEnabled": "Exclusive,Shared,Failover",
        "maxSameAddressConsumersPerTopic": 2,
        "subscribeThrottlingRatePerConsumer": 2,
        "subscriptionRedeliveryTrackerEnabled": False,
        "activeConsumerFailoverConsistentHashing": True,
        "preciseDispatcherFlowControl": True,
    },
    "auth": {"proxyRoles": "proxy", "superUserRoles": "admin", "authenticationRefreshCheckSeconds": 5},
    "nocreate": {"allowAutoTopicCreation": False, "allowAutoSubscriptionCreation": False},
    "haproxy": {"haProxyProtocolEnabled": True},
    "lookups": {"maxConcurrentLookupRequest": 1},
}
"""Setting of a row -> lines of standalone.conf. "auth" also has tokens."""


def setting_of(row: Row) -> str:
    """The key in SETTINGS of the broker that a row needs."""
    if row.id.startswith("keepalive/"):
        return "keepalive"
    name = row.setting.removesuffix("+admin")
    return "default" if name == "admin" else name


class Probe(FrameSocket):
    """A raw connection to a broker. Answers PING by PONG unless `answers_pings` is False.

    `frames` are those received and not yet expected, in order, without PINGs (those are counted in `pings`).
    """

    def __init__(self, target: Target) -> None:
        super().__init__(FrameProtocol(Connection(0), to_broker=False))
        self.target = target
        self.frames: deque[Frame] = deque()
        self.pings = 0
        self.sent = self.received = 0  # bytes
        self.answers_pings = True
        self._ids = count(1)
        self._changed = asyncio.Event()

    def write(self, data: bytes) -> None:
        self.sent += len(data)
        super().write(data)

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        super().data_received(data)

    def handle(self, event: Any) -> None:
        assert isinstance(event, Frame), event
        if event.command == "PING":
            self.pings += 1
            if self.answers_pings:
                self.send(frame("PONG"))
        else:
            self.frames.append(event)
        self._changed.set()

    def over(self) -> None:
        self._changed.set()

    # -- sending

    def command(self, name: str, **fields: Any) -> None:
        """Send a command."""
        self.send(frame(name, **fields))

    def start(self, name: str, **fields: Any) -> int:
        """Send a request with a new request id, which is returned."""
        number = fields.pop("request_id", None) or next(self._ids)
        self.command(name, request_id=number, **fields)
        return int(number)

    async def request(self, name: str, answer: str, **fields: Any) -> Any:
        """Send a request; returns the body of its answer, which must be the next frame and be an `answer`."""
        number = self.start(name, **fields)
        return (await self.expect(answer, request_id=number)).body

    async def refused(self, code: str, name: str, **fields: Any) -> None:
        """Send a request that must be answered by ERROR with this code."""
        body = await self.request(name, "ERROR", **fields)
        assert ServerError.Name(body.error) == code, body

    def publish(self, sequence_id: int = 0, payload: bytes = b"hello", **fields: Any) -> None:
        """Send SEND of one plain message for producer 1. Fields named meta_* are of the metadata."""
        self.send(sent(sequence_id, payload, **fields))

    # -- receiving

    async def next(self, within: float = PATIENCE) -> Frame:
        """The next frame, PINGs left out."""
        await self.until(lambda: self.frames or self.closed.done(), within)
        assert self.frames, f"the connection was closed: {self.protocol.failure}"
        return self.frames.popleft()

    async def expect(self, name: str, /, within: float = PATIENCE, **fields: Any) -> Frame:
        """The next frame, which must be of this command and have these fields, explicitly."""
        found = await self.next(within)
        assert found.command == name, f"{name} was expected, this came: {found.base}"
        for key, value in fields.items():
            assert found.body.HasField(key), f"{key} is absent: {found.body}"
            assert getattr(found.body, key) == value, found.body
        return found

    async def until(self, holds: Callable[[], object], within: float = PATIENCE) -> None:
        """Wait until something is true that a frame or the end of the connection brings about."""

        async def wait() -> None:
            while not holds():
                self._changed.clear()
                await self._changed.wait()

        try:
            await asyncio.wait_for(wait(), within)
        except (asyncio.TimeoutError, TimeoutError):
            raise AssertionError(f"it did not come within {within:g} s") from None

    async def messages(self, number: int) -> list[Frame]:
        """The next `number` frames, which must be MESSAGEs."""
        return [await self.expect("MESSAGE") for _ in range(number)]

    async def nothing(self, seconds: float = 0.4) -> None:
        """Nothing has been sent or will be, but the connection stays open."""
        await self.target.settle(seconds)
        assert not self.frames, [found.base for found in self.frames]
        assert not self.closed.done(), "the connection was closed"

    async def closes(self, within: float = PATIENCE) -> None:
        """The broker closes the connection, without another frame."""
        await self.until(self.closed.done, within)
        assert not self.frames, [found.base for found in self.frames]

    async def stays_open(self) -> None:
        """PING is answered by PONG, which is the next frame."""
        self.command("PING")
        await self.expect("PONG")

    # -- usual sequences

    async def connect(self, **fields: Any) -> Any:
        """CONNECT -> CONNECTED, whose body is returned."""
        self.command("CONNECT", **{"client_version": "probe", "protocol_version": 21, **fields})
        return (await self.expect("CONNECTED")).body

    async def lookup(self, topic: str) -> None:
        """LOOKUP, which must succeed."""
        body = await self.request("LOOKUP", "LOOKUP_RESPONSE", topic=topic, authoritative=False)
        assert body.response == body.Connect, body

    async def listing(self, **fields: Any) -> Any:
        """GET_TOPICS_OF_NAMESPACE (public/default, unless said otherwise); returns the body of its answer."""
        fields = {"namespace": "public/default", **fields}
        return await self.request("GET_TOPICS_OF_NAMESPACE", "GET_TOPICS_OF_NAMESPACE_RESPONSE", **fields)

    async def producer(self, topic: str, producer_id: int = 1, **fields: Any) -> Any:
        """LOOKUP and PRODUCER; returns the body of PRODUCER_SUCCESS."""
        await self.lookup(topic)
        fields = {"topic": topic, "producer_id": producer_id, **fields}
        return await self.request("PRODUCER", "PRODUCER_SUCCESS", **fields)

    async def publish_all(self, *payloads: bytes, first: int = 0, **fields: Any) -> list[Any]:
        """SEND each payload, one at a time; returns the message ids of their receipts."""
        ids = []
        for number, payload in enumerate(payloads, first):
            self.publish(number, payload, **fields)
            receipt = await self.expect("SEND_RECEIPT", sequence_id=number)
            ids.append(receipt.body.message_id)
        return ids

    async def publish_batch(self, *payloads: bytes, first: int = 0, **fields: Any) -> Any:
        """SEND payloads as one entry; returns the message id of its receipt."""
        fields = {"num_messages": len(payloads), "meta_num_messages_in_batch": len(payloads), **fields}
        (message_id,) = await self.publish_all(batch(*payloads, first=first), first=first, **fields)
        return message_id

    async def subscribe(
        self, topic: str, kind: str = "Exclusive", *, consumer_id: int = 1, **fields: Any
    ) -> None:
        """LOOKUP and SUBSCRIBE (at Earliest, subscription "s", unless said otherwise) -> SUCCESS."""
        await self.lookup(topic)
        await self.request("SUBSCRIBE", "SUCCESS", **subscription(topic, kind, consumer_id, **fields))

    async def again(self, topic: str, kind: str = "Exclusive", permits: int = 10, **fields: Any) -> None:
        """CLOSE_CONSUMER -> SUCCESS, then subscribe with these permits."""
        await self.request("CLOSE_CONSUMER", "SUCCESS", consumer_id=1)
        await self.subscribe(topic, kind, **fields)
        if permits:
            self.flow(permits)

    def flow(self, permits: int, consumer_id: int = 1) -> None:
        """Send FLOW."""
        self.command("FLOW", consumer_id=consumer_id, messagePermits=permits)

    def ack(self, *ids: Any, kind: str = "Individual", consumer_id: int = 1, **fields: Any) -> None:
        """Send ACK for message ids (MessageIdData, or dicts of its fields)."""
        number = build_command("ACK").ack.AckType.Value(kind)
        ids_ = [each if isinstance(each, dict) else id_of(each) for each in ids]
        self.command("ACK", consumer_id=consumer_id, ack_type=number, message_id=ids_, **fields)

    async def acked(self, *ids: Any, **fields: Any) -> Any:
        """ACK with a request id -> ACK_RESPONSE without an error, whose body is returned."""
        number = fields.pop("request_id", None) or next(self._ids)
        self.ack(*ids, request_id=number, **fields)
        body = (await self.expect("ACK_RESPONSE", request_id=number)).body
        assert not body.HasField("error"), body
        return body


class Target:
    """A broker that runs, as cases see it.

    `address` is its (host, port), `http_url` that of the admin API. With tokens: `tokens` by role.
    """

    embedded: ClassVar[bool]
    setting: str
    address: tuple[str, int]
    http_url: str
    tokens: dict[str, str]
    _names = count(1)

    def __init__(self) -> None:
        self._open = AsyncExitStack()

    async def settle(self, seconds: float = 0.4) -> None:
        """Give the broker time to send everything that it is going to send now."""
        raise NotImplementedError

    async def advance(self, seconds: float) -> None:
        """Let so much time pass."""
        raise NotImplementedError

    def now_ms(self) -> int:
        """The broker's clock: milliseconds since 1970."""
        raise NotImplementedError

    async def rest(self, method: str, path: str, body: object = None) -> Any:
        """Call the admin API, as admin. Raises RestError (tests/interop/brokers.py)."""
        raise NotImplementedError

    def token(self, role: str, expires_in: float | None = None, **claims: object) -> str:
        """A token for `role`, which expires in so many seconds, with other claims too."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    # -- what cases begin with

    def name(self, prefix: str = "t") -> str:
        """A name that no other case uses."""
        return f"{prefix}-{next(self._names)}-{self.unique}"

    unique = ""

    def topic(self, domain: str = "persistent") -> str:
        """The full name of a topic that does not exist yet."""
        return f"{domain}://public/default/{self.name()}"

    async def connection(self) -> Probe:
        """A TCP connection without CONNECT; it is closed when the case ends."""
        host, port = self.address
        loop = asyncio.get_running_loop()
        _, probe = await loop.create_connection(lambda: Probe(self), host, port)
        self._open.push_async_callback(probe.close)
        return probe

    async def connected(self, **fields: Any) -> Probe:
        """A connection, with CONNECT -> CONNECTED; `fields` are of CONNECT."""
        probe = await self.connection()
        await probe.connect(**fields)
        return probe

    async def subscribed(self, topic: str, kind: str = "Exclusive", permits: int = 0, **fields: Any) -> Probe:
        """A connection of its own with consumer 1 of subscription "s" (at Earliest)."""
        probe = await self.connected()
        await probe.subscribe(topic, kind, **fields)
        if permits:
            probe.flow(permits)
        return probe

    async def producing(self, topic: str, **fields: Any) -> Probe:
        """A connection of its own with producer 1."""
        probe = await self.connected()
        await probe.producer(topic, **fields)
        return probe

    async def filled(self, number: int, topic: str = "") -> str:
        """A topic with so many messages, with payloads m0, m1, …"""
        topic = topic or self.topic()
        probe = await self.producing(topic)
        await probe.publish_all(*(f"m{each}".encode() for each in range(number)))
        await probe.request("CLOSE_PRODUCER", "SUCCESS", producer_id=1)
        await probe.close()
        return topic

    async def partitioned(self, partitions: int) -> str:
        """A new partitioned topic, by the admin API."""
        topic = self.topic()
        await self.rest("PUT", f"{admin_path(topic)}/partitions", partitions)
        return topic

    async def namespace(self, policies: object = None) -> str:
        """A new namespace, by the admin API: "public/n-1"."""
        name = f"public/{self.name('n')}"
        await self.rest("PUT", f"/admin/v2/namespaces/{name}", policies or {})
        return name


def admin_path(topic: str) -> str:
    """The path of a topic in the admin API."""
    domain, _, rest = topic.partition("://")
    return f"/admin/v2/{domain}/{rest}"


def id_of(message_id: Any) -> dict[str, int]:
    """Ledger and entry of a MessageIdData."""
    return {"ledgerId": message_id.ledgerId, "entryId": message_id.entryId}


def frame(name: str, **fields: Any) -> bytes:
    """The bytes of a frame without payload."""
    return build_frame(build_command(name, **fields))


def raw(name: str, **fields: Any) -> bytes:
    """The bytes of a frame whose required fields may be missing."""
    body = BODIES[NUMBERS[name]]
    command = BaseCommand(type=NUMBERS[name], **{body: fields})  # type: ignore[arg-type]
    return framed(command.SerializePartialToString())


def framed(command: bytes, tail: bytes = b"", *, total: int | None = None, size: int | None = None) -> bytes:
    """A frame around any bytes; `total` and `size` replace the true TOTAL_SIZE and COMMAND_SIZE."""
    total = 4 + len(command) + len(tail) if total is None else total
    size = len(command) if size is None else size
    return total.to_bytes(4, "big") + size.to_bytes(4, "big") + command + tail


def metadata(sequence_id: int = 0, **fields: Any) -> MessageMetadata:
    """MessageMetadata with the required fields."""
    return MessageMetadata(
        **{"producer_name": "p", "sequence_id": sequence_id, "publish_time": 1_700_000_000_000, **fields}
    )


def batch(*payloads: bytes, first: int = 0, **fields: Any) -> bytes:
    """The payload of a batch; `fields` are of the metadata of each of its messages."""
    parts = []
    for number, payload in enumerate(payloads, first):
        single = SingleMessageMetadata(payload_size=len(payload), sequence_id=number, **fields)
        size = single.ByteSize().to_bytes(4, "big")
        parts.append(size + single.SerializeToString() + payload)
    return b"".join(parts)


def sent(sequence_id: int = 0, payload: bytes = b"hello", **fields: Any) -> bytes:
    """The bytes of SEND; fields named meta_* are of the metadata, the others of the command."""
    meta = {key[5:]: fields.pop(key) for key in list(fields) if key.startswith("meta_")}
    checksum = fields.pop("checksum", True)
    command = build_command("SEND", **{"producer_id": 1, "sequence_id": sequence_id, **fields})
    return build_frame(command, metadata(sequence_id, **meta), payload, checksum=checksum)


def sent_raw(tail: bytes, sequence_id: int = 0, **fields: Any) -> bytes:
    """The bytes of SEND with any bytes behind the command."""
    command = build_command("SEND", **{"producer_id": 1, "sequence_id": sequence_id, **fields})
    return framed(command.SerializeToString(), tail)


def subscription(topic: str, kind: str = "Exclusive", consumer_id: int = 1, **fields: Any) -> dict[str, Any]:
    """The fields of SUBSCRIBE, but for its request id."""
    number = build_command("SUBSCRIBE").subscribe.SubType.Value(kind)
    given = {"topic": topic, "subscription": "s", "subType": number, "consumer_id": consumer_id}
    return {**given, "initialPosition": 1, **fields}


def payloads(frames: list[Frame]) -> list[bytes]:
    """The payloads of MESSAGEs."""
    return [each.payload for each in frames]


def host_and_port(url: str) -> tuple[str, int]:
    """The address in a service URL."""
    split = urlsplit(url)
    return split.hostname or "", split.port or 0


__all__ = ["NO_REQUEST"]
