"""What the two sides of a connection say of themselves in CONNECT and CONNECTED."""

from typing import Any, Final, NamedTuple

from pulsarctl_wire.wire.commands import NUMBERS
from pulsarctl_wire.wire.credentials import is_doubtful
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.ranges import Int32

CONNECT: Final = NUMBERS["CONNECT"]
CONNECTED: Final = NUMBERS["CONNECTED"]

_LONGEST: Final = 2_048  # characters of a text that are kept


class Greeting(NamedTuple):
    """What is known of a handshake; None for what was not seen or said."""

    client_version: str | None = None
    """From CONNECT."""
    proxy_to_broker_url: str | None = None
    """From CONNECT: the broker that the client, which is a proxy or connects through one, asks for."""
    server_version: str | None = None
    """From CONNECTED."""
    protocol_version: Int32 | None = None
    """From CONNECTED."""

    @property
    def broker(self) -> str:
        """The host and port of `proxy_to_broker_url`; empty if there are none."""
        return (self.proxy_to_broker_url or "").rpartition("://")[2].partition("/")[0]

    def merge(self, frame: Frame) -> "Greeting":
        """Return this greeting with what a CONNECT or CONNECTED adds."""
        body: Any = frame.body
        if body is None or is_doubtful(frame):
            return self
        if frame.type == CONNECTED:
            version = as_text(body.server_version[:_LONGEST])
            return self._replace(server_version=version, protocol_version=body.protocol_version)
        url = as_text(body.proxy_to_broker_url[:_LONGEST]) if body.HasField("proxy_to_broker_url") else None
        return self._replace(
            client_version=as_text(body.client_version[:_LONGEST]),
            proxy_to_broker_url=self.proxy_to_broker_url if url is None else url,
        )
