"""`pwire explain`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pwire_run import pwire

from pulsarctl_wire.cli import console
from pulsarctl_wire.manual.explanations import list_explanations
from pulsarctl_wire.wire.commands import NUMBERS

DOCUMENT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


def test_the_explanation_shown_in_the_document_is_real() -> None:
    terms = ("error", "6", "SEND_RECEIPT.highest_sequence_id")
    section = DOCUMENT.partition("\n## `pwire explain`\n")[2]
    shown = section.partition(f"```console\n$ pwire explain {' '.join(terms)}\n")[2].partition("```")[0]
    assert shown
    assert pwire("explain", *terms).out.decode() == shown


def test_a_number_belongs_to_the_word_before_it() -> None:
    run = pwire("explain", "command 8", "command", "7", "6", "-o", "json")
    assert [record["name"] for record in run.records][:3] == ["SEND_ERROR", "SEND_RECEIPT", "SEND"]
    run = pwire("explain", "command", "7", "v12", "protocol", "version", "5", "6", "-o", "json")
    assert [each["name"] for each in run.records] == [
        "SEND_RECEIPT",
        "v12",
        "v5",
        "SEND",
        "ServiceNotReady",
        "v6",
    ]


def test_lines_of_json() -> None:
    (record,) = pwire("explain", "SEND_RECEIPT", "-o", "json").records
    assert list(record) == ["kind", "name", "number", "about", "sections", "members"]
    assert record["sections"]["answer to"] == "SEND"
    assert record["members"][0] == {
        "name": "producer_id",
        "number": 1,
        "type": "required uint64",
        "about": "The client's number for a producer, on this connection only",
    }
    assert len(pwire("explain", "-o", "json").lines) == len(list_explanations())


def test_without_a_term_everything_is_listed() -> None:
    run = pwire("explain")
    assert run.code == 0
    listed = set(run.out.decode().replace(",", " ").split())
    assert {each.name for each in list_explanations() if each.kind not in ("field", "value")} <= listed
    assert {"SubType.Failover", "SEND.sequence_id"} <= listed


@pytest.mark.parametrize(
    ("term", "suggested"),
    [
        ("SEND_RECIEPT", "; did you mean SEND_RECEIPT?"),
        ("TopicNotFond", "; did you mean TopicNotFound?"),
        ("send.sequnce_id", "; did you mean SEND.sequence_id?"),
        ("99", "; pwire explain lists what is known"),
        ("\x1b[31m" + "x" * 300, "; pwire explain lists what is known"),
    ],
)
def test_an_unknown_term_is_one_line_with_a_suggestion(term: str, suggested: str) -> None:
    run = pwire("explain", "SEND", term)
    assert run.code == console.EXIT_USAGE
    assert run.out == b""
    (line,) = run.err.splitlines()
    assert line.startswith("pwire: explain: ")
    assert line.endswith(suggested)
    assert line.isprintable()


def test_lines_are_as_wide_as_the_text_needs_and_no_wider() -> None:
    run = pwire("explain", *NUMBERS)
    assert run.code == 0
    assert max(map(len, run.lines)) <= 100
    assert b"\x1b" not in run.out


def test_colour() -> None:
    run = pwire("explain", "SEND", "--color", "always")
    assert "\x1b[1mSEND\x1b[0m  command 6" in run.lines
    plain = pwire("explain", "SEND").out
    assert re.sub(rb"\x1b\[[0-9;]*m", b"", run.out) == plain
