"""Hostile payloads and schemas: all end, in bounded memory, with something that can be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
import view_dangers
from view_dangers import DANGERS

from pulsarctl_wire.views import Shown, show
from pulsarctl_wire.views.content import cut_note


def written(name: str) -> Shown:
    shown = show(DANGERS[name]())
    orjson.dumps(shown.value)
    return shown


@pytest.mark.skipif(sys.platform == "win32", reason="limits are set by the resource module")
def test_all_dangers_are_survived_under_limits() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(Path(view_dangers.__file__))]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == list(DANGERS)


@pytest.mark.parametrize("name", sorted(DANGERS))
def test_danger(name: str) -> None:
    written(name)


def test_what_is_cut_says_so() -> None:
    for name in ("avro block of nulls", "avro widening records", "protobuf wide messages"):
        assert written(name).note == cut_note(-1)
