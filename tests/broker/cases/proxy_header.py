"""A PROXY header before the first frame."""

from __future__ import annotations

from broker.probe import Target, case

V1 = b"PROXY TCP4 10.0.0.1 10.0.0.2 1234 6650\r\n"
V2 = bytes.fromhex("0d0a0d0a000d0a515549540a 21 11 000c 0a000001 0a000002 04d2 19fa")


@case("haproxy/v1")
async def v1(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.connection()
    probe.send(V1)
    await probe.connect()
    await probe.subscribe(topic)
    await probe.request("CONSUMER_STATS", "CONSUMER_STATS_RESPONSE", consumer_id=1)


@case("haproxy/v2")
async def v2(broker: Target) -> None:
    probe = await broker.connection()
    probe.send(V2)
    await probe.connect()


@case("haproxy/optional")
async def optional(broker: Target) -> None:
    await broker.connected()


@case("haproxy/address_told")
async def address_told(broker: Target) -> None:
    topic, probe = broker.topic(), await broker.connection()
    probe.send(V1)
    await probe.connect()
    await probe.subscribe(topic)
    body = await probe.request("CONSUMER_STATS", "CONSUMER_STATS_RESPONSE", consumer_id=1)
    assert body.address == "10.0.0.1:1234"


@case("haproxy/malformed")
async def malformed(broker: Target) -> None:
    for header in (
        V1.replace(b"10.0.0.1", b"10.0.0.300"),
        V1.replace(b"1234", b"123456"),
        V2[:12] + b"\x11" + V2[13:],
    ):
        probe = await broker.connection()
        probe.send(header)
        await probe.closes()
