"""Measures `pwire tui` in a terminal: first frames, all frames listed, a filter, pages, memory.

    python -m benchmarks.tui perf.pcap [--filter EXPR] [--copies N]

Medians of a few runs. Listing is compared with `pwire decode -q`, filtering with the same filter there, in
the same run. With `--copies` a capture that is so many times as long is opened as well, which shows what
memory depends on.
"""

import argparse
import fcntl
import json
import os
import pty
import select
import shutil
import statistics
import struct
import subprocess
import tempfile
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.captures import concatenate
from benchmarks.harness import pwire

_EXPRESSION = 'command == "SEND" and total_size > 100'
_QUIET = 0.15  # seconds without output after which a page is complete
_PAGES = 20
_RUNS = 3
_LIMIT = 5.0  # seconds


class Terminal:
    """`pwire tui` in a terminal of 200 by 60 cells, with an empty cache."""

    def __init__(self, sources: list[str]) -> None:
        self.cache = Path(tempfile.mkdtemp(prefix="pwire-bench-"))
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 200, 0, 0))
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.cache), "TERM": "xterm-256color"}
        self.started = time.perf_counter()
        self._process = subprocess.Popen(
            pwire("tui", *sources),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            start_new_session=True,
        )
        os.close(theirs)

    def press(self, keys: str) -> None:
        """Press keys."""
        os.write(self._ours, keys.encode())

    def read(self, seconds: float) -> bytes:
        """Return what is written to the terminal within some seconds, as soon as there is anything."""
        if select.select([self._ours], [], [], seconds)[0]:
            return os.read(self._ours, 1 << 20)
        return b""

    def until(self, holds: Callable[[bytes], bool], limit: float = 60) -> float:
        """Read until something holds of what was written; return the seconds since the start."""
        seen = b""
        while not holds(seen):
            seen += self.read(0.005)
            if time.perf_counter() - self.started > limit:
                raise TimeoutError(seen[-1000:])
        return time.perf_counter() - self.started

    def state(self, name: str) -> dict[str, object]:
        """Return what a job has written about itself."""
        for path in (self.cache / "pwire" / "events").glob(f"*/{name}.json"):
            return json.loads(path.read_text())  # type: ignore[no-any-return]
        return {}

    def page(self) -> float:
        """Press PgDn; return the seconds until the screen was complete."""
        begun = last = time.perf_counter()
        self.press("\x1b[6~")
        while time.perf_counter() - last < _QUIET and last - begun < _LIMIT:
            if self.read(0.01):
                last = time.perf_counter()
        return last - begun

    def memory(self) -> float:
        """Return the memory of all its processes in MB; what several share is counted once."""
        process = psutil.Process(self._process.pid)
        processes = [process, *process.children(recursive=True)]
        return sum(each.memory_full_info().pss for each in processes) / 1e6

    def close(self) -> None:
        """Quit."""
        self.press("\x1b")
        self.press("q")
        deadline = time.perf_counter() + 20
        while self._process.poll() is None and time.perf_counter() < deadline:
            with suppress(OSError):  # it has closed the terminal
                self.read(0.05)
        self._process.kill()
        self._process.wait()
        os.close(self._ours)
        shutil.rmtree(self.cache, ignore_errors=True)


def _decode_seconds(*words: str) -> float:
    """Return the median time of a few runs of `decode -q`."""
    times = []
    for _ in range(_RUNS):
        begun = time.perf_counter()
        subprocess.run(pwire("decode", "-q", *words), check=True, capture_output=True)
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def measure(sources: list[str], expression: str) -> dict[str, float]:
    """Open captures, list them, filter them, turn pages."""
    terminal = Terminal(sources)
    try:
        figures = {"first frames, s": terminal.until(lambda seen: b"CONNECT" in seen)}
        figures["all listed, s"] = terminal.until(lambda seen: bool(terminal.state("reading").get("is_done")))
        terminal.until(lambda seen: bool(terminal.state("findings").get("is_done")))
        figures["findings, s"] = time.perf_counter() - terminal.started
        pages = [terminal.page() for _ in range(_PAGES)]
        figures["page, median, ms"] = statistics.median(pages) * 1e3
        figures["page, slowest, ms"] = max(pages) * 1e3
        terminal.press("f")
        terminal.until(lambda seen: b"total_size > 1000" in seen)  # the filter line is open
        terminal.press(expression)
        begun = time.perf_counter()
        terminal.press("\r")
        terminal.until(lambda seen: bool(terminal.state("match.*.1").get("is_done")))
        figures["filter, s"] = time.perf_counter() - begun
        figures["memory, MB"] = terminal.memory()
        return figures
    finally:
        terminal.close()


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("capture")
    parser.add_argument("--filter", default=_EXPRESSION)
    parser.add_argument("--copies", type=int, default=0)
    options = parser.parse_args()
    runs = [measure([options.capture], options.filter) for _ in range(_RUNS)]
    figures = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    for name, figure in figures.items():
        print(f"{name:<24}{figure:10.2f}")
    pairs = {"all listed, s": (), "filter, s": ("-f", options.filter)}
    for name, words in pairs.items():
        decode = _decode_seconds(*words, options.capture)
        print(f"{name.partition(',')[0]:<24}{figures[name] / decode:10.2f} times decode -q's {decode:.2f} s")
    if options.copies:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "copies.pcap")
            concatenate(Path(options.capture), path, options.copies)
            more = measure([str(path)], options.filter)
        print(f"{options.copies} copies")
        for name, figure in more.items():
            print(f"{name:<24}{figure:10.2f}")


if __name__ == "__main__":
    main()
