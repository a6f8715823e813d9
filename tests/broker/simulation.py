"""A deterministic simulation of the embedded broker's core, with crashes, slow disks and lost connections.

A seed decides everything. `python tests/broker/simulation.py SEED` replays one and shows its steps;
`--minutes N` tries random seeds; both need tests/ on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
from random import Random

from broker.sim_clients import Client, Consumer, Producer
from broker.sim_operations import Operations
from broker.sim_subscription import Subscription
from broker.sim_transactions import TTL_MS, Transactions
from broker.sim_truth import Broken

from pulsarctl_wire.broker.basics.settings import Settings
from pulsarctl_wire.broker.topics import subscription as topics

STEPS = 120
MAX_SECONDS = 60
"""CPU time of a schedule; most take less than one second."""
_WEIGHTS: dict[str, int] = {
    "send": 24,
    "create_producer": 6,
    "subscribe": 8,
    "flow": 8,
    "ack": 14,
    "redeliver": 3,
    "seek": 2,
    "unsubscribe": 1,
    "close_consumer": 3,
    "close_producer": 2,
    "reopen": 5,
    "connect_one": 6,
    "drop_one": 3,
    "unload": 2,
    "move": 0,
    "kill": 0,
    "delete": 1,
    "compact": 2,
    "skip_all": 1,
    "reset_cursor": 1,
    "drop_subscription": 1,
    "terminate": 0,
    "crash_now": 2,
    "crash_soon": 3,
    "wait": 6,
    "store": 12,
    "read_one": 8,
    "listen": 14,
    "freeze": 1,
    "hinder": 2,
    "usurp": 1,
    "rest": 3,
    "begin": 8,
    "join": 8,
    "work": 20,
    "end": 15,
}
_TIMESTAMPS = "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor"
_OF_TXNS = ("begin", "join", "work", "end")


def settings_of(random: Random) -> Settings:
    """Settings that a seed chooses."""
    settings = Settings()
    settings.brokerDeduplicationEnabled = random.random() < 0.5
    settings.transactionCoordinatorEnabled = random.random() < 0.4
    settings.acknowledgmentAtBatchIndexLevelEnabled = random.random() < 0.5
    settings.subscriptionKeySharedUseConsistentHashing = random.random() < 0.7
    settings.brokerDeleteInactiveTopicsEnabled = False
    settings.defaultRetentionTimeInMinutes = settings.defaultRetentionSizeInMB = -1
    if random.random() < 0.3:
        settings.defaultRetentionTimeInMinutes = settings.defaultRetentionSizeInMB = 0
        settings.managedLedgerMaxEntriesPerLedger = random.choice((1, 3, 5))
        settings.managedLedgerMinLedgerRolloverTimeMinutes = 0
    if random.random() < 0.15:
        settings.ttlDurationDefaultInSeconds = random.choice((5, 30))
        settings.messageExpiryCheckIntervalInMinutes = 1
        settings.brokerEntryMetadataInterceptors = (_TIMESTAMPS,)
    if random.random() < 0.3 and not settings.brokerDeduplicationEnabled:
        settings.brokerDeleteInactiveTopicsEnabled = True
        settings.brokerDeleteInactiveTopicsFrequencySeconds = random.choice((1, 5))
    if random.random() < 0.2:
        settings.maxUnackedMessagesPerConsumer = random.choice((4, 10))
    if random.random() < 0.1:
        settings.maxPendingPublishRequestsPerConnection = 3
    settings.dispatcherMaxRoundRobinBatchSize = random.choice((1, 3, 20))
    return settings


class Simulation(Transactions, Operations):
    """One simulation; `run` raises what goes wrong."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.sequences = {}
        self.kinds = {}
        self.modes = {}
        settings = settings_of(random)
        cache = random.choice((0, 3000, 1 << 24, 1 << 24))
        brokers = random.choice((1, 1, 2, 3))
        reads = random.choice((1, 100, 1 << 20))
        super().__init__(settings, random, random.choice((2, 3, 4)), cache, reads, brokers)
        self.most_commits = random.choice((1, 1, 2, 3))
        self.weights = dict(_WEIGHTS)
        if not settings.transactionCoordinatorEnabled:
            self.weights |= dict.fromkeys(_OF_TXNS, 0)
        elif random.random() < 0.5:
            self.weights |= {name: 3 * self.weights[name] for name in _OF_TXNS}
        if random.random() < 0.15:
            self.weights["terminate"] = 1
        if brokers > 1:
            self.weights |= {"move": 4, "kill": 1}
        for name in random.sample(sorted(_WEIGHTS), 4):
            self.weights[name] *= random.choice((0, 3))
        changed = {name: value for name, value in vars(settings).items() if value != getattr(Settings, name)}
        self.note(
            f"seed {seed}: {changed}, cache {cache}, {self.most_commits} commits at a time, {brokers} brokers"
        )

    def run(self, steps: int = STEPS) -> None:
        """Do the steps, and judge what is left."""
        for client in self.clients:
            self.connect(client)
        for _ in range(self.random.randrange(3, 8)):
            self.create_producer()
            self.subscribe()
        self.exchange()
        names, weights = list(self.weights), list(self.weights.values())
        for name in self.random.choices(names, weights, k=steps):
            self.set_time(self.ticks + self.random.randrange(20_000_000))
            getattr(self, name)()
            if self.chance(0.7):
                self.exchange()
            self.flush()
        self.finish()

    # -- faults, time and storage

    def connect_one(self) -> None:
        client = self.pick(each for each in self.clients if each.connection is None)
        if client is not None:
            self.note(f"connect c{client.number}")
            self.connect(client)
            self.reopen()

    def drop_one(self) -> None:
        client = self.a_client()
        if client is not None:
            self.note(f"drop c{client.number}")
            self.drop(client)

    def crash_now(self) -> None:
        self.note(f"crash with {len(self.disk.commits)} commits, {self.disk.durable} of them durable")
        self.crash()

    def crash_soon(self) -> None:
        self.fuse = self.random.randrange(1, 12)
        self.note(f"crash after {self.fuse} frames")

    def wait(self) -> None:
        seconds = self.random.choice((0.01, 0.1, 0.1, 1.0, 1.0, 3.0, 12.0))
        self.note(f"wait {seconds}")
        self.advance(seconds)

    def store(self) -> None:
        for _ in range(self.random.choice((1, 1, 2))):
            if len(self.disk.commits) > self.disk.durable and self.chance(0.3):
                self.note("sync")
                self.disk.sync()
            elif self.disk.commits:
                self.note("report")
                self.report()

    def read_one(self) -> None:
        if self.disk.reads:
            self.note("read")
            self.finish_read()

    def listen(self) -> None:
        client = self.a_client()
        if client is not None and not client.frozen:
            self.read(client)
            self.pump(client, self.random.choice((1, 3, 100)))

    def freeze(self) -> None:
        client = self.a_client()
        if client is not None:
            client.frozen = not client.frozen
            self.note(f"frozen c{client.number}: {client.frozen}")

    def hinder(self) -> None:
        client = self.a_client()
        if client is not None and client.connection is not None:
            client.slow = not client.slow
            self.note(f"slow c{client.number}: {client.slow}")
            self.cluster.set_writable(client.connection, not client.slow)

    def usurp(self) -> None:
        it = self.pick(each for client in self.clients for each in client.producers if each.name)
        client = self.a_client()
        if it is not None and client is not None and client is not it.client:
            number = next(each for each in range(9) if client.producer(each) is None)
            guest = Producer(client, number, it.topic, it.name, 0)
            guest.guest = True
            client.producers.append(guest)
            self.open_producer(guest)

    def rest(self) -> None:
        self.note("rest")
        self.settle()
        self.check_starving()

    # -- the end

    def subscriptions(self) -> list[Subscription]:
        return [each for topic in self.topics.values() for each in topic.subscriptions.values()]

    def check_starving(self) -> None:
        """Nobody waits for what he could get."""
        for subscription in self.subscriptions():
            found = subscription.starving(self.now_ms, self.settings.maxUnackedMessagesPerConsumer)
            if found:
                raise Broken(found)

    def finish(self) -> None:
        """Faults stop: everything that is owed must come."""
        self.note("finish")
        self.fuse = 0
        for client in self.clients:
            client.frozen = False
            if client.slow and client.connection is not None:
                client.slow = False
                self.cluster.set_writable(client.connection, True)
        self.settle()
        self.settle(TTL_MS / 1000 + 1)
        for txn in self.txns.values():
            txn.finished = True
            if not txn.over and not txn.commit_sent:
                txn.ended(commit=False)
        self.gather()
        for _ in range(3):
            for client in self.clients:
                if client.connection is None:
                    self.connect(client)
            self.reopen()
            self.settle(6)
        for client in self.clients:
            for it in client.consumers:
                if it.state == "open":
                    self.flow(it, 1000)
            for producer in client.producers:
                topic = self.topics[producer.topic]
                rivals = [it for other in self.clients for it in other.producers if it.topic == topic.name]
                alone = sum(it.name == producer.name for it in rivals) == 1
                fenced = any(self.topics[it.topic].fenced for it in client.producers)
                free = alone and not topic.ending and not fenced and not any(it.mode for it in rivals)
                if producer.unanswered and (free or producer.state == "open") and not topic.fenced:
                    unanswered = [each[2] for each in producer.unanswered]
                    raise Broken(f"{producer.name}, {producer.state}, gets no receipts of {unanswered}")
        self.settle()
        self.check_starving()
        self.leave()
        self.check_empty()
        if self.chance(0.5):
            self.note("last crash")
            self.crash()
        self.check_delivery()

    def crash(self) -> None:
        """The broker dies, and starts again: what was deleted is still gone."""
        super().crash()
        topics, cursors = map(self.cluster.journal.table, ("topics", "cursors"))
        logs = {str(row["log"]) for row in topics.values()}
        left = [key for key in cursors if key.partition("/")[0] not in logs]
        if left:
            raise Broken(f"subscriptions {left} are left of topics that were deleted")
        for it in self.subscriptions():
            row = topics.get(it.topic.name)
            if it.exists == "no" and row is not None and f"{row['log']}/{it.name}" in cursors:
                raise Broken(f"{it} was deleted, but is there")

    def leave(self) -> None:
        """All clients leave."""
        self.note("leave")
        for client in self.clients:
            self.drop(client)
            client.producers.clear()
            client.consumers.clear()
        self.settle(61)

    def check_empty(self) -> None:
        """Nothing is left of the clients."""
        cluster = self.cluster
        for broker in cluster.brokers:
            assert broker.alive or not broker.topics
            assert not broker.connections
            assert not broker._opening
            for topic in broker.topics.values():
                assert not topic.producers, topic.producers
                if not topic.terminated:  # it keeps the claim of a producer that it refused, and who waits
                    assert not topic.waiting_producers
                    assert topic.exclusive is None
                unused = self.settings.brokerDeleteInactiveTopicsEnabled and not topic.subscriptions
                assert not unused, f"{topic.name.full} should be gone"
                for subscription in topic.subscriptions.values():
                    assert not subscription.consumers, subscription.consumers
                    stays = isinstance(subscription, topics.Subscription) and subscription.cursor.durable
                    assert stays, f"{subscription.name} should be gone"
        rates = len(cluster.brokers)  # are measured from when the first topic is loaded
        assert len(self.timers()) <= self.usual_timers + rates, self.timers()
        assert not cluster.journal._readers
        assert not cluster.journal._storing
        assert not cluster.transactions._rows
        assert not cluster.transactions._timers

    def check_delivery(self) -> None:
        """Each subscription gets what it is owed, and a reader gets everything."""
        client = self.clients[0]
        self.gather()
        self.connect(client)
        for number, subscription in enumerate(self.subscriptions()):
            if subscription.exists == "yes" and not subscription.topic.stuck:
                self._drain_one(client, number, subscription)
        for number, topic in enumerate(self.topics.values(), 20):
            self._read_all(client, number, topic.name)
        for number, topic in enumerate(self.topics.values(), 30):
            if topic.compacted and not topic.stuck and not topic.trims:
                self.read_compacted(client, number, topic)

    def _drain_one(self, client: Client, number: int, subscription: Subscription) -> None:
        fields = {"topic": subscription.topic.name, "subscription": subscription.name, "subType": 0}
        it = Consumer(client, number, {**fields, "initialPosition": 1}, {})
        client.consumers.append(it)
        self.open_consumer(it, 100_000)
        self.settle()
        for position, bits in subscription.open.items():
            if subscription.is_owed(position, self.now_ms) and bits & ~it.received.get(position, (0, 0))[1]:
                raise Broken(f"{subscription} does not get {subscription.topic.at[position]} at {position}")
        if it.received:
            self.ack(None, it, cumulative=True)
        self.settle()

    def _read_all(self, client: Client, number: int, name: str) -> None:
        """What a reader finds in a topic from its beginning."""
        topic = self.topics[name]
        it = self.reader(client, number, name, "last reader")
        if topic.trims or topic.stuck:
            return
        for message in topic.messages:
            seen = message.txn is None or message.txn.state == "committed"
            if seen and message.stored and not any(each in it.received for each in message.positions):
                raise Broken(f"{message} is lost")
            if seen and any(each not in it.received for each in message.positions):
                raise Broken(f"{message} is lost at one of {message.positions}")
        last: dict[str, int] = {}
        met = set()
        for position in sorted(it.received):
            message = topic.at[position]
            if message.txn is None and message.number not in met:
                met.add(message.number)
                if message.sequence <= last.get(message.producer, -1):
                    raise Broken(f"{message} comes after {last[message.producer]}")
                last[message.producer] = message.sequence


class Endless(BaseException):
    """A schedule takes too much CPU time. Nothing in the broker catches it."""


def _give_up(*_: object) -> None:
    raise Endless(f"more than {MAX_SECONDS} s of CPU time")


def try_seed(seed: int, steps: int = STEPS) -> str:
    """What goes wrong with a seed, with its steps; "" if nothing."""
    simulation = Simulation(seed)
    signal.signal(signal.SIGVTALRM, _give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, MAX_SECONDS)
    try:
        simulation.run(steps)
    except (Exception, Endless) as error:
        lines = [*simulation.trace, "".join(traceback.format_exception(error))]
        return "\n".join(lines) + f"python tests/broker/simulation.py {seed} replays it\n"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return ""


def main() -> None:
    """Replay a seed, or try random ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", nargs="?", type=int)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    if options.seed is not None:
        simulation = Simulation(options.seed)
        simulation.verbose = True
        try:
            simulation.run(options.steps)
        finally:
            sys.stdout.write("\n".join(simulation.trace) + "\n")
        return
    seeds, count = Random(), 0
    began = time.monotonic()
    while time.monotonic() - began < options.minutes * 60:
        seed = seeds.randrange(1 << 32)
        found = try_seed(seed, options.steps)
        count += 1
        if found:
            sys.stdout.write(f"{found}failed: {seed}\n")
            raise SystemExit(1)
    sys.stdout.write(f"{count} schedules of {options.steps} steps, none failed\n")


if __name__ == "__main__":
    main()
