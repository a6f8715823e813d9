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
    summary, latency, throughput, journey, *_ = map(shown, cells)
    assert "java-keyshared" not in summary  # no notes about the capture
    assert "feed-batched" in latency
    assert throughput.count("▲") == 36
    assert throughput.count("▼") == 38
    assert "shape: (4, 6)" in journey


def test_it_has_no_outputs() -> None:
    cells = read().cells
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
