"""Every row of every report is the one that plain Python calculates from `pwire decode -o json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from planted import PLANTED
from pwire_run import SAMPLES, pwire
from reports import traffic
from reports.independent import REPORTS, Capture, read

from pulsarctl_wire import data

Row = dict[str, Any]


def rows(name: str, table: Path, bucket_ns: int | None = None) -> list[Row]:
    """The rows that `pwire report NAME TABLE` writes."""
    found = _opened(table).report(name, bucket=bucket_ns).rows()
    return [{**row, "cluster": int(row["cluster"])} if "cluster" in row else row for row in found]


@cache
def _opened(table: Path) -> data.Tables:
    return closing.enter_context(data.tables(str(table)))


closing = ExitStack()


@pytest.fixture(scope="module", autouse=True)
def _tables() -> Iterator[None]:
    with closing:
        yield


# -- captures

RECORDED: Final = (
    *("java-simple.pcap", "java-nack-dlq.pcap", "errors.pcap", "corrupt-in-transit.pcap", "snaplen96.pcap"),
    *("chunks-out-of-order.pcap", "java-batch-zlib.pcap", "java-batchindexack.pcap", "java-keyshared.pcap"),
    *("java-brokerentry.pcap", "java-encrypted.pcap", "auth-token.pcap", "mixed.pcapng.gz"),
    *("python-partitioned.pcap", "no-checksum.pcap", "http-client-on-binary-port.pcap"),
)
FAULTS: Final = (
    "12-near-unload-redelivery.pcap.gz",
    "16-near-receipt-twice.pcap.gz",
    "17-near-resend-after-reconnect.pcap.gz",
    "18-near-redirected-back.pcap.gz",
    "19-near-wrong-address-proxied.pcap.gz",
    "24-near-seek.pcap.gz",
    "25-near-chunks-resent.pcap.gz",
    "26-reader-hangs.pcap.gz",
)
MADE: Final[dict[str, Callable[[], bytes]]] = {
    **PLANTED,
    "random": lambda: traffic.random_traffic(1, 400, 0),
    "random-2": lambda: traffic.random_traffic(2, 400, 0),
    "random-lossy": lambda: traffic.random_traffic(5, 400, 0.03),
    "not-stored": traffic.not_stored,
    "named-brokers": traffic.named_brokers,
    "acknowledged-twice": traffic.acknowledged_twice,
    "empty-ordering-key": traffic.empty_ordering_key,
}


class Made(NamedTuple):
    """A capture and its table."""

    capture: Capture
    table: Path


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    folder = tmp_path_factory.mktemp("tables")

    @cache
    def made(name: str) -> Made:
        if name in MADE:
            path = folder / f"{name}.pcap"
            path.write_bytes(MADE[name]())
        else:
            path = (SAMPLES if name in RECORDED else Path(__file__).parents[1] / "checks" / "captures") / name
        table = folder / f"{name}.parquet"
        pwire("table", path, "--out", table)
        decoded, connections = (
            pwire("decode", "-o", "json", *more, path).lines for more in ([], ["--connections"])
        )
        return Made(read(path, decoded, connections), table)

    return made


# -- the comparison

BUCKETED: Final = ("publish-latency", "request-latency", "throughput", "backlog")
CASES: Final = [*((name, None) for name in REPORTS), *((name, 50_000_000) for name in BUCKETED)]


def _cases() -> Iterator[Any]:
    for capture in (*RECORDED, *FAULTS, *MADE):
        for name, bucket_ns in CASES:
            label = f"{capture}-{name}" + ("-bucket" if bucket_ns else "")
            yield pytest.param(capture, name, bucket_ns, id=label)


@pytest.mark.parametrize(("capture", "name", "bucket_ns"), [*_cases()])
def test_all_rows_are_those_of_the_independent_calculation(
    make: Callable[[str], Made], capture: str, name: str, bucket_ns: int | None
) -> None:
    made = make(capture)
    options = {"bucket_ns": bucket_ns} if bucket_ns else {}
    found = rows(name, made.table, **options)
    if name == "slowest":
        _check_slowest(found, REPORTS[name](made.capture, top=len(made.capture.lines)))
        return
    expected = REPORTS[name](made.capture, **options)
    if name == "errors":
        for row, texts in zip(found, expected, strict=True):
            assert row["example"] in texts.pop("example")
            del row["example"]
    assert any(found == each for each in _renumbered(expected))
    assert [list(row) for row in found] == [list(row) for row in expected]


def _check_slowest(found: list[Row], expected: list[Row]) -> None:
    """Of those that took equally long, any may come first, and any may be the last ones."""
    assert [row["latency_ns"] for row in found] == [row["latency_ns"] for row in expected[:20]]
    assert Counter(map(repr, found)) <= Counter(map(repr, expected))


def _renumbered(expected: list[Row]) -> Iterator[list[Row]]:
    """The rows; which number a cluster has is open. Rows that are sorted by it are sorted again."""
    yield expected
    numbers = sorted({row.get("cluster", 0) for row in expected})
    for others in permutations(numbers):
        names = dict(zip(numbers, others, strict=True))
        again = [{**row, "cluster": names[row["cluster"]]} for row in expected if "cluster" in row]
        yield again if again and "sent_ns" in again[0] else sorted(again, key=_order)


def _order(row: Row) -> tuple[Any, ...]:
    # the steps of a delivery stay in their order
    return row.get("time_ns", 0), row["cluster"], row["topic"] or "", row["subscription"] or ""
