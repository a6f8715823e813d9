"""PROXY headers as HAProxy's specification has them: built, read, refused, however they are cut."""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pulsarctl_wire.errors import LocalProtocolError
from pulsarctl_wire.wire.framing.proxy_header import (
    UNKNOWN,
    Origin,
    ProxyHeaderError,
    build_header,
    header_size,
    parse_header,
)

SIGNATURE = bytes.fromhex("0d 0a 0d 0a 00 0d 0a 51 55 49 54 0a")
A4, B4 = ("192.168.0.1", 56324), ("192.168.0.11", 443)
A6, B6 = ("2001:db8::1", 1), ("fe80::2", 65535)
LONGEST = b"PROXY TCP6 " + b" ".join([b":".join([b"ffff"] * 8)] * 2) + b" 65535 65535\r\n"

ends = st.tuples(st.ip_addresses().map(str), st.integers(0, 65535))
versions = st.sampled_from([1, 2])
headers = (
    st.builds(build_header, versions, ends, ends)
    | st.just(b"PROXY UNKNOWN\r\n")
    | st.binary(max_size=91).map(lambda rest: b"PROXY UNKNOWN " + rest.replace(b"\n", b"") + b"\r\n")
    | st.binary(max_size=99).map(lambda rest: v2(0x20, 0x31, rest))
)


def v2(command: int, kind: int, block: bytes) -> bytes:
    return SIGNATURE + bytes([command, kind]) + len(block).to_bytes(2, "big") + block


def inet(size: int) -> bytes:
    """Addresses and ports as v2 has them: 1.1.…, 2.2.…, 258, 259."""
    return b"\x01" * size + b"\x02" * size + b"\x01\x02\x01\x03"


# ---- The bytes ----


def test_version_1() -> None:
    """The specification's own example."""
    assert build_header(1, A4, B4) == b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n"
    data = b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\nGET / HTTP/1.1\r\n"
    assert parse_header(data) == Origin(A4, B4)
    assert data[header_size(data) :] == b"GET / HTTP/1.1\r\n"


def test_version_2() -> None:
    block = bytes([192, 168, 0, 1, 192, 168, 0, 11]) + (56324).to_bytes(2, "big") + (443).to_bytes(2, "big")
    assert build_header(2, A4, B4) == v2(0x21, 0x11, block)
    block = ip_address(A6[0]).packed + ip_address(B6[0]).packed + b"\x00\x01\xff\xff"
    assert build_header(2, A6, B6) == v2(0x21, 0x21, block)
    assert parse_header(v2(0x21, 0x21, block)) == Origin(A6, B6)


@pytest.mark.parametrize("version", [1, 2])
def test_both_ends_are_of_one_family(version: int) -> None:
    header = build_header(version, A4, A6)
    if version == 1:
        mapped = "0000:0000:0000:0000:0000:ffff:c0a8:0001"
        six = "2001:0db8:0000:0000:0000:0000:0000:0001"
        assert header == f"PROXY TCP6 {mapped} {six} 56324 1\r\n".encode()
    else:
        assert header[16:32] == bytes(10) + b"\xff\xff\xc0\xa8\x00\x01"
    assert parse_header(header) == Origin(A4, A6)
    mapped_end = ("::ffff:192.168.0.1", 56324)  # what a socket for both families says
    assert build_header(version, mapped_end, B4) == build_header(version, A4, B4)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("host", ["localhost", "", "/run/socket", "256.1.1.1", "1.2.3.4\r\n"])
def test_ends_without_an_address_are_unknown(version: int, host: str) -> None:
    expected = b"PROXY UNKNOWN\r\n" if version == 1 else v2(0x21, 0, b"")
    assert build_header(version, (host, 1), B4) == expected
    assert build_header(version, A4, (host, 1)) == expected
    assert parse_header(expected) == UNKNOWN == Origin(None, None)


def test_a_zone_is_left_out() -> None:
    assert parse_header(build_header(2, ("fe80::1%eth0", 5), B6)).source == ("fe80::1", 5)


@pytest.mark.parametrize(("version", "port"), [(0, 1), (3, 1), (1, -1), (1, 65536), (2, 65536)])
def test_there_is_no_such_header(version: int, port: int) -> None:
    with pytest.raises(LocalProtocolError, match=f"version {version} .*{port}"):
        build_header(version, A4, ("1.1.1.1", port))


@given(version=versions, source=ends, target=ends, rest=st.binary(max_size=20))
@example(version=1, source=("::", 0), target=("::ffff:0:0", 0), rest=b"\n")
def test_what_is_built_is_read(
    version: int, source: tuple[str, int], target: tuple[str, int], rest: bytes
) -> None:
    header = build_header(version, source, target)
    assert header_size(header + rest) == len(header) <= 104
    for given_end, found in zip((source, target), parse_header(header + rest), strict=True):
        assert found is not None
        given_ip, found_ip = ip_address(given_end[0]), ip_address(found[0])
        mapped = given_ip.ipv4_mapped if isinstance(given_ip, IPv6Address) else None
        assert (found_ip, found[1]) == (mapped or given_ip, given_end[1])
    four = all(isinstance(ip_address(end[0]), IPv4Address) for end in parse_header(header) if end)
    assert (b"TCP4" in header or header[13:14] == b"\x11") is four


@given(header=headers, rest=st.binary(max_size=20), data=st.data())
def test_any_chunking_asks_for_the_header_and_no_more(
    header: bytes, rest: bytes, data: st.DataObject
) -> None:
    """As a shell reads: up to what is asked for, of which any part may come."""
    came = b""
    while (size := header_size(came)) > len(came):
        assert size <= len(header)
        came = (header + rest)[: data.draw(st.integers(len(came) + 1, size))]
    assert came == header
    assert header_size(header + rest) == len(header)
    assert parse_header(came) == parse_header(header + rest)
    for end in range(len(header)):
        with pytest.raises(ProxyHeaderError):
            parse_header(header[:end])


# ---- What headers say ----


@pytest.mark.parametrize(
    "line",
    [
        b"PROXY UNKNOWN",
        b"PROXY UNKNOWN ",
        b"PROXY UNKNOWN ffff::1 ffff::2 1 2",
        b"PROXY UNKNOWN \n \xff \r",
        b"PROXY UNKNOWN" + b" " * 92,
    ],
)
def test_version_1_unknown(line: bytes) -> None:
    assert parse_header(line + b"\r\n") == UNKNOWN
    assert header_size(line + b"\r\n\r\n") == len(line) + 2


def test_version_1_forms_of_addresses() -> None:
    assert parse_header(LONGEST).source == (":".join(["ffff"] * 8), 65535)
    found = parse_header(b"PROXY TCP6 2001:DB8:0::1 ::ffff:1.2.3.4 0 1\r\n")
    assert found == Origin(("2001:db8::1", 0), ("1.2.3.4", 1))


@pytest.mark.parametrize(
    ("header", "origin"),
    [
        (v2(0x20, 0x00, b""), UNKNOWN),
        (v2(0x20, 0x11, inet(4)), UNKNOWN),  # LOCAL: the family is ignored
        (v2(0x20, 0xFF, b"?"), UNKNOWN),
        (v2(0x21, 0x00, b"whatever"), UNKNOWN),
        (v2(0x21, 0x10, inet(4)), UNKNOWN),
        (v2(0x21, 0x01, inet(4)), UNKNOWN),
        (v2(0x21, 0x31, bytes(216)), UNKNOWN),  # Unix sockets
        (v2(0x21, 0x32, bytes(216)), UNKNOWN),
        (v2(0x21, 0x11, inet(4)), Origin(("1.1.1.1", 258), ("2.2.2.2", 259))),
        (v2(0x21, 0x12, inet(4)), Origin(("1.1.1.1", 258), ("2.2.2.2", 259))),
        (v2(0x21, 0x22, inet(16)), Origin(("101:" * 7 + "101", 258), ("202:" * 7 + "202", 259))),
        (v2(0x21, 0x11, inet(4) + b"\x04\x00\x01\x00"), Origin(("1.1.1.1", 258), ("2.2.2.2", 259))),
        (v2(0x21, 0x11, inet(4) + bytes(65_523)), Origin(("1.1.1.1", 258), ("2.2.2.2", 259))),
        (v2(0x21, 0x11, inet(4) + b"no TLV"), Origin(("1.1.1.1", 258), ("2.2.2.2", 259))),
    ],
)
def test_version_2_forms(header: bytes, origin: Origin) -> None:
    assert parse_header(header) == parse_header(header + b"PROXY") == origin
    assert header_size(header) == header_size(header + b"PROXY") == len(header)


# ---- What is refused ----


@pytest.mark.parametrize(
    "line",
    [
        "PROXY TCP4",
        "PROXY TCP4 1.1.1.1 2.2.2.2 1",
        "PROXY TCP4 1.1.1.1 2.2.2.2 1 2 ",
        "PROXY TCP5 1.1.1.1 2.2.2.2 1 2",
        "PROXY TCP4 1.1.1.1  2.2.2.2 1 2",
        "PROXY  TCP4 1.1.1.1 2.2.2.2 1 2",
        "PROXY UNKNOWNS",
        "PROXY unknown",
        "PROXY TCP4 1.1.1.1 2.2.2.2 01 2",
        "PROXY TCP4 1.1.1.1 2.2.2.2 1 65536",
        "PROXY TCP4 1.1.1.1 2.2.2.2 -1 2",
        "PROXY TCP4 01.1.1.1 2.2.2.2 1 2",
        "PROXY TCP4 1.1.1 2.2.2.2 1 2",
        "PROXY TCP4 1.1.1.256 2.2.2.2 1 2",
        "PROXY TCP4 ::1 ::2 1 2",
        "PROXY TCP6 1.1.1.1 2.2.2.2 1 2",
        "PROXY TCP6 ::1 1.1.1.1 1 2",
        "PROXY TCP6 fe80::1%\x1b[31m ::2 1 2",
        "PROXY TCP6 ::1::2 ::3 1 2",
        "PROXY TCP6 1:2:3 ::3 1 2",
        "PROXY TCP4 1.1.1.1 2.2.2.2 1 2\n",
        "PROXY TCP4 1.1.1.1 2.2.2.2 1 \xb2",
        "PROXY TCP4 1.1.1.\xb2 2.2.2.2 1 2",
        "PROXY TCP4\t1.1.1.1 2.2.2.2 1 2",
        "PROXY TCP4 localhost localhost 1 2",
        "PROXY \x1b[2J\x00\x9b",
    ],
)
def test_version_1_to_the_letter(line: str) -> None:
    data = line.encode("latin-1") + b"\r\n"
    with pytest.raises(ProxyHeaderError, match="invalid PROXY header: PROXY") as caught:
        parse_header(data)
    assert str(caught.value).isprintable()
    assert str(caught.value).isascii()


@pytest.mark.parametrize(
    ("command", "kind", "block"),
    [
        (0x22, 0x11, inet(4)),
        (0x2F, 0x11, inet(4)),
        (0x21, 0x41, inet(4)),
        (0x21, 0xF1, inet(4)),
        (0x21, 0x13, inet(4)),
        (0x21, 0x03, b""),
        (0x21, 0x11, inet(4)[:-1]),
        (0x21, 0x21, inet(16)[:-1]),
        (0x21, 0x21, inet(4)),
        (0x21, 0x11, b""),
    ],
)
def test_version_2_that_is_wrong(command: int, kind: int, block: bytes) -> None:
    with pytest.raises(ProxyHeaderError, match=rf"invalid PROXY header: {command:02x} {kind:02x}"):
        parse_header(v2(command, kind, block) + inet(16))


@pytest.mark.parametrize("command", [0x00, 0x11, 0x31, 0xF1])
def test_other_versions(command: int) -> None:
    with pytest.raises(ProxyHeaderError, match=f"version {command >> 4}; 1 and 2"):
        header_size(SIGNATURE + bytes([command]))


@pytest.mark.parametrize(
    "line", [b"PROXY UNKNOWN".ljust(106, b" "), LONGEST[:-2].ljust(106), b"PROXY ".ljust(200)]
)
def test_a_line_without_end(line: bytes) -> None:
    for rest in (b"", b"\r", b"\r\n"):
        with pytest.raises(ProxyHeaderError, match="within 107 bytes"):
            header_size(line + rest)


@pytest.mark.parametrize("line", [b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2", b"PROXY UNKNOWN"])
@pytest.mark.parametrize("end", [b"\r", b"\n", b"\n\r", b"\r\r"])
def test_half_an_end_of_line_is_none(line: bytes, end: bytes) -> None:
    assert header_size(line + end) > len(line + end)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00\x1e",
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/1.1\r\n",
        b"PROXX",
        b"PROXYTCP4",
        b"proxy ",
        b" PROXY ",
        b"P\r\n",
        b"\r\nPROXY ",
        SIGNATURE[:11] + b"\r",
        b"\r\r\n",
    ],
)
def test_what_is_no_header(data: bytes) -> None:
    for found in (data, data + b"\r\n", data + bytes(200)):
        with pytest.raises(ProxyHeaderError, match=re.escape(data[:4].hex(" "))):
            header_size(found)


@given(
    data=st.binary(max_size=200)
    | headers.flatmap(lambda head: st.integers(0, len(head)).map(lambda at: head[:at]))
)
@example(data=b"")
def test_any_bytes_are_told_or_refused(data: bytes) -> None:
    said = ""
    try:
        size = header_size(data)
        assert 15 <= size <= 16 + 65_535
        origin = parse_header(data)
        assert size <= len(data)
        assert all(end is None or (ip_address(end[0]) and 0 <= end[1] < 65_536) for end in origin)
    except ProxyHeaderError as error:
        said = str(error)
    assert said.isprintable()
