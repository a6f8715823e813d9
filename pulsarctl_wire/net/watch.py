"""The topics of a namespace and how they change: WATCH_TOPIC_LIST where the broker has it, else asking again.

Source: PIP-145. The broker matches a pattern against names without their domain, and names partitions singly.
"""

import asyncio
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from pulsarctl_wire.errors import BrokerError, LinkClosed, SessionError
from pulsarctl_wire.net.client import Client
from pulsarctl_wire.net.link import Link
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.names import LONGEST_NAME
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandGetTopicsOfNamespace

ASKING_PAUSE: Final = 60.0
"""Seconds between two looks, where the broker does not tell of changes; as in Pulsar's clients."""

MODES: Final = {
    "persistent": CommandGetTopicsOfNamespace.PERSISTENT,
    "non-persistent": CommandGetTopicsOfNamespace.NON_PERSISTENT,
    "all": CommandGetTopicsOfNamespace.ALL,
}
"""Which topics can be asked for."""

MOST_BYTES: Final = 64 * 1024 * 1024
"""Bytes of the names that a watch knows: 300,000 topics of usual names."""

_COST: Final = 128  # bytes of keeping a name, beside its own
_LONGEST_PATTERN: Final = 50  # that a broker takes


async def topics_of(
    client: Client, namespace: str, *, mode: str = "persistent", pattern: str | None = None
) -> list[str]:
    """The topics of `namespace` (`tenant/name`), sorted; those whose whole name `pattern` matches.

    `pattern` is a regular expression, `mode` a key of `MODES`. Raises SessionError.
    """

    async def attempt() -> Frame:
        link = await client.service()
        command = build_command(
            "GET_TOPICS_OF_NAMESPACE",
            namespace=namespace,
            mode=MODES[mode],
            topics_pattern=_bare(pattern) if pattern and len(_bare(pattern)) <= _LONGEST_PATTERN else None,
        )
        try:
            return await link.request(command)
        except BrokerError as error:
            if error.code == "MetadataError":  # what a namespace that is not there gets in some modes
                await _check_namespace(link, namespace)
            raise

    frame = await client.patiently(attempt, "GET_TOPICS_OF_NAMESPACE")
    return sorted(filter(_matcher(pattern), map(as_text, frame.body.topics)))


async def check_namespace(client: Client, namespace: str) -> None:
    """Raise BrokerError if the broker says that there is no such namespace, SessionError if it is silent.

    In place of a list of its topics brokers give an empty one. But LOOKUP of a topic there is refused, and
    where there is a namespace it creates nothing.
    """
    await _check_namespace(await client.service(), namespace)


async def _check_namespace(link: Link, namespace: str) -> None:
    try:
        await link.request(
            build_command("LOOKUP", topic=f"persistent://{namespace}/any", authoritative=False)
        )
    except BrokerError as error:
        if error.code == "TopicNotFound":
            request = "GET_TOPICS_OF_NAMESPACE"
            raise BrokerError(error.code, error.detail, request, "no such namespace", namespace) from None


def _bare(pattern: str) -> str:
    return pattern.partition("://")[2] if "://" in pattern else pattern


def _matcher(pattern: str | None) -> Callable[[str], bool]:
    """Whether a topic is meant: the pattern fits its name, or that of the topic it is a partition of."""
    if pattern is None:
        return lambda topic: True
    expression = re.compile(_bare(pattern))
    return lambda topic: bool(
        expression.fullmatch(_bare(topic))
        or expression.fullmatch(re.sub(r"-partition-\d+\Z", "", _bare(topic)))
    )


def is_system(topic: str) -> bool:
    """Whether a topic is one of the broker's own: it leaves them out of lists, but tells watchers of them."""
    name = topic.rpartition("/")[2]
    return name.startswith("__") or "__transaction_pending_ack" in name


class Known:
    """Names of topics, as many as there is room for. `left_out` counts those there was none for."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.left_out = 0
        self._bytes = 0

    def change(self, added: Iterable[str], deleted: Iterable[str] = ()) -> tuple[list[str], list[str]]:
        """Take these in, and these out; gives what came and what went, sorted."""
        came = set(added)
        went = self.names.intersection(deleted) - came
        self.names -= went
        self._bytes -= sum(map(_weight, went))
        came -= self.names
        for name in sorted(came):
            if len(name) > LONGEST_NAME or self._bytes + _weight(name) > MOST_BYTES:
                came.remove(name)
                self.left_out += 1
            else:
                self.names.add(name)
                self._bytes += _weight(name)
        return sorted(came), sorted(went)


def _weight(name: str) -> int:
    return len(name) + _COST


class TopicWatch:
    """Follows the topics of a namespace that a pattern matches. `changed` hears what came and what went.

    Attributes: `known` topics as they are now, `by_asking` whether the broker is asked now and then since it
    does not tell, `error` what ended it for good (`changed` is then called with nothing).
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        pattern: str,
        changed: Callable[[list[str], list[str]], None],
    ) -> None:
        self.known = Known()
        self.by_asking = False
        self.error: SessionError | None = None
        self._client = client
        self._namespace = namespace
        self._pattern = pattern
        self._fits = _matcher(pattern)
        self._changed = changed
        self._id = next(client.ids)
        self._link: Link | None = None
        self._early: list[Any] | None = None
        self._early_bytes = 0
        self._gone: LinkClosed | None = None  # since it last began
        self._opened = self._told = False
        self._reopening: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None

    def _matches(self, topic: str) -> bool:
        return self._fits(topic) and not is_system(topic)

    async def open(self) -> list[str]:
        """Begin to follow; gives the topics there are now. Raises SessionError."""
        self.known.change(await self._client.patiently(self._begin, f"topics of {self._namespace}"))
        self._opened = True
        self._tell_left_out()
        return sorted(self.known.names)

    def _tell_left_out(self) -> None:
        if self.known.left_out and not self._told:
            self._told = True
            count = len(self.known.names)
            self._client.warn(f"topics of {self._namespace}: {count} are known; there is no room for others")

    async def _begin(self) -> set[str]:
        link = await self._client.service()
        self.by_asking = (
            not link.features.supports_topic_watchers or len(_bare(self._pattern)) > _LONGEST_PATTERN
        )
        if not self.by_asking:
            link.claim("watcher_id", self._id, self)
            self._link, self._early, self._early_bytes, self._gone = link, [], 0, None
            command = build_command(
                "WATCH_TOPIC_LIST",
                watcher_id=self._id,
                namespace=self._namespace,
                topics_pattern=_bare(self._pattern),
            )
            try:
                body = (await link.request(command)).body
            except BrokerError as error:
                if error.code != "NotAllowedError":
                    raise
                link.release("watcher_id", self._id)
                self.by_asking = True
            else:
                topics = set(filter(self._matches, map(as_text, body.topic)))
                for update in self._early:  # in the same breath as the answer
                    topics.difference_update(map(as_text, update.deleted_topics))
                    topics.update(self._matching(update))
                self._early = None
                if self._gone is not None:
                    raise self._gone
                return topics
        if self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._keep_asking())
        return await self._ask()

    async def _ask(self) -> set[str]:
        return set(await topics_of(self._client, self._namespace, pattern=self._pattern))

    async def _keep_asking(self) -> None:
        while True:
            await asyncio.sleep(ASKING_PAUSE)
            try:
                self._is(await self._ask())
            except SessionError as error:
                self._client.warn(f"topics of {self._namespace}: {error}")

    def _matching(self, update: Any) -> Iterable[str]:
        return filter(self._matches, map(as_text, update.new_topics))

    def _became(self, now: Iterable[str], gone: Iterable[str]) -> None:
        added, removed = self.known.change(now, gone)
        self._tell_left_out()
        if added or removed:
            self._changed(added, removed)

    def _is(self, now: set[str]) -> None:
        self._became(now, self.known.names - now)

    def received(self, frame: Frame) -> None:
        """WATCH_TOPIC_UPDATE."""
        if self._early is None:
            self._became(self._matching(frame.body), map(as_text, frame.body.deleted_topics))
            return
        self._early.append(frame.body)
        self._early_bytes += _COST + frame.size
        if self._early_bytes > MOST_BYTES and self._link is not None:
            self._link.drop(f"changes of topics of {self._namespace} came, and not the topics themselves")

    def lost(self, error: LinkClosed) -> None:
        """The link has ended: begin again over another."""
        self._gone = error
        if not self._client.settings.reconnect:
            self._end(error)
        elif self._opened and self._reopening is None:
            self._client.warn(f"topics of {self._namespace}: {error}; watching again")
            self._reopening = asyncio.get_running_loop().create_task(self._begin_again())

    async def _begin_again(self) -> None:
        what = f"topics of {self._namespace}"
        try:
            self._is(await self._client.patiently(self._begin, what, opened_before=True))
        except SessionError as error:
            self._end(error)
        finally:
            self._reopening = None

    def _end(self, error: SessionError) -> None:
        self.error = error
        self._changed([], [])

    async def close(self) -> None:
        """Stop following; say how many topics there was no room for."""
        if self.known.left_out:
            self._client.warn(f"topics of {self._namespace}: {self.known.left_out} times one was left out")
        for task in (self._reopening, self._asking):
            if task is not None:
                task.cancel()
        if self._link is not None and self._link.is_open and not self.by_asking:
            self._link.release("watcher_id", self._id)
            try:
                await self._link.request(build_command("WATCH_TOPIC_LIST_CLOSE", watcher_id=self._id))
            except SessionError as error:
                self._client.warn(str(error))
