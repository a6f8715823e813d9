"""Pseudonyms: texts replaced by others of the same size and shape, always in the same way.

    letters        by letters; four or more in a row by consonants, so that they form no word
    digits         by consonants: by digits, a name of public words and a number could become another real
                   one (default-1, default-2)
    a public word, separators, -partition-N, __change_events and other marks: unchanged
    an address     by another one of its kind, with as many digits; loopback stays

What replaces a character depends on a secret and on the characters before it in its run. So different names
stay different (but a digit and a letter may become the same one), the same run of letters is replaced in the
same way in all names (the topic NAME-SUB-DLQ still has the names of the topic and the subscription), and
names with the same beginning keep that in common, as compression needs it.
"""

import re
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from pulsarctl_wire.sanitize import vocabulary
from pulsarctl_wire.sanitize.addresses import AddressMap

MIN_CHECKED: Final = 4
"""Bytes of the shortest text for which it is checked that it is gone."""

_MAX_SHORT: Final = MIN_CHECKED - 1
_LOWER: Final = b"abcdefghijklmnopqrstuvwxyz"
_CONSONANTS: Final = b"bcdfghjklmnpqrstvwxyz"
_ALPHABETS: Final = {
    "lower": (_LOWER, _CONSONANTS + b"JQXZW"),
    "upper": (_LOWER.upper(), _CONSONANTS.upper() + b"jqxzw"),
    "digit": (b"0123456789", _CONSONANTS),
}
"""Class of characters -> the characters, and what replaces them: letters in long runs only, digits always.

21 consonants are too few for 26 letters, so five of the other case are added: different letters stay
different.
"""
_NO_TEXT: Final = range(0xF8, 0x100)  # bytes that UTF-8 never has
_WIDE: Final = {2: range(0x100, 0x180), 3: range(0x4E00, 0x9000), 4: range(0x20000, 0x2A000)}
"""Bytes of a character in UTF-8 -> the characters that replace those of this size."""

_ADDRESS: Final = rb"(?<![0-9.])(?P<ipv4>[0-9]{1,3}(?:\.[0-9]{1,3}){3})(?![0-9.])"
_ADDRESS_6: Final = (
    rb"(?P<ipv6>(?<![0-9A-Za-z:])(?=[0-9A-Fa-f]*:[0-9A-Fa-f]*:)[0-9A-Fa-f:.]{2,45}(?![0-9A-Za-z]))"
)
_RUNS: Final = rb"(?P<run>[A-Za-z]+|[0-9]+)|(?P<wide>[\x80-\xff]+)"
_PHRASES: Final = b"(?P<kept>" + vocabulary.PHRASES.pattern + b")"
_PORT: Final = rb"(?P<port>(?<=[0-9A-Za-z\]]):[0-9]{1,5}(?![0-9A-Za-z]|\.[0-9]))"
_NUMBER: Final = rb"""(?P<number>(?<![\w./"'=-])[0-9]+(?![\w"'-]|\.\w|/\w)|0x[0-9a-f]+)"""
_NAME_IN_ERROR: Final = rb"(?P<name>(?:non-)?persistent://[^\s'\"()\[\],;]+|(?<!\w)'[^'\n]{1,300}'(?!\w)|(?<!\w)[\w-]*[-/_0-9][\w/-]*)"
"""Matches a name in an error text: a topic, what is in quotes, or what has a digit or one of - _ / in it."""
_NAME: Final = re.compile(b"|".join((_PHRASES, _ADDRESS, _RUNS)))
_URL: Final = re.compile(b"|".join((_ADDRESS, _ADDRESS_6, _PORT, _RUNS)))
_TEXT: Final = re.compile(b"|".join((_PHRASES, _ADDRESS, _ADDRESS_6, _PORT, _NUMBER, _RUNS)))
_ERROR: Final = re.compile(b"|".join((_PHRASES, _ADDRESS, _ADDRESS_6, _PORT, _NUMBER, _NAME_IN_ERROR, _RUNS)))
_RUN: Final = re.compile(_RUNS)
_WORDS: Final = re.compile(rb"(?P<run>[A-Za-z]+)|(?P<wide>[\x80-\xff]+)")  # numbers of versions stay


class Kind(str, Enum):
    """What can be replaced, or kept with `--keep`."""

    TOPICS = "topics"
    SUBSCRIPTIONS = "subscriptions"
    NAMES = "names"
    KEYS = "keys"
    PROPERTIES = "properties"
    PAYLOADS = "payloads"
    SCHEMAS = "schemas"
    ADDRESSES = "addresses"
    ERRORS = "errors"
    CREDENTIALS = "credentials"
    VERSIONS = "versions"


_FORMS: Final = {
    Kind.ADDRESSES: (_URL, vocabulary.ADDRESSES),
    Kind.PROPERTIES: (_NAME, vocabulary.PROPERTIES),
    Kind.SCHEMAS: (_TEXT, vocabulary.SCHEMAS),
    Kind.ERRORS: (_ERROR, vocabulary.ERRORS),
    Kind.VERSIONS: (_WORDS, vocabulary.VERSIONS),
}
"""Kind -> what is looked for in its texts, and the words that stay; other kinds are names."""

Replaced = Callable[[Kind, bytes, bytes], object]
"""Takes the kind of a text, the text and what replaces it (the same if it is kept; b"": not known)."""


class Pseudonyms:
    """Makes pseudonyms from `secret`. Texts of the kinds in `keep` stay; `on_replaced` is told of all."""

    def __init__(
        self, secret: bytes, keep: frozenset[Kind] = frozenset(), on_replaced: Replaced = lambda *_: None
    ) -> None:
        self.keep = keep
        self.on_replaced = on_replaced
        self.addresses = AddressMap(
            lambda text: self.draw(b"address", text),
            keep=Kind.ADDRESSES in keep,
            on_replaced=lambda text, other: on_replaced(Kind.ADDRESSES, text, other),
        )
        self._secret = blake2b(secret, digest_size=32).digest()
        self._replace_run = lru_cache(65_536)(self._make_run)

    def draw(self, label: bytes, text: bytes) -> int:
        """Return a number from 0 to 2^64-1 that depends on nothing but the secret, `label` and `text`."""
        return int.from_bytes(blake2b(text, digest_size=8, key=self._secret, person=label).digest(), "big")

    def key_of(self, content: bytes) -> bytes:
        """Return 32 bytes that depend on the secret and `content`."""
        return blake2b(content, digest_size=32, key=self._secret).digest()

    def replace(self, kind: Kind, text: bytes) -> bytes:
        """Return what replaces a text of this kind: as many bytes."""
        replacement = text
        if kind not in self.keep:
            pattern, words = _FORMS.get(kind, (_NAME, vocabulary.NAMES))
            replacement = self._substitute(text, pattern, words)
        self.on_replaced(kind, text, replacement)
        return replacement

    def replace_words(self, text: bytes, words: frozenset[bytes]) -> bytes:
        """Return what replaces running text, in which these words and numbers stay.

        It is reported as `Kind.ERRORS`, whose words the check does not search one by one. `keep` does not
        matter here.
        """
        replacement = self._substitute(text, _TEXT, words)
        self.on_replaced(Kind.ERRORS, text, replacement)
        return replacement

    def _substitute(self, text: bytes, pattern: re.Pattern[bytes], words: frozenset[bytes]) -> bytes:
        is_text = _is_utf8(text)

        def replace(match: re.Match[bytes]) -> bytes:
            part = match[0]
            if match.lastgroup == "run":
                return part if part.lower() in words else self._replace_run(part)
            if match.lastgroup == "wide":
                return self._replace_wide(part, is_text)
            if match.lastgroup == "name":
                return self._substitute(part, _NAME, vocabulary.QUOTED)
            if match.lastgroup in ("ipv4", "ipv6"):
                address = self.addresses.replace_text(part)
                return self._substitute(part, _RUN, words) if address is None else address
            return part

        return pattern.sub(replace, text)

    def _make_run(self, run: bytes) -> bytes:
        """Return what replaces a run of letters, or of digits."""
        is_long = len(run) > _MAX_SHORT
        out = bytearray()
        for index, char in enumerate(run):
            name = "digit" if char <= 0x39 else "upper" if char <= 0x5A else "lower"
            source, target = _ALPHABETS[name]
            draw = self.draw(b"long" if is_long else b"short", run[:index])
            if is_long or name == "digit":
                out.append(target[(source.index(char) + draw) % len(target)])
            else:  # never itself
                out.append(source[(source.index(char) + 1 + draw % (len(source) - 1)) % len(source)])
        return bytes(out)

    def _replace_wide(self, text: bytes, is_text: bool) -> bytes:
        """Return what replaces bytes that are not ASCII: UTF-8 stays UTF-8, and nothing else becomes it."""
        if not is_text:
            return bytes(_NO_TEXT[self.draw(b"byte", text[: index + 1]) % 8] for index in range(len(text)))
        out = b""
        for char in text.decode():
            choice = _WIDE[len(char.encode())]
            out += chr(choice[(ord(char) + self.draw(b"wide", out)) % len(choice)]).encode()
        return out


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
