"""What `pwire produce` says about sends that failed."""

import pytest

from pulsarctl_wire.cli.session.produce import Report
from pulsarctl_wire.errors import RequestTimeout
from pulsarctl_wire.net.session.send_queue import SendResult


@pytest.mark.parametrize("sends", [1, 2, 12])
def test_why_large_batches_failed(sends: int, capsys: pytest.CaptureFixture[str]) -> None:
    report, error = Report("summary", quiet=False), RequestTimeout("no receipt")
    for number in range(sends):
        report.add(SendResult("t", number, number, 11, batched=True, error=error))
    report.close(0, 0)
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if str(error) in line] == [
        f"pwire: sequence id {number}: {error}" for number in range(min(sends, 10))
    ]
    assert lines[-1] == f"pwire: {11 * sends} messages failed"
