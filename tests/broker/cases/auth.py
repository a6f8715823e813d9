"""Authentication and authorization by tokens."""

from __future__ import annotations

from typing import Any

from broker.probe import NO_REQUEST, Probe, Target, case, frame, subscription

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


async def as_role(broker: Target, role: str) -> Probe:
    return await broker.connected(**by_token(broker.token(role)))


async def with_rights(broker: Target, **rights: list[str]) -> str:
    """A new topic, in a namespace where these roles may do these actions."""
    namespace = await broker.namespace()
    for role, actions in rights.items():
        await broker.rest("POST", f"/admin/v2/namespaces/{namespace}/permissions/{role}", actions)
    admin, topic = await as_role(broker, "admin"), f"persistent://{namespace}/t"
    await admin.producer(topic)
    return topic


@case("auth/pipelined")
async def pipelined(broker: Target) -> None:
    probe = await broker.connection()
    connect = frame(
        "CONNECT", client_version="probe", protocol_version=21, **by_token(broker.tokens["admin"])
    )
    probe.send(connect + frame("LOOKUP", topic=broker.topic(), request_id=1))
    await probe.closes()


@case("auth/role_of_no_text")
async def role_of_no_text(broker: Target) -> None:
    for sub in (None, [], [1]):
        probe = await broker.connected(**by_token(broker.token("", sub=sub)))
        await lookup_fails(probe, broker.topic())
    await refused(broker, **by_token(broker.token("", sub=5)))


@case("auth/first_of_several_roles")
async def first_of_several_roles(broker: Target) -> None:
    probe = await broker.connected(**by_token(broker.token("", sub=["admin", "stranger"])))
    await probe.lookup(broker.topic())


@case("auth/not_before")
async def not_before(broker: Target) -> None:
    later = broker.now_ms() // 1000 + 3600
    await refused(broker, **by_token(broker.token("admin", nbf=later)))


@case("auth/response_of_other_method")
async def response_of_other_method(broker: Target) -> None:
    probe = await as_role(broker, "client")
    probe.command("AUTH_RESPONSE", response=by_token(broker.token("client"), "other"))
    await probe.nothing()
    await probe.stays_open()


@case("auth/roles_do_not_fit")
async def roles_do_not_fit(broker: Target) -> None:
    unfit = "Must not set proxyVersion without connecting as a ProxyRole."
    for role, fields, text in (
        ("client", {"proxy_version": "x"}, unfit),
        ("client", {"original_principal": "client"}, "Invalid roles."),
        ("proxy", {"proxy_version": "x"}, "Invalid roles."),
        ("proxy", {"proxy_version": "x", "original_principal": "proxy"}, "Invalid roles."),
    ):
        probe, token = await broker.connection(), by_token(broker.token(role))
        probe.command("CONNECT", client_version="probe", protocol_version=21, **token, **fields)
        error = ServerError.Value("AuthorizationError")
        await probe.expect("ERROR", request_id=NO_REQUEST, error=error, message=text)
        await probe.closes()


@case("auth/proxy_without_version")
async def proxy_without_version(broker: Target) -> None:
    await broker.connected(**by_token(broker.tokens["proxy"]), original_principal="client")


@case("auth/initial_subscription_right")
async def initial_subscription_right(broker: Target) -> None:
    topic = await with_rights(broker, maker=["produce"])
    probe = await as_role(broker, "maker")
    fields = {"topic": topic, "producer_id": 2, "initial_subscription_name": "i"}
    await probe.producer(topic)
    await probe.refused("AuthorizationError", "PRODUCER", **fields)


@case("auth/lists_need_rights")
async def lists_need_rights(broker: Target) -> None:
    topic = await with_rights(broker, other=["functions"], reader=["consume"])
    fields = {"namespace": topic.partition("://")[2].rpartition("/")[0]}
    reader, probe = await as_role(broker, "reader"), await as_role(broker, "other")
    await reader.listing(**fields)
    body = await probe.request("GET_TOPICS_OF_NAMESPACE", "ERROR", **fields)
    assert body.message == "Client is not authorized to GetTopicsOfNamespace"
    body = await probe.request("WATCH_TOPIC_LIST", "ERROR", watcher_id=1, topics_pattern=".*", **fields)
    assert body.message == "Proxy Client is not authorized to watchTopicList"


@case("auth/unknown_tenant_texts")
async def unknown_tenant_texts(broker: Target) -> None:
    probe, topic = await as_role(broker, "client"), "persistent://unknown/default/t"
    body = await probe.request("LOOKUP", "LOOKUP_RESPONSE", topic=topic)
    assert body.message == "Exception occurred while trying to authorize lookup"
    exception = "org.apache.pulsar.common.util.RestException: HTTP 404 Not Found"
    body = await probe.request("PRODUCER", "ERROR", topic=topic, producer_id=1)
    assert (body.error, body.message) == (ServerError.Value("AuthorizationError"), exception)
    body = await probe.request("SUBSCRIBE", "ERROR", **subscription(topic))
    assert (body.error, body.message) == (ServerError.Value("AuthorizationError"), exception)


@case("auth/no_wildcards")
async def no_wildcards(broker: Target) -> None:
    topic = await with_rights(broker, **{"app-*": ["produce"], "*": ["consume"]})
    await lookup_fails(await as_role(broker, "app-1"), topic)


@case("auth/subscription_of_roles")
async def subscription_of_roles(broker: Target) -> None:
    topic = await with_rights(broker, reader=["consume"], other=["consume"])
    namespace = topic.partition("://")[2].rpartition("/")[0]
    await broker.rest("POST", f"/admin/v2/namespaces/{namespace}/permissions/subscription/s", ["reader"])
    probe = await as_role(broker, "other")
    await probe.refused("AuthorizationError", "SUBSCRIBE", **subscription(topic))
    await probe.subscribe(topic, subscription="another")
    await (await as_role(broker, "reader")).subscribe(topic)


@case("auth/subscription_prefix")
async def subscription_prefix(broker: Target) -> None:
    topic = await with_rights(broker, reader=["consume"])
    namespace, probe = topic.partition("://")[2].rpartition("/")[0], await as_role(broker, "reader")
    await probe.subscribe(topic)
    await broker.rest("POST", f"/admin/v2/namespaces/{namespace}/subscriptionAuthMode", "Prefix")
    await probe.expect("CLOSE_CONSUMER", consumer_id=1)
    body = await probe.request("SUBSCRIBE", "ERROR", **subscription(topic))
    text = "The subscription name needs to be prefixed by the authentication role, like reader-xxxx"
    assert body.error == ServerError.Value("AuthorizationError")
    assert text in body.message
    await probe.subscribe(topic, subscription="reader-s")


@case("auth/revoked")
async def revoked(broker: Target) -> None:
    topic = await with_rights(broker, both=["produce", "consume"])
    namespace, probe = topic.partition("://")[2].rpartition("/")[0], await as_role(broker, "both")
    await probe.producer(topic)
    await probe.subscribe(topic)
    await broker.rest("DELETE", f"/admin/v2/namespaces/{namespace}/permissions/both")
    closed = {(await probe.next()).command, (await probe.next()).command}
    assert closed == {"CLOSE_PRODUCER", "CLOSE_CONSUMER"}
    probe.publish()
    await probe.nothing()
    await probe.stays_open()
