"""`pwire decode`: captured traffic as frames, for people and for jq."""

import gc
import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from pulsarctl_wire.cli import console

if TYPE_CHECKING:
    from pulsarctl_wire.capture.sources import Decoder, Source
    from pulsarctl_wire.cli.summary import Summary
    from pulsarctl_wire.wire.frame import Event

    Render = Callable[[Event], bytes]


class Output(str, Enum):
    """How events are shown."""

    line = "line"
    tree = "tree"
    json = "json"
    hex = "hex"


class TimeFormat(str, Enum):
    """How times are shown (line and tree)."""

    utc = "utc"
    local = "local"
    date = "date"
    epoch = "epoch"
    relative = "relative"


_PROGRESS_BYTES = 50_000_000

SELECT, SHOW, READ = "Which frames", "How to show them", "How to read"


def decode(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE...",
            help="pcap or pcapng files (also .gz, .zst), hex dumps, raw frames; - is stdin. "
            "Told apart by content; several continue each other.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Output, typer.Option("-o", "--output", help="Form of the output.", rich_help_panel=SHOW)
    ] = Output.line,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="Print the closing summary alone.", rich_help_panel=SHOW)
    ] = False,
    filter_: Annotated[
        str | None,
        typer.Option(
            "-f",
            "--filter",
            metavar="EXPR",
            help="An expression over the JSON fields: 'command == \"SEND\" and total_size > 1000'.",
            rich_help_panel=SELECT,
        ),
    ] = None,
    command: Annotated[
        list[str] | None,
        typer.Option(
            "--command",
            metavar="NAME",
            help="Commands such as SEND,MESSAGE or 'LOOKUP*'.",
            rich_help_panel=SELECT,
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC",
            help="A topic in any spelling, or a pattern with *.",
            rich_help_panel=SELECT,
        ),
    ] = None,
    connection: Annotated[
        list[str] | None,
        typer.Option(
            "--connection",
            metavar="N|ADDRESS",
            help="A connection's number, or part of its addresses.",
            rich_help_panel=SELECT,
        ),
    ] = None,
    time_range: Annotated[
        str | None,
        typer.Option(
            "--time-range",
            metavar="FROM..TO",
            help="ISO 8601, epoch seconds, or +seconds from the first event.",
            rich_help_panel=SELECT,
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option("-c", "--count", metavar="N", min=1, help="Stop after N.", rich_help_panel=SELECT),
    ] = None,
    first_error: Annotated[
        bool,
        typer.Option(
            "--first-error",
            help="Show the first thing that is wrong (damage, bad checksum, a broker's error) and stop.",
            rich_help_panel=SELECT,
        ),
    ] = False,
    two_pass: Annotated[
        bool,
        typer.Option(
            "-2",
            "--two-pass",
            help="Read twice, so that requests name their answers too.",
            rich_help_panel=READ,
        ),
    ] = False,
    interface: Annotated[
        str | None,
        typer.Option(
            "-i", "--interface", metavar="NAME", help="Decode a live interface.", rich_help_panel=READ
        ),
    ] = None,
    capture_filter: Annotated[
        str | None,
        typer.Option(
            "--capture-filter",
            metavar="BPF",
            help="With -i: packets to take, as in 'tcp port 6650'.",
            rich_help_panel=READ,
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="TYPE[:FILE]",
            help="Show payloads by this schema: json, string, avro:user.avsc, protobuf:set.desc:pkg.Message.",
            rich_help_panel=SHOW,
        ),
    ] = None,
    max_frame_size: Annotated[
        int | None,
        typer.Option(
            "--max-frame-size",
            metavar="BYTES",
            min=16,
            help="Largest legal frame, whatever the broker announces.",
            show_default="5 MiB + 10 KiB",
            rich_help_panel=READ,
        ),
    ] = None,
    write: Annotated[
        str | None,
        typer.Option(
            "-w",
            "--write",
            metavar="FILE",
            help="Write the packets of the shown frames as pcapng.",
            rich_help_panel=SHOW,
        ),
    ] = None,
    time_format: Annotated[
        TimeFormat,
        typer.Option(
            "-t",
            "--time",
            help="Times as UTC or local time of day, UTC date, epoch or relative.",
            rich_help_panel=SHOW,
        ),
    ] = TimeFormat.utc,
    show_secrets: Annotated[
        bool, typer.Option("--show-secrets", help="Do not redact credentials.", rich_help_panel=SHOW)
    ] = False,
    no_color: Annotated[
        bool, typer.Option("--no-color", help="No colours (NO_COLOR does the same).", rich_help_panel=SHOW)
    ] = False,
) -> None:
    """Decode captured Pulsar traffic: captures, hex dumps, raw frames, pipes, live interfaces."""
    if not sources and not interface:
        console.fail(
            "decode: name a SOURCE (a file, or - for stdin) or an interface (-i); see pwire decode --help",
            console.EXIT_USAGE,
        )
    if interface and (sources or two_pass):
        console.fail(
            "decode: a live interface goes with no other source, and can be read only once (-2)",
            console.EXIT_USAGE,
        )
    job = _Job(
        sources=sources or [],
        interface=interface,
        capture_filter=capture_filter,
        two_pass=two_pass,
        max_frame_size=max_frame_size,
        colour=not no_color,
        quiet=quiet,
        count=1 if first_error else count,
    )
    with ExitStack() as stack:
        job.stack = stack
        job.select(command, topic, connection, time_range, first_error)
        job.prepare(output, time_format.value, schema, show_secrets, filter_, write)
        code = job.run()
    raise SystemExit(code)


class _Job:
    """One run of `decode`: its options become tests and a renderer, then it runs."""

    stack: ExitStack

    def __init__(
        self,
        *,
        sources: list[str],
        interface: str | None,
        capture_filter: str | None,
        two_pass: bool,
        max_frame_size: int | None,
        colour: bool,
        quiet: bool,
        count: int | None,
    ) -> None:
        self.sources = sources
        self.interface = interface
        self.capture_filter = capture_filter
        self.two_pass = two_pass
        self.max_frame_size = max_frame_size
        self.colour = colour
        self.quiet = quiet
        self.count = count
        self.tests: list[Callable[[Event], bool]] = []
        self.render: Render | None = None
        self.expression: Any = None
        self.writer: Any = None
        self.join_chunks = False
        self.code = 0
        self.out = sys.stdout.buffer

    # -- before

    def select(
        self,
        command: list[str] | None,
        topic: list[str] | None,
        connection: list[str] | None,
        time_range: str | None,
        first_error: bool,
    ) -> None:
        """Make tests of the selecting options, the cheap ones first."""
        from pulsarctl_wire.cli import select
        from pulsarctl_wire.errors import FilterError

        try:
            if command:
                self.tests.append(select.by_command(command))
            if connection:
                self.tests.append(select.by_connection(connection))
            if topic:
                self.tests.append(select.by_topic(topic))
            if time_range:
                self.tests.append(select.by_time(time_range))
        except FilterError as error:
            console.fail(str(error), console.EXIT_USAGE)
        if first_error:
            self.tests.append(select.is_wrong)

    def prepare(
        self,
        output: Output,
        time_format: str,
        schema: str | None,
        show_secrets: bool,
        filter_: str | None,
        write: str | None,
    ) -> None:
        """Make the renderer, the expression and the writer."""
        from pulsarctl_wire.errors import FilterError
        from pulsarctl_wire.record import Recorder

        parsed = None
        if schema is not None:
            from pulsarctl_wire.views import parse_schema

            try:
                parsed = parse_schema(schema)
            except ValueError as error:
                console.fail(f"--schema {error}", console.EXIT_USAGE)
        recorder = Recorder(show_secrets=show_secrets, schema=parsed, answers=self.two_pass)
        if filter_ is not None:
            from pulsarctl_wire.cli.select import Expression

            try:
                self.expression = Expression(filter_, recorder)
            except FilterError as error:
                console.fail(str(error), console.EXIT_USAGE)
            self.tests.append(self.expression)
        if not self.quiet:
            self.render = _renderer(
                output, recorder, time_format, show_secrets, console.use_colour(sys.stdout, self.colour)
            )
        self.join_chunks = filter_ is not None or (not self.quiet and output in (Output.json, Output.tree))
        if write is not None:
            self.writer = self._open_writer(write)

    def _open_writer(self, path: str) -> Any:
        from pulsarctl_wire.capture.writer import EventWriter

        try:
            return EventWriter(self.stack.enter_context(open(path, "wb")))
        except OSError as error:
            console.fail(f"--write {path}: {error.strerror}", console.EXIT_OUTPUT)

    # -- the run

    def run(self) -> int:
        """Decode; give the exit code."""
        from pulsarctl_wire.capture.sources import Decoder
        from pulsarctl_wire.cli.summary import Summary

        # frames come and go by the hundred thousand and hold no cycles: collecting them is wasted time
        gc.freeze()
        gc.set_threshold(100_000, 20, 100)
        answers = None
        if self.two_pass:
            answers = self._first_pass()
        decoder = Decoder(
            max_frame_size=self.max_frame_size,
            join_chunks=self.join_chunks,
            tee=self.writer.see if self.writer else None,
        )
        summary = Summary()
        try:
            self._show(self._events(decoder), summary, answers)
            self.out.flush()
        except KeyboardInterrupt:
            self.code = 0 if self.interface else console.EXIT_INTERRUPTED
            self.out.flush()
        self._close(decoder, summary)
        return self.code

    def _first_pass(self) -> Any:
        from pulsarctl_wire.capture.sources import Decoder

        self.sources = [self._spool() if source == "-" else source for source in self.sources]
        decoder = Decoder(max_frame_size=self.max_frame_size, join_chunks=False, link_answers=True)
        for _ in self._events(decoder, say=False):
            pass
        return decoder.knowledge.answers

    def _spool(self) -> str:
        """Copy stdin to a file, to read it twice; give the file's path."""
        import shutil
        import tempfile

        file = self.stack.enter_context(tempfile.NamedTemporaryFile(prefix="pwire-"))  # noqa: SIM115
        shutil.copyfileobj(sys.stdin.buffer, file)
        file.flush()
        return file.name

    def _show(self, events: Iterator["Event"], summary: "Summary", answers: Any) -> None:
        add, tests, render, write = summary.add, self.tests, self.render, self.out.write
        if render is None and not tests and self.writer is None:
            for event in events:
                add(event)
            return
        left = self.count if self.count is not None else -1
        for event in events:
            add(event)
            if answers is not None:
                _set_answer(event, answers)
            if tests and not all(test(event) for test in tests):
                continue
            if render is not None:
                write(render(event))
            if self.writer is not None:
                self.writer.take(event)
            left -= 1
            if left == 0:
                return

    def _events(self, decoder: "Decoder", *, say: bool = True) -> Iterator["Event"]:
        """The events of all sources; what is wrong with a source is said, and sets the exit code."""
        from pulsarctl_wire.capture.live import live_packets
        from pulsarctl_wire.capture.sources import Source, open_source
        from pulsarctl_wire.errors import CaptureError, DamagedCapture

        if self.interface:
            try:
                yield from decoder.packets_of(
                    live_packets(self.interface, self.capture_filter, self.out.flush)
                )
            except CaptureError as error:
                console.fail(str(error), console.EXIT_SOURCE)
        for path in self.sources:
            try:
                source = Source("stdin", sys.stdin.buffer) if path == "-" else open_source(path)
                with source.stream if path != "-" else ExitStack():
                    yield from decoder.read(self._watched(source))
            except CaptureError as error:  # noqa: PERF203 (a source, not a frame)
                self.out.flush()
                self.code = console.EXIT_DAMAGED if isinstance(error, DamagedCapture) else console.EXIT_SOURCE
                if say:
                    console.complain(str(error))
        yield from decoder.finish()

    def _watched(self, source: "Source") -> "Source":
        """`source` read with a progress bar if it is large, and with what is ready shown before each wait."""
        progress = None
        if (
            source.size > _PROGRESS_BYTES
            and console.use_colour(sys.stderr, self.colour)
            and not sys.stdout.isatty()
        ):
            progress = _Progress(source, self.stack)
        return source._replace(stream=_Watched(source.stream, self.out.flush, progress))  # type: ignore[arg-type]

    # -- after

    def _close(self, decoder: "Decoder", summary: "Summary") -> None:
        paint = console.Paint(console.use_colour(sys.stderr, self.colour))
        for line in summary.lines(decoder, paint):
            sys.stderr.write(line + "\n")
        if self.expression is not None and self.expression.failed == self.expression.tried > 0:
            console.complain(
                "--filter: the expression made sense for no frame (an order between a text and a number?)"
            )
        if self.writer is not None and self.writer.lost:
            console.complain(
                f"--write: {self.writer.lost} packets had passed too long ago and were not written"
            )


class _Watched(io.RawIOBase):
    """A source's stream: before each read what is ready is shown, and the progress bar moves."""

    def __init__(self, stream: BinaryIO, flush: Callable[[], object], progress: "_Progress | None") -> None:
        self._read = getattr(stream, "read1", stream.read)
        self._flush = flush
        self._progress = progress

    def read1(self, size: int = -1) -> bytes:
        """The next bytes, as soon as there are some."""
        self._flush()
        data: bytes = self._read(size)
        if self._progress is not None:
            self._progress.add(len(data))
        return data

    read = read1


class _Progress:
    """A progress bar on stderr, moved a few times a second."""

    def __init__(self, source: "Source", stack: ExitStack) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._bar = stack.enter_context(
            Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
        )
        self._task = self._bar.add_task(console.clean(source.name), total=source.size)
        self._next = 0.0

    def add(self, size: int) -> None:
        """`size` more bytes were read."""
        self._bar.update(self._task, advance=size)
        if time.monotonic() > self._next:
            self._next = time.monotonic() + 0.2
            self._bar.refresh()


def _set_answer(event: "Event", answers: Any) -> None:
    number = getattr(event, "number", 0)
    if 0 < number < len(answers) and answers[number]:
        event.answer = answers[number]  # type: ignore[union-attr]


def _renderer(output: Output, recorder: Any, time_format: str, show_secrets: bool, colour: bool) -> "Render":
    if output is Output.json:
        from pulsarctl_wire.cli.jsonl import json_line

        return lambda event: json_line(recorder(event))
    from pulsarctl_wire.cli.line import LineRenderer

    paint = console.Paint(colour)
    line = LineRenderer(paint, time_format=time_format, show_secrets=show_secrets)
    render: Callable[[Any], str] = line
    if output is Output.tree:
        import shutil

        from pulsarctl_wire.cli.tree import TreeRenderer

        render = TreeRenderer(
            line, recorder, colour=colour, width=shutil.get_terminal_size((120, 40)).columns
        )
    elif output is Output.hex:
        from pulsarctl_wire.cli.hexview import HexRenderer

        render = HexRenderer(line, paint, show_secrets=show_secrets)
    return lambda event: render(event).encode("utf-8", "backslashreplace") + b"\n"
