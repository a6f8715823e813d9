"""Authentication by tokens."""

from __future__ import annotations

from typing import Any

from pulsarctl_wire.checks.requirement import MUST, OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import equal
from pulsarctl_wire.conformance.basics.frames import make_frame
from pulsarctl_wire.conformance.basics.probe import CLIENT, Probe
from pulsarctl_wire.conformance.basics.target import Target
from pulsarctl_wire.wire.PulsarApi_pb2 import AuthMethod, ServerError
from pulsarctl_wire.wire.session.state import NO_REQUEST


def _credentials(token: str, method: str = "token") -> dict[str, Any]:
    """Return the fields of AuthData, which CONNECT has as well."""
    return {"auth_method_name": method, "auth_data": token.encode()}


async def _expect_failure(probe: Probe) -> None:
    """Require that authentication fails: ERROR, then the end of the connection."""
    error = ServerError.AuthenticationError
    await probe.expect("ERROR", request_id=NO_REQUEST, error=error)
    await probe.expect_close()


@case(MUST, needs=("auth",))
async def good_token(broker: Target) -> None:
    """CONNECT auth_method_name=token, auth_data = valid HS256 JWT.

    Expected: CONNECTED (no challenge).

    Source: Protocol: Connection establishment; broker: ServerCnx.
    """
    await broker.connect(**_credentials(broker.tokens["admin"]))


async def _connect_with(broker: Target, template: str) -> None:
    """Connect with a valid token whose three parts fill the template."""
    await broker.connect(**_credentials(template.format(*broker.tokens["admin"].split("."))))


@case(OBSERVED, needs=("auth",))
async def token_in_spaces(broker: Target) -> None:
    """A valid token with spaces around its dots and ends, and ! after its signature.

    Expected: CONNECTED.

    Source: io.jsonwebtoken.impl.DefaultJwtParser.
    """
    await _connect_with(broker, " {} .\t{}\n.\n{} !\n")


@case(SHOULD, needs=("auth",))
async def token_with_line_end(broker: Target) -> None:
    """A valid token and a line end.

    Expected: CONNECTED.

    Source: io.jsonwebtoken.impl.DefaultJwtParser.
    """
    await _connect_with(broker, "{}.{}.{}\n")


@case(OBSERVED, needs=("auth",))
async def token_with_space_inside(broker: Target) -> None:
    """A valid token with a space inside its signature.

    Expected: ERROR {request_id=-1, error=AuthenticationError}; then the broker closes the connection.

    Source: io.jsonwebtoken.io.Base64.
    """
    token = broker.tokens["admin"]
    await _expect_refusal(broker, **_credentials(f"{token[:-5]} {token[-5:]}"))


async def _expect_refusal(broker: Target, **fields: Any) -> None:
    probe = await broker.open_connection()
    probe.command("CONNECT", **CLIENT, **fields)
    await _expect_failure(probe)


@case(MUST, needs=("auth",))
async def bad_token(broker: Target) -> None:
    """CONNECT with a token that has a wrong signature.

    Expected: ERROR {request_id=-1, error=AuthenticationError}; then the broker closes the connection.

    Source: Protocol: Connection establishment; broker: ServerCnx.
    """
    await _expect_refusal(broker, **_credentials(broker.tokens["forged"]))


@case(MUST, needs=("auth",))
async def missing(broker: Target) -> None:
    """CONNECT without auth fields.

    Expected: ERROR {request_id=-1, error=AuthenticationError}; then the broker closes the connection.

    Source: Protocol: Connection establishment; broker: ServerCnx.
    """
    await _expect_refusal(broker)


@case(MUST, needs=("auth",))
async def unknown_method(broker: Target) -> None:
    """CONNECT with auth_method_name=foo.

    Expected: ERROR {request_id=-1, error=AuthenticationError}; then the broker closes the connection.

    Source: Protocol: Connection establishment; broker: ServerCnx.
    """
    await _expect_refusal(broker, **_credentials("x", "foo"))


@case(MUST, needs=("auth",))
async def garbage_token(broker: Target) -> None:
    """CONNECT with auth_data = 'not a token'.

    Expected: ERROR {request_id=-1, error=AuthenticationError}; then the broker closes the connection.

    Source: Protocol: Connection establishment; broker: ServerCnx.
    """
    await _expect_refusal(broker, **_credentials("not a token"))


@case(OBSERVED, needs=("auth",))
async def deprecated_enum(broker: Target) -> None:
    """CONNECT with auth_method=AuthMethodAthens enum and no auth_method_name.

    Expected: ERROR {request_id=-1, error=AuthenticationError}, as the method 'athens' is unknown; then the
    broker closes the connection.

    Source: Broker: ServerCnx.handleConnect.
    """
    await _expect_refusal(broker, auth_method=AuthMethod.Value("AuthMethodAthens"))


async def _await_challenge(broker: Target) -> Probe:
    """Return a connection whose token has expired, a second after the check that sent AUTH_CHALLENGE."""
    interval = broker.seconds["refresh"]
    token = broker.sign_token("client", interval / 2)
    probe = await broker.connect(feature_flags={"supports_auth_refresh": True}, **_credentials(token))
    await broker.advance(1)
    await probe.expect_nothing(0.1)
    await broker.advance(interval)
    challenge = (await probe.expect("AUTH_CHALLENGE")).body.challenge
    equal(challenge.auth_method_name, "token", "auth_method_name")
    equal(challenge.auth_data, b"PulsarAuthRefresh", "auth_data")
    return probe


def _answer(probe: Probe, token: str) -> None:
    probe.command("AUTH_RESPONSE", response=_credentials(token))


@case(SHOULD, needs=("auth",), waits=("refresh", 3))
async def refresh_challenge(broker: Target) -> None:
    """A token that expires, feature_flags.supports_auth_refresh=true.

    Expected: After expiry AUTH_CHALLENGE {challenge: auth_method_name=token, auth_data='PulsarAuthRefresh'};
    a valid AUTH_RESPONSE gets no reply and the connection stays open.

    Source: PIP-30 follow-up; broker: ServerCnx.refreshAuthenticationCredentials.
    """
    probe = await _await_challenge(broker)
    _answer(probe, broker.sign_token("client", 3600))
    await probe.expect_nothing()
    await broker.advance(broker.seconds["refresh"] + 1)
    await probe.expect_nothing()
    await probe.expect_pong()


@case(SHOULD, needs=("auth",), waits=("refresh", 3))
async def refresh_no_answer(broker: Target) -> None:
    """A token that expires, supports_auth_refresh=true; AUTH_CHALLENGE is left unanswered.

    Expected: The broker closes the connection at the next check, authenticationRefreshCheckSeconds later.

    Source: Broker: ServerCnx.refreshAuthenticationCredentials.
    """
    probe = await _await_challenge(broker)
    await broker.advance(broker.seconds["refresh"] - 2)
    await probe.expect_nothing(0.1)
    await broker.advance(2)
    await probe.expect_close()


@case(OBSERVED, needs=("auth",), waits=("refresh", 1.5))
async def refresh_bad_answer(broker: Target) -> None:
    """AUTH_CHALLENGE is answered by AUTH_RESPONSE with a wrongly signed token.

    Expected: ERROR {request_id=-1, error=AuthenticationError}; then the broker closes the connection.

    Source: Broker: ServerCnx.handleAuthResponse.
    """
    probe = await _await_challenge(broker)
    _answer(probe, broker.tokens["forged"])
    await _expect_failure(probe)


@case(SHOULD, needs=("auth",), waits=("refresh", 1.5))
async def refresh_other_role(broker: Target) -> None:
    """AUTH_CHALLENGE is answered by AUTH_RESPONSE with a valid token of another role.

    Expected: The broker closes the connection, without a reply.

    Source: Broker: ServerCnx.handleAuthResponse.
    """
    probe = await _await_challenge(broker)
    _answer(probe, broker.tokens["admin"])
    await probe.expect_close()


async def _connect_as(broker: Target, role: str) -> Probe:
    return await broker.connect(**_credentials(broker.sign_token(role)))


@case(OBSERVED, needs=("auth",))
async def pipelined(broker: Target) -> None:
    """CONNECT with a valid token and LOOKUP in one write.

    Expected: No frame; the broker closes the connection: authentication is not done yet.

    Source: Broker: ServerCnx.handleConnect.
    """
    probe = await broker.open_connection()
    connect = make_frame("CONNECT", **CLIENT, **_credentials(broker.tokens["admin"]))
    probe.send(connect + make_frame("LOOKUP", topic=broker.topic(), request_id=1))
    await probe.expect_close()


@case(SHOULD, needs=("auth",))
async def not_before(broker: Target) -> None:
    """Token with nbf in an hour.

    Expected: ERROR {request_id=-1, error=AuthenticationError}; then the broker closes the connection.

    Source: Broker: AuthenticationProviderToken.
    """
    later = broker.now_ms() // 1000 + 3600
    await _expect_refusal(broker, **_credentials(broker.sign_token("admin", nbf=later)))


@case(OBSERVED, needs=("auth",))
async def response_of_other_method(broker: Target) -> None:
    """AUTH_RESPONSE, which nobody asked for, with a valid token of the same role and auth_method_name=other.

    Expected: Nothing; the connection stays open.

    Source: Broker: ServerCnx.handleAuthResponse.
    """
    probe = await _connect_as(broker, "client")
    probe.command("AUTH_RESPONSE", response=_credentials(broker.sign_token("client"), "other"))
    await probe.expect_nothing()
    await probe.expect_pong()
