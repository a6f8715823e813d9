"""Messages with the key "slow" arrive two seconds late; all others overtake them."""

from pulsarctl_wire.scripting import Frame


def on_frame(frame: Frame) -> None:
    """Delay the SEND of such a message."""
    if frame.command == "SEND" and frame.metadata and frame.metadata.partition_key == "slow":
        frame.delay = 2.0
