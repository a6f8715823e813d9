"""What operators do in simulations, one step each: moving, deleting and ending topics, killing brokers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from broker.sim_clients import Client, Consumer
from broker.sim_producing import TOPICS
from broker.sim_steps import Steps
from broker.sim_subscription import Subscription
from broker.sim_truth import Broken, Position, Topic

from pulsarctl_wire.broker.admin import answer
from pulsarctl_wire.broker.admin.base import Answer
from pulsarctl_wire.broker.basics.names import parse_topic
from pulsarctl_wire.broker.cluster.cluster import Broker

_FORCE = {"force": "true"}


def path_of(topic: str) -> str:
    """The path of a topic in the admin API."""
    return f"/admin/v2/{topic.replace('://', '/')}"


class Operations(Steps):
    """Steps; each does nothing if it makes no sense now."""

    def admin(
        self,
        method: str,
        path: str,
        answered: Callable[[Answer], None] | None = None,
        query: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> list[int]:
        """Call the admin API; once it answers, the status is in the list, and `answered` is called."""
        status: list[int] = []

        async def call() -> None:
            broker: Broker | None = self._a_broker()
            while broker is not None:
                told = await answer(broker, method, path, query or {}, body)
                broker = told.owner
            status.append(told.status)
            if answered is not None:
                answered(told)

        self.cluster.scheduler.start(call())
        self.flush()
        return status

    def _a_broker(self) -> Broker:
        broker: Broker = self.pick(each for each in self.cluster.brokers if each.alive)
        return broker

    # -- topics

    def unload(self) -> None:
        topic = self.pick(TOPICS)
        self.note(f"unload {topic[-1]}")
        self.admin("PUT", f"{path_of(topic)}/unload")

    def terminate(self) -> None:
        topic = self.topics.get(self.pick(TOPICS))
        if topic is None or topic.deleted_no:
            return
        self.note(f"terminate {topic.name[-1]}")
        topic.ending = True
        topic.terminations += 1

        def answered(told: Answer) -> None:
            topic.terminations -= 1
            if told.status == 200 and not self.settings.brokerDeleteInactiveTopicsEnabled:
                topic.last = told.value["ledgerId"], told.value["entryId"]

        self.admin("POST", f"{path_of(topic.name)}/terminate", answered)

    def delete(self) -> None:
        topic = self.topics.get(self.pick(TOPICS))
        if topic is None or topic.deleted_no:
            return
        self.delete_this(topic, force=self.chance(0.8))

    def delete_this(self, topic: Topic, *, force: bool) -> None:
        """Delete a topic; `force`: although it has clients."""
        self.note(f"delete {topic.name[-1]} force {force}")
        self.no += 1
        topic.deleting(self.no)

        def answered(told: Answer) -> None:
            self.note(f"deletion of {topic.name[-1]} is answered by {told.status}")
            if told.status == 204:
                topic.deleted(self.no)
            topic.deleted_no = 0

        self.admin("DELETE", path_of(topic.name), answered, _FORCE if force else {})

    def compact(self) -> None:
        topic = self.topics.get(self.pick(TOPICS))
        if topic is not None:
            self.note(f"compact {topic.name[-1]}")
            topic.compacted = True
            self.admin("PUT", f"{path_of(topic.name)}/compaction")

    def reader(self, client: Client, number: int, topic: str, name: str, **fields: Any) -> Consumer:
        """A reader that has read a topic from its beginning."""
        fields |= {"topic": topic, "subscription": name, "subType": 0, "durable": False}
        it = Consumer(client, number, {**fields, "initialPosition": 1}, {})
        client.consumers.append(it)
        self.open_consumer(it, 100_000)
        self.settle()
        return it

    def read_compacted(self, client: Client, number: int, topic: Topic) -> None:
        """The last message of each key is there."""
        it = self.reader(client, number, topic.name, "compacted reader", read_compacted=True)
        known = [each for each in topic.order if topic.at[each].is_visible]
        latest = {topic.at[each].compacts: each for each in known}
        for key, position in latest.items():
            message = topic.at[position]
            hidden = [each for each in topic.messages if each.txn is not None and not each.txn.over]
            owed = key and not message.loose and position not in it.received
            if owed and key not in [each.compacts for each in hidden]:
                raise Broken(f"{message} at {position} is lost by compaction")

    # -- subscriptions

    def _a_subscription(self) -> Subscription | None:
        """One that exists, of a topic that is loaded."""
        loaded = [topic for broker in self.cluster.brokers for topic in broker.topics.values()]
        names = [topic.name.full for topic in loaded if not topic.closed]
        found: Subscription | None = self.pick(
            each
            for topic in self.topics.values()
            for each in topic.subscriptions.values()
            if each.exists == "yes" and topic.name in names
        )
        return found

    def _reset(self, it: Subscription, call: str, target: Position | None, body: Any) -> None:
        """Have a subscription go to the first entry, or behind all (None)."""
        self.note(f"{call} of {it}")
        self.no += 1
        no, known = self.no, list(it.topic.order)
        before = {each for each, bits in it.open.items() if bits}
        it.forget(no)

        def answered(told: Answer) -> None:
            if told.status == 204:
                it.sought(no, target, known, before)
                it.sure = max(it.sure, self.no) if it.reset_no == no else it.sure

        self.admin("POST", f"{path_of(it.topic.name)}/subscription/{it.name}/{call}", answered, None, body)

    def skip_all(self) -> None:
        it = self._a_subscription()
        if it is not None:
            self._reset(it, "skip_all", None, None)

    def reset_cursor(self) -> None:
        it = self._a_subscription()
        if it is not None and self.chance(0.5):
            self._reset(it, "resetcursor", (-1, -1), "earliest")
        elif it is not None:
            self._reset(it, "resetcursor", None, "latest")

    def drop_subscription(self) -> None:
        it = self._a_subscription()
        if it is None:
            return
        self.note(f"delete {it}")
        self.no += 1
        no = self.no
        it.unsubscribing(no)

        def answered(told: Answer) -> None:
            if told.status == 204:
                it.unsubscribed(no, self.no)

        self.admin("DELETE", f"{path_of(it.topic.name)}/subscription/{it.name}", answered, _FORCE)

    # -- brokers

    def move(self, topic: str = "", to: Broker | None = None) -> None:
        name = parse_topic(topic or self.pick(TOPICS))
        to = to or self._a_broker()
        self.note(f"move the bundle of {name.full[-1]} to broker {to.number}")
        self.cluster.scheduler.start(self.cluster.unload_bundle(name, to, tells_clients=self.chance(0.7)))
        self.flush()

    def kill(self) -> None:
        """A broker dies; or one that is dead comes back."""
        dead = self.pick(each for each in self.cluster.brokers if not each.alive)
        if dead is not None and self.chance(0.7):
            self.note(f"start broker {dead.number}")
            self.cluster.start(dead)
            return
        broker = self._a_broker()
        self.note(f"kill broker {broker.number}")
        self.cluster.kill(broker)
        self.flush()

    def gather(self) -> None:
        """Have one broker own everything, and all clients there."""
        broker = next(each for each in self.cluster.brokers if each.alive)
        if self.brokers == 1:
            return
        for topic in TOPICS:
            self.move(topic, broker)
        self.settle()
        for client in self.clients:
            if client.home != broker.number:
                self.drop(client)
                client.home = broker.number
