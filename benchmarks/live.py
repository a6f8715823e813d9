"""Compare live captures with tcpdump: how much Pulsar traffic each loses on the loopback interface.

    python -m benchmarks.live --seconds 10

A producer sends to a broker, which confirms each SEND and delivers it to a consumer, by TCP on 127.0.0.1.
Loads, with messages of 100 bytes:

    batches  200,000 messages/s in batches of 1,000, then of 100
    singles  a write and a packet for each, as many as the sender can send

`pwire capture`, `pwire decode -i` with -q and into a file, each in the same run as `tcpdump -B 4096`.
"packets" were captured, "dropped" is each tool's own count, "frames lost" are frames sent that `pwire decode`
did not count. Needs root or CAP_NET_RAW, and Linux.
"""

import multiprocessing
import os
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final, NamedTuple

import typer

from benchmarks.harness import GRACE, HOST, MIB, Figures, Process, measure, pwire
from benchmarks.traffic import build, build_message, build_send

fork: Final = multiprocessing.get_context("fork")


class Load(NamedTuple):
    """`batch` messages per SEND, `rate` messages per second; 0: as fast as possible."""

    batch: int
    rate: int

    @property
    def send(self) -> bytes:
        """A SEND."""
        return build_send(self._payloads)

    @property
    def answers(self) -> tuple[bytes, bytes]:
        """The receipt of a SEND, and the MESSAGE that delivers it."""
        receipt = build(
            "SEND_RECEIPT", producer_id=1, sequence_id=0, message_id={"ledgerId": 1, "entryId": 0}
        )
        return receipt, build_message(self._payloads)

    @property
    def _payloads(self) -> list[bytes]:
        return [number.to_bytes(4, "big") * 25 for number in range(self.batch)]


RATE: Final = 200_000
LOADS: Final = {"batches of 1000": Load(1000, RATE), "batches of 100": Load(100, RATE), "singles": Load(1, 0)}


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
    send = load.send
    for _ in pace(load, seconds):
        own.sendall(send)
        sent.value += 1
        with suppress(BlockingIOError):
            own.recv(65_536, socket.MSG_DONTWAIT)
    own.shutdown(socket.SHUT_WR)
    consume(own)


def serve(load: Load, producer: socket.socket, consumer: socket.socket) -> None:
    """Confirm each SEND and deliver it."""
    size, (receipt, message) = len(load.send), load.answers
    waiting = 0
    while data := producer.recv(MIB):
        waiting += len(data)
        while waiting >= size:
            waiting -= size
            producer.sendall(receipt)
            consumer.sendall(message)
    producer.shutdown(socket.SHUT_WR)
    consumer.shutdown(socket.SHUT_WR)


def consume(own: socket.socket) -> None:
    """Read to the end."""
    while own.recv(MIB):
        pass


def send_traffic(load: Load, seconds: float, listener: socket.socket) -> int:
    """Run producer, broker and consumer; returns the number of SENDs once all have arrived."""
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
            sys.exit("the traffic did not come to an end")
    return int(sent.value)


# -- captures


class Contender(NamedTuple):
    """A command that captures the traffic of {port} into {file}, and how to read its counts from stderr."""

    command: list[str]
    packets: str
    dropped: str


def find_contenders() -> dict[str, Contender]:
    """Return our commands and, if it is installed, tcpdump."""
    options = ("-i", "lo", "--capture-filter", "tcp port {port}")
    decoded, lost = r"^(\d+) packets?, ", r"^  damage .*?(\d+) packets? dropped"
    ours = {
        "pwire capture": Contender(
            pwire("capture", *options, "-w", "{file}"),
            r"(\d+) packets captured",
            r"(\d+) dropped by the kernel",
        ),
        "pwire decode -q": Contender(pwire("decode", "-q", *options), decoded, lost),
        "pwire decode": Contender(pwire("decode", *options), decoded, lost),
    }
    if tcpdump := shutil.which("tcpdump"):
        command = [tcpdump, *("-B", "4096", "-i", "lo", "-n", "-w", "{file}"), "tcp port {port}"]
        counts = r"(\d+) packets? captured", r"(\d+) packets? dropped by kernel"
        return ours | {"tcpdump": Contender(command, *counts)}
    print("tcpdump is not installed: pwire runs alone", file=sys.stderr)
    return ours


def receives(pid: int) -> bool:
    """Return whether a process has a packet socket that receives."""
    lines = [line.split() for line in Path("/proc/net/packet").read_text().splitlines()]
    receiving = {f"socket:[{line[8]}]" for line in lines if line[5] == "1"}
    with suppress(FileNotFoundError):  # it was closed meanwhile
        return any(os.readlink(file) in receiving for file in Path(f"/proc/{pid}/fd").iterdir())
    return False


def find_count(pattern: str, text: str) -> int:
    """Return the last number that is found; 0 without any."""
    return int((re.findall(pattern, text, re.MULTILINE) or ["0"])[-1])


def compare(load_name: str, seconds: float, figures: Figures) -> None:
    """Run each of our captures together with tcpdump."""
    load, available = LOADS[load_name], find_contenders()
    theirs = [name for name in available if name == "tcpdump"]
    for ours in (name for name in available if name != "tcpdump"):
        with ExitStack() as stack, TemporaryDirectory() as directory:
            listener = stack.enter_context(closing(socket.create_server((HOST, 0))))
            running = {}
            for name in (*theirs, ours):
                file = Path(directory, name.replace(" ", "-"))
                values = {"port": listener.getsockname()[1], "file": file}
                command = [word.format(**values) for word in available[name].command]
                process = stack.enter_context(Process(command, Path(f"{file}.out")))
                process.await_that(partial(receives, process.popen.pid))
                running[name] = file, process
            sent = send_traffic(load, seconds, listener)
            time.sleep(2)  # tcpdump loses packets of the last second before its end
            ended = {name: (file, process.end(signal.SIGINT)) for name, (file, process) in running.items()}
            for name, (file, run) in ended.items():
                text = run.stderr
                if file.exists():
                    with Process(pwire("decode", "-q", file)) as decode:
                        text = decode.wait().stderr
                frames = sum(map(int, re.findall(r"(?:MESSAGE|SEND|SEND_RECEIPT) (\d+)", text)))
                counts = {
                    "messages/s": sent * load.batch / seconds,
                    "packets": find_count(available[name].packets, run.stderr),
                    "dropped": find_count(available[name].dropped, run.stderr),
                    "frames": 3 * sent,
                    "frames lost": 3 * sent - frames,
                    "CPU s": run.cpu,
                }
                figures.add(f"{load_name}: {ours}", name, counts)


def main(seconds: Annotated[float, typer.Option(help="How long each load is sent.")] = 5) -> None:
    """Compare live captures with tcpdump."""
    measure({name: partial(compare, name, seconds) for name in LOADS}, peers=("tcpdump",))


if __name__ == "__main__":
    typer.run(main)
