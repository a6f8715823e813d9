"""`pwire analyze`: turns any amount of captures into one frames table, with Spark."""

import os
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.capture.progress import JobProgress
from pulsarctl_wire.cli.options import (
    CONF,
    LOCAL,
    RowOptions,
    parse_conf,
    parse_partition_columns,
    parse_size,
)
from pulsarctl_wire.cli.signature import argument, flag, group, option
from pulsarctl_wire.errors import TABLE_LIBRARIES, WireError
from pulsarctl_wire.render.text import clean, count_of, human_bytes, noun_of
from pulsarctl_wire.spark import FOLLOWING
from pulsarctl_wire.spark.connect import is_connect

Format = Literal["parquet", "delta", "iceberg"]
_SMALL: Final = 32 * 1024 * 1024  # bytes of inputs that take less time than the start of Spark
_MEDIUM: Final = 500 * 1024 * 1024  # bytes of inputs below which Spark's start is half of the time or more


@dataclass(frozen=True, kw_only=True)
class AnalyzeOptions:
    """The command line of `analyze`."""

    inputs: list[str] = argument(
        "INPUT...", "Capture files (also .gz, .zst), patterns, directories, or URIs (file, s3, gs, hdfs)."
    )
    out: str = option("--out DIR", "Directory or URI of the table.", default=...)
    master: str | None = option(
        "--master URL", "Where Spark runs; small inputs do not need it.", show_default=LOCAL
    )
    conf: list[str] = CONF()
    split_size: str = option("--split-size SIZE", "Bytes that a task decodes.", default="128Mi")
    follow: bool = flag("--follow", "Add files as they rotate into the directory INPUT, until Ctrl-C.")
    finish: bool = flag("--finish", "With --follow: add all files, also the newest ones, and end.")
    metrics: str | None = option(
        "--metrics :PORT", "With --follow: serve metrics to Prometheus, on loopback: :9464."
    )
    format: Format | None = option(
        "--format NAME",
        "What others read it as: parquet, delta (Delta Lake), iceberg.",
        show_default="parquet",
    )
    partition_by: str | None = option(
        "--partition-by COLUMNS",
        "Directories by date, hour, series, host, cluster, tenant: date,tenant.",
    )
    mirror: bool = flag("--mirror", "Delete the rows of inputs that are gone; otherwise they stay.")
    rebuild: bool = flag("--rebuild", "Make the table again, even without the rows of inputs that are gone.")
    rows: RowOptions = group(RowOptions)


def analyze(options: AnalyzeOptions) -> int:
    """Turn captures into one table of frames (Parquet) with Spark; a rerun adds what is new."""
    needs_spark = options.follow or options.master or options.conf
    console.require(*TABLE_LIBRARIES, *(["pyspark"] if needs_spark else []))
    split_size, settings = parse_size("--split-size", options.split_size), parse_conf(options.conf)
    if not split_size:
        console.fail(f"--split-size {options.split_size}: must be at least 1 byte")
    if options.follow and len(options.inputs) != 1:
        console.fail("analyze: --follow takes one directory")
    if options.finish and not options.follow:
        console.fail("analyze: --finish needs --follow")
    if options.metrics and not options.follow:
        console.fail("analyze: --metrics needs --follow")
    if options.follow and options.rows.keylogs:
        console.fail("analyze: --keylog cannot be combined with --follow: TLS is opened in one go")
    for path in options.rows.keylogs:
        if path != os.devnull and os.path.exists(path) and not os.path.isfile(path):
            console.fail(f"analyze: --keylog {path}: is not a file, so later runs could not read it")
    if options.follow and (options.mirror or options.rebuild):
        name = "--mirror" if options.mirror else "--rebuild"
        console.fail(f"analyze: {name} cannot be combined with --follow")
    if options.follow and is_connect(options.master or ""):
        reason = "with Spark Connect, the server would finish the batches, where nobody sees them"
        console.fail(f"analyze: --follow needs a driver of its own: {reason}")
    try:
        from pulsarctl_wire.capture.secrets import require_keylogs
        from pulsarctl_wire.pipeline.storage.store import Store

        require_keylogs(options.rows.keylogs)
        outline = Store(options.out).outline()
        columns = _partition_by(options, outline)
        table_options = replace(options.rows.make_options(split_size), partition_by=columns)
        if options.follow:
            return _code(_follow(options, table_options, settings))
        return _code(_run(options, table_options, settings, outline))
    except WireError as error:
        console.fail(str(error), console.find_code(error))
    except OSError as error:
        console.fail(f"--out {options.out}: {error.strerror or error}", console.EXIT_OUTPUT)


def _partition_by(options: AnalyzeOptions, outline: Any) -> tuple[str, ...]:
    """Return the columns of --partition-by, by default those of the existing table."""
    if options.partition_by is not None:
        return parse_partition_columns(options.partition_by)
    return outline.options.partition_by if outline else ()


def _hold_secrets(inputs: list[Any]) -> bool:
    """Return whether inputs hold secrets of TLS; False, too, if they are too large to be searched."""
    from pulsarctl_wire.capture.secrets import has_secrets

    return sum(file.size for file in inputs) < _MEDIUM and any(has_secrets(file.path) for file in inputs)


def _run(options: AnalyzeOptions, table_options: Any, settings: dict[str, str], outline: Any) -> Any:
    """Analyze the inputs; return the totals. `outline` is that of the existing table, None without one."""
    started = time.monotonic()
    from concurrent.futures import ThreadPoolExecutor

    from pulsarctl_wire.pipeline.files.inputs import find_inputs
    from pulsarctl_wire.pipeline.run import Run
    from pulsarctl_wire.pipeline.storage.tasks import Pool
    from pulsarctl_wire.spark.session import session

    previous = outline.inputs if outline else []
    inputs = find_inputs(options.inputs, console.warn, previous)
    options.rows.check_host(file.name for file in inputs)
    is_new = outline is None or options.rebuild
    earlier_logs = None if is_new else outline.options.keylog
    if table_options.keylog is not None or earlier_logs is not None:
        logs = dict.fromkeys([*(earlier_logs or ()), *(table_options.keylog or ())])
        table_options = replace(table_options, keylog=tuple(logs))
    elif is_new and _hold_secrets(inputs):
        table_options = replace(table_options, keylog=())  # TLS is opened by the secrets in the inputs
    if sum(file.size for file in inputs) - sum(file.size for file in previous) >= _SMALL:
        console.require("pyspark")
    with ExitStack() as stack:
        run = Run(
            *(inputs, options.out),
            options=table_options,
            mirror=options.mirror,
            rebuild=options.rebuild,
            format=options.format,
        )
        _announce(run, options.out)
        progress = JobProgress(sum(file.size for file in run.inputs), stack, run.totals.read)

        def show(totals: Any) -> None:
            progress.show(totals.read, max(totals.seen, totals.frames))

        remaining = sum(file.size for file in run.inputs[run.done_count :])
        is_default = options.master is None and not settings
        if is_default and remaining < _SMALL:
            totals = run.run(Pool(stack.enter_context(ThreadPoolExecutor(1))), show)
        else:
            progress.wait("starting Spark")
            spark = stack.enter_context(session(options.master or LOCAL, settings, decodes=True))
            from pulsarctl_wire.spark.executor import SparkWorkers  # imports pyarrow, as Spark starts

            progress.start()
            totals = run.run(SparkWorkers(spark), show)
    _report(totals, len(run.inputs), run.done_count, options.out, time.monotonic() - started)
    if is_default and _SMALL <= remaining < _MEDIUM:
        sys.stderr.write("pwire table is quicker for inputs of this size: it does not start Spark\n")
    return totals


def _announce(run: Any, out: str) -> None:
    """Print why the table is made again, if it is, and the notes of the run."""
    if run.rebuild is not None:
        reason, files, size = run.rebuild
        console.warn(
            f"{out} is made again: {reason}. That decodes {count_of(files, 'file')} ({human_bytes(size)}); "
            "until then the table stays as it is"
        )
    for note in run.notes:
        console.warn(f"{out}: {note}")


def _follow(options: AnalyzeOptions, table_options: Any, settings: dict[str, str]) -> Any:
    """Add files as they become complete; returns the totals."""
    from pulsarctl_wire.spark.session import session

    problem_count = note_count = 0

    def show(totals: Any) -> None:
        nonlocal problem_count, note_count
        for name, problem, _ in totals.problems[problem_count:]:
            console.warn(f"{name}: {problem}")
        problem_count = len(totals.problems)
        for note in totals.notes[note_count:]:
            console.warn(note)
        note_count = len(totals.notes)
        sys.stderr.write(
            f"{human_bytes(totals.read)}, {_count(totals.packets, 'packet')}, "
            f"{_count(totals.connections, 'connection')}{_describe_drops(totals)}\n"
        )
        sys.stderr.flush()

    with ExitStack() as stack:
        spark = stack.enter_context(session(options.master or LOCAL, FOLLOWING | settings, decodes=True))
        from pulsarctl_wire.spark.follow import Status, follow

        status = Status(show=show)
        if options.metrics is not None:
            from pulsarctl_wire.cli.metrics import FollowCollector, serve

            console.warn(f"metrics at {serve(options.metrics, FollowCollector(status), stack)}")
        (directory,) = options.inputs
        return follow(
            *(spark, directory, options.out, table_options),
            finish=options.finish,
            format=options.format,
            say=console.warn,
            status=status,
        )


def _report(totals: Any, file_count: int, resumed_count: int, out: str, seconds: float) -> None:
    for name, problem, _ in totals.problems:
        console.warn(f"{name}: {problem}")
    for note in totals.notes:
        console.warn(note)
    console.warn_of_packets(totals.skipped, totals.copies)
    resumed_text = f", {resumed_count} of them before" if resumed_count else ""
    has_rate = not resumed_count and totals.frames > 100_000
    rate = f" ({totals.frames / seconds:,.0f} frames/s)" if has_rate else ""
    sys.stderr.write(
        f"{count_of(file_count, 'file')} ({human_bytes(totals.read)}){resumed_text}, "
        f"{_count(totals.connections, 'connection')}, {_count(totals.frames, 'frame')}, "
        f"{_count(totals.gaps, 'gap')}"
        f"{_describe_drops(totals)} in {seconds:.1f} s{rate}\n"
        f"{clean(out)}: {human_bytes(totals.size)}; "
        f"see pwire report summary {clean(out)}\n"
    )


def _describe_drops(totals: Any) -> str:
    packets = _count(totals.dropped, "packet")
    return f", {packets} dropped by the kernel while capturing" if totals.dropped else ""


def _count(number: int, name: str) -> str:
    return f"{number:,} {noun_of(number, name)}"


def _code(totals: Any) -> int:
    if not totals.problems:
        return 0
    is_readable = all(is_damaged for _, _, is_damaged in totals.problems)
    return console.EXIT_DAMAGED if is_readable else console.EXIT_SOURCE
