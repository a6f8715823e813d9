"""Makes a TLS 1.3 capture of a plain one, and its key log."""

import random
import struct
from itertools import count, groupby
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from pulsarctl_wire import Frame, read_events
from pulsarctl_wire.capture.recording import SessionWriter

_MAX_RECORD = 16_384


class _Direction:
    """One direction of a connection."""

    def __init__(self, secret: bytes) -> None:
        self._key = AESGCM(_expand(secret, b"key", 32))
        self._iv = int.from_bytes(_expand(secret, b"iv", 12), "big")
        self._numbers = count()

    def seal(self, data: bytes) -> bytes:
        """Return the records of application data."""
        records = []
        for start in range(0, len(data), _MAX_RECORD):
            inner = data[start : start + _MAX_RECORD] + b"\x17"
            header = b"\x17\x03\x03" + struct.pack(">H", len(inner) + 16)
            nonce = (self._iv ^ next(self._numbers)).to_bytes(12, "big")
            records += [header, self._key.encrypt(nonce, inner, header)]
        return b"".join(records)


def _expand(secret: bytes, label: bytes, size: int) -> bytes:
    info = struct.pack(">HB", size, len(label) + 6) + b"tls13 " + label + b"\0"
    return HKDFExpand(SHA384(), size, info).derive(secret)


def seal_capture(source: Path, target: Path, keylog: Path) -> None:
    """Write the frames of the capture `source` in TLS to `target`, and the secrets to `keylog`.

    What came in a packet is a record. There are no handshakes.
    """
    rng = random.Random(7)
    lines: list[str] = []
    directions: dict[tuple[int, bool], _Direction] = {}
    with target.open("wb") as stream:
        writer = SessionWriter(stream)
        frames = (event for event in read_events(source) if isinstance(event, Frame))
        for _, group in groupby(frames, lambda each: (each.packet, each.connection.index, each.to_broker)):
            together = list(group)
            frame = together[0]
            key = frame.connection.index, frame.to_broker
            if key not in directions:
                name = rng.randbytes(32).hex()
                for to_broker, role in ((True, "CLIENT"), (False, "SERVER")):
                    secret = rng.randbytes(48)
                    lines.append(f"{role}_TRAFFIC_SECRET_0 {name} {secret.hex()}\n")
                    directions[key[0], to_broker] = _Direction(secret)
            sealed = directions[key].seal(b"".join(each.raw for each in together))
            writer.carried(frame.connection, frame.to_broker, sealed, frame.time_ns or 0)
    keylog.write_text("".join(lines))
