"""Shell completion: names of commands, reports and faults, and the topics of a capture."""

import os
import re
import shlex
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

MAX_BYTES_READ: Final = 8 * 1024 * 1024
"""How many bytes of a capture are searched for topics and subscriptions."""
_TIME_LIMIT: Final = 1.0  # seconds, as the user waits
_MAX_NAMES: Final = 1_000  # different names of all captures
_SAFE: Final = re.compile(r"[\w./:@%+~-]+", re.ASCII)
"""Names that are offered: without special characters, as the shell puts them on a command line."""


def _complete_last(names: Iterable[str], incomplete: str) -> list[str]:
    """Complete the last item of a comma-separated list from `names`; in lower case if that item is."""
    head, comma, last = incomplete.rpartition(",")
    change_case = str.lower if last.islower() else str
    return [f"{head}{comma}{name}" for name in map(change_case, names) if name.startswith(last)]


def commands(incomplete: str) -> list[str]:
    """Complete protocol commands, for `--command`."""
    from pulsarctl_wire.wire.commands import NUMBERS

    return _complete_last(NUMBERS, incomplete)


def kinds(incomplete: str) -> list[str]:
    """Complete values of `--by`."""
    from pulsarctl_wire.stats.rows import NAMES

    return _complete_last(NAMES, incomplete)


def kept_kinds(incomplete: str) -> list[str]:
    """Complete values of `--keep`."""
    from pulsarctl_wire.sanitize.names import Kind

    return _complete_last(Kind, incomplete)


def reports(incomplete: str) -> list[tuple[str, str]]:
    """Complete names of reports; return them with their descriptions."""
    from pulsarctl_wire.reports import REPORTS

    return [(report.name, report.about) for report in REPORTS.values() if report.name.startswith(incomplete)]


def faults(incomplete: str) -> list[tuple[str, str]]:
    """Complete names of faults; return them with their descriptions."""
    from pulsarctl_wire.faults import FAULTS

    return [(fault.name, fault.describe()) for fault in FAULTS if fault.name.startswith(incomplete)]


def terms(incomplete: str) -> list[str]:
    """Complete the terms of `explain`; in lower case if `incomplete` is."""
    from pulsarctl_wire.manual.explanations import list_explanations

    return _complete_last([term.name for term in list_explanations()], incomplete)


def topics(incomplete: str) -> list[str]:
    """Complete topics from the first `MAX_BYTES_READ` bytes of the captures on the command line."""
    return _complete_names("topic", incomplete)


def subscriptions(incomplete: str) -> list[str]:
    """Complete subscriptions from the same bytes as `topics`."""
    return _complete_names("subscription", incomplete)


def _complete_names(kind: str, incomplete: str) -> list[str]:
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""  # set by the shell
    try:
        sources = shlex.split(line)[1:]
    except ValueError:  # a quote that is still open
        sources = line.split()[1:]
    names: set[str] = set()
    deadline = time.monotonic() + _TIME_LIMIT
    for path in filter(os.path.isfile, dict.fromkeys(sources)):
        with suppress(Exception):  # completion must not print errors
            for name in _read_names(path, kind, deadline):
                names.add(name)
                if len(names) >= _MAX_NAMES:
                    break
    return sorted(name for name in names if name.startswith(incomplete))


def _read_names(path: str, kind: str, deadline: float) -> Iterator[str]:
    from pulsarctl_wire.capture.sources import Decoder, open_source
    from pulsarctl_wire.cli.capture.progress import FlushingStream

    source = open_source(path)
    with source.stream:
        stream: Any = FlushingStream(source.stream, lambda: None, None, MAX_BYTES_READ)
        decoder = Decoder(join_chunks=False)
        for events in decoder.read(source._replace(stream=stream)):
            for event in events:
                name = str(getattr(event, kind, None) or "").removeprefix("persistent://")
                if _SAFE.fullmatch(name):
                    yield name
            if time.monotonic() > deadline:
                return


def cases(incomplete: str) -> list[str]:
    """Complete ids of cases, for `conform broker`."""
    from pulsarctl_wire.conformance.catalog import CASES

    return [name for name in CASES if name.startswith(incomplete)]


def client_cases(incomplete: str) -> list[str]:
    """Complete ids of cases, for `conform client`."""
    from pulsarctl_wire.conformance.catalog import load_client_cases

    return [name for name in load_client_cases() if name.startswith(incomplete)]


def settings(incomplete: str) -> list[tuple[str, str]]:
    """Complete values of `conform broker --have`; return them with their meanings."""
    from pulsarctl_wire.conformance.basics.settings import MEANINGS, SETTINGS

    return [(name, MEANINGS[name]) for name in SETTINGS if name.startswith(incomplete)]


def rules(incomplete: str) -> list[str]:
    """Complete rules of the doctor, for `--only` and `--ignore`."""
    from pulsarctl_wire.checks.registry import RULES

    return _complete_last([rule.id for rule in RULES], incomplete)
