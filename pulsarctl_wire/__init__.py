"""pulsarctl-wire: Apache Pulsar's binary protocol, decoded. The command is `pwire`.

    from pulsarctl_wire import read_frames

    for frame in read_frames("capture.pcap"):
        print(frame.number, frame.command, frame.topic)

The names below are imported on first use, so that the command starts fast.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "Frame",
    "Gap",
    "HttpMessage",
    "Malformed",
    "__version__",
    "open_entry",
    "read_events",
    "read_frames",
]

if TYPE_CHECKING:
    from pulsarctl_wire.capture import read_events, read_frames
    from pulsarctl_wire.wire.frame import Frame, Gap, HttpMessage, Malformed
    from pulsarctl_wire.wire.payload import open_entry

_HOMES = {
    "Frame": "wire.frame",
    "Gap": "wire.frame",
    "HttpMessage": "wire.frame",
    "Malformed": "wire.frame",
    "open_entry": "wire.payload",
    "read_events": "capture",
    "read_frames": "capture",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


if (_archive := __path__[0].removesuffix(f"/{__name__}")).endswith(".zip"):  # see shipping.py
    from pulsarctl_wire.shipping import unpack

    __path__[0] = f"{unpack(_archive)}/{__name__}"
