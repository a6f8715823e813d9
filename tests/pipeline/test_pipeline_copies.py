"""Tables of captures in which NAT shows connections twice: splits give what one process has."""

from dataclasses import replace
from pathlib import Path

import pytest
from pipeline.comparing import alone, together
from pipeline.test_pipeline_run import OPTIONS

from pulsarctl_wire.capture.files import read_packets
from pulsarctl_wire.capture.writer import PcapngWriter

CAPTURE = Path(__file__).parents[1] / "capture" / "inputs" / "dup-nat.pcap"


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("start", [0, 1, 41, 42])
def test_copies_across_splits_and_runs(tmp_path: Path, start: int, keep: bool) -> None:
    """The second file comes in a run of its own, which goes on from what was saved."""
    with CAPTURE.open("rb") as stream:
        packets = list(read_packets(b"", lambda: stream.read(65_536)))[start:]
    paths = []
    for number, part in enumerate((packets[:60], packets[60:])):
        path = tmp_path / f"{number}.pcapng"
        with path.open("wb") as out:
            writer = PcapngWriter(out)
            for packet in part:
                writer.write(packet)
        paths.append(str(path))
    options = replace(OPTIONS, split_size=1_500, keep_duplicates=keep)
    expected = alone(paths, options)
    assert len(expected.tables["connections"]) == 1 + keep
    assert together(paths[:1], tmp_path / "out", options) == alone(paths[:1], options)
    found = together(paths, tmp_path / "out", options)
    assert found.tables == expected.tables
