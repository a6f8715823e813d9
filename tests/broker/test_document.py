"""docs/broker.md: its Python examples run, its settings and numbers are those of the code."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from proxied import MAIN, environment

from pulsarctl_wire.broker import faulty, http, log, sight
from pulsarctl_wire.broker.connection import MOST_UNSENT
from pulsarctl_wire.broker.setting_names import AHEAD, NAMES
from pulsarctl_wire.broker.settings import FIELDS, Settings
from pulsarctl_wire.testing import Broker

DOCUMENT = (Path(__file__).parents[2] / "docs" / "broker.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)


def example(word: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run the example with this word in it; returns its names."""
    (code,) = [each for each in EXAMPLES if word in each]
    exec(compile(code, "broker.md", "exec"), names)
    return names


@pytest.mark.interop
def test_the_examples_with_the_python_client() -> None:
    pulsar = pytest.importorskip("pulsar")
    example("partitions=", {})
    with Broker() as broker:
        example("def test_", {"pulsar": pulsar})["test_orders_are_kept"](broker)


def test_the_example_with_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="pw") as home:  # a short path, for a socket
        pwire = Path(home) / "pwire"
        pwire.write_text(f"#!{sys.executable}\n{MAIN}\n")
        pwire.chmod(0o755)
        for name, value in environment(Path(home)).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PATH", f"{home}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        assert example("subprocess", {})["url"].startswith("pulsar://127.0.0.1:")


def test_its_settings_have_an_effect_or_are_shown_as_without() -> None:
    named = set(re.findall(r"\b[a-z]+[A-Z]\w+\b", " ".join(re.findall(r"`([^`\n]*)`", DOCUMENT))))
    known = named & FIELDS.keys()
    assert {"maxMessageSize", "transactionCoordinatorEnabled", "tlsCertificateFilePath"} <= known
    assert known <= FIELDS.keys() - AHEAD
    assert "numIOThreads" in NAMES - FIELDS.keys()


@pytest.mark.parametrize(
    ("row", "number"),
    [
        ("bytes not yet sent", f"{MOST_UNSENT >> 10} KiB"),
        ("with `--data`", "16 MiB"),
        ("a read from storage", f"{log.READ_BYTES >> 20} MiB"),
        ("SENDs of a connection", f"{Settings.maxPendingPublishRequestsPerConnection:,}"),
        ("a message", f"{Settings.maxMessageSize >> 20} MiB"),
        ("unacknowledged messages", f"{Settings.maxUnackedMessagesPerSubscription:,}"),
        ("Key_Shared", f"{Settings.keySharedLookAheadMsgInReplayThresholdPerSubscription:,}"),
        ("HTTP request", f"{http.MOST_BODY >> 20} MiB"),
        ("`state`", f"{sight.MOST_PENDING} of"),
        ("faults delay", f"{faulty.MOST_DELAYED >> 20} MiB"),
    ],
)
def test_its_numbers(row: str, number: str) -> None:
    table = DOCUMENT.partition("## What is bounded, and by what\n")[2].splitlines()
    assert any(row in line.split("|")[1] and number in line.split("|")[2] for line in table if "|" in line)
