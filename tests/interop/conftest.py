"""Brokers for the tests of this directory, each started when the first test asks for it.

They are embedded ones, or with `--real-brokers` real ones. Marked `interop` is what needs Java or Go: real
brokers, clusters, and the clients of these languages. Most others are marked `slow`, as together they take
minutes.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from forked import Forked
from interop.archive import make_archive
from interop.brokers import Broker, Cluster, Embedded, Pulsar, Standalone, Unavailable
from interop.releases import java, release

if TYPE_CHECKING:
    from interop.sessions import Client, Clients, Java, Wheel

LIMIT = 400
"""Seconds that a test may take, with the start of what it is the first to use."""

_WITHOUT = {"NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}
_PROVIDER = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
_SETTINGS = ("PULSAR_", "PWIRE_")
_PWIRE = [sys.executable, "-c", "from pulsarctl_wire.cli import main; main()"]
BrokerKind = type[Embedded] | type[Standalone]
_P = TypeVar("_P", bound=Pulsar)
_INTEROP = {"obtainable", "cluster", "go"}  # fixtures
_QUICK = {"test_brokers", "test_lookup", "test_ping", "test_produce", "test_read"}  # files
_LONG = ("cluster", "consume", "proxy", "brokers", "doctor", "produce", "failure", "proxy_faults")  # files
_GO = Path(__file__).with_name("go")


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark them, and with `--dist=loadgroup` keep those on one worker that use the same brokers and clients.

    What a broker needs to start, or an official client, is no test's own time, but is limited with it. Files
    that take long come first: in the end no worker has much more to do than others.
    """
    here = Path(__file__).parent
    ranks = {f"test_{name}": rank for rank, name in enumerate(_LONG)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))
    for item in items:
        if item.path.parent == here:
            fixtures = getattr(item, "fixturenames", ())
            real = item.get_closest_marker("real")
            if real and not config.getoption("real_brokers"):
                item.add_marker(pytest.mark.skip(reason=f"needs a real broker: {real.args[0]}"))
            if real or config.getoption("real_brokers") or not _INTEROP.isdisjoint(fixtures):
                item.add_marker(pytest.mark.interop)
            elif item.path.stem not in _QUICK:
                item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(LIMIT))
            uses = [name for name in ("cluster", "secure") if name in fixtures]
            item.add_marker(pytest.mark.xdist_group((*uses, item.path.stem)[0]))


def running(make: Callable[[], _P]) -> Iterator[_P]:
    """What a fixture yields: a broker, or a cluster, that runs; skips where none is to be had."""
    try:
        made = make()
    except Unavailable as reason:
        pytest.skip(str(reason))
    with made as running:
        yield running
    for data in ("bookkeeper", "metadata", "data"):  # pytest keeps the rest for a while, logs among it
        shutil.rmtree(made.directory / data, ignore_errors=True)


@pytest.fixture(scope="session")
def obtainable() -> None:
    """Skips what needs a broker where none is to be had."""
    try:
        release()
        java()
    except Unavailable as reason:
        pytest.skip(str(reason))


Go = Callable[..., str]


@pytest.fixture(scope="session")
def go() -> Go:
    """Runs a command of `go`, in the module in go/ or at another place; its stdout. Skips without Go."""
    if not shutil.which("go"):
        pytest.skip("no go on PATH")

    def run(*words: str, place: Path = _GO) -> str:
        environment = {**os.environ, "CGO_ENABLED": "0"}  # no C compiler is needed then
        done = subprocess.run(["go", *words], cwd=place, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="session")
def archived(obtainable: None) -> None:
    """Lets real brokers start sooner, where there is room for an archive."""
    with suppress(OSError):
        make_archive()


@pytest.fixture(scope="session")
def broker_kind(request: pytest.FixtureRequest) -> BrokerKind:
    """What brokers are made of."""
    if not request.config.getoption("real_brokers"):
        return Embedded
    request.getfixturevalue("archived")
    return Standalone


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory, broker_kind: BrokerKind) -> Iterator[Broker]:
    """A broker as it comes, with transactions and acknowledgements inside batches."""
    place = tmp_path_factory.mktemp("broker")
    settings = {"acknowledgmentAtBatchIndexLevelEnabled": True}
    yield from running(lambda: broker_kind(place, transactions=True, settings=settings))


@pytest.fixture(scope="session")
def secure(tmp_path_factory: pytest.TempPathFactory, broker_kind: BrokerKind) -> Iterator[Broker]:
    """A broker that asks for a token, a password, or by TLS a certificate; again when a token expires."""
    place = tmp_path_factory.mktemp("secure")
    passwords = place / "passwords"
    passwords.write_text("client:$apr1$abcdefgh$vNJ/vIek3cVGNtHQHg/2/0\n")  # S3cret
    settings = {
        "authenticationRefreshCheckSeconds": 1,
        "authenticationProviders": ",".join(f"{_PROVIDER}{kind}" for kind in ("Token", "Tls", "Basic")),
        "basicAuthConf": f"file://{passwords}",
    }
    yield from running(lambda: broker_kind(place, tls=True, tokens=True, settings=settings))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, archived: None) -> Iterator[Cluster]:
    """Two brokers and the proxy."""
    place = tmp_path_factory.mktemp("cluster")
    yield from running(lambda: Cluster(place, brokers=2, proxy=True))


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """The full name of a topic that no other test, of this run or another, has."""
    test = re.sub(r"\W+", "-", request.node.name).strip("-")
    return f"persistent://public/default/{test}-{secrets.token_hex(4)}"


class Pwire:
    """Runs the command line, in a process of its own."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request

    def __call__(
        self,
        *args: object,
        url: str | None = None,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run `pwire ARGS --url URL`; the URL is that of the fixture `broker` unless given, "" adds none.

        `env` is added to the environment. Raises subprocess.TimeoutExpired after `timeout` seconds.
        """
        with self.start(*args, url=url, env=env) as process:
            out, err = process.communicate(stdin, timeout)
        return subprocess.CompletedProcess(process.args, process.wait(), out, err)

    def start(self, *args: object, url: str | None = None, env: Mapping[str, str] | None = None) -> Forked:
        """The same, while the test goes on."""
        return Forked(self.arguments(*args, url=url), self.environment(env))

    def command(self, *args: object, url: str | None = None) -> list[str]:
        """A command that does what `__call__` does, for a test that starts it as a user would."""
        return [*_PWIRE, *self.arguments(*args, url=url)]

    def arguments(self, *args: object, url: str | None = None) -> list[str]:
        """Those of `pwire` in a call."""
        if url is None:
            url = self._request.getfixturevalue("broker").url
        return [*map(str, args), *(["--url", url] if url else [])]

    @staticmethod
    def environment(added: Mapping[str, str] | None = None) -> dict[str, str]:
        """This process's environment, without what makes terminals of pipes or sets up sessions."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in _WITHOUT and (name == "PWIRE_PULSAR_CACHE" or not name.startswith(_SETTINGS))
        }
        return kept | dict(added or {})


@pytest.fixture
def pwire(request: pytest.FixtureRequest) -> Pwire:
    return Pwire(request)


@pytest.fixture(scope="module")
def java_client(obtainable: None) -> Iterator[Java]:
    from interop.sessions import Java

    with Java() as client:
        yield client


@pytest.fixture(scope="module")
def wheel_client() -> Iterator[Wheel]:
    from interop.sessions import Wheel

    with Wheel() as client:
        yield client


@pytest.fixture(params=["wheel", pytest.param("java", marks=pytest.mark.interop)])
def client(request: pytest.FixtureRequest) -> Client:
    """An official client."""
    found: Client = request.getfixturevalue(f"{request.param}_client")
    return found


@pytest.fixture
def clients(java_client: Java, wheel_client: Wheel) -> Clients:
    """Both of them, by name."""
    return {"java": java_client, "wheel": wheel_client}
