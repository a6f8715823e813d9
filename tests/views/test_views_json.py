"""The JSON view: numbers keep their values, and nothing it shows cannot be written again."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from view_samples import schema

from pulsarctl_wire.views import Content, Shown, show


def shown(payload: bytes) -> Shown:
    return show(Content(payload, schema("Json")))


@pytest.mark.parametrize(
    ("payload", "value"),
    [
        (b"null", None),
        (b" [1, 2.5, true]\n", [1, 2.5, True]),
        (b'"\xc3\xa9"', "é"),
        (b"18446744073709551615", 2**64 - 1),
        (b"18446744073709551616", "18446744073709551616"),
        (b"-9223372036854775808", -(2**63)),
        (b"-9223372036854775809", "-9223372036854775809"),
        (b"1e999", "1e999"),
        (b"[-1e999, 1e-999]", ["-1e999", 0.0]),
        (b"[NaN, Infinity, -Infinity]", ["NaN", "Infinity", "-Infinity"]),
        (b'"\\ud83d\\ude00"', "\N{GRINNING FACE}"),
        (b'{"\\uD800": "\\udfff"}', {"\\ud800": "\\udfff"}),
        (b'{"a": 1, "a": 2}', {"a": 2}),
        (b"[" * 64 + b"]" * 64, orjson.loads(b"[" * 64 + b"]" * 64)),
        (b"[" + b"[]," * 100 + b"0]", [[]] * 100 + [0]),
    ],
)
def test_values(payload: bytes, value: Any) -> None:
    assert shown(payload) == Shown("json", value)
    orjson.dumps(shown(payload).value)


@pytest.mark.parametrize(
    ("payload", "part"),
    [
        (b"", "Expecting value"),
        (b"{'a': 1}", "Expecting property name"),
        (b"[" * 65 + b"]" * 65, "nested deeper than 64"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "nested deeper than 64"),
        (b"[" * 99_000, "nested too deep"),
        (b"[" * 1_000_000, "more than 100000 values"),
        (b"[" + b"0," * 100_000 + b"0]", "more than 100000 values"),
        (b"[" + b"[]," * 60_000 + b"0]", "more than 100000 values"),
    ],
)
def test_what_cannot_be_shown_is_text_with_a_note(payload: bytes, part: str) -> None:
    fallback = shown(payload)
    assert (fallback.view, fallback.value) == ("text", payload.decode())
    assert fallback.note is not None
    assert part in fallback.note


def test_a_number_of_a_million_digits_stays_digits() -> None:
    digits = b"7" * 1_000_000
    assert shown(digits) == Shown("json", digits.decode())
    assert shown(b"[1." + digits + b"]") == Shown("json", [1.7777777777777777])


def test_not_utf_8() -> None:
    assert shown(b'"\xff"').view == "hex"
