"""The official Python client behind a proxy whose breakpoints hold its frames."""

from __future__ import annotations

import select
import time
from pathlib import Path
from threading import Thread
from typing import Any

import pulsar
from interop.brokers import Broker
from interop.conftest import Pwire
from interop.sessions import Proxy

from pulsarctl_wire.net.control import ask
from pulsarctl_wire.scripting import Frame
from pulsarctl_wire.wire.frame import Connection
from pulsarctl_wire.wire.frame import Frame as DecodedFrame
from pulsarctl_wire.wire.framing.stream import FrameStream

LIMIT = 30  # seconds


def wait_for_held(control: Path) -> dict[str, Any]:
    """Wait until a frame is held, and return what the proxy says of it."""
    deadline = time.monotonic() + LIMIT
    while True:
        held = ask(control, {"do": "held-list"})["held"]
        if held:
            return dict(held[0])
        assert time.monotonic() < deadline
        select.select([], [], [], 0.02)


def with_payload(held: dict[str, Any], payload: bytes) -> str:
    """The bytes of a held SEND with another payload, and a checksum that fits."""
    (decoded,) = FrameStream(Connection(0), True).feed(bytes.fromhex(held["data"]))
    assert isinstance(decoded, DecodedFrame)
    frame = Frame(decoded, None)
    frame.payload = payload
    return frame.encode().hex()


def test_frames_are_held_changed_dropped_and_repeated(
    broker: Broker, topic: str, pwire: Pwire, tmp_path: Path
) -> None:
    control = tmp_path / "control.sock"
    fault = "hold command=SEND direction=to-broker wait=60s"
    record = tmp_path / "record.pcapng"
    options = ("--tap", "-o", "json", "--control", control, "--fault", fault, "--record", record)
    with Proxy(pwire, broker.url, *options) as proxy:
        client, other = pulsar.Client(proxy.url), pulsar.Client(proxy.url)
        producer = client.create_producer(f"{topic}-a", batching_enabled=False, send_timeout_millis=60_000)
        sent: list[str] = []
        for payload in (b"held", b"changed", b"twice"):
            producer.send_async(payload, lambda result, _: sent.append(str(result)))
        ask(control, {"do": "held-decide", "number": wait_for_held(control)["number"]})
        held = wait_for_held(control)
        assert held["to_broker"]
        assert held["topic"] == f"{topic}-a"
        changed = with_payload(held, b"CHANGED")
        ask(control, {"do": "held-decide", "number": held["number"], "frames": [changed]})
        held = wait_for_held(control)

        # while that one is held, the other connection goes on
        free = other.create_producer(f"{topic}-b", batching_enabled=False)
        thread = Thread(target=lambda: free.send(b"other"))
        thread.start()
        numbers = {each["number"] for each in _list_until(control, 2)} - {held["number"]}
        ask(control, {"do": "held-decide", "number": numbers.pop()})
        thread.join(LIMIT)
        assert not thread.is_alive()

        ask(control, {"do": "held-decide", "number": held["number"], "frames": [held["data"]] * 2})
        ask(control, {"do": "fault-clear"})
        producer.flush()
        client.close()
        other.close()
        assert proxy.interrupt() == 0, proxy.said
    assert sent == ["Result.Ok"] * 3
    notes = [frame["notes"] for frame in proxy.frames("SEND") if frame["topic"].endswith("-a")]
    assert notes == [[], ["by pwire: changed"], [], ["by pwire: sent again"]]
    assert b"pwire proxy: changed" in record.read_bytes()
    assert "hold: SEND changed" in proxy.said
    assert "hold: SEND sent 2 times" in proxy.said
    reader = pulsar.Client(broker.url)
    consumer = reader.subscribe(f"{topic}-a", "s", initial_position=pulsar.InitialPosition.Earliest)
    assert [consumer.receive(10_000).data() for _ in range(4)] == [b"held", b"CHANGED", b"twice", b"twice"]
    consumer = reader.subscribe(f"{topic}-b", "s", initial_position=pulsar.InitialPosition.Earliest)
    assert consumer.receive(10_000).data() == b"other"
    reader.close()


def _list_until(control: Path, count: int) -> list[dict[str, Any]]:
    deadline = time.monotonic() + LIMIT
    while len(held := ask(control, {"do": "held-list"})["held"]) < count:
        assert time.monotonic() < deadline
        select.select([], [], [], 0.02)
    return list(held)


def test_an_answer_in_the_brokers_place(broker: Broker, topic: str, pwire: Pwire, tmp_path: Path) -> None:
    control = tmp_path / "control.sock"
    with Proxy(pwire, broker.url, "--control", control, "--fault", "hold command=LOOKUP nth=1") as proxy:
        client = pulsar.Client(proxy.url, operation_timeout_seconds=5)
        failures: list[Exception] = []

        def create() -> None:
            try:
                client.create_producer(topic)
            except Exception as error:
                failures.append(error)

        thread = Thread(target=create)
        thread.start()
        held = wait_for_held(control)
        (decoded,) = FrameStream(Connection(0), True).feed(bytes.fromhex(held["data"]))
        assert isinstance(decoded, DecodedFrame)
        answer = Frame(decoded, None).answer(
            "LOOKUP_RESPONSE", response="Failed", error="AuthorizationError", message="no"
        )
        data = answer.encode().hex()
        ask(control, {"do": "held-decide", "number": held["number"], "frames": [], "answers": [data]})
        thread.join(LIMIT)
        client.close()
        proxy.interrupt()
    assert [type(error) for error in failures] == [pulsar.AuthorizationError]
    assert "hold: LOOKUP dropped, answered in the peer's place" in proxy.said
