"""Each number is the same wherever it is told: docs/definitions.md."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from planted import NUMBERS, PLANTED
from pwire_run import pwire

from pulsarctl_wire.capture import Decoder, open_source
from pulsarctl_wire.cli.metrics import SnapshotCollector
from pulsarctl_wire.stats.live import Live
from pulsarctl_wire.wire.frame import Connection
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.session.knowledge import Knowledge
from pulsarctl_wire.wire.session.ledgers import LedgerState

TESTS = Path(__file__).parent
FILES = [
    *sorted((TESTS.parent / "samples" / "pcaps").glob("*.pcap*")),
    *sorted((TESTS / "hostile").glob("chunk-*.pcapng")),
]
Numbers = dict[str, Any]


@pytest.fixture(params=[*PLANTED, *FILES], ids=lambda each: getattr(each, "name", each))
def capture(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if isinstance(request.param, Path):
        return request.param
    path = tmp_path / f"{request.param}.pcap"
    path.write_bytes(PLANTED[request.param]())
    return path


def decoded(path: Path) -> Numbers:
    run = pwire("decode", "-o", "json", path)
    messages = re.search(r"(\d+) sent, (\d+) delivered", run.err)
    frames = [each for each in run.records if "command" in each and not each["partial"]]
    answers = [each for each in frames if each["command"].startswith("SEND_") and each["request"] is not None]
    latencies = [each["latency_ns"] for each in answers if each["command"] == "SEND_RECEIPT"]
    return {
        "sent": int(messages[1]) if messages else 0,
        "delivered": int(messages[2]) if messages else 0,
        "publishes": len(latencies),
        "longest": max((each for each in latencies if each is not None), default=None),
        "failed": len(answers) - len(latencies),
        "frames": len(frames),
        "connections": len({each["connection"] for each in run.records if "command" in each}),
    }


def counted(path: Path) -> Numbers:
    total, *rows = pwire("stats", "-o", "json", "--top", "0", path).records
    failed = [row for row in rows if row["by"] == "error" and row["command"] == "SEND"]
    publish = total["publish_ns"]
    return {
        "sent": total["sent"],
        "delivered": total["delivered"],
        "publishes": publish["count"] if publish else 0,
        "longest": publish["max"] if publish else None,
        "failed": sum(row["frames"] for row in failed),
        "frames": total["frames"],
        "connections": total["connections"],
    }


def watched(path: Path) -> Numbers:
    """What the live counters of the proxy have at the end, and what they tell Prometheus."""
    live = Live(0)

    def followed(connection: Connection, knowledge: Knowledge, streams: Iterable[FrameStream]) -> LedgerState:
        state = LedgerState(connection, knowledge, streams)
        live.opened(connection, 0, state)
        return state

    decoder = Decoder(new_state=followed)
    with (source := open_source(str(path))).stream:
        for events in [*decoder.read(source), *decoder.finish()]:
            live.events(events)
    snapshot = live.snapshot(0)
    sends = snapshot.requests.get("SEND")
    told: dict[str, float] = {}
    for metric in SnapshotCollector(lambda: snapshot).collect():
        for sample in metric.samples:
            told[f"{sample.name} {sample.labels.get('direction', '')}"] = sample.value
    return {
        "sent": told["pwire_messages_total to_broker"],
        "delivered": told["pwire_messages_total to_client"],
        "publishes": told["pwire_publish_latency_seconds_count "],
        "longest": snapshot.publishes.whole and snapshot.publishes.whole["max"],
        "failed": sends.count if sends else 0,
        "frames": snapshot.to_broker.frames + snapshot.to_client.frames,
    }


def tabled(path: Path, tmp_path: Path) -> Numbers:
    out = tmp_path / "it.parquet"
    pwire("table", path, "--out", out)
    whole = pq.read_table(out).filter(~pc.field("partial"))
    rows = whole.select(["command", "messages", "answers", "latency_ns", "connection"]).to_pylist()
    answers = [row for row in rows if row["answers"] == "SEND"]
    latencies = [row["latency_ns"] for row in answers if row["command"] == "SEND_RECEIPT"]
    messages = {
        command: sum(row["messages"] or 0 for row in rows if row["command"] == command)
        for command in ("SEND", "MESSAGE")
    }
    return {
        "sent": messages["SEND"],
        "delivered": messages["MESSAGE"],
        "publishes": len(latencies),
        "longest": max((each for each in latencies if each is not None), default=None),
        "failed": len(answers) - len(latencies),
        "frames": len(rows),
        "connections": len(set(pq.read_table(out).column("connection").to_pylist())),
    }


def test_each_number_is_the_same_everywhere(capture: Path, tmp_path: Path) -> None:
    numbers = decoded(capture)
    assert counted(capture) == numbers
    assert tabled(capture, tmp_path) == numbers
    live = watched(capture)
    assert live == {name: numbers[name] for name in live}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_cases_are_counted_as_defined(name: str, tmp_path: Path) -> None:
    path = tmp_path / "it.pcap"
    path.write_bytes(PLANTED[name]())
    unanswered = pwire("stats", "-o", "json", path).records[0]["unanswered_sends"]
    found = {**decoded(path), "unanswered": unanswered}
    assert {each: found[each] for each in NUMBERS[name]} == NUMBERS[name]


def test_a_resend_counts_from_the_first_time(tmp_path: Path) -> None:
    path = tmp_path / "it.pcap"
    path.write_bytes(PLANTED["resends"]())
    sends = [each for each in pwire("decode", "-o", "json", path).records if each["command"] == "SEND"]
    again = [each for each in sends if "resend_of" in each]
    first = [sends[1]["number"], sends[2]["number"]]
    assert [each["resend_of"] for each in again] == first
    lines = pwire("decode", path).lines
    assert [line.rpartition(" ")[2] for line in lines if "sent before as" in line] == [f"#{n}" for n in first]
    (receipt, _) = [line for line in lines if "sent again as" in line]
    assert receipt.endswith(f" after #{first[0]}, sent again as #{again[0]['number']}")
    assert f"repeats frame {first[0]}\n" in pwire("decode", "-o", "tree", path).out.decode()
