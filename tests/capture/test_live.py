"""Packets of live interfaces: the loopback one, where capturing is permitted, and some of our own."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from scapy.config import conf
from segments import PING, PONG, Tcp, conversation, frames_of, ipv4
from tap import TUN, Tap, own_interface, tap

from pulsarctl_wire.capture import Decoder, ring
from pulsarctl_wire.capture.files import RawPacket
from pulsarctl_wire.capture.links import RAW_IP
from pulsarctl_wire.capture.live import Live, interface_names
from pulsarctl_wire.capture.packets import SYN, Dissector
from pulsarctl_wire.errors import CaptureError, DamagedCapture
from pulsarctl_wire.wire.frame import Frame

__all__ = ["tap"]

ROUNDS = 500
"""Connections made until their traffic shows."""


@pytest.fixture(scope="module")
def loopback() -> str:
    """The loopback interface; skips the test where it cannot be captured."""
    name = str(conf.loopback_name)
    try:
        Live(name).close()
    except CaptureError as error:
        pytest.skip(f"capturing is not possible here: {error}")
    return name


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


def frames_on(live: Live, port: int, count: int) -> list[Frame]:
    """The first frames of connections to `port`."""
    found: list[Frame] = []
    with closing(live):
        for events in Decoder().read_packets(live):
            found += [frame for frame in frames_of(events) if frame.connection.server.endswith(f":{port}")]
            if len(found) >= count:
                break
    return found[:count]


def at_once() -> bool:
    """It is over: what has come is read, and nothing more."""
    return True


# ---- The loopback interface ----


def test_frames_on_the_loopback_interface(loopback: str, talk: Talk) -> None:
    frames = frames_on(Live(loopback, before_wait=talk), talk.port, 4)
    assert [(frame.to_broker, frame.raw) for frame in frames] == [(True, PING), (False, PONG)] * 2
    assert [frame.offset for frame in frames] == [0] * 4
    times = [frame.time_ns or 0 for frame in frames]
    assert times == sorted(times)
    assert times[0] > 1_600_000_000 * 10**9  # ns since the epoch


def test_frames_by_scapy(loopback: str, talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on other systems than Linux."""
    monkeypatch.setattr(sys, "platform", "darwin")
    live = Live(loopback, before_wait=talk)
    assert live.dropped is None
    frames = frames_on(live, talk.port, 2)
    assert [(frame.to_broker, frame.raw) for frame in frames] == [(True, PING), (False, PONG)]
    assert live.received


def test_every_packet_shows_once(loopback: str, talk: Talk) -> None:
    with closing(Live(loopback, is_over=at_once)) as live:
        for _ in range(5):
            talk()
        seen = [packet for packet in live if talk.port.to_bytes(2, "big") in packet[2][34:60]]
    pings = [packet[2] for packet in seen if packet[2].endswith(PING)]
    assert len(pings) == len(set(pings)) == 5
    assert all(len(data) == length for _, _, data, length in seen)


def filtered(interface: str, capture_filter: str) -> Live:
    """An interface with a filter; skips the test where there is no libpcap."""
    try:
        return Live(interface, capture_filter, is_over=at_once)
    except CaptureError as error:
        pytest.skip(f"filters do not work here: {error}")


def test_capture_filter(loopback: str, talk: Talk) -> None:
    with closing(filtered(loopback, f"tcp port {talk.port}")) as live:
        with socket.create_server(("127.0.0.1", 0)) as other:
            talk()
            with socket.create_connection(other.getsockname()) as client:
                client.sendall(PING)
                other.accept()[0].close()
        seen = list(live)
    assert len(seen) >= 8
    assert live.received == len(seen)
    for _, _, data, _ in seen:
        ip = 20 if data[12:14] == b"\x08\x00" else 40
        assert talk.port in struct.unpack_from(">HH", data, 14 + ip)


def carried(live: Live, data: bytes) -> list[RawPacket]:
    """The packets of a connection by which `data` went, in one write."""
    with closing(live), socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(server.getsockname()) as client:
            broker, _ = server.accept()
            with broker, ThreadPoolExecutor(1) as pool:
                arrived = pool.submit(broker.recv, len(data), socket.MSG_WAITALL)
                client.sendall(data)
                assert arrived.result() == data
        return [each for each in live if struct.unpack_from(">H", each[2], 36)[0] == port]


@pytest.mark.parametrize("capture_filter", [None, "tcp"])
def test_large_segments_are_whole(loopback: str, capture_filter: str | None) -> None:
    """A filter does not cut them either."""
    data = bytes(range(256)) * 8192
    live = Live(loopback, is_over=at_once) if capture_filter is None else filtered(loopback, capture_filter)
    packets = carried(live, data)
    assert max(len(packet[2]) for packet in packets) > 65_535
    assert all(len(packet[2]) == packet[3] for packet in packets)
    assert live.dropped == 0
    segments = [Dissector().segment(link, seen, size) for _, link, seen, size in packets]
    sent = [(sequence, flags, payload) for _, sequence, _, flags, payload, _ in filter(None, segments)]
    first = next(sequence for sequence, flags, _ in sent if flags & SYN) + 1
    seen = bytearray(len(data))
    for sequence, _, payload in sent:  # several processors may have them in another order
        if payload:
            at = (sequence - first) % 2**32
            seen[at : at + len(payload)] = payload
    assert seen == data


def test_a_packet_larger_than_a_block_is_cut(loopback: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "BLOCK", 16_384)
    packets = carried(Live(loopback, is_over=at_once), bytes(1_000_000))
    assert max(len(packet[2]) for packet in packets) < 16_384 < max(packet[3] for packet in packets)


# ---- An interface of our own ----


def packet(number: int, size: int = 1000) -> bytes:
    """A frame of Ethernet that no protocol claims."""
    return b"\xff" * 6 + bytes(6) + b"\x88\xb5" + number.to_bytes(4, "big") * (size // 4)


def test_what_came_before_the_end_is_given(tap: Tap) -> None:
    with closing(Live(tap.name, is_over=at_once)) as live:
        for number in range(2000):
            tap.arrive(packet(number))
        assert [data for _, _, data, _ in live] == [packet(number) for number in range(2000)]
    assert (live.received, live.dropped) == (2000, 0)


def test_what_is_dropped_is_counted_and_said(tap: Tap) -> None:
    said: list[int] = []
    with closing(Live(tap.name, buffer=1, is_over=at_once, on_drop=said.append)) as live:
        for number in range(5000):
            tap.arrive(packet(number))
        given = [data for _, _, data, _ in live]
    assert live.received == 5000
    assert live.dropped == 5000 - len(given) > 3000
    assert given == [packet(number) for number in range(len(given))]
    assert said == [live.dropped]


def test_reading_on_after_packets_were_dropped(tap: Tap) -> None:
    waits = 0

    def arrive() -> None:
        nonlocal waits
        waits += 1
        for number in range(2000):
            tap.arrive(packet(number))

    with closing(Live(tap.name, buffer=1, is_over=lambda: waits == 3, before_wait=arrive)) as live:
        count = sum(1 for _ in live)
    assert live.dropped
    assert count + live.dropped == live.received == 3 * 2000  # what arrives at the end is left out


@pytest.mark.parametrize("kind", [0x8100, 0x88A8])
def test_a_vlan_tag_is_put_back(tap: Tap, kind: int) -> None:
    plain = packet(7)
    tagged = plain[:12] + struct.pack(">HH", kind, 5 << 13 | 42) + plain[12:]
    with closing(Live(tap.name, is_over=at_once)) as live:
        tap.arrive(tagged)
        tap.arrive(plain)
        assert [(link, data, size) for _, link, data, size in live] == [
            (1, tagged, len(tagged)),
            (1, plain, len(plain)),
        ]


def test_an_interface_without_link_header() -> None:
    segment = Tcp().whole(conversation())[3]
    with own_interface(TUN) as tun, closing(Live(tun.name, is_over=at_once)) as live:
        tun.arrive(ipv4(segment))
        ((_, link, data, size),) = live
    assert (link, data, size) == (RAW_IP, ipv4(segment), len(data))


def test_a_filter_without_link_header() -> None:
    segments = Tcp().whole(conversation())
    with own_interface(TUN) as tun, closing(filtered(tun.name, "tcp[tcpflags] & tcp-syn != 0")) as live:
        for segment in segments:
            tun.arrive(ipv4(segment))
        assert [data for _, _, data, _ in live] == [ipv4(segment) for segment in segments[:2]]


def test_an_interface_that_goes_away(tap: Tap) -> None:
    with closing(Live(tap.name)) as live:
        for number in range(10):
            tap.arrive(packet(number))
        tap.close()
        packets = iter(live)
        assert [next(packets)[2] for _ in range(10)] == [packet(number) for number in range(10)]
        with pytest.raises(DamagedCapture, match=f"interface {tap.name}: Network is down"):
            next(packets)


# ---- What cannot be opened ----


def test_filter_that_is_none(loopback: str) -> None:
    with pytest.raises(CaptureError, match=f"interface {loopback}: ") as caught:
        Live(loopback, "no such filter ((")
    assert "\n" not in str(caught.value)


def test_unknown_interface() -> None:
    with pytest.raises(CaptureError, match="interface nonsense0: there is no such interface") as caught:
        Live("nonsense0")
    assert str(conf.loopback_name) in str(caught.value)


def test_a_buffer_that_no_machine_has(loopback: str) -> None:
    reason = f"interface {loopback}: not enough memory for a buffer of {2**60} bytes"
    with pytest.raises(CaptureError, match=reason):
        Live(loopback, buffer=2**60)


def test_without_the_right_to_capture() -> None:
    code = (
        "import os, sys\n"
        "from pulsarctl_wire.capture import live, ring\n"
        "if os.geteuid() == 0: os.setuid(65534)\n"
        "try: live.Live(sys.argv[1])\n"
        "except live.CaptureError as error: print(error)"
    )
    command = [sys.executable, "-c", code, str(conf.loopback_name)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "needs the right to capture" in run.stdout


def test_interface_names() -> None:
    assert str(conf.loopback_name) in interface_names()
