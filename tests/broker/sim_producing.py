"""What producers of the simulation do, and what all steps share."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

from broker.sim_clients import Client, Producer, Transaction
from broker.sim_truth import NEVER, Broken, Message, Publisher, Topic
from broker.sim_world import READY, World

from pulsarctl_wire.broker.delivery.key_ranges import AutoSplit, ConsistentHashing, sticky_key
from pulsarctl_wire.conformance.basics.frames import make_batch, make_metadata, make_send
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import ExclusiveWithFencing, ServerError

TOPICS = ("persistent://public/default/a", "persistent://public/default/b-partition-1")
NAMES = ("p0", "p1")
KEYS = ("", "", "x", "y", "z")
_FINAL = {"TopicTerminatedError", "ProducerFenced", "ProducerBusy"}
_CONSISTENT, _RANGES = ConsistentHashing(), AutoSplit()


class Producing(World):
    """Steps; each does nothing if it makes no sense now."""

    random: Random

    def pick(self, items: Iterable[Any]) -> Any:
        """One of them; None if there is none."""
        found = list(items)
        return self.random.choice(found) if found else None

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def topic(self, name: str) -> Topic:
        """What is known of a topic."""
        found = self.topics.get(name)
        if found is None:
            vanishes = self.settings.brokerDeleteInactiveTopicsEnabled
            trims = self.settings.defaultRetentionSizeInMB == 0 or vanishes
            dedup = self.settings.brokerDeduplicationEnabled
            found = self.topics[name] = Topic(name, deduplicates=dedup, trims=trims)
            found.ttl_ms = self.settings.ttlDurationDefaultInSeconds * 1000
        return found

    def a_client(self) -> Client | None:
        """A client with a connection."""
        client: Client | None = self.pick(each for each in self.clients if each.connection is not None)
        return client

    # -- producers

    def create_producer(self, name: str | None = None, mode: int | None = None) -> None:
        client = self.a_client()
        if client is None or len(client.producers) >= 3:
            return
        topic = self.pick(TOPICS)
        if name is None and self.chance(0.6):
            taken = {each.name for it in self.clients for each in it.producers}
            name = self.pick(f"{each}-{topic[-1]}" for each in NAMES)
            if name in taken:
                return
        if mode is None:
            mode = self.random.choice((1, 2, 3)) if self.chance(0.08) else 0
        number = next(each for each in range(9) if client.producer(each) is None)
        it = Producer(client, number, topic, name, mode)
        client.producers.append(it)
        it.sequence = self.sequences.get(name or "", 0)
        self.open_producer(it)

    def open_producer(self, it: Producer) -> None:
        client = it.client
        it.state = "opening"
        it.epoch += 1
        label = f"{it.name or '?'}#{it.id} of c{client.number}"
        publisher = Publisher(self.topic(it.topic), label)
        named = it.name is not None
        self.note(f"open producer {label} epoch {it.epoch} mode {it.mode} on {it.topic[-1]}")

        def effect() -> None:
            client.publishers[it.id] = publisher
            publisher.topic.fenced |= it.mode == ExclusiveWithFencing

        def answered(frame: Frame) -> None:
            if frame.type != READY:
                if client.publishers.get(it.id) is publisher:
                    del client.publishers[it.id]
            elif frame.body.producer_ready:
                publisher.opened = True
                last = publisher.topic.sequences.get(frame.body.producer_name, -1)
                if publisher.topic.deduplicates and frame.body.last_sequence_id < last:
                    raise Broken(f"{label} is told {frame.body.last_sequence_id}, not {last}")
                if not named:
                    assert frame.body.producer_name not in self.names, "a generated name comes twice"
                    self.names.add(frame.body.producer_name)

        def reaction(frame: Frame) -> None:
            if frame.type != READY:
                final = ServerError.Name(frame.body.error) in _FINAL
                it.state = "dead" if final and not it.unanswered else "closed"
            elif frame.body.producer_ready and it.state == "opening":
                it.state, it.name = "open", frame.body.producer_name
                if it.mode:
                    it.topic_epoch = frame.body.topic_epoch
                for sequence, data, message in it.unanswered:
                    self._send(it, sequence, data, message)

        self.look_up(client, it.topic)
        fields: dict[str, Any] = {"producer_name": it.name} if named else {}
        if it.topic_epoch is not None:
            fields["topic_epoch"] = it.topic_epoch
        fields |= {"topic": it.topic, "producer_id": it.id, "epoch": it.epoch}
        client.ask("PRODUCER", effect, answered, reaction, producer_access_mode=it.mode, **fields)

    def _send(self, it: Producer, sequence: int, data: bytes, message: Message) -> None:
        client = it.client

        def effect() -> None:
            if message.no == NEVER:
                message.no, message.sent_ms = self.no, self.now_ms
            topic = message.topic
            if message.txn is not None and message.txn.may_be_over(self.now_ms):
                topic.stuck = True
            if message.txn is not None and message not in (*topic.messages, *topic.doubtful):
                topic.doubtful.append(message)  # sent again, to the next topic of the name
            publisher = client.publishers.get(it.id)
            if publisher is not None and publisher.opened:
                publisher.waiting.append((sequence, message))

        client.outbox.append((data, effect))

    def send(self, txn: Transaction | None = None, it: Producer | None = None) -> None:
        it = it or self.pick(each for client in self.clients for each in client.producers if self._may(each))
        if it is None:
            return
        for _ in range(self.random.choice((1, 1, 2, 5))):
            self._send_new(it, txn)

    def _may(self, it: Producer) -> bool:
        return it.state == "open" and len(it.unanswered) < 20 and not it.guest

    def _send_new(self, it: Producer, txn: Transaction | None) -> None:
        count = self.random.choice((1, 1, 1, 2, 3, 5))
        batched = count > 1 or self.chance(0.05)
        topic = self.topic(it.topic)
        message = Message(len(self.messages) + 1, topic, count)
        self.messages[message.number] = message
        topic.messages.append(message)
        message.producer, message.sequence = it.name or "", it.sequence
        fields: dict[str, Any] = {"event_time": message.number, "publish_time": self.now_ms}
        key = self.pick(KEYS)
        if key:
            fields["partition_key"] = key
            message.compacts = "" if batched else key
        if txn is None and not key and not batched and self.chance(0.1):
            message.due_ms = fields["deliver_at_time"] = self.now_ms + self.random.randrange(5000)
        parts: dict[str, Any] = {"producer_id": it.id}
        if txn is not None:
            message.txn = txn.truth
            txn.truth.messages.append(message)
            txn.busy += 1
            ids = {"txnid_most_bits": txn.truth.id[0], "txnid_least_bits": txn.truth.id[1]}
            fields |= ids
            parts |= ids
        payload = b"m%d" % message.number
        if batched:
            payload = make_batch(*[payload] * count)
            fields["num_messages_in_batch"] = parts["num_messages"] = count
            if self.chance(0.5) or self.settings.brokerDeduplicationEnabled:
                fields["highest_sequence_id"] = parts["highest_sequence_id"] = it.sequence + count - 1
        fields["producer_name"] = it.name
        plain = make_metadata(it.sequence, **fields)
        message.key = sticky_key(plain).decode()
        message.slots = _CONSISTENT.get_slot(message.key.encode()), _RANGES.get_slot(message.key.encode())
        data = make_send(
            it.sequence, payload, **parts, **{f"meta_{name}": value for name, value in fields.items()}
        )
        self.note(f"{it.name} sends {message}{' in ' + str(txn.truth.id) if txn else ''}")
        it.unanswered.append((it.sequence, data, message))
        self._send(it, it.sequence, data, message)
        it.sequence += count
        self.sequences[it.name or ""] = it.sequence

    sequences: dict[str, int]

    def close_producer(self) -> None:
        it = self.pick(each for client in self.clients for each in client.producers if each.state == "open")
        if it is None or (it.unanswered and self.chance(0.7)):
            return
        self.note(f"close producer {it.name}")
        client: Client = it.client
        publisher = client.publishers.get(it.id)
        it.state = "closing"

        def answered(frame: Frame) -> None:
            if publisher is not None and client.publishers.get(it.id) is publisher:
                client.publishers.pop(it.id).closed = True

        def reaction(frame: Frame) -> None:
            it.unanswered.clear()
            client.producers.remove(it)

        client.ask("CLOSE_PRODUCER", None, answered, reaction, producer_id=it.id)
