"""The brokers that cases run against in tests: the embedded one, whose clock is moved, and a real one."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interop.brokers import Standalone

from pulsarctl_wire.broker.basics.settings import parse_settings
from pulsarctl_wire.broker.shell.server import Peer, Server
from pulsarctl_wire.broker.tenancy.access import Keys
from pulsarctl_wire.conformance.basics.admin import Admin, RestError, read_answer
from pulsarctl_wire.conformance.basics.probe import Probe
from pulsarctl_wire.conformance.basics.settings import SECONDS, SETTINGS
from pulsarctl_wire.conformance.basics.target import BrokerAccess, RemoteTarget, Target
from pulsarctl_wire.conformance.basics.tokens import make_tokens, sign
from pulsarctl_wire.net.settings import parse_url

if TYPE_CHECKING:
    from typing_extensions import Self  # Python 3.10 has none

MOMENT = 0.005
"""Seconds within which the embedded broker has sent whatever it need not wait for."""

STEP = 0.25
"""Seconds by which its clock is moved while a case waits for a frame."""


class EmbeddedTarget(Target):
    """An embedded broker of its own, in the same event loop; `more` are other lines of broker.conf."""

    def __init__(self, *settings: str, **more: object) -> None:
        super().__init__()
        lines, keys = {**more}, Keys()
        for setting in settings:
            lines = {**SETTINGS.get(setting, {}), **lines}
        if "auth" in settings:
            self._key = secrets.token_bytes(32)
            self.tokens, keys = make_tokens(self._key), Keys(token_secret=self._key)
            lines |= {"authenticationEnabled": True, "authorizationEnabled": True}
            lines["authenticationProviders"] = "AuthenticationProviderToken"
            self.seconds = {**SECONDS, "refresh": float(str(lines["authenticationRefreshCheckSeconds"]))}
        self.server = Server(parse_settings(lines), keys=keys)
        sock = socket.create_server(("127.0.0.1", 0))
        self.address = self.server.listen(self.server.cluster.brokers[0], sock)
        self.probes: list[Probe] = []

    async def __aenter__(self) -> Self:
        if self.tokens:
            path = "/admin/v2/namespaces/public/default/permissions/client"
            await self.rest("POST", path, ["produce", "consume"])
        return self

    def sign_token(self, role: str, expires_in: float | None = None, **claims: object) -> str:
        now = self.now_ms() / 1000
        expiry = {} if expires_in is None else {"exp": math.ceil(now + expires_in)}
        return sign(self._key, **{"sub": role, **expiry, **claims})

    async def __aexit__(self, *reason: object) -> None:
        await super().__aexit__(*reason)
        await self.server.close()

    async def open_connection(self) -> Probe:
        probe = await super().open_connection()
        self.probes.append(probe)
        return probe

    async def settle(self, seconds: float = 0.4) -> None:
        await self.advance(MOMENT)

    async def wait(self, probe: Probe, holds: Callable[[], object], within: float) -> bool:
        steps = math.ceil(within / STEP)
        for number in range(steps + 1):
            if holds():
                return True
            await self.advance(STEP if number else MOMENT)
            await asyncio.sleep(0.001)  # an end of a connection is not among the bytes that are counted
        return bool(holds())

    async def _wait(self) -> None:
        await self.server.idle()
        while not self._is_settled():
            await asyncio.sleep(0)
            await self.server.idle()

    def _is_settled(self) -> bool:
        """Whether both sides of all connections have received what the other side sent."""
        peers = {peer.connection.client: peer for state, peer in self.server.peers.items()}
        return all(self.agrees(probe, peers.get(probe.connection.client)) for probe in self.probes)

    def agrees(self, probe: Probe, peer: Peer | None) -> bool:
        """Whether both sides of a connection know the same of it."""
        if peer is None or probe.closed.done():
            return peer is None and probe.closed.done()
        sizes = (peer.sent, peer.received) == (probe.bytes_received, probe.bytes_sent)
        return peer.is_open and sizes

    async def advance(self, seconds: float) -> None:
        await self.server.advance(seconds, self._wait)

    def now_ms(self) -> int:
        self.server.set_time()
        return self.server.cluster.scheduler.time_ms

    async def rest(self, method: str, path: str, body: object = None) -> Any:
        answer = await self.server.admin(method, path, body)
        if answer.status >= 300:
            raise RestError(answer.status, json.dumps(answer.value))
        if answer.value is None or isinstance(answer.value, bytes):  # as it comes over HTTP
            return read_answer((answer.value or b"").decode())
        return json.loads(json.dumps(answer.value))


class RealTarget(RemoteTarget):
    """A real standalone broker, which many cases share."""

    def __init__(self, broker: Standalone) -> None:
        (address,) = parse_url(broker.url).addresses
        super().__init__(BrokerAccess(address, secrets.token_hex(4), admin=Admin(broker.http_url)))
        self.rest_url = broker.http_url


def real_broker(setting: str, directory: Path) -> Standalone:
    """A real broker with the lines of broker.conf that a setting stands for."""
    return Standalone(directory, settings=SETTINGS.get(setting, {}), tokens=setting == "auth")


def main() -> None:
    """Run cases of the admin API against a real broker: python tests/broker/targets.py SETTING [PATTERN…].

    Their names are those in tests/broker/admin: admin/….
    """
    import argparse
    import fnmatch
    import sys
    import tempfile
    import time
    import traceback

    from broker.admin.cases import CALLS

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("setting", choices=["default", *SETTINGS])
    parser.add_argument("name", nargs="*", default=["*"])
    options = parser.parse_args()
    failed = count = 0
    with tempfile.TemporaryDirectory() as place, real_broker(options.setting, Path(place)) as broker:

        async def run(name: str) -> None:
            async with RealTarget(broker) as target:
                await asyncio.wait_for(CALLS[name].run(target), 60)

        for name, call in CALLS.items():
            if call.setting != options.setting or not any(
                fnmatch.fnmatch(name, each) for each in options.name
            ):
                continue
            count, began, outcome = count + 1, time.monotonic(), "ok"
            try:
                asyncio.run(run(name))
            except Exception as error:
                failed += 1
                outcome = "FAILED\n" + "".join(traceback.format_exception(error))
            sys.stdout.write(f"{time.monotonic() - began:5.1f} s  {name}  {outcome}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{count - failed} passed, {failed} failed\n")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
