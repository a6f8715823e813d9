"""The command `pwire`. One file per family of verbs; each parses, calls the library, and renders."""

import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from pulsarctl_wire import __version__
from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.command import usage_errors
from pulsarctl_wire.cli.verbs import Verbs

app = typer.Typer(
    name="pwire",
    cls=Verbs,
    help="See and speak Apache Pulsar's binary protocol: captures, pipes, live traffic, real sessions.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


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
