"""A session that only tells frames what they are about: in the frames table sends are paired later."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from mypy_extensions import mypyc_attr

from pulsarctl_wire.wire.commands import ANSWERS, BODIES, NUMBERS, REQUESTS
from pulsarctl_wire.wire.frame import Connection, Event, Frame
from pulsarctl_wire.wire.session import FIELDS, MAX_PENDING, RULES, Asked, Knowledge, Owner, Session, bound
from pulsarctl_wire.wire.stream import FrameStream

_ONLY_TYPE: Final = b"\0\0\0\2"
"""COMMAND_SIZE of a command without its sub-message: it has no ids, not even 0."""

Tables = tuple[dict[int, tuple[str, int]], dict[int, tuple[str, str]], dict[tuple[str, int], Asked]]
"""Producers (topic and token), consumers (topic and subscription) and requests by their ids."""


@mypyc_attr(allow_interpreted_subclasses=True)
class TopicSession(Session):
    """A session that tells frames their topics and subscriptions, and pairs no sends with receipts."""

    def track(self, events: list[Event]) -> None:
        """Number the frames among `events` and tell them what they are about."""
        self._knowledge.frames += len(events)
        rules = _RULES
        for frame in events:
            if frame.__class__ is Frame and frame.base is not None:
                rule = rules.get(frame.type)
                if rule is not None and frame.raw[4:8] != _ONLY_TYPE:
                    rule(self, frame)

    def __init__(self, connection: Connection, knowledge: Knowledge, streams: Iterable[FrameStream]) -> None:
        super().__init__(connection, knowledge, streams)
        self.guessed: dict[int, tuple[str | None, str | None]] = {}
        """Topics of answers that may answer another request than was thought, by request ids."""
        self.unmatched: list[tuple[int, int]] = []
        """Types and request ids of answers whose requests are not known."""

    def agrees(self, guessed: dict[int, tuple[str | None, str | None]]) -> bool:
        """Whether another session that knew nothing of the requests that wait here guessed as they are."""
        for number, (topic, subscription) in guessed.items():
            for family in ("request", "lookup"):
                asked = self._asked.get((family, number))
                if asked is None or (topic is None and subscription is None):
                    continue
                if topic != asked.topic or subscription != asked.subscription:
                    return False
        return True

    def tables(self) -> Tables:
        """What is known so far; as plain data."""
        return self._producers, self._consumers, self._asked

    def forget(self) -> None:
        """Let somebody else know what was opened and asked so far, who may have seen more of it."""
        for table in self.tables():
            table.clear()
        self.guessed.clear()
        self.unmatched.clear()

    def learn(self, tables: Tables, unmatched: Iterable[tuple[int, int]] = ()) -> None:
        """Know what another session of this connection knew later, which did not know what this one does.

        `unmatched` are the answers that it had no requests for: they may be known here.
        """
        for type_, number in unmatched:
            for family, _ in ANSWERS[type_]:
                waiting = self._asked.get((family, number))
                if waiting is not None and type_ in REQUESTS[waiting.type].answers:
                    del self._asked[family, number]
                    break
        for key, asked in tables[2].items():
            if asked.owner is not None:
                topic, subscription = about(self.tables(), asked.owner)
                if topic is not None:
                    asked = asked._replace(topic=topic, subscription=subscription, owner=None)
            self._asked[key] = asked
        self._producers |= tables[0]
        self._consumers |= tables[1]
        for table in self.tables():
            bound(table, MAX_PENDING)

    def _send(self, frame: Frame) -> None:
        known = self._producers.get(frame.base.send.producer_id)  # type: ignore[union-attr]
        if known is not None:
            frame.topic = known[0]

    def _answer(self, frame: Frame) -> None:
        super()._answer(frame)
        if frame.request is None or len(ANSWERS[frame.type]) > 1:
            body = frame.body
            if body is not None and "request_id" in FIELDS[frame.type] and len(self.guessed) < MAX_PENDING:
                self.guessed[body.request_id] = frame.topic, frame.subscription
                last = frame.type != _PRODUCER_SUCCESS or body.producer_ready  # else one more will come
                if last and frame.request is None and len(self.unmatched) < MAX_PENDING:
                    self.unmatched.append((frame.type, body.request_id))

    def _request(self, frame: Frame) -> None:
        super()._request(frame)
        how = REQUESTS[frame.type]
        body = getattr(frame.base, BODIES[frame.type])
        if frame.topic is None and frame.to_broker and body.HasField(how.key):
            fields = FIELDS[frame.type]
            key = how.family, getattr(body, how.key)
            if "consumer_id" in fields:
                self._asked[key] = self._asked[key]._replace(owner=(True, body.consumer_id))
            elif "producer_id" in fields:
                self._asked[key] = self._asked[key]._replace(owner=(False, body.producer_id))

    def _of_producer(self, frame: Frame) -> None:
        known = self._producers.get(getattr(frame.base, BODIES[frame.type]).producer_id)
        if known is not None:
            frame.topic = known[0]

    def _message(self, frame: Frame) -> None:
        known = self._consumers.get(frame.base.message.consumer_id)  # type: ignore[union-attr]
        if known is not None:
            frame.topic, frame.subscription = known


def about(tables: Tables, owner: Owner) -> tuple[str | None, str | None]:
    """The topic and subscription of a producer or consumer, as far as `tables` know them."""
    is_consumer, number = owner
    if is_consumer:
        return tables[1].get(number, (None, None))
    return (tables[0][number][0] if number in tables[0] else None), None


_PRODUCER_SUCCESS: Final = NUMBERS["PRODUCER_SUCCESS"]
_RULES: Final[dict[int, Callable[[Any, Frame], None]]] = {
    **RULES,
    **dict.fromkeys(REQUESTS, TopicSession._request),
    **dict.fromkeys(ANSWERS, TopicSession._answer),
    NUMBERS["ACK"]: TopicSession._ack,
    NUMBERS["SEND"]: TopicSession._send,
    NUMBERS["SEND_RECEIPT"]: TopicSession._of_producer,
    NUMBERS["SEND_ERROR"]: TopicSession._of_producer,
    NUMBERS["MESSAGE"]: TopicSession._message,
}
