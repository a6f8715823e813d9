"""Captures read into a DataFrame, for notebooks:

    from pulsarctl_wire.spark.datasource import Captures
    spark.dataSource.register(Captures)
    frames = spark.read.format("pwire").load("captures/*.pcap")
    gaps = spark.read.format("pwire").option("table", "gaps").load("captures/*.pcap")

One task decodes it all, since every row may depend on all that came before: what is looked at more than once,
or is large, is better made a table by `pwire analyze`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pulsarctl_wire.errors import CaptureError

if TYPE_CHECKING:
    from pulsarctl_wire.wire.frame import Event


class Captures(DataSource):
    """The data source `pwire`.

    Options: `path`, as INPUT of `pwire analyze`; `table`, frames or gaps; `payload` true to keep payloads;
    `max_frame_size` in bytes.
    """

    @classmethod
    def name(cls) -> str:
        """What `format` calls it."""
        return "pwire"

    def schema(self) -> StructType:
        """The columns of docs/frames-table.md."""
        from pyspark.sql.pandas.types import from_arrow_schema

        schema: StructType = from_arrow_schema(_plain(self._table()))
        return schema

    def reader(self, schema: StructType) -> "_Reader":
        """A reader of all that `path` names."""
        path = self.options.get("path")
        if not path:
            raise CaptureError("name the captures: load(PATH)")
        size = self.options.get("max_frame_size")
        wants_gaps = self.options.get("table", "frames") == "gaps"
        payload = self.options.get("payload", "false").lower() == "true"
        return _Reader(path, wants_gaps, payload, int(size) if size else None)

    def _table(self) -> Any:
        from pulsarctl_wire.table import FRAMES, GAPS

        tables = {"frames": FRAMES, "gaps": GAPS}
        wanted = self.options.get("table", "frames")
        if wanted not in tables:
            raise CaptureError(f"no table {wanted}; it is frames or gaps")
        return tables[wanted]


class _Reader(DataSourceReader):
    def __init__(self, path: str, wants_gaps: bool, payload: bool, max_frame_size: int | None) -> None:
        self._path = path
        self._wants_gaps = wants_gaps
        self._payload = payload
        self._max_frame_size = max_frame_size

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows, as Arrow batches."""
        from pulsarctl_wire.capture.sources import Decoder, Source
        from pulsarctl_wire.pipeline.splits import find_inputs, opened
        from pulsarctl_wire.table import FRAMES, GAPS, TableBuilder
        from pulsarctl_wire.wire.topics import TopicSession

        decoder = Decoder(
            max_frame_size=self._max_frame_size, join_chunks=False, places=True, new_session=TopicSession
        )
        builder = TableBuilder(decoder.sources, payload=self._payload)
        schema = _plain(GAPS if self._wants_gaps else FRAMES)

        def events() -> "Iterator[list[Event]]":
            for input_ in find_inputs([self._path]):
                with opened(input_.path) as stream:
                    yield from decoder.read(Source(input_.name, stream))
            yield from decoder.finish()

        for frames, gaps in builder.batches(events()):
            yield (gaps if self._wants_gaps else frames).cast(schema)


def _plain(schema: Any) -> Any:
    """An Arrow schema with texts for dictionaries: Spark has none."""
    import pyarrow as pa

    def plain(type_: Any) -> Any:
        if pa.types.is_dictionary(type_):
            return type_.value_type
        if pa.types.is_struct(type_):
            return pa.struct([(field.name, plain(field.type)) for field in type_])
        return type_

    return pa.schema([(field.name, plain(field.type)) for field in schema])
