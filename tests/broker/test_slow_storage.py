"""What clients are told while storage has not done yet what they asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pulsarctl_wire.broker.admin.topics import last_confirmed
from pulsarctl_wire.broker.basics.settings import Settings
from pulsarctl_wire.broker.core import Core
from pulsarctl_wire.broker.storage.log import Position
from pulsarctl_wire.conformance.basics.frames import EARLIEST, make_frame
from pulsarctl_wire.wire.frame import Connection, Frame
from pulsarctl_wire.wire.framing.stream import FrameStream

TOPIC = "persistent://public/default/t"


class Client:
    """A client of a broker whose storage does nothing until it is told to."""

    def __init__(self) -> None:
        self.core = Core(Settings())
        self.connection = self.core.connect(self.core.brokers[0], "c")
        self.to_broker, self.from_broker = (FrameStream(Connection(0), way) for way in (True, False))

    def send(self, name: str, **fields: Any) -> None:
        for sent in self.to_broker.feed(make_frame(name, **fields)):
            assert isinstance(sent, Frame)
            self.core.receive(self.connection, sent)
        self.core.wake()

    def answers(self) -> list[str]:
        """Return the commands that have come since the last call."""
        frames = self.from_broker.feed(self.connection.take_out())
        return [each.command for each in frames if isinstance(each, Frame)]

    def store(self) -> None:
        """Let storage do everything."""
        while self.core.journal.take_commit() is not None:
            self.core.on_stored()


def test_who_subscribes_during_a_seek_is_answered_behind_it() -> None:
    """The Java client drops all it has got when SEEK is answered."""
    client = Client()
    consumer = {"topic": TOPIC, "subscription": "s", "subType": 0, "consumer_id": 1}
    client.send("CONNECT", client_version="a test", protocol_version=21)
    client.send("LOOKUP", topic=TOPIC, request_id=1)
    client.send("SUBSCRIBE", request_id=2, **consumer)
    client.store()
    assert client.answers() == ["CONNECTED", "LOOKUP_RESPONSE", "SUCCESS"]
    client.send("SEEK", consumer_id=1, message_id=EARLIEST, request_id=3)
    client.send("SUBSCRIBE", request_id=4, **consumer)
    assert client.answers() == ["CLOSE_CONSUMER"]
    client.store()
    assert client.answers() == ["SUCCESS", "SUCCESS"]


def test_the_last_entry_of_a_ledger_in_which_nothing_is_stored_yet() -> None:
    log = SimpleNamespace(ledgers=[SimpleNamespace(id=1, first=2)], stored_end=0)
    topic: Any = SimpleNamespace(log=log)
    assert last_confirmed(topic) == Position(1, -1)
