"""`pwire capture`: packets of an interface to a pcapng file."""

import sys
import time
from typing import Annotated

import typer

from pulsarctl_wire.cli import console


def capture(
    interface: Annotated[
        str, typer.Option("-i", "--interface", metavar="NAME", help="The interface, as in 'lo' or 'eth0'.")
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
        float | None,
        typer.Option(
            "--duration", metavar="SECONDS", min=0, help="Stop with the first packet after this time."
        ),
    ] = None,
) -> None:
    """Capture the packets of an interface until Ctrl-C; decode them later, here or in Wireshark."""
    from pulsarctl_wire.capture.live import live_packets
    from pulsarctl_wire.capture.writer import PcapngWriter
    from pulsarctl_wire.errors import CaptureError

    try:
        file = sys.stdout.buffer if write == "-" else open(write, "wb")  # noqa: SIM115 (closed below)
    except OSError as error:
        console.fail(f"--write {write}: {error.strerror}", console.EXIT_OUTPUT)
    with file:
        writer = PcapngWriter(file)
        end = None if duration is None else time.monotonic() + duration
        try:
            for packet in live_packets(interface, capture_filter, file.flush):
                writer.write(packet)
                if writer.count == count or (end is not None and time.monotonic() > end):
                    break
        except KeyboardInterrupt:
            pass
        except CaptureError as error:
            console.fail(str(error), console.EXIT_SOURCE)
        except BrokenPipeError:
            console.end_of_pipe()
        except OSError as error:
            console.fail(f"--write {write}: {error.strerror}", console.EXIT_OUTPUT)
    sys.stderr.write(f"{writer.count} packets captured\n")
