"""`pwire decode --write`: the packets of the chosen frames, as pcapng that other tools read."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pwire_run import SAMPLES, Pcap, decode
from segments import Tcp, build, captured, packet_comments, pcap, pcapng_options
from test_decode_terminal import EVIL

from pulsarctl_wire import __version__
from pulsarctl_wire.capture.files import read_packets
from pulsarctl_wire.cli.console import EXIT_SOURCE

TSHARK = shutil.which("tshark")

CHOICES = [
    ("python-simple.pcap", []),
    ("python-simple.pcap", ["--command", "SEND"]),
    ("python-simple.pcap", ["--command", "SEND,SEND_RECEIPT", "--count", "5"]),
    ("java-batch-zlib.pcap", ["--command", "MESSAGE"]),
    ("errors.pcap", ["--connection", "2", "--command", "*ERROR"]),
    ("errors.pcap", ["--filter", "total_size > 300"]),
    ("nano.pcap", ["--time-range", "+0.05.."]),
    ("ipv6.pcap", ["--command", "ACK"]),
    ("linktype-sll2.pcap", ["--command", "MESSAGE"]),
    ("mixed.pcapng.gz", ["--topic", "mixed-chat"]),
    ("corrupt-in-transit.pcap", ["--command", "SEND"]),
]
IDS = [" ".join([sample, *options]) for sample, options in CHOICES]


def _written(path: Path) -> list[tuple[int | None, int, bytes, int]]:
    return list(read_packets(path.read_bytes(), bytes))


def _of_a_frame(record: dict[str, Any]) -> list[Any]:
    """What a frame says by itself, without what its session knows."""
    names = ("time_ns", "to_broker", "client", "server", "command", "total_size", "fields", "metadata")
    return [record[name] for name in (*names, "checksum", "broker_entry_metadata", "partial")]


@pytest.mark.parametrize(("sample", "options"), CHOICES, ids=IDS)
def test_the_chosen_frames_can_be_read_again(sample: str, options: list[str], tmp_path: Path) -> None:
    path = tmp_path / "chosen.pcapng"
    chosen = decode(*options, "-o", "json", "--write", path, sample)
    assert chosen.code == 0
    assert chosen.records
    records = decode("-o", "json", path).records
    # the packets that were not written are holes: what comes behind one is shown once that is certain
    records.sort(key=lambda record: record["packet"])
    again = [_of_a_frame(record) for record in records if record["number"]]
    assert [one for one in again if one in map(_of_a_frame, chosen.records)] == [
        _of_a_frame(record) for record in chosen.records
    ]


def test_a_file_is_written_over_only_when_there_are_packets(tmp_path: Path) -> None:
    path = tmp_path / "keep.pcap"
    path.write_bytes(b"of yesterday" * 10_000)
    assert decode("--write", path, tmp_path / "none.pcap").code == EXIT_SOURCE
    assert path.read_bytes() == b"of yesterday" * 10_000
    assert decode("--write", path, tmp_path / "none.pcap", "nano.pcap").code == EXIT_SOURCE
    assert _written(path)


@pytest.mark.parametrize(("sample", "options"), CHOICES, ids=IDS)
def test_only_the_packets_of_the_chosen_frames_are_written(
    sample: str, options: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "chosen.pcapng"
    chosen = decode(*options, "-o", "json", "--write", path, sample)
    packets = {record["packet"] for record in chosen.records}
    assert len(_written(path)) == len(packets)  # in these captures no chosen frame has two packets


def test_the_packets_are_the_captured_ones(tmp_path: Path) -> None:
    path = tmp_path / "chosen.pcapng"
    assert decode("-q", "--write", path, "nano.pcap").code == 0
    captured = {
        (seconds * 10**9 + nanoseconds, data, length)
        for seconds, nanoseconds, length, data in Pcap.read("nano.pcap").packets
    }
    written = {(time_ns, data, length) for time_ns, _, data, length in _written(path)}
    assert written
    assert written < captured  # handshakes and bare acknowledgements hold no frames


def test_a_frame_of_several_packets_is_written_whole(tmp_path: Path) -> None:
    """The first SEND of the sample, sent in three segments."""
    simple = Pcap.read("python-simple.pcap")
    seconds, fraction, _, packet = simple.packets[21]
    pieces = []
    for start, stop in ((0, 9), (9, 50), (50, 103)):
        piece = bytearray(packet[:66] + packet[66 + start : 66 + stop])
        piece[16:18] = (len(piece) - 14).to_bytes(2, "big")  # the length of the IP packet
        sequence = int.from_bytes(piece[38:42], "big") + start
        piece[38:42] = (sequence % 2**32).to_bytes(4, "big")
        pieces.append((seconds, fraction, len(piece), bytes(piece)))
    split = simple._replace(packets=[*simple.packets[:21], *pieces, *simple.packets[22:]])

    path = tmp_path / "chosen.pcapng"
    run = decode("--command", "SEND", "-c", "1", "-o", "json", "--write", path, "-", stdin=split.file)
    assert [data for _, _, data, _ in _written(path)] == [data for *_, data in pieces]
    (record,) = decode("-o", "json", path).records
    assert _of_a_frame(record) == _of_a_frame(run.records[0])


def test_damage_can_be_written_too(tmp_path: Path) -> None:
    path = tmp_path / "damage.pcapng"
    run = decode("--filter", "partial", "-o", "json", "--write", path, "snaplen96.pcap")
    assert len(_written(path)) == len({record["packet"] for record in run.records})
    assert {(len(data), length > 96) for _, _, data, length in _written(path)} == {(96, True)}


def test_several_link_types_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "both.pcapng"
    run = decode(
        "--command", "SEND", "-o", "json", "--write", path, "linktype-sll2.pcap", "python-simple.pcap"
    )
    assert {link for _, link, _, _ in _written(path)} == {276, 1}
    assert len(decode("--command", "SEND", path).lines) == len(run.records) == 20


def test_a_frame_with_a_bad_checksum_can_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "wrong.pcapng"
    chosen = decode("--first-error", "-o", "json", "--write", path, "corrupt-in-transit.pcap").records
    assert [record["checksum"] for record in chosen] == ["invalid"]
    again = decode("-o", "json", path).records
    assert [record.get("checksum") for record in again] == ["invalid"]


def test_nothing_chosen_is_an_empty_capture(tmp_path: Path) -> None:
    path = tmp_path / "none.pcapng"
    assert decode("--command", "NEW_TXN", "--write", path, "python-simple.pcap").code == 0
    assert _written(path) == []
    assert decode(path).code == 0


def test_a_wrong_option_writes_no_file(tmp_path: Path) -> None:
    path = tmp_path / "chosen.pcapng"
    assert decode("--filter", "no_such_field", "--write", path, "python-simple.pcap").code == 2
    assert not path.exists()


@pytest.mark.parametrize("spelling", ["same", "symlink", "other"])
def test_a_source_is_not_overwritten(spelling: str, tmp_path: Path) -> None:
    source = tmp_path / "source.pcap"
    shutil.copy(SAMPLES / "nano.pcap", source)
    target = source
    if spelling == "symlink":
        target = tmp_path / "link.pcapng"
        target.symlink_to(source)
    elif spelling == "other":
        (tmp_path / "folder").mkdir()
        target = tmp_path / "folder" / ".." / "source.pcap"
    run = decode("--command", "SEND", "--write", target, source)
    assert source.read_bytes() == (SAMPLES / "nano.pcap").read_bytes()
    assert run.code == 2
    assert "--write" in run.complaints[0]


def test_stdout_is_no_place_for_packets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = decode("--write", "-", SAMPLES / "nano.pcap")
    assert (run.code, run.out) == (2, b"")
    assert "--write" in run.complaints[0]
    assert list(tmp_path.iterdir()) == []


def test_credentials_are_in_the_packets_but_nowhere_else(tmp_path: Path) -> None:
    """--write copies packets as they are: who passes the file on passes the tokens on."""
    path = tmp_path / "chosen.pcapng"
    run = decode("--command", "CONNECT", "-c", "1", "--write", path, "auth-token.pcap")
    assert b"eyJ" in path.read_bytes()
    assert b"eyJ" not in run.out


@pytest.mark.skipif(TSHARK is None, reason="tshark is not installed")
@pytest.mark.parametrize(("sample", "options"), [CHOICES[0], CHOICES[7], CHOICES[8], CHOICES[9]])
def test_tshark_reads_it(sample: str, options: list[str], tmp_path: Path) -> None:
    assert TSHARK is not None
    path = tmp_path / "chosen.pcapng"
    chosen = decode(*options, "-o", "json", "--write", path, sample)
    fields = ["-T", "fields", "-e", "frame.time_epoch", "-e", "tcp.len"]
    done = subprocess.run(
        [TSHARK, "-n", "-r", path, *fields], capture_output=True, text=True, check=True, timeout=60
    )
    complaints = [line for line in done.stderr.splitlines() if "root" not in line]
    assert complaints == []
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    times = {record["packet"]: record["time_ns"] for record in chosen.records}
    assert [row[0].replace(".", "") for row in rows] == [str(time_ns) for time_ns in times.values()]
    assert all(int(row[1]) > 0 for row in rows)


# -- comments


@pytest.mark.parametrize(("sample", "options"), CHOICES, ids=IDS)
def test_each_packet_has_its_frames_as_lines(sample: str, options: list[str], tmp_path: Path) -> None:
    path = tmp_path / "chosen.pcapng"
    run = decode(*options, "--wide", "--write", path, sample)
    comments = [comment for comments in packet_comments(path.read_bytes()) for comment in comments]
    assert sorted(comments) == sorted(line.strip() for line in run.lines)


def test_findings_are_in_comments_with_their_certainty(tmp_path: Path) -> None:
    path = tmp_path / "chosen.pcapng"
    sample = "permit-leak.pcap"
    options = ["--doctor", "-T", "5"]
    records = decode(*options, "-o", "json", "--write", path, sample).records
    comments = packet_comments(path.read_bytes())
    assert sum(len(each) for each in comments) == len(records) + 3
    proving = [record["number"] for record in records if record.get("findings")]
    assert len(proving) == 3
    for each in comments:
        found = [text for text in each if text.startswith("permit_leak (suspected) ")]
        frames = [int(text.split()[0]) for text in each if text not in found]
        assert bool(found) == bool(set(frames) & set(proving))


def test_the_file_says_what_was_selected(tmp_path: Path) -> None:
    path = tmp_path / "chosen.pcapng"
    sources = [SAMPLES / name for name in ("python-simple.pcap", "nano.pcap")]
    decode("--topic", "a b", "--filter", "total_size > 1", "-c", "3", "--write", path, *sources)
    (_, section), *others = pcapng_options(path.read_bytes())
    words = "--topic 'a b' --filter 'total_size > 1' --count 3"
    names = " ".join(map(str, sources))
    assert section == [
        (4, f"pwire {__version__}"),
        (1, f"the packets of the selected frames: pwire decode {words} {names}"),
    ]
    decode("--command", "SEND", "--write", path, *sources)
    interfaces = [options for kind, options in pcapng_options(path.read_bytes()) if kind == 1]
    assert [text for options in interfaces for code, text in options if code == 1] == [
        "selected by pwire decode: --command SEND"
    ]
    assert others == []


@pytest.mark.parametrize("is_shown", [False, True])
def test_comments_have_secrets_only_if_the_output_has_them(is_shown: bool, tmp_path: Path) -> None:
    source, path = tmp_path / "secret.pcap", tmp_path / "chosen.pcapng"
    turns = [
        (True, build("CONNECT", client_version="x", auth_data=b"hidden")),
        (True, b"\0\0\0\x20 no frame, but maybe a secret"),
    ]
    source.write_bytes(pcap(captured(Tcp().whole(turns, 1448))))
    run = decode(*["--show-secrets"] * is_shown, "--wide", "--write", path, source)
    comments = [text for texts in packet_comments(path.read_bytes()) for text in texts]
    assert comments == [line.strip() for line in run.lines]
    assert any(b"hidden".hex() in text for text in comments) == is_shown


def test_control_characters_do_not_reach_comments(tmp_path: Path) -> None:
    raw = build("PRODUCER", topic=EVIL, producer_id=1, request_id=1, producer_name=EVIL)
    source, path = tmp_path / "evil.pcap", tmp_path / "chosen.pcapng"
    source.write_bytes(pcap(captured(Tcp().whole([(True, raw)], 1448))))
    decode("--filter", "total_size > 0", "--write", path, source)
    ((comment,),) = [texts for texts in packet_comments(path.read_bytes()) if texts]
    assert "PRODUCER" in comment
    assert comment.isprintable()


def test_a_long_comment_is_cut(tmp_path: Path) -> None:
    source, path = tmp_path / "long.pcap", tmp_path / "chosen.pcapng"
    raw = build("PRODUCER", topic="t" * 1_000, producer_id=1, request_id=1)
    source.write_bytes(pcap(captured(Tcp().whole([(True, raw)], 1448))))
    decode("--wide", "--write", path, source)
    (comment,) = [text for texts in packet_comments(path.read_bytes()) for text in texts]
    assert comment.endswith("…")
    assert len(comment) == 500


@pytest.mark.skipif(TSHARK is None, reason="tshark is not installed")
@pytest.mark.parametrize("sample", ["python-simple.pcap", "mixed.pcapng.gz", "linktype-sll2.pcap"])
def test_tshark_shows_the_comments_at_the_numbers_that_json_has(sample: str, tmp_path: Path) -> None:
    path = tmp_path / "all.pcapng"
    records = decode("-o", "json", "--write", path, sample).records
    assert TSHARK is not None

    def show(file: Path, field: str) -> dict[str, str]:
        command = [str(TSHARK), "-n", "-r", str(file), "-T", "fields", "-e", "frame.number", "-e", field]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return dict(line.split("\t", 1) for line in done.stdout.splitlines())

    times = show(SAMPLES / sample, "frame.time_epoch")
    assert {record["wireshark"] for record in records} <= set(map(int, times))
    for record in records:
        assert times[str(record["wireshark"])].replace(".", "") == str(record["time_ns"])
    comments = list(show(path, "frame.comment").values())
    assert [text.split()[0] for text in comments] == [
        text.split()[0] for texts in packet_comments(path.read_bytes()) for text in texts[:1]
    ]
    assert "SEND_RECEIPT" in " ".join(comments)
