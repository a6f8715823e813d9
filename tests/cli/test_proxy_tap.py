"""What `pwire proxy` shows, records and counts of what passes; whoever watches, forwarding goes on."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import resource
import signal
import socket
import struct
import subprocess
import termios
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from proxied import LINUX, TIMED, Heard, Proxied, Session, children, decode, frames, receive, run, until
from segments import PING, PONG, Turn, build, conversation, receipt, send
from test_decode_terminal import EVIL

from pulsarctl_wire.capture import read_frames
from pulsarctl_wire.cli.console import EXIT_OUTPUT, EXIT_USAGE

SCHEMA = Path(__file__).parents[2] / "docs" / "json.schema.json"
VALIDATOR = Draft202012Validator(json.loads(SCHEMA.read_text()))
TOKEN = b"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ0ZXN0In0.not-to-be-seen-by-anybody"
CONNECT = build("CONNECT", client_version="test", auth_method_name="token", auth_data=TOKEN)
CONNECTED = build("CONNECTED", server_version="broker", protocol_version=21)
TALK = conversation([b"one", b"two" * 500, bytes(range(256))])
FULL = Path("/dev/full")
ODD: list[Turn] = [
    (True, CONNECT),
    (False, CONNECTED),
    (True, build("PRODUCER", topic=EVIL, producer_id=1, request_id=1, producer_name=EVIL)),
    (False, build("ERROR", request_id=1, error=1, message=EVIL)),
    (True, send(b"x" * 300)[:-1] + b"y"),  # its checksum is wrong
    (False, b"no frame at all, and nothing after it is believed to be one"),
]

needs_proc = pytest.mark.skipif(not LINUX, reason="no /proc here")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")


def _talk(proxy: Proxied, *conversations: list[Turn]) -> None:
    for turns in conversations or (TALK,):
        with proxy.session() as session:
            session.talk(turns)


def _lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def _without_packets(text: str) -> str:
    """The numbers of packets are those of a file, and there are none in a tap."""
    return re.sub(r'"packet":\d+(,"wireshark":\d+)?(,"file":"[^"]*")?|, packets? [\d…]+', "", text)


# -- the tap and the record


@pytest.mark.parametrize("form", ["line", "tree", "json", "hex"])
def test_the_tap_is_what_decode_shows_of_the_record(form: str, tmp_path: Path) -> None:
    record = tmp_path / "seen.pcapng"
    with Proxied("--tap", "-o", form, "--record", record) as proxy:
        _talk(proxy, TALK, ODD, conversation())
        assert proxy.stop() == 0
        shown = proxy.out.text
        read = decode("-o", form, record, home=proxy.home).stdout
    assert _without_packets(shown) == _without_packets(read)
    assert shown.count("SEND_RECEIPT") >= 3
    assert "\x1b" not in shown
    assert "not-to-be-seen" not in shown
    if form == "json":
        records = proxy.out.records
        for each in records:
            VALIDATOR.validate(each)
        assert [each["number"] for each in frames(records)] == list(range(1, len(frames(records)) + 1))
        assert {each["packet"] for each in records} == {0}
        passed = [turn for turns in (TALK, ODD[:-1], conversation()) for turn in turns]
        assert [(each["to_broker"], each["total_size"]) for each in frames(records)] == [
            (to_broker, int.from_bytes(raw[:4], "big")) for to_broker, raw in passed
        ]


def test_it_says_where_it_listens_and_leads_and_what_it_carried() -> None:
    with Proxied("--tap") as proxy:
        _talk(proxy)
        assert proxy.stop() == 0
        to, host, port = proxy.to, *proxy.address
    sent, received = (sum(len(raw) for way, raw in TALK if way == to_broker) for to_broker in (True, False))
    assert proxy.err.lines == [
        f"pwire: listening on {host}:{port}, forwarding to {to}; for clients: pulsar://{host}:{port}",
        f"pwire: {proxy.err.lines[1].split()[1]} 1 connection; "
        f"{sent / 1000:.1f} kB to brokers, {received / 1000:.1f} kB to clients",
    ]
    assert re.match(TIMED, proxy.err.lines[1])
    assert len(proxy.out.lines) == len(TALK)


def test_the_doctor_knows_the_addresses_of_the_proxy_in_the_record(tmp_path: Path) -> None:
    record = tmp_path / "seen.pcapng"
    opening = [
        (True, CONNECT),
        (False, CONNECTED),
        (True, build("PARTITIONED_METADATA", topic="t", request_id=1)),
        (False, build("PARTITIONED_METADATA_RESPONSE", request_id=1, response=0, partitions=0)),
        (True, build("LOOKUP", topic="t", request_id=2)),
    ]
    with Proxied("--doctor", "--record", record) as proxy:
        url = f"pulsar://broker-1:{proxy.upstream.getsockname()[1]}"
        for named in (proxy.to, url):  # the broker that answers; another one, where the client does not go
            with proxy.session() as session:
                session.talk(opening)
                answer = build("LOOKUP_RESPONSE", request_id=2, response=1, brokerServiceUrl=named)
                session.broker.sendall(answer)
                size = int.from_bytes(receive(session.client, 4), "big")
                assert named.encode() not in receive(session.client, size)
        assert proxy.stop() == 0
        assert "nothing found in 2 connections" in proxy.err.text
        part = tmp_path / "part.pcapng"
        assert run("decode", "-q", "-w", part, record, home=proxy.home).returncode == 0
        for file in (record, part):
            found = run("doctor", file, home=proxy.home)
            assert (found.returncode, found.stdout) == (0, "")
        listeners = [frame.connection.listener for frame in read_frames(part)]
        assert set(listeners) == {f"127.0.0.1:{proxy.port}"}


def test_without_tap_nothing_is_shown() -> None:
    with Proxied() as proxy:
        _talk(proxy)
        assert proxy.stop() == 0
    assert proxy.out.data == b""


FILTERS = {
    "commands": (["--command", "SEND*"], {"SEND", "SEND_RECEIPT"}),
    "expression": (["-f", 'command == "ACK" or not to_broker and command == "PING"'], {"ACK", "PING"}),
    "topic": (["--topic", "persistent://public/default/t", "--command", "FLOW,PING"], {"FLOW"}),
    "no such topic": (["--topic", "another"], set()),
    "connection": (["--connection", "1", "--command", "CONNECT"], {"CONNECT"}),
    "no such connection": (["--connection", "2"], set()),
}


@pytest.mark.parametrize("by", FILTERS)
def test_filters(by: str) -> None:
    args, wanted = FILTERS[by]
    with Proxied("--tap", "-o", "json", *args) as proxy:
        _talk(proxy, conversation(), conversation())
        assert proxy.stop() == 0
    assert {each["command"] for each in proxy.out.records} == wanted
    if by == "connection":
        assert {each["connection"] for each in proxy.out.records} == {1}


def test_what_faults_dropped_is_not_in_the_tap_and_said() -> None:
    with Proxied("--tap", "-o", "json", "--fault", "drop command=SEND_RECEIPT nth=1", "--seed", "7") as proxy:
        with proxy.session() as session:
            session.talk([(True, send(b"a", 0))])
            session.broker.sendall(receipt(0) + receipt(1))
            assert receive(session.client, len(receipt(1))) == receipt(1)
        assert proxy.stop() == 0
    assert [each["command"] for each in proxy.out.records] == ["SEND", "SEND_RECEIPT"]
    assert proxy.out.records[1]["fields"]["sequence_id"] == 1
    assert "pwire: fault #1: drop command=SEND_RECEIPT nth=1" in proxy.err.lines
    assert "pwire: seed 7" in proxy.err.lines
    assert proxy.err.line(TIMED + "connection 0: #1 drop: SEND_RECEIPT producer 1 sequence 0 message 7:0$")


# -- credentials

PIECES = {
    "whole": [],
    "cut by the client": [],
    "cut by a fault": ["--fault", "slice size=7"],
    "shown": ["--show-secrets"],
    "cut and shown": ["--fault", "slice size=7", "--show-secrets"],
}


@pytest.mark.parametrize("way", PIECES)
def test_credentials(way: str, tmp_path: Path) -> None:
    record = tmp_path / "seen.pcapng"
    with Proxied("--tap", "-o", "json", "--record", record, *PIECES[way]) as proxy:
        with proxy.session() as session:
            if way == "cut by the client":
                for at in range(len(CONNECT)):
                    session.client.sendall(CONNECT[at : at + 1])
                assert receive(session.broker, len(CONNECT)) == CONNECT
            else:
                session.talk([(True, CONNECT)])
            session.talk([(False, CONNECTED), (True, build("AUTH_RESPONSE", response={"auth_data": TOKEN}))])
            session.talk([(True, PING), (False, PONG)])
        assert proxy.stop() == 0
        shown = proxy.out.text
        bare = ["--show-secrets"] if way.endswith("shown") else []
        read = decode("-o", "json", *bare, record, home=proxy.home).stdout
    assert _without_packets(shown) == _without_packets(read)
    assert [each["command"] for each in proxy.out.records] == [
        *("CONNECT", "CONNECTED", "AUTH_RESPONSE", "PING", "PONG")
    ]
    written = record.read_bytes()
    if way.endswith("shown"):
        assert shown.count(b64encode(TOKEN).decode()) == 2
        assert (written.count(TOKEN) == 2) == (way == "shown")
    else:
        assert "not-to-be-seen" not in shown
        assert not any(TOKEN[at : at + 7] in written for at in range(len(TOKEN) - 6))
        assert written.count(b"*" * len(TOKEN)) == 2


def test_credentials_of_any_command(tmp_path: Path) -> None:
    """Of a lookup by another proxy; of what comes behind damage; of what is cut off at the end."""
    record = tmp_path / "seen.pcapng"
    lookup = build("LOOKUP", topic="t", request_id=1, original_auth_data=TOKEN.decode())
    with Proxied("--tap", "-o", "json", "--record", record) as proxy:
        with proxy.session() as session:
            session.talk([(True, CONNECT), (False, CONNECTED), (True, lookup)])
            session.talk([(True, b"\0\0\0\2\0\0\0\x09garbage"), (True, PING * 3), (True, CONNECT)])
            session.talk([(True, CONNECT[:-2])])
        assert proxy.stop() == 0
        read = decode("-o", "json", record, home=proxy.home).stdout
    shown, kept = (
        [each.get("command") for each in each_one] for each_one in (proxy.out.records, _lines(read))
    )
    assert shown == ["CONNECT", "CONNECTED", "LOOKUP", None, *["PING"] * 3, "CONNECT", shown[-1]] == kept
    assert TOKEN not in record.read_bytes()
    assert record.read_bytes().count(b"*" * len(TOKEN)) == 4


def test_credentials_behind_a_proxy_header_that_is_passed_on(tmp_path: Path) -> None:
    """HAProxy before pwire, and a broker that expects its header: what begins with it is still a session."""
    record = tmp_path / "seen.pcapng"
    header = b"PROXY TCP4 192.0.2.1 192.0.2.2 40000 6650\r\n"
    with Proxied("--tap", "--record", record) as proxy:
        with proxy.session() as session:
            session.talk([(True, header), (True, CONNECT), (False, CONNECTED)])
        assert proxy.stop() == 0
    assert "CONNECT" in proxy.out.text
    assert TOKEN.decode() not in proxy.out.text
    assert TOKEN not in record.read_bytes()


# -- rotation


def test_rotated_files_are_one_capture(tmp_path: Path) -> None:
    record = tmp_path / "seen.pcapng"
    with Proxied("--tap", "-o", "json", "--record", record, "--rotate-size", "2kB") as proxy:
        _talk(proxy, conversation([bytes(700)] * 12))
        assert proxy.stop() == 0
        files = sorted(tmp_path.glob("seen_*.pcapng"))
        assert len(files) > 3
        assert not record.exists()
        read = decode("-o", "json", *files, home=proxy.home).stdout
    assert _without_packets(read) == _without_packets(proxy.out.text)


def test_the_newest_files_are_kept(tmp_path: Path) -> None:
    with Proxied("--record", tmp_path / "a.pcapng", "--rotate-size", "2kB", "--rotate-files", "2") as proxy:
        _talk(proxy, conversation([bytes(700)] * 12))
        assert proxy.stop() == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 2
    assert int(names[1][2:7]) == int(names[0][2:7]) + 1 > 4


# -- counters


def test_stats_where_there_is_no_terminal() -> None:
    with Proxied("--stats") as proxy:
        _talk(proxy)
        proxy.kill(signal.SIGINT)
        assert proxy.wait() == 0
    assert "\x1b" not in proxy.err.text
    table = proxy.said
    assert re.match(TIMED + "1 connection; ", table[0])
    assert "0 open of 1 connection" in table[1]
    assert sum(line.startswith("public/default/t ") for line in table) == 1
    assert re.search(r"^SEND +3 ", proxy.err.text, re.MULTILINE)


@contextmanager
def _terminal() -> Iterator[tuple[int, Heard]]:
    """A terminal of 30 lines with 100 columns: the descriptor for who draws on it, and what is drawn."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    heard = Heard(ours)
    try:
        yield its, heard
    finally:
        os.close(its)
        heard.end()


@pytest.mark.parametrize(
    ("args", "env", "coloured"),
    [([], {}, True), (["--no-color"], {}, False), ([], {"NO_COLOR": "1"}, False)],
    ids=["coloured", "--no-color", "NO_COLOR"],
)
def test_colours_of_the_tap_on_a_terminal(args: list[str], env: dict[str, str], coloured: bool) -> None:
    with _terminal() as (its, heard), Proxied("--tap", *args, stdout=its, env=env) as proxy:
        _talk(proxy)
        heard.line("PONG")
        assert proxy.stop() == 0
        assert (b"\x1b[" in heard.data) == coloured
        assert len(heard.lines) == len(TALK)


@pytest.mark.parametrize("env", [{}, {"NO_COLOR": "1"}], ids=["coloured", "NO_COLOR"])
def test_the_live_table_on_a_terminal(env: dict[str, str]) -> None:
    args = ("--stats", "--fault", "drop command=PING")
    with _terminal() as (its, heard), Proxied(*args, stderr=its, env=env) as proxy:
        proxy.announced(heard)
        with proxy.session() as session:
            session.talk(conversation()[:-2])
            heard.until(lambda: b"public/default/t" in heard.data)
            session.broker.sendall(PING)
            heard.line("connection 0: #1 drop: PING")
            drawn = len(heard.data)
            heard.until(lambda: b"public/default/t" in heard.data[drawn:])  # it is still there
        assert proxy.stop() == 0
    assert re.search(rb"\x1b\[\d*A", heard.data)  # drawn over the page before
    assert (b"\x1b[36m" in heard.data) == (not env)
    last = heard.text[heard.text.rindex("1 connection; ") :]
    assert "0 open of 1 connection" in last


def test_stats_and_a_tap_do_not_share_a_terminal() -> None:
    with _terminal() as (its, heard), Proxied("--stats", "--tap", stdout=its, stderr=its) as proxy:
        heard.line("^pwire: --stats draws on the terminal that --tap would print to")
        assert proxy.wait() == EXIT_USAGE


def _scrape(proxy: Proxied) -> dict[str, float]:
    """The metrics, by name and labels."""
    url = proxy.err.line(r"metrics at (http://\S+)")[-1][1]
    with urllib.request.urlopen(url, timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


def _counted(proxy: Proxied, command: str, direction: str = "to_broker") -> float:
    return _scrape(proxy).get(f'pwire_frames_total{{command="{command}",direction="{direction}"}}', 0)


def test_metrics_while_traffic_flows() -> None:
    with Proxied("--metrics", ":0") as proxy, proxy.session() as session:
        session.talk(conversation()[:7])
        seen = []
        for turn in count(1):
            session.talk([(True, send(b"x", turn)), (False, receipt(turn))])
            seen.append(_counted(proxy, "SEND"))
            if seen[-1] > 3:
                break
        assert seen == sorted(seen)
        sends = len(seen)
        session.talk([(True, send(b"x", 1000))])
        until(lambda: _counted(proxy, "SEND") == sends + 1)
        found = _scrape(proxy)
        assert found["pwire_connections"] == 1
        assert found['pwire_pending_sends{topic="persistent://public/default/t"}'] == 1
        assert found["pwire_publish_latency_seconds_count"] == sends
        session.close()
        until(lambda: _scrape(proxy)["pwire_connections"] == 0)
        assert proxy.stop() == 0


# -- nobody reads, or not fast enough


def _sends(number: int, size: int = 4000) -> bytes:
    return b"".join(send(b"x" * size, sequence) for sequence in range(number))


def _shown_and_missed(proxy: Proxied, lines: list[str]) -> tuple[int, int]:
    """How many whole frames a JSON tap showed, and how many it says that it did not."""
    shown = sum('"command":"' in line and '"partial":false' in line for line in lines)
    (missed,) = proxy.err.line(r"tap fell behind: (\d+) frames not shown in total")
    return shown, int(missed[1])


def _until_shown_again(session: Session, tap: Heard) -> int:
    """Have frames pass until the tap shows what passes; gives how many it took."""
    passed = 0

    def look() -> bool:
        nonlocal passed
        passed += 1
        session.talk([(False, PING)])
        return any('"command":"PING"' in line for line in tap.lines[-100:])

    until(look)
    session.talk([(True, send(b"last", 9999))])
    tap.line('"sequence_id":9999')
    return passed + 1


def test_a_reader_that_stops_for_a_while(tmp_path: Path) -> None:
    """Forwarding, recording and counting go on, and what was not shown is counted to the frame."""
    reading, writing = os.pipe()
    record = tmp_path / "seen.pcapng"
    args = ("--tap", "-o", "json", "--record", record, "--metrics", ":0")
    with Proxied(*args, stdout=writing) as proxy:
        os.close(writing)
        with proxy.session() as session:
            session.pass_on(True, _sends(4000))
            proxy.err.line(r"tap fell behind: \d+ frames not shown$")
            until(lambda: _counted(proxy, "SEND") == 4000)
            reader = Heard(reading)  # it goes on
            more = _until_shown_again(session, reader)
        assert proxy.stop() == 0
        lines = reader.end().decode().splitlines()
        decoded = decode("-o", "json", "--command", "SEND", record, home=proxy.home).stdout
    shown, missed = _shown_and_missed(proxy, lines)
    assert shown + missed == 4000 + more
    assert missed > 0
    assert decoded.count("\n") == 4001


def test_a_reader_that_stops_for_good() -> None:
    """What waits for it at the end is not shown either, and said."""
    reading, writing = os.pipe()
    with Proxied("--tap", "-o", "json", "--metrics", ":0", stdout=writing) as proxy:
        os.close(writing)
        with proxy.session() as session:
            session.pass_on(True, _sends(4000))
            until(lambda: _counted(proxy, "SEND") == 4000)
        assert proxy.stop() == 0
        written = Heard(reading).end()
    shown, missed = _shown_and_missed(proxy, written.decode().split("\n")[:-1])
    assert 0 < shown < 4000 - missed
    (waiting,) = proxy.err.line(r"tap fell behind: (\d+) bytes of output not shown at the end$")
    assert int(waiting[1]) > (4000 - missed - shown) * 4000


@needs_proc
def test_a_watcher_that_gets_no_time() -> None:
    """What there is no room for in the ring is counted too; stopped is not ended."""
    with Proxied("--tap", "-o", "json") as proxy:
        os.kill(proxy.watcher, signal.SIGSTOP)
        with proxy.session() as session:
            session.pass_on(True, _sends(100, 1_000_000))
            os.kill(proxy.watcher, signal.SIGCONT)
            more = _until_shown_again(session, proxy.out)
        assert proxy.stop() == 0
    shown, missed = _shown_and_missed(proxy, proxy.out.lines)
    assert shown + missed == 100 + more
    assert missed > 0
    assert not [line for line in proxy.said if "has ended" in line]


def test_a_reader_that_leaves() -> None:
    reading, writing = os.pipe()
    with Proxied("--tap", stdout=writing) as proxy:
        os.close(writing)
        with subprocess.Popen(["head", "-n", "1"], stdin=reading, stdout=subprocess.PIPE) as head:
            os.close(reading)
            with proxy.session() as session:
                session.talk(TALK)
                assert head.communicate()[0].count(b"\n") == 1
                session.talk(TALK)
                proxy.err.line(TIMED + "the reader of the tap is gone; forwarding goes on$")
                session.talk(TALK)
        assert proxy.stop() == 0
    assert len(proxy.err.line("the reader of the tap")) == 1
    assert not [line for line in proxy.said if "fell behind" in line]  # from a reader that there is not


@needs_full
def test_a_full_disk_under_the_tap() -> None:
    with FULL.open("wb") as full, Proxied("--tap", stdout=full.fileno()) as proxy:
        with proxy.session() as session:
            session.talk(TALK)
            proxy.err.line(TIMED + "the tap cannot be written: No space left on device; forwarding goes on$")
            session.talk(TALK)
        assert proxy.stop() == EXIT_OUTPUT
    assert not [line for line in proxy.said if "fell behind" in line]


@needs_full
def test_a_full_disk_under_the_last_of_the_tap() -> None:
    """Whatever is found only when the rest is written."""
    with FULL.open("wb") as full, Proxied("--tap", stdout=full.fileno()) as proxy:
        with proxy.session() as session:
            session.talk(TALK)
        assert proxy.stop() == EXIT_OUTPUT
    assert proxy.err.line(TIMED + "the tap cannot be written: No space left on device; forwarding goes on$")


@needs_full
def test_a_full_disk_under_what_the_doctor_finds() -> None:
    with FULL.open("wb") as full, Proxied("--doctor", stdout=full.fileno()) as proxy:
        _talk(proxy, ODD)
        assert proxy.stop() == EXIT_OUTPUT
    assert proxy.err.line(TIMED + "the findings cannot be written: No space left on device$")


@needs_full
def test_a_record_that_cannot_be_written() -> None:
    with Proxied("--tap", "--record", FULL) as proxy:
        with proxy.session() as session:
            session.talk(TALK)
            proxy.err.line(
                TIMED + "--record /dev/full: No space left on device; forwarding goes on unrecorded$"
            )
            session.talk(TALK)
        assert proxy.stop() == EXIT_OUTPUT
    assert len(proxy.out.lines) == 2 * len(TALK)
    assert len(proxy.err.line("unrecorded")) == 1


def test_a_disk_that_becomes_full(tmp_path: Path) -> None:
    """What was recorded before can be read."""
    record = tmp_path / "seen.pcapng"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    with Proxied("--tap", "-o", "json", "--record", record, preexec=limit) as proxy:
        with proxy.session() as session:
            session.talk(TALK)
            last = TALK[-1][1]
            until(lambda: record.read_bytes().count(last) == sum(raw == last for _, raw in TALK))
            session.pass_on(True, _sends(100))
            proxy.err.line(TIMED + f"--record {record}: File too large; forwarding goes on unrecorded$")
            session.talk(TALK)
        assert proxy.stop() == EXIT_OUTPUT
        read = decode("-o", "json", record, home=proxy.home).stdout
    assert len(proxy.out.lines) == 2 * len(TALK) + 100
    assert _without_packets(proxy.out.text).startswith(_without_packets(read))
    assert len(TALK) <= read.count("\n") < len(TALK) + 100


def test_stderr_that_nobody_reads_does_not_end_the_record(tmp_path: Path) -> None:
    record = tmp_path / "seen.pcapng"
    reading, writing = os.pipe()
    args = ("--stats", "--record", record, "--rotate-size", "2kB", "--fault", "drop command=PING")
    with _three_lines(reading) as first, Proxied(*args, stderr=writing) as proxy:
        os.close(writing)
        proxy.announced(first)
        with proxy.session() as session:
            for _ in range(5):
                session.broker.sendall(PING)  # of which a note says that it was dropped
                session.talk(conversation([bytes(700)] * 3)[:-2])
        assert proxy.stop() == 0
        files = sorted(tmp_path.glob("seen_*.pcapng"))
        read = decode("-o", "json", *files, home=proxy.home).stdout
    assert read.count("\n") == 5 * len(conversation([bytes(700)] * 3)[:-2])


@contextmanager
def _three_lines(reading: int) -> Iterator[Heard]:
    """A reader of a pipe that leaves after those of the start."""
    ours, its = os.pipe()
    with subprocess.Popen(["head", "-n", "3"], stdin=reading, stdout=its):
        os.close(reading)
        os.close(its)
        yield Heard(ours)


# -- one of the two processes ends


def _until_watched_again(session: Session, proxy: Proxied) -> int:
    """Have SENDs pass until the tap shows one of them; gives its sequence id."""
    marked, numbers = len(proxy.out.data), count(1000)

    def look() -> int:
        session.talk([(True, send(b"again", next(numbers)))])
        shown = re.findall(r'"sequence_id":(\d{4}),', proxy.out.text[marked:])
        return int(shown[-1]) if shown else 0

    return until(look)


@needs_proc
def test_a_watcher_that_is_killed_is_started_again() -> None:
    with Proxied("--tap", "-o", "json", "--fault", "drop command=PING", "--metrics", ":0") as proxy:
        with proxy.session() as session:
            session.talk(TALK[:-2])
            proxy.out.line('"command":"ACK"')
            shown = len(proxy.out.lines)
            os.kill(proxy.watcher, signal.SIGKILL)
            session.talk(TALK[:-2])
            proxy.err.line(
                TIMED + r"the watcher died \(killed by SIGKILL\); "
                "forwarding goes on, another one starts$"
            )
            _until_watched_again(session, proxy)
            session.broker.sendall(PING)
            proxy.err.line("connection 0: #1 drop: PING")
            proxy.err.until(lambda: proxy.err.text.count("metrics at") == 2)
            assert _scrape(proxy)["pwire_connections"] == 1
        assert proxy.ctl("fault", "clear").returncode == 0
        _talk(proxy)
        assert proxy.stop() == EXIT_OUTPUT
    later = proxy.out.records[shown:]
    assert {each["connection"] for each in later} == {0, 1}
    assert all(each["client"] and each["server"] for each in later)
    talked = [each["total_size"] for each in frames(later) if each["connection"] == 1]
    assert talked == [int.from_bytes(raw[:4], "big") for _, raw in TALK]


@needs_proc
def test_a_recording_goes_on_in_another_file(tmp_path: Path) -> None:
    """What was recorded before the watcher was killed stays, and both files can be read."""
    record = tmp_path / "seen.pcapng"
    with Proxied("--tap", "-o", "json", "--record", record) as proxy:
        with proxy.session() as session:
            before = _until_watched_again(session, proxy)
            until(lambda: send(b"again", before) in record.read_bytes())
            os.kill(proxy.watcher, signal.SIGKILL)
            proxy.err.line("another one starts")
            behind = _until_watched_again(session, proxy)
        assert proxy.stop() == EXIT_OUTPUT
        files = sorted(tmp_path.iterdir())
        read = [decode("-o", "json", each, home=proxy.home).stdout for each in files]
    assert [each.name.rpartition("_")[0] or each.name for each in files] == ["seen.pcapng", "seen_00002"]
    for number, each in zip((before, behind), read, strict=True):
        assert number in [frame["fields"]["sequence_id"] for frame in _lines(each)]


@needs_proc
def test_watchers_that_are_killed_with_their_keeper() -> None:
    with Proxied("--tap", "--fault", "drop command=PING") as proxy:
        with proxy.session() as session:
            session.talk(TALK[:-2])
            proxy.out.line("ACK")
            (keeper,) = children(proxy.process.pid)
            watcher = proxy.watcher
            os.kill(keeper, signal.SIGKILL)
            session.talk(TALK[:-2])
            os.kill(watcher, signal.SIGKILL)
            proxy.err.line("^pwire: the watcher has ended; forwarding goes on without it$")
            session.broker.sendall(PING)
            session.pass_on(True, _sends(1000, 100_000))  # more than there is room for in the ring
            session.talk(TALK[:-2])
        assert proxy.stop() == EXIT_OUTPUT
    assert len(proxy.err.line("the watcher has ended")) == 1


@needs_proc
def test_a_proxy_that_is_killed(tmp_path: Path) -> None:
    """Nobody is left behind, and what was seen is shown and recorded."""
    record = tmp_path / "seen.pcapng"
    with Proxied("--tap", "-o", "json", "--record", record, "--stats", "--metrics", ":0") as proxy:
        with proxy.session() as session:
            session.talk(TALK)
            assert len(children(proxy.process.pid)) == 1
            proxy.out.line('"command":"PONG"')
            proxy.kill(signal.SIGKILL)
            assert receive(session.client, 1) == b""
        assert proxy.wait() == -signal.SIGKILL  # out and err have ended, so nobody has them open
        read = decode("-o", "json", record, home=proxy.home).stdout
    assert len(proxy.out.lines) == len(TALK)
    assert _without_packets(read) == _without_packets(proxy.out.text)


def test_notes_are_made_safe_for_the_terminal() -> None:
    evil: Any = {"topic": EVIL, "producer_name": EVIL, "producer_id": 1, "request_id": 1}
    args = ("--tap", "--through", "--fault", "drop command=PRODUCER", "--fault", "drop command=LOOKUP")
    with Proxied(*args) as proxy:
        with proxy.connect() as client, proxy.connect() as other:
            client.sendall(CONNECT)
            with proxy.accept() as broker:
                receive(broker, len(CONNECT))
                client.sendall(build("PRODUCER", **evil) + build("LOOKUP", topic=EVIL, request_id=2) + PING)
                receive(broker, len(PING))
                other.sendall(build("CONNECT", client_version=EVIL, proxy_to_broker_url=EVIL))
                proxy.err.line("CONNECT names")
        assert proxy.stop() == 0
    assert len(proxy.err.line("#1 drop: PRODUCER")) == len(proxy.err.line("#2 drop: LOOKUP")) == 1
    for text in (proxy.err.text, proxy.out.text):
        assert all(line.isprintable() for line in text.splitlines())
        assert text.splitlines() == text.split("\n")[:-1]


def test_numbers_are_the_same_in_tap_and_record_where_a_broker_was_not_there(tmp_path: Path) -> None:
    record = tmp_path / "seen.pcapng"
    with Proxied("--tap", "-o", "json", "--record", record) as proxy:
        _talk(proxy)
        where = proxy.upstream.getsockname()
        proxy.upstream.close()
        with proxy.connect() as client, pytest.raises(ConnectionResetError):
            receive(client, 1)
        proxy.err.line(TIMED + "connection 1: no connection to the broker: ")
        with socket.create_server(where) as proxy.upstream:
            _talk(proxy)
        assert proxy.stop() == 0
        read = decode("-o", "json", record, home=proxy.home).stdout
    assert {each["connection"] for each in frames(proxy.out.records)} == {0, 2}
    assert _without_packets(read) == _without_packets(proxy.out.text)
