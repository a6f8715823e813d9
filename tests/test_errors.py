"""What an error says about the way out of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pulsarctl_wire.errors import EXTRAS, how_to_install

INDEX = "'pulsarctl-wire[spark]'"
DIRECTORY: dict[str, Any] = {"url": "file:///home/me/my%20wire", "dir_info": {}}
EDITABLE: dict[str, Any] = {"url": "file:///src/wire", "dir_info": {"editable": True}}
WHEEL: dict[str, Any] = {"url": "file:///tmp/pulsarctl_wire-1-py3-none-any.whl", "archive_info": {}}
GIT: dict[str, Any] = {
    "url": "https://example.org/wire.git",
    "vcs_info": {"vcs": "git", "commit_id": "0123abcd"},
}


@pytest.mark.parametrize(
    ("origin", "mark", "command"),
    [
        (None, None, f"pip install {INDEX}"),
        (EDITABLE, None, "pip install -e '/src/wire[spark]'"),
        (DIRECTORY, None, "pip install '/home/me/my wire[spark]'"),
        (WHEEL, None, f"pip install 'pulsarctl-wire[spark] @ {WHEEL['url']}'"),
        (GIT, None, "pip install 'pulsarctl-wire[spark] @ git+https://example.org/wire.git@0123abcd'"),
        (None, "pipx_metadata.json", f"pipx install --force {INDEX}"),
        (EDITABLE, "pipx_metadata.json", "pipx install --force -e '/src/wire[spark]'"),
        (None, "uv-receipt.toml", f"uv tool install --force {INDEX}"),
    ],
)
def test_an_extra_is_installed_from_where_pwire_was(
    origin: dict[str, Any] | None,
    mark: str | None,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    info = tmp_path / "pulsarctl_wire-9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pulsarctl-wire\nVersion: 9\n")
    if origin is not None:
        (info / "direct_url.json").write_text(json.dumps(origin))
    if mark:
        (tmp_path / mark).touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert how_to_install("spark") == command


def test_each_extra_brings_its_libraries() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no tomllib")
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert {*EXTRAS} == {*extras} - {"dev"}
    brought = dict.fromkeys(("grpc", "grpc_status"), "pyspark[connect]") | {"textual_serve": "textual-serve"}
    for extra, libraries in EXTRAS.items():
        for library in libraries:
            assert any(each.startswith(brought.get(library, library)) for each in extras[extra]), library
            assert not any(each.startswith(library) for each in project["dependencies"]), library
