"""`pwire table`: a file for each table, whole or not at all."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))
from pwire_run import Pcap, Run, pwire

SAMPLES = Path(__file__).parents[2] / "samples" / "pcaps"
SIMPLE = SAMPLES / "python-simple.pcap"


def table(*args: str | Path, stdin: bytes = b"") -> Run:
    return pwire("table", *args, stdin=stdin)


def rows(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return found


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


IT = {"it.parquet", "it.gaps.parquet", "it.connections.parquet"}


@pytest.mark.parametrize(
    ("out", "gaps", "connections"),
    [
        ("it.parquet", "it.gaps.parquet", "it.connections.parquet"),
        ("a.b.pq", "a.b.gaps.pq", "a.b.connections.pq"),
        ("frames", "frames.gaps", "frames.connections"),
    ],
)
def test_the_others_are_beside_the_frames(tmp_path: Path, out: str, gaps: str, connections: str) -> None:
    ran = table(SAMPLES / "corrupt-in-transit.pcap", SAMPLES / "snaplen96.pcap", "--out", tmp_path / out)
    assert (ran.code, ran.err) == (0, "")
    assert names(tmp_path) == {out, gaps, connections}
    assert {row["kind"] for row in rows(tmp_path / gaps)} <= {"gap", "malformed"}
    assert {Path(row["file"]).name for row in rows(tmp_path / out)} == {
        "corrupt-in-transit.pcap",
        "snaplen96.pcap",
    }


@pytest.mark.parametrize(
    "arguments", [("table", "--out"), ("report", "topics", "--html"), ("sequence", "--html")], ids=" ".join
)
def test_a_source_is_never_overwritten(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    source = tmp_path / "a.pcap"
    whole = (SAMPLES / "java-simple.pcap").read_bytes()
    source.write_bytes(whole)
    *command, option = arguments
    run = pwire(*command, source, option, source)
    assert (run.code, run.complaints) == (
        2,
        [f"pwire: {option} {source}: that is one of the files to read; name another one"],
    )
    assert source.read_bytes() == whole
    assert names(tmp_path) == {"a.pcap"}


def test_stdin_hex_dumps_and_raw_frames(tmp_path: Path) -> None:
    capture = SIMPLE.read_bytes()
    assert table("-", "--out", tmp_path / "stdin", stdin=capture).code == 0
    assert table(SIMPLE, "--out", tmp_path / "file").code == 0
    named = [{**row, "file": "stdin", "series": "stdin"} for row in rows(tmp_path / "file")]
    assert rows(tmp_path / "stdin") == named

    packets = [data.hex() for _, _, _, data in Pcap.read(SIMPLE.name).packets]
    dump = "\n".join(
        "\n".join(
            f"{at // 2:04x}  {' '.join(packet[at : at + 32][i : i + 2] for i in range(0, 32, 2))}".rstrip()
            for at in range(0, len(packet), 32)
        )
        + "\n"
        for packet in packets
    )
    (tmp_path / "dump.txt").write_text(dump)
    assert table(tmp_path / "dump.txt", "--out", tmp_path / "dumped").code == 0
    dumped = rows(tmp_path / "dumped")
    assert [row["command"] for row in dumped] == [row["command"] for row in named]
    assert {row["time_ns"] for row in dumped} == {None}
    assert all(1 <= row["packet_offset"] <= len(packets) for row in dumped)

    (tmp_path / "raw").write_bytes(bytes.fromhex("0000000900000005081292010000000009000000050813 9a0100"))
    assert table(tmp_path / "raw", "--out", tmp_path / "frames").code == 0
    assert [(row["command"], row["src_ip"]) for row in rows(tmp_path / "frames")] == [
        ("PING", None),
        ("PONG", None),
    ]


def test_payloads_are_kept_if_that_is_asked_for(tmp_path: Path) -> None:
    for options, kept in (([], False), (["--payload"], True)):
        assert table(SIMPLE, "--out", tmp_path / "it", *options).code == 0
        some = [row for row in rows(tmp_path / "it") if row["command"] == "MESSAGE"]
        assert [len(row["payload"]) if kept else row["payload"] for row in some] == [
            row["payload_size"] if kept else None for row in some
        ]


# ---- When something is wrong ----


def test_what_cannot_be_read_leaves_nothing(tmp_path: Path) -> None:
    for source in (tmp_path / "none.pcap", tmp_path, SIMPLE.with_name("README.md")):
        ran = table(source, "--out", tmp_path / "it.parquet")
        assert ran.code == 3
        assert len(ran.complaints) == 1
        assert not names(tmp_path)


def test_one_that_cannot_be_read_among_others(tmp_path: Path) -> None:
    ran = table(tmp_path / "none.pcap", SIMPLE, "--out", tmp_path / "it.parquet")
    assert ran.code == 3
    assert names(tmp_path) == IT
    assert rows(tmp_path / "it.parquet")


def test_what_came_before_the_damage_is_kept(tmp_path: Path) -> None:
    (tmp_path / "cut.pcap").write_bytes(SIMPLE.read_bytes()[:-9])
    ran = table(tmp_path / "cut.pcap", "--out", tmp_path / "it.parquet")
    assert ran.code == 4
    assert len(ran.complaints) == 1
    assert rows(tmp_path / "it.parquet")
    assert names(tmp_path) == {"cut.pcap", *IT}


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    for out in (tmp_path / "none" / "it.parquet", Path("/dev/full/it.parquet"), Path("/proc/it.parquet")):
        ran = table(SIMPLE, "--out", out)
        assert ran.code == 5
        assert [str(out) in line for line in ran.complaints] == [True]
    assert not names(tmp_path)


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "it.parquet.unfinished").symlink_to("/dev/full")
    ran = table(SIMPLE, "--out", tmp_path / "it.parquet")
    assert ran.code == 5
    assert "No space left" in ran.err
    assert not names(tmp_path)


def test_an_old_table_is_replaced_only_by_a_whole_one(tmp_path: Path) -> None:
    out = tmp_path / "it.parquet"
    out.write_bytes(b"old")
    assert table(tmp_path / "none.pcap", "--out", out).code == 3
    assert (names(tmp_path), out.read_bytes()) == ({"it.parquet"}, b"old")
    assert table(SIMPLE, "--out", out).code == 0
    assert rows(out)
    assert names(tmp_path) == IT


def test_pandas_is_not_needed(tmp_path: Path) -> None:
    """It comes only with Spark; pyarrow asks for it in odd places."""
    code = (
        "import sys; sys.modules['pandas'] = None; from pulsarctl_wire.cli import main; "
        "sys.argv[0] = 'pwire'; main()"
    )
    commands: list[list[str | Path]] = [
        ["table", SIMPLE, "--out", tmp_path / "it.parquet"],
        ["analyze", SIMPLE, "--out", tmp_path / "out"],
    ]
    for command in commands:
        subprocess.run([sys.executable, "-c", code, *command], check=True, capture_output=True)
    alone, split = (rows(tmp_path / name) for name in ("it.parquet", "out/frames/000000-00000.parquet"))
    assert sorted(split, key=repr) == sorted(alone, key=repr)


def test_messages_are_beside_the_frames_if_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "it.parquet"
    options = ("--messages", "--values", "raw", "--max-value", "1Ki", "--hash-keys")
    assert table(SIMPLE, "--out", out, *options).code == 0
    assert names(tmp_path) == {*IT, "it.messages.parquet"}
    found = rows(tmp_path / "it.messages.parquet")
    assert len(found) == sum(
        row["messages"] or 0 for row in rows(out) if row["command"] in ("SEND", "MESSAGE")
    )
    assert any(row["payload"] for row in found)
    query = "select count(*) from messages"
    assert pwire("sql", out, query, "-o", "csv").out.split()[-1] == b"%d" % len(found)

    assert table(SIMPLE, "--out", out).code == 0
    assert names(tmp_path) == IT  # those of the earlier table are gone, too
    refused = pwire("sql", out, query)
    assert (refused.code, refused.err.count("--messages")) == (2, 1)


def test_what_needs_messages(tmp_path: Path) -> None:
    refused = table(SIMPLE, "--out", tmp_path / "it.parquet", "--values", "json")
    assert (refused.code, refused.err) == (
        2,
        "pwire: --values, --hash-keys and --private-key need --messages\n",
    )
    refused = table(SIMPLE, "--out", tmp_path / "it.parquet", "--messages", "--detail", "exchanges")
    assert (refused.code, refused.err) == (
        2,
        "pwire: --messages cannot be combined with --detail exchanges\n",
    )


def test_detail_decides_which_tables_and_frames_there_are(tmp_path: Path) -> None:
    out = tmp_path / "it.parquet"
    assert table(SIMPLE, "--out", out, "--detail", "messages").code == 0
    assert names(tmp_path) == {*IT, "it.messages.parquet"}
    assert table(SIMPLE, "--out", out, "--detail", "connections").code == 0
    assert names(tmp_path) == IT
    assert [len(rows(tmp_path / name)) for name in sorted(IT)] == [1, 0, 0]


def test_a_pattern_of_hosts_that_fits_no_file_is_told(tmp_path: Path) -> None:
    for pattern, host, said in (("pcaps/{host}-*", "python", False), ("captures/{host}/*", None, True)):
        for command, out in (("table", "it.parquet"), ("analyze", f"out-{said}")):
            ran = pwire(command, SIMPLE, "--out", tmp_path / out, "--host", pattern)
            assert (ran.code, "no file is at such a path" in ran.err) == (0, said)
        assert {row["host"] for row in rows(tmp_path / "it.parquet")} == {host}


# ---- Small files ----


def test_small_files_are_merged(tmp_path: Path) -> None:
    out = tmp_path / "out"
    inputs = [SAMPLES / name for name in ("errors.pcap", "java-simple.pcap", "python-simple.pcap")]
    assert pwire("analyze", *inputs, "--split-size", "20Ki", "--out", out).code == 0
    before = pwire("report", "summary", out, "-o", "json").out
    ran = table("optimize", out, "--size", "1MiB")
    assert ran.code == 0
    many, few = re.findall(r"(\d+)(?: files)? \([\d.]+ kB\)", ran.err)
    assert ran.err.startswith(f"{out}: {many} files (")
    assert ran.err.endswith(" now\n")
    assert int(few) == len([*out.rglob("*.parquet")]) < int(many)
    assert pwire("report", "summary", out, "-o", "json").out == before


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ([], 2, "table optimize: takes one TABLE, --partition-by and --size; ./optimize is a"),
        (["a", "b"], 2, "table optimize: takes one TABLE, --partition-by and --size; ./optimize is a"),
        (["a", "--payload"], 2, "table optimize: takes one TABLE, --partition-by and --size; ./optimize"),
        (["a", "--size", "0"], 2, "--size 0: must be at least 1 byte"),
        (["a", "--size", "big"], 2, "--size big: not a number"),
        (["{}"], 3, "{}: holds no table that pwire analyze can go on with"),
    ],
)
def test_what_cannot_be_merged(tmp_path: Path, options: list[str], code: int, said: str) -> None:
    ran = table("optimize", *(each.format(tmp_path) for each in options))
    assert ran.code == code
    assert [line.startswith(f"pwire: {said.format(tmp_path)}") for line in ran.complaints] == [True]


def test_a_file_of_many_row_groups(tmp_path: Path) -> None:
    """As one of an earlier pwire, or of another tool."""
    out = tmp_path / "a.parquet"
    assert table(SIMPLE, "--messages", "--out", out).code == 0
    before = pwire("report", "summary", out, "-o", "json").out
    paths = sorted(tmp_path.glob("a.*parquet"))
    rows = [pq.read_table(path) for path in paths]
    for path, each in zip(paths, rows, strict=True):
        pq.write_table(each, path, row_group_size=1)
    size = sum(path.stat().st_size for path in paths)
    ran = table("optimize", out)
    groups = sum(each.num_rows or 1 for each in rows)
    assert ran.code == 0
    assert ran.err.startswith(f"{out}: {groups} row groups (")
    assert sorted(tmp_path.iterdir()) == paths
    assert [pq.read_table(path) for path in paths] == rows
    found = [pq.read_metadata(path).num_row_groups for path in paths]
    assert found == [1 if each.num_rows else 0 for each in rows]
    assert sum(path.stat().st_size for path in paths) < size
    assert pwire("report", "summary", out, "-o", "json").out == before
    said = table("optimize", out, "--size", "1MiB").complaints
    assert said == [f"pwire: table optimize: {out} is a file; --size and --partition-by are for directories"]
    (tmp_path / "b.parquet").write_bytes(SIMPLE.read_bytes())
    refused = table("optimize", tmp_path / "b.parquet")
    assert refused.code == 3
    assert "b.parquet is a capture, not a table" in refused.complaints[0]


def test_a_capture_that_is_called_optimize(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("optimize").write_bytes(SIMPLE.read_bytes())
    assert table("./optimize", "--out", "it.parquet").code == 0
    assert table("./optimize").complaints == ["pwire: table: missing option --out (pwire table --help)"]
    said = table("./optimize", "--out", "it.parquet", "--size", "1").complaints
    assert said == ["pwire: table: --size needs optimize"]
