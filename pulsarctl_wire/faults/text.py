"""Faults as text: a line of words each, or a scenario in YAML.

    drop command=SEND_RECEIPT nth=1          name, then parameters; words are split as by a shell

    seed: 7
    faults:
      - drop: {command: SEND_RECEIPT, nth: 1}
      - delay: {time: 200ms, jitter: 50ms, direction: to-client}
      - blackhole

Every value of a scenario is read as text and then as in a line, so that both mean the same and YAML's own
ideas of numbers, dates and truth do not matter. Scenarios are small, and have neither aliases nor keys given
twice.
"""

import shlex
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final, NamedTuple

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.faults.base import Fault, wrong
from pulsarctl_wire.faults.catalogue import BY_NAME
from pulsarctl_wire.faults.values import hint

LARGEST_SCENARIO: Final = 1 << 20
"""Characters of a scenario."""


class Scenario(NamedTuple):
    """What a scenario says: the seed, or None, and the faults in order."""

    seed: int | None
    faults: tuple[Fault, ...]


def parse_fault(text: str) -> Fault:
    """The fault that a line such as `drop command=SEND_RECEIPT nth=1` means. Raises SettingsError."""
    try:
        name, *words = shlex.split(text) or [""]
    except ValueError as error:
        raise SettingsError(f"fault {text[:80]}: {str(error).lower()}") from None
    values = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise SettingsError(f"fault {name[:40]}: {word[:60]} is no parameter; give KEY=VALUE")
        if key in values:
            raise SettingsError(f"fault {name[:40]}: {key[:60]} is given twice")
        values[key] = value
    return _build(name, values)


def _build(name: str, values: Mapping[str, str]) -> Fault:
    kind = BY_NAME.get(name.lower())
    if kind is None:
        raise SettingsError(f"fault {name[:60]}: there is none of this name; {hint(name, BY_NAME)}")
    known = {each.name: each.metadata["kind"] for each in fields(kind)}
    read: dict[str, Any] = {}
    for key, text in values.items():
        if key not in known:
            raise SettingsError(f"{kind.name}: it has no parameter {key[:60]}; {hint(key, known)}")
        try:
            read[key] = known[key].read(text)
        except ValueError:
            raise wrong(kind.name, key, text, known[key]) from None
    return kind(**read)


def fault_text(fault: Fault) -> str:
    """The line that means `fault`; `parse_fault` gives the same fault back."""
    words = [fault.name]
    for each in fields(fault):
        value = getattr(fault, each.name)
        if value != each.default:
            words.append(f"{each.name}={each.metadata['kind'].show(value)}")
    return shlex.join(words)


def parse_scenario(text: str) -> Scenario:
    """The scenario that a YAML document means. Raises SettingsError, which names the entry that is wrong."""
    document = _load(text)
    if not isinstance(document, dict) or not isinstance(document.get("faults", []), list):
        raise SettingsError("a scenario is a mapping with a list `faults`, and `seed` if it has one")
    for key in document:
        if key not in ("seed", "faults"):
            raise SettingsError(
                f"scenario: {str(key)[:60]} is not known; {hint(str(key), ('seed', 'faults'))}"
            )
    seed = document.get("seed")
    if seed is not None and not (isinstance(seed, str) and seed.isdecimal() and len(seed) < 20):
        raise SettingsError(f"scenario: seed: {str(seed)[:60]} is no whole number")
    entries = enumerate(document.get("faults", []), 1)
    return Scenario(None if seed is None else int(seed), tuple(_entry(number, it) for number, it in entries))


def _entry(number: int, entry: Any) -> Fault:
    """Fault number `number` of a scenario: a line of text, or a name with its parameters."""
    try:
        if isinstance(entry, str):
            return parse_fault(entry)
        if not isinstance(entry, dict) or len(entry) != 1:
            raise SettingsError("give a name, or one name with its parameters: `drop: {command: PONG}`")
        ((name, values),) = entry.items()
        if values == "":
            values = {}
        if not isinstance(values, dict):
            raise SettingsError(f"the parameters of {str(name)[:60]} are a mapping, as in {{nth: 1}}")
        return _build(str(name), {str(key): _value(key, value) for key, value in values.items()})
    except SettingsError as error:
        raise SettingsError(f"fault {number} of the scenario: {error}") from None


def _value(key: Any, value: Any) -> str:
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise SettingsError(f"{str(key)[:60]} is a value, or a list of values")
    return ",".join(texts)


def _load(text: str) -> Any:
    """The YAML document `text` as mappings, lists and texts."""
    import yaml

    class Loader(yaml.BaseLoader):
        """Nothing but texts, nothing that refers to something else, nothing said twice."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise SettingsError("the scenario has an alias (*NAME); write out what it stands for")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            mapping = super().construct_mapping(node, deep=True)
            if len(mapping) < len(node.value):
                line = node.start_mark.line + 1
                raise SettingsError(f"the scenario has a key twice in the mapping of line {line}")
            return mapping

    if len(text) > LARGEST_SCENARIO:
        raise SettingsError(f"the scenario has {len(text):,} characters; {LARGEST_SCENARIO:,} are the most")
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        why = getattr(error, "problem", None) or getattr(error, "reason", None) or "cannot be read"
        raise SettingsError(f"the scenario is no YAML that is understood{where}: {why}") from None
    except RecursionError:
        raise SettingsError("the scenario is nested too deeply") from None
