"""At the end of each connection, its commands are counted on stderr."""

import sys
from collections import Counter

from pulsarctl_wire.scripting import Frame, Link


def on_open(link: Link) -> None:
    """Begin to count."""
    link.data["commands"] = Counter()


def on_frame(frame: Frame) -> None:
    """Count a command."""
    if frame.link:
        frame.link.data["commands"][frame.command] += 1


def on_close(link: Link) -> None:
    """Print the counts."""
    counts = link.data["commands"].most_common()
    sys.stderr.write(f"{link.client}: " + ", ".join(f"{number} {name}" for name, number in counts) + "\n")
