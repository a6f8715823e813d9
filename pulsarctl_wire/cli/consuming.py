"""The loop of `consume` and `read`: what is delivered is shown, acknowledged or refused, until the end."""

import asyncio
import re
import sys
import time
from datetime import datetime, timezone
from typing import Final

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.produce import Pace, schema_of
from pulsarctl_wire.cli.received import NAMES, message_record, shower
from pulsarctl_wire.cli.select import Rule
from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.net.acks import Position
from pulsarctl_wire.net.client import Client
from pulsarctl_wire.net.consumer import EARLIEST, LATEST, Consumer, ConsumerOptions
from pulsarctl_wire.net.dead_letters import DeadLetters
from pulsarctl_wire.net.inbox import Delivery
from pulsarctl_wire.net.schemas import SchemaBook
from pulsarctl_wire.net.subscription import Subscription
from pulsarctl_wire.wire.payload import Message
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe, Schema

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_GRACE: Final = 3.0
"""Seconds after which `--exit-at-end` takes it that no more comes: of what is left, some is not for us.

The last message may be acknowledged already, delivered later, or belong to another consumer.
"""
_NEVER: Final = 2**64 - 1
_SILENCE: Final = 1.0
"""Seconds without a message, at the beginning, after which it is said that one is waited for."""


def parse_start(text: str) -> tuple[Position | None, int | None]:
    """Where `read --from` begins: a position, or ns since the epoch. Ids are read as they are printed.

    Raises SettingsError for what is neither, or is out of all bounds.
    """
    if text.lower() in ("earliest", "latest"):
        return (EARLIEST if text.lower() == "earliest" else LATEST), None
    found = re.fullmatch(r"(\d{1,18}):(\d{1,18})(?::\d{1,9})?(?:\[(\d{1,9})\])?", text)
    if found:
        return (int(found[1]), int(found[2]), int(found[3] or -1)), None
    return None, parse_time(text)


def parse_last(text: str) -> int:
    """How many messages `read --from -N` asks for; 0 if it says something else."""
    return int(text[1:]) if re.fullmatch(r"-\d{1,7}", text) else 0


def parse_time(text: str) -> int:
    """A moment in ns since the epoch: ISO 8601, seconds since 1970, or -10m ago. Raises SettingsError."""
    ago = re.fullmatch(r"-(\d{1,9}(?:\.\d{1,9})?)([smhd])", text)
    if ago:
        return time.time_ns() - int(float(ago[1]) * _UNITS[ago[2]] * 1e9)
    if re.fullmatch(r"\d{1,11}(\.\d{1,9})?", text):
        return int(float(text) * 1e9)
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return int((moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp() * 1e9)
    except (ValueError, OverflowError):
        raise SettingsError(
            f"{text}: neither earliest, latest, LEDGER:ENTRY[INDEX] nor a time "
            "(ISO 8601, seconds since 1970, -10m)"
        ) from None


def _begins_behind(options: ConsumerOptions, last: Position) -> bool:
    """Whether a reader begins behind the last message there is."""
    start = options.start
    if start is None or start == EARLIEST:
        return False
    if start[2] < 0:
        last = (*last[:2], -1)
    return start > last or (start == last and not options.inclusive)


class View:
    """Which messages are shown, and how. Raises FilterError and SettingsError for what makes no sense."""

    def __init__(
        self,
        form: str,
        *,
        template: str | None,
        hexadecimal: bool,
        schema: str,
        filter: str | None,
        since_ms: int = 0,
    ) -> None:
        self.show = shower(form, template, hexadecimal=hexadecimal)
        self.asks = schema == "auto" and form != "none" and template is None and not hexadecimal
        self.schema = None if schema == "auto" else schema_of(schema)
        self.rule = None if filter is None else Rule(filter, NAMES, "--filter", "docs/cli.md")
        self.since_ms = since_ms

    def hides(self, delivery: Delivery, message: Message, schema: Schema | None) -> bool:
        """Whether a message is not to be shown."""
        entry = delivery.frame.metadata
        if entry is not None and entry.publish_time < self.since_ms:
            return True
        return self.rule is not None and not self.rule.matches(message_record(delivery, message, schema))


class Consuming:
    """One run. `ack` is "individual", "cumulative" or "none"."""

    def __init__(
        self,
        client: Client,
        feed: Subscription,
        view: View,
        *,
        count: int,
        at_end: bool,
        idle: float | None,
        rate: float | None,
        ack: str,
        quiet: bool,
        nack: str | None = None,
        letters: DeadLetters | None = None,
        retry: bool = False,
    ) -> None:
        self._client = client
        self._feed = feed
        self._view = view
        self._left = count or _NEVER
        self._at_end = at_end
        self._idle = idle
        self._pace = Pace(rate) if rate else None
        self._ack = ack
        self._nack = None if nack is None else Rule(nack, NAMES, "--nack", "docs/cli.md")
        self._letters = letters
        self._retry = retry
        self._quiet = quiet
        self._book = SchemaBook(client)
        self._waiting: asyncio.TimerHandle | None = None
        self._shown = self._hidden = self._refused = 0
        self._ends: dict[Consumer, tuple[int, int]] = {}
        self._out = sys.stdout.buffer

    async def run(self) -> int:
        """Consume until the end; gives the exit code."""
        await self._feed.open()
        began = time.perf_counter()
        code = 0
        try:
            if self._at_end:
                await self._find_ends()
            if not self._quiet:
                self._waiting = asyncio.get_running_loop().call_later(_SILENCE, self._say_waiting)
            await self._loop()
        except asyncio.CancelledError:
            if self._left < _NEVER or self._at_end:
                code = console.EXIT_INTERRUPTED
            # else Ctrl-C is the way to end
        finally:
            self._arrived()
            try:
                self._out.flush()
            finally:  # what was shown is acknowledged, also when nobody reads on
                await self._feed.close()
                if self._letters is not None:
                    await self._letters.close()
                if not self._quiet:
                    self._say(time.perf_counter() - began)
        return code

    async def _find_ends(self) -> None:
        """Where each topic ends now; those that are read to their ends already are left out."""
        for consumer in list(self._feed.consumers.values()):
            if consumer.topic.startswith("non-persistent:"):
                continue  # nothing is there but what comes
            body = await consumer.ask("GET_LAST_MESSAGE_ID")
            last = body.last_message_id.ledgerId, body.last_message_id.entryId
            done = body.consumer_mark_delete_position
            seen = (done.ledgerId, done.entryId) if body.HasField("consumer_mark_delete_position") else None
            options = consumer.options
            if options.durable:
                nothing = seen is not None and seen[1] != _NEVER and seen >= last
            else:
                nothing = _begins_behind(options, (*last, body.last_message_id.batch_index))
            if last[1] != _NEVER and not nothing:
                self._ends[consumer] = last

    async def _loop(self) -> None:
        while self._left > 0 and not (self._at_end and not self._ends):
            seconds = self._idle
            if self._at_end:
                seconds = _GRACE if seconds is None else min(seconds, _GRACE)
            if not self._feed.inbox:
                self._out.flush()
            if not await self._consume_next(seconds):
                return  # the topics were terminated, or nothing came

    async def _consume_next(self, seconds: float | None) -> bool:
        """Consume one delivery, of which nothing is kept when the next one is opened."""
        delivery = await self._feed.take(seconds)
        self._arrived()
        if delivery is None:
            return False
        try:
            await self._consume(delivery)
        except MemoryError:
            delivery.consumer.leave(delivery, "too little memory to show it")
            self._passed(delivery)
        return True

    async def _consume(self, delivery: Delivery) -> None:
        consumer, letters = delivery.consumer, self._letters
        if letters is not None and not self._retry and delivery.redelivered > letters.limit:
            for message in delivery.messages:
                await letters.bury(delivery, message)
            self._passed(delivery)
            return
        schema = self._view.schema
        entry = delivery.frame.metadata
        if self._view.asks and entry is not None and entry.schema_version:
            schema = await self._book.find(consumer.topic, entry.schema_version)
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
                    return  # it comes again
                self._show(delivery, [message], schema)
                await self._settle(delivery, message, schema)
        self._passed(delivery)

    def _passed(self, delivery: Delivery) -> None:
        delivery.consumer.taken(delivery)
        end = self._ends.get(delivery.consumer)
        if end is not None and delivery.id >= end:
            del self._ends[delivery.consumer]

    def _show(self, delivery: Delivery, messages: list[Message], schema: Schema | None) -> None:
        view = self._view
        if view.rule is not None or view.since_ms:
            shown = [each for each in messages if not view.hides(delivery, each, schema)]
            self._hidden += len(messages) - len(shown)
            messages = shown
        for message in messages:
            self._out.write(view.show(delivery, message, schema))
        self._shown += len(messages)
        if self._left < _NEVER:
            self._left -= len(messages)

    def _acknowledge(self, delivery: Delivery, message: Message | None) -> None:
        if self._ack == "none":
            return
        self._out.flush()  # what is acknowledged has been shown
        if self._ack == "cumulative":
            delivery.consumer.ack_cumulatively(delivery, message or delivery.messages[-1])
        else:
            delivery.consumer.ack(delivery, message)

    async def _settle(self, delivery: Delivery, message: Message, schema: Schema | None) -> None:
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

    def _arrived(self) -> None:
        """There is nothing to be said any more about nothing coming."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _say_waiting(self) -> None:
        topics = list(self._feed.consumers)
        more = f" and {len(topics) - 1} more" if len(topics) > 1 else ""
        options = self._feed.options
        text = f"waiting for messages of {topics[0] if topics else 'topics to come'}{more}"
        if options.durable:
            text += f", subscription {options.subscription}"
            if options.initial == CommandSubscribe.Latest:
                text += "; a new one begins with what comes from now on, with -p Earliest with what is there"
        console.complain(text)

    def _say(self, seconds: float) -> None:
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
            (counts["unopened"], "entries left unopened and unacknowledged"),
            (counts["let go"], "entries let go for want of room"),
            (counts["duplicate"], "entries delivered again although acknowledged"),
        ):
            if number:
                parts.append(f"{number} {name}")
        console.complain(", ".join(parts))
