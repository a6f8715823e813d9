"""A producer is closed by the broker after its tenth receipt; the client has to open it again."""

from collections import Counter

from pulsarctl_wire.scripting import Frame

receipts: Counter[tuple[object, int]] = Counter()


def on_frame(frame: Frame) -> list[Frame] | None:
    """Send CLOSE_PRODUCER to the client behind the tenth receipt, and to the broker."""
    if frame.command != "SEND_RECEIPT":
        return None
    producer = frame.body.producer_id
    receipts[frame.link, producer] += 1
    if receipts[frame.link, producer] != 10:
        return None
    to_client = Frame.make("CLOSE_PRODUCER", to_broker=False, producer_id=producer, request_id=2**64 - 1)
    to_broker = Frame.make("CLOSE_PRODUCER", to_broker=True, producer_id=producer, request_id=2**63)
    return [frame, to_client, to_broker]
