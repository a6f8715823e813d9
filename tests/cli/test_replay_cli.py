"""`pwire replay`: what it prints and how it ends, against a broker that answers as was recorded."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from pwire_run import SAMPLES, Pcap, Run, pwire
from segments import build, message, receipt
from tls_samples import TLS_SAMPLES, Recorded

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.capture.reading import Sources
from pulsarctl_wire.cli.session.replay import Report, read_events
from pulsarctl_wire.net.frame_socket import FrameSocket
from pulsarctl_wire.net.protocol import FrameProtocol
from pulsarctl_wire.net.replay.comparison import ReplayTotals
from pulsarctl_wire.net.replay.differences import Difference
from pulsarctl_wire.net.replay.replay import ConnectionEnded
from pulsarctl_wire.wire.commands import NUMBERS
from pulsarctl_wire.wire.frame import Connection, Event, Frame
from pulsarctl_wire.wire.framing.stream import FrameStream

UNASKED = {NUMBERS["PONG"], NUMBERS["AUTH_RESPONSE"]}
"""What the player sends when it is asked, not when it was recorded."""

WHOLE = [
    *("python-simple", "java-simple", "java-batch-zlib", "java-batchindexack", "java-brokerentry"),
    *("java-encrypted", "java-keyshared", "java-keyvalue-protobuf", "java-nack-dlq", "python-partitioned"),
    *("python-schemas", "chunks-out-of-order", "corrupt-in-transit", "no-checksum", "errors", "auth-token"),
    *("ipv6", "linktype-sll2", "nano"),
]
Step = tuple[Frame, list[Event | ConnectionEnded]]
"""What a client sent, and what came before it sent anything else."""


def recorded(path: Path) -> list[list[Step]]:
    """What there is to be played of a capture, by connection."""
    connections: dict[int, list[Step]] = {}
    with ExitStack() as stack:
        for event in read_events(Sources([str(path)], stack, bar=False), []):
            index = event.connection.index
            if isinstance(event, Frame) and event.to_broker:
                first = event.type == NUMBERS["CONNECT"]
                if (index in connections or first) and event.type not in UNASKED:
                    connections.setdefault(index, []).append((event, []))
            elif connections.get(index):
                connections[index][-1][1].append(event)
    return list(connections.values())


class AsRecorded(FrameSocket):
    """A broker's side of a recorded connection: says what was recorded whenever the client did its part."""

    def __init__(self, steps: list[Step], seen: list[Frame]) -> None:
        super().__init__(FrameProtocol(Connection(0), to_broker=True))
        self._steps = iter(steps)
        self._seen = seen

    def handle(self, event: Event) -> None:
        if isinstance(event, Frame) and event.type not in UNASKED:
            self._seen.append(event)
            self._answer(next(self._steps)[1])

    def _answer(self, events: list[Event | ConnectionEnded]) -> None:
        for event in events:
            if isinstance(event, Frame) and self.is_open:
                self.send(event.raw)
            elif isinstance(event, ConnectionEnded) and event.by_broker:
                self.transport.close()


@contextmanager
def broker(connections: list[list[Step]]) -> Iterator[tuple[str, list[Frame]]]:
    """A broker in a thread of its own that takes so many connections; its URL, and what it gets."""
    seen: list[Frame] = []
    rest = iter(connections)
    loop = asyncio.new_event_loop()
    listening = socket.create_server(("127.0.0.1", 0))

    def make() -> AsRecorded:
        return AsRecorded(next(rest), seen)

    server = loop.run_until_complete(loop.create_server(make, sock=listening))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"pulsar://127.0.0.1:{listening.getsockname()[1]}", seen
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def replay(sample: str | Path, *args: str, of: str | None = None) -> Run:
    """Play a sample to a broker that answers as was recorded (in the sample `of`)."""
    path = SAMPLES / f"{sample}.pcap" if isinstance(sample, str) else sample
    with broker(recorded(SAMPLES / f"{of}.pcap" if of else path)) as (url, _):
        return pwire("replay", path, "--to", url, "--answer-timeout", "5", *args)


@pytest.mark.parametrize("name", WHOLE)
def test_a_broker_that_answers_as_recorded_differs_in_nothing(name: str) -> None:
    path = SAMPLES / f"{name}.pcap"
    connections = recorded(path)
    with broker(connections) as (url, seen):
        run = pwire("replay", path, "--to", url)
    assert run.code == 0, (run.out, run.err)
    greeting = NUMBERS["CONNECT"]  # which may lose the proxy's part of it
    sent = [frame.raw for steps in connections for frame, _ in steps if frame.type != greeting]
    assert sorted(frame.raw for frame in seen if frame.type != greeting) == sorted(sent)
    [summary] = run.lines
    assert summary.endswith(" exchanges, 0 differ, 0 unanswered")
    assert int(summary.split()[0]) > 0


def test_tls_is_opened_with_a_key_log(tmp_path: Path) -> None:
    sample, keys = Recorded("tls13"), tmp_path / "keys.txt"
    keys.write_bytes(sample.keys)
    closed = sample.write(tmp_path / "closed.pcapng")
    with broker(recorded(TLS_SAMPLES / "tls13.pcapng")) as (url, seen):
        run = pwire("replay", closed, "--read-keylog", keys, "--to", url)
    assert (run.code, len(seen)) == (0, 15), run.err
    assert pwire("replay", closed, "--to", "pulsar://127.0.0.1:1").code == console.EXIT_SOURCE


def test_differences_are_lines_and_the_exit_code_is_9() -> None:
    answers = recorded(SAMPLES / "python-simple.pcap")
    receipts = [
        event
        for _, events in answers[0]
        for event in events
        if isinstance(event, Frame) and event.command == "PRODUCER_SUCCESS"
    ]
    error = FrameStream(Connection(0), False).feed(
        bytes.fromhex(
            "0000001b 00000017 080e 7213 0801 1010 1a0d 7461 6b656e 1b5b33316d 6e6f77".replace(" ", "")
        )
    )
    assert isinstance(error[0], Frame)
    receipts[0].raw = error[0].raw
    with broker(answers) as (url, _):
        text = pwire("replay", SAMPLES / "python-simple.pcap", "--to", url)
    assert text.code == console.EXIT_DIFFERS
    topic = "persistent://public/default/python-simple-orders"
    assert text.lines == [
        f"connection 0 #15 PRODUCER_SUCCESS {topic}: command PRODUCER_SUCCESS → ERROR, "
        r"error nothing → ProducerBusy, message nothing → taken\x1b[31mnow",
        "29 exchanges, 1 differ, 0 unanswered",
    ]
    with broker(answers) as (url, _):
        told = pwire("replay", SAMPLES / "python-simple.pcap", "--to", url, "-o", "json")
    difference, total = told.records
    assert (difference["kind"], difference["frame"], difference["request"]) == ("differs", 15, 14)
    assert difference["topic"] == topic
    assert difference["fields"]["error"] == {"recorded": None, "replayed": "ProducerBusy"}
    assert total == {
        "exchanges": 29,
        "differ": 1,
        "unanswered": 0,
        "consequences": 0,
        "connections": 1,
        "sent": 21,
        "unsent": 0,
    }


def test_missing_and_unexpected_answers_and_lost_connections_are_lines_too() -> None:
    run = replay("python-simple", "--answer-timeout", "0.05", of="java-simple")
    assert run.code == console.EXIT_DIFFERS
    kinds = ("did not come", "not in the recording", "→")
    assert all(any(kind in line for line in run.lines) for kind in kinds)
    short = recorded(SAMPLES / "python-simple.pcap")
    [steps] = short
    steps[3][1][:] = [ConnectionEnded(Connection(0), True, None)]
    with broker(short) as (url, _):
        lost = pwire("replay", SAMPLES / "python-simple.pcap", "--to", url)
    assert any(line.startswith("connection 0: closed: 127.0.0.1:") for line in lost.lines)
    assert lost.lines[-1].endswith(" frames could not be sent")


def test_a_connection_is_chosen_by_number_port_or_address() -> None:
    all_of_them = recorded(SAMPLES / "auth-token.pcap")
    with broker(all_of_them[1:2]) as (url, seen):
        run = pwire("replay", SAMPLES / "auth-token.pcap", "--to", url, "--connection", "1", "-o", "json")
    assert run.code == 0, run.err
    assert run.records[-1]["connections"] == 1
    assert [frame.raw for frame in seen] == [frame.raw for frame, _ in all_of_them[1]]


def test_names_are_changed_and_a_rule_of_no_use_is_said() -> None:
    with broker(recorded(SAMPLES / "python-simple.pcap")) as (url, seen):
        flags = ["--rename", "billing=audit", "--rename", "nobody=anybody", "--suffix=-2"]
        run = pwire("replay", SAMPLES / "python-simple.pcap", "--to", url, *flags)
    assert run.code == 0, run.out
    assert run.complaints == ["pwire: --rename nobody=anybody: nothing in the replay is named nobody"]
    [subscribe] = [frame.body for frame in seen if frame.command == "SUBSCRIBE"]
    assert subscribe.subscription == "audit"
    assert subscribe.topic.endswith("/python-simple-orders-2")


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ([], "give --to URL"),
        (["--to", "pulsar://a", "--url", "pulsar://b"], "give --to URL"),
        (["--to", "ftp://a"], "a service URL begins with"),
        (["--to", "a", "--speed", "fast"], "--speed fast: use a number such as 2 or 0.5, or max"),
        (["--to", "a", "--speed", "nan"], "--speed nan"),
        (["--to", "a", "--speed=-1"], "--speed -1"),
        (["--to", "a", "--rename", "x"], "--rename x: use A=B"),
        (["--to", "a", "--rename", "x/y=z"], "--rename x/y=z: 'z' is not a valid namespace"),
        (["--to", "a", "--suffix", "/"], "--suffix /: "),
        (["--to", "a", "--suffix", "\x1b[m"], r"--suffix \x1b[m: it has unprintable characters"),
    ],
)
def test_a_wrong_command_line_is_one_line(flags: list[str], complaint: str) -> None:
    run = pwire("replay", SAMPLES / "python-simple.pcap", *flags)
    assert run.code == console.EXIT_USAGE
    [line] = run.err.splitlines()
    assert complaint in line


def test_nobody_there() -> None:
    run = pwire("replay", SAMPLES / "python-simple.pcap", "--to", "pulsar://127.0.0.1:1")
    assert (run.code, run.out) == (console.EXIT_UNREACHABLE, b"")
    assert len(run.err.splitlines()) == 1


@pytest.mark.parametrize("name", ["snaplen96", "http-client-on-binary-port"])
def test_a_capture_that_has_nothing_to_play(name: str) -> None:
    run = replay(name)
    assert (run.code, run.out) == (console.EXIT_SOURCE, b"")
    assert "nothing was replayed" in run.complaints[-1]


def test_a_capture_that_breaks_off_is_played_as_far_as_it_goes(tmp_path: Path) -> None:
    cut = tmp_path / "cut.pcap"
    cut.write_bytes((SAMPLES / "python-simple.pcap").read_bytes()[:-20])
    run = replay(cut, of="python-simple")
    assert run.code == console.EXIT_DAMAGED, run.out
    assert run.lines[-1].endswith(" 0 differ, 0 unanswered")
    missing = replay(tmp_path / "none.pcap", of="python-simple")
    assert missing.code == console.EXIT_SOURCE


def test_what_was_not_captured_is_said_and_the_rest_is_played(tmp_path: Path) -> None:
    holes = tmp_path / "holes.pcap"
    holes.write_bytes(Pcap.read("python-simple.pcap").without([40]).file)
    with broker(recorded(holes)) as (url, _):
        run = pwire("replay", holes, "--to", url, "--answer-timeout", "1")
    assert "are missing in what" in run.err
    assert run.code == 0, (run.out, run.err)


def test_what_follows_from_a_difference_is_counted_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    def came(raw: bytes, number: int) -> Frame:
        [frame] = FrameStream(Connection(0), False).feed(raw)
        assert isinstance(frame, Frame)
        frame.number = number
        return frame

    success = came(build("PRODUCER_SUCCESS", request_id=1, producer_name="p"), 4)
    busy = came(build("ERROR", request_id=1, error=1, message="busy"), 4)
    fields = {"command": ("PRODUCER_SUCCESS", "ERROR")}
    found = [Difference("differs", 0, success, busy, fields, number=1)]
    found += [
        Difference("missing", 0, came(receipt(sequence), 6 + sequence), number=2 + sequence, cause=1)
        for sequence in range(3)
    ]
    found.append(Difference("missing", 0, came(message(b"", 9), 20), number=5))
    totals = ReplayTotals()
    totals.exchanges, totals.differ, totals.unanswered, totals.consequences = 5, 1, 1, 3
    for output in ("text", "json"):
        report = Report(output)
        for each in found:
            report.add(each)
        report.close(totals)
        if output == "text":
            assert capsys.readouterr().out.splitlines() == [
                "connection 0 #4 PRODUCER_SUCCESS: command PRODUCER_SUCCESS → ERROR",
                "connection 0 #20 MESSAGE consumer=2 sequence=9: did not come",
                "connection 0 #4 PRODUCER_SUCCESS: and 3 consequences (3 SEND_RECEIPT missing)",
                "5 exchanges, 1 differ, 1 unanswered, 3 consequences of these",
            ]
    *told, total = map(json.loads, capsys.readouterr().out.splitlines())
    assert [(each["number"], each.get("cause")) for each in told] == [
        (1, None),
        (2, 1),
        (3, 1),
        (4, 1),
        (5, None),
    ]
    assert (told[1]["producer_id"], told[1]["sequence_id"]) == (1, 0)
    assert (told[4]["consumer_id"], told[4]["sequence_id"], total["consequences"]) == (2, 9, 3)
