"""A client: the links to a cluster's brokers, lookups, and trying again.

    async with Client(settings) as client:
        broker = await client.lookup("persistent://public/default/orders")
        link = await client.link(broker)

A link is shared by all that goes to the same broker. What fails for a reason that may pass is tried again,
with pauses from 0.1 s that double up to 60 s (Pulsar's own): the first opening of something until the
operation timeout, what was open before without end.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from pulsarctl_wire.errors import (
    BrokerError,
    LinkClosed,
    SessionError,
    SettingsError,
    Unanswered,
    Unreachable,
)
from pulsarctl_wire.net.link import Link, Tap
from pulsarctl_wire.net.settings import Address, Settings, parse_url
from pulsarctl_wire.net.warnings import Warnings
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, CommandLookupTopicResponse
from pulsarctl_wire.wire.server_errors import FINAL, FINAL_LATER

MOST_REDIRECTS: Final = 20
"""Redirects of one lookup, as in Pulsar's clients."""

MOST_PARTITIONS: Final = 100_000
"""Partitions that are believed."""

MOST_LINKS: Final = 1_000
"""Brokers that are connected at the same time."""

FIRST_PAUSE: Final = 0.1
"""Seconds before something is tried again for the first time."""

LONGEST_PAUSE: Final = 60.0
"""Seconds between two attempts at the most."""

AT_ONCE: Final = 16
"""Requests of one kind that are under way at the same time."""

_T = TypeVar("_T")
_Each = TypeVar("_Each")


async def each_of(items: Iterable[_Each], work: Callable[[_Each], Awaitable[_T]]) -> list[_T]:
    """What `work` gives for each item, in order; `AT_ONCE` are under way. Raises the first error there is."""
    turns = enumerate(items)
    results: dict[int, _T] = {}

    async def worker() -> None:
        for number, item in turns:
            results[number] = await work(item)

    workers = [asyncio.ensure_future(worker()) for _ in range(AT_ONCE)]
    try:
        await asyncio.gather(*workers)
    finally:
        for each in workers:
            each.cancel()
    return [results[number] for number in range(len(results))]


@dataclass(frozen=True)
class Broker:
    """Where something is served: the `address` to dial, `proxy_to` whom to ask a proxy there for.

    `source` tells who named it, for errors: "" for the service URL itself.
    """

    address: Address
    proxy_to: str = ""
    source: str = ""


@dataclass(frozen=True)
class Hop:
    """One LOOKUP and its answer: who was asked (`peer`: its IP address), how, what it said, how fast."""

    asked: Address
    peer: str
    authoritative: bool
    response: str
    url: str
    url_tls: str
    says_authoritative: bool
    through_proxy: bool
    latency_ns: int


class Client:
    """The links of one session with a cluster; an async context manager that closes them.

    `warn` is told in one line of everything odd that did not end the session, of each kind a few times.
    """

    def __init__(
        self, settings: Settings, *, tap: Tap | None = None, warn: Callable[[str], None] | None = None
    ) -> None:
        self.settings = settings
        self.warn = Warnings(warn or (lambda text: None))
        self.ids = count(1)
        """Ids of producers, consumers and watchers: one counter, so that traces are easy to read."""
        self._tap = tap
        self._links: dict[tuple[Address, str], Link] = {}
        self._locks: WeakValueDictionary[tuple[Address, str], asyncio.Lock] = WeakValueDictionary()
        self._connections = count()
        self._preferred = 0

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all links."""
        links, self._links = list(self._links.values()), {}
        await asyncio.gather(*(link.close() for link in links))
        self.warn.close()

    # -- links

    async def link(self, broker: Broker) -> Link:
        """The link to `broker`; opened if there is none. Raises SessionError."""
        key = broker.address, broker.proxy_to
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            link = self._links.get(key)
            if link is None or not link.is_open:
                self._links = {each: kept for each, kept in self._links.items() if kept.is_open}
                if len(self._links) >= MOST_LINKS:
                    raise Unreachable(f"{broker.address}: {MOST_LINKS} brokers are connected, no more can be")
                link = self._links[key] = await self._open(broker)
            return link

    async def _open(self, broker: Broker) -> Link:
        try:
            return await Link.open(
                broker.address,
                self.settings,
                index=next(self._connections),
                proxy_to=broker.proxy_to,
                tap=self._tap,
                warn=self.warn,
            )
        except (Unreachable, Unanswered) as error:
            if not broker.source:
                raise
            raise type(error)(
                f"the broker that {broker.source} named cannot be reached: {error}; "
                "ask for another address with --listener-name, or go through a proxy with --url"
            ) from None

    async def service(self) -> Link:
        """A link to one of the hosts of the service URL; they are tried in turn. Raises SessionError."""
        addresses = self.settings.url.addresses
        tried = []
        for attempt in range(len(addresses)):
            index = (self._preferred + attempt) % len(addresses)
            try:
                link = await self.link(Broker(addresses[index]))
            except (Unreachable, Unanswered) as error:
                tried.append(error)
            else:
                self._preferred = index
                return link
        raise type(tried[0])(f"{'; '.join(map(str, tried))} (tried {self.settings.url}; another: --url)")

    async def ask(self, name: str, **fields: Any) -> Frame:
        """Send the request `name` over the service link, and again if it may help; give its answer."""

        async def attempt() -> Frame:
            return await (await self.service()).request(build_command(name, **fields))

        return await self.patiently(attempt, name)

    # -- lookups

    async def hops(self, topic: str) -> AsyncIterator[Hop]:
        """Look up who serves `topic` (a full name), answer by answer; the last one says Connect.

        Raises BrokerError, and Unreachable after `MOST_REDIRECTS` redirects.
        """
        link = await self.service()
        authoritative = False
        for _ in range(MOST_REDIRECTS + 1):
            command = build_command(
                "LOOKUP",
                topic=topic,
                authoritative=authoritative,
                advertised_listener_name=self.settings.listener,
            )
            asked = time.perf_counter_ns()
            body = (await link.request(command)).body
            hop = Hop(
                link.address,
                link.connection.server,
                authoritative,
                CommandLookupTopicResponse.LookupType.Name(body.response),
                as_text(body.brokerServiceUrl),
                as_text(body.brokerServiceUrlTls),
                body.authoritative,
                body.proxy_through_service_url,
                time.perf_counter_ns() - asked,
            )
            yield hop
            if hop.response == "Connect":
                return
            authoritative = hop.says_authoritative
            link = await self.link(self.broker_of(hop))
        raise Unreachable(
            f"LOOKUP of {topic}: still a redirect after {MOST_REDIRECTS}; the brokers send us in circles"
        )

    def broker_of(self, hop: Hop) -> Broker:
        """The broker that a lookup's answer names. Raises Unreachable if it names none for us."""
        broker = self.named(hop.url, hop.url_tls, f"LOOKUP_RESPONSE of {hop.asked}")
        if not hop.through_proxy:
            return broker
        # a standalone broker says so of itself, where no proxy is
        itself = str(broker.address) in (str(hop.asked), hop.peer)
        return Broker(hop.asked, "" if itself else str(broker.address))

    def named(self, url: str, url_tls: str, source: str, *, through: Address | None = None) -> Broker:
        """The broker with these two addresses, as `source` gave them; by way of the proxy `through`."""
        text = url_tls if self.settings.url.tls else url
        if not text:
            kind = (
                "TLS address (pulsar+ssl://)" if self.settings.url.tls else "address without TLS (pulsar://)"
            )
            raise Unreachable(f"{source} names no {kind}; it has {url or url_tls or 'none at all'}")
        try:
            address = parse_url(text).addresses[0]
        except SettingsError as error:
            raise Unreachable(f"{source}: {error}") from None
        return Broker(address, "", source) if through is None else Broker(through, str(address))

    async def lookup(self, topic: str) -> Broker:
        """The broker that serves `topic` (a full name)."""
        *_, last = [hop async for hop in self.hops(topic)]
        return self.broker_of(last)

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        """How many partitions `topic` has; 0 for one that is not partitioned.

        Where the broker creates partitioned topics by itself, asking does it, unless `create` is False.
        """
        frame = await self.ask(
            "PARTITIONED_METADATA", topic=topic, metadata_auto_creation_enabled=None if create else False
        )
        if frame.type == BaseCommand.LOOKUP_RESPONSE:  # the Pulsar proxy's way to refuse
            raise BrokerError("UnknownError", as_text(frame.body.message), "PARTITIONED_METADATA")
        partitions: int = frame.body.partitions
        if partitions > MOST_PARTITIONS:
            raise Unreachable(f"{topic}: {partitions} partitions, more than {MOST_PARTITIONS} cannot be")
        return partitions

    # -- trying again

    async def patiently(
        self,
        attempt: Callable[[], Awaitable[_T]],
        what: str,
        *,
        opened_before: bool = False,
        pause: float = FIRST_PAUSE,
    ) -> _T:
        """`attempt()`, tried again where that may help.

        `opened_before`: it worked once, so that it is tried without end, unless nothing is to be tried again
        (`Settings.reconnect`). `pause` is the first one, in seconds. Raises the last SessionError.
        """
        deadline = None if opened_before else time.monotonic() + self.settings.timeout
        while True:
            if opened_before:
                await asyncio.sleep(pause * random.uniform(0.9, 1.0))
            try:
                return await attempt()
            except (SessionError, SettingsError) as error:  # a token file may be there again later
                if not self._may_pass(error, opened_before):
                    raise
                if deadline is not None and time.monotonic() + pause > deadline:
                    raise
                self.warn(f"{what}: {error}; again in {pause:g} s")
            if not opened_before:
                await asyncio.sleep(pause * random.uniform(0.9, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)

    def _may_pass(self, error: SessionError | SettingsError, opened_before: bool) -> bool:
        if isinstance(error, BrokerError):
            return error.code not in (FINAL_LATER if opened_before else FINAL)
        if not self.settings.reconnect:
            return False
        return opened_before or isinstance(error, LinkClosed)
