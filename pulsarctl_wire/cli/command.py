"""What every command of `pwire` has besides its own: the options of the screen, and errors of one line."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from pulsarctl_wire.cli import console

_COLOURS: Final = ("always", "auto", "never")
_UsageError: Final[Any] = typer.BadParameter.__base__
"""Typer has no name of its own for it, and moved it between releases."""


def _choose_colour(context: Any, option: Any, value: Any) -> None:
    if value is True:
        value = "never"
    if value:
        if value not in _COLOURS:
            raise typer.BadParameter(f"{value} is none of {', '.join(_COLOURS)}", context, option)
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
            help="Colours: always, auto (on a terminal) or never. NO_COLOR and FORCE_COLOR are heard.",
        ),
        TyperOption(
            param_decls=["--no-color"],
            is_flag=True,
            callback=_choose_colour,
            is_eager=True,  # as --help is
            expose_value=False,
            help="--color never.",
            hidden=True,
        ),
    ]


class HelpPage:
    """A mixin: help in colours where everything else has some."""

    def format_help(self, context: Any, formatter: Any) -> None:
        """As of the parent."""
        from typer import rich_utils

        rich_utils.FORCE_TERMINAL = console.use_colour(sys.stdout)
        super().format_help(context, formatter)  # type: ignore[misc]


class _Screened(HelpPage):
    """A mixin: `--color` besides the own options, and usage errors that know their command."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.params = [*getattr(self, "params", ()), *_screen_options()]

    def parse_args(self, context: Any, arguments: list[str]) -> list[str]:
        """As of the parent."""
        try:
            parsed: list[str] = super().parse_args(context, arguments)  # type: ignore[misc]
        except _UsageError as error:
            error.ctx = error.ctx or context
            raise
        return parsed


class Command(_Screened, TyperCommand):
    """A command with `--color`."""


class Group(_Screened, TyperGroup):
    """A group of commands with `--color`, which is itself a command."""


@contextmanager
def usage_errors() -> Iterator[None]:
    """What is wrong with a command line is said in one line, and ends the command."""
    try:
        yield
    except _UsageError as error:
        context = error.ctx
        path = context.command_path if context else "pwire"
        if type(error).__name__ == "NoArgsIsHelpError":
            context.get_help()  # prints it
            raise SystemExit(console.EXIT_USAGE) from None
        said = f"{_told(error)} ({path} --help)"
        console.fail(f"{path.removeprefix('pwire').strip()}: {said}".removeprefix(": "), console.EXIT_USAGE)


def _told(error: Any) -> str:
    """The cause, and what was probably meant."""
    if (name := getattr(error, "option_name", None)) and hasattr(error, "possibilities"):
        flags = [flag for each in error.ctx.command.params if not each.hidden for flag in each.opts]
        hint = console.meant(name, [flag for flag in flags if flag.startswith("--")])
        return f"no such option {name}{hint}"
    text: str = error.format_message().replace("\n", " ")
    if typo := re.match(r"No such command '(.*?)'", text):
        known = list(error.ctx.command.list_commands(error.ctx))
        return f"no such command {typo[1]}{console.meant(typo[1], known)}"
    text = re.sub(r"^(Invalid value for|Missing|Got|Option)", lambda found: found[0].lower(), text)
    text = re.sub(r" +", " ", text.replace("invalid value for ", "").replace("'", ""))
    return re.sub(r"is not a valid (int|float).*", "is no number", text.rstrip("."))
