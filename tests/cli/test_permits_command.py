"""`pwire permits` on its command line: choosing, outputs, and what is wrong with sources."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from pwire_run import SAMPLES, Pcap, Run, pwire
from test_cli_document import _section

from pulsarctl_wire.render.line import TimeFormatter
from pulsarctl_wire.render.permits import MAX_DETAILED, ConsumerReport, page, rows_table
from pulsarctl_wire.render.permits_page import html_page
from pulsarctl_wire.render.permits_plot import plot

NACKS, KEYS = "java-nack-dlq.pcap", "java-keyshared.pcap"


def permits(*args: str | Path, stdin: bytes = b"") -> Run:
    """Run `pwire permits ARGS`; a name of a sample stands for its path."""
    paths = [SAMPLES / arg if isinstance(arg, str) and (SAMPLES / arg).is_file() else arg for arg in args]
    return pwire("permits", *paths, stdin=stdin)


def consumers(*args: str | Path, stdin: bytes = b"") -> list[dict[str, Any]]:
    run = permits("-o", "json", *args, stdin=stdin)
    assert run.code == 0
    return [record for record in run.records if record["kind"] == "consumer"]


# -- choosing


def test_consumers_are_chosen() -> None:
    assert [one["consumer_id"] for one in consumers(NACKS)] == [1, 2, 0]
    assert [one["consumer_id"] for one in consumers(NACKS, "--subscription", "postman")] == [1, 2]
    assert [one["consumer_id"] for one in consumers(NACKS, "--topic", "*-DLQ")] == [0]
    assert [one["consumer_id"] for one in consumers(NACKS, "--consumer", "2", "--consumer", "0")] == [2, 0]
    assert len(consumers(NACKS, "--connection", "0", "--topic", "java-nack-dlq-mail")) == 1


def test_a_subscription_that_is_not_there() -> None:
    run = permits(NACKS, "--subscription", "postmen")
    assert (run.code, run.out) == (2, b"")
    assert run.err == "pwire: --subscription postmen: not in the capture; did you mean postman?\n"
    run = permits(NACKS, "--subscription", "xyz")
    assert run.err == "pwire: --subscription xyz: not in the capture; there is postman, undertaker\n"
    run = permits(NACKS, "--subscription", "postman", "--subscription", "xyz")
    assert run.code == 0
    assert run.lines
    assert "--subscription xyz" in run.err


def test_nothing_is_chosen() -> None:
    run = permits(NACKS, "--consumer", "7", "--topic", "x")
    assert (run.code, run.out, run.err) == (0, b"", "pwire: --topic, --consumer: no consumer matched\n")
    run = permits("no-checksum.pcap", "--connection", "9")
    assert run.err == "pwire: --connection: no consumer matched\n"
    run = permits("snaplen96.pcap", "--subscription", "s")
    assert run.err == (
        "pwire: --subscription s: not in the capture; the SUBSCRIBE of 5 consumers was not captured\n"
    )
    run = permits("snaplen96.pcap", "--topic", "*")
    assert run.err == ("pwire: --topic: no consumer matched; the SUBSCRIBE of 5 consumers was not captured\n")
    run = permits("http-client-on-binary-port.pcap")
    assert (run.code, run.err) == (0, "pwire: permits: there is no consumer\n")


def test_a_source_is_needed() -> None:
    run = permits()
    assert run.code == 2
    assert "name a SOURCE" in run.err


# -- sources


def test_several_sources_and_stdin_are_one_capture() -> None:
    data = (SAMPLES / "permit-leak.pcap").read_bytes()
    both = consumers(KEYS, "-", stdin=data)
    assert sorted(one["consumer_id"] for one in both) == [0, 1, 1, 2]


def test_raw_frames_have_consumers_too() -> None:
    frames = b"".join(map(_bytes_of, pwire("decode", "-o", "hex", SAMPLES / "permit-leak.pcap").lines))
    (one,) = consumers("-", stdin=frames)
    assert (one["granted"], one["used"], one["permits"], one["acked"]) == (20, 20, 0, 20)
    assert one["time_ns"] is one["last_ns"] is one["empty_ns"] is one["quiet_ns"] is one["stalled_ns"] is None
    for output in ("table", "plot", "html"):
        assert permits("-o", output, "-", stdin=frames).code == 0


def _bytes_of(line: str) -> bytes:
    found = re.match(r"  [0-9a-f]{8}  ((?:[0-9a-f]{2} )+)", line)
    return bytes.fromhex(found[1]) if found else b""


def test_what_was_read_of_a_damaged_source_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "cut.pcap"
    path.write_bytes((SAMPLES / "permit-leak.pcap").read_bytes()[:6_000])
    run = permits(path)
    assert run.code == 4
    assert "granted 20 by 1 FLOW" in run.out.decode()
    missing = permits(tmp_path / "missing.pcap")
    assert (missing.code, missing.out) == (3, b"")
    assert missing.err.count("\n") == 1


def test_missing_bytes_are_said() -> None:
    capture = Pcap.read("permit-leak.pcap")
    lost = [n for n in range(1, 60) if _one(capture.without([n]).file) == (False, True)]
    assert lost
    run = permits("-", stdin=capture.without(lost[:1]).file)
    assert "bytes are missing from the capture: from there on permits are not exact (~)" in run.out.decode()
    assert re.search(r"~-?\d+", run.out.decode())


def _one(data: bytes) -> tuple[bool, bool]:
    """Whether the only consumer is exact, and whether its SUBSCRIBE was seen; (True, False) for several."""
    found = consumers("-", stdin=data)
    return (found[0]["exact"], found[0]["subscribe_seen"]) if len(found) == 1 else (True, False)


# -- outputs


def test_the_rows_shown_are_real() -> None:
    shown = re.findall(r"```text\n(.*?)```", _section("## `pwire permits`"), re.DOTALL)
    assert shown == [
        permits("permit-leak.pcap").out.decode(),
        permits("-o", "plot", "permit-leak.pcap").out.decode(),
    ]


def test_rows_fit_their_number_and_width() -> None:
    for most in (2, 7, 256):
        assert len(permits("-o", "json", "--rows", str(most), KEYS, "--consumer", "0").lines) <= most + 1
    total, *rows = permits("-o", "json", "--every", "0.5", KEYS, "--consumer", "0").records
    assert total["row_ns"] == 500_000_000
    stretches = [row["time_ns"] // 500_000_000 for row in rows]
    assert len(set(stretches)) == len(stretches) < len(consumers(KEYS, "--consumer", "0")) + 10
    assert sum(row["delivered"] for row in rows) == total["delivered"]
    assert "each row covers 500.00 ms" in permits("--every", "0.5", KEYS).out.decode()
    assert permits("--rows", "1", KEYS).code == 2


def shown_of(*args: str) -> list[ConsumerReport]:
    records = permits("-o", "json", *args).records
    found: list[ConsumerReport] = []
    for record in records:
        if record["kind"] == "consumer":
            found.append(ConsumerReport(record, []))
        else:
            found[-1].rows.append(record)
    return found


def table(shown: ConsumerReport, width: int | None) -> Any:
    return rows_table(shown, width, TimeFormatter())


def chart(shown: ConsumerReport, width: int | None) -> Any:
    return plot(shown, width, TimeFormatter())


@pytest.mark.parametrize("detail", [table, chart])
@pytest.mark.parametrize("width", [40, 80, 200])
def test_what_is_shown_fits_the_terminal(width: int, detail: Any) -> None:
    text = page(shown_of(NACKS), width, False, detail)
    assert all(len(line) <= width for line in text.splitlines())
    assert "\x1b" not in text
    assert "\x1b[1;31m" in page(shown_of("permit-leak.pcap"), width, True, detail)


def test_only_some_consumers_are_shown_in_detail() -> None:
    shown = shown_of("permit-leak.pcap")
    calm = [ConsumerReport(each.consumer | {"empty_ns": 0, "quiet_ns": 0}, each.rows) for each in shown]
    text = page([*(calm * MAX_DETAILED), *shown], None, False, table)
    assert text.count("no permits in its last 9.05 s") == 2  # in its line, and in detail
    assert text.count("SUBSCRIBE Shared") == MAX_DETAILED
    assert "1 consumer without details" in text


def test_names_cannot_affect_the_terminal_or_the_page() -> None:
    evil = "<script>\x1b[2J\u202e"
    shown = shown_of("permit-leak.pcap")
    names = {"subscription": evil, "topic": evil, "consumer_name": evil}
    shown = [ConsumerReport(each.consumer | names, each.rows) for each in shown * 2]
    text = page(shown, None, False, table)
    assert text.count(r"<script>\x1b[2J\u202e") == 10
    assert "\x1b" not in text
    html = html_page(shown, evil, TimeFormatter())
    assert "<script" not in html
    assert "\x1b" not in html


class Tags(HTMLParser):
    """Checks that tags are closed in order, and counts them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_has_a_plot_and_the_rows_of_each_consumer(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    run = permits("--html", path, NACKS)
    assert (run.code, run.out, run.err) == (0, b"", "")
    text = path.read_text()
    assert permits("-o", "html", NACKS).out.decode() == text
    counts = Tags(text).counts
    assert (counts["svg"], counts["table"]) == (3, 4)
    assert counts["tr"] == 4 + 3 + sum(len(each.rows) for each in shown_of(NACKS))
    assert "script" not in counts
    assert permits("--html", tmp_path / "no" / "page.html", NACKS).code == 5
