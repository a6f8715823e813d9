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
    if line.isascii():
        return line.replace(b"\x7f", b"\\u007f")
    if _TERMINAL.search(line.decode()) is None:
        return line
    del line  # its text is made once more, and may be large
    # With one of them there may be millions: all that is not ASCII is escaped then, at the speed of C.
    return json.dumps(record, separators=(",", ":"), default=str).encode() + b"\n"
