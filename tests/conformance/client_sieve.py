"""Clients that are wrong in one thing, at which a case must fail: proof that it checks what it says.

They are pwire's own client with a mutation between it and its connections, or in what it says in the end.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from conformance.inner import InnerRun, InnerStage
from crc32c import crc32c

from pulsarctl_wire.conformance.basics.frames import make_frame
from pulsarctl_wire.conformance.clients.stage import Run
from pulsarctl_wire.net.session.link import Link
from pulsarctl_wire.wire.commands import BODIES, NUMBERS
from pulsarctl_wire.wire.frame import replace_command
from pulsarctl_wire.wire.frame_layout import MAGIC_CHECKSUM
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand

LONGEST = 1.5
"""Seconds after which what does not come is given up."""


class Mutation:
    """A client that does nothing wrong: its frames, those it gets, and the exit code stay as they are."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self.counts: Counter[str] = Counter()

    def send(self, link: Link, command: str, data: bytes) -> bytes:
        """What it sends instead of a frame."""
        return data

    def receive(self, link: Link, command: str, data: bytes) -> bytes:
        """What it sees instead of a frame."""
        return data

    def receive_segment(self, frames: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        """What it sees of what came at once."""
        return frames

    def end(self, code: int) -> int:
        """Its exit code."""
        return code

    def keeps(self, line: str) -> bool:
        """Whether it prints a line."""
        return True


class Deaf(Mutation):
    """It does not see a command, but for the first `after` of them."""

    def __init__(self, command: str, after: int = 0) -> None:
        super().__init__()
        self._command, self._after = command, after

    def receive(self, link: Link, command: str, data: bytes) -> bytes:
        self.counts[command] += 1
        return b"" if command == self._command and self.counts[command] > self._after else data


class Mute(Mutation):
    """It does not send a command, but for the first `after` of them; `code` is its exit code then."""

    def __init__(self, command: str, after: int = 0, code: int | None = None) -> None:
        super().__init__()
        self._command, self._after, self._code = command, after, code

    def send(self, link: Link, command: str, data: bytes) -> bytes:
        self.counts[command] += 1
        return b"" if command == self._command and self.counts[command] > self._after else data

    def end(self, code: int) -> int:
        return code if self._code is None else self._code


class Echo(Mutation):
    """It sends a command twice."""

    def __init__(self, command: str) -> None:
        super().__init__()
        self._command = command

    def send(self, link: Link, command: str, data: bytes) -> bytes:
        return data * 2 if command == self._command else data


def _change(data: bytes, command: str, fields: dict[str, Any]) -> bytes:
    base = BaseCommand()
    base.ParseFromString(data[8 : 8 + int.from_bytes(data[4:8], "big")])
    body = getattr(base, BODIES[NUMBERS[command]])
    for name, value in fields.items():
        if value is None:
            body.ClearField(name)
        else:
            setattr(body, name, value)
    return replace_command(data, base)


class Change(Mutation):
    """It sends a command with other fields (None: without them)."""

    def __init__(self, command: str, **fields: Any) -> None:
        super().__init__()
        self._command, self._fields = command, fields

    def send(self, link: Link, command: str, data: bytes) -> bytes:
        return _change(data, command, self._fields) if command == self._command else data


class Misread(Mutation):
    """It reads a command as if it had other fields; `address`: as if it named the broker that sent it."""

    def __init__(self, command: str, *, address: bool = False, **fields: Any) -> None:
        super().__init__()
        self._command, self._address, self._fields = command, address, fields

    def receive(self, link: Link, command: str, data: bytes) -> bytes:
        if command != self._command:
            return data
        more = {"brokerServiceUrl": f"pulsar://{link.address}"} if self._address else {}
        return _change(data, command, self._fields | more)


class Hasty(Mutation):
    """It ends as soon as it gets a command, with this exit code."""

    def __init__(self, command: str, code: int) -> None:
        super().__init__()
        self._command, self._code = command, code

    def receive(self, link: Link, command: str, data: bytes) -> bytes:
        if command == self._command and isinstance(self.run, InnerRun) and self.run.code is None:
            self.run.end(self._code)
            link.loop.call_soon(self.run.task.cancel)
            return b""
        return data

    def end(self, code: int) -> int:
        return self._code


class Cut(Mutation):
    """It closes the connection at the first frame of a command."""

    def __init__(self, command: str) -> None:
        super().__init__()
        self._command = command

    def receive(self, link: Link, command: str, data: bytes) -> bytes:
        self.counts[command] += 1
        if command == self._command and self.counts[command] == 1:
            link.drop("the mutation says so")
            return b""
        return data


class Says(Mutation):
    """It ends with this exit code, whatever has happened."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self._code = code

    def end(self, code: int) -> int:
        return self._code


class Forgetful(Mutation):
    """It does not print the first message."""

    def keeps(self, line: str) -> bool:
        self.counts["lines"] += 1
        return self.counts["lines"] > 1


class Careless(Mutation):
    """It does not look at checksums."""

    def receive(self, link: Link, command: str, data: bytes) -> bytes:
        place = data.rfind(MAGIC_CHECKSUM)
        if command != "MESSAGE" or place < 0:
            return data
        entry = data[place + 6 :]
        return data[: place + 2] + crc32c(entry).to_bytes(4, "big") + entry


class Trusting(Mutation):
    """It takes each PING of its own as answered."""

    def send(self, link: Link, command: str, data: bytes) -> bytes:
        if command == "PING":
            link.loop.call_soon(Link.data_received.__wrapped__, link, make_frame("PONG"))  # type: ignore[attr-defined]
        return data


class Stray(Mutation):
    """Behind a command it asks for messages for a consumer that it does not have."""

    def __init__(self, command: str) -> None:
        super().__init__()
        self._command = command

    def send(self, link: Link, command: str, data: bytes) -> bytes:
        stray = make_frame("FLOW", consumer_id=99, messagePermits=1)
        return data + stray if command == self._command else data


class Shortsighted(Mutation):
    """It reads only the first frame of what comes at once."""

    def receive_segment(self, frames: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        return frames[:1]


# -- how mutations are applied


def _split(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Frames with the names of their commands; what is none is the last one, without a name."""
    while len(data) >= 8 and len(data) >= (size := 4 + int.from_bytes(data[:4], "big")):
        base = BaseCommand()
        try:
            base.ParseFromString(data[8 : 8 + int.from_bytes(data[4:8], "big")])
            name = BaseCommand.Type.Name(base.type)
        except Exception:  # of the parser: it is no command
            name = ""
        yield name, data[:size]
        data = data[size:]
    if data:
        yield "", data


@contextmanager
def _apply(mutation: Mutation) -> Iterator[None]:
    write, data_received = Link.write, Link.data_received

    def mutated_write(link: Link, data: bytes) -> None:
        data = b"".join(mutation.send(link, name, frame) for name, frame in _split(data))
        if data:
            write(link, data)

    @functools.wraps(data_received)
    def mutated_data_received(link: Link, data: bytes) -> None:
        frames = mutation.receive_segment(list(_split(data)))
        data = b"".join(mutation.receive(link, name, frame) for name, frame in frames)
        if data:
            data_received(link, data)

    with (
        patch.object(Link, "write", mutated_write),
        patch.object(Link, "data_received", mutated_data_received),
    ):
        yield


class MutatedStage(InnerStage):
    """A stage for a mutated client."""

    patience = LONGEST

    def __init__(self, mutation: Mutation) -> None:
        super().__init__()
        self._mutation = mutation

    async def settle(self, seconds: float = 0.5) -> None:
        await asyncio.sleep(min(seconds, 0.4))  # enough for a new connection

    async def start(self, mode: str, url: str, number: int) -> Run:
        run = await super().start(mode, url, number)
        mutation = self._mutation
        mutation.run = run
        end, add_line = run.end, run.add_line
        run.end = lambda code: end(mutation.end(code))  # type: ignore[method-assign]
        run.add_line = lambda line: add_line(line) if mutation.keeps(line) else None  # type: ignore[method-assign]
        return run


@contextmanager
def mutated(mutation: Mutation) -> Iterator[Callable[[], MutatedStage]]:
    """A mutation in force: what makes stages."""
    with _apply(mutation):
        yield lambda: MutatedStage(mutation)


MUTATIONS: dict[str, Callable[[], Mutation]] = {
    "receipt_dropped": lambda: Hasty("SEND_RECEIPT", 0),
    "receipt_out_of_order": lambda: Says(1),
    "receipt_none": lambda: Says(0),
    "receipt_twice": lambda: Echo("SEND"),
    "receipt_unknown_producer": lambda: Hasty("SEND_RECEIPT", 0),
    "send_error_checksum": lambda: Hasty("SEND_ERROR", 0),
    "send_error_terminated": lambda: Hasty("SEND_ERROR", 0),
    "send_error_not_allowed": lambda: Hasty("SEND_ERROR", 0),
    "send_error_other": lambda: Hasty("SEND_ERROR", 0),
    "close_producer": lambda: Deaf("CLOSE_PRODUCER"),
    "close_producer_moved": lambda: Deaf("CLOSE_PRODUCER"),
    "producer_terminated": lambda: Echo("PRODUCER"),
    "producer_busy": lambda: Echo("PRODUCER"),
    "producer_not_ready_error": lambda: Hasty("ERROR", 1),
    "producer_never_answered": lambda: Says(0),
    "producer_ready_false": lambda: Misread("PRODUCER_SUCCESS", producer_ready=True),
    "producer_minimal_success": lambda: Hasty("PRODUCER_SUCCESS", 1),
    "producer_no_schema_version": lambda: Hasty("PRODUCER_SUCCESS", 1),
    "producer_last_sequence_id": lambda: Misread("PRODUCER_SUCCESS", last_sequence_id=-1),
    "producer_name_given": lambda: Change("PRODUCER", producer_name=None),
    "batches": Forgetful,
    "compression": Forgetful,
    "chunks": lambda: Mute("ACK"),
    "broker_entry_metadata": Forgetful,
    "redelivery_count_big": lambda: Mute("ACK"),
    "permits": lambda: Mute("FLOW", after=1),
    "permits_of_batches": lambda: Mute("FLOW", after=1),
    "message_beyond_permits": lambda: Deaf("MESSAGE", after=1_000),
    "consumer_busy": lambda: Echo("SUBSCRIBE"),
    "subscribe_never_answered": lambda: Says(0),
    "close_consumer": lambda: Deaf("CLOSE_CONSUMER"),
    "end_of_topic": lambda: Cut("REACHED_END_OF_TOPIC"),
    "active_consumer_change": lambda: Cut("ACTIVE_CONSUMER_CHANGE"),
    "cut_message": lambda: Hasty("MESSAGE", 1),
    "message_without_delay": lambda: Mute("PONG"),
    "message_bad_crc": Careless,
    "message_bad_crc_behind_0e02": Careless,
    "message_bad_crc_ack": lambda: Change("ACK", validation_error=None),
    "message_bad_metadata": lambda: Deaf("MESSAGE", after=1),
    "message_bad_compression": lambda: Deaf("MESSAGE", after=1),
    "message_unknown_consumer": lambda: Misread("MESSAGE", consumer_id=1),
    "message_twice": lambda: Deaf("MESSAGE", after=2),
    "error_before_connected": lambda: Says(0),
    "error_before_connected_not_allowed": lambda: Says(0),
    "auth_challenge_at_connect": lambda: Deaf("AUTH_CHALLENGE"),
    "auth_refresh": lambda: Mute("AUTH_RESPONSE"),
    "connect_never_answered": lambda: Says(0),
    "connected_no_max_size": lambda: Hasty("CONNECTED", 1),
    "connected_no_version": lambda: Hasty("CONNECTED", 1),
    "ping": lambda: Mute("PONG"),
    "missing_pong": Trusting,
    "producer_connection_lost": lambda: Says(1),
    "lookup_elsewhere": lambda: Misread("LOOKUP_RESPONSE", address=True),
    "lookup_redirect": lambda: Change("LOOKUP", authoritative=False),
    "lookup_redirect_loop": lambda: Says(0),
    "lookup_not_found": lambda: Echo("LOOKUP"),
    "lookup_not_ready": lambda: Hasty("LOOKUP_RESPONSE", 1),
    "lookup_never_answered": lambda: Says(0),
    "lookup_through_proxy": lambda: Change("CONNECT", proxy_to_broker_url=None),
    "partitions": lambda: Misread("PARTITIONED_METADATA_RESPONSE", partitions=0),
    "unknown_request_ids": lambda: Cut("SUCCESS"),
    "trailing_bytes": lambda: Cut("PRODUCER_SUCCESS"),
    "unknown_command": lambda: Mute("SEND", after=1, code=0),
    "unknown_field": lambda: Cut("PRODUCER_SUCCESS"),
    "oversize_header": lambda: Mute("SEND", code=0),
    "size_mismatch": lambda: Mute("SEND", code=0),
    "cut_receipt": lambda: Mute("SEND", after=3, code=0),
    "slow_answers": lambda: Echo("SEND"),
    "answers_in_one_piece": Shortsighted,
    "produce": lambda: Echo("SEND"),
    "produce_slow": lambda: Echo("SEND"),
    "produce_reset": lambda: Change("PRODUCER", producer_name=None),
    "consume": lambda: Mute("ACK"),
    "consume_slow": Forgetful,
    "consume_reset": lambda: Mute("ACK"),
    "produce_conduct": lambda: Stray("PRODUCER"),
    "consume_conduct": lambda: Stray("SUBSCRIBE"),
}
"""Name of a case -> a client that is wrong in what the case checks."""
