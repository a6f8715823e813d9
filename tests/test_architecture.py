"""Who may import whom (docs/architecture.md), and what no import may cost."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "pulsarctl_wire"

MAY_IMPORT = {
    "errors": set[str](),
    "wire": {"errors"},
    "views": {"errors", "wire"},
    "record": {"wire", "views"},
    "capture": {"errors", "wire"},
    "stats": {"errors", "wire", "capture"},
    "table": {"errors", "wire", "capture"},
    "pipeline": {"errors", "wire", "capture", "table"},
    "spark": {"errors", "wire", "capture", "table", "pipeline"},
    "faults": {"errors", "wire"},
    "net": {"errors", "wire", "faults"},
    "cli": {
        *("errors", "wire", "views", "record", "capture", "stats", "table", "pipeline", "spark"),
        *("net", "faults"),
    },
}
ONLY_IN = {
    "google": {"wire", "views", "record", "cli", "table", "stats"},
    "scapy": {"capture"},
    "typer": {"cli"},
    "rich": {"cli"},
    "orjson": {"cli", "views", "table"},
    "msgpack": {"pipeline"},
    "rule_engine": {"cli"},
    "pyarrow": {"table", "pipeline", "spark", "cli"},
    "hdrh": {"stats"},
    "pyspark": {"spark"},
    "fastavro": {"views"},
    "asyncio": {"net", "cli"},
    "cryptography": {"net"},
    "prometheus_client": {"cli"},
    "yaml": {"faults"},
    "socket": {"net", "capture"},
    "ssl": {"net"},
}
CLOCKLESS = {"wire", "views", "record", "faults"}
"""Parts that ask for no time, no randomness (but faults, of a given seed) and no files."""


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


MODULES = [
    *sorted(
        path for path in PACKAGE.rglob("*.py") if not path.name.endswith("_pb2.py") and path.parent != PACKAGE
    ),
    *(path for path in PACKAGE.glob("*.py") if path.name != "__init__.py"),
]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_stay_within_the_table(path: Path) -> None:
    part = part_of(path)
    for name in imported(path):
        top, *rest = name.split(".")
        if top == "pulsarctl_wire":
            target = rest[0] if rest else ""
            allowed = MAY_IMPORT[part] | {part} | ({"__version__"} if part in ("cli", "net") else set())
            assert target in allowed, f"{part} imports {name}"
        elif top in ONLY_IN:
            assert part in ONLY_IN[top], f"{part} imports {name}"
        elif part in CLOCKLESS and path.name != "schemas.py":  # that reads the file a user names
            impure = {"time", "random", "os", "io", "sys", "logging"}
            if part == "faults":
                impure.remove("random")
            assert top not in impure, f"{part} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_say_what_they_are_and_stay_small(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 600
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node) is not None:
            first = node.body[1] if len(node.body) > 1 else node.body[0]
            assert (node.end_lineno or 0) - first.lineno < 60, f"{path.name}: {node.name} is too long"


PICKLES = {"cli/twin.py": "a pipe to our own fork, which nobody else can write to"}
"""Modules that may read pickles, and why nobody else can have written those."""


def test_what_others_may_have_written_is_never_unpickled() -> None:
    executed = re.compile(r"pickle|marshal|shelve|dill|joblib|copyreg|__reduce\w*__|^eval$|^exec$")
    found = set()
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [getattr(node, name, None) for name in ("id", "attr", "arg", "name", "module")]
            if any(isinstance(name, str) and executed.search(name) for name in names):
                found.add(str(path.relative_to(PACKAGE)))
    assert found == set(PICKLES)


def test_the_core_prints_nothing() -> None:
    for path in MODULES:
        if part_of(path) != "cli":
            text = path.read_text(encoding="utf-8")
            assert "sys.stdout" not in text, path
            assert "sys.stderr" not in text, path


def loaded_by(code: str) -> set[str]:
    script = f"import sys; {code}; print('\\n'.join(sys.modules))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in result.stdout.split()}


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    heavy = {"google", "scapy", "orjson", "rule_engine", "zstandard", "crc32c", "cramjam", "lz4"}
    heavy |= {"numpy", "pyarrow", "pandas", "pyspark", "hdrh", "fastavro", "asyncio"}
    heavy |= {"cryptography", "prometheus_client", "yaml"}
    assert not loaded_by("from pulsarctl_wire.cli import app, verbs; [*map(verbs.load, verbs.NAMES)]") & heavy
    assert not loaded_by("import pulsarctl_wire") & heavy
    capture = loaded_by("from pulsarctl_wire import read_frames")
    assert not capture & {"scapy", "orjson", "rule_engine", "typer", "rich", "cramjam", "lz4", "numpy"}
