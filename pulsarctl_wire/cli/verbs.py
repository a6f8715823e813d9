"""The verbs of `pwire`. The module of a verb is imported when the verb is used."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from inspect import iscoroutinefunction
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from pulsarctl_wire import __version__
from pulsarctl_wire.cli.command import Command, HelpPage

_CAPTURES: Final = {
    "decode": "Decode Pulsar traffic from captures, hex dumps, raw frames, pipes and live interfaces.",
    "sequence": "Draw captured sessions as a sequence diagram: who sent what to whom, and how long it took.",
    "capture": "Capture the packets of an interface until Ctrl-C, for pwire decode or Wireshark.",
    "stats": "Show statistics of a capture by command, topic, producer, ...: rates, latencies, errors.",
    "explain": "Explain a command, field, error, version, rule of doctor or case of conform, by name.",
    "doctor": "Find out what is wrong: what, how sure, which frames prove it, what to do.",
    "permits": "Show each consumer's permits, deliveries, acknowledgements and redeliveries over time.",
    "table": "Write captured traffic as Parquet tables: of frames, gaps and connections.",
    "tui": "Look around in captures with the keyboard: frames, fields, bytes, topics, findings.",
    "sanitize": "Replace names, payloads and addresses in captures, so that they may leave the house.",
}
_DATA: Final = {
    "analyze": "Turn captures into one table of frames (Parquet) with Spark; a rerun adds what is new.",
    "report": "Run a report on captured traffic: latencies, throughput, errors, message journeys.",
    "extract": "Write the packets of frames in a table as pcapng, from the captures that it was made of.",
    "sql": 'Query in SQL: pwire sql capture.pcap "select command, count(*) from frames group by 1".',
}
_SESSIONS: Final = {
    "produce": "Produce messages like pulsar-client, and print where they were stored.",
    "consume": "Consume messages like pulsar-client, and acknowledge them.",
    "read": "Read messages from any position without a durable subscription; nothing is acknowledged.",
    "lookup": "Find the broker that serves a topic, and show every hop on the way.",
    "partitions": "Print how many partitions a topic has, and their names; 0 if it is not partitioned.",
    "topics": "List the topics of a namespace, one per line; each partition is listed.",
    "cluster": "List the brokers seen, the topics of a namespace, their partitions, and who serves them.",
    "watch": "List the topics of a namespace, then print + for new and - for deleted ones until Ctrl-C.",
    "seek": "Move a subscription to a message, or to the first one published at a time or later.",
    "unsubscribe": "Delete a subscription together with its backlog.",
    "last-id": "Print the id of the last message of a topic, or of each partition, one per line.",
    "consumer-stats": "Join a subscription, and print the broker's statistics of that consumer.",
    "ping": "Time round trips to a broker: one line each, and percentiles at the end.",
    "txn": "Open a transaction, produce and acknowledge in it, and commit or abort it; show each step.",
    "send": "Send commands (JSON lines) or raw bytes (hex), even invalid ones, and show the replies.",
    "replay": "Send what the clients of a capture sent to a broker again, and show how its answers differ.",
    "schema": "Show the schemas of a topic, or register one.",
}
_PROXY: Final = {"proxy": "Forward connections to a cluster, show the traffic, and inject faults."}
_BROKER: Final = {
    "broker": "Run an embedded Pulsar broker, for tests and development.",
    "demo": "Show a broker, a producer, consumers of two types, and what they send each other.",
}
_CONFORM: Final = {
    "conform": "Check brokers and clients against what the protocol requires, compare reports, and fuzz.",
}
_PACKAGES: Final = {
    "capture": _CAPTURES,
    "data": _DATA,
    "session": _SESSIONS,
    "proxy": _PROXY,
    "broker": _BROKER,
    "conform": _CONFORM,
}
"""Packages -> their verbs, each with its line of help."""

_PANELS: Final = {
    "Captures": ("capture", "data"),
    "Sessions": ("session",),
    "Proxy": ("proxy",),
    "Broker": ("broker", "conform"),
}

NAMES: Final = [name for verbs in _PACKAGES.values() for name in verbs]

_SHARED_MODULES: Final = {
    "read": "consume",
    "sql": "report",
    **dict.fromkeys(("partitions", "topics", "watch"), "lookup"),
    **dict.fromkeys(("seek", "unsubscribe", "last-id", "consumer-stats"), "inspect"),
}
"""The modules of verbs that share one."""


def load(name: str) -> Any:
    """Load typer's command for a verb, with its options."""
    # help lists `tui` with the verbs for captures, but it has a package of its own
    package = "tui" if name == "tui" else next(key for key, verbs in _PACKAGES.items() if name in verbs)
    module = import_module(f"pulsarctl_wire.cli.{package}.{_SHARED_MODULES.get(name, name)}")
    if hasattr(module, "app"):
        return typer.main.get_group(module.app)
    function = getattr(module, name.replace("-", "_"))
    if iscoroutinefunction(function):
        from pulsarctl_wire.cli.session.verb import verb

        command = verb(function)
    else:
        from pulsarctl_wire.cli.signature import takes

        command = takes(function)
    wrapper = typer.Typer(add_completion=False)
    wrapper.command(name, cls=Command)(command)
    return typer.main.get_command(wrapper)


class Verbs(HelpPage, TyperGroup):
    """All verbs, with their names and help lines; a verb is loaded when it is used."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.commands = {
            name: TyperCommand(name, help=text, rich_help_panel=panel)
            for panel, packages in _PANELS.items()
            for package in packages
            for name, text in _PACKAGES[package].items()
        }

    def resolve_command(self, context: Any, arguments: list[str]) -> Any:
        """Load the verb that the command line names. Overrides the parent's method."""
        name, command, remaining = super().resolve_command(context, arguments)
        return name, command and load(str(name)), remaining


app = typer.Typer(
    name="pwire",
    cls=Verbs,
    help="Debug Apache Pulsar's binary protocol: decode traffic, run sessions, a proxy, a broker.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        module = find_spec("pulsarctl_wire.wire.frame")
        compiled = " (compiled)" if module and not (module.origin or "").endswith(".py") else ""
        sys.stdout.write(f"pwire {__version__}{compiled}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
