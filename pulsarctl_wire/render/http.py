"""Formats texts from the wire, and HTTP requests and answers, for a line."""

from collections.abc import Callable
from typing import Final

from pulsarctl_wire.render.text import Paint, clean, human_bytes, human_time
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import HttpMessage

MAX_TEXT: Final = 300
"""Characters of a text that are shown."""


def quote(value: str | bytes) -> str:
    """Return a text from the wire, cut to `MAX_TEXT` characters; in quotes if it is empty or has spaces."""
    text = clean(as_text(value[:MAX_TEXT]))
    if len(value) > MAX_TEXT:
        text += "…"
    return text if text and " " not in text else f'"{text}"'


def http_style(message: HttpMessage) -> str:
    """Return the style of a message over HTTP."""
    return "red" if message.status >= 400 else "bold"


def http_fields(message: HttpMessage) -> list[str]:
    """Return what a request over HTTP asks, or what its answer says."""
    if not message.status:
        return [clean(message.target)]
    return [message.kind, *(f"{name}={quote(str(value))}" for name, value in message.fields.items())]


def http_text(message: HttpMessage, paint: Paint, show_topic: Callable[[str], str]) -> str:
    """Format an HTTP message, without its time. `show_topic` puts a space before a topic."""
    title = f"HTTP {message.status or message.method}"
    parts = [paint(http_style(message), title) + " " * max(12 - len(title), 0)]
    if message.topic is not None:
        parts.append(show_topic(message.topic)[1:])
    parts += [*http_fields(message), human_bytes(message.size)]
    if message.latency_ns is not None:
        parts.append(human_time(message.latency_ns))
    if message.partial:
        parts.append(paint("red", "PARTIAL"))
    return " ".join(parts)
