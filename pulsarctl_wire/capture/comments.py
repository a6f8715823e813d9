"""The options of pcapng blocks that pwire writes, and the comments among them that it reads again.

Source: the PCAP Next Generation draft, "Options".
"""

import re
import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

COMMENT: Final = 1
"""The code of the option opt_comment, which every block may have."""

APPLICATION: Final = 4
"""The code of the option shb_userappl of a section: the program that wrote it."""

MAX_OPTION: Final = 0xFFFF
"""Maximum bytes of an option."""

_ADDRESS: Final = rb"([!-~]{1,300})"
_ROUTE: Final = re.compile(rb"pwire proxy: %b came to %b, and was led to %b" % (3 * (_ADDRESS,)))


class About(NamedTuple):
    """What a file says of itself: what has written it, what is in it, and what was chosen of an interface."""

    application: str
    section: str
    interface: str


def pack_options(options: Iterable[tuple[int, str]]) -> bytes:
    """Return `options` (code, text) as bytes, with their end marker. Texts are cut at `MAX_OPTION` bytes."""
    parts = []
    for code, text in options:
        value = text.encode("utf-8", "backslashreplace")[:MAX_OPTION].decode("utf-8", "ignore").encode()
        parts.append(struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4))
    return b"".join((*parts, bytes(4)))


def describe_route(client: str, listener: str, server: str) -> str:
    """Return the comment on a connection through a proxy, which the client reached at `listener`."""
    return f"pwire proxy: {client} came to {listener}, and was led to {server}"


def parse_route(comment: bytes) -> tuple[str, str, str] | None:
    """Return client, server and listener if a comment is one of `describe_route`; otherwise None."""
    match = _ROUTE.fullmatch(comment)
    if match is None:
        return None
    client, listener, server = (text.decode() for text in match.groups())
    return client, server, listener
