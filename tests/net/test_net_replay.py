"""Recorded sessions, played to a scripted broker: what is sent, in which order, what is said to differ."""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import AsyncIterator, Iterator
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from net.scripted import (
    LEDGER,
    NO_REQUEST,
    TOPIC,
    Peer,
    Reaction,
    ScriptedBroker,
    answer,
    awaited,
    build,
    deliver,
    entry,
    followed_by,
    hang_up,
    nobody,
    places,
    refuse,
    refuse_connection,
    silence,
)
from strategies import frames_to_broker, names

from pulsarctl_wire.errors import SettingsError, Unreachable
from pulsarctl_wire.net.replay import comparison, player, replay
from pulsarctl_wire.net.replay.comparison import ReplayTotals
from pulsarctl_wire.net.replay.differences import Difference, find_differences
from pulsarctl_wire.net.replay.remap import Names, Remap
from pulsarctl_wire.net.replay.replay import ConnectionEnded, Pace, Replay
from pulsarctl_wire.net.settings import Auth, Settings, parse_url
from pulsarctl_wire.wire.commands import BODIES, NUMBERS
from pulsarctl_wire.wire.fields import METHODS, SECRETS
from pulsarctl_wire.wire.frame import Connection, Event, Frame, Gap, Malformed
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata
from pulsarctl_wire.wire.session.exchanges import ExchangeState
from pulsarctl_wire.wire.session.knowledge import Knowledge

SENT: Any = {"producer_id": 1, "sequence_id": 0}
RECORDED = 99  # the ledger of what was recorded
ELSEWHERE = "persistent://public/default/other"


class Tape:
    """A recording that is made up: what clients sent and brokers answered, in order."""

    def __init__(self) -> None:
        self.events: list[Event | ConnectionEnded] = []
        self._knowledge = Knowledge(join_chunks=False)
        self._sides: dict[int, tuple[FrameStream, FrameStream]] = {}
        self._sessions: dict[int, ExchangeState] = {}
        self.now = 0

    async def read(self) -> AsyncIterator[list[Event | ConnectionEnded]]:
        """All of it at once."""
        yield self.events

    def _add(self, index: int, to_broker: bool, data: bytes) -> None:
        if index not in self._sides:
            connection = Connection(index, f"10.0.0.1:{5000 + index}", "10.0.0.2:6650")
            self._sides[index] = FrameStream(connection, False), FrameStream(connection, True)
            self._sessions[index] = ExchangeState(connection, self._knowledge, self._sides[index])
        events = self._sides[index][to_broker].feed(data, self.now)
        self._sessions[index].track(events)
        self.events += events

    def sent(self, *frames: bytes, connection: int = 0) -> Tape:
        for each in frames:
            self._add(connection, True, each)
        return self

    def came(self, *frames: bytes, connection: int = 0) -> Tape:
        for each in frames:
            self._add(connection, False, each)
        return self

    def later(self, seconds: float) -> Tape:
        self.now += int(seconds * 1e9)
        return self

    def ended(self, by_broker: bool, connection: int = 0) -> Tape:
        self.events.append(ConnectionEnded(self._sessions[connection].connection, by_broker, self.now))
        return self

    def greeted(self, connection: int = 0, **fields: Any) -> Tape:
        self.sent(build("CONNECT", client_version="c", protocol_version=21, **fields), connection=connection)
        return self.came(connected(), connection=connection)

    def producing(self, name: str = "scripted-1", *, connection: int = 0, **fields: Any) -> Tape:
        self.sent(
            build("PRODUCER", topic=TOPIC, producer_id=1, request_id=1, **fields), connection=connection
        )
        return self.came(producer_success(name), connection=connection)

    def stored(self, number: int, *, name: str = "scripted-1", connection: int = 0, **fields: Any) -> Tape:
        self.sent(sending(number, name, **fields), connection=connection)
        return self.came(receipt_of(number), connection=connection)

    def subscribed(self, consumer: int = 2, *, connection: int = 0, **fields: Any) -> Tape:
        self.sent(subscribing(consumer, **fields), connection=connection)
        self.came(build("SUCCESS", request_id=10 + consumer), connection=connection)
        return self.sent(build("FLOW", consumer_id=consumer, messagePermits=9), connection=connection)


def connected(**fields: Any) -> bytes:
    usual = {"server_version": "recorded", "protocol_version": 21, "max_message_size": 5 * 1024 * 1024}
    return build("CONNECTED", **{**usual, **fields})


def producer_success(name: str = "scripted-1", version: bytes = b"") -> bytes:
    return build("PRODUCER_SUCCESS", request_id=1, producer_name=name, schema_version=version)


def subscribing(consumer: int, **fields: Any) -> bytes:
    usual = {"topic": TOPIC, "subscription": "s", "subType": 0}
    return build("SUBSCRIBE", consumer_id=consumer, request_id=10 + consumer, **{**usual, **fields})


def sending(number: int, name: str = "scripted-1", *, txn: int | None = None, **fields: Any) -> bytes:
    of_txn: dict[str, Any] = {} if txn is None else {"txnid_most_bits": 0, "txnid_least_bits": txn}
    metadata = MessageMetadata(producer_name=name, sequence_id=number, publish_time=5, **fields, **of_txn)
    return build("SEND", metadata, b"payload", producer_id=1, sequence_id=number, **of_txn)


def receipt_of(number: int) -> bytes:
    place = {"ledgerId": RECORDED, "entryId": number}
    return build("SEND_RECEIPT", producer_id=1, sequence_id=number, message_id=place)


def message(number: int, *, consumer: int = 2, payload: bytes = b"", **fields: Any) -> bytes:
    """A recorded MESSAGE, as `scripted.entry` makes those that come."""
    return entry(number, payload, ledger=RECORDED, **fields)(consumer)


def acking(*numbers: int, consumer: int = 2) -> bytes:
    ids = [{"ledgerId": RECORDED, "entryId": number} for number in numbers]
    return build("ACK", consumer_id=consumer, ack_type=0, message_id=ids)


class Played:
    """What came of a replay."""

    def __init__(self) -> None:
        self.differences: list[Difference] = []
        self.notes: list[str] = []
        self.totals = ReplayTotals()

    @property
    def kinds(self) -> list[str]:
        return [each.kind for each in self.differences]

    @property
    def fields(self) -> list[dict[str, Any]]:
        return [each.fields for each in self.differences]

    @property
    def equal(self) -> bool:
        return not (self.totals.differ or self.totals.unanswered or self.differences)


async def play(
    broker: ScriptedBroker,
    tape: Tape,
    names: Names | None = None,
    *,
    speed: float = 0,
    patience: float = 10,
    auth: Auth | None = None,
    url: str = "",
) -> Played:
    played = Played()
    settings = Settings(parse_url(url or broker.url), auth or Auth())
    playing = Replay(
        settings,
        names or Names(),
        Pace(speed, patience),
        on_difference=played.differences.append,
        note=played.notes.append,
    )
    played.totals = await playing.run(tape.read())
    return played


# ---- What is sent ----


@awaited
async def test_what_clients_sent_is_sent_byte_for_byte_and_equal_answers_are_equal() -> None:
    tape = (
        Tape()
        .greeted()
        .producing()
        .stored(0)
        .stored(1)
        .sent(build("CLOSE_PRODUCER", producer_id=1, request_id=2))
    )
    tape.came(build("SUCCESS", request_id=2))
    async with ScriptedBroker() as broker:
        played = await play(broker, tape)
        wanted = [event.raw for event in tape.events if isinstance(event, Frame) and event.to_broker]
        assert [frame.raw for frame in broker.peers[0].frames] == wanted
    assert played.equal
    assert (played.totals.exchanges, played.totals.sent, played.totals.unsent) == (5, 5, 0)
    assert played.totals.connections == 1


@awaited
async def test_acknowledgements_name_the_messages_that_came() -> None:
    tape = Tape().greeted().subscribed()
    tape.came(message(0), message(1)).sent(acking(1, 0))
    async with ScriptedBroker() as broker:
        broker.always("FLOW", deliver(entry(0), entry(1)))
        assert (await play(broker, tape)).equal
        [ack] = broker.bodies("ACK")
        assert places(ack.message_id) == [(LEDGER, 1), (LEDGER, 0)]


@awaited
async def test_ids_are_learnt_from_receipts_and_used_wherever_one_is_named() -> None:
    here = {"ledgerId": RECORDED, "entryId": 1}
    tape = Tape().greeted().producing().stored(0).stored(1).subscribed(start_message_id=here)
    tape.sent(build("SEEK", consumer_id=2, request_id=30, message_id=here))
    tape.came(build("SUCCESS", request_id=30))
    tape.sent(build("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=2, message_ids=[here]))
    async with ScriptedBroker() as broker:
        broker.entries = 40
        assert (await play(broker, tape)).equal
        [seek], [again] = broker.bodies("SEEK"), broker.bodies("REDELIVER_UNACKNOWLEDGED_MESSAGES")
        [subscribe] = broker.bodies("SUBSCRIBE")
        named = [seek.message_id, *again.message_ids, subscribe.start_message_id]
        assert places(named) == [(LEDGER, 41)] * 3


@awaited
async def test_positions_and_unknown_ids_stay_and_are_counted() -> None:
    earliest = {"ledgerId": NO_REQUEST, "entryId": NO_REQUEST}
    tape = Tape().greeted().subscribed()
    tape.sent(build("SEEK", consumer_id=2, request_id=30, message_id=earliest), acking(3))
    played = Played()
    async with ScriptedBroker() as broker:
        broker.always("SEEK", silence)
        playing = Replay(
            Settings(parse_url(broker.url)),
            Names(),
            Pace(),
            on_difference=played.differences.append,
            note=print,
        )
        await playing.run(tape.read())
        assert places([broker.bodies("SEEK")[0].message_id]) == [(NO_REQUEST, NO_REQUEST)]
        assert places(broker.bodies("ACK")[0].message_id) == [(RECORDED, 3)]
    assert playing.remap.unknown_ids == 1


@awaited
async def test_a_name_that_the_broker_gave_becomes_the_one_it_gives_now_and_the_checksum_is_right() -> None:
    tape = Tape().greeted().producing("standalone-7-1").stored(0, name="standalone-7-1")
    async with ScriptedBroker() as broker:
        assert (await play(broker, tape)).equal
        [frame] = broker.seen("SEND")
        assert frame.metadata is not None
        assert frame.metadata.producer_name == "scripted-1"
        assert (frame.checksum, frame.payload) == ("valid", b"payload")


@awaited
async def test_schema_versions_become_those_of_this_broker() -> None:
    tape = Tape().greeted().sent(build("PRODUCER", topic=TOPIC, producer_id=1, request_id=1))
    tape.came(producer_success(version=b"\0\0\0\0\0\0\0\5"))
    tape.stored(0, schema_version=b"\0\0\0\0\0\0\0\5").stored(1, schema_version=b"\0\0\0\0\0\0\0\4")
    async with ScriptedBroker() as broker:
        broker.once("PRODUCER", lambda peer, frame: producer_success(version=b"\0\0\0\0\0\0\0\1"))
        assert (await play(broker, tape)).equal
        versions = [frame.metadata.schema_version for frame in broker.seen("SEND") if frame.metadata]
    assert versions == [b"\0\0\0\0\0\0\0\1", b"\0\0\0\0\0\0\0\4"]


@pytest.mark.parametrize("explicit", [True, False])
@awaited
async def test_transactions_become_those_of_this_broker_0_0_too(explicit: bool) -> None:
    bits = {"txnid_most_bits": 0, "txnid_least_bits": 0} if explicit else {}
    tape = (
        Tape()
        .greeted()
        .sent(build("NEW_TXN", request_id=5))
        .came(build("NEW_TXN_RESPONSE", request_id=5, **bits))
    )
    tape.producing().stored(0, txn=0).stored(1)
    tape.sent(build("END_TXN", request_id=6, txn_action=0, **bits)).came(
        build("END_TXN_RESPONSE", request_id=6, **bits)
    )
    given = {"txnid_most_bits": 3, "txnid_least_bits": 8}
    async with ScriptedBroker() as broker:
        broker.always("NEW_TXN", answer("NEW_TXN_RESPONSE", **given))
        broker.always("END_TXN", answer("END_TXN_RESPONSE", **given))
        assert (await play(broker, tape)).equal
        [end], [inside, outside] = broker.bodies("END_TXN"), broker.seen("SEND")
        assert (end.txnid_most_bits, end.txnid_least_bits) == (3, 8)
        assert inside.metadata is not None
        assert (inside.body.txnid_most_bits, inside.metadata.txnid_least_bits) == (3, 8)
        assert not outside.body.HasField("txnid_least_bits")


@awaited
async def test_topics_and_subscriptions_are_renamed_and_answers_compared_by_the_new_names() -> None:
    tape = Tape().greeted().producing().subscribed()
    tape.sent(build("GET_TOPICS_OF_NAMESPACE", request_id=7, namespace="public/default"))
    tape.came(build("GET_TOPICS_OF_NAMESPACE_RESPONSE", request_id=7, topics=[ELSEWHERE, TOPIC]))
    here = ["persistent://a/b/renamed-x", "persistent://a/b/other-x"]
    async with ScriptedBroker() as broker:
        broker.always("GET_TOPICS_OF_NAMESPACE", answer("GET_TOPICS_OF_NAMESPACE_RESPONSE", topics=here))
        rules = [("public/default", "a/b"), ("t", "a/b/renamed"), ("s", "readers")]
        assert (await play(broker, tape, Names(rules, "-x"))).equal
        assert broker.bodies("PRODUCER")[0].topic == "persistent://a/b/renamed-x"
        [subscribe] = broker.bodies("SUBSCRIBE")
        assert (subscribe.topic, subscribe.subscription) == ("persistent://a/b/renamed-x", "readers")
        assert broker.bodies("GET_TOPICS_OF_NAMESPACE")[0].namespace == "a/b"


@awaited
async def test_what_was_wrong_on_the_wire_is_sent_as_it_was() -> None:
    wrong = bytearray(sending(0, "standalone-7-1"))
    wrong[-1] ^= 1
    tape = Tape().greeted().producing("standalone-7-1").sent(bytes(wrong))
    async with ScriptedBroker() as broker:
        await play(broker, tape)
        await broker.saw("SEND")
        assert broker.seen("SEND")[0].raw == bytes(wrong)


# ---- In which order ----


def holding_back(broker: ScriptedBroker, ready: bytes, command: str) -> Reaction:
    """Answer by `ready`, but only when the client has had every chance to send on; it must not have."""

    async def late(peer: Peer) -> None:
        for _ in range(3):  # the client has read all and gone on, when the PONG is here
            count = len(broker.seen("PONG"))
            peer.send(build("PING"))
            await broker.saw("PONG", count + 1)
        assert not broker.seen(command)
        peer.send(ready)

    return lambda peer, frame: late(peer)


@awaited
async def test_nothing_is_sent_before_what_it_followed_has_come() -> None:
    tape = Tape().greeted().producing().stored(0)
    async with ScriptedBroker() as broker:
        broker.once("CONNECT", holding_back(broker, connected(), "PRODUCER"))
        broker.once("PRODUCER", holding_back(broker, producer_success(), "SEND"))
        assert (await play(broker, tape)).equal


@awaited
async def test_nor_what_followed_on_another_connection() -> None:
    tape = Tape().greeted(0).greeted(1)
    tape.sent(subscribing(2), connection=1).came(build("SUCCESS", request_id=12), connection=1)
    tape.producing(connection=0).stored(0, connection=0)
    async with ScriptedBroker() as broker:
        broker.once("SUBSCRIBE", holding_back(broker, build("SUCCESS", request_id=12), "PRODUCER"))
        assert (await play(broker, tape)).equal
        assert [peer.commands[0] for peer in broker.peers] == ["CONNECT", "CONNECT"]
        assert "SEND" in broker.peers[0].commands


@awaited
async def test_what_does_not_come_is_said_once_and_the_walk_goes_on() -> None:
    tape = Tape().greeted().producing().stored(0).stored(1)
    async with ScriptedBroker() as broker:
        broker.always("SEND", silence)
        played = await play(broker, tape, patience=0.05)
        assert len(broker.seen("SEND")) == 2
    [note] = played.notes
    assert note.startswith("connection 0: SEND_RECEIPT (#6) did not come within 0.05 s")
    assert played.kinds == ["missing", "missing"]
    assert (played.totals.exchanges, played.totals.unanswered, played.totals.differ) == (4, 2, 0)


@awaited
async def test_what_did_not_come_is_waited_for_half_as_long_the_next_time() -> None:
    tape = Tape().greeted().producing().stored(0).stored(1).sent(build("PING")).came(build("PONG"))
    async with ScriptedBroker() as broker:
        broker.always("SEND", silence)
        settings = Settings(parse_url(broker.url))
        told: list[Difference] = []
        playing = Replay(settings, Names(), Pace(0, 0.04), on_difference=told.append, note=lambda text: None)
        await playing.run(tape.read())
    assert len(told) == 2
    assert playing.comparison.timeout((0, "producer", 1)) == 0.01
    assert playing.comparison.timeout((0, "requests")) == 0.04


@awaited
async def test_what_comes_late_is_compared_all_the_same() -> None:
    tape = Tape().greeted().producing().sent(build("PING")).came(build("PONG"))
    async with ScriptedBroker() as broker:
        broker.once("PRODUCER", silence)
        broker.once("PING", followed_by(lambda peer, frame: producer_success("other"), build("PONG")))
        played = await play(broker, tape, patience=0.05)
    assert played.equal
    assert len(played.notes) == 1


@awaited
async def test_pauses_are_kept_or_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def note_down(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", note_down)
    tape = (
        Tape().greeted().later(1000).sent(build("PING")).came(build("PONG")).later(3000).sent(build("PING"))
    )
    async with ScriptedBroker() as broker:
        assert (await play(broker, tape)).kinds == ["unexpected"]
        assert not pauses
        await play(broker, tape, speed=2)
    assert [round(pause, -2) for pause in pauses] == [500, 2000]


# ---- The handshake, and what keeps a connection alive ----


@awaited
async def test_connect_goes_to_the_broker_itself_with_our_credentials_if_there_are_any() -> None:
    given: dict[str, Any] = {
        "auth_method_name": "token",
        "auth_data": b"theirs",
        "proxy_to_broker_url": "b:6650",
    }
    tape = Tape().greeted(**given)
    async with ScriptedBroker() as broker:
        await play(broker, tape)
        await play(broker, tape, auth=Auth("basic", lambda: b"ours"))
        theirs, ours = broker.bodies("CONNECT")
    assert (theirs.auth_method_name, theirs.auth_data) == ("token", b"theirs")
    assert (ours.auth_method_name, ours.auth_data) == ("basic", b"ours")
    assert not theirs.HasField("proxy_to_broker_url")
    assert ours.client_version == "c"


@awaited
async def test_redacted_credentials_are_left_out_and_that_is_said() -> None:
    async with ScriptedBroker() as broker:
        played = await play(broker, Tape().greeted(auth_method_name="token", auth_data=b"*****"))
        [connect] = broker.bodies("CONNECT")
    assert not connect.HasField("auth_data")
    assert "redacted" in played.notes[0]


@pytest.mark.parametrize("auth", [None, Auth("token", lambda: b"ours")], ids=["no credentials", "ours"])
@awaited
async def test_those_that_a_proxy_passed_on_are_left_out_too(auth: Auth | None) -> None:
    original: dict[str, Any] = {
        "original_principal": "me",
        "original_auth_data": "*****",
        "original_auth_method": "token",
    }
    asking = {"topic": TOPIC, **original}
    tape = Tape().greeted(auth_method_name="token", auth_data=b"*****", **original)
    tape.sent(build("LOOKUP", request_id=1, **asking), build("PARTITIONED_METADATA", request_id=2, **asking))
    async with ScriptedBroker() as broker:
        settings = Settings(parse_url(broker.url), auth or Auth())
        notes: list[str] = []
        playing = Replay(settings, Names(), Pace(), on_difference=lambda found: None, note=notes.append)
        await playing.run(tape.read())
        await broker.saw("PARTITIONED_METADATA")
        names = ("CONNECT", "LOOKUP", "PARTITIONED_METADATA")
        bodies = [body for name in names for body in broker.bodies(name)]
    assert playing.remap.removed_credentials == len(bodies) == 3
    for body in bodies:
        assert body.original_principal == "me"
        assert not body.HasField("original_auth_data")
        assert not body.HasField("original_auth_method")
    assert bodies[0].auth_data == (b"ours" if auth else b"")
    assert len(notes) == (0 if auth else 1)


def test_whatever_may_be_redacted_can_be_left_out() -> None:
    secrets = {name.rpartition(".")[2] for name in SECRETS}
    assert secrets == METHODS.keys()


@awaited
async def test_challenges_are_answered_by_the_latest_recorded_credentials() -> None:
    challenge = {"auth_method_name": "token", "auth_data": b"PulsarAuthRefresh"}
    response = {"auth_method_name": "token", "auth_data": b"second"}
    tape = Tape().greeted(auth_method_name="token", auth_data=b"first")
    tape.came(build("AUTH_CHALLENGE", challenge=challenge)).sent(build("AUTH_RESPONSE", response=response))
    tape.sent(build("PING")).came(build("PONG"))
    ask = build("AUTH_CHALLENGE", challenge=challenge)
    async with ScriptedBroker() as broker:
        broker.once("CONNECT", lambda peer, frame: connected() + ask)

        async def once_answered(peer: Peer) -> None:
            peer.send(ask)
            await broker.saw("AUTH_RESPONSE", 2)
            peer.send(build("PONG"))

        broker.once("PING", lambda peer, frame: once_answered(peer))
        assert (await play(broker, tape)).equal
        answers = [body.response.auth_data for body in broker.bodies("AUTH_RESPONSE")]
    assert answers == [b"first", b"second"]


@awaited
async def test_pings_are_answered_when_they_come_and_recorded_pongs_are_not_sent() -> None:
    tape = Tape().greeted().came(build("PING")).sent(build("PONG"), build("PING")).came(build("PONG"))
    async with ScriptedBroker() as broker:

        async def ask_first(peer: Peer) -> None:
            peer.send(build("PING"))
            await broker.saw("PONG")
            peer.send(build("PONG"))

        broker.once("PING", lambda peer, frame: ask_first(peer))
        assert (await play(broker, tape)).equal
        assert len(broker.seen("PONG")) == 1


@awaited
async def test_the_next_host_is_tried_and_nobody_there_is_an_error() -> None:
    with nobody() as there:
        async with ScriptedBroker() as broker:
            assert (await play(broker, Tape().greeted(), url=f"pulsar://{there},{broker.address}")).equal
            with pytest.raises(Unreachable, match="refused"):
                await play(broker, Tape().greeted(), url=f"pulsar://{there}")


@awaited
async def test_a_broker_that_is_gone_ends_it_behind_what_was_found_before() -> None:
    tape = Tape().greeted().producing().greeted(1)
    told: list[Difference] = []
    async with ScriptedBroker() as broker:

        async def go(peer: Peer) -> None:
            peer.hang_up()
            await broker.stop()

        broker.once("PRODUCER", lambda peer, frame: go(peer))
        settings = Settings(parse_url(broker.url))
        playing = Replay(settings, Names(), Pace(), on_difference=told.append, note=lambda text: None)
        with pytest.raises(Unreachable):
            await playing.run(tape.read())
    assert [each.kind for each in told] == ["closed", "missing"]
    totals = playing.totals
    assert (totals.connections, totals.exchanges, totals.differ, totals.unanswered) == (1, 2, 1, 0)
    assert [each.cause for each in told] == [None, 1]


# ---- What differs ----


@awaited
async def test_a_refusal_in_place_of_an_answer() -> None:
    async with ScriptedBroker() as broker:
        broker.once("PRODUCER", refuse("ProducerBusy", "taken"))
        played = await play(broker, Tape().greeted().producing())
    [found] = played.differences
    assert found.fields == {
        "command": ("PRODUCER_SUCCESS", "ERROR"),
        "error": (None, "ProducerBusy"),
        "message": (None, "taken"),
    }
    assert found.recorded is not None
    assert (found.recorded.topic, found.recorded.request_type) == (TOPIC, 5)
    assert (played.totals.exchanges, played.totals.differ) == (2, 1)


@awaited
async def test_the_same_refusal_in_other_words_is_the_same() -> None:
    tape = Tape().greeted().sent(build("PRODUCER", topic=TOPIC, producer_id=1, request_id=1))
    tape.came(build("ERROR", request_id=1, error=16, message="Producer with name 'x' is connected"))
    async with ScriptedBroker() as broker:
        broker.once("PRODUCER", refuse("ProducerBusy", "taken"))
        assert (await play(broker, tape)).equal


@awaited
async def test_fields_that_differ_are_named() -> None:
    tape = Tape().greeted().subscribed().came(message(0, payload=b"old", partition_key="k"))
    async with ScriptedBroker() as broker:
        broker.always("FLOW", deliver(entry(0, b"new", partition_key="k")))
        played = await play(broker, tape)
    [fields] = played.fields
    assert {name: tuple(map(str, values)) for name, values in fields.items()} == {
        "payload": ("3 bytes old", "3 bytes new")
    }


@awaited
async def test_what_comes_and_was_not_recorded_is_told() -> None:
    async with ScriptedBroker() as broker:
        broker.once("PING", lambda peer, frame: entry(5)(2) + build("PONG"))
        tape = Tape().greeted().subscribed().sent(build("PING")).came(build("PONG"))
        played = await play(broker, tape)
    assert played.kinds == ["unexpected"]
    assert (played.totals.exchanges, played.totals.differ) == (4, 1)


@awaited
async def test_messages_of_a_shared_subscription_may_come_to_any_of_its_consumers() -> None:
    tape = Tape().greeted(0).greeted(1).subscribed(2, connection=0, subType=1)
    tape.subscribed(3, connection=1, subType=1)
    tape.came(message(0), connection=0).came(message(1, consumer=3), connection=1)
    tape.sent(acking(0), connection=0)
    async with ScriptedBroker() as broker:
        broker.once("FLOW", silence, deliver(entry(0), entry(1)))
        assert (await play(broker, tape)).equal
        assert places(broker.bodies("ACK")[0].message_id) == [(LEDGER, 0)]


@awaited
async def test_foreign_messages_are_told_by_their_order_and_what_came_is_acknowledged() -> None:
    tape = Tape().greeted().subscribed().came(message(10), message(11)).sent(acking(11))
    tape.sent(build("PING")).came(build("PONG"))
    async with ScriptedBroker() as broker:
        broker.always("FLOW", deliver(entry(0), entry(1)))
        played = await play(broker, tape, patience=0.1)
        assert places(broker.bodies("ACK")[0].message_id) == [(LEDGER, 1)]
    assert [list(fields) for fields in played.fields] == [["metadata.sequence_id"]] * 2
    assert played.totals.unanswered == 0


@awaited
async def test_what_came_in_place_of_a_foreign_message_counts_for_that_consumer_alone() -> None:
    tape = Tape().greeted().subscribed(2).came(message(10)).subscribed(3, topic=ELSEWHERE)
    tape.came(message(10, consumer=3)).sent(acking(10, consumer=2), acking(10, consumer=3))
    tape.sent(build("PING")).came(build("PONG"))
    async with ScriptedBroker() as broker:
        broker.once("FLOW", deliver(entry(0)), deliver(entry(1)))
        await play(broker, tape, patience=0.1)
        acked = [(body.consumer_id, *places(body.message_id)) for body in broker.bodies("ACK")]
    assert acked == [(2, (LEDGER, 0)), (3, (LEDGER, 1))]


@awaited
async def test_messages_that_do_not_come_cost_no_more_the_more_there_are() -> None:
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename in (
            comparison.__file__,
            player.__file__,
            replay.__file__,
        )

    async with ScriptedBroker() as broker:

        async def cost(missing: int) -> int:
            nonlocal calls
            tape = Tape().greeted().subscribed().came(*map(message, range(missing)))
            calls = 0
            sys.setprofile(count)
            try:
                played = await play(broker, tape, patience=0.001)
            finally:
                sys.setprofile(None)
            assert played.kinds == ["missing"] * missing
            return calls

        assert await cost(400) < 3 * await cost(200)


@awaited
async def test_a_message_of_the_recording_itself_is_never_taken_for_another() -> None:
    tape = Tape().greeted().producing("p").stored(0, name="p").stored(1, name="p").subscribed()
    tape.came(message(0), message(1)).sent(acking(0))
    async with ScriptedBroker() as broker:
        broker.always("FLOW", deliver(entry(1)))
        broker.always("PRODUCER", lambda peer, frame: producer_success("p"))
        played = await play(broker, tape, patience=0.1)
        assert places(broker.bodies("ACK")[0].message_id) == [(LEDGER, 0)]  # known by its receipt
    assert played.kinds == ["missing"]


# ---- Connections that end, and damage ----


@awaited
async def test_connections_end_where_they_ended() -> None:
    tape = Tape().greeted(0).ended(False, 0).greeted(1).ended(False, 1)
    async with ScriptedBroker() as broker:
        broker.once("CONNECT", lambda peer, frame: connected())

        async def after_the_first(peer: Peer) -> None:
            await broker.peers[0].closed
            peer.send(connected())

        broker.once("CONNECT", lambda peer, frame: after_the_first(peer))
        assert (await play(broker, tape)).equal


@awaited
async def test_a_broker_that_closes_as_recorded() -> None:
    refused = build("ERROR", request_id=NO_REQUEST, error=3, message="no")
    tape = Tape().sent(build("CONNECT", client_version="c", protocol_version=21)).came(refused).ended(True)

    def refuse_and_close(peer: Peer, frame: Frame) -> bytes:
        asyncio.get_running_loop().call_soon(peer.hang_up)
        return refused

    async with ScriptedBroker() as broker:
        broker.once("CONNECT", refuse_and_close, refuse_connection("AuthenticationError"))
        assert (await play(broker, tape)).equal
        assert (await play(broker, tape, patience=0.05)).kinds == ["closed"]


@awaited
async def test_a_connection_that_is_lost_is_told_once_with_what_was_not_sent() -> None:
    tape = Tape().greeted().producing().stored(0).stored(1)
    async with ScriptedBroker() as broker:
        broker.once("PRODUCER", hang_up)
        played = await play(broker, tape)
    assert played.kinds == ["closed", "missing", "missing", "missing"]
    assert "the broker closed the connection" in played.differences[0].text
    assert (played.totals.sent, played.totals.unsent, played.totals.unanswered) == (2, 2, 0)
    assert [each.cause for each in played.differences] == [None, 1, 1, 1]
    assert played.totals.consequences == 3


# ---- What follows from what ----


@awaited
async def test_what_follows_from_a_producer_that_is_refused() -> None:
    """Its receipts, and what consumers do not get of it; not what another producer on the connection does."""
    tape = Tape().greeted().producing("mine").stored(0, name="mine").stored(1, name="mine")
    tape.subscribed().came(message(0, producer_name="mine"), message(7, producer_name="other"))
    tape.sent(build("PRODUCER", topic=ELSEWHERE, producer_id=5, request_id=50))
    tape.came(build("PRODUCER_SUCCESS", request_id=50, producer_name="third"))
    tape.sent(build("CLOSE_PRODUCER", producer_id=1, request_id=51)).came(build("SUCCESS", request_id=51))
    async with ScriptedBroker() as broker:
        broker.once("PRODUCER", refuse("ProducerBusy"))
        broker.once("PRODUCER", silence)
        broker.always("SEND", silence)
        broker.once("CLOSE_PRODUCER", refuse("UnknownError"))
        broker.always("FLOW", silence)
        played = await play(broker, tape, patience=0.05)
    told = [(each.number, each.kind, each.recorded and each.recorded.command) for each in played.differences]
    causes = {number: played.differences[number - 1].cause for number, _, _ in told}
    assert told[0] == (1, "differs", "PRODUCER_SUCCESS")
    of_mine = [number for number, _, command in told if command in ("SEND_RECEIPT", "SUCCESS")]
    assert [causes[number] for number in of_mine] == [1, 1, 1]
    messages = [number for number, _, command in told if command == "MESSAGE"]
    assert [causes[number] for number in messages] == [1, None]
    assert [causes[number] for number, kind, command in told[1:] if command == "PRODUCER_SUCCESS"] == [None]
    totals = played.totals
    assert (totals.differ, totals.unanswered, totals.consequences) == (1, 2, 4)


@awaited
async def test_a_producer_that_is_made_again_has_no_consequences() -> None:
    tape = Tape().greeted().producing().sent(build("PRODUCER", topic=TOPIC, producer_id=1, request_id=9))
    tape.came(build("PRODUCER_SUCCESS", request_id=9, producer_name="scripted-1")).stored(0)
    async with ScriptedBroker() as broker:
        broker.once("PRODUCER", refuse("ProducerBusy"))
        broker.always("SEND", silence)
        played = await play(broker, tape, patience=0.05)
    assert played.kinds == ["differs", "missing"]
    assert [each.cause for each in played.differences] == [None, None]


@pytest.mark.parametrize(
    ("kind", "key"), [("CLOSE_PRODUCER", "producer_id"), ("CLOSE_CONSUMER", "consumer_id")]
)
@awaited
async def test_what_a_broker_closes_unasked_is_awaited_and_compared(kind: str, key: str) -> None:
    what = kind.removeprefix("CLOSE_").lower()
    closing = build(kind, **{key: 1 if what == "producer" else 2}, request_id=0)
    tape = Tape().greeted().producing().subscribed().stored(0).came(closing)
    without = Tape().greeted().producing().subscribed().stored(0).stored(1)
    async with ScriptedBroker() as broker:
        broker.once("SEND", followed_by(lambda peer, frame: receipt_of(0), closing))
        assert (await play(broker, tape)).equal
        played = await play(broker, tape, patience=0.05)
        [found] = played.differences
        assert (found.kind, played.totals.unanswered, played.totals.differ) == ("closed", 0, 1)
        assert found.text == f"the broker closed the recorded {what} here, but not this one"
        broker.once("SEND", followed_by(lambda peer, frame: receipt_of(0), closing))
        broker.once("SEND", silence)
        played = await play(broker, without, patience=0.05)
    texts = {each.text for each in played.differences if each.kind == "closed"}
    assert texts == {f"the broker closed this {what}, but not the recorded one"}


@awaited
async def test_what_is_missing_in_the_recording_is_said_and_neither_sent_nor_compared() -> None:
    tape = Tape().greeted().producing()
    connection = tape.events[0].connection
    tape.events += [Gap(10, connection, True, 120), Malformed("odd", b"x", 1, connection, False, 7)]
    tape.came(receipt_of(7), build("SUCCESS", request_id=77))  # of what is missing
    tape.stored(1)
    async with ScriptedBroker() as broker:
        broker.once(
            "SEND",
            followed_by(
                lambda peer, frame: receipt_of(1), build("CLOSE_PRODUCER", producer_id=1, request_id=0)
            ),
        )
        played = await play(broker, tape)
    assert played.equal
    assert played.notes == [
        "connection 0: 10 bytes are missing in what the client sent, after byte 120; "
        "such frames are neither sent nor compared"
    ]


@awaited
async def test_what_is_said_of_many_connections_is_counted() -> None:
    """Ten of a kind are said one by one."""
    tape = Tape()
    for number in range(25):
        tape.sent(build("PING"), connection=number)
    async with ScriptedBroker() as broker:
        played = await play(broker, tape)
    assert [note.partition(" is skipped")[0] for note in played.notes] == [
        *(f"connection {number}" for number in range(10)),
        "connections that are skipped: 15 more times",
    ]


def beginnings() -> Iterator[tuple[Tape, str]]:
    yield Tape().sent(build("PING")), "does not begin with a whole CONNECT"
    yield Tape().came(connected()), "does not begin with a whole CONNECT"
    cut = Tape().greeted()
    assert isinstance(cut.events[0], Frame)
    cut.events[0].partial = True
    yield cut, "does not begin with a whole CONNECT"
    gone = Tape().greeted()
    gone.events.insert(0, Gap(5, gone.events[0].connection, True))
    yield gone, "its beginning is missing"
    tls = Tape()
    tls.events.append(spoken := Malformed("TLS", b"\x16\x03", 2, Connection(0), True))
    spoken.protocol = "TLS"
    yield tls, "it speaks TLS"


@pytest.mark.parametrize(("tape", "why"), list(beginnings()))
@awaited
async def test_connections_without_their_beginning_are_passed_over(tape: Tape, why: str) -> None:
    async with ScriptedBroker() as broker:
        played = await play(broker, tape)
        assert not broker.peers
    assert (played.totals.connections, played.totals.exchanges) == (0, 0)
    [note] = played.notes
    assert why in note


@awaited
async def test_what_waits_for_its_counterpart_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "MAX_WAITING", 10 * comparison._COST)
    many = b"".join(entry(number)(2) for number in range(100))
    tape = Tape().greeted().subscribed().sent(build("PING")).came(build("PONG"))
    async with ScriptedBroker() as broker:
        broker.once("PING", lambda peer, frame: many + build("PONG"))
        played = await play(broker, tape)
    assert played.kinds == ["unexpected"] * 100


# ---- Names ----


@pytest.mark.parametrize(
    ("name", "renamed"),
    [
        ("orders", "persistent://public/default/sales-1"),
        ("persistent://public/default/orders-partition-3", "persistent://public/default/sales-1-partition-3"),
        ("public/default/other", "persistent://public/default/other-1"),
        ("persistent://old/ns/x", "persistent://new/ns/x-1"),
        ("non-persistent://old/ns/x", "non-persistent://new/ns/x-1"),
        ("persistent://old/ns2/x", "persistent://old/ns2/x-1"),
        (
            "persistent://pulsar/system/transaction_coordinator_assign-partition-0",
            "persistent://pulsar/system/transaction_coordinator_assign-partition-0",
        ),
    ],
)
def test_topics_are_renamed(name: str, renamed: str) -> None:
    assert Names([("orders", "sales"), ("old/ns", "new/ns")], "-1").rename_topic(name) == renamed


@given(names)
def test_without_rules_every_name_stays_as_it_is_spelled(name: str) -> None:
    plain = Names()
    assert [
        plain.rename_topic(name),
        plain.rename_namespace(name),
        plain.rename_subscription(name),
        plain.rename_pattern(name),
    ] == [name] * 4


def test_patterns_follow_namespace_and_suffix() -> None:
    moved = Names([("old/ns", "new/ns")], ".1")
    assert moved.rename_pattern("persistent://old/ns/a.*$") == r"persistent://new/ns/a.*\.1$"
    assert moved.rename_pattern("old/ns/a") == r"new/ns/a\.1"


@pytest.mark.parametrize(
    ("pattern", "suffixed"),
    [
        ("old/ns/a|persistent://old/ns/b$", "new/ns/a-1|persistent://new/ns/b-1$"),
        ("old/ns/(a|b)", "new/ns/(a|b)-1"),
        (r"old/ns/a\||[|]\(|b", r"new/ns/a\|-1|[|]\(-1|b-1"),
        (r"old/ns/\Qa|b\E|c", r"new/ns/\Qa|b\E-1|c-1"),
        (r"old/ns/a\$|b[$]|c$", r"new/ns/a\$-1|b[$]-1|c-1$"),
        ("[a|b", "[a|b-1"),
        ("|", "-1|-1"),
    ],
)
def test_each_alternative_of_a_pattern_gets_the_suffix(pattern: str, suffixed: str) -> None:
    assert Names([("old/ns", "new/ns")], "-1").rename_pattern(pattern) == suffixed.replace("-1", r"\-1")


@given(st.text("a|()[]\\^QE$/:"))
def test_a_pattern_stays_as_it_is_without_rules(pattern: str) -> None:
    assert Names().rename_pattern(pattern) == pattern


def test_a_rule_that_was_of_no_use_is_known() -> None:
    rules = Names([("a", "b"), ("c", "d"), ("x/y", "z/y"), ("s", "r")])
    rules.rename_topic("a")
    rules.rename_namespace("x/y")
    rules.rename_subscription("s")
    assert rules.unused == {"c": "d"}


@pytest.mark.parametrize("rule", [("x/y", "z"), ("a/b/c/d/e", ""), ("t", "x/y"), ("t", "foo://a/b/c")])
def test_a_rule_that_names_nothing_is_an_error(rule: tuple[str, str]) -> None:
    with pytest.raises(SettingsError, match="--rename"):
        Names([rule])


@pytest.mark.parametrize("suffix", ["/x", "\udc80", "\x1b[m", "\n"])
def test_a_suffix_that_no_topic_can_have_is_an_error(suffix: str) -> None:
    with pytest.raises(SettingsError, match="--suffix"):
        Names((), suffix)


@given(frames_to_broker)
def test_frames_keep_their_bytes_where_nothing_changes(frames: list[bytes]) -> None:
    remap = Remap(Names())
    for event in FrameStream(Connection(0), True).feed(b"".join(frames)):
        assert isinstance(event, Frame)
        assert remap.make_outgoing(event) == event.raw


@given(frames_to_broker, st.sampled_from(["-x", "", "-a-longer-suffix"]))
def test_frames_whose_names_change_are_whole_frames_with_the_same_entry(
    frames: list[bytes], suffix: str
) -> None:
    remap = Remap(Names([("public/default", "a/b")], suffix))
    for event in FrameStream(Connection(0), True).feed(b"".join(frames)):
        assert isinstance(event, Frame)
        [again] = FrameStream(Connection(0), True).feed(remap.make_outgoing(event))
        assert isinstance(again, Frame)
        assert (again.command, again.checksum, again.payload) == (
            event.command,
            event.checksum,
            event.payload,
        )
        assert not again.notes


# ---- Differences ----


def frame(data: bytes) -> Frame:
    [event] = FrameStream(Connection(0), False).feed(data)
    assert isinstance(event, Frame)
    return event


def found(old: bytes, new: bytes) -> dict[str, tuple[Any, Any]]:
    return find_differences(frame(old), frame(new), Remap(Names()))


def receipt(ledger: int = 5, **fields: Any) -> bytes:
    place = {"ledgerId": ledger, "entryId": ledger}
    return build("SEND_RECEIPT", producer_id=1, sequence_id=1, message_id=place, **fields)


def test_ids_names_addresses_and_times_do_not_count() -> None:
    urls = {"brokerServiceUrl": "pulsar://a:1", "response": 1}
    pairs = [
        (receipt(5), receipt(6)),
        (receipt(highest_sequence_id=0), receipt(highest_sequence_id=NO_REQUEST)),
        (producer_success("a", b"1"), producer_success("b", b"2")),
        (
            build("LOOKUP_RESPONSE", request_id=1, **urls),
            build("LOOKUP_RESPONSE", request_id=1, **{**urls, "brokerServiceUrl": "pulsar://b:2"}),
        ),
        (
            build("LOOKUP_RESPONSE", request_id=1, proxy_through_service_url=True, **urls),
            build("LOOKUP_RESPONSE", request_id=1, **urls),
        ),
        (connected(), connected(server_version="another")),
        (
            build("CONSUMER_STATS_RESPONSE", request_id=1, msgRateOut=1.0, address="a"),
            build("CONSUMER_STATS_RESPONSE", request_id=1, msgRateOut=2.0, address="b"),
        ),
    ]
    for old, new in pairs:
        assert found(old, new) == {}


def test_a_field_at_its_default_is_as_good_as_none_but_not_an_error_code() -> None:
    plain, zero = build("ACK_RESPONSE", consumer_id=1), build("ACK_RESPONSE", consumer_id=1, error=0)
    assert found(plain, zero) == {"error": (None, "UnknownError")}
    lookup = build("LOOKUP_RESPONSE", request_id=1)
    assert found(lookup, build("LOOKUP_RESPONSE", request_id=1, response=0)) == {}
    assert found(
        build("LOOKUP_RESPONSE", request_id=1, response=0), build("LOOKUP_RESPONSE", request_id=1, response=1)
    ) == {"response": ("Redirect", "Connect")}


def test_what_counts_is_named() -> None:
    assert found(receipt(5), receipt(NO_REQUEST)) == {
        "message_id.ledgerId": ("some", "none"),
        "message_id.entryId": ("some", "none"),
    }
    assert found(connected(max_message_size=1), connected(max_message_size=2)) == {"max_message_size": (1, 2)}
    flags = connected(feature_flags={"supports_topic_watchers": True})
    assert found(connected(), flags) == {"feature_flags.supports_topic_watchers": (None, True)}
    topics = [
        build("GET_TOPICS_OF_NAMESPACE_RESPONSE", request_id=1, topics=each)
        for each in (["a", "b"], ["b", "a"])
    ]
    assert found(*topics) == {}
    damaged = bytearray(message(1, payload=b"x"))
    damaged[-1] ^= 1
    assert found(message(1, payload=b"x"), bytes(damaged)).keys() == {"payload", "checksum"}


def test_ids_that_are_only_compared_are_not_counted_as_unknown() -> None:
    remap = Remap(Names())
    received = frame(receipt(5))
    assert remap.translate(received.body, received) == received.body
    assert remap.unknown_ids == 0
    assert remap.make_outgoing(frame(acking(5))) == acking(5)
    assert remap.unknown_ids == 1


def _without_fields(kind: str, *tags: int) -> bytes:
    """A command whose body has nothing but empty messages in the fields of these tags."""
    base = BaseCommand()
    base.type = NUMBERS[kind]  # type: ignore[assignment]
    getattr(base, BODIES[base.type]).MergeFromString(b"".join(bytes((tag << 3 | 2, 0)) for tag in tags))
    getattr(base, BODIES[base.type]).SetInParent()
    command = base.SerializePartialToString()
    return struct.pack(">II", 4 + len(command), len(command)) + command


@awaited
async def test_commands_without_required_fields_are_played() -> None:
    tape = Tape().sent(_without_fields("CONNECT")).came(connected())
    tape.sent(_without_fields("ACK", 3), _without_fields("SEEK", 3))
    async with ScriptedBroker() as broker:
        broker.always("ACK", silence)
        broker.always("SEEK", silence)
        await play(broker, tape, auth=Auth("token", lambda: b"secret"))
        await broker.saw("SEEK")
        [connect], [ack] = broker.bodies("CONNECT"), broker.bodies("ACK")
    assert connect.auth_data == b"secret"
    assert not connect.HasField("client_version")
    assert len(ack.message_id) == 1


@awaited
async def test_metadata_without_required_fields_is_sent_as_it_was() -> None:
    version = b"\0\0\0\0\0\0\0\5"
    head = MessageMetadata(schema_version=version).SerializePartialToString()
    sound = build("SEND", MessageMetadata(producer_name="p", sequence_id=0, publish_time=5), b"", **SENT)
    command = sound[: 8 + int.from_bytes(sound[4:8], "big")]
    bare = command + struct.pack(">I", len(head)) + head
    bare = struct.pack(">I", len(bare) - 4) + bare[4:]
    tape = Tape().greeted().sent(build("PRODUCER", topic=TOPIC, producer_id=1, request_id=1))
    tape.came(producer_success(version=version)).sent(bare)
    async with ScriptedBroker() as broker:
        broker.once("PRODUCER", lambda peer, frame: producer_success(version=b"\0\0\0\0\0\0\0\1"))
        broker.always("SEND", silence)
        await play(broker, tape)
        await broker.saw("SEND")
        assert broker.seen("SEND")[0].raw == bare
