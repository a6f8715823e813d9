"""What a shell offers after <TAB>, asked as bash and zsh ask it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pwire_run import SAMPLES, pwire
from segments import build

from pulsarctl_wire.cli import completion
from pulsarctl_wire.faults import FAULTS
from pulsarctl_wire.reports import REPORTS
from pulsarctl_wire.stats.rows import NAMES
from pulsarctl_wire.wire.commands import NUMBERS

SAMPLE = SAMPLES / "python-partitioned.pcap"


@pytest.fixture(params=["bash", "zsh"])
def offered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What is offered for the last word of a line, as the shell says it."""

    def ask(*words: str) -> list[str]:
        monkeypatch.setenv("_PWIRE_COMPLETE", f"complete_{request.param}")
        line = " ".join(["pwire", *words])
        if request.param == "bash":
            monkeypatch.setenv("COMP_WORDS", line)
            monkeypatch.setenv("COMP_CWORD", str(len(words)))
        else:
            monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        run = pwire()
        assert run.code == 0
        assert run.err == ""
        if request.param == "bash":
            return list(filter(None, run.lines))
        return re.findall(r'(?:^|\(\()"([^"]+)"', run.out.decode(), re.MULTILINE)

    return ask


def test_commands(offered: Any) -> None:
    assert offered("decode", "--command", "SEND") == [name for name in NUMBERS if name.startswith("SEND")]
    assert offered("decode", "--command", "ping,po") == ["ping,pong"]
    assert set(offered("proxy", "--command", "")) == set(NUMBERS)


def test_what_explain_knows(offered: Any) -> None:
    fields = ("producer_id", "sequence_id", "message_id", "highest_sequence_id")
    assert offered("explain", "SEND_REC") == ["SEND_RECEIPT", *(f"SEND_RECEIPT.{name}" for name in fields)]
    assert offered("explain", "topicnot") == ["topicnotfound"]
    assert {"SEND", "v12", "SubType.Failover"} <= set(offered("explain", ""))


def test_reports_faults_and_kinds(offered: Any) -> None:
    assert offered("report", "") == list(REPORTS)
    assert offered("report", "th") == ["throughput"]
    assert offered("stats", "--by", "") == list(NAMES)
    assert offered("stats", "--by", "topic,pro") == ["topic,producer"]
    assert set(offered("proxy", "--fault", "")) == {each.name for each in FAULTS}
    for verb in ("proxy", "broker"):
        assert "drop" in offered(verb, "ctl", "fault", "add", "dr")
    assert offered("decode", "--color", "a") == ["always", "auto"]


def test_frequent_topics_leave_room_for_others(offered: Any, tmp_path: Path) -> None:
    path = tmp_path / "lookups.bin"
    topics = [*["a"] * 1_500, "b"]
    frames = [build("LOOKUP", topic=topic, request_id=1, authoritative=False) for topic in topics]
    path.write_bytes(b"".join(frames))
    names = offered("decode", str(path), "--topic", "public/default/")
    assert names == ["public/default/a", "public/default/b"]


def test_topics_of_the_captures_on_the_line(offered: Any) -> None:
    topics = offered("decode", str(SAMPLE), "--topic", "public/default/python")
    assert topics == sorted(topics)
    assert "public/default/python-partitioned-clicks-partition-2" in topics
    assert offered("decode", str(SAMPLE), "--topic", "zzz") == []
    assert offered("decode", "/no/such/file", "--topic", "") == []
    assert offered("decode", str(Path(__file__)), "--topic", "") == []


def test_a_source_behind_the_cursor_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_PWIRE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"pwire decode --topic public/default/python {SAMPLE}")
    monkeypatch.setenv("COMP_CWORD", "3")
    assert "public/default/python-partitioned-clicks" in pwire().lines


def test_only_the_beginning_of_a_capture_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "MAX_BYTES_READ", 700)
    monkeypatch.setenv("_PWIRE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"pwire decode {SAMPLE} --topic ")
    monkeypatch.setenv("COMP_CWORD", "4")
    few = pwire().lines
    monkeypatch.setattr(completion, "MAX_BYTES_READ", 1 << 20)
    assert 0 < len(few) < len(pwire().lines)


def test_no_name_can_act_on_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "evil.pcap"
    path.write_bytes(SAMPLE.read_bytes().replace(b"python-partitioned", b"$(touch evil);pyth"))
    assert b"$(touch" in path.read_bytes()
    monkeypatch.setenv("_PWIRE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"pwire decode {path} --topic ")
    monkeypatch.setenv("COMP_CWORD", "4")
    assert pwire().out.strip() == b""


def test_nothing_heavy_is_imported_to_offer_names() -> None:
    script = (
        "import sys, typer; from pulsarctl_wire.cli import completion; completion.reports(''); "
        "completion.commands(''); print('pyspark' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
