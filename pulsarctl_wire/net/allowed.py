"""Where addresses that brokers name may lead: `--allow-broker`.

A broker, or whoever answers in its place, can name any address in a lookup's answer, a redirect or a
migration, and the proxy would connect to it from where it runs. Decided by IP addresses, as they are dialled:
what a name stood for a moment before does not count. Pure: names are looked up elsewhere.
"""

from collections.abc import Iterable
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from pulsarctl_wire.errors import SettingsError


class Allowed:
    """Tells which addresses may be dialled.

    A rule is a network ("10.0.0.0/8"), an IP address, or a host name as brokers give it. Without any all are
    allowed but for link-local ones (RFC 3927, RFC 4291 2.5.6), where clouds keep credentials of the machine;
    those are never allowed. Raises SettingsError for what is no rule.
    """

    def __init__(self, rules: Iterable[str] = ()) -> None:
        self._networks: list[IPv4Network | IPv6Network] = []
        self._hosts: set[str] = set()
        for rule in rules:
            network = _network(rule)
            if network is not None:
                self._networks.append(network)
            else:
                self._hosts.add(rule.lower())
        self._any = not (self._networks or self._hosts)

    def __call__(self, host: str, ip: str) -> bool:
        """Whether the IP address `ip`, of any zone ("%eth0"), may be dialled for a broker named `host`."""
        found: IPv4Address | IPv6Address = ip_address(ip.partition("%")[0])
        if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        if found.is_link_local:
            return False
        return self._any or host.lower() in self._hosts or any(found in network for network in self._networks)


def _network(rule: str) -> IPv4Network | IPv6Network | None:
    """The network that a rule means; None if it is a host name. Raises SettingsError."""
    with suppress(ValueError):
        return ip_network(rule.strip("[]"), strict=False)
    if not rule or "/" in rule or ":" in rule:
        wanted = "a network such as 10.0.0.0/8, an IP address or a host name"
        raise SettingsError(f"--allow-broker {rule}: {wanted} is wanted")
    return None
