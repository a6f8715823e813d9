"""Going to other frames: answers, steps of a message, errors, findings, what is searched for."""

from collections.abc import Callable, Iterator
from functools import partial
from time import monotonic
from typing import Final, Protocol

from pulsarctl_wire.errors import StoreError
from pulsarctl_wire.record.related import next_step
from pulsarctl_wire.tui.lines import LineList
from pulsarctl_wire.tui.model import Model
from pulsarctl_wire.wire.frame import Event, Frame

_BATCH: Final = 100  # events that are tested between two looks at the clock
_MOMENT: Final = 0.03  # seconds that a search lasts before keys are handled

Test = Callable[[Event], bool]


class Host(Protocol):
    """What jumps need of the screen."""

    def show_all(self, note: str) -> None:
        """Remove the filter, and show `note`."""

    def say(self, text: str) -> None:
        """Show a text in the status line."""

    def call_soon(self, call: Callable[[], object]) -> None:
        """Call a function once pending keys are handled."""


class Jumps:
    """Moves the cursor of a list of rows to other frames."""

    def __init__(self, model: Model, lines: LineList, host: Host) -> None:
        self._model = model
        self._lines = lines
        self._host = host
        self._scan: Iterator[int | None] | None = None
        self._failure = ""  # what to say if the scan finds nothing
        self.text = ""
        """What is searched for."""

    @property
    def is_searching(self) -> bool:
        """Whether a search goes on."""
        return self._scan is not None

    def stop(self) -> None:
        """Stop a search."""
        self._scan = None

    def go_to_number(self, number: int) -> bool:
        """Go to the frame with this number; return whether it is there."""
        position = self._model.reader.position_of(number)
        if position is None:
            return False
        self.go_to_position(position)
        return True

    def _go_to_number(self, number: int) -> None:
        if not self.go_to_number(number):
            self._host.say(f"there is no frame {number}")

    def go_to_position(self, position: int) -> None:
        """Put the cursor on an event; if the filter hides it, remove the filter."""
        model = self._model
        row = model.row_of(position)
        if row >= model.row_count or model.position(row) != position:
            self._host.show_all("the filter was removed: it hid this frame; Backspace brings it back")
            row = model.row_of(position)
        self._lines.show(model.row_count)
        self._lines.move_to(row)

    @property
    def _event(self) -> Event | None:
        return self._model.event(self._lines.cursor)

    def go_to_answer(self) -> None:
        """Go from a request to its answer, and back."""
        event = self._event
        number = (event.request or event.answer) if isinstance(event, Frame) else None
        if number is None:
            self._host.say("this frame has neither a request nor an answer here")
        else:
            self._go_to_number(number)

    def follow_message(self) -> None:
        """Go to the next step of a message: SEND, receipt, MESSAGE, ACK."""
        event = self._event
        test = None if event is None else next_step(event)
        if test is not None:
            start = self._model.position(self._lines.cursor)
            if isinstance(event, Frame) and event.request is not None:  # a delivery may precede the receipt
                request = self._model.reader.position_of(event.request)
                start = start if request is None else request
            self._begin(self._scan_all(start, test), "no later step of this message is here")
        elif isinstance(event, Frame) and event.answer is not None:
            self._go_to_number(event.answer)
        else:
            self._host.say("no later step of this message is here")

    def next_error(self, step: int) -> None:
        """Go to the next frame with an error, or to damage; `step` is 1, or -1 for the one before."""
        self._begin(self._scan_rows(step, self._model.is_error), "no more errors")

    def next_finding(self, step: int) -> None:
        """Go to the next frame that proves a finding."""
        current = self._event
        number = current.number if isinstance(current, Frame) else 0
        numbers = sorted(map(int, self._model.rules_by_frame))
        candidates = [other for other in numbers if (other > number if step > 0 else other < number)]
        if candidates:
            self._go_to_number(candidates[0 if step > 0 else -1])
        else:
            self._host.say("no more findings")

    def search_again(self, step: int) -> None:
        """Go to the next line with the text that is searched for."""
        text = self.text.casefold()
        if not text:
            return
        line = self._model.plain_line
        self._begin(
            self._scan_rows(step, lambda event: text in line(event).casefold()),
            f"{self.text}: not found {'below' if step > 0 else 'above'}",
        )

    def _scan_rows(self, step: int, test: Test) -> Iterator[int | None]:
        """Yield the position of the next row that passes a test; before that, None from time to time."""
        model = self._model
        for count, (row, event) in enumerate(model.walk(self._lines.cursor, step)):
            if test(event):
                yield model.position(row)
                return
            if count % _BATCH == _BATCH - 1:
                yield None

    def _scan_all(self, position: int, test: Test) -> Iterator[int | None]:
        """Yield as `_scan_rows`, but look at all events from `position` on, whatever the filter is."""
        for start, events in self._model.reader.batches(position):
            for index, event in enumerate(events):
                if test(event):
                    yield start + index
                    return
            yield None

    def _begin(self, scan: Iterator[int | None], failure: str) -> None:
        self._scan, self._failure = scan, failure
        self._go_on(scan)

    def _go_on(self, scan: Iterator[int | None]) -> None:
        """Continue a search for a moment, unless another one has begun; then let keys be handled."""
        if scan is not self._scan:
            return
        deadline = monotonic() + _MOMENT
        try:
            for position in scan:
                if position is not None:
                    self._scan = None
                    self.go_to_position(position)
                    return
                if monotonic() > deadline:
                    self._host.call_soon(partial(self._go_on, scan))
                    return
        except StoreError as error:
            self._failure = str(error)
        self._scan = None
        self._host.say(self._failure)
