"""Only producers whose name begins with "team-a-" may open; the others are not authorized."""

from pulsarctl_wire.scripting import Frame


def on_frame(frame: Frame) -> Frame | None:
    """Answer PRODUCER with an error."""
    if frame.command == "PRODUCER" and not frame.body.producer_name.startswith("team-a-"):
        return frame.answer("ERROR", error="AuthorizationError", message="team-a only, says a script")
    return None
