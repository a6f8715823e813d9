"""Formats the values of report columns for people."""

import re
from datetime import datetime, timezone
from typing import Any, Final

from pulsarctl_wire.render.text import human_bytes, human_time

_TIMES: Final = {
    f"{name}_ns" for name in ("time", "first", "last", "sent", "receipt", "delivered", "acked", "answered")
}
_ID_NAME: Final = re.compile(r"(^|_)(id|hash|connection|offset|port)$")
"""Columns whose numbers identify something: they have no thousands separators."""


def render(name: str, value: Any) -> str:
    """Format a value of the column `name`; the ending of `name` tells the unit."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value).removeprefix("persistent://") if name == "topic" else str(value)
    if name in _TIMES or name.endswith("_time_ns"):
        return _moment(int(value))
    if name.endswith("_ns"):
        return human_time(int(value))
    if name.endswith("bytes_per_s"):
        return f"{human_bytes(int(value))}/s"
    if name.endswith(("bytes", "size")) or "bytes_" in name:
        return human_bytes(int(value))
    if name.endswith(("share", "change")):
        return f"{value:.1%}"
    if _ID_NAME.search(name):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}"


def _moment(time_ns: int) -> str:
    seconds, remainder = divmod(time_ns, 10**9)
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S}.{remainder // 1000:06}"
