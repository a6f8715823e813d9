"""`pwire stats` from the outside: its JSON, its tables, what it says of bad input, one process or two."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pwire_run import SAMPLES, Pcap, Run, decode, pwire
from rich.cells import cell_len
from segments import interface, section, statistics
from test_cli_document import _documented, _options, _section
from test_decode_terminal import MARKUP, _dangerous, _frames

from pulsarctl_wire.cli import console
from pulsarctl_wire.render import stats_page
from pulsarctl_wire.stats.rows import NAMES

SILENT = "advertised-address-silent.pcap"


def stats(*args: str | Path, stdin: bytes = b"") -> Run:
    """Run `pwire stats ARGS`; a name of a sample stands for its path."""
    named = (SAMPLES / arg if isinstance(arg, str) and (SAMPLES / arg).is_file() else arg for arg in args)
    return pwire("stats", *named, stdin=stdin)


# -- what the kernel dropped


def test_packets_that_the_kernel_dropped_are_said(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.pcapng" for number in range(2)]
    for path in paths:
        path.write_bytes(section() + interface() + statistics(7))
    assert "14 packets dropped by the kernel" in decode("-q", *paths).err
    assert "14 packets dropped by the kernel" in stats(*paths).out.decode()
    assert stats("-o", "json", *paths).records[0]["dropped_packets"] == 14
    said = pwire("table", *paths, "--out", tmp_path / "t.parquet").err
    assert said == "pwire: 14 packets dropped by the kernel while capturing\n"
    said = pwire("analyze", *paths, "--out", tmp_path / "t").err
    assert ", 14 packets dropped by the kernel while capturing in " in said


# -- JSON


def test_json_has_the_totals_first_and_then_rows_of_every_kind_that_occurs() -> None:
    total, *rest = stats("-o", "json", "--top", "0", "errors.pcap").records
    rows = [row for row in rest if row["by"] != "finding"]
    assert (total["by"], rest[-1]["by"]) == ("total", "finding")
    assert list(dict.fromkeys(row["by"] for row in rows)) == list(NAMES)
    summary = decode("-q", "errors.pcap").err
    assert f"{total['frames']} frames in {total['seconds']:.3f} s" in summary
    assert f"messages   {total['sent']} sent, {total['delivered']} delivered" in summary
    for kind in ("command", "connection"):
        for name in ("frames", "bytes", "sent", "delivered", "errors"):
            assert sum(row[name] for row in rows if row["by"] == kind) == total[name]
        assert sum(row["share"] for row in rows if row["by"] == kind) == pytest.approx(1)
    assert sum(row["frames"] for row in rows if row["by"] == "error") == total["errors"] == 10
    for row in rows:
        assert len(row["series"]) == len(total["series"])
        assert row["frames_per_s"] == pytest.approx(row["frames"] / total["seconds"])
        assert set(NAMES[row["by"]]) < set(row)


def test_every_key_is_documented_and_no_other() -> None:
    section = _section("## `pwire stats`")
    keys = {
        key
        for line in section.splitlines()
        if line.startswith("| `") and not line.startswith("| `-")
        for key in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    records = stats("-o", "json", "--no-doctor", "errors.pcap").records
    assert keys == set().union(*records)
    percentiles = next(record["publish_ns"] for record in records if record["publish_ns"])
    for key in percentiles:
        assert f"`{key}`" in section


def test_every_option_is_documented() -> None:
    assert _documented(_section("## `pwire stats`")) == _options("stats")


def test_the_page_shown_is_real() -> None:
    shown = _section("## `pwire stats`").partition("```text\n")[2].partition("```")[0]
    assert shown == stats("--by", "command,topic", "--top", "3", "python-simple.pcap").out.decode()


def test_rows_are_sorted_by_bytes_and_cut_at_the_top() -> None:
    rows = stats("-o", "json", "--by", "topic", "errors.pcap", "--top", "0").records[1:]
    assert [row["bytes"] for row in rows] == sorted((row["bytes"] for row in rows), reverse=True)
    assert stats("-o", "json", "--by", "topic", "--top", "2", "errors.pcap").records[1:] == rows[:2]


def test_by_takes_several_in_both_ways() -> None:
    one = stats("-o", "json", "--by", "topic,error", "errors.pcap")
    two = stats("-o", "json", "--by", "TOPIC", "--by", "error", "--by", "topic", "errors.pcap")
    assert one == two
    assert {record["by"] for record in one.records} == {"total", "topic", "error"}


def test_times_that_are_not_known_are_null() -> None:
    total, *rows = stats("-o", "json", "--no-doctor", "-", stdin=_frames()).records
    assert total["seconds"] is total["first_ns"] is total["series_start_ns"] is total["frames_per_s"] is None
    assert total["frames"] == 20
    assert all(row["publish_ns"] is None and row["series"] == [] for row in rows)


def test_several_sources_continue_each_other() -> None:
    both = stats("-o", "json", "java-simple.pcap", "python-simple.pcap").records[0]
    each = [stats("-o", "json", name).records[0] for name in ("java-simple.pcap", "python-simple.pcap")]
    for name in ("frames", "bytes", "packets", "connections", "sent"):
        assert both[name] == each[0][name] + each[1][name]


# -- tables


def test_in_a_pipe_tables_are_plain_aligned_text() -> None:
    run = stats("errors.pcap")
    text = run.out.decode()
    assert run.code == 0
    assert "\x1b" not in text
    assert "█" not in text
    assert text.startswith("186 packets, 3 connections, 146 frames in 3.981 s, 28.7 kB\n")
    table = text.partition("by topic")[2].partition("\n\n")[0].splitlines()[1:]
    assert len(table) == 7
    column = table[0].index("bytes") + len("bytes")
    assert all(line[column - 1] == "B" for line in table[1:])
    assert table[1].startswith("public/default/__change_events ")
    assert re.search(r"ConsumerBusy +SUBSCRIBE +public/default/errors-room +127.0.0.1 +2 ", text)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs `pwire stats` on a terminal of some width."""

    def run(width: int, *args: str, stdin: bytes = b"") -> Run:
        monkeypatch.setattr(console, "terminal_width", lambda stream: width)
        return stats(*args, stdin=stdin)

    return run


@pytest.mark.parametrize("width", [40, 80, 100, 160])
@pytest.mark.parametrize("name", ["errors.pcap", "java-keyvalue-protobuf.pcap", "snaplen96.pcap"])
def test_tables_fit_the_terminal(terminal: Any, width: int, name: str) -> None:
    lines = terminal(width, name).lines
    tables = lines[lines.index("") :]
    assert max(map(cell_len, lines)) <= width
    if width >= 80:
        assert any("█" in line for line in tables)
        assert any("p99" in line for line in tables)


@pytest.mark.parametrize("width", [40, 80])
def test_names_are_wrapped_and_never_cut(terminal: Any, width: int) -> None:
    text = terminal(width, "--by", "topic", "errors.pcap").out.decode()
    rows = text.partition("by topic")[2].splitlines()[2:]
    assert "…" not in text
    names = "".join(row[: row.find("  ")].strip() if "  " in row else row for row in rows)
    assert "public/default/__change_events" in names
    assert "public/default/errors-locked" in names


def test_a_wider_terminal_shows_more(terminal: Any) -> None:
    def titles(width: int) -> set[str]:
        text = terminal(width, "--by", "topic", "errors.pcap").out.decode()
        return set(text.partition("by topic")[2].splitlines()[1].split())

    assert {"topic", "frames", "bytes", "p50", "p99"} <= titles(80) < titles(160)
    assert {"bytes/s", "p99.9", "errors"} <= titles(160)


def test_nothing_in_a_capture_acts_on_the_terminal(terminal: Any) -> None:
    for form in ("table", "json"):
        assert _dangerous(stats("-o", form, "-", stdin=_frames())) == set()
    assert MARKUP in stats("--by", "topic", "-", stdin=_frames()).out.decode()
    assert _dangerous(terminal(160, "-", stdin=_frames())) == set()


def test_bars_and_sparklines() -> None:
    assert stats_page.bar(1, 4) == "████"
    assert stats_page.bar(0.5, 4) == "██"
    assert stats_page.bar(0.0001, 4) == "▏"
    assert stats_page.bar(0, 4) == ""
    assert stats_page.sparkline([0, 1, 8, 4], 10) == " ▁█▄"
    assert stats_page.sparkline([0, 1, 8, 4, 3], 3) == "▁█▂"
    assert stats_page.sparkline([0, 0], 3) == "  "
    assert stats_page.sparkline([], 3) == ""


# -- findings


def test_findings_follow_if_everything_is_shown() -> None:
    found = pwire("doctor", SAMPLES / "errors.pcap")
    text, records = found.out.decode(), pwire("doctor", "-o", "json", SAMPLES / "errors.pcap").records
    assert len(records) == 4
    run = stats("errors.pcap")
    assert run.code == 0
    plain = stats("--no-doctor", "errors.pcap").out.decode()
    shown = run.out.decode()
    assert shown.startswith(plain)
    assert shown[len(plain) :].splitlines()[1:4] == text.splitlines()[:3]
    assert stats("-o", "json", "errors.pcap").records[-4:] == [{"by": "finding", **each} for each in records]
    for options in (["--no-doctor"], ["--by", "topic"]):
        assert not [
            row for row in stats("-o", "json", *options, "errors.pcap").records if row["by"] == "finding"
        ]


# -- what can go wrong


def test_a_bad_by_names_the_good_ones() -> None:
    run = stats("--by", "topic,foo", "errors.pcap")
    assert (run.code, run.out) == (2, b"")
    assert run.err == f"pwire: --by foo: unknown; use one of {', '.join(NAMES)}\n"


def test_a_source_is_needed() -> None:
    run = stats()
    assert run.code == 2
    assert len(run.complaints) == 1


def test_a_source_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    run = stats("-o", "json", tmp_path / "none.pcap")
    assert (run.code, run.out) == (3, b"")
    run = stats("-o", "json", tmp_path / "none.pcap", "java-simple.pcap")
    assert run.code == 3
    assert run.records[0]["frames"] == 51
    assert len(run.complaints) == 1


def test_what_came_before_the_damage_is_counted() -> None:
    whole = Pcap.read("java-simple.pcap").file
    run = stats("-o", "json", "-", stdin=whole[:-10])
    assert run.code == 4
    assert run.records[0]["packets"] == 60
    assert len(run.complaints) == 1


def test_a_capture_without_pulsar_has_nothing_to_count() -> None:
    run = stats("http-client-on-binary-port.pcap")
    assert run.code == 0
    assert run.lines[0].startswith("8 packets, 0 connections (and 1 without Pulsar frames), 0 frames")


def test_connections_without_frames_have_rows_that_say_how_they_went() -> None:
    run = stats("--by", "connection", SILENT)
    assert "  no data    1 never answered (192.0.2.11:29198)" in run.lines
    assert re.search(
        r"^1  192.0.2.11:40198  192.0.2.11:29198  SYN sent 3 times, never answered  ", run.lines[-1]
    )
    assert re.search(
        r"HTTP, closed by broker ", stats("--no-doctor", "http-client-on-binary-port.pcap").lines[-1]
    )
    total, spoken, silent = stats("-o", "json", "--by", "connection", SILENT).records
    assert total["without_data"] == [{"end": "unanswered", "connections": 1, "servers": ["192.0.2.11:29198"]}]
    assert [spoken[key] for key in ("protocol", "end", "by_broker")] == ["Pulsar", "closed", False]
    assert [silent[key] for key in ("protocol", "end", "by_broker")] == [None, "unanswered", None]
    listed = decode("-o", "json", "--connections", SILENT).records
    assert [row["how"] for row in listed] == [row["how"] for row in (spoken, silent)]


def test_a_source_without_packets_does_not_say_how_connections_went() -> None:
    (row,) = (
        each for each in stats("-o", "json", "-", stdin=_frames()).records if each["by"] == "connection"
    )
    assert row["end"] is row["how"] is row["protocol"] is None


def test_frames_over_a_limit_of_ones_own_are_counted_all_the_same() -> None:
    assert stats("-o", "json", "--max-frame-size", "100", "java-simple.pcap").records[0]["frames"] == 51


# -- two processes
