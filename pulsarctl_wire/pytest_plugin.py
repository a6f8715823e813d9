"""The pytest fixture `pulsar_broker`: an embedded broker of its own for each test.

If a test fails, the traffic of its broker is kept, and the report names the file. With `--pwire-strict` a
test fails if its client, or the broker, breaks a must of the protocol.

pytest loads this module whenever it starts, so nothing else is imported before the fixture is used.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pulsarctl_wire.testing import Broker


def pytest_addoption(parser: pytest.Parser) -> None:
    """pytest: add our options."""
    group = parser.getgroup("pulsarctl-wire")
    group.addoption(
        "--pwire-strict",
        action="store_true",
        help="fail a test whose Pulsar client breaks a must of the protocol",
    )
    group.addoption(
        "--pwire-captures",
        metavar="DIR",
        help="where the traffic of failed tests is kept (default: a new directory for temporary files)",
    )


@pytest.fixture
def pulsar_broker() -> Iterator[Broker]:
    """Yield a fresh Pulsar broker in memory (`pulsarctl_wire.testing.Broker`)."""
    from pulsarctl_wire.testing import Broker

    with Broker() as broker:
        yield broker


def _find_broker(item: pytest.Item) -> Broker | None:
    arguments: dict[str, Any] = getattr(item, "funcargs", {})
    return arguments.get("pulsar_broker")


@pytest.hookimpl(hookwrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, None]:
    """pytest: after a test that passed, fail it if a must of the protocol was broken."""
    outcome = yield
    broker = _find_broker(pyfuncitem)
    if broker is None or outcome.excinfo is not None or not pyfuncitem.config.getoption("--pwire-strict"):
        return
    from pulsarctl_wire.testing.traffic import describe

    breaches = broker.traffic.list_breaches()
    if breaches:
        text = "\n".join(["the protocol was broken:", *describe(breaches)])
        outcome.force_exception(pytest.fail.Exception(text, pytrace=False))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    """pytest: keep the traffic of a test that failed, and name the file in its report."""
    outcome = yield
    broker = _find_broker(item)
    if broker is None or call.when != "call" or not outcome.get_result().failed:
        return
    path = _make_path(item)
    broker.traffic.save(path)
    text = f"{path}: what went over the wire; pwire decode or pwire doctor shows it"
    outcome.get_result().sections.append(("pulsarctl-wire", text))


def _make_path(item: pytest.Item) -> Path:
    """Return the file to keep the traffic of a test in, and make its folder."""
    folder = item.config.getoption("--pwire-captures")
    if folder is None:
        folder = tempfile.mkdtemp(prefix="pwire-")
    else:
        Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder) / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', item.nodeid).strip('-')[-150:]}.pcapng"
