"""Translates recorded frames for a replay: names that the user changes, and ids of the replay's broker. Pure.

`Names` has the user's renamings. `Remap` also translates what a broker assigns and clients send back later:
message ids, transaction ids, producer names, schema versions. It learns them from pairs of answers: the
recorded one and the one received now. Unknown values stay as recorded. A frame in which nothing changes keeps
its bytes, and a frame whose CRC32-C was wrong keeps its metadata.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.wire.commands import BODIES, NUMBERS
from pulsarctl_wire.wire.fields import METHODS, as_text
from pulsarctl_wire.wire.frame import Frame, build_frame, replace_command
from pulsarctl_wire.wire.names import (
    check_namespace,
    check_topic,
    full_topic,
    namespace_of,
    without_partition,
)
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageIdData, MessageMetadata
from pulsarctl_wire.wire.session.knowledge import bound

MAX_KNOWN: Final = 500_000
"""The most message ids that are remembered, and the most other values; then the older half is forgotten."""

_LATEST: Final = 2**63 - 1
"""Ledger and entry of Pulsar's latest position; the earliest is even larger, as both are unsigned."""

_SYSTEM: Final = "pulsar/system"
"""The namespace of the transaction coordinators' topics."""

_TOPICS: Final = frozenset(
    {
        *("topic", "topics", "partitions", "new_topics", "deleted_topics", "added", "removed"),
        *("resolved_topic_name", "segment_topic", "legacy_topic_name"),
    }
)
_SUBSCRIPTIONS: Final = frozenset({"subscription", "initial_subscription_name"})
_PRODUCERS: Final = frozenset({"producer_name", "producerName"})
_PATTERN_PIECE: Final = re.compile(r"\\Q.*?(?:\\E|\Z)|\\.|\[\^?\]?(?:\\.|[^]\\])*\]?|.", re.DOTALL)
"""A piece of a regular expression: quoted text, an escaped character, a character class, any character."""

_VERSION_ANSWERS: Final = {
    NUMBERS[name] for name in ("PRODUCER_SUCCESS", "GET_OR_CREATE_SCHEMA_RESPONSE", "GET_SCHEMA_RESPONSE")
}
_ID_FIELDS: Final = {
    NUMBERS["SEND_RECEIPT"]: ("message_id",),
    NUMBERS["MESSAGE"]: ("message_id",),
    NUMBERS["GET_LAST_MESSAGE_ID_RESPONSE"]: ("last_message_id", "consumer_mark_delete_position"),
}
"""Type of an answer -> its fields that are message ids."""

_NEW_TXN_RESPONSE: Final = NUMBERS["NEW_TXN_RESPONSE"]


class Names:
    """Renames topics, namespaces and subscriptions.

    A rule (A, B) renames A to B: a namespace (`tenant/namespace`) or a topic in any of Pulsar's spellings;
    a name without a slash means both the topic and the subscription. `suffix` is appended to each topic's
    name, before `-partition-N`, except in Pulsar's own namespace pulsar/system. `unused` has the rules that
    have not been applied yet. Raises SettingsError for invalid names.
    """

    def __init__(self, rules: Iterable[tuple[str, str]] = (), suffix: str = "") -> None:
        self._topics: dict[str, str] = {}
        self._namespaces: dict[str, str] = {}
        self._subscriptions: dict[str, str] = {}
        self._suffix = suffix
        self.unused: dict[str, str] = dict(rules)
        self._rule_of: dict[str, str] = {}
        for old, new in self.unused.items():
            try:
                if old.count("/") == 1:
                    self._namespaces[check_namespace(old)] = check_namespace(new)
                    continue
                self._topics[check_topic(old)] = check_topic(new)
                self._rule_of[check_topic(old)] = old
                if "/" not in old + new:
                    self._subscriptions[old] = new
            except ValueError as error:
                raise SettingsError(f"--rename {old}={new}: {error}") from None
        try:
            check_topic(f"t{suffix}")
        except ValueError as error:
            raise SettingsError(f"--suffix {suffix}: {error}") from None
        if "/" in suffix:
            raise SettingsError(f"--suffix {suffix}: it must not contain /; --rename changes namespaces")
        if not suffix.isprintable():
            raise SettingsError(f"--suffix {suffix}: it has unprintable characters; leave those out")

    def rename_topic(self, name: str) -> str:
        """Return the new name of a topic; `name` itself if it does not change."""
        full_name = full_topic(name)
        base = without_partition(full_name)
        new_name = self._topics.get(base)
        if new_name is not None:
            self.unused.pop(self._rule_of[base], None)
        else:
            namespace = namespace_of(base)
            new_namespace = self.rename_namespace(namespace)
            is_moved = new_namespace != namespace
            new_name = base.replace(f"://{namespace}/", f"://{new_namespace}/", 1) if is_moved else base
        if namespace_of(base) != _SYSTEM:
            new_name += self._suffix
        return name if new_name == base else new_name + full_name[len(base) :]

    def rename_namespace(self, name: str) -> str:
        """Return the new name of a namespace."""
        new_name = self._namespaces.get(name, name)
        if new_name is not name:
            self.unused.pop(name, None)
        return new_name

    def rename_subscription(self, name: str) -> str:
        """Return the new name of a subscription."""
        if name in self._subscriptions:
            self.unused.pop(name, None)
        return self._subscriptions.get(name, name)

    def rename_pattern(self, pattern: str) -> str:
        """Return a regular expression for topics, with the namespace renamed and the suffix added."""
        return "|".join(map(self._rename_branch, _split_branches(pattern)))

    def _rename_branch(self, pattern: str) -> str:
        domain, separator, name = pattern.rpartition("://")
        parts = name.split("/", 2)
        if len(parts) == 3:
            name = f"{self.rename_namespace('/'.join(parts[:2]))}/{parts[2]}"
        if self._suffix:
            *_, last_piece = ["", *(piece[0] for piece in _PATTERN_PIECE.finditer(name))]
            end = "$" if last_piece == "$" else ""
            name = name[: len(name) - len(end)] + re.escape(self._suffix) + end
        return domain + separator + name


def _split_branches(pattern: str) -> list[str]:
    """Return the alternatives of a regular expression: the parts between each `|` outside of parentheses."""
    branches = []
    start = depth = 0
    for piece in _PATTERN_PIECE.finditer(pattern):
        depth += (piece[0] == "(") - (piece[0] == ")")
        if piece[0] == "|" and depth == 0:
            branches.append(pattern[start : piece.start()])
            start = piece.end()
    return [*branches, pattern[start:]]


def is_redacted(secret: str | bytes) -> bool:
    """Return whether a credential consists of stars only, as `--record` masks them."""
    return bool(secret) and not as_text(secret).strip("*")


def _is_in_transaction(message: Any) -> bool:
    """Return whether a message names a transaction. Commands about one may omit its id, which then is 0:0."""
    descriptor = message.DESCRIPTOR
    if "txnid_most_bits" not in descriptor.fields_by_name:
        return False
    return (
        "Txn" in descriptor.name
        or message.HasField("txnid_most_bits")
        or message.HasField("txnid_least_bits")
    )


class Remap:
    """Translates recorded commands for the replay, as the module says.

    `unknown_ids` counts message ids sent untranslated, `removed_credentials` frames from which the
    redacted credentials of clients behind a proxy were removed.
    """

    def __init__(self, names: Names) -> None:
        self.names = names
        self.unknown_ids = self.removed_credentials = 0
        self._ids: dict[tuple[Any, ...], tuple[int, int]] = {}
        self._assigned: dict[tuple[object, ...], Any] = {}  # all other values, by kind and recorded value
        texts: dict[str, Callable[[str], str]] = {
            **dict.fromkeys(_TOPICS, names.rename_topic),
            **dict.fromkeys(_SUBSCRIPTIONS, names.rename_subscription),
            **dict.fromkeys(_PRODUCERS, self.rename_producer),
            "namespace": names.rename_namespace,
            "topics_pattern": names.rename_pattern,
        }
        self._texts = texts

    def rename_producer(self, name: str) -> str:
        """Return the producer name that the broker has assigned in place of the recorded `name`."""
        assigned: str = self._assigned.get(("producer", name), name)
        return assigned

    def make_outgoing(self, frame: Frame, stream: tuple[Any, ...] | None = None) -> bytes:
        """Return the bytes to send for a recorded frame of a client.

        Message ids that were learnt for `stream` alone take precedence (see `learn`).
        """
        if frame.body is None:
            return frame.raw
        base = BaseCommand()
        base.CopyFrom(frame.base)  # type: ignore[arg-type]
        self._translate(getattr(base, BODIES[frame.type]), frame.topic, stream, is_counted=True)
        if frame.metadata is not None and frame.checksum != "invalid":
            metadata = self.translate(frame.metadata, frame)
            is_complete = base.IsInitialized() and metadata.IsInitialized()
            if is_complete and metadata != frame.metadata:
                return build_frame(base, metadata, frame.payload, checksum=frame.checksum == "valid")
        if base == frame.base:
            return frame.raw
        return replace_command(frame.raw, base)

    def translate(self, message: Any, frame: Frame) -> Any:
        """Return a translated copy of `message`, which is part of the recorded `frame`."""
        copy = type(message)()
        copy.CopyFrom(message)
        self._translate(copy, frame.topic, None)
        return copy

    def _translate(
        self, message: Any, topic: str | None, stream: tuple[Any, ...] | None, *, is_counted: bool = False
    ) -> None:
        for field, value in message.ListFields():
            name = field.name
            if field.message_type is not None:
                for part in value if field.is_repeated else (value,):
                    if isinstance(part, MessageIdData):
                        self._translate_id(part, stream, is_counted)
                    self._translate(part, topic, stream, is_counted=is_counted)
            elif name in self._texts:
                self._rename_text(message, name, value, self._texts[name])
            elif name == "schema_version":
                key = "version", without_partition(topic or ""), value
                message.schema_version = self._assigned.get(key, value)
            elif name in METHODS and is_redacted(value):
                message.ClearField(name)
                message.ClearField(METHODS[name])
                self.removed_credentials += name == "original_auth_data"
        if _is_in_transaction(message):
            recorded_id = message.txnid_most_bits, message.txnid_least_bits
            assigned = self._assigned.get(("txn", *recorded_id), recorded_id)
            if assigned != recorded_id:
                message.txnid_most_bits, message.txnid_least_bits = assigned

    @staticmethod
    def _rename_text(message: Any, name: str, value: Any, rename: Callable[[str], str]) -> None:
        """Rename a text, or each text of a list; bytes (text that is not UTF-8) and numbers stay."""
        if isinstance(value, str):
            setattr(message, name, rename(value))
        elif not isinstance(value, (bytes, int)):
            value[:] = [rename(text) if isinstance(text, str) else text for text in value]

    def _translate_id(self, message_id: Any, stream: tuple[Any, ...] | None, is_counted: bool) -> None:
        """Change a message id to its translation; if it has none, count it if `is_counted`."""
        key = message_id.ledgerId, message_id.entryId
        if max(key) >= _LATEST:
            return
        new_id = (self._ids.get((*stream, *key)) if stream is not None else None) or self._ids.get(key)
        if new_id is not None:
            message_id.ledgerId, message_id.entryId = new_id
        elif is_counted:
            self.unknown_ids += 1

    def learn(self, recorded: Frame, replayed: Frame, stream: tuple[Any, ...] | None = None) -> None:
        """Learn the values that the broker assigns now in place of the recorded ones.

        With a `stream`, the two are different messages at one place in it; the translation is for it only.
        """
        if recorded.type != replayed.type or recorded.body is None or replayed.body is None:
            return
        old, new = recorded.body, replayed.body
        for name in _ID_FIELDS.get(recorded.type, ()):
            self._learn_id(getattr(old, name), getattr(new, name), stream or ())
        if recorded.type == _NEW_TXN_RESPONSE:
            key = "txn", old.txnid_most_bits, old.txnid_least_bits
            self._assigned[key] = new.txnid_most_bits, new.txnid_least_bits
        elif recorded.type in _VERSION_ANSWERS:
            if old.schema_version and new.schema_version:
                self._assigned["version", without_partition(recorded.topic or ""), old.schema_version] = (
                    new.schema_version
                )
            if hasattr(old, "producer_name"):
                self._assigned["producer", old.producer_name] = new.producer_name
        bound(self._assigned, MAX_KNOWN)
        bound(self._ids, MAX_KNOWN)

    def has_id(self, message_id: MessageIdData) -> bool:
        """Return whether the translation of a recorded message id is known."""
        return (message_id.ledgerId, message_id.entryId) in self._ids

    def _learn_id(self, old: Any, new: Any, stream: tuple[Any, ...]) -> None:
        key = old.ledgerId, old.entryId
        if max(*key, new.ledgerId, new.entryId) < _LATEST:
            self._ids.setdefault((*stream, *key), (new.ledgerId, new.entryId))

    def identify(self, frame: Frame, recorded: bool) -> tuple[str | bytes, int, int] | None:
        """Return what identifies a MESSAGE: producer (by its name in the replay), sequence id and chunk."""
        metadata: MessageMetadata | None = frame.metadata
        if metadata is None:
            return None
        name = metadata.producer_name
        if recorded and isinstance(name, str):
            name = self.rename_producer(name)
        return name, metadata.sequence_id, metadata.chunk_id
