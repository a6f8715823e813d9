"""Finds out on which host a file was captured, from its name."""

import re
from functools import cache, lru_cache
from typing import Final
from urllib.parse import unquote

_HIVE: Final = re.compile(r"(?:^|/)host=([^/]*)/")
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_FIELD: Final = "{host}"
_EXPRESSIONS: Final = {"**": ".*", "*": "[^/]*", "?": "[^/]", _FIELD: "(?P<host>[^/]+?)"}
_SAME: Final = {**_EXPRESSIONS, _FIELD: "(?P=host)"}  # where {host} comes again
_WILDCARD: Final = re.compile(r"(\*\*|\*|\?|\{host\})")


@lru_cache(4_096)
def host_of(file: str, option: str | None) -> str | None:
    """Return the host of a file; None if its name does not tell it.

    `option` is the host's name, or a pattern of paths in which {host} stands for that: `captures/{host}/*`.
    Where the pattern does not match, and without an option, the directory `host=NAME` tells it.
    """
    if option is not None and _FIELD not in option:
        return option
    if option is not None and (match := _pattern(option).search(file)):
        return match["host"]
    hive = _HIVE.search(file)
    return unquote(hive[1]) if hive and hive[1] != _NULL else None


@cache
def _pattern(text: str) -> re.Pattern[str]:
    """Return an expression to search a path with: it matches whole names, anywhere in the path."""
    before, field, after = text.partition(_FIELD)
    parts = [_EXPRESSIONS.get(part) or re.escape(part) for part in _WILDCARD.split(before + field)]
    parts += [_SAME.get(part) or re.escape(part) for part in _WILDCARD.split(after)]
    return re.compile(f"(?:^|/){''.join(parts)}(?:/|$)")
