"""`Doctor`: tells the rules what happens on all connections, and collects what they find.

    events of a connection -> CheckState -> frames, moments ──► rules ──► found -> Finding
    ended connections, time ──────────────────────────────────►

It follows captures (`new_state` and `ended` are for a `Decoder`) as well as live traffic (it is a `Sink`; the
`Follower` must use its `new_state`). Nothing is read twice, and all tables are bounded.

A silence is looked at when it ends, and now and then while it lasts. In a capture, packets may be out of
order; so "now and then" is some frames later, with the time of before.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

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
    defines,
    paragraphs,
)
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.commands import NUMBERS
from pulsarctl_wire.wire.frame import Connection, Frame, Gap, Malformed
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.session.ending import CLOSED, OPEN, PULSAR, EndedConnection
from pulsarctl_wire.wire.session.knowledge import Knowledge
from pulsarctl_wire.wire.session.sinks import Sink

MAX_FINDINGS: Final = 10_000
"""Maximum number of findings that are kept; further ones are only counted."""

_LATER: Final = 256  # frames after which silences of a capture are looked at, or as many as can be silent

_ALL: Final = -1
"""Stands for all connections."""

OnFinding = Callable[[Finding, bool], object]
"""Called with a finding, and whether it is new."""


class Doctor(Sink):
    """Applies rules to traffic.

    findings      what was found so far, in order
    rules         number of rules
    left_out      number of findings beyond `MAX_FINDINGS`
    withdrawn     number of findings that a hole has made doubtful
    looked_at     number of connections by what they turned out to be: Pulsar, TLS, joined midway, with holes

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
        self.left_out = self.withdrawn = 0
        self.looked_at = dict.fromkeys(("connections", "Pulsar", "encrypted", "joined", "holes"), 0)
        self._live = live
        self._state_type = state_type
        quarter = min(thresholds) // 4
        self._every = min(SECOND, quarter) if live else quarter
        self._on_finding = on_finding
        self._waits = (0, 0)  # a time that was not looked at yet, and before which frame it will be
        self._now = 0
        self._looked_at = 0  # connections, consumers and producers, the last time
        self._made_at: dict[int, int] = {}
        """`made_at` of the latest finding that a hole may take back: by connection, or `_ALL`."""
        self._rules = [rule(self) for rule in rules]
        self._relies_on = {rule.id: rule.relies_on for rule in self._rules}
        self.rules = len(self._rules)
        self._by_type = self._asked_for()
        self._types = [kind in self._by_type for kind in range(max(NUMBERS.values()) + 1)]
        hooks = (*MOMENTS, "opened", "closed", "lost", "consumer_due", "producer_due", "due", "finished")
        self._hooks = {
            name: [getattr(each, name) for each in self._rules if defines(each, name)] for name in hooks
        }

    def _asked_for(self) -> dict[int, list[Callable[..., None]]]:
        found: dict[int, list[Callable[..., None]]] = {}
        for rule in self._rules:
            for command, method in rule.on.items():
                found.setdefault(NUMBERS[command], []).append(getattr(rule, method))
        return found

    # -- captures

    def new_state(
        self, connection: Connection, knowledge: Knowledge, streams: Iterable[FrameStream] = ()
    ) -> CheckState:
        """The state of a new connection: for `Decoder` and `Follower`."""
        state = self._state_type(connection, knowledge, streams, doctor=self, types=self._types)
        self.states[connection.index] = state
        for opened in self._hooks["opened"]:
            opened(state)
        return state

    def ended(self, ending: EndedConnection) -> None:
        """A connection has ended: for `Decoder`'s `on_end`."""
        state = ending.state
        if not isinstance(state, CheckState):
            return
        self.states.pop(state.connection.index, None)
        self._made_at.pop(state.connection.index, None)
        self._count(state, ending)
        for closed in self._hooks["closed"]:
            closed(state, ending)
        state.left_consumers = state.left_producers = ()  # no cycles are left: memory is freed at once

    def _count(self, state: CheckState, ending: EndedConnection) -> None:
        looked_at = self.looked_at
        looked_at["connections"] += 1
        looked_at["encrypted"] += ending.protocol == "TLS"
        if ending.protocol == PULSAR:
            looked_at["Pulsar"] += 1
            looked_at["joined"] += ending.joined
            looked_at["holes"] += not state.whole

    def conclude(self, last_ns: int, rest: Iterable[object]) -> None:
        """The capture ends: its last packet was captured at `last_ns`. `rest` ends the connections."""
        self.last_look(last_ns)
        for _ in rest:
            pass
        self.finish()

    def last_look(self, last_ns: int) -> None:
        """The last packet of a capture was captured at `last_ns`; connections may still be open."""
        self._look(max(last_ns, self._now))

    def by_frame(self) -> dict[int, list[str]]:
        """Numbers of the frames that prove findings, and the ids of those."""
        found: dict[int, list[str]] = {}
        for finding in self.findings.values():
            for seen, _ in finding.evidence:
                rules = found.setdefault(seen.number, [])
                if finding.rule not in rules:
                    rules.append(finding.rule)
        return found

    # -- live traffic

    def closed(self, connection: Connection, time_ns: int, by_broker: bool) -> None:
        """The connection has ended. Overrides the parent's method."""
        state = self.states.get(connection.index)
        if state is not None:
            self.ended(_ending(state, time_ns, by_broker))

    def tick(self, now_ns: int) -> None:
        """Time has passed. Overrides the parent's method."""
        self._look(now_ns)

    def finish(self) -> None:
        """Nothing more will come. Overrides the parent's method."""
        for state in list(self.states.values()):
            self.ended(_ending(state, self._now, None))
        for finished in self._hooks["finished"]:
            finished()

    # -- what states tell

    def advance(self, time_ns: int, number: int) -> None:
        """The frame with this number and time comes next."""
        self.facts.due_ns = time_ns + self._every
        if self._live:
            self._look(time_ns)
            return
        waits, until = self._waits
        if waits and number < until:
            return
        if waits:
            self._look(waits)
        self._waits = time_ns, number + max(_LATER, self._looked_at)

    def _look(self, now_ns: int) -> None:
        """Look at all silences."""
        self._now = now_ns
        self._looked_at = len(self.states)
        for due in self._hooks["due"]:
            due(now_ns)
        for state in list(self.states.values()):
            if state.closed_ns is not None:
                continue  # it is looked at when it has ended, with the time of its FIN
            ledgers = (*state.consumers.values(), *state.producers.values())
            self._looked_at += len(ledgers)
            for each in ledgers:
                if isinstance(each, Consumer) or (isinstance(each, Producer) and each.is_open):
                    self.due(each, now_ns)

    def due(self, who: Consumer | Producer, now_ns: int) -> None:
        """Time has passed for a consumer or producer."""
        for look in self._hooks["consumer_due" if isinstance(who, Consumer) else "producer_due"]:
            look(who, now_ns)

    def frame(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """A frame of a type that rules ask for was tracked."""
        for method in self._by_type[frame.type]:
            method(state, frame, seen)

    def moment(self, name: str, state: CheckState, frame: Frame, *what: Any) -> None:
        """Something unusual has happened."""
        for method in self._hooks[name]:
            method(state, frame, *what)

    def forget_held(self) -> None:
        """Forget the unacknowledged entries of the consumers that hold most, if there are too many."""
        consumers = [each for state in self.states.values() for each in state.consumers.values()]
        consumers.sort(key=lambda each: len(each.entries))
        held = sum(len(each.entries) for each in consumers)
        while held > MAX_UNACKED // 2:
            most = consumers.pop()
            held -= len(most.entries)
            most.forget()
        self.facts.held = held

    def lost(self, state: CheckState, event: Malformed | Gap) -> None:
        """Bytes were missed, or are no frame."""
        for lost in self._hooks["lost"]:
            lost(state, event)
        if isinstance(event, Gap) and not state.whole:
            self._withdraw(state, event)

    # -- findings

    def found(
        self,
        rule: Rule,
        state: SightedState,
        subject: Subject,
        evidence: list[Evidence],
        explanation: str,
        certainty: str,
    ) -> None:
        """Report something, or that it has happened again."""
        key = rule.id, state.connection.index, subject
        finding = self.findings.get(key)
        is_new = finding is None
        if finding is None:
            if len(self.findings) >= MAX_FINDINGS:
                self.left_out += 1
                return
            advice = paragraphs(type(rule))["Advice"]
            finding = self.findings[key] = Finding(
                *(rule.id, rule.severity, certainty, subject, state.connection, [], explanation, advice)
            )
            self._made(rule, finding, state)
            times = [each.seen.time_ns for each in evidence if each.seen.time_ns]
            finding.first_ns = min(times, default=0)
        elif certainty == CERTAIN or certainty == finding.certainty:
            if certainty != finding.certainty:
                self._made(rule, finding, state)
            finding.certainty, finding.explanation = certainty, explanation
        finding.last_ns = max((each.seen.time_ns for each in evidence), default=0)
        if finding.add(evidence):
            finding.count += 1
            self._on_finding(finding, is_new)

    def _made(self, rule: Rule, finding: Finding, state: SightedState) -> None:
        """Note when a finding was made: a hole may take it back."""
        finding.made_at = state.frames
        if rule.relies_on != FRAME:
            self._made_at[_ALL if rule.relies_on == CAPTURE else state.connection.index] = state.frames

    def _withdraw(self, state: CheckState, gap: Gap) -> None:
        """Drop findings that were made while the bytes of a hole were already missing."""
        last = state.way(gap.to_broker).last
        since = last.number if last is not None else 0
        scopes = [each for each in (_ALL, state.connection.index) if self._made_at.get(each, 0) > since]
        if not scopes:
            return
        self._made_at |= dict.fromkeys(scopes, since)
        for key, finding in list(self.findings.items()):
            relies_on = self._relies_on[finding.rule]
            if relies_on == FRAME or finding.made_at <= since:
                continue
            if relies_on == CAPTURE or finding.connection is state.connection:
                del self.findings[key]
                self.withdrawn += 1


def _ending(state: CheckState, time_ns: int, by_broker: bool | None) -> EndedConnection:
    """How a connection ended of which only the bytes were seen."""
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
