"""The core of the embedded broker: one or more brokers over one storage. Pure.

    connect, receive, disconnect, set_writable     what clients do
    stored, was_read                               what storage did
    wake                                           time has passed

Each call makes the core do everything that it can do now. Then the owner carries out what the core wants:

    touched            connections with bytes to send (`out`), to be closed (`closed`), or to be read no
                       further for a while (`throttled`)
    journal            `take_commit` and `take_reads`
    wake_at            when `wake` must be called
"""

from collections.abc import Iterable, Mapping
from functools import partial

from pulsarctl_wire.broker.basics.settings import Settings
from pulsarctl_wire.broker.clients.connection import Connection
from pulsarctl_wire.broker.cluster import housekeeping
from pulsarctl_wire.broker.cluster.cluster import NO_KEYS, Broker, Cluster
from pulsarctl_wire.broker.handlers import HANDLERS
from pulsarctl_wire.broker.tenancy.access import Keys
from pulsarctl_wire.wire.frame import Frame


class Core(Cluster):
    """A cluster that clients and storage talk to; the arguments are those of `Cluster`."""

    def __init__(
        self,
        settings: Settings,
        rows: Iterable[tuple[str, str, str]] = (),
        ends: Mapping[int, int] | None = None,
        brokers: int = 1,
        keys: Keys = NO_KEYS,
        now: tuple[int, int] = (0, 0),
    ) -> None:
        super().__init__(settings, rows, ends, brokers, keys, now)
        for broker in self.brokers:
            housekeeping.start(broker)
        self._handlers = [
            {number: partial(handler, broker) for number, handler in HANDLERS.items()}
            for broker in self.brokers
        ]
        self._connections = 0

    def set_time(self, ticks: int, time_ns: int) -> None:
        """The time is now this: ns of a clock that never goes back, and ns since the epoch."""
        self.scheduler.set_time(ticks, time_ns)

    def connect(self, broker: Broker, client: str, *, certificate: str = "") -> Connection:
        """A client at the address `client` has connected; its certificate, if any, has this common name."""
        self._connections += 1
        handlers = self._handlers[broker.number]
        connection = Connection(broker, handlers, self._connections, client, certificate)
        broker.accept(connection)
        self.scheduler.run()
        return connection

    def receive(self, connection: Connection, frame: Frame) -> None:
        """A client has sent a frame; call `wake` after the last of those that came together."""
        connection.receive(frame)

    def disconnect(self, connection: Connection) -> None:
        """The connection has ended."""
        connection.lost()
        for broker in self.brokers:
            broker.connections.pop(connection.number, None)
        self.scheduler.run()

    def set_writable(self, connection: Connection, writable: bool) -> None:
        """Whether the connection takes more bytes now; call `wake` afterwards."""
        connection.set_writable(writable)

    def stored(self) -> None:
        """The oldest commit that was taken is durable."""
        self.journal.stored()
        self.scheduler.run()

    def was_read(self, number: int, entries: list[tuple[int, bytes]]) -> None:
        """A read is done."""
        self.journal.was_read(number, entries)
        self.scheduler.run()

    def wake(self) -> None:
        """Do what is due."""
        self.scheduler.run()

    @property
    def wake_at(self) -> int | None:
        """When `wake` must be called, and a commit taken (ticks)."""
        times = [at for at in (self.scheduler.wake_at, self.journal.wake_at) if at is not None]
        return min(times, default=None)

    def take_touched(self) -> list[Connection]:
        """The connections that the owner must look at."""
        touched, self.touched = list(self.touched), {}
        return touched
