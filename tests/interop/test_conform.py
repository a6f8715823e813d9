"""All cases of `pwire conform` in real time, by default on the embedded broker."""

from __future__ import annotations

import json

from interop.brokers import Broker
from interop.conftest import Pwire


def test_a_broker_conforms(broker: Broker, pwire: Pwire) -> None:
    options = ["--level", "observed", "--admin-url", broker.http_url, "-o", "json"]
    run = pwire("conform", "broker", broker.url, *options, url="", timeout=300)
    report = json.loads(run.stdout)
    assert [case for case in report["cases"] if case["verdict"] in ("failed", "error")] == []
    assert run.returncode == 0
    assert report["settings"] == ["admin", "batchack", "txn"]
