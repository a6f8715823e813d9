"""Programs for the differential test (differential.py): what they are, and random ones.

A program is a list of steps, which are plain values. A step is a client, a command and its fields, by their
names in PulsarApi.proto:

    ["a", "SUBSCRIBE", {"consumer_id": 1, "subscription": "s", "subType": "Shared"}]

There are no topics and request ids. A message id is the number of the entry that the producers stored (0, 1,
…), "earliest", "latest" or "unknown"; [2, 3, 5] is that of entry 2 with batch_size 3 and ack_set 5. SEND may
also have `key`, and `batch_size`, the number of messages; an ACK with `answer` asks for one. Other steps than
commands:

    ["a", "CUT", {}] and ["a", "KILL", {}]       end the client's connection by FIN and by RST
    ["admin", "PUT unload", {}]                  is a request of the admin API, below the path of the topic

A client connects when it needs to.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

TOPICS = {"plain": "persistent", "partition": "persistent", "nonpersistent": "non-persistent"}
"""Kind of topic -> its domain. The partition is the second one of three."""

Step = list[Any]


class Program(NamedTuple):
    """`setting` is a key of probe.SETTINGS, `topic` one of `TOPICS`."""

    setting: str
    topic: str
    steps: list[Step]


_CLIENTS = ("a", "b")
_ACCESS = ("Shared", "Shared", "Shared", "Exclusive", "WaitForExclusive", "ExclusiveWithFencing")


class _Draft:
    """A program that is being written; knows what is probably open."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.topic = self.one(*TOPICS, "plain", "plain", "plain")
        kinds = ["Exclusive", "Shared", "Key_Shared"] + ["Failover"] * (self.topic == "partition")
        self.kind = self.one(*kinds)
        self.steps: list[Step] = []
        self.producers: list[tuple[str, int]] = []
        self.consumers: list[tuple[str, int]] = []
        self.entries: list[int] = []
        """The numbers of messages in each entry, 0 if it is no batch."""

    def one(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def rarely(self) -> bool:
        return bool(self.draw(st.integers(0, 9)) == 9)

    def add(self, client: str, name: str, **fields: Any) -> None:
        self.steps.append([client, name, fields])

    def who(self, known: list[tuple[str, int]]) -> tuple[str, int]:
        usual = known if known and not self.rarely() else [(self.one(*_CLIENTS), self.one(1, 2))]
        chosen: tuple[str, int] = self.one(*usual)
        return chosen

    def message(self) -> Any:
        """A message id."""
        if not self.entries or self.rarely():
            return self.one("unknown", 0)
        number = self.draw(st.integers(0, len(self.entries) - 1))
        size = self.entries[number]
        if size and self.one(True, False):
            return [number, size, self.draw(st.integers(0, (1 << size) - 1))]
        return number

    # -- steps

    def producer(self) -> None:
        client, number = self.one(*_CLIENTS), self.one(1, 1, 1, 2)
        named = {"producer_name": self.one("p", "q")} if self.rarely() else {}
        epoch = {"epoch": self.one(1, 2)} if named and self.rarely() else {}
        access = self.one(*_ACCESS) if self.rarely() else "Shared"
        self.add(client, "PRODUCER", producer_id=number, producer_access_mode=access, **named, **epoch)
        self.producers.append((client, number))

    def send(self) -> None:
        if not self.producers:
            self.producer()
        for _ in range(self.one(1, 1, 2, 3)):
            client, number = self.who(self.producers) if self.rarely() else self.one(*self.producers)
            fields: dict[str, Any] = (
                {"key": self.one("k0", "k1", "k2", "k3")} if self.kind == "Key_Shared" else {}
            )
            size = self.one(0, 0, 2, 3)
            if size:
                fields["batch_size"] = size
            self.add(client, "SEND", producer_id=number, **fields)
            self.entries.append(size)

    def close_producer(self) -> None:
        client, number = self.who(self.producers)
        self.add(client, "CLOSE_PRODUCER", producer_id=number)
        self.producers = [each for each in self.producers if each != (client, number)]

    def subscribe(self) -> None:
        client, number = self.one(*_CLIENTS), self.one(1, 1, 1, 2)
        kind = self.kind
        if self.rarely():
            kind = self.one("Exclusive", "Shared", "Key_Shared")
        fields: dict[str, Any] = {"subType": kind, "consumer_name": f"{client}{number}"}
        fields["subscription"] = "r" if self.rarely() else "s"
        fields["initialPosition"] = self.one("Earliest", "Earliest", "Latest")
        if self.rarely():
            fields |= {"durable": False, "subscription": "reader"}
            if self.one(True, False):
                fields["start_message_id"] = self.one("earliest", "latest", self.message())
        if kind in ("Shared", "Failover") and self.rarely():
            fields["priority_level"] = self.one(1, 2)
        self.add(client, "SUBSCRIBE", consumer_id=number, **fields)
        self.consumers.append((client, number))
        if not self.rarely():
            self.add(client, "FLOW", consumer_id=number, messagePermits=self.permits())

    def permits(self) -> int:
        """Plenty for Key_Shared: Pulsar does not always go on when a consumer has permits again."""
        return 100 if self.kind == "Key_Shared" else self.one(1, 2, 3, 10, 100)

    def of_consumer(self, name: str, **fields: Any) -> None:
        client, number = self.who(self.consumers)
        self.add(client, name, consumer_id=number, **fields)

    def flow(self) -> None:
        self.of_consumer("FLOW", messagePermits=self.permits())

    def ack(self) -> None:
        cumulative = self.rarely() or (self.kind in ("Exclusive", "Failover") and self.one(True, False))
        ids = [self.message() for _ in range(1 if cumulative else self.one(1, 1, 2, 3))]
        if cumulative and isinstance(ids[0], list) and not ids[0][2]:
            # No client has an ack set of a whole batch. Pulsar 4.0.8 delivers that again, without permits
            ids = ids[0][:1]
        kind = "Cumulative" if cumulative else "Individual"
        answer = {"answer": True} if self.one(True, False) else {}
        self.of_consumer("ACK", ack_type=kind, message_id=ids, **answer)

    def redeliver(self) -> None:
        ids = [self.message() for _ in range(self.one(0, 0, 1, 2))]
        self.of_consumer("REDELIVER_UNACKNOWLEDGED_MESSAGES", message_ids=ids)

    def seek(self) -> None:
        if self.rarely():
            self.of_consumer("SEEK", message_publish_time=self.one(0, 1_700_000_000_000, 1 << 45))
        else:
            self.of_consumer("SEEK", message_id=self.one("earliest", "latest", self.message()))
        self.subscribe()

    def close_consumer(self) -> None:
        client, number = self.who(self.consumers)
        self.add(client, "CLOSE_CONSUMER", consumer_id=number)
        self.consumers = [each for each in self.consumers if each != (client, number)]

    def unsubscribe(self) -> None:
        self.of_consumer("UNSUBSCRIBE", **({"force": True} if self.one(True, False) else {}))

    def last_id(self) -> None:
        self.of_consumer("GET_LAST_MESSAGE_ID")

    def stats(self) -> None:
        if self.consumers:
            client, number = self.one(*self.consumers)
            self.add(client, "CONSUMER_STATS", consumer_id=number)

    def end(self) -> None:
        client = self.one(*_CLIENTS)
        self.add(client, self.one("CUT", "KILL"))
        self.producers = [each for each in self.producers if each[0] != client]
        self.consumers = [each for each in self.consumers if each[0] != client]

    def unload(self) -> None:
        self.add("admin", "PUT unload")
        self.producers, self.consumers = [], []
        if self.one(True, False):
            self.subscribe()

    def admin(self) -> None:
        calls = _CALLS if self.topic == "nonpersistent" else _CALLS + _STORED_CALLS
        self.add("admin", self.one(*calls))


_USUAL = (
    "producer",
    "send",
    "send",
    "send",
    "subscribe",
    "subscribe",
    "flow",
    "flow",
    "ack",
    "ack",
    "ack",
    "redeliver",
)
_CALLS = ("PUT subscription/r", "DELETE subscription/s", "DELETE subscription/s?force=true", "POST terminate")
_STORED_CALLS = (
    "POST subscription/s/skip_all",
    "POST subscription/s/skip/1",
    "POST subscription/s/resetcursor/0",
)
"""Of topics that store messages: for others a real broker answers 500."""
_OTHER = (
    "admin",
    "close_producer",
    "close_consumer",
    "seek",
    "unsubscribe",
    "last_id",
    "stats",
    "end",
    "unload",
)


@st.composite
def programs(draw: Any, setting: str = "default") -> Program:
    """Programs of mostly sensible steps.

    None unloads a topic in the setting "batchack": a real broker then forgets which messages of a batch were
    acknowledged, which the embedded one keeps on purpose.
    """
    draft = _Draft(draw)
    others = [step for step in _OTHER if step != "unload" or setting != "batchack"]
    if draft.one(True, False):
        draft.subscribe()
    for _ in range(draw(st.integers(3, 12))):
        getattr(draft, draft.one(*_USUAL, *_USUAL, *others))()
    return Program(setting, draft.topic, draft.steps)


def random_programs(number: int, of: int, setting: str) -> list[Program]:
    """So many random programs; the seed `of` decides which."""
    found: list[Program] = []

    @seed(of)
    @settings(
        max_examples=number,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(programs(setting))
    def collect(program: Program) -> None:
        found.append(program)

    collect()
    return found
