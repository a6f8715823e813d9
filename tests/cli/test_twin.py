"""Two processes give what one gives, to the byte, and count the same."""

import subprocess
import sys
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parents[2] / "samples" / "pcaps"
FILES = [
    *("java-batch-zlib.pcap", "auth-token.pcap", "mixed.pcapng.gz", "errors.pcap", "snaplen96.pcap"),
    "advertised-address-silent.pcap",
]

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the second process needs fork")

# small captures and small blocks, so that a second process is started and takes turns often
SCRIPT = """
import sys
from pulsarctl_wire.capture import sharing
from pulsarctl_wire.cli import main, twin
twin.WORTH_IT, sharing.BLOCK = 0, 20_000
twin.os.sched_getaffinity = lambda pid: {0, 1}
main()
"""


def run(jobs: int, *arguments: str) -> tuple[str, str, int]:
    command = [sys.executable, "-c", SCRIPT, "decode", "--jobs", str(jobs), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout, result.stderr, result.returncode


@pytest.mark.parametrize(
    "options",
    [
        ["-q"],
        ["-o", "line"],
        ["-o", "json"],
        ["-o", "json", "-2"],
        ["-o", "tree", "--command", "SEND,MESSAGE"],
        ["-o", "hex", "--connection", "1"],
        ["--filter", 'command == "LOOKUP"'],
        ["--connections"],
    ],
    ids=" ".join,
)
def test_two_processes_give_what_one_gives(options: list[str]) -> None:
    files = [str(SAMPLES / name) for name in FILES]
    out, said, code = run(1, *options, *files)
    assert code == 0
    assert "frames" in said
    assert (out, said, code) == run(2, *options, *files)


def test_damage_is_said_once(tmp_path: Path) -> None:
    cut = tmp_path / "cut.pcap"
    cut.write_bytes((SAMPLES / "java-simple.pcap").read_bytes()[:-10])
    alone = run(1, str(cut))
    assert alone[2] == 4
    assert alone[1].count("the file ends in the middle of the packet") == 1
    assert run(2, str(cut)) == alone


def test_a_closed_pipe_ends_both_quietly() -> None:
    command = [
        sys.executable,
        "-c",
        SCRIPT,
        "decode",
        "-o",
        "json",
        *[str(SAMPLES / name) for name in FILES] * 20,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b'{"number":1,')
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
        assert process.wait() == 141


DIES = """
import os, signal
from pulsarctl_wire.capture.sharing import Sharing
settle = Sharing._settle
def kill_the_twin(self):
    self.settled = getattr(self, "settled", 0) + 1
    if self._write is None and self.settled == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    settle(self)
Sharing._settle = kill_the_twin
"""
STOPS = """
from pulsarctl_wire.capture import sharing
sharing.MOST_WAITING = 12
"""


@pytest.mark.parametrize("output", ["line", "json"])
@pytest.mark.parametrize("trouble", [DIES, STOPS], ids=["it dies", "too much at once"])
def test_the_first_process_starts_over_where_two_cannot_go_on(trouble: str, output: str) -> None:
    files = [str(SAMPLES / name) for name in FILES]
    command = [
        sys.executable,
        "-c",
        SCRIPT.replace("main()", trouble + "main()"),
        "decode",
        "-o",
        output,
        *files,
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (result.stdout, result.stderr, result.returncode) == run(1, "-o", output, *files)


GROWS = """
import os, sys
from pulsarctl_wire.cli.job import DecodeJob
decode = DecodeJob._decode
def grow(self):
    if not self.twin.is_twin:
        with open(sys.argv[-1], "r+b") as file:
            first = file.read()
            file.write(first[24:])
    decode(self)
DecodeJob._decode = grow
"""


def test_a_capture_that_grows_is_read_as_far_as_it_was(tmp_path: Path) -> None:
    capture = tmp_path / "growing.pcap"
    capture.write_bytes((SAMPLES / "java-simple.pcap").read_bytes())
    expected = run(1, str(capture))
    command = [sys.executable, "-c", GROWS + SCRIPT, "decode", str(capture)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (result.stdout, result.stderr, result.returncode) == expected
    assert capture.stat().st_size > (SAMPLES / "java-simple.pcap").stat().st_size
