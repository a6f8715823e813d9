"""`-o json`: one JSON object a line. See docs/json.md."""

import re
from typing import Any, Final

import orjson

_TERMINAL: Final = re.compile(rb"\x7f|\xc2[\x80-\x9f]")
"""What a terminal may act on and JSON leaves as it is: DEL and the C1 control characters."""


def json_line(record: dict[str, Any]) -> bytes:
    """`record` as one line of JSON, with its line end, safe to print."""
    line = orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE, default=str)
    if line.isascii() and b"\x7f" not in line:
        return line
    return _TERMINAL.sub(lambda match: rb"\u%04x" % match[0].decode().encode("utf-16-be")[1], line)
