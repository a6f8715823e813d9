"""Brokers on loopback: real Apache Pulsar, standalone or a cluster with its proxy; and the embedded one.

What is started dies with the Python process that started it, however that one ends.

    python tests/interop/brokers.py run --tls     # for developers and benchmarks; prints JSON, on one line
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import secrets
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if not __package__:  # run as a program
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from interop.credentials import Certificates, make_certificates
from interop.processes import HOST, Process, free_port
from interop.releases import CONF, QUICK, Failed, Unavailable, jvm, release, run, run_java

from pulsarctl_wire.conformance.basics.admin import Admin, RestError
from pulsarctl_wire.conformance.basics.tokens import make_tokens, sign
from pulsarctl_wire.errors import Unreachable

if TYPE_CHECKING:
    from typing_extensions import Self  # Python 3.10 has none

__all__ = ["Broker", "Cluster", "Embedded", "Failed", "RestError", "Standalone", "Unavailable", "run_java"]

HEALTHY_WITHIN = 180.0
"""Seconds a process may take to become healthy: far more than it takes, for machines that are busy."""

_HEALTH = "/admin/v2/brokers/health"
_LOOPBACK = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
_OF_CLUSTERS = {
    "proxyRoles": "proxy",
    "defaultNumberOfNamespaceBundles": 16,
    "metadataStoreSessionTimeoutMillis": 6000,  # so long a broker that was killed keeps its topics
}
_AUTHENTICATION = "org.apache.pulsar.broker.authentication.AuthenticationProvider"


class Redirect(NamedTuple):
    """Service URLs: of the broker that will answer a lookup by Redirect, and of the one it redirects to."""

    ask: str
    leader: str


# -- processes


@dataclass
class _Role:
    stage: int  # those of a stage start at once, after the stage before
    process: Process
    probe: Callable[[], object]  # raises until the process is healthy


class Pulsar:
    """What a standalone broker and a cluster have in common: a directory, settings, and processes by role.

    `with` starts it and, at the end, kills it; the directory is left. `url` and `http_url` are a broker's;
    `url_tls` is empty unless made with `tls`. `tokens`, unless empty, are by name: `admin` may all,
    `client` may produce and consume in public/default, `stranger` nothing; `expired`, `forged`.
    `ports` are all those of the binary protocol.
    """

    url: str
    http_url: str
    url_tls = ""

    def __init__(
        self, directory: Path, tls: bool, tokens: bool, transactions: bool, settings: Mapping[str, object]
    ) -> None:
        self.directory = directory.resolve()
        self._conf = self.directory / "conf"
        self._conf.mkdir(parents=True, exist_ok=True)
        self._roles: dict[str, _Role] = {}
        self._wanted = settings
        self.ports: set[int] = set()
        self._key = secrets.token_bytes(32)
        self.tokens = make_tokens(self._key) if tokens else {}
        self._tls = make_certificates(self._conf) if tls else None
        self._settings: dict[str, object] = {"transactionCoordinatorEnabled": transactions}
        if self._tls:
            self._settings |= {
                "tlsCertificateFilePath": self._tls.server_cert,
                "tlsKeyFilePath": self._tls.server_key,
                "tlsTrustCertsFilePath": self._tls.ca,
                "brokerClientTrustCertsFilePath": self._tls.ca,
            }
        if tokens:
            (self._conf / "token.key").write_bytes(self._key)
            self._settings |= {"authorizationEnabled": True, "superUserRoles": "admin,proxy"}
            self._settings |= self._authentication("admin")

    def _authentication(self, role: str) -> dict[str, object]:
        """Settings of who takes tokens and certificates, and itself connects to brokers as `role`."""
        kinds = ["Token", "Tls"] if self._tls else ["Token"]
        return {
            "authenticationEnabled": True,
            "authenticationProviders": ",".join(_AUTHENTICATION + kind for kind in kinds),
            "tokenSecretKey": f"file://{self._conf}/token.key",
            "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
            "brokerClientAuthenticationParameters": "token:" + self.tokens[role],
        }

    def _configure(
        self, name: str, settings: Mapping[str, object], template: str = "", ours: str = ""
    ) -> Path:
        """Write a configuration: a release's `template`, changed by a file of ours, changed by `settings`."""
        values = self._template(template or name, ours or name)
        values |= {key: json.dumps(it) if isinstance(it, bool) else it for key, it in settings.items()}
        path = self._conf / name
        path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        return path

    def _template(self, template: str, ours: str) -> dict[str, object]:
        values: dict[str, object] = {}
        for file in (release() / "conf" / template, CONF / ours):
            lines = [line for line in file.read_text().splitlines() if "=" in line and line[0] != "#"]
            values |= dict(line.split("=", 1) for line in lines)
        return values

    def _configure_broker(
        self, name: str, template: str, port: int | None = None
    ) -> tuple[Path, str, str, str]:
        """Returns the file, and the URLs of its binary, TLS (or "") and HTTP ports."""
        binary, web, secure = free_port(port), free_port(), free_port()
        self.ports |= {binary, secure}
        ports = {"brokerServicePort": binary, "webServicePort": web}
        url, url_tls, http_url = f"pulsar://{HOST}:{binary}", "", f"http://{HOST}:{web}"
        if self._tls:
            ports["brokerServicePortTls"] = secure
            url_tls = f"pulsar+ssl://{HOST}:{secure}"
        settings = {**self._settings, **ports, **self._wanted}
        return self._configure(name, settings, template, "broker.conf"), url, url_tls, http_url

    def _add(self, role: str, stage: int, probe: str | int, heap: str, *arguments: object) -> None:
        """`probe` is the URL of a health check, or a port that is to accept connections."""

        def answers() -> None:
            if isinstance(probe, str):
                self.rest("GET", probe)
            else:
                socket.create_connection((HOST, probe), 1).close()

        process = Process(jvm(heap, *arguments), self.directory / f"{role}.log")
        self._roles[role] = _Role(stage, process, answers)

    def _selected(self, role: str | None) -> dict[str, _Role]:
        return {role: self._roles[role]} if role else self._roles

    def start(self, role: str | None = None) -> None:
        """Start what does not run (of `role`, or all) on its data and ports, and wait until it is healthy.

        Raises Failed if a process ends, or is not healthy within HEALTHY_WITHIN seconds.
        """
        down = {name: it for name, it in self._selected(role).items() if not it.process.pid}
        for stage in sorted({it.stage for it in down.values()}):
            begun = {name: it for name, it in down.items() if it.stage == stage}
            for it in begun.values():
                it.process.start()
            for name, it in begun.items():
                self._wait(name, it.probe)
        if len(self.pids()) == len(self._roles):
            # the default namespace is made a moment after the first broker is healthy
            namespace = "/admin/v2/namespaces/public/default"
            self._wait(next(reversed(down), "broker"), lambda: self.rest("GET", namespace))
            if self.tokens:
                self.rest("POST", f"{namespace}/permissions/client", ["produce", "consume"])

    def _wait(self, name: str, probe: Callable[[], object]) -> None:
        process = self._roles[name].process
        deadline = time.monotonic() + HEALTHY_WITHIN
        while True:
            try:
                probe()
                return
            except (OSError, Unreachable, RestError) as error:
                if not process.pid or time.monotonic() > deadline:
                    said = process.log.read_text(errors="replace").splitlines()[-20:]
                    raise Failed("\n".join([f"{name} is not healthy: {error}", *said])) from error
            time.sleep(0.1)

    def kill(self, role: str | None = None) -> None:
        """SIGKILL to `role`, or to all; returns when they are gone."""
        for it in self._selected(role).values():
            it.process.kill()

    def stop(self, role: str | None = None, patience: float = 30) -> None:
        """SIGTERM to `role`, or to one after the other; SIGKILL to what takes over `patience` seconds."""
        for it in reversed(self._selected(role).values()):
            it.process.stop(patience)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:  # an interrupt too
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def tls(self) -> Certificates:
        """Raises Failed if there are none."""
        if not self._tls:
            raise Failed("made without tls")
        return self._tls

    def pids(self) -> dict[str, int]:
        """Process numbers by role, of what runs."""
        return {name: it.process.pid for name, it in self._roles.items() if it.process.pid}

    def token(self, role: str = "client", expires_in: float | None = None, **claims: object) -> str:
        """A token for `role` that expires in so many seconds, at the clock's next whole second.

        `claims` are others that it has.
        """
        expiry = {} if expires_in is None else {"exp": math.ceil(time.time() + expires_in)}
        return sign(self._key, **{"sub": role, **expiry, **claims})

    def rest(self, method: str, path: str, body: object = None, *, timeout: float = 30) -> Any:
        """Call the admin API, as `admin`, at a path or at another broker's URL; follows redirects.

        `body` is sent as JSON, unless None. Returns what the answer's JSON says, or its text if it is none.
        Raises RestError, and Unreachable if there is no answer in `timeout` seconds.
        """
        headers = {"Authorization": "Bearer " + self.tokens["admin"]} if self.tokens else {}
        return Admin(self.http_url, headers, timeout=timeout).call_now(method, path, body)

    def describe(self) -> dict[str, Any]:
        """All there is to know for connecting, as JSON values."""
        told: dict[str, Any] = {"url": self.url, "http_url": self.http_url, "directory": str(self.directory)}
        if self._tls:
            files = {name: str(path) for name, path in self._tls._asdict().items()}
            told |= {"url_tls": self.url_tls, "tls": files}
        return told | {"tokens": self.tokens, "pids": self.pids()}


class Broker(Pulsar):
    """A broker that is one process."""

    @property
    def pid(self) -> int:
        """Number of its process. Raises KeyError if there is none."""
        return self.pids()["broker"]

    def wait(self) -> None:
        """Return when its process has ended."""
        self._roles["broker"].process.wait()


class Standalone(Broker):
    """A broker with its own bookie and metadata, in one process, keeping them below `directory`.

    `tls` opens a TLS port too, which accepts client certificates; `tokens` switches authentication and
    authorization on (with `tls`, by client certificates too). `settings` are lines of standalone.conf.
    `java` are options of Java; without others it starts sooner and is slower later. Raises Unavailable, and
    Failed if `port` is taken.
    """

    def __init__(
        self,
        directory: Path,
        *,
        tls: bool = False,
        tokens: bool = False,
        transactions: bool = False,
        settings: Mapping[str, object] = MappingProxyType({}),
        port: int | None = None,
        java: Sequence[str] = (QUICK,),
    ) -> None:
        super().__init__(directory, tls, tokens, transactions, settings)
        self._settings |= {"listeningInterface": _LOOPBACK, "allowEphemeralPorts": True}  # the bookie's
        configured = self._configure_broker("standalone.conf", "standalone.conf", port)
        conf, self.url, self.url_tls, self.http_url = configured
        self._metadata = self.directory / "metadata"
        starter = [f"-Dpulsar.config.file={conf}", "org.apache.pulsar.PulsarStandaloneStarter"]
        places = ["--metadata-dir", self._metadata, "--bookkeeper-dir", self.directory / "bookkeeper"]
        starter += [*map(str, places), "--bookkeeper-port", str(free_port())]
        arguments = [*java, *starter, "-c", conf, "-nfw", "-nss", "-a", HOST]
        self._add("broker", 0, _HEALTH, "1g", *arguments)

    def start(self, role: str | None = None) -> None:
        """Start the broker if it does not run, on its data and ports; raises as the class above says."""
        if self._metadata.exists() and not self.pids() and not self._roles["broker"].process.stopped:
            # A killed bookie stays registered, and its successor may fight for that without end: Pulsar takes
            # its own removal of the old registration for the loss of the new one.
            run_java(CONF / "Unlock.java", f"rocksdb://{self._metadata}")
        super().start(role)


class Embedded(Broker):
    """The embedded broker, which keeps its data below `directory`; options are those of `Standalone`."""

    def __init__(
        self,
        directory: Path,
        *,
        tls: bool = False,
        tokens: bool = False,
        transactions: bool = False,
        settings: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        super().__init__(directory, tls, tokens, transactions, settings)
        conf, self.url, self.url_tls, self.http_url = self._configure_broker("embedded.conf", "")
        options = ["--conf", conf, "--data", self.directory / "data", "--control", ""]
        command = [sys.executable, "-c", "from pulsarctl_wire.cli import main; main()", "broker", *options]
        self._roles["broker"] = _Role(
            0, Process([*map(str, command)], self.directory / "broker.log"), self._check
        )

    def _check(self) -> None:
        self.rest("GET", _HEALTH)

    def _template(self, template: str, ours: str) -> dict[str, object]:
        return {}


class Cluster(Pulsar):
    """ZooKeeper, a bookie, `brokers` brokers and, if wanted, the proxy, each a process.

    Their roles are `zookeeper`, `bookie`, `broker-1` and on, `proxy`. `urls`, `urls_tls` and `http_urls` are
    those of the brokers, `url` and so on the first one's, `proxy_url` the proxy's or empty. Options are those
    of `Standalone`, with lines of broker.conf; the load manager is the modular one.
    """

    def __init__(
        self,
        directory: Path,
        *,
        brokers: int = 2,
        proxy: bool = False,
        tls: bool = False,
        tokens: bool = False,
        transactions: bool = False,
        settings: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        super().__init__(directory, tls, tokens, transactions, settings)
        zookeeper, bookie = free_port(), free_port()
        self._store = f"zk:{HOST}:{zookeeper}"
        own: dict[str, object] = {"dataDir": self.directory / "zookeeper", "clientPort": zookeeper}
        conf = self._configure("zookeeper.conf", own)
        starter = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        self._add("zookeeper", 0, zookeeper, "256m", QUICK, starter, conf)

        own = {"zkServers": f"{HOST}:{zookeeper}", "bookiePort": bookie}
        own["listeningInterface"] = _LOOPBACK
        for place in ("journalDirectory", "ledgerDirectories"):
            own[place] = self.directory / "bookkeeper" / place
        conf = self._configure("bookkeeper.conf", own)
        self._add("bookie", 1, bookie, "512m", QUICK, "org.apache.bookkeeper.server.Main", "--conf", conf)

        own = {"metadataStoreUrl": self._store, "configurationMetadataStoreUrl": self._store}
        own["clusterName"] = "cluster"
        self._settings |= {**own, **_OF_CLUSTERS}
        self.urls: list[str] = []
        self.urls_tls: list[str] = []
        self.http_urls: list[str] = []
        for role in (f"broker-{number + 1}" for number in range(brokers)):
            conf, url, url_tls, http_url = self._configure_broker(f"{role}.conf", "broker.conf")
            self.urls.append(url)
            self.urls_tls.append(url_tls)
            self.http_urls.append(http_url)
            starter = "org.apache.pulsar.PulsarBrokerStarter"
            self._add(role, 2, http_url + _HEALTH, "512m", QUICK, starter, "--broker-conf", conf)
        self.url, self.url_tls, self.http_url = self.urls[0], self.urls_tls[0], self.http_urls[0]

        self.proxy_url = ""
        if proxy:
            port = free_port()
            self.ports.add(port)
            self.proxy_url = f"pulsar://{HOST}:{port}"
            own |= {"servicePort": port, "webServicePort": free_port()}
            own |= self._authentication("proxy") if tokens else {}
            conf = self._configure("proxy.conf", own)
            health = f"http://{HOST}:{own['webServicePort']}{_HEALTH}"
            starter = "org.apache.pulsar.proxy.server.ProxyServiceStarter"
            self._add("proxy", 2, health, "256m", QUICK, starter, "-c", conf)

    def start(self, role: str | None = None) -> None:
        """Start what does not run, as the class above says; the first time, set the cluster up too."""
        log = self.directory / "metadata.log"
        if not log.exists():
            super().start("zookeeper")
            words = ["--metadata-store", self._store, "--configuration-metadata-store", self._store]
            words += ["--web-service-url", self.http_url, "--broker-service-url", self.url]
            starter = "org.apache.pulsar.PulsarClusterMetadataSetup"
            done = run(*jvm("256m", QUICK, starter, "--cluster", "cluster", *words))
            if done.returncode:
                raise Failed(f"the cluster cannot be set up: {(done.stdout + done.stderr)[-2000:]}")
            log.write_text(done.stdout + done.stderr)
        super().start(role)

    def redirect(self, topic: str) -> Redirect:
        """Make the next lookup of a topic, at the broker to `ask`, be answered by Redirect to the leader.

        Any lookup ends that state, one at the leader too. Not with the extensible load manager.
        """
        # Nobody owns an unloaded bundle; who is not the leader then leaves it to the leader to give it away.
        domain, _, path = topic.rpartition("://")
        path = path if "/" in path else f"public/default/{path}"
        leader = self.rest("GET", "/admin/v2/brokers/leaderBroker")["serviceUrl"].rstrip("/")
        bundle = self.rest("GET", f"{leader}/lookup/v2/topic/{domain or 'persistent'}/{path}/bundle")
        self.rest("PUT", f"{leader}/admin/v2/namespaces/{path.rpartition('/')[0]}/{bundle}/unload")
        urls = dict(zip(self.http_urls, self.urls, strict=True))
        return Redirect(next(url for http_url, url in urls.items() if http_url != leader), urls[leader])


# -- the command line


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    about = "run a standalone broker until Ctrl-C or SIGTERM; describes it by a line of JSON on stdout"
    command = parser.add_subparsers(required=True, metavar="COMMAND").add_parser("run", description=about)
    command.add_argument("--port", type=int, help="of the binary protocol (default: a free one)")
    command.add_argument("--tls", action="store_true", help="open a TLS port too")
    command.add_argument("--tokens", action="store_true", help="ask for tokens, and permissions")
    command.add_argument("--transactions", action="store_true", help="run the transaction coordinator")
    command.add_argument("--set", action="append", default=[], help="KEY=VALUE for standalone.conf")
    options = vars(parser.parse_args())
    settings = dict(line.split("=", 1) for line in options.pop("set"))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), tempfile.TemporaryDirectory(prefix="pwire-pulsar-") as place:
        with Standalone(Path(place), settings=settings, java=(), **options) as broker:
            sys.stdout.write(json.dumps(broker.describe()) + "\n")
            sys.stdout.flush()
            broker.wait()
        raise SystemExit("brokers.py: the broker ended by itself")


if __name__ == "__main__":
    try:
        main()
    except (Unavailable, Failed) as error:
        raise SystemExit(f"brokers.py: {error}") from None
