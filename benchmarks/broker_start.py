"""How long `pwire broker` takes from its start to the first receipt.

    python benchmarks/broker_start.py [RUNS [OPTION…]]

A client tries to connect again and again, sends CONNECT, LOOKUP and PRODUCER at once, then SEND, and waits
for SEND_RECEIPT. OPTIONs are those of `pwire broker`, such as --memory.
"""

import signal
import socket
import statistics
import subprocess
import sys
import time

from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.frame import Connection, Frame, build_frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.PulsarApi_pb2 import MessageMetadata

PWIRE = [sys.executable, "-c", "import sys; from pulsarctl_wire.cli import main; main()"]
TOPIC = "persistent://public/default/t"
OPENING = b"".join(
    (
        build_frame(build_command("CONNECT", client_version="benchmark", protocol_version=21)),
        build_frame(build_command("LOOKUP", topic=TOPIC, request_id=1)),
        build_frame(build_command("PRODUCER", topic=TOPIC, producer_id=1, request_id=2)),
    )
)
SEND = build_frame(
    build_command("SEND", producer_id=1, sequence_id=0),
    MessageMetadata(producer_name="p", sequence_id=0, publish_time=1),
    b"hello",
)


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


def connected(port: int) -> socket.socket:
    """A connection, as soon as there can be one."""
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:  # noqa: PERF203
            time.sleep(0.001)


def talk(client: socket.socket, stream: FrameStream, request: bytes, answer: str) -> None:
    """Send bytes, and wait for the command `answer`."""
    client.sendall(request)
    commands: list[str] = []
    while answer not in commands:
        data = client.recv(65_536)
        assert data, "the broker closed the connection"
        commands += [event.command for event in stream.feed(data, 0) if isinstance(event, Frame)]


def first_receipt(options: list[str]) -> tuple[float, float, float]:
    """Seconds from the start of a broker until it can be connected to, until the receipt, and to end it."""
    port = free_port()
    command = [*PWIRE, "broker", "--port", str(port), "--http-port", "0", *options]
    began = time.perf_counter()
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        with connected(port) as client:
            open_after = time.perf_counter() - began
            stream = FrameStream(Connection(0), False)
            talk(client, stream, OPENING, "PRODUCER_SUCCESS")
            talk(client, stream, SEND, "SEND_RECEIPT")
            after = time.perf_counter() - began
        process.send_signal(signal.SIGTERM)
        ending = time.perf_counter()
        assert process.wait() == 0
        return open_after, after, time.perf_counter() - ending


def main() -> None:
    """Start brokers one after the other, and print the times."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    first_receipt(sys.argv[2:])  # compiles what is not compiled yet
    found = [first_receipt(sys.argv[2:]) for _ in range(runs)]
    names = ("can be connected to", "first receipt", "to end")
    for name, times in zip(names, zip(*found, strict=True), strict=True):
        best, middle = min(times) * 1e3, statistics.median(times) * 1e3
        print(f"{name:20} best {best:4.0f} ms, median {middle:4.0f} ms")


if __name__ == "__main__":
    main()
