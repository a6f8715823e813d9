"""Cases of the admin API: async functions that are registered by name, and get a target.

    @call("topics/create")
    async def create(broker: Target) -> None:
        ...

They run on the embedded broker, and on a real one (targets.py).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple

import pytest

from pulsarctl_wire.conformance.basics.admin import RestError
from pulsarctl_wire.conformance.basics.target import Target, admin_path
from pulsarctl_wire.wire.PulsarApi_pb2 import MessageIdData

NAMESPACES = "/admin/v2/namespaces"


class Call(NamedTuple):
    """A case; `setting` is the key in SETTINGS of the broker that it needs."""

    run: Callable[[Target], Awaitable[None]]
    setting: str


CALLS: dict[str, Call] = {}


def call(
    name: str, *arguments: Any, setting: str = "default"
) -> Callable[[Callable[..., Awaitable[None]]], Any]:
    """Register an async function as the case admin/NAME; it gets the target and `arguments`."""

    def register(function: Callable[..., Awaitable[None]]) -> Any:
        async def run(broker: Target) -> None:
            await function(broker, *arguments)

        assert f"admin/{name}" not in CALLS, f"{name} has two cases"
        CALLS[f"admin/{name}"] = Call(run, setting)
        return function

    return register


async def refused(
    broker: Target, status: int, reason: str, method: str, path: str, body: object = None
) -> None:
    """A request must be refused with this status, and this in its reason."""
    with pytest.raises(RestError) as raised:
        await broker.rest(method, path, body)
    assert raised.value.status == status, raised.value
    said = str(raised.value)
    with suppress(ValueError):
        said = json.loads(said.partition(": ")[2])["reason"]
    assert reason in said, said


def at(topic: str, *more: object) -> str:
    """The path of a topic, or of something below it."""
    return "/".join([admin_path(topic), *map(str, more)])


def place(message_id: MessageIdData) -> dict[str, int]:
    """A message id as JSON."""
    return {"ledgerId": message_id.ledgerId, "entryId": message_id.entryId}
