"""Scripts that see and change each frame on its way: `pwire proxy --script FILE.py`, `pwire broker --script`.

    from pulsarctl_wire.scripting import DROP, Frame, Link, Result

    def on_frame(frame: Frame) -> Result:
        if frame.command == "SEND" and frame.metadata.partition_key == "slow":
            frame.delay = 0.5
        return frame

A script has any of three functions:

    on_frame(frame)    each frame; returns what goes on in its place (`Result`)
    on_open(link)      a client's connection, before its first frame
    on_close(link)     the connection has ended

It runs in the process that forwards: while it works, nothing else is forwarded. What it raises is shown, and
the frame goes on as it was.
"""

from pulsarctl_wire.scripting.frame import DROP, Drop, Frame, Link, Result

__all__ = ["DROP", "Drop", "Frame", "Link", "Result"]
