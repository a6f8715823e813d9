"""docs/broker.md: its settings and numbers are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pulsarctl_wire.broker.admin.namespaces import MAX_BUNDLES
from pulsarctl_wire.broker.basics.setting_names import NAMES
from pulsarctl_wire.broker.basics.settings import FIELDS, Settings
from pulsarctl_wire.broker.clients.connection import MAX_UNSENT_BYTES
from pulsarctl_wire.broker.cluster import state
from pulsarctl_wire.broker.shell import faulty, http
from pulsarctl_wire.broker.storage import log

DOCUMENT = (Path(__file__).parents[2] / "docs" / "broker.md").read_text()


def test_its_settings_have_an_effect_or_are_shown_as_without() -> None:
    named = set(re.findall(r"\b[a-z]+[A-Z]\w+\b", " ".join(re.findall(r"`([^`\n]*)`", DOCUMENT))))
    known = named & FIELDS.keys()
    assert {"maxMessageSize", "transactionCoordinatorEnabled", "tlsCertificateFilePath"} <= known
    assert "numIOThreads" in NAMES - FIELDS.keys()


def test_each_field_of_the_state_is_described() -> None:
    section = DOCUMENT.partition("### State\n")[2].partition("\n### ")[0]
    described = set(re.findall(r"`(\w+)`", section))
    fields = set(re.findall(r'^ +"(\w+)":', Path(state.__file__).read_text(), re.MULTILINE))
    fields |= set(re.findall(r'report\["(\w+)"\]', Path(state.__file__).read_text()))
    assert {"time_ms", "key_ranges", "dropped", "timeout_ms"} < fields
    assert fields - described == set()


@pytest.mark.parametrize(
    ("row", "number"),
    [
        ("bytes not yet sent", f"{MAX_UNSENT_BYTES >> 10} KiB"),
        ("with `--data`", "16 MiB"),
        ("a read from storage", f"{log.READ_BYTES >> 20} MiB"),
        ("SENDs of a connection", f"{Settings.maxPendingPublishRequestsPerConnection:,}"),
        ("a message", f"{Settings.maxMessageSize >> 20} MiB"),
        ("unacknowledged messages", f"{Settings.maxUnackedMessagesPerSubscription:,}"),
        ("Key_Shared", f"{Settings.keySharedLookAheadMsgInReplayThresholdPerSubscription:,}"),
        ("bundles", f"{MAX_BUNDLES:,}"),
        ("HTTP request", f"{http.MAX_BODY_BYTES >> 20} MiB"),
        ("`state`", f"{state.MAX_LISTED} of each"),
        ("faults delay", f"{faulty.MAX_DELAYED_BYTES >> 20} MiB"),
    ],
)
def test_its_numbers(row: str, number: str) -> None:
    table = DOCUMENT.partition("## What is bounded, and by what\n")[2].splitlines()
    assert any(row in line.split("|")[1] and number in line.split("|")[2] for line in table if "|" in line)
