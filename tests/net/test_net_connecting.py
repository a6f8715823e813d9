"""What a session does when a connection cannot be made, or carries what it should not."""

from __future__ import annotations

import asyncio
import errno
import io
from functools import partial
from itertools import count
from typing import Any

import pytest
from net.scripted import (
    TOPIC,
    Peer,
    ScriptedBroker,
    awaited,
    build,
    command_bytes,
    connect_to,
    followed_by,
    frame_of,
    hang_up,
    nobody,
    producing,
    receipt,
    refuse_connection,
    send,
    server,
    silence,
    subscribed,
)

from pulsarctl_wire.capture import read_events
from pulsarctl_wire.capture.recording import SessionWriter
from pulsarctl_wire.errors import BrokerError, LinkClosed, RequestTimeout, SettingsError, Unreachable
from pulsarctl_wire.net.session.client import Broker, Client
from pulsarctl_wire.net.session.link import Link, open_first_link
from pulsarctl_wire.net.settings import DEFAULT_URL, Auth, Settings, parse_url
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.fields import REFRESH
from pulsarctl_wire.wire.frame import Connection, Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError


class Credentials:
    """Credentials that differ at each use; an exception among them is raised."""

    def __init__(self, *uses: bytes | SettingsError) -> None:
        self.uses = list(uses)

    def __call__(self) -> bytes:
        use = self.uses.pop(0) if len(self.uses) > 1 else self.uses[0]
        if isinstance(use, SettingsError):
            raise use
        return use


def challenge(data: bytes, method: str = "none") -> bytes:
    return build(
        "AUTH_CHALLENGE",
        server_version="scripted",
        challenge={"auth_method_name": method, "auth_data": data},
        protocol_version=21,
    )


def _bytes(answer: object) -> bytes:
    assert isinstance(answer, bytes)
    return answer


# ---- CONNECT and its answers ----


@pytest.mark.parametrize("code", ["AuthenticationError", "NotAllowedError"])
@awaited
async def test_error_before_connected(code: str) -> None:
    """An ERROR in place of CONNECTED is told at once, with the broker's own text."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.always("CONNECT", refuse_connection(code, "no such role"))
        with pytest.raises(BrokerError, match="no such role") as caught:
            await client.count_partitions(TOPIC)
        assert (caught.value.code, caught.value.request) == (code, "CONNECT")
        assert len(broker.peers) == 1


@awaited
async def test_error_before_connected_that_may_pass() -> None:
    """A broker that is not ready yet is asked again."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("CONNECT", refuse_connection("ServiceNotReady"))
        assert await client.count_partitions(TOPIC) == 0
        assert len(broker.peers) == 2


@awaited
async def test_error_before_connected_and_more() -> None:
    """What comes behind an ERROR that ends the connection is passed over."""
    async with ScriptedBroker() as broker, broker.client() as client:
        refused = refuse_connection("AuthenticationError", "no such role")
        broker.always("CONNECT", followed_by(refused, build("PING")))
        with pytest.raises(BrokerError, match="no such role"):
            await client.count_partitions(TOPIC)


@awaited
async def test_auth_challenge_at_connect() -> None:
    """An AUTH_CHALLENGE before CONNECTED is answered by an AUTH_RESPONSE; then all is as usual."""
    async with ScriptedBroker() as broker:
        broker.once("CONNECT", lambda peer, frame: challenge(b"x", "token"))
        broker.once("AUTH_RESPONSE", lambda peer, frame: build("CONNECTED", **broker.connected_as))
        async with broker.client(auth=Auth("token", lambda: b"abc")) as client:
            assert await client.count_partitions(TOPIC) == 0
        (connect,), (response,) = broker.bodies("CONNECT"), broker.bodies("AUTH_RESPONSE")
        assert (connect.auth_method_name, connect.auth_data) == ("token", b"abc")
        assert (response.response.auth_method_name, response.response.auth_data) == ("token", b"abc")


@awaited
async def test_auth_challenge_at_connect_without_credentials() -> None:
    """Who has no credentials answers a challenge by the method "none"."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("CONNECT", lambda peer, frame: challenge(b"x"))
        broker.once("AUTH_RESPONSE", lambda peer, frame: build("CONNECTED", **broker.connected_as))
        assert await client.count_partitions(TOPIC) == 0
        assert broker.bodies("AUTH_RESPONSE")[0].response.auth_method_name == "none"


@awaited
async def test_auth_challenges_without_end() -> None:
    """After ten rounds of AUTH_CHALLENGE the connection is given up."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.always("CONNECT", lambda peer, frame: challenge(b"x"))
        broker.always("AUTH_RESPONSE", lambda peer, frame: challenge(b"x"))
        with pytest.raises(Unreachable, match="more than 10 rounds of AUTH_CHALLENGE"):
            await client.count_partitions(TOPIC)
        assert 10 <= len(broker.seen("AUTH_RESPONSE")) <= 11


@awaited
async def test_auth_challenge_twice() -> None:
    """Of two AUTH_CHALLENGEs at once the second is passed over, or answered too."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("CONNECT", lambda peer, frame: challenge(b"x") + challenge(b"y"))
        broker.once("AUTH_RESPONSE", lambda peer, frame: build("CONNECTED", **broker.connected_as))
        assert await client.count_partitions(TOPIC) == 0
        assert len(broker.peers) == 1


@awaited
async def test_auth_refresh() -> None:
    """The broker's wish for fresh credentials is answered by an AUTH_RESPONSE; the connection stays."""
    async with ScriptedBroker() as broker:
        auth = Auth("token", Credentials(b"old", b"new"))
        async with broker.client(auth=auth) as client:
            await client.count_partitions(TOPIC)
            broker.peers[0].send(challenge(REFRESH, "token"))
            (response,) = await broker.saw("AUTH_RESPONSE")
            assert response.response.auth_data == b"new"
            await client.count_partitions(TOPIC)
            assert len(broker.peers) == 1


@awaited
async def test_auth_refresh_refused() -> None:
    """Credentials refused later end a producer with the broker's text: trying again would not help."""

    def refuse_and_close(peer: Peer, frame: Frame) -> None:
        peer.send(_bytes(refuse_connection("AuthenticationError", "expired")(peer, frame)))
        peer.hang_up()

    async with ScriptedBroker() as broker:
        auth = Auth("token", lambda: b"expired")
        async with broker.client(auth=auth) as client, producing(broker, client) as (producer, results):
            broker.once("SEND", silence)
            await send(producer, b"a")
            broker.always("CONNECT", refuse_connection("AuthenticationError", "expired long ago"))
            broker.once("AUTH_RESPONSE", refuse_and_close)
            broker.peers[0].send(challenge(REFRESH, "token"))
            await producer.flush()
            assert results.failed == [0]
            assert broker.warnings("AuthenticationError: expired")
            with pytest.raises(BrokerError, match="expired long ago"):
                await send(producer, b"b")


@awaited
async def test_error_without_a_request() -> None:
    """An ERROR about the connection, later on, is warned of; whether it ends the broker decides."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client) as (producer, results),
    ):
        refused = refuse_connection("UnknownError", "something is odd")
        broker.once("SEND", lambda peer, frame: _bytes(refused(peer, frame)) + receipt(frame))
        await send(producer, b"a")
        await producer.flush()
        assert results.stored == [0]
        assert broker.warnings("something is odd")
        assert len(broker.peers) == 1


@awaited
async def test_auth_refresh_without_credentials() -> None:
    """Credentials that cannot be read for a refresh end the connection, with that reason; then anew."""
    async with ScriptedBroker() as broker:
        auth = Auth("token", Credentials(b"old", SettingsError("token file t is empty"), b"new"))
        async with broker.client(auth=auth) as client, producing(broker, client) as (producer, results):
            broker.peers[0].send(challenge(REFRESH, "token"))
            await broker.saw("PRODUCER", 2)
            await send(producer, b"a")
            await producer.flush()
            assert results.stored == [0]
            assert broker.warnings("token file t is empty")


@awaited
async def test_credentials_that_cannot_be_read_for_a_while() -> None:
    """Credentials that cannot be read for a new connection are read again later; nothing is lost."""
    async with ScriptedBroker() as broker:
        auth = Auth("token", Credentials(b"old", SettingsError("token file t is empty"), b"new"))
        async with broker.client(auth=auth) as client, producing(broker, client) as (producer, results):
            broker.once("SEND", hang_up)
            await send(producer, b"a")
            await asyncio.wait_for(producer.flush(), 2)
            assert results.stored == [0]
            assert broker.bodies("CONNECT")[-1].auth_data == b"new"


@awaited
async def test_connect_never_answered() -> None:
    """Where CONNECT is never answered the error says just that, after the connect timeout."""
    async with ScriptedBroker() as broker, broker.client(connect_timeout=0.1) as client:
        broker.always("CONNECT", silence)
        with pytest.raises(RequestTimeout, match=r"CONNECT was not answered by CONNECTED within 0\.1 s"):
            await client.count_partitions(TOPIC)
        await broker.until(lambda: not broker.peers[0].is_open)


@awaited
async def test_connected_no_max_size() -> None:
    """CONNECTED without a largest size leaves it at five MiB."""
    async with ScriptedBroker(max_message_size=None) as broker, broker.client() as client:
        link = await client.open_service_link()
        assert link.protocol.max_message_size == 5 * 1024 * 1024
        async with producing(broker, client) as (producer, results):
            await send(producer, bytes(5 * 1024 * 1024))
            await producer.flush()
            assert results.stored == [0]


@awaited
async def test_connected_no_version() -> None:
    """A broker that names no protocol version gets all but PINGs."""
    async with (
        ScriptedBroker(protocol_version=None) as broker,
        broker.client(keep_alive=0.01) as client,
        producing(broker, client) as (producer, results),
    ):
        await send(producer, b"a")
        await producer.flush()
        await asyncio.sleep(0.05)  # in which a PING would have gone
        assert results.stored == [0]
        assert not broker.seen("PING")


# ---- PING and PONG ----


@awaited
async def test_missing_pong() -> None:
    """A PING that nothing follows until the next is due ends the connection; another one is made."""
    async with (
        ScriptedBroker() as broker,
        broker.client(keep_alive=0.1) as client,
        producing(broker, client) as (producer, results),
    ):
        broker.once("PING", silence)
        await broker.saw("PRODUCER", 2)
        assert broker.warnings("PING was not answered by PONG within 0.1 s")
        await send(producer, b"a")
        await producer.flush()
        assert results.stored == [0]
        assert not broker.peers[0].is_open


@awaited
async def test_anything_counts_as_pong() -> None:
    """Whatever comes shows that the broker lives: a missing PONG alone ends no connection."""
    async with ScriptedBroker() as broker, broker.client(keep_alive=0.1) as client:
        broker.always("PING", lambda peer, frame: build("SUCCESS", request_id=4711))
        await client.open_service_link()
        await broker.saw("PING", 3)
        assert len(broker.peers) == 1


@awaited
async def test_ping_of_the_broker() -> None:
    """The broker's PING is answered by PONG."""
    async with ScriptedBroker() as broker, broker.client() as client:
        await client.open_service_link()
        broker.peers[0].send(build("PING"), build("PING"))
        await broker.saw("PONG", 2)


@awaited
async def test_ping_measured() -> None:
    """A PING of the user's tells its round trip, or that no PONG came, or that the connection ended."""
    async with ScriptedBroker() as broker, broker.client() as client:
        link = await client.open_service_link()
        assert await link.ping(10) > 0
        broker.once("PING", silence, hang_up)
        with pytest.raises(RequestTimeout, match="PING was not answered"):
            await link.ping(0.05)
        with pytest.raises(LinkClosed, match="the broker closed the connection"):
            await link.ping(10)


# ---- Frames that are odd, and bytes that are none ----


@awaited
async def test_trailing_bytes() -> None:
    """Bytes behind a command, within its frame, are passed over with a warning."""

    def longer(peer: object, frame: Any) -> bytes:
        name = {"request_id": frame.body.request_id, "producer_name": "p"}
        return frame_of(command_bytes("PRODUCER_SUCCESS", **name), bytes(4))

    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("PRODUCER", longer)
        async with producing(broker, client) as (producer, results):
            await send(producer, b"a")
            await producer.flush()
            assert results.stored == [0]
        assert broker.warnings("PRODUCER_SUCCESS: 4 bytes after the command") == 1
        assert len(broker.peers) == 1


@awaited
async def test_unknown_command() -> None:
    """A command nobody knows is passed over with a warning, and the connection stays."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client) as (producer, results),
    ):
        broker.peers[0].send(frame_of(b"\x08\xe7\x07"))  # type 999
        await broker.warned("UNKNOWN(999), an unknown command, was ignored")
        await send(producer, b"a")
        await producer.flush()
        assert results.stored == [0]
        assert len(broker.peers) == 1


@awaited
async def test_command_without_its_fields() -> None:
    """A command whose sub-message is missing is passed over."""
    async with ScriptedBroker() as broker, broker.client() as client:
        await client.open_service_link()
        kinds = (3, 7, 8, 9, 13, 14, 15, 16, 17, 22, 24, 26, 30, 35, 36, 68)
        broker.peers[0].send(*(frame_of(bytes([8, kind])) for kind in kinds), build("PING"))
        await broker.saw("PONG")
        assert len(broker.peers) == 1


@awaited
async def test_unknown_field() -> None:
    """A field nobody knows is passed over."""

    def newer(peer: object, frame: Any) -> bytes:
        inner = b"\x08" + bytes([frame.body.request_id]) + b"\x12\x01p" + b"\xd0\x05\x01"  # field 90
        return frame_of(b"\x08\x11\x8a\x01" + bytes([len(inner)]) + inner)

    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("PRODUCER", newer)
        async with producing(broker, client) as (producer, results):
            await send(producer, b"a")
            await producer.flush()
            assert results.stored == [0]
            assert producer.queue.name == "p"


@awaited
async def test_unknown_request_ids() -> None:
    """Answers to requests that were never made are passed over."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client) as (producer, results),
    ):
        broker.peers[0].send(
            build("SUCCESS", request_id=4711),
            build("PRODUCER_SUCCESS", request_id=4712, producer_name="x"),
            build("ERROR", request_id=4713, error=ServerError.UnknownError, message="no"),
            build("ACK_RESPONSE", consumer_id=99, request_id=4714),
        )
        await send(producer, b"a")
        await producer.flush()
        assert results.stored == [0]
        assert len(broker.peers) == 1


LOOKUP = build_command("LOOKUP", topic=TOPIC, authoritative=False)
PLAUSIBLE = command_bytes("PRODUCER_SUCCESS", request_id=1, producer_name="p")


@pytest.mark.parametrize("total", [6 << 20, 100 << 20], ids=["6 MiB", "100 MiB"])
@awaited
async def test_oversize_header(total: int) -> None:
    """A frame that says it is larger than the limit ends the connection at once; another one is made."""
    async with ScriptedBroker() as broker, broker.client() as client:
        link = await client.open_service_link()
        broker.once("LOOKUP", lambda peer, frame: frame_of(PLAUSIBLE, total=total))
        with pytest.raises(LinkClosed, match="over the limit"):
            await link.request(LOOKUP, timeout=1)
        assert await client.count_partitions(TOPIC) == 0
        assert len(broker.peers) == 2


@pytest.mark.parametrize("data", [bytes(64), b"no frame at all, " * 4], ids=["zeros", "text"])
@awaited
async def test_bytes_that_are_no_frame(data: bytes) -> None:
    """Bytes that are no frame end the connection at once, and the reason is said; another one is made."""
    async with ScriptedBroker() as broker, broker.client() as client:
        link = await client.open_service_link()
        broker.once("LOOKUP", lambda peer, frame: data)
        with pytest.raises(LinkClosed, match="the broker sent bytes that are not a frame"):
            await link.request(LOOKUP, timeout=1)
        assert await client.count_partitions(TOPIC) == 0
        assert len(broker.peers) == 2


@awaited
async def test_bytes_that_are_no_frame_before_the_end() -> None:
    """Bytes that are no frame, and then the end of the connection: nothing is lost."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client) as (producer, results),
    ):

        def babble(peer: Any, frame: object) -> None:
            peer.send(b"no frame at all, " * 4)
            peer.hang_up()

        broker.once("SEND", babble)
        await send(producer, b"a")
        await producer.flush()
        assert results.stored == [0]
        assert broker.warnings("the broker sent bytes that are not a frame")


# ---- Servers of other kinds, and none ----


@awaited
async def test_server_that_closes_without_a_word() -> None:
    """A server that closes behind CONNECT may be one that wants TLS: the error says so."""

    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)

    async with (
        server(closing) as place,
        ScriptedBroker() as broker,
        broker.client(f"pulsar://{place}") as client,
    ):
        with pytest.raises(Unreachable, match=r"without answering CONNECT; .*pulsar\+ssl://"):
            await client.count_partitions(TOPIC)


@awaited
async def test_server_that_closes_at_once() -> None:
    """A server that closes before it has read anything is no way either: the next host is tried."""

    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pass

    async with (
        server(closing) as place,
        ScriptedBroker() as broker,
        broker.client(f"pulsar://{place},{broker.address}", timeout=1) as client,
    ):
        assert await client.count_partitions(TOPIC) == 0
        assert len(broker.peers) == 1


@pytest.mark.parametrize(
    "stays",
    [
        False,
        pytest.param(True),
    ],
    ids=["closes", "stays"],
)
@awaited
async def test_http_server(stays: bool) -> None:
    """A server that speaks HTTP is told as such."""
    done = asyncio.Event()

    async def refusing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        if stays:
            await done.wait()

    async with (
        server(refusing) as place,
        ScriptedBroker() as broker,
        broker.client(f"pulsar://{place}", connect_timeout=1) as client,
    ):
        try:
            with pytest.raises(Unreachable, match="it speaks HTTP, not Pulsar's protocol"):
                await client.count_partitions(TOPIC)
        finally:
            done.set()


@awaited
async def test_tls_where_there_is_none() -> None:
    """TLS towards a port without it is told as such, with the URL that would do."""

    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)

    async with (
        server(closing) as place,
        ScriptedBroker() as broker,
        broker.client(f"pulsar+ssl://{place}") as client,
    ):
        with pytest.raises(Unreachable, match=r"no TLS there .*pulsar://"):
            await client.count_partitions(TOPIC)


@awaited
async def test_first_host_is_dead() -> None:
    """The hosts of a service URL are tried in turn, and one that served is asked first from then on."""
    with nobody() as place:
        async with ScriptedBroker() as broker, broker.client(f"pulsar://{place},{broker.address}") as client:
            assert await client.count_partitions(TOPIC) == 0
            assert await client.count_partitions(TOPIC) == 0
            assert len(broker.peers) == 1


class _Opened:
    """A tap that remembers the numbers of connections, and records them as a capture."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.file = io.BytesIO()
        self._writer = SessionWriter(self.file)
        self.carried, self.closed = self._writer.carried, self._writer.closed

    def opened(self, connection: Connection, time_ns: int) -> None:
        self.numbers.append(connection.index)
        self._writer.opened(connection, time_ns)

    def changed(self, connection: Connection, to_broker: bool, change: str) -> None:
        raise AssertionError("clients have no faults")


@awaited
async def test_numbers_are_the_same_in_tap_and_record_where_a_host_is_dead() -> None:
    """A connection that could not be made has no number: a capture does not have it either."""
    tap = _Opened()
    with nobody() as place:
        async with ScriptedBroker() as broker, ScriptedBroker() as owner:
            settings = Settings(parse_url(f"pulsar://{place},{broker.address}"))
            broker.once("LOOKUP", connect_to(owner))
            async with Client(settings, tap=tap) as client:
                await (await client.open_link(await client.lookup(TOPIC))).request(
                    build_command("PRODUCER", topic=TOPIC, producer_id=1)
                )
            connect = partial(Link.open, settings=settings, numbers=count(2), tap=tap)
            link = await open_first_link(settings.url.addresses, settings, connect)
            await link.close()
    tap.file.seek(0)
    assert tap.numbers == [0, 1, 2]
    recorded = {event.connection.index: event.connection.server for event in read_events(tap.file)}
    assert recorded == {0: str(broker.address), 1: str(owner.address), 2: str(broker.address)}


@awaited
async def test_all_hosts_are_dead() -> None:
    """Where no host of the URL can be reached the error names them all."""
    with nobody() as one, nobody() as other:
        async with ScriptedBroker() as broker, broker.client(f"pulsar://{one},{other}") as client:
            with pytest.raises(Unreachable, match=f"{one}: refused; {other}: refused .*another: --url"):
                await client.count_partitions(TOPIC)


HINTS = {
    "pulsar://127.0.0.1:PORT": "; pwire broker --port PORT starts one",
    "pulsar+ssl://127.0.0.1:PORT": "",
    "pulsar://127.0.0.1:PORT,127.0.0.1:PORT": "",
    "pulsar://127.0.0.2:PORT": "",
}


@pytest.mark.parametrize("url", HINTS)
@awaited
async def test_nobody_listens_on_this_machine(url: str) -> None:
    """Where nobody listens on this machine, the error says how to start a broker."""
    with nobody() as one:
        port = one.partition(":")[2]
        tried, hint = (text.replace("PORT", port) for text in (url, HINTS[url]))
        async with Client(Settings(parse_url(tried))) as client:
            with pytest.raises(Unreachable) as raised:
                await client.count_partitions(TOPIC)
    assert str(raised.value).endswith(f": refused (tried {tried}; another: --url{hint})")


@awaited
async def test_nobody_listens_at_the_default_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with several addresses is refused by all of them, and the default port needs no option."""
    texts = [
        f"[Errno {errno.ECONNREFUSED}] Connect call failed ({each!r}, 6650)" for each in ("::1", "127.0.0.1")
    ]

    async def refuse(*_: object, **__: object) -> None:
        raise OSError(f"Multiple exceptions: {', '.join(texts)}")

    async with Client(Settings(parse_url(DEFAULT_URL))) as client:
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", refuse, raising=False)
        with pytest.raises(Unreachable) as raised:
            await client.count_partitions(TOPIC)
    url = f"tried {DEFAULT_URL}; another: --url; pwire broker starts one"
    assert str(raised.value) == f"localhost:6650: refused ({url})"


@awaited
async def test_link_without_handshake() -> None:
    """Without a handshake nothing is sent but what the user sends."""
    async with ScriptedBroker() as broker, broker.client() as client:
        link = await Link.open(broker.address, client.settings, handshake=False)
        link.send(build("PING"))
        await broker.saw("PING")
        await link.close()
        assert broker.peers[0].commands == ["PING"]


@awaited
async def test_one_connection_for_all() -> None:
    """Producers and consumers of one broker share a connection."""
    async with ScriptedBroker() as broker, broker.client() as client:
        await asyncio.gather(*(client.open_link(Broker(broker.address)) for _ in range(5)))
        async with producing(broker, client), subscribed(client):
            assert len(broker.peers) == 1
