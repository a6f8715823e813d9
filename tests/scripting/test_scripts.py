"""The scripts of docs/scripts, and what scripts can do, in lanes as those of the proxy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from faults.traffic import command, decoded, receipt, send
from hypothesis import given
from strategies import message_frames

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.faults.base import Note, Send, Wake
from pulsarctl_wire.faults.lanes import FaultLane, Faults
from pulsarctl_wire.scripting import Frame
from pulsarctl_wire.scripting.fault import MAX_HELD_BYTES, Script
from pulsarctl_wire.scripting.program import Program
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.frame import Frame as DecodedFrame
from pulsarctl_wire.wire.frame import build_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import MessageMetadata

SCRIPTS = Path(__file__).parents[2] / "docs" / "scripts"
CONNECTED = command("CONNECTED", server_version="x", protocol_version=21, feature_flags={})


class Lanes:
    """Both lanes of connection 0 with a script. `now` is in seconds; `notes` are without the path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.faults = Faults(1)
        self.faults.add(Script(program=Program(str(path)), file=str(path)))
        self.lanes = {way: FaultLane(self.faults, 0, way) for way in (True, False)}
        self.now = 0.0
        self.notes: list[str] = []
        self.answers: list[DecodedFrame] = []
        self.wakes: list[float] = []

    def take(self, frame: DecodedFrame | None, to_broker: bool | None = None) -> list[DecodedFrame]:
        """What goes on in place of a frame, or now."""
        way = frame.to_broker if frame is not None else bool(to_broker)
        lane = self.lanes[way]
        return self._read(lane.take(frame.raw if frame is not None else b"", frame, self.now), way)

    def _read(self, actions: list[Any], way: bool) -> list[DecodedFrame]:
        passed = []
        for action in actions:
            if isinstance(action, Note):
                self.notes.append(action.text.removeprefix(f"{self.path}: "))
            elif isinstance(action, Wake):
                self.wakes.append(action.at)
            elif isinstance(action, Send) and action.back:
                self.answers.append(decoded(action.data, not way))
            else:
                assert isinstance(action, Send)
                passed.append(decoded(action.data, way))
        return passed

    def end(self) -> None:
        for lane in self.lanes.values():
            self.notes += [note.text.removeprefix(f"{self.path}: ") for note in lane.end()]


def script(name: str) -> Lanes:
    return Lanes(SCRIPTS / f"{name}.py")


def written(folder: Path, text: str) -> Lanes:
    path = folder / "script.py"
    path.write_text(f"from pulsarctl_wire.scripting import *\n{text}")
    return Lanes(path)


def keyed(sequence: int, key: str = "", **fields: Any) -> DecodedFrame:
    """A SEND of a message with a key."""
    metadata = MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=1, **fields)
    if key:
        metadata.partition_key = key
    return decoded(build_frame(build_command("SEND", producer_id=1, sequence_id=sequence), metadata, b"x"))


def delivered(payload: bytes = b"hello", topic: str | None = None) -> DecodedFrame:
    """A MESSAGE."""
    base = build_command("MESSAGE", consumer_id=1, message_id={"ledgerId": 1, "entryId": 2})
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    frame = decoded(build_frame(base, metadata, payload), to_broker=False)
    frame.topic = topic
    return frame


# -- docs/scripts


def test_every_script_has_a_test() -> None:
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in SCRIPTS.glob("*.py")} <= tested
    assert len(list(SCRIPTS.glob("*.py"))) >= 10


def test_delay_key() -> None:
    lanes = script("delay_key")
    assert lanes.take(keyed(0, "slow")) == []
    assert [frame.body.sequence_id for frame in lanes.take(keyed(1, "fast"))] == [1]
    (lanes.now,) = lanes.wakes
    assert lanes.now == 2.0
    assert [frame.body.sequence_id for frame in lanes.take(None, to_broker=True)] == [0]
    assert lanes.notes == ["SEND: delayed 2 s"]


def test_corrupt_payloads() -> None:
    lanes = script("corrupt_payloads")
    passed = [frame for _ in range(200) for frame in lanes.take(delivered())]
    assert [number for number, frame in enumerate(passed, 1) if frame.checksum == "invalid"] == [100, 200]
    assert (passed[98].payload, passed[99].payload) == (b"hello", b"iello")


def test_rename_topic() -> None:
    lanes = script("rename_topic")
    for name in ("LOOKUP", "PARTITIONED_METADATA"):
        (frame,) = lanes.take(command(name, topic="persistent://public/default/orders", request_id=1))
        assert frame.body.topic == "persistent://public/default/orders-v2"
    other = command("LOOKUP", topic="persistent://public/default/others", request_id=1)
    assert lanes.take(other)[0].raw == other.raw


def test_answer_lookups() -> None:
    lanes = script("answer_lookups")
    passed = [lanes.take(command("LOOKUP", topic="t", request_id=number)) for number in range(5)]
    assert [len(frames) for frames in passed] == [0, 0, 0, 1, 1]
    assert [(frame.command, frame.body.request_id) for frame in lanes.answers] == [
        ("LOOKUP_RESPONSE", number) for number in range(3)
    ]


def test_close_producer() -> None:
    lanes = script("close_producer")
    passed = [frame for number in range(12) for frame in lanes.take(receipt(number))]
    assert [frame.command for frame in passed[9:12]] == ["SEND_RECEIPT", "CLOSE_PRODUCER", "SEND_RECEIPT"]
    assert len(passed) == 13
    assert [(frame.command, frame.body.producer_id) for frame in lanes.answers] == [("CLOSE_PRODUCER", 1)]


def test_lose_receipts() -> None:
    lanes = script("lose_receipts")
    passed = [frame.body.sequence_id for number in range(20) for frame in lanes.take(receipt(number))]
    assert passed == [*range(9), *range(10, 19)]
    assert lanes.notes == ["SEND_RECEIPT: dropped"] * 2


def test_deliver_twice() -> None:
    lanes = script("deliver_twice")
    twice = delivered(topic="persistent://public/default/orders")
    assert [frame.raw for frame in lanes.take(twice)] == [twice.raw] * 2
    assert len(lanes.take(delivered(topic="persistent://public/default/others"))) == 1


def test_limit_permits() -> None:
    lanes = script("limit_permits")
    (frame,) = lanes.take(command("FLOW", consumer_id=3, messagePermits=1000))
    assert (frame.body.consumer_id, frame.body.messagePermits) == (3, 1)


def test_refuse_producers() -> None:
    lanes = script("refuse_producers")
    names = ("team-a-1", "team-b-1")
    passed = [
        lanes.take(command("PRODUCER", topic="t", producer_id=1, request_id=number, producer_name=name))
        for number, name in enumerate(names)
    ]
    assert [len(frames) for frames in passed] == [1, 0]
    (error,) = lanes.answers
    assert (error.command, error.body.request_id) == ("ERROR", 1)


def test_old_broker() -> None:
    (frame,) = script("old_broker").take(CONNECTED)
    assert (frame.body.protocol_version, frame.body.HasField("feature_flags")) == (18, False)


def test_add_property() -> None:
    lanes = script("add_property")
    (frame,) = lanes.take(keyed(0))
    assert [pair.key for pair in frame.metadata.properties] == ["sent-from"]  # type: ignore[union-attr]
    assert (frame.checksum, frame.payload) == ("valid", b"x")
    batch = keyed(0, num_messages_in_batch=2)
    assert lanes.take(batch)[0].raw == batch.raw


def test_count_commands(capsys: pytest.CaptureFixture[str]) -> None:
    lanes = script("count_commands")
    for frame in (send(0), send(1), receipt(0)):
        lanes.take(frame)
    lanes.end()
    assert capsys.readouterr().err == ": 2 SEND, 1 SEND_RECEIPT\n"


# -- any script


@pytest.mark.hypothesis
@given(message_frames())
def test_what_a_script_only_reads_goes_on_as_it_came(data: bytes) -> None:
    frame = Frame(decoded(data, to_broker=False), None)
    frame.body, frame.metadata, frame.payload  # noqa: B018
    assert frame.encode() == data
    assert frame.copy().encode() == data


def test_a_script_that_raises_changes_nothing(tmp_path: Path) -> None:
    lanes = written(tmp_path, "def on_frame(frame):\n    frame.payload = b''\n    return 1 / 0\n")
    assert lanes.take(send(0))[0].raw == send(0).raw
    assert lanes.notes == ["line 4: ZeroDivisionError: division by zero; SEND goes on as it came"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("return 7", "on_frame returns None, a Frame, a list of Frames or DROP"),
        ("raise SystemExit", "line 3: SystemExit"),
        ("frame.data = 'x'", "TypeError: memoryview: a bytes-like object is required, not 'str'"),
        ("frame.delay = 'x'", "TypeError: '<' not supported between instances of 'float' and 'str'"),
        ("frame.body.ClearField('producer_id')", "the frame cannot be built: Message "),
        ("frame.answer('NONE')", "line 3: LocalProtocolError: NONE: no such command"),
        (
            "Frame.make('PING')",
            "line 3: LocalProtocolError: PING: both sides send it; give to_broker=True or",
        ),
    ],
)
def test_mistakes_of_scripts(tmp_path: Path, line: str, reason: str) -> None:
    lanes = written(tmp_path, f"def on_frame(frame):\n    {line}\n")
    assert lanes.take(send(0))[0].raw == send(0).raw
    (note,) = lanes.notes
    assert note.startswith(reason)


def test_a_script_is_loaded_again_when_it_changes(tmp_path: Path) -> None:
    lanes = written(tmp_path, "def on_frame(frame):\n    return DROP\n")
    assert lanes.take(send(0)) == []
    lanes.path.write_text("def on_frame(frame):\n    return None\n")
    assert lanes.take(send(1)) == []  # it looks only so often
    lanes.now = 1.0
    assert len(lanes.take(send(2))) == 1
    lanes.path.write_text("def on_frame(frame)\n")
    lanes.now = 2.0
    assert len(lanes.take(send(3))) == 1
    lanes.path.unlink()
    lanes.now = 3.0
    assert len(lanes.take(send(4))) == 1
    assert lanes.notes == [
        *["SEND: dropped"] * 2,
        "loaded again",
        "line 1: SyntaxError: expected ':'; the script loaded before stays",
        "No such file or directory; the script loaded before stays",
    ]


def test_more_than_the_limit_is_not_delayed(tmp_path: Path) -> None:
    lanes = written(tmp_path, "def on_frame(frame):\n    frame.delay = 9\n")
    large = send(0, bytes(MAX_HELD_BYTES // 16))
    passed = [frame for _ in range(17) for frame in lanes.take(large)]
    assert len(passed) == 2
    assert "not delayed" in lanes.notes[-1]


def test_connections_open_once_and_close_once(tmp_path: Path) -> None:
    text = (
        "def on_open(link):\n    link.data['n'] = 0\n"
        "def on_frame(frame):\n    frame.link.data['n'] += 1\n"
        "def on_close(link):\n    raise ValueError(link.data['n'])\n"
    )
    lanes = written(tmp_path, text)
    for frame in (send(0), receipt(0), send(1)):
        lanes.take(frame)
    lanes.end()
    lanes.end()
    assert lanes.notes == ["line 7: ValueError: 3"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x = 1", "it has none of the functions on_frame, on_open and on_close"),
        (
            "import nothing_of_that_name",
            "line 1: ModuleNotFoundError: No module named 'nothing_of_that_name'",
        ),
        ("def on_frame(", "line 1: SyntaxError: '(' was never closed"),
        (None, "No such file or directory"),
    ],
)
def test_scripts_that_cannot_be_loaded(tmp_path: Path, text: str | None, reason: str) -> None:
    path = tmp_path / "script.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        Program(str(path))
    assert str(caught.value) == f"--script {path}: {reason}"
