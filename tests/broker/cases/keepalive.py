"""PING and PONG, and what the broker closes because nothing comes."""

from __future__ import annotations

from broker.probe import SETTINGS, SOON, Target, case

K = float(str(SETTINGS["keepalive"]["keepAliveIntervalSeconds"]))


@case("keepalive/ping_pong")
async def ping_pong(broker: Target) -> None:
    probe = await broker.connected()
    probe.command("PING")
    await probe.expect("PONG", SOON)


@case("keepalive/unsolicited_pong")
async def unsolicited_pong(broker: Target) -> None:
    probe = await broker.connected()
    probe.command("PONG")
    probe.command("PING")
    await probe.expect("PONG")
    await probe.nothing()


@case("keepalive/handshake_deadline")
async def handshake_deadline(broker: Target) -> None:
    probe = await broker.connection()
    await broker.advance(K - 1)
    await probe.nothing()
    await broker.advance(2)
    await probe.closes(within=0.5)
    assert probe.pings == 0


@case("keepalive/idle_ping")
async def idle_ping(broker: Target) -> None:
    probe = await broker.connected()
    await broker.advance(K - 1)
    assert probe.pings == 0
    await broker.advance(2)
    await probe.nothing()
    assert probe.pings == 1


@case("keepalive/other_command_counts")
async def other_command(broker: Target) -> None:
    probe = await broker.connected()
    probe.answers_pings = False
    await broker.advance(1.5 * K)
    await probe.until(lambda: probe.pings == 1, 0.5)
    await probe.lookup(broker.topic())
    await broker.advance(K)
    await probe.nothing()
    assert probe.pings == 2


@case("keepalive/version_zero_not_pinged")
async def version_zero(broker: Target) -> None:
    probe = await broker.connected(protocol_version=None)
    await broker.advance(2 * K + 1)
    await probe.nothing()
    assert probe.pings == 0
