"""Compare `pwire proxy` with other proxies, in one run: throughput, round trips, many connections, memory.

    python -m benchmarks.proxy --toxiproxy .../toxiproxy-server

Contenders: no proxy at all, socat (Debian's), toxiproxy-server, pwire without the tap, with the tap into
/dev/null, with the doctor, and with the tap into a small pipe that nobody reads. Those that are not installed
are left out. For each measurement a contender is started, between one server process and one client process
on 127.0.0.1. Linux only. `--only` selects some of:

    throughput  one connection, to the server and both ways at once (the figure is the sum): opaque bytes,
                SENDs and MESSAGEs of 100 KB batches, and of single messages of 100 bytes
    round-trip  one connection, one small question after the other: 64 opaque bytes; PING and PONG. What a
                proxy adds is its p50 minus that without a proxy in the same run. Each side is pinned to its
                own CPU: if they shared one, a round trip would take a quarter of the time
    many        500 idle connections and 50 busy ones, each with its own questions, then with bulk
    memory      resident memory of all processes of a proxy during transfers both ways, after a tenth of the
                time, half of it and at the end; whether SHA-256 of the bytes is the same on both sides
"""

import fcntl
import json
import math
import re
import resource
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import typer

from benchmarks import forwarding
from benchmarks.forwarding import BUSY, IDLE, Client, Server, make_frames
from benchmarks.harness import (
    GRACE,
    HOST,
    MIB,
    Figures,
    Goal,
    Only,
    Process,
    Runs,
    find_port,
    listens,
    measure,
    pwire,
)

Case = TypeVar("Case")
BATCHES: Final = (100, 1000)
SINGLES: Final = (1, 100)
"""Messages of an entry, and bytes of each."""
FELL_BEHIND: Final = re.compile(r"tap fell behind: ([\d,]+) frames? not shown")

OURS: Final = ("pwire", "tap", "doctor", "stalled tap")
GOALS: Final = (
    Goal("bulk *", "pwire", "MB/s", "≥", 1, "toxiproxy"),
    Goal("bulk *", "tap", "MB/s", "≥", 0.7, "toxiproxy"),
    Goal("bulk *", "doctor", "MB/s", "≥", 1, "tap"),
    Goal("bulk *", "stalled tap", "MB/s", "≥", 0.9, "tap"),
    Goal("bulk *B *", "stalled tap", "frames missed", "≥", 1),
    Goal("one *", "pwire", "added p50 µs", "≤", 1, "toxiproxy"),
    Goal("one *", "tap", "added p50 µs", "≤", 1.5, "toxiproxy"),
    Goal("one *", "doctor", "added p50 µs", "≤", 1, "tap"),
    Goal("one *", "stalled tap", "added p50 µs", "≤", 1.5, "toxiproxy"),
    *(Goal("one *", name, "p99 µs", "≤", 1000) for name in ("tap", "stalled tap")),
    *(Goal("many *", name, "connections", "≥", IDLE + BUSY) for name in OURS),
    *(Goal("memory *", name, "end/start", "≤", 1.1) for name in OURS),
    *(Goal("memory *", name, "equal SHA-256", "=", 1) for name in OURS),
)


def find_contenders(toxiproxy: str | None) -> dict[str, Sequence[str]]:
    """Return commands that listen on {port} and connect to {to}; toxiproxy is told by HTTP on {admin}."""
    proxies: dict[str, Sequence[str]] = {"direct": ()}
    if socat := shutil.which("socat"):
        listen = f"TCP-LISTEN:{{port}},bind={HOST},fork,reuseaddr,nodelay,backlog=1024"
        proxies["socat"] = (socat, "-t", "30", listen, f"TCP:{HOST}:{{to}},nodelay")
    if toxiproxy := toxiproxy or shutil.which("toxiproxy-server"):
        proxies["toxiproxy"] = (toxiproxy, "-host", HOST, "-port", "{admin}")
    if missing := {"socat", "toxiproxy"} - set(proxies):
        print(f"not installed, left out: {', '.join(sorted(missing))}", file=sys.stderr)
    ours = pwire("proxy", "--listen", f"{HOST}:{{port}}", "--to", f"pulsar://{HOST}:{{to}}")
    options = {"pwire": [], "tap": ["--tap"], "doctor": ["--doctor"], "stalled tap": ["--tap"]}
    return proxies | {name: [*ours, *words] for name, words in options.items()}


@contextmanager
def run_proxy(name: str, command: Sequence[str], listener: socket.socket) -> Iterator[tuple[int, Process]]:
    """Run a proxy in front of `listener`, and yield the port for clients."""
    ports = {"port": find_port(), "admin": find_port(), "to": listener.getsockname()[1]}
    words = [word.format(**ports) for word in command]
    with Process(words, subprocess.PIPE if name == "stalled tap" else subprocess.DEVNULL) as process:
        if process.popen.stdout:
            fcntl.fcntl(process.popen.stdout, fcntl.F_SETPIPE_SZ, 4096)  # it is full sooner
        if name == "toxiproxy":
            process.await_that(partial(listens, ports["admin"]))
            settings = {"listen": f"{HOST}:{ports['port']}", "upstream": f"{HOST}:{ports['to']}"}
            url, body = f"http://{HOST}:{ports['admin']}/proxies", json.dumps({"name": "bench", **settings})
            urllib.request.urlopen(url, body.encode(), timeout=GRACE).close()
        process.await_that(partial(listens, ports["port"]))
        listener.settimeout(GRACE)
        listener.accept()[0].close()  # the proxy's side of that connection
        listener.settimeout(None)
        yield ports["port"], process


class Passage(NamedTuple):
    """What both sides reported, and of the proxy in between: samples of memory in MiB, and its stderr."""

    server: Any
    client: Any
    samples: Sequence[float] = ()
    stderr: str = ""


def go_through(name: str, command: Sequence[str], server: Server, client: Client) -> Passage:
    """Run both sides through a new proxy, or without one."""
    with closing(socket.create_server((HOST, 0), backlog=1024)) as listener:
        if not command:
            there, here = forwarding.run_sides(server, client, listener, listener.getsockname()[1])
            return Passage(there, here)
        with run_proxy(name, command, listener) as (port, process):
            process.samples.clear()  # those of its start
            there, here = forwarding.run_sides(server, client, listener, port)
            samples = [*process.samples]
            return Passage(there, here, samples, process.end().stderr)


@dataclass
class Bench:
    """All sections, with their amounts."""

    proxies: Mapping[str, Sequence[str]]
    runs: int
    gigabytes: float
    is_quick: bool

    def __post_init__(self) -> None:
        self._size = (64 if self.is_quick else 2048) * MIB
        self._questions = 500 if self.is_quick else 5000
        self._opaque = forwarding.make_opaque()
        self._batches = make_frames("100 KB batches", BATCHES)
        self._singles = make_frames("100 B messages", SINGLES)

    def _some(self, *cases: Case) -> Sequence[Case]:
        """Return all cases, or the first."""
        return cases[:1] if self.is_quick else cases

    def _turns(self) -> Iterator[tuple[str, Sequence[str]]]:
        for _ in range(self.runs):
            yield from self.proxies.items()

    def throughput(self, figures: Figures) -> None:
        """Transfer bulk on one connection."""
        for load in self._some(self._singles, self._batches, self._opaque):
            for is_both in self._some(True, False):
                server, client, frames = forwarding.transfer(load, self._size, is_both)
                case = f"bulk {load.name}, {'both ways' if is_both else 'to server'}"
                for name, command in self._turns():
                    there, here, _, stderr = go_through(name, command, server, client)
                    seconds = max(there.ended, here.ended) - here.began
                    figures.add(case, name, {"MB/s": self._size * (1 + is_both) / seconds / 1e6})
                    if frames and "tap" in name:
                        counts = (int(count.replace(",", "")) for count in FELL_BEHIND.findall(stderr))
                        figures.add(case, name, {"frames": frames, "frames missed": max(counts, default=0)})

    def round_trips(self, figures: Figures) -> None:
        """Ask one question after the other on one connection."""
        for load, question in self._some((self._batches, "PING"), (self._opaque, "64 bytes")):
            server, client = forwarding.converse(load, self._questions)
            direct = 0.0
            for name, command in self._turns():
                p50, p99 = go_through(name, command, server, client).client
                direct = direct if command else p50
                added = {"added p50 µs": p50 - direct} if command else {}
                figures.add(f"one {question}", name, {"p50 µs": p50, "p99 µs": p99, **added})

    def many(self, figures: Figures) -> None:
        """Ask questions on many connections, then transfer bulk."""
        for load in self._some(self._singles, self._opaque):
            asking = forwarding.Many(load, math.ceil(self._questions * 4 / BUSY), 0)
            sending = forwarding.Many(load, 0, math.ceil(self._size / BUSY / forwarding.BLOCK))
            size = BUSY * sending.blocks * len(load.out.block)
            for name, command in self._turns():
                began, ended, (p50, p99) = go_through(name, command, asking.serve, asking.connect).client
                rate = BUSY * asking.questions / (ended - began)
                ended, (began, *_), *_ = go_through(name, command, sending.serve, sending.connect)
                values = {"p50 µs": p50, "p99 µs": p99, "round trips/s": rate}
                bulk = size / (ended - began) / 1e6
                figures.add(f"many {load.name}", name, {**values, "MB/s": bulk, "connections": IDLE + BUSY})

    def memory(self, figures: Figures) -> None:
        """Transfer much more, once."""
        for load in self._some(make_frames("both sizes of frames", BATCHES, SINGLES), self._opaque):
            server, client, _ = forwarding.transfer(load, int(self.gigabytes * 1e9), True, has_digest=True)
            for name, command in self.proxies.items():
                there, here, samples, _ = go_through(name, command, server, client)
                is_equal = here.sent == there.received and there.sent == here.received
                figures.add(f"memory {load.name}", name, {"equal SHA-256": is_equal})
                if samples:
                    start, middle, end = (samples[int(len(samples) * part)] for part in (0.1, 0.5, 1 - 1e-9))
                    moments = {"start MiB": start, "middle MiB": middle, "end MiB": end}
                    moments |= {"most MiB": max(samples), "end/start": end / start}
                    figures.add(f"memory {load.name}", name, moments)


def main(
    toxiproxy: Annotated[str | None, typer.Option(help="toxiproxy-server, if it is not on PATH.")] = None,
    runs: Runs = 3,
    gigabytes: Annotated[float, typer.Option(help="Size each way while memory is measured.")] = 2,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only one load of each section, and shorter.")
    ] = False,
    only: Only = None,
) -> None:
    """Compare pwire proxy with other proxies."""
    maximum = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))
    amounts = (1, 0.1) if quick else (runs, gigabytes)
    bench = Bench(find_contenders(toxiproxy), *amounts, quick)
    sections = {
        "throughput": bench.throughput,
        "round-trip": bench.round_trips,
        "many": bench.many,
        "memory": bench.memory,
    }
    measure(sections, only, GOALS, ("direct", "toxiproxy"))


if __name__ == "__main__":
    typer.run(main)
