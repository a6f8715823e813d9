"""Captures read into a DataFrame, for notebooks:

    from pulsarctl_wire.spark.datasource import Captures
    spark.dataSource.register(Captures)
    frames = spark.read.format("pwire").load("captures/*.pcap")
    gaps = spark.read.format("pwire").option("table", "gaps").load(["a.pcap", "s3://bucket/captures"])

What is wrong with a file is a warning in the log (logger `pulsarctl_wire`); what is good of it is there.
One task decodes it all, since every row may depend on all that came before: what is looked at more than once,
or is large, is better made a table by `pwire analyze`.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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

    Options: `path`, as INPUT of `pwire analyze`; `table`, frames or gaps; `payload` true to keep payloads;
    `max_frame_size` in bytes.
    """

    @classmethod
    def name(cls) -> str:
        """What `format` calls it."""
        return "pwire"

    def schema(self) -> StructType:
        """The columns of docs/frames-table.md."""
        from pulsarctl_wire.spark.columns import spark_type

        return spark_type(self._table())

    def reader(self, schema: StructType) -> "_Reader":
        """A reader of all that `path` names."""
        from pulsarctl_wire.pipeline.splits import find_inputs

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
            raise CaptureError(f"no table {wanted}; it is frames or gaps")
        return tables[wanted]


class _Reader(DataSourceReader):
    def __init__(
        self, inputs: "list[Input]", wants_gaps: bool, payload: bool, max_frame_size: int | None
    ) -> None:
        self._inputs = inputs
        self._wants_gaps = wants_gaps
        self._payload = payload
        self._max_frame_size = max_frame_size

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows, as Arrow batches."""
        from pulsarctl_wire.capture.series import Part, Turn, read_all
        from pulsarctl_wire.capture.sources import Decoder
        from pulsarctl_wire.spark.columns import plain
        from pulsarctl_wire.table import FRAMES, GAPS, TableBuilder
        from pulsarctl_wire.wire.topics import TopicSession

        decoder = Decoder(
            max_frame_size=self._max_frame_size, join_chunks=False, places=True, new_session=TopicSession
        )
        builder = TableBuilder(decoder.sources, payload=self._payload)
        schema = plain(GAPS if self._wants_gaps else FRAMES)
        turns = [
            Turn(number, tuple(Part(side.file, side.since, side.until) for side in each.sides))
            for number, each in enumerate(self._inputs)
        ]
        events = read_all(decoder, turns, self._opened, _LOG.warning)
        for frames, gaps in builder.batches(chain(events, decoder.finish())):
            yield (gaps if self._wants_gaps else frames).cast(schema)
        if decoder.dropped_packets:
            _LOG.warning("packets dropped by the kernel: %d", decoder.dropped_packets)

    @contextmanager
    def _opened(self, given: int) -> "Iterator[Source]":
        from pulsarctl_wire.capture.sources import Source
        from pulsarctl_wire.pipeline.splits import opened

        name = self._inputs[given].name
        with ExitStack() as stack:
            try:
                stream = stack.enter_context(opened(self._inputs[given].path))
            except CaptureError as error:
                raise CaptureError(f"{name}: {error}") from error
            yield Source(name, stream)
