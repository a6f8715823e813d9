"""What people paste: texts that tools, languages and logs print, back to the frames that they show."""

import contextlib
import io
import json
from base64 import b64encode, urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsarctl_wire.capture import Decoder, Source, read_frames
from pulsarctl_wire.capture.text import forms, log_connections, number_rows, syscalls
from pulsarctl_wire.capture.text import netty as text_netty
from pulsarctl_wire.capture.text.forms import FORMS
from pulsarctl_wire.capture.text.lines import Piece, join_pieces, split_lines, unescape
from pulsarctl_wire.errors import CaptureError, DamagedCapture
from pulsarctl_wire.wire.commands import command_name
from pulsarctl_wire.wire.frame import Event, Frame, Gap

TEXTS = Path(__file__).parent / "texts"
"""What the tools printed for a CONNECT and a SEND, and for short sessions with these."""

SAMPLES = Path(__file__).parents[2] / "samples" / "pcaps"

DATA = bytes(byte & 255 for byte in json.loads((TEXTS / "java-arr.txt").read_text()))
CONNECT, SEND = DATA[:45], DATA[45:]
CONNECTED = bytes.fromhex("0000001d00000019 08031a150a11 50756c7361722053657276 65722d2d2d2d 100e")
TWO = Counter({"CONNECT": 1, "SEND": 1})


def decode(text: str | bytes, size: int = 1 << 20) -> tuple[list[Event], Decoder]:
    """Decode a text that is read `size` bytes at a time; return its events and the decoder."""
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text

    class Pipe(io.RawIOBase):
        def __init__(self) -> None:
            self._at = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: "memoryview[int]") -> int:  # type: ignore[override]
            chunk = data[self._at : self._at + min(size, len(buffer))]
            buffer[: len(chunk)] = chunk
            self._at += len(chunk)
            return len(chunk)

    decoder = Decoder()
    events = [event for batch in decoder.read(Source("text", cast(BinaryIO, Pipe()))) for event in batch]
    events += [event for batch in decoder.finish() for event in batch]
    return events, decoder


def frames_of(text: str | bytes) -> list[Frame]:
    events, _ = decode(text)
    assert all(isinstance(event, Frame) for event in events), events
    return [event for event in events if isinstance(event, Frame)]


def count(events: Iterable[Event]) -> Counter[str]:
    """Count the whole frames by command, the others as partial, and gaps and malformed stretches."""
    return Counter(
        ("partial" if event.partial else command_name(event.type))
        if isinstance(event, Frame)
        else type(event).__name__
        for event in events
    )


# ---- What tools print ----

SHOWN = {
    "netty-hex": Counter({"CONNECT": 2, "CONNECTED": 2, "SEND": 2}),
    "strace-plain": Counter({"CONNECT": 2, "CONNECTED": 2, "SEND": 2}),
    "strace-tt": Counter({"CONNECT": 2, "CONNECTED": 2, "SEND": 2}),
    "strace-r": Counter({"CONNECT": 2, "CONNECTED": 2, "SEND": 2}),
    "strace-yy": Counter({"CONNECT": 2, "CONNECTED": 2, "SEND": 1}),  # without writev
    "strace-cut": Counter({"partial": 6, "Gap": 7}),
    "node-connect": Counter({"CONNECT": 1}),
    "node-u8c": Counter({"CONNECT": 1}),
    "node-buffer": Counter({"CONNECT": 1, "Malformed": 1, "Gap": 1}),  # 5 bytes of the SEND, and a hole
    **{
        name: Counter({"CONNECT": 1, "partial": 1, "Gap": 1})
        for name in ("node-ab", "node-arr", "node-i8", "node-obj", "node-u8")
    },
    "gdb-xg": TWO + Counter({"Malformed": 1}),  # what follows in memory fills the last word
}
"""What is shown by those files that hold something else than `TWO`."""

REFUSED = {
    "netty-simple": "line 30: only the sizes are logged.*HEX_DUMP",
    "follow-ascii": "line 3: ASCII leaves bytes out",
    "od-ta": "neither a capture",
}


@pytest.mark.parametrize("path", sorted(TEXTS.glob("*.txt")), ids=lambda path: path.stem)
def test_what_tools_print(path: Path) -> None:
    if path.stem in REFUSED:
        with pytest.raises(CaptureError, match=REFUSED[path.stem]):
            decode(path.read_bytes())
        return
    events, decoder = decode(path.read_bytes())
    assert len(decoder.forms) == 1
    if path.stem.startswith("follow"):
        assert count(events).total() == 50
        assert {str(event.connection) for event in events} == {"127.0.0.1:57886-127.0.0.1:8650"}
        assert {event.to_broker for event in events} == {True, False}
        return
    assert count(events) == SHOWN.get(path.stem, TWO)
    sent = [event.raw for event in events if isinstance(event, Frame) and not event.partial]
    assert set(sent) <= {CONNECT, SEND, CONNECTED}


@pytest.mark.parametrize("path", sorted(TEXTS.glob("*.txt")), ids=lambda path: path.stem)
def test_any_chunks_and_line_ends(path: Path) -> None:
    if path.stem in REFUSED:
        return
    expected = [(event.offset, event.time_ns, event.packet) for event in decode(path.read_bytes())[0]]
    changed = path.read_bytes().replace(b"\n", b"\r\n")
    assert [(event.offset, event.time_ns, event.packet) for event in decode(changed, 100)[0]] == expected


# ---- What people write and other tools print ----


def signed(data: bytes, separator: str = ", ") -> str:
    return separator.join(str(byte - 256 if byte > 127 else byte) for byte in data)


def decimal(data: bytes, separator: str = ", ") -> str:
    return separator.join(map(str, data))


def octal(data: bytes) -> str:
    """Escape bytes as strace does."""
    text = ""
    for byte, following in zip(data, data[1:] + b"\0", strict=False):
        if byte in b'"\\':
            text += "\\" + chr(byte)
        elif 32 <= byte < 127:
            text += chr(byte)
        else:
            text += f"\\{byte:03o}" if following in b"01234567" else f"\\{byte:o}"
    return text


def rows(data: bytes) -> list[tuple[int, bytes]]:
    return [(at, data[at : at + 16]) for at in range(0, len(data), 16)]


def gutter(data: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)


def go_dump(data: bytes) -> str:
    """Print bytes as Go's `hex.Dump` does, and `hexdump -C`."""
    return "".join(
        f"{at:08x}  {row[:8].hex(' '):23}  {row[8:].hex(' '):23}  |{gutter(row)}|\n" for at, row in rows(data)
    )


def netty_dump(data: bytes) -> str:
    """Print bytes as Netty's ByteBufUtil does."""
    ruler = "+--------+" + "-" * 49 + "+----------------+"
    body = "\n".join(f"|{at:08x}| {row.hex(' '):47} |{gutter(row):16}|" for at, row in rows(data))
    head = f"         +{'-' * 49}+\n         |  0  1  2  3  4  5  6  7  8  9  a  b  c  d  e  f |"
    return f"{head}\n{ruler}\n{body}\n{ruler}"


def wrap(text: str, width: int) -> str:
    return "\n".join(text[at : at + width] for at in range(0, len(text), width))


LOG = "2026-11-20 10:11:12,345 [main] DEBUG c.e.Client - "

FORMS_BY_NAME: dict[str, Callable[[bytes], str]] = {
    "Java": lambda data: f"[{signed(data)}]",
    "Scala": lambda data: f"val frame = Array({signed(data)})",
    "Scala, a list": lambda data: f"List({signed(data)})",
    "Java source": lambda data: "new byte[] {" + ", ".join(f"(byte) 0x{byte:02x}" for byte in data) + "};",
    "Go": lambda data: f"[{decimal(data, ' ')}]",
    "Haskell": lambda data: f"[{decimal(data, ',')}]",
    "F#": lambda data: "[|" + "; ".join(f"{byte}uy" for byte in data) + "|]",
    "Rust": lambda data: "vec![" + ", ".join(f"{byte}u8" for byte in data) + "]",
    "Julia": lambda data: "UInt8[" + ", ".join(f"0x{byte:02x}" for byte in data) + "]",
    "Erlang": lambda data: f"<<{decimal(data, ',')}>>",
    "Elixir": lambda data: f"iex(1)> frame\n<<{decimal(data)}>>",
    "PowerShell": lambda data: f"$bytes = @({decimal(data, ',')})",
    "PowerShell's output": lambda data: decimal(data, "\r\n"),
    "numpy": lambda data: "array([" + wrap(", ".join(f"{byte:3}" for byte in data), 75) + "], dtype=uint8)",
    "C array": lambda data: (
        "const uint8_t frame[] = {\n" + wrap("".join(f"0x{byte:02x}, " for byte in data), 72) + "\n};"
    ),
    "C array, signed": lambda data: f"char frame[] = {{ {signed(data)} }};",
    "C#": lambda data: data.hex("-").upper(),
    "colons": lambda data: data.hex(":"),
    "JSON": lambda data: json.dumps({"time": 1, "payload": list(data), "tags": ["a", "b"]}, indent=1),
    "JSON of a typed array": lambda data: json.dumps({str(at): byte for at, byte in enumerate(data)}),
    "Node's buffer": lambda data: f"<Buffer {data.hex(' ')}>",
    "Node's buffer in an object": lambda data: f"{{ type: 'data', payload: <Buffer {data.hex(' ')}>, n: 1 }}",
    "bytes": lambda data: f"bytes([{decimal(data)}])",
    "Rust, hex": lambda data: "[" + ", ".join(f"{byte:x}" for byte in data) + "]",
    "a list in a log": lambda data: (
        f"{LOG}start [1, 2]\n{LOG}sent {len(data)} bytes: [{signed(data)}] in 3 ms"
    ),
    "a list in quotes": lambda data: f'level=debug data="[{decimal(data, " ")}]" n=[5]',
    "PostgreSQL": lambda data: f" id |  data\n----+-------\n  1 | \\x{data.hex()}\n(1 row)\n",
    "0x": lambda data: f"0x{data.hex().upper()}",
    "hex in a log": lambda data: f"{LOG}id=550e8400-e29b-41d4-a716-446655440000 sent payload={data.hex()}",
    "spaced hex in a log": lambda data: f"{LOG}>>> {data.hex(' ')} <<<",
    "hex in JSON": lambda data: json.dumps({"ts": "2026-11-20T10:11:12Z", "hex": data.hex()}),
    "base64": lambda data: b64encode(data).decode(),
    "base64, wrapped at 60": lambda data: wrap(b64encode(data).decode(), 60),
    "base64url, not padded, wrapped": lambda data: wrap(urlsafe_b64encode(data).decode().rstrip("="), 70),
    "base64 in quotes": lambda data: f'"{b64encode(data).decode()}"',
    "base64 in JSON": lambda data: json.dumps({"level": "debug", "frame": b64encode(data).decode()}),
    "base64 in a log": lambda data: f"{LOG}trace=0af7651916cd43dd frame={b64encode(data).decode()}",
    "PEM": lambda data: f"-----BEGIN DATA-----\n{wrap(b64encode(data).decode(), 64)}\n-----END DATA-----",
    "Python": repr,
    "Python in a log": lambda data: f"{LOG}it's {data!r} of 'this' client",
    "C string": lambda data: f'const char *frame = "{octal(data)}";',
    "hex escapes": lambda data: '"' + "".join(f"\\x{byte:02x}" for byte in data) + '"',
    "hex escapes in lines": lambda data: "\n".join(
        '"' + "".join(f"\\x{byte:02x}" for byte in row) + '" \\' for _, row in rows(data)
    ),
    "JSON string": lambda data: json.dumps({"frame": data.decode("latin-1")}),
    "JavaScript string": lambda data: json.dumps(data.decode("latin-1"), ensure_ascii=False),
    "shell": lambda data: f"printf '{octal(data)}' | nc broker 6650" if b"'" not in data else repr(data),
    "strace": lambda data: f'sendto(5, "{octal(data)}", {len(data)}, 0, NULL, 0) = {len(data)}',
    "ltrace": lambda data: f'[pid 7] p->SSL_write(0x55d1, "{octal(data)}", {len(data)}) = {len(data)}',
    "strace of sendmsg": lambda data: (
        f"17 10:11:12.000001 sendmsg(5, {{msg_name=NULL, msg_namelen=0, msg_iov=[{{iov_base="
        f'"{octal(data[:4])}", iov_len=4}}, {{iov_base="{octal(data[4:])}", iov_len={len(data) - 4}}}], '
        f"msg_iovlen=2, msg_controllen=0, msg_flags=0}}, MSG_NOSIGNAL) = {len(data)}"
    ),
    "Netty": lambda data: (
        f"{LOG}[id: 0x1c2d3e4f, L:/10.0.0.1:5000 - R:b/10.0.0.2:6650] WRITE: {len(data)}B\n{netty_dump(data)}"
    ),
    "Netty 4.0": lambda data: (
        f"{LOG}[id: 0x1c2d3e4f, /10.0.0.1:5000 => b/10.0.0.2:6650] WRITE({len(data)}B)\n{netty_dump(data)}"
    ),
    "Netty 3": lambda data: (
        f"{LOG}[id: 0x1c2d3e4f, /10.0.0.1:5000 => /10.0.0.2:6650] RECEIVED: BigEndianHeapChannelBuffer("
        f"ridx=0, widx={len(data)}, cap={len(data)}) - (HEXDUMP: {data.hex()})"
    ),
    "Reactor Netty": lambda data: (
        f"{LOG}[1c2d3e4f-1, L:/[0:0:0:0:0:0:0:1%0]:5000 - R:/[0:0:0:0:0:0:0:1%0]:6650] READ: {len(data)}B\n"
        f"{netty_dump(data)}"
    ),
    "Netty in JSON": lambda data: json.dumps(
        {"ts": "2026-11-20T10:11:12.345Z", "m": f"[id: 0x1c2d3e4f] WRITE: {len(data)}B\n{netty_dump(data)}"}
    ),
    "Python in JSON": lambda data: json.dumps({"ts": 1.5, "event": f"sent {data!r} to broker"}),
    "Go's dump in JSON": lambda data: json.dumps({"level": "debug", "dump": go_dump(data)}),
    "MIME in JSON": lambda data: json.dumps({"frame": wrap(b64encode(data).decode(), 76) + "\n"}),
    "strace of sendmmsg": lambda data: (
        f'sendmmsg(5, [{{msg_hdr={{msg_name=NULL, msg_namelen=0, msg_iov=[{{iov_base="{octal(data)}", '
        f"iov_len={len(data)}}}], msg_iovlen=1, msg_flags=0}}, msg_len={len(data)}}}], 1, 0) = 1"
    ),
    "hexyl": lambda data: "\n".join(
        f"│{at:08x}│ {row[:8].hex(' '):23} ┊ {row[8:].hex(' '):23} │{'⋄' * 8}┊{'_' * 8}│"
        for at, row in rows(data)
    ),
    "NSData": lambda data: f"<{data.hex(' ', -4)}>",
    "gdb": lambda data: (
        "(gdb) x/148xb buf\n"
        + "\n".join(
            f"0x{0x555555558000 + at:x} <buf+{at}>:\t"
            + "\t".join(f"0x{byte:02x}" for byte in data[at : at + 8])
            for at in range(0, len(data), 8)
        )
    ),
    "Netty from a container": lambda data: "\n".join(
        f"2026-11-20T10:11:12.345678901Z stdout F {line}"
        for line in f"[id: 0x1c2d3e4f] WRITE: {len(data)}B\n{netty_dump(data)}".split("\n")
    ),
    "Netty from Docker": lambda data: "\n".join(
        json.dumps({"log": f"{line}\n", "stream": "stdout", "time": "2026-11-20T10:11:12.345678901Z"})
        for line in f"[id: 0x1c2d3e4f] WRITE: {len(data)}B\n{netty_dump(data)}".split("\n")
    ),
    "Netty's dump alone": netty_dump,
    "Go's dump in a log": lambda data: "".join(
        f"2026/11/20 10:11:12 {line}\n" for line in go_dump(data).splitlines()
    ),
    "Format-Hex": lambda data: "\n".join(
        [
            "           00 01 02 03 04 05 06 07 08 09 0A 0B 0C 0D 0E 0F",
            *(f"{at:08X}   {row.hex(' ').upper():47}  {gutter(row)}" for at, row in rows(data)),
        ]
    ),
    "Format-Hex 7": lambda data: "\n".join(
        ["   Label: String (System.String)"]
        + [f"{at:016X} {row.hex(' ').upper():47} {gutter(row)}" for at, row in rows(data)]
    ),
    "WinDbg": lambda data: "\n".join(
        f"00000000`{0x12F6A0 + at:08x}  {row[:8].hex(' ')}{'-' if row[8:] else ' '}{row[8:].hex(' '):23}  "
        f"{gutter(row)}"
        for at, row in rows(data)
    ),
    "lldb": lambda data: "\n".join(
        f"0x{0x100003F80 + at:x}: {row.hex(' '):47}  {gutter(row)}" for at, row in rows(data)
    ),
    "lldb, numbers": lambda data: "\n".join(
        f"0x{0x100003F80 + at:x}: " + " ".join(f"0x{byte:02x}" for byte in row) for at, row in rows(data)
    ),
    "Wireshark's C arrays": lambda data: (
        "char peer0_0[] = { /* Packet 4 */\n"
        + wrap("".join(f"0x{byte:02x}, " for byte in data), 48)
        + " };\n"
    ),
    "Wireshark's YAML before 4.0": lambda data: (
        "# Packet 4\npeer0_0: !!binary |\n    " + wrap(b64encode(data).decode(), 64).replace("\n", "\n    ")
    ),
}


@pytest.mark.parametrize("write", FORMS_BY_NAME.values(), ids=FORMS_BY_NAME)
def test_what_people_write(write: Callable[[bytes], str]) -> None:
    assert [frame.raw for frame in frames_of(write(DATA))] == [CONNECT, SEND]
    events, decoder = decode(f"What is this?\n\n{write(DATA)}\n\nThanks, Ada\n", 100)
    assert [event.raw for event in events if isinstance(event, Frame)] == [CONNECT, SEND]
    assert len(decoder.forms) == 1


ALL_FRAMES = [frame.raw for frame in read_frames(SAMPLES / "python-simple.pcap")]


@pytest.mark.parametrize("write", FORMS_BY_NAME.values(), ids=FORMS_BY_NAME)
@given(raws=st.lists(st.sampled_from(ALL_FRAMES), min_size=1, max_size=4), size=st.integers(1, 3000))
@settings(max_examples=12, deadline=None)
def test_any_frames_in_any_chunks(write: Callable[[bytes], str], raws: list[bytes], size: int) -> None:
    events, _ = decode(write(b"".join(raws)), size)
    assert [event.raw for event in events if isinstance(event, Frame)] == raws
    assert count(events).keys().isdisjoint({"Malformed", "Gap", "partial"})


def test_a_last_line_of_one_digit() -> None:
    digits = urlsafe_b64encode(DATA).decode().rstrip("=")
    text = f"{digits[:-1]}\n{digits[-1]}\n"
    assert [frame.raw for frame in frames_of(text)] == [CONNECT, SEND]
    assert [frame.raw for frame in frames_of(f"a\n{text}b\n")] == [CONNECT, SEND]


def test_utf_16() -> None:
    text = FORMS_BY_NAME["Format-Hex"](DATA)
    for coding in ("utf-16", "utf-16-be"):
        mark = b"\xfe\xff" if coding == "utf-16-be" else b""
        assert count(decode(mark + text.encode(coding), 7)[0]) == TWO


def test_colours() -> None:
    text = FORMS_BY_NAME["Netty"](DATA).replace("DEBUG", "\x1b[32mDEBUG\x1b[0;39m")
    assert count(decode(text)[0]) == TWO


# ---- Logs ----


def netty(channel: str, time: str, kind: str, data: bytes, *, ends: str = "", size: int | None = None) -> str:
    """Return what Netty logs of bytes; the dump has only `size` of them."""
    where = f"[id: 0x{channel}{', ' + ends if ends else ''}]"
    dump = netty_dump(data if size is None else data[:size])
    return f"{time} [io-1] DEBUG LoggingHandler - {where} {kind}: {len(data)}B\n{dump}\n"


FIRST = "L:/10.0.0.1:5000 - R:pulsar/10.0.0.2:6650"
SECOND = "L:/10.0.0.2:6650 - R:/10.0.0.9:7000"
"""A channel of a client, and one of a broker."""


def test_channels_that_are_mixed_in_a_log() -> None:
    text = (
        netty("00000001", "10:11:12.000", "WRITE", CONNECT[:20], ends=FIRST)
        + netty("00000002", "10:11:12.001", "READ", CONNECT, ends=SECOND)
        + "10:11:12.002 [main] INFO something else [id: 0x00000001]\n"
        + netty("00000001", "10:11:12.003", "WRITE", CONNECT[20:], ends=FIRST)
        + netty("00000001", "10:11:12.004", "READ", CONNECTED, ends=FIRST)
        + netty("00000002", "10:11:12.005", "WRITE", CONNECTED, ends=SECOND)
        + netty("00000002", "10:11:12.006", "READ", SEND)
    )
    frames = frames_of(text)
    day_ms = ((10 * 60 + 11) * 60 + 12) * 1000
    assert [
        (
            str(frame.connection),
            command_name(frame.type),
            frame.to_broker,
            (frame.time_ns or 0) // 10**6 - day_ms,
        )
        for frame in frames
    ] == [
        ("10.0.0.9:7000-10.0.0.2:6650", "CONNECT", True, 1),
        ("10.0.0.1:5000-10.0.0.2:6650", "CONNECT", True, 3),
        ("10.0.0.1:5000-10.0.0.2:6650", "CONNECTED", False, 4),
        ("10.0.0.9:7000-10.0.0.2:6650", "CONNECTED", False, 5),
        ("10.0.0.9:7000-10.0.0.2:6650", "SEND", True, 6),
    ]
    assert [frame.packet for frame in frames][:2] == [8, 17]  # the lines


def test_a_log_that_docker_keeps() -> None:
    lines = (netty("00000001", "10:11:12.000", "READ", SEND, ends=SECOND) * 2).split("\n")
    events, decoder = decode(
        "\n".join(json.dumps({"log": f"{line}\n", "stream": "stdout"}) for line in lines)
    )
    assert decoder.forms == ["a log of Netty's LoggingHandler"]
    assert [str(event.connection) for event in events] == ["10.0.0.9:7000-10.0.0.2:6650"] * 2


def test_addresses_that_are_used_again_are_another_connection() -> None:
    text = netty("00000001", "10:11:12.000", "WRITE", CONNECT, ends=FIRST) + netty(
        "00000002", "10:11:13.000", "WRITE", CONNECT, ends=FIRST
    )
    assert len({frame.connection.index for frame in frames_of(text)}) == 2


def test_a_dump_that_is_cut_is_a_gap() -> None:
    text = "".join(
        netty("00000001", "10:11:12.000", "WRITE", data, size=64) for data in (CONNECT, SEND, CONNECT)
    )
    events, _ = decode(text)
    assert count(events) == {"partial": 1, "Gap": 1, "CONNECT": 2}
    assert [event.size for event in events if isinstance(event, Gap)] == [len(SEND) - 64]


def test_the_direction_follows_from_the_commands_if_there_are_no_ports() -> None:
    text = netty("00000001", "10:11:12.000", "READ", CONNECTED) + netty(
        "00000001", "10:11:13.000", "WRITE", SEND
    )
    assert [frame.to_broker for frame in frames_of(text)] == [False, True]


@pytest.mark.parametrize(
    ("stamp", "time_ns"),
    [
        ("2026-11-20 10:11:12,345", 1_795_169_472_345_000_000),
        ("2026-11-20T10:11:12.345Z", 1_795_169_472_345_000_000),
        ("2026-11-20T12:11:12.345678901+02:00", 1_795_169_472_345_678_901),
        ("2026/11/20 10:11:12", 1_795_169_472_000_000_000),
        ("1795169472.345", 1_795_169_472_345_000_000),
        ("1795169472345", 1_795_169_472_345_000_000),
        ("10:11:12.345", ((10 * 60 + 11) * 60 + 12) * 10**9 + 345_000_000),
        ("[main] 10:11:12", ((10 * 60 + 11) * 60 + 12) * 10**9),
        ("2026-02-31 10:11:12", None),
        ("DEBUG", None),
    ],
)
def test_times(stamp: str, time_ns: int | None) -> None:
    (frame,) = frames_of(netty("00000001", stamp, "WRITE", CONNECT))
    assert frame.time_ns == time_ns
    (frame,) = frames_of(f"{stamp} sent [{signed(CONNECT)}]")
    assert frame.time_ns == time_ns


def strace(call: str, fd: str, data: bytes, *, size: int | None = None, result: int | None = None) -> str:
    """Return a call of strace, which shows only `size` bytes."""
    shown = octal(data if size is None else data[:size])
    dots = "" if size is None or size >= len(data) else "..."
    return f'{call}({fd}, "{shown}"{dots}, 4096) = {len(data) if result is None else result}\n'


def test_descriptors_from_connect_to_close() -> None:
    connect = 'connect(5, {sa_family=AF_INET, sin_port=htons(6650), sin_addr=inet_addr("10.0.0.2")}, 16) = '
    name = (
        'getsockname(5, {sa_family=AF_INET, sin_port=htons(%d), sin_addr=inet_addr("10.0.0.1")}, [16]) = 0\n'
    )
    text = (
        'openat(AT_FDCWD, "/etc/hosts", O_RDONLY) = 5\n'
        + strace("read", "5", b"127.0.0.1\tlocalhost\n")
        + "close(5) = 0\n"
        + connect
        + "-1 EINPROGRESS (Operation now in progress)\n"
        + name % 5000
        + strace("write", "5", CONNECT)
        + strace("read", "5", b"", result=-1)
        + strace("read", "5", CONNECTED)
        + "close(5) = 0\n"
        + connect
        + "0\n"
        + name % 5001
        + strace("write", "5", CONNECT)
        + strace("write", "1", b"done\n")
    )
    assert [(command_name(frame.type), str(frame.connection)) for frame in frames_of(text)] == [
        ("CONNECT", "10.0.0.1:5000-10.0.0.2:6650"),
        ("CONNECTED", "10.0.0.1:5000-10.0.0.2:6650"),
        ("CONNECT", "10.0.0.1:5001-10.0.0.2:6650"),
    ]


def test_calls_that_are_resumed_later() -> None:
    text = (
        "[pid 11] 10:11:12.000001 recvfrom(5,  <unfinished ...>\n"
        f'[pid 12] 10:11:12.000002 sendto(5, "{octal(CONNECT)}", 45, 0, NULL, 0 <unfinished ...>\n'
        f'[pid 11] 10:11:12.000003 <... recvfrom resumed>"{octal(CONNECTED)}", 4096, 0, NULL, NULL) = 33\n'
        "[pid 12] 10:11:12.000004 <... sendto resumed>) = 45\n"
    )
    assert [command_name(frame.type) for frame in frames_of(text)] == ["CONNECTED", "CONNECT"]


def test_strings_that_are_cut_are_gaps() -> None:
    text = "".join(strace("write", "5", data, size=60) for data in (CONNECT, SEND, CONNECT))
    events, _ = decode(text)
    assert count(events) == {"partial": 1, "Gap": 1, "CONNECT": 2}
    vector = (
        f'[{{iov_base="{octal(SEND[:8])}"..., iov_len=18}}, {{iov_base="{octal(SEND[18:])}", iov_len=85}}]'
    )
    events, _ = decode(f"writev(5, {vector}, 2) = 103\n" + strace("write", "5", CONNECT))
    assert [event.size for event in events if isinstance(event, Gap)] == [10]


def test_a_call_that_wrote_less_than_its_string() -> None:
    text = strace("write", "5", SEND, result=30) + strace("write", "5", SEND[30:])
    assert [frame.raw for frame in frames_of(text)] == [SEND]


def test_octal_escapes_that_are_not_padded() -> None:
    short = "".join(
        "\\" + chr(byte) if byte in b'"\\' else chr(byte) if 32 <= byte < 127 else f"\\{byte:o}"
        for byte in DATA
    )
    assert [frame.raw for frame in frames_of(f'write(5, "{short}", 148) = 148')] == [CONNECT, SEND]


# ---- What is no frame, or almost ----


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("peers:\n    data: !!binary |\n      AAAA\n      AA!A\n", "as YAML; line 4: this is not base64"),
        ("Dear reader,\nthis is a letter.\n", "nor Pulsar frames$"),
        (
            netty_dump(CONNECT).replace("|00000010|", "|00000011|"),
            "a hex dump; line 4: .*offset 0x11 of line 5",
        ),
        (
            netty("00000001", "10:00:00", "WRITE", CONNECT).replace("|00000010|", "|00000011|"),
            "a log of Netty's LoggingHandler; line 6: the offset is 00000011, expected 00000010",
        ),
        (
            f"[{decimal(CONNECT[:30])}, 3x1, 8, 9]",
            "lists of bytes; line 1: the list of bytes ends at '3x1', which is not a byte",
        ),
        (
            f"[{decimal(bytes(range(100, 200)))}]",
            r"lists of bytes, but its bytes \(the last dump begins in line 1\) are",
        ),
        (f"[{decimal(CONNECT)}, ..., 9]", r"line 1: '9' follows bytes that were left out of the list"),
        ('x = b"\\x00\\x00', "bytes literals; line 1: the string is not closed"),
        ("0x5550: 0x61 0x62 0x63 0x64\n0x5554: 0x65 0x66 0x67 0x68\n", "rows of numbers, but its bytes"),
    ],
)
def test_what_a_text_almost_is(text: str, message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        decode(text)


def test_a_typo_after_frames_ends_the_text_there() -> None:
    text = "\n".join(f"{at:08x}: {row.hex(' ')}" for at, row in rows(DATA)) + "\n"
    broken = text * 2 + text.replace("00000020", "00000021")
    batches = Decoder().read(Source("text", io.BytesIO(broken.encode())))
    raws = [event.raw for event in next(batches) + next(batches) if isinstance(event, Frame)]
    assert raws == [CONNECT, SEND] * 2
    with pytest.raises(DamagedCapture, match="line 22"):
        list(batches)


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "_FIRST", 1_000)
    monkeypatch.setattr(forms, "_WINDOW", 16_000)


@pytest.mark.usefixtures("small_windows")
def test_a_text_begins_late() -> None:
    noise = "2026-11-20 10:11:12,345 [main] INFO nothing of interest here: [1, 2] and 0x1f\n"
    for name in ("Netty", "a list in a log", "base64 in a log", "strace", "hex in a log"):
        events, _ = decode(noise * 500 + FORMS_BY_NAME[name](DATA) + "\n" + noise)
        assert count(events) == TWO


MARKS = """[ ] { } < > ( ) " ' \\ | : , * = - << >> b' \\x \\u ... <Buffer 00 0x0 -1, ) = 7 = -1 EAGAIN
connect(5, write(5, " 0000000 0x0010: 00000010 |00000000| [id: 0x00000001] READ: 9B ... 3 more items
<repeats 9 times> peer: 1
data: !!binary | AAAA +-----+ recvfrom resumed> {iov_base= Node 0: a:1 char peer0_0[] = {
$1 = Follow: tcp,ascii"""
ITEMS = st.one_of(
    st.text(max_size=20),
    st.sampled_from([*MARKS.split(" "), *MARKS.split("\n"), "\n", "\r\n", "\t", "      "]),
    st.sampled_from([write(DATA) for write in FORMS_BY_NAME.values()]),
)


@given(st.lists(st.tuples(ITEMS, st.integers(0, 300), st.integers(0, 300))), st.integers(1, 500))
@settings(deadline=None)
def test_no_text_gives_anything_but_events_and_errors(items: list[tuple[str, int, int]], size: int) -> None:
    text = "".join(item[start : start + length] for item, start, length in items)
    with contextlib.suppress(CaptureError):
        decode(text, size)
    for form in FORMS:
        with contextlib.suppress(CaptureError):
            for _ in form.parse(split_lines([text.encode("utf-8", "replace")])):
                pass


@pytest.mark.parametrize("name", ["Python", "strace", "Java", "base64", "JSON string", "0x"])
@pytest.mark.usefixtures("small_windows")
def test_a_line_longer_than_what_is_read_at_once(name: str) -> None:
    data = DATA * 100
    assert count(decode(FORMS_BY_NAME[name](data))[0]) == {"CONNECT": 100, "SEND": 100}


@pytest.mark.parametrize(
    "text",
    [
        f"\"{octal(CONNECT)}\", '\\000' <repeats 9999999 times>",
        f"{{{decimal(CONNECT)} <repeats 9999999 times>}}",
    ],
)
def test_repeats_are_bounded(text: str) -> None:
    with pytest.raises(CaptureError, match="line 1: repeats to more than 1048576 bytes"):
        decode(text)


@pytest.mark.parametrize("line", ['"\\0" <repeats 400000 times>', "{1, 1, 1, 1, 0 <repeats 400000 times>}"])
def test_repeats_of_a_whole_text_are_bounded(line: str) -> None:
    with pytest.raises(CaptureError, match="line 3: repeats to more than 1048576 bytes"):
        decode(f"{line}\n" * 3)


def test_escapes_of_json_strings() -> None:
    text = r"b\"\\t\\\\\" \/ \u0041\tb\r\nc\nd\\ne"
    assert list(unescape([(7, text)])) == [(7, r'b"\t\\" / \u0041' + "\tb"), (7, "c"), (7, r"d\ne")]
    assert list(join_pieces(unescape([(7, "a"), (8, r"b\nc")]))) == [(7, "a"), (8, "b"), (8, "c")]
    assert list(join_pieces(unescape([(7, Piece(r"a\nb")), (7, "c")]))) == [(7, "a"), (7, "bc")]


def test_long_lines_are_not_broken_in_an_escape() -> None:
    pieces = [piece for _, piece in split_lines([b"a" * 65_535 + rb"\\\\n" + b"b" * 65_536])]
    assert len(pieces[0]) == 65_535
    assert pieces[1].startswith(r"\\\\n")


def test_bytes_that_are_repeated() -> None:
    text = f"{{{decimal(CONNECT[:-1])}, 1 <repeats 1 times>, 0 <repeats 3 times>, {decimal(SEND[3:])}}}"
    assert [frame.raw for frame in frames_of(text)] == [CONNECT, SEND]
    text = f'"{octal(CONNECT)}", \'\\000\' <repeats 3 times>, "{octal(SEND[3:])}"'
    assert [frame.raw for frame in frames_of(text)] == [CONNECT, SEND]


def test_what_is_known_of_a_log_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_netty, "MAX_CHANNELS", 10)
    monkeypatch.setattr(syscalls, "MAX_DESCRIPTORS", 10)
    monkeypatch.setattr(syscalls, "MAX_UNFINISHED", 10)
    monkeypatch.setattr(log_connections, "MAX_CONNECTIONS", 10)
    numbers = range(100, 120)
    known = netty("0000000a", "10:11:12.000", "WRITE", CONNECT, ends=FIRST)
    others = "".join(
        netty(f"{number:08x}", "10:11:12.000", "WRITE", CONNECT, ends=FIRST) for number in numbers
    )
    first, *_, last = frames_of(known + others + netty("0000000a", "10:11:13.000", "WRITE", CONNECT))
    assert (first.connection.client, last.connection.client) == ("10.0.0.1:5000", "")
    address = '{sa_family=AF_INET, sin_port=htons(6650), sin_addr=inet_addr("10.0.0.2")}'
    calls = "".join(
        f"[pid {number}] connect({number}, {address}, 16) = 0\n"
        f"[pid {number}] read({number},  <unfinished ...>\n"
        for number in numbers
    )
    ends = "".join(
        f'[pid {number}] <... read resumed>"{octal(CONNECTED)}", 99) = 33\n'
        + strace("write", str(number), CONNECT)
        for number in numbers
    )
    frames = frames_of(calls + ends)
    assert Counter(frame.type for frame in frames) == {2: 20, 3: 10}
    servers = Counter(frame.connection.server for frame in frames if frame.to_broker)
    assert servers["10.0.0.2:6650"] == 10


@pytest.mark.parametrize("addresses", [(0x1000, 0x5000), (0x5000, 0x1000), (0x1000, 0x1040)])
def test_dumps_of_gdb_at_several_addresses(addresses: tuple[int, int]) -> None:
    text = "".join(
        f"0x{start + at:x}:\t" + "\t".join(f"0x{byte:02x}" for byte in data[at : at + 8]) + "\n"
        for start, data in zip(addresses, (CONNECT[:16], CONNECT[16:32]), strict=True)
        for at in range(0, 16, 8)
    )
    dumps = list(number_rows.parse_little(enumerate(text.splitlines(), 1)))
    assert [(dump.data, dump.line) for dump in dumps] == [(CONNECT[:16], 1), (CONNECT[16:32], 3)]


def test_rows_of_gdb_that_differ_in_width_are_not_cut() -> None:
    text = (
        "0x1000:\t0x00\t0x01\n0x1002:\t0x02\t0x03\n"
        "0x1004:\t0x04\t0x05\t0x06\t0x07\n0x1008:\t0x08\t0x09\t0x0a\t0x0b\n"
    )
    with pytest.raises(CaptureError, match="these rows are in no known layout"):
        list(number_rows.parse_little(enumerate(text.splitlines(), 1)))


def od(data: bytes, size: int) -> str:
    """Print bytes as `od -A d -t x<size>` does."""
    lines = [
        f"{at:07} " + " ".join(row[start : start + size][::-1].hex() for start in range(0, len(row), size))
        for at, row in rows(data)
    ]
    return "\n".join([*lines, f"{len(data):07}\n"])


@pytest.mark.parametrize("size", [1, 2, 4])
def test_many_rows_of_numbers(size: int) -> None:
    data = DATA * 30
    assert count(decode(od(data, size), 500)[0]) == {"CONNECT": 30, "SEND": 30}
    with pytest.raises(DamagedCapture, match="line 280: the address is 0000a00, unlike those before it"):
        decode(od(data, size) + "0000a00 00\n")
