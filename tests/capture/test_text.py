"""What people paste: texts that tools, languages and logs print, back to the frames that they show."""

import io
import json
from base64 import b64encode, urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, cast

import pytest

from pulsarctl_wire.capture import Decoder, Source
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.wire.commands import command_name
from pulsarctl_wire.wire.frame import Event, Frame

TEXTS = Path(__file__).parent / "texts"
"""What the tools printed for a CONNECT and a SEND, and for short sessions with these."""

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
    for byte, following in zip(data, [*data[1:], 0], strict=True):
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
        "msg_iovlen=2, "
        f"msg_controllen=0, msg_flags=0}}, MSG_NOSIGNAL) = {len(data)}"
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
    "Netty from a container": lambda data: "\n".join(
        f"2026-11-20T10:11:12.345678901Z stdout F {line}"
        for line in f"[id: 0x1c2d3e4f] WRITE: {len(data)}B\n{netty_dump(data)}".split("\n")
    ),
    "Netty's dump alone": netty_dump,
    "Go's dump in a log": lambda data: "\n".join(
        f"2026/11/20 10:11:12 {at:08x}  {row[:8].hex(' '):23}  {row[8:].hex(' '):23}  |{gutter(row)}|"
        for at, row in rows(data)
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
