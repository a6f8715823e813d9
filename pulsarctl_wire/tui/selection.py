"""Copies frames from the screen: to the clipboard, to a file, to another broker."""

import shlex
from collections.abc import Callable
from typing import Final

from textual.app import App

from pulsarctl_wire.errors import WireError
from pulsarctl_wire.render.jsonl import json_line
from pulsarctl_wire.render.text import without_passwords
from pulsarctl_wire.tui.lines import LineList
from pulsarctl_wire.tui.model import Model
from pulsarctl_wire.tui.text_screen import TextScreen
from pulsarctl_wire.wire.frame import Event, Frame, Gap, HttpMessage

_URLS: Final = ("pulsar://", "pulsar+ssl://")


class Selection:
    """The selected frames, or the one under the cursor. `say` shows what was done."""

    def __init__(self, model: Model, lines: LineList, app: App[None], say: Callable[[str], None]) -> None:
        self._model = model
        self._lines = lines
        self._app = app
        self._say = say

    def copy(self, event: Event, form: str) -> None:
        """Copy an event to the clipboard, as json, hex or link."""
        session = self._model.session
        if form == "link" and not session.link:
            self._say("frames of several sources have no link")
            return
        if form == "link":
            if not isinstance(event, Frame):
                self._say("only frames have a link")
                return
            text = f"pwire tui {shlex.quote(f'{session.link}#{event.number}')}"
        elif form == "hex":
            if isinstance(event, Gap | HttpMessage):
                self._say("there are no bytes")
                return
            text = self._model.hex_of(event)
        else:
            text = json_line(session.recorder(event)).decode()
        self._app.copy_to_clipboard(text)
        self._say(f"copied as {form}")

    def save(self, target: str) -> None:
        """Write the frames to a file, or replay them to a broker.

        `target` is a path, or a URL and options of `pwire replay`.
        """
        events = [event for event in map(self._model.event, self._lines.selected) if event is not None]
        if target.startswith(_URLS):
            url = without_passwords(target.split()[0])  # options may have credentials
            self._say(f"replaying to {url}…")
            self._app.run_worker(self._replay(url, target, events))
            return
        try:
            self._say(self._model.session.export(target, events))
            self._lines.clear_selection()
        except (OSError, WireError) as error:
            self._say(f"{target} was not written: {getattr(error, 'strerror', None) or error}")

    async def _replay(self, url: str, target: str, events: list[Event]) -> None:
        try:
            lines = await self._model.session.replay(target, events)
        except (OSError, WireError) as error:
            self._say(f"{url}: {getattr(error, 'strerror', None) or error}")
            return
        self._say(f"replay to {url}: {lines[-1]}")
        self._app.push_screen(TextScreen(f"replay to {url}", lines))
