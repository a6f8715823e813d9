"""Lists and watches the topics of a namespace: by WATCH_TOPIC_LIST if the broker has it, else by polling.

Source: PIP-145. Brokers match a pattern against names without their domain, and list partitions one by one.
"""

import asyncio
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from pulsarctl_wire.errors import BrokerError, LinkClosed, SessionError
from pulsarctl_wire.net.session.client import Client
from pulsarctl_wire.net.session.link import Link
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.names import MAX_NAME_LENGTH
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandGetTopicsOfNamespace

POLL_PAUSE: Final = 60.0
"""Seconds between polls, if the broker does not report changes; as in Pulsar's clients."""

MODES: Final = {
    "persistent": CommandGetTopicsOfNamespace.PERSISTENT,
    "non-persistent": CommandGetTopicsOfNamespace.NON_PERSISTENT,
    "all": CommandGetTopicsOfNamespace.ALL,
}
"""The kinds of topics that can be listed."""

MAX_NAME_BYTES: Final = 64 * 1024 * 1024
"""Maximum bytes of the names that a watch keeps: about 300,000 topics with usual names."""

_COST: Final = 128  # bytes of overhead for each name
_LONGEST_PATTERN: Final = 50  # characters; brokers refuse longer ones


async def list_topics(
    client: Client,
    namespace: str,
    *,
    mode: str = "persistent",
    pattern: str | None = None,
    exists: bool = False,
) -> list[str]:
    """Return the topics of `namespace` (`tenant/name`) that match `pattern`, sorted.

    `pattern` is a regular expression for whole names without their domains; a partition also matches if its
    topic does. `mode` is a key of `MODES`. Raises SessionError; with `exists` also if there is no such
    namespace, for which brokers return an empty list.
    """

    async def attempt() -> list[str]:
        if client.web is not None:
            return await client.web.list_topics(namespace, CommandGetTopicsOfNamespace.Mode.Name(MODES[mode]))
        link = await client.open_service_link()
        command = build_command(
            "GET_TOPICS_OF_NAMESPACE",
            namespace=namespace,
            mode=MODES[mode],
            topics_pattern=_strip_domain(pattern)
            if pattern and len(_strip_domain(pattern)) <= _LONGEST_PATTERN
            else None,
        )
        try:
            return list(map(as_text, (await link.request(command)).body.topics))
        except BrokerError as error:
            if error.code == "MetadataError":  # the answer for a missing namespace in some modes
                await _check_namespace(link, namespace)
            raise

    topics = sorted(filter(_make_matcher(pattern), await client.retry(attempt, "GET_TOPICS_OF_NAMESPACE")))
    if exists and not topics and client.web is None:  # web services refuse a missing namespace
        await _check_namespace(await client.open_service_link(), namespace)
    return topics


async def _check_namespace(link: Link, namespace: str) -> None:
    """Raise BrokerError if `namespace` is missing: LOOKUP of a topic in it fails, and creates nothing."""
    try:
        await link.request(
            build_command("LOOKUP", topic=f"persistent://{namespace}/any", authoritative=False)
        )
    except BrokerError as error:
        if error.code == "TopicNotFound":
            request = "GET_TOPICS_OF_NAMESPACE"
            raise BrokerError(error.code, error.detail, request, "no such namespace", namespace) from None


def _strip_domain(pattern: str) -> str:
    return pattern.partition("://")[2] if "://" in pattern else pattern


def _make_matcher(pattern: str | None) -> Callable[[str], bool]:
    """Return a test: whether the pattern matches a topic, or the topic that it is a partition of."""
    if pattern is None:
        return lambda topic: True
    expression = re.compile(_strip_domain(pattern))
    return lambda topic: bool(
        expression.fullmatch(_strip_domain(topic))
        or expression.fullmatch(re.sub(r"-partition-\d+\Z", "", _strip_domain(topic)))
    )


def is_system(topic: str) -> bool:
    """Return whether a topic is internal: brokers do not list such topics, but report them to watchers."""
    name = topic.rpartition("/")[2]
    return name.startswith("__") or "__transaction_pending_ack" in name


class KnownTopics:
    """Names of topics, up to `MAX_NAME_BYTES`. `left_out` counts the names that did not fit."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.left_out = 0
        self._bytes = 0

    def change(self, added: Iterable[str], deleted: Iterable[str] = ()) -> tuple[list[str], list[str]]:
        """Add and remove names; return those that were really added and those removed, both sorted."""
        new_names = set(added)
        old_names = self.names.intersection(deleted) - new_names
        self.names -= old_names
        self._bytes -= sum(map(_weight, old_names))
        new_names -= self.names
        for name in sorted(new_names):
            if len(name) > MAX_NAME_LENGTH or self._bytes + _weight(name) > MAX_NAME_BYTES:
                new_names.remove(name)
                self.left_out += 1
            else:
                self.names.add(name)
                self._bytes += _weight(name)
        return sorted(new_names), sorted(old_names)


def _weight(name: str) -> int:
    return len(name) + _COST


class TopicWatch:
    """Watches the topics of a namespace that match a pattern. Calls `on_change` with those added and removed.

    Attributes: the `known` topics as they are now, `polls` whether the broker is polled as it does not
    report changes, `error` what ended the watch for good (`on_change` is then called with empty lists).
    """

    def __init__(
        self, client: Client, namespace: str, pattern: str, on_change: Callable[[list[str], list[str]], None]
    ) -> None:
        self.known = KnownTopics()
        self.polls = False
        self.error: SessionError | None = None
        self._client = client
        self._namespace = namespace
        self._pattern = pattern
        self._matches_pattern = _make_matcher(pattern)
        self._on_change = on_change
        self._id = next(client.ids)
        self._link: Link | None = None
        self._early_updates: list[Any] | None = None  # received before `_begin` has the list of topics
        self._early_bytes = 0
        self._loss: LinkClosed | None = None  # the loss of the link since `_begin`
        self._opened = self._warned = False
        self._reopening: asyncio.Task[None] | None = None
        self._polling: asyncio.Task[None] | None = None

    def _matches(self, topic: str) -> bool:
        return self._matches_pattern(topic) and not is_system(topic)

    async def open(self) -> list[str]:
        """Start watching; return the current topics. Raises SessionError."""
        self.known.change(await self._client.retry(self._begin, f"topics of {self._namespace}"))
        self._opened = True
        self._warn_left_out()
        return sorted(self.known.names)

    def _warn_left_out(self) -> None:
        if self.known.left_out and not self._warned:
            self._warned = True
            count = len(self.known.names)
            self._client.warn(f"topics of {self._namespace}: room for {count} only; others are left out")

    async def _begin(self) -> set[str]:
        link = await self._client.open_service_link()
        self.polls = (
            not link.protocol.features.supports_topic_watchers
            or len(_strip_domain(self._pattern)) > _LONGEST_PATTERN
        )
        if not self.polls:
            link.claim("watcher_id", self._id, self)
            self._link, self._early_updates, self._early_bytes, self._loss = link, [], 0, None
            command = build_command(
                "WATCH_TOPIC_LIST",
                watcher_id=self._id,
                namespace=self._namespace,
                topics_pattern=_strip_domain(self._pattern),
            )
            try:
                body = (await link.request(command)).body
            except BrokerError as error:
                if error.code != "NotAllowedError":
                    raise
                link.release("watcher_id", self._id)
                self.polls = True
            else:
                topics = set(filter(self._matches, map(as_text, body.topic)))
                for update in self._early_updates:  # received right after the answer
                    topics.difference_update(map(as_text, update.deleted_topics))
                    topics.update(self._select_new(update))
                self._early_updates = None
                if self._loss is not None:
                    raise self._loss
                return topics
        if self._polling is None:
            self._polling = asyncio.get_running_loop().create_task(self._keep_polling())
        return await self._poll()

    async def _poll(self) -> set[str]:
        return set(await list_topics(self._client, self._namespace, pattern=self._pattern))

    async def _keep_polling(self) -> None:
        while True:
            await asyncio.sleep(POLL_PAUSE)
            try:
                self._replace(await self._poll())
            except SessionError as error:
                self._client.warn(f"topics of {self._namespace}: {error}")

    def _select_new(self, update: Any) -> Iterable[str]:
        return filter(self._matches, map(as_text, update.new_topics))

    def _change(self, topics: Iterable[str], deleted: Iterable[str]) -> None:
        added, removed = self.known.change(topics, deleted)
        self._warn_left_out()
        if added or removed:
            self._on_change(added, removed)

    def _replace(self, topics: set[str]) -> None:
        self._change(topics, self.known.names - topics)

    def on_frame(self, frame: Frame) -> None:
        """Handle WATCH_TOPIC_UPDATE."""
        if self._early_updates is None:
            self._change(self._select_new(frame.body), map(as_text, frame.body.deleted_topics))
            return
        self._early_updates.append(frame.body)
        self._early_bytes += _COST + frame.size
        if self._early_bytes > MAX_NAME_BYTES and self._link is not None:
            self._link.drop(f"too many changes of topics of {self._namespace} came before the list of topics")

    def on_loss(self, error: LinkClosed) -> None:
        """Start again on a new link, after the link has ended."""
        self._loss = error
        if not self._client.settings.reconnect:
            self._end(error)
        elif self._opened and self._reopening is None:
            self._client.warn(f"topics of {self._namespace}: {error}; watching again")
            self._reopening = asyncio.get_running_loop().create_task(self._begin_again())

    async def _begin_again(self) -> None:
        name = f"topics of {self._namespace}"
        try:
            self._replace(await self._client.retry(self._begin, name, opened_before=True))
        except SessionError as error:
            self._end(error)
        finally:
            self._reopening = None

    def _end(self, error: SessionError) -> None:
        self.error = error
        self._on_change([], [])

    async def close(self) -> None:
        """Stop watching; warn of the topics that did not fit."""
        if self.known.left_out:
            self._client.warn(f"topics of {self._namespace}: no room for a topic {self.known.left_out} times")
        for task in (self._reopening, self._polling):
            if task is not None:
                task.cancel()
        if self._link is not None and self._link.is_open and not self.polls:
            self._link.release("watcher_id", self._id)
            try:
                await self._link.request(build_command("WATCH_TOPIC_LIST_CLOSE", watcher_id=self._id))
            except SessionError as error:
                self._client.warn(str(error))
