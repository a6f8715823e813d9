"""`pwire consume` and `pwire read`: show messages of topics; `consume` acknowledges them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.session.lookup import TOPIC, check_pattern
from pulsarctl_wire.cli.session.receive_options import END, FLOW, ReceiveOptions, Type
from pulsarctl_wire.cli.session.verb import Session, parse_topic
from pulsarctl_wire.cli.signature import flag, group, option

if TYPE_CHECKING:
    from pulsarctl_wire.net.session.client import Client
    from pulsarctl_wire.net.session.dead_letters import DeadLetters
    from pulsarctl_wire.net.session.receive_queue import ConsumerOptions

SUB, FAIL = "The subscription", "Refusing messages"

READ_COMPACTED = partial(flag, "--read-compacted", "Read the compacted topic.", SUB)


@dataclass(frozen=True, kw_only=True)
class ConsumeOptions:
    """The options of `consume`."""

    topics: list[str] = TOPIC()
    subscription: str = option(
        "-s --subscription-name NAME", "Subscription name.", SUB, default=..., show_default=False
    )
    type_: Type = option(
        "-t --subscription-type", "Subscription type.", SUB, default="Exclusive", case_sensitive=False
    )
    mode: Literal["Durable", "NonDurable"] = option(
        "-m --subscription-mode",
        "Whether the broker stores the subscription's position.",
        SUB,
        default="Durable",
        case_sensitive=False,
    )
    position: Literal["Latest", "Earliest"] = option(
        "-p --subscription-position",
        "Where a new subscription starts.",
        SUB,
        default="Latest",
        case_sensitive=False,
    )
    regex: bool = flag("--regex", "TOPIC is a regular expression for the topics of its namespace.", SUB)
    consumer_name: str | None = option("--consumer-name NAME", "Consumer name.", SUB)
    priority: int | None = option(
        "--priority N", "Priority level; 0 is served first (Shared, Failover).", SUB, min=0, max=2**31 - 1
    )
    replicated: bool = flag("-rs --replicated", "Replicate the subscription to other clusters.", SUB)
    read_compacted: bool = READ_COMPACTED()
    no_create: bool = flag("--no-create", "Do not create the topic.", SUB)
    num_messages: int = option(
        "-n --num-messages N", "End after N messages; 0: never.", END, default=1, min=0
    )
    intake: ReceiveOptions = group(ReceiveOptions)
    ack: Literal["individual", "cumulative", "none"] = option(
        "--ack", "How to acknowledge.", FLOW, default="individual"
    )
    batch_index_ack: bool = flag(
        "--batch-index-ack", "Acknowledge messages of a batch one by one (PIP-54).", FLOW
    )
    nack: str | None = option("--nack EXPR", "Refuse matching messages: 'true', 'key == \"bad\"'.", FAIL)
    nack_delay: float = option(
        "--nack-delay SECONDS", "Delay before refused messages are redelivered.", FAIL, default=60.0, min=0
    )
    ack_timeout: float = option(
        "--ack-timeout SECONDS", "Redeliver messages not acknowledged by then.", FAIL, default=0.0, min=0
    )
    max_redeliver: int | None = option(
        "--max-redeliver N", "After N redeliveries, send to the dead letter topic.", FAIL, min=1
    )
    dead_letter_topic: str | None = option("--dead-letter-topic TOPIC", "Default: TOPIC-NAME-DLQ.", FAIL)
    retry: bool = flag("--retry", "Send refused messages to the retry topic, and consume that too.", FAIL)
    retry_topic: str | None = option("--retry-topic TOPIC", "Default: TOPIC-NAME-RETRY.", FAIL)

    @property
    def has_letters(self) -> bool:
        """Whether dead letters or a retry topic are wanted."""
        return self.max_redeliver is not None or self.dead_letter_topic is not None or self.retry

    def make_consumer_options(self, decryption: dict[str, Any]) -> ConsumerOptions:
        """Return the options as `Subscription` takes them."""
        from pulsarctl_wire.net.session.receive_queue import ConsumerOptions
        from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe

        return ConsumerOptions(
            self.subscription,
            type=CommandSubscribe.SubType.Value(self.type_),
            name=self.consumer_name,
            durable=self.mode == "Durable",
            initial=CommandSubscribe.InitialPosition.Value(self.position),
            queue_size=self.intake.queue_size,
            priority=self.priority,
            read_compacted=self.read_compacted,
            replicated=self.replicated,
            create_topic=not self.no_create,
            batch_index_ack=self.batch_index_ack,
            nack_delay=self.nack_delay,
            ack_timeout=self.ack_timeout,
            payload_ratio=self.intake.payload_ratio,
            **decryption,
        )

    def prepare_letters(self, topic: str) -> Callable[[Client], DeadLetters] | None:
        """Make a factory for `DeadLetters` of `topic`; None if unwanted. Invalid names end the command."""
        from pulsarctl_wire.net.session.dead_letters import DeadLetters

        dead_letter_topic, retry_topic = (
            name and parse_topic(name) for name in (self.dead_letter_topic, self.retry_topic)
        )
        limit = 16 if self.max_redeliver is None else self.max_redeliver  # 16 as in the Java client
        if not self.has_letters:
            return None
        return lambda client: DeadLetters(
            client, topic, self.subscription, limit, dead_letter_topic, retry_topic
        )


async def consume(session: Session, options: ConsumeOptions) -> int:
    """Consume messages like pulsar-client, and acknowledge them."""
    from pulsarctl_wire.cli.session.consume_run import ConsumeRun, NackRule, View
    from pulsarctl_wire.net.session.subscription import Subscription

    _check(options)
    names = [parse_topic(topic) for topic in options.topics]
    make_letters = options.prepare_letters(names[0])
    intake, view = options.intake, View(options.intake)
    decryption = intake.prepare_decryption(session)
    async with session.make_client() as client:
        letters = make_letters and make_letters(client)
        feed = Subscription(
            client,
            [] if options.regex else names,
            options.make_consumer_options(decryption),
            pattern=check_pattern(names[0]) if options.regex else None,
            extra_topics=[letters.retry_topic] if letters is not None and options.retry else [],
        )
        nack_rule = NackRule(options.nack, letters, options.retry)
        run = ConsumeRun(
            client, feed, intake, view, count=options.num_messages, ack=options.ack, nack_rule=nack_rule
        )
        return await run.run()


def _check(options: ConsumeOptions) -> None:
    """End the command if options contradict each other."""
    if not options.subscription:
        console.fail("consume: the subscription needs a name: -s NAME")
    is_shared = options.type_ in ("Shared", "Key_Shared")
    if options.ack == "cumulative" and is_shared:
        console.fail("consume: --ack cumulative needs -t Exclusive or Failover")
    if options.has_letters and not is_shared:
        console.fail("consume: dead letters and --retry need -t Shared or Key_Shared")
    if options.regex and (len(options.topics) > 1 or options.has_letters):
        console.fail("consume: --regex takes one TOPIC, and cannot be combined with dead letters")


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """The options of `read`."""

    topics: list[str] = TOPIC()
    start: str = option(
        "--from -m --start-message-id WHERE",
        "Where to start: earliest, latest, -5 (the last five of each partition), an id as printed "
        "(LEDGER:ENTRY), or a time: ISO 8601, seconds since 1970, -10m.",
        END,
        default="earliest",
    )
    exclusive: bool = flag("--after", "Start after the message that --from names.", END)
    num_messages: int | None = option(
        "-n --num-messages N",
        "End after N messages; 0: never.",
        END,
        min=0,
        show_default="1; N with --from -N",
    )
    intake: ReceiveOptions = group(ReceiveOptions)
    read_compacted: bool = READ_COMPACTED()


async def read(session: Session, options: ReadOptions) -> int:
    """Read messages from any position without a durable subscription; nothing is acknowledged."""
    from pulsarctl_wire.cli.session.consume_run import ConsumeRun, View, parse_last, parse_start
    from pulsarctl_wire.cli.session.last import find_starts
    from pulsarctl_wire.net.session.consumer import make_reader_name
    from pulsarctl_wire.net.session.receive_queue import EARLIEST, LATEST, ConsumerOptions
    from pulsarctl_wire.net.session.subscription import Subscription
    from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe

    intake, start = options.intake, options.start
    last_count = parse_last(start)
    position, since_ns = (EARLIEST, None) if last_count else parse_start(start)
    if since_ns is not None and since_ns > time.time_ns():
        position, since_ns = LATEST, None
    reader = ConsumerOptions(
        make_reader_name(),
        type=CommandSubscribe.Exclusive,
        durable=False,
        queue_size=intake.queue_size,
        start=position,
        inclusive=not options.exclusive,
        # in whole seconds, rounded up: `View` hides what was published before `since_ns`
        rollback=0 if since_ns is None else int(time.time() - since_ns / 1e9) + 1,
        read_compacted=options.read_compacted,
        create_topic=False,
        payload_ratio=intake.payload_ratio,
        **intake.prepare_decryption(session),
    )
    view = View(intake, since_ms=0 if since_ns is None else since_ns // 1_000_000)
    names = [parse_topic(topic) for topic in options.topics]
    count = options.num_messages
    if last_count and count is None:
        intake, count = replace(intake, at_end=True), 0
    async with session.make_client() as client:
        starts = await find_starts(client, names, last_count) if last_count else {}
        if position not in (None, EARLIEST, LATEST):
            for name in names:
                if await client.count_partitions(name, create=False):
                    console.fail(f"--from {start} is in one partition; name it: {name}-partition-N")
        feed = Subscription(client, names, reader, starts=starts)
        return await ConsumeRun(client, feed, intake, view, count=1 if count is None else count).run()
