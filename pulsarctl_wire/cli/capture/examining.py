"""Looks for findings in files, in a process of its own: the rules need all connections in order."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from pulsarctl_wire.capture.sources import Decoder
from pulsarctl_wire.checks.doctor import Doctor
from pulsarctl_wire.checks.finding import Finding
from pulsarctl_wire.cli.capture.reading import Sources
from pulsarctl_wire.pipeline.counting import pool_until


@dataclass(frozen=True)
class Examined:
    """What was found. `left_out` counts further findings; `files` are for `rows_of`, if there are places."""

    findings: list[Finding]
    left_out: int
    files: list[str]


def examine_beside(
    stack: ExitStack, paths: list[str], max_frame_size: int | None, *, places: bool = False
) -> Callable[[], Examined]:
    """Let another process look for findings, until `stack` closes; the function returned waits for them.

    `places` is as for `Decoder`. Problems with the files are left to whoever reads them as well.
    """
    return pool_until(stack, 1).submit(_examine, paths, max_frame_size, places).result


def _examine(paths: list[str], max_frame_size: int | None, places: bool) -> Examined:
    doctor = Doctor()
    decoder = Decoder(
        max_frame_size=max_frame_size,
        join_chunks=False,
        places=places,
        sort=True,
        new_state=doctor.new_state,
        on_end=doctor.ended,
    )
    with ExitStack() as stack:
        for _ in Sources(paths, stack, bar=False).read(decoder, say=False):
            pass
    doctor.conclude(decoder.last_ns, decoder.finish())
    return Examined(list(doctor.findings.values()), doctor.left_out, decoder.sources)
