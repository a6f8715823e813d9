"""Selects the events to show: by command, topic, connection, time or expression, or the first error."""

import math
import re
import warnings
from collections.abc import Callable
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from typing import Any, Final

from pulsarctl_wire.cli.options import SelectOptions
from pulsarctl_wire.errors import FilterError
from pulsarctl_wire.record import INSIDE, MESSAGE_NAMES, PAYLOAD_NAMES, RECORD_NAMES, Record, Recorder
from pulsarctl_wire.render.text import Origin, clean, did_you_mean
from pulsarctl_wire.wire.commands import FAILED, NAMES, NUMBERS, commands_like
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Event, Frame, Gap, HttpMessage, Malformed
from pulsarctl_wire.wire.names import full_topic, without_partition
from pulsarctl_wire.wire.payload import MESSAGE_COST, Budget

Test = Callable[[Event], bool]

_ERRORS: Final = {NUMBERS["ERROR"], NUMBERS["SEND_ERROR"]}

_WHOLE_COST: Final = 16 * MESSAGE_COST
"""The cost in a `Budget` of a message that rule-engine converts as a whole."""
_VOLATILE: Final = {"now", "today", "random"}
"""Symbols of the expression language whose values change between calls."""
_MAX_DIGITS: Final = 18  # of the number of a connection; int() refuses thousands of them
_MAX_OUTCOMES: Final = 1_024
_MAX_VALUE: Final = 2_048
"""Limits of the cache of outcomes by field values: the number of outcomes, and the characters of a value."""


def by_command(names: list[str]) -> Test:
    """Test for frames of the commands `names`: any case, separated by commas, * and ? as in a shell."""
    patterns = [name.strip().upper() for text in names for name in text.split(",") if name.strip()]
    numbers: set[int] = set()
    for pattern in patterns:
        matches = commands_like(pattern)
        if not matches:
            hint = did_you_mean(pattern, NUMBERS) or f"; one of {', '.join(NAMES.values())}"
            raise FilterError(f"--command {pattern}: no such command{hint}")
        numbers |= matches
    return lambda event: isinstance(event, Frame) and event.type in numbers


def by_topic(patterns: list[str]) -> Test:
    """Test for frames about the topics or their partitions: short or full names, or patterns with * and ?."""
    plain = {full_topic(pattern) for pattern in patterns if not re.search(r"[*?\[]", pattern)}
    globs = [pattern for pattern in patterns if re.search(r"[*?\[]", pattern)]
    globs = [pattern if "://" in pattern else f"*://*{pattern}" for pattern in globs]
    cache: dict[str, bool] = {}

    def test(event: Event) -> bool:
        topic = event.topic if isinstance(event, Frame | HttpMessage) else None
        if topic is None:
            return False
        if topic not in cache:
            if len(cache) > 10_000:
                cache.clear()
            cache[topic] = bool({topic, without_partition(topic)} & plain) or any(
                fnmatchcase(topic, pattern) for pattern in globs
            )
        return cache[topic]

    return test


def by_connection(texts: list[str]) -> Test:
    """Test for events of connections that match a number, a port, or a part of "client:port-server:port"."""
    numbers = {int(text) for text in texts if text.isdecimal() and len(text) <= _MAX_DIGITS}
    parts = [text for text in texts if not text.isdecimal()]
    ports = {str(number) for number in numbers if number > 1023}  # up to 1023 a number is a connection's only
    return lambda event: (
        event.connection.index in numbers
        or any(part in str(event.connection) for part in parts)
        or any(end.rpartition(":")[2] in ports for end in (event.connection.client, event.connection.server))
    )


def by_time(text: str, origin: Origin, *, local: bool = False) -> Test:
    """Test for events in the range "FROM..TO" (either may be omitted), both ends included.

    Each is a time in ISO 8601, or as pwire prints it. Without a zone it is UTC, or local time if `local`;
    docs/cli.md has the rest. If TO has no digits below the microsecond, all of its microsecond is included.
    """
    start, dots, stop = text.partition("..")
    if not dots:
        raise FilterError(
            f"--time-range {text}: give FROM..TO, as in 2026-11-20T10:00..2026-11-20T10:05 or +1..+2.5"
        )
    zone = None if local else timezone.utc
    find_start, find_end = _parse_moment(start.strip(), zone), _parse_moment(stop.strip(), zone)
    slack_ns = 0 if re.search(r"\.\d{7,}|\d{17}", stop) else 999
    bounds: list[tuple[float, float]] = []

    def test(event: Event) -> bool:
        if event.time_ns is None:
            return False
        if not bounds:
            first = origin.time_ns or 0
            low = -math.inf if find_start is None else find_start(first)
            high = math.inf if find_end is None else find_end(first) + slack_ns
            bounds.append((low, high + _DAY if high < low and _TIME_OF_DAY.fullmatch(stop.strip()) else high))
        low, high = bounds[0]
        return low <= event.time_ns <= high

    return test


_DAY: Final = 86_400 * 10**9
_TIME_OF_DAY: Final = re.compile(r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?")
_RECENT: Final = 10**8
"""Numbers from here on are seconds since 1970; smaller ones are seconds since the first event."""


def _parse_moment(text: str, zone: timezone | None) -> Callable[[int], int] | None:
    """Return a function from the first event's time to that of `text` (both ns since 1970); None for ""."""
    if not text:
        return None
    if match := re.fullmatch(r"([+-]?)(\d{1,19})(?:\.(\d{1,9}))?", text):
        sign, seconds, fraction = match.groups()
        if not sign and len(seconds) > 16:  # these are nanoseconds: time_ns of the JSON output
            nanoseconds = int(seconds)
            return lambda first: nanoseconds
        time_ns = _nanoseconds(int(seconds), fraction)
        if sign or time_ns < _RECENT * 10**9:
            return lambda first: first + (-time_ns if sign == "-" else time_ns)
        return lambda first: time_ns
    if match := _TIME_OF_DAY.fullmatch(text):
        hour, minute, second = (int(part or 0) for part in match.groups()[:3])
        if hour < 24 and minute < 60 and second < 60:
            return lambda first: _place_time(first, (hour, minute, second), _nanoseconds(0, match[4]), zone)
    try:
        fraction_match = re.search(r"(?<=:\d\d)\.(\d{1,9})", text)
        whole_seconds = text.replace(fraction_match[0], "", 1) if fraction_match else text
        moment = datetime.fromisoformat(whole_seconds.replace("Z", "+00:00"))
        if moment.tzinfo is None and zone is not None:
            moment = moment.replace(tzinfo=zone)
        exact = _nanoseconds(int(moment.timestamp()), fraction_match and fraction_match[1])
    except (ValueError, OverflowError, OSError) as error:
        raise FilterError(
            f"--time-range: {text} is not a time; use ISO 8601, +seconds, or a time as pwire prints it"
        ) from error
    return lambda first: exact


def _nanoseconds(seconds: int, fraction: str | None) -> int:
    return seconds * 10**9 + int(f"{fraction or '':0<9}")


def _place_time(first: int, time: tuple[int, int, int], fraction_ns: int, zone: timezone | None) -> int:
    """Return `time` on the day of `first`, or on the next if that would be over 12 hours before it."""
    hour, minute, second = time
    try:
        day = datetime.fromtimestamp(first // 10**9, zone)
        same_day = int(day.replace(hour=hour, minute=minute, second=second).timestamp()) * 10**9 + fraction_ns
    except (ValueError, OverflowError, OSError):  # the capture's times are not valid dates
        same_day = first // _DAY * _DAY + _nanoseconds((hour * 60 + minute) * 60 + second, None) + fraction_ns
    return same_day + _DAY if same_day < first - _DAY // 2 else same_day


class FirstError:
    """The test for errors: damage, an error from the broker, or any note on a frame.

    `looked_at` counts the frames that were tested, `passed` the events with an error.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.looked_at = self.passed = 0
        self._recorder = recorder

    def __call__(self, event: Event) -> bool:
        """Return whether `event` has an error."""
        has_error = bool(self.describe(event))
        self.looked_at += isinstance(event, Frame)
        self.passed += has_error
        return has_error

    def prefix(self, event: Event) -> str:
        """Return the prefix of the lines of `event`."""
        return f"{clean(self.describe(event))} | "

    def describe(self, event: Event) -> str:
        """Return the error of `event`; "" if none."""
        if isinstance(event, Gap):
            return f"{event.size} bytes were not captured" if event.size else ""
        if isinstance(event, Malformed):
            return event.reason
        if isinstance(event, HttpMessage):
            return (
                f"HTTP {event.status} {event.fields.get('reason', '')}".rstrip()
                if event.status >= 400
                else ""
            )
        return _read_error(event) or next(iter(self._recorder.notes(event)), "")


def _read_error(frame: Frame) -> str:
    """Return the error that a frame reports: its name, and the broker's message; "" if none."""
    name = frame.command if frame.type in _ERRORS else ""
    body: Any = frame.body
    for field, value in () if body is None else body.ListFields():  # an error field after `response` wins
        failed = field.name == "response" and value == FAILED.get(frame.type)
        if failed or field.name in ("error", "error_code", "validation_error"):
            name = field.enum_type.values_by_number[value].name
    message = getattr(body, "message", "") or getattr(body, "error_message", "")
    return f"{name}: {as_text(message)}" if name and message else name


def tests(selection: SelectOptions) -> list[Test]:
    """Make the tests of the options other than the expression: all must hold, the cheap ones come first.

    Raises FilterError.
    """
    makers = (
        (by_command, selection.commands),
        (by_connection, selection.connections),
        (by_topic, selection.topics),
    )
    return [make_test(values) for make_test, values in makers if values]


class Rule:
    """An expression in the language of rule-engine, over records whose fields are some of `names`.

    Error messages name the option, `flag`, and the document that lists the fields, `names_in`.
    """

    def __init__(self, text: str, names: frozenset[str], flag: str, names_in: str) -> None:
        import rule_engine

        # rule-engine deprecates attribute access (a.b) on mappings, which is how records are read
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="rule_engine")
        self._error = rule_engine.errors.EngineError
        try:
            self._rule = self._parse(text)
        except self._error as error:
            suggestion = getattr(error, "suggestion", None)
            hint = f"; did you mean {suggestion}?" if suggestion else f"; see {names_in} for the fields"
            raise FilterError(
                f"{flag} {text}: {_explain(error)}{self._suggest(text, names) or hint}"
            ) from error
        context = self._rule.context
        bindings = set(re.findall(r"\bfor\s+(\w+)\s+in\b", text))  # of [m for m in messages]
        unknown = set(context.symbols) - names - set(context.builtins) - bindings
        if unknown:
            hint = _suggest_for(min(unknown), text, names) or f"; {names_in} lists the fields"
            raise FilterError(f"{flag} {text}: there is no field {min(unknown)}{hint}")
        self._fields = sorted(set(context.symbols) & names)
        self._is_volatile = not _VOLATILE.isdisjoint(context.symbols)
        self._outcomes: dict[tuple[Any, ...], tuple[bool, bool]] = {}
        self.tried = 0
        self.failed = 0
        """Records on which the expression raised an error (it compared a text with a number, say)."""

    def _parse(self, text: str) -> Any:
        import rule_engine

        return rule_engine.Rule(text, context=rule_engine.Context(resolver=_resolve, default_value=None))

    def _suggest(self, text: str, names: frozenset[str]) -> str:
        """Suggest `==` for `=`, and quotes for texts without: "; did you mean …?", or ""."""
        better = _COMPARISON.sub(lambda match: match["quoted"] or _correct(match, names), text)
        try:
            self._parse(better)
        except self._error:
            return ""
        return f"; did you mean {better}?"

    def has(self, name: str) -> bool:
        """Return whether the expression uses a field."""
        return name in self._fields

    def matches(self, record: Record) -> bool:
        """Return whether the expression holds for `record`."""
        # empty lists are frequent; a tuple can be part of a key
        values = tuple([() if value == [] else value for value in map(record.get, self._fields)])
        try:
            outcome = self._outcomes.get(values)
        except TypeError:  # a value is a list or a mapping, and cannot be a key
            holds, fails = self._outcome(record)
        else:
            holds, fails = outcome or self._outcome(record)
            if outcome is None and not self._is_volatile:
                self._remember(values, (holds, fails))
        self.tried += 1
        self.failed += fails
        return holds

    def _remember(self, values: tuple[Any, ...], outcome: tuple[bool, bool]) -> None:
        if any(isinstance(value, str) and len(value) > _MAX_VALUE for value in values):
            return
        if len(self._outcomes) == _MAX_OUTCOMES:
            self._outcomes.clear()
        self._outcomes[values] = outcome

    def _outcome(self, record: Record) -> tuple[bool, bool]:
        """Return whether the expression holds, and whether it failed."""
        try:
            return bool(self._rule.matches(record)), False
        except self._error:
            return False, True


class Expression(Rule):
    """A filter expression over the fields of records (docs/json.md), given by the option `option`.

    `recorder` makes the records. `names` are their fields, by default those of frames. Messages of a frame
    that exceed the recorder's budget are left out.
    """

    def __init__(
        self,
        text: str,
        recorder: Callable[[Any], Record],
        option: str = "--filter",
        names: frozenset[str] = RECORD_NAMES,
    ) -> None:
        self._cost = MESSAGE_COST
        super().__init__(text, names, option, "docs/json.md")
        self._recorder = recorder
        self._outline: Callable[[Frame], Record] | None = None
        self._budget = Budget()
        if isinstance(recorder, Recorder):
            self._budget = recorder.budget
            # entries need not be opened if no field of the expression is inside of them
            self._outline = recorder.outline if INSIDE.isdisjoint(self._fields) else None
        self._asks_messages = self.has("messages")

    def _parse(self, text: str) -> Any:
        import rule_engine

        # rule-engine converts each mapping completely, but not objects
        any_type = rule_engine.DataType.UNDEFINED
        payload = rule_engine.DataType.OBJECT(
            "payload", attributes=dict.fromkeys(PAYLOAD_NAMES, any_type), accessor=_read_part
        )
        attributes = dict.fromkeys(MESSAGE_NAMES, any_type) | {"payload": payload}
        message = rule_engine.DataType.OBJECT("message", attributes=attributes, accessor=_read_part)
        types = {"messages": rule_engine.DataType.ARRAY(message)}
        context = rule_engine.Context(
            resolver=_resolve, type_resolver=lambda name: types.get(name, any_type), default_value=None
        )
        try:
            return rule_engine.Rule(text, context=context)
        except rule_engine.errors.ObjectAttributeError:
            raise
        except rule_engine.errors.EvaluationError:  # objects do not support m["size"]
            self._cost = _WHOLE_COST
            return super()._parse(text)

    def __call__(self, event: Any) -> bool:
        """Return whether the expression holds for the record of `event`."""
        if self._outline is not None and isinstance(event, Frame):
            # nothing is opened here, but the renderer has the same budget
            self._budget.count_input(len(event.raw))
            return self.matches(self._outline(event))
        return self.matches(self._recorder(event))

    def matches(self, record: Record) -> bool:
        """Return whether the expression holds for `record`."""
        if self._asks_messages and record.get("messages"):
            record = {**record, "messages": self._messages(record["messages"])}
        return super().matches(record)

    def _messages(self, messages: list[Record]) -> list[Any]:
        budget = self._budget
        room = max(budget.left // self._cost, 0)
        if len(messages) > room:
            budget.unopened += 1
            messages = messages[:room]
        budget.left -= len(messages) * self._cost
        return messages if self._cost == _WHOLE_COST else [_Part(message) for message in messages]


class _Part:
    """A part of a record as an object."""

    __slots__ = ("values",)

    def __init__(self, values: Record) -> None:
        self.values = values


def _read_part(part: _Part | None, name: str) -> Any:
    value = None if part is None else part.values.get(name)
    return _Part(value) if name == "payload" and value is not None else value


def _resolve(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, dict) else None


_COMPARISON: Final = re.compile(
    r"""(?P<quoted>"[^"]*"|'[^']*')|(?P<sign>[=!<>]=+|=~+|=)(?P<space>\s*)(?P<word>((?!.?["'])[^\s()[\],])*)"""
)
"""An operator and its right operand, or a quoted text (so that operators inside of it are skipped)."""
_VALUE: Final = re.compile(r"-?[\d.]+|true|false|null|\$.*|")
"""A word that needs no quotes."""


def _correct(match: re.Match[str], names: frozenset[str]) -> str:
    sign, space, word = match["sign"], match["space"], match["word"]
    is_plain = _VALUE.fullmatch(word) or word.partition(".")[0] in names
    return f"{'==' if sign == '=' else sign}{space}" + (word if is_plain else f'"{word}"')


def _suggest_for(word: str, text: str, names: frozenset[str]) -> str:
    """Suggest what `word`, which is not a field, may stand for: a command, a text to be quoted, or a typo."""
    if word.upper() in NUMBERS and "command" in names and text.strip() == word:
        return f"; did you mean command == '{word.upper()}'?"
    if word.upper() in NUMBERS or re.search(rf"[=!<>~]\s*{re.escape(word)}\b", text):
        return f"; did you mean '{word}'? Texts are quoted"
    return did_you_mean(word, names)


def _explain(error: Exception) -> str:
    message = getattr(error, "message", "") or str(error)
    return str(message).splitlines()[0].rstrip(".")
