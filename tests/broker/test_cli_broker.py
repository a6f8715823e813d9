"""`pwire broker` as a process: options, URLs, what ends it, what it refuses, and its ctl."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest
from broker.raw import RawClient
from forked import Fork
from proxied import MAIN, PATIENCE, Heard, environment, run
from segments import build, send

from pulsarctl_wire.cli.console import EXIT_IN_USE, EXIT_UNANSWERED, EXIT_USAGE
from pulsarctl_wire.conformance.basics.frames import make_send

if TYPE_CHECKING:
    from typing_extensions import Self  # Python 3.10 has none

FREE = ("--port", "0", "--http-port", "0")


class Started:
    """A running `pwire broker --json`, with any ports; a context manager."""

    def __init__(self, *args: str | Path, home: Path | None = None) -> None:
        self._stack = ExitStack()
        self.home = home or Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="pw")))
        self._args = ["broker", *FREE, "--json", *map(str, args)]
        self.said: dict[str, Any] = {}

    def __enter__(self) -> Self:
        streams = [os.open(os.devnull, os.O_RDONLY)]
        heard = []
        for _ in range(2):
            reading, writing = os.pipe()
            heard.append(Heard(reading))
            streams.append(writing)
        self.out, self.err = heard
        self.process = Fork(self._args, environment(self.home), *streams)
        self._stack.callback(self.stop, signal.SIGKILL)
        for each in streams:
            os.close(each)
        self.out.line("service_url")
        self.said = self.out.records[0]
        self.url = self.said["service_url"]
        return self

    def __exit__(self, *reason: object) -> None:
        self._stack.close()

    def stop(self, number: int = signal.SIGINT) -> int:
        """End it; its exit code when all that it wrote has come."""
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        for heard in (self.out, self.err):
            heard.end()
        return code

    def ctl(self, *args: str) -> subprocess.CompletedProcess[str]:
        return run("broker", "ctl", *args, home=self.home)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal_comes_and_leaves_nothing(number: int) -> None:
    with Started() as broker:
        assert broker.said["pid"] == broker.process.pid
        assert broker.said["http_url"].startswith("http://127.0.0.1:")
        assert broker.said["service_url_tls"] is None
        with RawClient(broker.url) as client:
            assert len(client.produce("t", b"a", b"b")) == 2
        assert list(broker.home.glob("pwire-broker-*"))
        assert broker.stop(number) == 0
        assert not list(broker.home.glob("pwire-broker-*"))
        first, last = broker.err.lines
        assert first == f"pwire: broker at {broker.url}, admin API at {broker.said['http_url']}"
        assert last == "pwire: ready; Ctrl-C ends it"


def test_data_in_a_directory_stays(tmp_path: Path) -> None:
    for _ in range(2):
        with Started("--data", tmp_path / "data") as broker:
            with RawClient(broker.url) as client:
                client.produce("t", b"again")
                client.subscribe("t", 10, name="s")
                first = client.message()
            assert broker.stop() == 0
    assert first == b"again"


def test_a_cluster_has_several_brokers() -> None:
    with Started("--memory", "--brokers", "3") as broker:
        urls = [each["service_url"] for each in broker.said["brokers"]]
        assert len(set(urls)) == 3
        assert urls[0] == broker.url
        for url in urls:
            with RawClient(url) as client:
                assert client.lookup("persistent://public/default/t") in urls


def test_partitioned_topics_and_no_others(tmp_path: Path) -> None:
    args: list[str | Path]
    args = ["--data", tmp_path, "--no-auto-create", "--partitions"]
    for text, partitions in (("orders=3", 3), ("orders=3", 3), ("orders=5", 5)):
        with Started(*args, text, "--partitions", "persistent://eu/shop/t=2") as broker:
            with RawClient(broker.url) as client:
                for topic, expected in (("orders", partitions), ("persistent://eu/shop/t", 2)):
                    found = client.request(
                        "PARTITIONED_METADATA", "PARTITIONED_METADATA_RESPONSE", topic=topic
                    )
                    assert found.partitions == expected
                assert client.produce("orders-partition-2", b"x")
                client.request("PRODUCER", "ERROR", topic="other", producer_id=2)
            assert broker.stop() == 0
    code, err = _refused(*args, "orders=2", home=tmp_path)
    assert code == EXIT_USAGE
    assert "orders=2: it has 5 partitions, and can have more but not fewer" in err


def test_tls_by_a_certificate_of_our_own_ca() -> None:
    with Started("--memory", "--tls-port", "0", "--https-port", "0") as broker:
        ca = broker.err.line(r"clients have to trust (.*)")[0][1]
        url = broker.said["service_url_tls"]
        assert url.startswith("pulsar+ssl://127.0.0.1:")
        assert broker.said["https_url"].startswith("https://127.0.0.1:")
        with RawClient(url, ssl.create_default_context(cafile=ca)) as client:
            assert client.produce("t", b"secret")


def test_lines_of_a_file_and_set(tmp_path: Path) -> None:
    conf = tmp_path / "standalone.conf"
    conf.write_text(
        "maxMessageSize=1000\nadvertisedAddress=broker.example\nloadBalancerEnabled=true\nodd=1\n"
    )
    with Started("--memory", "--conf", conf, "--set", "maxMessageSize=2000") as broker:
        port = broker.url.rpartition(":")[2]
        assert broker.url == f"pulsar://broker.example:{port}"
        with socket.create_connection(("127.0.0.1", int(port))):
            pass
        assert broker.stop() == 0
        assert broker.err.lines[:2] == [
            "pwire: odd: Pulsar has no such setting",
            "pwire: settings of Pulsar without effect here: loadBalancerEnabled",
        ]


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        (["authenticationEnabled=true"], "authenticationProviders has none that is supported here"),
        (
            ["authenticationEnabled=true", "authenticationProviders=AuthenticationProviderToken"],
            "AuthenticationProviderToken has no tokenSecretKey or tokenPublicKey",
        ),
        (["bindAddress=0.0.0.0"], "bindAddress=0.0.0.0: other machines can connect"),
    ],
)
def test_settings_that_one_may_not_want(settings: list[str], note: str) -> None:
    lines = [word for setting in settings for word in ("--set", setting)]
    with Started("--memory", *lines) as broker:
        assert broker.stop() == 0
        assert any(line.startswith(f"pwire: {note}") for line in broker.err.lines)


def _refused(*args: str | Path, home: Path) -> tuple[int, str]:
    """The exit code and the only line on stderr of a broker that does not start."""
    done = run("broker", *args, home=home)
    assert not done.stdout
    (line,) = done.stderr.splitlines()
    return done.returncode, line


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        for option, rest in (("--port", ("--http-port", "0")), ("--http-port", ("--port", "0"))):
            code, line = _refused(option, port, *rest, home=tmp_path)
            assert code == EXIT_IN_USE
            way_out = f"name another port with {option}, or 0 for any"
            assert line == f"pwire: 127.0.0.1:{port} is taken by another process; {way_out}"


def test_a_directory_that_is_in_use(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Started("--data", data):
        code, line = _refused(*FREE, "--data", data, home=tmp_path)
    assert code == EXIT_IN_USE
    assert line == f"pwire: {data}: another broker uses this directory; name another with --data"


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--set", "x"], "--set x: use KEY=VALUE, as in brokerDeduplicationEnabled=true"),
        (
            ["--set", "maxMessageSize=big"],
            "maxMessageSize=big: it must be a whole number",
        ),
        (["--partitions", "orders"], "--partitions orders: use TOPIC=N, as in orders=3"),
        (["--partitions", "t=0000001000"], "--partitions t=0000001000: use TOPIC=N, as in orders=3"),
        (["--partitions", "orders=0"], "--partitions orders=0: use TOPIC=N, as in orders=3"),
        ([*FREE, "--data", "/dev/null/d"], "/dev/null/d: Not a directory; name another with --data"),
        (["--memory", "--data", "d"], "--data cannot be combined with --memory"),
        (["--conf", "none"], "none: No such file or directory; name another with --conf"),
        ([*FREE, "--memory", "--partitions", "a/b=3"], "a/b=3: Invalid short topic name"),
        (
            [*FREE, "--memory", "--host", "192.0.2.1"],
            "--port 0 at 192.0.2.1: Cannot assign requested address",
        ),
    ],
)
def test_options_that_are_wrong(args: list[str], text: str, tmp_path: Path) -> None:
    code, line = _refused(*args, home=tmp_path)
    assert code == EXIT_USAGE
    assert line.startswith(f"pwire: {text}")


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    code = f"""
import subprocess, sys
args = [sys.executable, "-c", {MAIN!r}, "broker", *{FREE!r}, "--memory", "--json", "--exit-with-parent"]
process = subprocess.Popen(args, stdout=subprocess.PIPE)
sys.stdout.buffer.write(process.stdout.readline())
sys.stdout.flush()
sys.stdin.read()
"""
    reading, writing = os.pipe()  # its end tells when the broker has ended
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=writing,
        env={**environment(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    os.close(writing)
    heard = Heard(reading)
    with parent:
        assert parent.stdout is not None
        url = json.loads(parent.stdout.readline())["service_url"]
        with RawClient(url) as client:
            parent.kill()
            assert client.ended()
    heard.end()


def test_the_traffic_is_shown_and_recorded(tmp_path: Path) -> None:
    record = tmp_path / "record.pcapng"
    with Started("--memory", "--tap", "-o", "json", "--record", record) as broker:
        with RawClient(broker.url) as client:
            client.produce("t", b"hello")
        assert broker.stop() == 0
        shown = [each["command"] for each in broker.out.records[1:]]
    commands = ["CONNECT", "CONNECTED", "LOOKUP", "LOOKUP_RESPONSE", "PRODUCER", "PRODUCER_SUCCESS"]
    assert shown == [*commands, "SEND", "SEND_RECEIPT"]
    decoded = run("decode", record, "-o", "json", home=tmp_path)
    assert [json.loads(line)["command"] for line in decoded.stdout.splitlines()] == shown


def test_the_traffic_of_a_cluster_with_tls_is_watched(tmp_path: Path) -> None:
    """Of all brokers, decrypted, with faults, before and after one of them dies."""
    record = tmp_path / "record.pcapng"
    fault = "drop command=SEND_RECEIPT nth=1"
    args: list[str | Path] = [
        "--tap",
        "-o",
        "json",
        "--record",
        record,
        "--metrics",
        "127.0.0.1:0",
        "--fault",
        fault,
    ]
    with Started("--memory", "--brokers", "3", "--tls-port", "0", *args) as broker:
        context = ssl.create_default_context(cafile=broker.err.line(r"clients have to trust (.*)")[0][1])
        urls = [each["service_url_tls"] for each in broker.said["brokers"]]
        broker.ctl("move", "t", "1")
        for _ in range(2):
            for url in urls:
                with RawClient(url, context) as client:
                    assert client.lookup("t") == broker.said["brokers"][1]["service_url"]
            broker.ctl("kill", "2")
            broker.ctl("start", "2")
        with RawClient(urls[1], context) as client:
            client.produce("t")
            client.socket.sendall(make_send(0) + make_send(1))
            assert client.expect("SEND_RECEIPT").sequence_id == 1
        metrics = broker.err.line(r"metrics at (http:.*)")[0][1]
        with urlopen(metrics, timeout=PATIENCE) as found:
            assert b"pwire_malformed_total 0.0" in found.read()
        assert broker.stop() == 0
        shown = [each for each in broker.out.records[1:] if each["command"] == "LOOKUP_RESPONSE"]
    assert len(shown) == 7
    decoded = run("decode", record, "--connections", "-o", "json", home=tmp_path)
    servers = [json.loads(line)["server"] for line in decoded.stdout.splitlines()]
    ports = [url.rpartition(":")[2] for url in urls]
    assert [each.rpartition(":")[2] for each in servers] == [*ports, *ports, ports[1]]
    whole = run("decode", record, "-o", "json", home=tmp_path)
    commands = [json.loads(line)["command"] for line in whole.stdout.splitlines()]
    assert (commands.count("SEND"), commands.count("SEND_RECEIPT")) == (2, 1)


def test_faults_of_the_command_line_and_of_ctl() -> None:
    with Started("--memory", "--fault", "drop command=SEND_RECEIPT topic=t", "--seed", "1") as broker:
        with RawClient(broker.url) as client:
            client.produce("other", b"a")
            client.lookup("t")
            client.request("PRODUCER", "PRODUCER_SUCCESS", topic="t", producer_id=2)
            client.socket.sendall(make_send(0, producer_id=2))
            client.socket.sendall(make_send(1))
            assert client.expect("SEND_RECEIPT").producer_id == 1
        assert broker.ctl("fault", "list").stdout.endswith("1 matched, 1 hit\n")
        assert broker.ctl("fault", "wait", "1").stdout == "1\n"
        done = broker.ctl("fault", "wait", "1", "--hits", "2", "--timeout", "0")
        assert (done.returncode, done.stdout) == (EXIT_UNANSWERED, "")
        assert done.stderr == "pwire: fault 1 had 1 of 2 hits after 0 seconds\n"
        assert broker.ctl("fault", "add", "drop", "command=PONG").stdout == "2\n"
        assert broker.ctl("fault", "remove", "1").returncode == broker.ctl("fault", "clear").returncode == 0
        assert not broker.ctl("fault", "list").stdout
        assert broker.stop() == 0
        said = [line for line in broker.err.lines if "fault #" in line or "seed" in line]
        assert said[:2] == ["pwire: fault #1: drop command=SEND_RECEIPT topic=t", "pwire: seed 1"]


def test_ctl_looks_into_it_and_does_things_to_it() -> None:
    with Started("--memory") as broker, RawClient(broker.url) as client:
        client.produce("t", b"a", b"b")
        client.subscribe("t", 1)
        assert client.message() == b"a"
        state = json.loads(broker.ctl("state").stdout)["brokers"][0]
        (connection,) = state["connections"]
        assert (connection["client_version"], connection["state"]) == ("raw", "connected")
        topic = state["topics"]["persistent://public/default/t"]
        assert topic["entries"] == 2
        assert topic["subscriptions"]["s"]["backlog"] == 2
        assert topic["subscriptions"]["s"]["consumers"][0]["permits"] == 0

        assert broker.ctl("advance", "31").returncode == 0  # it has sent PING
        assert broker.ctl("unload", "t").returncode == 0
        assert {client.received().command for _ in range(2)} == {"CLOSE_PRODUCER", "CLOSE_CONSUMER"}  # type: ignore[union-attr]
        assert broker.ctl("terminate", "t").stdout.endswith(":1\n")
        assert broker.ctl("cut", str(connection["number"])).stdout == "1\n"
        assert client.ended()


def test_ctl_kills_and_starts_brokers() -> None:
    with Started("--memory", "--brokers", "2") as broker:
        first, second = (each["service_url"] for each in broker.said["brokers"])
        assert broker.ctl("move", "t", "1").returncode == broker.ctl("kill", "1").returncode == 0
        with RawClient(first) as client:
            assert client.lookup("t") == first
        assert broker.ctl("kill", "1").stderr == "pwire: broker 1 was killed\n"
        assert broker.ctl("start", "1").returncode == broker.ctl("move", "t", "1").returncode == 0
        with RawClient(second) as client:
            assert client.lookup("t") == second
            assert client.produce("t", b"a", b"b")
        assert broker.ctl("migrate", "t", "pulsar+ssl://a:1", "pulsar://b:2").returncode == 0
        (topic,) = json.loads(broker.ctl("state").stdout)["brokers"][1]["topics"].values()
        assert topic["migrated"] == ["pulsar://b:2", "pulsar+ssl://a:1"]
        assert broker.ctl("compact", "t").returncode == broker.ctl("housekeeping").returncode == 0


def test_ctl_says_what_is_wrong(tmp_path: Path) -> None:
    with Started("--memory") as broker:
        for args, text in (
            (("unload", "none"), "Topic not found persistent://public/default/none"),
            (("terminate", "a/b"), "Invalid short topic name"),
            (("cut", "77"), "there is no connection 77"),
        ):
            done = broker.ctl(*args)
            assert done.returncode == EXIT_USAGE
            assert done.stderr.startswith(f"pwire: {text}")
    done = run("broker", "ctl", "state", home=tmp_path)
    assert done.stderr == "pwire: no broker is running on this machine; pwire broker starts one\n"


def test_what_is_wrong_is_said() -> None:
    turns = [build("CONNECT", client_version="test", protocol_version=21)]
    turns += [build("PRODUCER", topic="t", producer_id=1, request_id=1), send(b"x" * 100)[:-1] + b"y"]
    with Started("--memory", "--doctor") as broker:
        host, _, port = broker.url.removeprefix("pulsar://").partition(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"".join(turns))
            while client.recv(65_536):  # until the broker has seen it all, and closes the connection
                pass
        assert broker.stop() == 0
    assert any(
        line.startswith("send_corrupt  certain  persistent://public/default/t ") for line in broker.out.lines
    )
    assert any("certain) in 1 connection" in line for line in broker.err.lines)
