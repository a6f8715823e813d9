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

    Only a file that the user has named is run: nothing that comes from a file or a socket is.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._seen = 0.0
        self._state: object = None
        self._functions: dict[str, Callable[[Any], Any]] = {}
        try:
            self._load()
        except ScriptError as error:
            raise SettingsError(f"--script {path}: {error}") from None

    def refresh(self, now: float) -> str:
        """Load the script again if its file has changed; return a note about that, or "".

        `now` is the time in seconds of any clock. A script that cannot be loaded leaves the one before.
        """
        if 0 <= now - self._seen < _INTERVAL:
            return ""
        self._seen = now
        try:
            if self._state == self._look():
                return ""
            self._load()
        except ScriptError as error:
            return f"{self.path}: {error}; the script loaded before stays"
        return f"{self.path}: loaded again"

    def call(self, name: str, argument: object) -> Any:
        """Call a function of the script, if it has it. Raises ScriptError for what it raises."""
        function = self._functions.get(name)
        if function is None:
            return None
        try:
            return function(argument)
        except (Exception, SystemExit) as error:
            raise ScriptError(describe(error, self.path)) from None

    def _look(self) -> object:
        try:
            stat = Path(self.path).stat()
        except OSError as error:
            raise ScriptError(error.strerror or "it cannot be read") from None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _load(self) -> None:
        self._state = self._look()
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
    """Return what was raised, in one line, with the last line of the script on the way to it."""
    line = error.lineno if isinstance(error, SyntaxError) else 0
    for entry in traceback.extract_tb(error.__traceback__):
        if entry.filename == path:
            line = entry.lineno or line
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    place = f"line {line}: " if line else ""
    return f"{place}{type(error).__name__}{': ' * bool(text)}{text.splitlines()[0] if text else ''}"
