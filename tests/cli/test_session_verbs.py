"""Verbs that speak to a broker, run whole against one that does as the test says."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from base64 import b64decode
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st
from net.scripted import (
    LEDGER,
    Peer,
    Reaction,
    ScriptedBroker,
    acked,
    answer,
    awaited,
    build,
    connect_to,
    deliver,
    entry,
    nobody,
    refuse_lookup,
    run,
)
from pwire_run import pwire as pwire_here

from pulsarctl_wire.cli.session.cluster import ClusterOptions, cluster
from pulsarctl_wire.cli.session.last import find_start
from pulsarctl_wire.cli.session.verb import ConnectOptions, Session
from pulsarctl_wire.net.session.acks import Position
from pulsarctl_wire.net.session.receive_queue import LATEST
from pulsarctl_wire.record import MAX_SHOWN
from pulsarctl_wire.wire.fields import to_signed
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.payload import MAX_PAYLOAD
from pulsarctl_wire.wire.PulsarApi_pb2 import CompressionType

TOPIC = "persistent://public/default/t"
_PWIRE = [sys.executable, "-c", "from pulsarctl_wire.cli import main; main()"]


class Done(NamedTuple):
    code: int
    out: list[str]
    err: list[str]

    @property
    def records(self) -> list[Any]:
        return [json.loads(line) for line in self.out]


async def start(*args: object, url: str = "") -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *_PWIRE,
        *map(str, args),
        *(["--url", url] if url else []),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def pwire(*args: object, url: str = "", mebibytes: int | None = None) -> Done:
    """Run `pwire ARGS --url URL` to its end; it gets so much memory."""
    process = await start(*args, url=url)
    if mebibytes is not None:
        resource.prlimit(process.pid, resource.RLIMIT_AS, (mebibytes * 2**20,) * 2)
    out, err = await process.communicate()
    assert process.returncode is not None
    return Done(process.returncode, out.decode().splitlines(), err.decode().splitlines())


# ---- No connection ----

VERBS = [
    *(["produce", "t", "-m", "a"], ["consume", "t", "-s", "s"], ["read", "t"], ["read", "t", "--from", "-5"]),
    *(["lookup", "t"], ["partitions", "t"], ["topics"], ["cluster"], ["watch"], ["ping"]),
    *(["seek", "t", "-s", "s", "--to", "latest"], ["unsubscribe", "t", "-s", "s"], ["last-id", "t"]),
    *(["consumer-stats", "t", "-s", "s"], ["schema", "get", "t"], ["txn", "--produce", "t", "-m", "a"]),
    ["send", "/dev/null"],
]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_verb_says_why_it_cannot_connect(verb: list[str]) -> None:
    """Host, port and reason, in one line; the exit code is 6."""
    with nobody() as address:
        done = pwire_here(*verb, "--url", f"pulsar://{address}")
        assert done.code == 6
        assert len(done.err.splitlines()) == 1
        assert done.err.startswith(f"pwire: {address}: refused")


# ---- topics ----


@pytest.mark.parametrize("refused", [True, False])
@awaited
async def test_topics_of_a_namespace_that_is_not_there(refused: bool) -> None:
    """Brokers list no topics of it; whether it is there LOOKUP tells. An empty one is no error."""
    async with ScriptedBroker() as broker:
        if refused:
            broker.always("LOOKUP", refuse_lookup("TopicNotFound", "Namespace not found"))
        done = await pwire("topics", "public/nope", url=broker.url)
        assert done.out == []
        assert done.code == (7 if refused else 0)
        said = "pwire: GET_TOPICS_OF_NAMESPACE of public/nope refused, TopicNotFound: Namespace not found"
        assert done.err == ([f"{said} (no such namespace)"] if refused else [])


@awaited
async def test_topics_refused_for_its_namespace() -> None:
    """In other modes than the default it is refused, with a code for which others are tried again."""
    async with ScriptedBroker() as broker:
        refusal = {"error": 1, "message": "Namespace not found"}
        broker.always("GET_TOPICS_OF_NAMESPACE", answer("ERROR", **refusal))
        broker.always("LOOKUP", refuse_lookup("TopicNotFound", "Namespace not found"))
        done = await pwire("topics", "public/nope", "--mode", "all", url=broker.url)
        assert (done.code, len(done.err)) == (7, 1)
        assert len(broker.seen("GET_TOPICS_OF_NAMESPACE")) == 1


# ---- cluster ----


def partitions(counts: dict[str, int]) -> Reaction:
    return lambda peer, frame: build(
        "PARTITIONED_METADATA_RESPONSE",
        request_id=frame.body.request_id,
        partitions=counts[frame.body.topic],
        response=0,
    )


@awaited
async def test_cluster() -> None:
    """Brokers, topics, partitions, owners; an owner that is not known says why, and is the exit code."""
    async with ScriptedBroker() as broker:
        names = [f"{TOPIC}1", f"{TOPIC}2-partition-0", f"{TOPIC}2-partition-1", f"{TOPIC}3-partition-7"]
        broker.always("GET_TOPICS_OF_NAMESPACE", answer("GET_TOPICS_OF_NAMESPACE_RESPONSE", topics=names))
        broker.always("PARTITIONED_METADATA", partitions({f"{TOPIC}2": 2, f"{TOPIC}3": 0}))
        other = "pulsar://other:6650"

        def lookup(peer: Peer, frame: Frame) -> Any:
            if frame.body.topic == names[3]:
                return refuse_lookup("AuthorizationError")(peer, frame)
            url = broker.url if frame.body.topic == names[0] else other
            return connect_to(brokerServiceUrl=url)(peer, frame)

        broker.always("LOOKUP", lookup)
        done = await pwire("cluster", broker.url)
        assert done.code == 7
        refused = f"unknown: LOOKUP of {names[3]} refused, AuthorizationError: refused on purpose"
        assert done.out == [
            f"{broker.address}: scripted, protocol version 21",
            "2 brokers",
            *sorted([f"  {other} serves 2", f"  {broker.url} serves 1"]),
            "3 topics of public/default",
            f"  {names[0]} → {broker.url}",
            f"  {TOPIC}2, 2 partitions",
            f"    0 → {other}",
            f"    1 → {other}",
            f"  {names[3]} → {refused} (the role of these credentials lacks the permission)",
        ]
        assert {body.metadata_auto_creation_enabled for body in broker.bodies("PARTITIONED_METADATA")} == {
            False
        }

        first, second, third, summary = (await pwire("cluster", "-o", "json", url=broker.url)).records
        assert first == {
            **{"topic": names[0], "partitions": 0},
            "owners": [{"partition": None, "broker_service_url": broker.url, "error": None}],
        }
        assert [each["partition"] for each in second["owners"]] == [0, 1]
        assert "AuthorizationError" in third["owners"][0]["error"]
        assert summary == {
            **{"asked": str(broker.address), "server": "scripted", "protocol_version": 21},
            **{"namespace": "public/default", "topics": 3, "brokers": {broker.url: 1, other: 2}},
        }


@awaited
async def test_cluster_with_more_partitions_than_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a broker says of its partitions costs no more than so many lookups; how many are left is said."""
    monkeypatch.setattr(sys.modules[cluster.__module__], "MAX_TOPICS", 100)
    async with ScriptedBroker() as broker:
        names = [f"{TOPIC}-partition-0"]
        broker.always("GET_TOPICS_OF_NAMESPACE", answer("GET_TOPICS_OF_NAMESPACE_RESPONSE", topics=names))
        broker.always("PARTITIONED_METADATA", partitions({TOPIC: 100_000}))
        with ExitStack() as stack:
            options = ClusterOptions(service=broker.url)
            assert await cluster(Session(ConnectOptions(), stack), options) == 0
        text = "pwire: 99900 more topics and partitions: their owners were not looked up\n"
        assert capsys.readouterr().err == text
        assert len(broker.seen("LOOKUP")) == 100


# ---- consume says that it waits ----


@awaited
async def test_consume_says_that_it_waits() -> None:
    async with ScriptedBroker() as broker:
        process = await start("consume", "t", "-s", "mine", url=broker.url)
        assert process.stderr
        said = (await process.stderr.readline()).decode()
        assert said.startswith(f"pwire: waiting for messages of {TOPIC}, subscription mine; ")
        assert "-p Earliest" in said
        broker.peers[0].send(entry(0, b"a")(broker.bodies("FLOW")[0].consumer_id))
        out, err = await process.communicate()
        assert (out, err) == (b"a\n", b"pwire: 1 message\n")


@pytest.mark.parametrize("comes", [True, False])
@awaited
async def test_consume_does_not_say_so_for_nothing(comes: bool) -> None:
    """Not when something comes, and not with --quiet."""
    async with ScriptedBroker() as broker:
        if comes:
            broker.once("FLOW", deliver(entry(0, b"a")))
        done = await pwire(
            "consume", "t", "-s", "s", "-n", 2, "--idle", 1.2, *(["--quiet"] * (not comes)), url=broker.url
        )
        assert done.err == (["pwire: 1 message"] if comes else [])


# ---- Memory ----


@pytest.mark.skipif(sys.platform != "linux", reason="ulimit -v is Linux's")
@pytest.mark.parametrize(
    ("form", "limit", "opens"),
    [("text", 150, False), ("json", 350, False), ("json", 600, True), ("text", 600, True)],
)
@awaited
async def test_consume_with_too_little_memory(form: str, limit: int, opens: bool) -> None:
    """What cannot be opened or shown (64 MiB, in a process of `limit` MiB) is not acknowledged."""
    payload = zstandard.ZstdCompressor().compress(bytes(MAX_PAYLOAD))
    codec: dict[str, Any] = {"compression": CompressionType.ZSTD, "uncompressed_size": MAX_PAYLOAD}
    async with ScriptedBroker() as broker:
        broker.once("FLOW", deliver(entry(0, payload, **codec), entry(1, b"b")))
        options = ["-n", 0, "--idle", 1, "-o", form]
        done = await pwire("consume", "t", "-s", "s", *options, url=broker.url, mebibytes=limit)
        assert (done.code, len(done.out)) == (0, 1 + opens)
        assert acked(broker) == [(LEDGER, 0)] * opens + [(LEDGER, 1)]
        left = [
            line for line in done.err if "7:0: left unopened and unacknowledged: too little memory" in line
        ]
        assert len(left) == (not opens)


@awaited
async def test_consume_cuts_no_value(tmp_path: Path) -> None:
    """A payload that makes too many values is shown whole, as its bytes, and so is one that is too large."""
    schema = tmp_path / "nulls.avsc"
    schema.write_text('{"type": "array", "items": "null"}')
    nulls = bytes((0x80, 0xB5, 0x18, 0))  # a block of 200,000, and the end
    large = zstandard.ZstdCompressor().compress(bytes(MAX_SHOWN + 1))
    codec: dict[str, Any] = {"compression": CompressionType.ZSTD, "uncompressed_size": MAX_SHOWN + 1}
    async with ScriptedBroker() as broker:
        broker.once("FLOW", deliver(entry(0, nulls), entry(1, large, **codec)))
        options = ["-n", 2, "-o", "json", "--schema", f"avro:{schema}"]
        done = await pwire("consume", "t", "-s", "s", *options, url=broker.url)
        assert done.code == 0
        shown = [json.loads(line) for line in done.out]
        assert [each["view"] for each in shown] == ["hex", "hex"]
        assert [b64decode(each["payload_base64"]) for each in shown] == [nulls, bytes(MAX_SHOWN + 1)]
        assert sum("The bytes are shown instead" in line for line in done.err) == 1
        assert acked(broker) == [(LEDGER, 0), (LEDGER, 1)]


# ---- read --from -N ----


class Topic:
    """A topic of these ledgers, each a list of how many messages its entries hold (0: one that is alone)."""

    def __init__(self, broker: ScriptedBroker, ledgers: dict[int, list[int]]) -> None:
        self.entries = [(ledger, at, n) for ledger, row in ledgers.items() for at, n in enumerate(row)]
        self._starts: dict[int, tuple[int, int]] = {}
        broker.always("SUBSCRIBE", self._subscribe)
        broker.always("FLOW", self._flow)
        last = self.entries[-1] if self.entries else (-1, -1, 0)
        place = {"ledgerId": last[0] & 2**64 - 1, "entryId": last[1] & 2**64 - 1, "batch_index": last[2] - 1}
        broker.always("GET_LAST_MESSAGE_ID", answer("GET_LAST_MESSAGE_ID_RESPONSE", last_message_id=place))

    @property
    def messages(self) -> list[Position]:
        return [
            (ledger, at, index)
            for ledger, at, count in self.entries
            for index in (range(count) if count else [-1])
        ]

    def _subscribe(self, peer: Peer, frame: Frame) -> bytes:
        place = frame.body.start_message_id
        self._starts[frame.body.consumer_id] = to_signed(place.ledgerId), to_signed(place.entryId)
        return build("SUCCESS", request_id=frame.body.request_id)

    def _flow(self, peer: Peer, frame: Frame) -> bytes:
        start = self._starts.pop(
            frame.body.consumer_id, (2**63, 0)
        )  # all at once: permits are not counted here
        return b"".join(
            entry(
                at,
                (b"\0\0\0\2" + b"\x18\0") * count,
                ledger=ledger,
                num_messages_in_batch=count or None,
            )(frame.body.consumer_id)
            for ledger, at, count in self.entries
            if (ledger, at) >= start
        )


@settings(max_examples=25)
@given(
    st.dictionaries(st.integers(0, 5000), st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=5),
    st.integers(1, 12),
)
@example({}, 5)
@example({3: [0] * 30}, 5)
def test_where_the_last_messages_begin(ledgers: dict[int, list[int]], count: int) -> None:
    """Whatever the ledgers are and the batches hold, in entries of any number."""

    async def whole() -> None:
        async with ScriptedBroker() as broker, broker.client() as client:
            topic = Topic(broker, dict(sorted(ledgers.items())))
            expected = topic.messages[-count:][:1] or [LATEST]
            assert await find_start(client, TOPIC, count) == expected[0]

    run(whole())


@awaited
async def test_the_last_messages_are_read() -> None:
    async with ScriptedBroker() as broker:
        Topic(broker, {LEDGER: [3, 0, 0]})
        done = await pwire("read", "t", "--from", "-4", "-f", "%i\n", url=broker.url)
        assert done.out == ["7:0[1]", "7:0[2]", "7:1", "7:2"]
        assert (done.code, len(done.err)) == (0, 1)


@awaited
async def test_the_last_of_a_topic_that_keeps_none() -> None:
    async with ScriptedBroker() as broker:
        done = await pwire("read", "non-persistent://public/default/t", "--from", "-4", url=broker.url)
        assert (done.code, done.out) == (2, [])
        assert "keeps no messages" in done.err[0]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("schema", "get", "t", "--version", "9" * 5_000), "use latest, or a number from 0 on"),
        (("txn", "--commit", "--end", f"{'9' * 5_000}:1"), "use MOST:LEAST, as in 0:12"),
    ],
)
def test_numbers_of_thousands_of_digits(words: tuple[str, ...], complaint: str) -> None:
    run = pwire_here(*words)
    assert run.code == 2
    assert complaint in run.err
