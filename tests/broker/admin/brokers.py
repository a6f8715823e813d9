"""Brokers, and what this one has not."""

from __future__ import annotations

from broker.admin.calls import call, refused

from pulsarctl_wire.conformance.basics.target import Target

BROKERS = "/admin/v2/brokers"


@call("brokers")
async def brokers(broker: Target) -> None:
    assert await broker.rest("GET", f"{BROKERS}/health") == "ok"
    assert await broker.rest("GET", f"{BROKERS}/ready") == "ok"
    assert await broker.rest("GET", f"{BROKERS}/version") == "4.0.8"
    leader = await broker.rest("GET", f"{BROKERS}/leaderBroker")
    assert await broker.rest("GET", f"{BROKERS}/standalone") == [leader["brokerId"]]
    assert await broker.rest("GET", BROKERS) == [leader["brokerId"]]
    runtime = await broker.rest("GET", f"{BROKERS}/configuration/runtime")
    assert (runtime["maxMessageSize"], runtime["clusterName"]) == ("5242880", "standalone")
    assert await broker.rest("GET", f"{BROKERS}/configuration/values") == {}
    text = "Can't update non-dynamic configuration"
    await refused(broker, 412, text, "POST", f"{BROKERS}/configuration/maxMessageSize/5")
    await broker.rest("GET", f"{BROKERS}/backlog-quota-check")


@call("brokers/unknown paths")
async def unknown(broker: Target) -> None:
    for path in ("/", "/foo", "/admin/v2/nope", "/admin/v2/namespaces/public/default/foo/bar"):
        await refused(broker, 404, "", "GET", path)
    await refused(broker, 405, "", "GET", "/admin/v2/namespaces/public/default/backlogQuota")
    await refused(broker, 405, "", "POST", "/admin/v2/persistent/public/default/t/truncate")
