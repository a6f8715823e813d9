"""A TCP connection from its SYN to its FIN or RST: which side is the broker, who ended it, and how."""

from typing import TYPE_CHECKING

from pulsarctl_wire.wire.commands import TO_BROKER
from pulsarctl_wire.wire.ending import CLOSED, OPEN, PULSAR, REFUSED, RESET, UNANSWERED, UNKNOWN, Ending
from pulsarctl_wire.wire.frame import Event, Frame

if TYPE_CHECKING:
    from pulsarctl_wire.capture.halves import Half, Tcp


class Life:
    """What is noted of a connection while it is followed. Segments that only carry data change nothing."""

    __slots__ = ("accepted", "by_first", "end", "end_ns", "packet", "reset", "syns", "time_ns")

    def __init__(self, time_ns: int | None, packet: int) -> None:
        self.time_ns = time_ns  # of its first packet
        self.packet = packet
        self.syns = 0  # of the client, those sent again included
        self.accepted = False  # the broker's SYN was seen
        self.end = OPEN
        self.end_ns: int | None = None
        self.by_first: bool | None = None  # whether the half that was seen first sent the first FIN or RST
        self.reset = False


def note_end(half: "Half", *, reset: bool) -> None:
    """A half has sent FIN or RST. The first of them says who has ended the connection."""
    tcp = half.tcp
    life: Life = tcp.life
    life.reset |= reset
    if life.by_first is None:
        life.by_first = half is tcp.half
        life.end = RESET if reset else CLOSED
        life.end_ns = tcp.last_ns


def ending(tcp: "Tcp") -> Ending:
    """What became of a connection. Its streams have ended."""
    life: Life = tcp.life
    first, second = tcp.half, tcp.half.other
    client, broker = (first, second) if first.stream.to_broker else (second, first)
    sizes = broker.stream.position, client.stream.position
    end = life.end
    by_broker = None if life.by_first is None else life.by_first is (broker is first)
    if life.syns and not life.accepted:
        if end == RESET and by_broker and not any(sizes):
            end = REFUSED
        elif not broker.begun:
            end, by_broker = UNANSWERED, None
    protocol = client.stream.protocol or broker.stream.protocol or (UNKNOWN if any(sizes) else None)
    if client.stream.spoke or broker.stream.spoke:
        protocol = PULSAR
    return Ending(
        connection=first.stream.connection,
        session=tcp.session,
        packet=life.packet,
        time_ns=life.time_ns,
        last_ns=tcp.last_ns,
        syns=life.syns,
        joined=not (life.syns or life.accepted),
        end=end,
        by_broker=by_broker,
        end_ns=None if by_broker is None else life.end_ns,
        both=life.reset or min(client.fin, broker.fin) >= 0,
        protocol=protocol,
        sizes=sizes,
    )


def learn_direction(tcp: "Tcp", events: list[Event]) -> None:
    """Let the commands say which side is the broker, where no SYN did."""
    for event in events:
        right = TO_BROKER.get(event.type) if isinstance(event, Frame) else None
        if right is None:
            continue
        if right is not event.to_broker:
            connection = event.connection
            connection.client, connection.server = connection.server, connection.client
            connection.flipped = not connection.flipped
            for half in (tcp.half, tcp.half.other):
                half.stream.to_broker = not half.stream.to_broker
            for other in events:
                other.to_broker = not other.to_broker
        tcp.certain = tcp.half.stream.certain = tcp.half.other.stream.certain = True
        return
