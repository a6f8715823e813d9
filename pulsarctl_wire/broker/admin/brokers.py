"""Brokers in the admin API, and the lookup of topics over HTTP."""

from typing import Any, Final

from pulsarctl_wire.broker.admin.base import Answer, Problem, Request, Route, plain
from pulsarctl_wire.broker.admin.metrics import metrics
from pulsarctl_wire.broker.clients.connection import PULSAR_VERSION
from pulsarctl_wire.broker.cluster import counters
from pulsarctl_wire.broker.cluster.cluster import AnyTopic, Broker
from pulsarctl_wire.broker.cluster.housekeeping import check_quotas
from pulsarctl_wire.broker.topics.persistent import PersistentTopic

_SECRET: Final = ("password", "secret", "token", "params")
"""Settings with such words in their names are not told."""


def broker_id(broker: Broker) -> str:
    """Return how the admin API names a broker: by its host and HTTP port."""
    return broker.http_url.partition("://")[2]


async def active(request: Request) -> Answer:
    """Return the brokers that are alive, whatever the cluster."""
    return Answer(200, [broker_id(broker) for broker in request.cluster.brokers if broker.alive])


async def leader(request: Request) -> Answer:
    """Return the broker that gives bundles away."""
    first = request.cluster.leader
    return Answer(200, {"serviceUrl": first.http_url, "brokerId": broker_id(first)})


async def healthy(request: Request) -> Answer:
    """Return whether the broker works: it does, as it answers."""
    await request.broker.journal.sync()
    return plain("ok")


async def version(request: Request) -> Answer:
    """Return the version of Pulsar whose behaviour this is."""
    return plain(PULSAR_VERSION)


async def configuration(request: Request) -> Answer:
    """Return the settings; what they do not have is as in Pulsar."""
    lines = {}
    for name, value in request.cluster.settings.values().items():
        if not any(word in name.lower() for word in _SECRET):
            lines[name] = _line(value)
    return Answer(200, lines)


def _line(value: object) -> str:
    """Return a setting as in a file."""
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


async def nothing_dynamic(request: Request) -> Answer:
    """Return the settings that were changed while the broker runs: none."""
    return Answer(200, {})


async def no_names(request: Request) -> Answer:
    """Return the settings that can be changed while the broker runs: none."""
    return Answer(200, [])


async def refuse_change(request: Request) -> Answer:
    """No setting can be changed while the broker runs."""
    raise Problem(412, "Can't update non-dynamic configuration")


async def internal_configuration(request: Request) -> Answer:
    """Where brokers keep their data: nowhere that others could use."""
    store = "memory:local"
    names = "zookeeperServers configurationStoreServers metadataStoreUrl configurationMetadataStoreUrl"
    return Answer(200, {**dict.fromkeys(names.split(), store), "ledgersRootPath": "/ledgers"})


async def owned(request: Request) -> Answer:
    """Return the bundles that a broker owns."""
    for broker in request.cluster.brokers:
        if broker_id(broker) == request.named["broker"]:
            told = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
            return Answer(200, {name: dict(told) for name in request.cluster.list_owned(broker)})
    raise Problem(404, f"Broker id '{request.named['broker']}' not found in available brokers.")


async def quotas_checked(request: Request) -> Answer:
    """Check backlog quotas now."""
    await check_quotas(request.broker)
    return Answer()


# -- statistics


def _short(topic: AnyTopic, rates: counters.Counts) -> dict[str, Any]:
    counts = counters.of_topic(topic)
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


async def topics(request: Request) -> Answer:
    """Short statistics of all topics of this broker, by namespace, bundle and kind."""
    told: dict[str, Any] = {}
    for name, topic in sorted(request.broker.topics.items()):
        of_namespace = told.setdefault(topic.name.namespace, {})
        of_bundle = of_namespace.setdefault(request.cluster.bundle_of(topic.name), {})
        of_bundle.setdefault(topic.name.domain, {})[name] = _short(topic, request.broker.rates.of(topic))
    return Answer(200, told)


async def prometheus(request: Request) -> Answer:
    """Metrics in the text format of Prometheus."""
    text = metrics(request.broker).encode()
    return Answer(200, text, {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


# -- lookup


async def lookup(request: Request) -> Answer:
    """Return the owner of a topic, which gets one if it has none."""
    _ = request.namespace
    name, cluster = request.topic_name, request.cluster
    owner = cluster.get_owner(name)
    if owner is None or not owner.alive:
        owner = cluster.acquire(cluster.choose_owner(name), name)
    urls = {
        "brokerUrl": owner.service_url,
        "brokerUrlTls": owner.service_url_tls,
        "httpUrl": owner.http_url,
        "httpUrlTls": owner.https_url,
        "nativeUrl": owner.service_url,
    }
    return Answer(200, {name: url for name, url in urls.items() if url} | {"brokerUrlSsl": ""})


async def bundle(request: Request) -> Answer:
    """Return the bundle that a topic is in."""
    _ = request.namespace
    return plain(request.cluster.bundle_of(request.topic_name))


_BROKERS: Final = "/admin/v2/brokers"
_LOOKUP: Final = "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"

ROUTES: Final[tuple[Route, ...]] = (
    ("GET", _BROKERS, active),
    ("GET", f"{_BROKERS}/{{cluster}}", active),
    ("GET", f"{_BROKERS}/leaderBroker", leader),
    ("GET", f"{_BROKERS}/health", healthy),
    ("GET", f"{_BROKERS}/ready", healthy),
    ("GET", f"{_BROKERS}/version", version),
    ("GET", f"{_BROKERS}/configuration", no_names),
    ("GET", f"{_BROKERS}/configuration/values", nothing_dynamic),
    ("GET", f"{_BROKERS}/configuration/runtime", configuration),
    ("POST", f"{_BROKERS}/configuration/{{name}}/{{value}}", refuse_change),
    ("DELETE", f"{_BROKERS}/configuration/{{name}}", refuse_change),
    ("GET", f"{_BROKERS}/internal-configuration", internal_configuration),
    ("GET", f"{_BROKERS}/backlog-quota-check", quotas_checked),
    ("GET", f"{_BROKERS}/{{cluster}}/{{broker}}/ownedNamespaces", owned),
    ("GET", "/admin/v2/broker-stats/topics", topics),
    ("GET", "/metrics", prometheus),
    ("GET", "/metrics/", prometheus),
    ("GET", _LOOKUP, lookup),
    ("GET", f"{_LOOKUP}/bundle", bundle),
)
