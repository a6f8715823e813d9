"""`pwire conform`: checks a broker against what the protocol requires, compares reports, and fuzzes."""

from __future__ import annotations

import sys

import typer

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.command import Command, Group
from pulsarctl_wire.cli.conform.options import BrokerOptions, CompareOptions, FuzzOptions
from pulsarctl_wire.cli.signature import takes

app = typer.Typer(
    name="conform",
    cls=Group,
    help="Check a broker against what the protocol requires, compare reports, and fuzz.",
    no_args_is_help=True,
)


def broker(options: BrokerOptions) -> int:
    """Check a broker: run cases against it, each on connections and topics of its own.

    It should be one for tests: topics and namespaces stay. The exit code is 1 if a must has failed.
    """
    from pulsarctl_wire.cli.conform.checking import check_broker, list_cases

    with console.errors_reported():
        return list_cases(options) if options.listing else check_broker(options)


def compare(options: CompareOptions) -> None:
    """Show reports side by side: the cases in which they differ, and how many are the same."""
    from pulsarctl_wire.cli.conform.checking import read_report
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
app.command("compare", cls=Command)(takes(compare))
app.command("fuzz", cls=Command)(takes(fuzz))
