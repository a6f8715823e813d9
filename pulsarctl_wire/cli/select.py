"""Which events to show: by command, topic, connection, time, expression, or the first that is wrong."""

import difflib
import re
import warnings
from collections.abc import Callable
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from typing import Any, Final

from pulsarctl_wire.cli.console import Origin
from pulsarctl_wire.errors import FilterError
from pulsarctl_wire.record import RECORD_NAMES, Record, Recorder
from pulsarctl_wire.wire.commands import FAILED, NAMES, NUMBERS, commands_like
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Event, Frame, Gap, Malformed
from pulsarctl_wire.wire.names import full_topic, without_partition

Test = Callable[[Event], bool]

_ERRORS: Final = {NUMBERS["ERROR"], NUMBERS["SEND_ERROR"]}


def by_command(names: list[str]) -> Test:
    """Frames whose command is one of `names`: any case, separated by commas, with * and ? as in a shell."""
    patterns = [name.strip().upper() for text in names for name in text.split(",") if name.strip()]
    numbers: set[int] = set()
    for pattern in patterns:
        found = commands_like(pattern)
        if not found:
            near = difflib.get_close_matches(pattern, NUMBERS, 3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"one of {', '.join(NAMES.values())}"
            raise FilterError(f"--command {pattern}: no such command; {hint}")
        numbers |= found
    return lambda event: isinstance(event, Frame) and event.type in numbers


def by_topic(patterns: list[str]) -> Test:
    """Frames about one of the topics: a name in any spelling, or a pattern with * and ?; partitions count."""
    plain = {full_topic(pattern) for pattern in patterns if not re.search(r"[*?\[]", pattern)}
    globs = [pattern for pattern in patterns if re.search(r"[*?\[]", pattern)]
    globs = [pattern if "://" in pattern else f"*://*{pattern}" for pattern in globs]
    known: dict[str, bool] = {}

    def test(event: Event) -> bool:
        topic = event.topic if isinstance(event, Frame) else None
        if topic is None:
            return False
        if topic not in known:
            if len(known) > 10_000:
                known.clear()
            known[topic] = bool({topic, without_partition(topic)} & plain) or any(
                fnmatchcase(topic, pattern) for pattern in globs
            )
        return known[topic]

    return test


def by_connection(wanted: list[str]) -> Test:
    """Events of the connections given by number, by port, or by a part of "client:port-server:port"."""
    numbers = {int(text) for text in wanted if text.isdecimal()}
    parts = [text for text in wanted if not text.isdecimal()]
    ports = {str(number) for number in numbers if number > 1023}
    return lambda event: (
        event.connection.index in numbers
        or any(part in str(event.connection) for part in parts)
        or any(end.rpartition(":")[2] in ports for end in (event.connection.client, event.connection.server))
    )


def by_time(text: str, origin: Origin) -> Test:
    """Events in the range "FROM..TO" (either may be left out).

    Each is a time of ISO 8601 (UTC unless it says otherwise), seconds since the epoch, or +SECONDS
    after `origin`.
    """
    start, dots, stop = text.partition("..")
    if not dots:
        raise FilterError(
            f"--time-range {text}: give FROM..TO, as in 2026-11-20T10:00..2026-11-20T10:05 or +1..+2.5"
        )
    bounds = [_moment(start), _moment(stop)]

    def test(event: Event) -> bool:
        if event.time_ns is None:
            return False
        first = origin.time_ns or 0
        low, high = (None if bound is None else bound[1] + (first if bound[0] else 0) for bound in bounds)
        return (low is None or event.time_ns >= low) and (high is None or event.time_ns <= high)

    return test


def _moment(text: str) -> tuple[bool, int] | None:
    """(whether it is relative, ns), of one end of a range."""
    text = text.strip()
    if not text:
        return None
    try:
        if re.fullmatch(r"\+?\d+(\.\d+)?", text):
            whole, _, fraction = text.lstrip("+").partition(".")
            return text[0] == "+", int(whole) * 1_000_000_000 + int(f"{fraction:0<9}"[:9])
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        raise FilterError(
            f"--time-range: {text} is no time; use ISO 8601, epoch seconds or +seconds"
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return False, int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000


class FirstError:
    """The test for things that are wrong: damage, an error from the broker, whatever a frame's notes tell.

    `looked_at` counts the frames that were tested, `passed` the events that something is wrong with.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.looked_at = self.passed = 0
        self._recorder = recorder

    def __call__(self, event: Event) -> bool:
        """Whether something is wrong with `event`."""
        wrong = bool(self.what(event))
        self.looked_at += isinstance(event, Frame)
        self.passed += wrong
        return wrong

    def what(self, event: Event) -> str:
        """What is wrong with `event`; "" if nothing."""
        if isinstance(event, Gap):
            return f"{event.size} bytes were not captured" if event.size else ""
        if isinstance(event, Malformed):
            return event.reason
        return _refusal(event) or next(iter(self._recorder.notes(event)), "")


def _refusal(frame: Frame) -> str:
    """The error that a frame tells of: its name, and what the broker says; "" if none."""
    body: Any = frame.body
    if body is None:
        return ""
    for field, value in body.ListFields():
        says_so = field.name == "response" and field.enum_type is not None
        failed = says_so and value == FAILED.get(frame.type)
        if failed or field.name in ("error", "error_code", "validation_error"):
            name = field.enum_type.values_by_number[value].name
            message = as_text(getattr(body, "message", ""))
            return f"{name}: {message}" if message else name
    return frame.command if frame.type in _ERRORS else ""


def tests(commands: list[str], connections: list[str], topics: list[str]) -> list[Test]:
    """What these select as tests that all must hold, the cheap ones first. Raises FilterError."""
    found: list[Test] = []
    if commands:
        found.append(by_command(commands))
    if connections:
        found.append(by_connection(connections))
    if topics:
        found.append(by_topic(topics))
    return found


class Rule:
    """An expression over records that have some of `names`, in the language of rule-engine.

    `flag` is the option it was given by, `names_in` the document that lists the names, for errors.
    """

    def __init__(self, text: str, names: frozenset[str], flag: str, names_in: str) -> None:
        import rule_engine

        # it frowns on dots into mappings, which is what records are made of
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="rule_engine")
        self._error = rule_engine.errors.EngineError
        context = rule_engine.Context(resolver=_resolve, default_value=None)
        try:
            self._rule = rule_engine.Rule(text, context=context)
        except self._error as error:
            raise FilterError(f"{flag} {text}: {_explain(error)}; see {names_in} for the fields") from error
        own = set(re.findall(r"\bfor\s+(\w+)\s+in\b", text))  # of [m for m in messages]
        unknown = set(context.symbols) - names - set(context.builtins) - own
        if unknown:
            near = difflib.get_close_matches(min(unknown), names, 1)
            hint = f"did you mean {near[0]}?" if near else f"{names_in} lists the fields"
            raise FilterError(f"{flag} {text}: there is no field {min(unknown)}; {hint}")
        self.tried = 0
        self.failed = 0
        """Records on which the expression made no sense (an order between a text and a number)."""

    def matches(self, record: Record) -> bool:
        """Whether the expression holds for `record`."""
        self.tried += 1
        try:
            return bool(self._rule.matches(record))
        except self._error:
            self.failed += 1
            return False


class Expression(Rule):
    """A filter expression over the fields of a frame's record (docs/json.md), given by `option`."""

    def __init__(self, text: str, recorder: Recorder, option: str = "--filter") -> None:
        super().__init__(text, RECORD_NAMES, option, "docs/json.md")
        self._recorder = recorder

    def __call__(self, event: Event) -> bool:
        """Whether the expression holds for the record of `event`."""
        return self.matches(self._recorder(event))


def _resolve(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, dict) else None


def _explain(error: Exception) -> str:
    message = getattr(error, "message", "") or str(error)
    return str(message).splitlines()[0].rstrip(".")
