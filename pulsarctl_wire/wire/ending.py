"""What became of a TCP connection: who opened it, who ended it, and what it spoke, as its packets tell."""

from collections import Counter
from typing import Any, Final, NamedTuple

from pulsarctl_wire.wire.commands import NUMBERS
from pulsarctl_wire.wire.credentials import is_doubtful
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Connection, Event, Frame
from pulsarctl_wire.wire.session import CONNECTED, Session

UNANSWERED: Final = "unanswered"
REFUSED: Final = "refused"
CLOSED: Final = "closed"
RESET: Final = "reset"
OPEN: Final = "open"
REUSED: Final = "reused"
DROPPED: Final = "dropped"
EMPTY: Final = "empty"

PULSAR: Final = "Pulsar"
UNKNOWN: Final = "unknown"

SERVERS: Final = 10
"""Addresses of a kind that `WithoutData` remembers."""

_NAMED: Final = 3  # of them, in words
_LONGEST: Final = 2_048  # characters of a name that are kept
_HANDSHAKE: Final = {NUMBERS["CONNECT"], CONNECTED}
_STILL_OPEN: Final = {
    OPEN: "still open when the capture ends",
    REUSED: "still open when its addresses were used again",
    DROPPED: "not followed to its end: too many connections were open",
}
_KINDS: Final = {UNANSWERED: "never answered", REFUSED: "refused", EMPTY: "without a byte"}


class Ending(NamedTuple):
    """A connection that has ended, or of which no more is known. Times are ns since the epoch, or None."""

    connection: Connection
    session: Session
    """What followed its frames."""
    packet: int
    """Number of its first packet."""
    time_ns: int | None
    """When that was captured."""
    last_ns: int | None
    """When its last packet up to its end was captured."""
    syns: int
    """SYNs of the client, those sent again included; 0 where none was captured."""
    joined: bool
    """Neither side's SYN was captured: it was open before."""
    end: str
    """`UNANSWERED` or `REFUSED`; `CLOSED` or `RESET`, as the first FIN or RST says; `OPEN` when the capture
    ends, `REUSED` when another connection came on its addresses, `DROPPED` when too many were open.
    """
    by_broker: bool | None
    """Whether the broker sent the first FIN or RST; None where nobody sent one."""
    end_ns: int | None
    """When the first FIN or RST was captured."""
    both: bool
    """Both sides have closed it, or one has reset it."""
    protocol: str | None
    """`PULSAR`, another one (TLS, HTTP, SSH) or `UNKNOWN`; None if neither side sent a byte."""
    sizes: tuple[int, int]
    """Bytes sent to the client and to the broker, lost ones included."""

    @property
    def how(self) -> str:
        """How it went, in words: the same wherever they are shown."""
        if self.end == UNANSWERED:
            return f"SYN sent {'once' if self.syns == 1 else f'{self.syns} times'}, never answered"
        if self.end == REFUSED:
            return f"refused (reset by {self.connection.server})"
        said = _STILL_OPEN.get(self.end)
        if said is None:
            one, other = ("broker", "client") if self.by_broker else ("client", "broker")
            said = f"{self.end} by {one}" + ("" if self.both else f", but not by {other}")
        return f"{said}, joined midway" if self.joined else said


class Contents(Session):
    """A session that counts what its connection carries, and knows who its client is."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._counts: Counter[tuple[type[Event], bool]] = Counter()
        self.client_version: str | None = None
        self.proxy_to_broker_url: str | None = None
        """Of CONNECT: where the client, which is a proxy or behind one, wants to be led."""
        self.protocol_version: int | None = None
        """Of CONNECTED."""

    def track(self, events: list[Event]) -> None:
        """Count `events`, and do what a session does with them."""
        flipped = self.connection.flipped
        for event in events:
            self._counts[event.__class__, event.to_broker is not flipped] += 1
            if isinstance(event, Frame) and event.type in _HANDSHAKE and not is_doubtful(event):
                self._greet(event.body)
        super().track(events)

    def _greet(self, body: Any) -> None:
        if body is None:
            return
        if body.DESCRIPTOR.name == "CommandConnected":
            self.protocol_version = body.protocol_version
        else:
            self.client_version = as_text(body.client_version[:_LONGEST])
            if body.HasField("proxy_to_broker_url"):
                self.proxy_to_broker_url = as_text(body.proxy_to_broker_url[:_LONGEST])

    def count(self, kind: type[Event]) -> tuple[int, int]:
        """How many events of a kind went to the client and to the broker."""
        flipped = self.connection.flipped
        return self._counts[kind, flipped], self._counts[kind, not flipped]


class WithoutData:
    """Counts the connections on which nobody sent a byte, and remembers some of their servers.

    Those of several captures, or of parts of one, can be added up in any order.
    """

    def __init__(self) -> None:
        self._counts = dict.fromkeys(_KINDS, 0)
        self._servers: dict[str, dict[str, int]] = {kind: {} for kind in _KINDS}  # and their first packets

    def add(self, ending: Ending) -> None:
        """Count a connection if it carried nothing."""
        if ending.protocol is None:
            kind = ending.end if ending.end in _KINDS else EMPTY
            self._counts[kind] += 1
            self._name(kind, ending.connection.server, ending.packet)

    def merge(self, other: "WithoutData") -> None:
        """Add the counts of `other`."""
        for kind, servers in other._servers.items():
            self._counts[kind] += other._counts[kind]
            for server, packet in servers.items():
                self._name(kind, server, packet)

    def _name(self, kind: str, server: str, packet: int) -> None:
        """Keep the servers that come first in the capture."""
        servers = self._servers[kind]
        servers[server] = min(packet, servers.get(server, packet))
        if len(servers) > SERVERS:
            del servers[max(servers, key=servers.__getitem__)]

    def records(self) -> list[dict[str, Any]]:
        """The counts as plain values: `end`, `connections`, and the first of their `servers`."""
        return [
            {
                "end": kind,
                "connections": count,
                "servers": sorted(self._servers[kind], key=self._servers[kind].__getitem__),
            }
            for kind, count in self._counts.items()
            if count
        ]


def without_data_in_words(records: list[dict[str, Any]]) -> str:
    """The records of `WithoutData` as one line; empty if there are none."""
    said = []
    for each in records:
        servers = [*each["servers"][:_NAMED], *(["…"] if len(each["servers"]) > _NAMED else [])]
        said.append(f"{each['connections']} {_KINDS[each['end']]} ({', '.join(servers)})")
    return ", ".join(said)
