"""The examples of docs/extending.md do what it says once they are registered (the report: tests/spark)."""

from pathlib import Path

import pytest
from examples import EXAMPLES, module
from typer.testing import CliRunner

from pulsarctl_wire import faults as catalogue
from pulsarctl_wire import read_frames, views
from pulsarctl_wire.checks import registry
from pulsarctl_wire.checks.rule import read_paragraphs
from pulsarctl_wire.cli import console, verbs
from pulsarctl_wire.faults.base import Send
from pulsarctl_wire.faults.lanes import FaultLane, Faults
from pulsarctl_wire.faults.text import parse_fault
from pulsarctl_wire.views.content import Content
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, KeyValue, Schema
from pulsarctl_wire.wire.session.sinks import Follower

SAMPLE = Path(__file__).parent.parent / "samples" / "pcaps" / "java-simple.pcap"


def test_there_is_one_example_of_each_and_it_is_short() -> None:
    assert [*EXAMPLES] == ["A payload view", "A fault", "A rule", "A sink", "A report", "A command"]
    assert all(len(code.splitlines()) <= 30 for code in EXAMPLES.values())


def test_the_view_shows_a_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    uuids = module("A payload view", "pulsarctl_wire.views.uuids", monkeypatch)
    monkeypatch.setattr(views, "VIEWS", (uuids, *views.VIEWS))
    schema = Schema(
        name="id", type=Schema.String, schema_data=b"", properties=[KeyValue(key="format", value="uuid")]
    )
    shown = views.show(Content(bytes(range(16)), schema))
    assert shown == ("uuid", "00010203-0405-0607-0809-0a0b0c0d0e0f", None)
    short = views.show(Content(b"short", schema))
    assert (short.view, short.value) == ("text", "short")
    assert short.note is not None
    del schema.properties[:]
    assert views.show(Content(b"a text", schema)).view == "text"


def test_the_fault_changes_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = module("A fault", "pulsarctl_wire.faults.deliveries", monkeypatch).Redelivered
    monkeypatch.setattr(catalogue, "FAULTS", (*catalogue.FAULTS, fault))
    monkeypatch.setitem(catalogue.BY_NAME, fault.name, fault)
    assert ("count", "1", "how often") in catalogue.FAULTS[-1].list_parameters()
    faults = Faults(seed=1)
    faults.add(parse_fault("redelivered count=3 nth=2"))
    lane = FaultLane(faults, connection=0, to_broker=False)
    counts = []
    for frame in read_frames(SAMPLE):
        if frame.to_broker:
            continue
        (sent,) = [each for each in lane.take(frame.raw, frame, 0.0) if isinstance(each, Send)]
        if frame.command == "MESSAGE":
            size = int.from_bytes(sent.data[4:8], "big")
            counts.append(BaseCommand.FromString(sent.data[8 : 8 + size]).message.redelivery_count)
        else:
            assert sent.data == frame.raw
    assert len(counts) > 2
    assert counts == [0, 3, *[0] * (len(counts) - 2)]


def test_the_rule_finds_something(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = module("A rule", "pulsarctl_wire.checks.rules.topics", monkeypatch).TopicTerminated
    monkeypatch.setattr(registry, "RULES", (*registry.RULES, rule))
    done = CliRunner().invoke(verbs.app, ["doctor", "--only", rule.id, str(SAMPLE.parent / "errors.pcap")])
    head, explanation, _, asks, refused, advice = done.stdout.splitlines()
    assert head.startswith("topic_terminated  certain  persistent://public/default/errors-")
    assert explanation.strip() == read_paragraphs(rule)[""]
    assert " → PRODUCER " in asks
    assert "TopicTerminatedError" in refused
    assert advice == "  → Stop the producer, or give it another topic."
    assert CliRunner().invoke(verbs.app, ["doctor", "--only", rule.id, str(SAMPLE)]).stdout == ""


def test_the_sink_counts_events(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    follower = Follower([module("A sink", "command_counts", monkeypatch).CommandCounts(said.append)])
    frames = list(read_frames(SAMPLE))
    for connection in {frame.connection.index: frame.connection for frame in frames}.values():
        follower.opened(connection, 0)
    for frame in frames:
        follower.carried(frame.connection, frame.to_broker, frame.raw, frame.time_ns or 0)
    assert not said
    follower.finish()
    counts = {command: int(count) for count, command in map(str.split, said)}
    names = [frame.command for frame in frames]
    assert counts == {name: names.count(name) for name in names}
    assert list(counts.values()) == sorted(counts.values(), reverse=True)


def test_the_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    module("A command", "pulsarctl_wire.cli.capture.sizes", monkeypatch)
    monkeypatch.setitem(verbs._CAPTURES, "sizes", "Print the size and the command of each frame.")
    done = CliRunner().invoke(verbs.app, ["sizes", str(SAMPLE), "--above", "100"])
    large = [frame for frame in read_frames(SAMPLE) if len(frame.raw) > 100]
    assert large
    assert done.stdout.splitlines() == [f"{len(frame.raw):8} {frame.command}" for frame in large]
    assert "Print the size and the command" in CliRunner().invoke(verbs.app, ["--help"]).stdout
    options = CliRunner().invoke(verbs.app, ["sizes", "--help"]).stdout
    assert "Leave out frames up to this size." in options
    assert CliRunner().invoke(verbs.app, ["sizes", "missing.pcap"]).exit_code == console.EXIT_SOURCE
