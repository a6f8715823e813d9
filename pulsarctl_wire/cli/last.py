"""Where the last N messages of a topic begin, found by the protocol alone.

GET_LAST_MESSAGE_ID names the last entry. Entries of a ledger are numbered from 0, but no command names the
ledger before it: a reader that begins at a place gets the first message from there on, so halving finds it.
How many messages the entries hold is counted by reading them once.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from pulsarctl_wire.cli.inspect import Visitor
from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.net.client import each_of
from pulsarctl_wire.net.consumer import EARLIEST, LATEST, ConsumerOptions, reader_name
from pulsarctl_wire.net.subscription import Subscription
from pulsarctl_wire.net.warnings import Warnings
from pulsarctl_wire.wire.names import partition_index, partition_name

if TYPE_CHECKING:
    from pulsarctl_wire.net.acks import Position
    from pulsarctl_wire.net.client import Client

_Place = tuple[int, int]  # ledger and entry

_LEDGERS: Final = 20  # that are looked for one by one, before all of a topic is read
_GRACE: Final = 3.0  # seconds without a message, after which the last entry is taken to hold none
_TIMES: Final = (1, 8, 64)  # as many entries, where some hold no whole message
_MOST_ENTRIES: Final = 2**40  # of a ledger


async def starts_of_last(client: Client, topics: list[str], count: int) -> dict[str, Position]:
    """Where the last `count` messages begin, of each of these topics (full names) or its partitions.

    Raises SettingsError for a topic that keeps none, and SessionError.
    """
    names: list[str] = []
    for topic in topics:
        if not topic.startswith("persistent://"):
            raise SettingsError(f"--from -{count}: {topic} keeps no messages")
        partitions = await client.partitions(topic, create=False) if partition_index(topic) < 0 else 0
        names += [partition_name(topic, index) for index in range(partitions)] or [topic]
    warn, client.warn = client.warn, Warnings(lambda text: None)  # what is odd is said when it is shown
    try:
        starts = await each_of(names, lambda each: start_of_last(client, each, count))
    finally:
        client.warn = warn
    return dict(zip(names, starts, strict=True))


async def start_of_last(client: Client, topic: str, count: int) -> Position:
    """The position of the message `count` from the end of `topic` (a full name, not partitioned).

    That of the first message if there are fewer, `LATEST` if there is none. Chunks may hide some: messages of
    more than 64 entries each are not looked for. Raises SessionError.
    """
    async with Visitor(client, topic, reader_name()) as visitor:
        await visitor.read(None)
        _, place = await visitor.places()
    last = place["ledger"], place["entry"]
    if last < (0, 0):
        return LATEST
    for entries in (count * times for times in _TIMES):
        start = await _back(client, topic, last, entries)
        found = await _read(client, topic, start, last, count)
        if len(found) == count or start == EARLIEST:
            break
    return found[0] if found else LATEST


async def _read(client: Client, topic: str, start: Position, last: _Place, count: int) -> deque[Position]:
    """The positions of the last `count` messages from `start` up to the entry `last`."""
    found: deque[Position] = deque(maxlen=count)
    feed = Subscription(client, [topic], ConsumerOptions(reader_name(), durable=False, start=start))
    try:
        await feed.open()
        while (delivery := await feed.take(_GRACE)) is not None and delivery.id <= last:
            first = (*delivery.ids[0], -1)
            several = len(delivery.ids) > 1
            found.extend(first if several else delivery.position(each) for each in delivery.messages)
            delivery.consumer.taken(delivery)
            if delivery.id == last:
                break
    finally:
        await feed.close()
    return found


async def _back(client: Client, topic: str, last: _Place, entries: int) -> Position:
    """Where the last `entries` entries begin, `EARLIEST` if there are no more."""
    ledger, entry = last
    for _ in range(_LEDGERS):
        if entries <= entry + 1:
            return ledger, entry + 1 - entries, -1
        entries -= entry + 1
        first, _ = await _first(client, topic, EARLIEST)
        if first >= ledger:
            break
        ledger, entry = await _before(client, topic, first, ledger)
    return EARLIEST


async def _before(client: Client, topic: str, first: int, ledger: int) -> _Place:
    """The last entry before `ledger`; `first` is a ledger before it."""
    end = ledger  # a message from there on is in `ledger` or behind it
    while end - first > 1:
        middle = (first + end) // 2
        found, _ = await _first(client, topic, (middle, 0, -1))
        if found < ledger:
            first = max(found, middle)
        else:
            end = middle
    entry, end = 0, 1
    while end < _MOST_ENTRIES and (await _first(client, topic, (first, end, -1)))[0] == first:
        entry, end = end, 2 * end
    while end - entry > 1:
        middle = (entry + end) // 2
        if (await _first(client, topic, (first, middle, -1)))[0] == first:
            entry = middle
        else:
            end = middle
    return first, entry


async def _first(client: Client, topic: str, position: Position) -> _Place:
    """Ledger and entry of the first message from `position` on."""
    async with Visitor(client, topic, reader_name()) as visitor:
        await visitor.read(position)
        found = (await visitor.first()).body.message_id
        return found.ledgerId, found.entryId
