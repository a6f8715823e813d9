"""Releases of Apache Pulsar, and the Java that runs them.

A release is fetched once, through Maven, into ${PWIRE_PULSAR_CACHE:-~/.cache/pwire-pulsar}/dist/VERSION.
Programs of tests are compiled once, into programs/ beside dist/.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

VERSION = "4.0.8"
CACHE = Path(os.environ.get("PWIRE_PULSAR_CACHE") or Path.home() / ".cache" / "pwire-pulsar")
CONF = Path(__file__).resolve().parent / "conf"
QUICK = "-XX:TieredStopAtLevel=1"
"""Makes Java start sooner, and be slower later."""


_PATIENCE = 600  # seconds that Maven may take for 245 MB


class Unavailable(Exception):
    """This machine cannot run Pulsar; the text says on one line what is missing."""


class Failed(Exception):
    """A process or program did not do what it was started for."""


_unavailable: dict[str, Unavailable] = {}


def release(version: str = VERSION) -> Path:
    """The directory of an unpacked release, fetched when it is not there. Raises Unavailable; tries once."""
    if version in _unavailable:
        raise _unavailable[version]
    home = CACHE / "dist" / version
    if (home / "READY").exists():
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    with open(home.parent / f"{version}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be at it: wait for it
        if not (home / "READY").exists():
            with tempfile.TemporaryDirectory(dir=home.parent) as place:
                try:
                    _fetch(version, Path(place) / version)
                except Unavailable as reason:
                    _unavailable[version] = reason
                    raise
                shutil.rmtree(home, ignore_errors=True)
                (Path(place) / version).rename(home)
    return home


def _fetch(version: str, into: Path) -> None:
    if not shutil.which("mvn"):
        raise Unavailable("no Maven (mvn) on PATH to fetch Pulsar with")
    into.mkdir()
    artifact = f"org.apache.pulsar:pulsar-server-distribution:{version}:tar.gz:bin"
    copy = ("mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={into}")
    try:
        done = run(*copy, timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"Maven does not get Pulsar {version} within {_PATIENCE} s") from None
    archives = list(into.glob("*.tar.gz"))
    if done.returncode or not archives:
        error = re.search(r"\[ERROR\] (.+)", done.stdout + done.stderr)
        raise Unavailable(f"Maven gets no Pulsar {version}: {error[1] if error else 'it does not say why'}")
    run("tar", "xzf", archives[0], "-C", into, "--strip-components=1").check_returncode()
    archives[0].unlink()
    (into / "READY").touch()


def run(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command without input; what it writes is the result's text."""
    words = list(map(str, command))
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, **options)


@cache
def java() -> str:
    """The path of a Java 17 or newer: of JAVA_HOME, PATH or /usr/lib/jvm. Raises Unavailable."""
    candidates = [
        Path(os.environ.get("JAVA_HOME", "")) / "bin" / "java",
        Path(shutil.which("java") or "java"),
    ]
    for path in [*candidates, *sorted(Path("/usr/lib/jvm").glob("*/bin/java"))]:
        with contextlib.suppress(OSError):
            number = re.search(r'version "(\d+)', run(path, "-version").stderr)
            if number and int(number[1]) >= 17:
                return str(path)
    raise Unavailable("no Java 17 or newer in JAVA_HOME, on PATH or in /usr/lib/jvm")


@cache
def archive() -> Path:
    """Where classes of the release are as this Java has them in memory: with them it starts sooner."""
    build = run(java(), "-version").stderr
    return release() / f"classes-{hashlib.sha256(build.encode()).hexdigest()}.jsa"


def jvm(heap: str, *arguments: object, classes: str = "") -> list[str]:
    """The command that runs Java, with the classes of the release, and so much memory (as in -Xmx).

    `classes` is a directory with more of them.
    """
    memory = [f"-Xmx{heap}", f"-XX:MaxDirectMemorySize={heap}"]
    setting = [f"@{CONF}/jvm.options", f"-Dlog4j.configurationFile={CONF}/log4j2.xml"]
    if archive().exists():
        setting.append(f"-XX:SharedArchiveFile={archive()}")
    path = f"{release()}/lib/*:{classes}".rstrip(":")
    return [java(), *memory, *setting, "-cp", path, *map(str, arguments)]


def program(source: str | Path, *arguments: object, log: str = "error") -> list[str]:
    """The command that runs a Java program of one file (its path, or its text), which is compiled once.

    It logs from the level `log` on. Raises Failed, with what the compiler says, and Unavailable.
    """
    text = source.read_text() if isinstance(source, Path) else source
    name = re.findall(r"^public class (\w+)", text, re.MULTILINE)[0]
    classes = CACHE / "programs" / f"{VERSION}-{hashlib.sha256(text.encode()).hexdigest()}"
    if not classes.exists():
        classes.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=classes.parent) as place:
            file, made = Path(place) / f"{name}.java", Path(place) / "classes"
            file.write_text(text)
            compiler = [Path(java()).resolve().with_name("javac"), "-J" + QUICK, "-cp", f"{release()}/lib/*"]
            done = run(*compiler, "--release", 17, "-d", made, file)
            if done.returncode:
                raise Failed(f"Java ended with code {done.returncode}: {done.stderr.strip()}")
            with contextlib.suppress(OSError):  # another process was first
                made.rename(classes)
    return jvm("512m", QUICK, f"-Dlog.level={log}", name, *arguments, classes=str(classes))


def run_java(source: str | Path, *arguments: object, timeout: float = 120) -> str:
    """Run a Java program of one file (its path, or its text) with Pulsar's client and broker classes.

    Returns its stdout. Raises Failed, with its stderr, if its exit code is not 0, Unavailable,
    and subprocess.TimeoutExpired after `timeout` seconds.
    """
    done = run(*program(source, *arguments, log="warn"), timeout=timeout)
    if done.returncode:
        raise Failed(f"Java ended with code {done.returncode}: {done.stderr.strip()}")
    return done.stdout
