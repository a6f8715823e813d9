"""One connection's session: answers find their requests, ids their topics. State tables, no I/O.

What pairs a request with its answer is a table (`commands.REQUESTS`) but for four pairs:

    SEND            by producer id and sequence id; the chunks of a message share both and are answered in
                    order, so that where one may be missing none is paired
    CONNECT         answered in order by CONNECTED, AUTH_CHALLENGE or ERROR without a request id
    AUTH_CHALLENGE  answered by AUTH_RESPONSE
    PING            by the PONG of the other side, in order

Ids are a connection's own, whatever client made them. All tables are bounded: a capture of one
direction alone, or of hostile traffic, makes them forget their oldest rows, not grow.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final, NamedTuple

from mypy_extensions import mypyc_attr

from pulsarctl_wire.wire.commands import ANSWERS, BODIES, NUMBERS, REQUESTS
from pulsarctl_wire.wire.credentials import WITH_SECRETS, is_doubtful
from pulsarctl_wire.wire.fields import REFRESH, as_text
from pulsarctl_wire.wire.frame import FRAME_PADDING, Connection, Event, Frame
from pulsarctl_wire.wire.names import full_topic, without_partition
from pulsarctl_wire.wire.payload import ChunkJoiner
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    BaseCommand,
    CommandTopicMigrated,
    MessageMetadata,
    Schema,
)
from pulsarctl_wire.wire.stream import FrameStream

MAX_PENDING: Final = 65_536
"""Unanswered requests, producers or consumers that a session remembers."""
_QUEUE: Final = 1_024  # sends of one id that wait; the chunks of a message share one
_SEARCHED: Final = 2_048
_PINGS: Final = 64  # of a direction that wait
MAX_KEPT: Final = 32 * 1024 * 1024
"""Bytes of schemas that are remembered, and of requests whose answers complete them."""
_KEEPING: Final = 4_096  # bytes of keeping a message, its key included, beside its own

NO_REQUEST: Final = 2**64 - 1
"""The request id of what the broker says unasked."""

_NO_SCHEMA: Final = {Schema.AutoConsume, getattr(Schema, "None")}


class Asked(NamedTuple):
    """A request that waits for its answer; `owner` is whose topic it is about, if that is not known."""

    number: int
    time_ns: int | None
    type: int
    topic: str | None
    subscription: str | None = None
    owner: "Owner | None" = None


Owner = tuple[bool, int]
"""Whether it is a consumer (or else a producer), and its id."""


_Sent = tuple[int, int | None, str | None, int]
"""A SEND that waits for its receipt: frame number, time in ns, topic, highest sequence id or 0."""


class _Chunks:
    """The SENDs of one chunked message that wait for receipts; the chunk id to come next (0: all came)."""

    __slots__ = ("next", "waiting")

    def __init__(self) -> None:
        self.next = 0
        self.waiting: deque[_Sent] = deque()


class Kept:
    """Messages kept by key, up to `MAX_KEPT` bytes of them: beyond that the oldest are forgotten.

    If it is not `wanted` nothing is kept.
    """

    def __init__(self, wanted: bool = True) -> None:
        self._wanted = wanted
        self._messages: dict[Any, tuple[Any, int]] = {}
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._messages)

    def put(self, key: Any, message: Any) -> None:
        """Keep `message` under `key`."""
        if not self._wanted:
            return
        self.drop(key)
        size = len(message.SerializePartialToString()) + _KEEPING
        self._messages[key] = message, size
        self._bytes += size
        if self._bytes > MAX_KEPT:
            for oldest in list(self._messages):
                self.drop(oldest)
                if self._bytes <= MAX_KEPT // 2:
                    break

    def get(self, key: Any) -> Any:
        """The message kept under `key`; None if there is none."""
        kept = self._messages.get(key)
        return kept and kept[0]

    def drop(self, key: Any) -> None:
        """Forget what is kept under `key`."""
        kept = self._messages.pop(key, None)
        if kept is not None:
            self._bytes -= kept[1]


@mypyc_attr(allow_interpreted_subclasses=True)
class Schemas:
    """The schemas of topics as far as they were seen: declared, fetched or registered."""

    def __init__(self, wanted: bool = True) -> None:
        self._kept = Kept(wanted)

    def __bool__(self) -> bool:
        return bool(self._kept)

    def add(self, topic: str | None, version: bytes, schema: Schema) -> None:
        """Remember `schema` for a topic; `version` b"" for one that a consumer asked for."""
        if topic and schema.type not in _NO_SCHEMA:
            self._kept.put((without_partition(topic), version), schema)

    def declare(self, owner: Any, schema: Schema | None) -> None:
        """Remember the schema that a producer or consumer declared when it was opened; None: it did not."""
        if schema is None or schema.type in _NO_SCHEMA:
            self._kept.drop(owner)
        else:
            self._kept.put(owner, schema)

    def declared(self, owner: Any) -> Schema | None:
        """What `owner` declared: messages without a version are written and read by that."""
        schema: Schema | None = self._kept.get(owner)
        return schema

    def find(self, topic: str | None, version: bytes) -> Schema | None:
        """The schema of a message that carries `version`, else the one a consumer of the topic reads with."""
        if not topic:
            return None
        name = without_partition(topic)
        found: Schema | None = self._kept.get((name, version)) or self._kept.get((name, b""))
        return found


class Knowledge:
    """What the sessions of one capture share, and what is counted over all of them.

    `frames` numbers the frames, `bodies` are requests that their answers will complete. `join_chunks`
    keeps the payloads of chunked messages until they are whole, `schemas` what payloads are read by.
    `answers`, if asked for, holds the
    number of each request's answer at the request's number.
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
        self.bodies = Kept(schemas)
        self.chunks = ChunkJoiner(keep=join_chunks)
        self.answers: array[int] | None = array("L") if link_answers else None
        self.fixed_limit = fixed_limit

    def link(self, request: int, answer: int) -> None:
        """Remember that frame number `answer` answers frame number `request`."""
        answers = self.answers
        if answers is not None:
            if len(answers) <= request:
                answers.frombytes(bytes(answers.itemsize * (request + 4096 - len(answers))))
            answers[request] = answer


@mypyc_attr(allow_interpreted_subclasses=True)
class Session:
    """Follows one connection: `track` its events in order, and frames know their topic and request."""

    def __init__(
        self, connection: Connection, knowledge: Knowledge, streams: Iterable[FrameStream] = ()
    ) -> None:
        self.connection = connection
        self._knowledge = knowledge
        self._streams = tuple(streams)
        self._producers: dict[int, tuple[str, int]] = {}  # topic, and what its sends are known by
        self._closed: set[int] = set()  # producers
        self._reopened = 0
        self._queued = 0  # sends behind others of the same id
        self._consumers: dict[int, tuple[str, str]] = {}
        self._sends: dict[tuple[int, int], _Sent | deque[_Sent]] = {}
        self._chunks: dict[tuple[int, int], _Chunks] = {}
        self._chunks_waiting = 0  # at the most
        self._lossy = True  # until the beginning is seen
        self._asked: dict[tuple[str, int], Asked] = {}
        self._handshake: Asked | None = None
        self._challenge: Asked | None = None
        self._pings: dict[bool, deque[Asked]] = {}  # by direction

    def track(self, events: list[Event]) -> None:
        """Number the frames among `events` and tell them what is known of their session."""
        knowledge = self._knowledge
        rules = RULES
        for frame in events:
            if frame.__class__ is not Frame:
                self._chunks.clear()  # chunks or receipts may be missing, and nothing tells which
                self._lossy = True
                continue
            knowledge.frames += 1
            frame.number = knowledge.frames
            if frame.base is None:
                continue
            rule = rules.get(frame.type)
            if rule is not None:
                rule(self, frame)

    # -- the traffic of messages

    def _send(self, frame: Frame) -> None:
        body = frame.base.send  # type: ignore[union-attr]
        producer = body.producer_id
        topic, token = self._producers.get(producer) or (None, producer)
        frame.topic = topic
        key = token, body.sequence_id
        asked = frame.number, frame.time_ns, topic, body.highest_sequence_id
        metadata = frame.metadata
        if metadata is not None and (metadata.num_chunks_from_msg > 1 or self._knowledge.schemas):
            self._entry(frame, metadata, producer)
            if metadata.num_chunks_from_msg > 1:
                self._send_chunk(key, asked, metadata)
                return
        before = self._sends.get(key)
        if before is None:
            self._sends[key] = asked
            if len(self._sends) > MAX_PENDING:
                bound(self._sends, MAX_PENDING)
                self._queued = sum(len(each) - 1 for each in self._sends.values() if isinstance(each, deque))
        elif self._queued >= MAX_PENDING:
            self._sends = {key: asked}  # many of one id each: nobody answers here
            self._queued = 0
        elif isinstance(before, deque):
            self._queued += len(before) < _QUEUE
            before.append(asked)
        else:
            self._sends[key] = deque((before, asked), maxlen=_QUEUE)
            self._queued += 1

    def _send_chunk(self, key: tuple[int, int], asked: _Sent, metadata: MessageMetadata) -> None:
        chunk = metadata.chunk_id
        chunks = self._chunks.get(key)
        if chunks is None and (chunk == 0 or not self._lossy):
            chunks = self._chunks[key] = _Chunks()
            bound(self._chunks, _QUEUE)
        if chunks is None or (self._lossy and chunk not in (0, chunks.next)):
            self._chunks.pop(key, None)
            return
        chunks.next = (chunk + 1) % metadata.num_chunks_from_msg
        chunks.waiting.append(asked)
        self._chunks_waiting += 1
        if self._chunks_waiting > MAX_PENDING:
            self._chunks_waiting = sum(len(each.waiting) for each in self._chunks.values())
            if self._chunks_waiting > MAX_PENDING // 2:
                self._chunks.clear()  # nobody answers here

    def _receipt(self, frame: Frame) -> None:
        base = frame.base
        if base is not None and base.HasField("send_receipt"):
            body = base.send_receipt
            frame.topic, token = self._producers.get(body.producer_id) or (None, body.producer_id)
            self._answer_send(frame, (token, body.sequence_id))

    def _send_error(self, frame: Frame) -> None:
        base = frame.base
        if base is None or not base.HasField("send_error"):
            return
        body = base.send_error
        frame.topic, token = self._producers.get(body.producer_id) or (None, body.producer_id)
        key = token, body.sequence_id
        if key not in self._sends and body.sequence_id:
            # it names the highest sequence id of a batch, not the lowest; batches that wait are few
            for waiting, asked in islice(reversed(self._sends.items()), _SEARCHED):
                first = asked[0] if isinstance(asked, deque) else asked
                if waiting[0] == token and first[3] == body.sequence_id:
                    key = waiting
                    break
        self._answer_send(frame, key)

    def _answer_send(self, frame: Frame, key: tuple[int, int]) -> None:
        asked: _Sent | deque[_Sent] | None = self._sends.pop(key, None)
        if asked is None:
            chunks = self._chunks.get(key)
            if chunks is None or not chunks.waiting:
                return
            asked = chunks.waiting.popleft()
            if not chunks.waiting and not (self._lossy and chunks.next):
                del self._chunks[key]
        elif isinstance(asked, deque):
            rest = asked
            asked = rest.popleft()
            if rest:
                self._queued -= 1
                self._sends[key] = rest
        frame.request, frame.request_type = asked[0], _SEND
        frame.topic = asked[2] or frame.topic
        if frame.time_ns is not None and asked[1] is not None:
            frame.latency_ns = frame.time_ns - asked[1]
        if self._knowledge.answers is not None:
            self._knowledge.link(asked[0], frame.number)

    def _message(self, frame: Frame) -> None:
        consumer = frame.base.message.consumer_id  # type: ignore[union-attr]
        known = self._consumers.get(consumer)
        if known is not None:
            frame.topic, frame.subscription = known
        metadata = frame.metadata
        if metadata is not None and (metadata.num_chunks_from_msg > 1 or self._knowledge.schemas):
            self._entry(frame, metadata, consumer)

    def _entry(self, frame: Frame, metadata: MessageMetadata, owner: int) -> None:
        """The entry of a SEND or MESSAGE: its schema, and its message if that came in chunks."""
        if frame.partial:
            return
        if metadata.num_chunks_from_msg > 1:
            self._knowledge.chunks.add(frame, metadata, owner)
        schemas = self._knowledge.schemas
        if schemas and metadata.schema_version:
            frame.schema = schemas.find(frame.topic, metadata.schema_version)
        elif schemas:
            frame.schema = schemas.declared((self.connection.index, frame.to_broker, owner))

    def _ack(self, frame: Frame) -> None:
        body = frame.base.ack  # type: ignore[union-attr]
        if body.HasField("request_id"):
            self._request(frame)
            return
        known = self._consumers.get(body.consumer_id)
        if known is not None:
            frame.topic, frame.subscription = known

    def _of_consumer(self, frame: Frame) -> None:
        known = self._consumers.get(getattr(frame.base, BODIES[frame.type]).consumer_id)
        if known is not None:
            frame.topic, frame.subscription = known

    # -- requests and answers

    def _request(self, frame: Frame) -> None:
        """Any request of the table: resolve what it is about and remember it."""
        body = getattr(frame.base, BODIES[frame.type])
        fields = FIELDS[frame.type]
        if frame.type in WITH_SECRETS and is_doubtful(frame):
            pass  # its topic may be anything
        elif "topic" in fields:
            frame.topic = full_topic(body.topic) if body.topic else None
        elif "consumer_id" in fields:
            self._of_consumer(frame)
        elif frame.type in _IN_TRANSACTION:
            self._of_transaction(frame, body)
        elif "producer_id" in fields:
            frame.topic = self._producers.get(body.producer_id, (None,))[0]
            if len(self._closed) < MAX_PENDING:
                self._closed.add(body.producer_id)
        if frame.type in _OPENING:
            self._open(frame, body)
        how = REQUESTS[frame.type]
        if frame.to_broker and body.HasField(how.key):
            key = how.family, getattr(body, how.key)
            self._asked[key] = Asked(frame.number, frame.time_ns, frame.type, frame.topic, frame.subscription)
            bound(self._asked, MAX_PENDING)
            if frame.type in _COMPLETED:
                self._knowledge.bodies.put((self.connection.index, *key), body)

    def _of_transaction(self, frame: Frame, body: Any) -> None:
        """What is added to a transaction, or ended in it, if that is a single topic or subscription."""
        if frame.type == _ADD_PARTITIONS:
            if len(body.partitions) == 1:
                frame.topic = full_topic(body.partitions[0])
            return
        subscriptions = body.subscription if frame.type == _ADD_SUBSCRIPTIONS else [body.subscription]
        if len(subscriptions) == 1 and subscriptions[0].topic:
            frame.topic = full_topic(subscriptions[0].topic)
            frame.subscription = as_text(subscriptions[0].subscription)

    def _open(self, frame: Frame, body: Any) -> None:
        if frame.type == _PRODUCER:
            before = self._producers.get(body.producer_id)
            token = before[1] if before else body.producer_id
            self._producers[body.producer_id] = full_topic(body.topic), token
            bound(self._producers, MAX_PENDING)
            self._declare(True, body.producer_id, None)  # until it succeeds
        elif frame.type in (_SUBSCRIBE, _SCALABLE_SUBSCRIBE):
            frame.subscription = as_text(body.subscription)
            self._consumers[body.consumer_id] = full_topic(body.topic), frame.subscription
            bound(self._consumers, MAX_PENDING)
            has_schema = frame.type == _SUBSCRIBE and body.HasField("schema")
            self._declare(False, body.consumer_id, body.schema if has_schema else None)
            if has_schema:
                self._knowledge.schemas.add(frame.topic, b"", body.schema)

    def _declare(self, is_producer: bool, owner: int, schema: Schema | None) -> None:
        self._knowledge.schemas.declare((self.connection.index, is_producer, owner), schema)

    def _answer(self, frame: Frame) -> None:
        """Any answer of the table: find its request, and learn what it completes."""
        body: Any = frame.body
        if body is None:
            return
        for family, name in ANSWERS[frame.type]:
            key = family, getattr(body, name)
            asked = self._asked.get(key) if body.HasField(name) else None
            if asked is None or frame.type not in REQUESTS[asked.type].answers:
                continue
            self._answered(frame, asked)
            request = self._knowledge.bodies.get((self.connection.index, *key))
            if request is not None:
                self._learn(frame, body, asked, request)
            if frame.type != _PRODUCER_SUCCESS or body.producer_ready:
                del self._asked[key]  # a producer that waits for its turn is answered twice
                self._knowledge.bodies.drop((self.connection.index, *key))
            return
        if "consumer_id" in FIELDS[frame.type]:
            self._of_consumer(frame)
        if frame.type == _ERROR and body.request_id == NO_REQUEST and self._handshake is not None:
            self._answered(frame, self._handshake)
            self._handshake = None

    def _learn(self, frame: Frame, body: Any, asked: Asked, request: Any) -> None:
        """What an answer makes of its request: schemas get versions, a reopened producer starts afresh."""
        if asked.type == _PRODUCER and frame.type == _PRODUCER_SUCCESS:
            producer = request.producer_id
            if producer in self._closed and producer in self._producers:
                # what was sent before it was closed is not answered any more
                self._closed.discard(producer)
                self._reopened -= 1
                self._producers[producer] = self._producers[producer][0], self._reopened
        if frame.type in (_PRODUCER_SUCCESS, _GET_OR_CREATE_SCHEMA_RESPONSE):
            if request.HasField("schema") and body.schema_version:
                self._knowledge.schemas.add(asked.topic, body.schema_version, request.schema)
                if frame.type == _PRODUCER_SUCCESS:
                    self._declare(True, request.producer_id, request.schema)
        elif frame.type == _GET_SCHEMA_RESPONSE and body.HasField("schema"):
            version = body.schema_version or request.schema_version
            self._knowledge.schemas.add(asked.topic, version, body.schema)

    def _answered(self, frame: Frame, asked: Asked) -> None:
        frame.request, frame.request_type = asked.number, asked.type
        frame.topic, frame.subscription = asked.topic, asked.subscription
        if frame.time_ns is not None and asked.time_ns is not None:
            frame.latency_ns = frame.time_ns - asked.time_ns
        if self._knowledge.answers is not None:
            self._knowledge.link(asked.number, frame.number)

    # -- the connection itself

    def _connect(self, frame: Frame) -> None:
        self._handshake = Asked(frame.number, frame.time_ns, frame.type, None)
        self._lossy = self._lossy and frame.type == _AUTH_RESPONSE
        if frame.type == _AUTH_RESPONSE and self._challenge is not None:
            self._answered(frame, self._challenge)
            self._challenge = None

    def _connected(self, frame: Frame) -> None:
        if frame.type == _AUTH_CHALLENGE:
            challenge = frame.base.authChallenge.challenge  # type: ignore[union-attr]
            if challenge.auth_data == REFRESH:
                self._handshake = None  # a refresh that succeeds gets no answer; this is the next one
        if self._handshake is not None:
            self._answered(frame, self._handshake)
            self._handshake = None
        if frame.type == _AUTH_CHALLENGE:
            self._challenge = Asked(frame.number, frame.time_ns, frame.type, None)
            return
        self.heed_limit(frame)

    def heed_limit(self, frame: Frame) -> None:
        """Let the streams know the frame size limit that a CONNECTED announces."""
        announced = frame.base.connected.max_message_size if frame.base is not None else 0
        if announced > 0 and not self._knowledge.fixed_limit:
            for stream in self._streams:
                stream.limit = announced + FRAME_PADDING

    def _migrated(self, frame: Frame) -> None:
        body = frame.base.topicMigrated  # type: ignore[union-attr]
        if body.resource_type == CommandTopicMigrated.Producer:
            frame.topic = self._producers.get(body.resource_id, (None,))[0]
        else:
            known = self._consumers.get(body.resource_id)
            if known is not None:
                frame.topic, frame.subscription = known

    def _ping(self, frame: Frame) -> None:
        asked = self._pings.setdefault(frame.to_broker, deque(maxlen=_PINGS))
        asked.append(Asked(frame.number, frame.time_ns, frame.type, None))

    def _pong(self, frame: Frame) -> None:
        asked = self._pings.get(not frame.to_broker)
        if asked:
            self._answered(frame, asked.popleft())


def bound(table: dict[Any, Any], size: int) -> None:
    """Forget the older half of a table that has more than `size` rows."""
    if len(table) > size:
        for key in list(islice(table, len(table) // 2)):
            del table[key]


FIELDS: Final = {
    number: frozenset(getattr(BaseCommand(), body).DESCRIPTOR.fields_by_name)
    for number, body in BODIES.items()
}
_SEND, _PRODUCER, _SUBSCRIBE, _PRODUCER_SUCCESS, _ERROR = 6, 5, 4, 17, 14
_AUTH_CHALLENGE, _AUTH_RESPONSE = 36, 37
_GET_SCHEMA_RESPONSE, _GET_OR_CREATE_SCHEMA_RESPONSE = 35, 40
_SCALABLE_SUBSCRIBE = NUMBERS["SCALABLE_TOPIC_SUBSCRIBE"]
_ADD_PARTITIONS, _ADD_SUBSCRIPTIONS = NUMBERS["ADD_PARTITION_TO_TXN"], NUMBERS["ADD_SUBSCRIPTION_TO_TXN"]
_IN_TRANSACTION: Final = {_ADD_PARTITIONS, _ADD_SUBSCRIPTIONS, NUMBERS["END_TXN_ON_SUBSCRIPTION"]}
_OPENING: Final = {_PRODUCER, _SUBSCRIBE, _SCALABLE_SUBSCRIBE}
CONNECTED: Final = NUMBERS["CONNECTED"]
TEACHING: Final = {_SUBSCRIBE, _PRODUCER_SUCCESS, _GET_SCHEMA_RESPONSE, _GET_OR_CREATE_SCHEMA_RESPONSE}
"""Frames that a session may learn a schema from."""
_COMPLETED: Final = {_PRODUCER, NUMBERS["GET_SCHEMA"], NUMBERS["GET_OR_CREATE_SCHEMA"]}
"""Requests whose answers complete what they say."""

RULES: Final[dict[int, Callable[[Session, Frame], None]]] = {
    **{number: Session._of_consumer for number, fields in FIELDS.items() if "consumer_id" in fields},
    **dict.fromkeys(REQUESTS, Session._request),
    **dict.fromkeys(ANSWERS, Session._answer),
    NUMBERS["SEND"]: Session._send,
    NUMBERS["SEND_RECEIPT"]: Session._receipt,
    NUMBERS["SEND_ERROR"]: Session._send_error,
    NUMBERS["MESSAGE"]: Session._message,
    NUMBERS["ACK"]: Session._ack,
    NUMBERS["CONNECT"]: Session._connect,
    NUMBERS["AUTH_RESPONSE"]: Session._connect,
    CONNECTED: Session._connected,
    NUMBERS["AUTH_CHALLENGE"]: Session._connected,
    NUMBERS["TOPIC_MIGRATED"]: Session._migrated,
    NUMBERS["PING"]: Session._ping,
    NUMBERS["PONG"]: Session._pong,
}
"""Type number -> what a session does with a frame of that type; of the others it knows nothing."""
