"""The renderers of the output formats, which turn events into bytes."""

from collections.abc import Callable, Iterable
from functools import partial

from pulsarctl_wire.record import Recorder
from pulsarctl_wire.render.line import LineRenderer, TimeFormatter
from pulsarctl_wire.render.text import Paint, cut_line
from pulsarctl_wire.wire.frame import Event

Render = Callable[[list[Event]], Iterable[bytes]]
"""A function that returns the output of events in pieces; if it may be large, one event a piece."""


def renderer(
    output: str,
    recorder: Recorder,
    paint: Paint,
    clock: TimeFormatter,
    *,
    width: Callable[[], int | None] = lambda: None,
    prefix: Callable[[Event], str] | None = None,
) -> Render:
    """Make the renderer of the format `output` (line, tree, json, hex).

    `width`, for `line` only, returns the maximum width in cells, or None. It is called for each line; but if
    it returns None at first, and there is no `prefix`, lines are never cut. `prefix` returns a prefix for the
    output of an event; JSON has none.
    """
    if output == "json":
        from pulsarctl_wire.render.jsonl import JsonLines

        return partial(map, JsonLines(recorder))
    notes, show_secrets = recorder.notes if output == "hex" else None, recorder.show_secrets
    # for tree, the recorder opens entries; hex shows them as captured
    opens = recorder.keys is not None and output == "line"
    line = LineRenderer(
        paint, clock, show_secrets=show_secrets, notes=notes, open_entry=recorder.open if opens else None
    )
    prefix_of = prefix or (lambda event: "")

    def render_cut(event: Event) -> str:
        limit = width()
        text = prefix_of(event)
        return cut_line(text + line(event), limit) if text and limit else text + line(event, limit)

    if output == "tree":
        from pulsarctl_wire.render.tree import TreeRenderer

        render: Callable[[Event], str] = TreeRenderer(line, recorder, paint, show_secrets=show_secrets)
    elif output == "hex":
        from pulsarctl_wire.render.hexview import HexRenderer

        render = HexRenderer(line, paint, show_secrets=show_secrets)
    elif prefix is None and width() is None:
        return lambda events: [_encode("\n".join(map(line, events)))] if events else []
    else:
        return lambda events: (_encode(render_cut(event)) for event in events)
    return lambda events: (_encode(prefix_of(event) + render(event)) for event in events)


def _encode(text: str) -> bytes:
    return f"{text}\n".encode("utf-8", "backslashreplace")
