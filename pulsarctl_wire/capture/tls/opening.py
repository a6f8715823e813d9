"""Opens the records of a connection's sides, one after the other, also after a hole or joined midway."""

from typing import Final

from pulsarctl_wire.capture.tls import handshake, sides
from pulsarctl_wire.capture.tls.cut import begins_frame, split_parts, strip_kind
from pulsarctl_wire.capture.tls.facts import Alert, TlsFacts
from pulsarctl_wire.capture.tls.handshake import CLOSE_NOTIFY, BadMessage
from pulsarctl_wire.capture.tls.keylog import KeyLog
from pulsarctl_wire.capture.tls.midway import (
    MAX_SPAN,
    TAG_COST,
    Found,
    Sealed,
    Search,
    choose_records,
    find_number,
    try_tags,
)
from pulsarctl_wire.capture.tls.negotiation import Negotiation
from pulsarctl_wire.capture.tls.records import (
    ALERT,
    APPLICATION_DATA,
    CHANGE_CIPHER_SPEC,
    HANDSHAKE,
    HEADER_SIZE,
    MIN_RECORD,
)
from pulsarctl_wire.capture.tls.schedule import Opener, next_secret, open_13
from pulsarctl_wire.capture.tls.sides import APPLICATION, CLEAR, Entry, Side

MAX_ALERTS: Final = 16
_MAX_LOST: Final = 4_096
"""Records lost in a hole, up to which the tag of the next one is tried with each number."""
_SLACK: Final = 16
"""Numbers that are tried beyond those of the records that a hole can have had."""
_MAX_TRIED: Final = 64
"""Records after a hole that are tried in vain before a direction is given up."""
_SPANS: Final = ((512, 1 << 26), (64, 1 << 25), (8, 1 << 24), (2, 1 << 22))
"""On a connection joined midway: how many records wait, and how many numbers are tried then."""
_HOLE_SPAN: Final = 1 << 24
"""Numbers that are tried if a hole follows the records that wait."""
_EARLY_SPAN: Final = 1 << 20
"""Numbers that are tried at most if the beginning of the handshake was captured."""
_EXPLICIT_START: Final = 4
"""Bytes of a TLS 1.2 record's nonce that hardly change from record to record."""
_MESSAGES: Final = frozenset({*range(26), 254})
"""Types of handshake messages."""
_TICKET: Final = b"\x04\0"
"""The beginning of a NewSessionTicket of TLS 1.3."""
_MIDWAY_12: Final = (
    "joined midway with TLS 1.2: the handshake is not in the capture,"
    " and its keys cannot be derived without it"
)
_NO_SERVER_HELLO: Final = (
    "the ServerHello is not in the capture, and the keys of TLS 1.2 cannot be derived without it"
)


def _shorten(client_random: bytes) -> str:
    return f"{client_random.hex()[:8]}…"


class Opening:
    """Opens the records that wait in two sides."""

    def __init__(self, keylog: KeyLog, facts: TlsFacts, client: Side, server: Side) -> None:
        self.negotiation = Negotiation(keylog, facts, client, server)
        self.is_final = False
        """Whether nothing will come that could open what waits."""
        self._keylog = keylog
        self._facts = facts
        self._sides = client, server

    def step(self, side: Side, entry: Entry) -> bool:
        """Open the first record that waits; return whether it need not wait any more."""
        if not entry.header:
            self._pass_hole(side, entry)
            return True
        if side.is_closed:
            return self._leave_closed(side, entry)
        if side.number < 0:
            side.number += 1
            return self._leave_closed(side, entry)
        kind = entry.header[0]
        if side.stage == CLEAR:
            if kind != APPLICATION_DATA and self._is_clear(entry):
                return self._take_clear(side, kind, entry)
            if not self._begin_midway(side):
                return False
        elif self.negotiation.is_13 and kind != APPLICATION_DATA:
            return self._take_clear(side, kind, entry)
        if not self._prepare(side, entry):
            return False
        if entry.is_done:
            return True
        if side.is_closed or side.opener is None or side.number < 0:
            return self.step(side, entry)
        if entry.holes:
            return self._open_cut(side, side.opener, entry)
        plain = side.opener.open(side.number, entry.header, entry.body)
        if plain is None:
            return self._fail(side, entry)
        if not side.opened and not side.number:
            side.explicit_base = self.negotiation.explicit_nonce(entry.body)
        side.number += 1
        side.opened += 1
        side.facts.records += 1
        entry.data = self.take_inner(side, kind, plain, entry.time_ns, entry.packet)
        entry.body = b""
        entry.is_done = True
        if entry.data:
            entry.missing = side.missing
            side.missing = 0
        return True

    def take_inner(self, side: Side, kind: int, plain: bytes, time_ns: int | None, packet: int) -> bytes:
        """Take what was in a record; return it if it is application data."""
        if side.opener is not None and side.opener.is_13:
            plain = plain.rstrip(b"\0")
            kind, plain = plain[-1] if plain else 0, plain[:-1]
        if kind == APPLICATION_DATA:
            return plain
        if kind == HANDSHAKE:
            self.negotiation.take(side, plain)
        elif kind == ALERT:
            self._take_alert(side, plain, time_ns, packet)
        elif kind == CHANGE_CIPHER_SPEC and not self.negotiation.is_13:
            self.negotiation.change_cipher(side)
        return b""

    def _take_alert(self, side: Side, data: bytes, time_ns: int | None, packet: int) -> None:
        try:
            level, description = handshake.read_alert(data)
        except BadMessage as error:
            self._facts.problem = str(error)
            return
        if description == CLOSE_NOTIFY:
            side.facts.has_close_notify = True
        elif len(self._facts.alerts) < MAX_ALERTS:
            self._facts.alerts.append(Alert(side.from_client, level, description, time_ns, packet))

    # -- records in clear

    def _is_clear(self, entry: Entry) -> bool:
        """Return whether a record is in clear: on TLS 1.2 joined midway, those of any type may be sealed."""
        kind, body = entry.header[0], entry.body
        if kind == HANDSHAKE:
            negotiation = self.negotiation
            is_known = bool(negotiation.client_random) or negotiation.has_server_hello
            return is_known or (body[0] in _MESSAGES and body[1:2] <= b"\x01")
        return len(body) <= 2

    def _take_clear(self, side: Side, kind: int, entry: Entry) -> bool:
        negotiation = self.negotiation
        if kind == HANDSHAKE and entry.holes:
            negotiation.take_cut(side, entry.body[: entry.holes[0][0]])
        elif kind == HANDSHAKE:
            negotiation.take(side, entry.body)
        elif kind == ALERT:
            self._take_alert(side, entry.body, entry.time_ns, entry.packet)
        elif kind == CHANGE_CIPHER_SPEC and not negotiation.is_13:
            if negotiation.has_server_hello:
                negotiation.change_cipher(side)
            elif negotiation.client_random and not (self._facts.has_retried or self.is_final):
                return False  # the server's hello shows whether it means anything
        entry.is_done = True
        return True

    # -- keys

    def _prepare(self, side: Side, entry: Entry) -> bool:
        """Give a side the key and number of its next record, or close it; return False if it must wait."""
        negotiation = self.negotiation
        if reason := negotiation.find_reason():
            self.close(side, reason)
            return True
        if side.stage == CLEAR:
            return self._find_midway(side)
        if not negotiation.client_random:
            negotiation.find_client(side, entry)
        if side.opener is None and not negotiation.find_key(side):
            if not (self.is_final or (self._keylog.is_complete and not negotiation.is_undecided(side))):
                return False
            self._close_without_secret(side)
            return True
        if not side.is_placed and entry.holes:
            side.number += 1
            return self._leave_closed(side, entry)
        if not side.is_placed:
            self._find_place(side, entry)
        return True

    def _close_without_secret(self, side: Side) -> None:
        client_random = self.negotiation.client_random
        if not client_random:
            reason = "the ClientHello is not in the capture: no secret can be looked up"
        else:
            reason = f"no secret for client random {_shorten(client_random)}"
        side.lacks_secret = True
        self.close(side, reason)

    def close(self, side: Side, reason: str) -> None:
        """Give a side up."""
        side.is_closed = True
        side.lost_bytes = 0
        self._facts.reason = self._facts.reason or reason

    def reopen(self) -> None:
        """Try again what was given up for lack of a secret."""
        for side in self._sides:
            side.tried = 0
            client_random = self.negotiation.client_random
            may_fit = not client_random or self._keylog.secrets_of(client_random)
            if side.is_closed and side.lacks_secret and may_fit:
                side.is_closed = side.lacks_secret = side.is_placed = False
                self._facts.reason = ""

    def _leave_closed(self, side: Side, entry: Entry) -> bool:
        """Count a record that is not opened; return True: it need not wait any more."""
        side.facts.closed_records += 1
        side.facts.closed_alerts += entry.header[0] == ALERT
        if side.stage != sides.HANDSHAKE:
            side.missing += max(len(entry.body) - (side.opener.overhead if side.opener else 0), 0)
        side.lost_bytes += HEADER_SIZE + len(entry.body)
        entry.is_done = True
        return True

    def _fail(self, side: Side, entry: Entry) -> bool:
        """Handle a record whose tag does not fit; return whether it need not wait any more."""
        if side.skips > 0:  # it was sealed with a key that is not known
            side.skips -= 1
            side.facts.closed_records += 1
            entry.is_done = True
            return True
        has_opened = side.opened > 0
        side.lose_place(0)
        self._find_place(side, entry)  # damage may have hidden another key, or records that were lost
        if not entry.is_done:
            return self.step(side, entry)
        side.facts.failed_tags += 1
        if not has_opened:
            name = _shorten(self.negotiation.client_random)
            self.close(
                side, f"the secret for client random {name} does not fit: the tag of a record is wrong"
            )
        return True

    # -- after a hole

    def _open_cut(self, side: Side, opener: Opener, entry: Entry) -> bool:
        """Open what is left of a record of which bytes are missing: its tag proves nothing."""
        entry.is_done = True
        if side.stage == sides.HANDSHAKE:
            opener = self._pass_handshake(side, opener, entry)
        plain = opener.open_unproven(side.number, entry.body)
        if side.skips > 0 and not begins_frame(plain or b""):
            side.number -= 1  # it was sealed with a key that is not known
            side.skips -= 1
        side.number += 1
        side.messages.clear()
        is_believed = side.stage == APPLICATION and (side.opened or begins_frame(plain or b""))
        if not plain or not is_believed:
            return self._leave_closed(side, entry)
        parts, end = split_parts(plain, entry.holes, opener.offset)
        kind = entry.header[0]
        if opener.is_13 and not end:  # the last byte, which tells the type, was captured
            parts, kind = strip_kind(parts)
        elif opener.is_13 and plain.startswith(_TICKET) and side is self.negotiation.server:
            kind = HANDSHAKE
        side.facts.unproven_records += 1
        if kind == APPLICATION_DATA and parts:
            entry.missing, entry.data = side.missing + parts[0][0], parts[0][1]
            entry.more = parts[1:]
            side.missing = end - 1 if opener.is_13 and end else end
        return True

    def _pass_handshake(self, side: Side, opener: Opener, entry: Entry) -> Opener:
        """Return the key of a cut record of TLS 1.3: the next one, if the handshake's end was cut, too."""
        secret = self.negotiation.application_secret(side)
        if secret is not None:
            next_opener = open_13(opener.suite, secret)
            if begins_frame(next_opener.open_unproven(0, entry.body) or b""):
                side.enter(APPLICATION)
                side.use(next_opener)
                return next_opener
        return opener

    def _pass_hole(self, side: Side, entry: Entry) -> None:
        """Go on after a hole; whatever was in it is missing."""
        entry.is_done = True
        side.holes -= 1
        side.facts.lost_bytes += entry.missing
        side.lose_place(entry.missing)

    def _find_place(self, side: Side, entry: Entry) -> None:
        """Find the number of the next record after a hole, or leave it closed."""
        count = side.lost_bytes // MIN_RECORD + _SLACK
        record = 0, entry.header, entry.body
        for opener, first in self._list_openers(side, entry):
            number = try_tags(opener, record, first, first + min(count, _MAX_LOST))
            if number is None and count > _MAX_LOST and opener.is_13:
                likely = choose_records([record])
                number = find_number(self._keylog, opener, likely, first, first + count)
            if number is not None:
                self._place(side, opener, number)
                return
        self._keylog.effort -= min(count, _MAX_LOST) * TAG_COST
        side.tried += 1
        side.number += 1
        lost_bytes = side.lost_bytes
        self._leave_closed(side, entry)
        side.lost_bytes = lost_bytes
        if side.tried >= _MAX_TRIED or self._keylog.effort <= 0:
            self.close(side, "the numbers of the records after a hole were not found")

    def _list_openers(self, side: Side, entry: Entry) -> list[tuple[Opener, int]]:
        """Return the keys that may fit after a hole, with the first numbers to try."""
        opener, negotiation = side.opener, self.negotiation
        if opener is None:
            return []
        openers = [(opener, side.number)]
        if not opener.is_13:
            guess = negotiation.explicit_nonce(entry.body) - side.explicit_base
            return [(opener, guess), *openers] if guess > side.number else openers
        if side.stage == APPLICATION:
            openers.append((open_13(opener.suite, next_secret(opener.secret, opener.suite.hash)), 0))
        elif (secret := negotiation.application_secret(side)) is not None:
            openers.append((open_13(opener.suite, secret), 0))
        return openers

    def _place(self, side: Side, opener: Opener, number: int) -> None:
        if opener is not side.opener:
            if side.stage == APPLICATION:
                side.facts.key_updates += 1
            elif number == 0:
                side.missing = 0  # only of the handshake
            side.stage = APPLICATION
        side.place(opener, number)

    # -- joined midway

    def _begin_midway(self, side: Side) -> bool:
        """Decide what a sealed record means on a side that has begun no encryption; False: wait."""
        negotiation = self.negotiation
        if negotiation.client_random or negotiation.has_server_hello:
            if negotiation.has_server_hello and not negotiation.is_13:
                side.enter(APPLICATION)  # a hole took the ChangeCipherSpec
                side.is_placed = False
                return True
            is_hello_lost = any(not each.is_placed for each in self._sides)
            return self.is_final or is_hello_lost
        self._facts.is_midway = True
        for each in self._sides:
            each.is_placed = False
        return True

    def _find_midway(self, side: Side) -> bool:
        """Find secret and number of a side's records by trial; return False if they must wait."""
        negotiation = self.negotiation
        if self._is_12(side) or negotiation.has_master:
            for each in self._sides:
                self.close(each, _NO_SERVER_HELLO if negotiation.client_random else _MIDWAY_12)
            self._facts.version = self._facts.version or "TLS 1.2"
            return True
        span = self._span(side)
        if not span:
            return False
        search = Search(
            self._keylog,
            is_client=side is negotiation.client,
            only=negotiation.client_random,
            suite=negotiation.suite,
        )
        sealed, count = self._list_sealed(side)
        new_records = [record for record in sealed if record[0] >= side.tried or self.is_final]
        side.tried = count
        found = search.find(new_records or sealed, span)
        if found is not None:
            self._join(side, found)
            return True
        is_hopeless = not search.keys and self._keylog.is_complete
        if self.is_final or is_hopeless or search.is_exhausted or count >= _SPANS[0][0]:
            self._close_midway(side, search)
            return True
        if side.holes:  # what comes after it is another try
            side.number = -count
            side.tried = 0
        return side.holes > 0

    def _list_sealed(self, side: Side) -> tuple[list[Sealed], int]:
        """Return the whole records that wait before the first hole, and how many wait there, cut or not."""
        sealed: list[Sealed] = []
        count = 0
        for entry in side.waiting:
            if not entry.header or count >= _SPANS[0][0]:
                break
            if not entry.holes:
                sealed.append((count, entry.header, entry.body))
            count += 1
        return sealed, count

    def _span(self, side: Side) -> int:
        """Return how many numbers are to be tried now; 0: none."""
        last_span = max(min(MAX_SPAN, self._keylog.effort // 8), 1)  # the rest is for other connections
        if not self._facts.is_midway:
            last_span = min(last_span, _EARLY_SPAN)
        if self.is_final or (self.negotiation.client_random and not side.tried):
            return last_span  # no more records will come; or one secret is left, as the other side was found
        if side.holes:
            return min(_HOLE_SPAN, last_span)
        records = len(side.waiting)
        for min_records, span in _SPANS:
            if records >= min_records:
                return min(span, last_span) if side.tried < min_records else 0
        return 0

    def _is_12(self, side: Side) -> bool:
        """Return whether records look like those of TLS 1.2, which show their nonces, or types."""
        if side.waiting[0].header[:1] != b"\x17":
            return True
        if len(side.waiting) < 2:
            return False
        first, second = side.waiting[0].body, side.waiting[1].body
        return first[:_EXPLICIT_START] == second[:_EXPLICIT_START]

    def _join(self, side: Side, found: Found) -> None:
        """Open a side's records with a secret that fits."""
        negotiation, facts = self.negotiation, self._facts
        if found.is_client is not (side is negotiation.client):
            facts.is_flipped = not facts.is_flipped
        negotiation.adopt(found.client_random, found.opener.suite)
        number = max(found.number, 0)  # records before that were sealed with an earlier key
        side.facts.first_number = number
        side.facts.key_updates += found.updates
        side.stage = APPLICATION
        side.place(found.opener, found.number)
        updates = f" after {found.updates} key updates" if found.updates else ""
        role = "client" if found.is_client else "server"
        text = f"record {number:,} of the {role}{updates}, client random {_shorten(found.client_random)}"
        facts.is_established = True
        facts.trial = f"{facts.trial}; {text}" if facts.trial else text

    def _close_midway(self, side: Side, search: Search) -> None:
        if not search.keys and not search.is_exhausted:
            reason = "joined midway: no secrets of TLS 1.3 are known that may fit"
        elif search.is_exhausted:
            reason = "joined midway: too many secrets and records were tried in vain, so no more are"
        else:
            tried = f"none of {search.keys:,} keys fits the record numbers below {search.highest:,}"
            reason = f"joined midway: {tried} (TLS 1.2 cannot be opened without its handshake)"
        side.lacks_secret = True
        self.close(side, reason)
