"""Refused requests and protocol violations, as exceptions."""

from typing import Any

from pulsarctl_wire.errors import WireError
from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError


class Refused(WireError):
    """A refused request: `code` is the name of a ServerError, the text says why."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of an answer that report the refusal."""
        return {"error": ServerError.Value(self.code), "message": str(self)}


def java_refusal(code: str, text: str, kind: str = "") -> Refused:
    """Return a Refused whose message starts with the name of Pulsar's Java exception, as clients see it.

    `kind` is the class of that exception; the default is `code` + "Exception".
    """
    kind = kind or f"{code}Exception"
    return Refused(code, f"org.apache.pulsar.broker.service.BrokerServiceException${kind}: {text}")


class Violation(WireError):
    """A violation of the protocol: the broker closes the connection without an answer."""
