"""`Doctor`: tells the rules what happens on all connections, and collects what they find.

    events of a connection -> CheckState -> frames, moments ──► rules ──► report -> Finding
    ended connections, time ──────────────────────────────────►

It follows captures (a `Decoder` calls `new_state` and `end_connection`) and live traffic (it is a `Sink`; the
`Follower` must use its `new_state`). Nothing is read twice, and all tables are bounded.

A silence is checked when it ends, and from time to time while it lasts. The packets of a capture may be out
of order, so a check comes some frames late, and then uses the time at which it was due.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from pulsarctl_wire.checks.conduct import Mistake
from pulsarctl_wire.checks.facts import MAX_UNACKED, Facts
from pulsarctl_wire.checks.finding import CERTAIN, Evidence, Finding, Sighting, Subject
from pulsarctl_wire.checks.ledgers import Consumer, Producer, SightedState
from pulsarctl_wire.checks.registry import RULES
from pulsarctl_wire.checks.rule import (
    CAPTURE,
    DEFAULTS,
    FRAME,
    MOMENTS,
    SECOND,
    Rule,
    Thresholds,
    has_hook,
    read_paragraphs,
)
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.commands import NUMBERS
from pulsarctl_wire.wire.frame import Connection, Frame, Gap, HttpMessage, Malformed
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.session.ending import CLOSED, OPEN, PULSAR, EndedConnection
from pulsarctl_wire.wire.session.knowledge import Knowledge, bound
from pulsarctl_wire.wire.session.sinks import Sink

MAX_FINDINGS: Final = 10_000
"""Maximum number of findings that are kept; further ones are only counted."""

_MAX_PROOFS: Final = 131_072  # frames that are remembered as evidence
_CHECK_FRAMES: Final = 256  # in a capture, a check of silences comes this many frames late, or more

_ALL: Final = -1
"""Stands for all connections."""

OnFinding = Callable[[Finding, bool], object]
"""Called with a finding, and whether it is new."""


class Doctor(Sink):
    """Applies rules to traffic.

    findings             all findings so far, in order
    rule_count           number of rules
    omitted_count        number of findings beyond `MAX_FINDINGS`
    withdrawn_count      number of findings that a hole has made doubtful
    connection_counts    numbers of connections by kind: Pulsar, TLS, joined midway, with holes

    `live`: the caller calls `tick`; otherwise the time is that of the events. `state_type` is the class of
    the states that it makes.
    """

    def __init__(
        self,
        rules: Iterable[type[Rule]] = RULES,
        thresholds: Thresholds = DEFAULTS,
        *,
        live: bool = False,
        on_finding: OnFinding = lambda finding, is_new: None,
        state_type: type[CheckState] = CheckState,
    ) -> None:
        self.thresholds = thresholds
        self.facts = Facts(keep_ns=thresholds.unacked, quiet_ns=thresholds.quiet)
        self.states: dict[int, CheckState] = {}
        self.findings: dict[tuple[str, int, Subject], Finding] = {}
        self.omitted_count = self.withdrawn_count = 0
        self.connection_counts = dict.fromkeys(("connections", "Pulsar", "encrypted", "joined", "holes"), 0)
        self._live = live
        self._state_type = state_type
        quarter = min(thresholds) // 4
        self._interval_ns = min(SECOND, quarter) if live else quarter
        self._on_finding = on_finding
        self._next_check = (0, 0)  # time of the next check (0: none), and number of the frame that starts it
        self._now = 0
        self._checked_count = 0  # connections, consumers and producers that the last check looked at
        self._proofs: dict[Sighting, str] = {}  # frames that prove a finding, and the rule that said so last
        self._topics: set[tuple[str, str | None]] = set()  # rules that have findings, and their topics
        self._latest_reports: dict[int, int] = {}
        """The frame count when the latest finding that a hole may withdraw was reported.

        By connection index; `_ALL` is the key for rules that rely on all connections.
        """
        self._rules = [rule(self) for rule in rules]
        self._relies_on = {rule.id: rule.relies_on for rule in self._rules}
        self.rule_count = len(self._rules)
        self._by_type = self._map_handlers()
        self._handles_type = [kind in self._by_type for kind in range(max(NUMBERS.values()) + 1)]
        hooks = (*MOMENTS, "opened", "closed", "lost", "consumer_due", "producer_due", "due", "finished")
        self._hooks = {
            name: [getattr(rule, f"on_{name}") for rule in self._rules if has_hook(rule, name)]
            for name in hooks
        }

    def _map_handlers(self) -> dict[int, list[Callable[..., None]]]:
        handlers: dict[int, list[Callable[..., None]]] = {}
        for rule in self._rules:
            for command, method in rule.handlers.items():
                handlers.setdefault(NUMBERS[command], []).append(getattr(rule, method))
        return handlers

    # -- captures

    def new_state(
        self, connection: Connection, knowledge: Knowledge, streams: Iterable[FrameStream] = ()
    ) -> CheckState:
        """Return the state of a new connection: for `Decoder` and `Follower`."""
        state = self._state_type(connection, knowledge, streams, doctor=self, handles_type=self._handles_type)
        self.states[connection.index] = state
        for hook in self._hooks["opened"]:
            hook(state)
        return state

    def end_connection(self, ending: EndedConnection) -> None:
        """Tell the rules that a connection has ended: for `Decoder`'s `on_end`."""
        state = ending.state
        if not isinstance(state, CheckState):
            return
        self.states.pop(state.connection.index, None)
        self._latest_reports.pop(state.connection.index, None)
        self._count_connection(state, ending)
        if state.mistakes:
            self._conclude_mistakes(state, state.mistakes, ending)
        for hook in self._hooks["closed"]:
            hook(state, ending)
        state.consumers_at_end = state.producers_at_end = ()  # no cycles are left: memory is freed at once

    def _count_connection(self, state: CheckState, ending: EndedConnection) -> None:
        counts = self.connection_counts
        counts["connections"] += 1
        counts["encrypted"] += ending.protocol == "TLS"
        if ending.protocol == PULSAR:
            counts["Pulsar"] += 1
            counts["joined"] += ending.joined
            counts["holes"] += not state.has_all_bytes

    def conclude(self, last_ns: int, endings: Iterable[object]) -> None:
        """End a capture whose last packet was captured at `last_ns`; iterating `endings` ends connections."""
        self.check_last_silences(last_ns)
        for _ in endings:
            pass
        self.finish()

    def check_last_silences(self, last_ns: int) -> None:
        """Check silences until `last_ns`, the end of a capture; connections may still be open."""
        self._check_silences(max(last_ns, self._now))

    def map_frames_to_rules(self) -> dict[int, list[str]]:
        """Return the ids of the rules that each frame is evidence for, by the frame's number."""
        rules_by_frame: dict[int, list[str]] = {}
        for finding in self.findings.values():
            for sighting, _ in finding.evidence:
                rules = rules_by_frame.setdefault(sighting.number, [])
                if finding.rule not in rules:
                    rules.append(finding.rule)
        return rules_by_frame

    # -- live traffic

    def closed(self, connection: Connection, time_ns: int, by_broker: bool) -> None:
        """End a connection. Overrides the parent's method."""
        state = self.states.get(connection.index)
        if state is not None:
            self.end_connection(_make_ending(state, time_ns, by_broker))

    def tick(self, now_ns: int) -> None:
        """Check all silences. Overrides the parent's method."""
        self._check_silences(now_ns)

    def finish(self) -> None:
        """End all connections. Overrides the parent's method."""
        for state in list(self.states.values()):
            self.end_connection(_make_ending(state, self._now, None))
        for hook in self._hooks["finished"]:
            hook()

    # -- calls of states

    def advance(self, time_ns: int, number: int) -> None:
        """Move on to the time of the next frame; `number` is the number of that frame."""
        self.facts.due_ns = time_ns + self._interval_ns
        if self._live:
            self._check_silences(time_ns)
            return
        due_ns, starting_number = self._next_check
        if due_ns and number < starting_number:
            return
        if due_ns:
            self._check_silences(due_ns)
        self._next_check = time_ns, number + max(_CHECK_FRAMES, self._checked_count)

    def _check_silences(self, now_ns: int) -> None:
        """Check all silences."""
        self._now = now_ns
        self._checked_count = len(self.states)
        for hook in self._hooks["due"]:
            hook(now_ns)
        for state in list(self.states.values()):
            if state.closed_ns is not None:
                continue  # it is checked when it has ended, with the time of its FIN
            ledgers = (*state.consumers.values(), *state.producers.values())
            self._checked_count += len(ledgers)
            for ledger in ledgers:
                if isinstance(ledger, Consumer) or (isinstance(ledger, Producer) and ledger.is_open):
                    self.check_owner(ledger, now_ns)

    def check_owner(self, owner: Consumer | Producer, now_ns: int) -> None:
        """Let the rules check the silence of a consumer or producer."""
        for hook in self._hooks["consumer_due" if isinstance(owner, Consumer) else "producer_due"]:
            hook(owner, now_ns)

    def on_frame(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Call the handlers of a frame's type, after the frame was tracked."""
        for method in self._by_type[frame.type]:
            method(state, frame, sighting)

    def on_moment(self, name: str, state: CheckState, frame: Frame | HttpMessage, *details: Any) -> None:
        """Call the rules that watch for this moment (`rule.MOMENTS`)."""
        for method in self._hooks[name]:
            method(state, frame, *details)

    def forget_unacked(self) -> None:
        """Forget the unacknowledged entries of the consumers that hold most, if there are too many."""
        consumers = [consumer for state in self.states.values() for consumer in state.consumers.values()]
        consumers.sort(key=lambda consumer: len(consumer.entries))
        count = sum(len(consumer.entries) for consumer in consumers)
        while count > MAX_UNACKED // 2:
            consumer = consumers.pop()
            count -= len(consumer.entries)
            consumer.forget()
        self.facts.unacked_count = count

    def on_lost(self, state: CheckState, event: Malformed | Gap) -> None:
        """Tell the rules that bytes were missed, or are no frame."""
        for hook in self._hooks["lost"]:
            hook(state, event)
        if isinstance(event, Gap) and not state.has_all_bytes:
            self._withdraw(state, event)

    # -- findings

    def _conclude_mistakes(
        self, state: CheckState, mistakes: dict[tuple[str, Subject], Mistake], ending: EndedConnection
    ) -> None:
        """Add what became of the connection to the findings of mistakes without an answer."""
        answer = state.to_client.last
        for mistake in mistakes.values():
            after_ns = (ending.end_ns or 0) - mistake.sighting.time_ns
            is_silent = answer is None or answer.number < mistake.sighting.number
            if mistake.sighting.to_broker and ending.end_ns and is_silent and after_ns < SECOND:
                by = "The broker closed" if ending.by_broker else "Nothing came back, and the client closed"
                self.on_outcome(mistake, state.connection.index, None, f"{by} the connection.")
            elif mistake.sighting.to_broker and not is_silent:
                self.on_outcome(mistake, state.connection.index, None, "The broker did nothing about it.")
        state.mistakes = None

    def on_outcome(self, mistake: Mistake, connection: int, answer: Sighting | None, outcome: str) -> None:
        """Add to a finding what the other side did about the mistake: a sentence, or the answer's command."""
        finding = self.findings.get((mistake.rule.id, connection, mistake.subject))
        if finding is None:
            return
        if answer is not None:
            finding.add([Evidence(answer, "the answer")])
            outcome = f"The answer is {outcome}."
        if not finding.explanation.endswith(outcome):
            finding.explanation += f" {outcome}"

    def is_explained(
        self, rule: Rule, sightings: Iterable[Sighting], topic: str | None, causes: Iterable[str]
    ) -> bool:
        """Return whether another rule explains these frames.

        Either one of them proves its finding, or it is one of `causes` and has a finding on `topic`.
        """
        return any((cause, topic) in self._topics for cause in causes) or any(
            self._proofs.get(sighting, rule.id) != rule.id for sighting in sightings
        )

    def withdraw(self, rule: Rule, state: SightedState, subject: Subject) -> None:
        """Drop a finding."""
        self.findings.pop((rule.id, state.connection.index, subject), None)

    def report(
        self,
        rule: Rule,
        state: SightedState,
        subject: Subject,
        evidence: list[Evidence],
        explanation: str,
        certainty: str,
    ) -> None:
        """Add a finding, or count it again if its rule, connection and subject have one already."""
        key = rule.id, state.connection.index, subject
        finding = self.findings.get(key)
        is_new = finding is None
        if finding is None:
            if len(self.findings) >= MAX_FINDINGS:
                self.omitted_count += 1
                return
            advice = read_paragraphs(type(rule))["Advice"]
            finding = self.findings[key] = Finding(
                *(rule.id, rule.severity, certainty, subject, state.connection, [], explanation, advice)
            )
            finding.cause = rule.find_cause(state.connection, subject, evidence)
            self._topics.add((rule.id, subject.topic))
            self._note_report(rule, finding, state)
            times = [row.sighting.time_ns for row in evidence if row.sighting.time_ns]
            finding.first_ns = min(times, default=0)
        elif certainty == CERTAIN or certainty == finding.certainty:
            if certainty != finding.certainty:
                self._note_report(rule, finding, state)
            finding.certainty, finding.explanation = certainty, explanation
        finding.last_ns = max((row.sighting.time_ns for row in evidence), default=0)
        self._proofs |= dict.fromkeys((row.sighting for row in evidence), rule.id)
        bound(self._proofs, _MAX_PROOFS)
        if finding.add(evidence):
            finding.count += 1
            self._on_finding(finding, is_new)

    def _note_report(self, rule: Rule, finding: Finding, state: SightedState) -> None:
        """Note after how many frames a finding was reported: a hole may withdraw it."""
        finding.frames_at_report = state.frame_count
        if rule.relies_on != FRAME:
            self._latest_reports[_ALL if rule.relies_on == CAPTURE else state.connection.index] = (
                state.frame_count
            )

    def _withdraw(self, state: CheckState, gap: Gap) -> None:
        """Drop findings that were reported while the bytes of a hole were already missing."""
        last = state.direction(gap.to_broker).last
        last_number = last.number if last is not None else 0
        scopes = [
            key for key in (_ALL, state.connection.index) if self._latest_reports.get(key, 0) > last_number
        ]
        if not scopes:
            return
        self._latest_reports |= dict.fromkeys(scopes, last_number)
        for key, finding in list(self.findings.items()):
            relies_on = self._relies_on[finding.rule]
            if relies_on == FRAME or finding.frames_at_report <= last_number:
                continue
            if relies_on == CAPTURE or finding.connection is state.connection:
                del self.findings[key]
                self.withdrawn_count += 1


def _make_ending(state: CheckState, time_ns: int, by_broker: bool | None) -> EndedConnection:
    """Return the ending of a connection whose packets were not seen, as in live traffic.

    `by_broker` is None if it is still open.
    """
    return EndedConnection(
        connection=state.connection,
        state=state,
        packet=0,
        time_ns=state.first_ns,
        last_ns=time_ns,
        syns=1,
        joined=False,
        end=OPEN if by_broker is None else CLOSED,
        by_broker=by_broker,
        end_ns=None if by_broker is None else time_ns,
        both=True,
        protocol=PULSAR,
        sizes=state.sizes,
    )
