"""docs/tables.md says what the columns are, and the files have them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pulsarctl_wire.table import TABLES, VERSION, TableBuilder, writer
from pulsarctl_wire.table.schema import METADATA, TEXT

DOCUMENT = (Path(__file__).parents[2] / "docs" / "tables.md").read_text()


def documented(heading: str) -> dict[str, str]:
    """The columns in the table below a heading, with their types."""
    part = DOCUMENT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (\S.*?) \| [^|]+ \| [^|]*\|$", part, re.MULTILINE))


def type_name(found: Any) -> str:
    if found == TEXT:
        return "text"
    if pa.types.is_struct(found) and found == METADATA:
        return "struct"
    text = re.sub(r"list<(element|item): ", "list<", str(found))
    return text.replace(" ('properties')", "")


@pytest.mark.parametrize(
    ("heading", "schema"),
    [
        *((name.capitalize(), schema) for name, schema in TABLES.items()),
        ("Metadata", pa.schema(list(METADATA))),
    ],
)
def test_each_column_is_documented_with_its_type(heading: str, schema: Any) -> None:
    assert list(documented(heading).items()) == [(field.name, type_name(field.type)) for field in schema]


@pytest.mark.parametrize("name", TABLES)
def test_a_file_tells_the_version_of_its_columns(name: str, tmp_path: Path) -> None:
    schema = TABLES[name]
    with writer(tmp_path / "it", schema) as parquet:
        parquet.write_batch(TableBuilder([]).take()[name])
    found = pq.read_schema(tmp_path / "it")
    assert found.metadata[b"pwire.table"] == VERSION.encode()
    assert found.equals(schema)
    assert f"version of these columns, `{VERSION}`, under `pwire.table`" in DOCUMENT
