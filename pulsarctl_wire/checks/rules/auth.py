"""Rules about authentication and authorization."""

from typing import Any, ClassVar, Final

from pulsarctl_wire.checks.finding import Sighting, Subject
from pulsarctl_wire.checks.rule import (
    CONNECTION,
    SECOND,
    ClientRule,
    Rule,
    format_ns,
    locate_bytes,
    make_answer_subject,
)
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.commands import ERROR_FIELDS, NUMBERS, command_name
from pulsarctl_wire.wire.credentials import token_expiry
from pulsarctl_wire.wire.fields import REFRESH
from pulsarctl_wire.wire.frame import Frame, HttpMessage
from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError
from pulsarctl_wire.wire.session.counts import error_of
from pulsarctl_wire.wire.session.ending import EndedConnection

_FORBIDDEN: Final = 403
_CONNECT: Final = NUMBERS["CONNECT"]
_AUTH_RESPONSE: Final = NUMBERS["AUTH_RESPONSE"]
_ACK_RESPONSE: Final = NUMBERS["ACK_RESPONSE"]  # never about rights, and there are too many


class _Refresh(ClientRule):
    """Notes the broker's last request for new credentials, and the client's answer to it."""

    handlers: ClassVar = {"AUTH_CHALLENGE": "on_challenge", "AUTH_RESPONSE": "on_response"}

    def on_challenge(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note the broker's request for new credentials."""
        body: Any = frame.body
        if body is not None and body.challenge.auth_data == REFRESH:
            state.notes[self.id] = [(sighting, "the credentials have expired")]

    def on_response(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note the client's answer."""
        if self.id in state.notes:
            state.notes[self.id].append((sighting, "the answer"))
            del state.notes[self.id][2:]


class AuthChallengeUnanswered(_Refresh):
    """The broker asked for new credentials, the client sent none, and the broker closed the connection.

    Must: answer each AUTH_CHALLENGE, if CONNECT said that it would.

    Wire: AUTH_CHALLENGE with PulsarAuthRefresh, no AUTH_RESPONSE, and the broker closes the connection. Other
    traffic may go on meanwhile.

    Advice: Update the client, or give it a source of tokens that can be asked again.

    Source: https://github.com/apache/pulsar/issues/10816; authenticationRefreshCheckSeconds in broker.conf.
    """

    id = "auth_challenge_unanswered"
    relies_on = CONNECTION

    def on_response(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Forget the request, unless the credentials come after the broker's FIN."""
        if state.closed_ns is None or sighting.time_ns <= state.closed_ns:
            state.notes.pop(self.id, None)

    def on_closed(self, state: CheckState, ending: EndedConnection) -> None:
        """Report a connection that the broker closes before the client has answered."""
        rows = state.notes.get(self.id)
        if not rows or not ending.by_broker or not self.can_judge(state):
            return
        waited_ns = (ending.end_ns or 0) - rows[0][0].time_ns
        if waited_ns >= SECOND:
            text = (
                "The client's credentials have expired, and it has not sent new ones within "
                f"{format_ns(waited_ns)} after the broker asked: the broker has closed the connection."
            )
            self.report_failure(state, rows, text)


class AuthRefreshRefused(_Refresh):
    """The broker asked for new credentials, and the client answered with ones that are not valid.

    Wire: AUTH_CHALLENGE with PulsarAuthRefresh, AUTH_RESPONSE, and ERROR AuthenticationError. A good
    AUTH_RESPONSE gets no answer.

    Advice: Give the client a source of tokens that renews them, and renew them before they expire.

    Source: https://github.com/apache/pulsar/pull/16016
    """

    id = "auth_refresh_refused"
    handlers: ClassVar = {**_Refresh.handlers, "ERROR": "on_error"}

    def on_error(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Report an ERROR that refuses the credentials."""
        rows = state.notes.get(self.id, ())
        if len(rows) == 2 and _refuses(state, frame, _AUTH_RESPONSE):
            self.report_failure(state, [*rows, (sighting, "refused")])


class AuthenticationRefused(ClientRule):
    """The broker refuses the client's credentials; many clients only report a timeout, and keep trying.

    Wire: CONNECT, or an AUTH_RESPONSE that belongs to it, is answered by ERROR AuthenticationError.

    Advice: Check the token or certificate, and that client and broker use the same authentication method.

    Source: ServerError in PulsarApi.proto; observed on 4.0.8.
    """

    id = "authentication_refused"
    handlers: ClassVar = {"CONNECT": "on_connect", "CONNECTED": "on_connected", "ERROR": "on_error"}

    def on_connect(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note CONNECT."""
        state.notes[self.id] = sighting

    def on_connected(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Forget CONNECT: the client has logged in."""
        state.notes.pop(self.id, None)

    def on_error(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Report an ERROR that refuses the credentials."""
        connect = state.notes.get(self.id)
        if connect is not None and _refuses(state, frame, _CONNECT, _AUTH_RESPONSE):
            self.report_failure(state, [(connect, "log in"), (sighting, "refused")])


class TokenExpired(ClientRule):
    """The client sends a token that has expired.

    Wire: the credentials in CONNECT or AUTH_RESPONSE are a JSON Web Token whose `exp` is before the time at
    which it was sent. Nothing else in the token is read.

    Advice: Renew the token, and give the client a source of tokens that can be asked again.

    Source: RFC 7519, section 4.1.4.
    """

    id = "token_expired"
    handlers: ClassVar = {"CONNECT": "on_credentials", "AUTH_RESPONSE": "on_credentials"}

    def on_credentials(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Report a token that has expired."""
        expiry_ns = token_expiry(frame) if sighting.time_ns else None
        if expiry_ns is not None and expiry_ns < sighting.time_ns:
            age = format_ns(sighting.time_ns - expiry_ns)
            text = f"The client sends a token that had expired {age} before, by the clock of the capture."
            self.report_failure(state, [(sighting, f"expired {age} before")], text)


class NotAuthorized(Rule):
    """The client is known, but its role has no permission for this.

    Wire: AuthorizationError in ERROR, LOOKUP_RESPONSE, PARTITIONED_METADATA_RESPONSE or another answer; 403
    for a lookup over HTTP.

    Advice: Grant the role the permission on the namespace or topic, or use another role.

    Source: ServerError in PulsarApi.proto.
    """

    id = "not_authorized"
    cause = ("client", "topic")
    handlers: ClassVar = dict.fromkeys(map(command_name, ERROR_FIELDS.keys() - {_ACK_RESPONSE}), "on_answer")

    def on_answer(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Report an answer with AuthorizationError."""
        if error_of(frame) == ServerError.AuthorizationError:
            self.report(state, make_answer_subject(state, frame), [(sighting, "refused")])

    def on_http(self, state: CheckState, message: HttpMessage, number: int) -> None:
        """Report a lookup over HTTP that is answered 403."""
        if message.status == _FORBIDDEN:
            self.report(state, Subject(message.topic), [(locate_bytes(message), "refused")])


def _refuses(state: CheckState, frame: Frame, *requests: int) -> bool:
    """Return whether an ERROR refuses the credentials in a frame of one of these types."""
    request = state.answered_request
    is_error = error_of(frame) == ServerError.AuthenticationError
    return is_error and request is not None and request.type in requests
