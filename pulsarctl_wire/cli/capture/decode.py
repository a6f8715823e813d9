"""`pwire decode`: shows captured traffic as frames, for people and for jq."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.capture.decode_options import DecodeOptions


def decode(options: DecodeOptions) -> int:
    """Decode Pulsar traffic from captures, hex dumps, raw frames, pipes and live interfaces."""
    _check(options)
    from pulsarctl_wire.cli.capture.job import DecodeJob
    from pulsarctl_wire.cli.capture.reading import find_captures

    options = replace(options, sources=find_captures(options.sources))
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
    options.checks.check(options.doctor)
    frame_options = {
        "--output tree or hex": options.output in ("tree", "hex"),
        "--command": options.selection.commands,
        "--topic": options.selection.topics,
        "--first-error": options.first_error,
        "--two-pass": options.two_pass,
        "--doctor": options.doctor,
        "--schema": options.display.schema,
        "--private-key": options.display.private_keys,
        "--write": options.write,
    }
    flag = next((name for name, value in frame_options.items() if value), "")
    if options.list_connections and flag:
        console.fail(f"decode: --connections shows no frames, so it cannot be combined with {flag}")
    _ = options.buffer_bytes  # may end the command too
