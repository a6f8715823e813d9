"""`pwire capture`: packets of an interface to a pcapng file."""

import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, cast

import typer

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.options import (
    BUFFER,
    DEFAULT_BUFFER,
    ROTATE_FILES,
    ROTATE_SIZE,
    ROTATE_TIME,
    only_interface,
    rotation,
    size_of,
)

if TYPE_CHECKING:
    from pulsarctl_wire.capture.live import Live
    from pulsarctl_wire.capture.rotation import RotatingFiles


def capture(
    interfaces: Annotated[
        list[str],
        typer.Option("-i", "--interface", metavar="NAME", help="The interface, as in 'lo' or 'eth0'."),
    ],
    write: Annotated[
        str, typer.Option("-w", "--write", metavar="FILE", help="The pcapng file; - is stdout.")
    ],
    capture_filter: Annotated[
        str | None,
        typer.Option("-f", "--capture-filter", metavar="BPF", help="Packets to take, as in 'tcp port 6650'."),
    ] = None,
    count: Annotated[
        int | None, typer.Option("-c", "--count", metavar="N", min=1, help="Stop after N packets.")
    ] = None,
    duration: Annotated[
        float | None, typer.Option("--duration", metavar="SECONDS", min=0, help="Stop after this time.")
    ] = None,
    buffer: Annotated[str, BUFFER] = DEFAULT_BUFFER,
    rotate_size: Annotated[str | None, ROTATE_SIZE] = None,
    rotate_time: Annotated[str | None, ROTATE_TIME] = None,
    rotate_files: Annotated[int, ROTATE_FILES] = 0,
) -> None:
    """Capture the packets of an interface until Ctrl-C; decode them later, here or in Wireshark."""
    from pulsarctl_wire.capture.rotation import RotatingFiles
    from pulsarctl_wire.cli.interface import open_interface
    from pulsarctl_wire.errors import CaptureError, DamagedCapture

    interface = only_interface(interfaces) or ""
    size = size_of("--buffer", buffer)
    turns = rotation(rotate_size, rotate_time, rotate_files)
    if write == "-" and any(turns):
        console.fail("--rotate-… goes with --write FILE", console.EXIT_USAGE)
    try:
        with ExitStack() as stack:
            stream: BinaryIO = sys.stdout.buffer
            files = None
            opened = open_interface(
                interface, capture_filter, size, before_wait=lambda: stream.flush(), seconds=duration
            )
            live = stack.enter_context(opened)
            if write != "-":  # which empties a file that is there, once there are packets to come
                files = RotatingFiles(Path(write), time.time_ns(), **turns._asdict())
                stream = cast(BinaryIO, stack.enter_context(closing(files)))
            _record(live, stream, files, count)
    except CaptureError as error:
        damaged = isinstance(error, DamagedCapture)
        console.fail(str(error), console.EXIT_DAMAGED if damaged else console.EXIT_SOURCE)
    except BrokenPipeError:
        console.end_of_pipe()
    except OSError as error:
        console.fail(f"--write {write}: {error.strerror}", console.EXIT_OUTPUT)


def _record(live: "Live", stream: BinaryIO, files: "RotatingFiles | None", count: int | None) -> None:
    """Write packets, and say how many there were. Raises DamagedCapture then, and OSError of the stream."""
    from pulsarctl_wire.capture.writer import PcapngWriter
    from pulsarctl_wire.errors import DamagedCapture

    writer = PcapngWriter(stream)
    damage: DamagedCapture | None = None
    received = dropped_before = 0  # in the files before

    def write_counters() -> None:
        nonlocal received, dropped_before
        if live.dropped is not None:
            counts = live.received - received, live.dropped - dropped_before
            writer.statistics(live.link, time.time_ns(), *counts)
            received, dropped_before = live.received, live.dropped

    try:
        for packet in live:
            if files is not None and files.is_due(packet[0] or 0):
                write_counters()
                files.turn(packet[0] or 0)
                writer.begin()
            writer.write(packet)
            if writer.count == count:
                break
    except KeyboardInterrupt:  # a second signal
        pass
    except DamagedCapture as error:
        damage = error
    write_counters()
    stream.flush()
    dropped = "an unknown number" if live.dropped is None else live.dropped
    captured = console.count_of(writer.count, "packet")
    sys.stderr.write(f"{captured} captured, {dropped} dropped by the kernel\n")
    if damage is not None:
        raise damage
