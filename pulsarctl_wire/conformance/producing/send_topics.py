"""SEND after a close, and to topics that are unloaded, terminated, non-persistent or limited."""

from __future__ import annotations

from pulsarctl_wire.checks.requirement import MUST, OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import equal
from pulsarctl_wire.conformance.basics.frames import id_of, make_frame, make_send
from pulsarctl_wire.conformance.basics.target import Target, admin_path
from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError
from pulsarctl_wire.wire.session.state import NO_REQUEST

_NOT_ALLOWED = ServerError.NotAllowedError


@case(OBSERVED)
async def after_close(broker: Target) -> None:
    """PRODUCER 1, CLOSE_PRODUCER 1 -> SUCCESS, SEND producer 1.

    Expected: No frame; the broker closes the connection.

    Source: Broker: ServerCnx.handleSend.
    """
    probe = await broker.produce(broker.topic())
    await probe.request("CLOSE_PRODUCER", "SUCCESS", producer_id=1)
    probe.publish()
    await probe.expect_close()


@case(SHOULD, needs=("admin",), since="3.3")
async def terminated_topic(broker: Target) -> None:
    """Live producer, topic terminated by the admin API, SEND, then PRODUCER again.

    Expected: CLOSE_PRODUCER {request_id=-1}; SEND ignored; PRODUCER -> ERROR TopicTerminatedError.

    Source: Broker: PersistentTopic.
    """
    topic = broker.topic()
    probe = await broker.produce(topic)
    await broker.rest("POST", f"{admin_path(topic)}/terminate")
    await probe.expect("CLOSE_PRODUCER", producer_id=1, request_id=NO_REQUEST)
    probe.publish()
    await probe.expect_nothing()
    await probe.expect_error("TopicTerminatedError", "PRODUCER", topic=topic, producer_id=1)


@case(OBSERVED, needs=("admin",), since="3.3")
async def after_broker_close(broker: Target) -> None:
    """Topic unloaded by the admin API (producer got CLOSE_PRODUCER); two more SEND for that producer_id
    within 30 s.

    Expected: No frame; the connection stays open.

    Source: Broker: ServerCnx (recently closed producers).
    """
    topic = broker.topic()
    probe = await broker.produce(topic)
    await broker.rest("PUT", f"{admin_path(topic)}/unload")
    await probe.expect("CLOSE_PRODUCER")
    probe.send(make_send(0) + make_send(1))
    await probe.expect_nothing()
    await probe.expect_pong()


@case(MUST, needs=("admin",))
async def unloaded_topic(broker: Target) -> None:
    """Topic unloaded by the admin API while a producer is open.

    Expected: CLOSE_PRODUCER {producer_id, request_id=-1}; after LOOKUP, PRODUCER with the same id succeeds.

    Source: Protocol: Producer (CloseProducer by broker).
    """
    topic = broker.topic()
    probe = await broker.produce(topic)
    await broker.rest("PUT", f"{admin_path(topic)}/unload")
    await probe.expect("CLOSE_PRODUCER", producer_id=1, request_id=NO_REQUEST)
    await probe.create_producer(topic)


@case(OBSERVED, needs=("admin",))
async def unloaded_topic_v4(broker: Target) -> None:
    """The topic is unloaded by the admin API while a producer is open that connected with
    protocol_version=4.

    Expected: No CLOSE_PRODUCER; the connection is closed.

    Source: Broker: ServerCnx (from protocol version 5 on).
    """
    topic = broker.topic()
    probe = await broker.connect(protocol_version=4)
    await probe.create_producer(topic)
    await broker.rest("PUT", f"{admin_path(topic)}/unload")
    await probe.expect_close()


@case(SHOULD)
async def nonpersistent_delivery(broker: Target) -> None:
    """Non-persistent topic: consumer with 10 permits, then SEND.

    Expected: MESSAGE message_id 0:0.

    Source: Broker: non-persistent topics.
    """
    topic = broker.topic("non-persistent")
    consumer, probe = await broker.subscribe(topic, permits=10), await broker.produce(topic)
    await broker.settle()
    await probe.publish_all(b"m")
    (message,) = await consumer.messages(1)
    equal(id_of(message.body.message_id), {"ledgerId": 0, "entryId": 0}, "message_id")


@case(SHOULD)
async def nonpersistent_no_permit(broker: Target) -> None:
    """Non-persistent topic: consumer without permits, SEND, then FLOW.

    Expected: Receipt; message dropped, nothing after FLOW.

    Source: Broker: non-persistent topics.
    """
    topic = broker.topic("non-persistent")
    consumer, probe = await broker.subscribe(topic), await broker.produce(topic)
    await probe.publish_all(b"m")
    consumer.flow(10)
    await consumer.expect_nothing()


@case(OBSERVED)
async def nonpersistent_transaction(broker: Target) -> None:
    """Non-persistent topic: SEND with txnid 0/1.

    Expected: No frame; the broker closes the connection.

    Source: Broker: NonPersistentTopic.
    """
    probe = await broker.produce(broker.topic("non-persistent"))
    probe.publish(txnid_most_bits=0, txnid_least_bits=1)
    await probe.expect_close()


@case(OBSERVED, needs=("admin",), since="3.3")
async def closed_after_broker_close(broker: Target) -> None:
    """Topic unloaded; PRODUCER with the same id, CLOSE_PRODUCER, SEND, all within 30 s.

    Expected: The SEND is ignored, the connection stays open.

    Source: Broker: ServerCnx (recently closed producers).
    """
    topic = broker.topic()
    probe = await broker.produce(topic)
    await broker.rest("PUT", f"{admin_path(topic)}/unload")
    await probe.expect("CLOSE_PRODUCER", producer_id=1)
    await probe.create_producer(topic)
    await probe.request("CLOSE_PRODUCER", "SUCCESS", producer_id=1)
    probe.publish()
    await probe.expect_nothing()


@case(SHOULD, needs=("admin",), since="3.3")
async def topic_max_size(broker: Target) -> None:
    """Topic policy maxMessageSize=100: SEND with 50 bytes, with 500 bytes, with 500 bytes as a chunk.

    Expected: SEND_RECEIPT; SEND_ERROR NotAllowedError 'Exceed maximum message size'; SEND_RECEIPT.

    Source: Broker: AbstractTopic.
    """
    topic = broker.topic()
    probe = await broker.produce(topic)
    path = f"{admin_path(topic)}/maxMessageSize"
    await broker.rest("POST", path, 100)
    while await broker.rest("GET", path) != 100:
        await broker.advance(0.2)
    await broker.settle()
    await probe.publish_all(b"x" * 50)
    probe.publish(1, b"x" * 500)
    await probe.expect("SEND_ERROR", sequence_id=1, error=_NOT_ALLOWED, message="Exceed maximum message size")
    chunk = {"meta_uuid": "p-2", "meta_chunk_id": 0, "meta_num_chunks_from_msg": 2}
    probe.publish(2, b"x" * 500, is_chunk=True, meta_total_chunk_msg_size=1000, **chunk)
    await probe.expect("SEND_RECEIPT", sequence_id=2)


@case(OBSERVED)
async def while_closing(broker: Target) -> None:
    """SEND x5, CLOSE_PRODUCER and another SEND in one write.

    Expected: SEND_ERROR PersistenceError 'Producer is closed' for the last, which may come first; 5
    SEND_RECEIPT; SUCCESS at the end.

    Source: Broker: Producer.checkAndStartPublish.
    """
    probe = await broker.produce(broker.topic())
    sends = b"".join(make_send(number) for number in range(5))
    close_request = make_frame("CLOSE_PRODUCER", producer_id=1, request_id=9)
    probe.send(sends + close_request + make_send(6))
    answers = [await probe.next() for _ in range(7)]
    (error,) = (item.body for item in answers if item.command == "SEND_ERROR")
    equal((error.sequence_id, error.error), (6, ServerError.PersistenceError), "sequence_id, error")
    equal(error.message, "Producer is closed", "message")
    equal(answers[-1].command, "SUCCESS", "command")


@case(OBSERVED, needs=("admin",), since="3.3")
async def too_fast(broker: Target) -> None:
    """Namespace policy publishRate of 1 message a second: SEND x3 and PING in one write.

    Expected: One SEND_RECEIPT; the others and PONG only later: nothing more is read. PONG may come before
    the last SEND_RECEIPT.

    Source: Broker: ServerCnxThrottleTracker.
    """
    namespace = await broker.create_namespace()
    rate = {"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": -1}
    await broker.rest("POST", f"/admin/v2/namespaces/{namespace}/publishRate", rate)
    probe = await broker.produce(f"persistent://{namespace}/t")
    probe.send(b"".join(map(make_send, range(3))) + make_frame("PING"))
    await probe.expect("SEND_RECEIPT", sequence_id=0)
    await probe.expect_nothing(0.2)
    await broker.advance(5)
    await probe.expect("SEND_RECEIPT", sequence_id=1)
    answers = {answer.command: answer.body for answer in [await probe.next(), await probe.next()]}
    equal(sorted(answers), ["PONG", "SEND_RECEIPT"], "commands")
    equal(answers["SEND_RECEIPT"].sequence_id, 2, "sequence_id")
