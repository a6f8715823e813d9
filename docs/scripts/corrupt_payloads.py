"""Every hundredth message arrives damaged: a bit of its payload is flipped, its checksum stays."""

from itertools import count

from pulsarctl_wire.scripting import Frame

messages = count(1)


def on_frame(frame: Frame) -> None:
    """Flip a bit of every hundredth payload that goes to a client."""
    if frame.command == "MESSAGE" and frame.payload and next(messages) % 100 == 0:
        frame.payload = bytes([frame.payload[0] ^ 1]) + frame.payload[1:]
        frame.keeps_checksum = True
