"""What `pwire conform broker` does: connects, runs cases, and writes reports and captures."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pulsarctl_wire import __version__
from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.conform.reporting import Progress, choose, deliver, list_cases, list_frames
from pulsarctl_wire.conformance.basics.admin import Admin
from pulsarctl_wire.conformance.basics.case import Case
from pulsarctl_wire.conformance.basics.settings import SECONDS, SETTINGS, VISIBLE
from pulsarctl_wire.conformance.basics.target import BrokerAccess, RemoteTarget
from pulsarctl_wire.conformance.basics.tokens import make_tokens
from pulsarctl_wire.conformance.catalog import CASES
from pulsarctl_wire.conformance.report import Report, make_report
from pulsarctl_wire.conformance.runner import JOBS, make_plan, run_plan
from pulsarctl_wire.conformance.survey import Survey, survey
from pulsarctl_wire.conformance.verdict import Outcome, parse_release
from pulsarctl_wire.net.settings import Settings, gather, make_settings, parse_url
from pulsarctl_wire.net.sockets import allow_many_sockets
from pulsarctl_wire.net.web import make_headers

if TYPE_CHECKING:
    from pulsarctl_wire.cli.conform.options import BrokerOptions

_SHORTEST: Final = 2.0
"""The shortest time that --have takes, in seconds: cases look a second before and after its end."""


def check_broker(options: BrokerOptions) -> int:
    """Run the chosen cases against a broker, or list them; return the exit code."""
    if options.choice.listing:
        # with --list, the first argument can be a case
        patterns = [*filter(None, [options.url]), *options.cases]
        patterns = [pattern for pattern in patterns if "://" not in pattern]
        return list_cases(choose(patterns, options.choice.level, CASES), options.report.output)
    if options.url is None:
        console.fail("conform broker: name the broker, as in pulsar://localhost:6650")
    parse_url(options.url)  # refuses the URL of a web service
    cases = choose(options.cases, options.choice.level, CASES)
    settings = make_settings(
        gather({**options.auth.collect_flags(), "url": options.url}, os.environ, options.auth.conf)
    )
    claims, seconds = _parse_claims(options.have)
    access = _make_access(options, settings, seconds)
    allow_many_sockets()
    report, outcomes = asyncio.run(_run(options, cases, access, claims))
    return deliver(options.report, report, outcomes)


def _parse_claims(texts: list[str]) -> tuple[frozenset[str], dict[str, float]]:
    """Parse --have: return the names of settings, and the times, which NAME=SECONDS changes."""
    names, seconds = set(), dict(SECONDS)
    for text in texts:
        name, equals, value = text.partition("=")
        if equals and name in SECONDS and value.replace(".", "", 1).isdecimal() and float(value) >= _SHORTEST:
            seconds[name] = float(value)
        elif not equals and name in SETTINGS:
            names.add(name)
        else:
            choices = ", ".join(
                [*(name for name in SETTINGS if name not in VISIBLE), *map("{}=SECONDS".format, SECONDS)]
            )
            console.fail(f"--have {text[:60]}: use one of {choices}")
    return frozenset(names), seconds


def _make_access(options: BrokerOptions, settings: Settings, seconds: dict[str, float]) -> BrokerAccess:
    """Return the broker that the options name. Raises SettingsError."""
    key = None if options.token_key is None else _read_key(options.token_key)
    tokens = {} if key is None else make_tokens(key)
    auth, credentials = settings.auth, {}
    headers = make_headers(auth)
    if auth.method != "none":
        credentials = {"auth_method_name": auth.method, "auth_data": auth.data()}
    elif tokens:
        credentials = {"auth_method_name": "token", "auth_data": tokens["admin"].encode()}
        headers = {"Authorization": f"Bearer {tokens['admin']}"}
    admin = None
    if options.admin_url is not None:
        if not options.admin_url.startswith(("http://", "https://")):
            console.fail(f"--admin-url {options.admin_url[:100]}: it begins with http:// or https://")
        context = settings.tls_context() if options.admin_url.startswith("https://") else None
        admin = Admin(options.admin_url, headers, context)
    tls = settings.tls_context() if settings.url.tls else None
    run = secrets.token_hex(4)
    return BrokerAccess(settings.url.addresses[0], run, tls, credentials, admin, key, tokens, seconds)


def _read_key(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        console.fail(f"--token-key {path}: {error.strerror}")


async def _run(
    options: BrokerOptions, cases: list[Case], access: BrokerAccess, claims: frozenset[str]
) -> tuple[Report, list[Outcome]]:
    """Run cases; return the report, and the outcome of each case."""
    make_target = partial(RemoteTarget, access)
    began, date = time.perf_counter(), datetime.now(timezone.utc)
    async with make_target() as target:
        result = await survey(target)
    settings = _join_settings(result, claims, access)
    plan = make_plan(
        cases, settings, options.cases, options.choice.jobs or JOBS, parse_release(result.server)
    )
    progress = Progress(len(cases))
    outcomes = await run_plan(plan, make_target, progress.add)
    progress.end()
    scheme = "pulsar" if access.tls is None else "pulsar+ssl"
    about = {
        "target": f"{scheme}://{access.address}",
        "server": result.server,
        "protocol_version": result.protocol_version,
        "date": date.isoformat(),
        "seconds": round(time.perf_counter() - began, 3),
        "pwire": __version__,
        "settings": sorted(settings),
    }
    return make_report(about, outcomes, list_frames), outcomes


def _join_settings(result: Survey, claims: frozenset[str], access: BrokerAccess) -> frozenset[str]:
    """Return the settings that cases can rely on: those that were seen, and those that we were told of."""
    settings = result.settings | claims
    if access.admin is not None:
        settings |= {"admin"}
    # without the key, cases cannot make the tokens that "auth" needs
    return settings if access.key is not None else settings - {"auth"}
