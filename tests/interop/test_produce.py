"""`pwire produce`: each option shows its effect on what the broker stored, as the official wheel reads it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import secrets
import shutil
import signal
import subprocess
import threading
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import pulsar
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.source_context_pb2 import SourceContext
from interop.brokers import Broker, RestError, run_java
from interop.processes import HOST, free_port

from pulsarctl_wire import open_entry, read_frames

if TYPE_CHECKING:
    from interop.conftest import Pwire
    from typing_extensions import Self

T = TypeVar("T")

PATIENCE = 20.0
"""Seconds after which a test that waits for something has failed: far more than any takes."""

LIMIT = 5 * 1024 * 1024
"""Bytes of the largest message the broker takes."""


# -- what the tests of this directory share


@contextlib.contextmanager
def wheel(broker: Broker) -> Iterator[Any]:
    """The official client."""
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        yield client
    finally:
        # It hangs up at REACHED_END_OF_TOPIC, which it does not know, maybe just when it is closed.
        with contextlib.suppress(pulsar.NotConnected):
            client.close()


def stored(broker: Broker, topic: str) -> list[Any]:
    """All messages of a topic that is not partitioned, read by the official client."""
    with wheel(broker) as client:
        return list(_read(client.create_reader(topic, pulsar.MessageId.earliest)))


def values(broker: Broker, topic: str, schema: object) -> list[Any]:
    """Their values, by a schema."""
    with wheel(broker) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest, schema=schema)
        return [message.value() for message in _read(reader)]


def _read(reader: Any) -> Iterator[Any]:
    while reader.has_message_available():
        yield reader.read_next(5_000)  # it is there


def payloads(broker: Broker, topic: str) -> list[bytes]:
    return [message.data() for message in stored(broker, topic)]


def path_of(topic: str) -> str:
    """Where the admin API has a topic."""
    return "/admin/v2/" + topic.replace("://", "/")


def partitioned(broker: Broker, topic: str, count: int) -> list[str]:
    """Make `topic` partitioned; gives its partitions."""
    broker.rest("PUT", f"{path_of(topic)}/partitions", count)
    return [f"{topic}-partition-{index}" for index in range(count)]


def stats_of(broker: Broker, topic: str) -> dict[str, Any]:
    found: dict[str, Any] = broker.rest("GET", f"{path_of(topic)}/stats")
    return found


def until(look: Callable[[], T]) -> T:
    """What `look` gives, once that is something; it is asked again and again."""
    deadline = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < deadline, f"never came true: {look}"
        time.sleep(0.02)
    return found


def done(run: subprocess.CompletedProcess[str], code: int = 0) -> str:
    """What a run printed, which is to have ended with `code`."""
    assert run.returncode == code, run.stderr
    return run.stdout


def records(text: str) -> list[dict[str, Any]]:
    """The lines of `-o json`."""
    return [json.loads(line) for line in text.splitlines()]


def said(run: subprocess.CompletedProcess[str], code: int) -> str:
    """The only complaint of a run that is to have ended with `code`, having printed nothing."""
    assert (run.returncode, run.stdout) == (code, ""), run.stderr
    (line,) = run.stderr.splitlines()
    assert line.startswith("pwire: ")
    return line.removeprefix("pwire: ")


def refusal(run: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    """What the broker refused, and by which code, to a run that says nothing else and ends with 7."""
    why = said(run, 7)
    found = re.match(r"([A-Z_]+)(?: of \S+)? refused, (\w+)", why)
    assert found, why
    return found[1], found[2]


class Running:
    """`pwire ARGS` that runs while a test does something else; it is killed at the end, if need be."""

    def __init__(self, pwire: Pwire, *args: object) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            pwire.command(*args), stdin=pipe, stdout=pipe, stderr=pipe, env=pwire.environment()
        )
        self.stdout: list[str] = []
        self.stderr: list[str] = []
        self._lines: dict[str, queue.Queue[str]] = {"stdout": queue.Queue(), "stderr": queue.Queue()}
        self._threads = [threading.Thread(target=self._read, args=[name]) for name in self._lines]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream
            with contextlib.suppress(OSError):
                stream.close()

    def _read(self, name: str) -> None:
        stream: IO[bytes] = getattr(self.process, name)
        for line in stream:
            getattr(self, name).append(line.decode().rstrip("\n"))
            self._lines[name].put(line.decode().rstrip("\n"))

    def write(self, text: str) -> None:
        """Write to its stdin."""
        stdin = self.process.stdin
        assert stdin
        with contextlib.suppress(BrokenPipeError):  # it has ended: its exit code tells more
            stdin.write(text.encode())
            stdin.flush()

    def close_stdin(self) -> None:
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def line(self, pattern: str = "", stream: str = "stdout") -> str:
        """Its next line that has `pattern`, once it comes."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                line = self._lines[stream].get(timeout=max(0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {pattern} in {self.stdout} {self.stderr}") from None
            if re.search(pattern, line):
                return line

    def lines(self, count: int) -> list[str]:
        """Its next lines."""
        return [self.line() for _ in range(count)]

    def interrupt(self, number: int = signal.SIGINT) -> Self:
        self.process.send_signal(number)
        return self

    def code(self) -> int:
        """Its exit code, once it has ended."""
        code = self.process.wait(PATIENCE)
        for thread in self._threads:
            thread.join(PATIENCE)
        return code


@contextlib.contextmanager
def reader_gone(pwire: Pwire, *args: object, first: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """`pwire ARGS` whose stdout is closed after its first line; at the end it is to end quietly with 141.

    `first` is written to its stdin.
    """
    pipe = subprocess.PIPE
    command, environment = pwire.command(*args), pwire.environment()
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        try:
            process.stdin.write(first.encode())
            process.stdin.flush()
            assert process.stdout.readline().endswith(b"\n")
            process.stdout.close()
            yield process
            assert process.wait(PATIENCE) == 141
            assert process.stderr.read() == b""
        finally:
            process.kill()


# -- what was sent, by a recording


class Recorded:
    """The sends that a recording has, and when they were answered."""

    def __init__(self, file: Path) -> None:
        self.frames = list(read_frames(file))
        self.sends = [frame for frame in self.frames if frame.command == "SEND"]

    @property
    def metadata(self) -> list[Any]:
        return [frame.metadata for frame in self.sends]

    @property
    def counts(self) -> list[int]:
        """Messages of each entry."""
        return [len(open_entry(frame).messages) for frame in self.sends]

    def waiting(self) -> int:
        """The most messages that ever waited for their receipts."""
        now = most = 0
        for frame in self.frames:
            now += {"SEND": 1, "SEND_RECEIPT": -1}.get(frame.command, 0)
            most = max(most, now)
        return most


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return tmp_path / "session.pcapng"


# -- what to send


def test_messages_are_sent_in_the_order_given(
    broker: Broker, topic: str, pwire: Pwire, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"\x00\xff\nlines\r\n\n")
    given = ["-m", "first, ", "-m", "-", "-m", "", "-m", "ünï", "-f", tmp_path / "file"]
    done(pwire("produce", topic, *given, stdin="a\n\nwithout end"))
    wanted = [b"first, ", b"a", b"", b"without end", b"", "ünï".encode(), b"\x00\xff\nlines\r\n\n"]
    assert payloads(broker, topic) == wanted


def test_separator_and_repetition(broker: Broker, topic: str, pwire: Pwire, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x::y")
    done(pwire("produce", topic, "-m", "a::b", "-m", "c", "-f", tmp_path / "file", "-s", "::", "-n", 1_500))
    assert payloads(broker, topic) == [b"a", b"b", b"c", b"x::y"] * 1_500


def test_stdin_lines_are_sent_as_they_come(broker: Broker, topic: str, pwire: Pwire) -> None:
    with Running(pwire, "produce", topic, "-m", "-", "-o", "id") as running:
        running.write("one\n")
        running.line(r"^\d+:0$")
        assert payloads(broker, topic) == [b"one"]
        running.write("two\nth")
        running.line(r"^\d+:1$")
        running.write("ree")
        running.close_stdin()
        assert running.code() == 0
    assert payloads(broker, topic) == [b"one", b"two", b"three"]


def test_json_says_all_there_is_to_a_message(broker: Broker, topic: str, pwire: Pwire, capture: Path) -> None:
    given: list[dict[str, Any]] = [
        {"payload": "text", "key": "k", "properties": {"a": "1", "b": "ü"}, "event_time": 1_500_000_000_000},
        {"payload_base64": "AP8=", "key_base64": "/wA=", "ordering_key": "o", "sequence_id": 41},
        {"payload": {"a": [1, None]}, "deliver_at": 1_600_000_000_000},
        {"payload": None, "key": "gone"},
        {"payload": "place told", "topic": "t", "id": "1:2", "size": 3, "view": "text", "producer": "p"},
    ]
    lines = "".join(json.dumps(each) + "\n" for each in given)
    done(pwire("produce", topic, "--json", "-db", "--record", capture, stdin=lines))
    text, binary, structure, null, plain = stored(broker, topic)

    assert (text.data(), text.partition_key(), text.properties()) == (b"text", "k", {"a": "1", "b": "ü"})
    assert text.event_timestamp() == 1_500_000_000_000
    assert (binary.data(), binary.partition_key(), binary.ordering_key()) == (b"\x00\xff", "/wA=", "o")
    assert json.loads(structure.data()) == {"a": [1, None]}
    assert (null.data(), null.partition_key(), null.has_null_value()) == (b"", "gone", True)
    assert (plain.data(), plain.properties()) == (b"place told", {})
    metadata = Recorded(capture).metadata
    assert [each.sequence_id for each in metadata] == [0, 41, 42, 43, 44]
    assert [each.partition_key_b64_encoded for each in metadata] == [False, True, False, False, False]
    assert [each.deliver_at_time for each in metadata] == [0, 0, 1_600_000_000_000, 0, 0]


def test_json_goes_before_the_options_for_all(broker: Broker, topic: str, pwire: Pwire) -> None:
    options = ["-k", "common", "-p", "a=1", "-p", "b=2", "--event-time", 7, "--ordering-key", "oo"]
    own = '{"payload": "x", "key": "own", "properties": {"b": "3"}, "event_time": 8, "ordering_key": "o"}'
    done(pwire("produce", topic, "--json", "-m", own, "-m", '{"payload": "y"}', *options))
    assert [
        (m.partition_key(), m.properties(), m.event_timestamp(), m.ordering_key())
        for m in stored(broker, topic)
    ] == [("own", {"a": "1", "b": "3"}, 8, "o"), ("common", {"a": "1", "b": "2"}, 7, "oo")]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("no json", "message 2: not JSON"),
        ("[]", 'message 2: not a JSON object such as {"payload": "hello"}'),
        ('{"payload": "a", "colour": "red"}', "message 2: unknown names colour; known names are "),
        ('{"payload_base64": "a"}', "message 2: payload_base64 is not base64"),
        ('{"payload": "a", "event_time": "now"}', "message 2: event_time is 'now'; "),
    ],
)
def test_json_that_is_no_message_ends_it(
    broker: Broker, topic: str, pwire: Pwire, text: str, why: str
) -> None:
    run = pwire("produce", topic, "--json", "-m", '{"payload": "good"}', "-m", text)
    assert why in run.stderr
    assert run.returncode == 2
    assert payloads(broker, topic) == [b"good"]


def test_hexadecimal_digits(broker: Broker, topic: str, pwire: Pwire) -> None:
    done(pwire("produce", topic, "--hex", "-m", "00ff", "-m", "CA FE", "-m", ""))
    assert payloads(broker, topic) == [b"\x00\xff", b"\xca\xfe", b""]
    assert "message 1: " in said(pwire("produce", topic, "--hex", "-m", "0"), 2)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([], "give messages with -m TEXT, -m - (stdin) or -f FILE"),
        (["-m", "-", "-n", "2"], "stdin can be read only once"),
        (["-m", "a", "-p", "novalue"], "-p novalue: use NAME=VALUE"),
        (["-m", "a", "--schema", "nonsense"], "unknown schema type"),
    ],
)
def test_a_wrong_command_line(topic: str, pwire: Pwire, given: list[str], why: str) -> None:
    assert why in said(pwire("produce", topic, *given), 2)


def test_a_file_that_is_not_there(topic: str, pwire: Pwire, tmp_path: Path) -> None:
    assert "No such file" in said(pwire("produce", topic, "-f", tmp_path / "none"), 3)


# -- schemas

RECORD = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "what", "type": "string"}, {"name": "count", "type": ["null", "int"]}],
}


class Order(pulsar.schema.Record):  # type: ignore[misc]
    what = pulsar.schema.String(required=True)
    count = pulsar.schema.Integer()


def schema_of(broker: Broker, topic: str) -> dict[str, Any]:
    found: dict[str, Any] = broker.rest(
        "GET", f"/admin/v2/schemas/{topic.removeprefix('persistent://')}/schema"
    )
    return found


@pytest.mark.parametrize(
    ("kind", "text", "payload"),
    [
        ("string", "grüße", "grüße".encode()),
        ("int8", "-2", b"\xfe"),
        ("int64", "42", b"\0\0\0\0\0\0\0*"),
        ("double", "0.5", b"\x3f\xe0\0\0\0\0\0\0"),
        ("bool", "true", b"\x01"),
        ("timestamp", "1970-01-01T00:00:01Z", b"\0\0\0\0\0\0\x03\xe8"),
    ],
)
def test_plain_schemas(
    broker: Broker, topic: str, pwire: Pwire, kind: str, text: str, payload: bytes
) -> None:
    done(pwire("produce", topic, "--schema", kind, "-m", text))
    assert schema_of(broker, topic)["type"] == {"bool": "BOOLEAN"}.get(kind, kind.upper())
    (message,) = stored(broker, topic)
    assert message.data() == payload
    assert message.schema_version() == "\0" * 8


@pytest.mark.parametrize(("kind", "made"), [("json", "JsonSchema"), ("avro", "AvroSchema")])
def test_schemas_of_records(
    broker: Broker, topic: str, pwire: Pwire, tmp_path: Path, kind: str, made: str
) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(RECORD))
    texts = ['{"what": "tea", "count": 2}', '{"what": "nothing", "count": null}']
    done(pwire("produce", topic, "--schema", f"{kind}:{file}", "-m", texts[0], "-m", texts[1]))
    orders = values(broker, topic, getattr(pulsar.schema, made)(Order))
    assert [(order.what, order.count) for order in orders] == [("tea", 2), ("nothing", None)]
    registered = schema_of(broker, topic)
    assert (registered["type"], json.loads(registered["data"])) == (kind.upper(), RECORD)

    refused = pwire("produce", topic, "-vs", f"{kind}:{file}", "-m", '{"what": 3}')
    assert refused.stderr.startswith("pwire: message 1: ")
    assert refused.returncode == 2
    other = f'{kind}:{{"type": "record", "name": "Other", "fields": [{{"name": "n", "type": "long"}}]}}'
    run = pwire("produce", topic, "--schema", other, "-m", '{"n": 1}')
    assert refusal(run) == ("PRODUCER", "IncompatibleSchema")
    assert len(stored(broker, topic)) == 2


def test_json_of_any_form_registers_nothing(broker: Broker, topic: str, pwire: Pwire) -> None:
    done(pwire("produce", topic, "--schema", "json", "-m", '{"a": 1}'))
    assert payloads(broker, topic) == [b'{"a": 1}']
    with pytest.raises(RestError, match="404"):
        schema_of(broker, topic)
    assert "message 1: " in said(pwire("produce", topic, "--schema", "json", "-m", "{"), 2)


def test_protobuf(broker: Broker, topic: str, pwire: Pwire, tmp_path: Path) -> None:
    files = FileDescriptorSet()
    SourceContext.DESCRIPTOR.file.CopyToProto(files.file.add())
    file = tmp_path / "descriptors"
    file.write_bytes(files.SerializeToString())
    kind = f"protobuf:{file}:google.protobuf.SourceContext"
    done(pwire("produce", topic, "--schema", kind, "-m", '{"file_name": "hi"}'))
    assert payloads(broker, topic) == [SourceContext(file_name="hi").SerializeToString()]
    registered = schema_of(broker, topic)
    assert registered["type"] == "PROTOBUF_NATIVE"
    assert json.loads(registered["data"])["rootMessageTypeName"] == "google.protobuf.SourceContext"


@pytest.mark.parametrize("kind", ["keyvalue", "keyvalue-separated"])
def test_pairs_of_key_and_value(broker: Broker, topic: str, pwire: Pwire, kind: str) -> None:
    text = '{"key": "k", "value": 7}'
    done(pwire("produce", topic, "--schema", f"{kind}:string,int32", "-m", text))
    (message,) = stored(broker, topic)
    if kind == "keyvalue":
        assert message.data() == b"\0\0\0\x01k\0\0\0\x04\0\0\0\x07"
    else:
        assert (message.data(), message.partition_key()) == (b"\0\0\0\x07", b64encode(b"k").decode())
    assert schema_of(broker, topic)["type"] == "KEY_VALUE"


def test_auto_takes_the_newest_schema_of_the_topic(broker: Broker, topic: str, pwire: Pwire) -> None:
    run = pwire("produce", topic, "--schema", "auto", "-m", "1")
    assert refusal(run) == ("GET_SCHEMA", "TopicNotFound")
    schema = pulsar.schema.AvroSchema(Order)
    with wheel(broker) as client:
        client.create_producer(topic, schema=schema).send(Order(what="tea", count=1))
    done(pwire("produce", topic, "--schema", "auto", "-m", '{"what": "milk", "count": 2}'))
    assert [(each.what, each.count) for each in values(broker, topic, schema)] == [("tea", 1), ("milk", 2)]
    tea, milk = stored(broker, topic)
    assert milk.schema_version() == tea.schema_version()


# -- each message


@pytest.mark.parametrize("batched", [True, False])
def test_what_all_messages_have(
    broker: Broker, topic: str, pwire: Pwire, capture: Path, batched: bool
) -> None:
    options = ["-k", "kéy", "-p", "a=1", "-p", "b==", "--ordering-key", "oo", "--event-time", "1234"]
    more = ["-dr", "--record", capture, *([] if batched else ["-db"])]
    done(pwire("produce", topic, "-m", "x", "-m", "y", *options, *more))
    messages = stored(broker, topic)
    assert [message.data() for message in messages] == [b"x", b"y"]
    for message in messages:
        assert message.partition_key() == "kéy"
        assert message.properties() == {"a": "1", "b": "="}
        assert message.ordering_key() == "oo"
        assert message.event_timestamp() == 1234
    recorded = Recorded(capture)
    assert recorded.counts == ([2] if batched else [1, 1])
    assert [list(each.replicate_to) for each in recorded.metadata] == [["__local__"]] * len(recorded.sends)


def test_messages_for_later(broker: Broker, topic: str, pwire: Pwire, capture: Path) -> None:
    with wheel(broker) as client:
        consumer = client.subscribe(topic, "late", pulsar.ConsumerType.Shared)
        in_an_hour = int((time.time() + 3600) * 1000)
        done(pwire("produce", topic, "-m", "much later", "--deliver-at", in_an_hour))
        before = time.time() * 1000
        done(pwire("produce", topic, "-m", "later", "--deliver-after", 2.5, "--record", capture))
        assert consumer.receive(int(PATIENCE * 1000)).data() == b"later"
        after = time.time() * 1000
        (metadata,) = Recorded(capture).metadata
        assert before + 2500 <= metadata.deliver_at_time <= metadata.publish_time + 2500
        assert after > metadata.deliver_at_time - 1000  # a broker may be early by its tick
        assert stats_of(broker, topic)["subscriptions"]["late"]["msgDelayed"] == 1


# -- how to send


def test_a_rate(broker: Broker, topic: str, pwire: Pwire) -> None:
    done(pwire("produce", topic, "-m", "x", "-n", 9, "-r", 20, "-db"))
    times = [message.publish_timestamp() for message in stored(broker, topic)]
    assert len(times) == 9
    assert times[-1] - times[0] >= 390  # 400, and the clock's grain


@pytest.mark.parametrize(
    ("options", "most"), [(["--sync"], 1), (["-db", "--max-pending", "2"], 2), (["-db"], 3)]
)
def test_how_many_wait_for_receipts(
    broker: Broker, topic: str, pwire: Pwire, capture: Path, options: list[str], most: int
) -> None:
    done(pwire("produce", topic, "-m", "x", "-n", 200, *options, "--record", capture))
    recorded = Recorded(capture)
    assert recorded.counts == [1] * 200
    assert recorded.waiting() >= most if most > 2 else recorded.waiting() == most
    assert payloads(broker, topic) == [b"x"] * 200


@pytest.mark.parametrize("codec", ["none", "lz4", "zlib", "zstd", "snappy"])
def test_codecs(broker: Broker, topic: str, pwire: Pwire, capture: Path, codec: str) -> None:
    text = "again and " * 100
    done(pwire("produce", topic, "-m", text, "--compression", codec, "--record", capture))
    assert payloads(broker, topic) == [text.encode()]
    (frame,) = Recorded(capture).sends
    metadata: Any = frame.metadata
    assert metadata.DESCRIPTOR.fields_by_name["compression"].enum_type.values[metadata.compression].name == (
        codec.upper()
    )
    assert metadata.uncompressed_size == (0 if codec == "none" else 1000)
    assert (len(frame.payload) == 1000) is (codec == "none")


def test_names_and_sequence_ids(broker: Broker, pwire: Pwire) -> None:
    namespace = f"public/{secrets.token_hex(4)}"
    broker.rest("PUT", f"/admin/v2/namespaces/{namespace}")
    broker.rest("POST", f"/admin/v2/namespaces/{namespace}/deduplication", True)
    topic = f"persistent://{namespace}/t"

    def produce(*more: object) -> subprocess.CompletedProcess[str]:
        return pwire("produce", topic, "-m", "a", "-m", "b", "--producer-name", "till", "-o", "json", *more)

    first = records(done(produce("--initial-sequence-id", 5)))
    assert [(each["sequence_id"], each["duplicate"]) for each in first] == [(6, False), (7, False)]
    again = records(done(produce("--initial-sequence-id", 5)))
    assert [(each["sequence_id"], each["duplicate"]) for each in again] == [(6, True), (7, True)]
    later = records(done(produce()))  # goes on after what the broker knows
    assert [(each["sequence_id"], each["duplicate"]) for each in later] == [(8, False), (9, False)]
    messages = stored(broker, topic)
    assert [message.data() for message in messages] == [b"a", b"b"] * 2
    assert {message.producer_name() for message in messages} == {"till"}


def test_a_producer_name_that_is_taken(broker: Broker, topic: str, pwire: Pwire) -> None:
    with wheel(broker) as client:
        client.create_producer(topic, producer_name="till")
        run = pwire("produce", topic, "-m", "a", "--producer-name", "till")
    assert refusal(run) == ("PRODUCER", "ProducerBusy")


@pytest.mark.parametrize(
    ("theirs", "ours", "why"),
    [
        ("Exclusive", "exclusive", "ProducerFenced"),
        ("Exclusive", "shared", "ProducerBusy"),
        ("Shared", "exclusive", "ProducerFenced"),
    ],
)
def test_access_refused(broker: Broker, topic: str, pwire: Pwire, theirs: str, ours: str, why: str) -> None:
    with wheel(broker) as client:
        producer = client.create_producer(topic, access_mode=getattr(pulsar.ProducerAccessMode, theirs))
        run = pwire("produce", topic, "-m", "a", "--access-mode", ours)
        producer.send(b"still there")
    assert refusal(run) == ("PRODUCER", why)
    assert payloads(broker, topic) == [b"still there"]


def test_access_that_is_waited_for(broker: Broker, topic: str, pwire: Pwire) -> None:
    with wheel(broker) as client:
        producer = client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
        options = ["--access-mode", "wait-for-exclusive", "--timeout", "1"]
        with Running(pwire, "produce", topic, "-m", "ours", *options) as running:
            running.line("waiting for exclusive access", "stderr")
            time.sleep(1.2)  # longer than --timeout, which is not for this
            producer.send(b"theirs")
            producer.close()
            running.line("^1 message to ")
            assert running.code() == 0
    assert payloads(broker, topic) == [b"theirs", b"ours"]


def test_access_that_is_taken_away(broker: Broker, topic: str, pwire: Pwire) -> None:
    with wheel(broker) as client:
        theirs = client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
        options = ["--access-mode", "exclusive-with-fencing", "-o", "id"]
        with Running(pwire, "produce", topic, "-m", "-", *options) as running:
            running.write("one\n")
            running.line(":0$")
            with pytest.raises(pulsar.PulsarException):
                theirs.send(b"fenced off")
            fencing = pulsar.ProducerAccessMode.ExclusiveWithFencing
            client.create_producer(topic, access_mode=fencing).send(b"two")
            running.write("three\n")
            running.close_stdin()
            running.line("ProducerFenced", "stderr")
            assert running.code() == 7
    assert payloads(broker, topic) == [b"one", b"two"]


# -- partitions


def test_partitions_take_turns(broker: Broker, topic: str, pwire: Pwire) -> None:
    partitions = partitioned(broker, topic, 4)
    texts = [str(number) for number in range(8)]
    done(pwire("produce", topic, "-m", ",".join(texts), "-s", ",", "-db"))
    found = [payloads(broker, each) for each in partitions]
    assert all(int(second) - int(first) == 4 for first, second in found)
    assert sorted(each for both in found for each in both) == [text.encode() for text in texts]


def test_partitions_take_turns_by_the_batch(broker: Broker, topic: str, pwire: Pwire) -> None:
    partitions = partitioned(broker, topic, 2)
    done(pwire("produce", topic, "-m", "a,b,c,d,e,f", "-s", ",", "-bm", 3, "-b", 10_000))
    assert sorted(payloads(broker, each) for each in partitions) == [[b"a", b"b", b"c"], [b"d", b"e", b"f"]]


def test_one_partition_takes_all(broker: Broker, topic: str, pwire: Pwire) -> None:
    partitions = partitioned(broker, topic, 3)
    run = pwire("produce", topic, "-m", "x", "-n", 6, "-db", "--routing", "single", "-o", "json")
    (used,) = {each["topic"] for each in records(done(run))}
    assert {each: len(stored(broker, each)) for each in partitions} == dict.fromkeys(partitions, 0) | {
        used: 6
    }


ROUTES = """
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.pulsar.client.api.*;
public class Routes {
    public static void main(String[] args) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build()) {
            for (HashingScheme hash : HashingScheme.values()) {
                String topic = args[1] + "-" + hash;
                Producer<byte[]> producer = client.newProducer().topic(topic).hashingScheme(hash).create();
                for (int i = 2; i < args.length; i++) {
                    String key = new String(Base64.getDecoder().decode(args[i]), StandardCharsets.UTF_8);
                    producer.newMessage().key(key).value(new byte[0]).send();
                }
                producer.newMessage().keyBytes(new byte[] {0, -1, 7}).value(new byte[0]).send();
            }
        }
    }
}
"""
KEYS = [
    "a",
    "key-1",
    "key-2",
    "key-3",
    "ü",
    "日本",
    "🍞",
    " ",
    "a longer key, with a comma",
    "-",
    "",
    "q" * 300,
]


@pytest.mark.usefixtures("obtainable")
def test_keys_find_the_partitions_that_java_gives_them(broker: Broker, topic: str, pwire: Pwire) -> None:
    schemes = {"java": f"{topic}-JavaStringHash", "murmur3": f"{topic}-Murmur3_32Hash"}
    partitions = {hashing: partitioned(broker, name, 7) for hashing, name in schemes.items()}
    run_java(ROUTES, broker.url, topic, *(b64encode(key.encode()).decode() for key in KEYS))
    lines = [json.dumps({"payload": "", "key": key}) for key in KEYS]
    lines.append(json.dumps({"payload": "", "key_base64": b64encode(b"\x00\xff\x07").decode()}))
    for hashing, name in schemes.items():
        done(pwire("produce", name, "--json", "--hash", hashing, stdin="\n".join(lines)))
        found = Counter(
            (partition, message.partition_key())
            for partition in partitions[hashing]
            for message in stored(broker, partition)
        )
        assert list(found.values()) == [2] * (len(KEYS) + 1)  # each twice in a partition: Java's and ours


# -- batches and chunks


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        (["-b", "10000"], [9]),
        (["-b", "10000", "-db"], [1] * 9),
        (["-b", "10000", "--batch-messages", "4"], [4, 4, 1]),
        (["-b", "10000", "-bm", "1"], [1] * 9),
        (["-b", "10000", "--batch-bytes", "25"], [2, 2, 2, 2, 1]),
        (["-b", "10000", "--batch-bytes", "10"], [1] * 9),
        pytest.param(*(["--batch-delay", "0", "-r", "50"], [1] * 9)),
        (["--batch-delay", "10000", "-r", "50"], [9]),
    ],
)
def test_batches(broker: Broker, topic: str, pwire: Pwire, options: list[str], sizes: list[int]) -> None:
    done(pwire("produce", topic, "-m", "ten bytes.", "-n", 9, *options))
    ids = [message.message_id() for message in stored(broker, topic)]
    counts = Counter((each.ledger_id(), each.entry_id()) for each in ids)
    assert [count for _, count in sorted(counts.items())] == sizes


def test_batches_of_one_key_each(broker: Broker, topic: str, pwire: Pwire, capture: Path) -> None:
    lines = [json.dumps({"payload": str(number), "key": "abc"[number % 3]}) for number in range(9)]
    options = ["--batch-by-key", "-b", "10000", "--record", capture]
    done(pwire("produce", topic, "--json", *options, stdin="\n".join(lines)))
    recorded = Recorded(capture)
    assert recorded.counts == [3, 3, 3]
    assert [metadata.partition_key for metadata in recorded.metadata] == ["a", "b", "c"]
    found = [(message.partition_key(), message.data()) for message in stored(broker, topic)]
    assert found == [("abc"[number % 3], str(number).encode()) for number in (0, 3, 6, 1, 4, 7, 2, 5, 8)]


@pytest.mark.parametrize(
    ("size", "options", "chunks"),
    [
        (2500, ["-c", "--chunk-size", "1000"], 3),
        (2000, ["-c", "--chunk-size", "1000"], 2),
        (1000, ["-c", "--chunk-size", "1000"], 1),
        (LIMIT + 1, ["-c"], 2),
        (LIMIT + 1, ["--compression", "zlib"], 1),
    ],
)
def test_chunks(
    broker: Broker,
    topic: str,
    pwire: Pwire,
    tmp_path: Path,
    capture: Path,
    size: int,
    options: list[str],
    chunks: int,
) -> None:
    payload = b"0123456789abcdef" * (size // 16 + 1)
    (tmp_path / "file").write_bytes(payload[:size])
    given = ["-f", tmp_path / "file", "-k", "k", "-p", "a=1", "-o", "id", "--record", capture]
    printed = done(pwire("produce", topic, *given, *options))
    (message,) = stored(broker, topic)
    assert message.data() == payload[:size]
    assert (message.partition_key(), message.properties()) == ("k", {"a": "1"})
    assert [each.num_chunks_from_msg for each in Recorded(capture).metadata] == [
        chunks if chunks > 1 else 0
    ] * chunks
    first, last = re.findall(r"(\d+:\d+)", printed)[0], f":{chunks - 1}"
    assert printed == (first if chunks == 1 else f"{first}…{first[:-2]}{last}") + "\n"


def test_a_message_that_is_too_large(broker: Broker, topic: str, pwire: Pwire, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(LIMIT + 1))
    why = said(pwire("produce", topic, "-f", tmp_path / "file"), 2)
    assert why == f"a message of {LIMIT + 1} bytes: the broker's limit is {LIMIT}; --chunking splits it"
    assert payloads(broker, topic) == []


# -- what is printed


def test_long_names(broker: Broker, topic: str, pwire: Pwire, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("c")
    what = ["--messages", "a,b", "--separator", ",", "--files", tmp_path / "file", "--num-produce", 2]
    each = ["--key", "k", "--properties", "n=1", "--disable-replication", "--value-schema", "string"]
    how = ["--rate", 1000, "--disable-batching", "--output", "id"]
    assert len(done(pwire("produce", topic, *what, *each, *how)).splitlines()) == 6
    assert done(pwire("produce", topic, "--messages", "d", "--quiet")) == ""
    first, *_, last = stored(broker, topic)
    assert (first.data(), first.partition_key(), first.properties()) == (b"a", "k", {"n": "1"})
    assert last.data() == b"d"


def test_what_is_printed(broker: Broker, topic: str, pwire: Pwire) -> None:
    three = ["-m", "a", "-m", "b", "-m", "c", "-b", "10000"]
    assert done(pwire("produce", topic, *three, "-q")) == ""
    assert done(pwire("produce", topic, *three, "-q", "-o", "json")) == ""
    ids = done(pwire("produce", topic, *three, "-o", "id")).splitlines()
    found = records(done(pwire("produce", topic, *three, "-db", "-o", "json")))
    summary = done(pwire("produce", topic, *three))
    alone = done(pwire("produce", topic, "-m", "a"))
    places = [
        (m.ledger_id(), m.entry_id(), m.batch_index())
        for m in (message.message_id() for message in stored(broker, topic))
    ]
    assert ids == [f"{ledger}:{entry}[{index}]" for ledger, entry, index in places[6:9]]
    assert [(each["ledger"], each["entry"], each["batch_index"]) for each in found] == [
        (ledger, entry, None) for ledger, entry, _ in places[9:12]
    ]
    assert [each["id"] for each in found] == [f"{ledger}:{entry}" for ledger, entry, _ in places[9:12]]
    assert [each["sequence_id"] for each in found] == [0, 1, 2]
    assert {(each["topic"], each["duplicate"]) for each in found} == {(topic, False)}
    assert all(each["latency_ns"] > 0 for each in found)
    ledger, entry, _ = places[12]
    assert summary.startswith(f"3 messages to {topic}: {ledger}:{entry}[0] … {ledger}:{entry}[2], ")
    assert alone.startswith(f"1 message to {topic}: {ledger}:{entry + 1}, ")


def test_a_trace_is_what_decode_says_of_the_recording(
    broker: Broker, topic: str, pwire: Pwire, capture: Path
) -> None:
    run = pwire("produce", topic, "-m", "hello", "-m", "ünï", "-k", "k", "--trace", "--record", capture)
    assert done(run).startswith("2 messages to ")
    decoded = done(pwire("decode", capture, url="")).splitlines()
    assert run.stderr.splitlines() == decoded
    commands = [line.split()[4] for line in decoded]
    assert [each for each in commands if "SEND" in each or "PRODUCER" in each] == [
        *("PRODUCER", "PRODUCER_SUCCESS", "SEND", "SEND_RECEIPT", "CLOSE_PRODUCER")
    ]


@pytest.mark.parametrize("form", ["tree", "json", "hex"])
def test_forms_of_a_trace(topic: str, pwire: Pwire, capture: Path, form: str) -> None:
    run = pwire("produce", topic, "-m", "hello", "--trace-form", form, "--record", capture)
    done(run)

    def without_packets(text: str) -> str:  # sockets have none
        return re.sub(r'packet \d+, |"packet":\d+,("wireshark":\d+,)?', "", text)

    assert without_packets(run.stderr) == without_packets(done(pwire("decode", capture, "-o", form, url="")))
    assert "SEND_RECEIPT" in run.stderr


def test_a_recording_is_a_capture_to_others(topic: str, pwire: Pwire, tmp_path: Path, capture: Path) -> None:
    tshark = shutil.which("tshark")
    if not tshark:
        pytest.skip("no tshark on PATH")
    (tmp_path / "file").write_bytes(os.urandom(300_000))
    done(pwire("produce", topic, "-f", tmp_path / "file", "-n", 2, "--record", capture))
    fields = ["tcp.len", "tcp.analysis.flags", "tcp.checksum.status", "ip.checksum.status"]
    options = [part for field in fields for part in ("-e", field)]
    check = ["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"]
    command = [tshark, "-r", str(capture), *check, "-T", "fields", *options]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    rows = [line.split("\t") for line in shown.splitlines()]
    assert sum(int(row[0]) for row in rows) == sum(len(frame.raw) for frame in read_frames(capture))
    assert {tuple(row[1:]) for row in rows} == {("", "1", "1")}  # nothing odd, both checksums good


# -- what goes wrong


def test_ctrl_c(broker: Broker, topic: str, pwire: Pwire) -> None:
    with Running(pwire, "produce", topic, "-m", "-", "-o", "id") as running:
        running.write("one\n")
        running.line(":0$")
        assert running.interrupt().code() == 130
        assert running.stderr == []
    assert payloads(broker, topic) == [b"one"]


def test_a_pipe_that_nobody_reads(topic: str, pwire: Pwire) -> None:
    with reader_gone(pwire, "produce", topic, "-m", "-", "-o", "id", first="one\n") as process:
        assert process.stdin
        process.stdin.write(b"two\n")
        process.stdin.close()


def test_a_topic_that_is_terminated(broker: Broker, topic: str, pwire: Pwire) -> None:
    with Running(pwire, "produce", topic, "-m", "-", "-o", "id") as running:
        running.write("last\n")
        running.line(":0$")
        broker.rest("POST", f"{path_of(topic)}/terminate")
        running.write("too late\n")
        running.close_stdin()
        running.line("TopicTerminatedError", "stderr")
        assert running.code() == 7
    assert refusal(pwire("produce", topic, "-m", "a")) == ("PRODUCER", "TopicTerminatedError")
    assert payloads(broker, topic) == [b"last"]


@pytest.mark.parametrize("where", ["public/nowhere/t", "nobody/nowhere/t"])
def test_a_namespace_that_is_not_there(broker: Broker, pwire: Pwire, where: str) -> None:
    assert refusal(pwire("produce", where, "-m", "a")) == ("PARTITIONED_METADATA", "TopicNotFound")


def test_a_topic_name_that_is_none(pwire: Pwire) -> None:
    assert "is not a valid topic" in said(pwire("produce", "a/b", "-m", "a"), 2)


def test_a_port_where_nobody_listens(topic: str, pwire: Pwire) -> None:
    port = free_port()
    url = f"pulsar://{HOST}:{port}"
    why = said(pwire("produce", topic, "-m", "a", url=url), 6)
    hints = f"tried {url}; another: --url; pwire broker --port {port} starts one"
    assert why == f"{HOST}:{port}: refused ({hints})"


def test_no_receipt_in_time(broker: Broker, topic: str, pwire: Pwire) -> None:
    options = ["--send-timeout", "0.6", "--timeout", "1"]
    with Running(pwire, "produce", topic, "-m", "-", "-o", "id", *options) as running:
        running.write("one\n")
        running.line(":0$")
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            running.write("two\n")
            running.line("SEND of sequence id 1 was not answered by SEND_RECEIPT within 0.6 s", "stderr")
            running.close_stdin()
            assert running.code() == 8
        finally:
            os.kill(broker.pid, signal.SIGCONT)


def test_an_output_that_cannot_be_written(topic: str, pwire: Pwire, tmp_path: Path) -> None:
    nowhere = tmp_path / "none" / "session.pcapng"
    assert f"--record {nowhere}: " in said(pwire("produce", topic, "-m", "a", "--record", nowhere), 5)


@pytest.mark.parametrize("what", ["a batch", "metadata"])
def test_frames_that_the_broker_does_not_take(
    broker: Broker, topic: str, pwire: Pwire, tmp_path: Path, what: str
) -> None:
    """The broker ends the connection at a frame of 10 KiB over the limit; sending it again does not help."""
    (tmp_path / "file").write_bytes(bytes(LIMIT if what == "metadata" else 4000))
    if what == "metadata":
        run = pwire("produce", topic, "-f", tmp_path / "file", "-p", "x=" + "y" * 12_000, "--send-timeout", 2)
        assert "the broker's limit is" in said(run, 2)
        return
    many = ["-n", 1500, "-bm", 5000, "--batch-bytes", 8_000_000, "-b", 10_000, "--send-timeout", 2]
    done(pwire("produce", topic, "-f", tmp_path / "file", *many))
    assert len(stored(broker, topic)) == 1500
