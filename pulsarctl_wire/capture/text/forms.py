"""Finds out in which form a text shows bytes.

Forms are tried in the order of `FORMS`, the most specific one first, on a window of the text: its first
4 KiB, then up to 1 MiB, then the next ones. A form is taken at once if it shows packets or a capture file, or
begins with a frame; a doubtful one if a window of 1 MiB, or the whole text, has no better one. So a text may
begin with megabytes of other lines.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final, NamedTuple

from pulsarctl_wire.capture import files
from pulsarctl_wire.capture.links import ETHERNET, RAW_IP
from pulsarctl_wire.capture.packets import Dissector
from pulsarctl_wire.capture.text import (
    base64_text,
    byte_lists,
    follow,
    hex_digits,
    hex_dump,
    netty,
    number_rows,
    strings,
    syscalls,
)
from pulsarctl_wire.capture.text.dump import NO_TRAFFIC, Dump, LogConnection, belongs, hole_size
from pulsarctl_wire.capture.text.hex_dump import link_of
from pulsarctl_wire.capture.text.lines import MAX_LINE, Line, unescape
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.wire.commands import NAMES
from pulsarctl_wire.wire.frame import Connection, Event, Frame, Malformed
from pulsarctl_wire.wire.framing.malformed import is_clearly_a_frame
from pulsarctl_wire.wire.framing.resync import begins_command
from pulsarctl_wire.wire.framing.stream import FrameStream

Parse = Callable[[Iterable[Line]], Iterator[Dump]]

_FIRST: Final = 4 << 10
"""Characters of the beginning of a text that are tried first."""
_WINDOW: Final = 1 << 20
"""Characters of a text that are tried together."""
_SAMPLED: Final = 100  # dumps that are examined to find whether they are packets
_NONE, _DOUBTFUL, _CLEAN = range(3)
"""How far a form is trusted: it shows nothing, something that may be frames, or frames from its beginning."""

_MIN_BYTES: Final = 8  # fewer are not worth a message that they are not frames

LINKS: Final = {"ethernet": ETHERNET, "ip": RAW_IP, "": 0}
"""The link types of what `link_of` recognises."""


class Form(NamedTuple):
    """A form in which texts show bytes.

    `is_unfiltered`: all bytes in this form are read, not only those that begin or continue a frame.
    `signs`: characters of which a text in this form has at least one; "" if nothing is certain.
    """

    name: str
    parse: Parse
    is_unfiltered: bool = False
    signs: str = ""


FORMS: Final = (
    Form("a log of Netty's LoggingHandler", netty.parse_netty, signs="["),
    Form("Wireshark's stream as YAML", follow.parse_follow_yaml, signs=":"),
    Form("Wireshark's stream as C arrays", follow.parse_follow_arrays, signs="{"),
    Form("Wireshark's stream as hex", follow.parse_follow_dump, signs=" "),
    Form("system calls", syscalls.parse_calls, signs="("),
    Form("a hex dump", hex_dump.parse_rows, True),
    Form("rows of numbers", number_rows.parse_little, True),
    Form("rows of big-endian numbers", number_rows.parse_big, True),
    Form("bytes literals", strings.parse_bytes_literals, signs="'\""),
    Form("lists of bytes", byte_lists.parse_lists, signs="[({<"),
    Form("lists of hex bytes", byte_lists.parse_hex_lists, signs="[({<"),
    Form("hex digits", hex_digits.parse_hex_digits, True),
    Form("strings with escapes", strings.parse_strings, signs="'\""),
    Form("decimal numbers", byte_lists.parse_bare_numbers, True),
    Form("base64", base64_text.parse_base64),
    Form("hex digits in lines", hex_digits.parse_embedded_hex),
    Form("base64 in lines", base64_text.parse_embedded_base64),
    Form("escapes in lines", strings.parse_unquoted, signs="\\"),
)
"""All forms, in the order in which they are tried."""


class _Choice(NamedTuple):
    """A form, how far it can be trusted, and whether the lines are in a JSON string."""

    form: Form
    trust: int
    is_escaped: bool = False


_NO_CHOICE: Final = _Choice(FORMS[0], _NONE)


def choose_form(lines: Iterator[Line]) -> tuple[Form, Iterator[Line]]:
    """Return the form of a text, and its lines from the window on that shows it.

    Raises CaptureError if the text has no form.
    """
    window: list[Line] = []
    problems: list[str] = []
    size, limit = 0, _FIRST
    while True:
        has_ended = True
        for line in lines:
            if line[1] or (window and window[-1][1]):  # of blank lines, one is enough
                window.append(line)
            size += len(line[1]) + 1
            if size >= limit:
                has_ended = False
                break
        choice = _choose(window, problems)
        if choice.trust == _CLEAN or (choice.trust and (has_ended or limit >= _WINDOW)):
            rest = chain(window, lines)
            return choice.form, unescape(rest) if choice.is_escaped else rest
        if has_ended:
            raise CaptureError(": ".join([NO_TRAFFIC, *problems[:1]]))
        last_line_size = sum(len(text) for number, text in reversed(window) if number == window[-1][0])
        if limit < _WINDOW or _WINDOW // 4 < last_line_size < MAX_LINE:  # a long line must stay whole
            limit *= 4
            problems.clear()
            continue
        limit = _WINDOW
        drop_count, size = len(window), 0
        while drop_count and size < _WINDOW // 4:
            drop_count -= 1
            size += len(window[drop_count][1]) + 1
        del window[:drop_count]


def _choose(window: list[Line], problems: list[str]) -> _Choice:
    """Return the form that is trusted most; of equals, the first in `FORMS`."""
    best = _NO_CHOICE
    for is_escaped in (False, True):
        if is_escaped:
            if not any("\\" in text for _, text in window):
                break
            window = list(unescape(window))
        characters = set[str]().union(*(text for _, text in window))
        size = sum(len(text) for _, text in window)
        for form in FORMS:
            if form.signs and characters.isdisjoint(form.signs):
                continue
            choice = _try(form, window, size, problems)._replace(is_escaped=is_escaped)
            if choice.trust > best.trust:
                best = choice
            if best.trust == _CLEAN:
                return best
    return best


def _try(form: Form, window: list[Line], size: int, problems: list[str]) -> _Choice:
    """Try a form on lines of `size` characters; return it with its trust, and unfiltered if it needs that.

    If it does not fit, the reason is added to `problems`.
    """
    dumps: list[Dump] = []
    problem = ""
    try:
        dumps.extend(form.parse(window))  # keeps those before an error
    except CaptureError as error:
        problem = f"looks like {form.name}; {error}"
    if shows_packets(dumps[:_SAMPLED]):
        return _Choice(form, _CLEAN)
    for chosen in (form, form._replace(is_unfiltered=True)):
        if trust := _judge_frames(chosen, dumps):
            return _Choice(chosen, trust)
    least = max(_MIN_BYTES, size // 8)  # a byte takes up to 8 characters
    if not problem and sum(len(dump.data) for dump in dumps) >= least:
        last = dumps[-1].line
        text = f"its bytes (the last dump begins in line {last}) are not Pulsar frames"
        problem = f"looks like {form.name}, but {text}"
    if problem:
        problems.append(problem)
    return _NO_CHOICE


def shows_packets(dumps: list[Dump]) -> bool:
    """Return whether dumps are packets, some of them of TCP, or a capture file."""
    if not dumps or dumps[0].connection is not None:
        return False
    if files.is_capture(dumps[0].data) or any(dump.link for dump in dumps):
        return True
    dissector = Dissector()
    return any(
        link and dissector.segment(link, dump.data, len(dump.data)) is not None
        for dump in dumps
        if (link := LINKS[link_of(dump.data)])
    )


def _judge_frames(form: Form, dumps: Iterable[Dump]) -> int:
    """Return how far dumps can be trusted to be frames, by what comes first."""
    has_trouble = False
    for event in _decode(form, dumps):
        if isinstance(event, Frame) and event.type in NAMES:
            return _DOUBTFUL if has_trouble or event.partial else _CLEAN
        if isinstance(event, Frame) and event.partial and begins_command(event.raw, 8, None):
            return _DOUBTFUL
        if isinstance(event, Malformed) and is_clearly_a_frame(event.raw):
            return _DOUBTFUL
        has_trouble = True
    return _NONE


def _decode(form: Form, dumps: Iterable[Dump]) -> Iterator[Event]:
    streams: dict[tuple[LogConnection | None, bool], FrameStream] = {}
    for dump in dumps:
        key = dump.connection, dump.is_inbound
        stream = streams.get(key)
        if stream is None:
            stream = streams[key] = FrameStream(Connection(0), True)
            stream.is_direction_certain = False
        if form.is_unfiltered or dump.connection or belongs(stream, dump.data):
            yield from stream.feed(dump.data)
            if dump.missing:
                yield from stream.gap(hole_size(dump, stream))
    for stream in streams.values():
        yield from stream.close()
