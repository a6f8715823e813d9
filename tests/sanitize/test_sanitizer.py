"""Sanitized captures: nothing is left of what was replaced, and everything else is as it was."""

import io
import ipaddress
import struct
import zlib
from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c
from segments import START_NS, Tcp, build, captured, conversation, ethernet, ipv4, send

from pulsarctl_wire.capture.compression import reader
from pulsarctl_wire.capture.files import RawPacket, read_packets
from pulsarctl_wire.capture.links import RAW_IP
from pulsarctl_wire.capture.secrets import may_have_secrets
from pulsarctl_wire.capture.sources import peel
from pulsarctl_wire.sanitize import check, sanitizer, streams
from pulsarctl_wire.sanitize.names import Kind
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.payload import open_entry
from pulsarctl_wire.wire.PulsarApi_pb2 import MessageMetadata
from sanitize.sanitized import decode, describe, examine, pcapng, sanitize, search

SAMPLES = Path(__file__).parents[2] / "samples" / "pcaps"
NAMES = sorted(path.name for path in SAMPLES.glob("*.pcap*") if not may_have_secrets(str(path)))
TLS = SAMPLES.parent / "tls" / "tls13.pcapng"
SMALL = [name for name in NAMES if (SAMPLES / name).stat().st_size < 30_000]


def packets_of(capture: bytes) -> list[RawPacket]:
    stream, head = peel(io.BytesIO(capture))
    return list(read_packets(head, reader(stream)))


def read(name: str) -> bytes:
    return (SAMPLES / name).read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_samples_say_the_same_without_names(name: str) -> None:
    capture = read(name)
    copy, made, originals = sanitize(capture)
    assert describe(copy) == describe(capture)
    assert examine(copy) == examine(capture)
    assert search(copy, originals) == []
    assert (made.cut_short, made.payloads.unfit) == (0, 0)
    for before, after in zip(packets_of(capture), packets_of(copy), strict=True):
        assert (before[0], len(before[2]), before[3]) == (after[0], len(after[2]), after[3])


def test_tls_that_secrets_open_is_written_in_the_clear() -> None:
    capture = TLS.read_bytes()
    copy, made, originals = sanitize(capture, opens_tls=True)
    before, after = (
        [
            (
                event.type,
                event.number,
                event.packet,
                event.time_ns,
                event.offset,
                event.size,
                event.latency_ns,
            )
            for event in decode(data)[0]
            if isinstance(event, Frame)
        ]
        for data in (capture, copy)
    )
    assert len(before) > 30
    assert after == before
    assert examine(copy) == examine(capture)
    assert search(copy, originals) == []
    assert b"CLIENT_RANDOM" not in copy
    assert len(packets_of(copy)) == len(packets_of(capture))
    assert made.cut_short == 0


def test_tls_that_stays_closed_keeps_its_records() -> None:
    """Without the block of secrets; the hold of a connection that may be opened ends with it."""
    capture = pcapng(packets_of(TLS.read_bytes()))
    for opens_tls in (False, True):
        copy, _, originals = sanitize(capture, opens_tls=opens_tls)
        assert describe(copy) == describe(capture)
        assert examine(copy) == examine(capture)
        assert search(copy, originals) == []
        heads = [[packet[2][66:71] for packet in packets_of(data)] for data in (capture, copy)]
        assert all(after == before for before, after in zip(*heads, strict=True) if before[1:2] == b"\3")


def test_checksums_of_tcp_stay_right_or_wrong() -> None:
    """Those of the samples, which were captured before the network card filled them in, and right ones."""
    right = pcapng(_with_checksums(packets_of(read("java-simple.pcap"))))
    for capture in (right, read("ipv6.pcap")):
        copy = sanitize(capture)[0]
        assert list(map(_sum_up, packets_of(copy))) == list(map(_sum_up, packets_of(capture)))


def _sum_up(packet: RawPacket) -> bool:
    """Whether the TCP checksum of an Ethernet packet is right."""
    data = packet[2]
    at, addresses = (34, data[26:34]) if data[14] == 0x45 else (54, data[22:54])
    tcp = data[at:]
    words = addresses + struct.pack(">HH", 6, len(tcp)) + tcp + bytes(len(tcp) % 2)
    return bool(sum(struct.unpack(f">{len(words) // 2}H", words)) % 0xFFFF == 0)


def _with_checksums(packets: list[RawPacket]) -> list[RawPacket]:
    fixed = []
    for time_ns, link, data, length in packets:
        start = data[:50] + bytes(2) + data[52:]
        words = start[26:34] + struct.pack(">HH", 6, len(start) - 34) + start[34:] + bytes(len(start) % 2)
        total = -sum(struct.unpack(f">{len(words) // 2}H", words)) % 0xFFFF
        fixed.append((time_ns, link, start[:50] + total.to_bytes(2, "big") + start[52:], length))
    assert all(map(_sum_up, fixed))
    return fixed


def test_wrong_checksums_of_entries_are_wrong_in_the_same_way() -> None:
    frame = send(b"a payload of some length")
    at = frame.index(b"\x0e\x01") + 2
    entry = frame[at + 4 :]
    wrong = {
        "byte order": crc32c(entry).to_bytes(4, "little"),
        "crc32": zlib.crc32(entry).to_bytes(4, "big"),
        "zero": bytes(4),
        "without the size": crc32c(entry[4:]).to_bytes(4, "big"),
        "not inverted": (crc32c(entry) ^ 0xFFFFFFFF).to_bytes(4, "big"),
    }
    flipped = frame[:-3] + bytes([frame[-3] ^ 4]) + frame[-2:]
    frames = [frame, *(frame[:at] + checksum + entry for checksum in wrong.values()), flipped]
    tcp = Tcp()
    capture = pcapng(captured([*tcp.handshake(), *tcp.say((True, raw) for raw in frames)]))
    copies = [event.raw for event in decode(sanitize(capture)[0])[0] if isinstance(event, Frame)]
    right, *others, flip = ((raw[at : at + 4], raw[at + 4 :]) for raw in copies)
    assert right[0] == crc32c(right[1]).to_bytes(4, "big")
    assert [checksum for checksum, _ in others] == [
        crc32c(others[0][1]).to_bytes(4, "little"),
        zlib.crc32(others[1][1]).to_bytes(4, "big"),
        bytes(4),
        crc32c(others[3][1][4:]).to_bytes(4, "big"),
        (crc32c(others[4][1]) ^ 0xFFFFFFFF).to_bytes(4, "big"),
    ]
    again = flip[1][:-3] + bytes([flip[1][-3] ^ 4]) + flip[1][-2:]
    assert flip[0] == crc32c(again).to_bytes(4, "big")


def test_repeated_and_overlapping_packets_get_the_same_bytes() -> None:
    tcp = Tcp()
    segments = [*tcp.handshake(), *tcp.say(conversation([b"a payload " * 30]), most=100)]
    doubled = [segment for segment in segments for _ in range(2)]
    halves = [
        (key, sequence + 20, acknowledged, flags, payload[20:], missing)
        for key, sequence, acknowledged, flags, payload, missing in segments
        if len(payload) > 40
    ]
    capture = pcapng(captured([*doubled, *halves]))
    copy = sanitize(capture)[0]
    assert describe(copy) == describe(capture)
    payloads = [data[54:] for _, _, data, _ in packets_of(copy)]
    assert all(payloads[index] == payloads[index + 1] for index in range(0, len(doubled), 2))
    assert all(any(payload in first for first in payloads) for payload in payloads[len(doubled) :])


def test_packets_out_of_order_cut_or_lost() -> None:
    tcp = Tcp()
    segments = [*tcp.handshake(), *tcp.say(conversation([b"a payload " * 50] * 4), most=200)]
    order = [*range(3), *range(len(segments) - 1, 2, -1)]
    late = pcapng(captured([segments[index] for index in order]))
    lost = pcapng(captured(segments[:6] + segments[9:]))
    cut = pcapng([(time, link, data[:150], length) for time, link, data, length in captured(segments)])
    for capture in (late, lost, cut):
        copy, _, originals = sanitize(capture)
        assert describe(copy) == describe(capture)
        assert search(copy, originals) == []


def _in_vxlan(packet: bytes) -> bytes:
    udp = (
        struct.pack(">HHHH", 50_000, 4789, 16 + len(packet), 0) + struct.pack(">II", 1 << 27, 7 << 8) + packet
    )
    ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0) + b"\xac\x10\0\1\xac\x10\0\2"
    return bytes(range(12)) + b"\x08\x00" + ip + udp


def test_tunnels_keep_their_headers() -> None:
    segments = Tcp().whole(conversation())
    capture = pcapng(
        [(START_NS, 1, _in_vxlan(ethernet(segment)), 50 + len(ethernet(segment))) for segment in segments]
    )
    copy = sanitize(capture)[0]
    assert describe(copy) == describe(capture)
    for before, after in zip(packets_of(capture), packets_of(copy), strict=True):
        assert after[2][34:50] == before[2][34:50]  # the headers of UDP and VXLAN
        assert after[2][26:34] != before[2][26:34]
        assert after[2][50:62] != before[2][50:62]


def test_a_segment_in_fragments_is_written_as_one_packet() -> None:
    segments = Tcp().whole(conversation([b"a payload " * 30]))
    packets = []
    for segment in segments:
        data = ipv4(segment)
        if len(segment[4]) < 200:
            packets.append((START_NS, RAW_IP, data, len(data)))
            continue
        for at, more in ((0, 0x2000), (160, 0)):
            part = data[20 + at : 20 + 160 if more else None]
            head = data[:2] + struct.pack(">HHH", 20 + len(part), 7, more | at // 8) + data[8:20]
            packets.append((START_NS, RAW_IP, head + part, 20 + len(part)))
    capture = pcapng(packets)
    copy, _, originals = sanitize(capture)
    assert describe(copy) == describe(capture)
    assert search(copy, originals) == []


def test_packets_without_tcp_keep_their_headers_only() -> None:
    udp = bytes(range(12)) + b"\x08\x00" + struct.pack(">BBHHHBBH", 0x45, 0, 60, 0, 0, 64, 17, 0)
    udp += (
        b"\x0a\0\0\1\x0a\0\0\2"
        + struct.pack(">HHHH", 50_000, 53, 40, 0xABCD)
        + b"a secret question".ljust(32)
    )
    others = [
        (START_NS, 1, udp, len(udp)),
        (START_NS, 1, b"\xff" * 12 + b"\x08\x06" + b"arp" * 9, 41),
        (START_NS, 147, b"own", 3),
    ]
    capture = pcapng([*others, *captured(Tcp().whole(conversation()))])
    copy, made, _ = sanitize(capture)
    assert made.blanked == 3
    assert describe(copy) == describe(capture)
    after = packets_of(copy)
    assert after[0][2][42:] == bytes(len(udp) - 42)
    assert after[0][2][34:38] == udp[34:38]
    assert after[1][2] == b"\xff" * 12 + b"\x08\x06" + bytes(27)
    assert after[2][1:3] == (147, bytes(3))


def test_the_same_seed_gives_the_same_copy() -> None:
    capture = read("java-simple.pcap")
    assert sanitize(capture)[0] == sanitize(capture)[0]
    assert sanitize(capture)[0] != sanitize(capture, b"2")[0]


def test_the_check_finds_what_is_left() -> None:
    capture = read("java-batch-zlib.pcap")
    copy, _, originals = sanitize(capture)
    found = search(capture, originals)
    assert {leftover.kind for leftover in found} >= {Kind.TOPICS, Kind.SUBSCRIPTIONS, Kind.KEYS}
    index = next(index for index, packet in enumerate(packets_of(copy)) if len(packet[2]) > 100)
    packets = packets_of(copy)
    time_ns, link, data, length = packets[index]
    packets[index] = time_ns, link, data[:80] + b"zipper" + data[86:], length
    originals.add(Kind.NAMES, b"zipper", b"bcdfgh")
    assert [(leftover.text, leftover.packet) for leftover in search(pcapng(packets), originals)] == [
        (b"zipper", index + 1)
    ]


def test_long_payloads_that_are_kept_are_no_leftovers() -> None:
    capture = read("java-keyvalue-protobuf.pcap")
    copy, _, originals = sanitize(capture, keep=frozenset({Kind.PAYLOADS}))
    assert Kind.PAYLOADS not in {leftover.kind for leftover in search(copy, originals)}


def test_the_check_opens_what_is_compressed() -> None:
    capture = read("java-batch-zlib.pcap")
    texts = [
        message.metadata.partition_key
        for event in decode(capture)[0]
        if isinstance(event, Frame) and event.metadata is not None and event.metadata.compression
        for message in open_entry(event).messages
    ]
    originals = check.Originals()
    originals.add(Kind.KEYS, next(text for text in texts if len(text) > 4).encode(), b"?")
    assert search(capture, originals)


@pytest.mark.parametrize("seed", range(12))
def test_mutants_give_a_capture_of_the_same_packets(seed: int) -> None:
    random = Random(seed)
    packets = packets_of(read(random.choice(SMALL)))
    changed = []
    for time_ns, link, data, length in packets:
        out = bytearray(data)
        while random.random() < 0.2 and len(out) > 30:
            out[random.randrange(12, len(out))] = random.randrange(256)
        if random.random() < 0.95:
            changed.append((time_ns, link, bytes(out[: random.choice([len(out)] * 20 + [60, 90])]), length))
    copy, _, originals = sanitize(pcapng(changed))
    assert [(packet[0], packet[3]) for packet in packets_of(copy)] == [
        (packet[0], packet[3]) for packet in changed
    ]
    assert search(copy, originals) == []


# -- bounds


def test_too_many_packets_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitizer, "MAX_WAITING", 50_000)
    tcp = Tcp()
    large = build(
        "SEND",
        MessageMetadata(producer_name="p", sequence_id=1, publish_time=1),
        b"secret " * 30_000,
        producer_id=1,
        sequence_id=1,
    )
    capture = pcapng(captured([*tcp.handshake(), *tcp.say([(True, large)])]))
    copy, made, _ = sanitize(capture)
    assert 0 < made.cut_short < len(packets_of(copy))
    assert b"secret" not in copy


def test_too_many_bytes_to_be_repeated() -> None:
    history = streams.History(limit=10_000)
    kept: list[object] = []

    class Stream:
        def __init__(self) -> None:
            self.starts: list[int] = []
            self.spans: dict[int, bytes] = {}

        def forget(self) -> None:
            kept.append(self)

    stream = Stream()
    for number in range(20):
        history.add(stream, number * 1000, bytes(1000))  # type: ignore[arg-type]
    assert len(kept) == 12


def test_too_many_texts_to_be_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "MAX_TEXTS", 2)
    originals = check.Originals()
    added = [originals.add(Kind.KEYS, b"key-%d" % number, b"?") for number in range(4)]
    assert added == [True, True, False, False]
    assert originals.unchecked == 2


def test_lookups_over_http_stay_lookups() -> None:
    def web(start: bytes, body: bytes = b"") -> bytes:
        head = b"Host: broker-1.acme.example:8080\r\nAuthorization: Bearer abc.defg.hijk\r\n"
        return start + b"\r\n" + head + b"Content-Length: %d\r\n\r\n" % len(body) + body

    topic = b"persistent/acme/shop/orders-partition-3"
    answer = b'{"brokerUrl":"pulsar://10.0.0.2:6650","nativeUrl":"pulsar://broker-1.acme.example:6650"}'
    turns = [
        (True, web(b"GET /admin/v2/%b/partitions?checkAllowAutoCreation=true HTTP/1.1" % topic)),
        (False, web(b"HTTP/1.1 200 OK", b'{"partitions":4,"deleted":false}')),
        (True, web(b"GET /lookup/v2/topic/%b?authoritative=false&token=12345 HTTP/1.1" % topic)),
        (False, web(b"HTTP/1.1 200 OK", answer)),
        (True, web(b"GET /lookup/v2/topic/persistent/acme/shop/caf%C3%A9 HTTP/1.1")),
        (False, web(b"HTTP/1.1 404 Not Found", b'{"reason":"Topic not found"}')),
    ]
    tcp = Tcp(server=("10.0.0.2", 8080))
    capture = pcapng(captured(tcp.whole(turns)))
    copy, _, originals = sanitize(capture)
    calls = [
        [(event.kind, event.status, event.size, event.packet, event.latency_ns) for event in decode(data)[0]]  # type: ignore[union-attr]
        for data in (capture, copy)
    ]
    assert len(calls[0]) == 6
    assert calls[0] == calls[1]
    address = ipaddress.ip_address(packets_of(copy)[0][2][30:34])
    assert b"pulsar://%b:6650" % str(address).encode() in copy
    assert search(copy, originals) == []
    assert not any(secret in copy for secret in (b"acme", b"orders", b"hijk", b"12345"))


def test_a_frame_that_never_ends_holds_others_up_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitizer, "MAX_WAITING", 50_000)
    stalled, other = Tcp(), Tcp(client=("10.0.0.3", 50_001))
    begun = send(b"a payload that is cut" * 10)[:-30]
    segments = [*stalled.handshake(), *stalled.say([(True, begun)])]
    segments += other.whole(conversation([b"a payload of some length"] * 200))
    capture = pcapng(captured(segments))
    copy, made, originals = sanitize(capture)
    assert made.cut_short == 1
    assert describe(copy) == describe(capture)
    assert search(copy, originals) == []
