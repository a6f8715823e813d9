"""`Target`: the broker that a case talks to, and what cases begin with."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pulsarctl_wire.conformance.basics.admin import Admin
from pulsarctl_wire.conformance.basics.checking import Inapplicable
from pulsarctl_wire.conformance.basics.probe import PATIENCE, Probe
from pulsarctl_wire.conformance.basics.settings import SECONDS
from pulsarctl_wire.conformance.basics.tokens import sign
from pulsarctl_wire.conformance.basics.transcript import Transcript
from pulsarctl_wire.errors import RequestTimeout, WireError
from pulsarctl_wire.net.settings import Address
from pulsarctl_wire.net.sockets import TlsContext, explain_failure

if TYPE_CHECKING:
    from typing_extensions import Self  # Python 3.10 has none


class Target:
    """A broker, as a case sees it. Each case has its own target, which closes its connections at the end.

    `address` is the broker's. `credentials` are fields of CONNECT, for cases that do not test them; `tokens`
    are those of `make_tokens`. `seconds` are times that are set at the broker: see `SECONDS`.
    """

    address: tuple[str, int]
    tls: TlsContext | None = None
    credentials: Mapping[str, Any] = {}
    tokens: Mapping[str, str] = {}
    seconds: Mapping[str, float] = SECONDS
    output: Sequence[str] = ()  # only clients write lines
    unique = ""
    """The suffix of all names, which makes them differ from those of other runs."""
    _names: ClassVar = count(1)

    def __init__(self) -> None:
        self.transcript = Transcript()
        self._exit_stack = AsyncExitStack()
        self._numbers = count()

    async def settle(self, seconds: float = 0.4) -> None:
        """Give the broker time to send everything that it is going to send now.

        `seconds` is how long that takes if it cannot be observed.
        """
        raise NotImplementedError

    async def advance(self, seconds: float) -> None:
        """Let so much time pass."""
        raise NotImplementedError

    async def wait(self, probe: Probe, holds: Callable[[], object], within: float) -> bool:
        """Wait at most `within` seconds for `holds()`, a condition on a probe; return whether it is true."""
        raise NotImplementedError

    def now_ms(self) -> int:
        """Return the broker's time: milliseconds since 1970."""
        raise NotImplementedError

    async def rest(self, method: str, path: str, body: object = None) -> Any:
        """Call the admin API, as admin; return the value of its answer. Raises RestError."""
        raise NotImplementedError

    def sign_token(self, role: str, expires_in: float | None = None, **claims: object) -> str:
        """Return a token for `role` with these other claims; `expires_in` is in seconds, None for never."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exit_stack.aclose()

    async def find_outage(self) -> str:
        """Return why the broker cannot be reached any more; "" if it can."""
        try:
            async with self:
                await self.open_connection()
        except WireError as error:
            return str(error)
        return ""

    def require_keepalive(self, seconds: float) -> None:
        """Require that the broker keeps a connection that leaves its PINGs unanswered for so many seconds.

        Raises Inapplicable.
        """
        # a broker sends PING after one interval, and closes after the next; one second to spare
        if 2 * self.seconds["keepalive"] < seconds + 1:
            raise Inapplicable("needs a longer keepAliveIntervalSeconds (--have keepalive=SECONDS)")

    # -- what cases begin with

    def name(self, prefix: str = "t") -> str:
        """Return a name that no other case uses."""
        return f"{prefix}-{next(self._names)}-{self.unique}"

    def topic(self, domain: str = "persistent") -> str:
        """Return the full name of a topic that does not exist yet."""
        return f"{domain}://public/default/{self.name()}"

    async def open_connection(self) -> Probe:
        """Open a TCP connection without CONNECT. Raises SessionError."""
        host, port = self.address
        loop, number = asyncio.get_running_loop(), next(self._numbers)
        try:
            attempt = loop.create_connection(lambda: Probe(self, number), host, port, ssl=self.tls)
            _, probe = await asyncio.wait_for(attempt, PATIENCE)
        except (asyncio.TimeoutError, TimeoutError):
            raise RequestTimeout(f"{host}:{port}: no connection within {PATIENCE:g} s") from None
        except OSError as error:
            raise explain_failure(Address(host, port), error, has_tls=self.tls is not None) from None
        self._exit_stack.push_async_callback(probe.close)
        return probe

    async def connect(self, **fields: Any) -> Probe:
        """Open a connection and send CONNECT, which must succeed; `fields` are of CONNECT."""
        probe = await self.open_connection()
        await probe.connect(**fields)
        return probe

    async def subscribe(self, topic: str, kind: str = "Exclusive", permits: int = 0, **fields: Any) -> Probe:
        """Open a connection with consumer 1 of subscription "s" (at Earliest)."""
        probe = await self.connect()
        await probe.subscribe(topic, kind, **fields)
        if permits:
            probe.flow(permits)
        return probe

    async def produce(self, topic: str, **fields: Any) -> Probe:
        """Open a connection with producer 1."""
        probe = await self.connect()
        await probe.create_producer(topic, **fields)
        return probe

    async def fill(self, number: int, topic: str = "") -> str:
        """Publish so many messages, m0, m1, …, to a topic, by default a new one; return its name."""
        topic = topic or self.topic()
        probe = await self.produce(topic)
        await probe.publish_all(*(f"m{index}".encode() for index in range(number)))
        await probe.request("CLOSE_PRODUCER", "SUCCESS", producer_id=1)
        await probe.close()
        return topic

    async def create_partitions(self, partitions: int) -> str:
        """Create a new partitioned topic by the admin API; return its name."""
        topic = self.topic()
        await self.rest("PUT", f"{admin_path(topic)}/partitions", partitions)
        return topic

    async def create_namespace(self, policies: object = None) -> str:
        """Create a new namespace by the admin API; return its name, such as "public/n-1-RUN"."""
        name = f"public/{self.name('n')}"
        await self.rest("PUT", f"/admin/v2/namespaces/{name}", policies or {})
        return name


def admin_path(topic: str) -> str:
    """Return the path of a topic in the admin API."""
    domain, _, rest = topic.partition("://")
    return f"/admin/v2/{domain}/{rest}"


class BrokerAccess(NamedTuple):
    """A broker that runs elsewhere, and what is known of it.

    `key` is the secret key of its tokens, and `run` a name that no other run has.
    """

    address: Address
    run: str
    tls: TlsContext | None = None
    credentials: Mapping[str, Any] = {}
    admin: Admin | None = None
    key: bytes | None = None
    tokens: Mapping[str, str] = {}
    seconds: Mapping[str, float] = SECONDS


class RemoteTarget(Target):
    """A broker that runs elsewhere. Its clock cannot be moved, so time passes by waiting."""

    def __init__(self, access: BrokerAccess) -> None:
        super().__init__()
        self.access = access
        self.address = access.address
        self.tls = access.tls
        self.credentials = access.credentials
        self.tokens = access.tokens
        self.seconds = access.seconds
        self.unique = access.run

    async def settle(self, seconds: float = 0.4) -> None:
        """Sleep for so many seconds."""
        await asyncio.sleep(seconds)

    async def advance(self, seconds: float) -> None:
        """Sleep for so many seconds."""
        await asyncio.sleep(seconds)

    async def wait(self, probe: Probe, holds: Callable[[], object], within: float) -> bool:
        """Wait for frames, or the end of the connection."""

        async def wait() -> None:
            while not holds():
                probe.changed.clear()
                await probe.changed.wait()

        try:
            await asyncio.wait_for(wait(), within)
        except (asyncio.TimeoutError, TimeoutError):
            return bool(holds())
        return True

    def now_ms(self) -> int:
        """Return this machine's time, in the hope that it is the broker's."""
        return time.time_ns() // 1_000_000

    async def rest(self, method: str, path: str, body: object = None) -> Any:
        """Call the admin API at its URL."""
        assert self.access.admin is not None, "cases that need it say so"
        return await self.access.admin.call(method, path, body)

    def sign_token(self, role: str, expires_in: float | None = None, **claims: object) -> str:
        """Sign a token with the broker's key."""
        assert self.access.key is not None, "cases that need it say so"
        expiry = {} if expires_in is None else {"exp": math.ceil(time.time() + expires_in)}
        return sign(self.access.key, **{"sub": role, **expiry, **claims})
