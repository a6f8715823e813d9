"""What the broker answers instead of doing as it was asked."""

from pulsarctl_wire.errors import WireError


class Refused(WireError):
    """A request is refused: `code` is the name of a ServerError, the text says why."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Violation(WireError):
    """What a client sent makes the broker close the connection without an answer."""
