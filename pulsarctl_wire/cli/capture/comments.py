"""What `--write` says in comments: the frames and findings of each packet, and what was selected."""

import shlex
from collections.abc import Iterable, Sequence
from typing import Final

from pulsarctl_wire import __version__
from pulsarctl_wire.capture.comments import About, describe_route
from pulsarctl_wire.checks.finding import Finding
from pulsarctl_wire.cli.capture.decode_options import DecodeOptions
from pulsarctl_wire.cli.findings import CheckOptions
from pulsarctl_wire.render.findings import subject_text
from pulsarctl_wire.render.line import LineRenderer, TimeFormatter
from pulsarctl_wire.render.text import Paint, clean, cut_line
from pulsarctl_wire.wire.frame import Event
from pulsarctl_wire.wire.session.knowledge import MAX_PENDING, bound

_MAX_WIDTH: Final = 500  # cells of a comment
_MAX_SOURCES: Final = 8  # that are named


class Commenter:
    """Makes the comments on events: each a line, as `-o line` shows it. `clock` formats its time.

    The first event of a connection through our proxy also gets the comment on its route, as in recordings.
    """

    def __init__(self, clock: TimeFormatter, *, show_secrets: bool) -> None:
        self._described: dict[int, None] = {}
        self._line = LineRenderer(Paint(False), clock, show_secrets=show_secrets)

    def __call__(self, event: Event) -> list[str]:
        """Return the comments on an event."""
        connection = event.connection
        line = self._line(event).strip()
        # a character has at most two cells, so short lines fit: counting their cells would be slow
        comments = [line if len(line) <= _MAX_WIDTH // 2 else cut_line(line, _MAX_WIDTH)]
        if connection.listener and connection.index not in self._described:
            self._described[connection.index] = None
            bound(self._described, MAX_PENDING)
            comments.append(describe_route(connection.client, connection.listener, connection.server))
        return comments


def describe_findings(findings: Iterable[Finding]) -> dict[int, list[str]]:
    """Return the comments on the packets that prove findings, by packet."""
    comments: dict[int, list[str]] = {}
    for finding in findings:
        head = f"{finding.rule} ({finding.certainty}) {subject_text(finding)}".rstrip()
        for evidence in finding.evidence:
            text = f"{head}: {clean(evidence.text)}. {clean(finding.explanation)}"
            comments.setdefault(evidence.sighting.packet, []).append(cut_line(text, _MAX_WIDTH))
    return comments


def describe_decode(options: DecodeOptions) -> About:
    """Return what a file of selected frames says of itself."""
    selection = options.selection
    words = [
        *_repeat("--command", selection.commands),
        *_repeat("--topic", selection.topics),
        *_repeat("--connection", selection.connections),
        *_repeat("--time-range", filter(None, [options.time_range])),
        *_repeat("--filter", filter(None, [selection.expression])),
        *_repeat("--count", [] if options.count is None else [str(options.count)]),
        *(["--first-error"] if options.first_error else []),
        *(["--doctor", *_list_checks(options.checks)] if options.doctor else []),
    ]
    return _describe("decode", "the packets of the selected frames", words, options.sources)


def describe_doctor(checks: CheckOptions, sources: Sequence[str]) -> About:
    """Return what a file of connections with findings says of itself."""
    content = "the packets of all connections that findings name"
    return _describe("doctor", content, _list_checks(checks), sources)


def _list_checks(checks: CheckOptions) -> list[str]:
    words = [*_repeat("--only", checks.only), *_repeat("--ignore", checks.ignore)]
    thresholds = {"-T": checks.quiet_for, "-A": checks.unacked_for, "-R": checks.unanswered_for}
    return [*words, *(word for flag, seconds in thresholds.items() for word in (flag, f"{seconds:g}"))]


def _describe(verb: str, content: str, words: list[str], sources: Sequence[str]) -> About:
    command = ["pwire", verb, *words, *sources[:_MAX_SOURCES]]
    text = f"{content}: {clean(shlex.join(command))}"
    if len(sources) > _MAX_SOURCES:
        text += f" and {len(sources) - _MAX_SOURCES} more"
    choice = clean(shlex.join(words)) if words else "all frames"
    return About(f"pwire {__version__}", text, f"selected by pwire {verb}: {choice}")


def _repeat(flag: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (flag, value)]
