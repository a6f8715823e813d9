"""`pwire doctor`: finds out what is wrong in captured or live traffic, with the frames that prove it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Literal

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.findings import CheckOptions, FailOn
from pulsarctl_wire.cli.options import (
    BUFFER,
    DEFAULT_BUFFER,
    MAX_FRAME_SIZE,
    OUTPUT,
    WIDE,
    TimeFormat,
    only_interface,
    size_of,
)
from pulsarctl_wire.cli.signature import argument, flag, group, option, several

RULES, SHOW, READ = "Which rules", "How to show findings", "How to read"


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """The command line of `doctor`; docs/cli.md describes its options."""

    sources: list[str] = argument(
        "SOURCE...",
        "As for decode: pcap or pcapng files (also .gz, .zst), directories, hex dumps, frames; - is stdin.",
        default=list,
    )
    output: Literal["text", "json", "sarif", "markdown"] = OUTPUT(SHOW, default="text")
    checking: CheckOptions = group(CheckOptions, RULES)
    fail_on: FailOn = option("--fail-on", "Which findings make the exit code 1.", RULES, default="any")
    tree: bool = flag("--tree", "Show the evidence frames in full.", SHOW)
    time_format: TimeFormat = option("-t --time", "Time format, as in decode.", SHOW, default="utc")
    wide: bool = WIDE(SHOW)
    write: str | None = option(
        "-w --write FILE", "Write the packets of the connections with findings as pcapng.", SHOW
    )
    interfaces: list[str] = several("-i --interface NAME", "Look at a live interface.", READ)
    capture_filter: str | None = option(
        "--capture-filter BPF", "With -i: packets to capture, such as 'tcp port 6650'.", READ
    )
    buffer: str = BUFFER(READ)
    max_frame_size: int | None = MAX_FRAME_SIZE(READ)

    @property
    def interface(self) -> str | None:
        """The interface to read, or None. Several interfaces end the command."""
        return only_interface(self.interfaces)

    @property
    def is_live(self) -> bool:
        """Whether findings are said at once: the source may have no end."""
        return bool(self.interfaces) or "-" in self.sources

    @property
    def buffer_bytes(self) -> int:
        """Memory for packets that wait. A text that is not a size ends the command."""
        return size_of("--buffer", self.buffer)


def doctor(options: DoctorOptions) -> int:
    """Find out what is wrong: what, how sure, which frames prove it, what to do."""
    interface = options.interface
    if not options.sources and not interface:
        console.fail(
            "doctor: name a SOURCE (a file, or - for stdin) or an interface (-i); see pwire doctor --help"
        )
    if interface and options.sources:
        console.fail("doctor: a live interface cannot be combined with other sources")
    if not interface and (options.capture_filter is not None or options.buffer != DEFAULT_BUFFER):
        console.fail("doctor: --capture-filter and --buffer need --interface")
    if options.write == "-":
        console.fail("doctor: --write -: stdout shows the findings; name a file")
    if options.is_live and (options.tree or options.write):
        what = "--tree" if options.tree else "--write"
        console.fail(f"doctor: {what} reads the source twice: save it to a file first (pwire capture)")
    if options.tree and options.output in ("json", "sarif"):
        console.fail(f"doctor: --tree cannot be combined with -o {options.output}")
    from pulsarctl_wire.cli.capture.doctor_job import DoctorJob
    from pulsarctl_wire.cli.capture.reading import captures_of

    options = replace(options, sources=captures_of(options.sources))
    with console.errors_reported(), ExitStack() as stack:
        return DoctorJob(options, stack).run()
