"""Options that several commands have."""

from typing import Any, Final

import typer

from pulsarctl_wire.cli import console

LOOPBACK: Final = "127.0.0.1"
"""Where we listen if only a port is given: servers are nobody else's concern unless the user says so."""

MAX_FRAME_SIZE: Final[Any] = typer.Option(
    "--max-frame-size",
    metavar="BYTES",
    min=16,
    help="Largest legal frame, whatever the broker announces.",
    show_default="5 MiB + 10 KiB",
)
OUTPUT: Final[Any] = typer.Option("-o", "--output", help="Form of the output.")
JOBS: Final[Any] = typer.Option("-j", "--jobs", min=1, max=2, help="Processes for large files.")
PAYLOAD: Final[Any] = typer.Option("--payload", help="Keep the payload of each frame, as it was on the wire.")


def _widen(wide: bool) -> None:
    console.screen.wide = wide


WIDE: Final[Any] = typer.Option(
    "--wide", callback=_widen, help="Do not cut lines at the width of the terminal."
)
CONF: Final[Any] = typer.Option(
    "--conf", metavar="KEY=VALUE", help="A setting of Spark, as in spark.driver.memory=8g."
)


def settings_of(conf: list[str] | None) -> dict[str, str]:
    """Spark's settings from KEY=VALUE texts; ends the command where one is something else."""
    settings = {}
    for text in conf or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            console.fail(f"--conf {text}: KEY=VALUE, such as spark.driver.memory=4g", console.EXIT_USAGE)
        settings[key] = value
    return settings


def option(panel: str, *names: str, **more: Any) -> Any:
    """An option in the panel `panel` of the help; one without default shows none."""
    return typer.Option(*names, rich_help_panel=panel, **more)


def host_port(flag: str, text: str) -> tuple[str, int]:
    """The host and port of HOST:PORT, [IPV6]:PORT, or a port alone (then on the loopback address)."""
    host, _, digits = text.rpartition(":")
    bare = host.startswith("[") and host.endswith("]")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 6 and int(digits) < 65_536) or (
        ":" in host and not bare
    ):
        what = "no address to listen on; use HOST:PORT, [IPV6]:PORT or :PORT"
        console.fail(f"{flag} {text}: {what}", console.EXIT_USAGE)
    return (host[1:-1] if bare else host) or LOOPBACK, int(digits)
