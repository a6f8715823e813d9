"""`pwire proxy` before a broker: official clients stay behind it, bytes pass unchanged, records agree."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import ssl
import subprocess
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from interop.brokers import Broker, Unavailable
from interop.credentials import Certificates, make_certificates
from interop.processes import HOST
from interop.running import PATIENCE
from interop.sessions import Alone, Client, Clients, Proxy
from interop.test_cluster import admin

from pulsarctl_wire.wire.frame import build_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata

if TYPE_CHECKING:
    from interop.conftest import Pwire

WAYS = {"listeners": [], "through": ["--through"]}

COUNT = 200
SESSIONS: dict[str, dict[str, object]] = {
    "alone": {"consumers": 1},
    "batched": {"consumers": 1, "batching": True},
    "partitioned": {"consumers": 2, "type": "Shared"},
    "key-shared": {"consumers": 2, "type": "Key_Shared", "keys": 20, "batching": True},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", SESSIONS)
def test_sessions(broker: Broker, topic: str, pwire: Pwire, clients: Clients, kind: str, way: str) -> None:
    """All is done that without it would be, by both clients at once, and nobody else talks to the broker."""
    asked = {"produce": COUNT, "consume": COUNT, **SESSIONS[kind]}
    with Proxy(pwire, broker.url, *WAYS[way]) as proxy, Alone(broker, proxy) as alone:
        alone.until_seen()
        for name, client in clients.items():
            if kind == "partitioned":
                broker.rest("PUT", f"{admin(topic)}-{name}/partitions", 4)
            client.ask(proxy.url, f"{topic}-{name}", **asked)
        for client in clients.values():
            check_session(client.answer(), kind)
        assert proxy.interrupt() == 0, proxy.said


def check_session(said: dict[str, Any], kind: str) -> None:
    """Every message was sent, and came, to each consumer some."""
    assert said["sent"] == [None] * COUNT
    received = [{text for text, _ in messages} for messages in said["received"]]
    assert sorted(map(int, set().union(*received))) == list(range(COUNT))
    assert all(received)
    if kind == "key-shared":
        keys = [{key for _, key in messages} for messages in said["received"]]
        assert not keys[0] & keys[1]


# -- byte for byte

SIZE = 64 * 1024 * 1024
SIDES = {"plain": (False, False), "tls-in": (True, False), "tls-out": (False, True), "tls": (True, True)}
"""Whether clients, and the broker, speak TLS."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates_in(tmp_path_factory.mktemp("certificates"))


def make_certificates_in(folder: Path) -> Certificates:
    """Certificates of a server; skips without openssl."""
    try:
        return make_certificates(folder)
    except Unavailable as reason:
        pytest.skip(str(reason))


def tls_options(certificates: Certificates, incoming: bool, outgoing: bool) -> list[object]:
    """Options of the proxy for TLS with clients, and with the broker."""
    options: list[object] = []
    if incoming:
        options += ["--listen-cert", certificates.server_cert, "--listen-key", certificates.server_key]
    if outgoing:
        options += ["--tls-ca", certificates.ca]
    return options


def entries(number: int) -> bytes:
    """Bytes that are frames, SEND or MESSAGE, of all sizes up to a megabyte; and at the end none."""
    random = Random(number)
    parts, size = [], 0
    while size < SIZE:
        length = random.choice([0, 10, 1_000, 70_000, 1_000_000])
        command = BaseCommand(type=BaseCommand.SEND if number else BaseCommand.MESSAGE)
        if number:
            command.send.producer_id, command.send.sequence_id = 1, size
        else:
            command.message.consumer_id = 1
            command.message.message_id.ledgerId, command.message.message_id.entryId = 1, size
        metadata = MessageMetadata(producer_name="p", sequence_id=size, publish_time=1)
        parts.append(build_frame(command, metadata, random.randbytes(length)))
        size += len(parts[-1])
    return b"".join(parts) + random.randbytes(100_000)


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes, size: int) -> str:
    """Send `data` while `size` bytes are read; the SHA-256 of what was read."""

    async def send() -> None:
        for start in range(0, len(data), 1 << 20):
            writer.write(data[start : start + (1 << 20)])
            await writer.drain()

    sending = asyncio.create_task(send())
    digest, left = sha256(), size
    while left and (more := await reader.read(1 << 18)):
        digest.update(more)
        left -= len(more)
    await sending
    return digest.hexdigest()


@pytest.mark.parametrize(("incoming", "outgoing"), SIDES.values(), ids=list(SIDES))
def test_bytes(
    pwire: Pwire, certificates: Certificates, incoming: bool, outgoing: bool, tmp_path: Path
) -> None:
    """What one side sends is what the other one gets, both ways at once, tapped and recorded."""
    sent = {True: entries(1), False: entries(0)}  # by "to the broker"
    got: dict[bool, asyncio.Future[str]] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got[True].set_result(await exchange(reader, writer, sent[False], len(sent[True])))
        writer.close()

    async def run() -> tuple[str, str]:
        got[True] = asyncio.get_running_loop().create_future()
        context = None
        if outgoing:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(certificates.server_cert, certificates.server_key)
        trust = ssl.create_default_context(cafile=certificates.ca) if incoming else None
        server = await asyncio.start_server(serve, HOST, 0, ssl=context)
        url = f"pulsar{'+ssl' if outgoing else ''}://{HOST}:{server.sockets[0].getsockname()[1]}"
        options = [*tls_options(certificates, incoming, outgoing), "--tap", "--record", tmp_path / "record"]
        with await asyncio.to_thread(Proxy, pwire, url, *options) as proxy:
            reader, writer = await asyncio.open_connection(HOST, proxy.port, ssl=trust)
            received = await exchange(reader, writer, sent[True], len(sent[False]))
            found = await got[True]
            writer.close()
            assert await asyncio.to_thread(proxy.interrupt) == 0, proxy.said
        server.close()
        return found, received

    found, received = asyncio.run(asyncio.wait_for(run(), PATIENCE))
    assert (found, received) == (sha256(sent[True]).hexdigest(), sha256(sent[False]).hexdigest())


@pytest.mark.parametrize(("incoming", "outgoing"), SIDES.values(), ids=list(SIDES))
def test_payloads(
    secure: Broker, topic: str, pwire: Pwire, clients: Clients, incoming: bool, outgoing: bool
) -> None:
    """Clients with tokens, by TLS on either side."""
    url = secure.url_tls if outgoing else secure.url
    asked: dict[str, object] = {"produce": 100, "consumers": 1, "consume": 100, "size": 200_000}
    asked["token"] = secure.tokens["client"]
    if incoming:
        asked["trust"] = str(secure.tls.ca)
    with (
        Proxy(pwire, url, *tls_options(secure.tls, incoming, outgoing)) as proxy,
        Alone(secure, proxy),
    ):
        assert proxy.url.startswith("pulsar+ssl://") is incoming
        for name, client in clients.items():
            client.ask(proxy.url, f"{topic}-{name}", **asked)
        for client in clients.values():
            said = client.answer()
            assert said["sent"] == [None] * 100
            assert [text for text, _ in said["received"][0]] == [str(number) for number in range(100)]
        assert proxy.interrupt() == 0, proxy.said


def test_a_certificate_by_pwire_itself(
    broker: Broker, topic: str, pwire: Pwire, client: Client, tmp_path: Path
) -> None:
    """Clients trust the CA that it makes and keeps."""
    for _ in range(2):
        with Proxy(pwire, broker.url, "--tls", "--ca-dir", tmp_path) as proxy:
            proxy.says("clients have to trust ")
            (trust,) = re.findall(r"clients have to trust (.*)", proxy.said)
            asked = {"produce": 3, "consumers": 1, "consume": 3, "trust": trust}
            said = client.run(proxy.url, topic, **asked)
            assert proxy.interrupt() == 0, proxy.said
        assert [text for text, _ in said["received"][0]] == ["0", "1", "2"]


# -- what is recorded


def decoded(pwire: Pwire, files: list[Path]) -> list[dict[str, Any]]:
    """The frames that `pwire decode` finds."""
    done = pwire("decode", "-o", "json", *files, url="")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def by_connection(frames: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Frames by the client's address, without what depends on other connections, and times."""
    found: dict[str, list[dict[str, Any]]] = {}
    for frame in frames:
        kept = {name: value for name, value in frame.items() if name not in DEPENDENT}
        found.setdefault(frame["client"], []).append(kept)
    return found


WRONG = "tcp.analysis.flags || ip.checksum.status != 1 || tcp.checksum.status != 1"
CHECKS = ["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"]
DEPENDENT = {"number", "packet", "wireshark", "file", "connection", "request", "latency_ns", "time_ns"}


@pytest.mark.parametrize("rotation", [[], ["--rotate-size", "20kB"]], ids=["one", "rotated"])
def test_records(
    broker: Broker, topic: str, pwire: Pwire, clients: Clients, tmp_path: Path, rotation: list[str]
) -> None:
    """Other tools read the files; `pwire decode` finds the frames in them that the tap showed."""
    path = tmp_path / "record.pcapng"
    with Proxy(pwire, broker.url, "--tap", "-o", "json", "--record", path, *rotation) as proxy:
        for kind in ("batched", "key-shared"):
            for name, client in clients.items():
                asked = {"produce": COUNT, "consume": COUNT, **SESSIONS[kind]}
                client.ask(proxy.url, f"{topic}-{kind}-{name}", **asked)
        for client in (*clients.values(), *clients.values()):
            assert client.answer()["sent"] == [None] * COUNT
        assert proxy.interrupt() == 0, proxy.said
    assert "fell behind" not in proxy.said
    files = sorted(tmp_path.glob("record*"))
    assert (len(files) > 2) is bool(rotation)
    frames = proxy.frames()
    assert by_connection(decoded(pwire, files)) == by_connection(frames)
    assert len({frame["client"] for frame in frames}) == 10
    if shutil.which("tshark"):
        for file in files:
            command = ["tshark", "-r", str(file), *CHECKS, "-Y", WRONG]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert (done.returncode, done.stdout) == (0, "")
            assert not [line for line in done.stderr.splitlines() if not line.startswith("Running as user")]


# -- a tap that nobody reads


def test_a_reader_that_stops(broker: Broker, topic: str, pwire: Pwire, client: Client) -> None:
    """The client is not held up; what could not be shown is counted, to the frame."""
    count = 20_000
    with Proxy(pwire, broker.url, "--tap", "-o", "json") as proxy:

        def accounted() -> int:
            said = re.findall(r"tap fell behind: (\d+) frames not shown$", proxy.said, re.MULTILINE)
            return len(proxy.out) + sum(map(int, said))

        with proxy.unread():
            said = client.run(proxy.url, topic, produce=count)
            proxy.says("tap fell behind: ")
        proxy.until(lambda: accounted() >= 2 * count)
        client.run(proxy.url, topic, produce=1)  # is shown again
        assert proxy.interrupt() == 0, proxy.said
    assert said["sent"] == [None] * count
    (missed,) = re.findall(r"tap fell behind: (\d+) frames not shown in total", proxy.said)
    shown = proxy.frames()
    assert shown[-1]["number"] == len(shown) + int(missed)
    assert len({frame["number"] for frame in shown}) == len(shown)
