"""docs/notebook.ipynb runs from start to end, and is committed without outputs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


def read() -> Any:
    """The notebook as it is committed."""
    return nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The notebook's cells of code, as they are after it ran in a home of its own."""
    home = str(tmp_path_factory.mktemp("home"))
    places = {"HOME": home, "XDG_CACHE_HOME": home, "IPYTHONDIR": home, "JUPYTER_RUNTIME_DIR": home}
    notebook = read()
    ran = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(NOTEBOOK.parent)}})
    ran.execute(env={**os.environ, **places})
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell: Any) -> str:
    """What a cell shows as text."""
    return "".join(each.get("text") or each["data"]["text/plain"] for each in cell.outputs)


def test_it_runs_without_errors_or_warnings(cells: list[Any]) -> None:
    assert all(cell.execution_count for cell in cells)
    assert {each.get("name", "") for cell in cells for each in cell.outputs} <= {"", "stdout"}


def test_it_shows_what_is_in_the_capture(cells: list[Any]) -> None:
    made, summary, slow, types, latency, tenants, arrivals, throughput, journey, *_ = map(shown, cells)
    assert made == "", "no notes about the captures"
    assert "859" in summary
    assert "laptop" in slow
    assert "datetime64[us, UTC]" in types
    assert "Int64" in types
    assert "public" in latency
    assert "public" in tenants
    assert "java-nack-dlq-mail" in arrivals
    assert throughput.count("▲") == 36
    assert throughput.count("▼") == 38
    assert "shape: (4, 6)" in journey


def test_it_compares_queries_and_extracts(cells: list[Any]) -> None:
    compared, unusual, answers, views, packets, closed = map(shown, cells[9:])
    assert "SUBSCRIBE" in compared
    assert "java-keyshared-trades" in unusual
    assert "PARTITIONED_METADATA" in answers
    assert "java-nack-dlq-mail" in views
    assert "1 frame in 1 packet" in packets
    assert "redelivery_count=3" in packets
    assert closed == ""


def test_it_has_no_outputs() -> None:
    cells = read().cells
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
