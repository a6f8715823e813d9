"""The brokers that cases run against: the embedded one, and a real one."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import time
from pathlib import Path
from typing import Any

from broker.probe import SETTINGS, Target, host_and_port
from interop.brokers import Standalone


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

    async def rest(self, method: str, path: str, body: object = None) -> Any:
        return await asyncio.to_thread(self.broker.rest, method, path, body)

    def token(self, role: str, expires_in: float | None = None) -> str:
        return self.broker.token(role, expires_in)


def real_broker(setting: str, directory: Path) -> Standalone:
    """A real broker with the lines of standalone.conf that rows with this setting need."""
    return Standalone(directory, settings=SETTINGS[setting], tokens=setting == "auth")


def main() -> None:
    """Run cases against a real broker: python tests/broker/targets.py SETTING [PATTERN…]."""
    import argparse
    import fnmatch
    import sys
    import traceback

    from broker.cases import CASES
    from broker.probe import ROWS, setting_of

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("setting", choices=SETTINGS)
    parser.add_argument("id", nargs="*", default=["*"])
    options = parser.parse_args()
    wanted = [
        name
        for name in CASES
        if setting_of(ROWS[name]) == options.setting
        and any(fnmatch.fnmatch(name, pattern) for pattern in options.id)
    ]
    failed = 0
    with tempfile.TemporaryDirectory() as place, real_broker(options.setting, Path(place)) as broker:

        async def run(name: str) -> None:
            async with RealTarget(broker, options.setting) as target:
                await asyncio.wait_for(CASES[name](target), 60)

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
