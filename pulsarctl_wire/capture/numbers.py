"""The numbers that packets have in their own files, as Wireshark shows them.

`packet` counts packets over all sources. Where several files are read as one capture, and side by side where
they overlap in time, the n-th packet is another one in each file.
"""

from bisect import bisect_right
from typing import Final

MAX_STRETCHES: Final = 1_048_576
"""Maximum number of stretches of packets in a row of one file; beyond it the older half is forgotten."""


class PacketNumbers:
    """The files of packets, and their numbers there, from 1.

    `several` sources are read as one capture; of one source the file is not named.
    """

    def __init__(self, *, several: bool = False) -> None:
        self._several = several
        self._starts: list[int] = []  # first packets of stretches
        self._files: list[str | None] = []
        self._offsets: list[int] = []  # what to subtract from a packet in the stretch for its number

    def add(self, packet: int, file: str | None, number: int) -> None:
        """Note that `packet` is packet `number` of `file`, and the following ones those after it.

        None: it is in no file. Packets are added in order.
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

    def find(self, packet: int) -> tuple[str | None, int | None]:
        """Return the file and the number there, or None if unknown."""
        place = bisect_right(self._starts, packet) - 1
        file = self._files[place] if place >= 0 and packet > 0 else None
        if file is None:
            return None, None
        name = file.encode("utf-8", "backslashreplace").decode() if self._several else None
        return name, packet - self._offsets[place]
