"""The data structures of the core against plain models: cursors, logs, what is to be replayed, selectors."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pulsarctl_wire.broker.basics.refusal import Refused
from pulsarctl_wire.broker.basics.scheduler import Scheduler
from pulsarctl_wire.broker.delivery.key_ranges import AutoSplit, ConsistentHashing, KeyRanges, Sticky
from pulsarctl_wire.broker.delivery.shared import Replay
from pulsarctl_wire.broker.storage.cursor import BLOCK, Cursor, load_cursor, mask_of, words_of
from pulsarctl_wire.broker.storage.journal import Journal, entry_key
from pulsarctl_wire.broker.storage.log import Cache, Ledger, Log
from pulsarctl_wire.broker.tenancy.limits import Rate
from pulsarctl_wire.broker.tenancy.policies import Retention

MAX = 3 * BLOCK
SIZE = 5
"""Messages of an entry."""

# around the ends of blocks, where mistakes are likely
indexes = st.one_of(
    st.integers(0, 30), st.sampled_from([BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK]), st.integers(0, MAX - 1)
)
steps = st.one_of(
    st.tuples(st.just("ack"), indexes),
    st.tuples(st.just("run"), indexes, st.integers(1, 2 * BLOCK)),
    st.tuples(st.just("ack_before"), indexes),
    st.tuples(st.just("ack_some"), indexes, st.integers(0, (1 << SIZE) - 1), st.sampled_from([0, SIZE])),
    st.tuples(st.just("reset"), indexes),
    st.tuples(st.just("save")),
    st.tuples(st.just("load")),
)


class Model:
    """What a cursor means: the open messages of each entry that is not acknowledged, as bits."""

    def __init__(self) -> None:
        self.open = dict.fromkeys(range(MAX), (1 << SIZE) - 1)

    def ack(self, index: int) -> None:
        self.open.pop(index, None)

    def run(self, start: int, count: int) -> None:
        for index in range(start, min(start + count, MAX)):
            self.ack(index)

    def ack_before(self, before: int) -> None:
        self.run(0, before)

    def ack_some(self, index: int, still_open: int, size: int) -> None:
        if index in self.open:
            self.open[index] &= still_open
            if not self.open[index]:
                self.ack(index)

    def reset(self, index: int) -> None:
        self.open = dict.fromkeys(range(index, MAX), (1 << SIZE) - 1)


def change(cursor: Cursor, name: str, *arguments: int) -> None:
    if name == "run":
        for index in range(arguments[0], min(arguments[0] + arguments[1], MAX)):
            cursor.ack(index)
    elif name == "ack_some":
        index, still_open, size = arguments
        cursor.ack_some(index, size, still_open)
    else:
        getattr(cursor, name)(*arguments)


def agree(cursor: Cursor, model: Model) -> None:
    assert cursor.mark == min(model.open, default=MAX)
    assert cursor.count_backlog(MAX) == len(model.open)
    opens = sorted(model.open)
    for index in {0, 1, cursor.mark, BLOCK - 1, BLOCK, 2 * BLOCK, MAX - 1, *opens[:3], *opens[-3:]}:
        if index < MAX:
            assert cursor.is_acked(index) == (index not in model.open)
            assert cursor.find_open(index) == min((each for each in opens if each >= index), default=MAX)
    for index, mask in model.open.items():
        assert cursor.masks.get(index, (1 << SIZE) - 1) == mask
    assert cursor.masks.keys() <= model.open.keys()


@example([("ack_some", 0, 1, 5), ("save",), ("ack", 0), ("reset", 0), ("load",)])
@given(st.lists(steps, max_size=15))
def test_cursor(done: list[tuple[Any, ...]]) -> None:
    """Saving and loading at any time changes nothing; what is stored is what was saved."""
    journal = Journal(Scheduler())
    cursor, model = Cursor(journal, "1/s", 0), Model()
    rows: dict[tuple[str, str], str] = {}
    for name, *arguments in done:
        if name in ("save", "load"):
            cursor.save()
            commit = journal.take_commit(everything=True)
            for key, value in commit.rows.items() if commit else ():
                rows.pop(key, None) if value is None else rows.update({key: value})
            if name == "load":
                journal = Journal(Scheduler(), [(*key, value) for key, value in rows.items()])
                cursor = load_cursor(journal, "1/s")
        else:
            change(cursor, name, *arguments)
            getattr(model, name)(*arguments)
        agree(cursor, model)


@given(st.integers(0, 1 << 200))
def test_words_of_masks(mask: int) -> None:
    words = words_of(mask)
    assert mask_of(words) == mask
    assert all(-(1 << 63) <= word < 1 << 63 for word in words)
    assert not words or words[-1]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(0, 3), st.integers(0, 30))
def test_log_positions(sizes: list[int], step: int, trim: int) -> None:
    """Every entry has one position, in order; of others, the next entry is found."""
    ledgers, end, number = [], 0, 3
    for size in sizes:
        ledgers.append(Ledger(number, end, 0, 0))
        end, number = end + size, number + 1 + step
    log = Log(1, Journal(Scheduler()), Cache(0), {1: end}, ledgers, 0)
    log.trim(min(trim, end), lambda closed_ms, size: False, forget_ids=True)
    known = {index: log.position(index) for index in range(log.first, end)}
    assert sorted(known.values()) == list(known.values())
    assert len(set(known.values())) == len(known)
    for index, position in known.items():
        assert log.locate(*position) == (index, True)
        before = log.position_before(index)
        assert before == (known[index - 1] if index > log.first else (position.ledger, -1)) or (
            index == log.first and before.entry == -1
        )
    for ledger in range(number + 2):
        for entry in (-1, 0, 4, 6):
            index, there = log.locate(ledger, entry)
            index = max(index, log.first)
            assert index <= end
            assert there == ((ledger, entry) in known.values())
            if not there:
                after = [each for each, position in known.items() if position > (ledger, entry)]
                assert index == min(after, default=end)


def test_log_sizes() -> None:
    """Up to the end of all ledgers; each entry of a ledger counts the same."""
    ledgers = [Ledger(3, 0, 0, 0), Ledger(4, 4, 0, 100)]
    log = Log(1, Journal(Scheduler()), Cache(0), {1: 6}, ledgers, 0)
    log.bytes = 150
    assert [log.estimate_size_from(index) for index in range(8)] == [150, 125, 100, 75, 50, 25, 0, 0]


@pytest.mark.parametrize(
    ("minutes", "mebibytes", "kept"),
    [(0, -1, []), (-1, 0, []), (-1, -1, [59_999, 60_000]), (1, -1, [59_999]), (-1, 1, [59_999, 60_000])],
)
def test_retention(minutes: int, mebibytes: int, kept: list[int]) -> None:
    """Until an age is reached, and up to a size."""
    retention = Retention(minutes, mebibytes)
    assert [age for age in (59_999, 60_000) if retention.keeps(age, 1 << 20)] == kept
    assert not retention.keeps(0, (1 << 20) + 1) or mebibytes < 0


@given(st.lists(st.tuples(st.sampled_from(["add", "discard", "clear"]), st.integers(0, 9)), max_size=40))
def test_replay(done: list[tuple[str, int]]) -> None:
    replay, model = Replay(), set[int]()
    for name, index in done:
        getattr(replay, name)(*([] if name == "clear" else [index]))
        getattr(model, name)(*([] if name == "clear" else [index]))
        assert replay.get_first() == min(model, default=None)
        assert len(replay) == len(model)
        assert all((each in replay) == (each in model) for each in range(10))


def consumer(name: str, *ranges: tuple[int, int]) -> Any:
    given_ = [SimpleNamespace(start=start, end=end) for start, end in ranges]
    return SimpleNamespace(name=name, key_shared=SimpleNamespace(hashRanges=given_))


class Named:
    """A consumer, as selectors see it."""

    def __init__(self, name: str) -> None:
        self.name = name


SLOTS = [*range(0, 65_536, 257), 1, 2, 65_534, 65_535]


def owners(selector: KeyRanges) -> list[Any]:
    """Who has which of some slots; the ranges must say the same."""
    found = [selector.get_owner(slot) for slot in SLOTS]
    ranges = selector.list_ranges()
    assert all(one[1] < other[0] for one, other in pairwise(ranges))
    assert all(one[2] is not other[2] or one[1] + 1 < other[0] for one, other in pairwise(ranges))
    for slot, owner in zip(SLOTS, found, strict=True):
        assert [it for start, end, it in ranges if start <= (slot or 1) <= end] == [owner] * (
            owner is not None
        )
    return found


@pytest.mark.parametrize("make", [ConsistentHashing, AutoSplit])
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=12))
def test_selectors(make: type[KeyRanges], done: list[tuple[bool, int]]) -> None:
    """Each slot has an owner who is there; nobody's slots change but those of who comes or goes."""
    selector = make()
    members: list[Any] = []
    for joins, number in done:
        before, after = owners(selector), list(members)
        if joins:
            it: Any = Named(f"c{number}")
            after.append(it)
            selector.add(it)
        elif members:
            it = after.pop(number % len(after))
            selector.remove(it)
        else:
            continue
        members = after
        found = owners(selector)
        assert all(each in members for each in found) if members else set(found) == {None}
        if make is ConsistentHashing:
            changed = {
                new if joins else old for old, new in zip(before, found, strict=True) if old is not new
            }
            assert changed <= {it}


@given(st.integers(1, 6))
def test_a_newcomer_that_leaves_changes_nothing(count: int) -> None:
    for make in (ConsistentHashing, AutoSplit):
        selector: Any = make()
        for number in range(count):
            selector.add(Named(f"c{number}"))
        before, newcomer = owners(selector), Named("new")
        selector.add(newcomer)
        assert newcomer in owners(selector)
        selector.remove(newcomer)
        assert owners(selector) == before


ranges = st.tuples(st.integers(0, 65_535), st.integers(0, 65_535))


@given(st.lists(st.lists(ranges, min_size=1, max_size=3), max_size=5))
def test_sticky(wanted: list[list[tuple[int, int]]]) -> None:
    """Who wants slots that are free gets them; all others are refused, and change nothing."""
    selector = Sticky()
    taken: list[tuple[int, int, Any]] = []
    for number, each in enumerate(wanted):
        it = consumer(f"c{number}", *each)
        fine = all(start <= end for start, end in each)
        spans = sorted(each)
        fine = fine and all(one[1] < other[0] for one, other in pairwise(spans))
        fine = fine and not any(start <= high and low <= end for start, end in each for low, high, _ in taken)
        if fine:
            selector.add(it)
            taken += [(*span, it) for span in each]
        else:
            with pytest.raises(Refused):
                selector.add(it)
        for slot in SLOTS:
            found = next((it for low, high, it in taken if low <= slot <= high), None)
            assert selector.get_owner(slot) is found
        assert selector.list_ranges() == sorted(taken, key=lambda each: each[:2])


def test_entry_keys_are_in_order() -> None:
    keys = [entry_key(log, index) for log in (0, 1, 7) for index in (0, 1, (1 << 40) - 1)]
    assert keys == sorted(set(keys))
    assert keys[-1] < 1 << 63


def test_a_rate_limits_only_with_messages_or_bytes() -> None:
    rates = Rate(0, 0), Rate(-1, 0, period=10), Rate(1, 0), Rate(-1, 5)
    assert [rate.has_limits for rate in rates] == [False, False, True, True]
