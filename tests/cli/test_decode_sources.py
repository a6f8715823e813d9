"""What `pwire decode` reads: files, pipes, several sources, bad ones; and with which exit code it ends."""

from __future__ import annotations

import gzip
import os
import random
import re
import struct
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import zstandard
from pwire_run import SAMPLES, Pcap, decode, pwire

from pulsarctl_wire.cli.console import EXIT_DAMAGED, EXIT_OUTPUT, EXIT_SOURCE, EXIT_USAGE
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand

SIMPLE = (SAMPLES / "python-simple.pcap").read_bytes()


@cache
def _simple_lines() -> bytes:
    """What is shown of the whole sample."""
    return decode("python-simple.pcap").out


# -- one source that cannot be read


def test_a_missing_file() -> None:
    run = decode("no-such-file.pcap")
    assert run.code == EXIT_SOURCE
    assert run.out == b""
    assert run.complaints == ["pwire: no-such-file.pcap: no such file"]


def test_an_empty_directory(tmp_path: Path) -> None:
    run = decode(tmp_path)
    assert run.code == EXIT_SOURCE
    assert run.complaints == [f"pwire: {tmp_path}: no capture files there"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "secret.pcap"
    path.touch(mode=0o000)
    run = decode(path)
    assert run.code == EXIT_SOURCE
    assert "permission denied" in run.err


NO_SOURCES = {
    "empty": (b"", "empty"),
    "prose": (b"Dear operator, this file holds no packets.\n" * 40, "neither a capture"),
    "picture": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4, "neither a capture"),
    "cut header": (SIMPLE[:10], "cut inside the file header"),
    "packed emptiness": (gzip.compress(b""), "empty"),
    "packed too often": (gzip.compress(gzip.compress(gzip.compress(gzip.compress(SIMPLE)))), "compressed"),
}


@pytest.mark.parametrize("name", NO_SOURCES)
def test_what_is_no_source(name: str, tmp_path: Path) -> None:
    content, reason = NO_SOURCES[name]
    path = tmp_path / "given"
    path.write_bytes(content)
    run = decode(path)
    assert run.code == EXIT_SOURCE
    assert run.out == b""
    assert len(run.complaints) == 1
    assert run.complaints[0].startswith(f"pwire: {path}: ")
    assert reason in run.complaints[0]


@pytest.mark.parametrize("content", [content for content, _ in NO_SOURCES.values()], ids=list(NO_SOURCES))
def test_the_same_from_a_pipe(content: bytes) -> None:
    run = decode("-", stdin=content)
    assert run.code == EXIT_SOURCE
    assert run.out == b""
    assert [line[:14] for line in run.complaints] == ["pwire: stdin: "]


def test_nothing_read_nothing_summed_up() -> None:
    run = decode("no-such-file.pcap")
    assert run.err.splitlines() == run.complaints


def test_control_characters_in_a_file_name_do_not_reach_the_terminal() -> None:
    run = decode("no\x1b[31m\nsuch.pcap")
    assert run.complaints == [r"pwire: no\x1b[31m\nsuch.pcap: no such file"]


# -- directories


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two captures, the earlier one further down and later by its name, among other things."""
    below = tmp_path / "below" / "further"
    below.mkdir(parents=True)
    (below / "z.pcap").write_bytes(SIMPLE)
    (tmp_path / "a.pcap.gz").write_bytes(gzip.compress((SAMPLES / "chunks-out-of-order.pcap").read_bytes()))
    (tmp_path / "notes.txt").write_text("of the incident")
    (tmp_path / ".hidden").write_bytes(SIMPLE)
    (tmp_path / "empty").mkdir()
    for name in ("again", "once-more"):  # without an end, and in twice as many ways at each level
        (below / name).symlink_to(tmp_path)
    return tmp_path


def test_a_directory_stands_for_its_captures(directory: Path) -> None:
    paths = [directory / "a.pcap.gz", directory / "below" / "further" / "z.pcap"]
    run, named = decode(directory), decode(*paths)
    assert (run.code, run.out) == (named.code, named.out)
    assert run.complaints == [f"pwire: {directory}: 1 file is not a capture: notes.txt", *named.complaints]
    assert decode(directory, paths[0]).out == run.out


@pytest.mark.parametrize("verb", ["doctor", "stats", "sequence", "permits", "table"])
def test_all_verbs_take_directories(
    directory: Path, tmp_path_factory: pytest.TempPathFactory, verb: str
) -> None:
    out = tmp_path_factory.mktemp("out") / "frames.parquet"
    more: list[str | Path] = ["--out", out] if verb == "table" else []
    run = pwire(verb, directory, *more)
    paths = [directory / "a.pcap.gz", directory / "below" / "further" / "z.pcap"]
    named = pwire(verb, *paths, *more)
    assert (run.code, run.out) == (named.code, named.out)
    assert run.complaints == [f"pwire: {directory}: 1 file is not a capture: notes.txt", *named.complaints]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_directory_that_may_not_be_read(directory: Path) -> None:
    (directory / "empty").chmod(0)
    run = decode(directory)
    assert run.code == EXIT_SOURCE
    assert run.complaints == [f"pwire: {directory / 'empty'}: Permission denied"]


def test_the_output_is_none_of_the_captures_in_a_directory(directory: Path) -> None:
    path = directory / "below" / "further" / "z.pcap"
    assert decode(directory, "-w", path).code == EXIT_USAGE
    assert path.read_bytes() == SIMPLE


# -- sources that break off


def _shown_before(cut: int) -> bytes:
    """The lines of the frames whose packets are whole in the first `cut` bytes of the sample."""
    at, whole = 24, 0
    for packet in Pcap.read("python-simple.pcap").packets:
        at += 16 + len(packet[3])
        whole += at <= cut
    records = decode("-o", "json", "python-simple.pcap").records
    count = sum(record["packet"] <= whole for record in records)
    return b"".join(_simple_lines().splitlines(keepends=True)[:count])


@pytest.mark.parametrize("cut", [40, 100, 1111, 2500, 4000, 8000, len(SIMPLE) - 1])
def test_all_before_the_damage_is_shown(cut: int) -> None:
    run = decode("-", stdin=SIMPLE[:cut])
    assert run.code == EXIT_DAMAGED
    assert run.out == _shown_before(cut)
    assert len(run.complaints) == 1
    assert "the file ends in the middle of the packet" in run.complaints[0]


@pytest.mark.parametrize(
    "pack",
    [
        gzip.compress,
        zstandard.ZstdCompressor().compress,
    ],
    ids=["gzip", "zstd"],
)
def test_a_cut_compressed_file_is_shown_as_far_as_it_goes(pack: Callable[[bytes], bytes]) -> None:
    whole = pack((SAMPLES / "errors.pcap").read_bytes())
    run = decode("-", stdin=whole[: len(whole) * 3 // 4])
    assert run.code == EXIT_DAMAGED
    assert decode("errors.pcap").out.startswith(run.out)
    assert "breaks off" in run.complaints[0]


def test_a_cut_gzip_file_shows_something() -> None:
    packed = (SAMPLES / "mixed.pcapng.gz").read_bytes()
    run = decode("-", stdin=packed[:2000])
    assert run.code == EXIT_DAMAGED
    assert len(run.lines) > 20


def test_a_damaged_packet_header() -> None:
    damaged = bytearray(SIMPLE)
    damaged[24 + 8 : 24 + 12] = b"\xff\xff\xff\x7f"  # the first packet's captured length
    run = decode("-", stdin=bytes(damaged))
    assert run.code == EXIT_DAMAGED
    assert run.out == b""
    assert "the packet at byte 24 claims 2147483647 bytes" in run.complaints[0]


def test_a_cut_frame_is_shown_as_partial() -> None:
    simple = Pcap.read("python-simple.pcap")
    last = simple.packets[21]  # the first SEND
    cut = simple._replace(packets=[*simple.packets[:21], (*last[:3], last[3][:-5])])
    run = decode("-o", "json", "-", stdin=cut.file)
    assert run.code == 0
    record = next(record for record in run.records if record.get("command") == "SEND")
    assert record["partial"] is True
    assert record["checksum"] is None
    assert record["notes"] == ["cut: 98 of 103 bytes"]


# -- several sources


def test_the_others_are_shown_when_one_is_bad() -> None:
    run = decode("mixed.pcapng.gz", "no-such-file.pcap", "python-simple.pcap")
    assert run.code == EXIT_SOURCE
    assert run.complaints == ["pwire: no-such-file.pcap: no such file"]
    assert len(run.lines) == 50 + 48
    assert run.out.startswith(decode("mixed.pcapng.gz").out)


@pytest.mark.parametrize(
    "order",
    [
        (0, 1),
        (1, 0),
    ],
)
def test_an_unreadable_source_decides_the_exit_code_in_any_order(
    order: tuple[int, int], tmp_path: Path
) -> None:
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(SIMPLE[:4000])
    given = [cut, tmp_path / "missing.pcap"]
    run = decode(*(given[n] for n in order))
    assert run.code == EXIT_SOURCE
    assert len(run.complaints) == 2


def test_a_damaged_source_does_not_hide_the_next(tmp_path: Path) -> None:
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(SIMPLE[:4000])
    run = decode(cut, "nano.pcap")
    assert run.code == EXIT_DAMAGED
    assert len(run.lines) == 23 + 50
    assert run.lines[23].startswith("    24 ")


@pytest.mark.parametrize("at", [1, 17, 30, 43, 58])
def test_rotated_files_continue_each_other(at: int, tmp_path: Path) -> None:
    simple = Pcap.read("python-simple.pcap")
    first, second = tmp_path / "a.pcap", tmp_path / "b.pcap"
    first.write_bytes(simple._replace(packets=simple.packets[:at]).file)
    second.write_bytes(simple._replace(packets=simple.packets[at:]).file)
    run = decode(first, second)
    assert run.code == 0
    assert run.out == _simple_lines()


def test_a_frame_may_begin_in_one_file_and_end_in_the_next(tmp_path: Path) -> None:
    batch = Pcap.read("java-batch-zlib.pcap")
    whole = decode("-o", "json", "java-batch-zlib.pcap")
    for at in range(1, len(batch.packets), 40):
        first, second = tmp_path / "a.pcap", tmp_path / "b.pcap"
        first.write_bytes(batch._replace(packets=batch.packets[:at]).file)
        second.write_bytes(batch._replace(packets=batch.packets[at:]).file)
        records = decode("-o", "json", first, second).records
        places = [(record.pop("file"), record.pop("wireshark"), record["packet"]) for record in records]
        assert [{**record, "wireshark": record["packet"]} for record in records] == whole.records
        assert all(
            number == packet - at * (file == str(second)) and (packet > at) == (file == str(second))
            for file, number, packet in places
        )


def test_the_span_of_captures_in_the_wrong_order_is_positive() -> None:
    spans = [
        re.search(r" in (-?[\d.]+) s", decode("-q", *names).err)
        for names in (("nano.pcap", "python-simple.pcap"), ("python-simple.pcap", "nano.pcap"))
    ]
    assert [float(span[1]) for span in spans if span] == [150.460, 150.460]


# -- pipes, and the other forms


def test_stdin_is_read_like_a_file() -> None:
    run = decode("-", stdin=SIMPLE)
    assert run.code == 0
    assert run.out == _simple_lines()
    assert run.err == decode("python-simple.pcap").err


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(SIMPLE),
        zstandard.ZstdCompressor().compress(SIMPLE),
        gzip.compress(zstandard.ZstdCompressor().compress(SIMPLE)),
    ],
    ids=["gzip", "zstd", "both"],
)
def test_compression_is_undone(content: bytes) -> None:
    run = decode("-", stdin=content)
    assert run.code == 0
    assert run.out == _simple_lines()


def test_stdin_twice_in_two_passes() -> None:
    run = decode("-2", "-", stdin=SIMPLE)
    assert run.code == 0
    assert run.out == decode("-2", "python-simple.pcap").out
    assert b"answered by #2" in run.out


def _raw_frames(sample: str) -> bytes:
    """The bytes of a sample's frames, one after the other in order of capture."""
    from pulsarctl_wire import read_frames

    return b"".join(frame.raw for frame in read_frames(SAMPLES / sample))


def test_raw_frames_know_their_direction_and_topic() -> None:
    raw = decode("-o", "json", "-", stdin=_raw_frames("python-simple.pcap"))
    assert raw.code == 0
    names = ("number", "to_broker", "command", "fields", "metadata", "checksum", "topic", "subscription")
    captured = decode("-o", "json", "python-simple.pcap").records
    assert [[record[name] for name in names] for record in raw.records] == [
        [record[name] for name in names] for record in captured
    ]
    assert {record["time_ns"] for record in raw.records} == {None}
    assert {record["latency_ns"] for record in raw.records} == {None}


def test_raw_bytes_that_end_inside_a_frame() -> None:
    frames = _raw_frames("python-simple.pcap")
    run = decode("-o", "json", "-", stdin=frames[:-3])
    assert run.records[-1]["partial"] is True
    assert [record["command"] for record in run.records[:-1]] == [
        record["command"] for record in decode("-o", "json", "python-simple.pcap").records[:-1]
    ]


PING = bytes.fromhex("00000009000000050812920100")


def _wrong_frames() -> dict[str, bytes]:
    """Frames whose heads, or whose commands, are wrong in the ways of clients that are being written."""
    base = BaseCommand(type=BaseCommand.PRODUCER)
    base.producer.topic = "persistent://public/default/orders"
    base.producer.producer_id = base.producer.request_id = 1
    command = base.SerializeToString()
    size = len(command)
    unparseable = command.replace(b"\x10\x01", b"\x16\x01", 1)
    return {
        "little-endian": struct.pack("<II", size + 4, size) + command,
        "no TOTAL_SIZE": struct.pack(">I", size) + command,
        "no sizes": command,
        "TOTAL_SIZE too small": struct.pack(">II", size, size) + command + PING,
        "a field that breaks": struct.pack(">II", size + 4, size) + unparseable,
        "several": (struct.pack("<II", size + 4, size) + command) * 3,
        "several without sizes": command + PING[8:] + command,
    }


@pytest.mark.parametrize("form", ["line", "hex"])
@pytest.mark.parametrize("wrong", _wrong_frames())
def test_a_wrong_frame_alone_is_told_as_in_a_hex_dump(wrong: str, form: str) -> None:
    data = _wrong_frames()[wrong]
    run = decode("-o", form, "-", stdin=data)
    of_text = decode("-o", form, "-", stdin=data.hex().encode())
    assert of_text._replace(err=of_text.err.replace("  read as    hex digits\n", "")) == run
    assert run.code == 0
    assert re.match(r" +- - 0 → MALFORMED .*: PRODUCER, ", run.lines[0])


def _other_files() -> dict[str, bytes]:
    noise = random.Random(1)
    return {
        **{f"noise {number}": noise.randbytes(1 << noise.randrange(14)) for number in range(40)},
        "PNG": bytes.fromhex("89504e470d0a1a0a0000000d494844520000001000000010080600000073ae6ff6"),
        "MP4": bytes.fromhex("000000186674797069736f6d0000020069736f6d69736f32000000086672656500"),
        "zip": bytes.fromhex("504b0304140000000800214c5a590805120708021207") * 9,
        "program": Path(sys.executable).read_bytes()[:100_000],
        "ONNX": bytes.fromhex("0802120770796f7463683a0a0802120131") + b"\0" * 60,
        "protobuf, field 3 behind a 3": b"\x08\x03\x1a\x05hello" * 9,
        "protobuf with a size": b"\0\0\0\x18\x08\x02\x12\x05world" + b"\x1a\x03abc" * 9,
        "zeros": bytes(5000),
        "SQLite": b"SQLite format 3\0\x10\0\1\1\0\x40\x20\x20" + bytes(80),
    }


@pytest.mark.parametrize("other", _other_files())
def test_other_files_are_taken_for_no_frames(other: str) -> None:
    run = decode("-", stdin=_other_files()[other])
    assert (run.code, run.out) == (EXIT_SOURCE, b"")
    assert "nor Pulsar frames" in run.err


@pytest.mark.parametrize("form", ["plain", "xxd", "python"])
def test_a_hex_dump_of_frames(form: str) -> None:
    data = _raw_frames("python-simple.pcap")[:92]  # CONNECT and CONNECTED
    rows = [data[at : at + 16] for at in range(0, len(data), 16)]
    text = {
        "plain": data.hex(),
        "xxd": "\n".join(
            f"{n * 16:08x}: {row.hex(' ', 2):<40} {'.' * len(row)}" for n, row in enumerate(rows)
        ),
        "python": repr(data),
    }[form]
    run = decode("-o", "json", "-", stdin=text.encode())
    assert [record["command"] for record in run.records] == ["CONNECT", "CONNECTED"]


def test_a_capture_shown_as_hex_is_still_a_capture() -> None:
    run = decode("-", stdin=SIMPLE.hex().encode())
    assert run.code == 0
    assert run.out == _simple_lines()


# -- the command line


USAGE = [
    ([], "name a SOURCE"),
    (["-i", "lo", "python-simple.pcap"], "a live interface cannot be combined with other sources"),
    (["-i", "lo", "-2"], "a live interface cannot be combined with other sources, --two-pass or --doctor"),
    (["-i", "lo", "--doctor"], "cannot be combined with other sources, --two-pass or --doctor"),
    (["--connections", "--doctor", "-"], "cannot be combined with --doctor"),
    (["python-simple.pcap", "--filter", "command =="], "--filter command ==: syntax error"),
    (["python-simple.pcap", "--filter", 'comand == "SEND"'], "did you mean command?"),
    (["python-simple.pcap", "--filter", "xyzzy == 1"], "there is no field xyzzy"),
    (["python-simple.pcap", "--command", "SENT"], "did you mean SEND?"),
    (["python-simple.pcap", "--command", "XYZZY"], "no such command; one of CONNECT, CONNECTED, SUBSCRIBE"),
    (["python-simple.pcap", "--command", "SEND,NONE*"], "--command NONE*: no such command"),
    (["python-simple.pcap", "--time-range", "12"], "give FROM..TO"),
    (["python-simple.pcap", "--time-range", "noon..1"], "noon is not a time"),
    (["python-simple.pcap", "--time-range", "2026-13-01..2026-13-02"], "is not a time"),
    (["python-simple.pcap", "--schema", "yaml"], "unknown schema type 'yaml'"),
    (["python-simple.pcap", "--schema", "avro"], "names no file"),
    (["python-simple.pcap", "--schema", "avro:missing.avsc"], "cannot read the schema 'missing.avsc'"),
    (["python-simple.pcap", "--schema", "int64:file"], "takes no file"),
]


@pytest.mark.parametrize(("args", "reason"), USAGE, ids=[" ".join(args[-2:]) for args, _ in USAGE])
def test_a_wrong_option_is_said_in_one_line(args: list[str], reason: str) -> None:
    run = decode(*args)
    assert run.code == EXIT_USAGE
    assert run.out == b""
    assert run.err.count("\n") == 1
    assert run.err.startswith("pwire: ")
    assert reason in run.err


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--max-frame-size", "3"], "--max-frame-size"),
        (["--max-frame-size", "five"], "--max-frame-size"),
        (["--count", "0"], "--count"),
        (["--output", "xml"], "--output"),
        (["--time", "mars"], "--time"),
        (["--no-such-option"], "--no-such-option"),
    ],
)
def test_a_wrong_value_names_its_option(args: list[str], named: str) -> None:
    run = decode("python-simple.pcap", *args)
    assert run.code == EXIT_USAGE
    assert run.out == b""
    assert named in run.err
    assert "Traceback" not in run.err


def test_an_empty_expression_is_wrong() -> None:
    run = decode("python-simple.pcap", "--filter", "")
    assert run.code == EXIT_USAGE
    assert run.complaints[0].startswith("pwire: --filter")


def test_a_bpf_filter_for_a_file_is_refused() -> None:
    run = decode("python-simple.pcap", "--capture-filter", "tcp port 6650")
    assert run.code == EXIT_USAGE
    assert "-i" in run.err


def test_an_interface_that_does_not_exist() -> None:
    run = decode("-i", "no-such-interface")
    assert run.code == EXIT_SOURCE
    assert "pwire: interface no-such-interface: there is no such interface; there are " in run.err
    run = pwire("capture", "-i", "no-such-interface", "-w", os.devnull)
    assert run.code == EXIT_SOURCE
    assert "there is no such interface" in run.err


def test_an_output_file_that_cannot_be_written(tmp_path: Path) -> None:
    for args in (
        ("decode", SAMPLES / "nano.pcap", "--write", tmp_path / "no" / "such.pcapng"),
        ("capture", "-i", "lo", "--write", tmp_path / "no" / "such.pcapng"),
    ):
        run = pwire(*args)
        assert run.code == EXIT_OUTPUT
        assert run.out == b""
        assert run.err == f"pwire: --write {tmp_path}/no/such.pcapng: No such file or directory\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_an_output_file_on_a_full_disk() -> None:
    run = decode("nano.pcap", "-q", "--write", "/dev/full")
    assert run.code == EXIT_OUTPUT
    assert run.complaints == ["pwire: the output cannot be written: No space left on device"]


# -- the whole of it


def test_quiet_prints_the_summary_alone() -> None:
    run = decode("-q", "python-simple.pcap")
    assert run.code == 0
    assert run.out == b""
    assert run.err == decode("python-simple.pcap").err
    assert run.err.splitlines()[0] == "59 packets, 1 connection, 50 frames in 0.363 s, 3.5 kB"


def test_the_summary_counts_damage() -> None:
    summary = decode("-q", "snaplen96.pcap").err
    assert "84 gaps" in summary
    assert "75 partial frames" in summary
    assert "84 packets cut by the snap length" in summary
    assert "1 invalid" in decode("-q", "corrupt-in-transit.pcap").err
    assert "HTTP 1" in decode("-q", "http-client-on-binary-port.pcap").err


def test_a_summary_does_not_say_1_frames() -> None:
    for run in (decode("-q", "http-client-on-binary-port.pcap"), decode("-c", "1", "nano.pcap")):
        assert not re.search(r"\b1 (packets|connections|frames|gaps|partial frames)\b", run.err)


def test_a_frame_over_the_limit_is_noted() -> None:
    run = decode("--max-frame-size", "64", "-o", "json", "python-simple.pcap")
    assert run.code == 0
    assert len(run.records) == 50
    noted = {record["number"]: record["notes"] for record in run.records if record["notes"]}
    sizes = {
        record["number"]: record["total_size"] + 4 for record in decode("-o", "json", "nano.pcap").records
    }
    assert noted[3] == ["frame of 65 bytes, over the limit of 64"]
    assert len(noted) == sum(record["total_size"] + 4 > 64 for record in run.records)
    assert len(sizes) == 50


def test_payloads_by_a_schema_of_the_command_line(tmp_path: Path) -> None:
    schema = tmp_path / "greeting.avsc"
    schema.write_text('{"type": "string"}')
    for spec, view in (("string", "text"), ("int32", "hex"), (f"avro:{schema}", "avro")):
        run = decode("--schema", spec, "--command", "SEND", "-c", "1", "-o", "json", "mixed.pcapng.gz")
        assert run.code == 0
        (record,) = run.records
        shown = record["messages"][0]["payload"]
        if spec == "string":
            assert shown == {"view": view, "value": "hello 0"}
            assert record["notes"] == []
        else:  # "hello 0" is none of those: shown without schema, and said
            assert shown == {"view": "text", "value": "hello 0"}
            assert record["notes"]
            assert record["notes"][0].startswith("Not shown by its ")


@pytest.mark.parametrize(
    ("form", "first", "last"),
    [
        ("utc", "17:43:05.597201", "17:43:05.960290"),
        ("date", "2026-11-20T17:43:05.597201", "2026-11-20T17:43:05.960290"),
        ("epoch", "1795196585.597201000", "1795196585.960290000"),
        ("relative", "0.000000", "0.363089"),
    ],
)
def test_forms_of_time(form: str, first: str, last: str) -> None:
    times = [line.split()[1] for line in decode("--time", form, "python-simple.pcap").lines]
    assert times[0] == first
    assert times[-1] == last


def test_local_times(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC-3")  # POSIX: three hours east of Greenwich
        time.tzset()
        times = [line.split()[1] for line in decode("--time", "local", "python-simple.pcap").lines]
    time.tzset()
    assert times[0] == "20:43:05.597201"


def test_nanoseconds_are_kept() -> None:
    assert decode("-t", "epoch", "nano.pcap").lines[0].split()[1] == "1795196435.500654725"
    assert decode("-o", "json", "-c", "1", "nano.pcap").records[0]["time_ns"] == 1795196435500654725
