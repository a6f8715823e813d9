"""`pwire broker --data` beside a real standalone broker: start, memory, throughput, latency.

    python benchmarks/broker.py [--rounds N] [--quick] [--only real|embedded]

Both keep their data on the same disk and sync it before a receipt (the real one by `journalSyncData`). One
client, `broker_load.py`, puts the same load on both, in turns; the best round of each counts. With strace on
PATH, it is also shown how often each syncs. Needs Java and a Pulsar release (tests/interop).
"""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from pulsarctl_wire.wire.frame import Connection
from pulsarctl_wire.wire.framing.stream import FrameStream

HERE: Final = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

from benchmarks import broker_start  # noqa: E402
from benchmarks.broker_start import OPENING, PWIRE, SEND, free_port, talk  # noqa: E402

TOPIC: Final = "persistent://public/default/"


class Row(NamedTuple):
    """A figure: its name, unit, the ratio of embedded to real that is wanted, and whether more is better."""

    name: str
    unit: str
    wanted: float
    more: bool = True


ROWS: Final = {
    "start": Row("start to the first receipt", "ms", 1 / 30, more=False),
    "memory": Row("memory, 100 topics, 1 M messages", "MiB", 1 / 3, more=False),
    "batches": Row("produce, batches of 1,000", "msg/s", 1),
    "singles": Row("produce, single, 1,000 outstanding", "msg/s", 0.5),
    "latency": Row("receipt, one at a time, p50", "ms", 1, more=False),
    "consume": Row("consume a backlog, 4 consumers", "msg/s", 0.7),
}


class Measured:
    """A running broker: its process, port, how long it took to the first receipt, and its load."""

    def __init__(self, pid: int, port: int, seconds: float) -> None:
        self.pid = pid
        self.figures: dict[str, float] = {"start": seconds * 1e3}
        self._load = subprocess.Popen(
            [sys.executable, HERE / "broker_load.py", str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def do(self, name: str, *arguments: object) -> Any:
        """Put a load on it."""
        assert self._load.stdin is not None
        assert self._load.stdout is not None
        self._load.stdin.write(json.dumps([name, *arguments]) + "\n")
        self._load.stdin.flush()
        line = self._load.stdout.readline()
        if not line:
            raise SystemExit(f"the load {name} failed")
        return json.loads(line)

    def note(self, key: str, value: float) -> None:
        """Keep a figure if it is the best."""
        best = max if ROWS[key].more else min
        self.figures[key] = best(value, self.figures.get(key, value))

    @property
    def mib(self) -> float:
        """Resident memory."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024

    def end(self) -> None:
        """End the load."""
        assert self._load.stdin is not None
        self._load.stdin.close()
        self._load.wait()


def first_receipt(port: int, began: float) -> float:
    """Seconds until the broker has given a receipt; tries again until it does."""
    while True:
        with suppress(OSError, AssertionError), socket.create_connection(("127.0.0.1", port), 5) as client:
            client.settimeout(5)
            stream = FrameStream(Connection(0), False)
            talk(client, stream, OPENING, "PRODUCER_SUCCESS")
            talk(client, stream, SEND, "SEND_RECEIPT")
            return time.perf_counter() - began
        time.sleep(0.001)


@contextmanager
def embedded(place: Path) -> Iterator[Measured]:
    """`pwire broker`, with a data directory."""
    port = free_port()
    command = [*PWIRE, "broker", "--port", str(port), "--http-port", "0", "--data", str(place)]
    broker_start.first_receipt(["--data", str(place)])  # compiles what is not compiled yet
    began = time.perf_counter()
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        measured = Measured(process.pid, port, first_receipt(port, began))
        try:
            yield measured
        finally:
            measured.end()
            process.send_signal(signal.SIGTERM)


@contextmanager
def real(place: Path) -> Iterator[Measured]:
    """A real standalone broker, with Java's usual options."""
    from interop.brokers import Standalone

    broker = Standalone(place, settings={"journalSyncData": True}, java=())
    port = int(broker.url.rpartition(":")[2])
    starting = threading.Thread(target=broker.start)
    began = time.perf_counter()
    starting.start()
    took = first_receipt(port, began)
    starting.join()
    measured = Measured(broker.pids()["broker"], port, took)
    try:
        yield measured
    finally:
        measured.end()
        broker.kill()


# -- figures


def throughput(brokers: dict[str, Measured], rounds: int, share: float) -> None:
    """Measure, in turns; the first round makes Java compile, and does not count if there are others."""
    batches, singles = int(2_000 * share), int(60_000 * share)
    for number in range(rounds + 1):
        for name, broker in brokers.items():
            topic = f"{TOPIC}{number}"
            found = {
                "batches": broker.do("produce", f"{topic}-batches", batches, 1000, 20),
                "singles": broker.do("produce", f"{topic}-singles", singles, 1, 1000),
                "latency": broker.do("latency", f"{topic}-latency", int(1000 * share)),
                "consume": broker.do("consume", f"{topic}-singles", singles, 4),
            }
            print(f"  round {number}, {name}: {', '.join(f'{k} {v:,.2f}' for k, v in found.items())}")
            for key, value in found.items() if number else ():
                broker.note(key, value)


def syncs(broker: Measured) -> str:
    """How often it syncs while 100 messages are sent one at a time, as strace counts."""
    if shutil.which("strace") is None:
        return "strace is not there"
    with tempfile.NamedTemporaryFile() as file:
        options = ["-f", "-c", "-e", "trace=fsync,fdatasync", "-o", file.name, "-p", str(broker.pid)]
        with subprocess.Popen(["strace", *options], stderr=subprocess.PIPE, text=True) as strace:
            assert strace.stderr is not None
            told = strace.stderr.readline()
            if "attached" not in told:
                return f"strace cannot: {told.strip()}"
            broker.do("latency", f"{TOPIC}synced", 100)
            strace.send_signal(signal.SIGINT)
            strace.communicate()
        counts = re.findall(r"^(?:\s*[\d.]+){3}\s+(\d+).*?(f\w*sync)$", Path(file.name).read_text(), re.M)
    return ", ".join(f"{count} {call}" for count, call in counts) or "none"


def table(brokers: dict[str, Measured]) -> Iterator[str]:
    """The lines of the report."""
    yield f"{'':42} {'real':>12} {'embedded':>12} {'ratio':>8} {'wanted':>8}"
    ours, theirs = brokers["embedded"].figures, brokers["real"].figures
    for key, row in ROWS.items():
        ratio = ours[key] / theirs[key]
        good = ratio >= row.wanted if row.more else ratio <= row.wanted
        wanted = f"{'≥' if row.more else '≤'}{row.wanted:.3g}"
        values = f"{theirs[key]:12,.2f} {ours[key]:12,.2f} {ratio:8.3f}"
        yield f"{row.name + ', ' + row.unit:42} {values} {wanted:>8}{'' if good else '  missed'}"


def main() -> None:
    """Start both, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2, help="that count (default: 2)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the load")
    parser.add_argument("--only", choices=["real", "embedded"], help="measure one")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    share = 0.1 if options.quick else 1.0
    starters: dict[str, Callable[[Path], Any]] = {"real": real, "embedded": embedded}
    with tempfile.TemporaryDirectory(prefix="pwire-benchmark-") as place:
        measure(
            {name: it for name, it in starters.items() if options.only in (None, name)},
            Path(place),
            options.rounds,
            share,
        )


def measure(starters: dict[str, Callable[[Path], Any]], place: Path, rounds: int, share: float) -> None:
    """Measure, and print."""
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")
    alone: dict[str, dict[str, float]] = {}
    for name, start in starters.items():
        with start(place / f"{name}-full") as broker:
            stored = broker.do("fill", 100, int(100 * share), 100)
            print(f"  {name}: {stored:,} messages stored, {broker.mib:.0f} MiB")
            alone[name] = {"memory": broker.mib, "start": broker.figures["start"]}
            print(f"  {name}: syncs for 100 messages one at a time: {syncs(broker)}")
    with ExitStack() as stack:
        brokers = {name: stack.enter_context(start(place / name)) for name, start in starters.items()}
        for name, broker in brokers.items():
            for key, value in alone[name].items():
                broker.note(key, value)
        throughput(brokers, rounds, share)
        print(f"load of the machine after: {os.getloadavg()[0]:.1f}")
        for line in table(brokers) if len(brokers) > 1 else ():
            print(line)


if __name__ == "__main__":
    main()
