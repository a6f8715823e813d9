"""Parses and formats the parameters of faults. What a kind formats, it parses to an equal value.

Times are in seconds ("200ms", "1.5s", "2m", "2"), sizes in bytes ("10KB", "1MiB", "4096"), rates in bytes a
second ("64KB/s"); KB is 1,000 bytes and KiB is 1,024. All are limited, so that no fault can use unbounded
time or memory.
"""

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

_TIME_UNITS: Final = {"": (1, 1), "s": (1, 1), "m": (60, 1), "ms": (1, 1000)}  # seconds, as fractions
_SIZE_UNITS: Final = {
    **{"": 1, "B": 1, "K": 1_000, "KB": 1_000, "M": 1_000_000, "MB": 1_000_000, "GB": 1_000_000_000},
    **{"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30},
}
_QUANTITY: Final = re.compile(r"(?P<number>[0-9.]+(?:e[+-]?[0-9]+)?)\s*(?P<unit>[A-Za-z]*)", re.ASCII)


class Kind(NamedTuple):
    """A kind of value: a `description` for users; `read` parses a text, `show` formats a value.

    `names` are all possible values, if they can be listed. `read` raises ValueError or LookupError for an
    invalid text.
    """

    description: str
    read: Callable[[str], Any]
    show: Callable[[Any], str]
    names: tuple[str, ...] = ()


def hint(text: str, names: Iterable[str]) -> str:
    """Return a hint for the invalid `text`: the `names` that are similar, else all of them."""
    listed = list(names)
    lower = {name.lower(): name for name in listed}
    near = [lower[name] for name in difflib.get_close_matches(text[:100].lower(), lower, 3)]
    return f"did you mean {' or '.join(near)}?" if near else f"give one of {', '.join(listed)}"


def one_of(*names: str) -> Kind:
    """Return the kind of a name out of `names`, in upper or lower case."""
    lower = {name.lower(): name for name in names}
    return Kind(f"one of {', '.join(names)}", lambda text: lower[text.lower()], str, names)


def whole(low: int, high: int) -> Kind:
    """Return the kind of whole numbers from `low` to `high`."""

    def read(text: str) -> int:
        if not re.fullmatch("[0-9]{1,20}", text, re.ASCII):
            raise ValueError(text)
        return int(_check_range(int(text), low, high))

    return Kind(f"a whole number from {low} to {high:,}", read, str)


def optional(kind: Kind) -> Kind:
    """Return the kind of values of `kind`, or None, whose text is empty."""
    return Kind(
        kind.description,
        lambda text: kind.read(text) if text else None,
        lambda value: "" if value is None else kind.show(value),
    )


def _check_range(value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        raise ValueError(value)
    return value


def _split(text: str) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(text)
    if not match:
        raise ValueError(text)
    return float(match["number"]), match["unit"]


def _parse_time(text: str) -> float:
    number, unit = _split(text)
    numerator, denominator = _TIME_UNITS[unit.lower()]
    return _check_range(number * numerator / denominator, 0, 86_400)


def _parse_size(text: str, low: int, high: int) -> int:
    number, unit = _split(text)
    return int(_check_range(number * _SIZE_UNITS[unit.upper()], low, high))


def _parse_share(text: str) -> float:
    number, unit = _split(text)
    return _check_range(number * {"": 1}[unit], 0, 1)  # KeyError for any unit


def _check_encodable(text: str) -> str:
    text.encode()  # raises UnicodeEncodeError for surrogates, which a frame cannot contain
    return text


def _format_number(number: float) -> str:
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def _format_time(seconds: float) -> str:
    thousandths = round(seconds * 1000) if 0 < seconds < 1 else 0
    if thousandths and thousandths / 1000 == seconds:
        return f"{thousandths}ms"
    return f"{_format_number(seconds)}s"


def _format_size(size: int) -> str:
    for unit in ("GB", "MB", "KB"):
        if size and size % _SIZE_UNITS[unit] == 0:
            return f"{size // _SIZE_UNITS[unit]}{unit}"
    return str(size)


TIME: Final = Kind("a time of at most 24 hours, as in 200ms, 1.5s or 2m", _parse_time, _format_time)
SIZE: Final = Kind(
    "a size from 1 byte to 1 GB, as in 512 or 10KB", lambda text: _parse_size(text, 1, 10**9), _format_size
)
SPREAD: Final = Kind(
    "a size up to 1 GB, as in 512 or 10KB", lambda text: _parse_size(text, 0, 10**9), _format_size
)
RATE: Final = Kind(
    "bytes a second, as in 64KB/s",
    lambda text: _parse_size(text.removesuffix("/s"), 1, 10**12),
    lambda rate: f"{_format_size(rate)}/s",
)
SHARE: Final = Kind("a number from 0 to 1", _parse_share, _format_number)
TEXT: Final = Kind("a text in UTF-8", _check_encodable, str)
TEXTS: Final = Kind(
    "names separated by commas",
    lambda text: tuple(part.strip() for part in text.split(",") if part.strip()),
    ",".join,
)
