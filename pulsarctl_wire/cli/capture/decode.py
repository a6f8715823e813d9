"""`pwire decode`: shows captured traffic as frames, for people and for jq."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.findings import CheckOptions
from pulsarctl_wire.cli.options import (
    DEFAULT_BUFFER,
    JOBS,
    MAX_FRAME_SIZE,
    OUTPUT,
    PAYLOAD_RATIO,
    WIDE,
    DisplayOptions,
    Output,
    SelectOptions,
    only_interface,
    size_of,
)
from pulsarctl_wire.cli.signature import argument, flag, group, option, several

SELECT, SHOW, READ, CHECK = "Which frames", "How to show them", "How to read", "With --doctor"


@dataclass(frozen=True, kw_only=True)
class DecodeOptions:
    """The command line of `decode`; docs/cli.md describes its options."""

    sources: list[str] = argument(
        "SOURCE...",
        "pcap or pcapng files (also .gz, .zst), directories of them, hex dumps, raw frames; - is stdin. "
        "The format is detected; several sources are read as one capture.",
        default=list,
    )
    output: Output = OUTPUT(SHOW, default="line")
    quiet: bool = flag("-q --quiet", "Print only the summary.", SHOW)
    selecting: SelectOptions = group(SelectOptions, SELECT)
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
    checking: CheckOptions = group(CheckOptions, CHECK)
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
    max_frame_size: int | None = MAX_FRAME_SIZE(READ)
    payload_ratio: int | None = PAYLOAD_RATIO(SHOW)
    write: str | None = option("-w --write FILE", "Write the packets of the shown frames as pcapng.", SHOW)
    showing: DisplayOptions = group(DisplayOptions, SHOW)
    jobs: int | None = JOBS(READ)
    wide: bool = WIDE()

    @property
    def interface(self) -> str | None:
        """The interface to read, or None. Several interfaces end the command."""
        return only_interface(self.interfaces)

    @property
    def buffer_bytes(self) -> int:
        """Memory for packets that wait. A text that is not a size ends the command."""
        return size_of("--buffer", self.buffer or DEFAULT_BUFFER)


def decode(options: DecodeOptions) -> int:
    """Decode Pulsar traffic from captures, hex dumps, raw frames, pipes and live interfaces."""
    _check(options)
    from pulsarctl_wire.cli.capture.job import DecodeJob
    from pulsarctl_wire.cli.capture.reading import captures_of

    options = replace(options, sources=captures_of(options.sources))
    if options.first_error:
        options = replace(options, count=1)
    with console.errors_reported(), ExitStack() as stack:
        return DecodeJob(options, stack).run()


def _check(options: DecodeOptions) -> None:
    """End the command if options contradict each other."""
    interface = options.interface
    if not options.sources and not interface:
        console.fail(
            "decode: name a SOURCE (a file, or - for stdin) or an interface (-i); see pwire decode --help"
        )
    if options.capture_filter is not None and interface is None:
        console.fail("decode: --capture-filter needs --interface; see --filter")
    if options.buffer is not None and interface is None:
        console.fail("decode: --buffer needs --interface")
    if interface and (options.sources or options.two_pass or options.doctor):
        console.fail("decode: a live interface cannot be combined with other sources, --two-pass or --doctor")
    options.checking.check(options.doctor)
    of_frames = {
        "--output tree or hex": options.output in ("tree", "hex"),
        "--command": options.selecting.commands,
        "--topic": options.selecting.topics,
        "--first-error": options.first_error,
        "--two-pass": options.two_pass,
        "--doctor": options.doctor,
        "--schema": options.showing.schema,
        "--write": options.write,
    }
    odd = next((name for name, given in of_frames.items() if given), "")
    if options.list_connections and odd:
        console.fail(f"decode: --connections shows no frames, so it cannot be combined with {odd}")
    _ = options.buffer_bytes  # may end the command too
