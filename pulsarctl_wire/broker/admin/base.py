"""What all families of the admin API share."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pulsarctl_wire.broker.broker import AnyTopic, Broker
from pulsarctl_wire.broker.names import TopicName, parse_topic
from pulsarctl_wire.broker.persistent import PersistentTopic
from pulsarctl_wire.errors import WireError


class Problem(WireError):
    """A request is refused with this HTTP status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass
class Answer:
    """An answer: `value` is sent as JSON, bytes as they are; None is no body."""

    status: int = 204
    value: Any = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Request:
    """A request: `named` are the parts of its path, `body` its JSON."""

    broker: Broker
    named: dict[str, str]
    query: Mapping[str, str]
    body: Any

    @property
    def namespace(self) -> str:
        """The namespace in the path. Raises Problem if there is none."""
        name = f"{self.named['tenant']}/{self.named['namespace']}"
        if not self.broker.cluster.namespaces.exists(name):
            raise Problem(404, "Namespace not found")
        return name

    @property
    def topic_name(self) -> TopicName:
        """The topic in the path."""
        named = self.named
        domain = named.get("domain", "persistent")
        return parse_topic(f"{domain}://{named['tenant']}/{named['namespace']}/{named['topic']}")

    async def topic(self) -> AnyTopic:
        """The topic in the path, loaded. Raises Refused if there is none."""
        name = self.topic_name
        owner = self.broker.cluster.acquire(self.broker, name)
        return await owner.topic(name, create=False)

    async def persistent_topic(self) -> PersistentTopic:
        """The persistent topic in the path, loaded. Raises Refused, Problem."""
        topic = await self.topic()
        if not isinstance(topic, PersistentTopic):
            raise Problem(405, "It is a non-persistent topic")
        return topic

    def flag(self, name: str) -> bool:
        """A boolean of the query; False if it is absent."""
        return self.query.get(name, "false").lower() == "true"


Handler = Callable[[Request], Awaitable[Answer]]
Route = tuple[str, str, Handler]
