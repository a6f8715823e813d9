"""The command `pwire`. One file per family of commands; each parses, calls the library, and renders."""

import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from pulsarctl_wire import __version__
from pulsarctl_wire.cli import console, proxy, schema
from pulsarctl_wire.cli.analyze import analyze
from pulsarctl_wire.cli.capture import capture
from pulsarctl_wire.cli.cluster import cluster
from pulsarctl_wire.cli.command import Command, usage_errors
from pulsarctl_wire.cli.consume import consume, read
from pulsarctl_wire.cli.decode import decode
from pulsarctl_wire.cli.inspect import consumer_stats, last_id, seek, unsubscribe
from pulsarctl_wire.cli.lookup import lookup, partitions, topics
from pulsarctl_wire.cli.ping import ping
from pulsarctl_wire.cli.produce import produce
from pulsarctl_wire.cli.replay import replay
from pulsarctl_wire.cli.report import report
from pulsarctl_wire.cli.send import send
from pulsarctl_wire.cli.session import verb
from pulsarctl_wire.cli.sql import sql
from pulsarctl_wire.cli.stats import stats
from pulsarctl_wire.cli.table import table
from pulsarctl_wire.cli.txn import txn
from pulsarctl_wire.cli.watch import watch

app = typer.Typer(
    name="pwire",
    help="See and speak Apache Pulsar's binary protocol: captures, pipes, live traffic, real sessions.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
for command in (decode, capture, stats, table, analyze, report, sql):
    app.command(rich_help_panel="Captures", cls=Command)(command)
for each in (
    *(produce, consume, read, lookup, partitions, topics, cluster, watch),
    *(seek, unsubscribe, last_id, consumer_stats, ping, txn, send, replay),
):
    app.command(each.__name__.replace("_", "-"), rich_help_panel="Sessions", cls=Command)(verb(each))
app.add_typer(proxy.app, name="proxy", rich_help_panel="In between")
app.add_typer(schema.app, name="schema", rich_help_panel="Sessions")


def _version(wanted: bool) -> None:
    if wanted:
        frame = find_spec("pulsarctl_wire.wire.frame")
        compiled = " (compiled)" if frame and not (frame.origin or "").endswith(".py") else ""
        sys.stdout.write(f"pwire {__version__}{compiled}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run `pwire`; Ctrl-C and a closed pipe end it quietly."""
    console.prepare_streams()
    console.screen.reset()
    try:
        with usage_errors():
            raise SystemExit(app(prog_name="pwire", standalone_mode=False))
    except KeyboardInterrupt:
        raise SystemExit(console.EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        console.end_of_pipe()
