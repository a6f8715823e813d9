"""Compare `pwire proxy` with other proxies, in one run: throughput, round trips, many connections, memory.

    python benchmarks/proxy.py --toxiproxy .../toxiproxy-server --pwire .../bin/pwire

Contenders: no proxy at all, socat (Debian's), toxiproxy-server, pwire without the tap, with the tap into
/dev/null, with the doctor, and with the tap into a full pipe that nobody reads. Those that are not installed
are left out. For each measurement a contender is started, between one server process and one client process
on 127.0.0.1; runs take turns. `--only` selects some of:

    throughput  one connection, to the server and both ways at once (the figure is the sum): opaque bytes,
                SENDs and MESSAGEs of 100 KB batches, and of single messages of 100 bytes
    round-trip  one connection, one small question after the other: 64 opaque bytes; PING and PONG. What a
                proxy adds is its p50 minus that without a proxy in the same run. Each side is pinned to its
                own CPU: if they shared one, a round trip would take a quarter of the time
    many        500 idle connections and 50 busy ones, each with its own questions, then with bulk
    memory      resident memory of all processes of a proxy during transfers both ways, after a tenth of the
                time, half of it and at the end; whether SHA-256 of the bytes is the same on both sides

Figures are medians of the runs, with the least and the greatest. The last table compares them with the
targets. Ratios are medians of ratios of neighbouring runs, as the speed of a shared machine changes.
Linux only.
"""

import argparse
import json
import math
import resource
import signal
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.forwarding import (
    BATCHES,
    BLOCK,
    BUSY,
    IDLE,
    MIB,
    SECTIONS,
    SINGLES,
    Case,
    Contender,
    Many,
    contenders,
    conversation,
    frames,
    opaque,
    through,
    transfer,
)
from benchmarks.side_by_side import Record, table

# -- the measurements


class Goal(NamedTuple):
    """A contender's target, for measures with this beginning and unit: a value, or a share of another's."""

    measure: str
    unit: str
    contender: str
    bound: str
    limit: float
    other: str = ""


OURS: Final = ("pwire", "tap", "doctor", "stalled tap")
RATES: Final = ("MB/s", "µs", "/s")
"""Units of figures for which a ratio makes sense."""
GOALS: Final = (
    Goal("bulk", "MB/s", "pwire", "at least", 1, "toxiproxy"),
    Goal("bulk", "MB/s", "tap", "at least", 0.7, "toxiproxy"),
    Goal("bulk", "MB/s", "doctor", "at least", 1, "tap"),
    Goal("bulk", "MB/s", "stalled tap", "at least", 0.9, "tap"),
    Goal("missed", "frames", "stalled tap", "at least", 1),
    Goal("added p50", "µs", "pwire", "at most", 1, "toxiproxy"),
    Goal("added p50", "µs", "tap", "at most", 1.5, "toxiproxy"),
    Goal("added p50", "µs", "doctor", "at most", 1, "tap"),
    Goal("added p50", "µs", "stalled tap", "at most", 1.5, "toxiproxy"),
    Goal("p99", "µs", "tap", "at most", 1000),
    Goal("p99", "µs", "stalled tap", "at most", 1000),
    *(Goal("many", "connections", ours, "at least", IDLE + BUSY) for ours in OURS),
    *(Goal("memory", "end/start", ours, "at most", 1.1) for ours in OURS),
    *(Goal("SHA-256", "equal", ours, "at least", 1) for ours in OURS),
)


class Figures:
    """The measurements: for each measure and contender a value per run."""

    def __init__(self, contenders: Sequence[str]) -> None:
        self.units: dict[str, str] = {}
        self._contenders = contenders
        self._values: dict[tuple[str, str], list[float]] = {}

    def add(self, measure: str, unit: str, contender: str, value: float) -> None:
        """Add the value of a run."""
        self.units[measure] = unit
        self._values.setdefault((measure, contender), []).append(value)

    def of(self, measure: str, contender: str) -> list[float]:
        """The values of all runs; none if the contender was left out."""
        return self._values.get((measure, contender), [])

    def median(self, measure: str, contender: str) -> float | None:
        """The figure, if there is one."""
        values = self.of(measure, contender)
        return statistics.median(values) if values else None

    def ratio(self, measure: str, ours: str, theirs: str) -> float | None:
        """The median over the runs of our value divided by theirs."""
        pairs = zip(self.of(measure, ours), self.of(measure, theirs), strict=False)
        ratios = [our / their for our, their in pairs if their > 0]
        return statistics.median(ratios) if ratios else None

    def rows(self, measures: Sequence[str]) -> list[Record]:
        """A table: a row for each measure and contender."""
        return [
            {
                "measure": measure,
                "unit": self.units[measure],
                "contender": contender,
                "median": self.median(measure, contender),
                "least": min(self.of(measure, contender)),
                "greatest": max(self.of(measure, contender)),
                **{
                    f"of_{other}": self.ratio(measure, contender, other)
                    if self.units[measure] in RATES
                    else None
                    for other in ("direct", "toxiproxy")
                },
            }
            for measure in measures
            for contender in self._contenders
            if self.of(measure, contender)
        ]

    def goals(self) -> list[Record]:
        """Our targets, compared with the measurements."""
        return [
            self._held(goal, measure)
            for measure, unit in self.units.items()
            for goal in GOALS
            if unit == goal.unit and measure.startswith(goal.measure)
        ]

    def _held(self, goal: Goal, measure: str) -> Record:
        ours, other = goal.contender, goal.other
        got = self.ratio(measure, ours, other) if other else self.median(measure, ours)
        met = None
        if got is not None:
            met = got >= goal.limit if goal.bound == "at least" else got <= goal.limit
        want = f"{goal.bound} {goal.limit:g}{other and f' of {other}'}"
        return {
            "measure": measure,
            "unit": goal.unit,
            "contender": ours,
            "want": want,
            "other": self.median(measure, other) if other else None,
            "got": got,
            "met": met,
        }


class Bench:
    """One run of the benchmark: the contenders, the amounts, and the figures."""

    def __init__(self, options: argparse.Namespace, everyone: Sequence[Contender]) -> None:
        self.options = options
        self.everyone = everyone
        self.figures = Figures([one.name for one in everyone])
        self._size = options.mib * MIB
        self._opaque = opaque()
        self._batches = frames("100 KB batches", BATCHES)
        self._singles = frames("100 B messages", SINGLES)

    def run(self, section: str) -> list[str]:
        """Measure one section; returns the names of its measures."""
        known = set(self.figures.units)
        measure = {
            "throughput": self._throughput,
            "round-trip": self._round_trips,
            "many": self._many,
            "memory": self._memory,
        }[section]
        for turn in range(1 if section == "memory" else self.options.runs):
            print(f"{section}, run {turn + 1}", file=sys.stderr)
            measure()
        return [name for name in self.figures.units if name not in known]

    def _some(self, *cases: Case) -> Sequence[Case]:
        """All of them, or the first."""
        return cases[:1] if self.options.quick else cases

    def _throughput(self) -> None:
        for load in self._some(self._singles, self._batches, self._opaque):
            for both in self._some(True, False):
                server, client, passed = transfer(load, self._size, both)
                what = f"{load.name}, {'both ways' if both else 'to server'}"
                for one in self.everyone:
                    there, here, proxy = through(one, server, client)
                    rate = self._size * (1 + both) / (max(there.ended, here.ended) - here.began) / 1e6
                    self.figures.add(f"bulk: {what}", "MB/s", one.name, rate)
                    if passed and one.tap:
                        self.figures.add(f"passed: {what}", "frames", one.name, passed)
                        self.figures.add(f"missed: {what}", "frames", one.name, proxy.missed)

    def _round_trips(self) -> None:
        for load, name in self._some((self._batches, "PING"), (self._opaque, "64 bytes")):
            server, client = conversation(load, self.options.questions)
            direct = 0.0
            for one in self.everyone:
                _, (p50, p99), _ = through(one, server, client)
                self.figures.add(f"p50 {name}", "µs", one.name, p50)
                self.figures.add(f"p99 {name}", "µs", one.name, p99)
                if not one.command:
                    direct = p50
                else:
                    self.figures.add(f"added p50 {name}", "µs", one.name, p50 - direct)

    def _many(self) -> None:
        for load in self._some(self._singles, self._opaque):
            asking = Many(load, math.ceil(self.options.questions * 4 / BUSY), 0)
            sending = Many(load, 0, math.ceil(self._size / BUSY / BLOCK))
            size = BUSY * sending.blocks * len(load.out.block)
            for one in self.everyone:
                _, (began, ended, (p50, p99)), _ = through(one, asking.server, asking.client)
                rate = BUSY * asking.questions / (ended - began)
                self.figures.add(f"many p50, {load.name}", "µs", one.name, p50)
                self.figures.add(f"many p99, {load.name}", "µs", one.name, p99)
                self.figures.add(f"many round trips, {load.name}", "/s", one.name, rate)
                ended, (began, _, _), _ = through(one, sending.server, sending.client)
                self.figures.add(f"many bulk, {load.name}", "MB/s", one.name, size / (ended - began) / 1e6)
                self.figures.add("many served", "connections", one.name, IDLE + BUSY)

    def _memory(self) -> None:
        mixed = frames("both sizes of frames", BATCHES, SINGLES)
        for load in self._some(mixed, self._opaque):
            server, client, _ = transfer(load, round(self.options.gigabytes * 1e9), True, digest=True)
            for one in self.everyone:
                there, here, proxy = through(one, server, client, watch=bool(one.command))
                equal = here.sent == there.received and there.sent == here.received
                self.figures.add(f"SHA-256, {load.name}", "equal", one.name, equal)
                if samples := proxy.samples:
                    start, middle = samples[len(samples) // 10], samples[len(samples) // 2]
                    moments = {"start": start, "middle": middle, "end": samples[-1], "most": max(samples)}
                    for moment, mib in moments.items():
                        self.figures.add(f"memory, {moment}: {load.name}", "MiB", one.name, mib)
                    self.figures.add(f"memory: {load.name}", "end/start", one.name, samples[-1] / start)


# -- the command


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pwire", help="which pwire (default: the one next to this Python, or on PATH)")
    parser.add_argument("--toxiproxy", metavar="BINARY", help="toxiproxy-server (default: the one on PATH)")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="a section; may be repeated")
    parser.add_argument("--runs", type=int, default=3, help="runs of all sections except memory")
    parser.add_argument("--mib", type=int, default=2048, help="of each measurement of throughput, each way")
    parser.add_argument("--questions", type=int, default=5000, help="round trips of each measurement")
    parser.add_argument("--gigabytes", type=float, default=2, help="size each way while memory is measured")
    parser.add_argument("--quick", action="store_true", help="only one load of each section, and shorter")
    parser.add_argument("--json", action="store_true", help="print JSON, not tables")
    options = parser.parse_args()
    options.only = options.only or SECTIONS
    if options.quick:
        options.runs, options.mib, options.questions, options.gigabytes = 1, 64, 500, 0.1
    return options


def main() -> None:
    """Read the command line, measure, print."""
    options = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything started is ended
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    bench = Bench(options, contenders(options))
    reports: dict[str, list[Record]] = {}
    for section in SECTIONS:
        if section in options.only:
            reports[section] = bench.figures.rows(bench.run(section))
    reports["goals"] = bench.figures.goals()
    if options.json:
        print(json.dumps(reports, indent=2))
    else:
        print("\n\n".join(table(report) for report in reports.values() if report))


if __name__ == "__main__":
    main()
