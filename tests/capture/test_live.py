"""Packets of a live interface: the loopback one, where capturing is permitted."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from scapy.config import conf
from segments import PING, PONG, frames_of

from pulsarctl_wire.capture import Decoder
from pulsarctl_wire.capture.files import RawPacket
from pulsarctl_wire.capture.live import live_packets
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.wire.frame import Event, Frame

ROUNDS = 500
"""Connections made until their traffic shows."""


class Waiting(Exception):
    """The interface is open, and there is no packet."""


def wait() -> None:
    raise Waiting


@pytest.fixture(scope="module")
def loopback() -> str:
    """The loopback interface; skips the test where it cannot be captured."""
    name = str(conf.loopback_name)
    packets = live_packets(name, before_wait=wait)
    try:
        while True:
            next(packets)
    except Waiting:
        return name
    except CaptureError as error:
        pytest.skip(f"capturing is not possible here: {error}")


class Talk:
    """A client and a broker that say PING and PONG on a new connection whenever they are called."""

    def __init__(self, family: socket.AddressFamily, address: str) -> None:
        self.listener = socket.create_server((address, 0), family=family)
        self.port = self.listener.getsockname()[1]
        self.rounds = 0

    def __call__(self) -> None:
        self.rounds += 1
        assert self.rounds <= ROUNDS, "the interface shows nothing of what was said"
        with socket.create_connection(self.listener.getsockname()[:2]) as client:
            broker, _ = self.listener.accept()
            with broker:
                client.sendall(PING)
                assert broker.recv(len(PING), socket.MSG_WAITALL) == PING
                broker.sendall(PONG)
                assert client.recv(len(PONG), socket.MSG_WAITALL) == PONG


@pytest.fixture(params=[(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")], ids=["IPv4", "IPv6"])
def talk(request: pytest.FixtureRequest) -> Iterator[Talk]:
    try:
        made = Talk(*request.param)
    except OSError as error:
        pytest.skip(f"no such address here: {error}")
    with made.listener:
        yield made


def frames_on(packets: Iterator[RawPacket], port: int, count: int) -> list[Frame]:
    """The first frames of connections to `port`."""
    found: list[Frame] = []
    for events in Decoder().read_packets(packets):
        found += [frame for frame in frames_of(events) if frame.connection.server.endswith(f":{port}")]
        if len(found) >= count:
            break
    return found[:count]


def test_frames_on_the_loopback_interface(loopback: str, talk: Talk) -> None:
    packets = live_packets(loopback, before_wait=talk)
    try:
        frames = frames_on(packets, talk.port, 4)
    finally:
        packets.close()  # type: ignore[attr-defined]
    assert [(frame.to_broker, frame.raw) for frame in frames] == [(True, PING), (False, PONG)] * 2
    assert [frame.offset for frame in frames] == [0] * 4
    times = [frame.time_ns or 0 for frame in frames]
    assert times == sorted(times)
    assert times[0] > 1_600_000_000 * 10**9  # ns since the epoch


def test_every_packet_shows_once(loopback: str, talk: Talk) -> None:
    packets = live_packets(loopback, before_wait=talk)
    seen: list[RawPacket] = []
    events: list[Event] = []

    def kept() -> Iterator[RawPacket]:
        for packet in packets:
            if talk.port.to_bytes(2, "big") in packet[2][34:60]:
                seen.append(packet)
            yield packet

    try:
        for batch in Decoder().read_packets(kept()):
            events += batch
            if len(frames_of(events)) >= 4:
                break
    finally:
        packets.close()  # type: ignore[attr-defined]
    pings = [packet[2] for packet in seen if packet[2].endswith(PING)]
    assert len(pings) >= 2
    assert len(set(pings)) == len(pings)
    assert all(len(data) == length for _, _, data, length in seen)


def test_capture_filter(loopback: str, talk: Talk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def talk_twice() -> None:
            talk()
            with socket.create_connection(other.getsockname()) as client:
                client.sendall(PING)
                other.accept()[0].close()

        packets = live_packets(loopback, f"tcp port {talk.port}", talk_twice)
        try:
            seen = [next(packets) for _ in range(20)]
        except CaptureError as error:
            pytest.skip(f"filters do not work here: {error}")
        finally:
            packets.close()  # type: ignore[attr-defined]
    assert all(talk.port.to_bytes(2, "big") in data[34:60] for _, _, data, _ in seen)


def test_filter_that_is_none(loopback: str) -> None:
    packets = live_packets(loopback, "no such filter ((", wait)
    with pytest.raises(CaptureError, match=f"interface {loopback}: ") as caught:
        next(packets)
    assert "\n" not in str(caught.value)


def test_unknown_interface() -> None:
    with pytest.raises(CaptureError, match="interface nonsense0: there is no such interface") as caught:
        next(live_packets("nonsense0", before_wait=wait))
    assert str(conf.loopback_name) in str(caught.value)


def test_nothing_is_opened_before_the_first_packet_is_asked_for() -> None:
    packets = live_packets("nonsense0", before_wait=wait)
    packets.close()  # type: ignore[attr-defined]
    assert list(packets) == []


def test_without_the_right_to_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(conf, "L2socket", refuse)
    monkeypatch.setattr(conf, "L2listen", refuse)
    with pytest.raises(CaptureError, match="needs the right to capture"):
        next(live_packets(str(conf.loopback_name), before_wait=wait))


def test_interface_names() -> None:
    code = "from pulsarctl_wire.capture.live import interface_names; print(*interface_names(), sep='\\n')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert str(conf.loopback_name) in run.stdout.splitlines()
