"""A thousand schedules that must keep the rules; `simulation.py --minutes N` tries others."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from broker.sim_clients import Client, Consumer, Producer
from broker.sim_producing import TOPICS
from broker.sim_steps import Steps
from broker.sim_truth import Position
from broker.simulation import Simulation, try_seed

from pulsarctl_wire.broker.consumer import KEY_SHARED, SHARED
from pulsarctl_wire.broker.settings import Settings

SEEDS = 1000
CHUNK = 100


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_seeds(first: int) -> None:
    for seed in range(first, first + CHUNK):
        found = try_seed(seed)
        assert not found, found


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


class Script(Steps):
    """A simulation whose steps are written down; two clients are connected."""

    def __init__(self, **settings: Any) -> None:
        self.sequences, self.kinds, self.modes = {}, {}, {}
        super().__init__(Settings(**settings), Random(1), 2, 1 << 24, 1 << 20)
        for client in self.clients:
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

    def acks(self, it: Consumer, positions: list[Position]) -> None:
        ids = [{"ledgerId": ledger, "entryId": entry} for ledger, entry in positions]
        for position in positions:
            del it.received[position]

        def effect() -> None:
            self._apply(it.client.sessions[it.id], dict.fromkeys(positions, 0), None, cumulative=False)

        it.client.tell("ACK", effect, consumer_id=it.id, ack_type=0, message_id=ids)


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
