"""The page: everything in one file, nothing in it that a capture could make a browser run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("plotly", reason="plotly is not installed")

EVIL = "persistent://a/b/</script><img src=x onerror=alert(1)>&<b>$x$\x1b[31m"
SECOND = 1_000_000_000
START = 1_800_000_000 * SECOND


def overview() -> Any:
    from pulsarctl_wire.spark.reports.overview import Overview

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


def page() -> str:
    from pulsarctl_wire.cli.report import shown
    from pulsarctl_wire.spark.page import summary_page

    return summary_page(overview(), EVIL, shown)


class Reader(HTMLParser):
    """Collects the elements, and what is in the script elements."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = attributes, text + data


def test_no_text_of_a_capture_becomes_markup() -> None:
    reader = Reader()
    reader.feed(page())
    tags = {tag for tag, _ in reader.elements}
    assert "img" not in tags
    assert "b" not in {tag for tag, attributes in reader.elements if attributes}
    assert not [name for _, attributes in reader.elements for name in attributes if name.startswith("on")]
    assert "\x1b" not in page()
    assert {"src", "href"}.isdisjoint(name for _, attributes in reader.elements for name in attributes)


def test_labels_of_plots_hold_no_markup_either() -> None:
    reader = Reader()
    reader.feed(page())
    figures = [text for attributes, text in reader.scripts if attributes.get("class") == "figure"]
    assert len(figures) == 5
    for text in figures:
        assert not re.search("[<>&]", text)  # in JSON as \\u003c: nothing ends the element
    labels = json.dumps([json.loads(text)["data"] for text in figures])
    assert "alert(1)" in labels
    assert "<img" not in labels
    assert "</script" not in labels


def test_nothing_is_fetched() -> None:
    text = page()
    assert "default-src 'none'" in text
    without_plotly = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search("https?:", without_plotly)


def test_a_plain_report_as_a_page() -> None:
    from pulsarctl_wire.cli.report import shown
    from pulsarctl_wire.spark.page import table_page

    text = table_page([{"topic": EVIL, "bytes": 2_000}], ["topic", "bytes"], EVIL, shown)
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
    assert len(re.findall(r'<svg class="main-svg"', body)) >= 5
    assert body.count('class="plot-container') == 5
    assert "CONSOLE" not in ran.stderr
    assert "onerror=alert(1)&gt;" in body  # shown as the text that it is
    drawn = re.sub(r"<script.*?</script>", "", body, flags=re.DOTALL)
    assert "<img" not in drawn
