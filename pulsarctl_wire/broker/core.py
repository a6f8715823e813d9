"""The core of the embedded broker: one or more brokers over one storage. Pure.

    connect, receive, disconnect, set_writable     what clients do
    on_stored, on_read                             what storage did
    wake                                           time has passed

Each call does all that can be done now; only `receive` and `set_writable` leave it to `wake`. Then the owner
of the core looks at:

    take_touched       connections with bytes to send (`out`), to be closed (`closed`), or from which reading
                       must pause or resume (`throttled`)
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
        self._connection_count = 0

    def set_time(self, ticks: int, time_ns: int) -> None:
        """Set the time: ns of a monotonic clock, and ns since the epoch."""
        self.scheduler.set_time(ticks, time_ns)

    def connect(self, broker: Broker, client: str, *, certificate: str = "") -> Connection:
        """Return a new connection of the client at `client` (host:port).

        `certificate` is the common name in the client's certificate; empty without one.
        """
        self._connection_count += 1
        handlers = self._handlers[broker.number]
        connection = Connection(broker, handlers, self._connection_count, client, certificate)
        broker.accept(connection)
        self.scheduler.run()
        return connection

    def receive(self, connection: Connection, frame: Frame) -> None:
        """Handle a frame of a client; call `wake` after the last frame of those that arrived together."""
        connection.receive(frame)

    def disconnect(self, connection: Connection) -> None:
        """End a connection."""
        connection.on_lost()
        for broker in self.brokers:
            broker.connections.pop(connection.number, None)
        self.scheduler.run()

    def set_writable(self, connection: Connection, writable: bool) -> None:
        """Say whether the connection takes more bytes now; call `wake` afterwards."""
        connection.set_writable(writable)

    def on_stored(self) -> None:
        """Record that the oldest commit that was taken is durable."""
        self.journal.on_stored()
        self.scheduler.run()

    def on_read(self, number: int, entries: list[tuple[int, bytes]]) -> None:
        """Hand the entries of a finished read to its reader."""
        self.journal.on_read(number, entries)
        self.scheduler.run()

    def wake(self) -> None:
        """Run what is due."""
        self.scheduler.run()

    @property
    def wake_at(self) -> int | None:
        """When `wake` must be called, and a commit taken (ticks)."""
        times = [tick for tick in (self.scheduler.wake_at, self.journal.wake_at) if tick is not None]
        return min(times, default=None)

    def take_touched(self) -> list[Connection]:
        """Return the connections that the owner must look at, once."""
        touched, self.touched = list(self.touched), {}
        return touched
