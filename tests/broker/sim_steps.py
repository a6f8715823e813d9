"""What clients of the simulation do, one step each."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

from broker.probe import EARLIEST, LATEST, batch, metadata, sent
from broker.sim_clients import Client, Consumer, Producer, Transaction
from broker.sim_truth import Ack, Message, Position, Publisher, Session, Subscription, Topic, Txn, full
from broker.sim_world import READY, World

from pulsarctl_wire.broker.consumer import EXCLUSIVE, FAILOVER, INDIVIDUAL, KEY_SHARED, SHARED
from pulsarctl_wire.broker.cursor import words_of
from pulsarctl_wire.broker.selectors import AutoSplit, ConsistentHashing, sticky_key
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import ExclusiveWithFencing, ServerError

TOPICS = ("persistent://public/default/a", "persistent://public/default/b-partition-1")
NAMES = ("p0", "p1")
KEYS = ("", "", "x", "y", "z")
_FINAL = {"TopicTerminatedError", "ProducerFenced", "ProducerBusy"}
_CONSISTENT, _RANGES = ConsistentHashing(), AutoSplit()


class Steps(World):
    """The steps; each does nothing if it makes no sense now."""

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
            trims = self.settings.managedLedgerMaxEntriesPerLedger < 1000
            dedup = self.settings.brokerDeduplicationEnabled
            found = self.topics[name] = Topic(name, deduplicates=dedup, trims=trims)
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

        def answered(frame: Frame) -> None:
            if frame.type != READY:
                if client.publishers.get(it.id) is publisher:
                    del client.publishers[it.id]
            elif frame.body.producer_ready:
                publisher.opened = True
                publisher.topic.fenced |= it.mode == ExclusiveWithFencing
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

        client.ask("LOOKUP", topic=it.topic, authoritative=False)
        fields: dict[str, Any] = {"producer_name": it.name} if named else {}
        if it.topic_epoch is not None:
            fields["topic_epoch"] = it.topic_epoch
        fields |= {"topic": it.topic, "producer_id": it.id, "epoch": it.epoch}
        client.ask("PRODUCER", effect, answered, reaction, producer_access_mode=it.mode, **fields)

    def _send(self, it: Producer, sequence: int, data: bytes, message: Message) -> None:
        client = it.client

        def effect() -> None:
            message.no = min(message.no, self.no)
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
            payload = batch(*[payload] * count)
            fields["num_messages_in_batch"] = parts["num_messages"] = count
            if self.chance(0.5) or self.settings.brokerDeduplicationEnabled:
                fields["highest_sequence_id"] = parts["highest_sequence_id"] = it.sequence + count - 1
        fields["producer_name"] = it.name
        plain = metadata(it.sequence, **fields)
        message.key = sticky_key(plain).decode()
        message.slots = _CONSISTENT.slot(message.key.encode()), _RANGES.slot(message.key.encode())
        data = sent(it.sequence, payload, **parts, **{f"meta_{name}": value for name, value in fields.items()})
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

    def reopen(self) -> None:
        """Make producers and consumers again that the broker closed, or that were lost with a connection."""
        for client in self.clients:
            if client.connection is None:
                continue
            for it in client.producers:
                if it.state == "closed":
                    self.open_producer(it)
            client.producers = [it for it in client.producers if it.state != "dead"]
            for consumer in client.consumers:
                if consumer.state == "closed":
                    self.open_consumer(consumer)

    # -- consumers

    def subscription(self, topic: str, name: str) -> Subscription:
        """What is known of a subscription."""
        subscriptions = self.topic(topic).subscriptions
        if name not in subscriptions:
            early, durable = name != "late", name != "reader"
            subscriptions[name] = Subscription(self.topic(topic), name, early=early, durable=durable)
        return subscriptions[name]

    def subscribe(self) -> None:
        client = self.a_client()
        if client is None or len(client.consumers) >= 4:
            return
        topic, name = self.pick(TOPICS), self.pick(("early", "early", "late", "reader"))
        at = f"{topic}/{name}"
        if at not in self.kinds or self.chance(0.1):
            self.kinds[at] = self.random.choice((EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED, KEY_SHARED, SHARED))
        kind = self.kinds[at]
        number = next(each for each in range(9) if client.consumer(each) is None)
        fields: dict[str, Any] = {"topic": topic, "subscription": name, "subType": kind}
        fields |= {"initialPosition": int(name != "late"), "durable": name != "reader"}
        fields |= {"priority_level": self.pick((0, 0, 0, 1)), "consumer_name": f"c{self.random.randrange(4)}"}
        options: dict[str, Any] = {}
        if kind == KEY_SHARED:
            modes = self.modes.setdefault(at, self.random.choice(("auto", "auto", "loose", "sticky")))
            options["ordered"] = modes != "loose"
            fields["keySharedMeta"] = {"keySharedMode": int(modes == "sticky")}
            if modes == "loose":
                fields["keySharedMeta"]["allowOutOfOrderDelivery"] = True
            if modes == "sticky":
                low, high = self.pick(((0, 32767), (32768, 65535), (0, 65535)))
                options["ranges"] = [(low, high)]
                fields["keySharedMeta"]["hashRanges"] = [{"start": low, "end": high}]
        consumer = Consumer(client, number, fields, options)
        client.consumers.append(consumer)
        self.open_consumer(consumer)

    kinds: dict[str, int]
    modes: dict[str, str]

    def open_consumer(self, it: Consumer, permits: int | None = None) -> None:
        client = it.client
        it.state = "opening"
        subscription = self.subscription(it.fields["topic"], it.fields["subscription"])
        label = f"c{client.number}.{it.id}"
        kind = it.fields["subType"]
        session = Session(subscription, client, kind, {**it.options, "label": label})
        it.received.clear()
        self.note(f"subscribe {label} to {it.fields['topic'][-1]}/{it.fields['subscription']} kind {kind}")

        def effect() -> None:
            client.sessions[it.id] = session
            subscription.subscribing(self.no)

        def answered(frame: Frame) -> None:
            if client.sessions.get(it.id) is not session:
                return
            if frame.command == "SUCCESS":
                subscription.subscribed(self.no)
                subscription.opened(session)
            else:
                del client.sessions[it.id]

        def reaction(frame: Frame) -> None:
            if frame.command != "SUCCESS":
                it.state = "closed"
                if self.chance(0.5):
                    client.forget(it)
            elif it.state == "opening":
                it.state = "open"
                self.flow(it, permits or self.random.choice((1, 3, 10, 1000)))

        client.ask("LOOKUP", topic=it.fields["topic"], authoritative=False)
        client.ask("SUBSCRIBE", effect, answered, reaction, consumer_id=it.id, **it.fields)

    def a_consumer(self) -> Consumer | None:
        """A consumer that is open, as its client knows."""
        found: Consumer | None = self.pick(
            each for client in self.clients for each in client.consumers if each.state == "open"
        )
        return found

    def flow(self, it: Consumer | None = None, permits: int = 0) -> None:
        it = it or self.a_consumer()
        if it is None:
            return
        permits = permits or self.random.choice((1, 1, 2, 5, 20, 1000))
        client, number = it.client, it.id
        self.note(f"flow {permits} to c{client.number}.{number}")

        def effect() -> None:
            session = client.sessions.get(number)
            if session is not None and session.opened:
                session.granted += permits

        client.tell("FLOW", effect, consumer_id=number, messagePermits=permits)

    def redeliver(self) -> None:
        it = self.a_consumer()
        if it is None:
            return
        client, number = it.client, it.id
        ids: list[Position] = []
        if it.received and self.chance(0.6):
            ids = self.random.sample(sorted(it.received), min(2, len(it.received)))
        self.note(f"redeliver {ids} of c{client.number}.{number}")

        def effect() -> None:
            session = client.sessions.get(number)
            if session is not None and session.opened:
                session.subscription.give_back(session, ids)

        message_ids = [{"ledgerId": ledger, "entryId": entry} for ledger, entry in ids]
        client.tell(
            "REDELIVER_UNACKNOWLEDGED_MESSAGES", effect, consumer_id=number, message_ids=message_ids
        )

    def close_consumer(self) -> None:
        it = self.a_consumer()
        if it is not None:
            self.close_this(it)

    def close_this(self, it: Consumer) -> None:
        client: Client = it.client
        self.note(f"close c{client.number}.{it.id}")
        it.state = "closing"

        def effect() -> None:
            session = client.sessions.pop(it.id, None)
            if session is not None:
                session.subscription.leave(session, self.no)

        def reaction(frame: Frame) -> None:
            client.forget(it)

        client.ask("CLOSE_CONSUMER", effect, None, reaction, consumer_id=it.id)

    def unsubscribe(self) -> None:
        it = self.a_consumer()
        if it is None or it.fields["subscription"] == "reader":
            return
        client: Client = it.client
        force = self.chance(0.3)
        began: list[int] = []
        subscription = self.subscription(it.fields["topic"], it.fields["subscription"])
        self.note(f"unsubscribe c{client.number}.{it.id} force {force}")

        def effect() -> None:
            session = client.sessions.get(it.id)
            if session is None or not session.opened:
                return
            if force or subscription.sessions == [session]:
                del client.sessions[it.id]
                began.append(self.no)
                subscription.unsubscribing(self.no)
                subscription.leave(session, self.no)

        def answered(frame: Frame) -> None:
            if frame.command == "SUCCESS":
                assert began, "UNSUBSCRIBE should have been refused"
                subscription.unsubscribed(began[0])

        def reaction(frame: Frame) -> None:
            if frame.command == "SUCCESS":
                client.forget(it)

        client.ask("UNSUBSCRIBE", effect, answered, reaction, consumer_id=it.id, force=force)

    def seek(self) -> None:
        it = self.a_consumer()
        if it is None:
            return
        client: Client = it.client
        subscription = self.subscription(it.fields["topic"], it.fields["subscription"])
        topic = subscription.topic
        target: Position | None = (-1, -1)
        fields: dict[str, Any] = {"message_id": EARLIEST}
        by_time = self.chance(0.2)
        if by_time:
            fields = {"message_publish_time": self.now_ms - self.random.randrange(3000)}
        elif self.chance(0.2):
            target, fields = None, {"message_id": LATEST}
        elif topic.order and self.chance(0.7):
            target = self.pick(topic.order)
            assert target is not None
            fields = {"message_id": {"ledgerId": target[0], "entryId": target[1]}}
        self.note(f"seek c{client.number}.{it.id} to {fields}")
        state: list[Any] = []

        def effect() -> None:
            session = client.sessions.get(it.id)
            if session is not None and session.opened:
                before = {each for each, bits in subscription.open.items() if bits}
                subscription.forget(self.no)
                subscription.wild += by_time
                state.extend((self.no, target, list(topic.order), before))

        def answered(frame: Frame) -> None:
            if state and by_time:
                subscription.sought_time(self.no)
            elif frame.command == "SUCCESS" and state and subscription.durable:
                subscription.sought(*state)

        client.ask("SEEK", effect, answered, consumer_id=it.id, **fields)

    # -- acknowledgements

    def ack(self, txn: Transaction | None = None, it: Consumer | None = None, cumulative: bool = False) -> None:
        it = it or self.pick(
            each
            for client in self.clients
            for each in client.consumers
            if each.state == "open" and each.received
        )
        if it is None:
            return
        client, number = it.client, it.id
        cumulative = cumulative or self.chance(0.3 if it.fields["subType"] not in INDIVIDUAL else 0.03)
        known = sorted(it.received)
        chosen = [self.pick(known)] if cumulative else self.random.sample(known, min(len(known), 3))
        if txn is None and not cumulative and self.chance(0.2):
            chosen = known
        left: dict[Position, int] = {}
        ids = []
        for position in chosen:
            count, mask = it.received[position]
            left[position] = 0
            ids.append({"ledgerId": position[0], "entryId": position[1]})
            if count > 1 and self.chance(0.4):
                left[position] = self.random.randrange(full(count)) & mask
            if left[position]:
                ids[-1] |= {"ack_set": words_of(left[position])}  # type: ignore[dict-item]
                if txn is not None or self.chance(0.5):
                    ids[-1]["batch_size"] = count
            for each in known if cumulative else [position]:
                if each < position or (each == position and not left[position]):
                    it.received.pop(each, None)
        asks = txn is not None or self.chance(0.5)
        self.note(f"ack c{client.number}.{number} {left} cumulative {cumulative} asks {asks} txn {txn and txn.truth.id}")
        acks: list[tuple[Subscription, Ack]] = []

        def effect() -> None:
            session = client.sessions.get(number)
            if session is not None and session.opened:
                truth = None if txn is None else txn.truth
                ack = self._apply(session, left, truth, cumulative=cumulative)
                acks.append((session.subscription, ack))

        def answered(frame: Frame) -> None:
            subscription, ack = acks[0]
            if frame.body.HasField("error"):
                ack.refused = True
                subscription.undo(ack)
                for position, holder in ack.held.items():
                    if not holder.closed:
                        subscription.holders.setdefault(position, holder)
            elif txn is None:
                subscription.ack_answered(ack)

        def reaction(frame: Frame) -> None:
            if txn is not None:
                txn.busy -= 1

        fields: dict[str, Any] = {"consumer_id": number, "ack_type": int(cumulative), "message_id": ids}
        if txn is not None:
            txn.busy += 1
            fields |= {"txnid_most_bits": txn.truth.id[0], "txnid_least_bits": txn.truth.id[1]}
        if asks:
            client.ask("ACK", effect, answered, reaction, **fields)
        else:
            client.tell("ACK", effect, **fields)

    def _apply(self, session: Session, left: dict[Position, int], txn: Txn | None, *, cumulative: bool) -> Ack:
        """What an ACK means to a subscription."""
        subscription = session.subscription
        ack = Ack(self.no)
        partial = self.settings.acknowledgmentAtBatchIndexLevelEnabled
        if txn is not None:
            txn.acks.append((subscription, ack))
            subscription.txns.append(txn)
        for position, open_ in left.items():
            bits = full(subscription.topic.at[position].count) & ~open_
            if cumulative and txn is not None:
                subscription.ack_until(ack, position, 0, whole=True)
            elif cumulative and session.kind in INDIVIDUAL:
                pass
            elif cumulative:
                if open_ and not partial:
                    open_ = full(subscription.topic.at[position].count)
                subscription.ack_until(ack, position, open_, whole=not open_ or not partial)
            elif open_ and not partial:
                pass
            elif txn is not None:
                subscription.take(ack, position, bits, settles=not open_)
            else:
                subscription.ack(ack, position, bits)
        return ack
