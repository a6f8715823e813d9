"""Rules about the wrong peer on a port: a client that the server cannot understand, and hangs up on."""

import re
from typing import ClassVar, Final, TypeGuard

from pulsarctl_wire.checks.finding import SUSPECTED, Sighting
from pulsarctl_wire.checks.rule import CONNECTION, SECOND, ClientRule, Reporter, locate_bytes
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.frame import Event, Frame, Malformed
from pulsarctl_wire.wire.framing.foreign import PROXY_V1, PROXY_V2
from pulsarctl_wire.wire.session.ending import EndedConnection
from pulsarctl_wire.wire.session.knowledge import bound

_HANDSHAKE: Final = b"\x16\x03"  # how TLS begins, in both directions
_MAX_SERVERS: Final = 1_024


def _is_first(event: Event, *, to_broker: bool) -> TypeGuard[Malformed]:
    """Return whether these bytes, which are no frame, are the first ones in their direction."""
    return isinstance(event, Malformed) and event.to_broker is to_broker and not event.offset


def _is_hung_up_on(ending: EndedConnection) -> bool:
    """Return whether the server closed a connection, seen from its beginning, without sending a byte."""
    return bool(ending.by_broker) and not ending.joined and not ending.sizes[0]


class _WrongBytes(ClientRule):
    """The client's first bytes are no frame, and the server hangs up."""

    first_bytes: ClassVar[re.Pattern[bytes]]

    def on_lost(self, state: CheckState, event: Event) -> None:
        """Note the client's first bytes."""
        if _is_first(event, to_broker=True) and self.first_bytes.match(event.raw):
            reason = event.reason.removeprefix("not Pulsar: ").partition(" (TLS")[0]
            state.notes[self.id] = locate_bytes(event), f"first bytes: {reason}"

    def on_closed(self, state: CheckState, ending: EndedConnection) -> None:
        """Report wrong bytes if the server hangs up."""
        first = state.notes.get(self.id)
        if first is not None and _is_hung_up_on(ending):
            self.report_failure(state, [first])


class TlsClientOnPlainPort(_WrongBytes):
    """A client speaks TLS to a port that expects plain Pulsar, and the broker hangs up without a word.

    Wire: the client's first bytes are 16 03, and the server closes the connection without sending a byte. A
    TLS port answers with a handshake or an alert.

    Advice: Use pulsar:// for this port, or the broker's TLS port.

    Source: https://github.com/apache/pulsar/issues/5206
    """

    id = "tls_client_on_plain_port"
    first_bytes = re.compile(_HANDSHAKE)


class HttpClientOnBinaryPort(_WrongBytes):
    """An HTTP or WebSocket client talks to the binary port: the broker sees a huge frame, and hangs up.

    Wire: the client's first bytes are an HTTP method, and the server closes the connection without sending a
    byte.

    Advice: Use the port of the broker's web service, often 8080, for HTTP, WebSocket and admin calls.

    Source: https://github.com/streamnative/pulsar/issues/849
    """

    id = "http_client_on_binary_port"
    first_bytes = re.compile(rb"(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH|TRACE|CONNECT|PRI) ")


class ProxyHeaderRefused(_WrongBytes):
    """A load balancer sends a PROXY protocol header first, which the broker does not accept: it hangs up.

    Wire: the client's first bytes are a PROXY header of version 1 or 2, and the server closes the connection
    without sending a byte.

    Advice: Set haProxyProtocolEnabled=true on the broker, or turn the header off at the load balancer.

    Source: "The PROXY protocol, versions 1 & 2" by HAProxy; haProxyProtocolEnabled in broker.conf.
    """

    id = "proxy_header_refused"
    first_bytes = re.compile(re.escape(PROXY_V1) + b"|" + re.escape(PROXY_V2))


class PlainClientOnTlsPort(ClientRule):
    """A client sends a plain CONNECT, and the port hangs up without a byte: most likely it expects TLS.

    Wire: CONNECT is the client's first frame, and the server closes within 1 s without sending a byte. A
    broker that shuts down or has too many connections may do the same; a TLS handshake that the same port
    answered proves it, and a plain CONNECTED that it sent before disproves it.

    Advice: Use pulsar+ssl:// for this port, or the broker's plain port.

    Source: brokerServicePortTls in broker.conf; observed on 4.0.8.
    """

    id = "plain_client_on_tls_port"
    relies_on = CONNECTION
    handlers: ClassVar = {"CONNECT": "on_connect", "CONNECTED": "on_connected"}

    def __init__(self, doctor: Reporter) -> None:
        super().__init__(doctor)
        self._tls_servers: dict[str, None] = {}  # servers that answered a TLS handshake
        self._plain_servers: dict[str, None] = {}  # servers that answered CONNECT

    def on_connect(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note CONNECT."""
        if not frame.offset:
            state.notes[self.id] = sighting

    def on_connected(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note which servers do not speak TLS."""
        self._plain_servers[state.connection.server] = None
        bound(self._plain_servers, _MAX_SERVERS)

    def on_lost(self, state: CheckState, event: Event) -> None:
        """Note which servers speak TLS."""
        if not _is_first(event, to_broker=False) or not event.raw.startswith(_HANDSHAKE):
            return
        self._learn(state.connection.server)

    def _learn(self, server: str) -> None:
        """Learn that a server speaks TLS, and report those that it refused before."""
        self._tls_servers[server] = None
        bound(self._tls_servers, _MAX_SERVERS)
        for (_, refused_by), first in self.first_attempts.items():
            if refused_by == server:
                self._report(first)

    def on_closed(self, state: CheckState, ending: EndedConnection) -> None:
        """Report a plain CONNECT if the server hangs up."""
        if ending.connection.tls is not None and ending.connection.tls.version:
            self._learn(state.connection.server)
        sighting = state.notes.get(self.id)
        if sighting is None or not _is_hung_up_on(ending) or not self.can_judge(state):
            return
        delay_ns = (ending.end_ns or 0) - sighting.time_ns
        if delay_ns <= SECOND and state.connection.server not in self._plain_servers:
            self._report(state)

    def _report(self, state: CheckState) -> None:
        evidence = [(state.notes[self.id], "in plain text, and not answered")]
        if state.connection.server in self._tls_servers:
            text = "A client sends a plain CONNECT to a port that speaks TLS, and the server hangs up."
            self.report_failure(state, evidence, text)
        else:
            self.report_failure(state, evidence, certainty=SUSPECTED)
