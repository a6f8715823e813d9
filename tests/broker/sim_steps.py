"""What consumers of the simulation do, one step each."""

from __future__ import annotations

from typing import Any

from broker.sim_clients import Client, Consumer, Transaction
from broker.sim_producing import TOPICS, Producing
from broker.sim_subscription import Ack, Session, Subscription
from broker.sim_truth import Position, Txn, full

from pulsarctl_wire.broker.delivery.consumer import (
    EXCLUSIVE,
    FAILOVER,
    INDIVIDUAL_ACK_TYPES,
    KEY_SHARED,
    SHARED,
)
from pulsarctl_wire.broker.storage.cursor import words_of
from pulsarctl_wire.conformance.basics.frames import EARLIEST, LATEST
from pulsarctl_wire.wire.frame import Frame


class Steps(Producing):
    """Steps; each does nothing if it makes no sense now."""

    def reopen(self, only: Client | None = None) -> None:
        """Make producers and consumers again that the broker closed, or that were lost with a connection."""
        for client in self.clients if only is None else [only]:
            if client.connection is None:
                continue
            for it in client.producers:
                if it.state == "closed":
                    self.open_producer(it)
            client.producers = [it for it in client.producers if it.state != "dead"]
            for consumer in client.consumers:
                if consumer.state == "closed":
                    self.open_consumer(consumer)

    def subscription(self, topic: str, name: str) -> Subscription:
        """What is known of a subscription."""
        subscriptions = self.topic(topic).subscriptions
        if name not in subscriptions:
            early, durable = name != "late", not name.endswith("reader")
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
        options = {**it.options, "label": label, "priority": it.fields.get("priority_level", 0)}
        if self.settings.maxUnackedMessagesPerConsumer >= 50_000:
            options["run"] = self.settings.dispatcherMaxRoundRobinBatchSize
        session = Session(subscription, client, kind, options)
        it.received.clear()
        self.note(f"subscribe {label} to {it.fields['topic'][-1]}/{it.fields['subscription']} kind {kind}")

        def effect() -> None:
            client.sessions[it.id] = session
            subscription.subscribing(session, self.no)

        def answered(frame: Frame) -> None:
            subscription.asked.discard(session)
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

        self.look_up(client, it.fields["topic"])
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

    def redeliver(self, it: Consumer | None = None) -> None:
        it = it or self.a_consumer()
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
        client.tell("REDELIVER_UNACKNOWLEDGED_MESSAGES", effect, consumer_id=number, message_ids=message_ids)

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
                subscription.unsubscribed(began[0], self.no)

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

    def ack(
        self, txn: Transaction | None = None, it: Consumer | None = None, cumulative: bool = False
    ) -> None:
        it = it or self.pick(
            each
            for client in self.clients
            for each in client.consumers
            if each.state == "open" and each.received
        )
        if it is None:
            return
        client, number = it.client, it.id
        many = it.fields["subType"] in INDIVIDUAL_ACK_TYPES
        cumulative = cumulative or self.chance(0.03 if many else 0.3)
        parts = txn is None or self.settings.acknowledgmentAtBatchIndexLevelEnabled
        left, ids = self._choose(
            it, cumulative=cumulative, all_=txn is None and self.chance(0.2), parts=parts
        )
        asks = txn is not None or self.chance(0.5)
        how = "cumulative" if cumulative else ""
        self.note(f"ack c{client.number}.{number} {left} {how} asks {asks} txn {txn and txn.truth.id}")
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
            else:
                ack.answered = subscription.reset_no < ack.no

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

    def _choose(
        self, it: Consumer, *, cumulative: bool, all_: bool, parts: bool
    ) -> tuple[dict[Position, int], list[dict[str, Any]]]:
        """What to acknowledge: messages that stay open by position, and ids for ACK."""
        known = sorted(it.received)
        chosen = [self.pick(known)] if cumulative else self.random.sample(known, min(len(known), 3))
        left: dict[Position, int] = {}
        ids: list[dict[str, Any]] = []
        for position in known if all_ and not cumulative else chosen:
            count, mask = it.received[position]
            part = parts and self.chance(0.4)
            left[position] = self.random.randrange(full(count)) & mask if part else 0
            ids.append({"ledgerId": position[0], "entryId": position[1]})
            if left[position]:
                ids[-1]["ack_set"] = words_of(left[position])
                if self.chance(0.5):
                    ids[-1]["batch_size"] = count
            for each in known if cumulative else [position]:
                if each < position or (each == position and not left[position]):
                    it.received.pop(each, None)
        return left, ids

    def _apply(
        self, session: Session, left: dict[Position, int], txn: Txn | None, *, cumulative: bool
    ) -> Ack:
        """What an ACK means to a subscription."""
        subscription = session.subscription
        ack = Ack(self.no)
        partial = self.settings.acknowledgmentAtBatchIndexLevelEnabled
        if txn is not None:
            txn.acks.append((subscription, ack))
            subscription.txns.append(txn)
        for position, open_ in left.items():
            bits = full(subscription.topic.at[position].count) & ~open_
            if not cumulative:
                ack.parts[position] = ack.parts.get(position, 0) | bits
            if cumulative and session.kind in INDIVIDUAL_ACK_TYPES:
                pass
            elif cumulative and txn is not None:
                subscription.ack_until(ack, position, 0, whole=True)
            elif cumulative:
                if open_ and not partial:
                    open_ = full(subscription.topic.at[position].count)
                subscription.ack_until(ack, position, open_, whole=not open_ or not partial)
            elif txn is not None:
                settles = subscription.is_pending(position, self.now_ms, answered=False)
                subscription.take(ack, position, bits if partial or not open_ else 0, settles=settles)
                if txn.may_be_over(self.now_ms):
                    ack.undone.clear()  # nobody may get it again
                if any(each.may_be_over(self.now_ms) and not each.over for each in subscription.txns):
                    subscription.doubt(position)
            elif open_ and not partial:
                pass
            else:
                subscription.ack(ack, position, bits)
                if subscription.is_pending(position, self.now_ms, answered=False):
                    subscription.doubt(position)  # transactions have the rest, unless they are refused
        return ack
