"""Looks up what can be explained, by name or number."""

import re
from functools import cache
from typing import Final

from pulsarctl_wire.manual import explanations
from pulsarctl_wire.manual.explanations import Explanation


def explanations_of(term: str) -> list[Explanation]:
    """All that `term` may mean; nothing if it is unknown.

    Case and separators do not matter. But if names are spelled exactly like `term`, only those count.
    """
    found = _index().get(_squeezed(term)) or _at_path(term.removeprefix("fields.").split("."))
    exact = [each for spelled, each in found if spelled == term]
    return _once(exact or [each for _, each in found])


def everything() -> list[Explanation]:
    """All that can be explained."""
    return _once([each for found in _index().values() for _, each in found])


def names() -> list[str]:
    """All names that can be looked up, without numbers; those of the explanations themselves come last."""
    spellings = (spelled for found in _index().values() for spelled, _ in found)
    others = [spelled for spelled in spellings if " " not in spelled and not spelled.isdigit()]
    return [*others, *(each.name for each in everything())]


def _once(found: list[Explanation]) -> list[Explanation]:
    return list({id(each): each for each in found}.values())


_IGNORED: Final = re.compile(r"[\s_\-=:()#]")
_PREFIXES: Final = re.compile(r"^(pulsar\.proto\.|org\.apache\.pulsar\.client\.api\.)")


def _squeezed(name: str) -> str:
    """A name without what distinguishes SEND_RECEIPT, send-receipt and sendReceipt; Java's $ is a dot."""
    return _PREFIXES.sub("", _IGNORED.sub("", name[:200]).replace("$", ".").lower())


@cache
def _index() -> dict[str, list[tuple[str, Explanation]]]:
    """Squeezed name -> what has it, each with the name as it is spelled."""
    index: dict[str, list[tuple[str, Explanation]]] = {}
    for explanation, spellings in explanations.everything():
        for spelled in dict.fromkeys([explanation.name, *spellings]):
            index.setdefault(_squeezed(spelled), []).append((spelled, explanation))
    return index


def _at_path(parts: list[str]) -> list[tuple[str, Explanation]]:
    """The field at the end of a path through messages: message_id.ledgerId; metadata.uuid, as in our JSON."""
    first = "MessageMetadata" if parts[0] == "metadata" else parts[0]
    found = _index().get(_squeezed(first), [])
    for part in parts[1:]:
        owners = sorted({owner for _, each in found for owner in _owners(each)})
        found = [named for owner in owners for named in _index().get(_squeezed(f"{owner}.{part}"), [])]
    return found


def _owners(found: Explanation) -> list[str]:
    """The messages that a name before a dot stands for: itself, or the types of a field."""
    types = [found.sections.get("type", ""), *(each.type for each in found.members)]
    return [found.name, *(text.split()[1].rstrip(",") for text in types if text)]
