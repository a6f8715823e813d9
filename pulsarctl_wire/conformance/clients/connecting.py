"""CONNECT, authentication, PING and PONG."""

from __future__ import annotations

from pulsarctl_wire.checks.requirement import MUST, OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.checking import equal, require
from pulsarctl_wire.conformance.basics.frames import make_frame
from pulsarctl_wire.conformance.clients.messages import Backlog, make_entries, make_texts
from pulsarctl_wire.conformance.clients.scripted import (
    Peer,
    admit,
    append,
    ignore,
    open_producer,
    refuse_connection,
    reply,
    store,
)
from pulsarctl_wire.conformance.clients.stage import (
    CONSUME,
    COUNT,
    PRODUCE,
    Stage,
    client_case,
    expect_consumed,
    expect_stored,
    require_feature,
)
from pulsarctl_wire.net.protocol import PING
from pulsarctl_wire.wire.frame import Frame

_NEEDS = (PRODUCE,)
_CHALLENGE = {"server_version": "scripted", "protocol_version": 21}


async def _refuse_connection(stage: Stage, code: str) -> None:
    broker = await stage.open_broker()
    broker.always("CONNECT", refuse_connection(code))
    await (await stage.produce(broker.url)).fail()
    require(broker.list_frames("CONNECT"), "CONNECT", "none came")


@client_case(MUST, needs=_NEEDS, waits=("timeout", 1))
async def error_before_connected(stage: Stage) -> None:
    """CONNECT is answered by ERROR AuthenticationError with request_id=-1: no request has this id.

    Expected: The client fails: at once, or when its operation timeout is over.

    Source: Client: ClientCnx.handleError.
    """
    await _refuse_connection(stage, "AuthenticationError")


@client_case(MUST, needs=_NEEDS, waits=("timeout", 1))
async def error_before_connected_not_allowed(stage: Stage) -> None:
    """CONNECT is answered by ERROR NotAllowedError with request_id=-1: no request has this id.

    Expected: The client fails: at once, or when its operation timeout is over.

    Source: Client: ClientCnx.handleError.
    """
    await _refuse_connection(stage, "NotAllowedError")


@client_case(OBSERVED, needs=_NEEDS)
async def auth_challenge_at_connect(stage: Stage) -> None:
    """CONNECT is answered by AUTH_CHALLENGE with auth_method_name "none", AUTH_RESPONSE by CONNECTED.

    Expected: AUTH_RESPONSE, then it works.

    Source: PIP-30.
    """
    broker = await stage.open_broker()
    challenge = {"auth_method_name": "none", "auth_data": b"x"}
    broker.always("CONNECT", reply("AUTH_CHALLENGE", **_CHALLENGE, challenge=challenge))
    broker.always("AUTH_RESPONSE", admit)
    await expect_stored(await stage.produce(broker.url), broker)


@client_case(SHOULD, needs=_NEEDS)
async def auth_refresh(stage: Stage) -> None:
    """AUTH_CHALLENGE "PulsarAuthRefresh" comes before the first receipts, if the client supports refresh.

    Expected: AUTH_RESPONSE, and the connection stays.

    Source: PIP-55.
    """
    broker = await stage.open_broker()
    challenge = {"auth_method_name": "none", "auth_data": b"PulsarAuthRefresh"}
    queue: list[tuple[Peer, Frame]] = []

    def ask(peer: Peer, frame: Frame) -> bytes | None:
        queue.append((peer, frame))
        return make_frame("AUTH_CHALLENGE", **_CHALLENGE, challenge=challenge) if len(queue) == 1 else None

    def release(peer: Peer, frame: Frame) -> bytes:
        broker.always("SEND", store)
        return b"".join(store(*pair) for pair in queue)

    broker.always("SEND", ask)
    broker.always("AUTH_RESPONSE", release)
    run = await stage.produce(broker.url)
    await stage.wait_for(broker, "SEND")
    await require_feature(stage, broker, "supports_auth_refresh")
    await stage.wait_for(broker, "AUTH_RESPONSE")
    await expect_stored(run, broker)
    equal(len(broker.list_frames("PRODUCER")), 1, "PRODUCERs")


@client_case(MUST, needs=_NEEDS, waits=("timeout", 2))
async def connect_never_answered(stage: Stage) -> None:
    """CONNECT is not answered.

    Expected: The client fails when its timeouts are over.

    Source: Client: connectionTimeout.
    """
    broker = await stage.open_broker()
    broker.always("CONNECT", ignore)
    await (await stage.produce(broker.url)).fail(2)
    require(broker.list_frames("CONNECT"), "CONNECT", "none came")


@client_case(MUST, needs=_NEEDS)
async def connected_no_max_size(stage: Stage) -> None:
    """CONNECTED without max_message_size, an optional field.

    Expected: It works.

    Source: Protocol: Connection establishment.
    """
    broker = await stage.open_broker()
    broker.always("CONNECT", reply("CONNECTED", server_version="scripted", protocol_version=21))
    await expect_stored(await stage.produce(broker.url), broker)


@client_case(SHOULD, needs=_NEEDS)
async def connected_no_version(stage: Stage) -> None:
    """CONNECTED without protocol_version, an optional field: it is 0.

    Expected: It works.

    Source: Protocol: Connection establishment.
    """
    broker = await stage.open_broker()
    broker.always("CONNECT", reply("CONNECTED", server_version="scripted"))
    await expect_stored(await stage.produce(broker.url), broker)


@client_case(MUST, needs=_NEEDS)
async def ping(stage: Stage) -> None:
    """PING comes together with CONNECTED, and one before each receipt.

    Expected: A PONG for each: otherwise the broker would close the connection.

    Source: Protocol: Keep Alive.
    """
    broker = await stage.open_broker()
    broker.always("CONNECT", append(admit, PING))
    broker.always("SEND", lambda peer, frame: PING + store(peer, frame))
    run = await stage.produce(broker.url)
    await stage.wait_for(broker, "PONG", 2)
    await expect_stored(run, broker)


@client_case(SHOULD, needs=(CONSUME,), waits=("keepalive", 3))
async def missing_pong(stage: Stage) -> None:
    """The first connection of a consumer gets neither PONGs nor messages; all else is answered.

    Expected: A new connection, after two intervals of PINGs or a bit more.

    Source: Protocol: Keep Alive.
    """
    broker = await stage.open_broker()
    texts = make_texts(COUNT)
    backlog = Backlog(broker, *make_entries(texts))
    broker.always("PING", lambda peer, frame: None if peer is broker.peers[0] else make_frame("PONG"))
    broker.always("FLOW", lambda peer, frame: None if peer is broker.peers[0] else backlog.flow(peer, frame))
    run = await stage.consume(broker.url)
    extra = 3 * stage.seconds["keepalive"]
    await stage.until(lambda: len(broker.list_frames("SUBSCRIBE")) > 1, "a second SUBSCRIBE", extra)
    await expect_consumed(stage, run, backlog, texts)


@client_case(OBSERVED, needs=_NEEDS)
async def connection_closed_once(stage: Stage) -> None:
    """The first connection is closed in place of CONNECTED.

    Expected: The client tries again, and succeeds.

    Source: Client: ConnectionPool.
    """
    broker = await stage.open_broker()
    broker.once("CONNECT", lambda peer, frame: peer.hang_up())
    await expect_stored(await stage.produce(broker.url), broker)


@client_case(SHOULD, needs=_NEEDS)
async def producer_connection_lost(stage: Stage) -> None:
    """The connection is closed in place of PRODUCER_SUCCESS, once.

    Expected: The client tries again, and succeeds.

    Source: Client: ConnectionHandler.
    """
    broker = await stage.open_broker()
    broker.once("PRODUCER", lambda peer, frame: peer.hang_up())
    broker.always("PRODUCER", open_producer)
    await expect_stored(await stage.produce(broker.url), broker)
