"""Build hook: compiles the modules that every frame passes through, with mypyc, if there is a C compiler.

They are plain Python, and run uncompiled at a quarter to half the speed: in an editable
install, without a compiler, or with PWIRE_PURE=1 in the environment.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "pulsarctl_wire"
COMPILED = (
    "broker/basics/scheduler",
    "broker/clients/connection",
    "broker/handlers/producers",
    "broker/storage/journal",
    "broker/storage/log",
    "broker/tenancy/policies",
    "broker/topics/non_persistent",
    "broker/topics/persistent",
    "broker/topics/stored_topic",
    "broker/topics/topic",
    "capture/checksum",
    "capture/copies",
    "capture/exported",
    "capture/files",
    "capture/halves",
    "capture/links",
    "capture/packets",
    "capture/reassembly",
    "capture/sources",
    "capture/tunnels",
    "capture/tls/connection",
    "capture/tls/negotiation",
    "capture/tls/opening",
    "capture/tls/records",
    "capture/tls/schedule",
    "capture/tls/sides",
    "checks/conduct",
    "checks/facts",
    "checks/finding",
    "checks/ledgers",
    "checks/row_events",
    "checks/state",
    "checks/tables",
    "pipeline/decoding/decode",
    "render/jsonl",
    "render/line",
    "render/plan",
    "stats/counting",
    "store/rows",
    "store/writer",
    "table/columns",
    "table/frames",
    "wire/chunks",
    "wire/fast_fields",
    "wire/fields",
    "wire/fixed",
    "wire/frame",
    "wire/frame_entry",
    "wire/frame_layout",
    "wire/framing/lost",
    "wire/framing/resync",
    "wire/framing/stream",
    "wire/framing/walk",
    "wire/framing/web_stream",
    "wire/inspection",
    "wire/payload",
    "wire/session/counts",
    "wire/session/exchanges",
    "wire/session/knowledge",
    "wire/session/ledgers",
    "wire/session/partial_state",
    "wire/session/state",
    "wire/varint",
    "record/__init__",
)
"""Modules to compile; their classes that others inherit from must be marked (docs/architecture.md)."""

_ANYTHING = "from typing import Any\ndef __getattr__(name: str) -> Any: ...\n"
"""A stub. The types in the real ones are wrong for some received messages: text may be bytes."""

_COMPILE = """
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from mypyc.build import mypycify
from setuptools import setup
from setuptools.command.build_ext import build_ext

class Parallel(build_ext):
    def build_extensions(self):
        compile = self.compiler.compile
        def compile_all(sources, **options):
            def compile_one(source):
                objects = compile([source], **options)
                print("compiled", os.path.basename(source), flush=True)
                return objects
            largest_first = sorted(sources, key=os.path.getsize, reverse=True)
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                return sum(pool.map(compile_one, largest_first), [])
        self.compiler.compile = compile_all
        super().build_extensions()

name, *paths = sys.argv[1:]
paths.append("--ignore-missing-imports")
extensions = mypycify(paths, opt_level="1", debug_level="0", group_name=name, multi_file=True)
for each in extensions:  # warnings about generated code must not stop a build
    each.extra_compile_args = [flag for flag in each.extra_compile_args if flag != "-Werror"]
build = ["-q", "build_ext", "--inplace"]
setup(name=name, packages=[name], ext_modules=extensions, script_args=build, cmdclass={"build_ext": Parallel})
"""


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the compiled modules to a wheel, next to their sources."""

    _scratch = ""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile them; if that fails, show a warning and leave the wheel pure."""
        if version == "editable" or os.environ.get("PWIRE_PURE"):
            return
        self._scratch = tempfile.mkdtemp()
        shutil.copytree(Path(self.root, PACKAGE), Path(self._scratch, PACKAGE))
        for stub in Path(self._scratch, PACKAGE).rglob("*.pyi"):
            stub.write_text(_ANYTHING)
        paths = [f"{PACKAGE}/{name}.py" for name in COMPILED]
        command = [sys.executable, "-c", _COMPILE, PACKAGE, *paths]
        with subprocess.Popen(command, cwd=self._scratch, stdout=PIPE, stderr=STDOUT, text=True) as compiling:
            line = ""
            for line in compiling.stdout or ():
                self.app.display_info(line.rstrip())  # pip shows it with -v
        if compiling.returncode:
            self.app.display_warning(f"pwire is not compiled, and slower for it: {line.rstrip()}")
            return
        for suffix in ("*.so", "*.pyd"):
            for path in Path(self._scratch).glob(suffix):
                build_data["force_include"][str(path)] = path.name
            for path in Path(self._scratch, PACKAGE).rglob(suffix):
                build_data["force_include"][str(path)] = str(path.relative_to(self._scratch))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary files."""
        if self._scratch:
            shutil.rmtree(self._scratch)
