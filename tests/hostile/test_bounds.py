"""Whatever a file of up to 1 MB holds, each form of output takes less than 400 MiB and a few seconds."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pytest
from inputs import INPUTS, LARGE, SIZE, SMALL, unanswered
from limited import FORMS, MEMORY, SECONDS, Runs, limited

from pulsarctl_wire.capture import read_events
from pulsarctl_wire.views import Content, show
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.payload import open_entry

HERE: Final = Path(__file__).parent
LONG: Final = "hex-40MB.txt.gz"
KINDS: Final = (".pcapng", ".bin", ".hex", ".gz", ".zst")
FILES: Final = sorted(path for path in HERE.iterdir() if path.suffix in KINDS and path.name != LONG)
QUICK: Final = (
    *("batches of zeros", "batches of unknown fields", "DEL", "C1", "64 MiB each", "wide records"),
    *("unknown fields", "items of ack.message_id", "chunks"),
    *("wide keys that are no UTF-8", "wide properties", "a large Avro schema", "a large pair of schemas"),
)
"""The worst of each kind: sessions and the proxy have them too."""

QUICK_FORMS: Final = ("json", "table")
"""Those that each run of the tests tries on all files."""

FULL: Final = {
    "tree": ("items of ack.message_id", "lists in a list", "maps in a list", "frames that break late"),
    "hex": (
        *("JSON of lists", "frames that claim where they end", "pings"),
        *("odd commands with credentials", "frames that break soon"),
    ),
    "json": ("short strings that are no UTF-8", "frames that claim where they end"),
    "table": ("small frames with properties", "broken entries", "producers"),
    "line": ("rows of hexadecimal digits", "items of redeliverUnacknowledgedMessages.message_ids"),
    "connections": ("connections", "candidates of many connections"),
    "first error": ("frames that break late", "noise"),
    "filter": ("small frames with payloads", "requests"),
    "stats": ("SYNs", "producers", "PPP"),
    "doctor": ("silent consumers", "chunks", "connections"),
}
"""Inputs that come near a bound at full size, by their forms.

Where entries are opened, or schemas asked, a small input makes nearly as much work as a full one: what is
done of a frame is bounded by itself.
"""


SLOWER: Final = {"filter": 2}
"""How many times the CPU time of others a form may take: rule-engine alone takes 0.2 ms for a record whose
messages it looks through."""


def slow(form: str) -> Any:
    return pytest.param(form, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def pwire() -> Iterator[Runs]:
    with limited() as runs:
        yield runs


def check(pwire: Runs, source: Path, forms: Iterable[str], tmp_path: Path, seconds: int = SECONDS) -> None:
    """Runs of one process hold what is promised, each for itself."""
    table = str(tmp_path / "table.parquet")
    runs = {form: [*FORMS[form], *([table] if form == "table" else []), str(source)] for form in forms}
    limits = {form: seconds * SLOWER.get(form, 1) for form in runs}
    results = dict(zip(runs, pwire(*runs.values(), seconds=max(limits.values())), strict=False))
    for form, result in results.items():
        assert not result.broken(limits[form]), f"{form} of {source.name}: {result}"
    assert len(results) == len(runs)


TWICE: Final = HERE / "gzip-twice.gz"
"""It takes all forms the same seconds: it is refused before anything is decoded."""


@pytest.mark.parametrize("source", [path for path in FILES if path != TWICE], ids=lambda path: path.name)
def test_files_that_broke_promises(source: Path, pwire: Runs, tmp_path: Path) -> None:
    check(pwire, source, QUICK_FORMS, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("source", [path for path in FILES if path != TWICE], ids=lambda path: path.name)
def test_other_forms_of_files_that_broke_promises(source: Path, pwire: Runs, tmp_path: Path) -> None:
    check(pwire, source, [form for form in FORMS if form not in QUICK_FORMS], tmp_path)


@pytest.mark.slow
def test_what_is_compressed_twice(pwire: Runs, tmp_path: Path) -> None:
    check(pwire, TWICE, ["doctor", "table"], tmp_path)


@pytest.mark.exhaustive
def test_what_is_compressed_twice_in_other_forms(pwire: Runs, tmp_path: Path) -> None:
    check(pwire, TWICE, FORMS, tmp_path)


@pytest.mark.slow
def test_a_long_hex_dump(pwire: Runs, tmp_path: Path) -> None:
    check(pwire, HERE / LONG, ["line"], tmp_path, seconds=120)


@pytest.mark.slow
def test_more_connections_than_are_followed(pwire: Runs, tmp_path: Path) -> None:
    """10 MB of them: no memory is left with those that were forgotten."""
    source = tmp_path / "input"
    source.write_bytes(unanswered(140_000))
    check(pwire, source, ["stats"], tmp_path, seconds=60)
    check(pwire, source, ["table"], tmp_path, seconds=60)  # a process of its own: stats leaves gaps in memory


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("behind holes", "table"),  # the nearest to a bound: 360 MiB
        ("behind a hole that stays", "line"),
        ("inside a candidate", "table"),
        ("inside a candidate that is cut", "line"),
    ],
)
def test_what_is_decoded_at_once(name: str, form: str, pwire: Runs, tmp_path: Path) -> None:
    """However much it is, memory stays flat."""
    source = tmp_path / "input"
    source.write_bytes(LARGE[name]())
    check(pwire, source, [form], tmp_path, seconds=60)


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", ["line", "connections", "stats"])
def test_many_more_connections_than_are_followed(form: str, pwire: Runs, tmp_path: Path) -> None:
    source = tmp_path / "input"
    source.write_bytes(unanswered(300_000))
    check(pwire, source, [form], tmp_path, seconds=120)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("jobs", "memory"), [(1, MEMORY), (2, 512)])
def test_a_table_of_many_connections(jobs: int, memory: int, pwire: Runs, tmp_path: Path) -> None:
    """With several processes, one has besides the connections that are open those of the next splits."""
    source = tmp_path / "input"
    source.write_bytes(unanswered(300_000))
    table = str(tmp_path / "table.parquet")
    (result,) = pwire(["table", "--jobs", str(jobs), "--out", table, str(source)], seconds=120)
    assert not result.broken(120, memory=memory), result


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", ["line", "json", "stats", "table"])
@pytest.mark.parametrize("name", LARGE)
def test_what_is_decoded_at_once_in_other_forms(name: str, form: str, pwire: Runs, tmp_path: Path) -> None:
    source = tmp_path / "input"
    source.write_bytes(LARGE[name]())
    check(pwire, source, [form], tmp_path, seconds=120)


def written(name: str, size: int, tmp_path: Path) -> Path:
    """The file of one of `INPUTS`."""
    source = tmp_path / "input"
    source.write_bytes(INPUTS[name](size))
    return source


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_the_worst_inputs(name: str, pwire: Runs, tmp_path: Path) -> None:
    check(pwire, written(name, SIZE, tmp_path), ["json"], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", INPUTS)
def test_small_inputs(name: str, pwire: Runs, tmp_path: Path) -> None:
    check(pwire, written(name, SMALL, tmp_path), FORMS, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("form", "name"), [(form, name) for form, names in FULL.items() for name in names])
def test_what_comes_near_a_bound(form: str, name: str, pwire: Runs, tmp_path: Path) -> None:
    check(pwire, written(name, SIZE, tmp_path), [form], tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", INPUTS)
def test_inputs(name: str, form: str, pwire: Runs, tmp_path: Path) -> None:
    check(pwire, written(name, SIZE, tmp_path), [form], tmp_path)


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
    for size in (SIZE, SMALL):
        _, message = islice(read_events(written(name, size, tmp_path)), 2)
        assert isinstance(message, Frame)
        first = open_entry(message).messages[0]
        assert show(Content(first.payload or b"", message.schema)).view == SHOWN[name]
