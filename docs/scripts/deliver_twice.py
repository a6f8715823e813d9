"""Each message of one topic arrives twice. Does the application notice?"""

from pulsarctl_wire.scripting import Frame, Result


def on_frame(frame: Frame) -> Result:
    """Send a MESSAGE and a copy of it."""
    if frame.command == "MESSAGE" and frame.topic == "persistent://public/default/orders":
        return [frame, frame.copy()]
    return frame
