"""Rules about authentication and authorization."""

from typing import Any, ClassVar, Final

from pulsarctl_wire.checks.attempts import ClientRule
from pulsarctl_wire.checks.finding import Sighting
from pulsarctl_wire.checks.rule import CONNECTION, SECOND, Rule, about_answer, seconds
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.commands import ERROR_FIELDS, NUMBERS, command_name
from pulsarctl_wire.wire.credentials import token_expiry
from pulsarctl_wire.wire.fields import REFRESH
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError
from pulsarctl_wire.wire.session.counts import error_of
from pulsarctl_wire.wire.session.ending import EndedConnection

_CONNECT: Final = NUMBERS["CONNECT"]
_AUTH_RESPONSE: Final = NUMBERS["AUTH_RESPONSE"]
_ACK_RESPONSE: Final = NUMBERS["ACK_RESPONSE"]  # never about rights, and there are too many


class _Refresh(ClientRule):
    """Notes the broker's last request for new credentials, and the client's answer to it."""

    on: ClassVar = {"AUTH_CHALLENGE": "challenge", "AUTH_RESPONSE": "response"}

    def challenge(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """The broker asks for credentials."""
        body: Any = frame.body
        if body is not None and body.challenge.auth_data == REFRESH:
            state.marks[self.id] = [(seen, "the credentials have expired")]

    def response(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """The client sends credentials."""
        if self.id in state.marks:
            state.marks[self.id].append((seen, "the answer"))
            del state.marks[self.id][2:]


class AuthChallengeUnanswered(_Refresh):
    """The broker asked for new credentials, the client sent none, and the broker closed the connection.

    Wire: AUTH_CHALLENGE with PulsarAuthRefresh, no AUTH_RESPONSE, and the broker closes the connection. Other
    traffic may go on meanwhile.

    Advice: Update the client, or give it a source of tokens that can be asked again.

    Source: https://github.com/apache/pulsar/issues/10816; authenticationRefreshCheckSeconds in broker.conf.
    """

    id = "auth_challenge_unanswered"
    relies_on = CONNECTION

    def response(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """The client sends credentials; after the broker's FIN they are no answer."""
        if state.closed_ns is None or seen.time_ns <= state.closed_ns:
            state.marks.pop(self.id, None)

    def closed(self, state: CheckState, ending: EndedConnection) -> None:
        """The broker may have given up."""
        noted = state.marks.get(self.id)
        if not noted or not ending.by_broker or not self.can_count(state):
            return
        waited_ns = (ending.end_ns or 0) - noted[0][0].time_ns
        if waited_ns >= SECOND:
            text = (
                "The client's credentials have expired, and it has not sent new ones within "
                f"{seconds(waited_ns)} after the broker asked: the broker has closed the connection."
            )
            self.failed(state, noted, text)


class AuthRefreshRefused(_Refresh):
    """The broker asked for new credentials, and the client answered with ones that are not valid.

    Wire: AUTH_CHALLENGE with PulsarAuthRefresh, AUTH_RESPONSE, and ERROR AuthenticationError. A good
    AUTH_RESPONSE gets no answer.

    Advice: Give the client a source of tokens that renews them, and renew them before they expire.

    Source: https://github.com/apache/pulsar/pull/16016
    """

    id = "auth_refresh_refused"
    on: ClassVar = {**_Refresh.on, "ERROR": "refused"}

    def refused(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """ERROR."""
        noted = state.marks.get(self.id, ())
        if len(noted) == 2 and _refuses(state, frame, _AUTH_RESPONSE):
            self.failed(state, [*noted, (seen, "refused")])


class AuthenticationRefused(ClientRule):
    """The broker refuses the client's credentials; many clients only report a timeout, and keep trying.

    Wire: CONNECT, or an AUTH_RESPONSE that belongs to it, is answered by ERROR AuthenticationError.

    Advice: Check the token or certificate, and that client and broker use the same authentication method.

    Source: ServerError in PulsarApi.proto; observed on 4.0.8.
    """

    id = "authentication_refused"
    on: ClassVar = {"CONNECT": "connect", "CONNECTED": "connected", "ERROR": "refused"}

    def connect(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """The client begins to log in."""
        state.marks[self.id] = seen

    def connected(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """It has logged in."""
        state.marks.pop(self.id, None)

    def refused(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """ERROR."""
        connect = state.marks.get(self.id)
        if connect is not None and _refuses(state, frame, _CONNECT, _AUTH_RESPONSE):
            self.failed(state, [(connect, "log in"), (seen, "refused")])


class TokenExpired(ClientRule):
    """The client sends a token that has expired.

    Wire: the credentials in CONNECT or AUTH_RESPONSE are a JSON Web Token whose `exp` is before the time at
    which it was sent. Nothing else in the token is read.

    Advice: Renew the token, and give the client a source of tokens that can be asked again.

    Source: RFC 7519, section 4.1.4.
    """

    id = "token_expired"
    on: ClassVar = {"CONNECT": "credentials", "AUTH_RESPONSE": "credentials"}

    def credentials(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """The client sends credentials."""
        expiry_ns = token_expiry(frame) if seen.time_ns else None
        if expiry_ns is not None and expiry_ns < seen.time_ns:
            late = seconds(seen.time_ns - expiry_ns)
            text = f"The client sends a token that had expired {late} before, by the clock of the capture."
            self.failed(state, [(seen, f"expired {late} before")], text)


class NotAuthorized(Rule):
    """The client is known, but its role has no permission for this.

    Wire: AuthorizationError in ERROR, LOOKUP_RESPONSE, PARTITIONED_METADATA_RESPONSE or another answer.

    Advice: Grant the role the permission on the namespace or topic, or use another role.

    Source: ServerError in PulsarApi.proto.
    """

    id = "not_authorized"
    on: ClassVar = dict.fromkeys(map(command_name, ERROR_FIELDS.keys() - {_ACK_RESPONSE}), "answered")

    def answered(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """Any answer that may report an error."""
        if error_of(frame) == ServerError.AuthorizationError:
            self.found(state, about_answer(state, frame), [(seen, "refused")])


def _refuses(state: CheckState, frame: Frame, *requests: int) -> bool:
    """Whether an ERROR refuses the credentials in a frame of one of these types."""
    asked = state.answered
    is_error = error_of(frame) == ServerError.AuthenticationError
    return is_error and asked is not None and asked.type in requests
