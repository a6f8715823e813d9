"""The brokers that cases run against: the embedded one, and a real one."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import socket
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.probe import SETTINGS, Probe, Target, host_and_port
from interop.brokers import RestError, Standalone
from interop.credentials import make_tokens, sign

from pulsarctl_wire.broker.basics.settings import parse_settings
from pulsarctl_wire.broker.shell.server import Server
from pulsarctl_wire.broker.tenancy.access import Keys

if TYPE_CHECKING:
    from typing_extensions import Self  # Python 3.10 has none

MOMENT = 0.005
"""Seconds within which the embedded broker has sent whatever it need not wait for."""


class RealTarget(Target):
    """A real standalone broker, which many cases share."""

    embedded = False

    def __init__(self, broker: Standalone, setting: str) -> None:
        super().__init__()
        self.broker = broker
        self.setting = setting
        self.address = host_and_port(broker.url)
        self.http_url = broker.http_url
        self.tokens = broker.tokens
        self.unique = secrets.token_hex(4)

    async def settle(self, seconds: float = 0.4) -> None:
        await asyncio.sleep(seconds)

    async def advance(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def rest(self, method: str, path: str, body: object = None) -> Any:
        return await asyncio.to_thread(self.broker.rest, method, path, body)

    def token(self, role: str, expires_in: float | None = None, **claims: object) -> str:
        return self.broker.token(role, expires_in, **claims)


class EmbeddedTarget(Target):
    """An embedded broker of its own, in the same event loop; `more` are other lines of standalone.conf."""

    embedded = True

    def __init__(self, setting: str, **more: object) -> None:
        super().__init__()
        self.setting = setting
        settings, keys = {**SETTINGS[setting], **more}, Keys()
        self.tokens = {}
        if setting == "auth":
            self._key = secrets.token_bytes(32)
            self.tokens, keys = make_tokens(self._key), Keys(token_secret=self._key)
            settings |= {"authenticationEnabled": True, "authorizationEnabled": True}
            settings["authenticationProviders"] = "AuthenticationProviderToken"
        self.server = Server(parse_settings(settings), keys=keys)
        sock = socket.create_server(("127.0.0.1", 0))
        self.address = self.server.listen(self.server.cluster.brokers[0], sock)
        self.probes: list[Probe] = []
        self.http_url = ""

    async def __aenter__(self) -> Self:
        if self.tokens:
            path = "/admin/v2/namespaces/public/default/permissions/client"
            await self.rest("POST", path, ["produce", "consume"])
        return self

    def token(self, role: str, expires_in: float | None = None, **claims: object) -> str:
        now = self.now_ms() / 1000
        expiry = {} if expires_in is None else {"exp": math.ceil(now + expires_in)}
        return sign(self._key, **{"sub": role, **expiry, **claims})

    async def __aexit__(self, *reason: object) -> None:
        await super().__aexit__(*reason)
        await self.server.close()

    async def connection(self) -> Probe:
        probe = await super().connection()
        self.probes.append(probe)
        return probe

    async def settle(self, seconds: float = 0.4) -> None:
        await self.advance(MOMENT)

    async def _wait(self) -> None:
        await self.server.idle()
        while not self._is_settled():
            await asyncio.sleep(0)
            await self.server.idle()

    def _is_settled(self) -> bool:
        """Whether both sides of all connections have received what the other side sent."""
        peers = {peer.connection.client: peer for state, peer in self.server.peers.items()}
        return all(
            probe.closed.done()
            if (peer := peers.get(probe.connection.client)) is None
            else peer.is_open
            and not probe.closed.done()
            and (peer.sent, peer.received) == (probe.received, probe.sent)
            for probe in self.probes
        )

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
            text = (answer.value or b"").decode()
            try:
                return json.loads(text)
            except ValueError:
                return text.strip()
        return json.loads(json.dumps(answer.value))


def real_broker(setting: str, directory: Path) -> Standalone:
    """A real broker with the lines of standalone.conf that rows with this setting need."""
    return Standalone(directory, settings=SETTINGS[setting], tokens=setting == "auth")


def main() -> None:
    """Run cases against a real broker: python tests/broker/targets.py SETTING [PATTERN…].

    Cases are ids of rows in reactions.tsv, and names of calls of the admin API (tests/broker/admin): admin/….
    """
    import argparse
    import fnmatch
    import sys
    import traceback

    from broker.admin.cases import CALLS
    from broker.cases import CASES
    from broker.probe import ROWS, setting_of

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("setting", choices=SETTINGS)
    parser.add_argument("id", nargs="*", default=["*"])
    options = parser.parse_args()
    settings = {name: setting_of(ROWS[name]) for name in CASES}
    settings |= {name: call.setting for name, call in CALLS.items()}
    cases = {**CASES, **{name: call.run for name, call in CALLS.items()}}
    wanted = [
        name
        for name, setting in settings.items()
        if setting == options.setting and any(fnmatch.fnmatch(name, pattern) for pattern in options.id)
    ]
    failed = 0
    with tempfile.TemporaryDirectory() as place, real_broker(options.setting, Path(place)) as broker:

        async def run(name: str) -> None:
            async with RealTarget(broker, options.setting) as target:
                await asyncio.wait_for(cases[name](target), 60)

        for name in wanted:
            began = time.monotonic()
            try:
                asyncio.run(run(name))
                said = "ok"
            except Exception as error:
                failed += 1
                line = "".join(traceback.format_exception(error))
                said = f"FAILED\n{line}"
            sys.stdout.write(f"{time.monotonic() - began:5.1f} s  {name}  {said}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(wanted) - failed} passed, {failed} failed\n")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
