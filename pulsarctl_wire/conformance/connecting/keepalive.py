"""PING and PONG, and what the broker closes because nothing comes."""

from __future__ import annotations

from pulsarctl_wire.checks.requirement import MUST, OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import equal
from pulsarctl_wire.conformance.basics.probe import SOON
from pulsarctl_wire.conformance.basics.target import Target


@case(MUST)
async def ping_pong(broker: Target) -> None:
    """PING after CONNECT.

    Expected: PONG within 1 s.

    Source: Protocol: Keep Alive.
    """
    probe = await broker.connect()
    probe.command("PING")
    await probe.expect("PONG", SOON)


@case(SHOULD)
async def unsolicited_pong(broker: Target) -> None:
    """PONG without a PING, then PING.

    Expected: PONG only.

    Source: Common: PulsarHandler.
    """
    probe = await broker.connect()
    probe.command("PONG")
    probe.command("PING")
    await probe.expect("PONG")
    await probe.expect_nothing()


@case(SHOULD, waits=("keepalive", 1))
async def handshake_deadline(broker: Target) -> None:
    """A TCP connection on which nothing is sent; K is keepAliveIntervalSeconds.

    Expected: No frame; the broker closes the connection after K s (±1 s).

    Source: Common: PulsarHandler.handleKeepAliveTimeout.
    """
    interval = broker.seconds["keepalive"]
    probe = await broker.open_connection()
    await broker.advance(interval - 1)
    await probe.expect_nothing()
    await broker.advance(2)
    await probe.expect_close(within=0.5)
    equal(probe.pings, 0, "pings")


@case(MUST, waits=("keepalive", 1))
async def idle_ping(broker: Target) -> None:
    """CONNECT, then silence; K is keepAliveIntervalSeconds.

    Expected: PING after K s (±1 s).

    Source: Protocol: Keep Alive.
    """
    interval = broker.seconds["keepalive"]
    probe = await broker.connect()
    await broker.advance(interval - 1)
    equal(probe.pings, 0, "pings")
    await broker.advance(2)
    await probe.expect_nothing()
    equal(probe.pings, 1, "pings")


@case(OBSERVED, waits=("keepalive", 2.5))
async def other_command_counts(broker: Target) -> None:
    """PING is not answered, but LOOKUP is sent between K and 2K; K is keepAliveIntervalSeconds.

    Expected: The connection is not closed after 2K; another PING comes instead.

    Source: Common: PulsarHandler.messageReceived.
    """
    interval = broker.seconds["keepalive"]
    probe = await broker.connect()
    probe.answers_pings = False
    await broker.advance(1.5 * interval)
    await probe.until(lambda: probe.pings == 1, "PING", 0.5)
    await probe.look_up(broker.topic())
    await broker.advance(interval)
    await probe.expect_nothing()
    equal(probe.pings, 2, "pings")


@case(OBSERVED, waits=("keepalive", 2))
async def version_zero_not_pinged(broker: Target) -> None:
    """CONNECT without protocol_version, then silence for 2K+1 s; K is keepAliveIntervalSeconds.

    Expected: No PING, and the connection stays open.

    Source: Common: PulsarHandler (from protocol version 1 on).
    """
    interval = broker.seconds["keepalive"]
    probe = await broker.connect(protocol_version=None)
    await broker.advance(2 * interval + 1)
    await probe.expect_nothing()
    equal(probe.pings, 0, "pings")
