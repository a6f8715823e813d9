"""Chooses and sets up the renderer of an output format, which turns events into bytes."""

from collections.abc import Callable, Iterable
from functools import partial

from pulsarctl_wire.record import Recorder
from pulsarctl_wire.render.line import Clock, LineRenderer
from pulsarctl_wire.render.text import Paint, cut_line
from pulsarctl_wire.wire.frame import Event

Render = Callable[[list[Event]], Iterable[bytes]]
"""Returns the output of events in pieces; if it may be large, each piece has one event."""


def renderer(
    output: str,
    recorder: Recorder,
    paint: Paint,
    clock: Clock,
    *,
    width: Callable[[], int | None] = lambda: None,
    before: Callable[[Event], str] | None = None,
) -> Render:
    """The renderer of the format `output` (line, tree, json, hex).

    `width` is called for each line, and returns its maximum width in cells, or None. `before` returns a
    prefix for the output of an event; JSON has none.
    """
    if output == "json":
        from pulsarctl_wire.render.jsonl import JsonLines

        return partial(map, JsonLines(recorder))
    notes, show_secrets = recorder.notes if output == "hex" else None, recorder.show_secrets
    line = LineRenderer(paint, clock, show_secrets=show_secrets, notes=notes)
    prefix = before or (lambda event: "")

    def cut(event: Event) -> str:
        most = width()
        text = prefix(event)
        return cut_line(text + line(event), most) if text and most else text + line(event, most)

    if output == "tree":
        from pulsarctl_wire.render.tree import TreeRenderer

        render: Callable[[Event], str] = TreeRenderer(line, recorder, paint, show_secrets=show_secrets)
    elif output == "hex":
        from pulsarctl_wire.render.hexview import HexRenderer

        render = HexRenderer(line, paint, show_secrets=show_secrets)
    elif before is None and width() is None:
        return lambda events: [_encoded("\n".join(map(line, events)))] if events else []
    else:
        return lambda events: (_encoded(cut(event)) for event in events)
    return lambda events: (_encoded(prefix(event) + render(event)) for event in events)


def _encoded(text: str) -> bytes:
    return f"{text}\n".encode("utf-8", "backslashreplace")
