"""`pwire demo`: a broker, a producer, consumers of two types, and what they send each other."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from shlex import quote

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.options import OUTPUT, WIDE, Output
from pulsarctl_wire.cli.signature import option


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """The options of `demo`."""

    output: Output = OUTPUT(default="line")
    record: str | None = option(
        "-w --record FILE", "Record the traffic here. Default: a new temporary file.", show_default=False
    )
    wide: bool = WIDE()


def demo(options: DemoOptions) -> int:
    """Show a broker, a producer, consumers of two types, and what they send each other."""
    with console.errors_reported():
        import asyncio

        from pulsarctl_wire.cli.broker.demo_clients import DemoTrace, run_demo
        from pulsarctl_wire.cli.recording import RecordingSink
        from pulsarctl_wire.wire.session.sinks import Follower

        path = options.record or _new_file()
        recording = RecordingSink(path, console.warn, "the demo", show_secrets=False, at_once=True)
        trace = DemoTrace(options.output, show_secrets=False, stream=sys.stdout)
        follower = Follower([trace, recording])
        try:
            asyncio.run(run_demo(follower))
        finally:
            follower.finish()
            console.warn(f"the traffic is in {path}; look at it with: pwire decode -o tree {quote(path)}")
        if trace.error is not None:
            raise trace.error
    return console.EXIT_OUTPUT if follower.failed else 0


def _new_file() -> str:
    descriptor, path = tempfile.mkstemp(prefix="pwire-demo-", suffix=".pcapng")
    os.close(descriptor)
    return path
