"""Settings of all tests."""

import signal
from contextlib import suppress
from importlib import import_module
from pkgutil import walk_packages

import pytest
from hypothesis import settings

import pulsarctl_wire
from pulsarctl_wire.capture import files

# How long an example takes is the machine's business, not a test's. Which examples are tried follows from the
# code alone: a commit passes always or never. `--hypothesis-profile explore` tries others each time.
settings.register_profile("pwire", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("explore", deadline=None, print_blob=True, max_examples=100)
settings.load_profile("pwire")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell has it for what it starts with &
    signal.signal(signal.SIGINT, signal.default_int_handler)

COMPILED = not files.__file__.endswith(".py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Compiled modules (hatch_build.py) have their constants built in: leave tests that change some."""
    for item in items:
        if COMPILED and "monkeypatch" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip("pwire is compiled"))


def pytest_collection_finish() -> None:
    """Import all modules: Hypothesis tries their constants, and should know the same ones in every run."""
    for module in walk_packages(pulsarctl_wire.__path__, "pulsarctl_wire."):
        with suppress(ImportError):
            import_module(module.name)
