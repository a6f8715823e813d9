"""Options that several commands have."""

from typing import Any, Final

import typer

from pulsarctl_wire.cli import console

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
NO_COLOR: Final[Any] = typer.Option("--no-color", help="No colours (NO_COLOR does the same).")
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
