"""The samples of TLS, taken apart into packets and secrets."""

from pathlib import Path
from typing import Any

from pwire_run import SAMPLES

from pulsarctl_wire.capture.files import find_secrets, read_packets
from pulsarctl_wire.capture.writer import PcapngWriter

TLS_SAMPLES = SAMPLES.parent / "tls"


class Recorded:
    """A sample whose packets and secrets have been taken apart."""

    def __init__(self, name: str) -> None:
        data = (TLS_SAMPLES / f"{name}.pcapng").read_bytes()
        self.packets = list(read_packets(data, lambda: b""))
        self.keys = b"".join(body[8:].rstrip(b"\0") for body, _ in find_secrets(data))

    def write(self, path: Path, *, secrets_after: int | None = None, packets: Any = None) -> Path:
        """Write the packets as a capture, with a block of all secrets after so many of them, if any."""
        with path.open("wb") as stream:
            writer = PcapngWriter(stream)
            for number, packet in enumerate(packets or self.packets):
                if number == secrets_after:
                    writer.write_secrets(self.keys)
                writer.write(packet)
            if secrets_after == -1:
                writer.write_secrets(self.keys)
        return path
