"""The options of `pwire doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pulsarctl_wire.cli.findings import CheckOptions, FailOn
from pulsarctl_wire.cli.options import (
    BUFFER,
    OUTPUT,
    PRIVATE_KEY,
    SOURCES,
    WIDE,
    ReadOptions,
    TimeFormat,
    parse_size,
    take_interface,
)
from pulsarctl_wire.cli.signature import flag, group, option, several

RULES, SHOW, READ = "Which rules", "How to show findings", "How to read"


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """The command line of `doctor`; docs/cli.md describes its options."""

    sources: list[str] = SOURCES(default=list)
    output: Literal["text", "json", "sarif", "markdown"] = OUTPUT(SHOW, default="text")
    checks: CheckOptions = group(CheckOptions, RULES)
    fail_on: FailOn = option("--fail-on", "Which findings make the exit code 1.", RULES, default="any")
    each: bool = flag("--all", "Show each finding, also those of the same cause.", SHOW)
    tree: bool = flag("--tree", "Show the evidence frames in full.", SHOW)
    private_keys: list[str] = PRIVATE_KEY(SHOW)
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
    read: ReadOptions = group(ReadOptions, READ)

    @property
    def interface(self) -> str | None:
        """The interface to read, or None. Several interfaces end the command."""
        return take_interface(self.interfaces)

    @property
    def is_live(self) -> bool:
        """Whether a source may have no end, and cannot be read again: an interface, or stdin."""
        return bool(self.interfaces) or "-" in self.sources

    @property
    def buffer_bytes(self) -> int:
        """The memory for waiting packets, in bytes. An invalid size ends the command."""
        return parse_size("--buffer", self.buffer)
