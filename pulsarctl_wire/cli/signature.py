"""Declares the options of commands as the fields of dataclasses.

    @dataclass(frozen=True, kw_only=True)
    class PingOptions:
        count: int = option("-c --count N", "Number of PINGs; 0: until Ctrl-C.", min=0, default=5)

Options that several commands share are a dataclass of their own, which the others include as a `group`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import field, fields, is_dataclass
from inspect import Parameter, Signature
from typing import Any, Final, get_type_hints

import typer

from pulsarctl_wire.cli import console

_TOO_LARGE: Final = 1e9  # for seconds and rates


def option(declaration: str, help: str, panel: str | None = None, *, default: Any = None, **more: Any) -> Any:
    """Declare an option: `declaration` has its names, then the name of its value in help, if any.

    It is required if `default` is `...`. Help shows it in `panel`; `more` goes to typer.
    """
    words = declaration.split()
    names = [word for word in words if word.startswith("-")]
    metavar = " ".join(words[len(names) :]) or None
    return _field(typer.Option(default, *names, metavar=metavar, help=help, rich_help_panel=panel, **more))


def flag(declaration: str, help: str, panel: str | None = None, **more: Any) -> Any:
    """Declare an option without a value."""
    return option(declaration, help, panel, default=False, **more)


def several(declaration: str, help: str, panel: str | None = None, **more: Any) -> Any:
    """Declare an option that can be given several times."""
    return option(declaration, help, panel, default=list, **more)


def argument(metavar: str, help: str, default: Any = ..., *, show_default: Any = False, **more: Any) -> Any:
    """Declare an argument. It is required if it has no default."""
    return _field(typer.Argument(default, metavar=metavar, help=help, show_default=show_default, **more))


def _field(info: Any) -> Any:
    default = info.default
    if default is list:
        info.default = None
        return field(default_factory=list, metadata={"info": info})
    return field(metadata={"info": info}, **({} if default is ... else {"default": default}))


def group(kind: type, panel: str | None = None, **help: str) -> Any:
    """Include the options of `kind`. Help shows all in `panel`, and `help` replaces some texts."""
    return field(default_factory=kind, metadata={"panel": panel, "help": help})


def takes(function: Callable[..., Any], kinds: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """Wrap `function` for typer: each field of a parameter that is a dataclass becomes an option.

    `kinds` are the types of its parameters, by default its annotations.
    """
    kinds = kinds or {name: kind for name, kind in get_type_hints(function).items() if name != "return"}
    parameters = [parameter for name, kind in kinds.items() for parameter in _parameters(name, kind)]

    def command(**values: Any) -> Any:
        _check_numbers(values)
        return function(*(_make_value(name, kind, values) for name, kind in kinds.items()))

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _check_numbers(values: dict[str, Any]) -> None:
    """End the command if a number is NaN, or too large."""
    for name, value in values.items():
        if isinstance(value, float) and not abs(value) < _TOO_LARGE:
            console.fail(f"--{name.replace('_', '-')} {value}: must be a number below {_TOO_LARGE:,.0f}")


def _parameters(
    name: str, kind: Any, *, info: Any = Parameter.empty, panel: str | None = None, help: Any = None
) -> Iterator[Parameter]:
    """Yield typer's parameters for the parameter or field `name`: one, or one for each field of a dataclass.

    `info` is what declares it to typer. For a dataclass, `panel` and `help` are as in `group`.
    """
    if not is_dataclass(kind):
        yield Parameter(name, Parameter.KEYWORD_ONLY, default=info, annotation=kind)
        return
    hints = get_type_hints(kind)
    for member in fields(kind):
        metadata = dict(member.metadata)
        if "info" in metadata:
            metadata["info"] = member_info = copy(metadata["info"])
            member_info.rich_help_panel = panel or member_info.rich_help_panel
            member_info.help = (help or {}).get(member.name, member_info.help)
        yield from _parameters(member.name, hints[member.name], **metadata)


def _make_value(name: str, kind: Any, values: dict[str, Any]) -> Any:
    """Make the value of a parameter or field from `values`, those of all options.

    A field of a dataclass keeps its default if its value is None.
    """
    if not (isinstance(kind, type) and is_dataclass(kind)):
        return values[name]
    hints = get_type_hints(kind)
    arguments = {member.name: _make_value(member.name, hints[member.name], values) for member in fields(kind)}
    return kind(**{name: value for name, value in arguments.items() if value is not None})
