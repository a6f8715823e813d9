"""`pwire consume` and `pwire read`: messages of topics, shown and acknowledged, or only shown."""

from __future__ import annotations

import time
from enum import Enum
from typing import Annotated

import typer

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.lookup import TOPIC, checked_pattern
from pulsarctl_wire.cli.options import option, payload_ratio
from pulsarctl_wire.cli.session import Session, topic_name

SUB, SHOW, END, FLOW, FAIL = (
    "The subscription",
    "What is shown",
    "When it ends",
    "Permits",
    "Refusing messages",
)


class Type(str, Enum):
    """Subscription types."""

    exclusive = "Exclusive"
    shared = "Shared"
    failover = "Failover"
    key_shared = "Key_Shared"


class SubscriptionMode(str, Enum):
    """Whether the broker keeps the subscription's place."""

    durable = "Durable"
    non_durable = "NonDurable"


class Position(str, Enum):
    """Where a new subscription begins."""

    latest = "Latest"
    earliest = "Earliest"


class Form(str, Enum):
    """How messages are shown."""

    text = "text"
    line = "line"
    json = "json"
    none = "none"


class Ack(str, Enum):
    """How messages are acknowledged."""

    individual = "individual"
    cumulative = "cumulative"
    none = "none"


COUNT = option(
    END, "-n", "--num-messages", metavar="N", min=0, help="End after N messages; 0 goes on for ever."
)
READ_COUNT = option(
    END,
    "-n",
    "--num-messages",
    metavar="N",
    min=0,
    help="End after N messages; 0 goes on for ever.",
    show_default="1; those that --from -N names",
)
AT_END = option(
    END,
    "-e",
    "--exit-at-end",
    help="End with the last message that was there when it began, or when none has come for 3 s.",
)
IDLE = option(END, "--idle", metavar="SECONDS", min=0, help="End when nothing has come for that long.")
FORM = option(
    SHOW, "-o", "--output", help="text: payloads; line: a line each with id, key and so on; json; none."
)
TEMPLATE = option(
    SHOW,
    "-f",
    "--format",
    metavar="FORMAT",
    help="As kcat: %s payload, %S size, %k key, %h properties, %t topic, %p partition, %o entry, %T time, "
    "%i message id, %b batch index, %r redelivered, %x hex; \\n, \\t, \\xNN.",
)
FILTER = option(
    SHOW, "--filter", metavar="EXPR", help="Show only those: 'properties.kind == \"a\" and size > 9'."
)
HEX = option(SHOW, "--hex", help="Payloads as hexadecimal digits.")
SCHEMA = option(
    SHOW,
    "--schema",
    "-st",
    "--schema-type",
    metavar="TYPE[:FILE]",
    help="Decode by this schema; auto asks the broker for each message's own, bytes decodes nothing.",
)
HIDE = option(SHOW, "--hide-content", help="Print no messages, only how many there were.")
PAYLOAD_RATIO = payload_ratio(SHOW)
QUEUE = option(
    FLOW,
    "-q",
    "--queue-size",
    metavar="N",
    min=1,
    max=2**31 - 1,
    help="Permits; given back half of it at a time.",
)
RATE = option(FLOW, "-r", "--rate", metavar="N", min=0.001, help="Messages a second.")


async def consume(
    session: Session,
    topics: Annotated[list[str], TOPIC],
    subscription: Annotated[
        str,
        option(SUB, "-s", "--subscription-name", metavar="NAME", help="Subscription.", show_default=False),
    ],
    type_: Annotated[
        Type, option(SUB, "-t", "--subscription-type", help="Its type.", case_sensitive=False)
    ] = Type.exclusive,
    mode: Annotated[
        SubscriptionMode,
        option(
            SUB, "-m", "--subscription-mode", help="Whether the broker keeps its place.", case_sensitive=False
        ),
    ] = SubscriptionMode.durable,
    position: Annotated[
        Position,
        option(
            SUB, "-p", "--subscription-position", help="Where it begins if it is new.", case_sensitive=False
        ),
    ] = Position.latest,
    regex: Annotated[
        bool,
        option(SUB, "--regex", help="TOPIC is a regular expression: all topics of its namespace that match."),
    ] = False,
    consumer_name: Annotated[
        str | None, option(SUB, "--consumer-name", metavar="NAME", help="Consumer.")
    ] = None,
    priority: Annotated[
        int | None,
        option(
            SUB,
            "--priority",
            metavar="N",
            min=0,
            max=2**31 - 1,
            help="Lower is served first (Shared, Failover).",
        ),
    ] = None,
    replicated: Annotated[
        bool, option(SUB, "-rs", "--replicated", help="Replicate the subscription's place to other clusters.")
    ] = False,
    read_compacted: Annotated[
        bool, option(SUB, "--read-compacted", help="Read the compacted topic.")
    ] = False,
    no_create: Annotated[bool, option(SUB, "--no-create", help="Do not create the topic.")] = False,
    num_messages: Annotated[int, COUNT] = 1,
    at_end: Annotated[bool, AT_END] = False,
    idle: Annotated[float | None, IDLE] = None,
    output: Annotated[Form, FORM] = Form.text,
    template: Annotated[str | None, TEMPLATE] = None,
    filter_: Annotated[str | None, FILTER] = None,
    hexadecimal: Annotated[bool, HEX] = False,
    schema: Annotated[str, SCHEMA] = "auto",
    hide_content: Annotated[bool, HIDE] = False,
    ratio: Annotated[int | None, PAYLOAD_RATIO] = None,
    queue_size: Annotated[int, QUEUE] = 1000,
    rate: Annotated[float | None, RATE] = None,
    ack: Annotated[Ack, option(FLOW, "--ack", help="How to acknowledge.")] = Ack.individual,
    batch_index_ack: Annotated[
        bool, option(FLOW, "--batch-index-ack", help="Acknowledge single messages of a batch (PIP-54).")
    ] = False,
    nack: Annotated[
        str | None, option(FAIL, "--nack", metavar="EXPR", help="Refuse messages: 'true', 'key == \"bad\"'.")
    ] = None,
    nack_delay: Annotated[
        float, option(FAIL, "--nack-delay", metavar="SECONDS", min=0, help="When they are to come again.")
    ] = 60.0,
    ack_timeout: Annotated[
        float,
        option(
            FAIL, "--ack-timeout", metavar="SECONDS", min=0, help="Ask again for what is not acknowledged."
        ),
    ] = 0.0,
    max_redeliver: Annotated[
        int | None,
        option(
            FAIL,
            "--max-redeliver",
            metavar="N",
            min=1,
            help="After that many times: to the dead letter topic.",
        ),
    ] = None,
    dead_letter_topic: Annotated[
        str | None, option(FAIL, "--dead-letter-topic", metavar="TOPIC", help="Default TOPIC-NAME-DLQ.")
    ] = None,
    retry: Annotated[
        bool, option(FAIL, "--retry", help="Send what is refused to the retry topic, which is consumed too.")
    ] = False,
    retry_topic: Annotated[
        str | None, option(FAIL, "--retry-topic", metavar="TOPIC", help="Default TOPIC-NAME-RETRY.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No summary.")] = False,
) -> int:
    """Consume messages of topics, as pulsar-client does, and acknowledge them."""
    from pulsarctl_wire.cli.consuming import Consuming, View
    from pulsarctl_wire.net.consumer import ConsumerOptions
    from pulsarctl_wire.net.dead_letters import DeadLetters
    from pulsarctl_wire.net.subscription import Subscription
    from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe

    with_letters = max_redeliver is not None or dead_letter_topic is not None or retry
    _check(subscription, type_, ack, with_letters, regex, len(topics))
    names = [topic_name(each) for each in topics]
    dead_letter_topic = dead_letter_topic and topic_name(dead_letter_topic)
    retry_topic = retry_topic and topic_name(retry_topic)
    options = ConsumerOptions(
        subscription,
        type=CommandSubscribe.SubType.Value(type_.value),
        name=consumer_name,
        durable=mode is SubscriptionMode.durable,
        initial=CommandSubscribe.InitialPosition.Value(position.value),
        queue_size=queue_size,
        priority=priority,
        read_compacted=read_compacted,
        replicated=replicated,
        create_topic=not no_create,
        batch_index_ack=batch_index_ack,
        nack_delay=nack_delay,
        ack_timeout=ack_timeout,
        payload_ratio=ratio,
    )
    view = View(
        "none" if hide_content else output.value,
        template=None if hide_content else template,
        hexadecimal=hexadecimal,
        schema=schema,
        filter=filter_,
    )
    async with session.client() as client:
        letters = None
        if with_letters:
            limit = 16 if max_redeliver is None else max_redeliver
            letters = DeadLetters(client, names[0], subscription, limit, dead_letter_topic, retry_topic)
        feed = Subscription(
            client,
            [] if regex else names,
            options,
            pattern=checked_pattern(names[0]) if regex else None,
            extra_topics=[letters.retry_topic] if letters is not None and retry else [],
        )
        return await Consuming(
            client,
            feed,
            view,
            count=num_messages,
            at_end=at_end,
            idle=idle,
            rate=rate,
            ack=ack.value,
            nack=nack,
            letters=letters,
            retry=retry,
            quiet=quiet,
        ).run()


def _check(subscription: str, type_: Type, ack: Ack, with_letters: bool, regex: bool, topics: int) -> None:
    """End the command where options do not go together."""
    if not subscription:
        console.fail("consume: a subscription has a name: -s NAME", console.EXIT_USAGE)
    shared = type_ in (Type.shared, Type.key_shared)
    if ack is Ack.cumulative and shared:
        console.fail("consume: --ack cumulative goes with Exclusive and Failover alone", console.EXIT_USAGE)
    if with_letters and not shared:
        console.fail("consume: dead letters and --retry go with -t Shared or Key_Shared", console.EXIT_USAGE)
    if regex and (topics > 1 or with_letters):
        console.fail("consume: --regex goes with one TOPIC, and without dead letters", console.EXIT_USAGE)


async def read(
    session: Session,
    topics: Annotated[list[str], TOPIC],
    start: Annotated[
        str,
        option(
            END,
            "--from",
            "-m",
            "--start-message-id",
            metavar="WHERE",
            help="earliest, latest, -5 (the last five of each partition), an id as it is printed "
            "(LEDGER:ENTRY), or a time: ISO 8601, seconds since 1970, -10m.",
        ),
    ] = "earliest",
    exclusive: Annotated[
        bool, option(END, "--after", help="Begin behind the message that --from names.")
    ] = False,
    num_messages: Annotated[int | None, READ_COUNT] = None,
    at_end: Annotated[bool, AT_END] = False,
    idle: Annotated[float | None, IDLE] = None,
    output: Annotated[Form, FORM] = Form.text,
    template: Annotated[str | None, TEMPLATE] = None,
    filter_: Annotated[str | None, FILTER] = None,
    hexadecimal: Annotated[bool, HEX] = False,
    schema: Annotated[str, SCHEMA] = "auto",
    hide_content: Annotated[bool, HIDE] = False,
    ratio: Annotated[int | None, PAYLOAD_RATIO] = None,
    queue_size: Annotated[int, QUEUE] = 1000,
    rate: Annotated[float | None, RATE] = None,
    read_compacted: Annotated[
        bool, option(SUB, "--read-compacted", help="Read the compacted topic.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No summary.")] = False,
) -> int:
    """Read messages of topics from anywhere, and leave no trace: nothing is acknowledged."""
    from pulsarctl_wire.cli.consuming import Consuming, View, parse_last, parse_start
    from pulsarctl_wire.cli.last import starts_of_last
    from pulsarctl_wire.net.consumer import EARLIEST, LATEST, ConsumerOptions, reader_name
    from pulsarctl_wire.net.subscription import Subscription
    from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe

    last = parse_last(start)
    place, since_ns = (EARLIEST, None) if last else parse_start(start)
    if since_ns is not None and since_ns > time.time_ns():
        place, since_ns = LATEST, None
    back = 0 if since_ns is None else int(time.time() - since_ns / 1e9) + 1
    options = ConsumerOptions(
        reader_name(),
        type=CommandSubscribe.Exclusive,
        durable=False,
        queue_size=queue_size,
        start=place,
        inclusive=not exclusive,
        rollback=back,
        read_compacted=read_compacted,
        create_topic=False,
        payload_ratio=ratio,
    )
    view = View(
        "none" if hide_content else output.value,
        template=None if hide_content else template,
        hexadecimal=hexadecimal,
        schema=schema,
        filter=filter_,
        since_ms=0 if since_ns is None else since_ns // 1_000_000,
    )
    names = [topic_name(each) for each in topics]
    async with session.client() as client:
        starts = await starts_of_last(client, names, last) if last else {}
        if place not in (None, EARLIEST, LATEST):
            for name in names:
                if await client.partitions(name, create=False):
                    console.fail(f"--from {start} is in one partition; name it: {name}-partition-N", 2)
        return await Consuming(
            client,
            Subscription(client, names, options, starts=starts),
            view,
            count=int(not last) if num_messages is None else num_messages,
            at_end=at_end or (last > 0 and num_messages is None),
            idle=idle,
            rate=rate,
            ack="none",
            quiet=quiet,
        ).run()
