"""Scripts between the official Python client and a broker."""

from __future__ import annotations

from pathlib import Path

import pulsar
from interop.brokers import Broker
from interop.conftest import Pwire
from interop.sessions import Proxy

SCRIPT = """
from pulsarctl_wire.scripting import Frame

def on_frame(frame):
    if frame.command == "SEND" and frame.to_broker:
        frame.payload = frame.payload.upper()
        if b"TWICE" in frame.payload:
            return [frame, Frame.make("PING", to_broker=True)]
    if frame.command in ("LOOKUP", "PARTITIONED_METADATA", "PRODUCER"):
        frame.body.topic += "-renamed"
    if frame.command == "CONNECT":
        1 / 0
"""


def test_the_client_behind_a_script(broker: Broker, topic: str, pwire: Pwire, tmp_path: Path) -> None:
    """What the script has changed is at the broker, and what it has broken goes on."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    with Proxy(pwire, broker.url, "--tap", "-o", "json", "--script", path) as proxy:
        client = pulsar.Client(proxy.url)
        producer = client.create_producer(topic, batching_enabled=False)
        producer.send(b"hello")
        producer.send(b"twice")
        client.close()
        assert proxy.interrupt() == 0, proxy.said
    assert "script.py: SEND: changed" in proxy.said
    assert "script.py: line 12: ZeroDivisionError: division by zero; CONNECT goes on as it came" in proxy.said
    assert [frame["checksum"] for frame in proxy.frames("SEND")] == ["valid"] * 2
    assert "script.py: SEND: PING added" in proxy.said
    client = pulsar.Client(broker.url)
    consumer = client.subscribe(f"{topic}-renamed", "s", initial_position=pulsar.InitialPosition.Earliest)
    assert [consumer.receive(10_000).data() for _ in range(2)] == [b"HELLO", b"TWICE"]
    client.close()
