"""Commands without the fields they must have, through all that shows, records, counts or sends."""

from __future__ import annotations

import socket
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from proxied import HOST, PATIENCE, Proxied, decode, frames, receive, run

from pulsarctl_wire.wire.commands import BODIES, NAMES, PAYLOAD_TYPES
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand

NO_METADATA = bytes(4) + b"payload"


def _frame(base: BaseCommand) -> bytes:
    command = base.SerializePartialToString()
    behind = NO_METADATA if base.type in PAYLOAD_TYPES else b""
    return struct.pack(">II", 4 + len(command) + len(behind), len(command)) + command + behind


def _hollow(message: Any, depth: int = 3) -> None:
    """Give a message all the messages that it may have inside, which have nothing else in them."""
    for field in message.DESCRIPTOR.fields if depth else ():
        if field.message_type is None:
            continue
        inner = getattr(message, field.name)
        if field.is_repeated:
            inner.add()
        else:
            inner.SetInParent()
        for each in inner if field.is_repeated else (inner,):
            _hollow(each, depth - 1)


def _every_command() -> list[bytes]:
    """Each command without its body, with an empty one, and with a body full of empty messages."""
    found = []
    for number, body in BODIES.items():
        for fill in (None, lambda message: message.SetInParent(), _hollow):
            base = BaseCommand()
            base.type = number  # type: ignore[assignment]
            if fill is not None:
                getattr(base, body).SetInParent()
                fill(getattr(base, body))
            found.append(_frame(base))
    return found


FRAMES = _every_command()
COMMANDS = [NAMES[number] for number in BODIES for _ in range(3)]


@pytest.mark.parametrize("form", ["line", "tree", "json", "hex"])
def test_every_command_without_its_fields_through_the_proxy(form: str, tmp_path: Path) -> None:
    record = tmp_path / "seen.pcapng"
    args = ("--tap", "-o", form, "--record", record, "--stats", "--metrics", ":0")
    with Proxied(*args, "--fault", "drop filter=number<0") as proxy:
        with proxy.session() as session:
            for raw in FRAMES:
                session.pass_on(True, raw)
            for raw in FRAMES:
                session.pass_on(False, raw)
        assert proxy.stop() == 0
        read = run("decode", "-o", form, record, home=proxy.home)
        if form == "json":
            assert [each["command"] for each in frames(proxy.out.records)] == COMMANDS * 2
            assert run("stats", record, home=proxy.home).returncode == 0
    assert "Traceback" not in proxy.err.text + read.stderr
    assert all(name in proxy.out.text and name in read.stdout for name in COMMANDS)


def test_every_command_without_its_fields_is_sent_shown_and_recorded(tmp_path: Path) -> None:
    script, record = tmp_path / "script", tmp_path / "sent.pcapng"
    script.write_text("".join(f"{raw.hex()}\n" for raw in FRAMES))
    with socket.create_server((HOST, 0)) as server:
        server.settimeout(PATIENCE)

        def echo() -> None:
            with server.accept()[0] as sock:
                sock.settimeout(PATIENCE)
                sock.sendall(receive(sock, sum(map(len, FRAMES))))
                receive(sock, 1)

        broker = threading.Thread(target=echo)
        broker.start()
        to = "pulsar://{}:{}".format(*server.getsockname())
        args = ("--sent", "-o", "json", "--trace", "--idle", "0.5", "--record", record, script)
        sent = run("send", "--no-handshake", "--url", to, *args, home=tmp_path)
        broker.join(PATIENCE)
    assert "Traceback" not in sent.stderr
    assert sent.stdout.count('"to_broker":false') == len(FRAMES)
    assert sent.stdout.count('"to_broker":true') >= len(FRAMES)  # PINGs are answered
    shown = decode("-o", "json", record, home=tmp_path).stdout
    assert shown.count('"command":"') == sent.stdout.count('"command":"')
