"""Reports on traffic with odd values."""

from pathlib import Path

from sanitize.sanitized import pcapng
from segments import START_NS, Tcp, build, captured

from pulsarctl_wire import data
from pulsarctl_wire.reports.engine import clusters


def write(path: Path, *connections: Tcp) -> Path:
    """Write a capture in which each connection opens a producer, all at one time."""
    segments = []
    for tcp in connections:
        opening = build("PRODUCER", topic="t", producer_id=1, request_id=1)
        success = build("PRODUCER_SUCCESS", request_id=1, producer_name="p")
        segments += [*tcp.handshake(), *tcp.say([(True, opening), (False, success)])]
    packets = captured(segments)
    size = len(packets) // len(connections)
    path.write_bytes(pcapng([(START_NS + index % size, *packet[1:]) for index, packet in enumerate(packets)]))
    return path


def test_requests_of_two_connections_at_one_time_have_places_of_their_own(tmp_path: Path) -> None:
    path = write(tmp_path / "two.pcapng", *(Tcp(client=("10.0.0.1", port)) for port in (50_000, 50_001)))
    with data.tables(path) as tables:
        rows = tables.report("slow").rows()
    assert len(rows) == len({row["packet_offset"] for row in rows}) == 2
    assert len({row["answer_packet_offset"] for row in rows}) == 2


def test_names_of_views_in_capitals(tmp_path: Path) -> None:
    with data.tables(write(tmp_path / "one.pcapng", Tcp())) as tables:
        assert tables.sql("SELECT count(*) AS n FROM FRAMES").rows() == [{"n": 2}]


def test_a_broker_with_a_url_that_is_none_is_a_cluster_alone() -> None:
    servers = [("a:1", "pulsar://[::1:6650"), ("b:1", "pulsar://c:1"), ("c:1", None)]
    assert clusters(servers) == {"a:1": 0, "b:1": 1, "c:1": 1}
