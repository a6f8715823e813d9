"""The file of findings beside a frames table: what says which table it belongs to, and how it is read.

`pwire table --findings` writes it. It counts as long as the table's numbers of rows stay the same.
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pulsarctl_wire import __version__
from pulsarctl_wire.pipeline.files.filesystems import filesystem
from pulsarctl_wire.table.schema import FINDINGS

NOTE: Final = b"pwire.findings"
"""Where the metadata of the file says which table it belongs to, and which version of pwire made it."""


class Stored(NamedTuple):
    """A file of findings: its path or URI, and the cluster that its table is labelled with."""

    path: str
    cluster: str | None


def note(rows: Mapping[str, int], cluster: str | None) -> str:
    """Return the note about a table with these numbers of `rows`, by table, and labelled with `cluster`."""
    row_counts = {name: rows[name] for name in ("frames", "gaps", "connections")}
    return json.dumps({"version": __version__, "rows": row_counts, "cluster": cluster})


def find_stored(path: str, rows: Mapping[str, int]) -> Stored | None:
    """Return the file of findings at a path or URI, if it is that of a table with these numbers of `rows`.

    None otherwise.
    """
    system, inside = filesystem(path)
    with suppress(OSError, ValueError, KeyError, TypeError), system.open_input_file(inside) as file:
        text = pq.read_metadata(file).metadata[NOTE]
        cluster = json.loads(text)["cluster"]
        if text.decode() == note(rows, cluster):
            return Stored(path, cluster)
    return None


def read(tables: Iterable[tuple[Stored | None, int]], cluster: str | None, *, is_one: bool) -> Any:
    """Return the findings of tables, each with its number of connections, as a `pyarrow.Table`.

    `is_one`: all rows without a label are of one cluster. `cluster` chooses the tables with this label
    (None: all). Returns None if the findings do not cover all tables together: those of a table are missing,
    two tables have the same label (or both have none), or one has no label and `is_one` is False.
    """
    findings: list[dict[str, Any]] = []
    labels = set[str | None]()
    first_number = 0
    for findings_file, connections in tables:
        if findings_file is None or findings_file.cluster in labels or not (findings_file.cluster or is_one):
            return None
        labels.add(findings_file.cluster)
        if cluster in (None, findings_file.cluster):
            system, inside = filesystem(findings_file.path)
            rows = pq.read_table(inside, filesystem=system, schema=FINDINGS).to_pylist()
            findings += [_shift_row(row, findings_file.cluster, first_number) for row in rows]
        first_number += connections
    return pa.Table.from_pylist(findings, schema=FINDINGS)


def _shift_row(row: dict[str, Any], cluster: str | None, shift: int) -> dict[str, Any]:
    """Return a row for a table whose connections are numbered from `shift` on, with its cluster's name."""
    if shift and row["connection"] is not None:
        evidence = [item | {"connection": item["connection"] + shift} for item in json.loads(row["evidence"])]
        row |= {
            "connection": row["connection"] + shift,
            "evidence": json.dumps(evidence, separators=(",", ":")),
        }
    return row | {"cluster": cluster or "0"}  # as `reports.views.in_clusters` names it
