"""Compare live captures with tcpdump: how much Pulsar traffic each loses on the loopback interface.

    python benchmarks/live.py --seconds 10

A producer sends to a broker, which confirms each SEND and delivers it to a consumer, by TCP on 127.0.0.1.
Loads, with messages of 100 bytes:

    batches  200,000 messages/s in batches of 1,000, then of 100
    singles  a write and a packet for each, as many as the sender can send

`pwire capture`, `pwire decode -i` with -q and into a file, each in the same run as `tcpdump -B 4096`.
`packets` were captured, `dropped` is each tool's own count, `frames lost` are frames sent that `pwire decode`
did not count. Needs root or CAP_NET_RAW, and Linux.
"""

import argparse
import multiprocessing
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.side_by_side import Record, find_pwire, table, version
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.entry import Batch, Outgoing, Stamp
from pulsarctl_wire.wire.frame import build_frame

HOST: Final = "127.0.0.1"
RATE: Final = 200_000
"""Messages per second."""
SIZE: Final = 100
"""Bytes of a message."""
GRACE: Final = 60
"""Seconds that a process may take to start, and to end."""

fork: Final = multiprocessing.get_context("fork")


class Load(NamedTuple):
    """`batch` messages per SEND, `rate` messages per second; 0: as fast as possible."""

    name: str
    batch: int
    rate: int

    def frames(self) -> tuple[bytes, bytes, bytes]:
        """A SEND, its receipt, and the MESSAGE that delivers it."""
        batch = Batch()
        for number in range(self.batch):
            batch.add(Outgoing(number.to_bytes(4, "big") * (SIZE // 4)), number)
        entry = batch.entry(Stamp("bench-0-1"), 1_700_000_000_000)
        position = {"ledgerId": 1, "entryId": 1}
        send = build_command("SEND", producer_id=1, sequence_id=1, num_messages=self.batch)
        receipt = build_command("SEND_RECEIPT", producer_id=1, sequence_id=1, message_id=position)
        message = build_command("MESSAGE", consumer_id=1, message_id=position)
        return build_frame(send, *entry), build_frame(receipt), build_frame(message, *entry)


LOADS: Final = (Load("batches of 1000", 1000, RATE), Load("batches of 100", 100, RATE), Load("singles", 1, 0))


def pace(load: Load, seconds: float) -> Iterator[None]:
    """Yield whenever a SEND is due."""
    began, count = time.monotonic(), 0
    while (elapsed := time.monotonic() - began) < seconds:
        if load.rate and count * load.batch > elapsed * load.rate:
            time.sleep(0.001)
            continue
        yield
        count += 1


def produce(load: Load, seconds: float, own: socket.socket, sent: Any) -> None:
    """Send, and receive the receipts; sets `sent` to the number of SENDs."""
    send = load.frames()[0]
    for _ in pace(load, seconds):
        own.sendall(send)
        sent.value += 1
        with suppress(BlockingIOError):
            own.recv(65_536, socket.MSG_DONTWAIT)
    own.shutdown(socket.SHUT_WR)
    consume(own)


def serve(load: Load, producer: socket.socket, consumer: socket.socket) -> None:
    """Confirm each SEND and deliver it."""
    send, receipt, message = load.frames()
    waiting = 0
    while data := producer.recv(1024 * 1024):
        waiting += len(data)
        while waiting >= len(send):
            waiting -= len(send)
            producer.sendall(receipt)
            consumer.sendall(message)
    producer.shutdown(socket.SHUT_WR)
    consumer.shutdown(socket.SHUT_WR)


def consume(own: socket.socket) -> None:
    """Read to the end."""
    while own.recv(1024 * 1024):
        pass


def traffic(load: Load, seconds: float, listener: socket.socket) -> int:
    """Producer, broker and consumer, a process each; returns the number of SENDs once all have arrived."""
    ends = [(socket.create_connection(listener.getsockname()), listener.accept()[0]) for _ in range(2)]
    for end in (end for pair in ends for end in pair):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    (producer, from_producer), (consumer, to_consumer) = ends
    sent = fork.Value("q", 0, lock=False)
    processes = [
        fork.Process(target=produce, args=(load, seconds, producer, sent)),
        fork.Process(target=serve, args=(load, from_producer, to_consumer)),
        fork.Process(target=consume, args=(consumer,)),
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(seconds + GRACE)
        if process.exitcode != 0:
            process.kill()
            raise SystemExit("the traffic did not come to an end")
    return int(sent.value)


# -- captures


class Contender(NamedTuple):
    """A command that captures the traffic of {port} into {file}, and how to read its counts from stderr."""

    name: str
    command: tuple[str, ...]
    packets: str
    dropped: str


class Capture:
    """A running contender."""

    def __init__(self, contender: Contender, port: int, path: Path) -> None:
        self._contender = contender
        command = [word.format(port=port, file=path) for word in contender.command]
        with open(f"{path}.out", "wb") as out:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, text=True
            )

    def wait_for_start(self) -> None:
        """Wait until it receives packets."""
        give_up = time.monotonic() + GRACE
        while not listens(self.process.pid):
            if self.process.poll() is not None or time.monotonic() > give_up:
                self.process.kill()
                raise SystemExit(f"{self._contender.name}: {self.process.communicate()[1]}")
            time.sleep(0.05)

    def end(self) -> tuple[int, int, float, str]:
        """End it; returns packets, packets dropped, seconds of CPU, and its stderr."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.process.send_signal(signal.SIGINT)
        said = self.process.communicate(timeout=GRACE)[1]
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return (
            self._figure(self._contender.packets, said),
            self._figure(self._contender.dropped, said),
            used,
            said,
        )

    def _figure(self, pattern: str, said: str) -> int:
        found = re.findall(pattern, said, re.MULTILINE)
        return int(found[-1]) if found else 0


def listens(process: int) -> bool:
    """Whether a process has a packet socket that receives."""
    lines = [line.split() for line in Path("/proc/net/packet").read_text().splitlines()]
    receiving = {f"socket:[{line[8]}]" for line in lines if line[5] == "1"}
    files = Path(f"/proc/{process}/fd").iterdir()
    with suppress(FileNotFoundError):  # it was closed meanwhile
        return any(os.readlink(file) in receiving for file in files)
    return False


def contenders(pwire: str, tcpdump: str | None) -> list[Contender]:
    """tcpdump, if it is installed, and our commands."""
    some = (*("-i", "lo", "--capture-filter"), "tcp port {port}")
    decoded, lost = r"^(\d+) packets?, ", r"^  damage .*?(\d+) packets? dropped"
    found = [
        Contender(
            "pwire capture",
            (pwire, "capture", *some, "-w", "{file}"),
            r"(\d+) packets captured",
            r"(\d+) dropped by the kernel",
        ),
        Contender("pwire decode -q", (pwire, "decode", "-q", *some), decoded, lost),
        Contender("pwire decode", (pwire, "decode", *some), decoded, lost),
    ]
    if tcpdump is not None:
        command = (tcpdump, *("-B", "4096", "-i", "lo", "-n", "-w", "{file}"), "tcp port {port}")
        found.insert(
            0, Contender("tcpdump", command, r"(\d+) packets? captured", r"(\d+) packets? dropped by kernel")
        )
    return found


def side_by_side(
    load: Load, seconds: float, captures: list[Contender], pwire: str, path: Path
) -> list[Record]:
    """Run some contenders together; returns a row for each."""
    running = {}
    with ExitStack() as stack, closing(socket.create_server((HOST, 0))) as listener:
        port = listener.getsockname()[1]
        for contender in captures:
            file = path / contender.name.replace(" ", "-")
            capture = Capture(contender, port, file)
            stack.callback(capture.process.kill)
            capture.wait_for_start()
            running[contender.name] = file, capture
        sent = traffic(load, seconds, listener)
        time.sleep(2)  # tcpdump loses packets of the last second before its end
        ended = [(name, file, *capture.end()) for name, (file, capture) in running.items()]
    rows: list[Record] = []
    for name, file, packets, dropped, used, said in ended:
        if file.exists():
            decode = [pwire, "decode", "-q", str(file)]
            said = subprocess.run(decode, capture_output=True, text=True, check=False).stderr
        frames = sum(map(int, re.findall(r"(?:MESSAGE|SEND|SEND_RECEIPT) (\d+)", said)))
        rows.append(
            {
                "load": load.name,
                "messages/s": round(sent * load.batch / seconds),
                "contender": name,
                "packets": packets,
                "dropped": dropped,
                "frames": 3 * sent,
                "frames lost": 3 * sent - frames,
                "cpu_s": round(used, 2),
            }
        )
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--together", action="store_true", help="all in one run, not each with tcpdump")
    options = parser.parse_args()
    pwire, tcpdump = find_pwire(), shutil.which("tcpdump")
    if pwire is None:
        raise SystemExit("pwire is not installed next to this Python")
    print(version(pwire), file=sys.stderr)
    if tcpdump is None:
        print("tcpdump is not installed: pwire runs alone", file=sys.stderr)
    *theirs, capture, quiet, lines = contenders(pwire, tcpdump)
    runs = [[*theirs, ours] for ours in (capture, quiet, lines)]
    if options.together:
        runs = [[*theirs, capture, quiet, lines]]
    rows: list[Record] = []
    for load in LOADS:
        for run in runs:
            with tempfile.TemporaryDirectory() as directory:
                rows += side_by_side(load, options.seconds, run, pwire, Path(directory))
    print(table(rows))


if __name__ == "__main__":
    main()
