"""Runs reports with Spark."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import Any, Final

from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pulsarctl_wire.pipeline.storage.findings import read
from pulsarctl_wire.pipeline.storage.tables import Found, Part, parts_of
from pulsarctl_wire.reports.engine import Answer, Engine, Row
from pulsarctl_wire.reports.findings import ORDER
from pulsarctl_wire.reports.sql import Choice
from pulsarctl_wire.spark.columns import as_dict, completed, spark_type, spark_uri
from pulsarctl_wire.spark.connect import is_connect
from pulsarctl_wire.table.schema import FINDINGS, TABLES

SMALL: Final = 300_000
"""Rows up to which Spark takes longer to compile a report than to run it."""
_FOR_SMALL: Final = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.files.openCostInBytes": "1",
    "spark.buffer.pageSize": "2m",  # each broadcast takes a page: 64 MB by default, if 2 cores have 2 GB
}
_FOR_ALL: Final = {"spark.sql.sources.partitionColumnTypeInference.enabled": "false"}


def settings(found: Sequence[Found], master: str) -> dict[str, str]:
    """Return Spark's settings for tables of this size; a Spark Connect server takes only those of SQL."""
    conf = _FOR_ALL | (_FOR_SMALL if sum(table.rows for table in found) <= SMALL else {})
    return {name: value for name, value in conf.items() if "sql" in name or not is_connect(master)}


class SparkEngine(Engine):
    """An engine over tables that were found. Its SQL is Spark's."""

    def __init__(
        self,
        spark: SparkSession,
        found: Sequence[Found],
        choice: Choice,
        find_again: Callable[[], Sequence[Found]] | None = None,
    ) -> None:
        super().__init__(found, choice, find_again)
        PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True  # it prints errors that we raise
        self._spark = spark
        self._cached: list[DataFrame] = []
        self._again(lambda: None)

    def _open(self, found: Sequence[Found]) -> None:
        for name, schema in TABLES.items():
            parts = [self._part(part, schema) for part in parts_of(found, name)]
            table = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)
            table.createOrReplaceTempView(f"all_{name}")

    def close(self) -> None:
        """Free the results that Spark has cached."""
        for table in self._cached:
            table.unpersist()

    def _part(self, part: Part, schema: Any) -> DataFrame:
        files, first_number = part
        if not files.paths:
            return self._spark.createDataFrame([], spark_type(schema))
        reader = self._spark.read
        if files.base is not None:
            reader = reader.option("basePath", spark_uri(files.base))
        if not files.is_uniform:
            reader = reader.option("mergeSchema", "true")
        table = completed(reader.parquet(*map(spark_uri, files.paths)), schema)
        return table.withColumn("connection", F.col("connection") + first_number) if first_number else table

    def _define(self, name: str, sql: str) -> None:
        self._spark.sql(sql).createOrReplaceTempView(name)

    def _store(self, name: str, sql: str) -> None:
        self._keep(name, self._spark.sql(sql))

    def _keep(self, name: str, table: DataFrame) -> None:
        table.cache().createOrReplaceTempView(name)
        self._cached.append(table)

    def _stored_findings(self, cluster: str | None, *, is_one: bool) -> Any:
        return read(
            [(table.findings, table.connections) for table in self._found],
            cluster,
            is_one=is_one,
        )

    def _give(self, name: str, rows: Any) -> None:
        values = [tuple(row.values()) for row in rows.to_pylist()]
        self._spark.createDataFrame(values, spark_type(FINDINGS)).createOrReplaceTempView(name)

    def _diagnose(self, name: str, sql: str) -> None:
        rows = self._spark.sql(sql).repartition("cluster").sortWithinPartitions(*ORDER.split(", "))
        self._keep(name, rows.mapInArrow(_diagnose_batches, spark_type(FINDINGS)))

    def _run(self, sql: str) -> Answer:
        result = self._spark.sql(sql)
        return Answer(result.columns, (tuple(as_dict(row).values()) for row in result.toLocalIterator()))

    def _rows(self, sql: str) -> list[Row]:
        # Spark keeps the plans of local iterators as long as the session lasts.
        return [as_dict(row) for row in self._lazy(sql).collect()]

    def _lazy(self, sql: str) -> DataFrame:
        return self._spark.sql(sql)

    def _arrow(self, sql: str) -> Any:
        return self._spark.sql(sql).toArrow()


def _diagnose_batches(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield what the doctor finds in the rows of some clusters, as Arrow batches."""
    import pyarrow as pa

    from pulsarctl_wire.checks.tables import diagnose

    rows = list(diagnose(batches))
    yield pa.RecordBatch.from_pylist(rows, schema=FINDINGS)
