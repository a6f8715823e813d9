"""`pwire conform`, against the embedded broker in real time."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from pwire_run import pwire

from pulsarctl_wire.broker.basics.settings import Settings
from pulsarctl_wire.checks.requirement import MUST, SHOULD
from pulsarctl_wire.conformance.basics.settings import MEANINGS, SECONDS, SETTINGS
from pulsarctl_wire.conformance.basics.target import BrokerAccess, RemoteTarget
from pulsarctl_wire.conformance.catalog import CASES, list_requirements
from pulsarctl_wire.conformance.runner import run_case
from pulsarctl_wire.conformance.verdict import ERROR, find_obstacle, parse_release
from pulsarctl_wire.net.settings import Address
from pulsarctl_wire.testing import Broker

QUICK = ["connect/*", "lookup/*", "ack/individual"]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def report_of(*args: Any) -> dict[str, Any]:
    run = pwire("conform", "broker", *args, "-o", "json")
    (report,) = run.records
    assert not run.complaints
    return dict(report)


def verdicts_of(report: dict[str, Any]) -> dict[str, str]:
    return {case["id"]: case["verdict"] for case in report["cases"]}


def test_a_broker_that_conforms(broker: Broker, tmp_path: Path) -> None:
    run = pwire(
        "conform", "broker", broker.service_url, *QUICK, "--level", "observed", "--captures", tmp_path
    )
    assert (run.code, run.err) == (0, "")
    assert "failed" in run.lines[2]
    assert not [line for line in run.lines if line.startswith("failed")]
    assert not list(tmp_path.iterdir())


def test_the_report_says_what_was_checked(broker: Broker) -> None:
    report = report_of(broker.service_url, *QUICK, "--level", "observed")
    assert report["target"] == broker.service_url
    assert report["protocol_version"] == 21
    assert report["settings"] == []
    number = sum(case.topic in ("connect", "lookup") for case in CASES.values()) + 1
    assert len(report["cases"]) == number
    assert sum(count for counts in report["counts"].values() for count in counts.values()) == number
    verdicts = verdicts_of(report)
    assert verdicts.pop("lookup/too_many") == verdicts.pop("lookup/domain_in_capitals") == "not applicable"
    assert set(verdicts.values()) == {"passed"}
    (reason,) = (case["reason"] for case in report["cases"] if case["id"] == "lookup/domain_in_capitals")
    assert reason == f"needs {MEANINGS['admin']}"


def test_only_what_is_as_binding_is_checked(broker: Broker) -> None:
    names = report_of(broker.service_url, "connect/*")["cases"]
    assert {case["level"] for case in names} == {MUST}
    named = report_of(broker.service_url, "connect/ping_first", "connect/basic")
    assert verdicts_of(named) == {"connect/ping_first": "passed", "connect/basic": "passed"}


def test_the_admin_api_is_used_if_named(broker: Broker) -> None:
    report = report_of(broker.service_url, "send/unloaded_topic", "--admin-url", broker.http_url)
    assert verdicts_of(report) == {"send/unloaded_topic": "passed"}
    assert report["settings"] == ["admin"]


def test_a_broker_with_tls() -> None:
    with Broker(tls=True) as broker:
        report = report_of(
            broker.service_url_tls, "--tls-ca", broker.ca_file, "lookup/connect", "send/max_size"
        )
        assert report["target"] == broker.service_url_tls
    assert set(verdicts_of(report).values()) == {"passed"}


def test_a_broker_by_another_of_its_names(broker: Broker) -> None:
    url = broker.service_url.replace("127.0.0.1", "localhost")
    assert verdicts_of(report_of(url, "lookup/connect")) == {"lookup/connect": "passed"}


def test_a_broker_that_does_not_conform(broker: Broker, tmp_path: Path) -> None:
    number = broker.add_fault("duplicate command=ACK_RESPONSE")
    captures, junit, markdown = tmp_path / "captures", tmp_path / "junit.xml", tmp_path / "report.md"
    files = ["--captures", str(captures), "--junit", str(junit), "--markdown", str(markdown)]
    try:
        run = pwire(
            "conform", "broker", broker.service_url, "ack/individual", "ack/twice", *files, "--frames"
        )
        of_should = pwire("conform", "broker", broker.service_url, "ack/twice")
    finally:
        broker.remove_fault(number)
    assert (run.code, of_should.code) == (1, 0)
    text = run.out.decode()
    assert text.index("failed, must") < text.index("ack/individual") < text.index("failed, should")
    assert "    expected  " in text
    assert "    actual    ACK_RESPONSE {consumer_id=1, request_id=" in text
    assert "→ ACK" in text
    assert sorted(path.name for path in captures.iterdir()) == [
        "ack-individual.pcapng",
        "ack-twice.pcapng",
    ]
    decoded = pwire("decode", captures / "ack-individual.pcapng", "--command", "ACK", "-o", "json")
    assert {record["command"] for record in decoded.records} == {"ACK"}
    suite = ElementTree.parse(junit).getroot()[0]
    assert suite.attrib["failures"] == "2"
    assert [case.attrib["name"] for case in suite] == ["individual", "twice"]
    assert (suite[0][0].tag, suite[0][0].attrib["type"]) == ("failure", "must")
    assert "| `ack/individual` | " in markdown.read_text()


def test_settings_that_the_protocol_shows_are_seen() -> None:
    seen: dict[str, object] = {}
    for name in ("txn", "dedup", "bem", "batchack"):
        seen |= SETTINGS[name]
    with Broker(settings=seen) as broker:
        report = report_of(
            broker.service_url, "ack/batch_partial_on", "send/duplicate_without_dedup", "txn/new"
        )
    assert report["settings"] == ["batchack", "bem", "dedup", "txn"]
    assert verdicts_of(report) == {
        "ack/batch_partial_on": "passed",
        "txn/new": "passed",
        "send/duplicate_without_dedup": "not applicable",
    }
    with Broker(settings=SETTINGS["nocreate"]) as broker:
        report = report_of(broker.service_url, "nocreate/*", "send/empty_payload")
    assert report["settings"] == ["nocreate"]
    assert verdicts_of(report)["nocreate/producer"] == "passed"
    assert verdicts_of(report)["send/empty_payload"] == "not applicable"


def test_settings_that_we_are_told_of() -> None:
    with Broker(settings=SETTINGS["haproxy"] | {"keepAliveIntervalSeconds": 2}) as broker:
        names = ["haproxy/v2", "keepalive/idle_ping", "producer/name_taken_dead_conn"]
        report = report_of(broker.service_url, *names, "--have", "haproxy", "--have", "keepalive=2")
    assert verdicts_of(report) == {
        "haproxy/v2": "passed",
        "keepalive/idle_ping": "passed",
        "producer/name_taken_dead_conn": "not applicable",
    }


def test_a_case_that_cannot_be_judged() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    access = BrokerAccess(Address("127.0.0.1", port), "x")
    outcome = asyncio.run(run_case(CASES["connect/basic"], lambda: RemoteTarget(access)))
    assert (outcome.verdict, outcome.reason) == (ERROR, f"127.0.0.1:{port}: refused")


@pytest.mark.parametrize(
    ("args", "code", "complaint"),
    [
        (["pulsar://127.0.0.1:1"], 6, "127.0.0.1:1: refused"),
        (["http://127.0.0.1:1"], 2, "web service URL"),
        ([], 2, "name the broker"),
        (["pulsar://127.0.0.1:1", "subscribe/nope"], 2, "no case is called subscribe/nope"),
        (["--list", "--level", "must", "haproxy/*"], 2, "no case of haproxy/* is as binding"),
        (["pulsar://127.0.0.1:1", "--have", "nothing"], 2, "--have nothing: use one of"),
        (["pulsar://127.0.0.1:1", "--have", "keepalive=x"], 2, "--have keepalive=x: use one of"),
        (["pulsar://127.0.0.1:1", "--admin-url", "localhost"], 2, "begins with http://"),
        (["pulsar://127.0.0.1:1", "--token-key", "/nowhere"], 2, "No such file"),
    ],
)
def test_what_cannot_be_done(args: list[str], code: int, complaint: str) -> None:
    run = pwire("conform", "broker", *args)
    assert run.code == code
    assert complaint in run.err


def test_what_is_no_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        run = pwire("conform", "broker", f"pulsar+ssl://127.0.0.1:{port}", "--tls-ca", "/nowhere")
    assert run.code == 2


def test_the_list() -> None:
    run = pwire("conform", "broker", "--list")
    assert len(run.lines) == sum(case.level in (MUST, SHOULD) for case in CASES.values())
    assert any(line.startswith("subscribe/type_exclusive") and "must" in line for line in run.lines)
    records = pwire("conform", "broker", "--list", "txn/*", "-o", "json", "--level", "observed").records
    assert [record["id"] for record in records] == [name for name in CASES if name.startswith("txn/")]
    assert all(record["what"] and record["expected"] and record["source"] for record in records)


def test_reports_side_by_side(broker: Broker, tmp_path: Path) -> None:
    names = ["ack/individual", "ack/twice", "connect/basic"]
    for name, fault in (("a", ""), ("b", "duplicate command=ACK_RESPONSE")):
        number = broker.add_fault(fault) if fault else 0
        run = pwire("conform", "broker", broker.service_url, *names, "-o", "json")
        if number:
            broker.remove_fault(number)
        (tmp_path / name).write_bytes(run.out)
    run = pwire("conform", "compare", tmp_path / "a", tmp_path / "b")
    assert run.code == 0
    rows = [line.split() for line in run.lines]
    assert ["ack/individual", "must", "passed", "failed"] in rows
    assert ["1", "must,", "passed"] in rows
    page = pwire("conform", "compare", tmp_path / "a", tmp_path / "b", "-o", "markdown").out.decode()
    assert "| `ack/twice` | should | passed | failed |" in page
    (tmp_path / "c").write_text(json.dumps([1]))
    assert pwire("conform", "compare", tmp_path / "c").code == 3
    assert pwire("conform", "compare", tmp_path / "nothing").code == 3


def test_each_case_says_what_it_requires() -> None:
    for case in CASES.values():
        assert set(case.paragraphs) == {"", "Expected", "Source"}, case.id
        assert {*case.needs, *case.without} <= MEANINGS.keys(), case.id
    assert {requirement.id for requirement in list_requirements()} >= CASES.keys()
    assert set(MEANINGS) == {*SETTINGS, "admin"}


def test_all_modules_with_cases_are_in_the_catalog() -> None:
    import pulsarctl_wire.conformance as package

    folder = Path(package.__path__[0])
    paths = [path for path in folder.glob("*ing/*.py") if path.parent.name != "fuzzing"]
    modules = {path.stem for path in paths if path.stem != "__init__"}
    assert modules == {case.run.__module__.rpartition(".")[2] for case in CASES.values()}


def test_a_case_is_explained() -> None:
    run = pwire("explain", "subscribe/type_exclusive")
    assert run.lines[0].split() == ["subscribe/type_exclusive", "case"]
    assert any(line.split()[:2] == ["level", "must"] for line in run.lines)
    assert pwire("explain", "subscribe/nope").code == 2


def test_the_document_is_right() -> None:
    docs = Path(__file__).parents[2] / "docs"
    text = (docs / "conformance.md").read_text()
    assert f"It has {len(CASES)} cases." in text
    assert f"by {len(CASES)} cases" in (docs / "clients.md").read_text()
    settings = text.partition("\n## What cases need\n")[2].partition("\n## ")[0]
    names = re.findall(r"^\| `(\w+)(?:=SECONDS)?` \|", settings, re.MULTILINE)
    assert set(names) == {*MEANINGS, *SECONDS}
    for name in re.findall(r"`(\w+)=", settings):
        assert name in Settings.__annotations__ or name in SECONDS, name


def test_what_is_newer_than_a_broker_is_not_applicable() -> None:
    newer = CASES["topics/pattern"]
    assert newer.since == "3.3"
    reason = find_obstacle(newer, frozenset(), False, parse_release("Pulsar Server2.10.1"))
    assert reason == "is so since Pulsar 3.3"
    for release, is_named in (("Pulsar Server3.3.6", False), ("Pulsar Server2.10.1", True), ("other", False)):
        assert find_obstacle(newer, frozenset(), is_named, parse_release(release)) == ""
