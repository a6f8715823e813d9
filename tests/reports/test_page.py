"""The page: everything in one file, nothing in it that a capture could make a browser run."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

EVIL = "persistent://a/b/</script><img src=x onerror=alert(1)>&<b>$x$\x1b[31m"
SECOND = 1_000_000_000
START = 1_800_000_000 * SECOND


def overview() -> Any:
    from pulsarctl_wire.reports.overview import Overview

    counts = (
        "frames",
        "bytes",
        "published",
        "delivered",
        "errors",
        "bad_checksums",
        "partial",
        "connections",
    )
    more = ("topics", "producers", "subscriptions", "gaps", "malformed", "gap_bytes", "malformed_bytes")
    latencies = {f"{name}_ns": 1_500_000 for name in ("p50", "p90", "p99", "p999", "max")}
    made = Overview(
        {"first_ns": START, "last_ns": START + 9 * SECOND, **dict.fromkeys((*counts, *more), 7)}, SECOND
    )
    names = [EVIL, *(f"persistent://a/b/topic-{number}" for number in range(9))]
    made.topics = [{"topic": name, "share": 0.1, "bytes": 10, "frames": 1} for name in names]
    made.publish_latency = [{"topic": EVIL, "producer": EVIL, "count": 1, **latencies}]
    made.publish_over_time = [{"time_ns": START + n * SECOND, "count": 2, **latencies} for n in range(9)]
    made.heat = [{"time_ns": START + n * SECOND, "bin": 61 + n % 3, "count": 1 + n} for n in range(9)]
    made.throughput = [
        {"time_ns": START + n * SECOND, "topic": name, "bytes": 100 + n, "frames": 1}
        for n in range(9)
        for name in (*names, None)
    ]
    made.errors = [
        {"error": EVIL, "command": "ERROR", "topic": EVIL, "client": EVIL, "count": 1, "example": EVIL}
    ]
    made.errors_over_time = [{"time_ns": START, "error": EVIL, "count": 1}]
    made.connections = [
        {
            "connection": n,
            "client": EVIL,
            "client_version": EVIL,
            "first_ns": START,
            "last_ns": START + SECOND,
        }
        | {"bytes_to_broker": 1, "bytes_from_broker": 1, "errors": 0, "ended": "closed"}
        for n in range(3)
    ]
    made.gaps = [{"time_ns": START, "kind": "malformed", "size": 1, "reason": EVIL, "connection": 0}]
    made.slowest = [{"latency_ns": 1, "command": EVIL, "topic": EVIL, "file": EVIL}]
    return made


def render(made: Any) -> str:
    from pulsarctl_wire.cli.data.page import summary_page

    return summary_page(made, EVIL)


def page() -> str:
    return render(overview())


class Reader(HTMLParser):
    """Collects the elements, the texts of those of a kind, and what is left open."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts[self.open[-1]][-1] += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


def test_no_text_of_a_capture_becomes_markup() -> None:
    reader = read(page())
    tags = {tag for tag, _ in reader.elements}
    assert {"img", "script", "a"}.isdisjoint(tags)
    assert "b" not in {tag for tag, attributes in reader.elements if attributes}
    assert not [name for _, attributes in reader.elements for name in attributes if name.startswith("on")]
    assert "\x1b" not in page()
    assert {"src", "href"}.isdisjoint(name for _, attributes in reader.elements for name in attributes)
    shown = EVIL.replace("\x1b", "\\x1b")
    assert shown in reader.texts["h1"][0]
    assert any(shown.removeprefix("persistent://") in text for text in reader.texts["td"])
    assert any("alert(1)" in text for text in reader.texts["title"])  # of a bar


def test_nothing_is_fetched_and_nothing_runs() -> None:
    text = page()
    assert "default-src 'none'; style-src 'unsafe-inline'\"" in text
    assert not re.search("https?:|url\\(|@import", text)


def test_the_page_is_small() -> None:
    """Plots of 120 buckets, all bins of the heat map filled, are no megabyte."""
    full = overview()
    full.heat = [
        {"time_ns": START + n * SECOND, "bin": k, "count": 5} for n in range(120) for k in range(40, 70)
    ]
    assert len(render(full)) < 1_000_000


def test_every_plot_has_a_caption_axes_with_titles_and_a_legend() -> None:
    reader = read(page())
    captions = reader.texts["figcaption"]
    assert len(captions) == len([tag for tag, _ in reader.elements if tag == "svg"]) == 5
    titles = [attributes for tag, attributes in reader.elements if attributes.get("class") in TITLES]
    assert len(titles) == 10
    assert "time (UTC), 2027-01-15" in reader.texts["div"]
    assert reader.texts["div"].count("latency") == 2
    assert len(reader.texts["ul"]) == 5


TITLES = ("x title", "y title")


def test_lines_break_where_there_is_nothing() -> None:
    from pulsarctl_wire.cli.data.plots import publish_lines

    made = overview()
    whole = publish_lines(made)
    made.publish_over_time = [row for n, row in enumerate(made.publish_over_time) if n not in (3, 4, 7)]
    broken = publish_lines(made)
    lines = [re.findall(r'class="line"[^>]* d="([^"]*)"', text) for text in (whole, broken)]
    assert [line.count("M") for line in lines[0]] == [1] * 5
    assert [line.count("M") for line in lines[1]] == [3] * 5


def test_topics_that_are_shortened_alike_stay_apart() -> None:
    from pulsarctl_wire.cli.data.plots import throughput

    made = overview()
    names = [f"{'a' * 40}{middle}{'b' * 40}" for middle in "xyz"]
    made.topics = [{"topic": name} for name in names]
    made.throughput = [{"time_ns": START, "topic": name, "bytes": 5} for name in names]
    assert throughput(made).count("<path fill=") == 3


@given(st.integers(0, 2**63 - 10**9), st.integers(0, 10**17))
def test_axes_of_time_have_a_few_labels(start: int, span: int) -> None:
    from pulsarctl_wire.render.figure import time_axis

    axis = time_axis(start, start + span)
    assert 1 <= len(axis.labels) <= 8 or span < 6_000
    assert len(set(axis.labels.values())) == len(axis.labels) or span >= 24 * 3600 * SECOND
    assert all(-0.001 <= axis.place(time) <= 1.001 for time in axis.labels)


@given(st.floats(1, 1e15), st.floats(1, 1e9))
def test_axes_of_latencies_have_labels_between_their_ends(low: float, factor: float) -> None:
    from pulsarctl_wire.cli.data.plots import latency_axis

    axis = latency_axis(low, low * factor)
    assert len(axis.labels) <= 20
    assert axis.labels or low * factor > 3600 * SECOND
    assert all(-0.001 <= axis.place(span) <= 1.001 for span in axis.labels)


@given(st.floats(1e-3, 1e18), st.booleans())
def test_axes_of_amounts_begin_at_nothing(most: float, whole: bool) -> None:
    from pulsarctl_wire.render.figure import amount_axis

    axis = amount_axis("", most, str, is_whole=whole)
    assert 0 in axis.labels
    assert len(axis.labels) <= 7
    assert all(0 <= axis.place(value) <= 1.001 for value in axis.labels)


def test_a_plain_report_as_a_page() -> None:
    from pulsarctl_wire.cli.data.page import table_page

    text = table_page([{"topic": EVIL, "bytes": 2_000}], ["topic", "bytes"], EVIL)
    assert "2.0 kB" in text
    assert "<img" not in text
    assert "<script" not in text


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_a_browser_draws_the_plots_and_complains_of_nothing(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page(), encoding="utf-8")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
    ]
    flags += ["--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'browser'}"]
    flags += [
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--enable-logging=stderr",
        "--virtual-time-budget=10000",
    ]
    ran = subprocess.run(
        ["chromium", *flags, "--dump-dom", path.as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    body = ran.stdout[ran.stdout.index("<body") :]
    assert body.count("<svg") == 5
    assert "CONSOLE" not in ran.stderr
    assert "onerror=alert(1)&gt;" in body  # shown as the text that it is
    assert "<img" not in body
