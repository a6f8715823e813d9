"""Who may import whom (docs/architecture.md), and what no import may cost."""

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import pytest
from planted_faults import FAULTS, Fault

from pulsarctl_wire.errors import EXTRAS

PACKAGE = Path(__file__).parent.parent / "pulsarctl_wire"

MAY_IMPORT = {
    "errors": set[str](),
    "shipping": set[str](),
    "wire": {"errors"},
    "views": {"errors", "wire"},
    "record": {"wire", "views"},
    "capture": {"errors", "wire"},
    "sanitize": {"errors", "wire", "capture"},
    "stats": {"errors", "wire", "capture"},
    "store": {"errors", "wire"},
    "tui": {"errors", "wire", "record", "render", "stats", "store"},
    "table": {"errors", "wire", "capture"},
    "pipeline": {"errors", "wire", "capture", "table"},
    "reports": {"errors", "wire", "checks"},
    "data": {"errors", "table", "pipeline", "reports", "spark", "checks"},
    "spark": {"errors", "shipping", "wire", "capture", "table", "pipeline", "reports", "checks"},
    "faults": {"errors", "wire"},
    "scripting": {"errors", "wire", "faults"},
    "checks": {"errors", "wire"},
    "manual": {"wire", "checks"},
    "net": {"errors", "wire", "faults"},
    "broker": {"errors", "wire", "views", "faults", "net"},
    "conformance": {"errors", "wire", "checks", "net", "broker", "faults"},
    "render": {"errors", "wire", "views", "record", "stats", "checks", "__version__"},
    "cli": {
        *("errors", "wire", "views", "record", "render", "capture", "stats", "table", "pipeline", "spark"),
        *("net", "faults", "broker", "checks", "manual", "reports", "data", "sanitize"),
        *("conformance", "scripting", "store", "tui"),
    },
    "testing": {"errors", "wire", "record", "checks", "faults", "net", "broker", "cli"},
    "pytest_plugin": {"testing"},
}
ROOMS = {
    "wire": [".", "framing", "session"],
    "net": [".", "session", "proxy", "replay"],
    "pipeline": ["files", "decoding", "storage", "upkeep", "."],
    "broker": [
        *("basics", "storage", "schemas", "tenancy", "clients", "delivery", "topics", "cluster"),
        *("handlers", "admin", ".", "shell"),
    ],
    "conformance": [
        *("basics", "fuzzing", "connecting", "discovering", "producing", "consuming", "clients", "."),
    ],
}
"""The rooms of the larger parts: each imports only those before it. "." is the part's own folder."""
NOT_BETWEEN = {
    *(("net", "proxy", "replay"), ("net", "session", "proxy"), ("broker", "handlers", "admin")),
    *(
        ("conformance", "fuzzing", room)
        for room in ("connecting", "discovering", "producing", "consuming", ".")
    ),
}
"""Rooms of a part that do not import each other either."""
ONLY_IN = {
    "google": {
        *("wire", "views", "record", "render", "cli", "table", "stats", "broker", "checks", "manual"),
        *("sanitize", "conformance", "scripting", "store"),
    },
    "scapy": {"capture"},
    "typer": {"cli"},
    "rich": {"render", "cli", "tui"},
    "textual": {"tui"},
    "orjson": {"render", "cli", "views", "table"},
    "fsspec": {"pipeline"},
    "msgspec": {"wire", "capture", "pipeline", "store"},
    "rule_engine": {"cli"},
    "pyarrow": {"table", "pipeline", "spark", "data", "cli"},
    "deltalake": {"pipeline"},
    "duckdb": {"data"},
    "pyspark": {"spark", "data"},
    "asyncio": {"net", "cli", "broker", "testing", "conformance", "tui"},
    "cryptography": {"wire", "net", "capture"},
    "prometheus_client": {"cli"},
    "yaml": {"faults"},
    "socket": {"net", "capture", "broker", "spark", "tui"},
    "ssl": {"net"},
    "sqlite3": {"broker"},
    "aiohttp": {"net", "broker", "tui"},
}
CLIENTS = PACKAGE / "conformance" / "clients"
"""The only room of the conformance cases that has brokers: the others are about brokers anywhere."""
BROKER_SHELL = PACKAGE / "broker" / "shell"
"""The only room of the broker with an event loop, sockets, threads, files and the time."""
CLOCKLESS = {"wire", "views", "record", "faults", "render", "checks", "manual"}
"""Parts that ask for no time, no randomness (but faults, of a given seed) and no files."""


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported(path: Path, *, when_loaded: bool = False) -> set[str]:
    """What a module imports; only what it imports when it is itself imported if `when_loaded`."""
    names, todo = set[str](), list[ast.AST]([parsed(path)])
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not (when_loaded and (is_function or is_for_types)):
            todo += ast.iter_child_nodes(node)
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
            allowed = (
                MAY_IMPORT[part]
                | {part}
                | ({"__version__"} if part in ("cli", "net", "broker", "pipeline") else set())
            )
            assert target in allowed, f"{part} imports {name}"
        elif top in ONLY_IN:
            assert part in ONLY_IN[top], f"{part} imports {name}"
        elif part in CLOCKLESS and path.name != "schemas.py":  # that reads the file a user names
            impure = {"time", "random", "os", "io", "sys", "logging"}
            impure -= {"faults": {"random"}, "render": {"io"}}.get(part, set())
            assert top not in impure, f"{part} imports {name}"


@pytest.mark.parametrize("path", sorted((PACKAGE / "conformance").rglob("*.py")), ids=lambda path: path.stem)
def test_cases_for_brokers_have_none(path: Path) -> None:
    own = ("pulsarctl_wire.broker", "pulsarctl_wire.faults")
    assert path.parent == CLIENTS or not {name for name in imported(path) if name.startswith(own)}


MAX_MODULES = 25
"""Of a folder."""


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def reachable(imports: dict[str, set[str]], name: str) -> set[str]:
    """The modules that a module imports, directly or not."""
    found, todo = set[str](), [name]
    while todo:
        new = imports[todo.pop()] - found
        found |= new
        todo += new
    return found


def circles_of(imports: dict[str, set[str]]) -> list[list[str]]:
    """The modules that import each other, in any number of steps."""
    below = {name: reachable(imports, name) for name in imports}
    circles = {
        frozenset(other for other in below[name] if name in below[other])
        for name in imports
        if name in below[name]
    }
    return sorted(map(sorted, circles))


def test_circles_are_found() -> None:
    imports = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": {"d"}, "f": {"a", "d"}}
    assert circles_of(imports) == [["a", "b", "c"], ["d", "e"]]


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports under TYPE_CHECKING and in functions count, too: so they do for whoever reads."""
    names = {module_name(path) for path in MODULES}
    imports = {}
    for path in MODULES:
        name = module_name(path)
        targets = (each if each in names else each.rpartition(".")[0] for each in imported(path))
        imports[name] = {each for each in targets if each in names} - {name}
    assert not circles_of(imports)


WITH_EXTRAS = {
    *("table", "data", "spark", "cli.capture.table_job"),
    *("tui", "cli.data.extract_job", "pipeline.cache", "pipeline.decoding.opened", "pipeline.decoding.rows"),
    *(
        "pipeline.files.filesystems",
        "pipeline.files.captures",
        "pipeline.run",
        "pipeline.storage",
        "pipeline.upkeep",
    ),
}
"""The modules, or folders of them, that cannot be imported without the libraries of extras."""


def test_few_modules_need_the_libraries_of_extras() -> None:
    imports: defaultdict[str, set[str]] = defaultdict(set)
    for path in MODULES:
        for name in imported(path, when_loaded=True):
            parts = name.split(".")
            imports[module_name(path)] |= {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    libraries = {library for names in EXTRAS.values() for library in names}
    needing = {name for name in list(imports) if reachable(imports, name) & libraries}

    def folder(name: str) -> str:
        return next((each for each in WITH_EXTRAS if f"{name}.".startswith(f"pulsarctl_wire.{each}.")), name)

    assert {folder(name) for name in needing} == WITH_EXTRAS


def test_folders_are_not_crowded() -> None:
    modules = Counter(path.parent for path in PACKAGE.rglob("*.py") if not path.name.endswith("_pb2.py"))
    assert not {folder: number for folder, number in modules.items() if number > MAX_MODULES}


def room_of(part: str, names: list[str]) -> str:
    """The room of a module by its names below the part."""
    return names[0] if len(names) > 1 and (PACKAGE / part / names[0]).is_dir() else "."


IN_ROOMS = [path for path in MODULES if part_of(path) in ROOMS]


@pytest.mark.parametrize("path", IN_ROOMS, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_rooms_import_only_those_before_them(path: Path) -> None:
    part, *names = path.relative_to(PACKAGE).with_suffix("").parts
    order, room = ROOMS[part], room_of(part, names)
    for name in imported(path):
        if name.startswith(f"pulsarctl_wire.{part}."):
            other = room_of(part, name.split(".")[2:])
            assert order.index(other) <= order.index(room), f"{room} imports {name}"
            assert (part, other, room) not in NOT_BETWEEN, f"{room} imports {name}"


MAX_LINES, MAX_LINES_OF_A_FUNCTION, MAX_PARAMETERS = 500, 60, 8


def _too_large(path: Path) -> set[str]:
    """The module, if it has too many lines; its functions with too many (decorators count) or parameters."""
    name, text = str(path.relative_to(PACKAGE)), path.read_text(encoding="utf-8")
    found = {name} if len(text.splitlines()) > MAX_LINES else set[str]()
    for node in ast.walk(parsed(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            given = node.args
            parameters = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
            many = len([each for each in parameters if each not in ("self", "cls")]) > MAX_PARAMETERS
            if many or (node.end_lineno or 0) - first >= MAX_LINES_OF_A_FUNCTION:
                found.add(f"{name}: {node.name}")
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_say_what_they_are(path: Path) -> None:
    assert ast.get_docstring(parsed(path))


def test_modules_and_functions_are_small() -> None:
    assert not set().union(*map(_too_large, MODULES))


def test_what_others_may_have_written_is_never_unpickled() -> None:
    executed = re.compile(r"pickle|marshal|shelve|dill|joblib|copyreg|__reduce\w*__|^eval$|^exec$")
    found = set()
    for path in MODULES:
        for node in ast.walk(parsed(path)):
            names = [getattr(node, name, None) for name in ("id", "attr", "arg", "name", "module")]
            if any(isinstance(name, str) and executed.search(name) for name in names):
                found.add(str(path.relative_to(PACKAGE)))
    assert found == {"scripting/program.py"}  # it runs the file that --script names


CORE = [
    path
    for path in sorted((PACKAGE / "broker").rglob("*.py"))
    if path.parent != BROKER_SHELL and path.name != "settings.py"  # that reads the file a user names
]


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_core_of_the_broker_has_no_socket_clock_event_loop_or_files(path: Path) -> None:
    found = imported(path)
    impure = {"asyncio", "time", "random", "os", "io", "pathlib", "socket", "ssl", "sqlite3", "aiohttp"}
    assert not {name.split(".")[0] for name in found} & (impure | {"threading", "secrets", "uuid"})
    outside = ("pulsarctl_wire.net", "pulsarctl_wire.broker.shell")
    assert not {name for name in found if name.startswith(outside)}


PURE_SESSIONS = [f"session.{name}" for name in ("send_queue", "receive_queue", "acks", "inbox")]


@pytest.mark.parametrize("name", ["outbox", "protocol", *PURE_SESSIONS])
def test_the_state_of_sessions_has_no_socket_clock_or_event_loop(name: str) -> None:
    found = {each.split(".")[0] for each in imported(PACKAGE / "net" / f"{name.replace('.', '/')}.py")}
    assert not found & {"asyncio", "os", "random", "socket", "ssl", "time"}
    assert not loaded_by(f"import pulsarctl_wire.net.{name}") & {"asyncio", "ssl"}


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
    heavy |= {"numpy", "pyarrow", "pandas", "pyspark", "asyncio"}
    heavy |= {"cryptography", "msgspec", "prometheus_client", "yaml"}
    assert not loaded_by("from pulsarctl_wire.cli import verbs; [*map(verbs.load, verbs.NAMES)]") & heavy
    assert not loaded_by("import pulsarctl_wire") & heavy
    assert not loaded_by("import pulsarctl_wire.cli") & (heavy | {"typer", "rich"})
    shown = loaded_by(
        "from typer.testing import CliRunner as R; "
        "from pulsarctl_wire.cli.verbs import app; R().invoke(app, '-h')"
    )
    assert "rich" in shown
    assert not shown & (heavy | {"markdown_it", "pygments"})
    capture = loaded_by("from pulsarctl_wire import read_frames")
    assert not capture & {"scapy", "orjson", "rule_engine", "typer", "rich", "cramjam", "lz4", "numpy"}


def test_the_pytest_plugin_imports_nothing_before_it_is_used() -> None:
    ours = "[name for name in sys.modules if name.startswith('pulsarctl_wire.')]"
    script = (
        f"import sys; import pulsarctl_wire.pytest_plugin; assert {ours} == ['pulsarctl_wire.pytest_plugin']"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.file)
def test_faults_can_be_planted(fault: Fault) -> None:
    """tests/planted_faults.py names code by its text, and tests by their paths."""
    assert (PACKAGE / fault.file).read_text().count(fault.old) == 1
    assert all((Path(__file__).parent / name).exists() for name in fault.tests.split())
