"""The broker looks as old as 2.8: what does the client do without newer commands?"""

from pulsarctl_wire.scripting import Frame


def on_frame(frame: Frame) -> None:
    """Lower the protocol version in CONNECTED, and leave out the feature flags."""
    if frame.command == "CONNECTED":
        frame.body.protocol_version = min(frame.body.protocol_version, 18)
        frame.body.ClearField("feature_flags")
