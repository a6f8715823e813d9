"""Which commands tell a client where brokers are, and the addresses in them replaced.

An address comes as a pair of fields: NAMEUrl and NAMEUrlTls, or NAME_url and NAME_url_tls. The schema's
descriptors are searched for such pairs, at any depth, so that a new command that has one needs no code
here. CONNECT.proxy_to_broker_url has no twin: it goes to a broker's proxy, and is no carrier.

Nothing here adds a sub-message, and what is not changed keeps its bytes.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor

from pulsarctl_wire.wire.commands import BODIES
from pulsarctl_wire.wire.fields import as_text, messages_in
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand


def _pairs(descriptor: Any) -> Iterator[tuple[Any, Any]]:
    """The fields of an address and of its TLS twin that a message has itself."""
    texts = {field.name: field for field in descriptor.fields if field.type == FieldDescriptor.TYPE_STRING}
    for name, field in texts.items():
        twin = texts.get(f"{name}_tls" if name.endswith("url") else f"{name}Tls")
        if twin is not None and name.lower().endswith("url"):
            yield field, twin


_PAIRS: Final = {each: list(_pairs(each)) for each in messages_in(BaseCommand.DESCRIPTOR)}

CARRIERS: Final[frozenset[int]] = frozenset(
    number
    for number, body in BODIES.items()
    if any(map(_PAIRS.get, messages_in(BaseCommand.DESCRIPTOR.fields_by_name[body].message_type)))
)
"""Type numbers of the commands that carry addresses of brokers."""


def rewrite(command: BaseCommand, change: Callable[[str, str], tuple[str, str]]) -> bool:
    r"""Replace the addresses in `command`; True if that changed it.

    `change` gets each pair (address, its TLS twin) of which one is not empty, "" for what is absent and
    \xNN for what is not UTF-8, and gives what is to stand there instead. "" removes a field; one that the
    schema requires stays, empty.
    """
    return command.type in CARRIERS and _rewrite(getattr(command, BODIES[command.type]), change)


def _rewrite(message: Any, change: Callable[[str, str], tuple[str, str]]) -> bool:
    changed = False
    for pair in _PAIRS[message.DESCRIPTOR]:
        old = [as_text(getattr(message, field.name)) for field in pair]
        if not any(old):
            continue
        for field, before, after in zip(pair, old, change(*old), strict=True):
            if after == before:
                continue
            changed = True
            if after or field.is_required:
                setattr(message, field.name, after)
            else:
                message.ClearField(field.name)
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in value if field.is_repeated else [value]:
                changed = _rewrite(each, change) or changed
    return changed
