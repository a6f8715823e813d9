"""Looks for findings in files, in a process of its own."""

from contextlib import ExitStack

from pulsarctl_wire.capture.sources import Decoder
from pulsarctl_wire.checks.doctor import Doctor
from pulsarctl_wire.checks.finding import Finding
from pulsarctl_wire.cli.capture.reading import Sources


def examine(paths: list[str], max_frame_size: int | None) -> list[Finding]:
    """The findings in captures. Problems with the files are left to whoever reads them as well."""
    doctor = Doctor()
    decoder = Decoder(
        max_frame_size=max_frame_size,
        join_chunks=False,
        sort=True,
        new_state=doctor.new_state,
        on_end=doctor.ended,
    )
    with ExitStack() as stack:
        for _ in Sources(paths, stack, bar=False).read(decoder, say=False):
            pass
    doctor.conclude(decoder.last_ns, decoder.finish())
    return list(doctor.findings.values())
