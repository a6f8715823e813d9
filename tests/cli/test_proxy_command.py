"""`pwire proxy` as it is started, told what to do, and ended."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from unittest import mock

import pytest
from forked import Forked
from proxied import HOST, MAIN, PATIENCE, PWIRE, TIMED, Heard, Proxied, environment, receive, run, until
from pwire_run import Run, pwire
from segments import PING, build, conversation, receipt, send

from pulsarctl_wire.cli.console import (
    EXIT_INTERRUPTED,
    EXIT_OUTPUT,
    EXIT_PIPE,
    EXIT_SOURCE,
    EXIT_UNANSWERED,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
)
from pulsarctl_wire.net.control import LONGEST

SEND = send(b"payload", 5)


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory with a short name, as sockets need one."""
    with tempfile.TemporaryDirectory(prefix="pw") as directory:
        yield Path(directory)


def _refused(found: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """It ended with `code` and one line, in which these words are."""
    assert found.returncode == code, found.stderr
    assert found.stdout == ""
    (line,) = found.stderr.splitlines()
    assert line.startswith("pwire: ")
    assert [word for word in words if word not in line] == [], line


def _all_at_once(home: Path, runs: list[list[str]]) -> list[subprocess.CompletedProcess[str]]:
    """Run several `pwire proxy` to their ends, at the same time."""
    with ExitStack() as stack:
        processes = [
            stack.enter_context(Forked(["proxy", "--listen", f"{HOST}:0", *args], environment(home)))
            for args in runs
        ]
        return [
            subprocess.CompletedProcess(each.args, each.wait(PATIENCE), *each.communicate())
            for each in processes
        ]


# -- beginnings


def test_bare(home: Path) -> None:
    """`pwire proxy --tap` listens where it says in its help, or says that it cannot."""
    command = [sys.executable, "-c", MAIN, "proxy", "--tap"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(home), text=True
    ) as process:
        assert process.stderr
        said = process.stderr.readline()
        if "listening" in said:
            assert said == (
                "pwire: listening on 127.0.0.1:6649, forwarding to pulsar://localhost:6650; "
                "for clients: pulsar://127.0.0.1:6649\n"
            )
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 0
        else:
            assert said == (
                "pwire: --listen 127.0.0.1:6649: Address already in use; name another with --listen\n"
            )
            assert process.wait(PATIENCE) == EXIT_USAGE


@pytest.mark.parametrize("where", ["PULSAR_SERVICE_URL", "client.conf"])
def test_where_it_leads_without_to(where: str, home: Path) -> None:
    conf = home / "client.conf"
    conf.write_text("brokerServiceUrl=pulsar://from-the-file:6650\n")
    args = ["--conf", str(conf)] if where == "client.conf" else []
    more = {} if args else {"PULSAR_SERVICE_URL": "pulsar://from-the-file:6650"}
    command = [sys.executable, "-c", MAIN, "proxy", "--listen", f"{HOST}:0", *args]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment(home, **more)) as process:
        assert process.stderr
        assert b"forwarding to pulsar://from-the-file:6650; " in process.stderr.readline()
        process.terminate()
        assert process.wait(PATIENCE) == 0


def test_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    with Proxied("--tap", listen="[::1]:0") as proxy:
        with proxy.session() as session:
            session.talk(conversation())
        assert proxy.stop() == 0
    assert f"listening on [::1]:{proxy.port}, " in proxy.err.lines[0]
    assert proxy.err.lines[0].endswith(f"for clients: pulsar://[::1]:{proxy.port}")


def test_a_port_alone_is_on_loopback() -> None:
    with Proxied(listen="0") as proxy, Proxied(listen=":0") as other:
        assert proxy.address[0] == other.address[0] == HOST
        assert proxy.port != other.port


def test_a_broker_that_is_not_there() -> None:
    with socket.socket() as held:  # bound, so that nobody else takes it
        held.bind((HOST, 0))
        port = held.getsockname()[1]
        with Proxied(to=f"pulsar://{HOST}:{port}") as proxy:
            with proxy.connect() as client, pytest.raises(ConnectionResetError):
                receive(client, 1)
            proxy.err.line(f"connection 0: no connection to the broker: {HOST}:{port}: refused$")
            assert proxy.stop() == 0


# -- what makes no sense

NONSENSE: dict[str, list[str]] = {
    "--listen": ["nonsense", f"{HOST}:99999", "::1:0", "[::1]", f"{HOST}:-1"],
    "--http-listen": ["nonsense", f"{HOST}:99999"],
    "--http-to": ["http://here:8080"],
    "--ports": ["5-1", "0-5", "a-b", "1-70000", "7"],
    "--map": ["broker", "", "here:1"],
    "--dial": ["broker", ""],
    "--rotate-size": ["five", "-1", "1e6", "5 parsecs"],
    "--rotate-time": ["soon", "1ms", "-1"],
    "--to": ["http://here:8080", "pulsar://here:x", "kafka://here:1", "pulsar://"],
    "--fault": ["nonsense", "drop command=NOPE", "drop nth=x", "drop (", "drop filter=((("],
    "--output": ["nonsense"],
    "--seed": ["x"],
    "--drain": ["-1"],
    "--send-proxy-protocol": ["3"],
}
FOUND_LATER = {
    "--listen": ["nosuch.invalid:0", "192.0.2.1:0"],
    "--http-listen": ["nosuch.invalid:0", "192.0.2.1:0"],
    "--metrics": ["nonsense", ":99999", "a..b:1"],
    "--filter": ["((("],
    "--command": ["NOPE"],
    "--schema": ["nonsense"],
}
"""Not before there are two processes."""

UNNAMED = {"--to", "--fault"}
"""They are told by their values."""


def _wrong(flag: str, found: Run | subprocess.CompletedProcess[str]) -> None:
    """It ended because of what was given for `flag`, and says so; typer does in its own way."""
    code, said = (found.code, found.err) if isinstance(found, Run) else (found.returncode, found.stderr)
    assert code == EXIT_USAGE, said
    assert flag in said or flag in UNNAMED, said
    assert "Usage:" in said or len(said.splitlines()) == 1, said


def _at_once(flag: str, text: str) -> Run:
    """Run `pwire proxy` in this process; it may not begin."""
    more = ["--record", "/nosuch/a.pcapng"] if flag.startswith("--rotate") else []
    with mock.patch.object(os, "fork", side_effect=AssertionError(f"{flag} {text} is believed")):
        return pwire("proxy", *more, f"{flag}={text}")


@pytest.mark.parametrize("flag", NONSENSE)
def test_nonsense_is_one_line(flag: str) -> None:
    for text in NONSENSE[flag]:
        _wrong(flag, _at_once(flag, text))


@pytest.mark.parametrize("flag", FOUND_LATER)
def test_nonsense_that_is_found_later(flag: str, home: Path) -> None:
    for found in _all_at_once(home, [[f"{flag}={text}"] for text in FOUND_LATER[flag]]):
        _wrong(flag, found)


@pytest.mark.parametrize("flag", ["--map", "--dial"])
@pytest.mark.parametrize("text", ["=here:1", "broker=", "broker=http://here:1", "broker=here:x"])
def test_nonsense_about_brokers(flag: str, text: str) -> None:
    _wrong(flag, _at_once(flag, text))


@pytest.mark.parametrize("flag", ["--rotate-size", "--rotate-time"])
def test_amounts_without_end(flag: str) -> None:
    _wrong(flag, _at_once(flag, "9" * 400))


def test_a_name_that_no_host_can_have(home: Path) -> None:
    (found,) = _all_at_once(home, [["--listen=a..b:0"]])
    _wrong("--listen", found)


@pytest.mark.parametrize(
    "host",
    [
        "192.0.2.1",
        "nosuch.invalid",
        "a..b",
    ],
)
def test_brokers_mapped_to_other_machines(host: str) -> None:
    with Proxied("--map", f"broker={host}:1234") as proxy:
        proxy.err.line(
            TIMED + f"{host}:1234 is not an address of this machine: clients are sent there for broker:6650$"
        )
        assert proxy.stop() == 0


def test_an_address_of_map_in_use(home: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        here = f"{HOST}:{taken.getsockname()[1]}"
        (found,) = _all_at_once(home, [["--map", f"broker={here}"]])
    _refused(found, EXIT_USAGE, "--map", here, "Address already in use")


def test_addresses_in_use(home: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        here = f"{HOST}:{port}"
        found = _all_at_once(home, [["--listen", here], ["--metrics", here]])
    for flag, each in zip(("--listen", "--metrics"), found, strict=True):
        _refused(each, EXIT_USAGE, flag, here, "Address already in use")


def test_a_record_is_not_touched_by_a_proxy_that_does_not_start(home: Path) -> None:
    record = home / "seen.pcapng"
    record.write_bytes(b"of before")
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        found = run("proxy", "--listen", f"{HOST}:{port}", "--record", record, home=home)
    _refused(found, EXIT_USAGE, "Address already in use")
    assert record.read_bytes() == b"of before"


def test_options_that_do_not_go_together(home: Path) -> None:
    runs = [
        ["--no-rewrite", "--through"],
        ["--listen-key", "/nosuch"],
        ["--client-ca", "/nosuch"],
        ["--rotate-size", "5"],
        ["-o", "json"],
        ["-t", "epoch"],
    ]
    for found, words in zip(
        _all_at_once(home, runs),
        (
            *(("--through", "--no-rewrite"), ("--tls",), ("--tls",), ("--record",)),
            *(("--output needs --tap",), ("--time needs --tap",)),
        ),
        strict=True,
    ):
        _refused(found, EXIT_USAGE, *words)


def test_files_that_cannot_be_had(home: Path) -> None:
    (home / "latin.yaml").write_bytes(b"faults: [\xe9]")
    (home / "odd.yaml").write_text("faults: [{drop: {command: NOPE}}]")
    (home / "no.yaml").write_text("{{{")
    os.mkfifo(home / "pipe")
    ca = ["--tls", "--ca-dir", str(home)]
    cases: list[tuple[list[str], int, str]] = [
        (["--scenario", str(home / "nosuch.yaml")], EXIT_SOURCE, "No such file"),
        (["--scenario", str(home)], EXIT_SOURCE, "Is a directory"),
        (["--scenario", str(home / "latin.yaml")], EXIT_SOURCE, "UTF-8"),
        (["--scenario", str(home / "odd.yaml")], EXIT_USAGE, "command=NOPE"),
        (["--scenario", str(home / "no.yaml")], EXIT_USAGE, "scenario"),
        (["--listen-cert", str(home / "nosuch.pem")], EXIT_USAGE, "nosuch.pem: No such file"),
        (["--listen-cert", str(home / "no.yaml")], EXIT_USAGE, "no.yaml"),
        (["--to", "pulsar+ssl://a:1", "--tls-ca", str(home / "nosuch.pem")], EXIT_USAGE, "No such file"),
        ([*ca, "--keylog", str(home / "nosuch" / "keys")], EXIT_USAGE, "nosuch/keys cannot be written"),
        (["--tls", "--ca-dir", "/dev/null/here"], EXIT_USAGE, "/dev/null/here"),
        (["--record", str(home / "nosuch" / "a.pcapng")], EXIT_OUTPUT, "--record"),
        (["--record", str(home / "pipe")], EXIT_OUTPUT, "nothing reads this pipe"),
        (["--record", "-"], EXIT_USAGE, "name a file"),
        (["--conf", str(home / "nosuch.conf")], EXIT_USAGE, "--conf"),
        (["--control", str(home / ("a" * 120))], EXIT_USAGE, "--control"),
        (["--control", str(home / "nosuch" / "s")], EXIT_USAGE, "No such file"),
    ]
    for found, (_, code, text) in zip(_all_at_once(home, [case[0] for case in cases]), cases, strict=True):
        _refused(found, code, text)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_too_early_is_minded_when_it_can_be(number: signal.Signals, home: Path) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [number])  # what it starts with; Python itself would not mind
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", MAIN, "proxy", "--tap", "--listen", f"{HOST}:0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(home),
        )
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    with process:
        process.send_signal(number)
        try:
            out, err = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert (process.returncode, out) == (0, "")
    assert re.fullmatch(r"pwire: listening .*\npwire: \S+ 0 connections; .*\n", err)


# -- TLS


def test_tls_with_a_ca_of_its_own(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    record = tmp_path / "seen.pcapng"
    args = ("--tls", "--tap", "--keylog", keys, "--record", record)
    with Proxied(*args) as proxy:
        trusted = Path(proxy.err.line("clients have to trust (.+)$")[0][1])
        assert trusted == proxy.home / ".local" / "share" / "pwire" / "ca.pem"
        context = ssl.create_default_context(cafile=str(trusted))
        with (
            proxy.connect() as sock,
            context.wrap_socket(sock, server_hostname=HOST) as client,
            proxy.accept() as broker,
        ):
            client.sendall(SEND)
            assert receive(broker, len(SEND)) == SEND
            broker.sendall(receipt(5))
            assert client.recv(100) == receipt(5)
        assert proxy.stop() == 0
    assert "for clients: pulsar+ssl://127.0.0.1:" in proxy.err.lines[0]
    assert ["SEND" in proxy.out.lines[0], "SEND_RECEIPT" in proxy.out.lines[1]] == [True, True]
    assert "CLIENT_TRAFFIC_SECRET_0" in keys.read_text()
    assert SEND in record.read_bytes()


def test_a_client_that_speaks_no_tls_to_tls() -> None:
    with Proxied("--tls") as proxy:
        with proxy.connect() as client:
            client.sendall(build("CONNECT", client_version="\x1b[31m"))
            proxy.err.line(
                TIMED
                + "a connection from [0-9.:]+ failed: the client does not speak TLS; its URL must begin with pulsar.ssl://$"
            )
        assert proxy.stop() == 0
    assert "\x1b" not in proxy.err.text


# -- endings


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_it_drains(number: int) -> None:
    """What has come goes on, however long it was to be delayed, and connections are closed."""
    with Proxied("--tap", "--fault", "delay command=SEND time=60m") as proxy:
        with proxy.connect() as client, proxy.accept() as broker:
            client.sendall(SEND)
            assert proxy.ctl("fault", "wait", "1").stdout == "1\n"
            proxy.kill(number)
            assert receive(broker, len(SEND) + 1) == SEND
            assert receive(client, 1) == b""
        assert proxy.wait() == 0
    assert "SEND " in proxy.out.text
    assert re.sub(TIMED, "", proxy.err.lines[-1]) == f"1 connection; {len(SEND)} B to brokers, 0 B to clients"


def test_ctrl_c_reaches_both_processes() -> None:
    with Proxied("--tap") as proxy:
        with proxy.session() as session:
            session.talk(conversation())
        os.killpg(proxy.process.pid, signal.SIGINT)
        assert proxy.wait() == 0
    assert len(proxy.out.lines) == len(conversation())
    assert "Traceback" not in proxy.err.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_second_signal_ends_it_at_once(number: int) -> None:
    with Proxied("--tap", "--drain", "600") as proxy, proxy.connect() as client, proxy.accept():
        _fill(client)
        proxy.kill(number)
        until(lambda: _refuses(proxy))
        proxy.kill(number)
        assert proxy.wait() == (EXIT_INTERRUPTED if number == signal.SIGINT else -number)


def _fill(client: socket.socket) -> None:
    """Send until nothing more is taken: then bytes wait in the proxy, too."""
    client.setblocking(False)
    piece = send(bytes(1_000_000))
    while select.select([], [client], [], 0.5)[1]:
        client.send(piece)


def _refuses(proxy: Proxied) -> bool:
    try:
        proxy.connect().close()
    except ConnectionError:
        return True
    return False


def test_without_stdout() -> None:
    """As in `pwire proxy --tap >&-`."""
    closed = Proxied("--tap", preexec=lambda: os.close(1))
    with closed as proxy:
        with proxy.session() as session:
            session.talk(conversation())
        assert proxy.stop() == 0
    assert len(proxy.err.lines) == 2


# -- pwire proxy ctl


def test_ctl_changes_the_faults_of_a_running_proxy() -> None:
    with Proxied() as proxy:
        with proxy.session() as session:
            assert proxy.ctl("fault", "list").stdout == ""
            added = proxy.ctl("fault", "add", "drop", "command=PING")
            assert (added.returncode, added.stdout) == (0, "1\n")
            proxy.err.line(TIMED + r"fault #1: drop command=PING; seed \d+$")
            assert proxy.ctl("fault", "add", "delay command=PONG time=1s").stdout == "2\n"
            session.broker.sendall(PING)
            session.talk([(False, SEND)])
            assert proxy.ctl("fault", "list").stdout.splitlines() == [
                "1  drop command=PING  1 matched, 1 hit",
                "2  delay command=PONG time=1s  0 matched, 0 hit",
            ]
            _refused(
                proxy.ctl("fault", "wait", "2", "--timeout", "0"), EXIT_UNANSWERED, "fault 2 had 0 of 1 hits"
            )
            assert proxy.ctl("fault", "remove", "1").returncode == 0
            proxy.err.line(TIMED + "fault #1 was removed$")
            session.talk([(False, PING)])
            _refused(proxy.ctl("fault", "remove", "1"), EXIT_USAGE, "there is no fault 1", "ctl fault list")
            _refused(proxy.ctl("fault", "add", "nonsense"), EXIT_USAGE, "nonsense", "drop")
            _refused(proxy.ctl("fault", "add", "drop filter=((("), EXIT_USAGE, "drop: filter (((")
            assert proxy.ctl("fault", "clear").returncode == 0
            proxy.err.line(TIMED + "all faults were removed$")
            assert proxy.ctl("fault", "list").stdout == ""
        assert proxy.stop() == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_output_that_cannot_be_written() -> None:
    reading, unread = os.pipe()
    os.close(reading)
    with Proxied("--fault", "drop command=PING") as proxy, open("/dev/full", "wb") as full:
        for args in (["faults"], ["ctl", "fault", "list"], ["ctl", "fault", "add", "drop command=PONG"]):
            why = "pwire: the output cannot be written: No space left on device\n"
            for out, code, said in ((full.fileno(), EXIT_OUTPUT, why), (unread, EXIT_PIPE, "")):
                found = subprocess.run(
                    [*PWIRE, "proxy", *args],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.PIPE,
                    text=True,
                    timeout=PATIENCE,
                    check=False,
                    env=environment(proxy.home),
                )
                assert (found.returncode, found.stderr) == (code, said)
    os.close(unread)


def test_ctl_finds_its_proxy(home: Path) -> None:
    _refused(run("proxy", "ctl", "fault", "list", home=home), EXIT_USAGE, "no proxy is running")
    named = home / "mine.sock"
    with Proxied(home=home) as first, Proxied("--control", named, home=home) as second:
        assert (
            first.ctl("fault", "add", "drop command=PING").stdout == "1\n"
        )  # the only one with the usual socket
        assert first.ctl("fault", "list", "--control", str(named)).stdout == ""
        with Proxied(home=home) as third:
            _refused(third.ctl("fault", "list"), EXIT_USAGE, str(first.port), str(third.port), "--port")
            assert third.ctl("fault", "list", "--port", str(third.port)).stdout == ""
            assert "drop" in third.ctl("fault", "list", "--port", str(first.port)).stdout
            assert third.stop() == 0
        assert second.stop() == 0
        assert not named.exists()
        assert first.stop() == 0
    assert list((home / "run" / "pwire").iterdir()) == []


def test_a_socket_that_was_left_behind(home: Path) -> None:
    with Proxied(home=home) as proxy:
        proxy.kill(signal.SIGKILL)
        proxy.wait()
    assert len(list((home / "run" / "pwire").iterdir())) == 1
    _refused(proxy.ctl("fault", "list"), EXIT_USAGE, "no proxy is running")
    _refused(
        proxy.ctl("fault", "list", "--port", str(proxy.port)),
        EXIT_UNREACHABLE,
        "no proxy answers",
        "is pwire proxy running",
    )
    with Proxied(home=home, listen=f"{HOST}:{proxy.port}") as again:
        assert again.ctl("fault", "list").returncode == 0
        second = run("proxy", "--listen", ":0", "--control", _socket(again), home=home)
        _refused(second, EXIT_USAGE, "another proxy listens there")
        assert again.ctl("fault", "list").returncode == 0
        assert again.stop() == 0


def _socket(proxy: Proxied) -> Path:
    return proxy.home / "run" / "pwire" / f"proxy-{proxy.port}.sock"


def test_no_socket(home: Path) -> None:
    with Proxied("--control", "", home=home) as proxy:
        _refused(proxy.ctl("fault", "list"), EXIT_USAGE, "no proxy is running")
        assert not (home / "run").exists()
        assert proxy.stop() == 0


def test_the_socket_minds_nonsense(home: Path) -> None:
    with Proxied(home=home) as proxy:
        for line in (b"{", b"[]", b'{"do":["list"]}', b"[" * 60_000):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(PATIENCE)
                sock.connect(str(_socket(proxy)))
                sock.sendall(line + b"\n")
                assert sock.recv(1000).startswith(b'{"error": ')
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(_socket(proxy)))
            heard = Heard(os.dup(sock.fileno()))
            with suppress(BrokenPipeError):  # it need not read all of it
                sock.sendall(bytes(LONGEST + 1_000_000))  # a line that is too long
            heard.end()
        assert proxy.ctl("fault", "list").returncode == 0
        assert proxy.stop() == 0
    assert len(proxy.err.lines) == 2
    assert oct(_socket(proxy).parent.stat().st_mode)[-3:] == "700"


def test_the_socket_minds_a_number_without_end(home: Path) -> None:
    with Proxied(home=home) as proxy, socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(PATIENCE)
        sock.connect(str(_socket(proxy)))
        sock.sendall(b'{"do":"remove","number":1e999}\n')
        assert sock.recv(1000).startswith(b'{"error": ')


# -- help


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--help"], ["--listen", "--rotate-size", "--metrics", "--scenario", "ctl", "faults"]),
        (["-h"], ["--tap"]),
        (["faults"], ["drop", "nth=", "command=", "redirect-loop"]),
        (["ctl", "fault", "--help"], ["list", "add", "wait", "remove", "clear"]),
        (["ctl", "fault", "add", "--help"], ["--port", "--control"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_help(args: list[str], words: list[str], home: Path) -> None:
    found = run("proxy", *args, home=home)
    assert found.returncode == 0, found.stderr
    assert [word for word in words if word not in found.stdout] == []
    assert found.stderr == ""


def test_help_loads_nothing_heavy(home: Path) -> None:
    heavy = (
        "asyncio",
        "google.protobuf",
        "numpy",
        "prometheus_client",
        "yaml",
        "cryptography",
        "ssl",
        "rich.live",
    )
    code = f"import atexit, sys; atexit.register(lambda: print(*sys.modules)); {MAIN}"
    for args in (["--help"], ["proxy", "--help"], ["proxy", "ctl", "--help"]):
        found = subprocess.run(
            [sys.executable, "-c", code, *args],
            capture_output=True,
            text=True,
            check=True,
            env=environment(home),
        )
        loaded = set(found.stdout.splitlines()[-1].split())
        assert "typer" in loaded
        assert loaded.intersection(heavy) == set()
