"""The first three lookups of each connection find a broker that is not ready."""

from pulsarctl_wire.scripting import Frame, Link


def on_open(link: Link) -> None:
    """Begin to count."""
    link.data["lookups"] = 0


def on_frame(frame: Frame) -> Frame | None:
    """Answer a lookup in the broker's place."""
    if frame.command == "LOOKUP" and frame.link and frame.link.data["lookups"] < 3:
        frame.link.data["lookups"] += 1
        return frame.answer(
            "LOOKUP_RESPONSE", response="Failed", error="ServiceNotReady", message="not ready, says a script"
        )
    return None
