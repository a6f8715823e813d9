"""What the connections of one capture share: frame numbers, schemas, chunks, and unanswered SENDs."""

from array import array
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from mypy_extensions import mypyc_attr

from pulsarctl_wire.wire.chunks import ChunkJoiner
from pulsarctl_wire.wire.frame import Connection
from pulsarctl_wire.wire.names import without_partition
from pulsarctl_wire.wire.PulsarApi_pb2 import Schema
from pulsarctl_wire.wire.session.state_data import Identity

MAX_PENDING: Final = 65_536
"""Maximum number of rows of each table: pending requests, unanswered sends, producers, consumers."""

MAX_STORED: Final = 32 * 1024 * 1024
"""Maximum bytes in a `MessageStore`: schemas, or requests that are kept until they are answered."""

_STORING: Final = 4_096  # bytes of overhead for each stored message and its key
_NO_SCHEMA: Final = {Schema.AutoConsume, getattr(Schema, "None")}


def bound(table: dict[Any, Any], size: int) -> None:
    """Forget the older half of a table that has more than `size` rows."""
    if len(table) > size:
        for key in list(islice(table, len(table) // 2)):
            del table[key]


class MessageStore:
    """Protobuf messages by key, up to `MAX_STORED` bytes. Beyond that the oldest ones are dropped.

    If not `is_used`, it stores nothing.
    """

    def __init__(self, is_used: bool = True) -> None:
        self._is_used = is_used
        self._messages: dict[Any, tuple[Any, int]] = {}
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._messages)

    def put(self, key: Any, message: Any) -> None:
        """Store `message` under `key`."""
        if not self._is_used:
            return
        self.drop(key)
        size = len(message.SerializePartialToString()) + _STORING
        self._messages[key] = message, size
        self._bytes += size
        if self._bytes > MAX_STORED:
            for oldest in list(self._messages):
                self.drop(oldest)
                if self._bytes <= MAX_STORED // 2:
                    break

    def get(self, key: Any) -> Any:
        """Return the message stored under `key`, or None."""
        entry = self._messages.get(key)
        return entry and entry[0]

    def drop(self, key: Any) -> None:
        """Forget what is stored under `key`."""
        entry = self._messages.pop(key, None)
        if entry is not None:
            self._bytes -= entry[1]


class Schemas(MessageStore):
    """The schemas of topics that were seen: declared, fetched or registered."""

    def add(self, topic: str | None, version: bytes, schema: Schema) -> None:
        """Store `schema` for a topic. `version` is b"" for the schema that a consumer asked for."""
        if topic and schema.type not in _NO_SCHEMA:
            self.put((without_partition(topic), version), schema)

    def declare(self, owner: Any, schema: Schema | None) -> None:
        """Store the schema with which a producer or consumer was opened; None if it declared none."""
        if schema is None or schema.type in _NO_SCHEMA:
            self.drop(owner)
        else:
            self.put(owner, schema)

    def find(self, topic: str | None, version: bytes) -> Schema | None:
        """Return the schema with this version, or else the one that a consumer of the topic asked for."""
        if not topic:
            return None
        name = without_partition(topic)
        schema: Schema | None = self.get((name, version)) or self.get((name, b""))
        return schema


class Unanswered(NamedTuple):
    """A SEND whose producer or connection ended before it was answered. The client may send it again.

    `number` and `time_ns` (None if unknown) are those of the first frame in which it was sent. `is_sure` is
    False if bytes were missed after the last one: then its answer may have been missed.
    """

    number: int
    time_ns: int | None
    connection: Connection
    is_sure: bool


@mypyc_attr(allow_interpreted_subclasses=True)
class Knowledge:
    """What the states of one capture's connections share, and what is counted over all of them.

    `frames` counts the frames. `bodies` are requests kept until they are answered. `chunks` joins chunked
    messages, with payloads if `join_chunks`. If not `schemas`, neither schemas nor `bodies` are kept.
    `unanswered` are sends that may be sent again; `forgotten` is how many sends were dropped to save memory.
    With `link_answers`, `answers[n]` is the number of the frame that answers frame n. With `fixed_limit`,
    states ignore the frame size limits that brokers announce. `turn` returns the turn of the current packet
    in its split. `listeners` are the `Connection.listener` of connections, by client and server.
    """

    def __init__(
        self,
        *,
        join_chunks: bool = True,
        schemas: bool = True,
        link_answers: bool = False,
        fixed_limit: bool = False,
    ) -> None:
        self.frames = 0
        self.schemas = Schemas(schemas)
        self.bodies = MessageStore(schemas)
        self.chunks = ChunkJoiner(keep=join_chunks)
        self.unanswered: dict[Identity, Unanswered] = {}
        self.forgotten = 0
        self.answers: array[int] | None = array("L") if link_answers else None
        self.fixed_limit = fixed_limit
        self.turn: Callable[[], int] = int
        self.listeners: Mapping[tuple[str, str], str] = {}

    def link(self, request: int, answer: int) -> None:
        """Note that frame number `answer` answers frame number `request`."""
        answers = self.answers
        if answers is not None:
            if len(answers) <= request:
                answers.frombytes(bytes(answers.itemsize * (request + 4096 - len(answers))))
            answers[request] = answer

    def take_resent(self, identity: Identity, time_ns: int | None) -> Unanswered | None:
        """Remove and return the unanswered SEND that is resent at `time_ns`; None if none was sent before.

        Frames behind a hole may be tracked long after those of other connections that were sent later.
        """
        send = self.unanswered.get(identity)
        if send is None or (time_ns is not None and send.time_ns is not None and time_ns < send.time_ns):
            return None
        return self.unanswered.pop(identity)

    def add_unanswered(self, identity: Identity, send: Unanswered) -> None:
        """Add a SEND that got no answer. If it was sent several times, the first one is kept."""
        self.unanswered.setdefault(identity, send)
        count = len(self.unanswered)
        bound(self.unanswered, MAX_PENDING)
        self.forgotten += count - len(self.unanswered)
