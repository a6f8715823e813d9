"""`decode --connections`: one line a connection, frames or not, and how it went.

1 17:43:05.622138 10.0.0.7:40198 → 10.0.0.9:6650  no data  SYN sent 4 times, never answered  7.01 s
"""

from collections.abc import Callable
from typing import Any, Final, TextIO

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.console import Paint, clean, count_of, human_bytes, human_time
from pulsarctl_wire.cli.jsonl import json_line
from pulsarctl_wire.cli.line import Clock
from pulsarctl_wire.record import Record, connection_record
from pulsarctl_wire.wire.ending import CLOSED, OPEN, PULSAR, Ending

MOST_WAITING: Final = 65_536
"""Lines that wait for connections which began earlier and go on."""

_SHOWN_CALMLY: Final = {CLOSED, OPEN}
_DAMAGE: Final = ("malformed_to_broker", "malformed_to_client", "gaps_to_broker", "gaps_to_client")


class ConnectionLines:
    """Writes the connections that pass all `tests`, in the order of their first packets.

    A line waits until all connections before its own have ended; of more than `waiting` lines all are
    written. `count` is how many to write, -1 for all. `seen` counts all, `chosen` those that pass.
    """

    def __init__(
        self,
        render: Callable[[Record], bytes],
        tests: list[Callable[[Any], bool]],
        write: Callable[[bytes], object],
        *,
        count: int,
        waiting: int = MOST_WAITING,
    ) -> None:
        self._render = render
        self._tests = tests
        self._write = write
        self._left = count
        self._most = waiting
        self._waiting: dict[int, bytes] = {}
        self._next = 0
        self.seen = self.chosen = 0

    @property
    def is_done(self) -> bool:
        """Whether as many were written as there were to be."""
        return self._left == 0

    def add(self, ending: Ending) -> None:
        """Take a connection that has ended."""
        index = ending.connection.index
        chosen = all(test(ending) for test in self._tests)
        self.seen += 1
        self.chosen += chosen
        line = self._render(connection_record(ending)) if chosen else b""
        if index < self._next:
            self._put(line)  # those behind it did not wait
            return
        self._waiting[index] = line
        while self._next in self._waiting:
            self._put(self._waiting.pop(self._next))
            self._next += 1
        if len(self._waiting) > self._most:
            self.flush()

    def flush(self) -> None:
        """Write all that wait."""
        for index in sorted(self._waiting):
            self._put(self._waiting[index])
            self._next = max(self._next, index + 1)
        self._waiting.clear()

    def _put(self, line: bytes) -> None:
        if line and self._left:
            self._left -= 1
            self._write(line)


def connection_renderer(output: str, paint: Paint, clock: Clock, stream: TextIO) -> Callable[[Record], bytes]:
    """What shows records of connections on `stream` as `output` says: line or json."""
    if output == "json":
        return json_line

    def line(record: Record) -> bytes:
        text = _line(record, paint, clock, console.terminal_width(stream))
        return f"{text}\n".encode("utf-8", "backslashreplace")

    return line


def _line(record: Record, paint: Paint, clock: Clock, width: int | None) -> str:
    """The line of a connection, in at most `width` cells: what went wrong is not cut away."""
    calm = record["end"] in _SHOWN_CALMLY
    parts = [
        f"{record['connection']:6} {clock(record['time_ns'])} {record['client']} → {record['server']}",
        paint("bold" if record["protocol"] == PULSAR else "yellow", record["protocol"] or "no data"),
        paint("" if calm else "red", record["how"]),
    ]
    if record["time_ns"] is not None and record["last_ns"] is not None:
        parts.append(human_time(record["last_ns"] - record["time_ns"]))
    wrong = len(parts) if calm else 2
    if record["protocol"]:
        parts += [_traffic(record, paint, "→", "broker"), _traffic(record, paint, "←", "client")]
    if record["client_version"] is not None:
        version = record["protocol_version"]
        parts.append(clean(record["client_version"]) + ("" if version is None else f" v{version}"))
    if record["proxy_to_broker_url"] is not None:
        parts.append(f"to {clean(record['proxy_to_broker_url'])}")
    line = "  ".join(parts)
    if width is None:
        return line
    if calm and not any(record[name] for name in _DAMAGE):
        return console.cut_line(line, width)
    return console.cut_line(line, width, "".join(f"  {part}" for part in parts[wrong:]))


def _traffic(record: Record, paint: Paint, arrow: str, to: str) -> str:
    """What went in one direction."""
    size = human_bytes(record[f"bytes_to_{to}"])
    if record["protocol"] != PULSAR:
        return f"{arrow} {size}"
    frames, malformed, gaps = (record[f"{name}_to_{to}"] for name in ("frames", "malformed", "gaps"))
    text = f"{arrow} {count_of(frames, 'frame')} {size}"
    if malformed:
        text += paint("red", f" {malformed} malformed")
    if gaps:
        text += paint("red", f" {count_of(gaps, 'gap')}")
    return text
