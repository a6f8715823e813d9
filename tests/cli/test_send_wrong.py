"""`pwire send`: what is said of wrong frames, and what is recorded of unusual ones."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pwire_run import Run, decode, pwire
from segments import build

from pulsarctl_wire.wire.varint import varint

HOSTILE = Path(__file__).parents[1] / "hostile"
ERROR = bytes.fromhex("0000000f 0000000b 080e720708011001 1a0178")


@contextmanager
def broker(answer: bytes, *, stays: bool) -> Iterator[int]:
    """One that reads what comes first, answers, and closes, or reads on if it `stays`; gives its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(answer)
                while stays and connection.recv(65_536):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            thread.join()


def send(path: Path, digits: str, answer: bytes = b"", *options: str, stays: bool = False) -> Run:
    script = path / "script"
    script.write_text(digits)
    with broker(answer, stays=stays) as port:
        return pwire(
            "send", "--url", f"pulsar://127.0.0.1:{port}", "--no-handshake", "--idle", "1", *options, script
        )


@pytest.mark.parametrize(
    ("digits", "said"),
    [
        # LOOKUP without its request_id
        (
            '{"type": "LOOKUP", "lookupTopic": {"topic": "t"}}',
            "LOOKUP (#1): CommandLookupTopic lacks request_id",
        ),
        # PRODUCER whose topic says 9 bytes
        (
            "0000000b 00000007 0805 2a03 0a0974",
            "PRODUCER, producer.topic (field 1) says 9 bytes, 1 byte is left",
        ),
        # TOTAL_SIZE leaves out COMMAND_SIZE
        ("00000005 00000005 0812920100", "it leaves out the 4 bytes of COMMAND_SIZE"),
        ("09000000 05000000 0812920100", "the sizes are little-endian"),
    ],
)
@pytest.mark.parametrize("answer", [b"", ERROR], ids=["closed", "refused"])
def test_what_is_wrong_with_what_was_sent(tmp_path: Path, digits: str, said: str, answer: bytes) -> None:
    run = send(tmp_path, digits, answer)
    assert run.code == (7 if answer else 6)
    assert any(line.startswith("pwire: sent: ") and said in line for line in run.complaints), run.err


def test_what_is_right_is_not_blamed(tmp_path: Path) -> None:
    run = send(tmp_path, "00000009 00000005 0812920100")
    assert not any("sent: " in line for line in run.complaints)


def test_most_of_what_is_wrong_is_counted(tmp_path: Path) -> None:
    run = send(tmp_path, '{"type": "LOOKUP", "lookupTopic": {"topic": "t"}}\n' * 3_000, ERROR, stays=True)
    assert len([line for line in run.complaints if line.startswith("pwire: sent: ")]) == 5
    assert "pwire: and 2995 more errors in what was sent" in run.complaints


@pytest.mark.parametrize(
    ("kind", "code"), [("UNKNOWN(1000)", 0), ("UNKNOWN(1999)", 0), ("UNKNOWN(2000)", 8), ("PONG", 0)]
)
def test_more_kinds_of_commands_than_are_remembered(tmp_path: Path, kind: str, code: int) -> None:
    unknown = (b"\x08" + varint(number) for number in range(1_000, 2_500))
    frames = b"".join(struct.pack(">II", len(each) + 4, len(each)) + each for each in unknown)
    script = f'{{"type": "PING"}}\n{{"expect": "{kind}"}}'
    run = send(tmp_path, script, frames + build("PONG"), "--timeout", "1", stays=True)
    assert run.code == code, run.err


@pytest.mark.parametrize("to_broker", [True, False])
def test_no_credentials_in_the_recording(tmp_path: Path, to_broker: bool) -> None:
    """Of a CONNECT whose type comes last, and of a challenge in pieces."""
    recording = tmp_path / "recording.pcapng"
    sent = (HOSTILE / "connect-type-last.hex").read_text()
    challenge = bytes.fromhex("0000001e 0000001a 0824a202150a13120a") + b"SecretS3cret" + bytes(5)
    run = send(tmp_path, sent, b"" if to_broker else challenge, "--record", str(recording))
    assert run.code in (6, 7)
    data = recording.read_bytes()
    assert b"hunter2Secret" not in data
    assert b"SecretS3" not in data
    (first, *_) = decode(str(recording), "-o", "json").records
    assert first["command"] == "CONNECT"
    assert first["fields"]["auth_data"] == "[redacted: 21 bytes]"


@pytest.mark.parametrize("form", ["line", "tree", "json", "hex"])
def test_hostile_frames_show_no_credentials(form: str) -> None:
    for name in ("connect-group-before-credentials.bin", "connect-type-last.hex"):
        run = decode("-o", form, str(HOSTILE / name))
        assert b"CONNECT" in run.out
        assert b"hunter2" not in run.out
        assert b"68 75 6e 74 65 72" not in run.out
