"""Consumers get one message at a time, whatever the size of their queues."""

from pulsarctl_wire.scripting import Frame


def on_frame(frame: Frame) -> None:
    """Lower the permits of each FLOW to 1."""
    if frame.command == "FLOW":
        frame.body.messagePermits = 1
