"""What all families of the admin API share."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pulsarctl_wire.broker.basics.names import TopicName, parse_topic
from pulsarctl_wire.broker.cluster.cluster import AnyTopic, Broker, Cluster
from pulsarctl_wire.broker.tenancy.namespaces import Namespaces
from pulsarctl_wire.broker.topics.persistent import PersistentTopic
from pulsarctl_wire.broker.topics.subscription import Subscription
from pulsarctl_wire.errors import WireError

MAX_INT: Final = (1 << 31) - 1
MAX_LONG: Final = (1 << 63) - 1


class Problem(WireError):
    """A request is refused with this HTTP status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Moved(WireError):
    """Another broker must be asked."""

    def __init__(self, owner: Broker) -> None:
        super().__init__(owner.http_url)
        self.owner = owner


@dataclass
class Answer:
    """An answer: `value` is sent as JSON, bytes as they are, None is no body. `owner`: who to ask instead."""

    status: int = 204
    value: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    owner: Broker | None = None


def plain(text: str, status: int = 200) -> Answer:
    """Return an answer with a text that is not JSON."""
    return Answer(status, text.encode())


@dataclass
class Request:
    """A request: `named` are the parts of its path, `body` its JSON."""

    broker: Broker
    named: dict[str, str]
    query: Mapping[str, str]
    body: Any

    @property
    def cluster(self) -> Cluster:
        """The cluster."""
        return self.broker.cluster

    @property
    def namespaces(self) -> Namespaces:
        """What there is."""
        return self.broker.cluster.namespaces

    # -- what the path names

    def namespace_or(self, reason: str) -> str:
        """Return the namespace in the path. Raises Problem with this reason if there is none."""
        name = f"{self.named['tenant']}/{self.named['namespace']}"
        if name not in self.namespaces.namespaces:
            raise Problem(404, reason)
        return name

    @property
    def namespace(self) -> str:
        """The namespace in the path. Raises Problem if there is none."""
        return self.namespace_or("Namespace not found")

    @property
    def topic_name(self) -> TopicName:
        """The topic in the path. Raises InvalidName."""
        named = self.named
        domain = named.get("domain", "persistent")
        return parse_topic(f"{domain}://{named['tenant']}/{named['namespace']}/{named['topic']}")

    def known_topic(self) -> TopicName:
        """Return the topic in the path, which exists, partitioned or not. Raises Problem."""
        _ = self.namespace
        name = self.topic_name
        if not self.cluster.exists(name) and not self.namespaces.partitions(name):
            raise Problem(404, f"Topic {name.full} not found")
        return name

    def refuse_partitioned(self, reason: str, status: int = 405) -> None:
        """Raise Problem if the topic in the path is partitioned."""
        if self.namespaces.partitions(self.topic_name):
            raise Problem(status, reason)

    async def topic(self) -> AnyTopic:
        """Load the topic in the path. Raises Problem, Refused, and Moved if another broker has it."""
        _ = self.namespace
        name = self.topic_name
        if not self.cluster.exists(name):
            raise Problem(404, f"Topic {name.full} not found")
        self.own(name)
        return await self.cluster.load(name, self.broker)

    def own(self, name: TopicName) -> None:
        """Be the owner of a topic. Raises Moved if another broker is."""
        owner = self.cluster.acquire(self.broker, name)
        if owner is not self.broker:
            raise Moved(owner)

    async def persistent_topic(self, what: str = "This") -> PersistentTopic:
        """Return the persistent topic in the path, loaded. Raises Refused, Problem."""
        topic = await self.topic()
        if not isinstance(topic, PersistentTopic):
            raise Problem(405, f"{what} on a non-persistent topic is not allowed")
        return topic

    async def all_parts(self, what: str = "This") -> list[PersistentTopic]:
        """Return the persistent topic in the path, or all its partitions, loaded."""
        name = self.topic_name
        if not self.namespaces.partitions(name):
            return [await self.persistent_topic(what)]
        if not name.is_persistent:
            raise Problem(405, f"{what} on a non-persistent topic is not allowed")
        topics = [
            await self.cluster.load(part, self.broker)
            for part in self.cluster.catalogue.list_partitions(name)
        ]
        return [topic for topic in topics if isinstance(topic, PersistentTopic)]

    def subscription(self, topic: PersistentTopic) -> Subscription:
        """Return the subscription in the path. Raises Problem."""
        name = self.named["subscription"]
        found: Subscription | None = topic.subscriptions.get(name)
        if found is None:
            raise Problem(404, f"Subscription {name} not found for topic {topic.name.full}")
        return found

    # -- values

    def flag(self, name: str, default: str = "false") -> bool:
        """Return a boolean of the query."""
        return self.query.get(name, default).lower() == "true"

    def number(self, name: str) -> int:
        """Return a number in the path. Raises Problem."""
        return integer(self.named[name], MAX_LONG)

    def fields(self) -> dict[str, Any]:
        """Return the body, which must be an object. Raises Problem."""
        if not isinstance(self.body, dict):
            raise Problem(400, "An object is expected")
        return self.body

    def strings(self) -> dict[str, str]:
        """Return the body, which must be an object of strings. Raises Problem."""
        if not all(isinstance(value, str) for value in self.fields().values()):
            raise Problem(400, "An object of strings is expected")
        return self.fields()

    async def done(self, status: int = 204) -> Answer:
        """Return an answer without a body, once everything is stored."""
        await self.broker.journal.sync()
        return Answer(status)


def integer(text: str, most: int = MAX_LONG) -> int:
    """Return a number in a path or query. Raises Problem."""
    try:
        number = int(text)
    except ValueError:
        raise Problem(404, "HTTP 404 Not Found") from None
    if not -most - 1 <= number <= most:
        raise Problem(404, "HTTP 404 Not Found")
    return number


Handler = Callable[[Request], Awaitable[Answer]]
Route = tuple[str, str, Handler]
"""Method, path with {names}, handler."""

TOPIC: Final = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"
NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"
