"""Requests, answers and errors of the admin API."""

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
    """A refused request, with its HTTP status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Moved(WireError):
    """A redirect to another broker. `authoritative`: that one takes the topic if nobody owns it."""

    def __init__(self, owner: Broker, *, authoritative: bool = False) -> None:
        super().__init__(owner.http_url)
        self.owner = owner
        self.authoritative = authoritative


@dataclass
class Answer:
    """An answer: `value` is sent as JSON, bytes as is, None is no body. `owner`: whom to ask instead."""

    status: int = 204
    value: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    owner: Broker | None = None


def make_text_answer(text: str, status: int = 200) -> Answer:
    """Return an answer with a text that is not JSON."""
    return Answer(status, text.encode())


@dataclass
class Request:
    """A request: `parts` are the named parts of its path, `body` its JSON."""

    broker: Broker
    parts: dict[str, str]
    query: Mapping[str, str]
    body: Any

    @property
    def cluster(self) -> Cluster:
        """The cluster."""
        return self.broker.cluster

    @property
    def namespaces(self) -> Namespaces:
        """The namespaces of the cluster."""
        return self.broker.cluster.namespaces

    # -- what the path names

    def require_namespace(self, reason: str = "Namespace not found") -> str:
        """Return the namespace in the path. Raises Problem with this reason if it does not exist."""
        name = f"{self.parts['tenant']}/{self.parts['namespace']}"
        if name not in self.namespaces.namespaces:
            raise Problem(404, reason)
        return name

    @property
    def topic_name(self) -> TopicName:
        """The topic in the path. Raises InvalidName."""
        parts = self.parts
        domain = parts.get("domain", "persistent")
        return parse_topic(f"{domain}://{parts['tenant']}/{parts['namespace']}/{parts['topic']}")

    def get_known_topic(self) -> TopicName:
        """Return the topic in the path, which exists, partitioned or not. Raises Problem."""
        self.require_namespace()
        name = self.topic_name
        if not self.cluster.exists(name) and not self.namespaces.count_partitions(name):
            raise Problem(404, f"Topic {name.full} not found")
        return name

    def refuse_partitioned(self, reason: str, status: int = 405) -> None:
        """Raise Problem if the topic in the path is partitioned."""
        if self.namespaces.count_partitions(self.topic_name):
            raise Problem(status, reason)

    async def load_topic(self) -> AnyTopic:
        """Load the topic in the path. Raises Problem, Refused, and Moved if another broker has it."""
        self.require_namespace()
        name = self.topic_name
        if not self.cluster.exists(name):
            raise Problem(404, f"Topic {name.full} not found")
        self.acquire(name)
        return await self.cluster.load(name, self.broker)

    def acquire(self, name: TopicName) -> None:
        """Make this broker the owner of a topic. Raises Moved if another one is."""
        owner = self.cluster.acquire(self.broker, name)
        if owner is not self.broker:
            raise Moved(owner)

    async def load_persistent_topic(self, operation: str = "This operation") -> PersistentTopic:
        """Load the persistent topic in the path. Raises Refused, Moved, and Problem about `operation`."""
        topic = await self.load_topic()
        if not isinstance(topic, PersistentTopic):
            raise Problem(405, f"{operation} on a non-persistent topic is not allowed")
        return topic

    async def load_partitions(self, operation: str = "This operation") -> list[PersistentTopic]:
        """Load the persistent topic in the path, or all its partitions."""
        name = self.topic_name
        if not self.namespaces.count_partitions(name):
            return [await self.load_persistent_topic(operation)]
        if not name.is_persistent:
            raise Problem(405, f"{operation} on a non-persistent topic is not allowed")
        topics = [
            await self.cluster.load(part, self.broker)
            for part in self.cluster.catalogue.list_partitions(name)
        ]
        return [topic for topic in topics if isinstance(topic, PersistentTopic)]

    def get_subscription(self, topic: PersistentTopic) -> Subscription:
        """Return the subscription in the path. Raises Problem."""
        name = self.parts["subscription"]
        subscription: Subscription | None = topic.subscriptions.get(name)
        if subscription is None:
            raise Problem(404, f"Subscription {name} not found for topic {topic.name.full}")
        return subscription

    # -- values

    def get_flag(self, name: str, default: str = "false") -> bool:
        """Return a boolean of the query."""
        return self.query.get(name, default).lower() == "true"

    def get_number(self, name: str) -> int:
        """Return a number in the path. Raises Problem."""
        return parse_integer(self.parts[name], MAX_LONG)

    def read_fields(self) -> dict[str, Any]:
        """Return the body, which must be an object. Raises Problem."""
        if not isinstance(self.body, dict):
            raise Problem(400, "An object is expected")
        return self.body

    def read_strings(self) -> dict[str, str]:
        """Return the body, which must be an object of strings. Raises Problem."""
        if not all(isinstance(value, str) for value in self.read_fields().values()):
            raise Problem(400, "An object of strings is expected")
        return self.read_fields()

    async def finish(self, status: int = 204) -> Answer:
        """Return an answer without a body, once everything is stored."""
        await self.broker.journal.sync()
        return Answer(status)


def parse_integer(text: str, limit: int = MAX_LONG) -> int:
    """Return a number in a path or query. Raises Problem."""
    try:
        number = int(text)
    except ValueError:
        raise Problem(404, "HTTP 404 Not Found") from None
    if not -limit - 1 <= number <= limit:
        raise Problem(404, "HTTP 404 Not Found")
    return number


Handler = Callable[[Request], Awaitable[Answer]]
Route = tuple[str, str, Handler]
"""Method, path with {names}, handler."""

TOPIC: Final = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"
NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"
