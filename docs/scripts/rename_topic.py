"""Clients that ask for the topic "orders" get "orders-v2", without knowing."""

from pulsarctl_wire.scripting import Frame

OLD, NEW = "public/default/orders", "public/default/orders-v2"


def on_frame(frame: Frame) -> None:
    """Write the other name into lookups, PRODUCER and SUBSCRIBE."""
    if frame.to_broker and hasattr(frame.body, "topic") and frame.body.topic.endswith(OLD):
        frame.body.topic = frame.body.topic.removesuffix(OLD) + NEW
