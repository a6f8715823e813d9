"""Decodes all inputs in this process, so that TLS can be opened.

The key and number of a TLS record follow from those before it, which may be in another split or file.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import BinaryIO, Final, cast

from pulsarctl_wire.capture.compression import Counted
from pulsarctl_wire.capture.series import arrange, read_all
from pulsarctl_wire.capture.sources import Decoder, Reading, Source, prefix_errors
from pulsarctl_wire.capture.tls.counts import TlsCounts
from pulsarctl_wire.errors import CaptureError, DamagedCapture
from pulsarctl_wire.pipeline.decoding.edges import Options
from pulsarctl_wire.pipeline.decoding.progress import Totals
from pulsarctl_wire.pipeline.decoding.rows import RowsInMemory, Stitched, new_builder
from pulsarctl_wire.pipeline.files.inputs import is_capture
from pulsarctl_wire.pipeline.files.splits import NO_CAPTURE, Input, open_input
from pulsarctl_wire.wire.session.ending import EndedConnection
from pulsarctl_wire.wire.session.exchanges import ExchangeState

_ENOUGH: Final = 32 * 1024 * 1024  # bytes of rows that are passed on at a time


def decode_opened(inputs: Sequence[Input], options: Options, totals: Totals) -> Iterator[Stitched]:
    """Yield the rows of all inputs, some at a time; count in `totals` what was read for them.

    The key logs of `options`, and secrets in the captures, open TLS. Raises CaptureError if a key log cannot
    be read.
    """
    names = [input_.name for input_ in inputs]
    streams: list[Counted] = []
    tls = TlsCounts()

    def end(ending: EndedConnection) -> None:
        tls.add(ending)
        rows.end(ending)

    def report(error: CaptureError) -> None:
        text = str(error)
        name = max((name for name in names if text.startswith(f"{name}: ")), key=len)
        totals.add_problems([(name, text.removeprefix(f"{name}: "), isinstance(error, DamagedCapture))])

    @contextmanager
    def open_file(index: int) -> Iterator[Source]:
        input_ = inputs[index]
        with ExitStack() as stack:
            with prefix_errors(input_.name):
                if input_.size and not is_capture(input_):
                    raise CaptureError(NO_CAPTURE)
                streams.append(Counted(stack.enter_context(open_input(input_.path))))
            yield Source(input_.name, cast(BinaryIO, streams[-1]), input_.size)

    def count() -> None:
        totals.read = sum(stream.count for stream in streams)
        totals.packets, totals.seen = decoder.packets, decoder.knowledge.frames

    decoder = Decoder(
        Reading(options.max_frame_size, options.keylog or (), options.keep_duplicates),
        join_chunks=False,
        places=True,
        new_state=ExchangeState,
        on_end=end,
    )
    secrets, reassembler = decoder.secrets, decoder.reassembler
    rows = RowsInMemory(new_builder(options, decoder.sources))
    turns = arrange(names, [input_.span for input_ in inputs]).turns
    reading = read_all(decoder, turns, open_file, report, totals.notes.append)
    for events in chain(reading, decoder.finish()):
        rows.add(events)
        if rows.size > _ENOUGH:
            count()
            yield Stitched({}, rows.number_connections(), 0)
    count()
    totals.cut, totals.dropped = decoder.cut_packets, decoder.dropped_packets
    totals.skipped, totals.copies = dict(decoder.skipped), reassembler.copies.total
    totals.connections = reassembler.connections
    totals.notes += secrets.describe_problems()
    if text := tls.describe(secrets.keylog.secrets):
        totals.notes.append(f"TLS: {text}")
    yield Stitched({}, rows.number_connections(), 0)
