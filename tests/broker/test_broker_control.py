"""The control requests of a broker over HTTP, and what is answered to wrong ones."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest

from pulsarctl_wire.broker.shell.control import answer_http
from pulsarctl_wire.broker.shell.running import Plan, Running, bind


def asked(
    method: str,
    path: str,
    body: object = None,
    *,
    before: tuple[str, str, object] | None = None,
) -> tuple[int, dict[str, Any]]:
    """The answer of a fresh broker, that was asked something `before`."""

    async def check() -> tuple[int, dict[str, Any]]:
        plan = Plan()
        running = Running(plan, bind(plan))
        await running.open()
        try:
            for method_, path_, body_ in (*((before,) if before else ()), (method, path, body)):
                given = {} if body_ is None else body_
                data = given if isinstance(given, bytes) else json.dumps(given).encode()
                found = await answer_http(running.server, method_, path_, data)
            return found
        finally:
            await running.close()

    return asyncio.run(check())


def test_requests_and_answers() -> None:
    status, state = asked("GET", "/pwire/state")
    assert (status, state["brokers"][0]["topics"]) == (200, {})
    assert asked("POST", "/pwire/advance", {"seconds": 1.5})[0] == 200
    assert asked("POST", "/pwire/cut") == (200, {"connections": 0})
    assert asked("POST", "/pwire/housekeeping") == (200, {})
    assert asked("POST", "/pwire/fault-add", {"fault": "drop command=PONG"}) == (200, {"number": 1})
    assert asked("POST", "/pwire/fault-list") == (200, {"faults": []})


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("GET", "/pwire/cut", None, 405, "GET cannot be used here"),
        ("POST", "/pwire/state", None, 405, "POST cannot be used here"),
        ("POST", "/pwire/nonsense", None, 404, "nonsense: not one of state, advance"),
        ("POST", "/pwire/advance", b"{", 400, "the body is not JSON"),
        ("POST", "/pwire/advance", b"[" * 100_000, 400, "the body is not JSON"),
        ("POST", "/pwire/advance", [], 400, "the body must be a JSON object"),
        ("POST", "/pwire/advance", {}, 400, "seconds=None: it must be a number"),
        ("POST", "/pwire/advance", {"seconds": -1}, 400, "seconds=-1: it must be a number"),
        ("POST", "/pwire/advance", b'{"seconds": NaN}', 400, "seconds=nan: it must be a number"),
        ("POST", "/pwire/advance", {"seconds": True}, 400, "seconds=True: it must be a number"),
        ("POST", "/pwire/cut", {"connection": "1"}, 400, "connection=1: it must be a number"),
        ("POST", "/pwire/unload", {}, 400, "Invalid short topic name"),
        ("POST", "/pwire/unload", {"topic": "none"}, 400, "Topic not found"),
        ("POST", "/pwire/compact", {"topic": "none"}, 400, "Topic not found"),
        ("POST", "/pwire/move", {"topic": "t", "broker": 1}, 400, "there is no broker 1"),
        ("POST", "/pwire/kill", {"broker": 0}, 400, "the last broker cannot be killed"),
        ("POST", "/pwire/start", {"broker": 0}, 400, "broker 0 is running"),
        ("POST", "/pwire/start", {"broker": True}, 400, "there is no broker True"),
        ("POST", "/pwire/fault-add", {"fault": "nonsense"}, 400, "fault nonsense: unknown fault"),
        ("POST", "/pwire/fault-wait", {"number": 1}, 400, "there is no fault 1"),
        ("POST", "/pwire/fault-remove", {}, 400, "there is no fault None"),
    ],
)
def test_wrong_requests(method: str, path: str, body: object, status: int, text: str) -> None:
    found, answer = asked(method, path, body)
    assert (found, answer["error"][: len(text)]) == (status, text)


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"timeout": 0}, 408, "fault 1 had 0 of 1 hits after 0 seconds"),
        ({"timeout": 0.01, "hits": 2}, 408, "fault 1 had 0 of 2 hits after 0.01 seconds"),
        ({"timeout": -1}, 400, "timeout=-1: it must be a number of seconds"),
        ({"timeout": "1"}, 400, "timeout=1: it must be a number of seconds"),
        (b'{"number": 1, "timeout": NaN}', 400, "timeout=nan: it must be"),
        (b'{"number": 1, "timeout": Infinity}', 400, "timeout=inf: it must be"),
        ({"hits": 0}, 400, "hits=0: it must be a whole number from 1"),
        ({"hits": 1.5}, 400, "hits=1.5: it must be"),
        ({"hits": True}, 400, "hits=True: it must be"),
        ({"number": "1"}, 400, "there is no fault 1"),
        ({"number": True}, 400, "there is no fault True"),
    ],
)
def test_waiting_for_what_does_not_happen(body: Any, status: int, text: str) -> None:
    before = ("POST", "/pwire/fault-add", {"fault": "drop command=PONG"})
    data = body if isinstance(body, bytes) else {"number": 1, **body}
    found, answer = asked("POST", "/pwire/fault-wait", data, before=before)
    assert (found, answer["error"][: len(text)]) == (status, text)


def test_who_connects_to_the_admin_api_that_is_not_there_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pulsarctl_wire.broker.shell.running._ADMIN", "pulsarctl_wire.broker.none")
    notes: list[str] = []

    async def check() -> None:
        plan = Plan()
        running = Running(plan, bind(plan), note=notes.append)
        await running.open()
        port = int(running.brokers[0].http_url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setblocking(False)
            with pytest.raises(ConnectionResetError):
                await asyncio.get_running_loop().sock_recv(client, 1)
        await running.close()

    asyncio.run(check())
    assert notes == ["the admin API cannot be served: No module named 'pulsarctl_wire.broker.none'"]
