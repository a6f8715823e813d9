"""`pwire conform fuzz`: it finds faults that are planted in the embedded broker, and no others."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from interop.running import Program
from pwire_run import pwire

from pulsarctl_wire.broker.core import Core
from pulsarctl_wire.cli.conform.fuzzing import Scripts
from pulsarctl_wire.conformance.basics.frames import make_frame, make_raw_frame, make_send, wrap
from pulsarctl_wire.conformance.basics.target import BrokerAccess, RemoteTarget
from pulsarctl_wire.conformance.fuzzing.fuzzer import MAX_FINDINGS, Finding, Fuzzer, Plan, Tally
from pulsarctl_wire.conformance.fuzzing.generate import generate
from pulsarctl_wire.conformance.fuzzing.judge import Judge, Problem
from pulsarctl_wire.conformance.fuzzing.mutate import KINDS, make_session
from pulsarctl_wire.conformance.fuzzing.reduce import minimise
from pulsarctl_wire.conformance.fuzzing.script import write_line, write_script
from pulsarctl_wire.conformance.fuzzing.session import TOKEN, Change, Memory, Step, encode
from pulsarctl_wire.net.settings import parse_url
from pulsarctl_wire.testing import Broker
from pulsarctl_wire.wire.commands import TO_BROKER
from pulsarctl_wire.wire.frame import Connection, Frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.json_command import parse_line

FUZZER = "pulsarctl_wire.conformance.fuzzing.fuzzer"
CONNECT = make_frame("CONNECT", client_version="t", protocol_version=21)
PRODUCER = make_frame("PRODUCER", topic="t", producer_id=1, request_id=1)
PROBLEM = Problem("kind", "expected", "actual")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def fuzz(url: str, **plan: Any) -> Tally:
    """Fuzz a broker; what came of it."""
    access = BrokerAccess(parse_url(url).addresses[0], "t")
    fields = {
        "seed": 1,
        "seconds": 60.0,
        "patience": 0.3,
        "reduction_seconds": 20.0,
        "max_findings": 1,
        **plan,
    }
    fuzzer = Fuzzer(Plan(lambda: RemoteTarget(access), **fields), lambda finding: None, lambda tally: None)
    asyncio.run(fuzzer.run())
    return fuzzer.tally


# -- faults that are planted

Receive = Callable[[Any, Any, Frame], None]


def end_others(receive: Receive) -> Receive:
    """A SEND with metadata that cannot be read ends all other connections."""

    def receive_wrongly(core: Any, connection: Any, frame: Frame) -> None:
        receive(core, connection, frame)
        if frame.command == "SEND" and frame.metadata is None:
            for other in list(core.brokers[0].connections.values()):
                if other is not connection:
                    other.close()

    return receive_wrongly


def accept_checksums(receive: Receive) -> Receive:
    """A SEND with a wrong checksum is stored."""

    def receive_wrongly(core: Any, connection: Any, frame: Frame) -> None:
        frame.checksum = frame.checksum and "valid"
        receive(core, connection, frame)

    return receive_wrongly


def fall_silent(receive: Receive) -> Receive:
    """After a SEND without a checksum, the connection is not served any more."""
    silent = set()

    def receive_wrongly(core: Any, connection: Any, frame: Frame) -> None:
        if frame.command == "SEND" and frame.checksum == "absent" and connection.producers:
            silent.add(connection)
        if connection not in silent:
            receive(core, connection, frame)

    return receive_wrongly


def ignore_commands_of_brokers(receive: Receive) -> Receive:
    """What only brokers send is ignored, if the client is connected."""

    def receive_wrongly(core: Any, connection: Any, frame: Frame) -> None:
        if TO_BROKER.get(frame.type, True):
            receive(core, connection, frame)

    return receive_wrongly


Plant = Callable[[Receive], Receive]
PLANTED: dict[Plant, tuple[str, set[str], int]] = {
    end_others: ("bystander not served", {"SEND"}, 300),
    accept_checksums: ("wrong checksum accepted", {"PRODUCER", "SEND"}, 100),
    fall_silent: ("not served", {"SEND"}, 100),
    ignore_commands_of_brokers: ("not refused", set(), 100),
}


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_fault_is_found(plant: Plant, tmp_path: Path) -> None:
    kind, commands, sessions = PLANTED[plant]
    with Broker() as broker, patch.object(Core, "receive", plant(Core.receive)):
        tally = fuzz(broker.service_url, max_sessions=sessions)
        (finding,) = tally.findings
        assert (finding.problem.kind, finding.is_repeatable) == (kind, True)
        assert commands <= {step.command for step in finding.session.steps}
        assert len(finding.session.steps) <= len(commands) + 2
        assert sum(len(step.changes) for step in finding.session.steps) <= 1
        path = tmp_path / "script.jsonl"
        path.write_text(write_script(finding.exchanges, ["why"]))
        run = pwire("send", "--url", broker.service_url, "--no-handshake", path, "--idle", "0.3")
        assert run.code in (0, 6, 7, 8)
        assert path.name not in run.err


def test_a_second_answer_is_found(tmp_path: Path) -> None:
    with Broker() as broker:
        broker.add_fault("duplicate command=GET_SCHEMA_RESPONSE")
        out = tmp_path / "findings"
        options = ["--seed", "1", "--sessions", "100", "--out", out]
        run = pwire("conform", "fuzz", broker.service_url, *map(str, options))
        assert run.code == 1
        (path,) = out.iterdir()
        assert run.lines[0].startswith("unrequested GET_SCHEMA_RESPONSE: expected 1 answers to requests ")
        assert run.lines[1] == f"    {path}"
        assert "; 1 finding; seed 1" in run.lines[-1]
        lines = path.read_text().splitlines()
        assert sum(not line.startswith(("#", '{"expect"')) for line in lines) == 3  # with PING at the end
        shown = pwire("send", "--url", broker.service_url, "--no-handshake", path)
        assert shown.out.count(b"GET_SCHEMA_RESPONSE") == 2


def test_a_broker_that_does_not_recover_is_a_finding() -> None:
    """It cannot be reduced, as nothing can be tried any more."""
    deaf = False

    def receive(core: Any, connection: Any, frame: Frame) -> None:
        nonlocal deaf
        deaf = deaf or (frame.command == "SEND" and frame.checksum == "invalid")
        if not deaf:
            original(core, connection, frame)

    original = Core.receive
    with Broker() as broker, patch.object(Core, "receive", receive), patch(f"{FUZZER}._RETURN", 0.3):
        tally = fuzz(broker.service_url, max_sessions=100)
    (finding,) = tally.findings
    assert (finding.problem.kind, finding.is_repeatable) == ("bystander not served", False)
    assert tally.sessions < 100


def test_a_broker_that_is_gone_is_a_finding() -> None:
    broker = Broker()
    broker.start()

    def receive(core: Any, connection: Any, frame: Frame) -> None:
        if frame.command == "SEND" and frame.checksum == "invalid":
            for state in list(core.brokers[0].connections.values()):
                state.close()
            core.brokers[0].alive = False  # new connections are refused
        else:
            original(core, connection, frame)

    original = Core.receive
    try:
        with patch.object(Core, "receive", receive), patch(f"{FUZZER}._RETURN", 0.3):
            tally = fuzz(broker.service_url, max_sessions=100)
    finally:
        broker.stop()
    (finding,) = tally.findings
    assert not finding.is_repeatable
    assert any(change.part == "checksum" for step in finding.session.steps for change in step.changes)


# -- a broker that is right


def test_nothing_is_found_in_a_broker_that_is_right(broker: Broker) -> None:
    tally = fuzz(broker.service_url, max_sessions=300, seed=7, patience=10.0)
    assert not tally.findings
    assert tally.sessions == 300
    assert set(tally.mutations) == set(KINDS)


def test_the_command(broker: Broker, tmp_path: Path) -> None:
    out = tmp_path / "out"
    args: list[str | Path] = ["conform", "fuzz", broker.service_url, "--sessions", "30", "--out", out]
    run = pwire(*args)
    assert (run.code, run.err, len(run.lines)) == (0, "", 1)
    assert re.match(r"30 sessions, \d+ frames; mutations: .*; 0 findings; seed \d+$", run.lines[0])
    assert not out.exists()
    seed = run.lines[0].split()[-1]
    assert pwire(*args, "--seed", seed).lines[0].partition(";")[2] == run.lines[0].partition(";")[2]


def test_tls_and_credentials(tmp_path: Path) -> None:
    """Of what a script shows, the credentials are left out."""
    password_file = tmp_path / "users"
    password_file.write_text("me:$apr1$salt$0yHmWLFTZkZIkXcc4g3xx0\n")
    with Broker(tls=True) as broker:
        broker.add_fault("duplicate command=GET_SCHEMA_RESPONSE")
        options = ["--tls-ca", broker.ca_file, "--token", "hush-hush", "--seed", "1", "--sessions", "60"]
        run = pwire("conform", "fuzz", broker.service_url_tls, *options, "--out", tmp_path / "out")
    assert run.code == 1
    text = "".join(path.read_text() for path in (tmp_path / "out").iterdir())
    assert "CREDENTIALS" in text
    assert "hush" not in text + run.out.decode() + run.err
    assert b"hush".hex() not in text


def test_ctrl_c_ends_it() -> None:
    command = [sys.executable, "-c", "from pulsarctl_wire.cli import main; main()", "conform", "fuzz"]
    with Broker() as broker:
        broker.add_fault("duplicate command=GET_SCHEMA_RESPONSE")
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen([*command, broker.service_url, "--minutes", "9"], text=True, **streams)  # type: ignore[call-overload]
        with Program(process) as program:
            program.lines(2)
            assert program.interrupt() == 1
    assert re.search(r" sessions, .*; \d finding", program.out[-1])
    assert not program.err


def test_it_stops_even_if_nobody_cancels_it() -> None:
    with Broker() as broker:
        access = BrokerAccess(parse_url(broker.service_url).addresses[0], "x")
        plan = Plan(lambda: RemoteTarget(access), 1, 600.0, 2, 2.0)
        fuzzer = Fuzzer(plan, lambda finding: None, lambda tally: fuzzer.stop())
        asyncio.run(fuzzer.run())
    assert fuzzer.tally.sessions == 2


def test_texts_of_a_broker_stay_on_their_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem = PROBLEM._replace(actual='ERROR {message=a\n{"command": "CONNECT"}\x1b[31m}')
    Scripts(str(tmp_path), "pulsar://localhost", 1).write(Finding(problem, make_session(1, 1), []))
    (path,) = tmp_path.iterdir()
    assert all(line.startswith("#") for line in path.read_text().splitlines())
    assert "\x1b" not in path.read_text() + capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "code", "complaint"),
    [
        (["pulsar://192.0.2.1:6650"], 2, "not on this machine; say --remote"),
        (["pulsar://127.0.0.1:1"], 6, "127.0.0.1:1: refused"),
        (["pulsar://127.0.0.1:1", "--remote"], 6, "127.0.0.1:1: refused"),
        (["http://127.0.0.1:1"], 2, "web service URL"),
    ],
)
def test_what_cannot_be_done(args: Sequence[str], code: int, complaint: str) -> None:
    run = pwire("conform", "fuzz", *args)
    assert run.code == code
    assert complaint in run.err
    assert len(run.err.splitlines()) == 1


# -- sessions


def test_seeds_repeat() -> None:
    sessions = [make_session(3, number) for number in range(50)]
    assert sessions == [make_session(3, number) for number in range(50)]
    assert sessions != [make_session(4, number) for number in range(50)]


def test_sessions_are_valid_unless_they_are_mutated() -> None:
    commands = Counter[str]()
    for number in range(300):
        judge = Judge()
        for step in generate(Random(number)).steps:
            judge.note_sent(encode(step, Memory()))
            commands[step.command] += 1
        assert judge.is_complete
        assert not judge.is_ambiguous
    assert {"SEND", "ACK", "SEEK", "REDELIVER_UNACKNOWLEDGED_MESSAGES", "WATCH_TOPIC_LIST", "END_TXN"} <= set(
        commands
    )


def test_scripts_send_the_same_bytes() -> None:
    forms = Counter[str]()
    for number in range(80):
        for step in make_session(5, number).steps:
            data = encode(step, Memory())
            line = write_line(data)
            assert parse_line(line) == data or not data
            forms[line[:1] if line.startswith("{") else "hex"] += 1
    assert forms["{"] > forms["hex"] > 10


def change(part: str, action: str, path: tuple[int, ...] = (), value: int | bytes = 0) -> Step:
    fields = {"topic": f"t-{TOKEN}", "producer_id": 1, "request_id": 1}
    return Step("PRODUCER", fields, changes=(Change(part, action, path, value),))


def test_changes() -> None:
    def body(step: Step) -> Any:
        (frame,) = FrameStream(Connection(0), True).feed(encode(step, Memory("abcdefgh")))
        assert isinstance(frame, Frame)
        return frame.body

    assert body(change("command", "number", (5, 2), 7)).producer_id == 7
    assert body(change("command", "bytes", (5, 4), b"name")).producer_name == "name"
    assert body(change("frame", "cut", (), 1000)).topic == "t-abcdefgh"
    assert not body(change("command", "missing", (5, 1))).HasField("topic")
    assert len(body(change("command", "bytes", (5, 6), b"")).metadata) == 1
    assert encode(change("total_size", "add", (), -1), Memory())[3] == encode(change("", ""), Memory())[3] - 1
    assert encode(change("command_size", "set", (), 2**32 - 1), Memory())[4:8] == b"\xff" * 4


# -- judging


def judged(*sent: bytes, came: Sequence[bytes] = ()) -> tuple[str, list[str]]:
    """What a judge says of bytes that were sent and came: the offence, and kinds of problems."""
    judge = Judge()
    for data in sent:
        judge.note_sent(data)
    for frame in FrameStream(Connection(0), False).feed(b"".join(came)):
        assert isinstance(frame, Frame)
        judge.receive(frame)
    return judge.offence, [problem.kind for problem in judge.problems]


@pytest.mark.parametrize(
    ("data", "offence"),
    [
        (CONNECT, "a second CONNECT"),
        (make_frame("SUCCESS", request_id=1), "SUCCESS, which only brokers send"),
        (make_raw_frame("PRODUCER", producer_id=1), "PRODUCER without a required field"),
        (wrap(b"\x08\x05"), "PRODUCER without its sub-message"),
        (wrap(b"\x08\x63"), "a command of the unknown type 99"),
        (b"\xff\xff\xff\xff", "a TOTAL_SIZE of 4294967295"),
        (wrap(b"\x08\x12\x92\x01\x00", size=100), "a TOTAL_SIZE of 9 and a COMMAND_SIZE of 100"),
        (wrap(b"\x08\x12\x92\x01\x00", size=100)[:-1], ""),  # the broker waits for its end
        (PRODUCER, ""),
    ],
)
def test_what_ends_a_connection(data: bytes, offence: str) -> None:
    assert judged(CONNECT, data)[0] == offence


def test_commands_before_connect() -> None:
    assert judged(PRODUCER)[0] == "PRODUCER before CONNECT"
    assert judged(make_frame("PING"), make_frame("PONG"))[0] == ""


SUCCESS = make_frame("PRODUCER_SUCCESS", request_id=1, producer_name="p")
QUEUED = make_frame("PRODUCER_SUCCESS", request_id=1, producer_name="p", producer_ready=False)
ERROR = make_frame("ERROR", request_id=1, error=1, message="")
RECEIPT = make_frame("SEND_RECEIPT", producer_id=1, sequence_id=0)
MESSAGE_ID = {"ledgerId": 1, "entryId": 0}
FLOW = make_frame("FLOW", consumer_id=1, messagePermits=1)
BAD = bytearray(make_send())
BAD[-1] ^= 1


@pytest.mark.parametrize(
    ("sent", "came", "kinds"),
    [
        ([PRODUCER], [SUCCESS], []),
        ([PRODUCER], [QUEUED, SUCCESS], []),
        ([PRODUCER], [SUCCESS, SUCCESS], ["unrequested PRODUCER_SUCCESS"]),
        ([PRODUCER], [SUCCESS, ERROR], ["unrequested second answer"]),
        ([PRODUCER, PRODUCER], [SUCCESS, ERROR], []),
        ([], [make_frame("ERROR", request_id=2**64 - 1, error=1, message="")], []),
        ([make_send()], [RECEIPT], []),
        ([make_send()], [RECEIPT, RECEIPT], ["unrequested SEND_RECEIPT"]),
        ([bytes(BAD)], [RECEIPT], ["wrong checksum accepted"]),
        ([], [make_frame("PONG")], ["unrequested PONG"]),
        ([make_frame("PING")], [make_frame("PONG")], []),
        ([], [make_frame("MESSAGE", consumer_id=1, message_id=MESSAGE_ID)], ["unrequested MESSAGE"]),
        ([FLOW], [make_frame("MESSAGE", consumer_id=1, message_id=MESSAGE_ID)], []),
        ([], [PRODUCER], ["no command of a broker"]),
        ([], [make_raw_frame("SUCCESS")], ["incomplete frame"]),
    ],
)
def test_what_a_broker_may_send(sent: list[bytes], came: list[bytes], kinds: list[str]) -> None:
    assert judged(CONNECT, *sent, came=came) == ("", kinds)


def test_reduction_keeps_what_is_needed() -> None:
    calls = 0

    async def are_enough(items: Sequence[int]) -> bool:
        nonlocal calls
        calls += 1
        return {3, 17} <= set(items)

    assert asyncio.run(minimise(range(40), are_enough)) == [3, 17]
    assert calls < 60


def test_a_finding_explains_others() -> None:
    finding = Finding(PROBLEM, make_session(1, 1), [])
    assert finding.explains(make_session(1, 1), PROBLEM)
    assert not finding.explains(make_session(1, 1), PROBLEM._replace(kind="other"))
    assert not finding.explains(make_session(1, 2), PROBLEM)


def test_the_document_is_right() -> None:
    text = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text()
    section = text.partition("\n## Fuzzing\n")[2].partition("\n## ")[0]
    names = re.findall(r"^\| `([^|]+)` \|", section, re.MULTILINE)
    assert [name for name in names if name in KINDS] == list(KINDS)
    assert f"early with {MAX_FINDINGS} findings" in section


def test_answers_of_commands_that_are_not_noted_are_not_judged() -> None:
    sent = (
        make_frame("CONNECT", client_version="c", protocol_version=21),
        make_frame("SCALABLE_TOPIC_LOOKUP", session_id=1, topic="persistent://public/default/x"),
    )
    assert judged(*sent, came=[make_frame("SCALABLE_TOPIC_UPDATE", session_id=1)]) == ("", [])
