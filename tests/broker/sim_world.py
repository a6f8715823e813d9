"""The world of a simulation: a cluster, its storage, its clients, the time, and what goes between them."""

from __future__ import annotations

from random import Random
from typing import Any

from broker.sim_clients import Client
from broker.sim_storage import Disk, SlowDisk
from broker.sim_subscription import Session
from broker.sim_truth import Broken, Message, Publisher, Topic, Txn, full

from pulsarctl_wire.broker.basics.settings import Settings
from pulsarctl_wire.broker.clients.connection import Connection
from pulsarctl_wire.broker.core import Core
from pulsarctl_wire.broker.storage.cursor import mask_of
from pulsarctl_wire.wire.commands import NUMBERS
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandLookupTopicResponse

_EPOCH_NS = 1_700_000_000 * 10**9
ACTIVE = NUMBERS["ACTIVE_CONSUMER_CHANGE"]
CLOSE_CONSUMER = NUMBERS["CLOSE_CONSUMER"]
CLOSE_PRODUCER = NUMBERS["CLOSE_PRODUCER"]
END_OF_TOPIC = NUMBERS["REACHED_END_OF_TOPIC"]
MESSAGE = NUMBERS["MESSAGE"]
PING = NUMBERS["PING"]
RECEIPT = NUMBERS["SEND_RECEIPT"]
SEND_ERROR = NUMBERS["SEND_ERROR"]
READY = NUMBERS["PRODUCER_SUCCESS"]
Redirect = CommandLookupTopicResponse.Redirect


class Touched(dict[Connection, None]):
    """Stands in for `Core.touched`, and notes the order in which frames were written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[tuple[Connection, int]] = []

    def __setitem__(self, connection: Connection, value: None) -> None:
        super().__setitem__(connection, value)
        self.writes.append((connection, len(connection.out)))


class World:
    """What a simulation acts on."""

    def __init__(
        self, settings: Settings, random: Random, clients: int, cache: int, read_bytes: int, brokers: int = 1
    ) -> None:
        self.settings = settings
        self.random = random
        self.cache = cache
        self.brokers = brokers
        self.ticks = 0
        self.no = 0
        self.trace: list[str] = []
        self.verbose = False
        """Whether frames are noted too."""
        self.clients = [Client(number, lambda: self.now_ms) for number in range(clients)]
        self.owners: dict[Connection, Client] = {}
        self.topics: dict[str, Topic] = {}
        self.messages: dict[int, Message] = {}
        self.txns: dict[tuple[int, int], Txn] = {}
        self.names: set[str] = set()
        self.most_commits = 1
        self.fuse = 0
        """After so many frames from the broker it crashes; 0: it does not."""
        self.disk = SlowDisk(Disk(), random)
        self.disk.most = read_bytes
        self.boot()
        self.usual_timers = len(self.timers())
        """Timers of an idle broker."""

    def timers(self) -> list[Any]:
        """What is due later."""
        return [each.call for _, _, each in self.cluster.scheduler._timers if each.call is not None]

    def note(self, text: str) -> None:
        """Note a step, for whoever looks at a failure."""
        self.trace.append(text)

    def boot(self) -> None:
        """A new cluster on what is durable."""
        disk = self.disk.disk
        self.cluster = Core(self.settings, disk.rows(), disk.ends(), self.brokers)
        for broker in self.cluster.brokers:
            broker.environment.cache.max_bytes = self.cache
            broker.service_url = f"pulsar://broker:{broker.number}"
        self.cluster.touched = Touched()
        self.set_time(self.ticks)
        self.flush()

    def crash(self) -> None:
        """The broker dies, and starts again with what is durable."""
        for client in self.clients:
            if client.connection is not None:
                self.closed(client)
                client.gone()
        self.owners.clear()
        self.fuse = 0
        for topic in self.topics.values():
            topic.crashed(self.no)
            for subscription in topic.subscriptions.values():
                subscription.wild = 0
                subscription.asked.clear()
        before = self.disk
        self.disk = SlowDisk(before.crash(), self.random)
        self.disk.most = before.most
        self.boot()

    # -- time and storage

    @property
    def now_ms(self) -> int:
        return (_EPOCH_NS + self.ticks) // 1_000_000

    def set_time(self, ticks: int) -> None:
        """The time is now this."""
        self.ticks = ticks
        self.cluster.set_time(ticks, _EPOCH_NS + ticks)

    def advance(self, seconds: float) -> None:
        """Let time pass; what is due happens when it is."""
        until = self.ticks + int(seconds * 1e9)
        while (at := self.cluster.wake_at) is not None and at <= until:
            blocked = at <= self.ticks
            self.set_time(max(at, self.ticks))
            self.flush()
            self.exchange()
            if blocked:
                if not self.disk.commits:
                    break
                self.report()
        self.set_time(until)
        self.flush()

    def report(self) -> None:
        """The oldest commit is done."""
        self.disk.report()
        self.cluster.on_stored()
        self.flush()

    def finish_read(self) -> None:
        """A read is done."""
        self.cluster.on_read(*self.disk.finish_read())
        self.flush()

    def flush(self) -> None:
        """Do what the core wants."""
        self.cluster.wake()
        self.drain()
        for read in self.cluster.journal.take_reads():
            self.disk.add_read(read)
        while len(self.disk.commits) < self.most_commits:
            commit = self.cluster.journal.take_commit()
            if commit is None:
                break
            self.disk.commits.append(commit)
        if self.cluster.scheduler.failures:
            raise self.cluster.scheduler.failures[0]
        if self.fuse < 0:
            self.note("crash")
            self.crash()

    def settle(self, seconds: float = 1.5) -> None:
        """Let everything happen that can: storage is done, all clients but frozen ones have read all."""
        for wait in (0.0, seconds):
            self.advance(wait)
            for _ in range(2000):
                self.exchange()
                self.flush()
                if self.disk.reads:
                    self.finish_read()
                elif self.disk.commits:
                    self.report()
                elif not any(self._has_work(client) for client in self.clients):
                    break
            else:
                raise Broken("it does not come to rest")
        for topic in self.topics.values():
            for subscription in topic.subscriptions.values():
                subscription.asked = {each for each in subscription.asked if not each.closed}

    def _has_work(self, client: Client) -> bool:
        return client.connection is not None and not client.frozen and bool(client.inbox or client.outbox)

    # -- connections

    def connect(self, client: Client) -> None:
        """A client connects."""
        alive = [broker for broker in self.cluster.brokers if broker.alive]
        if not self.cluster.brokers[client.home].alive:
            client.home = self.random.choice(alive).number
        connection = self.cluster.connect(self.cluster.brokers[client.home], f"c{client.number}")
        self.owners[connection] = client
        client.connected(connection)
        client.tell("CONNECT", client_version="sim", protocol_version=21)
        if self.settings.transactionCoordinatorEnabled:
            topic = "persistent://pulsar/system/transaction_coordinator_assign-partition-0"
            client.ask("LOOKUP", topic=topic, authoritative=True)
            client.ask("TC_CLIENT_CONNECT_REQUEST", tc_id=0)

    def look_up(self, client: Client, topic: str) -> None:
        """Ask who owns a topic, and go there unless the client has something to do where it is."""

        def reaction(frame: Frame) -> None:
            client.authoritative = frame.body.response == Redirect and frame.body.authoritative
            self.follow(client, frame.body.brokerServiceUrl)

        client.ask("LOOKUP", None, None, reaction, topic=topic, authoritative=client.authoritative)

    def follow(self, client: Client, url: str) -> None:
        """A client is told to use another broker."""
        if client.connection not in self.owners:
            return
        number = int(url.rpartition(":")[2] or client.home)
        states = [each.state for each in client.producers] + [each.state for each in client.consumers]
        if number != client.home and "open" not in states and self.ticks >= client.rests_until:
            self.note(f"c{client.number} goes to broker {number}")
            self.drop(client)
            client.home, client.rests_until = number, self.ticks + 10**9
            self.connect(client)
            self.reopen(client)

    def reopen(self, only: Client | None = None) -> None:
        """Have producers and consumers made again."""
        raise NotImplementedError

    def drop(self, client: Client) -> None:
        """A connection is lost, with everything that is on its way."""
        connection = client.connection
        if connection is not None:
            self.closed(client)
            del self.owners[connection]
            client.gone()
            self.cluster.disconnect(connection)
            self.flush()

    def closed(self, client: Client) -> None:
        """The broker has no producers and consumers of a client any more."""
        self.no += 1
        for session in client.sessions.values():
            session.subscription.leave(session, self.no)
        for publisher in client.publishers.values():
            publisher.closed = True
        client.sessions.clear()
        client.publishers.clear()

    def exchange(self) -> None:
        """Clients that are not frozen read and write everything."""
        for client in self.clients:
            if not client.frozen:
                self.read(client)
                self.pump(client)

    def pump(self, client: Client, most: int = 1 << 30) -> None:
        """The broker gets what a client has sent."""
        sent = 0
        while client.outbox and sent < most:
            connection = client.connection
            if connection is None or connection.closed or connection.throttled:
                break
            data, effect = client.outbox.popleft()
            self.no += 1
            if effect is not None:
                effect()
            for event in client.to_broker.feed(data):
                assert isinstance(event, Frame)
                if self.verbose:
                    self.note(f"    {self.no} c{client.number} -> {event.command} {_short(event.body)}")
                self.cluster.receive(connection, event)
            self.drain()
            sent += 1
        if sent:
            self.flush()

    def drain(self) -> None:
        """Take what the broker has written, in the order in which it has."""
        while self.cluster.touched:
            touched = self.cluster.touched
            assert isinstance(touched, Touched)
            self.cluster.touched = Touched()
            events = {}
            for connection in touched:
                client = self.owners.get(connection)
                data = connection.take_out()
                events[connection] = [] if client is None else client.from_broker.feed(data)
            done = dict.fromkeys(events, 0)
            for connection, stop in touched.writes:
                client = self.owners.get(connection)
                if client is None:
                    continue
                while done[connection] < stop:
                    event = events[connection][done[connection]]
                    done[connection] += 1
                    assert isinstance(event, Frame)
                    self.emit(client, event)
                if connection.closed and done[connection] == len(events[connection]):
                    self._hung_up(client, connection)
            for connection in touched:
                client = self.owners.get(connection)
                if client is not None and connection.paused and not client.slow:
                    self.cluster.set_writable(connection, True)

    def _hung_up(self, client: Client, connection: Connection) -> None:
        """The broker has closed a connection."""
        self.closed(client)
        del self.owners[connection]
        if not client.frozen:
            self.read(client)
        client.gone()
        self.cluster.disconnect(connection)

    # -- what the broker has sent

    def emit(self, client: Client, frame: Frame) -> None:
        """A frame leaves the broker."""
        self.no += 1
        body = frame.body
        kind = frame.type
        if self.verbose:
            what = self.messages.get(frame.metadata.event_time) if frame.metadata is not None else ""
            self.note(f"    {self.no} c{client.number} <- {frame.command} {_short(body)} {what}")
        if kind == MESSAGE:
            self._message(client, frame)
        elif kind == RECEIPT:
            publisher = self._publisher(client, body)
            publisher.receipt(body.sequence_id, (body.message_id.ledgerId, body.message_id.entryId))
        elif kind == SEND_ERROR:
            self._publisher(client, body).error(body.sequence_id)
        elif kind == CLOSE_PRODUCER:
            client.publishers.pop(body.producer_id).closed = True
        elif kind == CLOSE_CONSUMER:
            session = client.sessions.pop(body.consumer_id)
            session.subscription.leave(session, self.no)
            session.subscription.closed_one = True
        elif kind == ACTIVE:
            session = client.sessions[body.consumer_id]
            session.active = body.is_active
            session.rewound()
        elif kind == END_OF_TOPIC:
            self._end(client.sessions[body.consumer_id])
        elif hasattr(body, "request_id") and body.request_id in client.answers:
            answered = client.answers[body.request_id][0]
            if answered is not None:
                answered(frame)
        client.inbox.append(frame)
        if self.fuse:
            self.fuse -= 1
            self.fuse = self.fuse or -1

    def _publisher(self, client: Client, body: Any) -> Publisher:
        found = client.publishers.get(body.producer_id)
        if found is None or not found.opened:
            raise Broken(f"an answer to a SEND of a producer that is not open: {body}")
        return found

    def _message(self, client: Client, frame: Frame) -> None:
        body = frame.body
        session = client.sessions.get(body.consumer_id)
        if session is None or frame.metadata is None or frame.checksum != "valid":
            raise Broken(f"a message to consumer {body.consumer_id} of client {client.number}: {body}")
        message = self.messages.get(frame.metadata.event_time)
        if message is None or message.topic is not session.subscription.topic:
            raise Broken(f"{session} gets {message}: {frame.metadata}")
        position = body.message_id.ledgerId, body.message_id.entryId
        mask = mask_of(body.ack_set) if body.ack_set else full(message.count)
        message.topic.learn(position, message)
        session.subscription.delivered(session, position, message, mask)

    def _end(self, session: Session) -> None:
        subscription = session.subscription
        left = [position for position in subscription.open if subscription.is_owed(position, self.now_ms)]
        if not subscription.topic.ending or left:
            raise Broken(f"{session} is told the end of {subscription}, where {left} are left")

    # -- what clients read

    def read(self, client: Client) -> None:
        """A client reads what it was sent."""
        while client.inbox:
            frame = client.inbox.popleft()
            body = frame.body
            kind = frame.type
            if kind == MESSAGE:
                self._got(client, frame)
            elif kind == PING:
                client.tell("PONG")
            elif kind == RECEIPT:
                self._receipt(client, body)
            elif kind == SEND_ERROR:
                if client.connection in self.owners:
                    self.drop(client)
                return
            elif kind == CLOSE_PRODUCER:
                it = client.producer(body.producer_id)
                if it is not None and it.state == "open":
                    it.state = "closed"
                    self.follow(client, body.assignedBrokerServiceUrl)
            elif kind == CLOSE_CONSUMER:
                consumer = client.consumer(body.consumer_id)
                if consumer is not None and consumer.state == "open":
                    consumer.state = "closed"
                    self.follow(client, body.assignedBrokerServiceUrl)
            elif hasattr(body, "request_id") and body.request_id in client.answers:
                reaction = client.answers[body.request_id][1]
                if kind != READY or body.producer_ready:
                    del client.answers[body.request_id]
                if reaction is not None:
                    reaction(frame)

    def _got(self, client: Client, frame: Frame) -> None:
        consumer = client.consumer(frame.body.consumer_id)
        if consumer is not None and frame.metadata is not None:
            message = self.messages[frame.metadata.event_time]
            ack_set = frame.body.ack_set
            mask = mask_of(ack_set) if ack_set else full(message.count)
            position = frame.body.message_id.ledgerId, frame.body.message_id.entryId
            consumer.received[position] = message.count, mask

    def _receipt(self, client: Client, body: Any) -> None:
        it = client.producer(body.producer_id)
        if it is None or not it.unanswered:
            return
        sequence = it.unanswered[0][0]
        if body.sequence_id == sequence:
            message = it.unanswered.popleft()[2]
            for txn in client.transactions:
                if message.txn is txn.truth:
                    txn.busy -= 1
        elif body.sequence_id > sequence:
            raise Broken(f"{it.name} gets the receipt of {body.sequence_id} before that of {sequence}")


def _short(body: Any) -> str:
    """A command in a line."""
    return " ".join(str(body).split())
