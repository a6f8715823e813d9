"""`Judge`: what a broker may send on a connection, after what was sent to it.

Where the judge cannot know how the broker reads something, it expects nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, NamedTuple

from pulsarctl_wire.conformance.basics.checking import describe
from pulsarctl_wire.wire.commands import ANSWERS, NAMES, NUMBERS, REQUESTS, TO_BROKER, command_name
from pulsarctl_wire.wire.frame import MAX_FRAME_SIZE, Connection, Frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.session.state import NO_REQUEST

_EARLY: Final = frozenset({"CONNECT", "PING", "PONG", "AUTH_RESPONSE"})
"""Commands that are accepted before CONNECT."""

_SINCE_PULSAR_5: Final = range(70, 82)
"""Types of commands that brokers of Pulsar 4 do not know, so that their answers are not judged."""

_SUBJECTS: Final = {
    "CLOSE_PRODUCER": ("PRODUCER", "producer_id"),
    "CLOSE_CONSUMER": ("SUBSCRIBE", "consumer_id"),
    "ACTIVE_CONSUMER_CHANGE": ("SUBSCRIBE", "consumer_id"),
    "REACHED_END_OF_TOPIC": ("SUBSCRIBE", "consumer_id"),
    "WATCH_TOPIC_UPDATE": ("WATCH_TOPIC_LIST", "watcher_id"),
    "MESSAGE": ("FLOW", "consumer_id"),
}
"""Command that a broker sends by itself -> the client's command that must come first, their id field."""

_OPENINGS: Final = (NUMBERS["PRODUCER"], NUMBERS["SUBSCRIBE"])
"""Types of the commands that open a producer or a consumer."""

_UNREQUESTED: Final = "unrequested"
"""The prefix of `Problem.kind` where more came than was asked for.

They are not reported if `Judge.is_ambiguous`.
"""


class Problem(NamedTuple):
    """What is wrong with a broker: its kind, what was expected, and what happened.

    `is_silence`: something did not come in time, which may happen on a busy machine.
    """

    kind: str
    expected: str
    actual: str
    is_silence: bool = False


class Judge:
    """Follows a connection; `limit` is the largest frame that the broker accepts. `problems` are in order."""

    def __init__(self, limit: int = MAX_FRAME_SIZE) -> None:
        self.problems: list[Problem] = []
        self.offence = ""
        """Why the broker must end the connection; "" if it need not."""
        self.is_ambiguous = False
        """Whether the broker may read differently what was sent.

        Its parser takes a text whose size runs beyond the end of its message, and skips unknown fields.
        """
        self.is_refused = False
        """Whether a producer or consumer was refused, so that later steps are wrong."""
        self._limit = limit
        self._buffer = b""
        self._is_connected = False
        self._commands: Counter[str] = Counter()
        self._requests: Counter[tuple[int, int]] = Counter()
        self._answers: Counter[tuple[int, int]] = Counter()
        self._subjects: set[tuple[str, int]] = set()
        self._sends: Counter[tuple[int, int]] = Counter()
        self._receipts: Counter[tuple[int, int]] = Counter()
        self._checksums: dict[tuple[int, int], set[str | None]] = {}

    # -- what was sent

    def note_sent(self, data: bytes) -> None:
        """Note what was sent to the broker, which knows where frames end from their TOTAL_SIZE alone."""
        self._buffer += data
        while len(self._buffer) >= 4 and not self.offence:
            size = 4 + int.from_bytes(self._buffer[:4], "big")
            if size > self._limit:
                self.offence = f"a TOTAL_SIZE of {size - 4}"
            elif len(self._buffer) < size:
                break
            else:
                self._note(self._buffer[:size])
                self._buffer = self._buffer[size:]

    @property
    def is_complete(self) -> bool:
        """Whether only whole frames were sent, so that another one can follow."""
        return not self.offence and not self._buffer

    def _note(self, data: bytes) -> None:
        """Note a frame."""
        total, size = len(data) - 4, int.from_bytes(data[4:8], "big")
        if size < 2 or size + 4 > total:
            self.offence = f"a TOTAL_SIZE of {total} and a COMMAND_SIZE of {size}"
            return
        events = FrameStream(Connection(0), to_broker=True, limit=self._limit).feed(data)
        if len(events) != 1 or not isinstance(events[0], Frame):
            self.is_ambiguous = True
            return
        frame = events[0]
        self.offence = self._find_offence(frame)
        if frame.body is not None and frame.type not in _SINCE_PULSAR_5:
            self._note_command(frame)

    def _find_offence(self, frame: Frame) -> str:
        """Return why the broker must end the connection; "" if it need not. May set `is_ambiguous`."""
        command, body = frame.command, frame.body
        if frame.type not in NAMES:
            return f"a command of the unknown type {frame.type}"
        if TO_BROKER.get(frame.type) is False:
            return f"{command}, which only brokers send"
        if body is None:
            return f"{command} without its sub-message"
        if _lacks_fields(body):
            return f"{command} without a required field"
        # an incomplete sub-message may be in a field that the broker does not know, and skips
        self.is_ambiguous |= frame.base is not None and not frame.base.IsInitialized()
        if self.is_ambiguous:
            return ""
        if self._is_connected and command == "CONNECT":
            return "a second CONNECT"
        if not self._is_connected and command not in _EARLY:
            return f"{command} before CONNECT"
        return ""

    def _note_command(self, frame: Frame) -> None:
        command, body = frame.command, frame.body
        self._commands[command] += 1
        self._is_connected |= command == "CONNECT"
        request = REQUESTS.get(frame.type)
        if request is not None and (command != "ACK" or body.HasField("request_id")):
            self._requests[frame.type, getattr(body, request.key)] += 1
        for subject, key in _SUBJECTS.values():
            if subject == command:
                self._subjects.add((command, getattr(body, key)))
        if command == "SEND":
            # the answer may name either
            numbers = (
                {body.sequence_id, body.highest_sequence_id}
                if body.highest_sequence_id
                else {body.sequence_id}
            )
            for number in numbers:
                self._sends[body.producer_id, number] += 1
                self._checksums.setdefault((body.producer_id, number), set()).add(frame.checksum)

    # -- what has come

    def receive(self, frame: Frame) -> None:
        """Judge a frame of the broker."""
        command = frame.command
        if frame.type in NAMES and (frame.body is None or not frame.body.IsInitialized()):
            self._report("incomplete frame", f"{command} with all required fields", describe(frame))
        elif frame.type not in NAMES or TO_BROKER.get(frame.type) is True:
            self._report("no command of a broker", "a command that brokers send", describe(frame))
        elif command in ("SEND_RECEIPT", "SEND_ERROR"):
            self._judge_receipt(frame)
        elif command in ("PONG", "CONNECTED"):
            self._answers[frame.type, 0] += 1
            number = self._commands["PING" if command == "PONG" else "CONNECT"]
            if self._answers[frame.type, 0] > number:
                self._report(f"{_UNREQUESTED} {command}", f"{number} of {command}", "one more")
        elif command in _SUBJECTS:
            self._judge_subject(frame)
        elif frame.type in ANSWERS:
            self._judge_answer(frame)

    def _report(self, kind: str, expected: str, actual: str) -> None:
        if not (self.is_ambiguous and kind.startswith(_UNREQUESTED)):
            self.problems.append(Problem(kind, expected, actual))

    def _judge_receipt(self, frame: Frame) -> None:
        key = frame.body.producer_id, frame.body.sequence_id
        self._receipts[key] += 1
        if self._receipts[key] > self._sends[key]:
            expected = f"{self._sends[key]} answers to SEND {key[1]} of producer {key[0]}"
            self._report(f"{_UNREQUESTED} {frame.command}", expected, f"{describe(frame)} came, too")
        elif frame.command == "SEND_RECEIPT" and self._checksums[key] == {"invalid"}:
            self._report("wrong checksum accepted", "SEND_ERROR {error=ChecksumError}", describe(frame))

    def _judge_subject(self, frame: Frame) -> None:
        subject, key = _SUBJECTS[frame.command]
        number = getattr(frame.body, key)
        if (subject, number) not in self._subjects:
            expected = f"no {frame.command} without {subject} {{{key}={number}}}"
            self._report(f"{_UNREQUESTED} {frame.command}", expected, describe(frame))
        elif frame.command == "MESSAGE" and frame.checksum == "invalid" and not frame.broker_entry:
            self._report("damaged message", "MESSAGE with a valid checksum, or none", describe(frame))

    def _judge_answer(self, frame: Frame) -> None:
        """Judge an answer by its id: there must be a request for each."""
        (_, key), *_ = ANSWERS[frame.type]
        number = getattr(frame.body, key)
        kinds = [kind for kind, request in REQUESTS.items() if frame.type in request.answers]
        if all(kind in _SINCE_PULSAR_5 for kind in kinds):
            return
        if frame.command == "ERROR" and number == NO_REQUEST:
            return
        if frame.command == "PRODUCER_SUCCESS" and not frame.body.producer_ready:
            return  # a second one follows
        self._answers[frame.type, number] += 1
        self.is_refused |= frame.command == "ERROR" and any(
            self._requests[kind, number] for kind in _OPENINGS
        )
        requests = sum(self._requests[kind, number] for kind in kinds)
        if self._answers[frame.type, number] > requests:
            expected = f"{requests} answers to requests {number} of {', '.join(map(command_name, kinds))}"
            self._report(f"{_UNREQUESTED} {frame.command}", expected, f"{describe(frame)} came, too")
        elif key == "request_id" and self._count_answers(number) > self._count_requests(number):
            expected = f"{self._count_requests(number)} answers to requests {number}"
            self._report(f"{_UNREQUESTED} second answer", expected, f"{describe(frame)} came, too")

    def _count_requests(self, number: int) -> int:
        return sum(count for (_, request), count in self._requests.items() if request == number)

    def _count_answers(self, number: int) -> int:
        return sum(
            count for (kind, request), count in self._answers.items() if request == number and kind in ANSWERS
        )

    # -- the end

    def find_unanswered(self) -> Problem | None:
        """Return the problem if a request or a SEND has no answer, None otherwise. For valid sessions."""
        for (kind, number), count in self._requests.items():
            answers = sum(self._answers[answer, number] for answer in REQUESTS[kind].answers)
            if answers < count:
                name = command_name(kind)
                return Problem(f"unanswered {name}", f"an answer to {name} {number}", "none came", True)
        sends, receipts = self._commands["SEND"], sum(self._receipts.values())
        if receipts < sends:
            return Problem("unanswered SEND", f"answers to {sends} of SEND", f"{receipts} came", True)
        return None


def _lacks_fields(body: Any) -> bool:
    """Return whether a message lacks a required field; its sub-messages are not checked."""
    return any(field.is_required and not body.HasField(field.name) for field in body.DESCRIPTOR.fields)
