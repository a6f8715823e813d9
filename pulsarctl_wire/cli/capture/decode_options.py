"""The options of `pwire decode`."""

from __future__ import annotations

from dataclasses import dataclass

from pulsarctl_wire.cli.findings import CheckOptions
from pulsarctl_wire.cli.options import (
    DEFAULT_BUFFER,
    JOBS,
    OUTPUT,
    PAYLOAD_RATIO,
    WIDE,
    DisplayOptions,
    Output,
    ReadOptions,
    SelectOptions,
    parse_size,
    take_interface,
)
from pulsarctl_wire.cli.signature import argument, flag, group, option, several

SELECT, SHOW, READ, CHECK = "Which frames", "How to show them", "How to read", "With --doctor"


@dataclass(frozen=True, kw_only=True)
class DecodeOptions:
    """The command line of `decode`; docs/cli.md describes its options."""

    sources: list[str] = argument(
        "SOURCE...",
        "pcap or pcapng files (also .gz, .zst), directories of them, hex dumps, logs and other text that "
        "shows bytes, raw frames; - is stdin. "
        "The format is detected; several sources are read as one capture.",
        default=list,
    )
    output: Output = OUTPUT(SHOW, default="line")
    quiet: bool = flag("-q --quiet", "Print only the summary.", SHOW)
    selection: SelectOptions = group(SelectOptions, SELECT)
    time_range: str | None = option(
        "--time-range FROM..TO", "ISO 8601, epoch seconds, or +seconds from the first event.", SELECT
    )
    count: int | None = option("-c --count N", "Stop after N events.", SELECT, min=1)
    first_error: bool = flag(
        "--first-error",
        "Show the first error (damage, a bad checksum, an error from a broker) and stop.",
        SELECT,
    )
    list_connections: bool = flag(
        "--connections",
        "Show connections and how each ended, instead of frames; also those without frames.",
        SHOW,
    )
    two_pass: bool = flag("-2 --two-pass", "Read twice, so that requests show their answers too.", READ)
    doctor: bool = flag("--doctor", "Read twice, and mark the frames that prove findings of doctor.", READ)
    checks: CheckOptions = group(CheckOptions, CHECK)
    interfaces: list[str] = several("-i --interface NAME", "Decode a live interface.", READ)
    capture_filter: str | None = option(
        "--capture-filter BPF", "With -i: packets to capture, such as 'tcp port 6650'.", READ
    )
    buffer: str | None = option(
        "--buffer SIZE",
        "With -i: memory for packets that wait to be decoded.",
        READ,
        show_default=DEFAULT_BUFFER,
    )
    read: ReadOptions = group(ReadOptions, READ)
    payload_ratio: int | None = PAYLOAD_RATIO(SHOW)
    write: str | None = option("-w --write FILE", "Write the packets of the shown frames as pcapng.", SHOW)
    display: DisplayOptions = group(DisplayOptions, SHOW)
    jobs: int | None = JOBS(READ)
    wide: bool = WIDE()

    @property
    def interface(self) -> str | None:
        """The interface to read, or None. Several interfaces end the command."""
        return take_interface(self.interfaces)

    @property
    def buffer_bytes(self) -> int:
        """The memory for waiting packets, in bytes. An invalid size ends the command."""
        return parse_size("--buffer", self.buffer or DEFAULT_BUFFER)
