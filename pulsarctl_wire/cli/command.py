"""What all commands of `pwire` share: the option --color, and usage errors in one line."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from pulsarctl_wire.cli import console
from pulsarctl_wire.render.text import did_you_mean

_COLOURS: Final = ("always", "auto", "never")
_UsageError: Final[Any] = typer.BadParameter.__base__
"""Typer does not export this class, and its module differs between releases."""


def _choose_colour(context: Any, option: Any, value: Any) -> None:
    if value is True:  # --no-color
        value = "never"
    if value:
        if value not in _COLOURS:
            raise typer.BadParameter(f"{value} is not one of {', '.join(_COLOURS)}", context, option)
        console.screen.colour = value


def _screen_options() -> list[TyperOption]:
    return [
        TyperOption(
            param_decls=["--color"],
            metavar="WHEN",
            callback=_choose_colour,
            is_eager=True,  # as --help is
            expose_value=False,
            autocompletion=lambda context, arguments, incomplete: list(_COLOURS),
            help="Colours: always, never, or auto (on a terminal; NO_COLOR and FORCE_COLOR override).",
        ),
        TyperOption(
            param_decls=["--no-color"],
            is_flag=True,
            callback=_choose_colour,
            is_eager=True,  # as --help is
            expose_value=False,
            help="Same as --color never.",
            hidden=True,
        ),
    ]


_NOT_IN_HELP: Final = {"rich.markdown": "Markdown", "rich.traceback": "Traceback"}
"""Modules that typer's help imports, but ours never needs -> the class that typer takes from each.

Importing them takes as long as importing everything else.
"""


def _import_rich_utils() -> Any:
    """Import the module in which typer formats help, with stand-ins for the modules in `_NOT_IN_HELP`."""
    missing_modules = [module for module in _NOT_IN_HELP if module not in sys.modules]
    for module in missing_modules:
        sys.modules[module] = ModuleType(module)
        setattr(sys.modules[module], _NOT_IN_HELP[module], type(_NOT_IN_HELP[module], (), {}))
    try:
        from typer import rich_utils
    finally:
        for module in missing_modules:
            del sys.modules[module]
    return rich_utils


class HelpPage:
    """A mixin that colours help under the same rules as all other output."""

    def format_help(self, context: Any, formatter: Any) -> None:
        """Override the parent's method."""
        rich_utils = _import_rich_utils()
        rich_utils.FORCE_TERMINAL = console.has_colour(sys.stdout)
        super().format_help(context, formatter)  # type: ignore[misc]


class _CommandMixin(HelpPage):
    """A mixin that adds `--color`, and gives usage errors their context, which names the command."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.params = [*getattr(self, "params", ()), *_screen_options()]

    def parse_args(self, context: Any, arguments: list[str]) -> list[str]:
        """Override the parent's method."""
        try:
            remaining: list[str] = super().parse_args(context, arguments)  # type: ignore[misc]
        except _UsageError as error:
            error.ctx = error.ctx or context
            raise
        return remaining

    def invoke(self, context: Any) -> Any:
        """Override the parent's method."""
        gc.enable()  # `main` turned it off for the imports
        return super().invoke(context)  # type: ignore[misc]


class Command(_CommandMixin, TyperCommand):
    """A command with `--color`."""


class Group(_CommandMixin, TyperGroup):
    """A group of commands with `--color`; the group can be run as a command too."""


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn usage errors into one line on stderr and exit code 2."""
    try:
        yield
    except _UsageError as error:
        context = error.ctx
        path = context.command_path if context else "pwire"
        if type(error).__name__ == "NoArgsIsHelpError":
            context.get_help()  # prints it
            raise SystemExit(console.EXIT_USAGE) from None
        message = f"{_describe(error)} ({path} --help)"
        console.fail(f"{path.removeprefix('pwire').strip()}: {message}".removeprefix(": "))


def _describe(error: Any) -> str:
    """Describe a usage error, with a suggestion for typos."""
    if (name := getattr(error, "option_name", None)) and hasattr(error, "possibilities"):
        flags = [flag for option in error.ctx.command.params if not option.hidden for flag in option.opts]
        hint = did_you_mean(name, [flag for flag in flags if flag.startswith("--")])
        return f"no such option {name}{hint}"
    text: str = error.format_message().replace("\n", " ")
    if typo := re.match(r"No such command '(.*?)'", text):
        names = list(error.ctx.command.list_commands(error.ctx))
        return f"no such command {typo[1]}{did_you_mean(typo[1], names)}"
    text = re.sub(r"^(Invalid value for|Missing|Got|Option)", lambda match: match[0].lower(), text)
    text = re.sub(r" +", " ", text.replace("invalid value for ", "").replace("'", ""))
    return re.sub(r"is not a valid (int|float).*", "is not a number", text.rstrip("."))
