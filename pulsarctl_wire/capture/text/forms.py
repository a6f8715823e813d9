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
from pulsarctl_wire.capture.text.dumped import Dumped, Flow
from pulsarctl_wire.capture.text.lines import Line
from pulsarctl_wire.capture.text.rows import link_of
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.wire.commands import NAMES
from pulsarctl_wire.wire.frame import MAX_KEPT_FRAME, Connection, Event, Frame, Malformed
from pulsarctl_wire.wire.framing.malformed import is_clearly_a_frame
from pulsarctl_wire.wire.framing.stream import FrameStream

Parse = Callable[[Iterable[Line]], Iterator[Dumped]]

_FIRST: Final = 64 << 10
"""Characters of the beginning of a text that are tried first."""
_WINDOW: Final = 1 << 20
"""Characters of a text that are tried together."""
_SAMPLED: Final = 100  # dumps that are examined to find whether they are packets
_MIN_BYTES: Final = 8  # of which it is said that they are no frames

NO_TRAFFIC: Final = "neither a capture (pcap, pcapng), nor text that shows bytes, nor Pulsar frames"
"""What a source is without any traffic."""

LINKS: Final = {"ethernet": ETHERNET, "ip": RAW_IP, "": 0}
"""The link types of what `link_of` recognises."""


class Form(NamedTuple):
    """A form in which texts show bytes.

    `is_whole`: all bytes that have this form count, not only those that begin a frame or continue one.
    """

    name: str
    parse: Parse
    is_whole: bool = False


FORMS: Final = (
    Form("a log of Netty's LoggingHandler", netty.parse_netty),
    Form("Wireshark's stream as YAML", follow.parse_follow_yaml),
    Form("Wireshark's stream as C arrays", follow.parse_follow_arrays),
    Form("Wireshark's stream as hex", follow.parse_follow_dump),
    Form("system calls", syscalls.parse_calls),
    Form("a hex dump", rows.parse_rows, True),
    Form("a hex dump in lines", rows.parse_rows_in_lines, True),
    Form("rows of numbers", words.parse_little, True),
    Form("rows of big-endian numbers", words.parse_big, True),
    Form("bytes literals", strings.parse_bytes_literals),
    Form("lists of bytes", numbers.parse_lists),
    Form("lists of hex bytes", numbers.parse_hex_lists),
    Form("hex digits", plain.parse_plain, True),
    Form("strings with escapes", strings.parse_strings),
    Form("decimal numbers", numbers.parse_bare_numbers, True),
    Form("base64", base64_text.parse_base64),
    Form("hex digits in lines", plain.parse_embedded_hex),
    Form("base64 in lines", base64_text.parse_embedded_base64),
    Form("escapes in lines", strings.parse_unquoted),
)
"""All forms, in the order in which they are tried."""


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
        for form in FORMS:
            chosen = _try(form, window, problems)
            if chosen is not None:
                return chosen, chain(window, lines)
        if has_ended:
            raise CaptureError(": ".join([NO_TRAFFIC, *problems[:1]]))
        if limit < _WINDOW:
            limit = min(limit * 4, _WINDOW)
            problems.clear()
            continue
        kept, size = len(window), 0
        while kept and size < _WINDOW // 4:
            kept -= 1
            size += len(window[kept][1]) + 1
        del window[:kept]


def _try(form: Form, window: list[Line], problems: list[str]) -> Form | None:
    """Return a form if these lines yield traffic by it, with `is_whole` if need be; else add the reason."""
    dumps: list[Dumped] = []
    problem = ""
    try:
        dumps.extend(form.parse(window))  # keeps those before an error
    except CaptureError as error:
        problem = f"looks like {form.name}; {error}"
    for chosen in (form, form._replace(is_whole=True)):
        if shows_packets(dumps[:_SAMPLED]) or _shows_frames(chosen, dumps):
            return chosen
    if not problem and sum(len(dumped.data) for dumped in dumps) >= _MIN_BYTES:
        last = dumps[-1].line
        problem = f"looks like {form.name}, but its bytes (last in line {last}) are no Pulsar frames"
    if problem:
        problems.append(problem)
    return None


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


def _shows_frames(form: Form, dumps: Iterable[Dumped]) -> bool:
    """Return whether dumps have a frame, or something that was clearly meant to be one."""
    streams: dict[tuple[Flow | None, bool], FrameStream] = {}
    for dumped in dumps:
        key = dumped.flow, dumped.is_inbound
        stream = streams.get(key)
        if stream is None:
            stream = streams[key] = FrameStream(Connection(0), True)
            stream.certain = False
        if not (form.is_whole or dumped.flow or belongs(stream, dumped.data)):
            continue
        if _has_frame(stream.feed(dumped.data)):
            return True
        if dumped.missing and _has_frame(stream.gap(hole_size(dumped, stream))):
            return True
    return any(_has_frame(stream.close()) for stream in streams.values())


def _has_frame(events: list[Event]) -> bool:
    return any(
        (isinstance(event, Frame) and event.type in NAMES)
        or (isinstance(event, Malformed) and is_clearly_a_frame(event.raw))
        for event in events
    )


def hole_size(dumped: Dumped, stream: FrameStream) -> int:
    """Return the bytes missing after a dump: if the text does not say, the rest of the frame that is open."""
    if dumped.missing >= 0:
        return dumped.missing
    return max(stream.awaited - stream.held_bytes, 1)


def belongs(stream: FrameStream, data: bytes) -> bool:
    """Return whether bytes continue a stream of frames: they begin a frame, if that is what comes next."""
    if not stream.is_in_step or stream.held_bytes:
        return True
    total, size = int.from_bytes(data[:4], "big"), int.from_bytes(data[4:8], "big")
    if len(data) < 8:
        return total >> 24 == 0
    return 2 <= size <= total - 4 < MAX_KEPT_FRAME and data[8:9] in (b"\x08", b"")
