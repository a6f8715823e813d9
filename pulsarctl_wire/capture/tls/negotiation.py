"""Follows the handshakes of a TLS connection: which version, suite and keys each direction uses when."""

from itertools import islice
from typing import Final

from pulsarctl_wire.capture.tls import handshake
from pulsarctl_wire.capture.tls.facts import TlsFacts
from pulsarctl_wire.capture.tls.handshake import (
    TLS_12,
    TLS_13,
    VERSIONS,
    BadMessage,
    ClientHello,
    ServerHello,
)
from pulsarctl_wire.capture.tls.keylog import MASTER, KeyLog
from pulsarctl_wire.capture.tls.schedule import EXPLICIT_SIZE, open_12, open_13
from pulsarctl_wire.capture.tls.sides import APPLICATION, EARLY, HANDSHAKE, Entry, Side
from pulsarctl_wire.capture.tls.suites import CHACHA, Suite, suite_of

MAX_MESSAGE: Final = 65_536
"""Bytes of a handshake message that is kept; a larger one is skipped."""
_MAX_SKIPS: Final = 64
"""Records of a TLS 1.3 handshake that are skipped, if the key log has no secrets for it."""
_MAX_CLIENTS: Final = 16_384
"""Client randoms that are tried if a connection's own was not captured."""
_MAX_EARLY: Final = 65_536
"""Records of rejected early data that are skipped."""


class Negotiation:
    """The handshakes of a connection."""

    def __init__(self, keylog: KeyLog, facts: TlsFacts, client: Side, server: Side) -> None:
        self.facts = facts
        self.version = 0
        self.suite: Suite | None = None
        self.client_random = b""
        self.has_server_hello = False
        self._keylog = keylog
        self._sides = client, server  # as the caller names them
        self._server_random = b""
        self._server_session_id = b""
        self._tried_version = -1  # of the key log whose client randoms were tried
        self._has_ticket = False
        self._offers_early_data = False
        self._is_hello_done = False  # the server has sent ServerHelloDone since its ServerHello
        self._finished = 0  # sides that have finished the last handshake, as bits

    @property
    def is_13(self) -> bool:
        """Whether the version is known to be TLS 1.3."""
        return self.version == TLS_13

    @property
    def client(self) -> Side:
        """The side that is the client."""
        return self._sides[1 if self.facts.is_flipped else 0]

    @property
    def server(self) -> Side:
        """The side that is the server."""
        return self._sides[0 if self.facts.is_flipped else 1]

    def take(self, side: Side, data: bytes) -> None:
        """Take handshake messages, whole or not, that were in clear or have been opened."""
        if side.message_skip:
            cut = min(side.message_skip, len(data))
            side.message_skip -= cut
            data = data[cut:]
        messages = side.messages
        messages += data
        while len(messages) >= 4:
            size = 4 + (messages[1] << 16 | messages[2] << 8 | messages[3])
            if size > MAX_MESSAGE:
                self.facts.problem = f"a handshake message of {size:,} bytes was skipped"
                side.message_skip = max(size - len(messages), 0)
                del messages[:size]
                continue
            if len(messages) < size:
                return
            kind, body = messages[0], bytes(messages[4:size])
            del messages[:size]
            try:
                self._take_message(side, kind, body)
            except BadMessage as error:
                self.facts.problem = f"a handshake message of type {kind} does not parse: {error}"

    def take_cut(self, side: Side, data: bytes) -> None:
        """Take the captured beginning of a record of handshake messages."""
        self.take(side, data)
        kind, body = bytes(side.messages[:1]), bytes(side.messages[4:])
        side.messages.clear()
        try:
            if kind == bytes([handshake.CLIENT_HELLO]):
                self._note_client_hello(side, handshake.read_client_hello(body, is_cut=True))
            elif kind == bytes([handshake.SERVER_HELLO]):
                self._note_server_hello(side, handshake.read_server_hello(body, is_cut=True))
        except BadMessage as error:
            self.facts.problem = f"a handshake message that is cut does not parse: {error}"

    def _take_message(self, side: Side, kind: int, body: bytes) -> None:
        if kind == handshake.CLIENT_HELLO:
            self._note_client_hello(side, handshake.read_client_hello(body))
        elif kind == handshake.SERVER_HELLO:
            self._note_server_hello(side, handshake.read_server_hello(body))
        elif kind == handshake.CERTIFICATE:
            self._take_certificate(side, body)
        elif kind == handshake.CERTIFICATE_REQUEST:
            self.facts.wants_client_certificate = True
        elif kind == handshake.SERVER_HELLO_DONE:
            self._is_hello_done = True
        elif kind == handshake.FINISHED:
            self._finish(side)
        elif not self.is_13:
            return
        elif kind == handshake.ENCRYPTED_EXTENSIONS:
            self.facts.alpn, is_accepted = handshake.read_encrypted_extensions(body)
            if self._offers_early_data:
                self.facts.early_data = "accepted" if is_accepted else "rejected"
        elif kind == handshake.END_OF_EARLY_DATA:
            side.enter(HANDSHAKE)
        elif kind == handshake.KEY_UPDATE:
            side.update()

    def _note_client_hello(self, side: Side, hello: ClientHello) -> None:
        if side is not self.client:
            self.facts.is_flipped = not self.facts.is_flipped
        if self.has_server_hello:
            self.facts.is_renegotiated = True
        self.client_random = hello.random
        self.facts.client_random = hello.random.hex()
        self.facts.server_name = hello.server_name or self.facts.server_name
        self._has_ticket = hello.has_ticket
        self._offers_early_data = hello.has_early_data

    def _note_server_hello(self, side: Side, hello: ServerHello) -> None:
        if side is not self.server:
            self.facts.is_flipped = not self.facts.is_flipped
        if hello.is_retry:
            self.facts.has_retried = True
            return
        self.has_server_hello = True
        self.version = hello.version
        self.suite = suite_of(hello.suite)
        self._server_random = hello.random
        self._server_session_id = hello.session_id
        self._is_hello_done = False
        self._finished = 0
        facts = self.facts
        facts.version = VERSIONS.get(hello.version, f"version 0x{hello.version:04x}")
        facts.cipher = self.suite.name
        facts.resumed = "PSK" if self.is_13 and hello.has_psk else ""
        if not self.is_13:
            facts.alpn = hello.alpn
            return
        server, client = self.server, self.client
        server.enter(HANDSHAKE)
        if self._offers_early_data and hello.has_psk:
            client.enter(EARLY)
            return
        if self._offers_early_data or facts.has_retried:
            facts.early_data = "rejected" if self._offers_early_data else facts.early_data
        client.enter(HANDSHAKE, _MAX_EARLY if facts.early_data == "rejected" else 0)

    def _take_certificate(self, side: Side, body: bytes) -> None:
        certificate = handshake.read_certificate(body, is_13=self.is_13)
        if side is self.server:
            self.facts.server_certificate = certificate
        else:
            self.facts.client_certificate = certificate

    def _finish(self, side: Side) -> None:
        self._note_finished(side)
        if self.is_13:
            side.enter(APPLICATION)

    def change_cipher(self, side: Side) -> None:
        """Take a ChangeCipherSpec of a version before TLS 1.3."""
        if side is self.server and not self._is_hello_done:
            self.facts.resumed = "ticket" if self._has_ticket else "session id"
        if side.stage == APPLICATION and side.opener is None:
            return  # one more, without a handshake
        side.enter(APPLICATION)
        self._note_finished(side)  # the message Finished follows, encrypted

    def _note_finished(self, side: Side) -> None:
        self._finished |= 1 if side is self.client else 2
        self.facts.is_established |= self._finished == 3

    def find_reason(self) -> str:
        """Return why nothing can be opened, whatever secrets there are; "" if that is not so."""
        if self.version and self.version not in (TLS_12, TLS_13):
            return f"{self.facts.version}: not opened"
        if self.suite is not None and not self.suite.mode:
            kind = "CBC suite " if "_CBC_" in self.suite.name else "suite "
            return f"{kind}{self.suite.name}: not opened"
        return ""

    def find_key(self, side: Side) -> bool:
        """Give a side the key for its next record; return whether the key log has it."""
        if self._server_session_id and not self.is_13:
            self._keylog.identify(self.client_random, self._server_session_id)
        secrets = self._keylog.secrets_of(self.client_random)
        suite = self.suite
        if not secrets or suite is None:
            return False
        if not self.is_13:
            master = secrets.get(MASTER)
            if master is None or len(master) != 48:
                return False
            is_client = side is self.client
            side.use(open_12(suite, master, self.client_random, self._server_random, is_client=is_client))
            return self._note_use()
        handshake_secret = secrets.get(self._handshake_label(side))
        secret = self.application_secret(side)
        if side.stage == EARLY:
            if self.is_undecided(side):
                return False
            early = secrets.get("CLIENT_EARLY_TRAFFIC_SECRET")
            if self.facts.early_data == "accepted" and early is not None:
                side.use(open_13(suite, early))
                return self._note_use()
            side.enter(HANDSHAKE, _MAX_EARLY)
        if side.stage == HANDSHAKE:
            if handshake_secret is not None:
                side.use(open_13(suite, handshake_secret))
                return self._note_use()
            if secret is None:
                return False
            side.enter(APPLICATION, side.skips + _MAX_SKIPS)
        if secret is None:
            return False
        side.use(open_13(suite, secret))
        return self._note_use()

    def is_undecided(self, side: Side) -> bool:
        """Return whether early data is next, and the server has yet to say whether it accepts that."""
        secrets = self._keylog.secrets_of(self.client_random)
        # without the key of its handshake, what the server says is never seen
        is_said = self.facts.early_data or "SERVER_HANDSHAKE_TRAFFIC_SECRET" not in secrets
        return side.stage == EARLY and not is_said

    @property
    def has_master(self) -> bool:
        """Whether the key log has a master secret, which only versions before TLS 1.3 have."""
        return MASTER in self._keylog.secrets_of(self.client_random)

    def find_client(self, side: Side, entry: Entry) -> None:
        """Find the client random if the ClientHello was not captured: the one whose key opens record 0."""
        if self.client_random or self.suite is None or self._tried_version == self._keylog.version:
            return
        self._tried_version = self._keylog.version
        is_client = side is self.client
        label = self._handshake_label(side) if self.is_13 else MASTER
        for client_random, secret in islice(self._keylog.find_secrets(label), _MAX_CLIENTS):
            if self.is_13:
                opener = open_13(self.suite, secret)
            else:
                random = self._server_random
                opener = open_12(self.suite, secret, client_random, random, is_client=is_client)
            if opener.open(0, entry.header, entry.body) is not None:
                self.client_random = client_random
                self.facts.client_random = client_random.hex()
                return

    def application_secret(self, side: Side) -> bytes | None:
        """Return the first traffic secret of what a side sends after the handshake, in TLS 1.3."""
        return self._keylog.secrets_of(self.client_random).get(f"{self._role(side)}_TRAFFIC_SECRET_0")

    def _handshake_label(self, side: Side) -> str:
        """Return the label of a side's handshake secret in key logs, in TLS 1.3."""
        return f"{self._role(side)}_HANDSHAKE_TRAFFIC_SECRET"

    def _role(self, side: Side) -> str:
        """Return what labels of secrets call a side."""
        return "CLIENT" if side is self.client else "SERVER"

    def _note_use(self) -> bool:
        self._keylog.used[self.client_random] = None
        return True

    def explicit_nonce(self, body: bytes) -> int:
        """Return the nonce that a TLS 1.2 record carries; 0 if it carries none."""
        if self.is_13 or self.suite is None or self.suite.mode == CHACHA:
            return 0
        return int.from_bytes(body[:EXPLICIT_SIZE], "big")

    def adopt(self, client_random: bytes, suite: Suite) -> None:
        """Take what the trial of secrets has found out about a TLS 1.3 connection."""
        self.client_random = client_random
        self.version = TLS_13
        self.suite = suite
        self.facts.client_random = client_random.hex()
        self.facts.version = VERSIONS[TLS_13]
        self.facts.cipher = suite.name
        self._note_use()
