"""Control requests of a running broker: a request is a JSON object, and so is its answer.

    {"do": "state"}                     connections, topics, subscriptions, … (cluster/state.py)
    {"do": "advance", "seconds": 60}    {"time_ms": …}: moves the clock, and runs what is due
    {"do": "housekeeping"}              {}: expiry, quotas, retention and deletion of what is unused, now
    {"do": "compact", "topic": "t"}     {}: when done
    {"do": "unload", "topic": "t"}      {}: clients connect to it again
    {"do": "terminate", "topic": "t"}   {"last": [LEDGER, ENTRY]}
    {"do": "cut", "connection": 3}      {"connections": 1}: cuts it; without a number, all
    {"do": "move", "topic": "t", "broker": 1}   {}: broker 1 then owns the topic's bundle
    {"do": "migrate", "topic": "t", "service_url": "pulsar://…"}   {}: tells clients that it has moved
    {"do": "kill", "broker": 1}         {}: stops it at once
    {"do": "start", "broker": 1}        {}: at the same ports
    {"do": "restart", "broker": 1}      {}: kills and starts it
    {"do": "fault-add", …}              and others about faults (net/control.py)

A unix socket takes them as lines (net/control.py), HTTP as POST /pwire/advance with a body {"seconds": 60},
and `state` as GET.
"""

import json
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final

from pulsarctl_wire.broker.basics.names import InvalidName, parse_topic
from pulsarctl_wire.broker.basics.refusal import Refused
from pulsarctl_wire.broker.cluster import housekeeping
from pulsarctl_wire.broker.cluster.cluster import AnyTopic, Broker
from pulsarctl_wire.broker.cluster.state import report_state
from pulsarctl_wire.broker.topics.persistent import PersistentTopic
from pulsarctl_wire.errors import RequestTimeout, SettingsError, WireError
from pulsarctl_wire.net.control import FAULT_REQUESTS

if TYPE_CHECKING:
    from pulsarctl_wire.broker.shell.server import Ports, Server

PREFIX: Final = "/pwire/"
"""The beginning of the path of these requests over HTTP."""

_MAX_SECONDS: Final = 366 * 86_400
"""The most seconds that the clock moves at a time."""


async def answer(server: "Server", request: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out a request and return the answer. Raises SettingsError if that is impossible."""
    handler = _REQUESTS.get(str(request.get("do")))
    if handler is None:
        raise SettingsError(f"{request.get('do')}: not one of {', '.join(_REQUESTS)}")
    try:
        coroutine = handler(server, request)
        return await (server.run(coroutine) if request["do"] in _IN_CORE else coroutine)
    except (Refused, InvalidName) as error:
        raise SettingsError(str(error)) from None


async def _state(server: "Server", request: Mapping[str, Any]) -> dict[str, Any]:
    await server.idle()
    server.set_time()
    faults = {"faults": []} if server.faults is None else await _faults(server, {"do": "fault-list"})
    return {**report_state(server.cluster), **faults}


async def _advance(server: "Server", request: Mapping[str, Any]) -> dict[str, Any]:
    seconds = request.get("seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= _MAX_SECONDS:
        raise SettingsError(f"seconds={seconds}: it must be a number from 0 to {_MAX_SECONDS}")
    await server.advance(seconds)
    return {"time_ms": server.cluster.scheduler.time_ms}


async def _housekeeping(server: "Server", request: Mapping[str, Any]) -> dict[str, Any]:
    for broker in server.cluster.brokers:
        await housekeeping.run(broker)
    return {}


async def _compact(server: "Server", request: Mapping[str, Any]) -> dict[str, Any]:
    topic = _require_persistent(await _load_topic(server, request))
    if topic.compaction.status == "RUNNING":
        raise SettingsError(f"{topic.name.full} is being compacted already")
    await topic.compaction.run()
    return {}


async def _unload(server: "Server", request: Mapping[str, Any]) -> dict[str, Any]:
    topic = await _load_topic(server, request)
    await server.cluster.broker_of(topic).unload(topic)
    return {}


async def _terminate(server: "Server", request: Mapping[str, Any]) -> dict[str, Any]:
    topic = await _load_topic(server, request)
    return {"last": list(await _require_persistent(topic).terminate())}


async def _load_topic(server: "Server", request: Mapping[str, Any]) -> AnyTopic:
    """Load the topic that a request names. Raises Refused, InvalidName."""
    name = parse_topic(str(request.get("topic", "")))
    return await server.cluster.load(name)


def _require_persistent(topic: AnyTopic) -> PersistentTopic:
    if not isinstance(topic, PersistentTopic):
        raise SettingsError(f"{topic.name.full} is not persistent")
    return topic


async def _cut(server: "Server", request: Mapping[str, Any]) -> dict[str, Any]:
    number = request.get("connection")
    if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
        raise SettingsError(f"connection={number}: it must be a number, as in state")
    count = server.cut(number)
    if number is not None and not count:
        raise SettingsError(f"there is no connection {number}")
    return {"connections": count}


async def _move(server: "Server", request: Mapping[str, Any]) -> dict[str, Any]:
    name, owner = parse_topic(str(request.get("topic", ""))), _broker(server, request.get("broker"))
    await server.cluster.unload_bundle(name, owner, tells_clients=True)
    return {}


async def _migrate(server: "Server", request: Mapping[str, Any]) -> dict[str, Any]:
    urls = str(request.get("service_url") or ""), str(request.get("service_url_tls") or "")
    for url, scheme in zip(urls, ("pulsar://", "pulsar+ssl://"), strict=True):
        if url and not url.startswith(scheme):
            raise SettingsError(f"{url[:200]}: it must begin with {scheme}")
    if not any(urls):
        raise SettingsError("give service_url or service_url_tls, where the topic has moved to")
    (await _load_topic(server, request)).migrate(*urls)
    return {}


async def _kill(server: "Server", request: Mapping[str, Any]) -> dict[str, Any]:
    broker = _broker(server, request.get("broker"))
    if sum(member.alive for member in server.cluster.brokers) == 1:
        raise SettingsError("the last broker cannot be killed: end pwire broker")
    await _ports(server).kill(broker)
    return {}


async def _start(server: "Server", request: Mapping[str, Any]) -> dict[str, Any]:
    await _ports(server).start(_broker(server, request.get("broker"), alive=False))
    return {}


async def _restart(server: "Server", request: Mapping[str, Any]) -> dict[str, Any]:
    server.cluster.restart(_broker(server, request.get("broker", 0)))
    server.flush()
    return {}


def _ports(server: "Server") -> "Ports":
    assert server.ports is not None, "a server whose ports are others'"
    return server.ports


def _broker(server: "Server", number: object, *, alive: bool = True) -> Broker:
    brokers = server.cluster.brokers
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(brokers):
        raise SettingsError(f"there is no broker {number}; the last one is {len(brokers) - 1}")
    if brokers[number].alive is not alive:
        raise SettingsError(f"broker {number} was killed" if alive else f"broker {number} is running")
    return brokers[number]


async def _faults(server: "Server", request: Mapping[str, Any]) -> dict[str, Any]:
    from pulsarctl_wire.net.fault_control import answer_faults

    if server.faults is None:
        server.faults = server.new_faults()
    return await answer_faults(server, server.faults, request)


Handler = Callable[["Server", Mapping[str, Any]], Coroutine[Any, Any, dict[str, Any]]]

_IN_CORE: Final[dict[str, Handler]] = {
    "housekeeping": _housekeeping,
    "compact": _compact,
    "unload": _unload,
    "terminate": _terminate,
    "move": _move,
    "migrate": _migrate,
}
"""Requests whose handlers are coroutines of the core."""

_REQUESTS: Final[dict[str, Handler]] = {
    "state": _state,
    "advance": _advance,
    **_IN_CORE,
    "cut": _cut,
    "kill": _kill,
    "start": _start,
    "restart": _restart,
    **dict.fromkeys(FAULT_REQUESTS, _faults),
}


# -- over HTTP


async def answer_http(server: "Server", method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
    """Return the status and the JSON body for a request below `PREFIX`."""
    action = path.removeprefix(PREFIX).strip("/")
    if method != ("GET" if action == "state" else "POST"):
        return 405, {"error": f"{method} cannot be used here"}
    try:
        request = json.loads(body or b"{}")
        if not isinstance(request, dict):
            return 400, {"error": "the body must be a JSON object"}
        return 200, await answer(server, {**request, "do": action})
    except RequestTimeout as error:
        return 408, {"error": str(error)}
    except WireError as error:
        return 404 if action not in _REQUESTS else 400, {"error": str(error)}
    except (ValueError, RecursionError):
        return 400, {"error": "the body is not JSON"}
