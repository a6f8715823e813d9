"""docs/tables.md says what the columns are, and the files have them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pulsarctl_wire.table.builder import TableBuilder
from pulsarctl_wire.table.parquet import writer
from pulsarctl_wire.table.schema import COMMENT, METADATA, TABLES, TEXT, TIME, VERSION

DOCUMENT = (Path(__file__).parents[2] / "docs" / "tables.md").read_text()
SCHEMAS = {**TABLES, "metadata": pa.schema(list(METADATA))}


def documented(heading: str) -> list[tuple[str, str, str]]:
    """The columns in the table below a heading: their names, their types, and what they mean."""
    part = DOCUMENT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\S.*?) \| ([^|]+) \| ([^|]*)\|$", part, re.MULTILINE)
    return [(name, type_, comment(meaning, unit.strip())) for name, type_, meaning, unit in rows]


def comment(meaning: str, unit: str) -> str:
    """What a row of the document says, without links and marks."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", meaning).replace("`", "")
    return f"{plain} ({unit})" if unit else plain


def type_name(found: Any) -> str:
    if found in (TEXT, TIME):
        return "text" if found == TEXT else "timestamp"
    if pa.types.is_struct(found) and found == METADATA:
        return "struct"
    text = re.sub(r"list<(element|item): ", "list<", str(found))
    return text.replace(" ('properties')", "")


@pytest.mark.parametrize("name", SCHEMAS)
def test_each_column_is_documented_with_its_type_and_meaning(name: str) -> None:
    columns = [(each.name, type_name(each.type), each.metadata[COMMENT].decode()) for each in SCHEMAS[name]]
    assert documented(name.capitalize()) == columns


def test_the_columns_of_a_version_keep_names_and_types() -> None:
    """If this fails, raise the version, say so in docs/tables.md, and write its columns to another file."""
    columns = [f"{name} {each.name} {type_name(each.type)}" for name in SCHEMAS for each in SCHEMAS[name]]
    frozen = (Path(__file__).parent / f"version-{VERSION}.txt").read_text().splitlines()
    assert {*frozen} <= {*columns}


@pytest.fixture(scope="module", params=TABLES)
def empty(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The name of a table, and a file of it without rows."""
    path = tmp_path_factory.mktemp("empty") / "it.parquet"
    with writer(path, TABLES[request.param]) as parquet:
        parquet.write_batch(TableBuilder([]).take()[request.param])
    return request.param, path


def test_a_file_tells_the_version_and_the_meaning_of_its_columns(empty: tuple[str, Path]) -> None:
    name, path = empty
    found = pq.read_schema(path)
    assert found.metadata[b"pwire.table"] == VERSION.encode()
    assert found.equals(TABLES[name])
    assert [each.metadata for each in found] == [each.metadata for each in TABLES[name]]
    assert f"version of these columns, `{VERSION}`, under `pwire.table`" in DOCUMENT


def test_a_file_tells_spark_the_same(empty: tuple[str, Path]) -> None:
    from pyspark.sql.types import StructType

    from pulsarctl_wire.spark.columns import spark_type

    name, path = empty
    text = pq.read_metadata(path).metadata[b"org.apache.spark.sql.parquet.row.metadata"]
    found = StructType.fromJson(json.loads(text))
    assert [(each.name, each.dataType.simpleString()) for each in found] == [
        (each.name, each.dataType.simpleString()) for each in spark_type(TABLES[name])
    ]
    meanings = [each.metadata[COMMENT].decode() for each in TABLES[name]]
    assert [each.metadata["comment"] for each in found] == meanings


def test_pandas_keeps_integers_beside_nulls(empty: tuple[str, Path]) -> None:
    import pandas as pd

    name, path = empty
    schema = TABLES[name]
    with writer(path, schema) as parquet:
        parquet.write_table(pa.table({each.name: pa.nulls(1, each.type) for each in schema}, schema))
    types = pd.read_parquet(path).dtypes
    kinds = {pa.int32(): "Int32", pa.int64(): "Int64", pa.bool_(): "boolean", TEXT: "category"}
    kinds[TIME] = "datetime64[us, UTC]"
    assert [str(types[each.name]) for each in schema if each.type in kinds] == [
        kinds[each.type] for each in schema if each.type in kinds
    ]
