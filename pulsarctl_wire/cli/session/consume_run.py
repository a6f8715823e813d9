"""The loop of `consume` and `read`: shows messages, and acknowledges or refuses them, until the end."""

import asyncio
import re
import sys
import time
from typing import Final, NamedTuple

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.capture.select import Rule
from pulsarctl_wire.cli.options import parse_time
from pulsarctl_wire.cli.session.produce import Pace, parse_message_schema
from pulsarctl_wire.cli.session.receive_options import ReceiveOptions
from pulsarctl_wire.cli.session.received import NAMES, make_shower, message_record
from pulsarctl_wire.net.session.acks import Position
from pulsarctl_wire.net.session.client import Client
from pulsarctl_wire.net.session.consumer import Consumer
from pulsarctl_wire.net.session.dead_letters import DeadLetters
from pulsarctl_wire.net.session.inbox import Delivery
from pulsarctl_wire.net.session.receive_queue import EARLIEST, LATEST, ConsumerOptions
from pulsarctl_wire.net.session.subscription import Subscription
from pulsarctl_wire.wire.payload import Message
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe, Schema

_GRACE: Final = 3.0
"""Seconds without a message after which `--exit-at-end` ends: the last message may never come.

It may be acknowledged already, delivered later, or go to another consumer.
"""
_ENDLESS: Final = 2**64 - 1
"""The number of messages of a run without an end."""
_NO_ENTRY: Final = 2**64 - 1
"""The entry id of a position that names no entry: -1 as an unsigned number."""
_SILENCE: Final = 1.0
"""Seconds without a first message after which we print that we are waiting."""


def parse_start(text: str) -> tuple[Position | None, int | None]:
    """Parse `read --from`: gives a position, or a time in ns since the epoch. Ids look as printed.

    The partition in an id is ignored. Raises SettingsError for anything else, and for values out of range.
    """
    if text.lower() in ("earliest", "latest"):
        return (EARLIEST if text.lower() == "earliest" else LATEST), None
    match = re.fullmatch(r"(\d{1,18}):(\d{1,18})(?::\d{1,9})?(?:\[(\d{1,9})\])?", text)
    if match:
        return (int(match[1]), int(match[2]), int(match[3] or -1)), None
    return None, parse_time(text, "earliest, latest, LEDGER:ENTRY[INDEX]")


def parse_last(text: str) -> int:
    """Parse the N of `read --from -N`; 0 for any other text."""
    return int(text[1:]) if re.fullmatch(r"-\d{1,7}", text) else 0


def _starts_after(options: ConsumerOptions, last: Position) -> bool:
    """Return whether a reader starts after the last message."""
    start = options.start
    if start is None or start == EARLIEST:
        return False
    if start[2] < 0:  # the start names a whole entry
        last = (*last[:2], -1)
    return start > last or (start == last and not options.inclusive)


class View:
    """The choice of messages to show, and how. Those published before `since_ms` are hidden.

    `wants_schemas`: messages are decoded by their own schemas, which have to be fetched from the broker.
    Raises FilterError and SettingsError for invalid options.
    """

    def __init__(self, intake: ReceiveOptions, since_ms: int = 0) -> None:
        form = "none" if intake.hide_content else intake.output
        template = None if intake.hide_content else intake.template
        schema, filter_ = intake.schema, intake.filter
        self.show = make_shower(form, template, hexadecimal=intake.hexadecimal)
        self.wants_schemas = (
            schema == "auto" and form != "none" and template is None and not intake.hexadecimal
        )
        self.schema = None if schema == "auto" else parse_message_schema(schema)
        self.rule = None if filter_ is None else Rule(filter_, NAMES, "--filter", "docs/cli.md")
        self.since_ms = since_ms

    def hides(self, delivery: Delivery[Consumer], message: Message, schema: Schema | None) -> bool:
        """Return whether not to show a message."""
        entry = delivery.frame.metadata
        if entry is not None and entry.publish_time < self.since_ms:
            return True
        return self.rule is not None and not self.rule.matches(message_record(delivery, message, schema))


class NackRule(NamedTuple):
    """Which messages to refuse: those for which `nack` holds.

    With `letters`, those that come too often go to the dead letter topic; with `retry`, the others go to the
    retry topic.
    """

    nack: str | None = None
    letters: DeadLetters | None = None
    retry: bool = False


_NO_NACKS: Final = NackRule()


class ConsumeRun:
    """One run, of `count` messages (0: endless). `ack` is "individual", "cumulative" or "none"."""

    def __init__(
        self,
        client: Client,
        feed: Subscription,
        intake: ReceiveOptions,
        view: View,
        *,
        count: int,
        ack: str = "none",
        nack_rule: NackRule = _NO_NACKS,
    ) -> None:
        self._client = client
        self._feed = feed
        self._view = view
        self._left = count or _ENDLESS
        self._at_end = intake.at_end
        self._idle = intake.idle
        self._pace = Pace(intake.rate) if intake.rate else None
        self._ack = ack
        nack = nack_rule.nack
        self._nack = None if nack is None else Rule(nack, NAMES, "--nack", "docs/cli.md")
        self._letters = nack_rule.letters
        self._retry = nack_rule.retry
        self._quiet = intake.quiet
        self._notice: asyncio.TimerHandle | None = None
        self._shown = self._hidden = self._refused = 0
        self._ends: dict[Consumer, tuple[int, int]] = {}  # ledger and entry up to which each has to read
        self._out = sys.stdout.buffer

    async def run(self) -> int:
        """Consume until the end; returns the exit code."""
        await self._feed.open()
        start = time.perf_counter()
        code = 0
        try:
            if self._at_end:
                await self._find_ends()
            if not self._quiet:
                self._notice = asyncio.get_running_loop().call_later(_SILENCE, self._say_waiting)
            await self._loop()
        except asyncio.CancelledError:
            if self._left < _ENDLESS or self._at_end:
                code = console.EXIT_INTERRUPTED
            # else Ctrl-C is the normal way to end
        finally:
            self._cancel_notice()
            try:
                self._out.flush()
            finally:  # send acknowledgements of shown messages, even if stdout fails
                await self._feed.close()
                if self._letters is not None:
                    await self._letters.close()
                if not self._quiet:
                    self._say_summary(time.perf_counter() - start)
        return code

    async def _find_ends(self) -> None:
        """Find the current end of each topic, except for topics without any message left to read."""
        for consumer in list(self._feed.consumers.values()):
            if consumer.topic.startswith("non-persistent:"):
                continue  # it stores no messages
            body = await consumer.ask("GET_LAST_MESSAGE_ID")
            last = body.last_message_id.ledgerId, body.last_message_id.entryId
            place = body.consumer_mark_delete_position
            mark = (place.ledgerId, place.entryId) if body.HasField("consumer_mark_delete_position") else None
            options = consumer.options
            if options.durable:
                is_empty = mark is not None and mark[1] != _NO_ENTRY and mark >= last
            else:
                is_empty = _starts_after(options, (*last, body.last_message_id.batch_index))
            if last[1] != _NO_ENTRY and not is_empty:
                self._ends[consumer] = last

    async def _loop(self) -> None:
        while self._left > 0 and not (self._at_end and not self._ends):
            seconds = self._idle
            if self._at_end:
                seconds = _GRACE if seconds is None else min(seconds, _GRACE)
            if not self._feed.inbox:
                self._out.flush()
            if not await self._consume_next(seconds):
                return  # the topics were terminated, or no message came in time

    async def _consume_next(self, seconds: float | None) -> bool:
        """Consume the next delivery; return False if none came within `seconds`, or the topics have ended.

        Only a local variable holds the delivery, so that it is freed before the next one is opened.
        """
        delivery = await self._feed.take(seconds)
        self._cancel_notice()
        if delivery is None:
            return False
        try:
            await self._consume(delivery)
        except MemoryError:
            delivery.consumer.report_unopened(delivery, "too little memory to show it")
            self._finish_delivery(delivery)
        return True

    async def _consume(self, delivery: Delivery[Consumer]) -> None:
        consumer, letters = delivery.consumer, self._letters
        # at the limit, messages are shown once more: `_settle` buries those that are refused
        if letters is not None and not self._retry and delivery.redelivered > letters.limit:
            for message in delivery.messages:
                await letters.bury(delivery, message)
            self._finish_delivery(delivery)
            return
        schema = self._view.schema
        entry = delivery.frame.metadata
        if self._view.wants_schemas and entry is not None and entry.schema_version:
            schema = await self._client.fetch_schema(consumer.topic, entry.schema_version)
        if self._nack is None and self._pace is None and len(delivery.messages) <= self._left:
            self._show(delivery, delivery.messages, schema)
            self._acknowledge(delivery, None)
        else:
            for message in delivery.messages:
                if self._left <= 0:
                    break
                if self._pace is not None:
                    self._out.flush()
                    await self._pace.wait()
                if not delivery.is_current:
                    return  # it will be redelivered
                self._show(delivery, [message], schema)
                await self._settle(delivery, message, schema)
        self._finish_delivery(delivery)

    def _finish_delivery(self, delivery: Delivery[Consumer]) -> None:
        delivery.consumer.release_permits(delivery)
        end = self._ends.get(delivery.consumer)
        if end is not None and delivery.id >= end:
            del self._ends[delivery.consumer]

    def _show(self, delivery: Delivery[Consumer], messages: list[Message], schema: Schema | None) -> None:
        view = self._view
        if view.rule is not None or view.since_ms:
            visible = [message for message in messages if not view.hides(delivery, message, schema)]
            self._hidden += len(messages) - len(visible)
            messages = visible
        for message in messages:
            self._out.write(view.show(delivery, message, schema))
        self._shown += len(messages)
        if self._left < _ENDLESS:
            self._left -= len(messages)

    def _acknowledge(self, delivery: Delivery[Consumer], message: Message | None) -> None:
        """Acknowledge `message`, or the whole delivery if it is None, as `--ack` says."""
        if self._ack == "none":
            return
        self._out.flush()  # acknowledge only what was shown
        if self._ack == "cumulative":
            delivery.consumer.ack_cumulatively(delivery, message or delivery.messages[-1])
        else:
            delivery.consumer.ack(delivery, message)

    async def _settle(self, delivery: Delivery[Consumer], message: Message, schema: Schema | None) -> None:
        """Acknowledge or refuse a message."""
        rule, letters = self._nack, self._letters
        if rule is None or not rule.matches(message_record(delivery, message, schema)):
            self._acknowledge(delivery, message)
            return
        self._refused += 1
        if letters is not None and self._retry:
            await letters.retry(delivery, message, delivery.consumer.options.nack_delay)
        elif letters is not None and delivery.redelivered >= letters.limit:
            await letters.bury(delivery, message)
        else:
            delivery.consumer.nack(delivery)

    def _cancel_notice(self) -> None:
        """Cancel the notice that we are waiting."""
        if self._notice is not None:
            self._notice.cancel()
            self._notice = None

    def _say_waiting(self) -> None:
        topics = list(self._feed.consumers)
        note = f" and {len(topics) - 1} more" if len(topics) > 1 else ""
        options = self._feed.options
        text = f"waiting for messages of {topics[0] if topics else 'new topics'}{note}"
        if options.durable:
            text += f", subscription {options.subscription}"
            if options.initial == CommandSubscribe.Latest:
                text += "; a new subscription starts with new messages, with -p Earliest at the first one"
        console.warn(text)

    def _say_summary(self, seconds: float) -> None:
        counts = self._feed.counts
        parts = [f"{self._shown} message{'' if self._shown == 1 else 's'}"]
        if self._shown > 1:
            parts.append(f"{self._shown / seconds:,.0f}/s")
        letters = self._letters
        for number, name in (
            (self._hidden, "not shown"),
            (self._refused, "refused"),
            (letters.retried if letters else 0, "to the retry topic"),
            (letters.buried if letters else 0, "to the dead letter topic"),
            (counts["corrupt"], "entries corrupt"),
            (counts["undecryptable"], "entries that no key opens discarded"),
            (counts["unopened"], "entries left unopened and unacknowledged"),
            (counts["dropped"], "entries dropped because too many waited"),
            (counts["duplicate"], "entries redelivered although acknowledged"),
        ):
            if number:
                parts.append(f"{number} {name}")
        console.warn(", ".join(parts))
