"""TLS on either side, on both, and on neither: what goes through is the same, and nobody unproven gets in."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from net.relayed import CLOSE, End, Seen, Stream, Trust, Upstream, plan_for, running, tls_server, turns
from net.scripted import HOST, ScriptedBroker, build, connect_to, producing, run, send

from pulsarctl_wire.net.proxy.proxy import Proxy
from pulsarctl_wire.net.proxy.relay import CHUNK
from pulsarctl_wire.net.proxy.routing import Routing
from pulsarctl_wire.net.settings import Address
from pulsarctl_wire.wire.framing.proxy_header import build_header

FRAME = build("PING")
ANSWER = build("PONG")
PULSES = 8


@pytest.fixture(scope="module")
def trust(tmp_path_factory: pytest.TempPathFactory) -> Trust:
    return Trust.make(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Trust:
    """A CA that nobody trusts."""
    return Trust.make(tmp_path_factory.mktemp("stranger"))


@asynccontextmanager
async def between(
    trust: Trust, inside: bool, outside: bool, **plan: Any
) -> AsyncIterator[tuple[Stream, Stream, Proxy, Seen]]:
    """A client and a broker, with TLS before the proxy (`inside`) and behind it (`outside`)."""
    plan |= {"tls": trust.server} if inside else {}
    settings = {"tls_ca": str(trust.ca)} if outside else None
    async with tls_server(trust.server if outside else None) as (upstream, came):
        given = plan_for(upstream, secure=outside, settings=settings, **plan)
        async with running(given) as (proxy, at, seen):
            client = await Stream.connect(at, trust.client() if inside else None)
            broker = await came.get()
            try:
                yield client, broker, proxy, seen
            finally:
                await client.close()
                await broker.close()


SIDES = pytest.mark.parametrize(
    ("inside", "outside"),
    [
        pytest.param(True, False, id="clients"),
        pytest.param(False, True, id="brokers"),
        pytest.param(True, True, id="both"),
        pytest.param(False, False, id="none"),
    ],
)


@SIDES
def test_each_frame_goes_on_at_once(trust: Trust, inside: bool, outside: bool) -> None:
    async def test() -> None:
        async with between(trust, inside, outside) as (client, broker, _, seen):
            for count in (1, 3, 2, 5):  # in whatever rhythm
                for source, target, frame in ((client, broker, FRAME), (broker, client, ANSWER)):
                    for _ in range(count):
                        await source.send(frame)
                        assert await target.receive(len(frame)) == frame
            assert seen.bytes == {True: FRAME * 11, False: ANSWER * 11}

    run(test(), 5)


@SIDES
def test_much_goes_both_ways_at_once(trust: Trust, inside: bool, outside: bool) -> None:
    data = {True: FRAME * 300_000, False: bytes(4 << 20)}

    async def test() -> None:
        async with between(trust, inside, outside) as (client, broker, _, _):
            got = await asyncio.gather(
                broker.receive(len(data[True])),
                client.receive(len(data[False])),
                client.send(data[True]),
                broker.send(data[False]),
            )
            assert list(got[:2]) == [data[True], data[False]]

    run(test(), 5)


@SIDES
def test_an_end_of_either_side_ends_the_other(trust: Trust, inside: bool, outside: bool) -> None:
    async def test() -> None:
        for by_client in (True, False):
            async with between(trust, inside, outside) as (client, broker, proxy, seen):
                first, second = (client, broker) if by_client else (broker, client)
                await first.send(FRAME)
                await first.close()
                assert await second.rest() == FRAME
                await second.close()
                await seen.until(lambda: seen.ended)
                assert not proxy.relays

    run(test(), 5)


@pytest.mark.parametrize(("inside", "outside"), [(True, False), (True, True)], ids=["clients", "both"])
def test_who_reads_nothing_stops_who_sends(trust: Trust, inside: bool, outside: bool) -> None:
    """Both ends read nothing for a while; what waits in the proxy is bounded, and all arrives."""

    async def test() -> None:
        async with between(trust, inside, outside) as (client, broker, proxy, _):
            pieces, size = 512, 65_536

            async def pour() -> None:
                for number in range(pieces):
                    await broker.send(bytes([number % 256]) * size)

            sending = asyncio.create_task(pour())
            await turns(2000)
            (relay,) = proxy.relays
            assert not sending.done()
            assert sum(leg.transport.get_write_buffer_size() for leg in relay.legs) <= 2 * CHUNK
            for number in range(pieces):
                assert await client.receive(size) == bytes([number % 256]) * size
            await sending

    run(test(), 5)


@SIDES
def test_a_session_of_ours(trust: Trust, inside: bool, outside: bool) -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker, tls_server(trust.server) as (edge, came):
            bridging = asyncio.create_task(bridge(came, broker.address))
            upstream = edge if outside else broker.address
            plan = plan_for(
                upstream,
                secure=outside,
                settings={"tls_ca": str(trust.ca)},
                dials={broker.address: edge} if outside else {},
                **({"tls": trust.server} if inside else {}),
            )
            try:
                async with running(plan) as (_, at, seen):
                    url = f"pulsar{'+ssl' if inside else ''}://{at}"
                    settings = {"tls_ca": str(trust.ca)} if inside else {}
                    async with (
                        broker.client(url, **settings) as client,
                        producing(broker, client) as (producer, results),
                    ):
                        await send(producer, *(b"%d" % number for number in range(PULSES)))
                        await broker.until(lambda: len(results.stored) == PULSES)
                    assert not [note for note in seen.notes if "no connection" in note]
            finally:
                bridging.cancel()

    run(test(), 5)


def test_a_broker_that_clients_name_by_its_tls_address(trust: Trust) -> None:
    """It has a plain one too, with another port, and that is the one that is dialled."""

    async def test() -> None:
        async with ScriptedBroker() as broker:
            broker.always("LOOKUP", connect_to(brokerServiceUrlTls="pulsar+ssl://127.0.0.1:6651"))
            plan = plan_for(broker.address, routing=Routing.CONNECT, tls=trust.server)
            async with running(plan) as (_, at, seen):
                url, settings = f"pulsar+ssl://{at}", {"tls_ca": str(trust.ca), "timeout": 0.5}
                async with broker.client(url, **settings) as client, producing(broker, client):
                    assert broker.seen("PRODUCER")
                assert not seen.notes

    run(test(), 5)


async def bridge(came: asyncio.Queue[Stream], address: Address) -> None:
    """Hand what comes by TLS on to a broker without."""

    async def copy(source: Stream, target: Stream) -> None:
        with suppress(OSError):
            while data := await source.reader.read(65_536):
                await target.send(data)
            await target.close()

    ends, copying = [], []
    try:
        while True:
            near = await came.get()
            far = await Stream.connect(address, None)
            ends.append(far)
            copying += [asyncio.create_task(copy(near, far)), asyncio.create_task(copy(far, near))]
    finally:
        for task in copying:
            task.cancel()
        await asyncio.gather(*copying, return_exceptions=True)
        for end in ends:
            await end.close()


# ---- Who is not believed ----


def test_a_broker_whose_certificate_is_not_trusted(trust: Trust, stranger: Trust) -> None:
    async def test() -> None:
        async with tls_server(stranger.server) as (upstream, _):
            plan = plan_for(upstream, secure=True, settings={"tls_ca": str(trust.ca)})
            async with running(plan) as (proxy, at, seen), await End.connect(at) as client:
                assert await client.was_reset()
                (note,) = seen.notes
                assert note.startswith(f"connection 0: no connection to the broker: {upstream}: ")
                assert "its certificate is not trusted: " in note
                await turns()
                assert not proxy.relays

    run(test())


def test_a_broker_with_a_certificate_for_another_host(trust: Trust) -> None:
    async def test() -> None:
        async with tls_server(trust.server) as (upstream, came):
            name = Address("elsewhere.invalid", 6651)
            plan = plan_for(name, secure=True, settings={"tls_ca": str(trust.ca)}, dials={name: upstream})
            async with running(plan) as (_, at, seen), await End.connect(at) as client:
                assert await client.was_reset()
                assert "its certificate is not trusted: " in seen.notes[0]
            lax = plan_for(
                name,
                secure=True,
                settings={"tls_ca": str(trust.ca), "tls_hostname_check": False},
                dials={name: upstream},
            )
            async with running(lax) as (_, at, seen), await End.connect(at) as client:
                await client.send(FRAME)
                broker = await came.get()
                assert await broker.receive(len(FRAME)) == FRAME

    run(test())


def test_a_broker_that_is_not_verified_if_so_wished(trust: Trust, stranger: Trust) -> None:
    async def test() -> None:
        async with tls_server(stranger.server) as (upstream, came):
            plan = plan_for(upstream, secure=True, settings={"tls_allow_insecure": True})
            async with running(plan) as (_, at, _seen), await End.connect(at) as client:
                await client.send(FRAME)
                broker = await came.get()
                assert await broker.receive(len(FRAME)) == FRAME

    run(test())


def test_a_broker_that_speaks_no_tls(trust: Trust) -> None:
    async def test() -> None:
        async with Upstream() as upstream:
            plan = plan_for(upstream.address, secure=True, settings={"tls_ca": str(trust.ca)})
            async with (
                running(plan) as (_, at, seen),
                await End.connect(at) as client,
                await upstream.accept() as broker,
            ):
                await broker.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                assert await client.was_reset()
                assert "no TLS there" in seen.notes[0]

    run(test())


def test_a_broker_that_closes_where_tls_is_spoken(trust: Trust) -> None:
    """As Pulsar's does on its plain port."""

    async def test() -> None:
        async with Upstream() as upstream:
            plan = plan_for(upstream.address, secure=True, settings={"tls_ca": str(trust.ca)})
            async with running(plan) as (_, at, seen), await End.connect(at) as client:
                (await upstream.accept()).close()
                assert await client.was_reset()
                (note,) = seen.notes
                assert note.endswith(
                    f"{upstream.address}: closed during the TLS handshake; is this a port without TLS?"
                )

    run(test())


def test_a_client_that_speaks_no_tls(trust: Trust) -> None:
    async def test() -> None:
        async with (
            Upstream() as upstream,
            running(plan_for(upstream.address, tls=trust.server)) as (proxy, at, seen),
        ):
            async with await End.connect(at) as client:
                await client.send(build("CONNECT", client_version="plain"))
                with suppress(ConnectionResetError):
                    await client.rest()
                await seen.noted(
                    f"a connection from {client.name} failed: the client does not speak TLS; its URL must"
                )
            assert not proxy.relays
            assert not seen.open

    run(test())


def test_a_client_that_does_not_trust_us(trust: Trust, stranger: Trust) -> None:
    async def test() -> None:
        async with (
            Upstream() as upstream,
            running(plan_for(upstream.address, tls=trust.server)) as (_, at, seen),
        ):
            with pytest.raises(ssl.SSLCertVerificationError):
                await Stream.connect(at, stranger.client())
            await seen.noted("a connection from ")

    run(test())


def test_a_handshake_that_does_not_come(trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsarctl_wire.net.listener._WAIT", 0.05)

    async def test() -> None:
        async with (
            Upstream() as upstream,
            running(plan_for(upstream.address, tls=trust.server)) as (_, at, seen),
            await End.connect(at) as client,
        ):
            with suppress(ConnectionResetError):
                assert await client.rest() == b""
            await seen.noted("a connection from ")

    run(test())


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A certificate that clients show, with its key: it is its own CA."""
    now, key = datetime.now(timezone.utc), ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a client")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now - timedelta(days=1))
    certificate = builder.not_valid_after(now + timedelta(days=1)).sign(key, SHA256())
    path = tmp_path_factory.mktemp("client") / "client.pem"
    lock = NoEncryption()
    path.write_bytes(
        certificate.public_bytes(Encoding.PEM) + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock)
    )
    return str(path)


def test_clients_show_certificates_where_they_are_asked_for(tmp_path: Path, ours: str) -> None:
    demanding = Trust.make(tmp_path / "ca", Path(ours))
    server, ca = demanding.server, demanding.ca

    async def listening() -> None:
        async with Upstream() as upstream, running(plan_for(upstream.address, tls=server)) as (_, at, seen):
            context = ssl.create_default_context(cafile=ca)
            with suppress(OSError):
                stream = await Stream.connect(at, context)
                await stream.rest()
                await stream.close()
            await seen.noted("failed: the client sent no certificate, and --client-ca asks for one")
            context.load_cert_chain(ours)
            stream = await Stream.connect(at, context)
            async with await upstream.accept() as broker:
                await stream.send(FRAME)
                assert await broker.receive(len(FRAME)) == FRAME
                await stream.close()

    async def dialling() -> None:
        async with tls_server(server) as (upstream, came):
            plan = plan_for(upstream, secure=True, settings={"tls_ca": str(ca), "tls_cert": ours})
            async with running(plan) as (_, at, _seen), await End.connect(at) as client:
                await client.send(FRAME)
                broker = await came.get()
                assert await broker.receive(len(FRAME)) == FRAME

    run(listening(), 5)
    run(dialling(), 5)


# ---- What goes with it ----


@pytest.mark.parametrize("version", [1, 2])
def test_a_proxy_header_goes_before_tls(trust: Trust, version: int) -> None:
    """Into the proxy in the clear; out of it as the first bytes inside."""
    header = build_header(version, ("192.0.2.7", 1234), ("192.0.2.1", 6650))

    async def test() -> None:
        async with Upstream() as upstream:
            plan = plan_for(upstream.address, tls=trust.server, header_in=True, header_out=version)
            async with running(plan) as (_, at, seen):
                end = await End.connect(at)
                await end.send(header)
                await turns()
                loop = asyncio.get_running_loop()
                reader = asyncio.StreamReader()
                transport, protocol = await loop.create_connection(
                    lambda: asyncio.StreamReaderProtocol(reader),
                    sock=end.sock,
                    ssl=trust.client(),
                    server_hostname=HOST,
                )
                client = Stream(reader, asyncio.StreamWriter(transport, protocol, reader, loop))
                await client.send(FRAME)
                async with await upstream.accept() as broker:
                    expected = build_header(version, ("192.0.2.7", 1234), broker.name) + FRAME
                    assert await broker.receive(len(expected)) == expected
                assert seen.open[0].client == "192.0.2.7:1234"
                await client.close()

    run(test(), 5)


def test_keys_are_logged_for_both_sides(trust: Trust, tmp_path: Path) -> None:
    own = Trust.make(tmp_path / "ca")  # a context keeps its key log
    log = tmp_path / "keys"

    async def test() -> None:
        async with tls_server(own.server) as (upstream, came):
            listening = Trust.make(tmp_path / "ca").server
            listening.keylog_filename = str(log)
            settings = {"tls_ca": str(own.ca), "keylog": str(log)}
            plan = plan_for(upstream, secure=True, settings=settings, tls=listening)
            async with running(plan) as (_, at, _seen):
                client = await Stream.connect(at, own.client())
                await client.send(FRAME)
                await (await came.get()).receive(len(FRAME))
                await client.close()

    run(test(), 5)
    lines = [line.split() for line in log.read_text().splitlines() if not line.startswith("#")]
    assert {label for label, *_ in lines} >= {"CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0"}
    assert len({random for _, random, _ in lines}) == 2  # of two handshakes


def test_the_end_of_the_proxy_is_told_to_those_with_tls(trust: Trust) -> None:
    async def test() -> None:
        async with between(trust, True, False) as (client, _, proxy, seen):
            await proxy.close(CLOSE)
            assert [number for number, _ in seen.ended] == [0]
            assert not proxy.relays
            assert await client.rest() == b""

    run(test(), 5)
