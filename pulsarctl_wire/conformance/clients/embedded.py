"""The embedded broker as the broker of a case, with faults, and what is read from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from pulsarctl_wire.broker.basics.settings import parse_settings
from pulsarctl_wire.broker.shell.server import Server
from pulsarctl_wire.conformance.basics.target import BrokerAccess, RemoteTarget, admin_path
from pulsarctl_wire.conformance.clients.scripted import HOST
from pulsarctl_wire.conformance.clients.stage import Stage
from pulsarctl_wire.faults.text import parse_fault
from pulsarctl_wire.net.settings import Address
from pulsarctl_wire.net.sockets import bind_socket
from pulsarctl_wire.wire.frame import Frame

_PERMITS: Final = 1_000  # more than the messages of any case
_ACK_PATIENCE: Final = 2.0  # seconds for acknowledgements that the client sent before its end
_ACK_PAUSE: Final = 0.05  # seconds between looks


class EmbeddedBroker:
    """An embedded broker with one topic. Only connections of the client have faults, and the stage's tap."""

    def __init__(self, server: Server, address: Address, stage: Stage) -> None:
        self.url = f"pulsar://{address}"
        self._server = server
        self._stage = stage
        self._access = BrokerAccess(address, "conform")

    def set_faults(self, *texts: str) -> None:
        """Set faults, as for `pwire broker --fault`; they replace those set before."""
        self._server.faults = self._server.new_faults()
        for text in texts:
            self._server.faults.add(parse_fault(text))

    @asynccontextmanager
    async def _visit(self) -> AsyncIterator[RemoteTarget]:
        """Remove the faults for good; yield a target for the case's own connections, unseen by the tap."""
        self._server.faults, self._server.tap = None, None
        async with RemoteTarget(self._access) as target:
            yield target
        self._server.tap = self._stage.transcript

    async def fill(self, number: int) -> list[str]:
        """Publish so many messages; return their payloads."""
        async with self._visit() as target:
            await target.fill(number, self._stage.topic)
        return [f"m{index}" for index in range(number)]

    async def read(self) -> list[Frame]:
        """Return all MESSAGEs of the topic."""
        async with self._visit() as target:
            probe = await target.subscribe(self._stage.topic, permits=_PERMITS)
            await asyncio.sleep(0.3)
            return [frame for frame in probe.frames if frame.command == "MESSAGE"]

    async def wait_for_acks(self) -> int:
        """Wait a while for all acknowledgements; return how many entries are still not acknowledged."""
        backlog = -1
        for _ in range(int(_ACK_PATIENCE / _ACK_PAUSE)):
            answer = await self._server.admin("GET", f"{admin_path(self._stage.topic)}/stats")
            backlog = sum(stats["msgBacklog"] for stats in answer.value["subscriptions"].values())
            if not backlog:
                break
            await asyncio.sleep(_ACK_PAUSE)
        return backlog


@asynccontextmanager
async def _serve(stage: Stage, **settings: object) -> AsyncIterator[EmbeddedBroker]:
    server = Server(parse_settings(settings), tap=stage.transcript)
    server.numbers = stage.numbers
    try:
        address = server.listen(server.cluster.brokers[0], bind_socket(Address(HOST, 0)))
        yield EmbeddedBroker(server, address, stage)
    finally:
        await server.close()


async def open_embedded(stage: Stage, **settings: object) -> EmbeddedBroker:
    """Open an embedded broker; `settings` are lines of broker.conf."""
    broker: EmbeddedBroker = await stage.push(_serve(stage, **settings))
    return broker
