import contextlib
import io
import random
import time
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pulsarctl_wire.capture import read_events
from pulsarctl_wire.capture.text import hex_digits, hex_dump, lines
from pulsarctl_wire.capture.text.dump import PIECE, Dump
from pulsarctl_wire.capture.text.hex_digits import parse_hex_digits
from pulsarctl_wire.capture.text.hex_dump import MAX_REPEATED, MAX_ZEROS, parse_rows
from pulsarctl_wire.capture.text.lines import is_text, split_lines
from pulsarctl_wire.capture.text.strings import parse_bytes_literals, parse_strings
from pulsarctl_wire.errors import CaptureError

PING = bytes.fromhex("00000009000000050812920100")
SEND = bytes.fromhex("000000250000000808063204080110000e01c633c1950000000a0a0170100018e807480568656c6c6f")
WORDS = b"cafe beef abcd 0123 dead beef 4567 00 11 22 ef"
"""Shows as hex in every gutter."""

ETHERNET = bytes.fromhex("0242ac1100030242ac1100020800")
IP_PING = bytes.fromhex("450000350001000040 0666be0a000002 0a000003")
IP_PING += bytes.fromhex("c35019fa0000000100000001 50182000044d0000") + PING
IP_SEND = bytes.fromhex("450000510002000040 0666a10a000002 0a000003")
IP_SEND += bytes.fromhex("c35019fa0000000e00000001 50182000c82f0000") + SEND

# What the tools print for the bytes above (Wireshark's menus: written by hand after their forms);
# packets hold PING (2023-11-14 22:13:20.123456 UTC), then SEND.

ONE: dict[str, tuple[str, bytes]] = {
    "xxd": (
        """\
00000000: 0000 0025 0000 0008 0806 3204 0801 1000  ...%......2.....
00000010: 0e01 c633 c195 0000 000a 0a01 7010 0018  ...3........p...
00000020: e807 4805 6865 6c6c 6f                   ..H.hello
""",
        SEND,
    ),
    "xxd of a short frame": ("00000000: 0000 0009 0000 0005 0812 9201 00         .............\n", PING),
    "xxd -u": (
        """\
00000000: 0000 0025 0000 0008 0806 3204 0801 1000  ...%......2.....
00000010: 0E01 C633 C195 0000 000A 0A01 7010 0018  ...3........p...
00000020: E807 4805 6865 6C6C 6F                   ..H.hello
""",
        SEND,
    ),
    "xxd -p": (
        """\
000000250000000808063204080110000e01c633c1950000000a0a017010
0018e807480568656c6c6f
""",
        SEND,
    ),
    "xxd -i": (
        """\
unsigned char send_bin[] = {
  0x00, 0x00, 0x00, 0x25, 0x00, 0x00, 0x00, 0x08, 0x08, 0x06, 0x32, 0x04,
  0x08, 0x01, 0x10, 0x00, 0x0e, 0x01, 0xc6, 0x33, 0xc1, 0x95, 0x00, 0x00,
  0x00, 0x0a, 0x0a, 0x01, 0x70, 0x10, 0x00, 0x18, 0xe8, 0x07, 0x48, 0x05,
  0x68, 0x65, 0x6c, 0x6c, 0x6f
};
unsigned int send_bin_len = 41;
""",
        SEND,
    ),
    "xxd -g1": (
        """\
00000000: 00 00 00 25 00 00 00 08 08 06 32 04 08 01 10 00  ...%......2.....
00000010: 0e 01 c6 33 c1 95 00 00 00 0a 0a 01 70 10 00 18  ...3........p...
00000020: e8 07 48 05 68 65 6c 6c 6f                       ..H.hello
""",
        SEND,
    ),
    "xxd -c 32": (
        """\
00000000: 6361 6665 2062 6565 6620 6162 6364 2030 3132 3320 6465 6164 2062 6565 6620 3435  cafe beef abcd 0123 dead beef 45
00000020: 3637 2030 3020 3131 2032 3220 6566                                               67 00 11 22 ef
""",  # noqa: E501
        WORDS,
    ),
    "xxd, words in the gutter": (
        """\
00000000: 6361 6665 2062 6565 6620 6162 6364 2030  cafe beef abcd 0
00000010: 3132 3320 6465 6164 2062 6565 6620 3435  123 dead beef 45
00000020: 3637 2030 3020 3131 2032 3220 6566       67 00 11 22 ef
""",
        WORDS,
    ),
    "xxd -g0": (
        """\
00000000: 63616665206265656620616263642030  cafe beef abcd 0
00000010: 31323320646561642062656566203435  123 dead beef 45
00000020: 3637203030203131203232206566      67 00 11 22 ef
""",
        WORDS,
    ),
    "xxd -c 8 -g1": (
        """\
00000000: 63 61 66 65 20 62 65 65  cafe bee
00000008: 66 20 61 62 63 64 20 30  f abcd 0
00000010: 31 32 33 20 64 65 61 64  123 dead
00000018: 20 62 65 65 66 20 34 35   beef 45
00000020: 36 37 20 30 30 20 31 31  67 00 11
00000028: 20 32 32 20 65 66         22 ef
""",
        WORDS,
    ),
    "xxd -s 5": (
        """\
00000005: 0000 0808 0632 0408 0110 000e 01c6 33c1  .....2........3.
00000015: 9500 0000 0a0a 0170 1000 18e8 0748 0568  .......p.....H.h
00000025: 656c 6c6f                                ello
""",
        SEND[5:],
    ),
    "xxd -a": (
        """\
00000000: e807 4805 6865 6c6c 6f00 0000 0000 0000  ..H.hello.......
00000010: 0000 0000 0000 0000 0000 0000 0000 0000  ................
*
000000d0: 0000 0000 0900 0000 0508 1292 0100       ..............
""",
        SEND[32:] + bytes(200) + PING,
    ),
    "hexdump -C": (
        """\
00000000  00 00 00 09 00 00 00 05  08 12 92 01 00           |.............|
0000000d
""",
        PING,
    ),
    "hexdump -C, repeated lines": (
        """\
00000000  00 00 00 25 00 00 00 08  08 06 32 04 08 01 10 00  |...%......2.....|
00000010  0e 01 c6 33 c1 95 00 00  00 0a 0a 01 70 10 00 18  |...3........p...|
00000020  e8 07 48 05 68 65 6c 6c  6f 00 00 00 00 00 00 00  |..H.hello.......|
00000030  00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00  |................|
*
000000f0  00 00 00 00 09 00 00 00  05 08 12 92 01 00        |..............|
000000fe
""",
        SEND + bytes(200) + PING,
    ),
    "hexdump -C, repeated to the end": (
        """\
00000000  61 62 63 64 61 62 63 64  61 62 63 64 61 62 63 64  |abcdabcdabcdabcd|
*
00000040
""",
        b"abcd" * 16,
    ),
    "hexdump -C, words in the gutter": (
        """\
00000000  63 61 66 65 20 62 65 65  66 20 61 62 63 64 20 30  |cafe beef abcd 0|
00000010  31 32 33 20 64 65 61 64  20 62 65 65 66 20 34 35  |123 dead beef 45|
00000020  36 37 20 30 30 20 31 31  20 32 32 20 65 66        |67 00 11 22 ef|
0000002e
""",
        WORDS,
    ),
    "hexdump -C, cut before its end": (
        """\
00000000  63 61 66 65 20 62 65 65  66 20 61 62 63 64 20 30  |cafe beef abcd 0|
00000010  31 32 33 20 64 65 61 64                           |123 dead|
""",
        WORDS[:24],
    ),
    "Wireshark, hex and ASCII": (
        """\
0000   63 61 66 65 20 62 65 65 66 20 61 62 63 64 20 30   cafe beef abcd 0
0010   31 32 33 20 64 65 61 64 20 62 65 65 66 20 34 35   123 dead beef 45
0020   36 37 20 30 30 20 31 31 20 32 32 20 65 66         67 00 11 22 ef
""",
        WORDS,
    ),
    "Wireshark, hex": (
        """\
0000   00 00 00 25 00 00 00 08 08 06 32 04 08 01 10 00
0010   0e 01 c6 33 c1 95 00 00 00 0a 0a 01 70 10 00 18
0020   e8 07 48 05 68 65 6c 6c 6f
""",
        SEND,
    ),
    "Wireshark, some rows from the middle": (
        """\
0010   0e 01 c6 33 c1 95 00 00 00 0a 0a 01 70 10 00 18   ...3........p...
0020   e8 07 48 05 68 65 6c 6c 6f                        ..H.hello
""",
        SEND[16:],
    ),
    "Wireshark, hex stream": (SEND.hex(), SEND),
    "Wireshark, escaped string": (
        r""""\x00\x00\x00\x25\x00\x00\x00\x08\x08\x06\x32\x04\x08\x01\x10\x00" \
"\x0e\x01\xc6\x33\xc1\x95\x00\x00\x00\x0a\x0a\x01\x70\x10\x00\x18" \
"\xe8\x07\x48\x05\x68\x65\x6c\x6c\x6f"
""",
        SEND,
    ),
    "Wireshark, C array": (
        """\
static const unsigned char pkt1[13] = {
0x00, 0x00, 0x00, 0x09, 0x00, 0x00, 0x00, 0x05, /* ........ */
0x08, 0x12, 0x92, 0x01, 0x00 /* ..... */
};
""",
        PING,
    ),
    "colons": ("00:00:00:09:00:00:00:05:08:12:92:01:00", PING),
    "four bytes": ("00:00:00:09", PING[:4]),
    "dashes": ("00-00-00-09-00-00-00-05-08-12-92-01-00", PING),
    "commas and prefixes": ("0x00, 0x00,0x00,0x09, 0x0, 0x00,\n0x00 0X05 0x08 0x12 0x92 0x01 0x00", PING),
    "any white space": ("  00 000009\t0000\n\n0005  08\n12\u00a092 01 00", PING),
    "wrapped inside a byte": ("0000000\n900000005081\n2920100\n", PING),
    "decimal digits alone": ("61" * 30, b"a" * 30),
    "Python bytes": (repr(SEND), SEND),
    "Python bytes after a name": (f"frame = {SEND!r}  # it's a SEND", SEND),
    "Python bytes in parentheses": (
        r"""
        SEND = (
            b"\0\0\0%\x00\x00\x00\b\b\x062\x04\b\x01\x10\x00"  # sizes, command
            b'\x0e\x01\xc63\xc1\x95\x00\x00\x00\n\n\x01p\x10\x00\x18\xe8\x07H'
            b"\005hello"
        )
        """,
        SEND,
    ),
    "Python's prompt": (
        '>>> frame\nb"\\x00\\x00\\x00\\t\\x00\\x00\\x00\\x05\\x08\\x12\\x92\\x01\\x00"',
        PING,
    ),
    "Go": (
        "ping := []byte{0x0, 0x0, 0x0, 0x9, 0x0, 0x0, 0x0, 0x5, 0x8, 0x12, 0x92, 0x1, 0x0} // 13 bytes",
        PING,
    ),
    "C string": (
        r'const char ping[] = "\x00\x00\x00\t\x00\x00\x00\005\x08\022\x92\x01" "\0";',
        PING,
    ),
    "comments and prompts": (
        """\
# 00 01 02 what the broker got
$ xxd -p ping.bin
00000009 // 01 02
000000050812920100 # PING
""",
        PING,
    ),
}

TCPDUMP_X = """\
22:13:20.123456 IP 10.0.0.2.50000 > 10.0.0.3.6650: Flags [P.], seq 1:14, ack 1, win 8192, length 13
\t0x0000:  4500 0035 0001 0000 4006 66be 0a00 0002
\t0x0010:  0a00 0003 c350 19fa 0000 0001 0000 0001
\t0x0020:  5018 2000 044d 0000 0000 0009 0000 0005
\t0x0030:  0812 9201 00
22:13:20.223457 IP 10.0.0.2.50000 > 10.0.0.3.6650: Flags [P.], seq 13:54, ack 1, win 8192, length 41
\t0x0000:  4500 0051 0002 0000 4006 66a1 0a00 0002
\t0x0010:  0a00 0003 c350 19fa 0000 000e 0000 0001
\t0x0020:  5018 2000 c82f 0000 0000 0025 0000 0008
\t0x0030:  0806 3204 0801 1000 0e01 c633 c195 0000
\t0x0040:  000a 0a01 7010 0018 e807 4805 6865 6c6c
\t0x0050:  6f
"""

TCPDUMP_BIG_X = """\
22:13:20.123456 IP 10.0.0.2.50000 > 10.0.0.3.6650: Flags [P.], seq 1:14, ack 1, win 8192, length 13
\t0x0000:  4500 0035 0001 0000 4006 66be 0a00 0002  E..5....@.f.....
\t0x0010:  0a00 0003 c350 19fa 0000 0001 0000 0001  .....P..........
\t0x0020:  5018 2000 044d 0000 0000 0009 0000 0005  P....M..........
\t0x0030:  0812 9201 00                             .....
22:13:20.223457 IP 10.0.0.2.50000 > 10.0.0.3.6650: Flags [P.], seq 13:54, ack 1, win 8192, length 41
\t0x0000:  4500 0051 0002 0000 4006 66a1 0a00 0002  E..Q....@.f.....
\t0x0010:  0a00 0003 c350 19fa 0000 000e 0000 0001  .....P..........
\t0x0020:  5018 2000 c82f 0000 0000 0025 0000 0008  P..../.....%....
\t0x0030:  0806 3204 0801 1000 0e01 c633 c195 0000  ..2........3....
\t0x0040:  000a 0a01 7010 0018 e807 4805 6865 6c6c  ....p.....H.hell
\t0x0050:  6f                                       o
"""

TCPDUMP_XX = """\
22:13:20.123456 IP 10.0.0.2.50000 > 10.0.0.3.6650: Flags [P.], seq 1:14, ack 1, win 8192, length 13
\t0x0000:  0242 ac11 0003 0242 ac11 0002 0800 4500
\t0x0010:  0035 0001 0000 4006 66be 0a00 0002 0a00
\t0x0020:  0003 c350 19fa 0000 0001 0000 0001 5018
\t0x0030:  2000 044d 0000 0000 0009 0000 0005 0812
\t0x0040:  9201 00
22:13:20.223457 IP 10.0.0.2.50000 > 10.0.0.3.6650: Flags [P.], seq 13:54, ack 1, win 8192, length 41
\t0x0000:  0242 ac11 0003 0242 ac11 0002 0800 4500
\t0x0010:  0051 0002 0000 4006 66a1 0a00 0002 0a00
\t0x0020:  0003 c350 19fa 0000 000e 0000 0001 5018
\t0x0030:  2000 c82f 0000 0000 0025 0000 0008 0806
\t0x0040:  3204 0801 1000 0e01 c633 c195 0000 000a
\t0x0050:  0a01 7010 0018 e807 4805 6865 6c6c 6f
"""

TCPDUMP_BIG_XX = """\
1700000000.123456000 02:42:ac:11:00:02 > 02:42:ac:11:00:03, ethertype IPv4 (0x0800), length 67: 10.0.0.2.50000 > 10.0.0.3.6650: Flags [P.], seq 1:14, ack 1, win 8192, length 13
\t0x0000:  0242 ac11 0003 0242 ac11 0002 0800 4500  .B.....B......E.
\t0x0010:  0035 0001 0000 4006 66be 0a00 0002 0a00  .5....@.f.......
\t0x0020:  0003 c350 19fa 0000 0001 0000 0001 5018  ...P..........P.
\t0x0030:  2000 044d 0000 0000 0009 0000 0005 0812  ...M............
\t0x0040:  9201 00                                  ...
1700000000.223457000 02:42:ac:11:00:02 > 02:42:ac:11:00:03, ethertype IPv4 (0x0800), length 95: 10.0.0.2.50000 > 10.0.0.3.6650: Flags [P.], seq 13:54, ack 1, win 8192, length 41
\t0x0000:  0242 ac11 0003 0242 ac11 0002 0800 4500  .B.....B......E.
\t0x0010:  0051 0002 0000 4006 66a1 0a00 0002 0a00  .Q....@.f.......
\t0x0020:  0003 c350 19fa 0000 000e 0000 0001 5018  ...P..........P.
\t0x0030:  2000 c82f 0000 0000 0025 0000 0008 0806  .../.....%......
\t0x0040:  3204 0801 1000 0e01 c633 c195 0000 000a  2........3......
\t0x0050:  0a01 7010 0018 e807 4805 6865 6c6c 6f    ..p.....H.hello
"""  # noqa: E501

TSHARK_X = """\
0000  02 42 ac 11 00 03 02 42 ac 11 00 02 08 00 45 00   .B.....B......E.
0010  00 35 00 01 00 00 40 06 66 be 0a 00 00 02 0a 00   .5....@.f.......
0020  00 03 c3 50 19 fa 00 00 00 01 00 00 00 01 50 18   ...P..........P.
0030  20 00 04 4d 00 00 00 00 00 09 00 00 00 05 08 12    ..M............
0040  92 01 00                                          ...

0000  02 42 ac 11 00 03 02 42 ac 11 00 02 08 00 45 00   .B.....B......E.
0010  00 51 00 02 00 00 40 06 66 a1 0a 00 00 02 0a 00   .Q....@.f.......
0020  00 03 c3 50 19 fa 00 00 00 0e 00 00 00 01 50 18   ...P..........P.
0030  20 00 c8 2f 00 00 00 00 00 25 00 00 00 08 08 06    ../.....%......
0040  32 04 08 01 10 00 0e 01 c6 33 c1 95 00 00 00 0a   2........3......
0050  0a 01 70 10 00 18 e8 07 48 05 68 65 6c 6c 6f      ..p.....H.hello

"""

DAY = (22 * 3600 + 13 * 60 + 20) * 10**9
"""22:13:20 in ns since midnight."""
EPOCH = 1_700_000_000 * 10**9


def two(link: str, start: int | None) -> list[Dump]:
    """Both packets, their times counted from `start`."""
    header = b"" if link == "ip" else ETHERNET
    times = (None, None) if start is None else (start + 123_456_000, start + 223_457_000)
    return [Dump(header + IP_PING, times[0], link), Dump(header + IP_SEND, times[1], link)]


MANY: dict[str, tuple[str, list[Dump]]] = {
    "tcpdump -x": (TCPDUMP_X, two("ip", DAY)),
    "tcpdump -X": (TCPDUMP_BIG_X, two("ip", DAY)),
    "tcpdump -xx": (TCPDUMP_XX, two("ethernet", DAY)),
    "tcpdump -XX -e -tt --nano": (TCPDUMP_BIG_XX, two("ethernet", EPOCH)),
    "tcpdump -x -tt": (TCPDUMP_X.replace("22:13:20.", "1700000000."), two("ip", EPOCH)),
    "tcpdump -X -tttt": (TCPDUMP_BIG_X.replace("22:13:20.", "2023-11-14 22:13:20."), two("ip", EPOCH)),
    "tcpdump -x -ttt": (TCPDUMP_X.replace("22:13:20.", " 00:00:00."), two("ip", None)),
    "tcpdump -x -t": (
        TCPDUMP_X.replace("22:13:20.123456 ", "").replace("22:13:20.223457 ", ""),
        two("ip", None),
    ),
    "tcpdump -x -v": (
        TCPDUMP_X.replace("IP ", "IP (tos 0x0, ttl 64, id 1, offset 0, flags [none], length 53)\n    "),
        two("ip", DAY),
    ),
    "tcpdump, a date that is none": (
        TCPDUMP_X.replace("22:13:20.", "2023-02-31 22:13:20."),
        two("ip", None),
    ),
    "tcpdump -x of IPv6": (
        """\
22:13:20.500000 IP6 fd00::2.50000 > fd00::3.6650: Flags [P.], seq 1:14, ack 1, win 8192, length 13
\t0x0000:  6000 0000 0021 0640 fd00 0000 0000 0000
\t0x0010:  0000 0000 0000 0002 fd00 0000 0000 0000
\t0x0020:  0000 0000 0000 0003 c350 19fa 0000 0001
\t0x0030:  0000 0001 5018 2000 1e4b 0000 0000 0009
\t0x0040:  0000 0005 0812 9201 00
""",
        [
            Dump(
                bytes.fromhex(
                    "6000000000210640 fd000000000000000000000000000002 fd000000000000000000000000000003"
                    "c35019fa0000000100000001501820001e4b0000"
                )
                + PING,
                DAY + 500_000_000,
                "ip",
            )
        ],
    ),
    "tcpdump -xx of IPv6, cut": (
        """\
22:13:20.500000 IP6 fd00::2.50000 > fd00::3.6650: Flags [P.], seq 1:14, ack 1, win 8192, length 13
\t0x0000:  0242 ac11 0003 0242 ac11 0002 86dd 6000
\t0x0010:  0000 0021 0640 fd00 0000 0000 0000 0000
\t0x0020:  0000 0000 0002 fd00 0000 0000 0000 0000
""",
        [
            Dump(
                bytes.fromhex(
                    "0242ac1100030242ac11000286dd 6000000000210640 fd000000000000000000000000000002"
                )
                + bytes.fromhex("fd000000000000000000"),
                DAY + 500_000_000,
                "ethernet",
            )
        ],
    ),
    "tcpdump -xx on any interface": (
        """\
1795196433.568249 lo    In  IP 127.0.0.1.58850 > 127.0.0.1.8650: Flags [S], seq 3709867465, length 0
\t0x0000:  0800 0000 0000 0001 0304 0006 0000 0000
\t0x0010:  0000 0000 4500 003c f97d 4000 4006 433c
""",
        [
            Dump(
                bytes.fromhex("0800000000000001030400060000000000000000 4500003cf97d40004006433c"),
                1_795_196_433_568_249_000,
                "",
            )
        ],
    ),
    "tshark -x": (
        TSHARK_X,
        [Dump(ETHERNET + IP_PING, None, ""), Dump(ETHERNET + IP_SEND, None, "")],
    ),
    "tshark --hexdump noascii": (
        "0000  00 00 00 09 00 00 00 05 08 12 92 01 00   \n\n0000  08 12   \n\n",
        [Dump(PING, None, ""), Dump(PING[8:10], None, "")],
    ),
    "tshark --hexdump delimit": (
        "0000  00 00 00 09 00 00 00 05 08 12 92 01 00            |.............|\n",
        [Dump(PING, None, "")],
    ),
}

ALL = [
    *(pytest.param(text, [Dump(data, None, "")], id=name) for name, (text, data) in ONE.items()),
    *(pytest.param(text, packets, id=name) for name, (text, packets) in MANY.items()),
]


def parsed(text: str, size: int = 1 << 30) -> list[Dump]:
    """What a text shows that comes in chunks of `size` bytes."""
    data = text.encode("utf-8", "replace")
    for parse in (parse_rows, parse_bytes_literals, parse_strings, parse_hex_digits):
        dumps = list(parse(split_lines(data[at : at + size] for at in range(0, len(data), size))))
        if any(dumped.data for dumped in dumps):
            return dumps
    raise CaptureError("no hex bytes")


@pytest.mark.parametrize(("text", "expected"), ALL)
def test_forms(text: str, expected: list[Dump]) -> None:
    assert parsed(text) == expected


@pytest.mark.parametrize(("text", "expected"), ALL)
def test_windows_line_ends_and_a_byte_order_mark(text: str, expected: list[Dump]) -> None:
    assert parsed("\ufeff" + text.replace("\n", "\r\n")) == expected


@pytest.mark.parametrize(
    "text", [ONE["xxd, words in the gutter"][0], ONE["Wireshark, hex and ASCII"][0], TCPDUMP_BIG_X]
)
def test_a_tab_before_the_gutter(text: str) -> None:
    lines = text.splitlines()
    changed = [
        line[:start] + "\t".join(part for part in line[start:].split("  ") if part)
        for line in lines
        for start in [line.find(" ") + 3]
    ]
    assert [item.data for item in parsed("\n".join(changed))] == [item.data for item in parsed(text)]


@pytest.mark.parametrize(
    "head",
    [
        bytes.fromhex("d4c3b2a1020004000000000000000000"),
        bytes.fromhex("0a0d0d0a1c0000004d3c2b1a01000000"),
        bytes.fromhex("1f8b0800000000000003"),
        bytes.fromhex("28b52ffd0458"),
        PING,
        SEND,
    ],
)
def test_bytes_are_no_text(head: bytes) -> None:
    assert not is_text(head)


@pytest.mark.parametrize(
    "text",
    [
        b"\n\n",
        b'{"a": 1, "b": "00:00:00:09"}',
        b"[10, 20, 30, 40, 50]",
        b"[\n  10,\n  20,\n  30,\n  40\n]\n",
        b'["00", "09", "18"]',
        b"a,b,c\n1,2,3\n4,5,6\n",
        b"10,20,30\n40,50,60\n",
        b"2026-11-20,17:46:57,12\n2026-11-20,17:46:58,13\n",
        b"1234\n5678\n9012\n",
        b"1700000000123456\n",
        b"It was a bad day at the cafe: the beef was dead.\n\nAdd a bead.\n" * 20,
        b"Added\nface\nDead\n",
        b"8080: 80\n6650: 66\n",
        b"he said 'hello', and \"x\" too",
        b"<html><body>0000</body></html>",
        "\u00e4\u00f6\u00fc\n".encode(),
        "00 00 00 09\n".encode("utf-16"),
    ],
)
def test_what_yields_no_frame_is_an_error(text: bytes) -> None:
    with pytest.raises(CaptureError, match="neither a capture"):
        list(read_events(io.BytesIO(text)))


# ---- Refusals ----


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing\nhere\n", "no hex bytes"),
        ("b''", "no hex bytes"),
        ("00 00 00 9 00", "line 1: '9' has an odd number"),
        ("00 00\n00 0", "line 2: an odd number"),
        ("00 00\n00 00 00 0g 00", "line 2: '0g' is not hex"),
        ("00000000: 0000 0025\n00000010: 0000 0008\n", "line 1: .* offset 0x10 of line 2"),
        ("00000000: 0000 0025 0000 0008\n00000004: 0000 0008\n", "line 1: .* offset 0x4 of line 2"),
        ("00000010: 0000 0025\n00000008: 0000 0008\n", "line 2: the offset 0x8 does not come after 0x10"),
        ("00000000  00 00 00 09\n00000005\n", "line 1: .* offset 0x5 of line 2"),
        ("00000000  00 00\n00000002\n00000008  00\n", "line 3: the offset is 0x8, expected 0x2"),
        ("00000000  00 00 00 09\n*\n", "line 1: no offset after"),
        ("00000000  00 00 00 09\n*\n00000003\n", "line 1: has more bytes"),
        ("00000000  00 00 00 09\n*\nffffffff\n", "line 1: repeats to more than"),
        ("00000000: 0000 00zz\n00000010: 0000 0025\n", "line 1: cannot find this row's bytes"),
        ("00000000: 0000\n00000002: 0000 00 what\n", "line 2: cannot find this row's bytes"),
        ("00000000: 6361 6665 2062 6565 cafe bee\n00000008: 66\n", "line 1: cannot find this row's bytes"),
        ("000000 63 61 66 65 20 62 65 65  >cafe bee<\n000008\n", "line 1: cannot find this row's bytes"),
        ("new byte[] {0x00, 0x00, 0x00, 0x09, (byte) 0x92};", "line 1: .* is not hex"),
        ("b'\\x00\\x0'", r"line 1: \\x without two hex digits"),
        ("b'\\x00\\400'", r"line 1: \\400 is more than a byte"),
        ("b'\\x00'\nb'\\x00", "line 2: the string is not closed"),
        ("b'\\x00\u00e4'", "line 1: .* ASCII"),
        ("b'\\\u00e4'", "line 1: .* ASCII"),
    ],
)
def test_refusals_name_the_line(text: str, message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        parsed(text)


@pytest.mark.parametrize(("text", "expected"), ALL)
@pytest.mark.parametrize("size", [1, 7, 100])
def test_any_chunks_give_the_same(text: str, expected: list[Dump], size: int) -> None:
    assert parsed(text, size) == expected


LONG: dict[str, Callable[[bytes], str]] = {
    "one line": bytes.hex,
    "spaces": lambda data: data.hex(" "),
    "commas": lambda data: data.hex(","),
    "escapes": lambda data: "\\x" + data.hex(" ").replace(" ", "\\x"),
    "lines": lambda data: data.hex("\n"),
    "rows": lambda data: xxd(data, 16, 2),
}


@pytest.mark.parametrize("write", LONG.values(), ids=LONG)
def test_a_long_dump_comes_in_pieces(write: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch) -> None:
    size = PIECE // 8
    for module in (hex_digits, hex_dump):
        monkeypatch.setattr(module, "PIECE", size)
    data = random.Random(7).randbytes(size + 4321)
    found = parsed(write(data), size // 4)
    assert len(found) > 1
    assert b"".join(each.data for each in found) == data
    assert [each.more for each in found] == [True] * (len(found) - 1) + [False]
    assert max(len(each.data) for each in found) < 2 * size


def test_a_line_that_is_needed_as_a_whole_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE", 100_000)
    with pytest.raises(CaptureError, match="line 2 has more than 100000 characters"):
        parsed("data = (\nb'" + "\\x00" * 50_000 + "')", 10_000)


def test_binary_digits_of_xxd_b_are_refused() -> None:
    text = """\
00000000: 00000000 00000000 00000000 00001001 00000000 00000000  ......
00000006: 00000000 00000101 00001000 00010010 10010010 00000001  ......
0000000c: 00000000                                               .
"""
    with pytest.raises(CaptureError, match="line 1"):
        parsed(text)


def test_words_of_xxd_e_are_refused() -> None:
    text = """\
00000000: 25000000 08000000 04320608 00100108  ...%......2.....
00000010: 33c6010e 000095c1 010a0a00 18001070  ...3........p...
00000020: 054807e8 6c6c6568       6f           ..H.hello
"""
    with pytest.raises(CaptureError, match=r"line 1: the ASCII column does not show.*`xxd -e`.*`xxd`"):
        parsed(text)


@pytest.mark.parametrize("gutter", ["|cafe ||", "cafe |", "cafe.|", "  cafe |"])
def test_the_ascii_column_has_to_show_the_bytes(gutter: str) -> None:
    row = "00000000: 6361 6665 207c  "
    for said in (gutter, gutter.replace("f", "."), f"{gutter}, as a comment says"):
        assert parsed(row + said)[0].data == b"cafe |"
    with pytest.raises(CaptureError, match="line 1: the ASCII column"):
        parsed(row + gutter.replace("f", "x"))


def test_a_repeat_may_end_in_a_part_of_its_row() -> None:
    text = "00000000  00 01 02 03 04 05 06 07  08 09 0a 0b 0c 0d 0e 0f  |................|\n*\n00000014\n"
    assert parsed(text)[0].data == bytes([*range(16), *range(4)])


def test_repeats_are_capped_over_all_dumps() -> None:
    for row, most in (("00", MAX_ZEROS), ("00 01", MAX_REPEATED)):
        one = f"00000000  {row}\n*\n{most // 2:08x}\n"
        assert sum(len(item.data) for item in parsed(one * 2)) == most
        with pytest.raises(CaptureError, match=f"line 7: repeats to more than {most}"):
            parsed(one * 3)


# ---- Any bytes, any text ----


def gutter(data: bytes) -> str:
    return "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in data)


def xxd(data: bytes, columns: int, group: int) -> str:
    width = 2 * columns + -(-columns // group) + 1
    rows = [data[start : start + columns] for start in range(0, len(data), columns)]
    return "".join(
        f"{number * columns:08x}: {row.hex(' ', -group):{width}}{gutter(row)}\n"
        for number, row in enumerate(rows)
    )


def hexdump_c(data: bytes) -> str:
    lines: list[str] = []
    before = b""
    for start in range(0, len(data), 16):
        row = data[start : start + 16]
        if row == before and len(row) == 16:
            if lines[-1] != "*":
                lines.append("*")
            continue
        digits = f"{row[:8].hex(' '):23}  {row[8:].hex(' '):23}"
        lines.append(f"{start:08x}  {digits}  |{gutter(row)}|")
        before = row
    return "\n".join([*lines, f"{len(data):08x}", ""])


def tshark(data: bytes) -> str:
    rows = [(start, data[start : start + 16]) for start in range(0, len(data), 16)]
    return "".join(f"{start:04x}  {row.hex(' '):47}   {gutter(row)}\n" for start, row in rows)


def tcpdump(data: bytes) -> str:
    rows = [(start, data[start : start + 16]) for start in range(0, len(data), 16)]
    shown = [(start, row.hex(" ", -2), gutter(row).replace(" ", ".")) for start, row in rows]
    return "IP 10.0.0.2.50000\n" + "".join(
        f"\t0x{start:04x}:  {row:39}  {text}\n" for start, row, text in shown
    )


def array(data: bytes) -> str:
    return "[]byte{" + ", ".join(f"0x{byte:x}" for byte in data) + "}"


RENDERERS: list[Callable[[bytes], str]] = [
    *(
        lambda data, columns=columns, group=group: xxd(data, columns, group)
        for columns, group in [(16, 2), (16, 1), (8, 1), (32, 2), (16, 4), (30, 30), (7, 2)]
    ),
    hexdump_c,
    tshark,
    tcpdump,
    array,
    bytes.hex,
    lambda data: data.hex(" "),
    lambda data: data.hex(":").upper(),
    lambda data: data.hex("\n", 20),
    lambda data: ", ".join(f"0x{byte:02x}" for byte in data),
    lambda data: '"' + "".join(f"\\x{byte:02x}" for byte in data) + '"',
    repr,
]
RUNS = st.lists(st.tuples(st.binary(min_size=1, max_size=20), st.integers(1, 40)), min_size=1, max_size=4)
DATA = st.one_of(
    st.binary(min_size=1, max_size=200),
    st.text("0123456789abcdef .|", min_size=1, max_size=100).map(str.encode),
    RUNS.map(lambda runs: b"".join(piece * times for piece, times in runs)),
)


@pytest.mark.parametrize("render", RENDERERS)
@given(data=DATA)
@example(data=PING)
@example(data=SEND)
@example(data=WORDS)
@example(data=b"ab cd ef")
@example(data=b"\x00" * 8 + b"ab cd ef")
@example(data=bytes(64))
def test_what_was_rendered_is_read(render: Callable[[bytes], str], data: bytes) -> None:
    text = render(b"\0" + data)
    assert [item.data for item in parsed(text)] == [b"\0" + data]


@given(st.lists(st.binary(min_size=1, max_size=80), min_size=1, max_size=5))
def test_packets_stay_apart(packets: list[bytes]) -> None:
    for render in (tcpdump, tshark, hexdump_c):
        assert [item.data for item in parsed("\n".join(map(render, packets)))] == packets


PIECES = st.sampled_from(
    [
        *(
            "0x",
            "\\x",
            "b'",
            '"',
            "\\",
            "{",
            "}",
            "/*",
            "*/",
            "*",
            "*\n",
            "\n",
            "\r\n",
            "\t",
            " ",
            "  ",
            "|",
            ":",
        ),
        *(
            "00",
            "0000",
            "00000000",
            "00000000:",
            "0x0010:",
            "00000010  ",
            "ffffffffffffffff:",
            "cafe",
            "é",
            "9",
        ),
        *("Frame (13 bytes):\n", "2023-02-31 22:13:20.123456 IP", "99:99:99.999999 ", "#", "//", "(byte)"),
    ]
)
TEXT = st.one_of(
    st.text(), st.lists(PIECES).map("".join), st.sampled_from(ALL).map(lambda sample: str(sample.values[0]))
)


@given(TEXT, TEXT)
@example("00000000: 00\n*\nffffffffffffffff: 00", "")
def test_no_text_raises_anything_else(text: str, more: str) -> None:
    with contextlib.suppress(CaptureError):
        assert parsed(text + more)


@given(st.binary(max_size=4096))
def test_no_bytes_raise(head: bytes) -> None:
    is_text(head)


SHARE = 0.2
LONG_TEXT = int(SHARE * 10**6)


@pytest.mark.parametrize(
    "text",
    [
        "0x" * (LONG_TEXT // 2),
        "0x00" * (LONG_TEXT // 4),
        "a" * LONG_TEXT,
        "a" * LONG_TEXT + "z",
        "00 " * (LONG_TEXT // 3) + "z",
        " " * LONG_TEXT + "z",
        "\n" * LONG_TEXT,
        "\\x00" * (LONG_TEXT // 4),
        '"' + '\\"' * (LONG_TEXT // 2),
        "b'" * (LONG_TEXT // 2),
        "b'\\x00' " * (LONG_TEXT // 8),
        "b'" + "\\x00" * (LONG_TEXT // 4),
        "=" * LONG_TEXT + "b'",
        "00000000: " + "00 " * (LONG_TEXT // 3) + "z",
        "00000000: " + "0" * LONG_TEXT,
        "00000000: " + "00" + " " * LONG_TEXT + "00",
        "00000000: 00\n" * (LONG_TEXT // 13),
        "00000000  00\n*\n" * (LONG_TEXT // 15),
        "00000000  00\n*\n00001000\n" * (LONG_TEXT // 24),
        "0000 00\n" * (LONG_TEXT // 8),
        "A" + " (1 bytes" * (LONG_TEXT // 9),
        "/*" * (LONG_TEXT // 2),
        "{" * LONG_TEXT,
        "(byte" * (LONG_TEXT // 5),
        "Frame (1 bytes):\n" * (LONG_TEXT // 17) + "0000 00",
        xxd(bytes(LONG_TEXT // 4), 16, 2),
        hexdump_c(bytes(range(256)) * 200),
    ],
    ids=lambda text: repr(text[:24]),
)
def test_a_part_of_a_megabyte_takes_a_part_of_the_seconds(text: str) -> None:
    """What takes time by the square of a text's length would take minutes."""
    start = time.process_time()
    with contextlib.suppress(CaptureError):
        list(read_events(io.BytesIO(text.encode())))
    assert time.process_time() - start < 10 * SHARE
