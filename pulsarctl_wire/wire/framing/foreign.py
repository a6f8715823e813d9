"""Recognises other protocols on a Pulsar port: TLS, HTTP, SSH, and PROXY protocol headers before the frames.

None of them can be mistaken for a frame: as a TOTAL_SIZE, their first bytes are far above every limit.
"""

import re
from typing import Any, Final

_SIGNATURES: Final = (
    (re.compile(rb"[\x14-\x17]\x03[\x00-\x04]"), "TLS"),
    (re.compile(rb"(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH|TRACE|CONNECT|PRI) |HTTP/"), "HTTP"),
    (re.compile(rb"SSH-"), "SSH"),
)

_QUERY_OR_USER: Final = re.compile(rb"\?\S*|(?<=//)[^\s/@]*@")  # may hold credentials

SIGNATURE_SIZE: Final = 16
"""Bytes that suffice to recognise each of the protocols."""

PROXY_V1: Final = b"PROXY "
MAX_PROXY_V1: Final = 107  # bytes, line end included (PROXY protocol specification, 2.1)
PROXY_V2: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_TLS_RECORDS: Final = {20: "change cipher spec", 21: "alert", 22: "handshake", 23: "application data"}


def recognise(head: bytes, tls: Any = None) -> tuple[str, str]:
    """Return the protocol that begins with `head`, and a short description of it; ("", "") if none.

    `tls` are the `TlsFacts` of the connection, if there are any. The description of an HTTP request leaves
    out a user and the query: they may hold credentials.
    """
    for signature, name in _SIGNATURES:
        if signature.match(head):
            if name == "TLS":
                details = "" if tls is None else tls.describe()
                suffix = f" ({details})" if details not in ("", "TLS") else ""
                return name, f"TLS {_TLS_RECORDS[head[0]]} record{suffix}"
            line = _QUERY_OR_USER.sub(b"", head.split(b"\n")[0].rstrip(b"\r"))[:80]
            return name, f"{name}: {line.decode('latin-1')}"
    return "", ""


def proxy_header(head: bytes) -> tuple[int, str]:
    """Return the length in bytes of the PROXY protocol header that `head` begins with, and a description.

    (0, "") if there is no header. If the length is more than `head` has, call again with more bytes. The
    description is "" as long as it is not certain that there is a header.
    Source: The PROXY protocol, versions 1 and 2, sections 2.1 and 2.2.
    """
    if head.startswith(PROXY_V1):
        end = head.find(b"\r\n", 0, MAX_PROXY_V1) + 2
        if end >= 2:
            return end, f"PROXY protocol v1 header: {head[6 : end - 2].decode('latin-1')}"
        return (len(head) + 1, "") if len(head) < MAX_PROXY_V1 else (0, "")
    if head.startswith(PROXY_V2) and len(head) >= SIGNATURE_SIZE:
        return 16 + int.from_bytes(head[14:16], "big"), "PROXY protocol v2 header"
    is_possible = head and (PROXY_V1.startswith(head) or PROXY_V2.startswith(head[: len(PROXY_V2)]))
    return (len(head) + 1, "") if is_possible and len(head) < SIGNATURE_SIZE else (0, "")
