"""A thousand schedules that must keep the rules; `simulation.py --minutes N` tries others."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from broker.sim_clients import Client, Consumer, Producer
from broker.sim_operations import Operations, path_of
from broker.sim_producing import TOPICS
from broker.sim_transactions import TTL_MS, Transactions
from broker.sim_truth import Position, Txn
from broker.simulation import STEPS, Simulation, try_seed

from pulsarctl_wire.broker.basics.settings import Settings
from pulsarctl_wire.broker.delivery.consumer import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED
from pulsarctl_wire.broker.storage.cursor import words_of

SEEDS = 1000
CHUNK = 100


def check(seeds: range) -> None:
    for seed in seeds:
        found = try_seed(seed)
        assert not found, found


def test_seeds() -> None:
    check(range(CHUNK))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(CHUNK, SEEDS, CHUNK))
def test_further_seeds(first: int) -> None:
    check(range(first, first + CHUNK))


@pytest.mark.parametrize(
    ("seed", "steps"),
    [
        (3002887303, STEPS),  # unloading a topic as soon as it is loaded, while it is asked for, never ended
        (3291958230, STEPS),  # what a transaction hides is sent again after its topic was deleted
        (4110673298, STEPS),  # a transaction is committed between a reset and its answer
        (3758745938, STEPS),  # a consumer is blocked by messages that were skipped
        (1579570974, 400),  # entries are acknowledged in a transaction that is over, and come again
        (299348603, STEPS),  # transactions have acknowledged the rest of a batch, and one is refused
        (4004858479, STEPS),  # a message of an open transaction is sent again after its topic was deleted
        (132223228, STEPS),  # the rest of a batch is not due after a commit that nobody heard of
        (2048614798, STEPS),  # a terminated topic with a claim is unused
        (431202595, STEPS),  # the same with a producer that waits
        (3940069602, STEPS),  # a client leaves that waits for exclusive access to a terminated topic
        (1576699632, STEPS),  # a topic is deleted while its bundle moves: cursors of its log were left
    ],
)
def test_seeds_that_found_something(seed: int, steps: int) -> None:
    assert not try_seed(seed, steps)


def test_a_seed_decides_everything() -> None:
    traces = []
    for _ in range(2):
        simulation = Simulation(7)
        simulation.verbose = True
        simulation.run()
        traces.append(simulation.trace)
    assert traces[0] == traces[1]
    assert any("MESSAGE" in line for line in traces[0])


# -- what simulations have found, step by step


class Script(Transactions, Operations):
    """A simulation whose steps are written down; one client is at the first broker, one at the last."""

    def __init__(self, brokers: int = 1, **settings: Any) -> None:
        self.sequences, self.kinds, self.modes = {}, {}, {}
        super().__init__(Settings(**settings), Random(1), 2, 1 << 24, 1 << 20, brokers)
        for client, home in zip(self.clients, (0, brokers - 1), strict=True):
            client.home = home
            self.connect(client)
        self.settle()

    def producing(self, client: Client, name: str = "p") -> Producer:
        it = Producer(client, len(client.producers), TOPICS[0], name, 0)
        client.producers.append(it)
        self.open_producer(it)
        return it

    def consuming(self, client: Client, kind: int, permits: int = 1000, **fields: Any) -> Consumer:
        given = {"topic": TOPICS[0], "subscription": "early", "subType": kind, "initialPosition": 1}
        it = Consumer(client, len(client.consumers), {**given, **fields}, {})
        client.consumers.append(it)
        self.open_consumer(it, permits)
        return it

    def sends(self, it: Producer, number: int) -> None:
        for _ in range(number):
            self._send_new(it, None)

    def acks(self, it: Consumer, positions: list[Position], txn: Txn | None = None, left: int = 0) -> None:
        ids: list[dict[str, Any]] = [{"ledgerId": ledger, "entryId": entry} for ledger, entry in positions]
        for position, id_ in zip(positions, ids, strict=True):
            if left:
                id_ |= {"ack_set": words_of(left), "batch_size": it.received[position][0]}
        for position in positions:
            del it.received[position]

        def effect() -> None:
            self._apply(it.client.sessions[it.id], dict.fromkeys(positions, left), txn, cumulative=False)

        of = {} if txn is None else {"txnid_most_bits": txn.id[0], "txnid_least_bits": txn.id[1]}
        it.client.tell("ACK", effect, consumer_id=it.id, ack_type=0, message_id=ids, **of)


def test_a_consumer_that_was_blocked_gets_what_waited_for_it() -> None:
    """Key_Shared: its keys wait while the other consumer gets its own."""
    script = Script(maxUnackedMessagesPerConsumer=20)
    one, other = script.clients
    consumers = [script.consuming(each, KEY_SHARED, consumer_name=f"c{each.number}") for each in (one, other)]
    producer = script.producing(one)
    script.settle()
    script.sends(producer, 100)
    script.settle()
    before = [len(each.received) for each in consumers]
    blocked = consumers[0]
    script.acks(blocked, sorted(blocked.received))
    script.settle()
    assert all(before)
    assert blocked.received, "nothing came after everything was acknowledged"


def test_what_waited_for_a_dispatch_rate_goes_on() -> None:
    """Key_Shared: entries that were put back wait by their keys."""
    rate = {"dispatchThrottlingRatePerTopicInMsg": 2, "dispatchThrottlingOnNonBacklogConsumerEnabled": True}
    script = Script(**rate)
    one, other = script.clients
    producer = script.producing(one)
    consumer = script.consuming(other, KEY_SHARED)
    script.settle()
    script.sends(producer, 8)
    script.settle(10)
    got = len(consumer.received)
    consumer.received.clear()
    script.redeliver(consumer)
    script.settle(10)
    assert len(consumer.received) == got == 8


def test_messages_survive_unloading() -> None:
    script = Script()
    producer = script.producing(script.clients[0])
    script.settle()
    script.sends(producer, 5)
    script.settle()
    for _ in range(2):
        assert script.admin("PUT", f"/admin/v2/{TOPICS[0].replace('://', '/')}/unload") == []
        script.settle()
        script.reopen()
        script.settle()
        script.sends(producer, 1)
        script.settle()
    consumer = script.consuming(script.clients[1], SHARED)
    script.settle(6)
    assert len(consumer.received) == 7


def test_nobody_hears_of_a_subscription_that_a_crash_undoes() -> None:
    """A second consumer waits like the first one until the subscription is stored."""
    script = Script()
    script.producing(script.clients[0])
    script.settle()
    consumers = [script.consuming(each, SHARED) for each in script.clients]
    for client in script.clients:
        script.pump(client)
        script.read(client)
    assert [each.state for each in consumers] == ["opening", "opening"]
    script.settle()
    assert [each.state for each in consumers] == ["open", "open"]


def test_a_producer_name_is_free_once_its_connection_has_ended() -> None:
    """Even while the broker stores what was sent before CLOSE_PRODUCER."""
    script = Script()
    one, other = script.clients
    producer = script.producing(one)
    script.settle()
    script.sends(producer, 1)
    one.ask("CLOSE_PRODUCER", producer_id=producer.id)
    script.pump(one)
    script.drop(one)
    again = script.producing(other)
    script.settle()
    assert again.state == "open"


def test_what_waits_for_permits_can_be_acknowledged_in_a_transaction() -> None:
    """Key_Shared: it was given back, and is acknowledged before it could be delivered again."""
    script = Script(transactionCoordinatorEnabled=True)
    one, other = script.clients
    consumer = script.consuming(one, KEY_SHARED, 1, consumer_name="a")
    script.consuming(other, KEY_SHARED, consumer_name="b")
    producer = script.producing(one)
    script.settle()
    script.sends(producer, 30)
    script.settle()
    script.redeliver(consumer)
    script.settle()
    script.begin(one)
    script.settle(0)
    acked = list(consumer.received)
    script.acks(consumer, acked, one.transactions[0].truth)
    script.flow(consumer, 1000)
    script.settle()
    assert acked
    assert not set(acked) & set(consumer.received)


def test_a_batch_is_pending_until_all_of_it_is_acknowledged() -> None:
    """More of it is acknowledged at once than was delivered, as a transaction had hidden the rest."""
    script = Script(transactionCoordinatorEnabled=True, acknowledgmentAtBatchIndexLevelEnabled=True)
    one, other = script.clients
    producer = script.producing(one)
    consumer = script.consuming(one, SHARED)
    script.settle()
    script.sends(producer, 20)
    script.settle()
    batch = next(each for each, (count, _) in consumer.received.items() if count == 5)
    script.begin(one)
    script.settle(0)
    script.acks(consumer, [batch], one.transactions[0].truth, left=0b11)
    script.acks(consumer, list(consumer.received))
    script.redeliver(consumer)
    script.settle(0)
    assert consumer.received == {batch: (5, 0b11)}
    heir = script.consuming(other, SHARED)
    script.acks(consumer, [batch], left=0b1)
    script.settle(0)
    assert not heir.received
    script.drop(one)
    script.settle(0)
    assert heir.received == {batch: (5, 0b1)}


def test_only_one_broker_loads_a_topic() -> None:
    """Its bundle moves while the first broker makes the topic."""
    script = Script(brokers=2)
    client = script.clients[0]
    script.move(TOPICS[0], script.cluster.brokers[0])
    producer = script.producing(client)
    script.pump(client)
    script.move(TOPICS[0], script.cluster.brokers[1])
    script.settle()
    assert not script.cluster.brokers[0].topics
    script.reopen()
    script.settle()
    assert (client.home, producer.state) == (1, "open")
    assert [list(broker.topics) for broker in script.cluster.brokers] == [[], [TOPICS[0]]]


def test_a_topic_that_is_being_deleted_is_not_loaded() -> None:
    """Its broker is killed meanwhile, and a client asks another one for it."""
    script = Script(brokers=2)
    one, other = script.clients
    script.move(TOPICS[0], script.cluster.brokers[0])
    script.producing(one)
    script.settle()
    script.cluster.kill(script.cluster.brokers[1])
    script.delete_this(script.topics[TOPICS[0]], force=True)
    script.cluster.start(script.cluster.brokers[1])
    script.cluster.kill(script.cluster.brokers[0])
    script.drop(other)
    script.connect(other)
    producer = script.producing(other)
    script.settle()
    script.reopen()
    script.settle()
    assert producer.state == "open"


def test_a_topic_may_be_unloaded_as_soon_as_it_is_loaded() -> None:
    """A broker dies while it loads a topic, another one loads it too, and both loads end together."""
    script = Script(brokers=2)
    first, second = script.cluster.brokers
    script.move(TOPICS[0], first)
    script.admin("PUT", path_of(TOPICS[0]))
    script.admin("PUT", f"{path_of(TOPICS[0])}/unload")
    script.settle()
    script.admin("PUT", path_of("persistent://public/default/c"))  # its commit is under way
    unloads = [script.admin("PUT", f"{path_of(TOPICS[0])}/unload") for _ in range(2)]
    script.cluster.kill(first)
    unloads.append(script.admin("PUT", f"{path_of(TOPICS[0])}/unload"))
    script.settle()
    assert unloads == [[204]] * 3
    assert not second.topics


def test_a_subscription_goes_with_its_topic() -> None:
    """Even one that a consumer joins once the deletion was asked for."""
    script = Script(brokerDeleteInactiveTopicsEnabled=False, defaultRetentionSizeInMB=-1)
    one, other = script.clients
    producer = script.producing(one)
    script.settle()
    script.sends(producer, 1)
    script.settle()
    script.consuming(other, SHARED)
    script.pump(other)
    script.admin("PUT", f"{path_of(TOPICS[0])}/unload")  # refuses the consumer, but not its subscription
    script.settle()
    script.consuming(other, SHARED)
    script.pump(other)
    script.delete_this(script.topics[TOPICS[0]], force=True)
    script.report()
    subscription = script.subscription(TOPICS[0], "early")
    assert (subscription.exists, len(subscription.open)) == ("yes", 1)
    script.settle()
    assert (subscription.exists, len(subscription.open)) == ("no", 0)


def test_a_subscription_may_be_made_after_its_topic_is_deleted() -> None:
    """Its SUBSCRIBE came before, and is still under way although the connection has ended."""
    script = Script()
    client = script.clients[1]
    script.consuming(client, SHARED)
    script.pump(client)
    script.drop(client)
    topic = script.topics[TOPICS[0]]
    script.no += 1
    topic.deleting(script.no)
    topic.deleted(script.no)
    script.crash()
    assert topic.subscriptions["early"].exists == "maybe"


@pytest.mark.parametrize("crashes", [False, True])
def test_a_transaction_hides_what_follows_it_after_a_deletion_that_failed(crashes: bool) -> None:
    """It is refused, or a crash undoes it."""
    script = Script(transactionCoordinatorEnabled=True)
    client = script.clients[0]
    producer = script.producing(client)
    script.settle()
    script.begin(client)
    script.settle(0)
    script.send(client.transactions[0], producer)
    script.settle(0)
    topic = script.topics[TOPICS[0]]
    script.delete_this(topic, force=crashes)
    if crashes:
        script.crash()
    script.settle(0)
    assert not topic.deleted_no
    assert topic.blocked()


def test_a_request_that_waits_for_a_topic_does_not_make_it_again() -> None:
    """It is deleted meanwhile."""
    script = Script(brokerDeleteInactiveTopicsEnabled=False)
    script.producing(script.clients[0])
    script.settle()
    script.admin("PUT", f"{path_of(TOPICS[0])}/unload")
    statistics = script.admin("GET", f"{path_of(TOPICS[0])}/stats")
    script.report()
    script.delete_this(script.topics[TOPICS[0]], force=True)
    script.settle()
    assert statistics == [404]
    assert not script.cluster.namespaces.topics


def test_a_termination_may_end_the_next_topic_of_a_name() -> None:
    """It was asked for before the topic was deleted, and waits until a producer has made the next one."""
    script = Script(brokerDeleteInactiveTopicsEnabled=False)
    one, other = script.clients
    script.producing(one)
    script.settle()
    topic = script.topics[TOPICS[0]]
    script.admin("PUT", f"{path_of(TOPICS[0])}/unload")
    while not topic.ending:
        script.terminate()  # one of the topics
    script.report()
    script.delete_this(topic, force=True)
    script.producing(other, "another")
    script.pump(other)
    script.settle()
    script.consuming(one, SHARED)
    script.settle()
    assert not topic.deleted_no
    assert topic.last


def test_a_crash_may_complete_the_deletion_of_a_topic_that_has_ended() -> None:
    """The next topic of its name takes messages."""
    script = Script(brokerDeleteInactiveTopicsEnabled=False)
    client = script.clients[0]
    script.producing(client)
    script.settle()
    topic = script.topics[TOPICS[0]]
    while not topic.ending:
        script.terminate()  # one of the topics
    script.settle()
    assert topic.last
    script.delete_this(topic, force=True)
    script.report()  # it is closed
    script.disk.sync()
    script.crash()
    script.connect(client)
    producer = script.producing(client, "another")
    script.settle()
    script.sends(producer, 1)
    script.settle()
    assert topic.order


def test_what_is_sent_in_an_aborted_transaction_stays_hidden() -> None:
    """Even when all that was sent in it before is deleted while it is being stored."""
    rolls = {"managedLedgerMaxEntriesPerLedger": 1, "managedLedgerMinLedgerRolloverTimeMinutes": 0}
    script = Script(transactionCoordinatorEnabled=True, **rolls)
    one, other = script.clients
    producer = script.producing(one)
    consumer = script.consuming(other, EXCLUSIVE)
    script.settle()
    script.begin(one)
    script.settle(0)
    txn = one.transactions[0]
    script.send(txn, producer)
    script.settle(TTL_MS / 1000 + 1)
    script.sends(producer, 1)
    script.settle()
    script.send(txn, producer)
    script.pump(one)
    script.acks(consumer, sorted(consumer.received))
    script.settle()
    assert not producer.unanswered
    assert not consumer.received


def test_nobody_is_active_after_a_reset_until_a_consumer_joins() -> None:
    """Failover: a SEEK to a time still searches when its consumer has been lost, and has come back."""
    script = Script()
    script.cluster.brokers[0].environment.cache.max_bytes = 0
    one, other = script.clients
    producer = script.producing(other)
    for client, name in ((one, "a"), (other, "b")):
        script.consuming(client, FAILOVER, consumer_name=name)
    script.settle()
    script.sends(producer, 3)
    script.settle()
    one.ask("SEEK", consumer_id=0, message_publish_time=0)
    script.pump(one)
    script.drop(one)
    script.connect(one)
    script.reopen()
    script.exchange()
    subscription = script.subscription(TOPICS[0], "early")
    assert script.disk.reads, "SEEK should still be searching"
    assert len(subscription.sessions) == 2
    for actives in ([False], [False, True]):
        script.settle()
        assert sorted(each.active for each in subscription.sessions) == actives
        assert not subscription.starving(script.now_ms, 0)
        script.reopen()


def test_a_compacted_copy_survives_unloading() -> None:
    """Compaction goes on while the topic is unloaded and loaded again."""
    script = Script()
    one, other = script.clients
    producer = script.producing(one)
    script.settle()
    script.sends(producer, 20)
    script.settle()
    script.admin("PUT", f"{path_of(TOPICS[0])}/compaction")
    script.settle()
    script.sends(producer, 1)
    script.settle()
    script.admin("PUT", f"{path_of(TOPICS[0])}/compaction")
    script.admin("PUT", f"{path_of(TOPICS[0])}/unload")
    for _ in range(20):
        script.exchange()
        script.reopen()
        if script.disk.commits:
            script.report()
    assert producer.state == "open"
    assert script.disk.reads, "compaction should still be reading"
    script.settle()
    script.read_compacted(other, 5, script.topics[TOPICS[0]])


def test_compaction_leaves_out_what_was_aborted() -> None:
    script = Script(transactionCoordinatorEnabled=True)
    one, other = script.clients
    producer = script.producing(one)
    script.settle()
    script.sends(producer, 20)
    script.settle()
    script.begin(one)
    script.settle(0)
    for _ in range(5):
        script.send(one.transactions[0], producer)
    script.settle(TTL_MS / 1000 + 1)
    script.admin("PUT", f"{path_of(TOPICS[0])}/compaction")
    script.settle()
    script.read_compacted(other, 5, script.topics[TOPICS[0]])
