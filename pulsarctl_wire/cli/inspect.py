"""`pwire seek`, `unsubscribe`, `last-id`, `consumer-stats`: what a subscription can be asked and told.

Each joins the subscription with a consumer that grants no permits, so that it is given no message. Joining
creates what is not there, and no command asks whether it is. But the name of a durable subscription is
refused (NotAllowedError) to one that is not durable. So that is tried first: where it succeeds there was
none, and what was made for the question goes with its consumer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.consume import Type
from pulsarctl_wire.cli.lookup import TOPIC, Output, say
from pulsarctl_wire.cli.options import OUTPUT
from pulsarctl_wire.cli.session import Session, topic_name
from pulsarctl_wire.errors import BrokerError, LinkClosed, SessionError, SettingsError, Unanswered

if TYPE_CHECKING:
    import asyncio

    from pulsarctl_wire.net.acks import Position
    from pulsarctl_wire.net.client import Client
    from pulsarctl_wire.net.link import Link
    from pulsarctl_wire.wire.frame import Frame
    from pulsarctl_wire.wire.PulsarApi_pb2 import MessageIdData

SUBSCRIPTION: Final[Any] = typer.Option(
    "-s", "--subscription-name", metavar="NAME", help="The subscription.", show_default=False
)
TYPE: Final[Any] = typer.Option(
    "-t",
    "--type",
    case_sensitive=False,
    help="Type to join the subscription with: while consumers are connected, theirs.",
    show_default="Shared, else Failover, else Key_Shared",
)

_LAST: Final = 2**31 - 1  # priority level: others stay active, and are served first
_NAMED: Final = 8  # partitions that an error names


async def seek(
    session: Session,
    topic: Annotated[str, TOPIC],
    subscription: Annotated[str, SUBSCRIPTION],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="earliest, latest, LEDGER:ENTRY, 'LEDGER:ENTRY[INDEX]' (of a batch), or a time: ISO 8601, "
            "seconds since 1970, -10m. Brokers that do not acknowledge inside batches take no heed of INDEX.",
            show_default=False,
        ),
    ],
    type_: Annotated[Type | None, TYPE] = None,
    create: Annotated[
        bool, typer.Option("--create", help="Create the subscription if it is not there.")
    ] = False,
    output: Annotated[Output, OUTPUT] = Output.text,
) -> int:
    """Move a subscription to a message, or to the first one published at a time or later.

    Prints the mark-delete position, up to which all is acknowledged. Its consumers are closed, and come back.
    """
    from pulsarctl_wire.cli.consuming import parse_start
    from pulsarctl_wire.net.consumer import EARLIEST, LATEST

    position, time_ns = parse_start(to)

    async def one(client: Client, name: str) -> None:
        target = await _target(client, name, position, time_ns)
        async with Visitor(client, name, subscription) as visitor:
            existed = await visitor.join(type_, create=create)
            before, last = await visitor.places()
            await visitor.ask("SEEK", **target)
            try:
                await visitor.join_again()
                after, last = await visitor.places()
            except SessionError as error:
                console.complain(f"{name}: {subscription} was moved, where to is not known: {error}")
                after = None
        record = {"topic": name, "subscription": subscription, "to": to, "created": not existed}
        record |= {"before": before if existed else None, "after": after, "last": last}
        come_from = f" from {_text(before)}" if existed else ""
        text = f"{name}: {subscription}{come_from} to {_text(after)}, last message {_text(last)}"
        say(record, console.clean(text), output)

    inside = position not in (None, EARLIEST, LATEST)
    return await _each(session, topic, one, place=f"--to {to}" if inside else "")


async def unsubscribe(
    session: Session,
    topic: Annotated[str, TOPIC],
    subscription: Annotated[str, SUBSCRIPTION],
    force: Annotated[
        bool,
        typer.Option("--force", help="Also with consumers connected. Those that come back create it anew."),
    ] = False,
    type_: Annotated[Type | None, TYPE] = None,
    output: Annotated[Output, OUTPUT] = Output.text,
) -> int:
    """Delete a subscription, and with it what it has not acknowledged."""

    async def one(client: Client, name: str) -> None:
        async with Visitor(client, name, subscription) as visitor:
            await visitor.join(type_)
            try:
                await visitor.ask("UNSUBSCRIBE", force=force or None)
            except BrokerError as error:
                if force or error.code != "MetadataError":
                    raise
                way_out = "other consumers are connected; --force closes them"
                raise BrokerError(error.code, error.detail, error.request, way_out) from None
        record = {"topic": name, "subscription": subscription, "unsubscribed": True}
        say(record, console.clean(f"{name}: {subscription} is deleted"), output)

    return await _each(session, topic, one)


async def last_id(
    session: Session,
    topic: Annotated[str, TOPIC],
    subscription: Annotated[
        str | None,
        typer.Option(
            "-s", "--subscription-name", metavar="NAME", help="Also say up to where it has acknowledged."
        ),
    ] = None,
    type_: Annotated[Type | None, TYPE] = None,
    output: Annotated[Output, OUTPUT] = Output.text,
) -> int:
    """Print the id of a topic's last message, of each partition's on a line of its own."""
    from pulsarctl_wire.net.consumer import reader_name

    async def one(client: Client, name: str) -> None:
        async with Visitor(client, name, subscription or reader_name()) as visitor:
            if subscription is None:
                await visitor.read(None)
            else:
                await visitor.join(type_)
            done, last = await visitor.places()
        record: dict[str, Any] = {"topic": name, **last}
        text = f"{name} {last['id'] or 'no message'}"
        if subscription is not None:
            record |= {"subscription": subscription, "mark_delete": done}
            text += f", {subscription} acknowledged up to {_text(done)}"
        say(record, console.clean(text), output)

    return await _each(session, topic, one)


async def consumer_stats(
    session: Session,
    topic: Annotated[str, TOPIC],
    subscription: Annotated[str, SUBSCRIPTION],
    type_: Annotated[Type | None, TYPE] = None,
    output: Annotated[Output, OUTPUT] = Output.text,
) -> int:
    """Join a subscription, and print what the broker counts of that consumer.

    Type and backlog are the subscription's.
    """
    from pulsarctl_wire.wire.fields import Walker, signed

    async def one(client: Client, name: str) -> None:
        async with Visitor(client, name, subscription) as visitor:
            await visitor.join(type_)
            stats = Walker()(await visitor.ask("CONSUMER_STATS"))
        del stats["request_id"]
        # permits can be overdrawn, and the field knows no sign
        stats["availablePermits"] = signed(stats.get("availablePermits", 0))
        lines = [f"{name}, {subscription}", *(f"  {key}: {_plain(value)}" for key, value in stats.items())]
        text = "\n".join(map(console.clean, lines))
        say({"topic": name, "subscription": subscription, **stats}, text, output)

    return await _each(session, topic, one)


async def _each(
    session: Session, topic: str, work: Callable[[Client, str], Awaitable[None]], *, place: str = ""
) -> int:
    """Do `work` for the topic, or each of its partitions; what fails of one is said, and the others go on.

    `place` is what makes sense for one partition only. Gives the exit code.
    """
    from pulsarctl_wire.wire.names import partition_index, partition_name

    name = topic_name(topic)
    if not name.startswith("persistent://"):
        console.fail(f"{topic}: only persistent:// topics keep messages and positions", console.EXIT_USAGE)
    async with session.client() as client:
        count = 0 if partition_index(name) >= 0 else await client.partitions(name, create=False)
        names = [partition_name(name, index) for index in range(count)]
        if count and place:
            some = ", ".join([*names[:_NAMED], *(["…"] if count > _NAMED else [])])
            raise SettingsError(f"{place} is in one of {count} partitions; name that as TOPIC: {some}")
        if not count:
            await work(client, name)
        codes = [await _tried(work, client, each) for each in names]
        return next(filter(None, codes), 0)


async def _tried(work: Callable[[Client, str], Awaitable[None]], client: Client, partition: str) -> int:
    try:
        await work(client, partition)
    except SessionError as error:
        text = str(error)
        console.complain(text if partition in text else f"{partition}: {text}")
        return console.code_of(error)
    return 0


async def _target(
    client: Client, topic: str, position: Position | None, time_ns: int | None
) -> dict[str, Any]:
    """The fields of SEEK."""
    from pulsarctl_wire.net.acks import id_data

    if position is None:
        return {"message_publish_time": max(0, time_ns or 0) // 1_000_000}
    ledger, entry, index = position
    left = size = 0
    if index >= 0 and entry >= 0:
        size = await _batch_size(client, topic, ledger, entry)
        if index >= max(size, 1):
            holds = f"a batch of {size}" if size else "a single message"
            raise SettingsError(f"{topic}: {ledger}:{entry} is {holds}, without index {index}")
        left = (1 << size) - (1 << index) if index else 0  # what is left of the batch has its bits set
    return {"message_id": id_data((ledger, entry, -1), left, size)}


async def _batch_size(client: Client, topic: str, ledger: int, entry: int) -> int:
    """How many messages a stored entry holds as a batch, 0 if it is none: SEEK has to say, so it is read."""
    from pulsarctl_wire.net.consumer import reader_name
    from pulsarctl_wire.wire.payload import MAX_MESSAGES

    async with Visitor(client, topic, reader_name()) as reader:
        await reader.read((ledger, entry, -1))
        _, last = await reader.places()
        if (ledger, entry) <= (last["ledger"], last["entry"]):
            frame = await reader.first()
            found = frame.body.message_id
            if frame.metadata is not None and (found.ledgerId, found.entryId) == (ledger, entry):
                is_batch = frame.metadata.HasField("num_messages_in_batch")
                return min(frame.metadata.num_messages_in_batch, MAX_MESSAGES) if is_batch else 0
    raise SettingsError(f"{topic}: there is no message {ledger}:{entry} (any more)")


class Visitor:
    """A consumer without permits, that joins a subscription to ask about it. A context manager: it leaves."""

    def __init__(self, client: Client, topic: str, subscription: str) -> None:
        self._client = client
        self._topic = topic
        self._subscription = subscription
        self._id = 0
        self._link: Link | None = None
        self._type = Type.shared
        self._joined = False
        self._message: asyncio.Future[Frame] | None = None

    async def __aenter__(self) -> Visitor:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave()

    async def join(self, wanted: Type | None, *, create: bool | None = None) -> bool:
        """Join the durable subscription by the type that is wanted, or any that its consumers allow.

        Gives whether it existed. One that did not raises NoSubscription, unless `create` is true (None where
        the user has no such choice). Raises SessionError.
        """
        # without consumers a subscription takes any type
        types = [wanted] if wanted else [Type.shared, Type.failover, Type.key_shared]
        existed = await self._exists(types[0])
        if not (existed or create):
            way_out = "" if create is None else "; --create makes it"
            raise NoSubscription(f"{self._topic} has no durable subscription {self._subscription}{way_out}")
        await self._join(types)
        return existed

    async def _exists(self, type_: Type) -> bool:
        try:
            await self._subscribe(type_, durable=False)
        except BrokerError as error:
            if error.code != "NotAllowedError":
                raise
            return True
        await self._leave()
        return False

    async def _join(self, types: Sequence[Type]) -> None:
        refused = None
        for each in types:
            self._type = each
            try:
                await self._subscribe(each, durable=True)
                return
            except BrokerError as error:
                if error.code != "ConsumerBusy":
                    raise
                refused = refused or error
        assert refused is not None
        way_out = "end the consumer that has it for itself, and try again"
        if len(types) == 1 and types[0] is not Type.exclusive:
            way_out = "--type is to be that of its consumers"
        raise BrokerError(refused.code, refused.detail, refused.request, way_out)

    async def join_again(self) -> None:
        """Join once more, after SEEK: the broker has closed all consumers. Raises SessionError."""
        await self._join([self._type])

    async def read(self, start: Position | None) -> None:
        """Be a reader, of a subscription of its own that is not durable, from `start` or the end."""
        await self._subscribe(Type.exclusive, durable=False, start=start)

    async def _subscribe(self, type_: Type, *, durable: bool, start: Position | None = None) -> None:
        from pulsarctl_wire.net.acks import id_data
        from pulsarctl_wire.wire.commands import build_command
        from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe

        client = self._client

        async def attempt() -> None:
            link = await client.link(await client.lookup(self._topic))
            # A new id each time: the broker gives the last error again to one that has failed just now.
            self._release()
            self._id, self._link = next(client.ids), link
            link.claim("consumer_id", self._id, self)
            command = build_command(
                "SUBSCRIBE",
                topic=self._topic,
                subscription=self._subscription,
                subType=CommandSubscribe.SubType.Value(type_.value),
                consumer_id=self._id,
                durable=durable,
                start_message_id=None if start is None else id_data(start),
                priority_level=_LAST,
                force_topic_creation=False,
            )
            await link.request(command)

        await client.patiently(attempt, f"consumer of {self._topic}")
        self._joined = True

    async def ask(self, name: str, **fields: Any) -> Any:
        """Send a request about this consumer; give its answer's body. Raises SessionError."""
        from pulsarctl_wire.wire.commands import build_command

        assert self._link is not None
        return (await self._link.request(build_command(name, consumer_id=self._id, **fields))).body

    async def places(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The mark-delete position of the subscription, and the last message of the topic."""
        from pulsarctl_wire.wire.names import partition_index

        body, partition = await self.ask("GET_LAST_MESSAGE_ID"), partition_index(self._topic)
        done, last = body.consumer_mark_delete_position, body.last_message_id
        return _place(done, partition), _place(last, partition)

    async def first(self) -> Frame:
        """Grant one permit, and give the MESSAGE that comes. Raises Unanswered, LinkClosed."""
        import asyncio

        from pulsarctl_wire.wire.commands import build_command
        from pulsarctl_wire.wire.frame import build_frame

        assert self._link is not None
        timeout = self._client.settings.timeout
        self._message = asyncio.get_running_loop().create_future()
        self._link.send(build_frame(build_command("FLOW", consumer_id=self._id, messagePermits=1)))
        try:
            return await asyncio.wait_for(self._message, timeout)
        except (TimeoutError, asyncio.TimeoutError):
            raise Unanswered(f"{self._topic}: no message came within {timeout:g} s") from None

    def received(self, frame: Frame) -> None:
        """A frame about this consumer."""
        if frame.command == "CLOSE_CONSUMER":
            self._joined = False
        elif frame.command == "MESSAGE" and self._message is not None and not self._message.done():
            self._message.set_result(frame)

    def lost(self, error: LinkClosed) -> None:
        """The link has ended."""
        self._joined = False
        if self._message is not None and not self._message.done():
            self._message.set_exception(error)

    async def _leave(self) -> None:
        if self._joined:
            self._joined = False
            try:
                await self.ask("CLOSE_CONSUMER")
            except (LinkClosed, Unanswered) as error:
                self._client.warn(str(error))
        self._release()

    def _release(self) -> None:
        if self._link is not None:
            self._link.release("consumer_id", self._id)


class NoSubscription(BrokerError):
    """What the broker would say if SUBSCRIBE did not create the durable subscription that is missing."""

    def __init__(self, detail: str) -> None:
        super().__init__("SubscriptionNotFound", detail, "SUBSCRIBE")
        self.args = (f"{self.code}: {detail}",)  # for nothing was refused


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) or "none"


def _place(data: MessageIdData, partition: int) -> dict[str, Any]:
    """A position as plain values; `id` is None where there is no message."""
    from pulsarctl_wire.wire.fields import signed
    from pulsarctl_wire.wire.names import id_text

    ledger, entry = signed(data.ledgerId), signed(data.entryId)
    index = data.batch_index if data.batch_index >= 0 else None
    text = None if ledger < 0 else id_text([(ledger, entry)], partition, index)
    return {"id": text, "ledger": ledger, "entry": entry, "batch_index": index}


def _text(place: dict[str, Any] | None) -> str:
    return "unknown" if place is None else place["id"] or "none"
