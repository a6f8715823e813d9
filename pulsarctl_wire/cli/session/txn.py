"""`pwire txn`: runs one transaction, and shows its steps."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.options import OUTPUT
from pulsarctl_wire.cli.session.lookup import Output, say
from pulsarctl_wire.cli.session.receive_options import Type
from pulsarctl_wire.cli.session.verb import Session, parse_topic
from pulsarctl_wire.cli.signature import flag, option, several
from pulsarctl_wire.errors import BrokerError, RequestTimeout, SessionError
from pulsarctl_wire.render.text import clean, human_time

if TYPE_CHECKING:
    from pulsarctl_wire.net.session.client import Client
    from pulsarctl_wire.net.session.consumer import Consumer
    from pulsarctl_wire.net.session.inbox import Delivery
    from pulsarctl_wire.net.session.producer import Producer
    from pulsarctl_wire.net.session.send_queue import SendResult
    from pulsarctl_wire.net.session.subscription import Subscription
    from pulsarctl_wire.net.session.transaction import Coordinator, Transaction
    from pulsarctl_wire.wire.payload import Message

MAKE, TAKE, END = "What to produce", "What to acknowledge", "The transaction"
_TTL = 60.0  # seconds, as in the Java client
_MAX_QUEUE = 1_000  # permits
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class TxnOptions:
    """The options of `txn`."""

    produce: list[str] = several("--produce TOPIC", "Produce each message to this topic; repeatable.", MAKE)
    messages: list[str] = several(
        "-m --messages TEXT", "A message; - reads messages from stdin, one per line.", MAKE
    )
    ack: list[str] = several("--ack TOPIC", "Consume and acknowledge this topic; repeatable.", TAKE)
    subscriptions: list[str] = several(
        "-s --subscription --subscription-name NAME",
        "Subscription name; once, or once for each --ack. A new one starts at the first message.",
        TAKE,
    )
    counts: list[int] = several(
        "-n --num-messages N", "Number of messages; once, or once for each --ack. Default 1.", TAKE, min=1
    )
    type_: Type = option("-t --subscription-type", "Type.", TAKE, default="Exclusive", case_sensitive=False)
    commit: bool = flag("--commit", "Commit it at the end: the default.", END)
    abort: bool = flag("--abort", "Abort it at the end.", END)
    leave_open: bool = flag("--leave-open", "Do not end it.", END)
    end: str | None = option("--end MOST:LEAST", "End this open transaction, with --commit or --abort.", END)
    coordinator: int | None = option("--coordinator N", "Number of the coordinator. Default 0.", END, min=0)
    txn_timeout: float | None = option(
        "--txn-timeout SECONDS", f"Abort it after this time. Default {_TTL:g}.", END, min=0.001, max=1e9
    )
    output: Output = OUTPUT(default="text")

    def check(self) -> None:
        """End the command if options contradict each other."""
        if self.commit + self.abort + self.leave_open > 1:
            console.fail("txn: use only one of --commit, --abort and --leave-open")
        if self.end is None:
            if bool(self.produce) != bool(self.messages):
                console.fail("txn: --produce and -m need each other")
            return
        lists = self.produce or self.messages or self.ack or self.subscriptions or self.counts
        has_others = self.coordinator is not None or self.txn_timeout is not None
        if self.leave_open or not (self.commit or self.abort) or lists or has_others:
            console.fail("txn: --end needs --commit or --abort, and takes no other options")

    def list_sources(self) -> list[Source]:
        """Return what to acknowledge. Options that contradict each other end the command."""
        topics = self.ack
        if bool(topics) != bool(self.subscriptions) or (self.counts and not topics):
            console.fail("txn: --ack TOPIC and --subscription NAME need each other, and -n needs both")
        names = _repeat_values(topics, "--subscription", self.subscriptions)
        counts = _repeat_values(topics, "-n", self.counts or [1])
        sources = [
            Source(_topic(topic), name, count)
            for topic, name, count in zip(topics, names, counts, strict=True)
        ]
        if len({source[:2] for source in sources}) < len(sources):
            console.fail("txn: two --ack have the same topic and subscription")
        return sources


async def txn(session: Session, options: TxnOptions) -> None:
    """Open a transaction, produce and acknowledge in it, and commit or abort it; show each step.

    An error before the end, or Ctrl-C, aborts it.
    """
    from pulsarctl_wire.cli.session.produce import read_texts
    from pulsarctl_wire.net.session.transaction import Transaction

    report = Report(options.output)
    options.check()
    if options.end is not None:
        ids = _ids(options.end)
        async with session.make_client() as client:
            transaction = Transaction(await _connect(client, ids[0], report), ids)
            report.txn_id = ids
            await _settle(transaction, options.commit, report)
        return
    sources = options.list_sources()
    topics = list(dict.fromkeys(map(_topic, options.produce)))
    ttl = _TTL if options.txn_timeout is None else options.txn_timeout
    batches = read_texts([(text, False) for text in options.messages], None, 1, skip_blank=False)
    texts = [text async for batch in batches for text in batch]
    async with session.make_client() as client:
        transaction = await Transaction.open(await _connect(client, options.coordinator or 0, report), ttl)
        report.txn_id = transaction.txn_id
        report.step("opened", f"opened {transaction} for {ttl:g} s", timeout_s=ttl)
        work = _Work(client, transaction, report, time.monotonic() + ttl)
        try:
            await work.produce(topics, texts)
            for source in sources:
                await work.acknowledge(source, options.type_)
            if options.leave_open:
                command = "pwire txn --end {}:{} --commit".format(*transaction.txn_id)
                report.show("left_open", f"left open {transaction}; to end it: {command}")
            else:
                await _settle(transaction, not options.abort, report)
        except BaseException as error:  # Ctrl-C too
            await _give_up(transaction, error, report)
            raise
        await work.close()


class Source(NamedTuple):
    """What to acknowledge: `total` messages of a topic, with a subscription."""

    topic: str
    subscription: str
    total: int


def _repeat_values(topics: list[str], flag: str, values: list[_T]) -> list[_T]:
    """Return a value of the option `flag` for each topic: a single value counts for all of them."""
    if len(values) <= 1:
        return values * len(topics)
    if len(values) != len(topics):
        console.fail(f"txn: give {flag} once, or as often as --ack")
    return values


def _topic(text: str) -> str:
    """Return the full name of a topic. One that is not persistent ends the command.

    A broker of version 4.0 accepts non-persistent topics, but can then never end the transaction.
    """
    name = parse_topic(text)
    if not name.startswith("persistent://"):
        console.fail(f"txn: {name}: transactions need persistent topics")
    return name


def _ids(text: str) -> tuple[int, int]:
    """Split MOST:LEAST. Any other text ends the command."""
    most_bits, _, least_bits = text.partition(":")
    parts = most_bits, least_bits
    if not all(re.fullmatch("[0-9]{1,20}", part) and int(part) < 2**64 for part in parts):
        console.fail(f"--end {text}: use MOST:LEAST, as in 0:12")
    return int(most_bits), int(least_bits)


async def _connect(client: Client, number: int, report: Report) -> Coordinator:
    """Connect to the coordinator `number`, and print that step."""
    from pulsarctl_wire.net.session.transaction import Coordinator

    coordinator = Coordinator(client, number)
    report.restart()
    address = str((await coordinator.connect()).address)
    report.step("connected", f"coordinator {number} at {address}", tc_id=number, address=address)
    return coordinator


async def _settle(transaction: Transaction, commit: bool, report: Report) -> None:
    report.restart()
    await transaction.end(commit)
    outcome = "committed" if commit else "aborted"
    report.step(outcome, f"{outcome} {transaction}")


async def _give_up(transaction: Transaction, error: BaseException, report: Report) -> None:
    """Abort a transaction that `error` has interrupted, unless its end was already requested."""
    from asyncio import CancelledError

    if transaction.ending:
        if isinstance(error, (SessionError, CancelledError)) and not isinstance(error, BrokerError):
            console.warn(f"it is unknown whether {transaction} has ended")
        return
    try:
        await _settle(transaction, False, report)
    except SessionError as failure:
        console.warn(
            f"{transaction} could not be aborted: {failure}; the coordinator aborts it after its timeout"
        )


class _Work:
    """Produces and acknowledges in a transaction.

    `acknowledge` waits for messages until `deadline` (monotonic clock, seconds).
    """

    def __init__(self, client: Client, transaction: Transaction, report: Report, deadline: float) -> None:
        self._client = client
        self._transaction = transaction
        self._report = report
        self._deadline = deadline
        self._sent: list[SendResult] = []
        self._opened: list[Producer | Subscription] = []

    async def produce(self, topics: list[str], texts: list[bytes]) -> None:
        """Send each text to each topic, to its partitions in turn. Raises SessionError."""
        from pulsarctl_wire.net.session.producer import Producer
        from pulsarctl_wire.net.session.send_queue import ProducerOptions
        from pulsarctl_wire.wire.entry import Outgoing
        from pulsarctl_wire.wire.names import partition_name

        if not topics or not texts:
            return
        options = ProducerOptions(batch_count=1, txn=self._transaction.txn_id)
        producers: list[list[Producer]] = []
        for topic in topics:
            count = min(await self._client.count_partitions(topic), len(texts))
            names = [partition_name(topic, index) for index in range(count)] or [topic]
            producers.append([Producer(self._client, name, options, self._sent.append) for name in names])
        all_producers = [producer for row in producers for producer in row]
        for producer in all_producers:
            await producer.open()
            self._opened.append(producer)
        names = [producer.topic for producer in all_producers]
        self._report.restart()
        await self._transaction.add_topics(names)
        self._report.step("added_topics", f"added {', '.join(names)}", topics=names)
        for index, text in enumerate(texts):
            for row in producers:
                await row[index % len(row)].send(Outgoing(text))
                self._show_stored()
        for producer in all_producers:
            await producer.flush()
            self._show_stored()

    def _show_stored(self) -> None:
        """Print the messages that were stored. Raises SessionError if one was not."""
        from pulsarctl_wire.cli.session.produce import message_id

        while self._sent:
            result = self._sent.pop(0)
            if result.error is not None:
                raise result.error
            id_, topic = message_id(result, 0), result.topic
            self._report.show("stored", f"stored {id_} in {topic}", result.latency_ns, topic=topic, id=id_)

    async def acknowledge(self, source: Source, type_: Type) -> None:
        """Consume messages, and acknowledge them. Raises SessionError, also if too few come in time."""
        import asyncio

        from pulsarctl_wire.cli.session.received import message_id
        from pulsarctl_wire.net.session.receive_queue import ConsumerOptions
        from pulsarctl_wire.net.session.subscription import Subscription
        from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe

        options = ConsumerOptions(
            source.subscription,
            type=CommandSubscribe.SubType.Value(type_),
            initial=CommandSubscribe.Earliest,
            queue_size=min(source.total, _MAX_QUEUE),  # leave the rest to other consumers
        )
        feed = Subscription(self._client, [source.topic], options)
        await feed.open()
        self._opened.append(feed)
        received: dict[
            tuple[str, str], tuple[Delivery[Consumer], Message]
        ] = {}  # by topic and id, as some may come twice
        while len(received) < source.total:
            try:
                delivery = await asyncio.wait_for(feed.take(), self._deadline - time.monotonic())
            except (TimeoutError, asyncio.TimeoutError):
                text = _describe_shortage(source, len(received), "the transaction timed out")
                raise RequestTimeout(text) from None
            if delivery is None:
                raise RequestTimeout(_describe_shortage(source, len(received), "the topic ended"))
            delivery.consumer.release_permits(delivery)
            for message in delivery.messages:
                key = topic, id_ = delivery.consumer.topic, message_id(delivery, message)
                if key not in received:
                    if len(received) == source.total:
                        break
                    self._report.show("received", f"received {id_} of {topic}", topic=topic, id=id_)
                received[key] = delivery, message
                message.payload = None  # only its id is needed
        await self._acknowledge(source.subscription, received)

    async def _acknowledge(
        self, subscription: str, received: dict[tuple[str, str], tuple[Delivery[Consumer], Message]]
    ) -> None:
        by_consumer: dict[Consumer, dict[Delivery[Consumer], list[Message]]] = {}
        ids: dict[Consumer, list[str]] = {}
        for (_, id_), (delivery, message) in received.items():
            by_consumer.setdefault(delivery.consumer, {}).setdefault(delivery, []).append(message)
            ids.setdefault(delivery.consumer, []).append(id_)
        topics = [consumer.topic for consumer in by_consumer]
        self._report.restart()
        await self._transaction.add_subscription(topics, subscription)
        text = f"added subscription {subscription} of {', '.join(topics)}"
        self._report.step("added_subscription", text, topics=topics, subscription=subscription)
        for consumer, deliveries in by_consumer.items():
            await self._transaction.acknowledge(consumer, deliveries)
            names, topic = ids[consumer], consumer.topic
            text = f"acknowledged {', '.join(names)} of {topic}"
            self._report.step("acknowledged", text, topic=topic, subscription=subscription, ids=names)

    async def close(self) -> None:
        """Close the producers and consumers."""
        for endpoint in self._opened:
            await endpoint.close()


def _describe_shortage(source: Source, count: int, reason: str) -> str:
    place = f"{source.topic}, subscription {source.subscription}"
    return f"{place}: {reason} after {count} of {source.total} messages"


class Report:
    """Prints the steps of a transaction, and how long each took. `txn_id` is its id, once known."""

    def __init__(self, output: Output) -> None:
        self.txn_id: tuple[int, int] | None = None
        self._output = output
        self._since = 0
        self.restart()

    def restart(self) -> None:
        """Measure the next step from now on, instead of from the end of the previous one."""
        self._since = time.perf_counter_ns()

    def step(self, step: str, text: str, **fields: Any) -> None:
        """Print a step that has just ended, with the time it took."""
        since, self._since = self._since, time.perf_counter_ns()
        self.show(step, text, self._since - since, **fields)

    def show(self, step: str, text: str, latency_ns: int | None = None, **fields: Any) -> None:
        """Print a step, with the time it took if given."""
        record: dict[str, Any] = {"step": step}
        if self.txn_id is not None:
            record |= {"txnid_most_bits": self.txn_id[0], "txnid_least_bits": self.txn_id[1]}
        record |= fields
        if latency_ns is not None:
            record["latency_ns"] = latency_ns
            text += f", {human_time(latency_ns)}"
        say(record, clean(text), self._output)
