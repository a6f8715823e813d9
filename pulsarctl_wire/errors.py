"""The errors pwire raises, all of them.

    WireError
    ├── CaptureError        a source that cannot be read, or not further
    │   └── DamagedCapture  what came before the damage was read and given
    ├── LocalProtocolError  we were asked to build what the protocol does not allow
    └── FilterError         a filter expression that is not one

Damaged traffic is no error: the decoder yields `Malformed` and `Gap` values for it. Exit codes
live in `pulsarctl_wire.cli.console` alone.
"""


class WireError(Exception):
    """The root: one line that names the cause and the way out."""


class CaptureError(WireError):
    """A source that cannot be opened, is no capture, or cannot be read."""


class DamagedCapture(CaptureError):
    """A capture that ends or breaks in its middle: everything before the damage was yielded."""


class LocalProtocolError(WireError):
    """A frame we were asked to build cannot exist (too large, a required field missing)."""


class FilterError(WireError):
    """A filter expression that does not parse or does not fit the fields."""
