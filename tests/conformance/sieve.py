"""Brokers that are wrong in one thing, at which a case must fail: proof that it checks what it says.

A case is first run on a broker that is right, which also shows what it checks: frames, errors, silence, ends
of connections. For each of these the embedded broker has a mutation, at the last place where it counts:

    lost        the last frame that the broker sends is not sent
    other       … and if that refuses something, it does so with another error
    surplus     where nothing is to come, and the case looks, something comes
    open        connections that the broker should close stay open
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from broker.targets import EmbeddedTarget
from net.scripted import run

from pulsarctl_wire.broker.shell import server
from pulsarctl_wire.broker.shell.server import Peer
from pulsarctl_wire.conformance.basics.case import Case
from pulsarctl_wire.conformance.basics.checking import Mismatch
from pulsarctl_wire.conformance.basics.frames import make_frame
from pulsarctl_wire.conformance.basics.probe import Probe
from pulsarctl_wire.faults.base import Fault, Item, LaneContext, Unit
from pulsarctl_wire.faults.lanes import Faults
from pulsarctl_wire.faults.order import Drop
from pulsarctl_wire.net.frame_socket import FrameSocket
from pulsarctl_wire.wire.commands import BODIES, ERROR_FIELDS
from pulsarctl_wire.wire.frame import Frame, replace_command
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand

if TYPE_CHECKING:
    from typing_extensions import Self  # Python 3.10 has none

LONGEST = 1.5
"""Seconds after which what does not come is given up, where it takes no time at all if it comes."""


def is_error(frame: Frame) -> bool:
    """Whether a frame refuses something."""
    return frame.type in ERROR_FIELDS and frame.body.HasField(ERROR_FIELDS[frame.type])


@dataclass(frozen=True, kw_only=True)
class Other(Fault):
    """An error gets another code."""

    name = "other"

    def can_apply(self, frame: Frame) -> bool:
        return is_error(frame)

    def apply(self, unit: Unit, context: LaneContext) -> Iterator[Item]:
        assert unit.frame is not None
        base = BaseCommand()
        base.CopyFrom(unit.frame.base)  # type: ignore[arg-type]
        body: Any = getattr(base, BODIES[base.type])
        field = ERROR_FIELDS[base.type]
        setattr(body, field, 1 if getattr(body, field) != 1 else 2)
        yield unit.with_data(replace_command(unit.data, base))


class OpenPeer(Peer):
    """A peer that the broker never disconnects."""

    @property
    def is_open(self) -> bool:
        return not self.transport.is_closing()

    def eof_received(self) -> bool:
        return True

    def break_off(self, *, reset: bool = False) -> None:
        pass

    def sync(self) -> None:
        super(FrameSocket, self).sync()


@dataclass
class Checks:
    """What a case checks: the last frame that came, silence, ends of connections; and counts of frames."""

    frames: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    last: Frame | None = None
    silences: int = 0
    ends: int = 0


class ObservedTarget(EmbeddedTarget):
    """A target that notes what is checked. At silence number `surplus`, it has the broker say something."""

    def __init__(self, *settings: str, surplus: int = 0, fault: Fault | None = None) -> None:
        super().__init__(*settings)
        self.checks = Checks()
        self._settings = settings
        self._surplus = surplus
        if fault is not None:
            self.server.faults = Faults(0)
            self.server.faults.add(fault)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.rest = self.rest if "admin" in self._settings else self._refuse  # type: ignore[method-assign]
        return self

    async def _refuse(self, method: str, path: str, body: object = None) -> Any:
        raise AssertionError(f"{method} {path}: the case does not say that it needs the admin API")

    async def open_connection(self) -> Probe:
        probe = await super().open_connection()
        handle, expect_nothing, expect_close = probe.handle, probe.expect_nothing, probe.expect_close

        def observe(event: Any) -> None:
            if isinstance(event, Frame) and event.command != "PING":
                self.checks.frames[event.command] += 1
                self.checks.errors[event.command] += is_error(event)
                self.checks.last = event
            handle(event)

        async def observe_nothing(seconds: float = 0.4) -> None:
            self.checks.silences += 1
            if self.checks.silences == self._surplus:
                self._say_something(probe)
            await expect_nothing(seconds)

        async def observe_close(within: float = LONGEST) -> None:
            await expect_close(within)
            self.checks.ends += 1

        probe.handle = observe  # type: ignore[method-assign]
        probe.expect_nothing = observe_nothing  # type: ignore[method-assign]
        probe.expect_close = observe_close  # type: ignore[method-assign]
        return probe

    def agrees(self, probe: Probe, peer: Peer | None) -> bool:
        if isinstance(peer, OpenPeer) and probe.closed.done():
            return True  # it will never know
        return super().agrees(probe, peer)

    def _say_something(self, probe: Probe) -> None:
        for peer in self.server.peers.values():
            if peer.connection.client == probe.connection.client:
                peer.transmit(make_frame("SUCCESS", request_id=1 << 40))

    async def wait(self, probe: Probe, holds: Callable[[], object], within: float) -> bool:
        return await super().wait(probe, holds, min(within, LONGEST))


def observe(case: Case) -> Checks:
    """Run a case on a broker that is right: it must pass."""

    async def check() -> Checks:
        async with ObservedTarget(*case.needs) as target:
            await case.run(target)
            return deepcopy(target.checks)  # more comes when connections end

    return run(check())


def survives(case: Case, **mutation: Any) -> bool:
    """Whether a case passes on a broker that is wrong."""

    async def check() -> bool:
        async with ObservedTarget(*case.needs, **mutation) as target:
            try:
                await case.run(target)
            except Mismatch:
                return False
            return True

    return run(check())


def find_survived(case: Case, checks: Checks) -> list[str]:
    """The mutations at which a case does not fail."""
    survived = []
    if checks.last is not None:
        command = checks.last.command
        last: dict[str, Any] = {"command": command, "direction": "to-client"}
        if survives(case, fault=Drop(**last, nth=checks.frames[command])):
            survived.append("lost")
        if is_error(checks.last) and survives(case, fault=Other(**last, nth=checks.errors[command])):
            survived.append("other")
    if checks.silences and survives(case, surplus=checks.silences):
        survived.append("surplus")
    if checks.ends:
        with patch.object(server, "Peer", OpenPeer):
            if survives(case):
                survived.append("open")
    return survived
