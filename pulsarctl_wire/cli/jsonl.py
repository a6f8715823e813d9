"""`-o json`: one JSON object a line. See docs/json.md."""

import json
import re
from typing import Any, Final

import orjson

_TERMINAL: Final = re.compile(
    "[\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
"""What a terminal may act on and JSON leaves as it is: DEL, C1 controls, invisible and bidi characters."""


def json_line(record: dict[str, Any]) -> bytes:
    """`record` as one line of JSON, with its line end, safe to print."""
    line = orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE, default=str)
    if line.isascii() and b"\x7f" not in line:
        return line
    return _TERMINAL.sub(lambda match: json.dumps(match[0])[1:-1], line.decode()).encode()
