"""`pwire seek`, `unsubscribe`, `last-id` and `consumer-stats`: inspect and change subscriptions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.options import OUTPUT
from pulsarctl_wire.cli.session.lookup import TOPIC, Output, say
from pulsarctl_wire.cli.session.receive_options import Type
from pulsarctl_wire.cli.session.verb import Session
from pulsarctl_wire.cli.signature import flag, option
from pulsarctl_wire.errors import BrokerError, SessionError
from pulsarctl_wire.render.text import clean

if TYPE_CHECKING:
    from pulsarctl_wire.cli.session.visitor import Visitor

SUBSCRIPTION: Final = partial(
    option, "-s --subscription-name NAME", "The subscription.", default=..., show_default=False
)
TYPE: Final = partial(
    option,
    "-t --type",
    "Subscription type to join with; it must be that of connected consumers.",
    case_sensitive=False,
    show_default="Shared, else Failover, else Key_Shared",
)


@dataclass(frozen=True, kw_only=True)
class SeekOptions:
    """The options of `seek`."""

    topic: str = TOPIC()
    subscription: str = SUBSCRIPTION()
    to: str = option(
        "--to WHERE",
        "earliest, latest, LEDGER:ENTRY, 'LEDGER:ENTRY[INDEX]' (of a batch), or a time: ISO 8601, "
        "seconds since 1970, -10m. Brokers without batch index acknowledgement ignore INDEX.",
        default=...,
        show_default=False,
    )
    type_: Type | None = TYPE()
    create: bool = flag("--create", "Create the subscription if it does not exist.")
    output: Output = OUTPUT(default="text")


async def seek(session: Session, options: SeekOptions) -> int:
    """Move a subscription to a message, or to the first one published at a time or later.

    Prints the mark-delete position, up to which everything is acknowledged. Consumers are disconnected.
    """
    from pulsarctl_wire.cli.session.consume_run import parse_start
    from pulsarctl_wire.cli.session.visitor import make_seek_fields, visit
    from pulsarctl_wire.net.session.receive_queue import EARLIEST, LATEST

    subscription = options.subscription
    position, time_ns = parse_start(options.to)

    async def move(visitor: Visitor) -> None:
        name = visitor.topic
        target = await make_seek_fields(visitor.client, name, position, time_ns)
        existed = await visitor.join(options.type_, create=options.create)
        old_place, last = await visitor.fetch_places()
        await visitor.ask("SEEK", **target)
        try:
            await visitor.join_again()
            new_place, last = await visitor.fetch_places()
        except SessionError as error:
            console.warn(f"{name}: {subscription} was moved, but its position is unknown: {error}")
            new_place = None
        record = {"topic": name, "subscription": subscription, "to": options.to, "created": not existed}
        record |= {"before": old_place if existed else None, "after": new_place, "last": last}
        origin = f" from {_text(old_place)}" if existed else ""
        text = f"{name}: {subscription}{origin} to {_text(new_place)}, last message {_text(last)}"
        say(record, clean(text), options.output)

    is_message = position not in (None, EARLIEST, LATEST)
    message_option = f"--to {options.to}" if is_message else ""
    return await visit(session, options.topic, subscription, move, message_option=message_option)


@dataclass(frozen=True, kw_only=True)
class UnsubscribeOptions:
    """The options of `unsubscribe`."""

    topic: str = TOPIC()
    subscription: str = SUBSCRIPTION()
    force: bool = flag("--force", "Delete it even if consumers are connected; they may create it again.")
    type_: Type | None = TYPE()
    output: Output = OUTPUT(default="text")


async def unsubscribe(session: Session, options: UnsubscribeOptions) -> int:
    """Delete a subscription together with its backlog."""
    from pulsarctl_wire.cli.session.visitor import visit

    subscription = options.subscription

    async def delete(visitor: Visitor) -> None:
        await visitor.join(options.type_)
        try:
            await visitor.ask("UNSUBSCRIBE", force=options.force or None)
        except BrokerError as error:
            if options.force or error.code != "MetadataError":
                raise
            hint = "other consumers are connected; --force closes them"
            raise BrokerError(error.code, error.detail, error.request, hint) from None
        record = {"topic": visitor.topic, "subscription": subscription, "unsubscribed": True}
        say(record, clean(f"{visitor.topic}: {subscription} is deleted"), options.output)

    return await visit(session, options.topic, subscription, delete)


@dataclass(frozen=True, kw_only=True)
class LastIdOptions:
    """The options of `last-id`."""

    topic: str = TOPIC()
    subscription: str | None = option(
        "-s --subscription-name NAME", "Also print this subscription's mark-delete position."
    )
    type_: Type | None = TYPE()
    output: Output = OUTPUT(default="text")


async def last_id(session: Session, options: LastIdOptions) -> int:
    """Print the id of the last message of a topic, or of each partition, one per line."""
    from pulsarctl_wire.cli.session.visitor import visit
    from pulsarctl_wire.net.session.consumer import make_reader_name

    subscription = options.subscription

    async def show(visitor: Visitor) -> None:
        if subscription is None:
            await visitor.read(None)
        else:
            await visitor.join(options.type_)
        mark, last = await visitor.fetch_places()
        record: dict[str, Any] = {"topic": visitor.topic, **last}
        text = f"{visitor.topic} {last['id'] or 'no message'}"
        if subscription is not None:
            record |= {"subscription": subscription, "mark_delete": mark}
            text += f", {subscription} acknowledged up to {_text(mark)}"
        say(record, clean(text), options.output)

    return await visit(session, options.topic, subscription or make_reader_name(), show)


@dataclass(frozen=True, kw_only=True)
class ConsumerStatsOptions:
    """The options of `consumer-stats`."""

    topic: str = TOPIC()
    subscription: str = SUBSCRIPTION()
    type_: Type | None = TYPE()
    output: Output = OUTPUT(default="text")


async def consumer_stats(session: Session, options: ConsumerStatsOptions) -> int:
    """Join a subscription, and print the broker's statistics of that consumer.

    Type and backlog are those of the subscription.
    """
    from pulsarctl_wire.cli.session.visitor import visit
    from pulsarctl_wire.wire.fields import Walker, to_signed

    subscription = options.subscription

    async def show(visitor: Visitor) -> None:
        await visitor.join(options.type_)
        stats = Walker()(await visitor.ask("CONSUMER_STATS"))
        name = visitor.topic
        del stats["request_id"]
        # permits can be negative, but the field is unsigned
        stats["availablePermits"] = to_signed(stats.get("availablePermits", 0))
        lines = [f"{name}, {subscription}"]
        lines += [f"  {key}: {_format_value(value)}" for key, value in stats.items()]
        text = "\n".join(map(clean, lines))
        say({"topic": name, "subscription": subscription, **stats}, text, options.output)

    return await visit(session, options.topic, subscription, show)


def _format_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) or "none"


def _text(place: dict[str, Any] | None) -> str:
    return "unknown" if place is None else place["id"] or "none"
