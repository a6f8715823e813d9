"""Plants faults in a copy of the package, one at a time: do the tests named beside each find it?

    .venv/bin/python tests/planted_faults.py [WORD…]    only those with a WORD in their file's name

All of these tests are among those of `.ci/run`. Exit code 1: a fault was not found, or cannot be planted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = "pulsarctl_wire"


class Fault(NamedTuple):
    """What to write instead of the one place in a file of the package that says `old`."""

    file: str
    old: str
    new: str
    tests: str
    """Paths in tests/."""


FAULTS: Final = (
    Fault(
        "wire/frame_entry.py",
        "if crc32c(covered) == stored else",
        "if stored else",
        "wire/test_frame.py cli/test_golden.py",
    ),
    Fault(
        "wire/payload.py",
        "if metadata.num_chunks_from_msg > 1:",
        "if metadata.num_chunks_from_msg > 2:",
        "wire/test_payload.py cli/test_golden.py",
    ),
    Fault(
        "capture/packets.py",
        "if header < 20:",
        "if header < 24:",
        "capture/test_packets.py",
    ),
    Fault(
        "capture/halves.py",
        "if half.started and end > half.next:",
        "if half.started and end < half.next:",
        "capture/test_reassembly.py capture/test_packets.py",
    ),
    Fault(
        "capture/tls/connection.py",
        "while queue and queue[0].is_done:",
        "while queue:",
        "capture/test_tls_connection.py",
    ),
    Fault(
        "capture/tls/midway.py",
        "number = block * _BLOCK + (place ^ low)",
        "number = block * _BLOCK + place",
        "capture/test_tls_midway.py",
    ),
    Fault(
        "capture/tls/negotiation.py",
        'facts.resumed = "PSK" if self.is_13 and hello.has_psk else ""',
        'facts.resumed = "PSK" if self.is_13 else ""',
        "capture/test_tls_connection.py",
    ),
    Fault(
        "capture/tls/records.py",
        "self.holes.append((held - HEADER_SIZE, held - HEADER_SIZE + cut))",
        "self.holes.append((held, held + cut))",
        "capture/test_tls_cut.py",
    ),
    Fault(
        "views/avro.py",
        "if byte > 1:",
        "if byte > 2:",
        "views/test_views_avro.py",
    ),
    Fault(
        "views/keyvalue.py",
        "if size < -1 or offset + max(size, 0) > len(raw):",
        "if size < -1:",
        "views/test_views_choice.py views/test_views_keyvalue.py",
    ),
    Fault(
        "faults/pace.py",
        "if self.variation >= self.size:",
        "if self.variation > self.size:",
        "faults",
    ),
    Fault(
        "checks/rules/flow.py",
        "2 * consumer.acked_count >= consumer",
        "consumer.acked_count >= consumer",
        "checks/test_flow.py checks/test_diagnoses.py",
    ),
    Fault(
        "checks/rules/auth.py",
        "if waited_ns >= SECOND:",
        "if waited_ns < SECOND:",
        "checks/test_auth.py",
    ),
    Fault(
        "net/session/client.py",
        "range(MAX_REDIRECTS + 1)",
        "range(MAX_REDIRECTS - 19)",
        "net/test_net_lookups.py",
    ),
    Fault(
        "net/session/send_queue.py",
        "max(body.last_sequence_id + 1, 0)",
        "max(body.last_sequence_id + 2, 0)",
        "net/test_net_producing.py interop/test_produce.py",
    ),
    Fault(
        "broker/delivery/single_active.py",
        "if entry.index >= self.read_index:",
        "if entry.index > self.read_index:",
        "conformance/test_cases.py",
    ),
    Fault(
        "broker/tenancy/limits.py",
        "if allowance < 1:",
        "if allowance < 0:",
        "conformance/test_cases.py broker/test_setting_effects.py broker/admin",
    ),
    Fault(
        "broker/admin/subscriptions.py",
        'max(index + 1 if is_stored and message_id.get("excluded") else',
        "max(index + 1 if is_stored else",
        "broker/admin conformance/test_cases.py",
    ),
    Fault(
        "pipeline/files/splits.py",
        "return self.file + 1 + len(self.more)",
        "return self.file + len(self.more)",
        "pipeline/test_pipeline_groups.py",
    ),
    Fault(
        "pipeline/upkeep/optimize.py",
        "if len(small_files) < min_count:",
        "if len(small_files) <= min_count:",
        "pipeline/test_pipeline_optimized.py",
    ),
    Fault(
        "reports/sql.py",
        '[f"time_ns < {self.until}"]',
        '[f"time_ns <= {self.until}"]',
        "reports/test_choice.py reports/test_comparing.py data/test_data.py",
    ),
    Fault(
        "stats/live.py",
        "else OTHERS",
        'else "else"',
        "test_stats_live.py",
    ),
    Fault(
        "render/hexview.py",
        "if part.stop > stop:",
        "if part.stop >= stop:",
        "cli/test_golden.py",
    ),
    Fault(
        "spark/datasource.py",
        'before = field("time_ns") < self.until',
        'before = field("time_ns") <= self.until',
        "spark/test_datasource.py",
    ),
)


def plant(fault: Fault, place: Path) -> None:
    """Copy the package to a directory with the fault, beside everything that its tests need.

    Raises ValueError if its file says `old` not at all, or more than once.
    """
    shutil.copytree(ROOT / PACKAGE, place / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    path = place / PACKAGE / fault.file
    text = path.read_text()
    if text.count(fault.old) != 1:
        raise ValueError(f"{fault.file} says {text.count(fault.old)} times: {fault.old}")
    path.write_text(text.replace(fault.old, fault.new))
    for name in ("pyproject.toml", "README.md", "benchmarks", "docs", "proto", "samples", "tests"):
        (place / name).symlink_to(ROOT / name)


def find_failure(place: Path, tests: list[str]) -> str | None:
    """The first test that fails with the package of a directory, None if all pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(place)}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    failures = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if failures:
        return failures[0].split(maxsplit=1)[1].partition(" - ")[0]
    return f"pytest, which ended with {done.returncode}" if done.returncode else None


def try_tests(fault: Fault) -> str:
    """What became of it: "found by" a test that passes without it, or why not."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            plant(fault, Path(directory))
        except (OSError, ValueError) as error:
            return f"cannot be planted: {error}"
        test = find_failure(Path(directory), [f"tests/{name}" for name in fault.tests.split()])
    if test is None:
        return "NOT FOUND"
    return f"NOT FOUND: {test} fails without it too" if find_failure(ROOT, [test]) else f"found by {test}"


def main() -> int:
    """Try them, and print a line about each."""
    words = sys.argv[1:]
    faults = [fault for fault in FAULTS if not words or any(word in fault.file for word in words)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(try_tests, faults)
        number = 0
        for fault, result in zip(faults, results, strict=True):
            number += result.startswith("found by ")
            sys.stdout.write(f"{fault.file}: {fault.new}\n    {result}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{number} of {len(faults)} found\n")
    return int(number < len(faults))


if __name__ == "__main__":
    sys.exit(main())
