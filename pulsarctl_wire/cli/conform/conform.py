"""`pwire conform`: checks a broker against what the protocol requires, and compares reports of brokers."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

import typer

from pulsarctl_wire.cli import completion, console
from pulsarctl_wire.cli.command import Command, Group
from pulsarctl_wire.cli.options import OUTPUT
from pulsarctl_wire.cli.session.verb import CLUSTER, AuthOptions
from pulsarctl_wire.cli.signature import argument, flag, group, option, several, takes

app = typer.Typer(
    name="conform",
    cls=Group,
    help="Check a broker against what the protocol requires, and compare reports of brokers.",
    no_args_is_help=True,
)
CASES, REPORT = "Which cases", "The report"


@dataclass(frozen=True, kw_only=True)
class BrokerOptions:
    """The command line of `conform broker`."""

    url: str | None = argument(
        "[URL]", "The broker: pulsar://host:port or pulsar+ssl://…; not needed for --list.", default=None
    )
    cases: list[str] = argument(
        "[CASE]...",
        "Ids of cases, also with wildcards: send/terminated_topic, 'send/*'. By default, all.",
        default=list,
        autocompletion=completion.cases,
    )
    level: Literal["must", "should", "observed"] = option(
        "--level", "The least binding cases to run.", CASES, default="should"
    )
    listing: bool = flag("--list", "List the cases instead of running them.", CASES)
    have: list[str] = several(
        "--have NAME",
        "What the broker is set to, where the protocol does not show it: limits, haproxy, …, "
        "keepalive=SECONDS.",
        CLUSTER,
        autocompletion=completion.settings,
    )
    admin_url: str | None = option(
        "--admin-url URL", "The admin API, for the cases that need it: http://localhost:8080.", CLUSTER
    )
    token_key: str | None = option(
        "--token-key FILE", "The broker's tokenSecretKey, for the cases that need tokens.", CLUSTER
    )
    auth: AuthOptions = group(AuthOptions, CLUSTER)
    jobs: int = option("-j --jobs N", "Cases that run at once.", CASES, default=16, min=1)
    output: Literal["text", "json"] = OUTPUT(REPORT, default="text")
    frames: bool = flag("--frames", "Show the frames of each case that has failed.", REPORT)
    junit: str | None = option("--junit FILE", "Write the report as JUnit's XML, too.", REPORT)
    markdown: str | None = option("--markdown FILE", "Write the report as Markdown, too.", REPORT)
    captures: str | None = option("--captures DIR", "Write the traffic of cases as pcapng files.", REPORT)
    captures_of: Literal["failed", "all"] = option(
        "--captures-of", "The cases whose traffic is written.", REPORT, default="failed"
    )


def broker(options: BrokerOptions) -> int:
    """Check a broker: run cases against it, each on connections and topics of its own.

    It should be one for tests: topics and namespaces stay. The exit code is 1 if a must has failed.
    """
    from pulsarctl_wire.cli.conform.checking import check_broker, list_cases

    with console.errors_reported():
        return list_cases(options) if options.listing else check_broker(options)


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """The command line of `conform compare`."""

    reports: list[str] = argument("REPORT...", "Reports, as `conform broker -o json` writes them.")
    output: Literal["text", "markdown"] = OUTPUT(default="text")


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
