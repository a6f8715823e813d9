"""`pwire ping`: how long a broker takes to answer PING by PONG."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from itertools import count as numbers
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.lookup import Output, say
from pulsarctl_wire.cli.options import OUTPUT
from pulsarctl_wire.cli.session import Session, topic_name
from pulsarctl_wire.errors import SessionError, Unanswered

if TYPE_CHECKING:
    from pulsarctl_wire.net.link import Link

_NEVER: Final = 1e9  # seconds


async def ping(
    session: Session,
    count: Annotated[
        int, typer.Option("-c", "--count", metavar="N", min=0, help="PINGs; 0 goes on until Ctrl-C.")
    ] = 5,
    interval: Annotated[
        float, typer.Option("-i", "--interval", metavar="SECONDS", min=0, help="From one PING to the next.")
    ] = 1.0,
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="TOPIC", help="Ping the broker that serves it.")
    ] = None,
    output: Annotated[Output, OUTPUT] = Output.text,
) -> int:
    """Time round trips to a broker: a line each, and at the end their percentiles.

    One that is not answered within --timeout seconds is lost; the next goes over a new connection.
    """
    import asyncio

    from pulsarctl_wire.net.client import Client

    name = None if topic is None else topic_name(topic)
    # A PONG does not say which PING it answers: so there are none but ours.
    settings = replace(session.settings(), keep_alive=_NEVER)
    async with Client(settings, tap=session.tap(), warn=console.complain) as client:

        async def connect() -> Link:
            return await (client.service() if name is None else client.link(await client.lookup(name)))

        report = Report(output)
        link = await connect()
        if output is Output.text:
            server = console.clean(link.server)
            say({}, f"PING {link.address}, {server}, protocol version {link.server_version}", output)
        try:
            for number in range(1, count + 1) if count else numbers(1):
                due = time.monotonic() + interval
                try:
                    if not link.is_open:
                        link = await connect()
                    report.answered(number, str(link.address), await link.ping(settings.timeout))
                except SessionError as error:
                    report.lost(number, str(link.address), error)
                    if isinstance(error, Unanswered):
                        link.drop("a PONG did not come")  # it would be taken for that of the next PING
                    if not settings.reconnect:
                        break
                if number != count:
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
        except asyncio.CancelledError:
            pass  # Ctrl-C is the usual way to end
        report.close()
    return console.EXIT_UNANSWERED if report.losses else 0


class Report:
    """Says each round trip, and at the end what they come to. `losses` counts PINGs without PONG."""

    def __init__(self, output: Output) -> None:
        from pulsarctl_wire.stats.latencies import Latencies

        self.losses = 0
        self._output = output
        self._paint = console.Paint(console.use_colour(sys.stdout))
        self._latencies = Latencies()
        self._least = 0

    def answered(self, number: int, broker: str, latency_ns: int) -> None:
        """Say that PING `number` was answered after `latency_ns`."""
        self._least = min(self._least, latency_ns) if self._latencies.count else latency_ns
        self._latencies.add([latency_ns])
        record = self._record(number, broker) | {"latency_ns": latency_ns}
        say(record, f"{broker}: {number} {console.human_time(latency_ns)}", self._output)

    def lost(self, number: int, broker: str, error: SessionError) -> None:
        """Say that PING `number` was lost."""
        self.losses += 1
        record = self._record(number, broker) | {"error": str(error)}
        say(
            record,
            f"{broker}: {number} {self._paint('red', 'lost')}: {console.clean(str(error))}",
            self._output,
        )

    @staticmethod
    def _record(number: int, broker: str) -> dict[str, Any]:
        return {
            "time_ns": time.time_ns(),
            "broker": broker,
            "number": number,
            "latency_ns": None,
            "error": None,
        }

    def close(self) -> None:
        """Say how many were answered, and how fast."""
        times = self._latencies.record()
        answered = times["count"] if times else 0
        sent = answered + self.losses
        if times is not None:
            times = {"count": answered, "min": self._least} | times
        text = f"{sent} sent, {answered} answered, {self.losses} lost"
        if times is not None:
            names = ("min", "p50", "p90", "p99", "max")
            text += "\n" + ", ".join(f"{each} {console.human_time(times[each])}" for each in names)
        say({"sent": sent, "answered": answered, "lost": self.losses, "latency": times}, text, self._output)
