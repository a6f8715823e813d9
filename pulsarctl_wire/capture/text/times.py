"""Finds the time in a line of a log."""

import re
from datetime import date
from typing import Final

_STAMP: Final = re.compile(
    r"(?<![0-9])(?:([0-9]{4})[-/]([0-9]{2})[-/]([0-9]{2})[T _]+)?"
    r"([0-2][0-9]):([0-5][0-9]):([0-6][0-9])(?:[.,]([0-9]{1,9}))? ?(Z|[+-][0-9]{2}:?[0-9]{2}(?![0-9]))?"
)
_EPOCH: Final = re.compile(
    r"[\[{ \"a-z_=:]*([0-9]{10})(?:[.,]([0-9]{1,9})|([0-9]{3}|[0-9]{6}|[0-9]{9}))?(?![0-9])"
)
_LOOKED_AT: Final = 160  # characters of a line
_DAY_ZERO: Final = date(1970, 1, 1).toordinal()


def time_in(line: str) -> int | None:
    """Return the time near the beginning of a line, in ns since 1970, or since midnight without a date.

    It is taken as UTC if no zone is given. None: there is no time.
    """
    head = line[:_LOOKED_AT]
    if match := _EPOCH.match(head):
        seconds, fraction, digits = match.groups()
        return int(seconds) * 10**9 + int((fraction or digits or "0").ljust(9, "0"))
    match = _STAMP.search(head)
    if match is None:
        return None
    year, month, day, hours, minutes, seconds, fraction, zone = match.groups()
    days = 0
    if year:
        try:
            days = date(int(year), int(month), int(day)).toordinal() - _DAY_ZERO
        except ValueError:
            return None
    total = ((days * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
    if year and zone and zone != "Z":
        offset = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        total += offset if zone[0] == "-" else -offset
    if total < 0:
        return None
    return total * 10**9 + int((fraction or "0").ljust(9, "0"))
