"""Finds where the last N messages of a topic start, with the binary protocol alone.

GET_LAST_MESSAGE_ID names the last entry. Entries of a ledger are numbered from 0, but no command names the
previous ledger. A reader that starts at a position gets the first message from there on, so a binary search
finds the previous ledger and its last entry. Entries may hold several messages, so the last entries are read
to count their messages.
"""

from __future__ import annotations

from collections import deque
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from pulsarctl_wire.cli.session.visitor import Visitor
from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.net.driver import Warnings
from pulsarctl_wire.net.session.client import run_each
from pulsarctl_wire.net.session.consumer import make_reader_name
from pulsarctl_wire.net.session.receive_queue import EARLIEST, LATEST, ConsumerOptions
from pulsarctl_wire.net.session.subscription import Subscription
from pulsarctl_wire.wire.names import partition_index, partition_name

if TYPE_CHECKING:
    from pulsarctl_wire.net.session.acks import Position
    from pulsarctl_wire.net.session.client import Client

_Place = tuple[int, int]  # ledger and entry

_MAX_LEDGERS: Final = 20  # ledgers to search one by one before the whole topic is read
_GRACE: Final = 3.0  # after this many seconds without a message, the last entry is assumed to hold none
_FACTORS: Final = (1, 8, 64)  # entries to read per message; more if some hold no complete one
_MAX_ENTRIES: Final = 2**40  # per ledger


async def find_starts(client: Client, topics: list[str], count: int) -> dict[str, Position]:
    """Find where the last `count` messages start in each of `topics` (full names) or its partitions.

    Raises SettingsError for a topic that is not persistent, and SessionError.
    """
    names: list[str] = []
    for topic in topics:
        if not topic.startswith("persistent://"):
            raise SettingsError(f"--from -{count}: {topic} keeps no messages")
        partitions = await client.count_partitions(topic, create=False) if partition_index(topic) < 0 else 0
        names += [partition_name(topic, index) for index in range(partitions)] or [topic]
    warn, client.warn = client.warn, Warnings(lambda text: None)  # `read` will repeat the warnings
    try:
        starts = await run_each(names, lambda name: find_start(client, name, count))
    finally:
        client.warn = warn
    return dict(zip(names, starts, strict=True))


async def find_start(client: Client, topic: str, count: int) -> Position:
    """Find the position of the message `count` from the end of `topic` (a full name, not partitioned).

    If there are fewer messages, return that of the first one; if there are none, `LATEST`. Chunked messages
    of more than 64 entries each may be missed. Raises SessionError.
    """
    async with aclosing(Visitor(client, topic, make_reader_name())) as visitor:
        await visitor.read(None)
        _, place = await visitor.fetch_places()
    last = place["ledger"], place["entry"]
    if last < (0, 0):
        return LATEST
    for entries in (count * factor for factor in _FACTORS):
        start = await _step_back(client, topic, last, entries)
        positions = await _read(client, topic, start, last, count)
        if len(positions) == count or start == EARLIEST:
            break
    return positions[0] if positions else LATEST


async def _read(client: Client, topic: str, start: Position, last: _Place, count: int) -> deque[Position]:
    """Read the positions of the last `count` messages from `start` up to the entry `last`."""
    positions: deque[Position] = deque(maxlen=count)
    feed = Subscription(client, [topic], ConsumerOptions(make_reader_name(), durable=False, start=start))
    try:
        await feed.open()
        while (delivery := await feed.take(_GRACE)) is not None and delivery.id <= last:
            first = (*delivery.ids[0], -1)
            is_chunked = len(delivery.ids) > 1
            positions.extend(
                first if is_chunked else delivery.position(message) for message in delivery.messages
            )
            delivery.consumer.release_permits(delivery)
            if delivery.id == last:
                break
    finally:
        await feed.close()
    return positions


async def _step_back(client: Client, topic: str, last: _Place, entries: int) -> Position:
    """Find where the last `entries` entries start; `EARLIEST` if there are fewer, or too many ledgers."""
    ledger, entry = last
    for _ in range(_MAX_LEDGERS):
        if entries <= entry + 1:
            return ledger, entry + 1 - entries, -1
        entries -= entry + 1
        first, _ = await _find_first(client, topic, EARLIEST)
        if first >= ledger:
            break
        ledger, entry = await _find_last_before(client, topic, first, ledger)
    return EARLIEST


async def _find_last_before(client: Client, topic: str, first: int, ledger: int) -> _Place:
    """Find the last entry before `ledger`; `first` is an earlier ledger."""
    end = ledger  # the first message from ledger `end` on is in `ledger` or a later one
    while end - first > 1:
        middle = (first + end) // 2
        next_ledger, _ = await _find_first(client, topic, (middle, 0, -1))
        if next_ledger < ledger:
            first = max(next_ledger, middle)
        else:
            end = middle
    entry, end = 0, 1
    while end < _MAX_ENTRIES and (await _find_first(client, topic, (first, end, -1)))[0] == first:
        entry, end = end, 2 * end
    while end - entry > 1:
        middle = (entry + end) // 2
        if (await _find_first(client, topic, (first, middle, -1)))[0] == first:
            entry = middle
        else:
            end = middle
    return first, entry


async def _find_first(client: Client, topic: str, position: Position) -> _Place:
    """Find the ledger and entry of the first message from `position` on."""
    async with aclosing(Visitor(client, topic, make_reader_name())) as visitor:
        await visitor.read(position)
        message_id = (await visitor.take_first()).body.message_id
        return message_id.ledgerId, message_id.entryId
