"""The Python client by the contracts of `pwire conform client`: MODE URL TOPIC COUNT TIMEOUT KEEPALIVE."""

from __future__ import annotations

import sys
from typing import Any

import pulsar


def produce(client: Any, topic: str, count: int, timeout: float) -> bool:
    """Produce all at once; print what became of each."""
    producer = client.create_producer(topic, batching_enabled=False, send_timeout_millis=int(timeout * 1000))
    results: list[Any] = []
    for number in range(count):
        producer.send_async(str(number).encode(), lambda result, _: results.append(result))
    try:
        producer.flush()
    except pulsar.PulsarException as error:
        sys.stdout.write(f"flush: {error}\n")
    sys.stdout.write("".join(f"{result}\n" for result in results))
    return len(results) == count and all(result == pulsar.Result.Ok for result in results)


def consume(client: Any, topic: str, count: int) -> bool:
    """Print and acknowledge messages."""
    consumer = client.subscribe(topic, "conform", initial_position=pulsar.InitialPosition.Earliest)
    for _ in range(count):
        message = consumer.receive()
        sys.stdout.write(f"{message.data().decode()}\n")
        sys.stdout.flush()
        consumer.acknowledge(message)
    consumer.close()
    return True


def main() -> int:
    mode, url, topic, count, timeout, _ = sys.argv[1:]  # no setting of it is about PINGs
    client = pulsar.Client(
        url,
        operation_timeout_seconds=max(round(float(timeout)), 1),
        connection_timeout_ms=int(float(timeout) * 1000),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn),
    )
    try:
        if mode == "produce":
            succeeded = produce(client, topic, int(count), float(timeout))
        else:
            succeeded = consume(client, topic, int(count))
        client.close()
    except pulsar.PulsarException as error:
        sys.stdout.write(f"{type(error).__name__}: {error}\n")
        return 1
    return 0 if succeeded else 1


if __name__ == "__main__":
    raise SystemExit(main())
