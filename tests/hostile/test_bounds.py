"""Whatever a file of up to 1 MB holds, each form of output takes less than 400 MiB and a few seconds."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from inputs import INPUTS, LARGE, unanswered
from limited import FORMS, SECONDS, Runs, limited

from pulsarctl_wire.capture import read_events
from pulsarctl_wire.record import Recorder

HERE: Final = Path(__file__).parent
LONG: Final = "hex-40MB.txt.gz"
KINDS: Final = (".pcapng", ".bin", ".hex", ".gz", ".zst")
FILES: Final = sorted(path for path in HERE.iterdir() if path.suffix in KINDS and path.name != LONG)
QUICK: Final = (
    *("batches of zeros", "batches of unknown fields", "DEL", "C1", "64 MiB each", "wide records"),
    *("unknown fields", "items of ack.message_id", "chunks"),
    *("wide keys that are no UTF-8", "wide properties", "a large Avro schema", "a large pair of schemas"),
)


QUICK_FORMS: Final = ("json", "table")
"""Those that each run of the tests tries on all files."""


def slow(form: str) -> Any:
    return pytest.param(form, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def pwire() -> Iterator[Runs]:
    with limited() as runs:
        yield runs


def check(pwire: Runs, source: Path, form: str, tmp_path: Path, seconds: int = SECONDS) -> None:
    """One run holds what is promised."""
    out = [str(tmp_path / "table.parquet")] if form == "table" else []
    (result,) = pwire([*FORMS[form], *out, str(source)], seconds=seconds)
    assert not result.broken(seconds), f"{form} of {source.name}: {result}"


@pytest.mark.parametrize("form", [each if each in QUICK_FORMS else slow(each) for each in FORMS])
@pytest.mark.parametrize("source", FILES, ids=lambda path: path.name)
def test_files_that_broke_promises(source: Path, form: str, pwire: Runs, tmp_path: Path) -> None:
    check(pwire, source, form, tmp_path)


@pytest.mark.slow
def test_a_long_hex_dump(pwire: Runs, tmp_path: Path) -> None:
    check(pwire, HERE / LONG, "line", tmp_path, seconds=120)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["line", "connections", "stats", "table"])
def test_more_connections_than_are_followed(form: str, pwire: Runs, tmp_path: Path) -> None:
    """21 MB of them: no memory is left with those that were forgotten."""
    source = tmp_path / "input"
    source.write_bytes(unanswered(300_000))
    check(pwire, source, form, tmp_path, seconds=120)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["line", "json", "stats", "table"])
@pytest.mark.parametrize("name", LARGE)
def test_what_is_decoded_at_once(name: str, form: str, pwire: Runs, tmp_path: Path) -> None:
    """However much it is, memory stays flat."""
    source = tmp_path / "input"
    source.write_bytes(LARGE[name]())
    check(pwire, source, form, tmp_path, seconds=120)


@pytest.mark.parametrize("name", QUICK)
def test_the_worst_inputs(name: str, pwire: Runs, tmp_path: Path) -> None:
    source = tmp_path / "input"
    source.write_bytes(INPUTS[name]())
    check(pwire, source, "json", tmp_path)


SHOWN: Final = {
    **dict.fromkeys(("JSON of lists", "JSON of text"), "json"),
    **dict.fromkeys(
        ("wide records", "strings that are no UTF-8", "wide strings", "moments", "floats"), "avro"
    ),
    **dict.fromkeys(("short strings that are no UTF-8", "a large Avro schema"), "avro"),
    **dict.fromkeys(("lists in a list", "maps in a list", "records in a list"), "avro"),
    "protobuf by number": "protobuf",
}
"""Inputs with a schema, and the view of it: else they would prove nothing."""


@pytest.mark.parametrize("name", SHOWN)
def test_inputs_are_shown_by_their_schemas(name: str, tmp_path: Path) -> None:
    source = tmp_path / "input"
    source.write_bytes(INPUTS[name]())
    _, message, *_ = read_events(source)
    (first, *_) = Recorder()(message)["messages"]
    assert first["payload"]["view"] == SHOWN[name]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", INPUTS)
def test_inputs(name: str, form: str, pwire: Runs, tmp_path: Path) -> None:
    source = tmp_path / "input"
    source.write_bytes(INPUTS[name]())
    check(pwire, source, form, tmp_path)
