"""Which frames `pwire decode` shows: each selecting option on real captures, with counts checked by hand."""

from __future__ import annotations

import re
import struct
import time
from collections import Counter
from datetime import datetime
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pwire_run import SAMPLES, Pcap, decode

from pulsarctl_wire.capture import read_frames
from pulsarctl_wire.cli.capture.select import Expression, Rule, by_connection, by_time
from pulsarctl_wire.cli.options import TimeFormat
from pulsarctl_wire.record import Recorder
from pulsarctl_wire.render.text import Origin
from pulsarctl_wire.wire.commands import BODIES, NUMBERS, REQUESTS
from pulsarctl_wire.wire.frame import Connection, Gap, build_frame
from pulsarctl_wire.wire.payload import MESSAGE_COST, Budget
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, CompressionType, MessageMetadata


def _commands(*args: str) -> Counter[str]:
    return Counter(line.split()[4] for line in decode(*args).lines)


# -- by command


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--command", "SEND"], {"SEND": 10}),
        (["--command", "send,Message"], {"SEND": 10, "MESSAGE": 10}),
        (["--command", "SEND", "--command", "ACK"], {"SEND": 10, "ACK": 1}),
        (["--command", "LOOKUP*"], {"LOOKUP": 2, "LOOKUP_RESPONSE": 2}),
        (["--command", "*_SUCCESS, SUCC*"], {"PRODUCER_SUCCESS": 1, "SUCCESS": 3}),
        (["--command", "?END"], {"SEND": 10}),
        (["--command", "CONNECT"], {"CONNECT": 1}),
        (["--command", "NEW_TXN"], {}),
    ],
)
def test_by_command(args: list[str], expected: dict[str, int]) -> None:
    assert _commands(*args, "python-simple.pcap") == expected


# -- by topic

CLICKS = "python-partitioned-clicks"


@pytest.mark.parametrize(
    ("topics", "count"),
    [
        ([CLICKS], 110),  # all but CONNECT and CONNECTED: the partitions belong to the topic
        ([f"public/default/{CLICKS}"], 110),
        ([f"persistent://public/default/{CLICKS}"], 110),
        ([f"non-persistent://public/default/{CLICKS}"], 0),
        ([f"{CLICKS}-partition-0"], 32),
        ([f"{CLICKS}-partition-2"], 17),
        ([f"{CLICKS}-partition-1", f"public/default/{CLICKS}-partition-3"], 29 + 26),
        (["*-partition-*"], 104),
        ([f"public/default/{CLICKS}-partition-[02]"], 32 + 17),
        (["persistent://public/*/*clicks"], 6),
        (["clicks"], 0),
        (["*clicks"], 6),
    ],
)
def test_by_topic(topics: list[str], count: int) -> None:
    options = [word for topic in topics for word in ("--topic", topic)]
    run = decode(*options, "python-partitioned.pcap")
    assert run.code == 0
    assert len(run.lines) == count


def test_a_topic_has_its_requests_answers_and_ids_resolved() -> None:
    # 6 of the frames of a partition say its name, the rest was resolved: 24 are SEND, receipt and so on
    by_topic = decode("-o", "json", "--topic", f"{CLICKS}-partition-0", "python-partitioned.pcap").records
    assert {record["topic"] for record in by_topic} == {f"persistent://public/default/{CLICKS}-partition-0"}
    assert Counter(record["command"] for record in by_topic) == {
        "LOOKUP": 2,
        "LOOKUP_RESPONSE": 2,
        "SUBSCRIBE": 1,
        "SUCCESS": 3,
        "FLOW": 1,
        "PRODUCER": 1,
        "PRODUCER_SUCCESS": 1,
        "SEND": 6,
        "SEND_RECEIPT": 6,
        "MESSAGE": 6,
        "ACK": 1,
        "CLOSE_CONSUMER": 1,
        "CLOSE_PRODUCER": 1,
    }
    assert {record["subscription"] for record in by_topic if record["command"] in ("MESSAGE", "ACK")} == {
        "counter"
    }


# -- by connection


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (["0"], 87),
        (["1"], 16),
        (["2"], 43),
        (["0", "2"], 130),
        (["7"], 0),
        ([":8650"], 146),
        (["8650"], 146),
        (["127.0.0.1"], 146),
        (["10.0.0.1"], 0),
    ],
)
def test_by_connection(wanted: list[str], count: int) -> None:
    options = [word for each in wanted for word in ("--connection", each)]
    assert len(decode(*options, "errors.pcap").lines) == count


def test_a_number_of_thousands_of_digits_is_of_no_connection() -> None:
    test = by_connection(["9" * 5_000])
    assert not any(map(test, read_frames(SAMPLES / "errors.pcap")))


def test_by_the_clients_port() -> None:
    records = decode("-o", "json", "errors.pcap").records
    client = next(record["client"] for record in records if record["connection"] == 2)
    for wanted in (client, client.rpartition(":")[2]):
        run = decode("-o", "json", "--connection", wanted, "errors.pcap")
        assert run.records == [record for record in records if record["connection"] == 2]


def test_a_port_is_matched_whole() -> None:
    (record,) = decode("-o", "json", "-c", "1", "python-simple.pcap").records
    port = record["client"].rpartition(":")[2]
    assert len(port) == 5
    assert decode("--connection", port[:4], "python-simple.pcap").lines == []


def test_damage_belongs_to_its_connection_too() -> None:
    everything = decode("snaplen96.pcap").lines
    assert decode("--connection", "0", "snaplen96.pcap").lines == everything


# -- by time


@pytest.mark.parametrize(
    ("span", "count"),
    [
        ("2026-11-20T17:43:05.65..2026-11-20T17:43:05.96", 10),
        ("2026-11-20T17:43:05.650..", 11),
        ("2026-11-20T17:43:05.650Z..", 11),
        ("2026-11-20T18:43:05.650+01:00..", 11),
        ("2026-11-20T17:43:05.960290..2026-11-20T17:43:05.960290", 1),  # both ends belong to it
        ("2026-11-20..2026-11-21", 50),
        ("2026-11-20T17:43..2026-11-20T17:44", 50),
        ("..2026-11-20T17:43:05.600", 5),
        ("..1795196585.6", 5),
        ("1795196585.6..1795196585.61", 2),
        ("1795196586..", 0),
        ("+0.05..+0.06", 8),
        ("..+0.003", 5),
        ("+0.3..", 4),
        ("..", 50),
    ],
)
def test_by_time(span: str, count: int) -> None:
    run = decode("--time-range", span, "python-simple.pcap")
    assert run.code == 0
    assert len(run.lines) == count


def test_relative_times_count_from_the_first_event_of_the_capture() -> None:
    # the first SEND comes 24.9 ms after the first frame, the third at 33.7 ms
    run = decode("--command", "SEND", "--time-range", "..+0.03", "python-simple.pcap")
    assert [line.split()[0] for line in run.lines] == ["16", "18"]


def test_relative_times_are_shown_from_the_first_event_of_the_capture() -> None:
    run = decode("--command", "SEND", "--count", "1", "--time", "relative", "python-simple.pcap")
    assert run.lines[0].split()[1] == "0.024937"


def test_raw_frames_have_no_time_to_select_by() -> None:
    base = BaseCommand(type=BaseCommand.PING)
    base.ping.SetInParent()
    run = decode("--time-range", "..", "-", stdin=build_frame(base))
    assert run.code == 0
    assert run.lines == []


# -- by count, and what is wrong


def test_count_stops_after_so_many_shown() -> None:
    everything = decode("python-simple.pcap").lines
    assert decode("--count", "3", "python-simple.pcap").lines == everything[:3]
    sends = decode("-c", "4", "--command", "SEND", "python-simple.pcap").lines
    assert sends == [line for line in everything if " SEND " in line][:4]
    assert decode("-c", "1000", "python-simple.pcap").lines == everything


def test_count_reads_no_further() -> None:
    run = decode("-c", "1", "python-simple.pcap", "no-such-file.pcap")
    assert run.code == 0
    assert "no-such-file" not in run.err


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        ("errors.pcap", r"^ConsumerBusy: .* \| +17 \S+ 0 ← ERROR .* ConsumerBusy "),
        ("auth-token.pcap", r"^AuthenticationError: .* \| +42 \S+ 2 ← ERROR "),
        (
            "corrupt-in-transit.pcap",
            r"^CRC32-C is 2bc7eb98, the bytes have 3b992cf7 \| +19 \S+ 3 → SEND .* crc=BAD",
        ),
        (
            "chunks-out-of-order.pcap",
            r"^.*without chunk 2.* \| +19 \S+ 1 → SEND .* chunk=3/3 .* without chunk 2",
        ),
        ("java-nack-dlq.pcap", r"^TopicNotFound \| +17 \S+ 0 ← PARTITIONED_METADATA_RESPONSE .* Failed "),
        ("snaplen96.pcap", r"^cut: 30 of 45 bytes \| +1 \S+ 0 → .* PARTIAL"),
        (
            "http-client-on-binary-port.pcap",
            r"^not Pulsar: HTTP: GET /admin.* \| +- \S+ 0 → MALFORMED not Pulsar: HTTP: GET",
        ),
    ],
)
def test_the_first_error(sample: str, said: str) -> None:
    run = decode("--first-error", sample)
    assert run.code == 0
    assert len(run.lines) == 1
    assert re.search(said, run.lines[0])


@pytest.mark.parametrize(
    "sample",
    [
        "python-simple.pcap",
        "java-encrypted.pcap",
        "java-batch-zlib.pcap",
        "no-checksum.pcap",
        "mixed.pcapng.gz",
    ],
)
def test_nothing_is_wrong(sample: str) -> None:
    run = decode("--first-error", sample)
    assert run.code == 0
    assert run.lines == []
    (said,) = run.complaints
    assert re.fullmatch(r"pwire: no errors in [0-9]+ frames", said)


def test_nothing_is_wrong_in_what_was_looked_at() -> None:
    run = decode("--first-error", "--command", "LOOKUP", "errors.pcap")
    looked_at = len(decode("--command", "LOOKUP", "errors.pcap").lines)
    assert run.complaints == [f"pwire: no errors in {looked_at} frames"]


def test_what_lacks_a_field_is_wrong() -> None:
    base = BaseCommand(type=BaseCommand.LOOKUP)
    base.lookupTopic.topic = "t"
    command = base.SerializePartialToString()
    frame = struct.pack(">II", 4 + len(command), len(command)) + command
    run = decode("--first-error", "-", stdin=frame)
    assert run.lines[0].startswith("CommandLookupTopic lacks request_id | ")
    assert run.lines[0].endswith(" ! CommandLookupTopic lacks request_id")


def test_a_hole_is_wrong() -> None:
    lossy = Pcap.read("python-simple.pcap").without([22])  # the packet of the first SEND
    run = decode("--first-error", "-", stdin=lossy.file)
    assert re.search(r" - \S+ 0 → GAP 103 bytes were not captured", run.lines[0])


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        ("LOOKUP_RESPONSE", {"response": 2, "error": 11, "message": "gone"}, "TopicNotFound: gone"),
        ("LOOKUP_RESPONSE", {"response": 2, "message": "why"}, "Failed: why"),
        ("GET_SCHEMA_RESPONSE", {"error_code": 11, "error_message": "gone"}, "TopicNotFound: gone"),
        ("ACK", {"consumer_id": 1, "ack_type": 0, "validation_error": 2}, "ChecksumMismatch"),
        ("ERROR", {"error": 6, "message": "later\x1b"}, r"ServiceNotReady: later\x1b"),
    ],
)
def test_an_error_is_told_by_its_name_and_message(kind: str, fields: dict[str, Any], said: str) -> None:
    base = BaseCommand(type=getattr(BaseCommand, kind))
    body = getattr(base, BODIES[base.type])
    for name, value in fields.items():
        setattr(body, name, value)
    if kind != "ACK":
        body.request_id = 1
    run = decode("--first-error", "-", stdin=build_frame(base))
    assert run.lines[0].startswith(f"{said} | ")


def test_the_first_error_of_some_frames() -> None:
    run = decode("--first-error", "--connection", "2", "errors.pcap")
    assert re.search(r" 102 \S+ 2 ← ERROR .* ProducerFenced ", run.lines[0])
    run = decode("--first-error", "--command", "SEND_ERROR", "errors.pcap")
    assert " NotAllowedError " in run.lines[0]
    run = decode("--first-error", "--command", "PARTITIONED*", "errors.pcap")
    assert " Failed TopicNotFound " in run.lines[0]


def _send(metadata: dict[str, Any], payload: bytes) -> bytes:
    base = BaseCommand(type=BaseCommand.SEND)
    base.send.producer_id = base.send.sequence_id = 0
    fields = {"producer_name": "p", "sequence_id": 0, "publish_time": 1, **metadata}
    return build_frame(base, MessageMetadata(**fields), payload)


@pytest.mark.parametrize(
    ("metadata", "payload"),
    [
        ({"compression": CompressionType.LZ4, "uncompressed_size": 30}, b"no LZ4 block at all"),
        ({"num_messages_in_batch": 3}, b"\xff\xff\xff\xff"),
    ],
    ids=["does not decompress", "no batch"],
)
def test_a_payload_that_cannot_be_read_is_wrong(metadata: dict[str, Any], payload: bytes) -> None:
    frames = _send({}, b"fine") + _send(metadata, payload)
    run = decode("--first-error", "-o", "json", "-", stdin=frames)
    assert [record["number"] for record in run.records] == [2]
    assert run.records[0]["notes"]


# -- by expression


EXPRESSIONS = [
    ("python-simple.pcap", 'command == "SEND" and total_size > 100', 5),
    ("python-simple.pcap", "latency_ns != null and latency_ns > 4000000", 3),
    ("python-simple.pcap", "latency_ns > 4000000", 3),  # null is not greater than anything
    ("python-simple.pcap", 'topic =~ ".*orders.*"', 48),
    ("python-simple.pcap", 'topic =~~ "orders$"', 48),
    ("python-simple.pcap", 'checksum == "valid"', 20),
    ("python-simple.pcap", "to_broker", 21),
    ("python-simple.pcap", "not to_broker", 29),
    ("python-simple.pcap", 'fields["producer_id"] == 0', 22),
    ("python-simple.pcap", 'metadata["partition_key"] == "customer-1"', 6),
    ("python-simple.pcap", 'subscription == "billing" and command == "ACK"', 1),
    ("python-simple.pcap", "number >= 16 and number <= 20", 5),
    ("python-simple.pcap", 'command in ["SEND", "ACK"]', 11),
    ("java-batch-zlib.pcap", "messages.length == 12", 20),
    ("java-batch-zlib.pcap", 'metadata["compression"] == "ZLIB"', 8),
    ("errors.pcap", 'fields["error"] != null', 10),
    ("errors.pcap", 'fields["message_id"]["ledgerId"] == 128', 2),
    ("no-checksum.pcap", 'checksum == "absent"', 6),
    ("snaplen96.pcap", "malformed != null", 9),
    ("snaplen96.pcap", "gap != null", 84),
    ("snaplen96.pcap", "gap > 1000", 4),
    ("snaplen96.pcap", "partial", 75),
    ("chunks-out-of-order.pcap", "notes.length > 0", 8),
    ("mixed.pcapng.gz", 'connection == 1 and command == "SEND"', 3),
]
WITH_FUNCTIONS = [
    ("python-simple.pcap", '$any([m["key"] == "customer-1" for m in messages])', 6),
    ("python-simple.pcap", '$any([m["payload"]["value"] =~~ "^order 3" for m in messages])', 2),
    ("python-simple.pcap", '$any([m["properties"]["n"] == "3" for m in messages])', 2),
    ("java-batch-zlib.pcap", '$any([m["size"] > 130 for m in messages])', 30),
    ("java-batchindexack.pcap", "$any([m.already_acked for m in messages])", 3),  # absent but where true
    ("chunks-out-of-order.pcap", '$any([note =~~ "without chunk 1" for note in notes])', 6),
]
WITH_DOTS = [
    ("python-simple.pcap", "fields.producer_id == 0", 22),
    ("errors.pcap", "fields.message_id.ledgerId == 128", 2),
    ("java-batch-zlib.pcap", 'metadata.compression == "ZLIB"', 8),
    ("java-batch-zlib.pcap", "$any([m.size > 130 for m in messages])", 30),
    ("python-simple.pcap", '$any([m.key == "customer-1" for m in messages])', 6),
    ("python-simple.pcap", '$any([m.payload.value =~~ "^order 3" for m in messages])', 2),
    ("python-simple.pcap", '$any([m.properties.n == "3" for m in messages])', 2),
    ("python-simple.pcap", 'messages[0].payload.value =~~ "^order 3"', 2),
]


@pytest.mark.parametrize(
    ("sample", "expression", "count"),
    [*EXPRESSIONS, *WITH_FUNCTIONS, *WITH_DOTS],
)
def test_by_expression(sample: str, expression: str, count: int) -> None:
    run = decode("-o", "json", "--filter", expression, sample)
    assert run.complaints == []
    assert run.code == 0
    assert len(run.records) == count


def test_messages_that_are_too_many_for_an_expression_are_counted() -> None:
    budget = Budget()
    budget.left = 3 * MESSAGE_COST // 2
    two_messages = Expression("messages.length == 2", Recorder(budget=budget))
    assert not two_messages.matches({"messages": [{}, {}]})
    assert budget.unopened == 1


@given(st.data())
def test_an_outcome_that_is_remembered_is_that_of_the_record(data: st.DataObject) -> None:
    """Also where it made no sense, and of records without the fields."""
    names = frozenset(("topic", "size", "fields", "messages"))
    text = 'topic == "a" or size > 3 or fields.x == 1 or $any([m == 2 for m in messages])'
    values = {"topic": st.sampled_from(["a", "b", "", None]), "size": st.sampled_from([1, 4, "4", None])}
    values |= {"fields": st.sampled_from([{}, {"x": 1}, None]), "messages": st.sampled_from([[], [1], [2]])}
    one = Rule(text, names, "--filter", "")
    for _ in range(20):
        record = data.draw(st.fixed_dictionaries({}, optional=values))
        new = Rule(text, names, "--filter", "")
        before = one.failed
        assert (one.matches(record), one.failed - before) == (new.matches(record), new.failed)
    assert one.tried == 20


def test_no_more_outcomes_are_remembered_than_there_may() -> None:
    rule = Rule("topic =~ '.*'", frozenset({"topic"}), "--filter", "")
    for number in range(3_000):
        assert rule.matches({"topic": f"t{number}"})
        assert len(rule._outcomes) <= 1_024
    rule._outcomes.clear()
    assert rule.matches({"topic": "t" * 2_049})
    assert not rule._outcomes


def test_what_changes_is_not_remembered() -> None:
    rule = Rule("$random() > 0.5 and topic == 't'", frozenset({"topic"}), "--filter", "")
    assert {rule.matches({"topic": "t"}) for _ in range(200)} == {True, False}


def test_an_expression_that_never_made_sense_is_told() -> None:
    run = decode("--filter", "command > 3", "python-simple.pcap")
    assert run.lines == []
    assert len(run.complaints) == 1
    assert run.complaints[0].startswith("pwire: --filter: ")


def test_options_narrow_each_other() -> None:
    run = decode(
        *("--command", "SEND,MESSAGE", "--topic", f"{CLICKS}-partition-1", "--connection", "0"),
        *(
            "--time-range",
            "2026-11-20T17:39:58.400..",
            "--filter",
            "to_broker",
            "--count",
            "2",
            "python-partitioned.pcap",
        ),
    )
    assert [line.split()[0] for line in run.lines] == ["70", "76"]


# -- requests and answers


def _answers(sample: str) -> list[dict[str, Any]]:
    return decode("-2", "-o", "json", sample).records


@pytest.mark.parametrize(
    "sample",
    [
        "python-simple.pcap",
        "python-partitioned.pcap",
        "errors.pcap",
        "auth-token.pcap",
        "java-keyshared.pcap",
    ],
)
def test_two_passes_name_the_answers(sample: str) -> None:
    records = [record for record in _answers(sample) if record["number"] is not None]
    by_number = {record["number"]: record for record in records}
    assert list(by_number) == list(range(1, len(records) + 1))
    answered = [record for record in records if record["answer"] is not None]
    assert answered
    for record in answered:
        answer = by_number[record["answer"]]
        assert answer["request"] == record["number"]
        assert answer["connection"] == record["connection"]
        assert answer["to_broker"] is not record["to_broker"]
        assert answer["latency_ns"] == answer["time_ns"] - record["time_ns"] >= 0
        assert answer["topic"] == record["topic"]
    # a request may be answered twice (a producer that waits for its turn): then the last answer counts
    asked = {record["request"] for record in records if record["request"] is not None}
    assert asked == {record["number"] for record in answered}


def test_every_request_of_a_closed_session_has_its_answer() -> None:
    requests = {number for number in REQUESTS if number != NUMBERS["ACK"]} | {NUMBERS["SEND"]}
    for record in _answers("python-partitioned.pcap"):
        if record["to_broker"] and NUMBERS[record["command"]] in requests:
            assert record["answer"] is not None


def test_one_pass_has_no_answers_but_the_same_requests() -> None:
    once = decode("-o", "json", "errors.pcap").records
    assert not any("answer" in record for record in once)
    for record in (twice := _answers("errors.pcap")):
        del record["answer"]
    assert twice == once


def test_two_passes_in_lines_and_filters() -> None:
    lines = decode("-2", "python-simple.pcap").lines
    assert lines[0].endswith(" answered by #2")
    assert lines[15].endswith(" answered by #17")
    assert sum("answered by #" in line for line in lines) == 19
    assert len(decode("-2", "--filter", "answer != null", "python-simple.pcap").lines) == 19
    assert decode("--filter", "answer != null", "python-simple.pcap").lines == []


def test_two_passes_keep_to_the_selection() -> None:
    (record,) = decode("-2", "-o", "json", "--command", "SEND", "-c", "1", "python-simple.pcap").records
    assert record["answer"] == 17


# -- times as they are printed


@pytest.mark.parametrize("sample", ["nano.pcap", "errors.pcap"])
@pytest.mark.parametrize("zone", ["UTC", "America/St_Johns"])
@pytest.mark.parametrize("form", get_args(TimeFormat))
def test_times_are_taken_as_they_are_printed(
    sample: str, zone: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        lines = decode("--time", form, sample).lines
        first, last = lines[len(lines) // 3], lines[-10]
        span = f"{first.split()[1]}..{last.split()[1]}"
        times = [line.split()[1] for line in lines]
        assert decode("--time", form, "--time-range", span, sample).lines == [
            line
            for line, at in zip(lines, times, strict=True)
            if times.index(first.split()[1]) <= times.index(at) <= times.index(last.split()[1])
        ]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_the_times_of_json_are_taken_too() -> None:
    everything = decode("-o", "json", "nano.pcap").records
    span = f"{everything[10]['time_ns']}..{everything[20]['time_ns']}"
    chosen = decode("-o", "json", "--time-range", span, "nano.pcap").records
    assert chosen == [each for each in everything if each in chosen]
    assert {everything[10]["number"], everything[20]["number"]} <= {each["number"] for each in chosen}


@pytest.mark.parametrize(
    ("start", "span", "seconds"),
    [
        ("23:59:58", "23:59:59..00:00:01", [1, 2, 3]),  # over midnight
        ("23:59:58", "00:00:01..", [3, 4, 5]),
        ("23:59:58", "..00:00:01", [0, 1, 2, 3]),
        ("10:05:00", "10:00..10:05:02", [0, 1, 2]),
        ("10:05:00", "10:05:04..", [4, 5]),
        ("10:05:00", "10:00..10:04", []),
        ("10:05:00", "-1..2", [0, 1, 2]),
        ("10:05:00", "1..1.000000", [1]),
        ("10:05:00", "2026-11-20 10:05:03..", [3, 4, 5]),
    ],
)
def test_times_of_day_are_near_the_first_event(start: str, span: str, seconds: list[int]) -> None:
    first = int(datetime.fromisoformat(f"2026-11-20T{start}+00:00").timestamp())
    origin = Origin()
    test = by_time(span, origin)
    origin.time_ns = first * 10**9
    chosen = [
        second for second in range(6) if test(Gap(1, Connection(0), True, time_ns=(first + second) * 10**9))
    ]
    assert chosen == seconds


# -- what is told about a selection that is wrong, or that nothing matches


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--topic", "order"], "--topic: none of 50 frames matched"),
        (
            ["--command", "NEW_TXN", "--time-range", "..+1"],
            "--command, --time-range: none of 50 frames matched",
        ),
        (["--filter", "number > 100"], "--filter: none of 50 frames matched"),
    ],
)
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_selection_that_nothing_matches_says_how_much_it_looked_at(
    args: list[str], said: str, jobs: str
) -> None:
    run = decode("--jobs", jobs, *args, "python-simple.pcap")
    assert run.code == 0
    assert run.complaints == [f"pwire: {said}"]
    assert decode("-q", *args, "python-simple.pcap").complaints == []


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ('command = "SEND"', 'did you mean command == "SEND"?'),
        ("topic = orders", 'did you mean topic == "orders"?'),
        (
            "topic = persistent://public/default/orders and number=3",
            'did you mean topic == "persistent://public/default/orders" and number==3?',
        ),
        ("(topic=orders or command != SEND) and to_broker = true", '(topic=="orders" or command != "SEND")'),
        ("fields['producer_id'] = -1.5", "did you mean fields['producer_id'] == -1.5?"),
        ("request = number", "did you mean request == number?"),
        ("request = fields.request_id", "did you mean request == fields.request_id?"),
        ("command =~ SEND.* and topic = orders", 'did you mean command =~ "SEND.*" and topic == "orders"?'),
        ("command=='SEND' and topic='a=b'", "did you mean command=='SEND' and topic=='a=b'?"),
        ("$any([m.sizze > 1 for m in messages])", "did you mean size?"),
        ("SEND", "did you mean command == 'SEND'?"),
        ("send", "did you mean command == 'SEND'?"),
        ("command == SEND", "did you mean 'SEND'?"),
        ("topic == orders", "did you mean 'orders'?"),
        ("comand == 'SEND'", "did you mean command?"),
        ("Command == 'SEND'", "did you mean command?"),
        ("zzz > 3", "docs/json.md lists the fields"),
        ("number >= >= 3", "see docs/json.md for the fields"),
    ],
)
def test_an_expression_that_is_wrong_gets_a_hint(expression: str, said: str) -> None:
    run = decode("--filter", expression, "python-simple.pcap")
    assert run.code == 2
    (line,) = run.err.splitlines()
    assert line.startswith(f"pwire: --filter {expression}: ")
    assert said in line
    if " == " in (better := line.partition("did you mean ")[2].rstrip("?")):
        assert decode("--filter", better, "python-simple.pcap").code == 0
