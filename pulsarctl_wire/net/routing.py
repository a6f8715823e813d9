"""Where clients are sent and where their connections lead: the addresses of a cluster seen through the proxy.

A client learns brokers' addresses from answers, and would leave the proxy for them. Three ways with that:

    LISTENERS  each broker gets a listener of its own, and clients are told its address
    CONNECT    clients are told that they stand before a proxy (proxy_through_service_url): they keep its URL,
               and name the broker in CONNECT (proxy_to_broker_url). For redirects and migrations, which no
               client follows through a proxy, there are listeners as well
    NONE       addresses are left as they are

A broker may itself stand behind a Pulsar proxy: then its route is that proxy's address with the broker's
name, which is put into CONNECT on the way. Pure decisions: sockets are `proxy.py`'s.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.net.settings import Address, ServiceUrl, parse_url
from pulsarctl_wire.wire.addresses import rewrite
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, CommandLookupTopicResponse

MOST_BROKERS: Final = 1_000
"""Brokers that are told apart; a cluster that names more is not believed."""

LONGEST_ADDRESS: Final = 2_048
"""Characters of an address in an answer; a longer one is not looked at."""

_KEPT: Final = frozenset(
    (BaseCommand.LOOKUP_RESPONSE, BaseCommand.CLOSE_PRODUCER, BaseCommand.CLOSE_CONSUMER)
)


class Routing(str, Enum):
    """How clients are kept behind the proxy."""

    LISTENERS = "listeners"
    CONNECT = "connect"
    NONE = "none"


@dataclass(frozen=True)
class Route:
    """Whom a connection leads to: `addresses` to be tried in turn, `proxy_to` a broker behind them or ""."""

    addresses: tuple[Address, ...]
    proxy_to: str = ""

    def __str__(self) -> str:
        to = ",".join(map(str, self.addresses))
        return f"{self.proxy_to} by way of {to}" if self.proxy_to else to


class Asked(NamedTuple):
    """Who gave an answer: its address as it was dialled, and its IP address and port."""

    address: Address
    peer: str


@dataclass
class Router:
    """Decides where clients are sent.

    `service` is the service URL beyond the proxy, `tls` whether clients speak TLS with it. `listener` opens
    a listener that leads along a route, or finds it, and gives the address it has; it raises OSError if that
    cannot be. `told` are addresses that clients are told in place of brokers', whoever listens there. `ours`
    tells our listeners' addresses, which a broker may have for its own. `warn` is told once of what cannot be
    rewritten.
    """

    service: ServiceUrl
    routing: Routing
    tls: bool
    listener: Callable[[Route], Address]
    warn: Callable[[str], None]
    ours: Callable[[Address], bool] = lambda address: False
    told: Mapping[Address, Address] = field(default_factory=dict)
    routes: dict[str, Route] = field(default_factory=dict)
    """Brokers that answers have named ("host:port") -> how they are reached."""
    _warned: set[str] = field(default_factory=set)

    def rewrite(self, command: BaseCommand, asked: Asked, host: str | None) -> bool:
        """Change the addresses in what a broker says; whether any was changed.

        `host` is the one that clients know our listeners by; None: by the address they listen at.
        """
        if self.routing is Routing.NONE:
            return False
        lookup = command.lookupTopicResponse if command.type == BaseCommand.LOOKUP_RESPONSE else None
        through = lookup is not None and lookup.proxy_through_service_url
        # clients keep to a proxy for where it told them that a topic is; all else they dial themselves
        redirects = lookup is not None and lookup.response == CommandLookupTopicResponse.Redirect
        kept = self.routing is Routing.CONNECT and command.type in _KEPT and not redirects
        known = False

        def change(plain: str, tls: str) -> tuple[str, str]:
            nonlocal known
            first, other = (tls, plain) if self.service.tls else (plain, tls)
            broker = self._broker(first or other, other, asked, through)
            address = broker if kept or broker is None else self._told(broker, host)
            if address is None:
                return plain, tls
            known = True
            own, own_tls = f"pulsar://{address}", f"pulsar+ssl://{address}"
            # of the two the client takes the one for the way it has come
            return (plain if kept and plain else own), (
                tls if kept and tls else own_tls if tls or self.tls else ""
            )

        changed = rewrite(command, change)
        if lookup is not None and known and through != kept:
            lookup.proxy_through_service_url = kept
            changed = True
        return changed

    def _broker(self, url: str, twin: str, asked: Asked, through: bool) -> Address | None:
        """The broker at `url`, and the way to it remembered; None if it is no URL, or one too many.

        `twin` is its other address, if it has one: clients that come by TLS and those that do not may each
        name it by their own.
        """
        try:
            if len(url) + len(twin) > LONGEST_ADDRESS:
                raise SettingsError(f"it has more than {LONGEST_ADDRESS} characters")
            addresses = parse_url(url).addresses
            broker = addresses[0]
            names = {str(broker), *(map(str, parse_url(twin).addresses[:1]) if twin else ())}
        except SettingsError as error:
            self._warn(f"an address of the broker's was not rewritten: {error}")
            return None
        if not names <= self.routes.keys() and len(self.routes) >= MOST_BROKERS:
            self._warn(
                f"more than {MOST_BROKERS} brokers were named; the others' addresses are not rewritten"
            )
            return None
        self.routes.update(dict.fromkeys(names, self._route(addresses, asked, through)))
        return broker

    def _told(self, broker: Address, host: str | None) -> Address | None:
        """The address that clients are told in place of a broker's; None if there can be no listener."""
        told = self.told.get(broker)
        if told is not None:
            return told
        try:
            listener = self.listener(self.routes[str(broker)])
        except OSError as error:
            self._warn(f"no listener for {broker} ({error.strerror or error}): its address is not rewritten")
            return None
        return Address(host or listener.host, listener.port)

    def _route(self, addresses: tuple[Address, ...], asked: Asked, through: bool) -> Route:
        broker = addresses[0]
        # a standalone broker says of itself that it is behind a proxy; one in a container may name the very
        # address that we listen at in its place
        if str(broker) in (str(asked.address), asked.peer) or self.ours(broker):
            return Route((asked.address,))
        return Route((asked.address,), str(broker)) if through else Route(addresses)

    def find(self, broker: str) -> Route | None:
        """The route to a broker that a client names in CONNECT; None unless an answer named it before."""
        return self.routes.get(broker)

    def _warn(self, text: str) -> None:
        if text not in self._warned and len(self._warned) < MOST_BROKERS:
            self._warned.add(text)
            self.warn(text)
