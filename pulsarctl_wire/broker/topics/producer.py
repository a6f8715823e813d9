"""A producer of a topic."""

from typing import TYPE_CHECKING, Any

from pulsarctl_wire.wire.PulsarApi_pb2 import CommandProducer

if TYPE_CHECKING:
    from pulsarctl_wire.broker.clients.connection import Connection
    from pulsarctl_wire.broker.topics.topic import Topic


class Producer:
    """A producer, made from its PRODUCER; `name` is the one it asks for, or a generated one.

    `pending` counts its SENDs that have no receipt yet.
    """

    def __init__(self, connection: "Connection", command: CommandProducer, topic: "Topic", name: str) -> None:
        self.connection = connection
        self.topic = topic
        self.id: int = command.producer_id
        self.name = name
        self.epoch: int = command.epoch
        self.mode: int = command.producer_access_mode
        self.topic_epoch: int | None = command.topic_epoch if command.HasField("topic_epoch") else None
        self.encrypted: bool = command.encrypted
        self.metadata = connection.pairs(command.metadata)
        self.schema_version = b""
        self.since_ms = connection.scheduler.time_ms
        self.closed = False
        self.closing = False
        """Whether it will be closed once what was sent is stored."""
        self.pending = 0
        self.messages_in = 0
        self.bytes_in = 0
        self._when_idle: list[Any] = []

    def succeeds(self, other: "Producer") -> bool:
        """Whether it is `other`, made again by the client after it lost track of it."""
        return self.connection is other.connection and self.id == other.id and self.epoch > other.epoch

    # -- SENDs

    def begun(self, size: int) -> None:
        """A SEND of so many bytes is being stored."""
        self.pending += 1
        self.connection.publishing(1, size)

    def _ended(self, size: int) -> None:
        self.pending -= 1
        self.connection.publishing(-1, -size)
        if not self.pending:
            waiting, self._when_idle = self._when_idle, []
            for completion in waiting:
                completion.resolve(None)

    def receipt(self, sequence: int, highest: int, ledger: int, entry: int, size: int) -> None:
        """Answer a SEND of so many bytes that was `begun`."""
        if not self.closed:
            self.connection.send_receipt(self.id, sequence, highest, ledger, entry)
        self._ended(size)

    def error(self, sequence: int, highest: int, code: str, text: str) -> None:
        """Answer a SEND by SEND_ERROR; it was not `begun`."""
        self.connection.send_error(self.id, max(sequence, highest), code, text)

    async def idle(self) -> None:
        """Wait until no SEND is being stored."""
        if self.pending:
            completion = self.connection.scheduler.completion()
            self._when_idle.append(completion)
            await completion
