"""Brokers in the admin API, and the lookup of topics over HTTP."""

from typing import Any, Final

from pulsarctl_wire.broker.admin.base import Answer, Moved, Problem, Request, Route, make_text_answer
from pulsarctl_wire.broker.admin.metrics import format_metrics
from pulsarctl_wire.broker.clients.connection import PULSAR_VERSION
from pulsarctl_wire.broker.cluster import counters
from pulsarctl_wire.broker.cluster.cluster import AnyTopic, Broker
from pulsarctl_wire.broker.cluster.housekeeping import check_quotas
from pulsarctl_wire.broker.topics.persistent import PersistentTopic

_SECRET: Final = ("password", "secret", "token", "params")
"""Words in the names of settings that are never shown."""


def format_broker_id(broker: Broker) -> str:
    """Return a broker's id in the admin API: its host and HTTP port."""
    return broker.http_url.partition("://")[2]


async def list_brokers(request: Request) -> Answer:
    """Return the living brokers, whatever the cluster in the path."""
    return Answer(200, [format_broker_id(broker) for broker in request.cluster.brokers if broker.alive])


async def get_leader(request: Request) -> Answer:
    """Return the broker that assigns bundles."""
    leader = request.cluster.leader
    return Answer(200, {"serviceUrl": leader.http_url, "brokerId": format_broker_id(leader)})


async def check_health(request: Request) -> Answer:
    """Answer "ok", once everything is stored."""
    await request.broker.journal.sync()
    return make_text_answer("ok")


async def get_version(request: Request) -> Answer:
    """Return the version of Pulsar whose behaviour this broker has."""
    return make_text_answer(PULSAR_VERSION)


async def get_configuration(request: Request) -> Answer:
    """Return the settings that have an effect here, without secrets."""
    lines = {}
    for name, value in request.cluster.settings.values().items():
        if not any(word in name.lower() for word in _SECRET):
            lines[name] = _format_setting(value)
    return Answer(200, lines)


def _format_setting(value: object) -> str:
    """Return a setting as in a file."""
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


async def get_dynamic_values(request: Request) -> Answer:
    """Return the settings changed at run time: none."""
    return Answer(200, {})


async def list_dynamic_names(request: Request) -> Answer:
    """Return the settings that can be changed at run time: none."""
    return Answer(200, [])


async def refuse_change(request: Request) -> Answer:
    """Raise Problem: no setting can be changed at run time."""
    raise Problem(412, "Can't update non-dynamic configuration")


async def get_internal_configuration(request: Request) -> Answer:
    """Return the brokers' metadata stores: local ones, which others cannot use."""
    store = "memory:local"
    names = "zookeeperServers configurationStoreServers metadataStoreUrl configurationMetadataStoreUrl"
    return Answer(200, {**dict.fromkeys(names.split(), store), "ledgersRootPath": "/ledgers"})


async def list_owned(request: Request) -> Answer:
    """Return the bundles that a broker owns."""
    for broker in request.cluster.brokers:
        if format_broker_id(broker) == request.parts["broker"]:
            flags = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
            return Answer(200, {name: dict(flags) for name in request.cluster.list_owned(broker)})
    raise Problem(404, f"Broker id '{request.parts['broker']}' not found in available brokers.")


async def check_quotas_now(request: Request) -> Answer:
    """Check backlog quotas now."""
    await check_quotas(request.broker)
    return Answer()


# -- statistics


def _summarize(topic: AnyTopic, rates: counters.Counts) -> dict[str, Any]:
    counts = counters.get_topic_counts(topic)
    return {
        "producerCount": len(topic.producers),
        "consumerCount": len(topic.consumers),
        "subscriptionCount": len(topic.subscriptions),
        "msgRateIn": rates.messages_in,
        "msgRateOut": rates.messages_out,
        "msgThroughputIn": rates.bytes_in,
        "msgThroughputOut": rates.bytes_out,
        "msgInCount": counts.messages_in,
        "bytesInCount": counts.bytes_in,
        "msgOutCount": counts.messages_out,
        "bytesOutCount": counts.bytes_out,
        "storageSize": topic.log.size if isinstance(topic, PersistentTopic) else 0,
    }


async def get_topics(request: Request) -> Answer:
    """Return short statistics of all topics of this broker, by namespace, bundle and kind."""
    stats: dict[str, Any] = {}
    for name, topic in sorted(request.broker.topics.items()):
        of_namespace = stats.setdefault(topic.name.namespace, {})
        of_bundle = of_namespace.setdefault(request.cluster.bundle_of(topic.name), {})
        of_bundle.setdefault(topic.name.domain, {})[name] = _summarize(topic, request.broker.rates.of(topic))
    return Answer(200, stats)


async def get_metrics(request: Request) -> Answer:
    """Return metrics in the text format of Prometheus."""
    text = format_metrics(request.broker).encode()
    return Answer(200, text, {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


# -- lookup


async def lookup(request: Request) -> Answer:
    """Return the owner of a topic; if there is none, choose one. Raises Moved where LOOKUP redirects."""
    request.require_namespace()
    owner, is_redirect, authoritative = request.cluster.find_owner(
        request.broker, request.topic_name, request.get_flag("authoritative")
    )
    if is_redirect:
        raise Moved(owner, authoritative=authoritative)
    plain, secure = owner.service_url, owner.service_url_tls
    listener = request.query.get("listenerName", "").strip()
    if listener:
        if listener not in owner.listeners:
            raise Problem(500, f"the broker do not have {listener} listener")
        plain, secure = owner.listeners[listener]
    urls = {
        "brokerUrl": plain,
        "brokerUrlTls": secure,
        "httpUrl": owner.http_url,
        "httpUrlTls": owner.https_url,
        "nativeUrl": plain,
    }
    return Answer(200, {name: url for name, url in urls.items() if url} | {"brokerUrlSsl": ""})


async def get_bundle(request: Request) -> Answer:
    """Return the bundle that a topic is in."""
    request.require_namespace()
    return make_text_answer(request.cluster.bundle_of(request.topic_name))


_BROKERS: Final = "/admin/v2/brokers"
_LOOKUP: Final = "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"

ROUTES: Final[tuple[Route, ...]] = (
    ("GET", _BROKERS, list_brokers),
    ("GET", f"{_BROKERS}/{{cluster}}", list_brokers),
    ("GET", f"{_BROKERS}/leaderBroker", get_leader),
    ("GET", f"{_BROKERS}/health", check_health),
    ("GET", f"{_BROKERS}/ready", check_health),
    ("GET", f"{_BROKERS}/version", get_version),
    ("GET", f"{_BROKERS}/configuration", list_dynamic_names),
    ("GET", f"{_BROKERS}/configuration/values", get_dynamic_values),
    ("GET", f"{_BROKERS}/configuration/runtime", get_configuration),
    ("POST", f"{_BROKERS}/configuration/{{name}}/{{value}}", refuse_change),
    ("DELETE", f"{_BROKERS}/configuration/{{name}}", refuse_change),
    ("GET", f"{_BROKERS}/internal-configuration", get_internal_configuration),
    ("GET", f"{_BROKERS}/backlog-quota-check", check_quotas_now),
    ("GET", f"{_BROKERS}/{{cluster}}/{{broker}}/ownedNamespaces", list_owned),
    ("GET", "/admin/v2/broker-stats/topics", get_topics),
    ("GET", "/metrics", get_metrics),
    ("GET", "/metrics/", get_metrics),
    ("GET", _LOOKUP, lookup),
    ("GET", f"{_LOOKUP}/bundle", get_bundle),
)
