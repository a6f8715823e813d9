"""A data source that reads captures into a DataFrame, for notebooks:

    from pulsarctl_wire.spark.datasource import Captures
    spark.dataSource.register(Captures)
    frames = spark.read.format("pwire").load("captures/*.pcap")
    gaps = spark.read.format("pwire").option("table", "gaps").load(["a.pcap", "s3://bucket/captures"])

Problems with a file are logged as warnings (logger `pulsarctl_wire`); its valid part is read.
One task decodes everything, since every row may depend on all earlier ones: for captures that are large, or
read more than once, make a table with `pwire analyze` first.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pulsarctl_wire.errors import CaptureError

if TYPE_CHECKING:
    from pulsarctl_wire.capture.sources import Source
    from pulsarctl_wire.pipeline.splits import Input

_LOG: Final = logging.getLogger("pulsarctl_wire")


class Captures(DataSource):
    """The data source `pwire`.

    Options: `path`, like INPUT of `pwire analyze`; `table`, frames or gaps; `payload` true to keep payloads;
    `max_frame_size` in bytes.
    """

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "pwire"

    def schema(self) -> StructType:
        """The columns of docs/tables.md."""
        from pulsarctl_wire.spark.columns import spark_type

        return spark_type(self._table())

    def reader(self, schema: StructType) -> "_Reader":
        """A reader of the captures in `path`."""
        from pulsarctl_wire.pipeline.inputs import find_inputs

        paths = json.loads(self.options.get("paths") or "[]")  # of load([...])
        paths += [path] if (path := self.options.get("path")) else []
        if not paths:
            raise CaptureError("name the captures: load(PATH)")
        size = self.options.get("max_frame_size")
        wants_gaps = self.options.get("table", "frames") == "gaps"
        payload = self.options.get("payload", "false").lower() == "true"
        return _Reader(find_inputs(paths, _LOG.warning), wants_gaps, payload, int(size) if size else None)

    def _table(self) -> Any:
        from pulsarctl_wire.table import FRAMES, GAPS

        tables = {"frames": FRAMES, "gaps": GAPS}
        wanted = self.options.get("table", "frames")
        if wanted not in tables:
            raise CaptureError(f"no table {wanted}; the tables are frames and gaps")
        return tables[wanted]


@dataclass
class _Reader(DataSourceReader):
    inputs: "list[Input]"
    wants_gaps: bool
    payload: bool
    max_frame_size: int | None

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows, as Arrow batches."""
        from pulsarctl_wire.capture.series import Part, Turn, read_all
        from pulsarctl_wire.capture.sources import Decoder
        from pulsarctl_wire.spark.columns import plain
        from pulsarctl_wire.table import FRAMES, GAPS, TableBuilder
        from pulsarctl_wire.wire.exchanges import ExchangeState

        decoder = Decoder(
            max_frame_size=self.max_frame_size, join_chunks=False, places=True, new_state=ExchangeState
        )
        builder = TableBuilder(decoder.sources, payload=self.payload)
        schema = plain(GAPS if self.wants_gaps else FRAMES)
        turns = [
            Turn(number, tuple(Part(side.file, side.since, side.until) for side in each.sides))
            for number, each in enumerate(self.inputs)
        ]
        events = read_all(decoder, turns, self._opened, _LOG.warning)
        for rows in builder.batches(chain(events, decoder.finish())):
            yield rows["gaps" if self.wants_gaps else "frames"].cast(schema)
        if decoder.dropped_packets:
            _LOG.warning("packets dropped by the kernel: %d", decoder.dropped_packets)

    @contextmanager
    def _opened(self, given: int) -> "Iterator[Source]":
        from pulsarctl_wire.capture.sources import Source, named
        from pulsarctl_wire.pipeline.splits import opened

        name = self.inputs[given].name
        with ExitStack() as stack:
            with named(name):
                stream = stack.enter_context(opened(self.inputs[given].path))
            yield Source(name, stream)
