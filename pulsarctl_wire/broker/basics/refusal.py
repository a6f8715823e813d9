"""What the broker answers instead of doing as it was asked."""

from pulsarctl_wire.errors import WireError


class Refused(WireError):
    """A request is refused: `code` is the name of a ServerError, the text says why."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def thrown(code: str, text: str, kind: str = "") -> Refused:
    """A refusal whose text begins with the Java class of Pulsar's exception, as clients are shown it.

    `kind` is the name of the class, if that is not `code` with Exception behind it.
    """
    kind = kind or f"{code}Exception"
    return Refused(code, f"org.apache.pulsar.broker.service.BrokerServiceException${kind}: {text}")


class Violation(WireError):
    """What a client sent makes the broker close the connection without an answer."""
