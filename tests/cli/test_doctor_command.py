"""`pwire doctor` from the outside, and the findings of `decode` and `proxy`; tests/golden has its forms."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from jsonschema import Draft202012Validator
from proxied import Proxied
from pwire_run import SAMPLES, Pcap, Run, decode, pwire
from segments import build, conversation, packet_comments, pcapng_options, send

from pulsarctl_wire.checks.registry import RULES
from pulsarctl_wire.cli.console import EXIT_DAMAGED, EXIT_OUTPUT, EXIT_SOURCE, EXIT_USAGE
from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError

CAPTURES = Path(__file__).parents[1] / "checks" / "captures"
SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "json.schema.json").read_text())
FINDING = Draft202012Validator({**SCHEMA, "oneOf": [{"$ref": "#/$defs/finding"}]})
CORRUPT, FENCED, HTTP = "corrupt-in-transit.pcap", "errors.pcap", "http-client-on-binary-port.pcap"
BROKEN = send(b"x" * 100)[:-1] + b"y"
"""A SEND whose checksum is wrong."""


def doctor(*args: str | Path, stdin: bytes = b"") -> Run:
    """Run `pwire doctor ARGS`; a name of a sample stands for its path."""
    named = (SAMPLES / arg if isinstance(arg, str) and (SAMPLES / arg).is_file() else arg for arg in args)
    return pwire("doctor", *named, stdin=stdin)


def ids(run: Run) -> list[str]:
    """The rules of the findings in text."""
    return [line.split()[0] for line in run.lines if re.match(r"[a-z_]+  (certain|suspected)", line)]


# -- which rules, and the exit code


def test_a_healthy_capture() -> None:
    run = doctor("java-simple.pcap")
    assert (run.code, run.out) == (0, b"")
    assert run.err == f"pwire: nothing found in 1 connection by {len(RULES)} rules\n"


@pytest.mark.parametrize("name", [CORRUPT, FENCED, "auth-token.pcap", "permit-leak.pcap"])
def test_json_fits_the_schema(name: str) -> None:
    records = doctor("-T", "5", "-o", "json", name).records
    assert records
    for record in records:
        FINDING.validate(record)
    numbers = {each["number"] for each in decode("-o", "json", name).records}
    assert {each["number"] for record in records for each in record["evidence"]} <= numbers
    assert [record["id"] for record in records] == ids(doctor("-T", "5", name))


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ([], ["authentication_refused", "token_expired", "not_authorized"]),
        (["--all"], ["authentication_refused", "token_expired", "not_authorized", "not_authorized"]),
        (["--only", "token_expired"], ["token_expired"]),
        (
            ["--only", "Token-Expired,permit_leak", "--only", "not_authorized", "--ignore", "not_authorized"],
            ["token_expired"],
        ),
        (["--ignore", "not_authorized,token_expired"], ["authentication_refused"]),
    ],
)
def test_rules_are_chosen(options: list[str], found: list[str]) -> None:
    assert ids(doctor(*options, "auth-token.pcap")) == found


@pytest.mark.parametrize("flag", ["--only", "--ignore"])
def test_a_typo_in_a_rule(flag: str) -> None:
    run = doctor(flag, "permit_leek", CORRUPT)
    assert (run.code, run.out) == (EXIT_USAGE, b"")
    assert run.err == f"pwire: {flag} permit_leek: no such rule; did you mean permit_leak?\n"


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        (CORRUPT, {"any": 1, "certain": 1, "error": 1, "never": 0}),
        (FENCED, {"any": 1, "certain": 1, "error": 1, "never": 0}),
        (CAPTURES / "33-delay-ignored.pcap.gz", {"any": 1, "certain": 1, "error": 0, "never": 0}),
        ("java-simple.pcap", {"any": 0}),
    ],
)
def test_which_findings_fail(name: str, codes: dict[str, int]) -> None:
    assert {which: doctor("--fail-on", which, name).code for which in codes} == codes


@pytest.mark.parametrize("value", ["0", "-1", "x", "nan", "inf", "1e300"])
def test_bad_thresholds(value: str) -> None:
    run = doctor("-T", value, CORRUPT)
    assert (run.code, run.out) == (EXIT_USAGE, b"")
    assert run.err.count("\n") == 1


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["-i", "lo", CORRUPT],
        ["--capture-filter", "tcp", CORRUPT],
        ["--buffer", "1MB", CORRUPT],
        ["--tree", "-"],
        ["-w", "x", "-"],
        ["--tree", "-o", "json", CORRUPT],
        ["-w", "-", CORRUPT],
    ],
    ids=" ".join,
)
def test_options_that_contradict_each_other(options: list[str]) -> None:
    run = doctor(*options)
    assert (run.code, run.out) == (EXIT_USAGE, b"")
    assert len(run.complaints) == 1


# -- how findings are shown


def test_the_frames_are_those_of_decode() -> None:
    run = doctor(CORRUPT)
    shown = [line.partition("  " * 2)[2] for line in run.lines]
    for line in decode(CORRUPT).lines[18:21]:
        assert any(each.endswith(line.strip()) for each in shown), line


def test_trees_of_the_frames() -> None:
    text = doctor("--tree", CORRUPT).out.decode()
    assert text.count("├── metadata") == 2
    assert re.search(r"the CRC is wrong +19 .*SEND ", text)


OBJECTS: dict[str, tuple[set[str], set[str]]] = {
    "log": ({"version", "runs"}, {"$schema"}),
    "run": ({"tool"}, {"results"}),
    "tool": ({"driver"}, set()),
    "driver": ({"name"}, {"semanticVersion", "rules"}),
    "rule": ({"id"}, {"shortDescription", "fullDescription", "help"}),
    "result": ({"message"}, {"ruleId", "level", "locations", "occurrenceCount", "properties"}),
    "location": (set(), {"physicalLocation", "logicalLocations"}),
}
"""Of objects in SARIF 2.1.0: what is required, and what else may be there of what we write."""


def fits(kind: str, value: dict[str, Any]) -> dict[str, Any]:
    required, optional = OBJECTS[kind]
    assert required <= value.keys() <= required | optional
    return value


def test_sarif_has_what_the_standard_requires(tmp_path: Path) -> None:
    path = tmp_path / "a b#c.pcap"
    path.write_bytes((SAMPLES / CORRUPT).read_bytes())
    run = doctor("-o", "sarif", path)
    assert run.code == 1
    (log,) = run.records
    assert fits("log", log)["version"] == "2.1.0"
    (one,) = log["runs"]
    driver = fits("driver", fits("tool", fits("run", one)["tool"])["driver"])
    rules = [fits("rule", rule) for rule in driver["rules"]]
    assert [rule["id"] for rule in rules] == [rule.id for rule in RULES]
    assert all(rule[text]["text"] for rule in rules for text in rule.keys() - {"id"})
    (result,) = [fits("result", each) for each in one["results"]]
    assert result["ruleId"] == "send_corrupt_in_transit"
    assert result["level"] == "error"
    assert result["message"]["text"]
    (location,) = [fits("location", each) for each in result["locations"]]
    uri = location["physicalLocation"]["artifactLocation"]["uri"]
    assert not set(uri) & set(" #")
    assert unquote(uri) == str(path)
    FINDING.validate(result["properties"])


def test_sarif_of_a_healthy_capture_has_no_results() -> None:
    (log,) = doctor("-o", "sarif", "java-simple.pcap").records
    assert log["runs"][0]["results"] == []


# -- sources


def test_stdin_is_shown_at_once() -> None:
    run = doctor("-o", "json", "-", stdin=(SAMPLES / CORRUPT).read_bytes())
    assert run.code == 1
    assert [each["id"] for each in run.records] == ["send_corrupt_in_transit"]
    assert "19 18:58:47.789377 3 → SEND" in doctor("-", stdin=(SAMPLES / CORRUPT).read_bytes()).out.decode()


def test_what_came_before_the_damage_is_judged(tmp_path: Path) -> None:
    path = tmp_path / "cut.pcap"
    path.write_bytes(Pcap.read(CORRUPT).file[:-10])
    run = doctor(path)
    assert run.code == EXIT_DAMAGED
    assert ids(run) == ["send_corrupt_in_transit"]


def test_a_source_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    assert doctor(tmp_path / "none").code == EXIT_SOURCE
    run = doctor(tmp_path / "none", HTTP)
    assert run.code == EXIT_SOURCE
    assert ids(run) == ["http_client_on_binary_port"]


def test_raw_frames_and_hex_dumps() -> None:
    login = build("CONNECT", client_version="test", protocol_version=21)
    data = login + build("PRODUCER", topic="t", producer_id=1, request_id=1) + BROKEN
    for given in (data, data.hex(" ").encode()):
        run = doctor("-o", "json", "-", stdin=given)
        assert [each["id"] for each in run.records] == ["send_corrupt"]
        assert run.records[0]["first_ns"] is None


def test_what_is_encrypted_is_counted() -> None:
    run = doctor(CAPTURES / "01-near-tls-on-tls-port.pcap.gz")
    assert (run.code, run.out) == (0, b"")
    assert "; 1 encrypted" in run.err


def test_missing_bytes_are_said(tmp_path: Path) -> None:
    run = doctor("snaplen96.pcap")
    assert "; 1 with missing bytes, so without rules that count or pair" in run.err


def test_the_written_packets_show_the_same(tmp_path: Path) -> None:
    path = tmp_path / "found.pcapng"
    run = doctor("-w", path, "-o", "json", FENCED)
    assert run.code == 1
    assert re.search(r"^pwire: 162 packets of 2 connections written to ", run.err, re.MULTILINE)
    again = doctor("-o", "json", path).records
    assert _without_numbers(again) == _without_numbers(run.records)
    writings = decode("-o", "json", "--connections", path).records
    before = decode("-o", "json", "--connections", FENCED).records
    numbers = dict.fromkeys(("connection", "packet", "wireshark"), 0)
    assert len(writings) == 2
    for written in writings:
        assert {**written, **numbers} in [{**each, **numbers} for each in before]


def test_the_written_packets_have_comments(tmp_path: Path) -> None:
    path = tmp_path / "found.pcapng"
    run = doctor("-w", path, "-o", "json", FENCED)
    data = path.read_bytes()
    (_, section), (_, interface), *_ = pcapng_options(data)
    choice = "-T 30 -A 90 -R 30"
    names = f"the packets of all connections that findings name: pwire doctor {choice} {SAMPLES / FENCED}"
    assert section[1] == (1, names)
    assert interface[-1] == (1, f"selected by pwire doctor: {choice}")
    comments = packet_comments(data)
    rows = {
        f"{finding['id']} ({finding['certainty']})": row["number"]
        for finding in run.records
        for row in finding["evidence"]
    }
    for head, number in rows.items():
        (texts,) = [each for each in comments if any(text.startswith(f"{number} ") for text in each)]
        assert any(text.startswith(head) for text in texts)
    assert [] in comments  # of packets without frames


def _without_numbers(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {**finding, "evidence": [{**each, "number": 0, "wireshark": 0} for each in finding["evidence"]]}
        for finding in findings
    ]


def test_files_that_cannot_be_written(tmp_path: Path) -> None:
    assert doctor("-w", tmp_path / "none" / "x", HTTP).code == EXIT_OUTPUT
    path = tmp_path / "x.pcap"
    path.write_bytes((SAMPLES / HTTP).read_bytes())
    assert doctor("-w", path, path).code == EXIT_USAGE
    assert path.read_bytes() == (SAMPLES / HTTP).read_bytes()


# -- decode


def test_decode_marks_the_frames() -> None:
    marked = [line for line in decode("--doctor", CORRUPT).lines if "✗" in line]
    assert [line.split()[0] for line in marked] == ["19", "20", "21"]
    assert all(line.endswith("✗ send_corrupt_in_transit") for line in marked)
    records = decode("--doctor", "-o", "json", CORRUPT).records
    validator = Draft202012Validator(SCHEMA)
    for record in records:
        validator.validate(record)
    found = {record["number"]: record["findings"] for record in records if "findings" in record}
    assert found == {number: ["send_corrupt_in_transit"] for number in (19, 20, 21)}
    chosen = decode("--doctor", "-o", "json", "--filter", "findings != null", CORRUPT).records
    assert [each["number"] for each in chosen] == [19, 20, 21]
    assert not [
        line
        for line in decode("--doctor", "--ignore", "send_corrupt_in_transit", CORRUPT).lines
        if "✗" in line
    ]


@pytest.mark.parametrize("options", [["-T", "3"], ["--only", "permit_leak"], ["--ignore", "permit_leak"]])
def test_options_without_doctor(options: list[str]) -> None:
    run = decode(*options, CORRUPT)
    assert (run.code, run.out) == (EXIT_USAGE, b"")
    assert "need --doctor" in run.err


# -- live


def test_the_proxy_says_it_at_once() -> None:
    error = ServerError.ProducerBlockedQuotaExceededError
    turns = [*conversation([])[:3], (False, build("ERROR", request_id=1, error=error, message="full"))]
    with Proxied("--doctor", "-o", "json") as proxy:
        with proxy.session() as session:
            session.talk(turns)
            proxy.out.line("backlog_quota_exceeded")
        assert proxy.stop() == 0
    (finding,) = proxy.out.records
    FINDING.validate(finding)
    assert finding["evidence"][0]["number"] == 4
    assert any("1 finding (1 certain) in 1 connection" in line for line in proxy.err.lines)


def discard(topics: int, entries: int) -> bytes:
    """Consumers of several topics that discard messages."""
    raw = b""
    at = [{"ledgerId": 1, "entryId": entry} for entry in range(entries)]
    for number in range(topics):
        about = {"topic": f"t{number}", "subscription": "s", "subType": 0}
        raw += build("SUBSCRIBE", consumer_id=number, request_id=number, **about)
        raw += build("ACK", consumer_id=number, ack_type=0, message_id=at, validation_error=1)
    return raw


@pytest.mark.parametrize("output", ["text", "markdown", "live", "all", "live all"])
@pytest.mark.parametrize(("topics", "entries", "shown"), [(1, 10, 1), (2, 5, 2), (10, 1, 3)])
def test_findings_that_are_alike_are_folded(
    tmp_path: Path, output: str, topics: int, entries: int, shown: int
) -> None:
    raw = discard(topics, entries)
    source = tmp_path / "frames"
    source.write_bytes(raw)
    options = ["--all"] if "all" in output else []
    if "live" in output:
        run = doctor(*options, "-", stdin=raw)
    else:
        run = doctor(*options, "-o", "markdown" if output == "markdown" else "text", source)
    text = run.out.decode()
    count = 10 if "all" in output else shown
    assert len(re.findall(r"^client_discarded_message  certain", text, re.MULTILINE)) == count
    assert ("more client_discarded_message" in text) == (output == "live" or count == 3)
    stands = re.findall(r"stands for (\d+) findings of the same cause \(", text)
    is_folded = output in ("text", "markdown") and entries > 1
    assert stands == [str(entries)] * topics * is_folded
    total = "10 findings (10 certain)" if "all" in output or topics == 10 else f"{topics} finding"
    assert run.err.startswith(f"pwire: {total}")
    assert run.code == 1


def test_json_of_folded_findings(tmp_path: Path) -> None:
    source = tmp_path / "frames"
    source.write_bytes(discard(2, 5))
    folded, each = doctor("-o", "json", source), doctor("--all", "-o", "json", source)
    assert [(record["count"], record["folded"]) for record in folded.records] == [(5, 5)] * 2
    assert [(record["count"], record["folded"]) for record in each.records] == [(1, 1)] * 10
    assert folded.records[1]["evidence"] == each.records[5]["evidence"]
    assert "2 findings (2 certain; 10 with all of the same cause)" in folded.err
    assert len(doctor("-o", "sarif", source).records[0]["runs"][0]["results"]) == 2
    live = doctor("-o", "json", "-", stdin=source.read_bytes()).records
    assert [record["folded"] for record in live] == [1] * 10
    stats = pwire("stats", "-o", "json", source).records
    assert [record["folded"] for record in stats if record.get("by") == "finding"] == [5, 5]
