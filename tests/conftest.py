"""Settings of all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from spark_session import capture, quick_spark, spark, spark_cache

import pulsarctl_wire
from pulsarctl_wire.capture import files

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

# one home: a process can have only one session
__all__ = ["capture", "quick_spark", "spark", "spark_cache"]

# How long an example takes is the machine's business, not a test's. Which examples are tried follows from the
# code alone: a commit passes always or never. `--hypothesis-profile explore` tries others each time.
settings.register_profile("pwire", deadline=None, derandomize=True, max_examples=30)
settings.register_profile("explore", deadline=None, print_blob=True, max_examples=100)
settings.load_profile("pwire")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell has it for what it starts with &
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Otherwise each of the processes that tests start compiles everything again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

COMPILED = not files.__file__.endswith(".py")


def pytest_addoption(parser: pytest.Parser) -> None:
    about = "tests of tests/interop use real Pulsar brokers instead of the embedded one"
    parser.addoption("--real-brokers", action="store_true", help=about)


def pytest_configure(config: pytest.Config) -> None:
    """In CI, show the slowest tests."""
    if "PWIRE_CI_SKIPS" in os.environ:
        config.option.durations = 50


def pytest_pycollect_makeitem(
    collector: pytest.Collector, name: str, obj: object
) -> list[pytest.Item] | None:
    """Make no items of an exhaustive test, which has a thousand parameters, unless `-m` asks for it."""
    marks = getattr(obj, "pytestmark", []) if name.startswith("test_") else []
    is_wanted = "exhaustive" in collector.config.getoption("markexpr").replace("not exhaustive", "")
    return [] if not is_wanted and any(mark.name == "exhaustive" for mark in marks) else None


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Spark takes ten seconds to start. Compiled modules (hatch_build.py) have their constants built in.

    So tests with Spark are slow ones, which with `--dist=loadgroup` run on one worker; and of compiled
    modules those are left out that change constants.
    """
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.xdist_group("spark"))
    if COMPILED:
        others = [item for item in items if "monkeypatch" in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: WorkerController, ids: list[str]) -> None:
    """Refuse to run `--dist=loadgroup` without groups, or each worker would start all brokers."""
    if node.config.getoption("dist") == "loadgroup":
        for name in ids:
            if name.startswith("tests/interop/") and "@" not in name:
                raise pytest.UsageError(f"pytest-xdist makes no groups with pytest {pytest.__version__}")


# -- in CI, what is skipped without being expected has failed


def _reasons() -> list[str]:
    """Beginnings of the reasons for which a machine of CI may skip tests; none outside of CI."""
    file = os.environ.get("PWIRE_CI_SKIPS")
    lines = Path(file).read_text().splitlines() if file else []
    return [line for line in lines if line and not line.startswith("#")]


def _judge(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Make a failure of an unexpected skip."""
    if "PWIRE_CI_SKIPS" in os.environ and report.outcome == "skipped" and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        if not reason.startswith(tuple(_reasons())):
            report.outcome = "failed"
            report.longrepr = f"skipped, which CI does not expect: {reason}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _judge(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _judge(report)
    return report


def pytest_collection_finish(session: pytest.Session) -> None:
    """Import all modules: Hypothesis tries their constants, and should know the same ones in every run.

    The garbage collector then leaves alone what is there: a million objects, which all stay.
    """
    if any(item.get_closest_marker("hypothesis") for item in session.items):
        for module in walk_packages(pulsarctl_wire.__path__, "pulsarctl_wire."):
            with suppress(ImportError):
                import_module(module.name)
    gc.collect()
    gc.freeze()
