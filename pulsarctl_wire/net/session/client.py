"""A client of a cluster: links to its brokers, lookups, and retries.

    async with Client(settings) as client:
        broker = await client.lookup("persistent://public/default/orders")
        link = await client.open_link(broker)

There is one link for each broker, shared by everything that uses the broker. Failures that may be temporary
are retried, with pauses from 0.1 s that double up to 60 s (Pulsar's own): until the operation timeout when
something is opened for the first time, forever when it was open before.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakValueDictionary

from pulsarctl_wire.errors import (
    BrokerError,
    LinkClosed,
    RequestTimeout,
    SessionError,
    SettingsError,
    Unreachable,
)
from pulsarctl_wire.net.driver import Warnings
from pulsarctl_wire.net.frame_socket import Tap
from pulsarctl_wire.net.session.hop import Hop
from pulsarctl_wire.net.session.link import Link, open_first_link
from pulsarctl_wire.net.settings import MAX_REDIRECTS, Address, ServiceUrl, Settings, parse_url
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.names import without_partition
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    BaseCommand,
    CommandGetSchemaResponse,
    CommandLookupTopicResponse,
    Schema,
)
from pulsarctl_wire.wire.server_errors import FINAL, FINAL_LATER

if TYPE_CHECKING:
    from pulsarctl_wire.net.session.web import WebLookup

MAX_PARTITIONS: Final = 100_000
"""Maximum number of partitions of a topic; a broker that reports more is not believed."""

MAX_LINKS: Final = 1_000
"""Maximum number of brokers connected at the same time."""

MAX_SCHEMA_BYTES: Final = 32 * 1024 * 1024
"""Maximum bytes of cached schemas."""

_SCHEMA_COST: Final = 1024  # bytes of overhead for each cached schema

FIRST_PAUSE: Final = 0.1
"""Seconds before the first retry."""

LONGEST_PAUSE: Final = 60.0
"""Maximum seconds between two attempts."""

AT_ONCE: Final = 16
"""Number of items that `run_each` works on concurrently."""

_ANY_TOPIC: Final = "persistent://public/default/any"
"""A topic that is looked up to find any broker; that does not create it."""

_T = TypeVar("_T")
_Each = TypeVar("_Each")


async def run_each(items: Iterable[_Each], work: Callable[[_Each], Awaitable[_T]]) -> list[_T]:
    """Return the result of `work` for each item; `AT_ONCE` run concurrently. Raises the first error."""
    turns = enumerate(items)
    results: dict[int, _T] = {}

    async def worker() -> None:
        for number, item in turns:
            results[number] = await work(item)

    workers = [asyncio.ensure_future(worker()) for _ in range(AT_ONCE)]
    try:
        await asyncio.gather(*workers)
    finally:
        for task in workers:
            task.cancel()
    return [results[number] for number in range(len(results))]


@dataclass(frozen=True)
class Broker:
    """A broker: the `address` to dial; if a Pulsar proxy is there, `proxy_to` is the broker behind it.

    `source` says who named the broker, for error messages. It is "" if nobody else named `address`: for the
    service URL, and where a proxy, or a broker that says it is one, answered the lookup.
    """

    address: Address
    proxy_to: str = ""
    source: str = ""


class Client:
    """The links of one session with a cluster; an async context manager that closes them.

    `warn` is called with a line for each problem that did not end the session, a few times for each kind.
    """

    def __init__(
        self, settings: Settings, *, tap: Tap | None = None, warn: Callable[[str], None] | None = None
    ) -> None:
        self.settings = settings
        self.warn = Warnings(warn or (lambda text: None))
        self.ids = count(1)
        """Ids of producers, consumers and watchers: one counter for all, so that traces are easy to read."""
        self._tap = tap
        self._links: dict[tuple[Address, str], Link] = {}
        self._locks: WeakValueDictionary[tuple[Address, str], asyncio.Lock] = WeakValueDictionary()
        self._numbers = count()
        self._preferred = 0  # index of the service host that was reached last
        self._schemas: dict[tuple[str, bytes], Schema | None] = {}
        self._schema_bytes = 0
        self.web: WebLookup | None = None
        """Answers lookups, if the service URL is that of a web service."""
        if settings.url.is_web:
            from pulsarctl_wire.net.session import web

            self.web = web.WebLookup(settings, tap, self._numbers)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *reason: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all links."""
        links, self._links = list(self._links.values()), {}
        await asyncio.gather(*(link.close() for link in links))
        if self.web is not None:
            await self.web.close()
        self.warn.close()

    # -- links

    async def open_link(self, broker: Broker) -> Link:
        """Return the link to `broker`; open it if there is none. Raises SessionError."""
        key = broker.address, broker.proxy_to
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            link = self._links.get(key)
            if link is None or not link.is_open:
                self._links = {target: link for target, link in self._links.items() if link.is_open}
                if len(self._links) >= MAX_LINKS:
                    raise Unreachable(f"{broker.address}: {MAX_LINKS} brokers are connected, the maximum")
                link = self._links[key] = await self._open(broker)
            return link

    async def _open(self, broker: Broker) -> Link:
        try:
            return await Link.open(
                broker.address,
                self.settings,
                numbers=self._numbers,
                proxy_to=broker.proxy_to,
                tap=self._tap,
                warn=self.warn,
            )
        except (Unreachable, RequestTimeout) as error:
            if not broker.source:
                raise
            raise type(error)(
                f"the broker that {broker.source} named cannot be reached: {error}; "
                "ask for another address with --listener-name, or go through a proxy with --url"
            ) from None

    async def open_service_link(self) -> Link:
        """Return a link to one of the hosts of the service URL, tried in turn. Raises SessionError.

        If they are web services, it leads to a broker that one of them names.
        """
        if self.web is not None:
            return await self.open_link(await self.lookup(_ANY_TOPIC))
        addresses, first = self.settings.url.addresses, self._preferred
        rotation = (*addresses[first:], *addresses[:first])
        link = await open_first_link(rotation, self.settings, lambda address: self.open_link(Broker(address)))
        self._preferred = addresses.index(link.address)
        return link

    async def ask(self, name: str, **fields: Any) -> Frame:
        """Send the request `name` over the service link, with retries; return its answer."""

        async def attempt() -> Frame:
            return await (await self.open_service_link()).request(build_command(name, **fields))

        return await self.retry(attempt, name)

    # -- lookups

    async def trace_lookup(self, topic: str) -> AsyncIterator[Hop]:
        """Look up which broker serves `topic` (a full name); yield each answer, the last of which is Connect.

        Raises SessionError; after `MAX_REDIRECTS` redirects, Unreachable.
        """
        if self.web is not None:
            async for hop in self.web.trace_lookup(topic):
                yield hop
            return
        link = await self.open_service_link()
        authoritative = False
        for _ in range(MAX_REDIRECTS + 1):
            command = build_command(
                "LOOKUP",
                topic=topic,
                authoritative=authoritative,
                advertised_listener_name=self.settings.listener,
            )
            start_ns = time.perf_counter_ns()
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
                time.perf_counter_ns() - start_ns,
            )
            yield hop
            if hop.response == "Connect":
                return
            authoritative = hop.says_authoritative
            link = await self.open_link(self.find_broker(hop))
        raise Unreachable(
            f"LOOKUP of {topic}: still a redirect after {MAX_REDIRECTS}; the brokers redirect in circles"
        )

    def find_broker(self, hop: Hop) -> Broker:
        """Return the broker that a lookup's answer names. Raises Unreachable if no address fits."""
        broker = self.make_broker(hop.url, hop.url_tls, hop.source)
        if not hop.through_proxy:
            return broker
        # a standalone broker sets the proxy flag, too, although there is no proxy
        is_direct = str(broker.address) in (str(hop.asked), hop.peer)
        return Broker(hop.asked, "" if is_direct else str(broker.address))

    def make_broker(self, url: str, url_tls: str, source: str, *, through: Address | None = None) -> Broker:
        """Return the broker with the addresses that `source` named; reached by proxy `through`, if any.

        Raises Unreachable if the address that fits our use of TLS is missing or invalid.
        """
        text = url_tls if self.settings.url.tls else url
        if not text:
            kind = (
                "TLS address (pulsar+ssl://)" if self.settings.url.tls else "address without TLS (pulsar://)"
            )
            raise Unreachable(f"{source} has no {kind}, but {url or url_tls or 'none at all'}")
        try:
            address = parse_url(text).addresses[0]
        except SettingsError as error:
            raise Unreachable(f"{source}: {error}") from None
        return Broker(address, "", source) if through is None else Broker(through, str(address))

    async def lookup(self, topic: str) -> Broker:
        """Return the broker that serves `topic` (a full name)."""
        *_, last = [hop async for hop in self.trace_lookup(topic)]
        return self.find_broker(last)

    async def count_partitions(self, topic: str, *, create: bool = True) -> int:
        """Return how many partitions `topic` has; 0 if it is not partitioned.

        If the broker auto-creates partitioned topics, this request creates one, unless `create` is False.
        """
        if self.web is not None:
            attempt = partial(self.web.count_partitions, topic, create)
            partitions = await self.retry(attempt, "PARTITIONED_METADATA")
        else:
            frame = await self.ask(
                "PARTITIONED_METADATA", topic=topic, metadata_auto_creation_enabled=None if create else False
            )
            if frame.type == BaseCommand.LOOKUP_RESPONSE:  # how the Pulsar proxy refuses
                raise BrokerError("UnknownError", as_text(frame.body.message), "PARTITIONED_METADATA")
            partitions = frame.body.partitions
        if partitions > MAX_PARTITIONS:
            raise Unreachable(f"{topic}: {partitions} partitions, over the limit of {MAX_PARTITIONS}")
        return partitions

    async def get_schema(self, topic: str, version: bytes | None = None) -> CommandGetSchemaResponse:
        """Return the answer with a schema of `topic`, by default the latest one. Raises SessionError."""
        if self.web is not None:
            return await self.retry(partial(self.web.get_schema, topic, version), "GET_SCHEMA")
        body: CommandGetSchemaResponse = (
            await self.ask("GET_SCHEMA", topic=topic, schema_version=version)
        ).body
        return body

    async def fetch_schema(self, topic: str, version: bytes) -> Schema | None:
        """Return the schema of `topic` with this version, cached; None if the broker does not have it."""
        key = without_partition(topic), version
        if key not in self._schemas:
            schema = None
            try:
                body = await self.get_schema(key[0], version)
                schema = body.schema if body.HasField("schema") else None
            except BrokerError as error:
                self.warn(f"schema of {key[0]}: {error}")
            weight = _SCHEMA_COST + len(version) + (schema.ByteSize() if schema else 0)
            if self._schema_bytes + weight > MAX_SCHEMA_BYTES:
                self._schemas.clear()
                self._schema_bytes = 0
            self._schemas[key] = schema
            self._schema_bytes += weight
        return self._schemas[key]

    # -- retries

    async def retry(
        self,
        attempt: Callable[[], Awaitable[_T]],
        subject: str,
        *,
        opened_before: bool = False,
        pause: float = FIRST_PAUSE,
    ) -> _T:
        """Return `attempt()`, retried after failures that may be temporary; warnings name it `subject`.

        `opened_before`: it worked once, so it is retried forever, and a pause comes before the first attempt,
        too. If `Settings.reconnect` is off, only what the broker refused is retried. `pause` is the first
        pause, in seconds. Raises the last SessionError or SettingsError.
        """
        deadline = None if opened_before else time.monotonic() + self.settings.timeout
        while True:
            if opened_before:
                await asyncio.sleep(pause * random.uniform(0.9, 1.0))
            try:
                return await attempt()
            except (SessionError, SettingsError) as error:  # SettingsError: a token file may reappear
                if not self._is_temporary(error, opened_before):
                    raise
                if deadline is not None and time.monotonic() + pause > deadline:
                    raise
                # `opened_before`: the next pause comes before the next attempt, when it is doubled already
                next_pause = min(2 * pause, LONGEST_PAUSE) if opened_before else pause
                self.warn(f"{subject}: {error}; retrying in {next_pause:g} s")
            if not opened_before:
                await asyncio.sleep(pause * random.uniform(0.9, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)

    def _is_temporary(self, error: SessionError | SettingsError, opened_before: bool) -> bool:
        if isinstance(error, BrokerError):
            return error.code not in (FINAL_LATER if opened_before else FINAL)
        if not self.settings.reconnect:
            return False
        return opened_before or isinstance(error, LinkClosed)


async def find_broker_url(settings: Settings) -> Settings:
    """Return `settings` with the URL of a broker, if the service URL is a web service's.

    Raises SessionError.
    """
    if not settings.url.is_web:
        return settings
    async with Client(settings) as client:
        broker = await client.lookup(_ANY_TOPIC)
    return replace(settings, url=ServiceUrl(settings.url.tls, (broker.address,)))
