"""`pwire watch`: the topics of a namespace, and how they come and go."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from itertools import repeat
from typing import Annotated

import typer

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.lookup import NAMESPACE, REGEX, Output, checked_pattern, say
from pulsarctl_wire.cli.options import OUTPUT
from pulsarctl_wire.cli.session import Session, namespace_name

Change = tuple[str, str]
"""What happened ("added", "removed", "ended": the watch itself), and the topic."""


async def watch(
    session: Session,
    namespace: Annotated[str, NAMESPACE] = "public/default",
    regex: Annotated[str | None, REGEX] = None,
    count: Annotated[
        int | None, typer.Option("-c", "--count", metavar="N", min=1, help="End after N changes.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--for", metavar="SECONDS", min=0, help="End after that long.")
    ] = None,
    output: Annotated[Output, OUTPUT] = Output.text,
) -> None:
    """Print the topics there are, then + those that come and - those that go, until Ctrl-C."""
    import asyncio

    from pulsarctl_wire.net.watch import ASKING_PAUSE, TopicWatch

    name = namespace_name(namespace)
    pattern = checked_pattern(regex) or ".*"
    changes: asyncio.Queue[Change] = asyncio.Queue()
    paint = console.Paint(console.use_colour(sys.stdout))

    def show(event: str, topic: str) -> None:
        record = {"time_ns": time.time_ns(), "event": event, "topic": topic}
        sign = paint("red", "-") if event == "removed" else paint("green", "+")
        say(record, f"{sign} {console.clean(topic)}", output)

    def changed(added: list[str], removed: list[str]) -> None:
        for event, topics in (("added", added), ("removed", removed)):
            for topic in topics:
                changes.put_nowait((event, topic))
        if watching.error is not None:
            changes.put_nowait(("ended", ""))

    async def follow() -> None:
        for _ in repeat(None) if count is None else range(count):
            event, topic = await changes.get()
            if watching.error is not None and event == "ended":
                raise watching.error
            show(event, topic)

    async with session.client() as client:
        watching = TopicWatch(client, name, pattern, changed)
        for topic in await watching.open():
            show("present", topic)
        if watching.by_asking:
            console.complain(
                "the broker does not tell of changes (it has no topic watchers, or the pattern is too long "
                f"for them): it is asked every {ASKING_PAUSE:g} s"
            )
        with suppress(asyncio.CancelledError, TimeoutError, asyncio.TimeoutError):  # Ctrl-C is a usual end
            await asyncio.wait_for(follow(), seconds)
        await watching.close()
