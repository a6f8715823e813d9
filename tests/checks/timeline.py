"""Captures at chosen times, as the doctor sees them."""

from collections.abc import Iterable

from judge import SHORT
from segments import START_NS, Tcp, Turn, added, build

from pulsarctl_wire.capture.packets import Segment
from pulsarctl_wire.capture.reassembly import Reassembler
from pulsarctl_wire.checks.doctor import Doctor
from pulsarctl_wire.checks.finding import Finding
from pulsarctl_wire.checks.registry import RULES
from pulsarctl_wire.checks.rule import SECOND, Rule
from pulsarctl_wire.wire.framing.web_stream import WebStream
from pulsarctl_wire.wire.session.knowledge import Knowledge

_CONDUCT = ("answers", "handshake", "owners", "publishing", "receiving")  # modules
FAILURES = [rule for rule in RULES if not rule.__module__.endswith(_CONDUCT)]
"""The rules about what fails, not about who breaks the protocol."""

LOGIN: list[Turn] = [
    (True, build("CONNECT", client_version="test", protocol_version=21)),
    (False, build("CONNECTED", server_version="broker", protocol_version=21)),
]


class Timeline:
    """A capture of which each segment has a time, in seconds since its beginning.

    `rules` are those that are applied; by default those about failures, as such captures break many others.
    """

    def __init__(self, listener: str = "", rules: Iterable[type[Rule]] = FAILURES) -> None:
        self.doctor = Doctor(rules, thresholds=SHORT)
        self.listener = listener  # of the connections that begin from now on
        self._knowledge = Knowledge()
        self._reassembler = Reassembler(
            self._knowledge,
            new_state=self.doctor.new_state,
            on_end=self.doctor.end_connection,
            stream_type=WebStream,
        )
        self._last_ns = 0
        self._packets = 0

    def at(self, seconds: float, *segments: Segment) -> None:
        """Segments are captured, 1 µs apart."""
        for number, segment in enumerate(segments):
            self._packets += 1
            self._last_ns = self.now_ns(seconds) + number * 1000
            added(self._reassembler, segment, self._last_ns, self._packets)

    def say(self, seconds: float, tcp: Tcp, *turns: Turn) -> None:
        """Frames are sent on a connection."""
        self.at(seconds, *tcp.say(turns))

    def log_in(self, seconds: float, tcp: Tcp, *turns: Turn) -> None:
        """A connection is opened, and logs in."""
        ends = [f"{host}:{port}" for host, port in (tcp.client, tcp.server)]
        self._knowledge.listeners = {(ends[0], ends[1]): self.listener}
        self.at(seconds, *tcp.handshake(), *tcp.say([*LOGIN, *turns]))

    @staticmethod
    def now_ns(seconds: float) -> int:
        """A time of the capture, ns since the epoch."""
        return START_NS + round(seconds * SECOND)

    def findings(self, until: float = 0) -> list[Finding]:
        """The capture ends; what was found."""
        self.doctor.conclude(max(self._last_ns, self.now_ns(until)), self._reassembler.close())
        return list(self.doctor.findings.values())


def ids(findings: Iterable[Finding]) -> list[tuple[str, str]]:
    """Rules and certainties of findings."""
    return [(each.rule, each.certainty) for each in findings]
