"""One step of a lookup."""

from dataclasses import dataclass

from pulsarctl_wire.net.settings import Address


@dataclass(frozen=True)
class Hop:
    """One lookup and its answer: the server asked (`peer`: its IP address and port), the answer, its latency.

    `authoritative` is the flag of the lookup, and `says_authoritative` that of the answer. `response` is
    Connect or Redirect; over HTTP, `call` is the request and `status` that of its answer.
    """

    asked: Address
    peer: str
    authoritative: bool
    response: str
    url: str
    url_tls: str
    says_authoritative: bool
    through_proxy: bool
    latency_ns: int
    call: str = ""
    status: int | None = None

    @property
    def source(self) -> str:
        """Which answer named the broker, for messages."""
        return f"{'the lookup over HTTP at' if self.call else 'LOOKUP_RESPONSE of'} {self.asked}"
