"""Writes a session as a script for `pwire send`: JSON for valid commands, hex digits for other bytes."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pulsarctl_wire.conformance.fuzzing.session import MASK
from pulsarctl_wire.wire.fields import Walker
from pulsarctl_wire.wire.frame import Connection, Frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.json_command import parse_line

if TYPE_CHECKING:
    from pulsarctl_wire.conformance.fuzzing.play import Exchange


def write_script(exchanges: Iterable[Exchange], comments: Iterable[str]) -> str:
    """Return the lines of a script, with comments before them.

    After each step, the script waits for the first command that came before the next one, if any.
    """
    lines = [f"# {comment}" for comment in comments]
    for exchange in exchanges:
        changes = "; ".join(map(str, exchange.step.changes))
        if changes:
            lines.append(f"# {exchange.step.command}: {changes}")
        if MASK in exchange.data:
            lines.append(f"# the credentials are left out: {MASK.decode()}")
        lines.append(write_line(exchange.data))
        lines += [json.dumps({"expect": answer}) for answer in exchange.answers[:1]]
    return "".join(f"{line}\n" for line in lines)


def write_line(data: bytes) -> str:
    """Return the line that sends these bytes."""
    events = FrameStream(Connection(0), to_broker=True).feed(data)
    if len(events) == 1 and isinstance(events[0], Frame):
        line = json.dumps(_describe(events[0]), ensure_ascii=False)
        try:
            if parse_line(line) == data:
                return line
        except ValueError:
            pass
    return data.hex()


def _describe(frame: Frame) -> dict[str, Any]:
    """Return the fields of a script's line for a frame, which may not say everything about it."""
    walk = Walker(show_secrets=True)
    line: dict[str, Any] = {"command": frame.command}
    if frame.body is not None:
        line["fields"] = walk(frame.body)
    if frame.metadata is not None:
        line["metadata"] = walk(frame.metadata)
        payload = frame.payload
        if payload.isascii() and payload.decode().isprintable():
            line["payload"] = payload.decode()
        else:
            line["payload_base64"] = b64encode(payload).decode()
        if frame.checksum != "valid":
            line["checksum"] = frame.checksum
    return line
