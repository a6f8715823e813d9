"""Saves frames of the screen, in the format that the suffix of the file's name says, or replays them.

.pcapng, .pcap   packets that carry the same bytes, for pwire, Wireshark, or `pwire replay`
.jsonl, .json    a record per line, as of decode -o json
.send            a script for `pwire send`: what the client sent
.py              a test: the embedded broker gets what the client sent, and must answer in the same way
anything else    lines, as of decode
"""

from __future__ import annotations

import shlex
import sys
from asyncio import create_subprocess_exec
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Callable, Iterable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from pulsarctl_wire.capture.recording import SessionWriter
from pulsarctl_wire.cli import console
from pulsarctl_wire.conformance.fuzzing.script import write_line
from pulsarctl_wire.errors import LocalProtocolError
from pulsarctl_wire.record import Recorder
from pulsarctl_wire.render.jsonl import json_line
from pulsarctl_wire.render.line import LineRenderer
from pulsarctl_wire.render.text import Paint, clean, count_of
from pulsarctl_wire.wire.commands import TO_BROKER, build_command
from pulsarctl_wire.wire.frame import Connection, Event, Frame, Gap, HttpMessage, Malformed, build_frame
from pulsarctl_wire.wire.framing.redaction import mask_event

if TYPE_CHECKING:
    from pulsarctl_wire.tui.model import Jobs

_TEST: Final = '''"""{count} of {title}, sent to the embedded broker again."""

import socket

from pulsarctl_wire.testing import Broker
from pulsarctl_wire.wire.frame import Connection, Frame
from pulsarctl_wire.wire.framing.stream import FrameStream

SENT = [  # each frame, and the command that must answer it before the next one is sent; "": none
{sent}]


def test_the_broker_answers_in_the_same_way(pulsar_broker: Broker) -> None:
    stream, commands = FrameStream(Connection(0), False), list[str]()
    with socket.create_connection(("127.0.0.1", pulsar_broker.port), timeout=10) as connection:
        for frame, answer in SENT:
            connection.sendall(bytes.fromhex(frame))
            while answer and answer not in commands:
                data = connection.recv(65_536)
                assert data, f"the broker has closed the connection instead of sending {{answer}}"
                commands += [event.command for event in stream.feed(data) if isinstance(event, Frame)]
            if answer:
                commands.remove(answer)
'''


class Export:
    """Writes events to files. `answer_of` returns the command that answered a frame, by its number, or ""."""

    def __init__(self, recorder: Recorder, title: str, answer_of: Callable[[int], str], jobs: Jobs) -> None:
        self._jobs = jobs
        self._recorder = recorder
        self._title = clean(title)  # for one line of a file
        self._answer_of = answer_of

    def __call__(self, path: str, events: Iterable[Event]) -> str:
        """Write events to a new file; return what was done. Raises OSError, LocalProtocolError."""
        try:
            target = Path(path).expanduser()
        except RuntimeError as error:  # a path that begins with ~USER
            raise LocalProtocolError("there is no such user") from error
        writers = {
            ".pcapng": self._write_packets,
            ".pcap": self._write_packets,
            ".jsonl": self._write_records,
            ".json": self._write_records,
            ".send": self._write_script,
            ".py": self._write_test,
        }
        write = writers.get(target.suffix, self._write_lines)
        chosen = list(events)
        if not chosen:
            raise LocalProtocolError("there is nothing to save")
        if target.exists():
            raise LocalProtocolError("the file exists already; take another name")
        count, note = write(target, chosen)
        return f"{count_of(count, 'frame')} written to {target.name}{note}"

    async def replay(self, text: str, events: Iterable[Event]) -> list[str]:
        """Let `pwire replay` send to another broker what clients sent; return its lines, and its exit code.

        `text` is the broker's URL, and options of `pwire replay`. Raises OSError, LocalProtocolError.
        """
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise LocalProtocolError(str(error)) from error
        packets = BytesIO()
        self._record(packets, events)
        color = "always" if console.has_colour(sys.stdout) else "never"
        process = await create_subprocess_exec(
            *console.own_command(),
            *("replay", "-", "--color", color, "--to", *words),
            stdin=PIPE,
            stdout=PIPE,
            stderr=STDOUT,
        )
        self._jobs.adopt(process.pid)
        try:
            output, _ = await process.communicate(packets.getvalue())
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            self._jobs.adopt(0)
        return [*output.decode("utf-8", "replace").splitlines(), f"exit code {process.returncode}"]

    def _write_packets(self, target: Path, events: list[Event]) -> tuple[int, str]:
        with target.open("xb") as stream:
            self._record(stream, events)
        return len(events), f"; to play it again: pwire replay {target.name} --to pulsar://HOST:6650"

    def _record(self, stream: BinaryIO, events: Iterable[Event]) -> None:
        """Write events as packets."""
        writer = SessionWriter(stream)
        for event in events:
            time_ns = event.time_ns or 0
            if isinstance(event, Gap):
                writer.gap(event.connection, event.to_broker, event.size, time_ns)
            elif not isinstance(event, HttpMessage):
                writer.carried(event.connection, event.to_broker, self._bytes(event), time_ns)

    def _bytes(self, event: Frame | Malformed) -> bytes:
        """Return the bytes to save: with credentials masked, unless the recorder shows secrets."""
        return mask_event(event, self._recorder.show_secrets)

    def _write_records(self, target: Path, events: list[Event]) -> tuple[int, str]:
        with target.open("xb") as stream:
            stream.writelines(json_line(self._recorder(event)) for event in events)
        return len(events), ""

    def _write_lines(self, target: Path, events: list[Event]) -> tuple[int, str]:
        line = LineRenderer(Paint(False), show_secrets=self._recorder.show_secrets)
        with target.open("x", encoding="utf-8", errors="backslashreplace") as stream:
            for event in events:
                if isinstance(event, Frame):
                    event.answer = None  # as in decode
                stream.write(f"{line(event)}\n")
        return len(events), ""

    def _write_script(self, target: Path, events: list[Event]) -> tuple[int, str]:
        frames = _sent(events)
        with target.open("x", encoding="utf-8") as stream:
            stream.write(f"# {count_of(len(frames), 'frame')} of {self._title}\n")
            for frame in frames:
                stream.write(f"{write_line(self._bytes(frame))}\n")
                if answer := self._answer_of(frame.number):
                    stream.write(f'{{"expect": "{answer}"}}\n')
        return len(frames), f"; to send it: pwire send {target.name} -u pulsar://HOST:6650"

    def _write_test(self, target: Path, events: list[Event]) -> tuple[int, str]:
        frames = _sent(events)
        lines = [
            f'    ("{self._bytes(frame).hex()}", "{self._answer_of(frame.number)}"),'
            f"  # {frame.number} {frame.command}\n"
            for frame in frames
        ]
        if not any(frame.command == "CONNECT" for frame in frames):
            connect = build_command("CONNECT", client_version="pwire", protocol_version=21)
            lines.insert(0, f'    ("{build_frame(connect).hex()}", "CONNECTED"),\n')
        text = _TEST.format(
            count=count_of(len(frames), "frame"),
            title=self._title.replace("\\", "/").replace('"', "'"),
            sent="".join(lines),
        )
        target.write_text(text, encoding="utf-8")
        return len(frames), f"; to run it: pytest {target.name}"


def _sent(events: list[Event]) -> list[Frame]:
    """Return the complete frames that one client sent: the client of the first of them.

    Raises LocalProtocolError if there are none.
    """
    frames = [event for event in events if isinstance(event, Frame) and event.to_broker and not event.partial]
    # without commands that only brokers send; those that both sides send are not in `TO_BROKER`
    frames = [frame for frame in frames if TO_BROKER.get(frame.type, True)]
    if not frames:
        raise LocalProtocolError("no client's frames are among these")
    first: Connection = frames[0].connection
    return [frame for frame in frames if frame.connection.index == first.index]
