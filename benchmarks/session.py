"""Compare sessions with Pulsar's own tools, on one broker in one run: time for one message, and rates.

    python tests/interop/brokers.py run --port 6650 &
    python -m benchmarks.session --url pulsar://localhost:6650 --pulsar-client .../bin/pulsar-client

`wheel` is the official Python client (`pip install pulsar-client`, the C++ core) in a script of a few lines.
Each time is that of a whole process, including its start. Both batch 1,000 messages or 128 KiB, and wait 1 ms
for more.
"""

import sys
from functools import partial
from typing import Annotated, Final
from uuid import uuid4

import typer

from benchmarks.harness import Figures, Goal, Runs, measure, pwire, run

CLIENT: Final = """
import pulsar
client = pulsar.Client({url!r}, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
"""
ONE: Final = """
client.create_producer({topic!r}).send(b"hello")
"""
PRODUCE: Final = """
producer = client.create_producer({topic!r}, batching_enabled=True, batching_max_messages=1000,
    batching_max_allowed_size_in_bytes=131072, batching_max_publish_delay_ms=1,
    block_if_queue_full=True, max_pending_messages=50000)
payload = b"x" * 100
for _ in range({count}):
    producer.send_async(payload, None)
producer.flush()
"""
CONSUME: Final = """
consumer = client.subscribe({topic!r}, "wheel", initial_position=pulsar.InitialPosition.Earliest)
for _ in range({count}):
    consumer.acknowledge(consumer.receive())
"""
GOALS: Final = (
    Goal("one message", "pwire", "s", "≤", 4, "wheel"),
    Goal("one message", "pulsar-client", "s", "≥", 10, "pwire"),
    Goal("produce", "pwire", "messages/s", "≥", 0.5, "wheel"),
    Goal("consume", "pwire", "messages/s", "≥", 0.5, "wheel"),
)


def compare(url: str, pulsar_client: str | None, count: int, runs: int, figures: Figures) -> None:
    """Publish one message, then many, and consume those."""
    topic = f"bench-{uuid4().hex}"

    def wheel(script: str) -> list[str]:
        program = f"{CLIENT}{script}client.close()"
        return [sys.executable, "-c", program.format(url=url, topic=topic, count=count)]

    one = {"wheel": wheel(ONE), "pwire": pwire("produce", topic, "-m", "hello", "-u", url)}
    if pulsar_client:
        one["pulsar-client"] = [pulsar_client, "--url", url, "produce", topic, "-m", "hello"]
    figures.compare("one message", one, runs)
    for name in ("wheel", "pwire"):
        run(pwire("consume", topic, "-s", name, "--idle", 0, "--quiet", "-u", url))
    produce = pwire("produce", topic, "-m", "x" * 100, "-n", count, "-u", url)
    figures.compare("produce", {"wheel": wheel(PRODUCE), "pwire": produce}, runs, count, "messages")
    consume = pwire("consume", topic, "-s", "pwire", "-n", count, "-u", url)
    figures.compare("consume", {"wheel": wheel(CONSUME), "pwire": consume}, runs, count, "messages")


def main(
    url: str = "pulsar://localhost:6650",
    pulsar_client: Annotated[str | None, typer.Option(help="bin/pulsar-client, to measure it too.")] = None,
    count: Annotated[int, typer.Option(help="Messages for the rates.")] = 500_000,
    runs: Runs = 5,
) -> None:
    """Compare sessions with Pulsar's own tools."""
    sections = {"messages of 100 bytes": partial(compare, url, pulsar_client, count, runs)}
    measure(sections, None, GOALS, ("wheel", "pwire"))


if __name__ == "__main__":
    typer.run(main)
