"""A consumer that inspects a subscription or topic; it gets no messages but those of `take_first`.

SUBSCRIBE creates a missing subscription, and no command asks whether one exists. But a broker refuses
(NotAllowedError) a non-durable subscription with the name of a durable one. So we try that first: if it
succeeds, there was no durable one, and the non-durable one disappears with its consumer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, Final

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.session.receive_options import Type
from pulsarctl_wire.cli.session.verb import Session, parse_topic
from pulsarctl_wire.errors import BrokerError, LinkClosed, RequestTimeout, SessionError, SettingsError
from pulsarctl_wire.net.session.acks import Position, make_id_fields
from pulsarctl_wire.net.session.client import Client
from pulsarctl_wire.net.session.consumer import make_reader_name
from pulsarctl_wire.net.session.link import Link
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.fields import to_signed
from pulsarctl_wire.wire.frame import Frame, build_frame
from pulsarctl_wire.wire.names import id_text, partition_index, partition_name
from pulsarctl_wire.wire.payload import MAX_MESSAGES
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe, MessageIdData

_LOWEST_PRIORITY: Final = 2**31 - 1  # priority level: other consumers stay active, and are served first
_MAX_NAMED: Final = 8  # partitions that an error names


async def visit(
    session: Session,
    topic: str,
    subscription: str,
    work: Callable[["Visitor"], Awaitable[None]],
    *,
    message_option: str = "",
) -> int:
    """Do `work` for the topic, or each of its partitions. An error of one does not stop the others.

    `message_option` is an option with its value, if that names a message: a message is in one partition, so
    TOPIC must not be a partitioned topic. Returns the exit code.
    """
    name = parse_topic(topic)
    if not name.startswith("persistent://"):
        console.fail(f"{topic}: only persistent:// topics keep messages and positions")
    async with session.make_client() as client:
        count = 0 if partition_index(name) >= 0 else await client.count_partitions(name, create=False)
        names = [partition_name(name, index) for index in range(count)]
        if count and message_option:
            examples = ", ".join([*names[:_MAX_NAMED], *(["…"] if count > _MAX_NAMED else [])])
            raise SettingsError(
                f"{message_option} is in one of {count} partitions; name it as TOPIC: {examples}"
            )

        async def visit_topic(topic: str) -> None:
            async with aclosing(Visitor(client, topic, subscription)) as visitor:
                await work(visitor)

        if not count:
            await visit_topic(name)
        codes = [await _try(visit_topic, partition) for partition in names]
        return next(filter(None, codes), 0)


async def _try(work: Callable[[str], Awaitable[None]], partition: str) -> int:
    try:
        await work(partition)
    except SessionError as error:
        text = str(error)
        console.warn(text if partition in text else f"{partition}: {text}")
        return console.find_code(error)
    return 0


async def make_seek_fields(
    client: Client, topic: str, position: Position | None, time_ns: int | None
) -> dict[str, Any]:
    """Return the fields of SEEK: to `position`, or if it is None, to the time `time_ns`.

    Raises SettingsError if `position` has a batch index, but the topic has no message there.
    """
    if position is None:
        return {"message_publish_time": max(0, time_ns or 0) // 1_000_000}
    ledger, entry, index = position
    bits = size = 0
    if index >= 0 and entry >= 0:
        size = await _batch_size(client, topic, ledger, entry)
        if index >= max(size, 1):
            content = f"a batch of {size}" if size else "a single message"
            raise SettingsError(f"{topic}: {ledger}:{entry} is {content}, without index {index}")
        bits = (1 << size) - (1 << index) if index else 0  # the bits of messages from `index` on
    return {"message_id": make_id_fields((ledger, entry, -1), bits, size)}


async def _batch_size(client: Client, topic: str, ledger: int, entry: int) -> int:
    """Read an entry; returns the number of messages of its batch, which SEEK needs; 0: a single message."""
    async with aclosing(Visitor(client, topic, make_reader_name())) as reader:
        await reader.read((ledger, entry, -1))
        _, last = await reader.fetch_places()
        if (ledger, entry) <= (last["ledger"], last["entry"]):
            frame = await reader.take_first()
            message_id = frame.body.message_id
            if frame.metadata is not None and (message_id.ledgerId, message_id.entryId) == (ledger, entry):
                is_batch = frame.metadata.HasField("num_messages_in_batch")
                return min(frame.metadata.num_messages_in_batch, MAX_MESSAGES) if is_batch else 0
    raise SettingsError(f"{topic}: there is no message {ledger}:{entry} (any more)")


class Visitor:
    """A consumer that joins a subscription (`join`), or reads a topic (`read`), to inspect it.

    Only `take_first` grants a permit. Use it with `aclosing`.
    """

    def __init__(self, client: Client, topic: str, subscription: str) -> None:
        self.client = client
        self.topic = topic
        self._subscription = subscription
        self._id = 0
        self._link: Link | None = None
        self._type: Type = "Shared"
        self._is_joined = False
        self._message: asyncio.Future[Frame] | None = None

    async def join(self, type_: Type | None, *, create: bool | None = None) -> bool:
        """Join the durable subscription with the type `type_`, by default any that its consumers allow.

        Returns whether it existed. If it did not, raises NoSubscription, unless `create` is true (None: the
        command has no such option). Raises SessionError.
        """
        # a subscription without consumers accepts any type
        types: list[Type] = [type_] if type_ else ["Shared", "Failover", "Key_Shared"]
        existed = await self._exists(types[0])
        if not (existed or create):
            hint = "" if create is None else "; --create creates it"
            raise NoSubscription(f"{self.topic} has no durable subscription {self._subscription}{hint}")
        await self._join(types)
        return existed

    async def _exists(self, type_: Type) -> bool:
        try:
            await self._subscribe(type_, durable=False)
        except BrokerError as error:
            if error.code != "NotAllowedError":
                raise
            return True
        await self.aclose()
        return False

    async def _join(self, types: Sequence[Type]) -> None:
        refusal = None
        for type_ in types:
            self._type = type_
            try:
                await self._subscribe(type_, durable=True)
                return
            except BrokerError as error:
                if error.code != "ConsumerBusy":
                    raise
                refusal = refusal or error
        assert refusal is not None
        hint = "close its exclusive consumer, and try again"
        if len(types) == 1 and types[0] != "Exclusive":
            hint = "--type must be that of its consumers"
        raise BrokerError(refusal.code, refusal.detail, refusal.request, hint)

    async def join_again(self) -> None:
        """Join again, after SEEK: the broker has closed all consumers. Raises SessionError."""
        await self._join([self._type])

    async def read(self, start: Position | None) -> None:
        """Become a reader (a non-durable subscription) from `start`, or from the end."""
        await self._subscribe("Exclusive", durable=False, start=start)

    async def _subscribe(self, type_: Type, *, durable: bool, start: Position | None = None) -> None:
        client = self.client

        async def attempt() -> None:
            link = await client.open_link(await client.lookup(self.topic))
            # A new id each time: the broker repeats the last error for an id that has just failed.
            self._release()
            self._id, self._link = next(client.ids), link
            link.claim("consumer_id", self._id, self)
            command = build_command(
                "SUBSCRIBE",
                topic=self.topic,
                subscription=self._subscription,
                subType=CommandSubscribe.SubType.Value(type_),
                consumer_id=self._id,
                durable=durable,
                start_message_id=None if start is None else make_id_fields(start),
                priority_level=_LOWEST_PRIORITY,
                force_topic_creation=False,
            )
            await link.request(command)

        await client.retry(attempt, f"consumer of {self.topic}")
        self._is_joined = True

    async def ask(self, name: str, **fields: Any) -> Any:
        """Send a request about this consumer; returns the body of the answer. Raises SessionError."""
        assert self._link is not None
        return (await self._link.request(build_command(name, consumer_id=self._id, **fields))).body

    async def fetch_places(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the mark-delete position of the subscription, and the last message of the topic."""
        body, partition = await self.ask("GET_LAST_MESSAGE_ID"), partition_index(self.topic)
        mark, last = body.consumer_mark_delete_position, body.last_message_id
        return _place(mark, partition), _place(last, partition)

    async def take_first(self) -> Frame:
        """Grant one permit; returns the MESSAGE that comes. Raises RequestTimeout, LinkClosed."""
        assert self._link is not None
        timeout = self.client.settings.timeout
        self._message = asyncio.get_running_loop().create_future()
        self._link.send(build_frame(build_command("FLOW", consumer_id=self._id, messagePermits=1)))
        try:
            return await asyncio.wait_for(self._message, timeout)
        except (TimeoutError, asyncio.TimeoutError):
            raise RequestTimeout(f"{self.topic}: no message came within {timeout:g} s") from None

    def on_frame(self, frame: Frame) -> None:
        """Take a frame for this consumer from the link."""
        if frame.command == "CLOSE_CONSUMER":
            self._is_joined = False
        elif frame.command == "MESSAGE" and self._message is not None and not self._message.done():
            self._message.set_result(frame)

    def on_loss(self, error: LinkClosed) -> None:
        """Note that the link has ended."""
        self._is_joined = False
        if self._message is not None and not self._message.done():
            self._message.set_exception(error)

    async def aclose(self) -> None:
        """Close the consumer."""
        if self._is_joined:
            self._is_joined = False
            try:
                await self.ask("CLOSE_CONSUMER")
            except (LinkClosed, RequestTimeout) as error:
                self.client.warn(str(error))
        self._release()

    def _release(self) -> None:
        if self._link is not None:
            self._link.release("consumer_id", self._id)


class NoSubscription(BrokerError):
    """The error a broker would send for a missing durable subscription, if SUBSCRIBE did not create it."""

    def __init__(self, detail: str) -> None:
        super().__init__("SubscriptionNotFound", detail, "SUBSCRIBE")
        self.args = (f"{self.code}: {detail}",)  # the broker did not refuse anything


def _place(data: MessageIdData, partition: int) -> dict[str, Any]:
    """Convert a position to plain values; `id` is None if there is no message."""
    ledger, entry = to_signed(data.ledgerId), to_signed(data.entryId)
    index = data.batch_index if data.batch_index >= 0 else None
    text = None if ledger < 0 else id_text([(ledger, entry)], partition, index)
    return {"id": text, "ledger": ledger, "entry": entry, "batch_index": index}
