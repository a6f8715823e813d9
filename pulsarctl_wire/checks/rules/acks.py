"""Rules about acknowledgements and redelivery."""

from itertools import islice
from typing import Final

from pulsarctl_wire.checks.facts import NOWHERE, Entry
from pulsarctl_wire.checks.finding import SUSPECTED, WARNING, Sighting
from pulsarctl_wire.checks.ledgers import Consumer, Held, Returned
from pulsarctl_wire.checks.rule import CAPTURE, CONNECTION, Rule, seconds
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.session.ending import EndedConnection

ENDLESS: Final = 5
"""How often an entry must be delivered again to be an `EndlessRedelivery`."""

_MAX_TRIES: Final = 16  # of a dead letter policy that has the default of Java

_LOOKED_AT: Final = 1_000  # entries of a consumer, those that were delivered first


class AckHole(Rule):
    """An entry stays unacknowledged while later ones are acknowledged: the backlog cannot shrink past it.

    Wire: an entry was delivered and not acknowledged (individually, cumulatively, or with all messages of its
    batch) for A after a higher one was. Without acknowledgement of batch indexes clients send nothing for a
    batch until all its messages are done. The application may still work on it, or give it back later.

    Advice: Find out why the application does not acknowledge this message, or each message of this batch.

    Source: PIP-54; apache/pulsar issue 22352, pull request 26135.
    """

    id = "ack_hole"
    severity = WARNING
    relies_on = CAPTURE  # other consumers of the subscription may acknowledge it

    def consumer_due(self, consumer: Consumer, now_ns: int) -> None:
        """Look at what the consumer holds for longest."""
        if consumer.shared.acknowledged == NOWHERE or not (consumer.exact and self.can_count(consumer.state)):
            return
        until = now_ns - self.thresholds.unacked
        for entry, held in islice(consumer.entries.items(), _LOOKED_AT):
            if not isinstance(held, Held) or held.seen.time_ns > until:
                break
            passed = consumer.shared.passed(entry, until)
            if passed is not None and not held.is_chunk and not _is_endless(consumer, entry):
                self._report(consumer, entry, held, passed, now_ns)

    def _report(self, consumer: Consumer, entry: Entry, held: Held, passed: Sighting, now_ns: int) -> None:
        if held.reported:
            return
        held.reported = True
        rows = [(held.seen, "delivered")]
        if entry in consumer.partly:
            rows.append((consumer.partly[entry][1], f"last partial ACK, {held.left} messages left"))
        rows.append((passed, "a later entry is acknowledged"))
        text = f"One entry is unacknowledged for {seconds(now_ns - held.seen.time_ns)} while later ones are"
        text += " acknowledged: the backlog cannot shrink past it."
        self.found(consumer.state, consumer.subject(entry), rows, text, SUSPECTED)


def _is_endless(consumer: Consumer, entry: Entry) -> bool:
    returned = consumer.returned.get(entry)
    return returned is not None and returned.count >= ENDLESS


class PartialAcksIgnored(Rule):
    """The client acknowledges single messages of a batch, but the broker does not keep that: all come again.

    Wire: ACK Individual with ack_set, then REDELIVER_UNACKNOWLEDGED_MESSAGES, then MESSAGE of that entry
    without ack_set.

    Advice: Set acknowledgmentAtBatchIndexLevelEnabled=true on the broker, or do not rely on acknowledging
    parts of a batch.

    Source: PIP-54; off by default in Pulsar 4.0.
    """

    id = "partial_acks_ignored"
    severity = WARNING
    relies_on = CONNECTION

    def came_again(
        self, state: CheckState, frame: Frame, consumer: Consumer, entry: Entry, returned: Returned
    ) -> None:
        """A MESSAGE that was asked for again."""
        ack = consumer.partly[entry][0] if entry in consumer.partly else None
        if ack is None or ack.number > returned.asked_again.number or not self.can_count(state):
            return
        if frame.ids.is_plain or not frame.base.message.ack_set:  # type: ignore[union-attr]
            rows = [(ack, "a part of the batch is acknowledged"), (state.seen, "all of it again, no ack_set")]
            self.found(state, consumer.subject(entry), rows)


class EndlessRedelivery(Rule):
    """The same message is given back and delivered again and again, and is never acknowledged.

    Wire: after a REDELIVER_UNACKNOWLEDGED_MESSAGES the same entry is delivered five more times or more to the
    same consumer, and it is not acknowledged when that closes. A dead letter policy acknowledges it in the
    end, so it is only reported before that from the 17th time on: Java's policy gives up after 16. Shared and
    Key_Shared count it in redelivery_count; Exclusive and Failover do not.

    Advice: Set a dead letter policy, and look at why the application refuses this message.

    Source: apache/pulsar issue 6721, pulsar-client-node issue 368; RetryMessageUtil.MAX_RECONSUMETIMES.
    """

    id = "endless_redelivery"
    relies_on = CONNECTION

    def came_again(
        self, state: CheckState, frame: Frame, consumer: Consumer, entry: Entry, returned: Returned
    ) -> None:
        """A MESSAGE that was asked for again."""
        if returned.count > _MAX_TRIES:
            self._report(consumer, entry, returned)

    def consumer_due(self, consumer: Consumer, now_ns: int) -> None:
        """Judge a consumer that is closed."""
        if not consumer.is_open:
            self._judge(consumer)

    def closed(self, state: CheckState, ending: EndedConnection) -> None:
        """Judge the consumers that were open until the end."""
        for consumer in state.left_consumers:
            self._judge(consumer)

    def _judge(self, consumer: Consumer) -> None:
        for entry, returned in consumer.returned.items():
            if returned.count >= ENDLESS:
                self._report(consumer, entry, returned)

    def _report(self, consumer: Consumer, entry: Entry, returned: Returned) -> None:
        if not self.can_count(consumer.state):
            return
        times = f"delivered again, {returned.count} times so far"
        rows = [
            (returned.first, "before it was given back"),
            (returned.asked, "first REDELIVER"),
            (returned.last, f"{times}, redelivery_count {returned.redelivery_count}"),
        ]
        text = f"The same message is given back and {times}, and is not acknowledged."
        self.found(consumer.state, consumer.subject(entry), rows, text)
