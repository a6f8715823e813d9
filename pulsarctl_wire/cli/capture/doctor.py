"""`pwire doctor`: finds out what is wrong in captured or live traffic, with the frames that prove it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.capture.doctor_options import DoctorOptions
from pulsarctl_wire.cli.options import DEFAULT_BUFFER


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
        flag = "--tree" if options.tree else "--write"
        console.fail(f"doctor: {flag} reads the source twice: save it to a file first (pwire capture)")
    if options.tree and options.output in ("json", "sarif"):
        console.fail(f"doctor: --tree cannot be combined with -o {options.output}")
    from pulsarctl_wire.cli.capture.doctor_job import DoctorJob
    from pulsarctl_wire.cli.capture.reading import find_captures

    options = replace(options, sources=find_captures(options.sources))
    with console.errors_reported(), ExitStack() as stack:
        return DoctorJob(options, stack).run()
