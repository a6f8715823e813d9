"""What `decode`, `doctor`, `permits`, `sequence` print for samples, byte by byte: tests/golden/SAMPLE.FORM.

After a wanted change of the output rewrite all of it, and read the difference before you commit it:

    PWIRE_REWRITE_GOLDEN=1 pytest tests/cli/test_golden.py

`line` and `summary` (stderr) are kept for every sample; `jsonl`, `tree`, `hex` and `connections` for some, of
some of them for chosen commands only: see OPTIONS. Those of other verbs are `VERB`, or `VERB-OUTPUT`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pwire_run import SAMPLES, decode, pwire

GOLDEN = Path(__file__).parents[1] / "golden"
REWRITE = bool(os.environ.get("PWIRE_REWRITE_GOLDEN"))

NAMES = sorted(path.name for path in SAMPLES.iterdir() if ".pcap" in path.name)
INPUTS = Path(__file__).parents[1] / "capture" / "inputs"
INPUT_NAMES = sorted(path.name for path in INPUTS.iterdir())
"""Captures of tunnels and rare link types, and with copies of packets."""

OPTIONS: dict[str, dict[str, list[str]]] = {
    "jsonl": {
        "auth-token.pcap": [],
        "chunks-out-of-order.pcap": [],
        "corrupt-in-transit.pcap": [],
        "errors.pcap": ["--command", "PRODUCER,SUBSCRIBE,*ERROR,REACHED_END_OF_TOPIC"],
        "http-client-on-binary-port.pcap": [],
        "java-batch-zlib.pcap": ["--command", "MESSAGE"],
        "java-batchindexack.pcap": ["--command", "ACK*,MESSAGE"],
        "java-brokerentry.pcap": [],
        "java-encrypted.pcap": [],
        "java-keyshared.pcap": ["--command", "SUBSCRIBE,MESSAGE"],
        "java-keyvalue-protobuf.pcap": ["--command", "PRODUCER,GET_SCHEMA*,MESSAGE"],
        "java-simple.pcap": [],
        "mixed.pcapng.gz": [],
        "no-checksum.pcap": [],
        "python-schemas.pcap": ["--command", "SUBSCRIBE,SEND"],
        "python-simple.pcap": ["--two-pass"],
        "snaplen96.pcap": [],
    },
    "tree": {
        "corrupt-in-transit.pcap": [],
        "java-batch-zlib.pcap": ["--command", "MESSAGE", "--count", "5"],
        "java-brokerentry.pcap": ["--two-pass"],
        "java-encrypted.pcap": ["--command", "SEND"],
        "java-keyvalue-protobuf.pcap": ["--command", "PRODUCER,MESSAGE"],
        "snaplen96.pcap": ["--count", "20"],
    },
    "hex": {
        "corrupt-in-transit.pcap": [],
        "java-brokerentry.pcap": ["--command", "CONNECT*,LOOKUP*,SEND,MESSAGE"],
        "no-checksum.pcap": [],
        "snaplen96.pcap": ["--count", "20"],
    },
    "line": {
        **{name: [] for name in NAMES},
        "python-partitioned.pcap": ["--two-pass"],
        "nano.pcap": ["--time", "epoch"],
        "no-checksum.pcap": ["--time", "relative"],
    },
    "connections": {
        name: ["--connections"]
        for name in (
            *("advertised-address-silent.pcap", "auth-token.pcap", "mixed.pcapng.gz", "snaplen96.pcap"),
            *INPUT_NAMES,
        )
    },
    "summary": {name: ["--quiet"] for name in (*NAMES, *INPUT_NAMES)},
    "sequence": {
        "advertised-address-silent.pcap": [],
        "auth-token.pcap": [],
        "corrupt-in-transit.pcap": ["--around", "19", "--context", "5"],
        "errors.pcap": ["--connection", "2", "--time", "relative"],
        "http-client-on-binary-port.pcap": [],
        "java-simple.pcap": [],
        "mixed.pcapng.gz": [],
        "snaplen96.pcap": ["--rows", "40", "--wide"],
    },
    "permits": {
        "java-batchindexack.pcap": ["--rows", "5"],
        "java-keyshared.pcap": [],
        "java-nack-dlq.pcap": ["--every", "1", "--time", "relative"],
        "permit-leak.pcap": [],
        "snaplen96.pcap": ["--consumer", "0", "--consumer", "1"],
    },
    "permits-plot": {"java-nack-dlq.pcap": ["--subscription", "postman"], "permit-leak.pcap": []},
    "permits-json": {"permit-leak.pcap": []},
    "doctor": {
        "auth-token.pcap": [],
        "chunks-out-of-order.pcap": ["-R", "3"],
        "corrupt-in-transit.pcap": ["--tree"],
        "errors.pcap": ["--time", "relative"],
        "permit-leak.pcap": ["-T", "5"],
    },
    "doctor-json": {"advertised-address-silent.pcap": [], "permit-leak.pcap": ["-T", "5"]},
    "doctor-markdown": {"http-client-on-binary-port.pcap": [], "permit-leak.pcap": ["-T", "5"]},
}

CASES = [(name, form) for form, options in OPTIONS.items() for name in sorted(options)]


def _file(name: str, form: str) -> Path:
    return GOLDEN / f"{name}.{form}"


@pytest.mark.parametrize(("name", "form"), CASES, ids=[f"{form}-{name}" for name, form in CASES])
def test_output_is_golden(name: str, form: str) -> None:
    verb, _, output = form.partition("-")
    if verb in ("doctor", "permits", "sequence"):
        run = pwire(verb, *(["-o", output] if output else []), *OPTIONS[form][name], SAMPLES / name)
    else:
        output = {"jsonl": "json", "summary": "line", "connections": "line"}.get(form, form)
        run = decode("-o", output, *OPTIONS[form][name], INPUTS / name if name in INPUT_NAMES else name)
    assert run.code == (verb == "doctor")
    shown = run.err.encode() if form == "summary" else run.out
    if REWRITE:
        _file(name, form).write_bytes(shown)
    assert shown.decode().splitlines() == _file(name, form).read_bytes().decode().splitlines()


@pytest.mark.parametrize("name", NAMES)
def test_every_form_sums_up_alike(name: str) -> None:
    summary = decode("-q", name).err
    for form in ("line", "json"):
        assert decode("-o", form, name).err == summary


def test_nothing_else_is_golden() -> None:
    expected = {_file(name, form) for name, form in CASES}
    if REWRITE:
        for path in set(GOLDEN.iterdir()) - expected:
            path.unlink()
    assert set(GOLDEN.iterdir()) == expected


def test_samples_and_goldens_stay_small() -> None:
    """They are in every clone: 600 kB of samples, 1.5 MB of goldens."""
    assert sum(path.stat().st_size for path in SAMPLES.iterdir()) < 650_000
    assert sum(path.stat().st_size for path in GOLDEN.iterdir()) < 1_500_000
