"""Build hook: compiles the modules that every frame passes through, by mypyc, where there is a C compiler.

They are plain Python, and run as such where they are not compiled, at about half the speed: in an editable
install, without a compiler, with PWIRE_PURE=1 in the environment.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "pulsarctl_wire"
COMPILED = (
    *(
        "wire/frame",
        "wire/origins",
        "wire/stream",
        "wire/session",
        "wire/topics",
        "wire/fields",
        "wire/payload",
    ),
    "wire/walk",
    *("capture/packets", "capture/halves", "capture/reassembly", "capture/files", "capture/sources"),
    *("table/builder", "table/columns", "record", "cli/line"),
)
"""Modules; a class of theirs that others inherit from says so (docs/architecture.md)."""

_ANYTHING = "from typing import Any\ndef __getattr__(name: str) -> Any: ...\n"
"""A stub. What the real ones promise is not so for every message received: text may be bytes."""

_COMPILE = """
import sys
from mypyc.build import mypycify
from setuptools import setup
extensions = mypycify(["--ignore-missing-imports", *sys.argv[2:]], debug_level="0", group_name=sys.argv[1])
for each in extensions:  # what compilers warn of in generated code is no concern of users
    each.extra_compile_args = [flag for flag in each.extra_compile_args if flag != "-Werror"]
build = ["build_ext", "--inplace"]
setup(name=sys.argv[1], packages=[sys.argv[1]], ext_modules=extensions, script_args=build)
"""


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the compiled modules to a wheel, beside their sources."""

    _scratch = ""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile them; say so and leave the wheel pure where that cannot be."""
        if version == "editable" or os.environ.get("PWIRE_PURE"):
            return
        self._scratch = tempfile.mkdtemp()
        shutil.copytree(Path(self.root, PACKAGE), Path(self._scratch, PACKAGE))
        for stub in Path(self._scratch, PACKAGE).rglob("*.pyi"):
            stub.write_text(_ANYTHING)
        paths = [f"{PACKAGE}/{name}.py" for name in COMPILED]
        command = [sys.executable, "-c", _COMPILE, PACKAGE, *paths]
        done = subprocess.run(command, cwd=self._scratch, capture_output=True, text=True)
        if done.returncode:
            last = (done.stdout + done.stderr).strip().rpartition("\n")[2]
            self.app.display_warning(f"pwire is not compiled, and slower for it: {last}")
            return
        for suffix in ("*.so", "*.pyd"):
            for path in Path(self._scratch).glob(suffix):
                build_data["force_include"][str(path)] = path.name
            for path in Path(self._scratch, PACKAGE).rglob(suffix):
                build_data["force_include"][str(path)] = str(path.relative_to(self._scratch))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Clean up."""
        if self._scratch:
            shutil.rmtree(self._scratch)
