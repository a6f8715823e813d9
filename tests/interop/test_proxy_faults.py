"""What the official clients do when `pwire proxy` disturbs what passes between them and a real broker."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from interop.brokers import Broker
from interop.sessions import Client, Java, Proxy, Wheel
from interop.test_cluster import admin

from pulsarctl_wire.wire.frame import Connection, Frame, build_frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata

if TYPE_CHECKING:
    from interop.conftest import Pwire

TAP = ("--tap", "-o", "json", "--seed", 1)


def with_faults(pwire: Pwire, broker: Broker, *faults: str) -> Proxy:
    options = [word for fault in faults for word in ("--fault", fault)]
    return Proxy(pwire, broker.url, *TAP, *options)


def disturbed(
    pwire: Pwire, broker: Broker, client: Client, topic: str, *faults: str, **asked: object
) -> tuple[dict[str, Any], Proxy]:
    """What comes of a session of three messages, or another one, and the proxy, which has ended."""
    with with_faults(pwire, broker, *faults) as proxy:
        said = client.run(proxy.url, topic, **({"produce": 3} | asked))
        assert proxy.interrupt() == 0, proxy.said
    assert "fell behind" not in proxy.said
    return said, proxy


def sends(proxy: Proxy) -> list[int]:
    """Sequence ids of what was sent, in order."""
    return [frame["fields"]["sequence_id"] for frame in proxy.frames("SEND")]


def epochs(proxy: Proxy) -> list[int]:
    """One for each time that the producer was opened."""
    return [frame["fields"].get("epoch", 0) for frame in proxy.frames("PRODUCER")]


def connections(proxy: Proxy) -> int:
    return len(proxy.frames("CONNECT"))


ALL = [None] * 3


def resent(proxy: Proxy, said: dict[str, Any], first: int) -> None:
    """Check that a producer opened anew sent all again, from `first` or before, unseen by the application."""
    assert said["sent"] == ALL
    assert len(epochs(proxy)) > 1
    assert epochs(proxy) == sorted(set(epochs(proxy)))
    again: list[int] = []
    for frame in proxy.frames("PRODUCER", "SEND"):  # what the last producer sent
        again = [] if frame["command"] == "PRODUCER" else [*again, frame["fields"]["sequence_id"]]
    assert again == [0, 1, 2][again[0] :]
    assert first in again


def resent_elsewhere(proxy: Proxy, said: dict[str, Any], first: int) -> None:
    """Check that all was sent again, and over another connection."""
    resent(proxy, said, first)
    opened = proxy.frames("PRODUCER")
    assert opened[-1]["connection"] != opened[0]["connection"]


def test_a_dropped_receipt(broker: Broker, topic: str, pwire: Pwire, client: Client) -> None:
    said, proxy = disturbed(pwire, broker, client, topic, "drop command=SEND_RECEIPT nth=1")
    assert "#1 drop: SEND_RECEIPT producer " in proxy.said
    resent_elsewhere(proxy, said, 0)


def test_no_receipts(broker: Broker, topic: str, pwire: Pwire, client: Client) -> None:
    said, proxy = disturbed(pwire, broker, client, topic, "drop command=SEND_RECEIPT", send_timeout=1000)
    assert said["sent"] == ["TimeoutException" if isinstance(client, Java) else "Timeout"] * 3
    assert len(epochs(proxy)) == 1


def test_receipts_twice(broker: Broker, topic: str, pwire: Pwire, client: Client) -> None:
    said, proxy = disturbed(pwire, broker, client, topic, "duplicate command=SEND_RECEIPT")
    assert said["sent"] == ALL
    assert sends(proxy) == [0, 1, 2]
    assert len(proxy.frames("SEND_RECEIPT")) == 6
    assert epochs(proxy) == [0]


def test_receipts_in_another_order(broker: Broker, topic: str, pwire: Pwire, client: Client) -> None:
    said, proxy = disturbed(pwire, broker, client, topic, "reorder command=SEND_RECEIPT nth=1")
    assert [frame["fields"]["sequence_id"] for frame in proxy.frames("SEND_RECEIPT")][:2] == [1, 0]
    resent_elsewhere(proxy, said, 2)


def test_a_dropped_message(broker: Broker, topic: str, pwire: Pwire, client: Client) -> None:
    said, proxy = disturbed(pwire, broker, client, topic, "drop command=SEND nth=2")
    resent_elsewhere(proxy, said, 1)


def test_a_damaged_message_to_the_broker(broker: Broker, topic: str, pwire: Pwire, client: Client) -> None:
    """The wheel tells the application; Java looks at what it has itself, and sends that again."""
    said, proxy = disturbed(pwire, broker, client, topic, "flip command=SEND nth=1", produce=1)
    (error,) = proxy.frames("SEND_ERROR")
    assert error["fields"]["error"] == "ChecksumError"
    if isinstance(client, Java):
        assert said["sent"] == [None]
        assert [frame["checksum"] for frame in proxy.frames("SEND")] == ["invalid", "valid"]
    else:
        assert said["sent"] == ["ChecksumError"]
        assert [frame["checksum"] for frame in proxy.frames("SEND")] == ["invalid"]
    assert epochs(proxy) == [0]


def test_a_damaged_message_with_the_right_checksum(
    broker: Broker, topic: str, pwire: Pwire, client: Client
) -> None:
    """Nobody can know."""
    asked = {"consumers": 1, "consume": 3}
    said, proxy = disturbed(pwire, broker, client, topic, "flip command=SEND nth=2 crc=fix", **asked)
    assert said["sent"] == ALL
    texts = [text for text, _ in said["received"][0]]
    assert (texts[0], texts[2]) == ("0", "2")
    assert texts[1] != "1"
    assert {frame["checksum"] for frame in proxy.frames("SEND", "MESSAGE")} == {"valid"}


def test_a_damaged_message_to_the_client(broker: Broker, topic: str, pwire: Pwire, client: Client) -> None:
    """It is lost: the client tells the broker that it is damaged, and for the broker that acknowledges it."""
    asked = {"consumers": 1, "consume": 2}
    said, proxy = disturbed(pwire, broker, client, topic, "flip command=MESSAGE nth=1", **asked)
    assert [text for text, _ in said["received"][0]] == ["1", "2"]
    refused = [frame for frame in proxy.frames("ACK") if "validation_error" in frame["fields"]]
    assert [frame["fields"]["validation_error"] for frame in refused] == ["ChecksumMismatch"]
    stats = broker.rest("GET", f"{admin(topic)}/stats")
    assert stats["subscriptions"]["s"]["msgBacklog"] == 0
    said = client.run(broker.url, topic, produce=1, first=3, consumers=1, consume=1)
    assert [text for text, _ in said["received"][0]] == ["3"]


def test_swallowed_pongs(broker: Broker, topic: str, pwire: Pwire, java_client: Java) -> None:
    """Java, which can be told to ask each second, closes when two are over."""
    with with_faults(pwire, broker, "swallow command=PONG direction=to-client") as proxy:
        said = java_client.run(proxy.url, topic, produce=3, pause=1500, keep_alive=1)
        assert proxy.interrupt() == 0, proxy.said
    assert said["sent"] == ALL
    assert proxy.frames("PING")
    assert len(epochs(proxy)) > 1
    assert connections(proxy) > 1


@pytest.mark.parametrize("error", ["ServiceNotReady", "ProducerBusy"])
def test_a_producer_that_is_refused(
    broker: Broker, topic: str, pwire: Pwire, client: Client, error: str
) -> None:
    fault = f"answer command=PRODUCER error={error} times=2"
    said, proxy = disturbed(pwire, broker, client, topic, fault)
    if error == "ProducerBusy":
        assert said["error"] == ("ProducerBusyException" if isinstance(client, Java) else "ProducerBusy")
        assert not proxy.frames("PRODUCER")
        assert "#1 answer: PRODUCER request" in proxy.said
    else:
        assert said["sent"] == ALL
        assert epochs(proxy) == [2]
    errors = [frame["fields"]["error"] for frame in proxy.frames("ERROR")]
    assert errors == [error] * (1 if error == "ProducerBusy" else 2)


def test_a_loop_of_redirects(broker: Broker, topic: str, pwire: Pwire, client: Client) -> None:
    said, proxy = disturbed(pwire, broker, client, topic, "redirect-loop", operation_timeout=1000)
    if isinstance(client, Java):
        assert "Too many redirects" in said["text"]
    else:
        assert said["error"] == "TooManyLookupRequestException"
    answers = {frame["fields"]["response"] for frame in proxy.frames("LOOKUP_RESPONSE")}
    assert answers == {"Redirect"}
    assert not proxy.frames("PRODUCER", "LOOKUP")


def test_a_black_hole(broker: Broker, topic: str, pwire: Pwire, client: Client) -> None:
    asked = {"send_timeout": 1000, "operation_timeout": 2000}
    said, proxy = disturbed(pwire, broker, client, topic, "blackhole command=SEND nth=2", **asked)
    timeout = "TimeoutException" if isinstance(client, Java) else "Timeout"
    assert said["sent"][1:] == [timeout] * 2
    assert sends(proxy) == [0]
    assert epochs(proxy) == [0]


@pytest.mark.parametrize("end", ["disconnect", "reset"])
@pytest.mark.parametrize("what", ["command=SEND nth=2", "command=SEND nth=2 bytes=20"])
def test_a_connection_that_ends(
    broker: Broker, topic: str, pwire: Pwire, client: Client, end: str, what: str
) -> None:
    said, proxy = disturbed(pwire, broker, client, topic, f"{end} {what}")
    assert said["sent"] == ALL
    assert len(epochs(proxy)) == 2
    assert connections(proxy) > 1


@pytest.mark.parametrize(
    "faults",
    [
        ["delay time=20ms jitter=10ms"],
        ["bandwidth rate=20KB/s"],
        ["slice size=7 variation=3 pause=1ms"],
        ["delay time=20ms", "slice size=50", "bandwidth rate=100KB/s"],
    ],
    ids=lambda faults: "-".join(fault.split()[0] for fault in faults),
)
def test_a_slow_network(broker: Broker, topic: str, pwire: Pwire, client: Client, faults: list[str]) -> None:
    """All works, only later."""
    asked = {"produce": 20, "consumers": 1, "consume": 20}
    said, proxy = disturbed(pwire, broker, client, topic, *faults, **asked)
    assert said["sent"] == [None] * 20
    assert [text for text, _ in said["received"][0]] == [str(number) for number in range(20)]
    assert epochs(proxy) == [0]
    assert not proxy.frames("CLOSE_CONSUMER", "CLOSE_PRODUCER")[2:]


def test_a_stale_epoch(
    broker: Broker, topic: str, pwire: Pwire, java_client: Java, wheel_client: Wheel
) -> None:
    """Java drops what it takes for the answer to an older wish for redelivery, and goes on with the rest."""
    with with_faults(pwire, broker, "stale-epoch command=MESSAGE times=3") as proxy:
        java_client.ask(proxy.url, topic, produce=3, consumers=1, consume=3, again=1)
        proxy.until_frames(6, "MESSAGE")
        wheel_client.run(broker.url, topic, produce=1, first=3)
        received = java_client.answer()["received"]
        assert proxy.interrupt() == 0, proxy.said
    assert [[text for text, _ in messages] for messages in received] == [["0", "1", "2"], ["3"]]
    epochs = [frame["fields"]["consumer_epoch"] for frame in proxy.frames("MESSAGE")]
    assert epochs == [0] * 6 + [1]


def test_a_message_twice(broker: Broker, topic: str, pwire: Pwire, client: Client) -> None:
    """It is delivered twice; by the wheel not, if it has been acknowledged by then."""
    asked = {"consumers": 1, "consume": 3}
    said, proxy = disturbed(pwire, broker, client, topic, "duplicate command=MESSAGE nth=1", **asked)
    assert len(proxy.frames("MESSAGE")) == 4
    texts = [text for text, _ in said["received"][0]]
    assert texts == ["0", "0", "1", "2"] or (isinstance(client, Wheel) and texts == ["0", "1", "2"])


# -- answers in the broker's place


def test_a_send_that_is_refused(broker: Broker, topic: str, pwire: Pwire, client: Client) -> None:
    """Java keeps the connection, unless receipts of later messages reach it."""
    said, proxy = disturbed(pwire, broker, client, topic, "answer command=SEND error=PersistenceError nth=1")
    assert [frame["fields"]["error"] for frame in proxy.frames("SEND_ERROR")] == ["PersistenceError"]
    resent(proxy, said, 0)


def test_a_lookup_that_is_refused(broker: Broker, topic: str, pwire: Pwire, client: Client) -> None:
    fault = "answer command=LOOKUP error=ServiceNotReady times=1"
    said, proxy = disturbed(pwire, broker, client, topic, fault)
    assert said["sent"] == ALL
    assert [frame["fields"]["response"] for frame in proxy.frames("LOOKUP_RESPONSE")] == ["Failed", "Connect"]
    assert connections(proxy) == 2


def test_credentials_that_are_refused(broker: Broker, topic: str, pwire: Pwire, client: Client) -> None:
    """The wheel does not tell why."""
    fault = "answer command=CONNECT error=AuthenticationError message=never"
    said, proxy = disturbed(pwire, broker, client, topic, fault, operation_timeout=2000)
    assert said["error"] == ("AuthenticationException" if isinstance(client, Java) else "Timeout")
    assert ("never" in said["text"]) == isinstance(client, Java)
    assert {frame["command"] for frame in proxy.frames()} == {"ERROR"}


def test_a_consumer_that_is_refused(broker: Broker, topic: str, pwire: Pwire, client: Client) -> None:
    fault = "answer command=SUBSCRIBE error=ConsumerBusy"
    said, proxy = disturbed(pwire, broker, client, topic, fault, consumers=1)
    assert said["error"] == ("ConsumerBusyException" if isinstance(client, Java) else "ConsumerBusy")
    assert len(proxy.frames("ERROR")) == 1


# -- scenarios

SCENARIO = """
faults:
  - duplicate: {command: SEND, probability: 0.2}
  - flip: {command: SEND, probability: 0.3, crc: fix, bits: 3}
  - drop: {command: SEND_RECEIPT, probability: 0.3}
  - reorder: {command: SEND_RECEIPT, every: 7, hold: 1m}
  - delay: {time: 1ms, jitter: 1ms}
"""


def scripted(url: str, topic: str) -> None:
    """Produce fifty messages, over one connection, without looking at what comes of them."""
    connect = BaseCommand(type=BaseCommand.CONNECT)
    connect.connect.client_version, connect.connect.protocol_version = "scripted", 21
    producer = BaseCommand(type=BaseCommand.PRODUCER)
    producer.producer.topic, producer.producer.producer_id, producer.producer.request_id = topic, 1, 1
    producer.producer.producer_name = "scripted"
    frames = [build_frame(connect), build_frame(producer)]
    for number in range(50):
        send = BaseCommand(type=BaseCommand.SEND)
        send.send.producer_id, send.send.sequence_id = 1, number
        metadata = MessageMetadata(producer_name="scripted", sequence_id=number, publish_time=1)
        frames.append(build_frame(send, metadata, b"payload %d" % number))
    close = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
    close.close_producer.producer_id, close.close_producer.request_id = 1, 2
    where = urlsplit(url)
    stream = FrameStream(Connection(0), False)
    with socket.create_connection((where.hostname or "", where.port or 0), 20) as sock:
        for commands, last in ((frames[:1], "CONNECTED"), (frames[1:2], "PRODUCER_SUCCESS")):
            sock.sendall(b"".join(commands))
            _until(sock, stream, last)
        sock.sendall(b"".join(frames[2:]) + build_frame(close))
        _until(sock, stream, "SUCCESS")


def _until(sock: socket.socket, stream: FrameStream, command: str) -> None:
    while True:
        data = sock.recv(65536)
        assert data, command
        if command in [frame.command for frame in stream.feed(data) if isinstance(frame, Frame)]:
            return


def test_a_scenario_again(broker: Broker, topic: str, pwire: Pwire, tmp_path: Path) -> None:
    """The same traffic becomes the same by the same seed, and by another one something else."""
    path = tmp_path / "scenario.yaml"

    def played(seed: int, name: str) -> list[Any]:
        path.write_text(f"seed: {seed}\n{SCENARIO}")
        broker.rest("PUT", admin(f"{topic}-{name}"))  # it serves it then, without being asked by LOOKUP
        with Proxy(pwire, broker.url, "--tap", "-o", "json", "--scenario", path) as proxy:
            scripted(proxy.url, f"{topic}-{name}")
            assert proxy.interrupt() == 0, proxy.said
        assert f"seed {seed}" in proxy.said
        return [
            [comparable(each) for each in proxy.frames() if each["to_broker"] is way] for way in (True, False)
        ]

    first = played(1, "first")
    assert played(1, "again") == first
    assert played(2, "other") != first
    plain = [command for command, *_ in first[0]]
    assert plain.count("SEND") > 50
    assert sum(command == "SEND_RECEIPT" for command, *_ in first[1]) < 50


OWN = ("message_id", "highest_sequence_id", "topic")
"""The second one is -1, or 0 when the broker uses a record again."""


def comparable(frame: dict[str, Any]) -> tuple[Any, ...]:
    """A frame without what the broker's own state is in, and the topic."""
    fields = {name: value for name, value in frame["fields"].items() if name not in OWN}
    return frame["command"], fields, frame["checksum"], frame["messages"]


# -- changed while it runs


def test_control(broker: Broker, topic: str, pwire: Pwire, client: Client, tmp_path: Path) -> None:
    """What the client does not mind is put into force, listed and taken out of force while it sends."""
    path = tmp_path / "ctl"

    def ctl(*words: str) -> list[str]:
        done = pwire("proxy", "ctl", "fault", *words[:1], "--control", path, *words[1:], url="")
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    with Proxy(pwire, broker.url, *TAP, "--control", path) as proxy:
        assert ctl("list") == []
        client.ask(proxy.url, topic, produce=200, pause=20)
        proxy.until_frames(20, "SEND_RECEIPT")
        assert ctl("add", "duplicate command=SEND_RECEIPT") == ["1"]
        assert ctl("add", "delay", "time=1ms") == ["2"]
        assert int(ctl("wait", "1", "--hits", "2")[0]) >= 2
        proxy.says("#1 duplicate: SEND_RECEIPT")
        first, second = ctl("list")
        assert re.fullmatch(r"1  duplicate command=SEND_RECEIPT  (\d+) matched, \1 hit", first)
        assert second.startswith("2  delay time=1ms  ")
        assert ctl("remove", "1") == []
        assert [line[:8] for line in ctl("list")] == ["2  delay"]
        assert client.answer()["sent"] == [None] * 200
        assert ctl("clear") == []
        assert ctl("list") == []
        done = pwire("proxy", "ctl", "fault", "remove", "--control", path, 1, url="")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "pwire: there is no fault 1; see ctl fault list\n"
        assert proxy.interrupt() == 0, proxy.said
    assert len(proxy.frames("SEND_RECEIPT")) > 200
