"""Answers that are unusual as bytes: unknown, too large, broken off, slow."""

from __future__ import annotations

from typing import Final

from pulsarctl_wire.checks.requirement import MUST, OBSERVED
from pulsarctl_wire.conformance.basics.checking import equal
from pulsarctl_wire.conformance.basics.frames import make_frame, wrap
from pulsarctl_wire.conformance.clients.scripted import (
    Peer,
    append,
    connect_to,
    delay,
    make_receipt,
    open_producer,
    store,
)
from pulsarctl_wire.conformance.clients.stage import (
    PRODUCE,
    Stage,
    check_claim,
    client_case,
    expect_stored,
)
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError

_NEEDS = (PRODUCE,)
_UNUSED: Final = 1 << 40
"""A request id too high for a client to have used it."""
_UNKNOWN_COMMAND: Final = wrap(b"\x08\xe7\x07")  # type 999
_UNKNOWN_FIELD: Final = b"\xd2\x05\x01x"  # field 90, "x"


@client_case(MUST, needs=_NEEDS)
async def unknown_request_ids(stage: Stage) -> None:
    """SUCCESS, PRODUCER_SUCCESS and ERROR for requests that were never made come before PRODUCER_SUCCESS.

    Expected: They are ignored, and the connection stays.

    Source: Protocol: Commands.
    """
    broker = await stage.open_broker()
    frames = (
        make_frame("SUCCESS", request_id=_UNUSED),
        make_frame("PRODUCER_SUCCESS", request_id=_UNUSED + 1, producer_name="other", schema_version=b""),
        make_frame("ERROR", request_id=_UNUSED + 2, error=ServerError.UnknownError, message="for nobody"),
    )
    broker.once("PRODUCER", lambda peer, frame: b"".join([*frames, open_producer(peer, frame)]))
    await expect_stored(await stage.produce(broker.url), broker)
    equal(len(broker.list_frames("PRODUCER")), 1, "PRODUCERs")


@client_case(OBSERVED, needs=_NEEDS)
async def trailing_bytes(stage: Stage) -> None:
    """PRODUCER_SUCCESS with four zero bytes after the command, inside TOTAL_SIZE.

    Expected: They are ignored, and the connection stays.

    Source: Client: PulsarDecoder.
    """
    broker = await stage.open_broker()

    def extend(peer: Peer, frame: Frame) -> bytes:
        return wrap(open_producer(peer, frame)[8:], bytes(4))

    broker.always("PRODUCER", extend)
    run = await stage.produce(broker.url)
    await stage.until(lambda: len(broker.list_frames("PRODUCER")) > 1 or run.code is not None, "the end")
    equal(len(broker.list_frames("PRODUCER")), 1, "PRODUCERs")
    await expect_stored(run, broker)


@client_case(MUST, needs=_NEEDS)
async def unknown_command(stage: Stage) -> None:
    """A command of type 999 comes before the first receipt.

    Expected: It is ignored, or the client connects again and sends again what has no receipt.

    Source: Client: PulsarDecoder.
    """
    broker = await stage.open_broker()
    broker.once("SEND", lambda peer, frame: _UNKNOWN_COMMAND + store(peer, frame))
    await expect_stored(await stage.produce(broker.url), broker)


@client_case(MUST, needs=_NEEDS)
async def unknown_field(stage: Stage) -> None:
    """PRODUCER_SUCCESS with a field that the protocol does not have (90).

    Expected: It is ignored, and the connection stays.

    Source: Protocol: Framing; Protocol Buffers.
    """
    broker = await stage.open_broker()

    def extend(peer: Peer, frame: Frame) -> bytes:
        body = open_producer(peer, frame)[8:]
        # the sub-message is the last field of the command: a tag of two bytes, then a size of one byte
        size_at, size = body.index(b"\x8a\x01") + 2, body[body.index(b"\x8a\x01") + 2]
        new_size = bytes([size + len(_UNKNOWN_FIELD)])
        return wrap(body[:size_at] + new_size + body[size_at + 1 :] + _UNKNOWN_FIELD)

    broker.always("PRODUCER", extend)
    await expect_stored(await stage.produce(broker.url), broker)
    equal(len(broker.list_frames("PRODUCER")), 1, "PRODUCERs")


@client_case(MUST, needs=_NEEDS, waits=("timeout", 1))
async def oversize_header(stage: Stage) -> None:
    """In place of PRODUCER_SUCCESS comes the beginning of a frame with a TOTAL_SIZE of 100 MiB, once.

    Expected: The client connects again, or fails when its operation timeout is over.

    Source: Protocol: Framing.
    """
    broker = await stage.open_broker()
    broker.once("PRODUCER", lambda peer, frame: wrap(b"", total=100 << 20, size=20))
    run = await stage.produce(broker.url)
    await run.finish()
    check_claim(run, broker)


@client_case(MUST, needs=_NEEDS, waits=("timeout", 1))
async def size_mismatch(stage: Stage) -> None:
    """In place of PRODUCER_SUCCESS comes a frame whose COMMAND_SIZE is larger than its TOTAL_SIZE, once.

    Expected: The client connects again, or fails when its operation timeout is over.

    Source: Protocol: Framing.
    """
    broker = await stage.open_broker()
    broker.once("PRODUCER", lambda peer, frame: wrap(open_producer(peer, frame)[8:], size=1 << 20))
    run = await stage.produce(broker.url)
    await run.finish()
    check_claim(run, broker)


@client_case(MUST, needs=_NEEDS)
async def cut_receipt(stage: Stage) -> None:
    """The connection ends in the middle of the first receipt.

    Expected: The client connects again, and sends again what has no receipt.

    Source: Protocol: Producer.
    """
    broker = await stage.open_broker()

    def cut(peer: Peer, frame: Frame) -> None:
        peer.send(make_receipt(frame)[:-3])
        peer.hang_up()

    broker.once("SEND", cut)
    await expect_stored(await stage.produce(broker.url), broker)


@client_case(MUST, needs=_NEEDS)
async def slow_answers(stage: Stage) -> None:
    """The answers to LOOKUP, PRODUCER and SEND come half a second late.

    Expected: The client waits: nothing is asked or sent twice.

    Source: Protocol: Commands.
    """
    broker = await stage.open_broker()
    broker.always("LOOKUP", delay(connect_to(), 0.5))
    broker.always("PRODUCER", delay(open_producer, 0.5))
    broker.always("SEND", delay(store, 0.5))
    await expect_stored(await stage.produce(broker.url), broker)
    ids = [body.sequence_id for body in broker.list_bodies("SEND")]
    equal(len(ids), len(set(ids)), "SENDs")
    equal(len(broker.list_frames("PRODUCER")), 1, "PRODUCERs")


@client_case(MUST, needs=_NEEDS)
async def answers_in_one_piece(stage: Stage) -> None:
    """PONG comes twice, in the segment of the answer: after that to LOOKUP, before that to PRODUCER, and on
    both sides of receipts.

    Expected: All frames of a segment are read, and PONG without a PING is ignored.

    Source: Protocol: Framing.
    """
    broker = await stage.open_broker()
    pongs = make_frame("PONG") * 2
    broker.always("LOOKUP", append(connect_to(), pongs))
    broker.always("PRODUCER", lambda peer, frame: pongs + open_producer(peer, frame))
    broker.always("SEND", lambda peer, frame: pongs + store(peer, frame) + pongs)
    await expect_stored(await stage.produce(broker.url), broker)
    equal(len(broker.list_frames("PRODUCER")), 1, "PRODUCERs")
