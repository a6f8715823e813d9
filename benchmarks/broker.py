"""Compare `pwire broker --data` with a real standalone broker: start, memory, throughput, latency.

    python -m benchmarks.broker [--runs N] [--quick] [--only SECTION]

Both keep their data on the same disk and sync it before a receipt (the real one by `journalSyncData`). One
client puts the same load on both, in turns. Needs Java and a Pulsar release (tests/interop). `--only`:

    start  how long pwire's takes until it can be connected to, to the first receipt, and to its end
    full   start to the first receipt, and memory with 100 topics and a million messages; with strace on PATH
           also how often each syncs while 100 messages are sent one at a time
    load   messages of 100 bytes: produce in batches of 1,000, and singles with 1,000 outstanding; receipts of
           one at a time; 4 consumers that share a backlog. Java compiles in a first round, which is apart
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final, NamedTuple

import psutil
import typer

from benchmarks.broker_load import Client, build_sends, consume, fill, measure_latency, produce
from benchmarks.harness import MIB, Figures, Goal, Only, Process, Runs, find_port, listens, measure, pwire

TOPIC: Final = "persistent://public/default/"
GOALS: Final = (
    Goal("full", "embedded", "first receipt ms", "≤", 1 / 30, "real"),
    Goal("full", "embedded", "MiB", "≤", 1 / 3, "real"),
    Goal("load", "embedded", "batched messages/s", "≥", 1, "real"),
    Goal("load", "embedded", "single messages/s", "≥", 0.5, "real"),
    Goal("load", "embedded", "receipt ms", "≤", 1, "real"),
    Goal("load", "embedded", "consumed/s", "≥", 0.7, "real"),
)


class Broker(NamedTuple):
    """A running broker, and how long it took to its first receipt."""

    pid: int
    port: int
    milliseconds: float


def await_receipt(port: int, began: float) -> float:
    """Publish a message, as soon as that works; returns milliseconds since `began`."""
    while True:
        with suppress(OSError):
            client = Client(port, timeout=5)
            with closing(client.socket):
                client.open_producer(f"{TOPIC}t")
                client.send(build_sends(1, 1), 1)
                return (time.perf_counter() - began) * 1e3
        time.sleep(0.001)


@contextmanager
def embedded(*options: object) -> Iterator[tuple[Process, int]]:
    """Run `pwire broker`, and yield it with its port."""
    port = find_port()
    with Process(pwire("broker", "--port", port, "--http-port", 0, *options)) as process:
        yield process, port


@contextmanager
def run_embedded(place: Path) -> Iterator[Broker]:
    """Run `pwire broker`, with a data directory."""
    with embedded("--data", place) as (process, port):
        yield Broker(process.popen.pid, port, await_receipt(port, process.began))
        process.end()


@contextmanager
def run_real(place: Path) -> Iterator[Broker]:
    """Run a real standalone broker, with Java's usual options."""
    sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
    from interop.brokers import Standalone

    broker = Standalone(place, settings={"journalSyncData": True}, java=())
    port = int(broker.url.rpartition(":")[2])
    starting = threading.Thread(target=broker.start)
    began = time.perf_counter()
    starting.start()
    milliseconds = await_receipt(port, began)
    starting.join()
    try:
        yield Broker(broker.pid, port, milliseconds)
    finally:
        broker.kill()


RUNNERS: Final[dict[str, Callable[[Path], AbstractContextManager[Broker]]]] = {
    "real": run_real,
    "embedded": run_embedded,
}


def measure_start(runs: int, place: Path, figures: Figures) -> None:
    """Start the embedded broker, in memory and with new data directories."""
    for number in range(runs):
        for contender, options in (("--memory", ["--memory"]), ("--data", ["--data", place / f"s{number}"])):
            with embedded(*options) as (process, port):
                process.await_that(partial(listens, port))
                connected = time.perf_counter() - process.began
                receipt = await_receipt(port, process.began)
                ending = time.perf_counter()
                process.end()
                ended = time.perf_counter() - ending
            times = {"connected ms": connected * 1e3, "first receipt ms": receipt, "end ms": ended * 1e3}
            figures.add("start", contender, times)


def count_syncs(broker: Broker) -> dict[str, float]:
    """Count how often a broker syncs while 100 messages are sent one at a time; empty without strace."""
    if shutil.which("strace") is None:
        return {}
    command = ["strace", "-f", "-c", "-e", "trace=fsync,fdatasync", "-p", str(broker.pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
        assert strace.stderr is not None
        if "attached" not in (line := strace.stderr.readline()):
            print(f"strace cannot: {line.strip()}", file=sys.stderr)
            return {}
        measure_latency(broker.port, f"{TOPIC}synced", 100)
        strace.send_signal(signal.SIGINT)
        table = strace.communicate()[1]
    counts = re.findall(r"^(?:\s*[\d.]+){3}\s+(\d+).*?f\w*sync$", table, re.MULTILINE)
    return {"syncs": sum(map(int, counts))}


def measure_full(place: Path, share: float, figures: Figures) -> None:
    """Fill each broker."""
    for name, start in RUNNERS.items():
        with start(place / f"{name}-full") as broker:
            stored = fill(broker.port, 100, int(100 * share), 100)
            size = psutil.Process(broker.pid).memory_info().rss / MIB
            figures.add(
                "full", name, {"first receipt ms": broker.milliseconds, "stored": stored, "MiB": size}
            )
            figures.add("full", name, count_syncs(broker))


def measure_load(runs: int, place: Path, share: float, figures: Figures) -> None:
    """Put loads on both brokers, in turns."""
    with ExitStack() as stack:
        ports = {name: stack.enter_context(start(place / name)).port for name, start in RUNNERS.items()}
        batches, singles, messages = int(2_000 * share), int(60_000 * share), int(1000 * share)
        for turn in range(runs + 1):
            for name, port in ports.items():
                topic = f"{TOPIC}{turn}"
                values = {
                    "batched messages/s": produce(port, f"{topic}-batches", batches, 1000, 20),
                    "single messages/s": produce(port, f"{topic}-singles", singles, 1, 1000),
                    "receipt ms": measure_latency(port, f"{topic}-latency", messages),
                    "consumed/s": consume(port, f"{topic}-singles", singles, 4),
                }
                figures.add("load" if turn else "load, before Java has compiled", name, values)


def main(
    runs: Runs = 2,
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the load.")] = False,
    only: Only = None,
) -> None:
    """Compare pwire broker with a real standalone broker."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    share = 0.1 if quick else 1.0
    with TemporaryDirectory(prefix="pwire-benchmark-") as name:
        place = Path(name)
        measure_start(1, place / "first", Figures())  # compiles what is not compiled yet
        sections = {
            "start": partial(measure_start, runs, place),
            "full": partial(measure_full, place, share),
            "load": partial(measure_load, runs, place, share),
        }
        measure(sections, only, GOALS, ("real",))


if __name__ == "__main__":
    typer.run(main)
