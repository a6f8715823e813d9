"""The brokers that the other tests of this directory rely on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from interop import brokers
from interop.brokers import Broker, Failed, run_java
from interop.conftest import BrokerKind
from interop.releases import QUICK

from pulsarctl_wire.wire.frame import Connection, Frame, build_frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand

PRODUCE = """
import org.apache.pulsar.client.api.*;
public class Produce {
    public static void main(String[] args) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build();
             Producer<String> producer = client.newProducer(Schema.STRING).topic(args[1]).create()) {
            System.out.println(producer.send(args[2]));
        }
    }
}
"""


def ask(
    url: str,
    *commands: BaseCommand,
    auth: tuple[str, str] = ("", ""),
    tls: ssl.SSLContext | None = None,
) -> BaseCommand:
    """CONNECT to a broker, send each command after the answer to the one before; the last answer."""
    connect = BaseCommand(type=BaseCommand.CONNECT)
    connect.connect.client_version = "pwire tests"
    connect.connect.protocol_version = 21
    if auth[0]:
        connect.connect.auth_method_name, connect.connect.auth_data = auth[0], auth[1].encode()
    stream = FrameStream(Connection(0), False)
    where = urlsplit(url)
    assert where.hostname
    assert where.port
    with socket.create_connection((where.hostname, where.port), 10) as plain:
        connection = tls.wrap_socket(plain, server_hostname="localhost") if tls else plain
        with connection:
            for command in (connect, *commands):
                connection.sendall(build_frame(command))
                answers: list[object] = []
                while not answers:
                    data = connection.recv(65536)
                    assert data, "the broker closed the connection"
                    answers = list(stream.feed(data))
    (answer,) = answers
    assert isinstance(answer, Frame)
    assert answer.base is not None
    return answer.base


def test_a_broker_comes_back_on_its_port_with_its_data(tmp_path: Path, broker_kind: BrokerKind) -> None:
    with broker_kind(tmp_path) as broker:
        assert ask(broker.url).type == BaseCommand.CONNECTED
        broker.rest("PUT", "/admin/v2/persistent/public/default/kept")
        url, pid = broker.url, broker.pid
        broker.kill()
        assert not broker.pids()
        with pytest.raises(ConnectionRefusedError):
            ask(url)
        broker.start()
        assert broker.url == url
        assert broker.pid != pid
        assert ask(url).type == BaseCommand.CONNECTED
        assert "persistent://public/default/kept" in broker.rest("GET", "/admin/v2/persistent/public/default")
    with pytest.raises(ConnectionRefusedError):
        ask(url)


@pytest.mark.usefixtures("obtainable")
def test_java_produces(broker: Broker, topic: str) -> None:
    assert ":" in run_java(PRODUCE, broker.url, topic, "hello")
    stats = broker.rest("GET", f"/admin/v2/{topic.replace('://', '/')}/stats")
    assert stats["msgInCounter"] == 1


@pytest.mark.usefixtures("obtainable")
def test_java_that_fails_says_why() -> None:
    with pytest.raises(Failed, match=r"code 1: .*\n?.*cannot find symbol"):
        run_java("public class Wrong { Nothing nothing; }")


def test_who_may_connect(secure: Broker) -> None:
    tls = ssl.create_default_context(cafile=secure.tls.ca)
    tls.verify_flags |= ssl.VERIFY_X509_STRICT
    known = {"admin", "client", "stranger", "proxy"}
    for name, token in secure.tokens.items():
        for url, context in ((secure.url, None), (secure.url_tls, tls)):
            answer = ask(url, auth=("token", token), tls=context)
            assert answer.type == (BaseCommand.CONNECTED if name in known else BaseCommand.ERROR), name
    assert ask(secure.url, auth=("token", secure.token(expires_in=60))).type == BaseCommand.CONNECTED
    assert ask(secure.url_tls, tls=tls).type == BaseCommand.ERROR
    tls.load_cert_chain(secure.tls.client_cert, secure.tls.client_key)
    assert ask(secure.url_tls, auth=("tls", ""), tls=tls).type == BaseCommand.CONNECTED


@pytest.mark.usefixtures("obtainable")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_nothing_outlives_who_started_it(how: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, brokers.__file__, "run", "--set", "brokerDeduplicationEnabled=true"]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "JDK_JAVA_OPTIONS": QUICK}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout
        told = json.loads(process.stdout.readline())
        assert ask(told["url"]).type == BaseCommand.CONNECTED
        where = urlsplit(told["url"])
        with socket.create_connection((where.hostname, where.port), 20) as connection:
            process.send_signal(how)
            with contextlib.suppress(ConnectionResetError):
                assert not connection.recv(1)  # it ends with the broker
    assert process.returncode == (0 if how == signal.SIGTERM else -how)
    with pytest.raises(ConnectionError):
        ask(told["url"])
    assert how == signal.SIGKILL or not list(tmp_path.iterdir())
