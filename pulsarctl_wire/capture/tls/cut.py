"""Puts together what is left of a record of which bytes are missing."""

Part = tuple[int, bytes]
"""Bytes, and how many are missing before them."""


def begins_frame(plain: bytes) -> bool:
    """Return whether bytes begin as a frame does: with its size, a smaller size, and the tag of its type."""
    return plain[:1] == b"\0" and plain[4:6] == b"\0\0" and plain[8:9] == b"\x08"


def split_parts(plain: bytes, holes: list[tuple[int, int]], offset: int) -> tuple[list[Part], int]:
    """Return the parts of `plain` between the holes, and how many bytes are missing after the last part.

    `holes` are places in the record's body, whose bytes from `offset` on were decrypted to `plain`.
    """
    parts: list[Part] = []
    start = missing = 0
    for first, last in holes:
        first, last = (min(max(place - offset, start), len(plain)) for place in (first, last))
        if first > start:
            parts.append((missing, plain[start:first]))
            missing = 0
        missing += last - first
        start = last
    if start < len(plain):
        parts.append((missing, plain[start:]))
        missing = 0
    return parts, missing


def strip_kind(parts: list[Part]) -> tuple[list[Part], int]:
    """Cut padding and content type off the end of a TLS 1.3 record; return the parts left, and the type."""
    missing, data = parts[-1]
    data = data.rstrip(b"\0")
    return [*parts[:-1], (missing, data[:-1])], data[-1] if data else 0
