"""The broker addresses that commands give to clients, found and rewritten.

An address is a pair of fields: NAMEUrl and NAMEUrlTls, or NAME_url and NAME_url_tls. The protobuf
descriptors are searched for such pairs at any depth, so a new command with an address needs no code
here. CONNECT.proxy_to_broker_url is not rewritten: it has no TLS counterpart, and goes to the proxy.

Rewriting never adds a sub-message, and leaves the bytes of all other fields unchanged.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor

from pulsarctl_wire.wire.commands import BODIES
from pulsarctl_wire.wire.fields import as_text, descriptors_in
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand


def _pairs(descriptor: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the address fields of a message, each with its TLS counterpart; sub-messages are not searched."""
    texts = {field.name: field for field in descriptor.fields if field.type == FieldDescriptor.TYPE_STRING}
    for name, field in texts.items():
        with_tls = texts.get(f"{name}_tls" if name.endswith("url") else f"{name}Tls")
        if with_tls is not None and name.lower().endswith("url"):
            yield field, with_tls


_PAIRS: Final = {message: list(_pairs(message)) for message in descriptors_in(BaseCommand.DESCRIPTOR)}

CARRIERS: Final[frozenset[int]] = frozenset(
    number
    for number, body in BODIES.items()
    if any(map(_PAIRS.get, descriptors_in(BaseCommand.DESCRIPTOR.fields_by_name[body].message_type)))
)
"""Type numbers of the commands that carry broker addresses."""


def rewrite(command: BaseCommand, change: Callable[[str, str], tuple[str, str]]) -> bool:
    r"""Replace the addresses in `command`. Returns True if that changed it.

    `change` is called with each pair (address, TLS address) of which at least one is set, and returns the
    new pair. In the arguments an absent field is "", and bytes that are not UTF-8 are written \xNN. If it
    returns "", the field is removed; a required field is set to "".
    """
    return command.type in CARRIERS and _rewrite(getattr(command, BODIES[command.type]), change)


def _rewrite(message: Any, change: Callable[[str, str], tuple[str, str]]) -> bool:
    is_changed = False
    for pair in _PAIRS[message.DESCRIPTOR]:
        addresses = [as_text(getattr(message, field.name)) for field in pair]
        if not any(addresses):
            continue
        for field, before, after in zip(pair, addresses, change(*addresses), strict=True):
            if after == before:
                continue
            is_changed = True
            if after or field.is_required:
                setattr(message, field.name, after)
            else:
                message.ClearField(field.name)
    for field, value in message.ListFields():
        if field.message_type is not None:
            for nested in value if field.is_repeated else [value]:
                is_changed = _rewrite(nested, change) or is_changed
    return is_changed
