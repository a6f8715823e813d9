"""The transaction coordinator's commands (PIP-31)."""

from typing import Any

from pulsarctl_wire.broker.connection import Connection
from pulsarctl_wire.broker.refusal import Refused
from pulsarctl_wire.wire.frame import Frame

OFF = "Transactions are not enabled"


def connect(connection: Connection, body: Any, frame: Frame) -> None:
    """TC_CLIENT_CONNECT_REQUEST."""
    raise Refused("NotAllowedError", OFF)


new = add_partition = add_subscription = end = connect
