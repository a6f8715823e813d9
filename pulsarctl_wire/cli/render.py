"""Events as bytes for the output: which of the renderers, and how it is set up."""

from collections.abc import Callable, Iterable
from typing import Any, TextIO

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.line import LineRenderer
from pulsarctl_wire.errors import FilterError
from pulsarctl_wire.record import Recorder
from pulsarctl_wire.wire.frame import Event

Render = Callable[[list[Event]], Iterable[bytes]]
"""Gives the output of events in pieces, of one event each where that may be large."""


def schema_of(text: str | None) -> Any:
    """The schema that --schema names, to show payloads by; None if it names none. Raises FilterError."""
    if text is None:
        return None
    from pulsarctl_wire.views import parse_schema

    try:
        return parse_schema(text)
    except ValueError as error:
        raise FilterError(f"--schema {error}") from error


def renderer(
    output: str,
    recorder: Recorder,
    origin: console.Origin,
    *,
    stream: TextIO,
    time_format: str = "utc",
    show_secrets: bool = False,
    before: Callable[[Event], str] | None = None,
) -> Render:
    """What shows events as `output` says (line, tree, json, hex), in colour if `stream` takes it.

    `before` gives what the lines of an event begin with; JSON does without.
    """
    if output == "json":
        from pulsarctl_wire.cli.jsonl import json_line

        return lambda events: (json_line(recorder(event)) for event in events)
    paint = console.Paint(console.use_colour(stream))
    notes = recorder.notes if output == "hex" else None
    line = LineRenderer(paint, time_format=time_format, origin=origin, show_secrets=show_secrets, notes=notes)
    told = before or (lambda event: "")

    def cut(event: Event) -> str:
        width = console.terminal_width(stream)  # it may have changed
        text = told(event)
        return console.cut_line(text + line(event), width) if text and width else text + line(event, width)

    if output == "tree":
        from pulsarctl_wire.cli.tree import TreeRenderer

        render: Callable[[Event], str] = TreeRenderer(line, recorder, paint, show_secrets=show_secrets)
    elif output == "hex":
        from pulsarctl_wire.cli.hexview import HexRenderer

        render = HexRenderer(line, paint, show_secrets=show_secrets)
    elif before is None and console.terminal_width(stream) is None:
        return lambda events: [_encoded("\n".join(map(line, events)))] if events else []
    else:
        return lambda events: (_encoded(cut(event)) for event in events)
    return lambda events: (_encoded(told(event) + render(event)) for event in events)


def _encoded(text: str) -> bytes:
    return f"{text}\n".encode("utf-8", "backslashreplace")
