"""The verbs of `pwire`. The module of a verb is imported when the verb is used."""

from __future__ import annotations

from importlib import import_module
from inspect import iscoroutinefunction
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from pulsarctl_wire.cli.command import Command, HelpPage

_CAPTURES: Final = {
    "decode": "Decode captured Pulsar traffic: captures, hex dumps, raw frames, pipes, live interfaces.",
    "capture": "Capture the packets of an interface until Ctrl-C; decode them later, here or in Wireshark.",
    "stats": "Count a capture by command, topic, producer, ...: messages, bytes, latencies, errors.",
    "table": "Write captured traffic as a Parquet table, one row a frame, and a table of its gaps.",
    "analyze": "Turn captures into one table of frames (Parquet) with Spark; a rerun takes up what is new.",
    "report": "Answer a question about captured traffic: latencies, throughput, errors, message journeys.",
    "sql": 'Ask in Spark SQL: pwire sql frames.parquet "select command, count(*) from frames group by 1".',
}
_SESSIONS: Final = {
    "produce": "Produce messages, as pulsar-client does, and say where they were stored.",
    "consume": "Consume messages of topics, as pulsar-client does, and acknowledge them.",
    "read": "Read messages of topics from anywhere, and leave no trace: nothing is acknowledged.",
    "lookup": "Find the broker that serves a topic, and show every hop on the way.",
    "partitions": "Say how many partitions a topic has, and their names; 0 if it is not partitioned.",
    "topics": "List the topics of a namespace, one a line; partitions one by one.",
    "cluster": "List the brokers seen, the topics of a namespace, their partitions, and who serves them.",
    "watch": "Print the topics there are, then + those that come and - those that go, until Ctrl-C.",
    "seek": "Move a subscription to a message, or to the first one published at a time or later.",
    "unsubscribe": "Delete a subscription, and with it what it has not acknowledged.",
    "last-id": "Print the id of a topic's last message, of each partition's on a line of its own.",
    "consumer-stats": "Join a subscription, and print what the broker counts of that consumer.",
    "ping": "Time round trips to a broker: a line each, and at the end their percentiles.",
    "txn": "Open a transaction, produce and acknowledge in it, and commit or abort it; show each step.",
    "send": "Send commands (JSON lines) or raw bytes (hex), even wrong ones, and show what comes back.",
    "replay": "Play what the clients of a capture sent to a broker again, and say how its answers differ.",
    "schema": "The schemas of a topic: read them, register one.",
}
_BETWEEN: Final = {"proxy": "Stand between clients and a cluster, show and disturb what passes."}
_PANELS: Final = {"Captures": _CAPTURES, "Sessions": _SESSIONS, "In between": _BETWEEN}

NAMES: Final = [name for verbs in _PANELS.values() for name in verbs]

_SHARED_MODULES: Final = {
    "read": "consume",
    **dict.fromkeys(("partitions", "topics"), "lookup"),
    **dict.fromkeys(("seek", "unsubscribe", "last-id", "consumer-stats"), "inspect"),
}
"""The modules of verbs that have none of their own."""


def load(name: str) -> Any:
    """The command (of typer) of a verb, with its options."""
    module = import_module(f"pulsarctl_wire.cli.{_SHARED_MODULES.get(name, name)}")
    if hasattr(module, "app"):
        return typer.main.get_group(module.app)
    function = getattr(module, name.replace("-", "_"))
    if iscoroutinefunction(function):
        from pulsarctl_wire.cli.session import verb

        function = verb(function)
    single = typer.Typer(add_completion=False)
    single.command(name, cls=Command)(function)
    return typer.main.get_command(single)


class Verbs(HelpPage, TyperGroup):
    """All verbs: names and a line of help, until one is used."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.commands = {
            name: TyperCommand(name, help=text, rich_help_panel=panel)
            for panel, verbs in _PANELS.items()
            for name, text in verbs.items()
        }

    def resolve_command(self, context: Any, arguments: list[str]) -> Any:
        """The verb that the command line names, loaded; as of the parent."""
        name, command, rest = super().resolve_command(context, arguments)
        return name, command and load(str(name)), rest
