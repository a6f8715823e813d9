"""`pwire ping`: measures how long a broker takes to answer PING with PONG."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from itertools import count as numbers
from typing import TYPE_CHECKING, Any, Final

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.options import OUTPUT
from pulsarctl_wire.cli.session.lookup import Output, say
from pulsarctl_wire.cli.session.verb import Session, parse_topic
from pulsarctl_wire.cli.signature import option
from pulsarctl_wire.errors import RequestTimeout, SessionError
from pulsarctl_wire.render.text import Paint, clean, human_time

if TYPE_CHECKING:
    from pulsarctl_wire.net.session.link import Link

_NEVER: Final = 1e9  # seconds


@dataclass(frozen=True, kw_only=True)
class PingOptions:
    """The options of `ping`."""

    count: int = option("-c --count N", "Number of PINGs; 0: until Ctrl-C.", default=5, min=0)
    interval: float = option("-i --interval SECONDS", "Time between PINGs.", default=1.0, min=0)
    topic: str | None = option("--topic TOPIC", "Ping the broker that serves this topic.")
    output: Output = OUTPUT(default="text")


async def ping(session: Session, options: PingOptions) -> int:
    """Time round trips to a broker: one line each, and percentiles at the end.

    A PING without answer after --timeout seconds is lost; the next one uses a new connection.
    """
    import asyncio

    from pulsarctl_wire.net.session.client import Client

    name = None if options.topic is None else parse_topic(options.topic)
    # A PONG does not say which PING it answers, so there must be no keep-alive PINGs.
    settings = replace(session.make_settings(), keep_alive=_NEVER)
    async with Client(settings, tap=session.make_tap(), warn=console.warn) as client:

        async def connect() -> Link:
            if name is None:
                return await client.open_service_link()
            return await client.open_link(await client.lookup(name))

        report = Report(options.output)
        link = await connect()
        if options.output == "text":
            peer = link.protocol
            about = f"{clean(peer.server)}, protocol version {peer.server_version}"
            say({}, f"PING {link.address}, {about}", options.output)
        try:
            for number in range(1, options.count + 1) if options.count else numbers(1):
                due = time.monotonic() + options.interval
                try:
                    if not link.is_open:
                        link = await connect()
                    report.add(number, str(link.address), await link.ping(settings.timeout))
                except SessionError as error:
                    report.add(number, str(link.address), error)
                    if isinstance(error, RequestTimeout):
                        link.drop("no PONG came")  # a late one would look like the answer to the next PING
                    if not settings.reconnect:
                        break
                if number != options.count:
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
        except asyncio.CancelledError:
            pass  # Ctrl-C is the normal way to end
        report.close()
    return console.EXIT_UNANSWERED if report.losses else 0


class Report:
    """Prints each round trip, and a summary at the end. `losses` counts PINGs without PONG."""

    def __init__(self, output: Output) -> None:
        from pulsarctl_wire.stats.latencies import Latencies

        self.losses = 0
        self._output = output
        self._paint = Paint(console.has_colour(sys.stdout))
        self._latencies = Latencies()
        self._min_ns = 0

    def add(self, number: int, broker: str, outcome: int | SessionError) -> None:
        """Print the outcome of PING `number`: how long it took (ns), or why it was lost."""
        record: dict[str, Any] = {"time_ns": time.time_ns(), "broker": broker, "number": number}
        if isinstance(outcome, int):
            self._min_ns = min(self._min_ns, outcome) if self._latencies.count else outcome
            self._latencies.add([outcome])
            record |= {"latency_ns": outcome, "error": None}
            text = human_time(outcome)
        else:
            self.losses += 1
            record |= {"latency_ns": None, "error": str(outcome)}
            text = f"{self._paint('red', 'lost')}: {clean(str(outcome))}"
        say(record, f"{broker}: {number} {text}", self._output)

    def close(self) -> None:
        """Print how many PINGs were answered, and how fast."""
        times = self._latencies.record()
        answered = times["count"] if times else 0
        total = answered + self.losses
        if times is not None:
            times = {"count": answered, "min": self._min_ns} | times
        text = f"{total} sent, {answered} answered, {self.losses} lost"
        if times is not None:
            names = ("min", "p50", "p90", "p99", "max")
            text += "\n" + ", ".join(f"{name} {human_time(times[name])}" for name in names)
        say({"sent": total, "answered": answered, "lost": self.losses, "latency": times}, text, self._output)
