"""A running embedded broker with ports, storage, TLS, partitioned topics and the admin API.

The sockets are bound first (`bind`), so that a port in use is noticed before anything else happens. The admin
API is loaded on the first connection to it: loading it takes longer than all the rest.
"""

import asyncio
import base64
import errno
import os
import socket
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from pulsarctl_wire.broker.basics.names import InvalidName, parse_topic
from pulsarctl_wire.broker.basics.settings import Settings
from pulsarctl_wire.broker.cluster.cluster import Broker
from pulsarctl_wire.broker.shell.server import Server
from pulsarctl_wire.broker.shell.sqlite import Memory, Sqlite
from pulsarctl_wire.broker.tenancy.access import Keys
from pulsarctl_wire.errors import InUse, SettingsError
from pulsarctl_wire.net.frame_socket import Tap
from pulsarctl_wire.net.settings import Address
from pulsarctl_wire.net.sockets import ANY_HOST, BACKLOG, TlsContext, bind_socket

MAX_BROKERS: Final = 100
MAX_PARTITIONS: Final = 100_000

_ADMIN: Final = "pulsarctl_wire.broker.shell.http"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan for running a broker. Port 0 is any; without TLS ports there is no TLS. Raises SettingsError.

    Without `data`, a directory, everything is in memory. `partitions` maps each partitioned topic that must
    exist to its number of partitions. Several `brokers` are a cluster, with consecutive ports. TLS keys are
    appended to `keylog`.
    """

    settings: Settings = field(default_factory=Settings)
    host: str = "127.0.0.1"
    port: int = 0
    http_port: int = 0
    tls_port: int | None = None
    https_port: int | None = None
    keylog: str | None = None
    data: Path | None = None
    brokers: int = 1
    partitions: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.brokers <= MAX_BROKERS:
            raise SettingsError(f"brokers={self.brokers}: there can be 1 to {MAX_BROKERS}")
        for topic, number in self.partitions.items():
            if not isinstance(number, int) or not 0 < number <= MAX_PARTITIONS:
                raise SettingsError(f"{topic}={number}: a topic can have 1 to {MAX_PARTITIONS:,} partitions")

    @property
    def advertised(self) -> str:
        """The host name that clients get."""
        return self.settings.advertisedAddress or ("localhost" if self.host in ANY_HOST else self.host)


class Sockets(NamedTuple):
    """The sockets of a broker, by protocol."""

    plain: socket.socket
    http: socket.socket
    tls: socket.socket | None
    https: socket.socket | None

    def close(self) -> None:
        """Close the sockets."""
        for sock in self:
            if sock is not None:
                sock.close()


def bind(plan: Plan) -> list[Sockets]:
    """Bind the sockets of all brokers. Raises InUse, SettingsError."""
    sockets: list[socket.socket] = []

    def bind_one(option: str, port: int | None, number: int) -> Any:
        if port is None:
            return None
        sockets.append(_bind_address(option, Address(plan.host, port + number if port else 0)))
        return sockets[-1]

    try:
        return [
            Sockets(
                bind_one("port", plan.port, number),
                bind_one("http-port", plan.http_port, number),
                bind_one("tls-port", plan.tls_port, number),
                bind_one("https-port", plan.https_port, number),
            )
            for number in range(plan.brokers)
        ]
    except BaseException:
        for sock in sockets:
            sock.close()
        raise


def _bind_address(option: str, address: Address) -> socket.socket:
    if not 0 <= address.port < 65_536:
        raise SettingsError(f"--{option}: there is no port {address.port}")
    try:
        return bind_socket(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            text = f"{address} is taken by another process; name another port with --{option}, or 0 for any"
            raise InUse(text) from None
        raise SettingsError(
            f"--{option} {address.port} at {address.host}: {error.strerror or error}"
        ) from None


def tls_context(plan: Plan) -> TlsContext | None:
    """Return the TLS context of a broker; None if it has no TLS port. Raises SettingsError.

    Without a certificate in the settings, one of pwire's own CA is used.
    """
    if plan.tls_port is None and plan.https_port is None:
        return None
    from pulsarctl_wire.net.certificates import make_server_context

    settings = plan.settings
    return make_server_context(
        settings.tlsCertificateFilePath or None,
        settings.tlsKeyFilePath or None,
        ca_directory=None,
        names=[plan.advertised, plan.host],
        client_ca=settings.tlsTrustCertsFilePath or None,
        client_optional=not settings.tlsRequireTrustedClientCertOnConnect,
        protocols=settings.tlsProtocols,
        keylog=plan.keylog,
    )


def parse_listeners(settings: Settings) -> dict[str, tuple[str, str]]:
    """Return the listeners in advertisedListeners, the internal one first: name -> plain and TLS URL.

    Raises SettingsError.
    """
    listeners: dict[str, list[str]] = {}
    for text in filter(None, map(str.strip, settings.advertisedListeners.split(","))):
        name, _, url = text.partition(":")
        parts = urlsplit(url)
        if not name or parts.scheme not in ("pulsar", "pulsar+ssl") or not parts.netloc:
            raise SettingsError(f"advertisedListeners={text[:200]}: use NAME:pulsar://HOST:PORT")
        listeners.setdefault(name, ["", ""])[parts.scheme == "pulsar+ssl"] = url
    internal_name = settings.internalListenerName
    if internal_name and internal_name not in listeners:
        raise SettingsError(f"internalListenerName={internal_name}: it must be in advertisedListeners")
    names = sorted(listeners, key=lambda name: name != internal_name)  # stable
    return {name: (listeners[name][0], listeners[name][1]) for name in names}


def read_keys(settings: Settings) -> Keys:
    """Read the keys for checking credentials, which the settings name. Raises SettingsError.

    As in Pulsar, a setting is the path of a file, a URL (file:, data:), or the key itself in base64;
    basicAuthConf may also be the password lines themselves.
    """
    passwords = settings.basicAuthConf
    public = _read_key("tokenPublicKey", settings.tokenPublicKey)
    if public and not public.startswith(b"-----"):  # Pulsar's own tools write DER
        body = base64.encodebytes(public).decode()
        public = f"-----BEGIN PUBLIC KEY-----\n{body}-----END PUBLIC KEY-----\n".encode()
    return Keys(
        token_secret=_read_key("tokenSecretKey", settings.tokenSecretKey),
        token_public=public,
        passwords=_read_key("basicAuthConf", passwords, is_text_allowed=True).decode("utf-8", "replace"),
    )


def _read_key(name: str, text: str, *, is_text_allowed: bool = False) -> bytes:
    try:
        if text.startswith("data:"):
            head, _, data = text.partition(",")
            return base64.b64decode(data) if head.endswith(";base64") else unquote_to_bytes(data)
        if text.startswith("file:"):
            return Path(unquote(urlsplit(text).path)).read_bytes()
        if not text or os.path.exists(text):  # unlike Path.exists, False for what is too long for a path
            return Path(text).read_bytes() if text else b""
        return text.encode() if is_text_allowed and ":" in text else base64.b64decode(text, validate=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "neither a file nor base64"
        path = f"={text[:200]}" if text.startswith(("/", ".", "file:")) else ""  # else it may be a secret
        raise SettingsError(f"{name}{path}: {reason}") from None


def close_all(sockets: list[Sockets]) -> None:
    """Close the sockets that are open."""
    for item in sockets:
        item.close()


class Running:
    """A running broker or cluster, in the current event loop. Raises InUse, StorageError, SettingsError."""

    def __init__(
        self,
        plan: Plan,
        sockets: list[Sockets],
        *,
        tls: TlsContext | None = None,
        tap: Tap | None = None,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.plan = plan
        self.listeners = parse_listeners(plan.settings)
        if self.listeners and plan.brokers > 1:
            raise SettingsError("advertisedListeners needs a single broker: each has addresses of its own")
        self._sockets = sockets
        self._tls = tls
        self._note = note
        keys = read_keys(plan.settings)
        storage = Memory() if plan.data is None else Sqlite(plan.data)
        try:
            self.server = Server(plan.settings, storage, plan.brokers, keys, tap=tap, note=note)
        except BaseException:
            storage.close()
            raise
        for text in self.server.cluster.access.find_gaps():
            note(text)
        self.server.ports = self
        self._change_lock = asyncio.Lock()
        self._load_tasks: set[asyncio.Task[None]] = set()
        self._cleanup_tasks: set[asyncio.Task[None]] = set()
        self._admin_sites: list[tuple[Broker, Any]] = []

    @property
    def brokers(self) -> list[Broker]:
        """The brokers, which know their URLs."""
        return self.server.cluster.brokers

    @property
    def port(self) -> int:
        """The port of the first broker's binary protocol."""
        port: int = self._sockets[0].plain.getsockname()[1]
        return port

    async def open(self) -> None:
        """Start serving. Raises SettingsError if a partitioned topic cannot be created."""
        for topic, partitions in self.plan.partitions.items():
            await self.server.run(self._ensure_partitioned(topic, partitions))
        for broker in self.brokers:
            self._open_ports(broker)
        if self.listeners:
            (broker,) = self.brokers
            broker.listeners = self.listeners
            broker.service_url, broker.service_url_tls = next(iter(self.listeners.values()))

    def _open_ports(self, broker: Broker) -> None:
        plain, http, tls, https = self._sockets[broker.number]
        host = self.plan.advertised
        self.server.listen(broker, plain, host=host)
        broker.http_url = f"http://{Address(host, http.getsockname()[1])}"
        if tls is not None:
            self.server.listen(broker, tls, self._tls, host)
        if https is not None:
            broker.https_url = f"https://{Address(host, https.getsockname()[1])}"
        for sock, context in ((http, None), (https, self._tls)):
            if sock is not None:
                sock.listen(BACKLOG)
                asyncio.get_running_loop().add_reader(sock, self._on_first_connection, broker, sock, context)

    async def _close_ports(self, broker: Broker) -> None:
        await asyncio.gather(*self._load_tasks, return_exceptions=True)
        await self.server.stop_listening(broker)
        for sock in self._sockets[broker.number]:
            if sock is not None and sock.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(sock)
        for owner, runner in list(self._admin_sites):
            if owner is broker:
                self._admin_sites.remove((owner, runner))
                for site in list(runner.sites):
                    await site.stop()
                _spawn(runner.cleanup(), self._cleanup_tasks)  # may wait for the current request

    # -- brokers of a cluster

    async def kill(self, broker: Broker) -> None:
        """Kill a broker: cut its connections, and close its ports."""
        async with self._change_lock:
            sockets = self._sockets[broker.number]
            addresses = [None if sock is None else Address(*sock.getsockname()[:2]) for sock in sockets]
            self.server.cluster.kill(broker)
            self.server.flush()
            await self._close_ports(broker)
            sockets.close()
            new_sockets: list[Any] = [
                address and bind_socket(address, listening=False) for address in addresses
            ]
            self._sockets[broker.number] = Sockets(*new_sockets)  # they keep the ports for `start`

    async def start(self, broker: Broker) -> None:
        """Start a broker that was killed, at the same ports."""
        async with self._change_lock:
            if not broker.alive:
                self.server.cluster.start(broker)
                self._open_ports(broker)

    async def _ensure_partitioned(self, topic: str, partitions: int) -> None:
        """Create a partitioned topic, or add partitions, so that it has this many. Raises SettingsError."""
        cluster = self.server.cluster
        try:
            name = parse_topic(topic)
        except InvalidName as error:
            raise SettingsError(f"{topic}={partitions}: {error}") from None
        tenant, _, _ = name.namespace.partition("/")
        namespaces = cluster.namespaces
        if tenant not in namespaces.tenants:
            cluster_name = self.plan.settings.clusterName
            namespaces.create_tenant(tenant, {"adminRoles": [], "allowedClusters": [cluster_name]})
        if not namespaces.exists(name.namespace):
            namespaces.create(name.namespace, {})
        if name.full in namespaces.topics:
            raise SettingsError(f"{topic}={partitions}: this topic exists, and is not partitioned")
        current = namespaces.count_partitions(name)
        if current > partitions:
            raise SettingsError(
                f"{topic}={partitions}: it has {current} partitions, and can have more but not fewer"
            )
        if current < partitions:
            await cluster.catalogue.create_partitioned(name, partitions)
        await cluster.journal.sync()

    # -- the admin API

    def _on_first_connection(self, broker: Broker, sock: socket.socket, tls: TlsContext | None) -> None:
        """Load the admin API and serve it at a socket, on the first connection."""
        asyncio.get_running_loop().remove_reader(sock)
        _spawn(self._serve_admin(broker, sock, tls), self._load_tasks)

    async def _serve_admin(self, broker: Broker, sock: socket.socket, tls: TlsContext | None) -> None:
        try:
            serve = import_module(_ADMIN).serve_http
            self._admin_sites.append((broker, await serve(self.server, broker, sock, ssl_context=tls)))
        except Exception as error:  # nobody awaits this task
            self._note(f"the admin API cannot be served: {error}")
            sock.close()

    # -- the end

    async def close(self) -> None:
        """Stop serving; what was received is stored."""
        for broker in self.brokers:
            await self._close_ports(broker)
        await asyncio.gather(*self._cleanup_tasks, return_exceptions=True)
        await self.server.close()
        close_all(self._sockets)


def _spawn(coroutine: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
    """Run a coroutine in a task that is in `tasks` until it is done."""
    task = asyncio.get_running_loop().create_task(coroutine)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
