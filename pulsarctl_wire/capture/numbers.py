"""The numbers that packets have in their own files, as Wireshark shows them.

`packet` counts packets over all sources. Where several files are read as one capture, and side by side where
they overlap in time, a packet has another number in its own file.
"""

from bisect import bisect_right
from typing import Final

MAX_STRETCHES: Final = 1_048_576
"""Maximum number of stretches (consecutive packets of a file); beyond it the older half is forgotten."""


class PacketNumbers:
    """The file of each packet, and its number there, from 1.

    `several`: more than one source is read; otherwise `find` names no file.
    """

    def __init__(self, *, several: bool = False) -> None:
        self._several = several
        self._starts: list[int] = []  # first packets of stretches
        self._files: list[str | None] = []
        self._offsets: list[int] = []  # what to subtract from a packet in the stretch for its number

    def add(self, packet: int, file: str | None, number: int) -> None:
        """Note that `packet` is packet `number` of `file`, and that the packets after it follow there.

        `file` None: the packet is in no file. Packets are added in order.
        """
        files, offset = self._files, packet - number
        if files and files[-1] == file and self._offsets[-1] == offset:
            return
        self._starts.append(packet)
        files.append(file)
        self._offsets.append(offset)
        if len(files) > MAX_STRETCHES:
            for column in (self._starts, files, self._offsets):
                del column[: MAX_STRETCHES // 2]

    def list_stretches(self) -> list[tuple[int, str | None, int]]:
        """Return the stretches: the first packet of each, its file, and its number there."""
        columns = zip(self._starts, map(_readable, self._files), self._offsets, strict=True)
        return [(start, file, start - offset) for start, file, offset in columns]

    def find(self, packet: int) -> tuple[str | None, int | None]:
        """Return the file of a packet, and its number there; each is None if unknown."""
        place = bisect_right(self._starts, packet) - 1
        file = self._files[place] if place >= 0 and packet > 0 else None
        if file is None:
            return None, None
        return _readable(file) if self._several else None, packet - self._offsets[place]


def _readable(file: str | None) -> str | None:
    """Return the name of a file as valid Unicode."""
    return None if file is None else file.encode("utf-8", "backslashreplace").decode()
