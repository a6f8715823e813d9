"""Finds the number of a TLS 1.3 record by trial, where the records before it were not captured.

The first bytes of a Pulsar frame are known: a size, a smaller size, a field. With AES-GCM, what these bytes
would have to be encrypted with depends only on key and number: one call makes that keystream for 65,536
numbers, columns of it are searched, and the tag proves one candidate. With ChaCha20 there is no such call:
each number's tag is tried, so fewer numbers are. What is tried is bounded (`KeyLog.effort`).
"""

from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any, Final, NamedTuple

from pulsarctl_wire.capture.tls.keylog import KeyLog
from pulsarctl_wire.capture.tls.schedule import Opener, next_secret, open_13
from pulsarctl_wire.capture.tls.suites import AES_128_13, AES_256_13, CHACHA_13, GCM, Suite

_BLOCK: Final = 65_536
"""Numbers that one call tries: those that differ in the last two bytes only."""
_KEYSTREAM_SIZE: Final = 16
"""Bytes of keystream for each."""
_HEAD: Final = 9
"""Bytes of a frame of which some are known: two sizes, and the field tag of the command's type."""
MIN_BODY: Final = _HEAD + 4 + 17
"""Bytes of the body of the smallest record that has a frame: a PING of 13 bytes, content type and tag."""
_MAX_RECORDS: Final = 3
"""Records that a search tries: some begin within a frame."""
_FULL_BODY: Final = 16_384
"""Bytes of the body of a record that may be followed by more of the same frame."""
TAG_COST: Final = 256
"""What the trial of a tag costs, in numbers of a keystream."""
MAX_SPAN: Final = 1 << 27
"""Numbers that are tried at most."""
_MAX_TAGS: Final = 1 << 17
"""Numbers that are tried at most by their tags."""
_MIN_TAGS: Final = 4_096
"""Numbers whose tags are tried with every key, before more are tried with any key."""
_GENERATIONS: Final = 3
"""Key updates before the capture that are tried."""

Sealed = tuple[int, bytes, bytes]
"""A sealed record: its index (records since the first one), header, body."""


class Found(NamedTuple):
    """A secret that fits."""

    opener: Opener
    client_random: bytes
    is_client: bool
    """Whether the records are those of the client."""
    updates: int
    """Key updates since the secret in the log."""
    number: int
    """The number of the record of index 0; below 0 if this record was sealed with an earlier key."""


class _Key(NamedTuple):
    """A key that is tried."""

    client_random: bytes
    is_client: bool
    secret: bytes
    suite: Suite
    updates: int
    weight: int
    """The larger it is, the more numbers are tried."""


def choose_records(sealed: list[Sealed]) -> list[Sealed]:
    """Return the few records that are tried: first those that most likely begin with a frame."""
    after_full = {index + 1 for index, _, body in sealed if len(body) > _FULL_BODY}
    large = [record for record in sealed if len(record[2]) >= MIN_BODY]
    return sorted(large, key=lambda record: record[0] in after_full)[:_MAX_RECORDS]


class Keystream:
    """The first keystream blocks of AES-GCM, for 65,536 record numbers at a time."""

    def __init__(self) -> None:
        low = b"".join(number.to_bytes(2, "big") for number in range(_BLOCK))
        self._counters = bytearray(_KEYSTREAM_SIZE * _BLOCK)  # a nonce of 12 bytes and the number 2, for each
        self._counters[10::_KEYSTREAM_SIZE] = low[0::2]
        self._counters[11::_KEYSTREAM_SIZE] = low[1::2]
        self._counters[15::_KEYSTREAM_SIZE] = b"\x02" * _BLOCK
        self._high = bytearray(10)
        self._output = bytearray(_KEYSTREAM_SIZE * _BLOCK + _KEYSTREAM_SIZE)

    def search(self, opener: Opener, records: list[Sealed], block: int, encryptor: Any) -> int | None:
        """Try the numbers of a block for `records`; return the number of the record of index 0, or None.

        `block` counts the blocks from number 0 on. `encryptor` encrypts counters with the key of `opener`.
        """
        nonce = int.from_bytes(opener.iv, "big") ^ block * _BLOCK
        low = nonce % _BLOCK
        for place, byte in enumerate((nonce // _BLOCK).to_bytes(10, "big")):
            if self._high[place] != byte:
                self._high[place] = byte
                self._counters[place::_KEYSTREAM_SIZE] = bytes([byte]) * _BLOCK
        output = self._output
        encryptor.update_into(self._counters, output)
        column = output[4::_KEYSTREAM_SIZE]
        for index, header, body in records:
            first, fifth, type_tag = body[0], body[5], body[8] ^ 8
            place = column.find(body[4])
            while place >= 0:
                start = place * _KEYSTREAM_SIZE
                if output[start + 5] == fifth and output[start] == first and output[start + 8] == type_tag:
                    number = block * _BLOCK + (place ^ low)
                    if opener.open(number, header, body) is not None:
                        return number - index
                place = column.find(body[4], place + 1)
        return None


@cache
def make_keystream() -> Keystream:
    """Return the only `Keystream`: it has 2 MiB, and takes some milliseconds to make."""
    return Keystream()


def _make_encryptor(key: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    return Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # of counters: that is counter mode


def try_tags(opener: Opener, record: Sealed, first: int, last: int) -> int | None:
    """Try numbers from `first` up to `last` for `record`; return that of the record of index 0, or None."""
    index, header, body = record
    for number in range(first, last):
        if opener.open(number, header, body) is not None:
            return number - index
    return None


def find_number(keylog: KeyLog, opener: Opener, records: list[Sealed], first: int, last: int) -> int | None:
    """Try the numbers from `first` up to `last` for `records`; return the number of the record of index 0.

    None: no number fits, or `KeyLog.effort` was spent before.
    """
    if last <= first or keylog.effort <= 0 or not records:
        return None
    if opener.suite.mode != GCM:
        last = min(last, first + _MAX_TAGS)
        keylog.effort -= (last - first) * TAG_COST
        return try_tags(opener, min(records, key=lambda each: len(each[2])), first, last)
    last = min(last, first + MAX_SPAN)
    keylog.effort -= last - first
    keystream, encryptor = make_keystream(), _make_encryptor(opener.key)
    for block in range(first // _BLOCK, (last - 1) // _BLOCK + 1):
        number = keystream.search(opener, records, block, encryptor)
        if number is not None:
            return number
    return None


class Search:
    """A search for the secret and the numbers of the records of one direction.

    `only` is the client random, b"" if it is not known; `suite` is None if it is not known.
    """

    def __init__(self, keylog: KeyLog, *, is_client: bool, only: bytes, suite: Suite | None) -> None:
        self._keylog = keylog
        self._is_client = is_client
        self._only = only
        self._suite = suite
        self.highest = 0
        """How many numbers were tried with the likeliest key; with keys of ChaCha20, fewer were."""
        self.is_exhausted = False
        """Whether earlier trials have left too little effort for another one."""
        self.keys = 0
        """Keys that were tried: some secrets fit two ciphers, and key updates make further ones."""

    def find(self, records: list[Sealed], span: int) -> Found | None:
        """Try about `span` numbers: the lower ones with each key first."""
        keys = list(islice(self._list_keys(), span // _BLOCK))
        self.keys = len(keys)
        self.is_exhausted = span < _BLOCK
        records = choose_records(records)
        if not keys:
            return None
        total_weight = sum(key.weight for key in keys)
        for is_first in (True, False):
            for key in keys:
                opener = open_13(key.suite, key.secret)
                is_fast = key.suite.mode == GCM
                low_end = _BLOCK if is_fast else _MIN_TAGS
                high_end = span * key.weight // total_weight // (1 if is_fast else TAG_COST)
                first, last = (0, low_end) if is_first else (low_end, high_end)
                number = find_number(self._keylog, opener, records, first, last)
                if number is not None:
                    return Found(opener, key.client_random, key.is_client, key.updates, number)
        self.highest = max(_BLOCK, span * keys[0].weight // total_weight)
        return None

    def _list_keys(self) -> Iterator[_Key]:
        """Yield what is tried, the likely keys first."""
        used = self._keylog.used
        traffic = list(self._keylog.find_traffic_secrets(self._only))
        for updates in range(_GENERATIONS + 1):
            for is_expected in (True, False):
                for client_random, label, secret in traffic:
                    weight = (16 if updates else 256) // (1 if is_expected else 4)
                    if client_random in used and client_random != self._only:
                        weight //= (
                            4  # it is the secret of another connection, or of an earlier part of this one
                        )
                    is_client = label.startswith("CLIENT")
                    if (is_client is self._is_client) is is_expected:
                        for suite in self._list_suites(secret):
                            updated = secret
                            for _ in range(updates):
                                updated = next_secret(updated, suite.hash)
                            yield _Key(client_random, is_client, updated, suite, updates, weight)

    def _list_suites(self, secret: bytes) -> tuple[Suite, ...]:
        if self._suite is not None:
            return (self._suite,)
        return (AES_256_13,) if len(secret) == 48 else (AES_128_13, CHACHA_13)
