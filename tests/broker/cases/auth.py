"""Authentication and authorization by tokens."""

from __future__ import annotations

from typing import Any

from broker.probe import NO_REQUEST, Probe, Target, case

from pulsarctl_wire.wire.PulsarApi_pb2 import AuthMethod, ServerError

CHECK = 5
"""Seconds between the broker's checks of whether tokens have expired (authenticationRefreshCheckSeconds)."""


def by_token(token: str, method: str = "token") -> dict[str, Any]:
    """The fields of AuthData and, but for their place there, of CONNECT."""
    return {"auth_method_name": method, "auth_data": token.encode()}


async def fails(probe: Probe) -> None:
    """Authentication has failed."""
    error = ServerError.Value("AuthenticationError")
    await probe.expect("ERROR", request_id=NO_REQUEST, error=error)
    await probe.closes()


async def lookup_fails(probe: Probe, topic: str) -> None:
    """LOOKUP is not authorized."""
    number = probe.start("LOOKUP", topic=topic, authoritative=False)
    error = ServerError.Value("AuthorizationError")
    answer = (await probe.expect("LOOKUP_RESPONSE", request_id=number, error=error)).body
    assert answer.response == answer.Failed, answer


@case("auth/good_token")
async def good_token(broker: Target) -> None:
    await broker.connected(**by_token(broker.tokens["admin"]))


@case("auth/token_in_spaces", " {} .\t{}\n.\n{} !\n")
@case("auth/token_with_line_end", "{}.{}.{}\n")
async def token_in_spaces(broker: Target, form: str) -> None:
    await broker.connected(**by_token(form.format(*broker.tokens["admin"].split("."))))


@case("auth/token_with_space_inside")
async def token_with_space_inside(broker: Target) -> None:
    token = broker.tokens["admin"]
    await refused(broker, **by_token(f"{token[:-5]} {token[-5:]}"))


async def refused(broker: Target, **fields: Any) -> None:
    probe = await broker.connection()
    probe.command("CONNECT", client_version="probe", protocol_version=21, **fields)
    await fails(probe)


@case("auth/bad_token")
async def bad_token(broker: Target) -> None:
    await refused(broker, **by_token(broker.tokens["forged"]))


@case("auth/missing", {})
@case("auth/unknown_method", by_token("x", "foo"))
@case("auth/garbage_token", by_token("not a token"))
@case("auth/deprecated_enum", {"auth_method": AuthMethod.Value("AuthMethodAthens")})
async def bad_fields(broker: Target, fields: dict[str, Any]) -> None:
    await refused(broker, **fields)


@case("auth/unauthorized_produce")
async def unauthorized_produce(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.connected(**by_token(broker.tokens["stranger"]))
    await lookup_fails(probe, topic)
    await probe.refused("AuthorizationError", "PRODUCER", topic=topic, producer_id=1)
    await probe.stays_open()


async def challenged(broker: Target) -> Probe:
    """A connection whose token expired after half the time between checks, one second after the check."""
    token = broker.token("client", CHECK / 2)
    probe = await broker.connected(feature_flags={"supports_auth_refresh": True}, **by_token(token))
    await broker.advance(1)
    await probe.nothing(0.1)
    await broker.advance(CHECK)
    challenge = (await probe.expect("AUTH_CHALLENGE")).body.challenge
    assert challenge.auth_method_name == "token"
    assert challenge.auth_data == b"PulsarAuthRefresh"
    return probe


def answer(probe: Probe, token: str) -> None:
    probe.command("AUTH_RESPONSE", response=by_token(token))


@case("auth/refresh_challenge")
async def refreshed(broker: Target) -> None:
    probe = await challenged(broker)
    answer(probe, broker.token("client", 3600))
    await probe.nothing()
    await broker.advance(CHECK + 1)
    await probe.nothing()
    await probe.stays_open()


@case("auth/refresh_no_answer")
async def refresh_unanswered(broker: Target) -> None:
    probe = await challenged(broker)
    await broker.advance(CHECK - 2)
    await probe.nothing(0.1)
    await broker.advance(2)
    await probe.closes()


@case("auth/refresh_bad_answer")
async def refresh_forged(broker: Target) -> None:
    probe = await challenged(broker)
    answer(probe, broker.tokens["forged"])
    await fails(probe)


@case("auth/refresh_other_role")
async def refresh_other_role(broker: Target) -> None:
    probe = await challenged(broker)
    answer(probe, broker.tokens["admin"])
    await probe.closes()


@case("auth/proxy_role")
async def proxy_role(broker: Target) -> None:
    fields = {"proxy_version": "x", "original_principal": "admin"}
    probe = await broker.connected(**by_token(broker.tokens["proxy"]), **fields)
    await lookup_fails(probe, broker.topic())


@case("auth/metadata_of_unknown_tenant")
async def metadata_of_unknown_tenant(broker: Target) -> None:
    probe = await broker.connected(**by_token(broker.tokens["client"]))
    name, topic = "PARTITIONED_METADATA", "persistent://unknown/default/t"
    body = await probe.request(name, f"{name}_RESPONSE", topic=topic)
    assert (body.response, body.error) == (body.Failed, ServerError.Value("TopicNotFound")), body
