"""Rules about the handshake, directions, request ids and versions: what holds for all commands."""

from typing import Any, ClassVar, Final

from pulsarctl_wire.checks.conduct import Reuse
from pulsarctl_wire.checks.finding import Sighting, Subject
from pulsarctl_wire.checks.rule import ConductRule, make_owner_subject
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.commands import NUMBERS
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.session.ending import EndedConnection

_BEFORE_CONNECT: Final = {NUMBERS[name] for name in ("CONNECT", "PING", "PONG", "AUTH_RESPONSE")}
_ONE_COUNTER: Final = ("Pulsar-Java", "Pulsar Go", "pulsar-client-go")
"""Prefixes of the versions of clients that use one counter for all request ids."""

_SINCE: Final = {
    "REDELIVER_UNACKNOWLEDGED_MESSAGES": 2,
    "CONSUMER_STATS": 8,
    "REACHED_END_OF_TOPIC": 9,
    **dict.fromkeys(("GET_LAST_MESSAGE_ID", "GET_TOPICS_OF_NAMESPACE", "ACTIVE_CONSUMER_CHANGE"), 12),
    "GET_OR_CREATE_SCHEMA": 15,
    "TC_CLIENT_CONNECT_REQUEST": 19,
    "TOPIC_MIGRATED": 20,
}
"""Command -> the protocol version since which it may be sent (docs: `pwire explain v12`)."""

_FLAGS: Final = {
    "WATCH_TOPIC_LIST": "supports_topic_watchers",
    "SCALABLE_TOPIC_LOOKUP": "supports_scalable_topics",
    "SCALABLE_TOPIC_SUBSCRIBE": "supports_scalable_topics",
    "WATCH_SCALABLE_TOPICS": "supports_scalable_topics",
    "WATCH_TC_ASSIGNMENTS": "supports_tc_metadata_discovery",
}
"""Command -> the feature flag of CONNECTED without which it may not be sent."""


class CommandBeforeConnect(ConductRule):
    """A client sends a command before it has sent CONNECT.

    Must: send CONNECT first; only PING, PONG and AUTH_RESPONSE may come before it.

    Wire: one of the client's first four frames, before any CONNECT, is a command other than PING, PONG and
    AUTH_RESPONSE, and the connection's SYN was captured. The broker closes the connection without a word.
    Frames without TCP prove nothing.

    Advice: Let the client send CONNECT as its first command; others may follow at once.

    Source: Pulsar binary protocol, "Connection establishment".
    """

    id = "command_before_connect"
    cause = ("client", "server")

    def on_before_connect(self, state: CheckState, frame: Frame, ordinal: int) -> None:
        """Note the first command that must not come first."""
        if frame.type not in _BEFORE_CONNECT and frame.has_command:
            state.notes.setdefault(self.id, state.sighting)

    def on_closed(self, state: CheckState, ending: EndedConnection) -> None:
        """Report that command if the connection was seen from its beginning."""
        first: Sighting | None = state.notes.get(self.id) if state.has_notes else None
        is_from_start = ending.syns and not ending.joined and state.has_all_bytes
        if first is not None and first.time_ns and is_from_start:
            end = ", and the broker closed the connection" if ending.by_broker else ""
            text = f"The client sent {first.command} before CONNECT{end}."
            self.report(state, Subject(), [(first, "no CONNECT came before it")], text)


class ConnectRepeated(ConductRule):
    """A client sends CONNECT on a connection that has been through the handshake.

    Must: send CONNECT once for each connection.

    Wire: a second CONNECT. The broker closes the connection without a word.

    Advice: Let the client renew its credentials by AUTH_RESPONSE, or open another connection.

    Source: Pulsar binary protocol, "Connection establishment".
    """

    id = "connect_repeated"
    cause = ("client", "server")
    handlers: ClassVar = {"CONNECT": "on_connect"}

    def on_connect(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note the first CONNECT, and report others."""
        first = state.notes.setdefault(self.id, sighting)
        if first is not sighting and self.can_judge(state):
            self.report_mistake(state, Subject(), [(first, "the first CONNECT"), (sighting, "another one")])


class CommandOfBroker(ConductRule):
    """A client sends a command that only brokers send.

    Must: send only commands that clients may send.

    Wire: a command from the client such as SEND_RECEIPT or MESSAGE. The broker closes the connection without
    a word.

    Advice: Look at what the client sends under this type number.

    Source: PulsarApi.proto; the broker has no handler for such commands.
    """

    id = "command_of_broker"
    cause = ("client", "server")

    def on_wrong_way(self, state: CheckState, frame: Frame) -> None:
        """Report the command, if a client has sent it."""
        if frame.to_broker and self.can_judge(state):
            text = f"The client sent {frame.command}, which only brokers send."
            self.report_mistake(state, Subject(), [(state.sighting, "sent by the client")], text)


class CommandOfClient(ConductRule):
    """A broker sends a command that only clients send.

    Must: send only commands that brokers may send.

    Wire: a command to the client such as SEND or SUBSCRIBE.

    Advice: Look at what stands between the client and the broker.

    Source: PulsarApi.proto.
    """

    id = "command_of_client"
    cause = ("server",)

    def on_wrong_way(self, state: CheckState, frame: Frame) -> None:
        """Report the command, if a broker has sent it."""
        if not frame.to_broker and self.can_judge(state):
            text = f"The broker sent {frame.command}, which only clients send."
            self.report_mistake(state, Subject(), [(state.sighting, "sent by the broker")], text)


class RequestIdReused(ConductRule):
    """Two requests of a connection that wait for their answers have the same request id.

    Must: give each request an id that no other request of the connection has.

    Wire: a request has the id of one that has no answer yet. Clients with two counters, one for lookups and
    one for all else, may use an id in each, as C++ does; then nothing is reported.

    Advice: Let the client draw all its ids from one counter: it cannot tell the answers apart.

    Source: Pulsar binary protocol, "Command Producer", "Command Subscribe".
    """

    id = "request_id_reused"
    cause = ("client", "server")

    def on_request_again(self, state: CheckState, frame: Frame, reuse: Reuse) -> None:
        """Report a request whose id another one has."""
        version = state.greeting.client_version or ""
        has_two_counters = reuse.is_rising and not version.startswith(_ONE_COUNTER)
        if (reuse.is_same_family or not has_two_counters) and self.can_judge(state):
            rows = [(reuse.earlier, "not answered yet"), (state.sighting, "has the same request id")]
            self.report_mistake(state, Subject(), rows)


class FeatureNotNegotiated(ConductRule):
    """A command is sent that the two sides have not agreed on.

    Must: send no command that is newer than the protocol version agreed on, or whose feature flag the other
    side has not set.

    Wire: a command that came with a later version than CONNECTED says, which is the lower one of both sides,
    an ACK with a request id although that version is below 17, or a command whose feature flag CONNECTED
    lacks. Commands that real clients or brokers send anyway are left out.

    Advice: Let the client state the version that it speaks, and ask CONNECTED before it uses more.

    Source: Pulsar binary protocol, "Connection establishment".
    """

    id = "feature_not_negotiated"
    handlers: ClassVar = {
        "CONNECTED": "on_connected",
        **dict.fromkeys((*_SINCE, *_FLAGS), "on_command"),
    }

    def on_connected(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note what was agreed on."""
        body: Any = frame.body
        if body is not None:
            state.notes.setdefault(self.id, (sighting, body.protocol_version, body.feature_flags))

    def on_command(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Report a command that is too new."""
        _, version, flags = state.notes.get(self.id, (None, 0, None))
        since, flag = _SINCE.get(frame.command, 0), _FLAGS.get(frame.command)
        if since > version:
            self.on_too_new(state, frame, frame.command, since)
        elif flag is not None and hasattr(flags, flag) and not getattr(flags, flag):
            self._report(state, frame, f"{frame.command} needs {flag}, which CONNECTED does not set")

    def on_too_new(self, state: CheckState, frame: Frame, what: str, since: int) -> None:
        """Report something that a later version has introduced."""
        _, version, _ = state.notes.get(self.id, (None, 0, None))
        self._report(state, frame, f"{what} needs version {since}, and the two sides agreed on {version}")

    def _report(self, state: CheckState, frame: Frame, text: str) -> None:
        connected, _, _ = state.notes.get(self.id, (None, 0, None))
        if connected is None or not (state.is_whole and self.can_judge(state)):
            return
        owner = (True, frame.body.consumer_id) if hasattr(frame.body, "consumer_id") else None
        rows = [(connected, "what was agreed on"), (state.sighting, "needs more")]
        self.report_mistake(state, make_owner_subject(frame, owner), rows, f"{text}.")
