"""Decides which addresses clients get from the proxy, and which brokers their connections lead to.

A client learns brokers' addresses from answers, and would connect to them directly, past the proxy. There are
three ways to handle that:

    LISTENERS  each broker gets a listener, and answers to clients name the listener's address
    CONNECT    answers say that there is a proxy (proxy_through_service_url): clients keep its URL, and name
               the broker in CONNECT (proxy_to_broker_url). Redirects and migrations, which no client follows
               through a proxy, still get listeners
    NONE       addresses are left as they are

A broker may itself be behind a Pulsar proxy: then its route has that proxy's address and the broker's name,
which we put into CONNECT. This module only decides; the sockets are in `proxy.py`.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.net.settings import Address, ServiceUrl, parse_url
from pulsarctl_wire.wire.addresses import rewrite
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, CommandLookupTopicResponse

MAX_BROKERS: Final = 1_000
"""Maximum number of brokers; the addresses of further ones are not rewritten."""

LONGEST_ADDRESS: Final = 2_048
"""Maximum characters of a broker's two URLs in an answer; longer ones are not rewritten."""

_NAMING_OWNER: Final = frozenset(
    (BaseCommand.LOOKUP_RESPONSE, BaseCommand.CLOSE_PRODUCER, BaseCommand.CLOSE_CONSUMER)
)
"""Commands that name the broker of a topic: the one that clients can reach through a proxy."""


class Routing(str, Enum):
    """Which addresses of brokers clients get from the proxy."""

    LISTENERS = "listeners"
    CONNECT = "connect"
    NONE = "none"


@dataclass(frozen=True)
class Route:
    """Where a connection leads: `addresses` to be tried in turn, `proxy_to` a broker behind them or ""."""

    addresses: tuple[Address, ...]
    proxy_to: str = ""

    def __str__(self) -> str:
        text = ",".join(map(str, self.addresses))
        return f"{self.proxy_to} through {text}" if self.proxy_to else text


class Answerer(NamedTuple):
    """The broker that sent an answer: its address before `dials` replaces it, and its IP address and port."""

    address: Address
    peer: str


@dataclass
class Router:
    """Decides which addresses clients get, and remembers the routes to the brokers named.

    `service` is the service URL behind the proxy, `tls` whether clients speak TLS with the proxy.
    `open_listener` returns the address of the listener for a route, and opens it if necessary; it raises
    OSError if that fails. `mapped` maps brokers' addresses to those that clients get instead. `ours` says
    whether an address is one of our listeners', which a broker may report as its own. `warn` is called once
    for each address that cannot be rewritten.
    """

    service: ServiceUrl
    routing: Routing
    tls: bool
    open_listener: Callable[[Route], Address]
    warn: Callable[[str], None]
    ours: Callable[[Address], bool] = lambda address: False
    mapped: Mapping[Address, Address] = field(default_factory=dict)
    routes: dict[str, Route] = field(default_factory=dict)
    """Brokers that answers have named ("host:port") -> the routes to them."""
    _warned: set[str] = field(default_factory=set)

    def rewrite(self, command: BaseCommand, answerer: Answerer, host: str | None) -> bool:
        """Rewrite the addresses in a broker's command; return whether any was changed.

        `host` is the host under which clients reach our listeners; None: the address they listen at.
        """
        if self.routing is Routing.NONE:
            return False
        lookup = command.lookupTopicResponse if command.type == BaseCommand.LOOKUP_RESPONSE else None
        is_proxied = lookup is not None and lookup.proxy_through_service_url
        # clients go through a proxy only to the broker that has their topic; others they dial directly
        redirects = lookup is not None and lookup.response == CommandLookupTopicResponse.Redirect
        keeps_address = self.routing is Routing.CONNECT and command.type in _NAMING_OWNER and not redirects
        is_known = False

        def change(plain: str, tls: str) -> tuple[str, str]:
            nonlocal is_known
            pair = self.replace(
                plain, tls, answerer, host, is_proxied=is_proxied, keeps_address=keeps_address
            )
            is_known |= pair is not None
            return pair or (plain, tls)

        is_changed = rewrite(command, change)
        if lookup is not None and is_known and is_proxied != keeps_address:
            lookup.proxy_through_service_url = keeps_address
            is_changed = True
        return is_changed

    def replace(
        self,
        plain: str,
        tls: str,
        answerer: Answerer,
        host: str | None,
        *,
        is_proxied: bool = False,
        keeps_address: bool = False,
    ) -> tuple[str, str] | None:
        """Return the URLs that clients get instead of a broker's two; None if they cannot be rewritten.

        `is_proxied`: the answerer is a proxy for the broker. With `keeps_address` only the route is stored.
        """
        first, second = (tls, plain) if self.service.tls else (plain, tls)
        broker = self._store_route(first or second, second, answerer, is_proxied)
        address = broker if keeps_address or broker is None else self._find_client_address(broker, host)
        if address is None:
            return None
        plain_url, tls_url = f"pulsar://{address}", f"pulsar+ssl://{address}"
        # of the two URLs a client uses the one that matches its own connection: TLS or not
        return (plain if keeps_address and plain else plain_url), (
            tls if keeps_address and tls else tls_url if tls or self.tls else ""
        )

    def _store_route(self, url: str, twin: str, answerer: Answerer, is_proxied: bool) -> Address | None:
        """Store the route to the broker at `url`. Return its address; None if it is invalid, or one too many.

        `twin` is its other address, if it has one: a client may later name the broker by its TLS address or
        by the other one, so the route is stored under both.
        """
        try:
            if len(url) + len(twin) > LONGEST_ADDRESS:
                raise SettingsError(f"it has more than {LONGEST_ADDRESS} characters")
            addresses = parse_url(url).addresses
            broker = addresses[0]
            names = {str(broker), *(map(str, parse_url(twin).addresses[:1]) if twin else ())}
        except SettingsError as error:
            self._warn(f"an address of a broker was not rewritten: {error}")
            return None
        if not names <= self.routes.keys() and len(self.routes) >= MAX_BROKERS:
            self._warn(f"more than {MAX_BROKERS} brokers were named; the others' addresses are not rewritten")
            return None
        self.routes.update(dict.fromkeys(names, self._make_route(addresses, answerer, is_proxied)))
        return broker

    def _find_client_address(self, broker: Address, host: str | None) -> Address | None:
        """Return the address that clients get in place of a broker's; None if no listener can be opened."""
        mapped = self.mapped.get(broker)
        if mapped is not None:
            return mapped
        try:
            listener = self.open_listener(self.routes[str(broker)])
        except OSError as error:
            self._warn(f"no listener for {broker} ({error.strerror or error}): its address is not rewritten")
            return None
        return Address(host or listener.host, listener.port)

    def _make_route(self, addresses: tuple[Address, ...], answerer: Answerer, is_proxied: bool) -> Route:
        broker = addresses[0]
        # a standalone broker claims to be behind a proxy; one in a container may name as its own the address
        # where we listen in its place
        if str(broker) in (str(answerer.address), answerer.peer) or self.ours(broker):
            return Route((answerer.address,))
        return Route((answerer.address,), str(broker)) if is_proxied else Route(addresses)

    def find(self, broker: str) -> Route | None:
        """Return the route to a broker that a client names in CONNECT; None if no answer has named it."""
        return self.routes.get(broker)

    def _warn(self, text: str) -> None:
        if text not in self._warned and len(self._warned) < MAX_BROKERS:
            self._warned.add(text)
            self.warn(text)


class AddressFilter:
    """Decides which of the addresses that brokers name may be dialled (`--allow-broker`).

    A broker, or an attacker in its place, can name any address. What is checked is the IP address about to be
    dialled, not an earlier lookup of its name. A rule is a network ("10.0.0.0/8"), an IP address, or a host
    name as brokers give it. Without rules all addresses are allowed except link-local ones (RFC 3927,
    RFC 4291 2.5.6), where clouds serve the machine's credentials; those are never allowed. Raises
    SettingsError for an invalid rule.
    """

    def __init__(self, rules: Iterable[str] = ()) -> None:
        self._networks: list[IPv4Network | IPv6Network] = []
        self._hosts: set[str] = set()
        for rule in rules:
            network = _parse_network(rule)
            if network is not None:
                self._networks.append(network)
            else:
                self._hosts.add(rule.lower())
        self._allows_all = not (self._networks or self._hosts)

    def __call__(self, host: str, ip: str) -> bool:
        """Return whether `ip`, with or without a zone ("%eth0"), may be dialled for the broker `host`."""
        address: IPv4Address | IPv6Address = ip_address(ip.partition("%")[0])
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if address.is_link_local:
            return False
        return (
            self._allows_all
            or host.lower() in self._hosts
            or any(address in network for network in self._networks)
        )


def _parse_network(rule: str) -> IPv4Network | IPv6Network | None:
    """Return the network of a rule; None if the rule is a host name. Raises SettingsError."""
    with suppress(ValueError):
        return ip_network(rule.strip("[]"), strict=False)
    if not rule or "/" in rule or ":" in rule:
        raise SettingsError(
            f"--allow-broker {rule}: give a network such as 10.0.0.0/8, an IP address or a host name"
        )
    return None
