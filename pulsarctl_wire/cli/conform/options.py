"""The options of `pwire conform`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pulsarctl_wire.cli import completion
from pulsarctl_wire.cli.options import OUTPUT
from pulsarctl_wire.cli.session.verb import CLUSTER, AuthOptions
from pulsarctl_wire.cli.signature import argument, flag, group, option, several

CASES, CLIENT, REPORT, RUN = "Which cases", "The client", "The report", "The run"


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Options about the report of a check."""

    output: Literal["text", "json"] = OUTPUT(REPORT, default="text")
    frames: bool = flag("--frames", "Show the frames of each case that has failed.", REPORT)
    junit: str | None = option("--junit FILE", "Write the report as JUnit's XML, too.", REPORT)
    markdown: str | None = option("--markdown FILE", "Write the report as Markdown, too.", REPORT)
    captures: str | None = option("--captures DIR", "Write the traffic of cases as pcapng files.", REPORT)
    captures_of: Literal["failed", "all"] = option(
        "--captures-of", "The cases whose traffic is written.", REPORT, default="failed"
    )


@dataclass(frozen=True, kw_only=True)
class ChoiceOptions:
    """Options about which cases run."""

    level: Literal["must", "should", "observed"] = option(
        "--level", "The least binding cases to run.", CASES, default="should"
    )
    listing: bool = flag("--list", "List the cases instead of running them.", CASES)
    jobs: int | None = option("-j --jobs N", "Cases that run at once.", CASES, min=1)


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
    choice: ChoiceOptions = group(ChoiceOptions)
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
    report: ReportOptions = group(ReportOptions)


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """The command line of `conform client`."""

    cases: list[str] = argument(
        "[CASE]...",
        "Ids of cases, also with wildcards: client/ping, 'client/receipt_*'. By default, all.",
        default=list,
        autocompletion=completion.client_cases,
    )
    produce: str | None = option(
        "--produce COMMAND",
        "Produces {count} messages to {topic} at {url}, without batching and without pauses, waits for their "
        "receipts, and ends with exit code 0 if all were stored.",
        CLIENT,
    )
    consume: str | None = option(
        "--consume COMMAND",
        "Consumes {count} messages of {topic} from the earliest on, prints each payload on a line at once, "
        "acknowledges each, and ends with exit code 0.",
        CLIENT,
    )
    timeout: float = option(
        "--timeout SECONDS",
        "How long the client waits for an answer, also to SEND: {timeout} in its command.",
        CLIENT,
        default=30.0,
        min=0.1,
    )
    keepalive: float = option(
        "--keepalive SECONDS",
        "The client's time between PINGs: {keepalive} in its command.",
        CLIENT,
        default=30.0,
        min=0.1,
    )
    choice: ChoiceOptions = group(ChoiceOptions)
    report: ReportOptions = group(ReportOptions)


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """The command line of `conform compare`."""

    reports: list[str] = argument("REPORT...", "Reports, as `conform broker -o json` writes them.")
    output: Literal["text", "markdown"] = OUTPUT(default="text")


@dataclass(frozen=True, kw_only=True)
class FuzzOptions:
    """The command line of `conform fuzz`."""

    url: str = argument("URL", "The broker: pulsar://host:port or pulsar+ssl://….")
    seed: int | None = option(
        "--seed N", "The run to repeat; the same seed gives the same sessions.", RUN, show_default="random"
    )
    minutes: float = option("--minutes M", "How long to fuzz.", RUN, default=1.0, min=0.01)
    sessions: int | None = option("--sessions N", "End after so many sessions.", RUN, min=1)
    jobs: int = option("-j --jobs N", "Sessions that run at once.", RUN, default=8, min=1)
    patience: float = option(
        "--patience SECONDS",
        "How long an answer may take before it counts as missing.",
        RUN,
        default=5.0,
        min=0.1,
    )
    out: str | None = option(
        "--out DIR",
        "Where scripts of the findings are written, for pwire send.",
        REPORT,
        show_default="a new temporary directory",
    )
    remote: bool = flag("--remote", "Allow a broker that is not on this machine.", CLUSTER)
    auth: AuthOptions = group(AuthOptions, CLUSTER)
