"""The same programs (programs.py) on the embedded broker and on a real one: what is each client told?

The answer to a program is, for each step, what each client was told after it, without what may differ:
request ids become numbers of steps, ledgers are numbered in the order of their appearance, texts and rates
are left out. differential.jsonl has programs that once were answered otherwise, and what a real broker
answers; the tests compare the embedded broker with that.

    python tests/broker/differential.py                  # runs those again on a real broker
    python tests/broker/differential.py --minutes 10     # then other, random programs on both, for that long
    python tests/broker/differential.py --record         # writes what the real broker answers into the file
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from broker.programs import TOPICS, Program, random_programs
from broker.targets import EmbeddedTarget, RealTarget, real_broker
from interop.brokers import RestError, Standalone, Unavailable

from pulsarctl_wire.conformance.basics.checking import Mismatch
from pulsarctl_wire.conformance.basics.frames import EARLIEST, LATEST, make_batch, make_frame, make_send
from pulsarctl_wire.conformance.basics.probe import Probe
from pulsarctl_wire.conformance.basics.target import Target, admin_path
from pulsarctl_wire.wire.commands import BODIES, NUMBERS, build_command
from pulsarctl_wire.wire.fields import Walker
from pulsarctl_wire.wire.frame import Frame

RECORDED = Path(__file__).with_name("differential.jsonl")

Told = list[dict[str, list[str]]]
"""For each step: client -> what it was told, a line for each frame."""

_UNKNOWN = {"ledgerId": 1 << 40, "entryId": 0}
_NAMED = {"earliest": EARLIEST, "latest": LATEST, "unknown": _UNKNOWN}

_LEFT_OUT = (
    *("message", "address", "connectedSince", "msgRate", "msgThroughput", "messageAckRate", "highest"),
    "unackedMessages",  # of skipped messages, Pulsar's consumers count them for ever
)
"""How the fields begin that are not compared. highest_sequence_id is 0 or -1 if SEND had none."""

_BACKLOG = re.compile(r"msgBacklog=\d+")
"""Not compared if a SEEK follows an individual ACK: Pulsar still counts those entries as consumed."""

_AT_ONCE = 16
"""Programs that run on the real broker at the same time."""


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Run:
    """A program that runs on a broker. A real one has answered once it says nothing for `quiet` seconds."""

    def __init__(self, target: Target, program: Program, quiet: float) -> None:
        self.target = target
        self.program = program
        self.quiet = quiet
        self.slow = any(fields.get("subType") == "Failover" for _, _, fields in program.steps)
        """Whether the broker waits for a second before it acts."""
        self.clients: dict[str, Probe] = {}
        self.topic = ""
        self.stored: list[dict[str, int]] = []
        self.payloads: dict[int, bytes] = {}
        self.ledgers: dict[int, int] = {}

    async def told(self) -> Told:
        """Run it."""
        self.topic = self.target.topic(TOPICS[self.program.topic])
        if self.program.topic == "partition":
            await self.target.rest("PUT", f"{admin_path(self.topic)}/partitions", 3)
            self.topic += "-partition-1"
        await (await self.target.connect()).look_up(self.topic)
        return [await self._step(number, *step) for number, step in enumerate(self.program.steps)]

    async def _step(
        self, number: int, client: str, name: str, fields: dict[str, Any]
    ) -> dict[str, list[str]]:
        """What each client is told after a step."""
        said = {}
        if client == "admin":
            said[client] = [await self._call(name)]
        elif name not in ("CUT", "KILL"):
            await self._command(number, client, name, dict(fields))
        elif client in self.clients:
            await _end(self.clients.pop(client), name)
        await self._settle()
        for each, probe in sorted(self.clients.items()):
            lines = list(self._heard(probe))
            said[each] = sorted(lines) if client == "admin" else lines
        self.clients = {each: probe for each, probe in self.clients.items() if not probe.closed.done()}
        return {each: lines for each, lines in said.items() if lines}

    async def _command(self, number: int, client: str, name: str, fields: dict[str, Any]) -> None:
        """Send a command; if there should be an answer, give it time."""
        probe = self.clients.get(client) or await self.target.connect()
        self.clients[client] = probe
        data, asked = self._frame(number, name, fields)
        wanted = ("sequence_id", number) if name == "SEND" else ("request_id", number + 1)

        def is_answered() -> bool:
            frames = (getattr(it.body, wanted[0], None) == wanted[1] for it in probe.frames)
            return any(frames) or probe.closed.done()

        probe.send(data)
        if asked and not isinstance(self.target, EmbeddedTarget):
            with suppress(Mismatch):  # some have to wait for others
                await probe.until(is_answered, "an answer", 3)

    async def _call(self, name: str) -> str:
        method, path = name.split()
        try:
            await self.target.rest(method, f"{admin_path(self.topic)}/{path}")
        except RestError as error:
            return str(error.status)
        return "ok"

    # -- what is sent

    def _frame(self, number: int, name: str, fields: dict[str, Any]) -> tuple[bytes, bool]:
        """The bytes of a step's command, and whether there will be an answer."""
        if name == "SEND":
            return self._send(number, **fields), True
        known = getattr(build_command(name), BODIES[NUMBERS[name]]).DESCRIPTOR.fields_by_name
        if "topic" in known:
            fields["topic"] = self.topic
        asked = "request_id" in known and (name != "ACK" or fields.pop("answer", False))
        if asked:
            fields["request_id"] = number + 1
        for field in ("message_id", "message_ids", "start_message_id"):
            if field in fields:
                several = name in ("ACK", "REDELIVER_UNACKNOWLEDGED_MESSAGES")
                given = fields[field]
                fields[field] = [self._id(each) for each in given] if several else self._id(given)
        return make_frame(name, **fields), asked

    def _send(self, number: int, key: str = "", batch_size: int = 0, **fields: Any) -> bytes:
        payload = f"m{number}".encode()
        if key:
            fields["meta_partition_key"] = key
        if batch_size:
            payload = make_batch(*(b"m%d-%d" % (number, each) for each in range(batch_size)), first=number)
            fields |= {"num_messages": batch_size, "meta_num_messages_in_batch": batch_size}
        self.payloads[number] = payload
        return make_send(number, payload, **fields)

    def _id(self, reference: Any) -> dict[str, Any]:
        if isinstance(reference, str):
            return _NAMED[reference]
        number, *of_batch = reference if isinstance(reference, list) else [reference]
        found: dict[str, Any] = self.stored[number] if number < len(self.stored) else _UNKNOWN
        return {**found, "batch_size": of_batch[0], "ack_set": of_batch[1:]} if of_batch else found

    # -- what comes

    async def _settle(self) -> None:
        """Wait until everything is said."""
        if isinstance(self.target, EmbeddedTarget):
            seconds = 1.5 if self.slow else 0.01  # first reads of a subscription take a moment
            await self.target.advance(seconds)
            return
        quiet = self.quiet + 1.2 * self.slow
        before, last = -1, time.monotonic()
        while time.monotonic() - last < quiet:
            count = sum(len(probe.frames) + probe.closed.done() for probe in self.clients.values())
            if count != before:
                before, last = count, time.monotonic()
            await asyncio.sleep(0.02)

    def _heard(self, probe: Probe) -> Iterator[str]:
        """What a client was told: messages last, by consumer, as other threads send them than the answers."""
        frames = sorted(
            probe.frames, key=lambda it: it.body.consumer_id + 1 if it.command == "MESSAGE" else 0
        )
        probe.frames.clear()
        yield from map(self._line, frames)
        if probe.closed.done():
            yield "closed"

    def _line(self, it: Frame) -> str:
        words = [it.command]
        for name, value in Walker()(it.body).items():
            if name == "request_id":
                words.append(f"request={value - 1 if value > 0 else value}")
            elif isinstance(value, dict) and "ledgerId" in value:
                if it.command == "SEND_RECEIPT" and value["entryId"] >= 0:
                    self.stored.append({key: value[key] for key in ("ledgerId", "entryId")})
                words.append(f"{name}={self._shown(value)}")
            elif name == "producer_name" and value.startswith("standalone-"):
                words.append("producer_name=generated")
            elif not name.startswith(_LEFT_OUT):
                words.append(f"{name}={value}")
        if it.command == "MESSAGE":
            assert it.metadata is not None
            number = it.metadata.sequence_id
            words.append(f"m{number}" if self.payloads.get(number) == it.payload else "damaged")
        return " ".join(words)

    def _shown(self, message_id: dict[str, int]) -> str:
        ledger, entry = message_id["ledgerId"], message_id["entryId"]
        shown = str(ledger) if ledger < 0 else f"L{self.ledgers.setdefault(ledger, len(self.ledgers))}"
        batch_index = message_id.get("batch_index", -1)
        return f"{shown}:{entry}" + (f"[{batch_index}]" if batch_index >= 0 else "")


async def _end(probe: Probe, how: str) -> None:
    """End a connection, by RST if it is to be killed."""
    if how == "KILL":
        end = struct.pack("ii", 1, 0)
        probe.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, end)
        probe.drop("killed")
        await probe.closed
    else:
        await probe.close()


# -- comparing


async def on_embedded(program: Program) -> Told:
    """What an embedded broker of its own answers."""
    async with EmbeddedTarget(program.setting) as target:
        return await Run(target, program, 0).told()


async def on_real(broker: Standalone, program: Program, quiet: float = 0.15) -> Told:
    """What a real broker answers."""
    async with RealTarget(broker) as target:
        return await Run(target, program, quiet).told()


def _without_backlog(told: dict[str, list[str]]) -> dict[str, list[str]]:
    return {client: [_BACKLOG.sub("", line) for line in lines] for client, lines in told.items()}


def difference(program: Program, ours: Told, theirs: Told) -> int | None:
    """The first step that is answered otherwise."""
    assert len(ours) == len(theirs) == len(program.steps)
    has_acked = has_sought = False
    for number, (_, command, fields) in enumerate(program.steps):
        has_acked = has_acked or (command == "ACK" and fields.get("ack_type") == "Individual")
        has_sought = has_sought or (has_acked and command == "SEEK")
        our, their = ours[number], theirs[number]
        if has_sought:
            our, their = _without_backlog(our), _without_backlog(their)
        if our != their:
            return number
    return None


class Comparison:
    """Compares the embedded broker with a real one."""

    def __init__(self, broker: Standalone) -> None:
        self.broker = broker
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def differs(self, program: Program, quiet: float = 0.15) -> int | None:
        """The first step that is answered otherwise."""
        async with self._free:
            theirs = await on_real(self.broker, program, quiet)
        return difference(program, await on_embedded(program), theirs)

    async def smallest(self, program: Program) -> Program | None:
        """A program with as few of the steps as possible that is answered otherwise; None if not always."""
        steps = program.steps
        while (number := await self.differs(program._replace(steps=steps), 0.3)) is not None:
            program, steps = program._replace(steps=steps), steps[: number + 1]
            without = [steps[:each] + steps[each + 1 :] for each in range(len(steps))]
            differ = await asyncio.gather(
                *(self.differs(program._replace(steps=each), 0.3) for each in without)
            )
            smaller = [each for each, it in zip(without, differ, strict=True) if it is not None]
            if not smaller and steps == program.steps:
                return program
            steps = smaller[0] if smaller else steps
        return None

    async def find(self, programs: list[Program]) -> Program | None:
        """A smallest program that is always answered otherwise, if any of these is."""
        differ = await asyncio.gather(*map(self.differs, programs))
        for program, number in zip(programs, differ, strict=True):
            found = await self.smallest(program) if number is not None else None
            if found is not None:
                return found
        return None

    async def show(self, program: Program) -> None:
        """Print a program, and where it is answered otherwise."""
        ours, theirs = await on_embedded(program), await on_real(self.broker, program, 0.3)
        say(json.dumps(program))
        for step, our, their in zip(program.steps, ours, theirs, strict=True):
            say(f"  {json.dumps(step)}")
            say(f"      {our}" if our == their else f"    embedded {our}\n    real     {their}")


# -- programs with recorded answers


def recorded() -> dict[str, tuple[Program, Told]]:
    """Those of differential.jsonl: name -> program, and what a real broker answers."""
    rows = map(json.loads, RECORDED.read_text(encoding="utf-8").splitlines())
    return {row["name"]: (Program(*row["program"]), row.get("told", [])) for row in rows}


def record(rows: dict[str, tuple[Program, Told]]) -> None:
    """Write differential.jsonl."""
    lines = [
        json.dumps({"name": name, "program": program, "told": told}) + "\n"
        for name, (program, told) in rows.items()
    ]
    RECORDED.write_text("".join(lines), encoding="utf-8")


async def answers(broker: Standalone, programs: list[Program], quiet: float) -> list[Told]:
    """What a real broker answers, with patience."""
    free = asyncio.Semaphore(_AT_ONCE)

    async def answer(program: Program) -> Told:
        async with free:
            return await on_real(broker, program, quiet)

    return await asyncio.gather(*map(answer, programs))


def run_setting(broker: Standalone, setting: str, until: float, recording: bool) -> int:
    """Run the recorded programs, then random ones until a time; returns the number of those that differ."""
    rows = recorded()
    names = [name for name, (program, _) in rows.items() if program.setting == setting]
    differ = names
    for quiet in (0.5, 3):  # on a busy machine answers may come late
        told = asyncio.run(answers(broker, [rows[name][0] for name in differ], quiet))
        answered = dict(zip(differ, told, strict=True))
        differ = [name for name in differ if answered[name] != rows[name][1]]
    for name in differ:
        say(f"{setting}: {name!r} is answered otherwise than recorded")
        rows[name] = rows[name][0], answered[name]
    if recording:
        record(rows)
    wrong = 0 if recording else len(differ)
    count = 0
    while not wrong and time.monotonic() < until:
        programs = random_programs(6 * _AT_ONCE, random.randrange(1 << 32), setting)
        count += len(programs)
        comparison = Comparison(broker)
        found = asyncio.run(comparison.find(programs))
        if found is not None:
            asyncio.run(Comparison(broker).show(found))
            wrong += 1
    say(f"{setting}: {len(names)} recorded and {count} random programs, {wrong} differ")
    return wrong


def main() -> None:
    """Compare with a real broker, which is started for that."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    settings = sorted({program.setting for program, _ in recorded().values()})
    wrong = 0
    for setting in settings:
        with tempfile.TemporaryDirectory() as place:
            try:
                with real_broker(setting, Path(place)) as broker:
                    until = time.monotonic() + options.minutes * 60 / len(settings)
                    wrong += run_setting(broker, setting, until, options.record)
            except Unavailable as reason:
                say(f"there is no real broker to compare with: {reason}")
                return
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
