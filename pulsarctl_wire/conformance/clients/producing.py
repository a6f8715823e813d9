"""Receipts, errors and the end of producers."""

from __future__ import annotations

from itertools import pairwise

from pulsarctl_wire.checks.requirement import MUST, OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.checking import equal, require
from pulsarctl_wire.conformance.basics.frames import make_frame
from pulsarctl_wire.conformance.clients.scripted import (
    LEDGER,
    Peer,
    ScriptedBroker,
    answer,
    connect_to,
    ignore,
    make_close_producer,
    make_receipt,
    open_producer,
    refuse,
    refuse_send,
    store,
)
from pulsarctl_wire.conformance.clients.stage import (
    PRODUCE,
    Run,
    Stage,
    check_claim,
    client_case,
    expect_stored,
)
from pulsarctl_wire.wire.frame import Frame

_NEEDS = (PRODUCE,)
_SEND_ERRORS = (
    "PersistenceError",
    "MetadataError",
    "ProducerFenced",
    "ProducerBlockedQuotaExceededError",
    "AuthorizationError",
)


def _list_sequence_ids(broker: ScriptedBroker) -> list[int]:
    return [body.sequence_id for body in broker.list_bodies("SEND")]


# -- receipts


@client_case(MUST, needs=_NEEDS)
async def receipt_dropped(stage: Stage) -> None:
    """SENDs 0, 1 and 2 are answered by receipts for 1 and 2 only.

    Expected: 0 is sent again, as both official clients do after a new connection; or it fails. It is never
    taken as stored.

    Source: Client: ProducerImpl.ackReceived.
    """
    broker = await stage.open_broker()
    broker.once("SEND", ignore)
    run = await stage.produce(broker.url)
    await stage.wait_for_sends(broker)
    await run.finish()
    check_claim(run, broker)


@client_case(SHOULD, needs=_NEEDS)
async def receipt_out_of_order(stage: Stage) -> None:
    """The receipt for 1 comes before the one for 0.

    Expected: All succeed: each has its receipt, or is sent again after a new connection.

    Source: Client: ProducerImpl.ackReceived.
    """
    broker = await stage.open_broker()
    held_frames: list[Frame] = []
    broker.once("SEND", lambda peer, frame: held_frames.append(frame))
    broker.once("SEND", lambda peer, frame: store(peer, frame) + store(peer, held_frames[0]))
    run = await stage.produce(broker.url)
    await stage.wait_for_sends(broker, 2)
    await expect_stored(run, broker)


@client_case(MUST, needs=_NEEDS, waits=("timeout", 1))
async def receipt_none(stage: Stage) -> None:
    """No SEND is answered.

    Expected: All fail when the send timeout is over.

    Source: Client: ProducerImpl, sendTimeout.
    """
    broker = await stage.open_broker()
    broker.always("SEND", ignore)
    await (await stage.produce(broker.url)).fail()


@client_case(MUST, needs=_NEEDS)
async def receipt_twice(stage: Stage) -> None:
    """Each receipt is sent twice.

    Expected: The second one is ignored: nothing is sent again, and the connection stays.

    Source: Client: ProducerImpl.ackReceived.
    """
    broker = await stage.open_broker()
    broker.always("SEND", lambda peer, frame: store(peer, frame) + make_receipt(frame))
    await expect_stored(await stage.produce(broker.url), broker)
    equal(len(_list_sequence_ids(broker)), len(set(_list_sequence_ids(broker))), "SENDs")
    equal(len(broker.list_frames("PRODUCER")), 1, "PRODUCERs")


@client_case(MUST, needs=_NEEDS)
async def receipt_unknown_producer(stage: Stage) -> None:
    """Receipts for producer 99, which does not exist, come half a second before the right ones.

    Expected: Those of the other producer are ignored: the client still waits.

    Source: Protocol: Producer.
    """
    broker = await stage.open_broker()
    queue: list[tuple[Peer, Frame]] = []

    def mislead(peer: Peer, frame: Frame) -> bytes:
        queue.append((peer, frame))
        message_id = {"ledgerId": LEDGER, "entryId": 0}
        sequence_id = frame.body.sequence_id
        return make_frame("SEND_RECEIPT", producer_id=99, sequence_id=sequence_id, message_id=message_id)

    broker.always("SEND", mislead)
    run = await stage.produce(broker.url)
    await stage.wait_for(broker, "SEND")
    await stage.settle()
    require(run.code is None, "a client that waits for its receipts", f"exit code {run.code}")
    equal(len(broker.list_frames("CLOSE_PRODUCER")), 0, "CLOSE_PRODUCERs")
    broker.always("SEND", store)
    for peer, frame in queue:
        peer.send(store(peer, frame))
    await expect_stored(run, broker)
    equal(len(broker.list_frames("PRODUCER")), 1, "PRODUCERs")


# -- errors


async def _refuse_first(stage: Stage, code: str) -> tuple[ScriptedBroker, Run]:
    """Refuse the first SEND, wait for the end of the client, and check its claim."""
    broker = await stage.open_broker()
    broker.once("SEND", refuse_send(code))
    run = await stage.produce(broker.url)
    await stage.wait_for(broker, "SEND")
    await run.finish()
    check_claim(run, broker)
    return broker, run


@client_case(MUST, needs=_NEEDS)
async def send_error_checksum(stage: Stage) -> None:
    """The first SEND is answered by SEND_ERROR ChecksumError.

    Expected: It fails, or is sent again.

    Source: Client: ProducerImpl.recoverChecksumError.
    """
    await _refuse_first(stage, "ChecksumError")


@client_case(MUST, needs=_NEEDS)
async def send_error_terminated(stage: Stage) -> None:
    """The first SEND is answered by SEND_ERROR TopicTerminatedError.

    Expected: It fails, or is sent again.

    Source: Client: ClientCnx.handleSendError.
    """
    await _refuse_first(stage, "TopicTerminatedError")


@client_case(MUST, needs=_NEEDS)
async def send_error_not_allowed(stage: Stage) -> None:
    """The first SEND is answered by SEND_ERROR NotAllowedError.

    Expected: It fails, or is sent again.

    Source: Client: ClientCnx.handleSendError.
    """
    await _refuse_first(stage, "NotAllowedError")


@client_case(MUST, needs=_NEEDS)
async def send_error_other(stage: Stage) -> None:
    """On each connection the first SEND is refused: PersistenceError, MetadataError, ProducerFenced,
    ProducerBlockedQuotaExceededError, AuthorizationError; on the sixth none is.

    Expected: What is refused is sent again, or fails.

    Source: Client: ClientCnx.handleSendError.
    """
    broker = await stage.open_broker()
    reactions = {f"connection {number}": refuse_send(code) for number, code in enumerate(_SEND_ERRORS)}

    def react(peer: Peer, frame: Frame) -> bytes:
        key = f"connection {broker.peers.index(peer)}"
        refusal = reactions.pop(key, None)
        frames = (refusal or store)(peer, frame)
        assert isinstance(frames, bytes)
        return frames

    broker.always("SEND", react)
    run = await stage.produce(broker.url)
    await stage.wait_for(broker, "SEND")
    await run.finish()
    check_claim(run, broker)


# -- the end of a producer


@client_case(MUST, needs=_NEEDS)
async def close_producer(stage: Stage) -> None:
    """CLOSE_PRODUCER of the broker comes in place of receipts, as when a topic is unloaded.

    Expected: LOOKUP and PRODUCER, then all that has no receipt is sent again, with the same sequence ids.

    Source: Protocol: Producer; Client: ProducerImpl.connectionClosed.
    """
    broker = await stage.open_broker()

    def react(peer: Peer, frame: Frame) -> bytes | None:
        if len(broker.list_frames("PRODUCER")) > 1:
            return store(peer, frame)
        return make_close_producer(frame) if len(broker.list_frames("SEND")) == 1 else None

    broker.always("SEND", react)
    run = await stage.produce(broker.url)
    await expect_stored(run, broker)
    equal(sorted(broker.receipts), sorted(set(_list_sequence_ids(broker))), "sequence ids that are stored")
    require(len(broker.list_frames("LOOKUP")) > 1, "LOOKUP before the second PRODUCER", "none came")


@client_case(SHOULD, needs=_NEEDS)
async def close_producer_moved(stage: Stage) -> None:
    """CLOSE_PRODUCER says which broker serves the topic now; LOOKUP names that one, too.

    Expected: The client produces there, whether it asks before or not.

    Source: PIP-307.
    """
    broker, other = await stage.open_broker(), await stage.open_broker()

    def move(peer: Peer, frame: Frame) -> bytes:
        broker.always("SEND", ignore)
        broker.always("LOOKUP", connect_to(other))
        return make_close_producer(frame, assignedBrokerServiceUrl=other.url)

    broker.once("SEND", move)
    await expect_stored(await stage.produce(broker.url), other)


# -- opening a producer


async def _refuse_producer(stage: Stage, code: str) -> None:
    broker = await stage.open_broker()
    broker.always("PRODUCER", refuse(code))
    await (await stage.produce(broker.url)).fail()
    equal(len(broker.list_frames("PRODUCER")), 1, "PRODUCERs")


@client_case(SHOULD, needs=_NEEDS)
async def producer_terminated(stage: Stage) -> None:
    """PRODUCER is answered by ERROR TopicTerminatedError.

    Expected: The client fails, without another attempt.

    Source: Client: ProducerImpl.connectionOpened.
    """
    await _refuse_producer(stage, "TopicTerminatedError")


@client_case(SHOULD, needs=_NEEDS)
async def producer_busy(stage: Stage) -> None:
    """PRODUCER is answered by ERROR ProducerBusy.

    Expected: The client fails, without another attempt.

    Source: Client: ProducerImpl.connectionOpened.
    """
    await _refuse_producer(stage, "ProducerBusy")


@client_case(SHOULD, needs=_NEEDS)
async def producer_not_ready_error(stage: Stage) -> None:
    """PRODUCER is answered by ERROR ServiceNotReady twice, then by PRODUCER_SUCCESS.

    Expected: The client asks again, with a pause before each attempt, and succeeds.

    Source: Client: ConnectionHandler.
    """
    broker = await stage.open_broker()
    broker.once("PRODUCER", *[refuse("ServiceNotReady")] * 2)
    await expect_stored(await stage.produce(broker.url), broker)
    times = [frame.time_ns or 0 for frame in broker.list_frames("PRODUCER")]
    pauses = [(after - before) / 1e9 for before, after in pairwise(times)]
    require(all(pause >= 0.01 for pause in pauses), "pauses of 10 ms or more", pauses)


@client_case(MUST, needs=_NEEDS, waits=("timeout", 1))
async def producer_never_answered(stage: Stage) -> None:
    """PRODUCER is not answered.

    Expected: The client fails when its operation timeout is over.

    Source: Client: ProducerImpl, operationTimeout.
    """
    broker = await stage.open_broker()
    broker.always("PRODUCER", ignore)
    await (await stage.produce(broker.url)).fail()
    require(broker.list_frames("PRODUCER"), "PRODUCER", "none came")


@client_case(OBSERVED, needs=_NEEDS)
async def producer_ready_false(stage: Stage) -> None:
    """PRODUCER_SUCCESS with producer_ready false, half a second later with true, for the same request.

    Expected: The client sends nothing before the second one.

    Source: PIP-68.
    """
    broker = await stage.open_broker()
    requests: list[tuple[Peer, Frame]] = []

    def keep_waiting(peer: Peer, frame: Frame) -> bytes:
        requests.append((peer, frame))
        return open_producer(peer, frame, producer_ready=False)

    broker.once("PRODUCER", keep_waiting)
    run = await stage.produce(broker.url)
    await stage.wait_for(broker, "PRODUCER")
    await stage.settle()
    equal(len(_list_sequence_ids(broker)), 0, "SENDs")
    ((peer, frame),) = requests
    peer.send(open_producer(peer, frame, producer_ready=True))
    await expect_stored(run, broker)


@client_case(SHOULD, needs=_NEEDS)
async def producer_minimal_success(stage: Stage) -> None:
    """PRODUCER_SUCCESS with request_id, producer_name and schema_version only.

    Expected: It works.

    Source: Protocol: Producer.
    """
    broker = await stage.open_broker()
    broker.once("PRODUCER", answer("PRODUCER_SUCCESS", producer_name="scripted-1", schema_version=b""))
    await expect_stored(await stage.produce(broker.url), broker)


@client_case(OBSERVED, needs=_NEEDS)
async def producer_no_schema_version(stage: Stage) -> None:
    """PRODUCER_SUCCESS without schema_version, an optional field.

    Expected: It works.

    Source: Client: ClientConnection.handleProducerSuccess.
    """
    broker = await stage.open_broker()
    broker.always("PRODUCER", answer("PRODUCER_SUCCESS", producer_name="scripted-1", last_sequence_id=-1))
    await expect_stored(await stage.produce(broker.url), broker)


@client_case(MUST, needs=_NEEDS)
async def producer_last_sequence_id(stage: Stage) -> None:
    """PRODUCER_SUCCESS with last_sequence_id 7.

    Expected: The first SEND has sequence id 8: lower ones would be dropped as duplicates.

    Source: PIP-6.
    """
    broker = await stage.open_broker()
    broker.once("PRODUCER", lambda peer, frame: open_producer(peer, frame, last_sequence_id=7))
    await expect_stored(await stage.produce(broker.url), broker)
    equal(_list_sequence_ids(broker)[0], 8, "sequence_id of the first SEND")


@client_case(MUST, needs=_NEEDS)
async def producer_name_given(stage: Stage) -> None:
    """The broker gives the producer a name, and closes the connection in place of the first receipt.

    Expected: The second PRODUCER and all SENDs have this name, and what is sent again the same sequence ids:
    otherwise a broker that drops duplicates does not see them.

    Source: PIP-6.
    """
    broker = await stage.open_broker()
    broker.once("SEND", lambda peer, frame: peer.hang_up())
    run = await stage.produce(broker.url)
    await stage.wait_for(broker, "PRODUCER", 2)
    await expect_stored(run, broker)
    equal(broker.list_bodies("PRODUCER")[1].producer_name, "scripted-1", "producer_name of PRODUCER")
    names = {frame.metadata.producer_name for frame in broker.list_frames("SEND") if frame.metadata}
    equal(names, {"scripted-1"}, "producer_name of the messages")
    equal(min(broker.receipts), min(_list_sequence_ids(broker)), "the lowest sequence id that is stored")
