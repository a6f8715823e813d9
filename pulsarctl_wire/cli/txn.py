"""`pwire txn`: one transaction seen whole, step by step."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.consume import Type
from pulsarctl_wire.cli.lookup import Output, say
from pulsarctl_wire.cli.options import OUTPUT, option
from pulsarctl_wire.cli.session import Session, topic_name

if TYPE_CHECKING:
    from pulsarctl_wire.net.client import Client
    from pulsarctl_wire.net.consumer import Consumer
    from pulsarctl_wire.net.inbox import Delivery
    from pulsarctl_wire.net.producer import Producer, Sent
    from pulsarctl_wire.net.subscription import Subscription
    from pulsarctl_wire.net.transaction import Transaction
    from pulsarctl_wire.wire.payload import Message

MAKE, TAKE, END = "What is produced in it", "What is acknowledged in it", "The transaction"
_TTL = 60.0  # seconds, as in the Java client
_QUEUE = 1_000
_T = TypeVar("_T")


async def txn(
    session: Session,
    produce: Annotated[
        list[str] | None,
        option(MAKE, "--produce", metavar="TOPIC", help="Produce each message to this topic; repeatable."),
    ] = None,
    messages: Annotated[
        list[str] | None,
        option(
            MAKE, "-m", "--messages", metavar="TEXT", help="A message; - reads them from stdin, one a line."
        ),
    ] = None,
    ack: Annotated[
        list[str] | None,
        option(TAKE, "--ack", metavar="TOPIC", help="Consume of this topic, and acknowledge; repeatable."),
    ] = None,
    subscriptions: Annotated[
        list[str] | None,
        option(
            TAKE,
            "-s",
            "--subscription",
            "--subscription-name",
            metavar="NAME",
            help="By this subscription; once, or once for each --ack. A new one begins with the topic.",
        ),
    ] = None,
    counts: Annotated[
        list[int] | None,
        option(
            TAKE,
            "-n",
            "--num-messages",
            metavar="N",
            min=1,
            help="How many messages, likewise. Default 1.",
        ),
    ] = None,
    type_: Annotated[
        Type, option(TAKE, "-t", "--subscription-type", help="Type.", case_sensitive=False)
    ] = Type.exclusive,
    commit: Annotated[bool, option(END, "--commit", help="Commit it at the end: the default.")] = False,
    abort: Annotated[bool, option(END, "--abort", help="Abort it at the end.")] = False,
    leave_open: Annotated[bool, option(END, "--leave-open", help="Do not end it.")] = False,
    end: Annotated[
        str | None,
        option(
            END, "--end", metavar="MOST:LEAST", help="End one that was left open, by --commit or --abort."
        ),
    ] = None,
    coordinator: Annotated[
        int | None, option(END, "--coordinator", metavar="N", min=0, help="Where it is opened. Default 0.")
    ] = None,
    txn_timeout: Annotated[
        float | None,
        option(
            END,
            "--txn-timeout",
            metavar="SECONDS",
            min=0.001,
            max=1e9,
            help=f"When it is aborted by itself. Default {_TTL:g}.",
        ),
    ] = None,
    output: Annotated[Output, OUTPUT] = Output.text,
) -> None:
    """Open a transaction, produce and acknowledge in it, and commit or abort it; show each step.

    What fails in the middle, and Ctrl-C, abort it.
    """
    from pulsarctl_wire.net.transaction import Coordinator, Transaction

    report = Report(output)
    if commit + abort + leave_open > 1:
        console.fail("txn: --commit, --abort or --leave-open, not several", console.EXIT_USAGE)
    if end is not None:
        others = (produce, messages, ack, subscriptions, counts, coordinator, txn_timeout)
        if leave_open or not (commit or abort) or any(each is not None for each in others):
            console.fail("txn: --end goes with --commit or --abort, and nothing else", console.EXIT_USAGE)
        await _end(session, _ids(end), commit, report)
        return
    if bool(produce) != bool(messages):
        console.fail("txn: --produce and -m go together", console.EXIT_USAGE)
    sources = _sources(ack or [], subscriptions or [], counts or [])
    topics = list(dict.fromkeys(_topic(each) for each in produce or ()))
    ttl = _TTL if txn_timeout is None else txn_timeout
    texts = await _texts(messages or [])
    async with session.client() as client:
        where = Coordinator(client, coordinator or 0)
        report.restart()
        report.found(where.number, str((await where.connect()).address))
        transaction = await Transaction.open(where, ttl)
        report.opened(transaction.ids, ttl)
        work = _Work(client, transaction, report, time.monotonic() + ttl)
        try:
            await work.produce(topics, texts)
            for source in sources:
                await work.acknowledge(source, type_)
            if leave_open:
                report.left_open()
            else:
                await _settle(transaction, not abort, report)
        except BaseException as error:  # Ctrl-C too
            await _give_up(transaction, error, report)
            raise
        await work.close()


class Source(NamedTuple):
    """What is acknowledged: so many messages of a topic, by a subscription."""

    topic: str
    subscription: str
    wanted: int


def _sources(topics: list[str], subscriptions: list[str], counts: list[int]) -> list[Source]:
    """What to acknowledge; ends the command where options do not go together."""
    if bool(topics) != bool(subscriptions) or (counts and not topics):
        console.fail("txn: --ack TOPIC goes with --subscription NAME, and -n with them", console.EXIT_USAGE)
    names = _for_each(topics, "--subscription", subscriptions)
    sources = [
        Source(_topic(topic), name, count)
        for topic, name, count in zip(topics, names, _for_each(topics, "-n", counts or [1]), strict=True)
    ]
    if len({source[:2] for source in sources}) < len(sources):
        console.fail("txn: two --ack of one topic and subscription", console.EXIT_USAGE)
    return sources


def _for_each(topics: list[str], flag: str, given: list[_T]) -> list[_T]:
    if len(given) <= 1:
        return given * len(topics)
    if len(given) != len(topics):
        console.fail(f"txn: {flag} once, or as often as --ack", console.EXIT_USAGE)
    return given


def _topic(text: str) -> str:
    """The full name of a topic; ends the command where it takes no part in transactions.

    A broker of 4.0 lets one be added that is not persistent, and then never gets the transaction ended.
    """
    name = topic_name(text)
    if not name.startswith("persistent://"):
        console.fail(f"txn: {name}: transactions are for persistent topics", console.EXIT_USAGE)
    return name


def _ids(text: str) -> tuple[int, int]:
    """MOST:LEAST taken apart; ends the command where it is something else."""
    most, _, least = text.partition(":")
    if not all(each.isascii() and each.isdigit() and int(each) < 2**64 for each in (most, least)):
        console.fail(f"--end {text}: MOST:LEAST is wanted, as in 0:12", console.EXIT_USAGE)
    return int(most), int(least)


async def _texts(messages: list[str]) -> list[bytes]:
    from pulsarctl_wire.cli.lines import read_lines

    texts: list[bytes] = []
    for each in messages:
        if each == "-":
            async for lines in read_lines("-"):
                texts += lines
        else:
            texts.append(each.encode("utf-8", "surrogateescape"))
    return texts


async def _end(session: Session, ids: tuple[int, int], commit: bool, report: Report) -> None:
    """End a transaction that was left open."""
    from pulsarctl_wire.net.transaction import Coordinator, Transaction

    async with session.client() as client:
        coordinator = Coordinator(client, ids[0])
        report.restart()
        report.found(coordinator.number, str((await coordinator.connect()).address))
        report.ids = ids
        await _settle(Transaction(coordinator, ids), commit, report)


async def _settle(transaction: Transaction, commit: bool, report: Report) -> None:
    report.restart()
    await (transaction.commit() if commit else transaction.abort())
    report.ended("committed" if commit else "aborted")


async def _give_up(transaction: Transaction, error: BaseException, report: Report) -> None:
    """Abort a transaction that `error` came in between of, unless its end was asked for already."""
    from asyncio import CancelledError

    from pulsarctl_wire.errors import BrokerError, SessionError

    if transaction.ending:
        if isinstance(error, (SessionError, CancelledError)) and not isinstance(error, BrokerError):
            console.complain(f"{transaction} was to end: whether it did is not known")
        return
    try:
        await _settle(transaction, False, report)
    except SessionError as failure:
        console.complain(
            f"{transaction} is not aborted: {failure}; the coordinator does it when its time is over"
        )


class _Work:
    """What is done in a transaction, until the clock (monotonic, seconds) shows `deadline`."""

    def __init__(self, client: Client, transaction: Transaction, report: Report, deadline: float) -> None:
        self._client = client
        self._transaction = transaction
        self._report = report
        self._deadline = deadline
        self._sent: list[Sent] = []
        self._opened: list[Producer | Subscription] = []

    async def produce(self, topics: list[str], texts: list[bytes]) -> None:
        """Send each text to each topic; partitions take turns, from the first one on. Raises SessionError."""
        from pulsarctl_wire.net.producer import Producer, ProducerOptions
        from pulsarctl_wire.wire.entry import Outgoing
        from pulsarctl_wire.wire.names import partition_name

        if not topics or not texts:
            return
        options = ProducerOptions(batch_count=1, txn=self._transaction.ids)
        producers: list[list[Producer]] = []
        for topic in topics:
            count = min(await self._client.partitions(topic), len(texts))
            names = [partition_name(topic, index) for index in range(count)] or [topic]
            producers.append([Producer(self._client, name, options, self._sent.append) for name in names])
        every = [each for row in producers for each in row]
        for producer in every:
            await producer.open()
            self._opened.append(producer)
        self._report.restart()
        await self._transaction.add_topics([each.topic for each in every])
        self._report.added_topics([each.topic for each in every])
        for index, text in enumerate(texts):
            for row in producers:
                await row[index % len(row)].send(Outgoing(text))
                self._tell()
        for producer in every:
            await producer.flush()
            self._tell()

    def _tell(self) -> None:
        """Print what was stored. Raises SessionError for what was not."""
        while self._sent:
            sent = self._sent.pop(0)
            if sent.error is not None:
                raise sent.error
            self._report.stored(sent)

    async def acknowledge(self, source: Source, type_: Type) -> None:
        """Consume messages, and acknowledge them. Raises SessionError, also where too few come in time."""
        import asyncio

        from pulsarctl_wire.cli.received import message_id
        from pulsarctl_wire.errors import Unanswered
        from pulsarctl_wire.net.consumer import ConsumerOptions
        from pulsarctl_wire.net.subscription import Subscription
        from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe

        options = ConsumerOptions(
            source.subscription,
            type=CommandSubscribe.SubType.Value(type_.value),
            initial=CommandSubscribe.Earliest,
            queue_size=min(source.wanted, _QUEUE),  # others may want the rest
        )
        feed = Subscription(self._client, [source.topic], options)
        await feed.open()
        self._opened.append(feed)
        found: dict[tuple[str, str], tuple[Delivery, Message]] = {}  # what comes twice is acknowledged once
        while len(found) < source.wanted:
            try:
                delivery = await asyncio.wait_for(feed.take(), self._deadline - time.monotonic())
            except (TimeoutError, asyncio.TimeoutError):
                raise Unanswered(_too_few(source, len(found), "the transaction timed out")) from None
            if delivery is None:
                raise Unanswered(_too_few(source, len(found), "the topic ended"))
            delivery.consumer.taken(delivery)
            for message in delivery.messages:
                key = delivery.consumer.topic, message_id(delivery, message)
                if key not in found:
                    if len(found) == source.wanted:
                        break
                    self._report.received(*key)
                found[key] = delivery, message
                message.payload = None  # its place is all that is needed
        await self._acknowledge(source.subscription, found)

    async def _acknowledge(
        self, subscription: str, found: dict[tuple[str, str], tuple[Delivery, Message]]
    ) -> None:
        taken: dict[Consumer, dict[Delivery, list[Message]]] = {}
        ids: dict[Consumer, list[str]] = {}
        for (_, name), (delivery, message) in found.items():
            taken.setdefault(delivery.consumer, {}).setdefault(delivery, []).append(message)
            ids.setdefault(delivery.consumer, []).append(name)
        topics = [consumer.topic for consumer in taken]
        self._report.restart()
        await self._transaction.add_subscription(topics, subscription)
        self._report.added_subscription(topics, subscription)
        for consumer, deliveries in taken.items():
            await self._transaction.acknowledge(consumer, deliveries)
            self._report.acknowledged(consumer.topic, subscription, ids[consumer])

    async def close(self) -> None:
        """Close what produced and consumed."""
        for each in self._opened:
            await each.close()


def _too_few(source: Source, count: int, why: str) -> str:
    return (
        f"{source.topic}, subscription {source.subscription}: {why} after {count} of {source.wanted} messages"
    )


class Report:
    """Prints the steps of a transaction, and how long each took. `ids` of the transaction, once known."""

    def __init__(self, output: Output) -> None:
        self.ids: tuple[int, int] | None = None
        self._output = output
        self._since = 0
        self.restart()

    def restart(self) -> None:
        """Count the time of the next step from now on, and not from the end of the one before."""
        self._since = time.perf_counter_ns()

    def _took(self) -> int:
        since, self._since = self._since, time.perf_counter_ns()
        return self._since - since

    def _step(self, step: str, text: str, latency_ns: int | None, **fields: Any) -> None:
        record: dict[str, Any] = {"step": step}
        if self.ids is not None:
            record |= {"txnid_most_bits": self.ids[0], "txnid_least_bits": self.ids[1]}
        record |= fields
        if latency_ns is not None:
            record["latency_ns"] = latency_ns
            text += f", {console.human_time(latency_ns)}"
        say(record, console.clean(text), self._output)

    def found(self, number: int, address: str) -> None:
        """Connected to the coordinator."""
        self._step(
            "connected", f"coordinator {number} at {address}", self._took(), tc_id=number, address=address
        )

    def opened(self, ids: tuple[int, int], ttl: float) -> None:
        """Opened, for `ttl` seconds."""
        self.ids = ids
        self._step("opened", f"opened {self._name} for {ttl:g} s", self._took(), timeout_s=ttl)

    @property
    def _name(self) -> str:
        return "({},{})".format(*self.ids) if self.ids is not None else ""

    def added_topics(self, topics: list[str]) -> None:
        """These topics belong to it."""
        self._step("added_topics", f"added {', '.join(topics)}", self._took(), topics=topics)

    def stored(self, sent: Sent) -> None:
        """A message was stored."""
        from pulsarctl_wire.cli.produce import message_id

        name = message_id(sent, 0)
        self._step("stored", f"stored {name} in {sent.topic}", sent.latency_ns, topic=sent.topic, id=name)

    def received(self, topic: str, name: str) -> None:
        """A message came that is to be acknowledged."""
        self._step("received", f"received {name} of {topic}", None, topic=topic, id=name)

    def added_subscription(self, topics: list[str], subscription: str) -> None:
        """A subscription of these topics belongs to it."""
        text = f"added subscription {subscription} of {', '.join(topics)}"
        self._step("added_subscription", text, self._took(), topics=topics, subscription=subscription)

    def acknowledged(self, topic: str, subscription: str, names: list[str]) -> None:
        """Messages were acknowledged."""
        text = f"acknowledged {', '.join(names)} of {topic}"
        self._step("acknowledged", text, self._took(), topic=topic, subscription=subscription, ids=names)

    def ended(self, how: str) -> None:
        """It was committed, aborted."""
        self._step(how, f"{how} {self._name}", self._took())

    def left_open(self) -> None:
        """It was not ended."""
        assert self.ids is not None
        command = "pwire txn --end {}:{} --commit".format(*self.ids)
        self._step("left_open", f"left open {self._name}; to end it: {command}", None)
