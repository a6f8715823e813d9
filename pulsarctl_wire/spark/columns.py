"""Converts our tables for Spark: their columns, and their paths."""

import re
from datetime import datetime, timezone
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pulsarctl_wire.pipeline.files.paths import absolute, is_uri


def spark_uri(path: str) -> str:
    """Return a path or URI for Spark's Hadoop: the scheme of S3 is s3a there, and URIs have no escapes."""
    place = absolute(path)
    return re.sub(r"^s3n?://", "s3a://", unquote(place)) if is_uri(place) else place


def plain(schema: Any) -> Any:
    """Return an Arrow schema with texts instead of dictionaries, which Spark does not have."""

    def plain_type(type_: Any) -> Any:
        if pa.types.is_dictionary(type_):
            return type_.value_type
        if pa.types.is_struct(type_):
            return pa.struct([(field.name, plain_type(field.type)) for field in type_])
        return type_

    return pa.schema([(field.name, plain_type(field.type)) for field in schema])


def spark_type(schema: Any) -> StructType:
    """Return the Spark type of the rows of an Arrow schema of ours."""
    type_: StructType = from_arrow_schema(plain(schema))
    return type_


def as_dict(row: Row) -> dict[str, Any]:
    """Return a row as a dictionary. Timestamps, which Spark gives in the local time zone, are in UTC."""
    return {
        name: value.astimezone(timezone.utc) if isinstance(value, datetime) else value
        for name, value in row.asDict(recursive=True).items()
    }


def completed(table: DataFrame, schema: Any) -> DataFrame:
    """Return `table` with all columns of `schema`, of its types; missing ones are null. Others are kept.

    If the column `partial` is missing it is false: all frames count as whole.
    """
    our_type = spark_type(schema)
    new_columns: dict[str, Column] = {}
    for field in our_type:
        if field.name not in table.columns:
            value = F.lit(False) if field.name == "partial" else F.lit(None)
            new_columns[field.name] = value.cast(field.dataType)
        elif isinstance(field.dataType, StructType):
            struct = table.schema[field.name].dataType
            assert isinstance(struct, StructType)
            parts = [
                F.col(field.name)[part.name].alias(part.name)
                if part.name in struct.names
                else F.lit(None).cast(part.dataType).alias(part.name)
                for part in field.dataType
            ]
            if not set(field.dataType.names) <= set(struct.names):
                new_columns[field.name] = F.when(F.col(field.name).isNotNull(), F.struct(*parts))
        elif table.schema[field.name].dataType != field.dataType:
            new_columns[field.name] = F.col(field.name).cast(field.dataType)
    return table.withColumns(new_columns) if new_columns else table
