"""Proves that nothing which was replaced is left: searches the output for the original texts.

It searches the bytes of all packets, the frames that are spread over several, and the messages that are
compressed. It does not search for texts shorter than four bytes, nor for public words.
"""

import re
from collections.abc import Iterator
from itertools import chain
from typing import BinaryIO, Final, NamedTuple

from pulsarctl_wire.capture.files import RawPacket
from pulsarctl_wire.capture.sources import Decoder, Source
from pulsarctl_wire.sanitize import vocabulary
from pulsarctl_wire.sanitize.names import MIN_CHECKED, Kind
from pulsarctl_wire.sanitize.noise import is_text
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.payload import Budget, open_entry

MAX_TEXTS: Final = 1_000_000
"""Texts that are remembered for the check."""

_HEAD: Final = MIN_CHECKED
_WORD: Final = re.compile(rb"[A-Za-z]{4,}")
_TOKEN: Final = re.compile(rb"[A-Za-z]+|[0-9]+|[\x80-\xff]+")
_WITHOUT_WORDS: Final = {Kind.ERRORS, Kind.CREDENTIALS}  # their words are not searched one by one
_MAX_TEXT, _MAX_BINARY = 256, 32  # bytes of a payload that are searched
_MIN_DISTINCT: Final = 12  # different bytes that binary ones must have to be searched


class Leftover(NamedTuple):
    """A text that should be gone: its kind, and the number of the packet that has it (0: not known)."""

    text: bytes
    kind: Kind
    packet: int


class Originals:
    """The texts that were replaced, and those that stay.

    `unchecked` counts texts that are not remembered, as they are too many.
    """

    def __init__(self) -> None:
        self.unchecked = 0
        self._texts: dict[bytes, Kind] = {}
        self._kept_texts: dict[bytes, Kind] = {}

    def add(self, kind: Kind, text: bytes, replacement: bytes) -> bool:
        """Remember a text; return whether it is new, and not kept."""
        texts = self._kept_texts if replacement == text else self._texts
        if kind is Kind.PAYLOADS:
            text = _shorten(text)
        if text in texts or len(text) < MIN_CHECKED:
            return False
        if len(texts) >= MAX_TEXTS:
            self.unchecked += 1
            return False
        texts[text] = kind
        return texts is self._texts

    def make_search(self) -> "Search":
        """Return a search for the texts that were replaced, and for the words in them."""
        texts = dict(self._texts)
        for text, kind in self._texts.items():
            if kind not in _WITHOUT_WORDS:
                texts.update(dict.fromkeys(_WORD.findall(text), kind))
        kept_words = set[bytes]()
        for text, kind in self._kept_texts.items():
            if kind is not Kind.PAYLOADS:  # kept payloads may repeat what should be gone
                kept_words.update((text, *_WORD.findall(text)))
        versions = b"\n".join(text for text, kind in self._kept_texts.items() if kind is Kind.VERSIONS)
        return Search(
            {
                text: kind
                for text, kind in texts.items()
                if not (_is_public(text, kind) or text in kept_words or text in versions)
            }
        )


def _shorten(payload: bytes) -> bytes:
    """Return the part of a payload to search for; empty if it may be anywhere by chance."""
    if is_text(payload):
        return payload[:_MAX_TEXT]
    sample = payload[:_MAX_BINARY]
    return sample if len(set(sample)) >= _MIN_DISTINCT else b""


def _is_public(text: bytes, kind: Kind) -> bool:
    """Return whether a text has nothing but public words and punctuation; in a payload also short numbers."""
    tokens = _TOKEN.findall(vocabulary.PHRASES.sub(b"", text))
    if kind is Kind.PAYLOADS:
        tokens = [token for token in tokens if len(token) >= MIN_CHECKED or not token.isdigit()]
    return all(map(vocabulary.is_public, tokens))


class Search:
    """Searches bytes for texts, by their first four bytes."""

    def __init__(self, texts: dict[bytes, Kind]) -> None:
        self.count = len(texts)
        self._kinds = texts
        self._by_head: dict[bytes, list[bytes]] = {}
        for text in texts:
            self._by_head.setdefault(text[:_HEAD], []).append(text)
        first = b"".join(re.escape(bytes([byte])) for byte in sorted({head[0] for head in self._by_head}))
        self._starts = re.compile(b"[" + first + b"]" if first else b"(?!)")

    def find(self, data: bytes) -> Iterator[tuple[bytes, Kind]]:
        """Yield the texts that are in `data`, and their kinds."""
        by_head = self._by_head
        for match in self._starts.finditer(data):
            start = match.start()
            for text in by_head.get(data[start : start + _HEAD], ()):
                if data.startswith(text, start):
                    yield text, self._kinds[text]


def check_output(stream: BinaryIO, search: Search) -> Iterator[Leftover]:
    """Yield what should be gone from a capture, and is not. Raises CaptureError if it cannot be read."""
    budget = Budget()
    leftovers: list[Leftover] = []

    def search_in(data: bytes, packet: int) -> None:
        leftovers.extend([Leftover(text, kind, packet) for text, kind in search.find(data)])

    def search_packet(number: int, packet: RawPacket) -> None:
        budget.count_input(len(packet[2]))
        search_in(packet[2], number)

    decoder = Decoder(tee=search_packet)
    for events in chain(decoder.read(Source("the output", stream)), decoder.finish()):
        for event in events:
            if isinstance(event, Frame):
                for data in _list_hidden(event, budget):
                    search_in(data, event.packet)
        yield from leftovers
        leftovers.clear()
    yield from leftovers


def _list_hidden(frame: Frame, budget: Budget) -> Iterator[bytes]:
    """Yield the bytes of a frame that are in no packet as they are: spread over several, or compressed."""
    if len(frame.packets) > 1:
        yield frame.raw
    metadata = frame.metadata
    if metadata is None or not metadata.compression:
        return
    for message in open_entry(frame, budget).messages:
        yield message.payload or b""
        if message.index is not None:
            yield message.metadata.SerializePartialToString()
