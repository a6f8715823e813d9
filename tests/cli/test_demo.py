"""`pwire demo`: what it shows, and the capture that it leaves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from forked import Forked
from proxied import PATIENCE, environment, run

from pulsarctl_wire import read_frames
from pulsarctl_wire.cli.console import EXIT_OUTPUT, EXIT_PIPE

WORKERS, AUDIT = "public/default/orders sub=workers", "public/default/orders sub=audit"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str], Path]:
    """stdout, stderr, and where the default capture must be."""
    home = tmp_path_factory.mktemp("demo")
    done = run("demo", "--wide", home=home)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr.splitlines(), home


def test_the_traffic_is_shown(shown: tuple[list[str], list[str], Path]) -> None:
    out, _, _ = shown
    text = "\n".join(out)
    assert len(re.findall(r" → SEND +public/default/orders producer=1 .* crc=ok", text)) == 4
    for group in (WORKERS, AUDIT):
        assert len(re.findall(rf" ← MESSAGE +{group} ", text)) == 4
        assert len(re.findall(rf" → ACK +{group} ", text)) == 4
    assert f"ACTIVE_CONSUMER_CHANGE {AUDIT} consumer=1 is_active=true" in text


def test_what_consumers_receive_depends_on_the_type(shown: tuple[list[str], list[str], Path]) -> None:
    _, err, _ = shown
    received = dict(re.findall(r"(\w+-\d) received: (.*)", "\n".join(err)))
    texts = {name: text.split(", ") for name, text in received.items()}
    everything = ["1 x bread", "2 x milk", "3 x eggs", "1 x tea"]
    assert sorted(texts["workers-1"] + texts["workers-2"]) == sorted(everything)
    assert len(texts["workers-1"]) == 2
    assert texts["audit-1"] == everything
    assert texts["audit-2"] == ["nothing"]


def test_it_leaves_a_capture(shown: tuple[list[str], list[str], Path]) -> None:
    out, err, home = shown
    match = re.fullmatch(r"pwire: the traffic is in (\S+); look at it with: pwire decode -o tree \1", err[-1])
    assert match is not None
    path = Path(match[1])
    assert path.parent == home
    assert [frame.command for frame in read_frames(str(path))] == [line.split()[4] for line in out]


def test_a_capture_that_cannot_be_written(tmp_path: Path) -> None:
    done = run("demo", "--record", tmp_path / "none" / "demo.pcapng", home=tmp_path)
    assert done.returncode == EXIT_OUTPUT
    assert done.stderr.count("\n") == 1


def test_a_reader_that_goes_away(tmp_path: Path) -> None:
    with Forked(["demo"], environment(tmp_path)) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(PATIENCE) == EXIT_PIPE
        assert process.stderr.readlines()[-1].startswith("pwire: the traffic is in ")
