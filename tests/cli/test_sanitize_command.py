"""`pwire sanitize`: what it writes, says and refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pwire_run import SAMPLES, pwire

SAMPLE = SAMPLES / "java-nack-dlq.pcap"


def test_names_are_gone_and_all_else_is_there(tmp_path: Path) -> None:
    copy = tmp_path / "copy.pcapng"
    run = pwire("sanitize", SAMPLE, "-w", copy, "--check")
    assert run.code == 0, run.err
    assert re.search(r"none is left$", run.err.strip())
    assert b"postman" in SAMPLE.read_bytes()
    assert b"postman" not in copy.read_bytes()
    for verb in (("stats", "-o", "json"), ("doctor", "-o", "json"), ("sequence", "--wide")):
        before, after = (pwire(*verb[:1], path, *verb[1:]) for path in (SAMPLE, copy))
        assert after.code == before.code
        if "json" in verb:
            assert sorted(map(_shape, after.records)) == sorted(map(_shape, before.records))
        else:
            assert [len(line) for line in after.lines] == [len(line) for line in before.lines]


def _shape(value: Any) -> str:
    """The values of a record, with the lengths of texts instead of texts."""
    if isinstance(value, dict):
        return json.dumps({name: _shape(item) for name, item in value.items()})
    if isinstance(value, list):
        return json.dumps([_shape(item) for item in value])
    return str(len(value)) if isinstance(value, str) else json.dumps(value)


def test_a_seed_gives_the_same_names_in_all_runs(tmp_path: Path) -> None:
    copies = []
    for number, seed in enumerate(("a long one", "a long one", "another")):
        copies.append(tmp_path / f"{number}.pcapng")
        assert pwire("sanitize", SAMPLE, "-w", copies[-1], "--seed", seed).code == 0
    first, second, third = (copy.read_bytes() for copy in copies)
    assert first == second != third


def test_the_map_undoes_it_and_is_for_its_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "map.jsonl"
    file.touch(0o644)
    run = pwire("sanitize", SAMPLES / "auth-token.pcap", "-w", tmp_path / "copy.pcapng", "--map", file)
    assert f"{file} is secret" in run.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {line["kind"] for line in lines} >= {"topics", "names"}
    assert "credentials" not in file.read_text()
    assert all(len(line["text"]) == len(line["replacement"]) for line in lines)


def test_what_is_to_be_kept_is_kept(tmp_path: Path) -> None:
    copy = tmp_path / "copy.pcapng"
    run = pwire(
        "sanitize", SAMPLE, "-w", copy, "--keep", "topics,Subscriptions", "--keep", "properties", "--check"
    )
    assert run.code == 0, run.err
    assert "not replaced: properties, subscriptions, topics" in run.err
    assert b"java-nack-dlq-mail" in copy.read_bytes()


def test_what_is_left_has_its_own_exit_code(tmp_path: Path) -> None:
    """Payloads that repeat names, and are kept."""
    copy = tmp_path / "copy.pcapng"
    run = pwire("sanitize", SAMPLES / "java-batch-zlib.pcap", "-w", copy, "--keep", "payloads", "--check")
    assert run.code == 12
    assert re.search(r"check: packet \d+ has '\w+' \(payloads\)", run.err)
    assert "12 compressed batches: not kept, as they have keys or properties" in run.err


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("-w", "x.pcapng", "--keep", "topic"), 2, "sanitize: --keep topic: use some of topics, "),
        (("-w", "-", "--check"), 2, "--check reads the output again: name a file with --write"),
        (("-w", SAMPLE), 2, "that is one of the files to read"),
        (("-w", "/nowhere/x.pcapng"), 5, "--write /nowhere/x.pcapng: No such file or directory"),
        (("-w", "x.pcapng", "--map", "/nowhere/map"), 5, "--map /nowhere/map: No such file or directory"),
    ],
)
def test_what_is_refused(
    arguments: tuple[str, ...], code: int, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = pwire("sanitize", SAMPLE, *arguments)
    assert (run.code, len(run.complaints)) == (code, 1)
    assert complaint in run.err


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("exists", [True, False])
def test_the_map_is_not_written_to_the_capture(link: Any, exists: bool, tmp_path: Path) -> None:
    copy, secrets = tmp_path / "copy.pcapng", tmp_path / "map"
    copy.touch()
    link(copy, secrets)
    if not exists and link is os.symlink:
        copy.unlink()
    run = pwire("sanitize", SAMPLE, "-w", copy, "--map", secrets)
    assert run.code == 2
    assert "that is the file of --write; name another file" in run.err


def test_frames_without_packets_are_refused(tmp_path: Path) -> None:
    frame = tmp_path / "frame.hex"
    frame.write_text("00000009 00000005 0812920100\n")
    run = pwire("sanitize", frame, "-w", tmp_path / "x.pcapng")
    assert run.code == 3
    assert run.complaints == ["pwire: sanitize: there are no packets; it reads captures of packets"]


def test_a_log_among_captures_is_left_out(tmp_path: Path) -> None:
    log = Path(__file__).parents[1] / "capture" / "texts" / "netty-hex.txt"
    run = pwire("sanitize", SAMPLE, log, "-w", tmp_path / "copy.pcapng", "--check")
    assert run.code == 0
    assert f"pwire: {log}: left out, as it holds no packets" in run.complaints


def test_pipes_work() -> None:
    run = pwire("sanitize", "-", "-w", "-", "--seed", "1", stdin=SAMPLE.read_bytes())
    assert run.code == 0
    frames = pwire("decode", "-", stdin=run.out).lines
    assert len(frames) == len(pwire("decode", SAMPLE).lines)


def test_damage_is_said_and_the_rest_is_there(tmp_path: Path) -> None:
    broken, copy = tmp_path / "broken.pcap", tmp_path / "copy.pcapng"
    broken.write_bytes(SAMPLE.read_bytes()[:-10])
    run = pwire("sanitize", broken, "-w", copy, "--check")
    assert run.code == 4
    assert "the file ends in the middle of the packet" in run.err
    assert len(pwire("decode", copy).lines) == len(pwire("decode", broken).lines)


@pytest.mark.skipif(shutil.which("tshark") is None, reason="needs tshark")
def test_wireshark_sees_the_same(tmp_path: Path) -> None:
    copy = tmp_path / "copy.pcapng"
    pwire("sanitize", SAMPLE, "-w", copy)
    fields = [
        *("frame.time_epoch", "frame.len", "frame.cap_len", "tcp.stream", "tcp.seq_raw", "tcp.len"),
        *("tcp.flags", "tcp.checksum.status", "ip.checksum.status", "tcp.analysis.flags", "_ws.malformed"),
    ]
    command = ["tshark", "-T", "fields", *(word for field in fields for word in ("-e", field))]
    command += ["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE", "-r"]
    before, after = (
        subprocess.run([*command, path], capture_output=True, check=True).stdout for path in (SAMPLE, copy)
    )
    assert after == before
