"""`pwire permits`: the flow-control ledger of the consumers in a capture."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from pulsarctl_wire.cli import completion, console
from pulsarctl_wire.cli.options import OUTPUT, SOURCES, WIDE, ReadOptions, TimeFormat
from pulsarctl_wire.cli.signature import group, option, several
from pulsarctl_wire.render.text import Origin, count_of, did_you_mean

if TYPE_CHECKING:
    from pulsarctl_wire.render.permits import ConsumerReport
    from pulsarctl_wire.stats.permits import Permits
    from pulsarctl_wire.wire.frame import Frame

_TABLE_ROWS = 30


@dataclass(frozen=True, kw_only=True)
class PermitsOptions:
    """The command line of `permits`."""

    sources: list[str] = SOURCES(default=list)
    subscriptions: list[str] = several(
        "--subscription NAME",
        "Only consumers of this subscription.",
        show_default="all",
        autocompletion=completion.subscriptions,
    )
    topics: list[str] = several(
        "--topic TOPIC", "A topic, short or full, or a pattern with *.", autocompletion=completion.topics
    )
    consumers: list[int] = several("--consumer ID", "Only consumers with this id.")
    connections: list[str] = several(
        "--connection N|ADDRESS", "A connection's number, or part of its addresses."
    )
    output: Literal["table", "plot", "json", "html"] = OUTPUT(default="table")
    html: str | None = option("--html FILE", "Write the page to this file.")
    every: float = option(
        "--every SECONDS", "Width of a row: what happens in this time is added up.", default=0.0, min=0.0
    )
    rows: int | None = option(
        "--rows N",
        "Maximum number of rows per consumer; neighbours are added up to fit.",
        min=2,
        show_default=f"{_TABLE_ROWS} in a table, otherwise 256",
    )
    time_format: TimeFormat = option("-t --time", "Time format, as for decode.", default="utc")
    read: ReadOptions = group(ReadOptions)
    wide: bool = WIDE()


def permits(options: PermitsOptions) -> int:
    """Show each consumer's permits, deliveries, acknowledgements and redeliveries over time."""
    if not options.sources:
        console.fail("permits: name a SOURCE (a file, or - for stdin); see pwire permits --help")
    from pulsarctl_wire.cli.capture.reading import find_captures

    options = replace(options, sources=find_captures(options.sources))
    with console.errors_reported():
        ledger, code, end_ns, origin = _read(options)
        if not ledger.consumers:
            return _say_nothing_found(options, ledger, code)
        _warn(options, ledger)
        _show(options, _make_reports(options, ledger, end_ns), origin)
        return code


def _read(options: PermitsOptions) -> tuple[Permits, int, int, Origin]:
    """Return the consumers, the exit code, when the capture ends (ns), and when it begins."""
    from pulsarctl_wire.capture.sources import Decoder, collect_rarely
    from pulsarctl_wire.cli.capture.reading import Sources
    from pulsarctl_wire.stats.permits import Permits

    collect_rarely()
    origin = Origin()
    ledger = Permits(_make_test(options))
    decoder = Decoder(
        options.read.reading,
        join_chunks=False,
        new_state=ledger.new_state,
        on_end=ledger.ended,
    )
    with ExitStack() as stack:
        sources = Sources(options.sources, stack, bar=console.is_terminal(sys.stderr))
        try:
            for events in chain(sources.read(decoder), decoder.finish()):
                if origin.time_ns is None and events:
                    origin.time_ns = events[0].time_ns
        except KeyboardInterrupt:
            sources.code = console.EXIT_INTERRUPTED
    if not ledger.consumers:
        console.warn_of_packets(decoder.skipped)
    return ledger, sources.code, decoder.last_ns, origin


def _make_test(options: PermitsOptions) -> Any:
    """Return a test of a consumer's first frame: whether the options select the consumer."""
    from pulsarctl_wire.cli.capture.select import by_connection, by_topic
    from pulsarctl_wire.stats.permits import id_of

    tests: list[Any] = []
    if options.subscriptions:
        tests.append(lambda frame: frame.subscription in options.subscriptions)
    if options.consumers:
        tests.append(lambda frame: id_of(frame) in options.consumers)
    if options.connections:
        tests.append(by_connection(options.connections))
    if options.topics:
        tests.append(by_topic(options.topics))

    def is_chosen(frame: Frame) -> bool:
        return all(test(frame) for test in tests)

    return is_chosen


def _say_nothing_found(options: PermitsOptions, ledger: Permits, code: int) -> int:
    _say_missing(options, ledger, console.fail if not code else console.warn)
    chosen_by = {
        "--subscription": options.subscriptions,
        "--topic": options.topics,
        "--consumer": options.consumers,
        "--connection": options.connections,
    }
    flags = ", ".join(flag for flag, value in chosen_by.items() if value)
    if code != console.EXIT_SOURCE:
        text = f"{flags}: no consumer matched" if flags else "permits: there is no consumer"
        console.warn(f"{text}{_describe_unknown(ledger)}")
    return code


def _say_missing(options: PermitsOptions, ledger: Permits, say: Any) -> None:
    """Say, with `say`, which subscriptions that the options name are not in the capture."""
    subscriptions = sorted(ledger.subscriptions)
    examples = ", ".join([*subscriptions[:5], *(["…"] if len(subscriptions) > 5 else [])])
    for name in options.subscriptions:
        if name not in subscriptions:
            hint = did_you_mean(name, subscriptions) or (examples and f"; there is {examples}")
            say(f"--subscription {name}: not in the capture{hint}{_describe_unknown(ledger)}")


def _describe_unknown(ledger: Permits) -> str:
    """Describe the consumers whose subscriptions are unknown: the options may mean them. "" if none."""
    if not ledger.unknown:
        return ""
    return f"; the SUBSCRIBE of {count_of(ledger.unknown, 'consumer')} was not captured"


def _warn(options: PermitsOptions, ledger: Permits) -> None:
    from pulsarctl_wire.stats.permits import MAX_CONSUMERS

    _say_missing(options, ledger, console.warn)
    if ledger.left_out:
        console.warn(
            f"only the first {MAX_CONSUMERS} consumers are shown, {ledger.left_out} more are not: "
            "choose with --subscription, --topic, --connection, --consumer"
        )


def _make_reports(options: PermitsOptions, ledger: Permits, end_ns: int) -> list[ConsumerReport]:
    from pulsarctl_wire.render.permits import ConsumerReport
    from pulsarctl_wire.stats.permits import MAX_ROWS, consumer_records, ordered

    interval_ns = round(options.every * 1e9)
    default = _TABLE_ROWS if options.output == "table" and not interval_ns else MAX_ROWS
    limit = min(options.rows or default, MAX_ROWS)
    reports = []
    for consumer in ordered(ledger.consumers.values()):
        total, *rows = consumer_records(consumer, end_ns, limit, interval_ns)
        reports.append(ConsumerReport(total, rows))
    return reports


def _show(options: PermitsOptions, reports: list[ConsumerReport], origin: Origin) -> None:
    from pulsarctl_wire.render.line import TimeFormatter

    clock = TimeFormatter(options.time_format, origin)
    if options.html or options.output == "html":
        from pulsarctl_wire.render.permits_page import html_page

        text = html_page(reports, ", ".join(options.sources), clock)
        console.write_page(options.html, text, options.sources)
    elif options.output == "json":
        from pulsarctl_wire.render.jsonl import json_line

        lines = (json_line(record) for report in reports for record in (report.consumer, *report.rows))
        sys.stdout.buffer.writelines(lines)
    else:
        from pulsarctl_wire.render.permits import page, rows_table
        from pulsarctl_wire.render.permits_plot import plot

        detail = partial(plot if options.output == "plot" else rows_table, clock=clock)
        width, colour = console.terminal_width(sys.stdout), console.has_colour(sys.stdout)
        sys.stdout.buffer.write(page(reports, width, colour, detail).encode("utf-8", "backslashreplace"))
    sys.stdout.buffer.flush()
