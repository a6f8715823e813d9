"""Roles of tokens, and what they may do."""

from __future__ import annotations

from typing import Any

from pulsarctl_wire.checks.requirement import MUST, OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import equal, require
from pulsarctl_wire.conformance.basics.frames import make_subscription
from pulsarctl_wire.conformance.basics.probe import CLIENT, Probe
from pulsarctl_wire.conformance.basics.target import Target
from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError
from pulsarctl_wire.wire.session.state import NO_REQUEST


def _credentials(token: str, method: str = "token") -> dict[str, Any]:
    """Return the fields of AuthData, which CONNECT has as well."""
    return {"auth_method_name": method, "auth_data": token.encode()}


async def _expect_failure(probe: Probe) -> None:
    """Require that authentication fails: ERROR, then the end of the connection."""
    error = ServerError.AuthenticationError
    await probe.expect("ERROR", request_id=NO_REQUEST, error=error)
    await probe.expect_close()


async def _expect_lookup_failure(probe: Probe, topic: str) -> None:
    """Require that LOOKUP fails with AuthorizationError."""
    request_id = probe.start("LOOKUP", topic=topic, authoritative=False)
    error = ServerError.AuthorizationError
    answer = (await probe.expect("LOOKUP_RESPONSE", request_id=request_id, error=error)).body
    equal(answer.response, answer.Failed, "response")


async def _expect_refusal(broker: Target, **fields: Any) -> None:
    probe = await broker.open_connection()
    probe.command("CONNECT", **CLIENT, **fields)
    await _expect_failure(probe)


@case(MUST, needs=("auth",))
async def unauthorized_produce(broker: Target) -> None:
    """Valid token of a role without rights: LOOKUP and PRODUCER.

    Expected: LOOKUP_RESPONSE Failed AuthorizationError; PRODUCER ERROR AuthorizationError; the connection
    stays open.

    Source: Protocol: Connection establishment; broker: ServerCnx.
    """
    topic = broker.topic()
    probe = await broker.connect(**_credentials(broker.tokens["stranger"]))
    await _expect_lookup_failure(probe, topic)
    await probe.expect_error("AuthorizationError", "PRODUCER", topic=topic, producer_id=1)
    await probe.expect_pong()


@case(SHOULD, needs=("auth",))
async def proxy_role(broker: Target) -> None:
    """Token of role 'proxy' (proxyRoles=proxy), proxy_version=x, original_principal=admin; LOOKUP.

    Expected: CONNECTED; LOOKUP_RESPONSE Failed AuthorizationError as long as role 'proxy' itself has no
    rights (both roles must be authorized).

    Source: Broker: ServerCnx.completeConnect.
    """
    fields = {"proxy_version": "x", "original_principal": "admin"}
    probe = await broker.connect(**_credentials(broker.tokens["proxy"]), **fields)
    await _expect_lookup_failure(probe, broker.topic())


@case(SHOULD, needs=("auth",))
async def metadata_of_unknown_tenant(broker: Target) -> None:
    """Role that is no superuser; PARTITIONED_METADATA of a topic of a tenant that does not exist.

    Expected: PARTITIONED_METADATA_RESPONSE Failed TopicNotFound.

    Source: Broker: ServerCnx.handlePartitionMetadataRequest.
    """
    probe = await broker.connect(**_credentials(broker.tokens["client"]))
    name, topic = "PARTITIONED_METADATA", "persistent://unknown/default/t"
    body = await probe.request(name, f"{name}_RESPONSE", topic=topic)
    equal((body.response, body.error), (body.Failed, ServerError.TopicNotFound), "response, error")


async def _connect_as(broker: Target, role: str) -> Probe:
    return await broker.connect(**_credentials(broker.sign_token(role)))


async def _grant(broker: Target, **rights: list[str]) -> str:
    """Create a topic in a new namespace with these `rights`: role -> actions; return the topic's name."""
    namespace = await broker.create_namespace()
    for role, actions in rights.items():
        await broker.rest("POST", f"/admin/v2/namespaces/{namespace}/permissions/{role}", actions)
    admin, topic = await _connect_as(broker, "admin"), f"persistent://{namespace}/t"
    await admin.create_producer(topic)
    return topic


@case(OBSERVED, needs=("auth",))
async def role_of_no_text(broker: Target) -> None:
    """Tokens with sub=null, [], [1]; with sub=5.

    Expected: CONNECTED, LOOKUP_RESPONSE Failed AuthorizationError; ERROR {request_id=-1,
    error=AuthenticationError} for the last.

    Source: Broker: AuthenticationProviderToken.
    """
    for sub in (None, [], [1]):
        probe = await broker.connect(**_credentials(broker.sign_token("", sub=sub)))
        await _expect_lookup_failure(probe, broker.topic())
    await _expect_refusal(broker, **_credentials(broker.sign_token("", sub=5)))


@case(SHOULD, needs=("auth",))
async def first_of_several_roles(broker: Target) -> None:
    """Token with sub=[admin, stranger]; LOOKUP.

    Expected: Connect: the first counts.

    Source: Broker: AuthenticationProviderToken.
    """
    probe = await broker.connect(**_credentials(broker.sign_token("", sub=["admin", "stranger"])))
    await probe.look_up(broker.topic())


@case(SHOULD, needs=("auth",))
async def roles_do_not_fit(broker: Target) -> None:
    """CONNECT of no proxy with proxy_version, or original_principal = its own role; of a proxy without
    original_principal, or with its own role.

    Expected: ERROR {request_id=-1, error=AuthorizationError, 'Must not set proxyVersion without connecting as
    a ProxyRole.' or 'Invalid roles.'}; then the broker closes the connection.

    Source: Broker: ServerCnx.completeConnect.
    """
    proxy_only = "Must not set proxyVersion without connecting as a ProxyRole."
    for role, fields, text in (
        ("client", {"proxy_version": "x"}, proxy_only),
        ("client", {"original_principal": "client"}, "Invalid roles."),
        ("proxy", {"proxy_version": "x"}, "Invalid roles."),
        ("proxy", {"proxy_version": "x", "original_principal": "proxy"}, "Invalid roles."),
    ):
        probe, credentials = await broker.open_connection(), _credentials(broker.sign_token(role))
        probe.command("CONNECT", **CLIENT, **credentials, **fields)
        error = ServerError.AuthorizationError
        await probe.expect("ERROR", request_id=NO_REQUEST, error=error, message=text)
        await probe.expect_close()


@case(OBSERVED, needs=("auth",))
async def proxy_without_version(broker: Target) -> None:
    """CONNECT of a proxy with original_principal, without proxy_version.

    Expected: CONNECTED.

    Source: Broker: ServerCnx.completeConnect.
    """
    await broker.connect(**_credentials(broker.tokens["proxy"]), original_principal="client")


@case(SHOULD, needs=("admin", "auth"))
async def initial_subscription_right(broker: Target) -> None:
    """Role that may only produce: PRODUCER; PRODUCER with initial_subscription_name.

    Expected: PRODUCER_SUCCESS; ERROR AuthorizationError.

    Source: Broker: ServerCnx.handleProducer.
    """
    topic = await _grant(broker, maker=["produce"])
    probe = await _connect_as(broker, "maker")
    fields = {"topic": topic, "producer_id": 2, "initial_subscription_name": "i"}
    await probe.create_producer(topic)
    await probe.expect_error("AuthorizationError", "PRODUCER", **fields)


@case(OBSERVED, needs=("admin", "auth"))
async def lists_need_rights(broker: Target) -> None:
    """GET_TOPICS of a role that may consume; GET_TOPICS and WATCH_TOPIC_LIST of one that may run functions.

    Expected: Topics; ERROR AuthorizationError 'Client is not authorized to GetTopicsOfNamespace', 'Proxy
    Client is not authorized to watchTopicList'.

    Source: Broker: PulsarAuthorizationProvider.
    """
    topic = await _grant(broker, other=["functions"], reader=["consume"])
    fields = {"namespace": topic.partition("://")[2].rpartition("/")[0]}
    reader, probe = await _connect_as(broker, "reader"), await _connect_as(broker, "other")
    await reader.list_topics(**fields)
    body = await probe.expect_error("AuthorizationError", "GET_TOPICS_OF_NAMESPACE", **fields)
    equal(body.message, "Client is not authorized to GetTopicsOfNamespace", "message")
    body = await probe.expect_error(
        "AuthorizationError", "WATCH_TOPIC_LIST", watcher_id=1, topics_pattern=".*", **fields
    )
    equal(body.message, "Proxy Client is not authorized to watchTopicList", "message")


@case(OBSERVED, needs=("auth",))
async def unknown_tenant_texts(broker: Target) -> None:
    """LOOKUP, PRODUCER, SUBSCRIBE of a topic of a tenant that does not exist, by a role that is no
    superuser.

    Expected: AuthorizationError 'Exception occurred while trying to authorize lookup', '…RestException: HTTP
    404 Not Found' twice.

    Source: Broker: ServerCnx.
    """
    probe, topic = await _connect_as(broker, "client"), "persistent://unknown/default/t"
    body = await probe.request("LOOKUP", "LOOKUP_RESPONSE", topic=topic)
    equal(body.message, "Exception occurred while trying to authorize lookup", "message")
    exception = "org.apache.pulsar.common.util.RestException: HTTP 404 Not Found"
    body = await probe.expect_error("AuthorizationError", "PRODUCER", topic=topic, producer_id=1)
    equal((body.error, body.message), (ServerError.AuthorizationError, exception), "error, message")
    body = await probe.expect_error("AuthorizationError", "SUBSCRIBE", **make_subscription(topic))
    equal((body.error, body.message), (ServerError.AuthorizationError, exception), "error, message")


@case(SHOULD, needs=("admin", "auth"))
async def no_wildcards(broker: Target) -> None:
    """Rights for 'app-*' and '*': LOOKUP by app-1.

    Expected: Failed AuthorizationError: authorizationAllowWildcardsMatching is off.

    Source: Broker: PulsarAuthorizationProvider.
    """
    topic = await _grant(broker, **{"app-*": ["produce"], "*": ["consume"]})
    await _expect_lookup_failure(await _connect_as(broker, "app-1"), topic)


@case(SHOULD, needs=("admin", "auth"))
async def subscription_of_roles(broker: Target) -> None:
    """Only role reader may use subscription s; role other sends SUBSCRIBE to s, then to another subscription;
    reader sends SUBSCRIBE to s.

    Expected: ERROR AuthorizationError; SUCCESS; SUCCESS.

    Source: Broker: PulsarAuthorizationProvider.
    """
    topic = await _grant(broker, reader=["consume"], other=["consume"])
    namespace = topic.partition("://")[2].rpartition("/")[0]
    await broker.rest("POST", f"/admin/v2/namespaces/{namespace}/permissions/subscription/s", ["reader"])
    probe = await _connect_as(broker, "other")
    await probe.expect_error("AuthorizationError", "SUBSCRIBE", **make_subscription(topic))
    await probe.subscribe(topic, consumer_id=2, subscription="another")
    await (await _connect_as(broker, "reader")).subscribe(topic)


@case(SHOULD, needs=("admin", "auth"))
async def subscription_prefix(broker: Target) -> None:
    """Consumer of s; subscriptionAuthMode=Prefix; SUBSCRIBE s, SUBSCRIBE reader-s.

    Expected: CLOSE_CONSUMER; ERROR AuthorizationError; SUCCESS.

    Source: Broker: PulsarAuthorizationProvider.
    """
    topic = await _grant(broker, reader=["consume"])
    namespace, probe = topic.partition("://")[2].rpartition("/")[0], await _connect_as(broker, "reader")
    await probe.subscribe(topic)
    await broker.rest("POST", f"/admin/v2/namespaces/{namespace}/subscriptionAuthMode", "Prefix")
    await probe.expect("CLOSE_CONSUMER", consumer_id=1)
    body = await probe.expect_error("AuthorizationError", "SUBSCRIBE", **make_subscription(topic))
    text = "The subscription name needs to be prefixed by the authentication role, like reader-xxxx"
    equal(body.error, ServerError.AuthorizationError, "error")
    require(text in body.message, f"a message with {text!r}", body.message)
    await probe.subscribe(topic, consumer_id=2, subscription="reader-s")


@case(SHOULD, needs=("admin", "auth"))
async def revoked(broker: Target) -> None:
    """Producer and consumer live; their role loses its rights; SEND.

    Expected: CLOSE_PRODUCER, CLOSE_CONSUMER; nothing.

    Source: Broker: Producer.checkPermissionsAsync.
    """
    topic = await _grant(broker, both=["produce", "consume"])
    namespace, probe = topic.partition("://")[2].rpartition("/")[0], await _connect_as(broker, "both")
    await probe.create_producer(topic)
    await probe.subscribe(topic)
    await broker.rest("DELETE", f"/admin/v2/namespaces/{namespace}/permissions/both")
    commands = {(await probe.next()).command, (await probe.next()).command}
    equal(commands, {"CLOSE_PRODUCER", "CLOSE_CONSUMER"}, "closed")
    probe.publish()
    await probe.expect_nothing()
    await probe.expect_pong()
