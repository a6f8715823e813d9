"""Parses and formats faults as text: one fault in a line, or a scenario in YAML.

    drop command=SEND_RECEIPT nth=1          name, then parameters; words are split as in a shell

    seed: 7
    faults:
      - drop: {command: SEND_RECEIPT, nth: 1}
      - delay: {time: 200ms, jitter: 50ms, direction: to-client}
      - blackhole

Every value of a scenario is read as text and then parsed as in a line, so that both mean the same and YAML's
rules for numbers, dates and booleans do not apply. Scenarios have limited size, no aliases, and no duplicate
keys.
"""

import shlex
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final, NamedTuple

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.faults import BY_NAME
from pulsarctl_wire.faults.base import Fault
from pulsarctl_wire.faults.values import hint

LARGEST_SCENARIO: Final = 1 << 20
"""Maximum characters of a scenario."""


class Scenario(NamedTuple):
    """A parsed scenario: the seed, or None, and the faults in order."""

    seed: int | None
    faults: tuple[Fault, ...]


def parse_fault(text: str) -> Fault:
    """Parse a line such as `drop command=SEND_RECEIPT nth=1`. Raises SettingsError."""
    try:
        name, *words = shlex.split(text) or [""]
    except ValueError as error:
        raise SettingsError(f"fault {text[:80]}: {str(error).lower()}") from None
    values = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise SettingsError(f"fault {name[:40]}: {word[:60]} is not a parameter; give KEY=VALUE")
        if key in values:
            raise SettingsError(f"fault {name[:40]}: {key[:60]} is given twice")
        values[key] = value
    return _build(name, values)


def _build(name: str, values: Mapping[str, str]) -> Fault:
    kind = BY_NAME.get(name.lower())
    if kind is None:
        raise SettingsError(f"fault {name[:60]}: unknown fault; {hint(name, BY_NAME)}")
    names = [parameter.name for parameter in fields(kind)]
    for key in values:
        if key not in names:
            raise SettingsError(f"{kind.name}: it has no parameter {key[:60]}; {hint(key, names)}")
    return kind(**values)  # type: ignore[arg-type]


def format_fault(fault: Fault) -> str:
    """Return the line for `fault`, which `parse_fault` turns back into an equal fault."""
    words = [fault.name]
    for parameter in fields(fault):
        value = getattr(fault, parameter.name)
        if value != parameter.default:
            words.append(f"{parameter.name}={parameter.metadata['kind'].show(value)}")
    return shlex.join(words)


def parse_scenario(text: str) -> Scenario:
    """Parse a scenario in YAML. Raises SettingsError, which names the wrong entry."""
    document = _load(text)
    if not isinstance(document, dict) or not isinstance(document.get("faults", []), list):
        raise SettingsError("a scenario is a mapping with a list `faults` and optionally a `seed`")
    for key in document:
        if key not in ("seed", "faults"):
            raise SettingsError(f"scenario: {str(key)[:60]} is unknown; {hint(str(key), ('seed', 'faults'))}")
    seed = document.get("seed")
    if seed is not None and not (isinstance(seed, str) and seed.isdecimal() and len(seed) < 20):
        raise SettingsError(f"scenario: seed: {str(seed)[:60]} is not a whole number")
    entries = enumerate(document.get("faults", []), 1)
    return Scenario(
        None if seed is None else int(seed), tuple(_parse_entry(number, entry) for number, entry in entries)
    )


def _parse_entry(number: int, entry: Any) -> Fault:
    """Parse fault number `number` of a scenario: a line of text, or a name with its parameters."""
    try:
        if isinstance(entry, str):
            return parse_fault(entry)
        if not isinstance(entry, dict) or len(entry) != 1:
            raise SettingsError("give a name, or one name with its parameters: `drop: {command: PONG}`")
        ((name, values),) = entry.items()
        if values == "":  # nothing after the name, as in `- drop:`
            values = {}
        if not isinstance(values, dict):
            raise SettingsError(f"the parameters of {str(name)[:60]} must be a mapping, as in {{nth: 1}}")
        return _build(str(name), {str(key): _read_value(key, value) for key, value in values.items()})
    except SettingsError as error:
        raise SettingsError(f"fault {number} of the scenario: {error}") from None


def _read_value(key: Any, value: Any) -> str:
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise SettingsError(f"{str(key)[:60]} must be a value, or a list of values")
    return ",".join(texts)


def _load(text: str) -> Any:
    """Parse the YAML document `text` into mappings, lists and texts."""
    import yaml

    class Loader(yaml.BaseLoader):
        """A loader for texts only, without aliases and duplicate keys."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise SettingsError("the scenario has an alias (*NAME); write its value instead")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            mapping = super().construct_mapping(node, deep=True)
            if len(mapping) < len(node.value):
                line = node.start_mark.line + 1
                raise SettingsError(f"the scenario has a duplicate key in the mapping of line {line}")
            return mapping

    if len(text) > LARGEST_SCENARIO:
        raise SettingsError(f"the scenario has {len(text):,} characters; the limit is {LARGEST_SCENARIO:,}")
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "cannot be read"
        raise SettingsError(f"the scenario is not valid YAML{place}: {reason}") from None
    except RecursionError:
        raise SettingsError("the scenario is nested too deeply") from None
