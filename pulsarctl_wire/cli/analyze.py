"""`pwire analyze`: any amount of captures as one frames table, by Spark."""

import re
import sys
import time
from contextlib import ExitStack
from typing import Annotated, Any, Final, NoReturn

import typer

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.options import CONF, MAX_FRAME_SIZE, PAYLOAD, settings_of

_SMALL: Final = 32 * 1024 * 1024  # bytes of inputs that are done before Spark has started
_UNITS: Final = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1024, "mi": 1024**2, "gi": 1024**3}


def analyze(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...",
            help="Capture files (also .gz, .zst), patterns, directories, or URIs (file, s3, gs, hdfs).",
            show_default=False,
        ),
    ],
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Directory or URI of the table.")],
    master: Annotated[
        str | None,
        typer.Option(
            "--master",
            metavar="URL",
            help="Where Spark runs; small inputs need none.",
            show_default="local[*]",
        ),
    ] = None,
    conf: Annotated[list[str] | None, CONF] = None,
    split_size: Annotated[
        str, typer.Option("--split-size", metavar="SIZE", help="Bytes that are decoded at a time.")
    ] = "128Mi",
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Take up files as they rotate into the directory INPUT; Ctrl-C ends."),
    ] = False,
    finish: Annotated[
        bool,
        typer.Option(
            "--finish", help="With --follow: take up the newest file too, as no more come, and end."
        ),
    ] = False,
    payload: Annotated[bool, PAYLOAD] = False,
    max_frame_size: Annotated[int | None, MAX_FRAME_SIZE] = None,
) -> None:
    """Turn captures into one table of frames (Parquet) with Spark; a rerun takes up what is new."""
    started = time.monotonic()
    from concurrent.futures import ThreadPoolExecutor

    split, settings = _size(split_size), settings_of(conf)
    if follow and len(inputs) != 1:
        console.fail("analyze: --follow takes one directory", console.EXIT_USAGE)
    if finish and not follow:
        console.fail("analyze: --finish goes with --follow", console.EXIT_USAGE)
    from pulsarctl_wire.errors import WireError
    from pulsarctl_wire.pipeline.progress import Options
    from pulsarctl_wire.pipeline.run import Run
    from pulsarctl_wire.pipeline.splits import find_inputs
    from pulsarctl_wire.spark.executor import SparkExecutor
    from pulsarctl_wire.spark.session import SparkError, session

    try:
        options = Options(split, max_frame_size, payload)
        if follow:
            _follow(inputs[0], out, options, master, settings, finish=finish)
        found = find_inputs(inputs, console.complain)
        with ExitStack() as stack:
            size = sum(each.size for each in found)
            progress = stack.enter_context(_Progress(size, console.is_terminal(sys.stderr)))
            run = Run(found, out, options=options, show=progress.show)
            left = sum(each.size for each in found[run.resumed :])
            if master is None and not settings and left < _SMALL:
                totals = run.run(stack.enter_context(ThreadPoolExecutor(1)))
            else:
                spark = stack.enter_context(session(master or "local[*]", settings))
                executor = stack.enter_context(SparkExecutor(spark))
                totals = run.run(executor, executor.workers)
    except SparkError as error:
        console.fail(str(error), console.EXIT_USAGE)
    except WireError as error:
        console.fail(str(error), console.EXIT_SOURCE)
    except OSError as error:
        console.fail(f"--out {out}: {error.strerror or error}", console.EXIT_OUTPUT)
    _report(totals, len(found), run.resumed, out, time.monotonic() - started)
    raise SystemExit(_code(totals))


def _follow(
    directory: str, out: str, options: Any, master: str | None, settings: dict[str, str], *, finish: bool
) -> NoReturn:
    from pulsarctl_wire.spark import FOLLOWING
    from pulsarctl_wire.spark.session import session

    said = 0

    def show(totals: Any) -> None:
        nonlocal said
        for name, problem, _ in totals.problems[said:]:
            console.complain(f"{name}: {problem}")
        said = len(totals.problems)
        sys.stderr.write(
            f"{console.human_bytes(totals.read)}, {totals.packets:,} packets, "
            f"{totals.connections:,} connections{_dropped(totals)}\n"
        )
        sys.stderr.flush()

    with session(master or "local[*]", FOLLOWING | settings) as spark:
        from pulsarctl_wire.spark.follow import follow

        totals = follow(spark, directory, out, options, finish=finish, show=show, say=console.complain)
    raise SystemExit(_code(totals))


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+)([kmg]?i?)b?", text.strip().lower())
    if match is None or match[2] not in _UNITS or int(match[1]) == 0:
        console.fail(f"--split-size {text}: a number of bytes such as 128Mi or 64M", console.EXIT_USAGE)
    return int(match[1]) * _UNITS[match[2]]


def _report(totals: Any, inputs: int, resumed: int, out: str, seconds: float) -> None:
    for name, problem, _ in totals.problems:
        console.complain(f"{name}: {problem}")
    before = f", {resumed} of them before" if resumed else ""
    rate = f" ({totals.frames / seconds:,.0f} frames/s)" if not resumed and totals.frames > 100_000 else ""
    sys.stderr.write(
        f"{inputs} file{'s' * (inputs != 1)} ({console.human_bytes(totals.read)}){before}, "
        f"{totals.connections:,} connections, {totals.frames:,} frames, {totals.gaps:,} gaps"
        f"{_dropped(totals)} in {seconds:.1f} s{rate}\n"
        f"{console.clean(out)}: {console.human_bytes(totals.size)}; "
        f"see pwire report summary {console.clean(out)}\n"
    )


def _dropped(totals: Any) -> str:
    many = f"{totals.dropped:,} packet{'s' * (totals.dropped != 1)}"
    return f", {many} dropped by the kernel while capturing" if totals.dropped else ""


def _code(totals: Any) -> int:
    if not totals.problems:
        return 0
    readable = all(damaged for _, _, damaged in totals.problems)
    return console.EXIT_DAMAGED if readable else console.EXIT_SOURCE


class _Progress:
    """A line on stderr that tells how far the work came; nothing where that is no terminal."""

    def __init__(self, size: int, wanted: bool) -> None:
        self._size = size
        self._wanted = wanted

    def __enter__(self) -> "_Progress":
        if self._wanted:
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                BarColumn(),
                DownloadColumn(),
                TextColumn("{task.fields[frames]}"),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=console.rich_console(sys.stderr), transient=True)
            self._task = self._bar.add_task("", total=self._size, frames="starting Spark")
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._wanted:
            self._bar.stop()

    def show(self, totals: Any) -> None:
        """Show the totals of the run."""
        if self._wanted:
            self._bar.update(self._task, completed=totals.read, frames=f"{totals.frames:,} frames")
