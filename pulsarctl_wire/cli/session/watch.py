"""`pwire watch`: lists the topics of a namespace, and shows when topics are created and deleted."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.options import OUTPUT
from pulsarctl_wire.cli.session.lookup import NAMESPACE, REGEX, Output, checked_pattern, say
from pulsarctl_wire.cli.session.verb import Session, namespace_name
from pulsarctl_wire.cli.signature import option
from pulsarctl_wire.render.text import Paint, clean

Change = tuple[str, str]
"""What happened ("added", "removed", or "ended": the watch has failed), and the topic."""


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """The options of `watch`."""

    namespace: str = NAMESPACE()
    regex: str | None = REGEX()
    count: int | None = option("-c --count N", "End after N changes.", min=1)
    seconds: float | None = option("--for SECONDS", "End after this time.", min=0)
    output: Output = OUTPUT(default="text")


async def watch(session: Session, options: WatchOptions) -> None:
    """List the topics of a namespace, then print + for new and - for deleted ones until Ctrl-C."""
    import asyncio

    from pulsarctl_wire.net.session.watch import POLL_PAUSE, TopicWatch

    name = namespace_name(options.namespace)
    pattern = checked_pattern(options.regex) or ".*"
    changes: asyncio.Queue[Change] = asyncio.Queue()
    paint = Paint(console.use_colour(sys.stdout))

    def show(event: str, topic: str) -> None:
        record = {"time_ns": time.time_ns(), "event": event, "topic": topic}
        sign = paint("red", "-") if event == "removed" else paint("green", "+")
        say(record, f"{sign} {clean(topic)}", options.output)

    def changed(added: list[str], removed: list[str]) -> None:
        for event, topics in (("added", added), ("removed", removed)):
            for topic in topics:
                changes.put_nowait((event, topic))
        if watching.error is not None:
            changes.put_nowait(("ended", ""))

    async def follow() -> None:
        for _ in repeat(None) if options.count is None else range(options.count):
            event, topic = await changes.get()
            if watching.error is not None and event == "ended":
                raise watching.error
            show(event, topic)

    async with session.client() as client:
        watching = TopicWatch(client, name, pattern, changed)
        for topic in await watching.open():
            show("present", topic)
        if watching.polls:
            console.warn(
                "the broker does not report changes (it has no topic watchers, or the pattern is too long "
                f"for them): it is polled every {POLL_PAUSE:g} s"
            )
        with suppress(asyncio.CancelledError, TimeoutError, asyncio.TimeoutError):  # Ctrl-C is a normal end
            await asyncio.wait_for(follow(), options.seconds)
        await watching.close()
