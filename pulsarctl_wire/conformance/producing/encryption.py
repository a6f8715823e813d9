"""Encryption that a namespace requires."""

from __future__ import annotations

from pulsarctl_wire.checks.requirement import OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.frames import NOT_METADATA, make_entry, make_raw_send
from pulsarctl_wire.conformance.basics.target import Target


@case(SHOULD, needs=("admin",))
async def producer_refused(broker: Target) -> None:
    """Namespace with encryptionRequired=true: PRODUCER encrypted=false.

    Expected: ERROR MetadataError.

    Source: Broker: AbstractTopic.
    """
    topic = f"persistent://{await broker.create_namespace({'encryption_required': True})}/t"
    probe = await broker.connect()
    await probe.look_up(topic)
    await probe.expect_error("MetadataError", "PRODUCER", topic=topic, producer_id=1, encrypted=False)


@case(OBSERVED, needs=("admin",))
async def undecodable_refused(broker: Target) -> None:
    """A namespace with encryptionRequired=true: SEND with the bytes ff ff ff ff as metadata, and a valid
    CRC.

    Expected: No frame; the broker closes the connection.

    Source: Broker: Producer.
    """
    topic = f"persistent://{await broker.create_namespace({'encryption_required': True})}/t"
    probe = await broker.produce(topic, encrypted=True)
    probe.send(make_raw_send(make_entry(NOT_METADATA)))
    await probe.expect_close()


@case(SHOULD, needs=("admin",))
async def required_later(broker: Target) -> None:
    """Two producers, one with encrypted=true; the namespace then requires encryption.

    Expected: CLOSE_PRODUCER for the other.

    Source: Broker: Producer.checkEncryption.
    """
    namespace = await broker.create_namespace()
    probe = await broker.produce(f"persistent://{namespace}/t")
    await probe.create_producer(f"persistent://{namespace}/t", 2, encrypted=True)
    await broker.rest("POST", f"/admin/v2/namespaces/{namespace}/encryptionRequired", True)
    await probe.expect("CLOSE_PRODUCER", producer_id=1)
    await probe.expect_nothing()
