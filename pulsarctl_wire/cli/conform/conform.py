"""`pwire conform`: checks brokers and clients against the protocol, compares reports, and fuzzes brokers."""

from __future__ import annotations

import shlex
import sys
from typing import Any

import typer

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.command import Command, Group
from pulsarctl_wire.cli.conform.options import BrokerOptions, ClientOptions, CompareOptions, FuzzOptions
from pulsarctl_wire.cli.signature import takes

app = typer.Typer(
    name="conform",
    cls=Group,
    help="Check brokers and clients against what the protocol requires, compare reports, and fuzz.",
    no_args_is_help=True,
)


def broker(options: BrokerOptions) -> int:
    """Check a broker: run cases against it, each on connections and topics of its own.

    It should be one for tests: topics and namespaces stay. The exit code is 1 if a must has failed.
    """
    from pulsarctl_wire.cli.conform.checking import check_broker

    with console.errors_reported():
        return check_broker(options)


def client(options: ClientOptions) -> int:
    """Check a client, which is a command: run it against brokers that give it something to react to.

    What follows -- is one command for --produce and --consume: {mode} in it becomes produce or consume.
    No shell is used. Each case has brokers and processes of its own. The exit code is 1 if a must has failed.
    """
    from pulsarctl_wire.cli.conform.client_checking import check_client

    with console.errors_reported():
        return check_client(options)


class ClientCommand(Command):
    """The command `conform client`: what follows -- stands for --produce and --consume."""

    def parse_args(self, context: Any, arguments: list[str]) -> list[str]:
        """Override the parent's method."""
        if "--" in arguments:
            position = arguments.index("--")
            words = arguments[position + 1 :]
            arguments = arguments[:position]
            if not any("{mode}" in word for word in words):
                console.fail("conform client: the command after -- needs {mode}: produce or consume")
            for mode in ("produce", "consume"):
                arguments += [f"--{mode}", shlex.join(word.replace("{mode}", mode) for word in words)]
        return super().parse_args(context, arguments)


def compare(options: CompareOptions) -> None:
    """Show reports side by side: the cases in which they differ, and how many are the same."""
    from pulsarctl_wire.cli.conform.reporting import read_report
    from pulsarctl_wire.render.conformance import comparison_markdown, comparison_text
    from pulsarctl_wire.render.text import Paint

    reports = [read_report(path) for path in options.reports]
    with console.errors_reported():
        if options.output == "markdown":
            sys.stdout.write(comparison_markdown(reports))
        else:
            sys.stdout.write(comparison_text(reports, Paint(console.has_colour(sys.stdout))))
        sys.stdout.flush()


def fuzz(options: FuzzOptions) -> int:
    """Send valid sessions with random mutations to a broker, and find out what it does wrong.

    It must stay up, serve all other connections, refuse what it cannot accept as Pulsar does, and answer
    only what was asked. Each finding is reduced to a short script for pwire send, named on stdout. Only for
    brokers that are for tests. Exit code 1: there are findings.
    """
    from pulsarctl_wire.cli.conform.fuzzing import run_fuzzer

    with console.errors_reported():
        return run_fuzzer(options)


app.command("broker", cls=Command)(takes(broker))
app.command("client", cls=ClientCommand)(takes(client))
app.command("compare", cls=Command)(takes(compare))
app.command("fuzz", cls=Command)(takes(fuzz))
