"""Key logs in any portions, with lies in them -> their secrets, and what was ignored."""

from __future__ import annotations

import io
import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsarctl_wire.capture.files import find_secrets
from pulsarctl_wire.capture.tls import keylog
from pulsarctl_wire.capture.tls.keylog import MAX_LINE, KeyLog, KeyLogFile
from pulsarctl_wire.capture.writer import PcapngWriter
from pulsarctl_wire.errors import CaptureError

RANDOM, SECRET = "a1" * 32, "0B" * 48
GOOD = f"CLIENT_RANDOM {RANDOM} {SECRET}"
LINES = st.sampled_from(
    [
        *(
            GOOD,
            f"CLIENT_TRAFFIC_SECRET_0 {RANDOM} {'cc' * 32}",
            f"SERVER_TRAFFIC_SECRET_7 {'00' * 32} {SECRET}",
        ),
        *("", "# a comment", "   ", f"EXPORTER_SECRET {RANDOM} {SECRET}", f"RSA {'ab' * 8} {SECRET}"),
        *(f"CLIENT_RANDOM {RANDOM}", "nonsense", f"CLIENT_RANDOM {RANDOM} {SECRET} x", "ä", "x" * 2_000),
        f"CLIENT_RANDOM {RANDOM} abc",
        f"RSA Session-ID:{'ab' * 32} Master-Key:{SECRET}",
        f"12:00 WARN io.netty.wireshark - RSA Session-ID:{'cd' * 32} Master-Key:{SECRET}",
    ]
)


def told(log: KeyLog) -> tuple[object, ...]:
    randoms = (bytes.fromhex(RANDOM), bytes(32))
    counts = log.secrets, log.bad_lines, log.first_bad_line, log.long_lines, log.other_labels
    return counts, [log.lines_of(random) for random in randoms]


@given(lines=st.lists(LINES), ending=st.sampled_from(["\n", "\r\n"]), seed=st.integers(0, 2**32 - 1))
def test_portions_do_not_matter(lines: list[str], ending: str, seed: int) -> None:
    text = "".join(line + ending for line in lines).encode()
    whole, parts = KeyLog(), KeyLog()
    whole.feed(text)
    rng = random.Random(seed)
    rest = text
    while rest:
        size = rng.randint(1, 400)
        parts.feed(rest[:size])
        rest = rest[size:]
    whole.finish()
    parts.finish()
    assert told(whole) == told(parts)
    bad = [number for number, line in enumerate(lines, 1) if is_bad(line)]
    assert whole.bad_lines == len(bad)
    assert whole.first_bad_line == (bad[0] if bad else 0)
    assert bool(whole.describe_problems()) is bool(bad)


def is_bad(line: str) -> bool:
    words = line.split()
    return (
        "Session-ID" not in line
        and bool(words)
        and line[0] != "#"
        and (len(words) != 3 or len(words[2]) % 2 > 0)
    )


def test_secrets_of_sessions_are_written_as_such() -> None:
    log, line = KeyLog(), f"RSA Session-ID:{'ab' * 32} Master-Key:{SECRET.lower()}\n".encode()
    log.feed(GOOD.encode() + b"\n" + line)
    lines = [log.lines_of(key) for key in log.client_randoms]
    assert lines == [GOOD.replace(SECRET, SECRET.lower()).encode() + b"\n", line]


def test_each_key_log_may_begin_with_a_byte_order_mark() -> None:
    log = KeyLog()
    for line in (GOOD, f"CLIENT_TRAFFIC_SECRET_0 {RANDOM} {'cc' * 32}", "# a comment"):
        data = f"\ufeff{line}".encode()
        log.feed(data[:2])
        log.feed(data[2:])
        log.finish()
    assert (log.secrets, log.bad_lines) == (2, 0)


def test_secrets_are_kept_by_client_random_and_label() -> None:
    log = KeyLog()
    log.feed(f"\ufeff{GOOD}\r\nCLIENT_TRAFFIC_SECRET_0\t{RANDOM}  {'cc' * 32} ".encode())
    assert dict(log.secrets_of(bytes.fromhex(RANDOM))) == {"CLIENT_RANDOM": bytes.fromhex(SECRET)}
    log.finish()
    assert set(log.secrets_of(bytes.fromhex(RANDOM))) == {"CLIENT_RANDOM", "CLIENT_TRAFFIC_SECRET_0"}
    assert log.secrets_of(bytes(32)) == {}
    version = log.version
    log.feed(GOOD.encode() + b"\n")
    assert log.version == version
    assert log.lines_of(bytes.fromhex(RANDOM)).decode().splitlines()[0] == GOOD.replace("0B", "0b")


def test_an_endless_line_is_dropped() -> None:
    log = KeyLog()
    for _ in range(100):
        log.feed(b"ab" * 50_000)
    assert len(log._rest) <= MAX_LINE
    log.feed(b"\n" + GOOD.encode() + b"\n")
    assert (log.bad_lines, log.long_lines, log.first_bad_line, log.secrets) == (1, 1, 1, 1)


def test_the_oldest_secrets_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keylog, "MAX_SESSIONS", 10)
    log = KeyLog()
    for number in range(25):
        log.feed(f"CLIENT_RANDOM {number:064x} {SECRET}\n".encode())
    assert log.forgotten == 15
    assert not log.secrets_of((14).to_bytes(32, "big"))
    assert log.secrets_of((15).to_bytes(32, "big"))
    assert "those of 15 were dropped" in log.describe_problems()[0]


def test_labels_of_one_client_random_are_bounded() -> None:
    log = KeyLog()
    for number in range(1_000):
        log.feed(f"CLIENT_TRAFFIC_SECRET_{number} {RANDOM} {SECRET}\n".encode())
    assert len(log.secrets_of(bytes.fromhex(RANDOM))) == keylog.MAX_LABELS


def secrets_in(path: Path) -> tuple[KeyLog, KeyLogFile]:
    log = KeyLog()
    return log, KeyLogFile(path, log)


def line(number: int) -> str:
    return f"CLIENT_RANDOM {number:064x} {SECRET}"


def test_a_file_is_followed_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    log, file = secrets_in(path)
    file.refresh()
    assert log.secrets == 0
    path.write_text(line(1) + "\n" + line(2)[:100])
    file.refresh()
    assert log.secrets == 1
    path.write_text(line(1) + "\n" + line(2))
    file.refresh()
    assert log.secrets == 2  # though no line feed ends it
    with path.open("a") as more:
        more.write("\n" + line(3) + "\n")
    file.refresh()
    file.refresh()
    assert (log.secrets, log.bad_lines) == (3, 0)


def test_a_file_may_be_truncated_or_replaced(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    log, file = secrets_in(path)
    path.write_text(line(1) + "\n" + line(2) + "\n")
    file.refresh()
    path.write_text(line(3) + "\n")
    file.refresh()
    assert log.secrets == 3
    other = tmp_path / "other"
    other.write_text(line(4) + "\n" + line(5) + "\n" + line(6) + "\n")
    other.replace(path)
    file.refresh()
    assert (log.secrets, log.bad_lines) == (6, 0)
    path.unlink()
    file.refresh()


def test_a_pipe_is_read_to_its_end() -> None:
    reader, writer = os.pipe()
    os.write(writer, line(1).encode() + b"\n")
    os.close(writer)
    log, file = secrets_in(Path(f"/dev/fd/{reader}"))
    file.refresh()
    file.refresh()
    os.close(reader)
    assert log.secrets == 1


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    _, file = secrets_in(tmp_path)
    with pytest.raises(CaptureError, match=r"the key log cannot be read: Is a directory"):
        file.refresh()


def test_a_large_file_of_garbage_is_read(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(
        b"\n".join([b"garbage"] * 300_000 + [line(1).encode()] + [b"\0" * 3_000_000, line(2).encode()])
    )
    log, file = secrets_in(path)
    file.refresh()
    assert (log.secrets, log.bad_lines, log.long_lines) == (2, 300_001, 1)
    assert log.describe_problems() == [
        "key log: 300,001 lines not understood (1 over 1,024 bytes), the first is line 1"
    ]


def test_large_key_logs_are_split_between_lines() -> None:
    lines = [f"CLIENT_RANDOM {number:064x} {SECRET}\n" for number in range(8_000)]
    stream = io.BytesIO()
    PcapngWriter(stream).write_secrets("".join(lines).encode())
    log = KeyLog()
    blocks = list(find_secrets(stream.getvalue()))
    for body, _ in blocks:
        log.feed(body[8:].rstrip(b"\0"))
        log.finish()
    assert (len(blocks), log.secrets, log.bad_lines) == (2, 8_000, 0)
