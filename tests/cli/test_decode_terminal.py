"""Nothing in captured traffic acts on the terminal: escapes, markup and text direction are shown."""

from __future__ import annotations

import io
import json
import re
import unicodedata
from typing import Any

import pytest
from pwire_run import Run, decode
from rich.cells import cell_len

from pulsarctl_wire.capture import read_frames
from pulsarctl_wire.cli import console
from pulsarctl_wire.render.line import LineRenderer
from pulsarctl_wire.render.text import Paint
from pulsarctl_wire.wire.frame import build_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    BaseCommand,
    BrokerEntryMetadata,
    KeyValue,
    MessageMetadata,
    Schema,
    SingleMessageMetadata,
)

FORMS = ("line", "tree", "json", "hex")

EVIL = (
    "a\x1b[31mred\x1b]0;title\x07"  # a colour, a window title
    "\x9b2Jc1\x90q\x9c"  # C1: CSI, DCS, ST
    "\x7f\x08\x00\x0b\r\n\t"  # DEL, BS, NUL, VT, line ends, TAB
    "[bold red]markup[/bold red][/nope][link=x]"  # for rich
    "\u202egnp.exe\u2066\u200f\u061c"  # bidirectional overrides, isolates and marks
    "\u2028\u2029\u0085"  # line separators
    "\ufeff\U000e0041\ufffe"  # a byte order mark, a tag, a noncharacter
)
MARKUP = "[bold red]markup[/bold red][/nope][link=x]"

INVALID = b"not utf-8: \xff\x9b31m\x1b[0m \xed\xa0\x80"


def _frames() -> bytes:
    """A session in which every text that a client or broker can choose is evil."""
    frames = []

    def add(kind: Any, metadata: MessageMetadata | None = None, payload: bytes = b"", **body: Any) -> None:
        base = BaseCommand(type=kind)
        name = next(
            field.name
            for field in BaseCommand.DESCRIPTOR.fields
            if field.number == kind and field.message_type is not None
        )
        sub = getattr(base, name)
        sub.SetInParent()
        for key, value in body.items():
            if isinstance(value, list):
                getattr(sub, key).extend(value)
            elif hasattr(value, "DESCRIPTOR"):
                getattr(sub, key).CopyFrom(value)
            else:
                setattr(sub, key, value)
        frames.append(build_frame(base, metadata, payload))

    properties = [KeyValue(key=EVIL, value=EVIL)]
    schema = Schema(name=EVIL, schema_data=EVIL.encode(), type=Schema.Json)
    schema.properties.add(key=EVIL, value=EVIL)
    entry: dict[str, Any] = {"producer_name": EVIL, "publish_time": 1, "properties": properties}
    types = BaseCommand
    add(
        types.CONNECT,
        client_version=EVIL,
        auth_method_name=EVIL,
        proxy_to_broker_url=EVIL,
        original_principal=EVIL,
    )
    add(types.CONNECTED, server_version=EVIL)
    add(types.LOOKUP, topic=EVIL, request_id=1, advertised_listener_name=EVIL)
    add(types.LOOKUP_RESPONSE, request_id=1, brokerServiceUrl=EVIL, message=EVIL)
    add(types.PRODUCER, topic=EVIL, producer_id=1, request_id=2, producer_name=EVIL, schema=schema)
    add(types.PRODUCER_SUCCESS, request_id=2, producer_name=EVIL, schema_version=b"\x1b[1m")
    add(types.SUBSCRIBE, topic=EVIL, subscription=EVIL, subType=1, consumer_id=1, request_id=3)
    add(types.ERROR, request_id=3, error=6, message=EVIL)
    add(types.SUBSCRIBE, topic=EVIL, subscription=EVIL, subType=1, consumer_id=1, request_id=4)
    add(
        types.SEND,
        MessageMetadata(sequence_id=0, partition_key=EVIL, ordering_key=EVIL.encode(), **entry),
        EVIL.encode(),
        producer_id=1,
        sequence_id=0,
    )
    add(
        types.SEND,
        MessageMetadata(sequence_id=1, schema_version=b"\x1b[1m", **entry),
        b'{"\x7f\\u001b": "%s"}' % EVIL.encode(),
        producer_id=1,
        sequence_id=1,
    )
    add(types.SEND, MessageMetadata(sequence_id=2, **entry), INVALID, producer_id=1, sequence_id=2)
    single = SingleMessageMetadata(payload_size=len(EVIL.encode()), partition_key=EVIL, properties=properties)
    head = single.SerializeToString()
    add(
        types.SEND,
        MessageMetadata(sequence_id=3, num_messages_in_batch=1, **entry),
        len(head).to_bytes(4, "big") + head + EVIL.encode(),
        producer_id=1,
        sequence_id=3,
    )
    encrypted = MessageMetadata(sequence_id=4, encryption_algo=EVIL, **entry)
    encrypted.encryption_keys.add(key=EVIL, value=b"\x1b", metadata=properties)
    add(types.SEND, encrypted, EVIL.encode(), producer_id=1, sequence_id=4)
    chunk = MessageMetadata(sequence_id=5, uuid=EVIL, num_chunks_from_msg=3, chunk_id=2, **entry)
    add(types.SEND, chunk, EVIL.encode(), producer_id=1, sequence_id=5, is_chunk=True)
    add(types.SEND_ERROR, producer_id=1, sequence_id=5, error=1, message=EVIL)
    add(types.GET_TOPICS_OF_NAMESPACE, request_id=6, namespace=EVIL, topics_pattern=EVIL)
    add(types.GET_TOPICS_OF_NAMESPACE_RESPONSE, request_id=6, topics=[EVIL, EVIL], topics_hash=EVIL)
    add(types.GET_SCHEMA_RESPONSE, request_id=7, error_message=EVIL, schema=schema)
    message = BaseCommand(type=BaseCommand.MESSAGE)
    message.message.consumer_id = 1
    message.message.message_id.ledgerId = message.message.message_id.entryId = 1
    broker_entry = BrokerEntryMetadata(index=1, broker_timestamp=1)
    frames.append(
        build_frame(
            message, MessageMetadata(sequence_id=6, **entry), EVIL.encode(), broker_entry=broker_entry
        )
    )
    frames.append(build_frame(message, MessageMetadata(sequence_id=6, **entry), EVIL.encode())[:-20])
    return b"".join(frames)


def _dangerous(run: Run) -> set[str]:
    """The characters in what a run wrote that a terminal may act on, or that hide or turn text."""
    return {
        f"U+{ord(character):04X}"
        for character in run.out.decode() + run.err
        if character != "\n" and unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
    }


@pytest.mark.parametrize("form", FORMS)
def test_no_control_character_reaches_the_terminal(form: str) -> None:
    run = decode("-o", form, "-", stdin=_frames())
    assert run.code == 0
    assert len(run.lines) >= 21
    assert _dangerous(run) == set()


@pytest.mark.parametrize("form", FORMS)
def test_what_is_no_frame_is_safe_too(form: str) -> None:
    frames = _frames()
    whole = len(decode("-", stdin=frames).lines)
    damaged = frames[:50] + EVIL.encode() + frames[300:600] + INVALID + frames[600:]
    run = decode("-o", form, "-", stdin=damaged)
    assert run.out
    assert _dangerous(run) == set()
    if form == "line":
        assert len(run.lines) < whole
        assert "MALFORMED" in run.out.decode()


@pytest.mark.parametrize("form", FORMS)
def test_a_payload_that_looks_like_a_view_is_safe_too(form: str) -> None:
    send = BaseCommand(type=BaseCommand.SEND)
    send.send.producer_id = send.send.sequence_id = 0
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    payload = json.dumps([{"view": EVIL, "value": EVIL, EVIL: EVIL}]).encode()
    run = decode("-o", form, "--schema", "json", "-", stdin=build_frame(send, metadata, payload))
    assert run.code == 0
    assert _dangerous(run) == set()


@pytest.mark.parametrize("form", ["line", "tree", "json"])
def test_markup_is_shown_as_it_is(form: str) -> None:
    """Rich would swallow it, or fail at the closing tag that was never opened."""
    for line in decode("-o", form, "--command", "PRODUCER,ERROR,SEND_ERROR", "-", stdin=_frames()).lines:
        if form != "tree" or "producer_name" in line or "message:" in line:
            assert MARKUP in line


def test_json_keeps_the_texts_exactly() -> None:
    records = decode("-o", "json", "-", stdin=_frames()).records
    by_command = {record["command"]: record for record in records if not record["partial"]}
    assert by_command["PRODUCER"]["fields"]["topic"] == EVIL
    assert by_command["ERROR"]["fields"]["message"] == EVIL
    assert by_command["GET_TOPICS_OF_NAMESPACE_RESPONSE"]["fields"]["topics"] == [EVIL, EVIL]
    sends = [record for record in records if record["command"] == "SEND"]
    assert sends[0]["messages"][0]["key"] == EVIL
    assert sends[0]["messages"][0]["properties"] == {EVIL: EVIL}
    assert sends[2]["messages"][0]["payload"] == {"view": "hex", "value": INVALID.hex()}
    assert sends[3]["messages"][0]["key"] == EVIL


def test_a_frame_is_one_line() -> None:
    frames = _frames()
    records = decode("-o", "json", "-", stdin=frames).records
    lines = decode("-o", "line", "-", stdin=frames).lines
    assert len(lines) == len(records)
    assert [line.split()[4] for line in lines] == [record["command"] for record in records]


def test_names_that_are_no_utf8() -> None:
    base = BaseCommand(type=BaseCommand.PRODUCER)
    base.producer.topic = "topic-XY"
    base.producer.producer_id = base.producer.request_id = 1
    frame = build_frame(base).replace(b"XY", b"\xff\x9b")
    for form in FORMS:
        run = decode("-o", form, "-", stdin=frame)
        assert run.code == 0
        assert _dangerous(run) == set()
        if form != "hex":
            assert rb"topic-\xff\x9b" in run.out or rb"topic-\\xff\\x9b" in run.out


@pytest.mark.parametrize("form", FORMS)
def test_no_colours_where_there_is_no_terminal(form: str) -> None:
    run = decode("-o", form, "corrupt-in-transit.pcap")
    assert b"\x1b" not in run.out
    assert "\x1b" not in run.err


# -- what the previews and trees show of it


def test_a_preview_ends_between_characters() -> None:
    base = BaseCommand(type=BaseCommand.SEND)
    base.send.producer_id = base.send.sequence_id = 0
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    for text in ("é" * 40, "x" * 31 + "é" * 4, "日本語のテキスト" * 8, "x" * 30 + "🦀🦀"):
        run = decode("-", stdin=build_frame(base, metadata, text.encode()))
        assert text[:8] in run.lines[0]
    run = decode("-", stdin=build_frame(base, metadata, b"abc\xc3"))
    assert "0x616263c3" in run.lines[0]


@pytest.mark.parametrize(
    ("single", "payload", "shown"),
    [
        (SingleMessageMetadata(payload_size=5), b"first", 'batch=2 "first" … '),
        (SingleMessageMetadata(payload_size=0, null_value=True), b"", "batch=2 … "),
        (SingleMessageMetadata(payload_size=-9), b"first", "batch=2 "),
        (SingleMessageMetadata(payload_size=2**31 - 1), b"first", "batch=2 "),
        (None, b"\xff\xff\xff\xff", "batch=2 "),
        (None, b"", "batch=2 "),
    ],
)
def test_a_batch_is_shown_by_its_first_message(
    single: SingleMessageMetadata | None, payload: bytes, shown: str
) -> None:
    base = BaseCommand(type=BaseCommand.SEND)
    base.send.producer_id = base.send.sequence_id = 0
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=2)
    if single is not None:
        head = single.SerializeToString()
        payload = len(head).to_bytes(4, "big") + head + payload + b"\0\0\0\2\x18\x01x"
    (line,) = decode("-", stdin=build_frame(base, metadata, payload)).lines
    assert shown in line
    assert ('"' in line) == ('"' in shown)


def test_a_tree_leaves_nothing_out() -> None:
    """A value is not cut at the width of the terminal."""
    long = "word " * 60 + "end"
    base = BaseCommand(type=BaseCommand.PRODUCER)
    base.producer.topic = "t" * 150
    base.producer.producer_id = base.producer.request_id = 1
    base.producer.producer_name = long
    run = decode("-o", "tree", "-", stdin=build_frame(base))
    text = run.out.decode()
    assert f"topic: {'t' * 150}" in text
    assert f"producer_name: {long}" in text
    (line,) = decode("-", stdin=build_frame(base)).lines
    assert line in text


# -- lines that are cut at the width of the terminal

ORDERS = "persistent://public/default/" + "orders-of-all-customers-" * 4
SAMPLES_OF_WRONG = ["corrupt-in-transit.pcap", "snaplen96.pcap", "chunks-out-of-order.pcap"]


@pytest.fixture(params=[40, 80, 100])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The columns of the terminal that stdout is taken for."""
    monkeypatch.setattr(console, "terminal_width", lambda stream: request.param)
    columns: int = request.param
    return columns


def _told(line: str) -> list[str]:
    """What a line says is wrong, and how its notes begin."""
    return re.findall(r"crc=BAD| PARTIAL| ! \w", line)


@pytest.mark.parametrize("sample", SAMPLES_OF_WRONG)
def test_what_is_wrong_remains_where_a_line_is_cut(
    sample: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = decode(sample).lines
    monkeypatch.setattr(console, "terminal_width", lambda stream: None)
    whole = decode(sample).lines
    assert max(map(cell_len, cut)) == width
    for line, all_of_it in zip(cut, whole, strict=True):
        assert _told(line)[:1] == _told(all_of_it)[:1]
        if width > 40:
            assert _told(line) == _told(all_of_it)
        if cell_len(all_of_it) <= width:
            assert line == all_of_it


def test_a_long_topic_does_not_hide_a_bad_checksum(width: int) -> None:
    base = BaseCommand(type=BaseCommand.PRODUCER)
    base.producer.topic = ORDERS
    base.producer.producer_id = base.producer.request_id = 1
    send = BaseCommand(type=BaseCommand.SEND)
    send.send.producer_id, send.send.sequence_id = 1, 0
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    damaged = build_frame(send, metadata, b"hello")[:-1] + b"!"
    lines = decode("-", stdin=build_frame(base) + damaged).lines
    assert lines[0].endswith("…")
    assert " SEND " in lines[1]
    assert " crc=BAD" in lines[1]
    assert [cell_len(line) for line in lines] == [width, width]


def test_what_a_frame_repeats_does_not_hide_a_bad_checksum() -> None:
    send = BaseCommand(type=BaseCommand.SEND)
    send.send.producer_id, send.send.sequence_id = 1, 0
    metadata = MessageMetadata(producer_name="p" * 50, sequence_id=0, publish_time=1)
    (frame,) = read_frames(io.BytesIO(build_frame(send, metadata, b"x" * 100)[:-1] + b"!"))
    frame.resend_of = 17
    for width in (70, 60, 50):
        assert " crc=BAD" in LineRenderer(Paint(False))(frame, width)


@pytest.mark.parametrize("sample", ["errors.pcap", "corrupt-in-transit.pcap"])
def test_the_first_error_is_cut_too(sample: str, width: int) -> None:
    (line,) = decode("--first-error", sample).lines
    assert cell_len(line) == width


@pytest.mark.parametrize(
    "sample", ["mixed.pcapng.gz", "advertised-address-silent.pcap", "snaplen96.pcap", "auth-token.pcap"]
)
def test_lines_of_connections_are_cut_and_say_what_went_wrong(
    sample: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = decode("--connections", sample).lines
    monkeypatch.setattr(console, "terminal_width", lambda stream: None)
    whole = decode("--connections", sample).lines
    assert max(map(cell_len, cut)) == width
    for line, all_of_it in zip(cut, whole, strict=True):
        wrong = r" SYN sent 3| [0-9]+ (?:gaps|malformed)"
        if width >= 80:
            assert bool(re.search(wrong, line)) == bool(re.search(wrong, all_of_it))
        assert line.startswith(all_of_it[: width // 2 - 1])
