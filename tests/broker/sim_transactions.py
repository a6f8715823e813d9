"""What clients of the simulation do in transactions, one step each."""

from __future__ import annotations

from typing import Any

from broker.sim_clients import Client, Consumer, Transaction
from broker.sim_steps import Steps
from broker.sim_truth import Txn

from pulsarctl_wire.wire.frame import Frame

TTL_MS = 20_000


class Transactions(Steps):
    """Steps; each does nothing if it makes no sense now."""

    def begin(self, client: Client | None = None) -> None:
        client = client or self.a_client()
        if client is None or len(client.transactions) >= 2:
            return
        self.note(f"begin at c{client.number}")
        begun: list[Txn] = []
        began: list[int] = []

        def effect() -> None:
            began.append(self.now_ms)

        def answered(frame: Frame) -> None:
            if not frame.body.HasField("error"):
                id_ = frame.body.txnid_most_bits, frame.body.txnid_least_bits
                assert id_ not in self.txns, f"transaction {id_} comes twice"
                begun.append(Txn(id_))
                begun[0].until_ms = began[0] + TTL_MS
                self.txns[id_] = begun[0]

        def reaction(frame: Frame) -> None:
            client.transactions += map(Transaction, begun)
            for _ in range(3):
                self.join()

        client.ask("NEW_TXN", effect, answered, reaction, tc_id=0, txn_ttl_millis=TTL_MS)

    def _txns(self) -> list[tuple[Client, Transaction]]:
        """Those that are open, and their clients."""
        return [(client, txn) for client in self.clients for txn in client.transactions if not txn.ending]

    def join(self) -> None:
        """Add a topic or a subscription to a transaction, and then use it."""
        found = self.pick(self._txns())
        if found is None:
            return
        client, txn = found
        ids = {"txnid_most_bits": txn.truth.id[0], "txnid_least_bits": txn.truth.id[1]}
        known = [(each.fields["topic"], each.fields["subscription"]) for each in client.consumers]
        known = [each for each in known if each[1] != "reader" and each not in txn.subscriptions]
        known += [(each.topic, "") for each in client.producers if each.topic not in txn.topics]
        if not known:
            return
        topic, name = self.pick(known)
        self.note(f"add {topic[-1]}/{name} to {txn.truth.id}")
        txn.busy += 1

        def reaction(frame: Frame) -> None:
            txn.busy -= 1
            if frame.body.HasField("error"):
                return
            if name:
                txn.subscriptions.add((topic, name))
                self.ack_in(client, txn)
            else:
                txn.topics.add(topic)
                self.send_in(client, txn)

        if name:
            pair = [{"topic": topic, "subscription": name}]
            client.ask("ADD_SUBSCRIPTION_TO_TXN", None, None, reaction, subscription=pair, **ids)
        else:
            client.ask("ADD_PARTITION_TO_TXN", None, None, reaction, partitions=[topic], **ids)

    def work(self) -> None:
        """Send or acknowledge in a transaction."""
        found = self.pick(self._txns())
        if found is not None:
            self.pick((self.send_in, self.ack_in))(*found)

    def send_in(self, client: Client, txn: Transaction) -> None:
        it = self.pick(each for each in client.producers if self._may(each) and each.topic in txn.topics)
        if it is not None:
            self.send(txn, it)

    def ack_in(self, client: Client, txn: Transaction) -> None:
        def fits(it: Consumer) -> bool:
            at = it.fields["topic"], it.fields["subscription"]
            return it.state == "open" and at in txn.subscriptions and bool(it.received)

        it = self.pick(each for each in client.consumers if fits(each))
        if it is not None:
            self.ack(txn, it)

    def end(self) -> None:
        if self._txns() and self.chance(0.5):
            self.settle(0)
        found = self.pick(each for each in self._txns() if not each[1].busy)
        if found is None:
            return
        client, txn = found
        commit = self.chance(0.6)
        self.note(f"end {txn.truth.id} commit {commit}")
        txn.ending = True

        def effect() -> None:
            txn.truth.ending, txn.truth.commit_sent = True, commit

        def answered(frame: Frame) -> None:
            if not frame.body.HasField("error"):
                txn.truth.ended(commit=commit)

        def reaction(frame: Frame) -> None:
            client.transactions.remove(txn)

        ids: dict[str, Any] = {"txnid_most_bits": txn.truth.id[0], "txnid_least_bits": txn.truth.id[1]}
        client.ask("END_TXN", effect, answered, reaction, txn_action=int(not commit), **ids)
