"""Finds the number of a TLS 1.3 record by trial, where the records before it were not captured.

The first bytes of a Pulsar frame are known: a size, a smaller size, a field. With AES-GCM, what these bytes
would have to be encrypted with depends only on key and number: one call makes that keystream for 65,536
numbers, columns of it are searched, and the tag proves one candidate. With ChaCha20 there is no such call:
each number's tag is tried, so fewer numbers are. What is tried is bounded (`KeyLog.effort`).
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from pulsarctl_wire.capture.tls.keylog import KeyLog
from pulsarctl_wire.capture.tls.schedule import Opener, next_secret, open_13
from pulsarctl_wire.capture.tls.suites import AES_128_13, AES_256_13, CHACHA_13, GCM, Suite

_BLOCK: Final = 65_536
"""Numbers that one call tries: those that differ in the last two bytes only."""
_SIZE: Final = 16
"""Bytes of keystream for each."""
_HEAD: Final = 9
"""Bytes of a frame that are compared: two sizes, and the tag of the command's type."""
MIN_BODY: Final = _HEAD + 4 + 17
"""Bytes of the body of the smallest record that has a frame."""
_MAX_RECORDS: Final = 4
"""Records that a search tries: some begin within a frame."""
_TAG_COST: Final = 128
"""What the trial of a tag costs, in numbers of a keystream."""
_TAG_SHARE: Final = 16
"""So many times fewer numbers are tried by their tags."""
_MAX_TAGS: Final = 1 << 21
_FIRST_SPAN: Final = _BLOCK
"""Numbers that are tried with every secret before more are tried with any."""
_GENERATIONS: Final = 3
"""Key updates before the capture that are tried."""

Sealed = tuple[int, bytes, bytes]
"""A record: how many came since the first one, header, body."""


class Found(NamedTuple):
    """A secret that fits."""

    opener: Opener
    client_random: bytes
    is_client: bool
    """Whether the records are those of the client."""
    updates: int
    """Key updates since the secret in the log."""
    number: int
    """Of the record of index 0; below 0 if that was sealed with an earlier key."""


_Key = tuple[bytes, bool, bytes, Suite, int]
"""Client random, whether the secret is the client's, secret, suite, key updates since."""


class Keystream:
    """The first keystream blocks of AES-GCM, for 65,536 record numbers at a time."""

    def __init__(self) -> None:
        low = b"".join(number.to_bytes(2, "big") for number in range(_BLOCK))
        self._counters = bytearray(_SIZE * _BLOCK)  # a nonce of 12 bytes and the number 2, for each
        self._counters[10::_SIZE] = low[0::2]
        self._counters[11::_SIZE] = low[1::2]
        self._counters[15::_SIZE] = b"\x02" * _BLOCK
        self._high = bytearray(10)
        self._output = bytearray(_SIZE * _BLOCK + _SIZE)

    def search(self, opener: Opener, records: list[Sealed], block: int, encryptor: Any) -> int | None:
        """Return the number that the record of index 0 has if one of these has a number in this block."""
        nonce = int.from_bytes(opener.iv, "big") ^ block * _BLOCK
        low = nonce % _BLOCK
        for place, byte in enumerate((nonce // _BLOCK).to_bytes(10, "big")):
            if self._high[place] != byte:
                self._high[place] = byte
                self._counters[place::_SIZE] = bytes([byte]) * _BLOCK
        output = self._output
        encryptor.update_into(self._counters, output)
        column = output[4::_SIZE]
        for index, header, body in records:
            first, fifth, type_tag = body[0], body[5], body[8] ^ 8
            place = column.find(body[4])
            while place >= 0:
                start = place * _SIZE
                if output[start + 5] == fifth and output[start] == first and output[start + 8] == type_tag:
                    number = block * _BLOCK + (place ^ low)
                    if opener.open(number, header, body) is not None:
                        return number - index
                place = column.find(body[4], place + 1)
        return None


def _make_encryptor(key: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    return Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # of counters: that is counter mode


def try_numbers(opener: Opener, record: Sealed, first: int, count: int) -> int | None:
    """Return the number of a record, of those from `first` on, that its tag proves."""
    _, header, body = record
    for number in range(first, first + count):
        if opener.open(number, header, body) is not None:
            return number
    return None


class Search:
    """A search for the secret and the numbers of the records of one direction.

    `only` is the client random, b"" if it is not known; and so is None for the suite.
    """

    def __init__(
        self, keylog: KeyLog, *, is_client: bool, only: bytes = b"", suite: Suite | None = None
    ) -> None:
        self._keylog = keylog
        self._is_client = is_client
        self._only = only
        self._suite = suite
        self._keystream: Keystream | None = None
        self.highest = 0
        """The highest number that was tried with every secret."""
        self.keys = 0
        """Keys that were tried: some secrets fit two ciphers, and key updates make further ones."""

    def find(self, records: list[Sealed], span: int) -> Found | None:
        """Try about `span` numbers: the lower ones with each secret first."""
        records = [record for record in records if len(record[2]) >= MIN_BODY][:_MAX_RECORDS]
        keys = list(islice(self._list_keys(), span // _FIRST_SPAN))
        self.keys = len(keys)
        if not records or not keys:
            return None
        span //= len(keys)
        for first, last in ((0, _FIRST_SPAN), (_FIRST_SPAN, span)):
            for key in keys:
                found = self._try_key(key, records, first, last)
                if found is not None:
                    return found
            if self._keylog.effort > 0:
                self.highest = max(self.highest, last - 1)
        return None

    def _list_keys(self) -> Iterator[_Key]:
        """Yield what is tried, the likely ones first."""
        traffic = list(self._keylog.find_traffic_secrets())
        if self._only:
            traffic = [each for each in traffic if each[0] == self._only]
        for updates in range(_GENERATIONS + 1):
            for is_expected in (True, False):
                for client_random, label, secret in traffic:
                    is_client = label.startswith("CLIENT")
                    if (is_client is self._is_client) is is_expected:
                        for suite in self._suites_for(secret):
                            yield client_random, is_client, secret, suite, updates

    def _suites_for(self, secret: bytes) -> tuple[Suite, ...]:
        if self._suite is not None:
            return (self._suite,)
        return (AES_256_13,) if len(secret) == 48 else (AES_128_13, CHACHA_13)

    def _try_key(self, key: _Key, records: list[Sealed], first: int, last: int) -> Found | None:
        """Try the numbers from `first` up to `last` with one secret."""
        client_random, is_client, secret, suite, updates = key
        if updates:
            last = min(last, max(_FIRST_SPAN, last // 16))
        if self._keylog.effort <= 0 or last <= first:
            return None
        for _ in range(updates):
            secret = next_secret(secret, suite.hash)
        opener = open_13(suite, secret)
        number: int | None = None
        if suite.mode == GCM:
            self._keylog.effort -= last - first
            self._keystream = self._keystream or Keystream()
            encryptor = _make_encryptor(opener.key)
            for block in range(first // _BLOCK, last // _BLOCK):
                number = self._keystream.search(opener, records, block, encryptor)
                if number is not None:
                    break
        else:
            record = min(records, key=lambda each: len(each[2]))
            first, last = first // _TAG_SHARE, min(last // _TAG_SHARE, _MAX_TAGS)
            self._keylog.effort -= max(last - first, 0) * _TAG_COST
            number = try_numbers(opener, record, first, last - first)
            if number is not None:
                number -= record[0]
        return None if number is None else Found(opener, client_random, is_client, updates, number)
