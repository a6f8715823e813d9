"""A PROXY header before the first frame."""

from __future__ import annotations

from pulsarctl_wire.checks.requirement import OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import equal
from pulsarctl_wire.conformance.basics.target import Target

_V1 = b"PROXY TCP4 10.0.0.1 10.0.0.2 1234 6650\r\n"

# signature, version and command, TCP over IPv4, size of the rest, addresses, ports
_V2 = bytes.fromhex("0d0a0d0a000d0a515549540a 21 11 000c 0a000001 0a000002 04d2 19fa")


@case(SHOULD, needs=("haproxy",))
async def v1(broker: Target) -> None:
    """The line 'PROXY TCP4 10.0.0.1 10.0.0.2 1234 6650', then CONNECT, SUBSCRIBE and CONSUMER_STATS.

    Expected: CONNECTED; SUBSCRIBE works.

    Source: PIP-60; OptionalProxyProtocolDecoder.
    """
    topic = broker.topic()
    probe = await broker.open_connection()
    probe.send(_V1)
    await probe.connect()
    await probe.subscribe(topic)
    await probe.request("CONSUMER_STATS", "CONSUMER_STATS_RESPONSE", consumer_id=1)


@case(SHOULD, needs=("haproxy",))
async def v2(broker: Target) -> None:
    """A binary PROXY header of version 2 (TCP4, 12 bytes of addresses), then CONNECT.

    Expected: CONNECTED.

    Source: PIP-60; OptionalProxyProtocolDecoder.
    """
    probe = await broker.open_connection()
    probe.send(_V2)
    await probe.connect()


@case(SHOULD, needs=("haproxy",))
async def optional(broker: Target) -> None:
    """CONNECT without a PROXY header.

    Expected: CONNECTED.

    Source: PIP-60; OptionalProxyProtocolDecoder.
    """
    await broker.connect()


@case(OBSERVED, needs=("haproxy",))
async def address_told(broker: Target) -> None:
    """Header for 10.0.0.1:1234; SUBSCRIBE; CONSUMER_STATS.

    Expected: address=10.0.0.1:1234, without the slash that others have.

    Source: Broker: ServerCnx.clientSourceAddressAndPort.
    """
    topic, probe = broker.topic(), await broker.open_connection()
    probe.send(_V1)
    await probe.connect()
    await probe.subscribe(topic)
    body = await probe.request("CONSUMER_STATS", "CONSUMER_STATS_RESPONSE", consumer_id=1)
    equal(body.address, "10.0.0.1:1234", "address")


@case(OBSERVED, needs=("haproxy",))
async def malformed(broker: Target) -> None:
    """Headers with an address of 10.0.0.300, a port of 123456, a version 1 of the binary form.

    Expected: No frame; the broker closes the connection.

    Source: OptionalProxyProtocolDecoder.
    """
    for header in (
        _V1.replace(b"10.0.0.1", b"10.0.0.300"),
        _V1.replace(b"1234", b"123456"),
        _V2[:12] + b"\x11" + _V2[13:],
    ):
        probe = await broker.open_connection()
        probe.send(header)
        await probe.expect_close()
