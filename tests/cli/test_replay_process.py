"""`pwire replay` as a process: signals, PINGs while nothing comes, and a broker that dies."""

from __future__ import annotations

import io
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from proxied import PATIENCE, PWIRE
from pwire_run import pwire

from pulsarctl_wire.capture.recording import SessionWriter
from pulsarctl_wire.cli.console import EXIT_INTERRUPTED, EXIT_UNREACHABLE
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.frame import Connection, Frame, build_frame
from pulsarctl_wire.wire.framing.stream import FrameStream

CONNECT = build_frame(build_command("CONNECT", client_version="c", protocol_version=21))
CONNECTED = build_frame(build_command("CONNECTED", server_version="b", protocol_version=21))
PING = build_frame(build_command("PING"))

Turn = tuple[int, bool, bytes]
"""The number of a connection, whether its client speaks, and what is said."""


def capture(*turns: Turn) -> bytes:
    file = io.BytesIO()
    writer = SessionWriter(file)
    for number, (index, to_broker, data) in enumerate(turns):
        connection = Connection(index, f"10.0.0.1:{5000 + index}", "10.0.0.2:6650")
        writer.carried(connection, to_broker, data, 1_700_000_000_000_000_000 + number)
    return file.getvalue()


GREETING = capture((0, True, CONNECT), (0, False, CONNECTED))


@contextmanager
def replaying(url: str) -> Iterator[subprocess.Popen[bytes]]:
    """`pwire replay -`, whose stdin the test holds."""
    with subprocess.Popen(
        [*PWIRE, "replay", "-", "--to", url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def heard(client: socket.socket, stream: FrameStream) -> list[str]:
    """The names of the next commands that the client sends, as many as come together."""
    names: list[str] = []
    while not names:
        data = client.recv(1 << 16)
        assert data
        names = [event.command for event in stream.feed(data) if isinstance(event, Frame)]
    return names


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_while_a_pipe_is_silent_pings_are_answered_and_signals_end_it(number: int) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        replaying(f"pulsar://127.0.0.1:{listening.getsockname()[1]}") as process,
    ):
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdin.write(GREETING)
        process.stdin.flush()
        listening.settimeout(PATIENCE)
        client, _ = listening.accept()
        with client:
            client.settimeout(PATIENCE)
            stream = FrameStream(Connection(0), True)
            assert heard(client, stream) == ["CONNECT"]
            client.sendall(CONNECTED)
            for _ in range(3):  # at the last of them it has long been waiting for more
                client.sendall(PING)
                assert heard(client, stream) == ["PONG"]
            process.send_signal(number)
            assert process.wait(PATIENCE) == EXIT_INTERRUPTED
        assert (process.stdout.read(), process.stderr.read()) == (b"", b"")


def test_a_signal_ends_it_while_it_reads_what_is_passed_over() -> None:
    with replaying("pulsar://127.0.0.1:1") as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        stdin = process.stdin

        def endless() -> None:
            with suppress(OSError):
                while True:
                    stdin.write(PING * 10_000)

        feeding = threading.Thread(target=endless)
        feeding.start()
        try:
            said = process.stderr.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == EXIT_INTERRUPTED
        finally:
            process.kill()
            feeding.join()
        assert b"connection 0 is skipped" in said
        assert (process.stdout.read(), process.stderr.read()) == (b"", b"")
        with suppress(BrokenPipeError):  # what waits in its buffer
            stdin.close()


def test_a_broker_that_dies_between_two_connections_is_told_behind_the_totals(tmp_path: Path) -> None:
    path = tmp_path / "two.pcapng"
    path.write_bytes(capture((0, True, CONNECT), (0, False, CONNECTED), (1, True, CONNECT)))
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"pulsar://127.0.0.1:{listening.getsockname()[1]}"

    def once() -> None:
        client, _ = listening.accept()
        listening.close()
        with client:
            heard(client, FrameStream(Connection(0), True))
            client.sendall(CONNECTED)
            while client.recv(1 << 16):
                pass

    broker = threading.Thread(target=once)
    broker.start()
    run = pwire("replay", path, "--to", url)
    broker.join()
    assert run.code == EXIT_UNREACHABLE
    assert run.lines == ["1 exchanges, 0 differ, 0 unanswered"]
    [line] = run.complaints
    assert "refused" in line
