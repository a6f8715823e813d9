"""Finds out in which form a text shows bytes.

The forms are tried in order, the most particular one first, on the beginning of the text, and later on what
follows: the first one that yields a frame, a packet or a capture file is taken. So a text may begin with
megabytes of other lines, and its size does not matter.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final, NamedTuple

from pulsarctl_wire.capture import files
from pulsarctl_wire.capture.links import ETHERNET, RAW_IP
from pulsarctl_wire.capture.packets import Dissector
from pulsarctl_wire.capture.text import (
    base64_text,
    follow,
    netty,
    numbers,
    plain,
    rows,
    strings,
    syscalls,
    words,
)
from pulsarctl_wire.capture.text.dumped import NO_TRAFFIC, Dumped, Flow, belongs, hole_size
from pulsarctl_wire.capture.text.lines import MAX_LINE, Line, unescape
from pulsarctl_wire.capture.text.rows import link_of
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.wire.commands import NAMES
from pulsarctl_wire.wire.frame import Connection, Event, Frame, Malformed
from pulsarctl_wire.wire.framing.malformed import is_clearly_a_frame
from pulsarctl_wire.wire.framing.resync import begins_command
from pulsarctl_wire.wire.framing.stream import FrameStream

Parse = Callable[[Iterable[Line]], Iterator[Dumped]]

_FIRST: Final = 4 << 10
"""Characters of the beginning of a text that are tried first."""
_WINDOW: Final = 1 << 20
"""Characters of a text that are tried together."""
_SAMPLED: Final = 100  # dumps that are examined to find whether they are packets
_NONE, _DOUBTFUL, _CLEAN = range(3)
"""How far a form is trusted: it shows nothing, something that may be frames, or frames from its beginning."""

_MIN_BYTES: Final = 8  # of which it is said that they are no frames

LINKS: Final = {"ethernet": ETHERNET, "ip": RAW_IP, "": 0}
"""The link types of what `link_of` recognises."""


class Form(NamedTuple):
    """A form in which texts show bytes.

    `is_whole`: all bytes that have this form count, not only those that begin a frame or continue one.
    `signs`: characters of which a text in this form has at least one; "" if nothing is certain.
    """

    name: str
    parse: Parse
    is_whole: bool = False
    signs: str = ""


FORMS: Final = (
    Form("a log of Netty's LoggingHandler", netty.parse_netty, signs="["),
    Form("Wireshark's stream as YAML", follow.parse_follow_yaml, signs=":"),
    Form("Wireshark's stream as C arrays", follow.parse_follow_arrays, signs="{"),
    Form("Wireshark's stream as hex", follow.parse_follow_dump, signs=" "),
    Form("system calls", syscalls.parse_calls, signs="("),
    Form("a hex dump", rows.parse_rows, True),
    Form("rows of numbers", words.parse_little, True),
    Form("rows of big-endian numbers", words.parse_big, True),
    Form("bytes literals", strings.parse_bytes_literals, signs="'\""),
    Form("lists of bytes", numbers.parse_lists, signs="[({<"),
    Form("lists of hex bytes", numbers.parse_hex_lists, signs="[({<"),
    Form("hex digits", plain.parse_plain, True),
    Form("strings with escapes", strings.parse_strings, signs="'\""),
    Form("decimal numbers", numbers.parse_bare_numbers, True),
    Form("base64", base64_text.parse_base64),
    Form("hex digits in lines", plain.parse_embedded_hex),
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
    """Return the form of a text, and its lines from where that begins. Raises CaptureError if it has none."""
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
        last = sum(len(text) for number, text in reversed(window) if number == window[-1][0])
        if limit < _WINDOW or _WINDOW // 4 < last < MAX_LINE:
            limit *= 4
            problems.clear()
            continue
        limit = _WINDOW
        kept, size = len(window), 0
        while kept and size < _WINDOW // 4:
            kept -= 1
            size += len(window[kept][1]) + 1
        del window[:kept]


def _choose(window: list[Line], problems: list[str]) -> _Choice:
    """Return the first form that can be trusted best."""
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
    """Return how far a form of lines of `size` characters can be trusted, with `is_whole` if need be.

    Adds to `problems` why it cannot be.
    """
    dumps: list[Dumped] = []
    problem = ""
    try:
        dumps.extend(form.parse(window))  # keeps those before an error
    except CaptureError as error:
        problem = f"looks like {form.name}; {error}"
    if shows_packets(dumps[:_SAMPLED]):
        return _Choice(form, _CLEAN)
    for chosen in (form, form._replace(is_whole=True)):
        if trust := _judge_frames(chosen, dumps):
            return _Choice(chosen, trust)
    if not problem and sum(len(dumped.data) for dumped in dumps) >= max(_MIN_BYTES, size // 8):  # most of it
        last = dumps[-1].line
        text = f"its bytes (the last dump begins in line {last}) are not Pulsar frames"
        problem = f"looks like {form.name}, but {text}"
    if problem:
        problems.append(problem)
    return _NO_CHOICE


def shows_packets(dumps: list[Dumped]) -> bool:
    """Return whether dumps are packets, some of them of TCP, or a capture file."""
    if not dumps or dumps[0].flow is not None:
        return False
    if files.is_capture(dumps[0].data) or any(dumped.link for dumped in dumps):
        return True
    dissector = Dissector()
    return any(
        link and dissector.segment(link, dumped.data, len(dumped.data)) is not None
        for dumped in dumps
        if (link := LINKS[link_of(dumped.data)])
    )


def _judge_frames(form: Form, dumps: Iterable[Dumped]) -> int:
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


def _decode(form: Form, dumps: Iterable[Dumped]) -> Iterator[Event]:
    streams: dict[tuple[Flow | None, bool], FrameStream] = {}
    for dumped in dumps:
        key = dumped.flow, dumped.is_inbound
        stream = streams.get(key)
        if stream is None:
            stream = streams[key] = FrameStream(Connection(0), True)
            stream.certain = False
        if form.is_whole or dumped.flow or belongs(stream, dumped.data):
            yield from stream.feed(dumped.data)
            if dumped.missing:
                yield from stream.gap(hole_size(dumped, stream))
    for stream in streams.values():
        yield from stream.close()
