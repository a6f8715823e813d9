"""What is known of a TLS connection, whether or not its records are opened: plain data."""

from dataclasses import dataclass, field
from typing import NamedTuple


class Certificate(NamedTuple):
    """A certificate as far as it is shown. Times are seconds since 1970."""

    subject: str
    """As RFC 4514 writes it ("CN=broker,O=Example"); "" if `problem` says why not."""
    names: tuple[str, ...] = ()
    """Alternative names: host names and IP addresses."""
    issuer: str = ""
    not_before: int = 0
    not_after: int = 0
    problem: str = ""


class Alert(NamedTuple):
    """An alert, other than close_notify."""

    from_client: bool
    level: str
    """"warning" or "fatal"."""
    description: str
    """As in RFC 8446: "bad_certificate"."""
    time_ns: int | None
    packet: int


@dataclass(slots=True)
class DirectionFacts:
    """One direction of a connection."""

    records: int = 0
    """Records opened; those in clear are not counted."""
    plain_bytes: int = 0
    """Bytes of application data in them."""
    closed_records: int = 0
    """Records that were not opened: also those of a handshake or early data whose secret is missing."""
    closed_alerts: int = 0
    """Those of them that are alerts, as TLS 1.2 shows: most likely close_notify."""
    failed_tags: int = 0
    """Those of them whose tag did not fit, though there was a key."""
    unproven_records: int = 0
    """Records of which bytes are missing: what is left of them was opened, but their tags prove nothing."""
    lost_bytes: int = 0
    """Bytes in holes after the record that they cut, and bytes passed over to find the next record."""
    key_updates: int = 0
    first_number: int | None = None
    """The number of the first record, if it was found by trial: as many came before the capture."""
    has_close_notify: bool = False


@dataclass(slots=True)
class TlsFacts:
    """A TLS connection."""

    version: str = ""
    """"TLS 1.3"; "" if not known."""
    cipher: str = ""
    """The name of the cipher suite."""
    server_name: str = ""
    """The name that the client asked for (SNI)."""
    alpn: str = ""
    """The protocol agreed on; visible in TLS 1.3 only if opened."""
    client_random: str = ""
    """In hexadecimal digits; "" if the ClientHello was not captured and no secret was found."""
    resumed: str = ""
    """"ticket", "session id" or "PSK"; "" for a full handshake."""
    early_data: str = ""
    """"accepted" or "rejected" (0-RTT)."""
    has_retried: bool = False
    """Whether the server asked for another ClientHello (HelloRetryRequest)."""
    is_renegotiated: bool = False
    is_established: bool = False
    """Whether both sides have finished a handshake, as far as was seen."""
    is_midway: bool = False
    """Whether the handshake came before the capture."""
    is_flipped: bool = False
    """Whether the client is the side that the caller took for the server."""
    server_certificate: Certificate | None = None
    client_certificate: Certificate | None = None
    wants_client_certificate: bool = False
    packets: list[int] = field(default_factory=list)
    """The first packets of the connection, up to those with application data."""
    earlier: dict[int, list[int]] = field(default_factory=dict)
    """Packet that completes a record -> earlier packets with other parts of it; only the newest records."""
    alerts: list[Alert] = field(default_factory=list)
    """The first `opening.MAX_ALERTS`."""
    client: DirectionFacts = field(default_factory=DirectionFacts)
    server: DirectionFacts = field(default_factory=DirectionFacts)
    """What was sent by the sides that the caller takes for client and server."""
    trial: str = ""
    """What was found by trial: "record 80,006 of the client, client random ab12cd34…"; "" if nothing."""
    reason: str = ""
    """Why application data was not opened; "" if all was, or there was none."""
    problem: str = ""
    """A handshake message that is not understood."""

    @property
    def is_opened(self) -> bool:
        """Whether application data of either direction was opened."""
        return self.client.plain_bytes + self.server.plain_bytes > 0

    def describe(self) -> str:
        """Return version, cipher and server name, and why records were not opened, in a few words."""
        name = f"to {self.server_name}" if self.server_name else ""
        kind = " ".join(filter(None, (self.version or "TLS", name)))
        return ", ".join(filter(None, (kind, self.cipher, self.reason)))
