"""`pwire capture`: writes the packets of an interface to a pcapng file."""

import re
import sys
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.options import BUFFER, RotateOptions, parse_size, take_interface
from pulsarctl_wire.cli.signature import group, option
from pulsarctl_wire.errors import CaptureError, DamagedCapture
from pulsarctl_wire.render.text import count_of

if TYPE_CHECKING:
    from pulsarctl_wire.capture.live import Live
    from pulsarctl_wire.capture.rotation import RotatingFiles
    from pulsarctl_wire.capture.secrets import Secrets

_HANDSHAKE: Final = re.compile(rb"[\x14\x16]\x03[\x01-\x03]")
"""The first bytes of a TLS record that belongs to a handshake."""
_MAX_HEADERS: Final = 128  # bytes of a packet: its TCP payload begins within them


@dataclass(frozen=True, kw_only=True)
class CaptureOptions:
    """The command line of `capture`."""

    interfaces: list[str] = option("-i --interface NAME", "The interface, such as lo or eth0.", default=...)
    write: str = option("-w --write FILE", "The pcapng file; - is stdout.", default=...)
    capture_filter: str | None = option("-f --capture-filter BPF", "Packets to capture: 'tcp port 6650'.")
    count: int | None = option("-c --count N", "Stop after N packets.", min=1)
    duration: float | None = option("--duration SECONDS", "Stop after this time.", min=0)
    buffer: str = BUFFER()
    keylog: str | None = option(
        "--keylog FILE", "Write the TLS keys of this log into the capture, as they come, to open it anywhere."
    )
    rotation: RotateOptions = group(RotateOptions)


def capture(options: CaptureOptions) -> None:
    """Capture the packets of an interface until Ctrl-C, for pwire decode or Wireshark."""
    from pulsarctl_wire.capture.rotation import RotatingFiles
    from pulsarctl_wire.capture.secrets import Secrets
    from pulsarctl_wire.cli.capture.interface import open_interface

    interface = take_interface(options.interfaces) or ""
    size = parse_size("--buffer", options.buffer)
    rotation = options.rotation.parse_rotation()
    write = options.write
    if write == "-" and any(rotation.values()):
        console.fail("--rotate-… needs --write FILE")
    console.refuse_source("--write", write, [options.keylog] if options.keylog else [])
    try:
        with ExitStack() as stack:
            stream: BinaryIO = sys.stdout.buffer
            files = None
            context = open_interface(
                interface,
                options.capture_filter,
                size,
                before_wait=lambda: stream.flush(),
                seconds=options.duration,
            )
            live = stack.enter_context(context)
            if write != "-":  # an existing file is truncated only after the interface was opened
                files = RotatingFiles(Path(write), time.time_ns(), **rotation)
                stream = cast(BinaryIO, stack.enter_context(closing(files)))
            secrets = Secrets([options.keylog] if options.keylog else [])
            _record(live, stream, files, options.count, secrets)
    except CaptureError as error:
        is_damaged = isinstance(error, DamagedCapture)
        console.fail(str(error), console.EXIT_DAMAGED if is_damaged else console.EXIT_SOURCE)
    except BrokenPipeError:
        console.end_quietly()
    except OSError as error:
        console.fail(f"--write {write}: {error.strerror}", console.EXIT_OUTPUT)


def _record(
    live: "Live", stream: BinaryIO, files: "RotatingFiles | None", count: int | None, secrets: "Secrets"
) -> None:
    """Write the packets of `live`, at most `count`, each after any new TLS secrets; then print the totals.

    `files`, if given, is `stream`, which is rotated. Raises OSError, and DamagedCapture after printing.
    """
    from pulsarctl_wire.capture.writer import PcapngWriter

    writer = PcapngWriter(stream)
    damage: DamagedCapture | None = None
    received_before = dropped_before = 0  # in earlier files

    def write_counters() -> None:
        nonlocal received_before, dropped_before
        if live.dropped is not None:
            counts = live.received - received_before, live.dropped - dropped_before
            writer.write_statistics(live.link, time.time_ns(), *counts)
            received_before, dropped_before = live.received, live.dropped

    try:
        for packet in live:
            if files is not None and files.is_due(packet[0] or 0):
                write_counters()
                files.turn(packet[0] or 0)
                writer.begin()
                writer.write_secrets(secrets.list_all())
            if _HANDSHAKE.search(packet[2], 0, _MAX_HEADERS):  # the log already has the secrets for it
                secrets.read_logs()
            else:
                secrets.poll()
            writer.write_secrets(secrets.take_new())
            writer.write(packet)
            if writer.count == count:
                break
    except KeyboardInterrupt:  # a second signal
        pass
    except DamagedCapture as error:
        damage = error
    if secrets.has_logs:
        secrets.read_logs()
        writer.write_secrets(secrets.take_new())
        problems = secrets.describe_problems()
        has_secrets = secrets.version > 0  # `version` grows with each
        for text in problems if has_secrets else [*problems, "--keylog: no secrets came"]:
            console.warn(text)
    write_counters()
    stream.flush()
    dropped = "an unknown number" if live.dropped is None else live.dropped
    packets = count_of(writer.count, "packet")
    sys.stderr.write(f"{packets} captured, {dropped} dropped by the kernel\n")
    if damage is not None:
        raise damage
