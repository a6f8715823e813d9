"""How a TCP connection ended, according to its packets: who ended it, how, and which protocol it carried."""

from collections import Counter
from typing import Any, Final, NamedTuple

from pulsarctl_wire.wire.frame import Connection, Event, Frame
from pulsarctl_wire.wire.ranges import Count, Nanoseconds
from pulsarctl_wire.wire.session.greeting import CONNECT, CONNECTED, Greeting
from pulsarctl_wire.wire.session.state import State

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
"""How many server addresses of each kind `WithoutData` remembers."""

_LONG_AFTER: Final = 1_000_000_000  # ns
_NAMED: Final = 3  # how many servers of a kind `without_data_in_words` names
_STILL_OPEN: Final = {
    OPEN: "still open when the capture ends",
    REUSED: "still open when its addresses were used again",
    DROPPED: "not followed to its end: too many connections were open",
}
_KINDS: Final = {UNANSWERED: "never answered", REFUSED: "refused", EMPTY: "without a byte"}


class LifeState(NamedTuple):
    """A `Life` (capture/halves.py), or the later part of one, as plain data.

    `by_second`: the second half, in the order of keys, has ended it.
    """

    syns: Count
    accepted: bool
    end: str
    end_ns: Nanoseconds | None
    by_second: bool | None
    reset: bool
    last_ns: Nanoseconds | None
    copies: Count
    copied_ns: Nanoseconds | None
    also: list[bytes]


class EndedConnection(NamedTuple):
    """A connection that ended, or is no longer followed. Times are ns since the epoch, or None."""

    connection: Connection
    state: State | None
    """The state that tracked its frames; None where connections are only counted, to save memory."""
    packet: int
    """Number of its first packet."""
    time_ns: int | None
    """When its first packet was captured."""
    last_ns: int | None
    """When its last packet up to its end was captured."""
    syns: int
    """The client's SYNs, retransmissions included; 0 if none was captured."""
    joined: bool
    """Neither side's SYN was captured: the connection was joined midway."""
    end: str
    """`UNANSWERED` or `REFUSED`; `CLOSED` or `RESET` by the first FIN or RST; `OPEN` if the capture ended
    first, `REUSED` if a new connection used its addresses, `DROPPED` if too many connections were open.
    """
    by_broker: bool | None
    """Whether the broker sent the first FIN or RST; None if neither side sent one, or if `UNANSWERED`."""
    end_ns: int | None
    """When the first FIN or RST was captured; None if `by_broker` is None."""
    both: bool
    """Both sides closed it, or one side reset it."""
    protocol: str | None
    """`PULSAR`, another protocol (TLS, HTTP, SSH) or `UNKNOWN`; None if neither side sent a byte."""
    sizes: tuple[int, int]
    """Bytes sent to the client and to the broker, lost ones included."""
    copies: int = 0
    """Its packets that were captured again: on a bridge, or before or after NAT."""
    copied_ns: int | None = None
    """When the last copy whose addresses NAT has changed was captured."""
    also: tuple[tuple[str, str], ...] = ()
    """The client's and the broker's address in those copies whose addresses NAT has changed."""

    @property
    def has_longer_copy(self) -> bool:
        """Whether a copy has packets long after this connection: one side of NAT was captured longer."""
        last_ns, copied_ns = self.last_ns, self.copied_ns
        return last_ns is not None and copied_ns is not None and copied_ns - last_ns > _LONG_AFTER

    @property
    def how(self) -> str:
        """How the connection ended, in words. Every command shows this same text."""
        if self.end == UNANSWERED:
            return f"SYN sent {'once' if self.syns == 1 else f'{self.syns} times'}, never answered"
        if self.end == REFUSED:
            return f"refused (reset by {self.connection.server})"
        text = _STILL_OPEN.get(self.end)
        if text is None:
            first, second = ("broker", "client") if self.by_broker else ("client", "broker")
            text = f"{self.end} by {first}" + ("" if self.both else f", but not by {second}")
            text += self._describe_notice()
        return f"{text}, joined midway" if self.joined else text

    def _describe_notice(self) -> str:
        """Return ", without close_notify" if TLS was closed that way, as far as its records were read."""
        tls = self.connection.tls
        if tls is None or self.end != CLOSED:
            return ""
        sender = tls.server if bool(self.by_broker) is not self.connection.flipped else tls.client
        return "" if sender.has_close_notify or not sender.records else ", without close_notify"


class Contents(State):
    """A state that counts its connection's events, and keeps its `greeting`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._counts: Counter[tuple[type[Event], bool]] = Counter()
        self.greeting = Greeting()

    def track(self, events: list[Event]) -> None:
        """Count `events`, then track them as every state does."""
        flipped = self.connection.flipped
        for event in events:
            self._counts[event.__class__, event.to_broker is not flipped] += 1
            if isinstance(event, Frame) and event.type in (CONNECT, CONNECTED):
                self.greeting = self.greeting.merge(event)
        super().track(events)

    def count(self, kind: type[Event]) -> tuple[int, int]:
        """Return how many events of this kind went to the client, and how many to the broker."""
        flipped = self.connection.flipped
        return self._counts[kind, flipped], self._counts[kind, not flipped]


class WithoutData:
    """Counts the connections on which neither side sent a byte, and remembers some of their servers.

    The counts of several captures, or of parts of one, can be merged in any order.
    """

    def __init__(self) -> None:
        self._counts = dict.fromkeys(_KINDS, 0)
        self._servers: dict[str, dict[str, int]] = {kind: {} for kind in _KINDS}  # server -> first packet

    def add(self, ending: EndedConnection) -> None:
        """Count a connection if it carried no data."""
        if ending.protocol is None:
            kind = ending.end if ending.end in _KINDS else EMPTY
            self._counts[kind] += 1
            self._remember_server(kind, ending.connection.server, ending.packet)

    def merge(self, other: "WithoutData") -> None:
        """Add the counts of `other`."""
        for kind, servers in other._servers.items():
            self._counts[kind] += other._counts[kind]
            for server, packet in servers.items():
                self._remember_server(kind, server, packet)

    def _remember_server(self, kind: str, server: str, packet: int) -> None:
        """Remember a server. If there are too many, the ones that appear first in the capture are kept."""
        servers = self._servers[kind]
        servers[server] = min(packet, servers.get(server, packet))
        if len(servers) > SERVERS:
            del servers[max(servers, key=servers.__getitem__)]

    def records(self) -> list[dict[str, Any]]:
        """Return the counts as plain values: `end`, number of `connections`, and their first `servers`."""
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
    """Return the records of `WithoutData` as one line; empty if there are none."""
    texts = []
    for record in records:
        servers = [*record["servers"][:_NAMED], *(["…"] if len(record["servers"]) > _NAMED else [])]
        texts.append(f"{record['connections']} {_KINDS[record['end']]} ({', '.join(servers)})")
    return ", ".join(texts)
