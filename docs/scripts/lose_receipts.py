"""Every tenth receipt is lost, so that producers run into their timeouts."""

from itertools import count

from pulsarctl_wire.scripting import DROP, Frame, Result

receipts = count(1)


def on_frame(frame: Frame) -> Result:
    """Drop every tenth SEND_RECEIPT."""
    return DROP if frame.command == "SEND_RECEIPT" and next(receipts) % 10 == 0 else frame
