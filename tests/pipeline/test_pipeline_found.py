"""Captures that once had other rows in splits than in one piece: each file here is a split."""

from __future__ import annotations

from pathlib import Path

import pytest
from pipeline.comparing import alone, first_difference, together_in_memory
from segments import (
    PING,
    PONG,
    Tcp,
    build,
    captured,
    conversation,
    enhanced,
    interface,
    option,
    pcap,
    receipt,
    section,
    statistics,
)

from pulsarctl_wire.capture.halves import Tcp as Connection
from pulsarctl_wire.capture.packets import ACK, SYN, Segment
from pulsarctl_wire.capture.reassembly import LINGER
from pulsarctl_wire.pipeline.decoding import decode
from pulsarctl_wire.pipeline.decoding.edges import Edge, Kept, Options
from pulsarctl_wire.pipeline.files import splits


@pytest.fixture(autouse=True)
def _each_file_is_a_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "MAX_GROUP", 1)


def check(directory: Path, *parts: list[Segment], options: Options | None = None) -> None:
    options = options or Options()
    packets = captured([segment for part in parts for segment in part])
    paths, at = [], 0
    for number, part in enumerate(parts):
        path = directory / f"{number}.pcap"
        path.write_bytes(pcap(packets[at : at + len(part)]))
        paths.append(str(path))
        at += len(part)
    found, _ = together_in_memory(paths, directory / "out", options)
    assert not first_difference(alone(paths, options), found)


def test_a_syn_that_comes_once_more_after_the_cut(tmp_path: Path) -> None:
    """Without what came before, it looks like the next connection on these addresses."""
    tcp = Tcp()
    syn = tcp.syn()
    turns = conversation()
    check(
        tmp_path,
        [syn, tcp.syn_ack()],
        [*tcp.say(turns[:2]), syn, *tcp.say(turns[2:])],
    )


def test_a_connection_that_the_first_packet_of_the_next_one_ended(tmp_path: Path) -> None:
    """What ended the old connection must not be taken for a part of it."""
    tcp = Tcp(isn=(1_000, 5_000))
    stray = tcp.segment(False, -3_000, b"\x11")
    acknowledging = tcp.segment(True, 0, acknowledged=0)
    check(tmp_path, [tcp.syn(), stray, acknowledging, tcp.syn_ack()])


def test_a_limit_announced_while_the_client_was_silent(tmp_path: Path) -> None:
    tcp = Tcp()
    connected = build("CONNECTED", server_version="b", max_message_size=3_000)
    too_large = b"\x70\x70\x70\x70\x00\x00\x00\x05" + bytes(30)
    check(
        tmp_path,
        [tcp.syn(), tcp.send(False, connected)],
        [tcp.send(True, build("CONNECT", client_version="c") + too_large)],
    )


def test_a_connection_of_another_protocol_that_one_side_ended(tmp_path: Path) -> None:
    """Its bytes are held back until it is known what the other side speaks."""
    tcp = Tcp(isn=(2**31 + 5, 2_000))
    check(
        tmp_path,
        [
            tcp.syn_ack(),
            tcp.send(True, b"SSH-2.0-OpenSSH_9.6\r\n"),
            tcp.send(False, build("CONNECTED", server_version="b")),
            tcp.fin(True),
        ],
        [tcp.send(False, build("PONG"))],
    )


def test_a_syn_that_comes_late_on_a_connection_joined_midway(tmp_path: Path) -> None:
    """Who saw the other SYN before is in step from the first byte; who did not is looking for a frame."""
    tcp = Tcp()
    unknown = b"\x00\x00\x00\x0c\x00\x00\x00\x02\x08\x63behind"
    change = build("ACTIVE_CONSUMER_CHANGE", consumer_id=1, is_active=True)
    answer = tcp.segment(False, 0, change)
    check(tmp_path, [tcp.syn_ack()], [answer, tcp.syn(), tcp.segment(True, 0, unknown)])


def test_a_frame_whose_beginning_was_sent_again_after_the_cut(tmp_path: Path) -> None:
    """It began when its first byte was captured first."""
    tcp = Tcp()
    frames = build("CONNECTED", server_version="b") + build("SUCCESS", request_id=1)[:9]
    first = tcp.segment(False, 0, frames)
    again = tcp.segment(False, 0, frames)
    rest = build("SUCCESS", request_id=1)[9:]
    check(
        tmp_path,
        [first],
        [again, tcp.send(True, build("CONNECT", client_version="c")), tcp.send(False, rest)],
    )


def test_a_silent_half_that_begins_with_no_frame(tmp_path: Path) -> None:
    """What is said of it has the place of its first packet, in the file where that is."""
    tcp = Tcp()
    talk = [tcp.send(True, build("FLOW", consumer_id=1, messagePermits=1)) for _ in range(70)]
    check(
        tmp_path,
        [tcp.segment(True, 0)],
        [*talk, tcp.send(False, bytes(20)), tcp.send(False, build("PONG") * 3)],
    )


def test_an_error_that_answers_either_of_two_requests(tmp_path: Path) -> None:
    """C++ clients count their lookups apart: both of these have the id 1."""
    tcp = Tcp()
    subscribe = build("SUBSCRIBE", topic="t", subscription="s", subType=1, consumer_id=1, request_id=1)
    flow = build("FLOW", consumer_id=5, messagePermits=1)
    check(
        tmp_path,
        [tcp.send(True, subscribe)],
        [
            tcp.send(True, flow + build("LOOKUP", topic="u", request_id=1)),
            tcp.send(False, build("ACTIVE_CONSUMER_CHANGE", consumer_id=5, is_active=True)),
            tcp.send(False, build("ERROR", request_id=1, error=0, message="no")),
        ],
    )


def test_an_acknowledgement_answered_after_its_consumer_was_opened(tmp_path: Path) -> None:
    tcp = Tcp()
    at = {"ledgerId": 7, "entryId": 1}
    ack = build("ACK", consumer_id=1, ack_type=0, message_id=[at], request_id=1)
    subscribe = build("SUBSCRIBE", topic="t", subscription="s", subType=1, consumer_id=1, request_id=2)
    check(
        tmp_path,
        [tcp.send(True, ack)],
        [
            tcp.send(True, build("FLOW", consumer_id=5, messagePermits=1)),
            tcp.send(False, build("ACTIVE_CONSUMER_CHANGE", consumer_id=5, is_active=True)),
            tcp.send(True, subscribe),
            tcp.send(False, build("ACK_RESPONSE", consumer_id=1, request_id=1)),
        ],
    )


def test_which_side_is_the_broker_is_learned_in_the_order_of_capture(tmp_path: Path) -> None:
    """A later connection shows which side listens: what came before did not know yet."""
    one = Tcp(client=("10.0.0.1", 40_000), server=("10.0.0.2", 60_000))
    other = Tcp(client=("10.0.0.3", 50_000), server=("10.0.0.2", 60_000))
    check(
        tmp_path,
        [one.segment(True, 0), other.send(True, build("PING")), one.segment(True, -1, flags=SYN)],
    )


def test_a_row_written_before_its_direction_was_known(tmp_path: Path) -> None:
    tcp = Tcp(client=("10.0.0.1", 40_000), server=("10.0.0.2", 60_000))
    ping = tcp.send(True, build("PING") + build("PING"))
    check(tmp_path, [ping], [tcp.send(True, build("FLOW", consumer_id=1, messagePermits=1), flags=ACK)])


def test_a_subscription_to_a_topic_without_name(tmp_path: Path) -> None:
    """What is known of earlier consumers must not hide what the command itself says."""
    tcp = Tcp()
    one = build("SUBSCRIBE", topic="t", subscription="s", subType=1, consumer_id=1, request_id=1)
    other = build("SUBSCRIBE", topic="", subscription="s2", subType=1, consumer_id=2, request_id=2)
    flow = build("FLOW", consumer_id=1, messagePermits=1)
    change = build("ACTIVE_CONSUMER_CHANGE", consumer_id=1, is_active=True)
    check(
        tmp_path,
        [tcp.syn(), tcp.syn_ack(), tcp.send(True, one)],
        [tcp.send(True, flow), tcp.send(False, change), tcp.send(True, other)],
    )


def test_times_that_no_table_can_hold(tmp_path: Path) -> None:
    """A file says when its packets were captured, and may say anything."""
    for option_ in (b"\x00", b"\x06"):
        blocks = section() + interface(options=option("<", 9, option_) + option("<", 0, b""))
        for _, _, data, length in captured(Tcp().whole(conversation())):
            blocks += enhanced(2**64 - 1, data, length)
        path = tmp_path / f"{option_[0]}.pcapng"
        path.write_bytes(blocks)
        options = Options(split_size=len(blocks) // 3)
        found, _ = together_in_memory([str(path)], tmp_path / f"out{option_[0]}", options)
        assert not first_difference(alone([str(path)], options), found)


def test_an_interface_of_other_times_after_the_cut(tmp_path: Path) -> None:
    """A split that begins by the wrong layout is decoded again: what it made of the times does not matter."""
    packets = captured(Tcp().whole(conversation([b"x" * 90] * 9)))
    blocks = section() + interface()
    for number, (time_ns, _, data, length) in enumerate(packets):
        if number == 3:
            blocks += section() + interface(options=option("<", 9, b"\x09") + option("<", 0, b""))
        assert time_ns is not None
        blocks += enhanced(time_ns // (1000 if number < 3 else 1), data, length)
    path = tmp_path / "it.pcapng"
    path.write_bytes(blocks)
    options = Options(split_size=len(blocks) // 3)
    found, _ = together_in_memory([str(path)], tmp_path / "out", options)
    assert not first_difference(alone([str(path)], options), found)


@pytest.mark.parametrize("parts", [1, 2, 5, 20])
def test_packets_that_the_kernel_dropped(tmp_path: Path, parts: int) -> None:
    """Statistics count from where the section begins, which may be in another split."""
    packets = captured(Tcp().whole(conversation([b"x" * 90] * 9)))
    blocks = [section(), interface()]
    for number, (time_ns, _, data, length) in enumerate(packets):
        blocks.append(enhanced((time_ns or 0) // 1000, data, length))
        if number % 9 == 8:
            blocks.append(statistics(number))
        if number == 20:
            blocks += [section(">"), interface(">"), section(), interface()]
    path = tmp_path / "it.pcapng"
    path.write_bytes(b"".join([*blocks, statistics(100)]))
    options = Options(path.stat().st_size // parts + 1)
    found, _ = together_in_memory([str(path)], tmp_path / "out", options)
    assert not first_difference(alone([str(path)], options), found)
    assert found.dropped == 17 + 100


def test_a_late_segment_of_a_connection_that_is_forgotten(tmp_path: Path) -> None:
    """A thousand others have ended since: it counts as another connection."""
    forgotten = Tcp(client=("10.0.9.9", 5_000))
    segments = [*forgotten.handshake(), *forgotten.goodbye()]
    for number in range(LINGER + 1):
        other = Tcp(client=(f"10.0.{number // 200}.{number % 200 + 1}", 6_000))
        segments += [other.syn(), other.rst(True)]
    segments += [forgotten.segment(True, forgotten.sent[True]), Tcp(client=("10.1.1.1", 77)).syn()]
    check(tmp_path, segments)


def test_a_frame_over_the_announced_limit_that_waits_at_the_cut(tmp_path: Path) -> None:
    """Who knows the limit looks for another frame at once; who does not waits for the whole."""
    tcp = Tcp()
    flow = build("FLOW", consumer_id=1, messagePermits=1)
    change = build("ACTIVE_CONSUMER_CHANGE", consumer_id=1, is_active=True)
    too_large = (20_000).to_bytes(4, "big") + (100).to_bytes(4, "big") + b"\xff" * 50
    check(
        tmp_path,
        [
            *tcp.handshake(),
            tcp.send(False, build("CONNECTED", server_version="b", max_message_size=1)),
        ],
        [tcp.send(True, flow), tcp.send(False, change), tcp.send(True, too_large + flow * 30)],
        [tcp.send(True, flow * 3), tcp.send(False, change)],
    )


def test_a_syn_that_comes_once_more_after_the_end(tmp_path: Path) -> None:
    """The split sees an acknowledgement and a SYN, and both belong to what has ended before it."""
    tcp = Tcp()
    syn = tcp.syn()
    ended = [syn, tcp.syn_ack(), *tcp.say(conversation()), tcp.fin(True), tcp.fin(False)]
    check(tmp_path, ended, [tcp.segment(True, tcp.sent[True]), syn])


def test_a_send_without_its_sub_message(tmp_path: Path) -> None:
    tcp = Tcp()
    bare = b"\x00\x00\x00\x06\x00\x00\x00\x02\x08\x06"
    change = build("ACTIVE_CONSUMER_CHANGE", consumer_id=1, is_active=True)
    flow = build("FLOW", consumer_id=1, messagePermits=1)
    check(
        tmp_path,
        [tcp.send(True, build("PRODUCER", topic="t", producer_id=0, request_id=1))],
        [tcp.send(True, flow), tcp.send(False, change), tcp.send(True, bare + flow)],
    )


def test_a_cut_frame_that_begins_in_packets_out_of_order(tmp_path: Path) -> None:
    """It counts as captured when the last of the packets that lead to it was."""
    tcp = Tcp()
    flow = build("FLOW", consumer_id=1, messagePermits=1)
    first = tcp.send(True, flow)
    late, early = tcp.send(True, flow), tcp.send(True, flow + flow[:6])
    check(
        tmp_path,
        [first],
        [early, late, tcp.send(False, build("ACTIVE_CONSUMER_CHANGE", consumer_id=1, is_active=True))],
    )


def test_a_request_asked_before_its_consumer_was_opened(tmp_path: Path) -> None:
    """Its answer is about nothing known, even if it comes when the consumer has long been opened."""
    tcp = Tcp()
    at = {"ledgerId": 7, "entryId": 1}
    ack = build("ACK", consumer_id=1, ack_type=0, message_id=[at], request_id=1)
    subscribe = build("SUBSCRIBE", topic="t", subscription="s", subType=1, consumer_id=1, request_id=2)
    change = build("ACTIVE_CONSUMER_CHANGE", consumer_id=5, is_active=True)
    answer = build("ACK_RESPONSE", consumer_id=1, request_id=1)
    check(
        tmp_path,
        [tcp.send(True, ack), tcp.send(True, subscribe), tcp.send(False, change)],
        [tcp.send(False, answer)],
    )


def test_what_a_frame_inside_another_one_says_is_forgotten(tmp_path: Path) -> None:
    """Where a split begins a frame is believed that is none; no rows come of it, nor topics."""
    tcp = Tcp()
    inner = build("SUBSCRIBE", topic="t", subscription="s", subType=1, consumer_id=2, request_id=1)
    outer = (len(PING) - 4 + len(inner)).to_bytes(4, "big") + PING[4:]
    before = [tcp.syn(), tcp.syn_ack(), tcp.send(True, outer)]
    resumed = [tcp.send(True, inner), tcp.send(False, PONG)]
    asking = tcp.send(True, build("FLOW", consumer_id=2, messagePermits=1))
    check(tmp_path, before, [*resumed, asking])


def test_a_producer_that_waits_for_its_turn_is_answered_twice(tmp_path: Path) -> None:
    """The first answer, in a split that does not know the request, must not be taken for the last one."""
    tcp = Tcp()
    waits, ready = (
        build("PRODUCER_SUCCESS", request_id=1, producer_name="p", producer_ready=is_ready)
        for is_ready in (False, True)
    )
    check(
        tmp_path,
        [tcp.syn(), tcp.syn_ack(), tcp.send(True, build("PRODUCER", topic="t", producer_id=1, request_id=1))],
        [tcp.send(True, PING), tcp.send(False, receipt()), tcp.send(False, waits)],
        [tcp.send(True, PING), tcp.send(False, ready)],
    )


def test_an_answer_that_comes_before_its_request(tmp_path: Path) -> None:
    tcp = Tcp()
    subscribe = build("SUBSCRIBE", topic="t", subscription="s", subType=1, consumer_id=2, request_id=1)
    check(
        tmp_path,
        [tcp.syn(), tcp.syn_ack(), tcp.send(True, subscribe)],
        [
            *(tcp.send(True, PING), tcp.send(False, receipt())),
            tcp.send(False, build("SUCCESS", request_id=5)),
            tcp.send(True, build("SEEK", consumer_id=2, request_id=5, message_publish_time=1)),
        ],
    )


def test_a_consumer_that_is_opened_again_without_a_topic(tmp_path: Path) -> None:
    tcp = Tcp()
    opened = {"subscription": "s", "subType": 0, "consumer_id": 1}
    again = build("SUBSCRIBE", topic="", request_id=2, **opened)
    check(
        tmp_path,
        [*tcp.handshake(), tcp.send(True, build("SUBSCRIBE", topic="a", request_id=1, **opened))],
        [*tcp.say([(True, PING), (False, receipt()), (True, again)])],
    )


@pytest.mark.parametrize("topic", [None, "", "b"])
def test_a_request_under_the_number_of_one_before_the_cut(tmp_path: Path, topic: str | None) -> None:
    tcp = Tcp()
    opened = {"subscription": "s", "subType": 0, "consumer_id": 1}
    if topic is None:
        again = build("NEW_TXN", request_id=5)
    else:
        again = build("SUBSCRIBE", topic=topic, request_id=5, **opened)
    error = build("ERROR", request_id=5, error=0, message="")
    check(
        tmp_path,
        [*tcp.handshake(), tcp.send(True, build("SUBSCRIBE", topic="a", request_id=5, **opened))],
        [*tcp.say([(True, PING), (False, receipt()), (True, again), (False, error), (False, error)])],
    )


def test_packets_that_a_split_does_not_keep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of connections that are never synchronized: they are read again when it is stitched."""
    monkeypatch.setattr(decode, "MAX_PACKET_BYTES", 3_000)
    given_up: list[bytes] = []
    keep = decode._SplitDecoder._keep

    def noting(self: decode._SplitDecoder, tcp: Connection, packet: Kept) -> None:
        keep(self, tcp, packet)
        assert tcp.mark.packets is None or tcp.mark.kept <= 3_000
        given_up.extend(self._given_up)

    monkeypatch.setattr(decode._SplitDecoder, "_keep", noting)
    noise = [Tcp(client=("10.0.0.1", port)) for port in (1_000, 1_001)]
    parts = [
        [tcp.send(True, b"\x16\x03\x01" + bytes(997)) for tcp in noise for _ in range(9)] for _ in range(2)
    ]
    check(tmp_path, *parts)
    assert given_up


def test_connections_that_a_split_does_not_keep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Beyond the bound they are read again when it is stitched, those without any frame too."""
    monkeypatch.setattr(decode, "MAX_SAVED_CONNECTIONS", 3)
    sure: list[int] = []
    edges = decode._SplitDecoder.edges

    def noting(self: decode._SplitDecoder) -> list[Edge]:
        sure.append(len(self._synced))
        assert sum(edge.packets is not None for edge in self._edges) <= 3 < len(self._edges)
        return edges(self)

    monkeypatch.setattr(decode._SplitDecoder, "edges", noting)
    tcps = [Tcp(client=("10.0.0.1", 1_000 + number)) for number in range(8)]
    parts = [[segment for tcp in tcps for segment in tcp.handshake()]]
    parts += [[segment for tcp in tcps[::2] for segment in tcp.say(conversation())] for _ in range(2)]
    check(tmp_path, *parts)
    assert sure == [3, 3, 3]


def test_connections_that_a_split_does_not_tell_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As of a scan: beyond the bound they are followed when it is stitched, also on ports used again."""
    monkeypatch.setattr(decode, "MAX_EDGES", 3)
    told: list[int] = []
    edges = decode._SplitDecoder.edges

    def noting(self: decode._SplitDecoder) -> list[Edge]:
        told.append(len(self._edges))
        assert self.rest is not None
        return edges(self)

    monkeypatch.setattr(decode._SplitDecoder, "edges", noting)
    tcps = [Tcp(client=("10.0.0.1", 1_000 + number)) for number in range(8)]
    again = [Tcp(client=("10.0.0.1", 1_000 + number)) for number in range(0, 8, 2)]
    parts = [[segment for tcp in tcps for segment in tcp.handshake()]]
    parts += [[segment for tcp in tcps[::2] for segment in tcp.say(conversation())] for _ in range(2)]
    parts[2] += [segment for tcp in again for segment in [*tcp.handshake(), *tcp.say(conversation())]]
    check(tmp_path, *parts)
    assert max(told) <= 2 * 3
    assert len(told) == 3
