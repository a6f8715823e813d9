"""Options that several commands have."""

import re
from typing import Any, Final, NamedTuple

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
ROTATE_SIZE: Final[Any] = typer.Option(
    "--rotate-size", metavar="BYTES", help="A new file after so much: 100MB.", rich_help_panel="Rotation"
)
ROTATE_TIME: Final[Any] = typer.Option(
    "--rotate-time", metavar="TIME", help="A new file after so long: 10m.", rich_help_panel="Rotation"
)
ROTATE_FILES: Final[Any] = typer.Option(
    "--rotate-files", metavar="N", min=0, help="Keep the newest N; 0: all.", rich_help_panel="Rotation"
)
DEFAULT_BUFFER: Final = "64MB"
BUFFER: Final[Any] = typer.Option("--buffer", metavar="SIZE", help="Memory for packets that wait to be read.")

_SIZES: Final = {"": 1, "k": 1000, "kb": 1000, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9}
_SPANS: Final = {"": 1, "s": 1, "m": 60, "h": 3600}


def settings_of(conf: list[str] | None) -> dict[str, str]:
    """Spark's settings from KEY=VALUE texts; ends the command where one is something else."""
    settings = {}
    for text in conf or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            console.fail(
                f"--conf {text.partition(':')[0]}: KEY=VALUE, such as spark.driver.memory=4g",
                console.EXIT_USAGE,
            )
        settings[key] = value
    return settings


def option(panel: str, *names: str, **more: Any) -> Any:
    """An option in the panel `panel` of the help; one without default shows none."""
    return typer.Option(*names, rich_help_panel=panel, **more)


def payload_ratio(panel: str) -> Any:
    """The option --payload-ratio: the `ratio` of a `wire.payload.Budget`."""
    return option(
        panel,
        "--payload-ratio",
        metavar="N",
        min=1,
        show_default="1024",
        help="Bytes of payloads and messages opened for each byte read, beyond the first 160 MiB.",
    )


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


def size_of(flag: str, text: str) -> int:
    """The bytes of a size such as 64MB; ends the command where it is something else."""
    return int(_amount(flag, text, _SIZES))


def only_interface(names: list[str] | None) -> str | None:
    """The interface that -i names, if it is given; ends the command where there are several."""
    if len(names or ()) > 1:
        given = " ".join(f"-i {name}" for name in names or ())
        console.fail(f"{given}: only one interface can be read at a time", console.EXIT_USAGE)
    return names[0] if names else None


class Rotation(NamedTuple):
    """When a new file begins, as in `RotatingFiles`."""

    size: int
    period_ns: int
    keep: int


def rotation(size: str | None, time: str | None, files: int) -> Rotation:
    """What the --rotate options say; ends the command where they make no sense."""
    found = Rotation(
        size_of("--rotate-size", size or "0"), int(_amount("--rotate-time", time or "0", _SPANS) * 1e9), files
    )
    if files and not (found.size or found.period_ns):
        console.fail("--rotate-files goes with --rotate-size or --rotate-time", console.EXIT_USAGE)
    return found


def _amount(flag: str, text: str, units: dict[str, int]) -> float:
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)\s*([a-z]*)", text.lower())
    if not match or match[2] not in units:
        wanted = ", ".join(unit for unit in units if unit)
        console.fail(f"{flag} {text}: a number is wanted, perhaps with {wanted}", console.EXIT_USAGE)
    return float(match[1]) * units[match[2]]
