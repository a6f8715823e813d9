"""Each message gets a property that says which client has sent it. Batches stay as they are."""

from pulsarctl_wire.scripting import Frame


def on_frame(frame: Frame) -> None:
    """Add the property to a SEND of one message."""
    metadata = frame.metadata
    if frame.command == "SEND" and frame.link and metadata and not metadata.HasField("num_messages_in_batch"):
        metadata.properties.add(key="sent-from", value=frame.link.client)
