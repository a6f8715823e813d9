"""Whatever a broker has answered for is still there after SIGKILL.

Official clients send and pwire's own acknowledges while the broker is killed again and again, and started on
its data; then everything is read.
"""

from __future__ import annotations

import random
import signal
import threading
from collections import Counter, defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pulsar
import pytest
from broker.raw import PATIENCE, RawClient
from broker.test_cli_broker import Started
from interop.processes import free_port

from pulsarctl_wire.conformance.basics.frames import make_frame

TOPIC: Final = "persistent://public/default/t"
PRODUCERS: Final = ("one", "two")
MESSAGES: Final = 600
"""That a producer sends in a round, in batches or alone."""


class Broker:
    """A broker process at a fixed port that can be killed, and started again on its data."""

    def __init__(self, data: Path) -> None:
        self.port = free_port()
        self.url = f"pulsar://127.0.0.1:{self.port}"
        settings = (
            "brokerDeduplicationEnabled=true",
            "defaultRetentionTimeInMinutes=-1",  # otherwise what is acknowledged is deleted
            "defaultRetentionSizeInMB=-1",
        )
        self._args: list[str | Path] = ["--data", data, "--port", str(self.port)]
        self._args += [word for setting in settings for word in ("--set", setting)]
        self._stack = ExitStack()

    def start(self) -> None:
        self._process = self._stack.enter_context(Started(*self._args))

    def kill(self) -> None:
        self._process.stop(signal.SIGKILL)
        self._stack.close()


class Load:
    """Official producers; what was sent, and the receipts that came."""

    def __init__(self, url: str) -> None:
        self.sent = dict.fromkeys(PRODUCERS, 0)
        self.ids: list[tuple[int, int, int]] = []
        self.failures: list[object] = []
        self._came = threading.Condition()
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self._client = pulsar.Client(url, logger=logger, operation_timeout_seconds=int(PATIENCE))
        self._producers = {
            name: self._client.create_producer(
                TOPIC,
                producer_name=name,
                batching_enabled=name == "one",
                batching_max_messages=10,
                block_if_queue_full=True,
                max_pending_messages=200,
                send_timeout_millis=0,
                initial_sequence_id=1,  # else sequence ids begin anew after a reconnect without any receipt
            )
            for name in PRODUCERS
        }

    def send(self, name: str) -> None:
        """Send a round's messages, and wait for their receipts."""
        producer = self._producers[name]
        for number in range(self.sent[name], self.sent[name] + MESSAGES):
            producer.send_async(f"{name} {number}".encode(), self._receipt)
        self.sent[name] += MESSAGES
        producer.flush()

    def _receipt(self, result: Any, message_id: Any) -> None:
        with self._came:
            if result != pulsar.Result.Ok:
                self.failures.append(result)
            else:
                self.ids.append((message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()))
            self._came.notify_all()

    def wait(self, receipts: int) -> None:
        with self._came:
            assert self._came.wait_for(lambda: len(self.ids) + len(self.failures) >= receipts, PATIENCE)

    def close(self) -> None:
        self._client.close()


class Acker:
    """A consumer of a Shared subscription; it reconnects, and acknowledges every second entry it gets.

    `again` are entries that came although their acknowledgement had been answered.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.answered: set[tuple[int, int]] = set()
        self.again: list[tuple[int, int]] = []
        self.over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self.over.is_set():
            try:
                with RawClient(f"pulsar://127.0.0.1:{self._port}") as client:
                    self._consume(client)
            except (OSError, AssertionError):  # noqa: PERF203 - it is down, or was killed
                self.over.wait(0.01)

    def _consume(self, client: RawClient) -> None:
        client.lookup(TOPIC)
        fields = {"subscription": "s", "subType": 1, "consumer_id": 1, "initialPosition": 1}
        client.request("SUBSCRIBE", "SUCCESS", topic=TOPIC, **fields)
        client.send("FLOW", consumer_id=1, messagePermits=100_000_000)
        asked: dict[int, tuple[int, int]] = {}
        count = 0
        while (found := client.received()) is not None:
            if found.command == "ACK_RESPONSE":
                self.answered.add(asked.pop(found.body.request_id))
            elif found.command == "MESSAGE":
                message_id = found.body.message_id
                it = message_id.ledgerId, message_id.entryId
                if it in self.answered:
                    self.again.append(it)
                count += 1
                if count % 2:
                    asked[count] = it
                    ids = [{"ledgerId": it[0], "entryId": it[1]}]
                    ack = make_frame("ACK", consumer_id=1, ack_type=0, message_id=ids, request_id=count)
                    client.socket.sendall(ack)

    def close(self) -> None:
        """End it, once the broker is down."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


def everything(url: str) -> list[tuple[str, tuple[int, int, int]]]:
    """All messages of the topic: payloads and ids."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        message = reader.read_next(int(PATIENCE * 1000))
        it = message.message_id()
        found.append((message.data().decode(), (it.ledger_id(), it.entry_id(), it.batch_index())))
    client.close()
    return found


def check(data: Path, rounds: int, seed: int) -> None:
    """Kill and start a broker under load, so many times; then look at what is there."""
    chance = random.Random(seed)
    broker = Broker(data)
    broker.start()
    load, acker = Load(broker.url), Acker(broker.port)
    for _ in range(rounds):
        before = len(load.ids)
        threads = [threading.Thread(target=load.send, args=(name,), daemon=True) for name in PRODUCERS]
        for thread in threads:
            thread.start()
        load.wait(before + chance.randrange(1, MESSAGES * len(PRODUCERS)))
        broker.kill()
        broker.start()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "the rest was not sent again"
    load.close()
    acker.over.set()
    broker.kill()
    acker.close()
    broker.start()
    found = everything(broker.url)
    broker.kill()
    assert not load.failures
    assert not acker.again
    assert acker.answered
    by_name = defaultdict(list)
    for text, _ in found:
        name, number = text.split()
        by_name[name].append(int(number))
    for name in PRODUCERS:
        numbers = by_name[name]
        assert not {*range(rounds * MESSAGES)}.difference(numbers), f"{name}: some are lost"
        again = [each for each, times in Counter(numbers).items() if times > 1]
        assert not again, f"{name}: some are there twice"
        assert numbers == sorted(numbers), f"{name}: some are out of order"
    known = {it for it in load.ids if it[0] >= 0}  # those sent again have none
    assert known <= {it for _, it in found}


@pytest.mark.parametrize("seed", [1])
def test_what_was_answered_survives(tmp_path: Path, seed: int) -> None:
    check(tmp_path / "data", 5, seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(2, 12))
def test_more_of_the_same(tmp_path: Path, seed: int) -> None:
    check(tmp_path / "data", 10, seed)
