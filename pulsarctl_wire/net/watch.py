"""The topics of a namespace and how they change: WATCH_TOPIC_LIST where the broker has it, else asking again.

Source: PIP-145. The broker matches a pattern against names without their domain, and names partitions singly.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Any, Final

from pulsarctl_wire.errors import BrokerError, LinkClosed, SessionError
from pulsarctl_wire.net.client import Client
from pulsarctl_wire.net.link import Link
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, CommandGetTopicsOfNamespace

ASKING_PAUSE: Final = 60.0
"""Seconds between two looks, where the broker does not tell of changes; as in Pulsar's clients."""

MODES: Final = {
    "persistent": CommandGetTopicsOfNamespace.PERSISTENT,
    "non-persistent": CommandGetTopicsOfNamespace.NON_PERSISTENT,
    "all": CommandGetTopicsOfNamespace.ALL,
}
"""Which topics can be asked for."""

_LONGEST_PATTERN: Final = 50  # that a broker takes


async def topics_of(
    client: Client, namespace: str, *, mode: str = "persistent", pattern: str | None = None
) -> list[str]:
    """The topics of `namespace` (`tenant/name`), sorted; those whose whole name `pattern` matches.

    `pattern` is a regular expression, `mode` a key of `MODES`. Raises SessionError.
    """
    frame = await client.ask(
        "GET_TOPICS_OF_NAMESPACE",
        namespace=namespace,
        mode=MODES[mode],
        topics_pattern=_bare(pattern) if pattern and len(_bare(pattern)) <= _LONGEST_PATTERN else None,
    )
    return sorted(filter(_matcher(pattern), map(as_text, frame.body.topics)))


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


class TopicWatch:
    """Follows the topics of a namespace that a pattern matches. `changed` hears what came and what went."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        pattern: str,
        changed: Callable[[list[str], list[str]], None],
    ) -> None:
        self.topics: set[str] = set()
        self.by_asking = False
        self._client = client
        self._namespace = namespace
        self._pattern = pattern
        self._matches = _matcher(pattern)
        self._changed = changed
        self._id = next(client.ids)
        self._link: Link | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> list[str]:
        """Begin to follow; gives the topics there are now. Raises SessionError."""
        self.topics = set(await self._client.patiently(self._begin, f"topics of {self._namespace}"))
        return sorted(self.topics)

    async def _begin(self) -> list[str]:
        link = await self._client.service()
        if not link.features.supports_topic_watchers or len(_bare(self._pattern)) > _LONGEST_PATTERN:
            return await self._ask_instead()
        link.claim("watcher_id", self._id, self)
        self._link = link
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
            return await self._ask_instead()
        return [topic for topic in map(as_text, body.topic) if self._matches(topic)]

    async def _ask_instead(self) -> list[str]:
        self.by_asking = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep_asking())
        return await topics_of(self._client, self._namespace, pattern=self._pattern)

    async def _keep_asking(self) -> None:
        while True:
            await asyncio.sleep(ASKING_PAUSE)
            try:
                now = await topics_of(self._client, self._namespace, pattern=self._pattern)
            except SessionError as error:
                self._client.warn(f"topics of {self._namespace}: {error}")
                continue
            self._became(set(now))

    def _became(self, now: set[str]) -> None:
        added, removed = sorted(now - self.topics), sorted(self.topics - now)
        self.topics = now
        if added or removed:
            self._changed(added, removed)

    def received(self, frame: Frame) -> None:
        """WATCH_TOPIC_UPDATE."""
        if frame.type == BaseCommand.WATCH_TOPIC_UPDATE:
            body: Any = frame.body
            added = {topic for topic in map(as_text, body.new_topics) if self._matches(topic)}
            self._became(self.topics - set(map(as_text, body.deleted_topics)) | added)

    def lost(self, error: LinkClosed) -> None:
        """The link has ended: begin again over another."""
        if self._client.settings.reconnect:
            self._client.warn(f"topics of {self._namespace}: {error}; watching again")
            self._task = asyncio.get_running_loop().create_task(self._begin_again())

    async def _begin_again(self) -> None:
        try:
            now = await self._client.patiently(self._begin, "watch", opened_before=True)
        except SessionError as error:
            self._client.warn(f"topics of {self._namespace} are not watched any more: {error}")
        else:
            self._became(set(now))

    async def close(self) -> None:
        """Stop following."""
        if self._task is not None:
            self._task.cancel()
        if self._link is not None and self._link.is_open:
            self._link.release("watcher_id", self._id)
            await self._link.request(build_command("WATCH_TOPIC_LIST_CLOSE", watcher_id=self._id))
