"""`pwire conform`: checks a broker against what the protocol requires, and compares reports of brokers."""

from __future__ import annotations

import sys

import typer

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.command import Command, Group
from pulsarctl_wire.cli.conform.options import BrokerOptions, CompareOptions
from pulsarctl_wire.cli.signature import takes

app = typer.Typer(
    name="conform",
    cls=Group,
    help="Check a broker against what the protocol requires, and compare reports of brokers.",
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


app.command("broker", cls=Command)(takes(broker))
app.command("compare", cls=Command)(takes(compare))
