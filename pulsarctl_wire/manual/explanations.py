"""Everything that can be explained, by name or number: from the protocol's tables, the rules, and the texts.

A page of a text begins with its name, a colon, and what the thing is; in errors.txt with the name alone. Its
sections are indented by two, and the lines that continue them by four:

    FLOW: Grants a consumer's permits.
      sent: after SUBSCRIBE,
        and while messages are consumed.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor_pb2 import FieldDescriptorProto

from pulsarctl_wire.checks.registry import RULES
from pulsarctl_wire.checks.rule import read_paragraphs
from pulsarctl_wire.wire import PulsarApi_pb2
from pulsarctl_wire.wire.commands import ANSWERED_WITHOUT_ID, BODIES, NAMES, NUMBERS, REQUESTS, TO_BROKER
from pulsarctl_wire.wire.server_errors import FINAL, MEANINGS

Page = dict[str, str]
"""Sections by label, each as one line; "about" is the first."""


def read_pages(text: str) -> dict[str, Page]:
    """Return the pages of `text` by name."""
    pages: dict[str, Page] = {}
    page, label = Page(), ""
    for line in filter(None, text.splitlines()):
        if line.startswith("    "):
            page[label] += f" {line.strip()}"
            continue
        name, _, words = line.strip().partition(": ")
        label = name
        if not line.startswith(" "):
            page, label = pages.setdefault(name, Page()), "about"
        page[label] = words
    return pages


def _load(name: str) -> dict[str, Page]:
    return read_pages((files(__package__) / f"{name}.txt").read_text("utf-8"))


GUIDES: Final = _load("guides")
"""Pages of what is no part of the protocol itself."""
COMMANDS: Final = _load("commands")
ERRORS: Final = _load("errors")
VERSIONS: Final = _load("versions")
MESSAGES: Final = _load("messages")
"""Pages of messages, except those of commands."""
ENUMS: Final = _load("enums")
"""Pages of enums, and of values as ENUM.VALUE."""
FIELDS: Final = _load("fields")
"""Pages of fields as OWNER.FIELD, where OWNER is a command or a message, or FIELD for all others."""

_MESSAGES: Final[Mapping[str, Any]] = PulsarApi_pb2.DESCRIPTOR.message_types_by_name
_ANSWERS: Final = {**ANSWERED_WITHOUT_ID, **{number: how.answers for number, how in REQUESTS.items()}}
_WAYS: Final = {True: "to the broker", False: "by the broker", None: "both ways"}
_BASE: Final[Any] = PulsarApi_pb2.BaseCommand.DESCRIPTOR
_SINCE: Final = {
    name: version for version, page in VERSIONS.items() for name in page.get("adds", "").split(", ")
}
"""Command, field or value -> the protocol version that added it, if it did not come with a feature flag."""

_OWNERS: Final = {_BASE.fields_by_number[number].message_type.name: name for number, name in NAMES.items()}
"""Message of a command -> the command."""


class Member(NamedTuple):
    """A field of a message, a value of an enum, or one of several places where a field occurs."""

    name: str
    number: int
    type: str
    """Of a field: "required uint64"; of a value: ""."""
    about: str


class Explanation(NamedTuple):
    """What one thing is."""

    kind: str
    """guide, rule, command, error, version, enum, value, message or field."""
    name: str
    number: int | None
    about: str
    sections: dict[str, str]
    """Texts by label; what does not apply is absent."""
    members: list[Member]


Named = tuple[Explanation, list[str]]
"""An explanation, and the names and numbers besides its own by which it is looked up."""


def _make(
    kind: str,
    name: str,
    number: int | None,
    about: str,
    sections: Mapping[str, str | None],
    members: list[Member] | None = None,
) -> Explanation:
    known = {label: text for label, text in sections.items() if text}
    return Explanation(kind, name, number, about, known, members or [])


def _explain_rules() -> Iterator[Named]:
    for rule in RULES:
        texts = {label.lower(): text for label, text in read_paragraphs(rule).items()}
        yield _make("rule", rule.id, None, texts.pop("", ""), texts), []


def _explain_guides() -> Iterator[Named]:
    for name, page in GUIDES.items():
        rules = ", ".join(rule.id for rule in RULES if name in rule.id.split("_"))
        sections = {label: text for label, text in page.items() if label != "about"}
        yield _make("guide", name, None, page["about"], {**sections, "rules": rules}), []


def _find_rules_about(name: str) -> str:
    """Return the rules whose documentation names a command or an error."""
    return ", ".join(rule.id for rule in RULES if re.search(rf"\b{name}\b", rule.__doc__ or ""))


def _explain_commands() -> Iterator[Named]:
    for number, name in NAMES.items():
        page, message = COMMANDS[name], _BASE.fields_by_number[number].message_type
        requests = ", ".join(NAMES[each] for each, answers in _ANSWERS.items() if number in answers)
        answers = ", ".join(sorted((NAMES[each] for each in _ANSWERS.get(number, ())), key=_errors_last))
        # "nothing" is only said of what is no answer itself
        replies = [answers or ("" if requests else "nothing"), page.get("answer", "")]
        sections = {
            "sent": f"{_WAYS[TO_BROKER.get(number)]}; {page['sent']}",
            "answer to": requests,
            "answered by": ". ".join(filter(None, replies)),
            "goes wrong": page.get("wrong"),
            "since": _SINCE.get(name),
            "rules": _find_rules_about(name),
            "source": page.get("source"),
        }
        spellings = [message.name, BODIES[number], f"BaseCommand.{BODIES[number]}"]
        spellings += [f"BaseCommand.Type.{name}", f"Type.{name}"]
        spellings += [f"{number}", f"command {number}", f"type {number}"]
        yield _make("command", name, number, page["about"], sections, _list_members(message)), spellings


def _errors_last(command: str) -> tuple[bool, int]:
    return command in ("ERROR", "SEND_ERROR"), NUMBERS[command]


def _explain_errors() -> Iterator[Named]:
    for error in PulsarApi_pb2.ServerError.DESCRIPTOR.values:
        name, number, page = error.name, error.number, ERRORS[error.name]
        java, result = page.get("java"), f"Result{page.get('cpp', name)}"
        sections = {
            "sent to": page["gets"],
            "clients": page["clients"],
            "a retry": "is useless" if name in FINAL else "may help",
            "advice": page["advice"],
            "rules": _find_rules_about(name),
            "named": f"{java or 'PulsarClientException'} (Java), {result} (C++)",
        }
        spellings = [f"ServerError.{name}", result]
        spellings += [f"{number}", f"error {number}", f"ServerError {number}"]
        if java:
            outer = ("PulsarClientException", "TransactionCoordinatorClientException")
            spellings += [java, *(f"{each}.{java}" for each in outer)]
        yield _make("error", name, number, _about_error(name), sections), spellings


def _explain_versions() -> Iterator[Named]:
    for version in PulsarApi_pb2.ProtocolVersion.DESCRIPTOR.values:
        name, number, page = version.name, version.number, VERSIONS[version.name]
        sections = {"adds": page.get("adds"), "older peers": page["below"]}
        spellings = [f"ProtocolVersion.{name}", f"{number}"]
        spellings += [f"{word} {number}" for word in ("version", "protocol version", "protocol")]
        yield _make("version", name, number, page["about"], sections), spellings


def _explain_enums() -> Iterator[Named]:
    """Explain enums, and the values of those that are not commands, errors or versions."""
    uses = dict[str, list[str]]()
    for owner, field in _list_fields():
        if field.enum_type is not None:
            uses.setdefault(field.enum_type.full_name, []).append(f"{owner}.{field.name}")
    nested = [enum for message in _MESSAGES.values() for enum in message.enum_types]
    enums = [*PulsarApi_pb2.DESCRIPTOR.enum_types_by_name.values(), *nested]
    shared = [name for name, count in Counter(enum.name for enum in enums).items() if count > 1]
    for enum in enums:
        owner = f"{_name_of(enum.containing_type)}." if enum.name in shared else ""
        full = enum.full_name.removeprefix("pulsar.proto.")
        sections = {"used in": ", ".join(uses.get(enum.full_name, ()))}
        members = _list_values(enum)
        about = ENUMS[enum.name]["about"]
        yield _make("enum", f"{owner}{enum.name}", None, about, sections, members), _list_suffixes(full)
        if enum.name in ("ServerError", "ProtocolVersion") or enum.containing_type is _BASE:
            continue
        for each in members:
            spellings = [*_list_suffixes(f"{full}.{each.name}"), f"{owner}{enum.name} {each.number}"]
            spellings += [f"{each.number}", f"marker {each.number}"] if enum.name == "MarkerType" else []
            name = f"{owner}{enum.name}.{each.name}"
            since = {**sections, "since": _SINCE.get(name)}
            yield _make("value", name, each.number, each.about, since), spellings


def _explain_messages() -> Iterator[Named]:
    for name, message in _MESSAGES.items():
        if name not in _OWNERS:
            about = MESSAGES[name]["about"]
            yield _make("message", name, None, about, {}, _list_members(message)), []


def _explain_fields() -> Iterator[Named]:
    """Explain each field of each message; and each field name, once for all places of one meaning."""
    places = dict[tuple[str, str], list[Explanation]]()
    for owner, field in _list_fields():
        place = f"{owner}.{field.name}"
        members = _list_values(field.enum_type) if field.enum_type is not None else []
        about = _about_field(owner, field.name)
        sections = {"type": _type_of(field), "since": _SINCE.get(place)}
        found = _make("field", place, field.number, about, sections, members)
        places.setdefault((field.name, place if place in FIELDS else ""), []).append(found)
        yield found, [f"{field.containing_type.name}.{field.name}"]
    for (name, _), alike in places.items():
        rows = [Member(each.name, each.number or 0, each.sections["type"], "") for each in alike]
        shared = _make("field", name, None, alike[0].about, {}, rows)
        yield alike[0] if len(alike) == 1 else shared, [name]


def _make_all() -> Iterator[Named]:
    """Make all explanations: of one kind after the other, each enum before its values."""
    yield from _explain_guides()
    yield from _explain_rules()
    yield from _explain_commands()
    yield from _explain_errors()
    yield from _explain_versions()
    yield from _explain_enums()
    yield from _explain_messages()
    yield from _explain_fields()


# -- members, and what they are


def _list_fields() -> Iterator[tuple[str, Any]]:
    """Yield owner (name of a command or message) and field, without the commands of BaseCommand."""
    for message in _MESSAGES.values():
        for field in message.fields:
            if message is not _BASE or field.message_type is None:
                yield _name_of(message), field


def _name_of(message: Any) -> str:
    """Return the name of a message; for that of a command, the command's: SEND."""
    name: str = message.name
    return _OWNERS.get(name, name)


def _list_members(message: Any) -> list[Member]:
    """Return the fields of a message, each with the first sentence about it."""
    owner = _name_of(message)
    return [
        Member(
            each.name, each.number, _type_of(each), _about_field(owner, each.name).split(". ")[0].rstrip(".")
        )
        for each in message.fields
        if message is not _BASE or each.message_type is None
    ]


def _list_values(enum: Any) -> list[Member]:
    return [Member(each.name, each.number, "", _about_value(enum, each.name)) for each in enum.values]


def _about_field(owner: str, name: str) -> str:
    return FIELDS.get(f"{owner}.{name}", FIELDS.get(name, {})).get("about", "")


def _about_error(name: str) -> str:
    return f"{MEANINGS[name][0].upper()}{MEANINGS[name][1:]}."


def _about_value(enum: Any, name: str) -> str:
    if enum.name == "ServerError":
        return _about_error(name)
    if enum.name == "ProtocolVersion":
        return VERSIONS[name]["about"]
    if enum.containing_type is _BASE:
        return COMMANDS[name]["about"]
    return ENUMS.get(f"{enum.name}.{name}", {}).get("about", "")


def _type_of(field: Any) -> str:
    """Return a field's label, type and default: "optional CompressionType, default NONE"."""
    kind = field.message_type or field.enum_type
    name = (
        kind.name if kind is not None else FieldDescriptorProto.Type.Name(field.type)[len("TYPE_") :].lower()
    )
    label = "repeated" if field.is_repeated else "required" if field.is_required else "optional"
    default = field.default_value
    if field.enum_type is not None:
        default = field.enum_type.values_by_number[default].name
    elif isinstance(default, bool):
        default = str(default).lower()
    return f"{label} {name}{f', default {default}' if field.has_default_value else ''}"


def _list_suffixes(name: str) -> list[str]:
    """Return A.B.C, B.C and C for "A.B.C"."""
    parts = name.split(".")
    return [".".join(parts[at:]) for at in range(len(parts))]


# -- looking up


def find_explanations(term: str) -> list[Explanation]:
    """Return all that `term` may mean; nothing if it is unknown.

    Case and separators do not matter. But if names are spelled exactly like `term`, only those count.
    """
    found = _index().get(_squeeze(term)) or _find_at_path(term.removeprefix("fields.").split("."))
    exact = [each for spelled, each in found if spelled == term]
    return _drop_repeated(exact or [each for _, each in found])


def list_explanations() -> list[Explanation]:
    """Return all that can be explained."""
    return _drop_repeated([each for found in _index().values() for _, each in found])


def list_names() -> list[str]:
    """Return all names that can be looked up, without numbers.

    Those of the explanations themselves come last: `did_you_mean` suggests the last of names that differ only
    in case.
    """
    spellings = (spelled for found in _index().values() for spelled, _ in found)
    others = [spelled for spelled in spellings if " " not in spelled and not spelled.isdigit()]
    return [*others, *(each.name for each in list_explanations())]


def _drop_repeated(found: list[Explanation]) -> list[Explanation]:
    return list({id(each): each for each in found}.values())


_IGNORED: Final = re.compile(r"[\s_\-=:()#]")
_PREFIXES: Final = re.compile(r"^(pulsar\.proto\.|org\.apache\.pulsar\.client\.api\.)")


def _squeeze(name: str) -> str:
    """Return `name` without what distinguishes SEND_RECEIPT, send-receipt, sendReceipt; Java's $ is a dot."""
    return _PREFIXES.sub("", _IGNORED.sub("", name[:200]).replace("$", ".").lower())


@cache
def _index() -> dict[str, list[tuple[str, Explanation]]]:
    """Return squeezed name -> what has it, each with the name as it is spelled."""
    index: dict[str, list[tuple[str, Explanation]]] = {}
    for explanation, spellings in _make_all():
        for spelled in dict.fromkeys([explanation.name, *spellings]):
            index.setdefault(_squeeze(spelled), []).append((spelled, explanation))
    return index


def _find_at_path(parts: list[str]) -> list[tuple[str, Explanation]]:
    """Return the field at the end of a path: message_id.ledgerId; metadata.uuid, as in our JSON."""
    first = "MessageMetadata" if parts[0] == "metadata" else parts[0]
    found = _index().get(_squeeze(first), [])
    for part in parts[1:]:
        owners = sorted({owner for _, each in found for owner in _list_owners(each)})
        found = [named for owner in owners for named in _index().get(_squeeze(f"{owner}.{part}"), [])]
    return found


def _list_owners(found: Explanation) -> list[str]:
    """Return what a name before a dot may stand for: the thing itself, its types, and those of its fields."""
    types = [found.sections.get("type", ""), *(each.type for each in found.members)]
    return [found.name, *(text.split()[1].rstrip(",") for text in types if text)]
