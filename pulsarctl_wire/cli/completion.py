"""What a shell offers after <TAB>: names of commands, reports, faults, and the topics of a capture."""

import os
import re
import shlex
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, Final

TOPICS_READ: Final = 8 * 1024 * 1024
"""Bytes of a capture in which topics are looked for."""
_PATIENCE: Final = 1.0  # seconds that a shell waits
_MOST: Final = 1_000
_HARMLESS: Final = re.compile(r"[\w./:@%+~-]+", re.ASCII)
"""Names that mean nothing to a shell: what comes from a capture is put on a command line here."""


def _last_of_list(names: Iterable[str], incomplete: str) -> list[str]:
    """`names` as the last item of a list with commas, in small letters if that is how it was begun."""
    before, comma, last = incomplete.rpartition(",")
    cased = str.lower if last.islower() else str
    return [f"{before}{comma}{name}" for name in map(cased, names) if name.startswith(last)]


def commands(incomplete: str) -> list[str]:
    """Commands of the protocol, for `--command`."""
    from pulsarctl_wire.wire.commands import NUMBERS

    return _last_of_list(NUMBERS, incomplete)


def kinds(incomplete: str) -> list[str]:
    """What `--by` takes."""
    from pulsarctl_wire.cli.stats import KINDS

    return _last_of_list(KINDS, incomplete)


def reports(incomplete: str) -> list[tuple[str, str]]:
    """Reports, and what they answer."""
    from pulsarctl_wire.spark.reports import REPORTS

    return [(each.name, each.about) for each in REPORTS.values() if each.name.startswith(incomplete)]


def faults(incomplete: str) -> list[tuple[str, str]]:
    """Faults, and what they do."""
    from pulsarctl_wire.faults import describe

    return [(each.name, each.text) for each in describe() if each.name.startswith(incomplete)]


def topics(incomplete: str) -> list[str]:
    """The topics in the first `TOPICS_READ` bytes of the captures on the command line."""
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""  # by the shell
    try:
        sources = shlex.split(line)[1:]
    except ValueError:  # a quote that is still open
        sources = line.split()[1:]
    found: set[str] = set()
    until = time.monotonic() + _PATIENCE
    for path in filter(os.path.isfile, dict.fromkeys(sources)):
        with suppress(Exception):  # a shell is no place for what is wrong with a file
            found.update(islice(_topics_in(path, until), _MOST))
    return sorted(name for name in found if name.startswith(incomplete))


def _topics_in(path: str, until: float) -> Iterator[str]:
    from pulsarctl_wire.capture.sources import Decoder, open_source
    from pulsarctl_wire.cli.progress import Watched

    source = open_source(path)
    with source.stream:
        stream: Any = Watched(source.stream, lambda: None, None, TOPICS_READ)
        decoder = Decoder(join_chunks=False)
        for events in decoder.read(source._replace(stream=stream)):
            for event in events:
                topic = str(getattr(event, "topic", None) or "").removeprefix("persistent://")
                if _HARMLESS.fullmatch(topic):
                    yield topic
            if time.monotonic() > until:
                return
