"""Makes one table of several captures, so that one query compares what two engines make of all of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pwire_run import pwire

from pulsarctl_wire.table.schema import sibling_path


def united(captures: Iterable[Path], folder: Path) -> Path:
    """The table, in which each capture is a cluster with the capture's name."""
    one, out = str(folder / "one.parquet"), folder / "all.parquet"
    parts: dict[str, list[pa.Table]] = {name: [] for name in ("frames", "gaps", "connections")}
    taken = 0
    for path in captures:
        pwire("table", path, "--out", one, "--cluster", path.name)
        for name, tables in parts.items():
            table = pq.read_table(one if name == "frames" else sibling_path(one, name))
            at = table.schema.get_field_index("connection")
            tables.append(table.set_column(at, table.schema.field(at), pc.add(table["connection"], taken)))
        taken += parts["connections"][-1].num_rows
    for name, tables in parts.items():
        whole = pa.concat_tables(tables).unify_dictionaries()
        pq.write_table(whole, out if name == "frames" else sibling_path(str(out), name))
    return out
