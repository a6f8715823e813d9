"""`Program`: a script that is loaded from a file, and loaded again when the file changes."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from pulsarctl_wire.errors import SettingsError

_NAMES: Final = ("on_frame", "on_open", "on_close")
_INTERVAL: Final = 0.5
"""Seconds between two looks at the file."""


class Program:
    """The functions of the script at `path`. Raises SettingsError if it cannot be loaded.

    Only files that the user has named are run, never anything from a capture or a socket.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._looked_at = 0.0
        self._loaded_version: object = None
        self._functions: dict[str, Callable[[Any], Any]] = {}
        try:
            self._load()
        except ScriptError as error:
            raise SettingsError(f"--script {path}: {error}") from None

    def refresh(self, now: float) -> str:
        """Load the script again if its file has changed; return a note about that, or "".

        `now` is the time in seconds, on any clock. If the script cannot be loaded, the one before stays.
        """
        if 0 <= now - self._looked_at < _INTERVAL:
            return ""
        self._looked_at = now
        try:
            if self._loaded_version == self._read_version():
                return ""
            self._load()
        except ScriptError as error:
            return f"{self.path}: {error}; the script loaded before stays"
        return f"{self.path}: loaded again"

    def call(self, name: str, argument: object) -> Any:
        """Call the function `name` of the script, and return its result; None if there is no such function.

        Raises ScriptError if the function raises.
        """
        function = self._functions.get(name)
        if function is None:
            return None
        try:
            return function(argument)
        except (Exception, SystemExit) as error:
            raise ScriptError(describe(error, self.path)) from None

    def _read_version(self) -> object:
        try:
            stat = Path(self.path).stat()
        except OSError as error:
            raise ScriptError(error.strerror or "it cannot be read") from None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _load(self) -> None:
        self._loaded_version = self._read_version()
        path = Path(self.path)
        module = ModuleType("pwire_script")
        module.__file__ = self.path
        folder = str(path.resolve().parent)
        sys.modules[module.__name__] = module  # dataclasses look it up
        sys.path.insert(0, folder)
        try:
            exec(compile(path.read_bytes(), self.path, "exec"), vars(module))
        except OSError as error:
            raise ScriptError(error.strerror or "it cannot be read") from None
        except (Exception, SystemExit) as error:
            raise ScriptError(describe(error, self.path)) from None
        finally:
            sys.path.remove(folder)
        functions = {name: getattr(module, name) for name in _NAMES if callable(getattr(module, name, None))}
        if not functions:
            raise ScriptError("it has none of the functions on_frame, on_open and on_close")
        self._functions = functions


class ScriptError(Exception):
    """A script could not be loaded or has raised something; the text says where, in one line."""


def describe(error: BaseException, path: str) -> str:
    """Return what was raised, in one line, with the last line of the script in the traceback."""
    line = error.lineno if isinstance(error, SyntaxError) else 0
    for entry in traceback.extract_tb(error.__traceback__):
        if entry.filename == path:
            line = entry.lineno or line
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    place = f"line {line}: " if line else ""
    return f"{place}{type(error).__name__}{': ' * bool(text)}{text.splitlines()[0] if text else ''}"
