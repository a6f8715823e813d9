"""Which view is chosen, what happens when it fails, and the views without a schema."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from datetime import date

import pytest
from view_samples import schema

from pulsarctl_wire.views import VIEWS, Content, Shown, parse_schema, show
from pulsarctl_wire.wire.PulsarApi_pb2 import Schema

NO_VIEW_OF_ITS_OWN = {"None", "AutoConsume", "External"}


@pytest.mark.parametrize(
    ("payload", "view", "value"),
    [
        (b"", "text", ""),
        (b"order 1", "text", "order 1"),
        ("déjà vu 0".encode(), "text", "déjà vu 0"),
        (b"\ttab\r\nline\x7f", "text", "\ttab\r\nline\x7f"),
        (b'{"not": "guessed"}', "text", '{"not": "guessed"}'),
        (b"\x00\x01\xfe\xff", "hex", "0001feff"),
        (b"bell \x07", "hex", "62656c6c2007"),
        (b"\x1b[31mred", "hex", "1b5b33316d726564"),
        (b"\xc3", "hex", "c3"),
        (b"\xed\xa0\x80", "hex", "eda080"),
    ],
)
@pytest.mark.parametrize("type_name", [None, *sorted(NO_VIEW_OF_ITS_OWN)])
def test_without_a_usable_schema(payload: bytes, view: str, value: str, type_name: str | None) -> None:
    given = None if type_name is None else schema(type_name, b"ignored")
    assert show(Content(payload, given)) == Shown(view, value)


def test_a_schema_without_type_counts_as_none() -> None:
    """What a type number that this schema does not know leaves."""
    assert show(Content(b"as it is", Schema())) == Shown("text", "as it is")


def test_string_schema_keeps_control_characters() -> None:
    assert show(Content(b"\x1b[31m", schema("String"))) == Shown("text", "\x1b[31m")


@pytest.mark.parametrize(
    "type_name", sorted(set(Schema.Type.keys()) - {"None", "String", "AutoConsume", "External"})
)
def test_a_failing_view_falls_back_with_a_note(type_name: str) -> None:
    text, raw = (
        show(Content(b"five.", schema(type_name))),
        show(Content(b"\xff\x00\xff\x00\xff", schema(type_name))),
    )
    for shown, view, value in ((text, "text", "five."), (raw, "hex", "ff00ff00ff")):
        assert (shown.view, shown.value) == (view, value)
        assert shown.note is not None
        assert shown.note.startswith(f"Not shown by its {type_name} schema: ")


def test_string_that_is_none() -> None:
    shown = show(Content(b"\xff", schema("String")))
    assert (shown.view, shown.value) == ("hex", "ff")
    assert shown.note is not None
    assert "utf-8" in shown.note


def test_notes_are_one_printable_line() -> None:
    shown = show(Content(b"x", schema("Avro", b'"\\u001b[31m\\n' + b"evil" * 1000 + b'"')))
    assert shown.note is not None
    assert shown.note.isprintable()
    assert len(shown.note) < 300


def test_every_schema_type_has_at_most_one_view() -> None:
    for type_name in sorted(Schema.Type.keys()):
        views = sum(view.fits(schema(type_name)) for view in VIEWS)
        assert views == (type_name not in NO_VIEW_OF_ITS_OWN), type_name


DAY_2024 = (date(2024, 1, 1) - date(1970, 1, 1)).days
DAY_1 = (date(1, 1, 1) - date(1970, 1, 1)).days
NOON = 12 * 3600 * 10**9


@pytest.mark.parametrize(
    ("type_name", "layout", "stored", "value"),
    [
        ("int8", ">b", [-128], -128),
        ("int16", ">h", [-32768], -32768),
        ("int32", ">i", [2147483647], 2147483647),
        ("float", ">f", [0.1], 0.1),
        ("float", ">f", [16777217.0], 16777216.0),
        ("float", ">f", [3.4028234663852886e38], 3.4028235e38),
        ("float", ">f", [-1e-45], -1.4013e-45),
        ("float", ">f", [float("inf")], "Infinity"),
        ("double", ">d", [float("nan")], "NaN"),
        ("double", ">d", [float("-inf")], "-Infinity"),
        ("date", ">q", [1_700_000_000_000], "2023-11-14T22:13:20Z"),
        ("timestamp", ">q", [1_700_000_000_001], "2023-11-14T22:13:20.001Z"),
        ("timestamp", ">q", [-1], "1969-12-31T23:59:59.999Z"),
        ("time", ">q", [80_000_120], "22:13:20.120"),
        ("time", ">q", [-28_800_000], "1969-12-31T16:00:00Z"),
        ("instant", ">qi", [1_700_000_000, 1], "2023-11-14T22:13:20.000000001Z"),
        ("localdate", ">q", [DAY_2024], "2024-01-01"),
        ("localdate", ">q", [DAY_1], "0001-01-01"),
        ("localtime", ">q", [NOON + 1_000], "12:00:00.000001"),
        ("localdatetime", ">qq", [DAY_2024, NOON], "2024-01-01T12:00:00"),
    ],
)
def test_primitives(type_name: str, layout: str, stored: list[int], value: str | float) -> None:
    assert show(Content(struct.pack(layout, *stored), parse_schema(type_name))) == Shown(type_name, value)


@pytest.mark.parametrize(
    ("type_name", "layout", "stored"),
    [
        ("timestamp", ">q", [2**63 - 1]),
        ("date", ">q", [DAY_1 * 86_400_000 - 1]),
        ("time", ">q", [-(2**63)]),
        ("localdate", ">q", [DAY_1 - 1]),
        ("localtime", ">q", [-1]),
        ("localtime", ">q", [2 * NOON]),
        ("instant", ">qi", [-(2**63), 0]),
        ("instant", ">qi", [0, -1]),
        ("localdatetime", ">qq", [0, 2 * NOON]),
    ],
)
def test_dates_that_iso_8601_cannot_write_stay_integers(
    type_name: str, layout: str, stored: list[int]
) -> None:
    shown = show(Content(struct.pack(layout, *stored), parse_schema(type_name)))
    assert shown.value == (stored if len(stored) > 1 else stored[0])
    assert (shown.view, shown.note) == (type_name, "Out of range: shown as stored.")


def test_importing_the_views_imports_nothing_heavy() -> None:
    heavy = {"orjson", "decimal", "google.protobuf.descriptor_pb2", "google.protobuf.json_format"}
    program = (
        "import sys, pulsarctl_wire.wire.PulsarApi_pb2; before = set(sys.modules);"
        f"import pulsarctl_wire.views; print(*({heavy!r} & (sys.modules.keys() - before)))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == ""
