"""Compare sessions with Pulsar's own tools, on one broker in one run: time for one message, and rates.

    python tests/interop/brokers.py run --port 6650 &
    python benchmarks/session.py --url pulsar://localhost:6650 --pulsar-client .../bin/pulsar-client

`wheel` is the official Python client (`pip install pulsar-client`, the C++ core) in a script of a few lines.
Each time is that of a whole process, including its start; the best of `--runs` runs, in turns.
Both batch 1,000 messages or 128 KiB, and wait 1 ms for more.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.side_by_side import find_pwire

ONE = """
import pulsar
client = pulsar.Client({url!r}, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
client.create_producer({topic!r}).send(b"hello")
client.close()
"""
PRODUCE = """
import pulsar
client = pulsar.Client({url!r}, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
producer = client.create_producer({topic!r}, batching_enabled=True, batching_max_messages=1000,
    batching_max_allowed_size_in_bytes=131072, batching_max_publish_delay_ms=1,
    block_if_queue_full=True, max_pending_messages=50000)
payload = b"x" * 100
for _ in range({count}):
    producer.send_async(payload, None)
producer.flush()
client.close()
"""
CONSUME = """
import pulsar
client = pulsar.Client({url!r}, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
consumer = client.subscribe({topic!r}, {subscription!r}, initial_position=pulsar.InitialPosition.Earliest)
for _ in range({count}):
    consumer.acknowledge(consumer.receive())
client.close()
"""


def took(command: list[str]) -> float:
    """Seconds that a process takes; ends the benchmark if it fails."""
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(
            f"{' '.join(command)[:200]} ended with {done.returncode}: {done.stderr.strip()[-500:]}"
        )
    return time.perf_counter() - began


def best(commands: dict[str, list[str]], runs: int) -> dict[str, float]:
    """The shortest time of each command, in seconds; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(runs):
        for name, command in commands.items():
            times[name].append(took(command))
    return {name: min(each) for name, each in times.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="pulsar://localhost:6650")
    parser.add_argument("--pulsar-client", help="path of bin/pulsar-client, to measure it too")
    parser.add_argument("--count", type=int, default=500_000, help="messages for the rates")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    url, count = options.url, options.count
    pwire = find_pwire()
    if pwire is None:
        raise SystemExit("pwire is not installed next to this Python")

    def script(text: str, **values: object) -> list[str]:
        return [sys.executable, "-c", text.format(url=url, count=count, **values)]

    topic = f"bench-{uuid4().hex}"
    one = {
        "wheel": script(ONE, topic=topic),
        "pwire": [pwire, "produce", topic, "-m", "hello", "-u", url],
    }
    if options.pulsar_client:
        one["pulsar-client"] = [options.pulsar_client, "--url", url, "produce", topic, "-m", "hello"]
    times = best(one, options.runs)
    print("one message, whole process")
    for name, seconds in times.items():
        print(f"  {name:14} {seconds:7.3f} s   {seconds / times['pwire']:5.1f} x pwire")

    for name in ("wheel", "pwire"):
        took([pwire, "consume", topic, "-s", name, "--idle", "0", "--quiet", "-u", url])
    produce = {
        "wheel": script(PRODUCE, topic=topic),
        "pwire": [pwire, "produce", topic, "-m", "x" * 100, "-n", str(count), "-u", url],
    }
    times = best(produce, options.runs)
    print(f"produce {count} messages of 100 bytes, batched")
    for name, seconds in times.items():
        rate = f"{count / seconds:9,.0f}/s"
        print(f"  {name:14} {seconds:7.3f} s {rate} {times['wheel'] / seconds:5.2f} of the wheel's rate")

    consume = {
        "wheel": script(CONSUME, topic=topic, subscription="wheel"),
        "pwire": [pwire, "consume", topic, "-s", "pwire", "-n", str(count), "-u", url],
    }
    times = best(consume, options.runs)
    print(f"consume and acknowledge {count} messages of 100 bytes")
    for name, seconds in times.items():
        rate = f"{count / seconds:9,.0f}/s"
        print(f"  {name:14} {seconds:7.3f} s {rate} {times['wheel'] / seconds:5.2f} of the wheel's rate")


if __name__ == "__main__":
    main()
