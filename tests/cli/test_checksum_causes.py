"""`decode` says why a checksum is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pwire_run import decode

from pulsarctl_wire.wire.checksum_cause import describe_checksum_cause

FILES = Path(__file__).parents[1] / "wire" / "checksums"
EXPECTED = json.loads((FILES / "expected.json").read_text())


@pytest.mark.parametrize("name", EXPECTED)
def test_causes_are_shown(name: str) -> None:
    cause, path = EXPECTED[name], FILES / name
    connect, send = decode(path, "-o", "json").records
    assert "checksum_cause" not in connect
    assert send["checksum_cause"] == cause
    words = describe_checksum_cause(cause)
    assert f"├── checksum invalid: {words}" in decode(path, "-o", "tree").lines
    assert any(line.endswith(f"; {words}") for line in decode(path, "-o", "hex").lines)


def test_causes_select_frames() -> None:
    expression = 'checksum_cause.kind == "bit" and checksum_cause.bit == 5'
    counts = {name: len(decode(FILES / name, "--filter", expression).lines) for name in EXPECTED}
    assert counts == dict.fromkeys(EXPECTED, 0) | {"bit.bin": 1}
