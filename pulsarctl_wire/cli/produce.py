"""`pwire produce`: messages from the command line, files or stdin to a topic."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.lookup import TOPIC
from pulsarctl_wire.cli.options import option
from pulsarctl_wire.cli.session import Session, topic_name

if TYPE_CHECKING:
    from pulsarctl_wire.net.client import Client
    from pulsarctl_wire.net.producer import Sent
    from pulsarctl_wire.wire.PulsarApi_pb2 import Schema

WHAT, EACH, HOW, BATCH = "What to send", "Each message", "How to send", "Batches and chunks"
_SAID = 10  # failures that are told one by one
_BLOCK = 1_000  # messages between two looks at the progress


class Codec(str, Enum):
    """Compression of payloads."""

    none = "none"
    lz4 = "lz4"
    zlib = "zlib"
    zstd = "zstd"
    snappy = "snappy"


class Access(str, Enum):
    """Access modes of a producer (PIP-68)."""

    shared = "shared"
    exclusive = "exclusive"
    wait_for_exclusive = "wait-for-exclusive"
    exclusive_with_fencing = "exclusive-with-fencing"


class Routing(str, Enum):
    """Which partition takes a message without key."""

    round_robin = "round-robin"
    single = "single"


class Hashing(str, Enum):
    """How a key finds its partition."""

    java = "java"
    murmur3 = "murmur3"


class Output(str, Enum):
    """What is printed of what was sent."""

    summary = "summary"
    id = "id"
    json = "json"


async def produce(
    session: Session,
    topic: Annotated[str, TOPIC],
    messages: Annotated[
        list[str] | None,
        option(
            WHAT, "-m", "--messages", metavar="TEXT", help="A message; - reads them from stdin, one a line."
        ),
    ] = None,
    files: Annotated[
        list[str] | None, option(WHAT, "-f", "--files", metavar="FILE", help="A file that is one message.")
    ] = None,
    envelope: Annotated[
        bool,
        option(
            WHAT,
            "--json",
            help="Messages are JSON objects: payload (or payload_base64), key, properties, event_time, "
            "ordering_key, deliver_at, sequence_id. What consume -o json prints can be sent again.",
        ),
    ] = False,
    separator: Annotated[
        str | None, option(WHAT, "-s", "--separator", metavar="TEXT", help="Split each -m there.")
    ] = None,
    num_produce: Annotated[
        int, option(WHAT, "-n", "--num-produce", metavar="N", min=1, help="Send all of it N times.")
    ] = 1,
    hexadecimal: Annotated[bool, option(WHAT, "--hex", help="Messages are hexadecimal digits.")] = False,
    schema: Annotated[
        str | None,
        option(
            WHAT,
            "--schema",
            "-vs",
            "--value-schema",
            metavar="TYPE[:FILE]",
            help="Register this schema and encode by it: string, int64, json:FILE, avro:FILE, "
            "protobuf:FILE:MESSAGE, keyvalue:K,V …; auto takes the topic's newest.",
        ),
    ] = None,
    key: Annotated[str | None, option(EACH, "-k", "--key", metavar="TEXT", help="Key.")] = None,
    properties: Annotated[
        list[str] | None, option(EACH, "-p", "--properties", metavar="NAME=VALUE", help="A property.")
    ] = None,
    ordering_key: Annotated[
        str | None, option(EACH, "--ordering-key", metavar="TEXT", help="Ordering key.")
    ] = None,
    event_time: Annotated[
        int | None, option(EACH, "--event-time", metavar="MS", min=0, help="Event time, ms since 1970.")
    ] = None,
    deliver_at: Annotated[
        int | None,
        option(EACH, "--deliver-at", metavar="MS", min=0, help="Not to be delivered before, ms since 1970."),
    ] = None,
    deliver_after: Annotated[
        float | None, option(EACH, "--deliver-after", metavar="SECONDS", min=0, help="The same, from now.")
    ] = None,
    disable_replication: Annotated[
        bool, option(EACH, "-dr", "--disable-replication", help="Not to other clusters.")
    ] = False,
    rate: Annotated[
        float | None, option(HOW, "-r", "--rate", metavar="N", min=0.001, help="Messages a second.")
    ] = None,
    sync: Annotated[
        bool, option(HOW, "--sync", help="Wait for each receipt before the next message.")
    ] = False,
    compression: Annotated[
        Codec, option(HOW, "--compression", case_sensitive=False, help="Codec of payloads.")
    ] = Codec.none,
    producer_name: Annotated[
        str | None, option(HOW, "--producer-name", metavar="NAME", help="Else the broker makes one.")
    ] = None,
    initial_sequence_id: Annotated[
        int | None,
        option(HOW, "--initial-sequence-id", metavar="N", min=-1, help="Sequence ids go on after N."),
    ] = None,
    access_mode: Annotated[
        Access, option(HOW, "--access-mode", help="Whether others may produce too.")
    ] = Access.shared,
    routing: Annotated[
        Routing, option(HOW, "--routing", help="Partition of a message without key.")
    ] = Routing.round_robin,
    hashing: Annotated[Hashing, option(HOW, "--hash", help="Of the key, for its partition.")] = Hashing.java,
    max_pending: Annotated[
        int, option(HOW, "--max-pending", metavar="N", min=1, help="Messages that may wait for receipts.")
    ] = 50_000,
    send_timeout: Annotated[
        float, option(HOW, "--send-timeout", metavar="SECONDS", min=0.1, help="How long a receipt may take.")
    ] = 30.0,
    disable_batching: Annotated[
        bool, option(BATCH, "-db", "--disable-batching", help="Each message in an entry of its own.")
    ] = False,
    batch_messages: Annotated[
        int, option(BATCH, "-bm", "--batch-messages", metavar="N", min=1, help="Messages of a batch.")
    ] = 1000,
    batch_bytes: Annotated[
        int, option(BATCH, "--batch-bytes", metavar="N", min=1, help="Its bytes before compression.")
    ] = 128 * 1024,
    batch_delay: Annotated[
        float,
        option(BATCH, "-b", "--batch-delay", metavar="MS", min=0, help="How long it may wait for more."),
    ] = 1.0,
    batch_by_key: Annotated[
        bool, option(BATCH, "--batch-by-key", help="One key a batch, for Key_Shared.")
    ] = False,
    chunking: Annotated[
        bool, option(BATCH, "-c", "--chunking", help="Cut up messages that are too large.")
    ] = False,
    chunk_size: Annotated[
        int | None, option(BATCH, "--chunk-size", metavar="BYTES", min=1, help="Largest chunk; with -c.")
    ] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but errors.")] = False,
    output: Annotated[
        Output, typer.Option("-o", "--output", help="What to print: a summary, each id, JSON lines.")
    ] = Output.summary,
) -> int:
    """Produce messages, as pulsar-client does, and say where they were stored."""
    from pulsarctl_wire.cli.envelope import Common, Maker
    from pulsarctl_wire.errors import LocalProtocolError
    from pulsarctl_wire.net.producer import ProducerOptions
    from pulsarctl_wire.net.publisher import Publisher
    from pulsarctl_wire.wire.PulsarApi_pb2 import CompressionType, ProducerAccessMode

    sources = _sources(messages, files, envelope, num_produce)
    if deliver_after is not None:
        deliver_at = int((time.time() + deliver_after) * 1000)
    common = Common(
        key=key,
        properties=tuple(pair("-p", each) for each in properties or ()),
        ordering_key=None if ordering_key is None else ordering_key.encode("utf-8", "surrogateescape"),
        event_time=event_time or 0,
        deliver_at=deliver_at,
        replicate=not disable_replication,
    )
    name = topic_name(topic)
    async with session.client() as client:
        chosen = await _schema(client, name, schema)
        maker = Maker(common, chosen, envelope=envelope, hexadecimal=hexadecimal)
        options = ProducerOptions(
            name=producer_name,
            access=ProducerAccessMode.Value("".join(map(str.title, access_mode.value.split("-")))),
            initial_sequence_id=initial_sequence_id,
            schema=None if chosen is None or is_bare_json(chosen) else chosen,
            codec=CompressionType.Value(compression.value.upper()),
            batch_count=1 if disable_batching or sync or chunking else batch_messages,
            batch_bytes=batch_bytes,
            batch_delay=batch_delay / 1000,
            by_key=batch_by_key,
            chunking=chunking,
            chunk_bytes=chunk_size,
            max_pending=max_pending,
            send_timeout=send_timeout,
        )
        report, pace = Report(output, quiet), Pace(rate) if rate else None
        route = {"routing": routing.value, "hashing": hashing.value}
        publisher = Publisher(client, name, options, report.sent, **route)
        await publisher.open()
        report.began = time.perf_counter()
        try:
            async for texts in _texts(sources, separator, num_produce, skip_blank=envelope):
                for text in texts:
                    if pace is not None:
                        await pace.wait()
                    await publisher.send(maker(text))
                    if sync:
                        await publisher.flush()
                report.progress()
            await publisher.flush()
            report.progress()
        except (LocalProtocolError, SystemExit):  # what was right before goes
            await publisher.flush()
            raise
        finally:
            report.close(publisher.pending_messages, publisher.unsent_messages)
        await publisher.close()
    return report.code


def pair(flag: str, text: str) -> tuple[str, str]:
    """NAME=VALUE taken apart; ends the command where it is something else."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        console.fail(f"{flag} {text}: NAME=VALUE is wanted", console.EXIT_USAGE)
    return name, value


def _sources(
    messages: list[str] | None, files: list[str] | None, envelope: bool, times: int
) -> list[tuple[str, bool]]:
    """What is to be sent, in order: (text or path, whether it is a path)."""
    if not messages and not files:
        if not envelope:
            console.fail("produce: give messages by -m TEXT, -m - (stdin) or -f FILE", console.EXIT_USAGE)
        messages = ["-"]
    if times > 1 and "-" in (messages or ()):
        console.fail("produce: -n repeats -m TEXT and -f FILE; stdin is there once", console.EXIT_USAGE)
    return [*((each, False) for each in messages or ()), *((each, True) for each in files or ())]


async def _texts(
    sources: list[tuple[str, bool]], separator: str | None, times: int, *, skip_blank: bool
) -> AsyncIterator[list[bytes]]:
    """The texts to be sent, some at a time."""
    from pulsarctl_wire.cli.lines import read_lines

    texts: list[bytes] = []
    for source, is_file in sources:
        if source == "-" and not is_file:
            if texts:
                yield texts
                texts = []
            async for lines in read_lines("-"):
                yield [line for line in lines if line.strip()] if skip_blank else lines
        elif is_file:
            texts.append(_content(source))
        else:
            parts = source.split(separator) if separator else [source]
            texts += [part.encode("utf-8", "surrogateescape") for part in parts]
    block = texts * max(1, min(times, _BLOCK // max(len(texts), 1)))
    whole, rest = divmod(len(texts) * times, max(len(block), 1))
    for _ in range(whole):
        yield block
    if rest:
        yield block[:rest]


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        console.fail(f"-f {path}: {error.strerror}", console.EXIT_SOURCE)


async def _schema(client: Client, topic: str, spec: str | None) -> Schema | None:
    """The schema a user asked for; "auto" is the topic's own newest one."""

    if spec is None:
        return None
    if spec == "auto":
        found: Schema = (await client.ask("GET_SCHEMA", topic=topic)).body.schema
        return found
    return schema_of(spec)


def schema_of(spec: str) -> Schema | None:
    """The schema that TYPE[:FILE] means, None for plain bytes; ends the command where it means none."""
    from pulsarctl_wire.views import parse_schema
    from pulsarctl_wire.wire.PulsarApi_pb2 import Schema

    try:
        schema = parse_schema(spec)
    except ValueError as error:
        console.fail(f"--schema {error}", console.EXIT_USAGE)
    return None if schema.type == Schema.Type.Value("None") else schema


def is_bare_json(schema: Schema) -> bool:
    """Whether it is JSON of any form: brokers register JSON by a definition alone."""
    return schema.type == schema.Json and not schema.schema_data


class Pace:
    """Keeps to a rate of messages a second."""

    def __init__(self, rate: float) -> None:
        self._step = 1 / rate
        self._next = 0.0

    async def wait(self) -> None:
        """Wait until the next one is due."""
        import asyncio

        now = time.monotonic()
        self._next = self._next or now
        self._next = max(self._next, now - self._step)
        if self._next > now:
            await asyncio.sleep(self._next - now)
        self._next += self._step


class Report:
    """Counts what was sent, and prints it. `code` is the exit code, `began` when sending did."""

    def __init__(self, output: Output, quiet: bool) -> None:
        self.code = 0
        self.began = time.perf_counter()
        self._output = output
        self._quiet = quiet
        self._ends: dict[str, tuple[str, str]] = {}
        self._counts: dict[str, int] = {}
        self._duplicates = self._failed = 0
        self._broken: OSError | None = None
        self._bar = sys.stderr.isatty() and not quiet
        self._next = self.began + 1

    def sent(self, sent: Sent) -> None:
        """Take the fate of a send."""
        if sent.error is not None:
            self._failed += sent.count
            self.code = self.code or console.code_of(sent.error)
            if self._failed <= _SAID:
                console.complain(f"sequence id {sent.sequence_id}: {sent.error}")
            return
        if sent.entry < 0:
            self._duplicates += sent.count
        self._counts[sent.topic] = self._counts.get(sent.topic, 0) + sent.count
        first, last = message_id(sent, 0), message_id(sent, sent.count - 1)
        self._ends[sent.topic] = self._ends.get(sent.topic, (first,))[0], last
        if self._output is not Output.summary and not self._quiet and self._broken is None:
            try:
                for index in range(sent.count):
                    self._each(sent, index)
                sys.stdout.flush()
            except OSError as error:  # `progress` tells: here the session would take it for its own
                self._broken = error

    def _each(self, sent: Sent, index: int) -> None:
        name = message_id(sent, index)
        if self._output is Output.id:
            sys.stdout.write(name + "\n")
            return
        from pulsarctl_wire.cli.jsonl import json_line

        record: dict[str, Any] = {
            "topic": sent.topic,
            "id": name,
            "ledger": sent.ledger,
            "entry": sent.entry,
            "batch_index": index if sent.batched else None,
            "sequence_id": sent.sequence_id + index,
            "duplicate": sent.entry < 0,
            "latency_ns": sent.latency_ns,
        }
        sys.stdout.flush()
        sys.stdout.buffer.write(json_line(record))

    def progress(self) -> None:
        """Show how far it is, on a terminal, once a second. Raises OSError if the output was not taken."""
        if self._broken is not None:
            raise self._broken
        now = time.perf_counter()
        if self._bar and now > self._next:
            self._next = now + 1
            done = sum(self._counts.values())
            sys.stderr.write(f"\r{done} messages, {done / (now - self.began):,.0f}/s ")
            sys.stderr.flush()

    def close(self, pending: int, unsent: int) -> None:
        """Print what there is to say at the end, when so many have no receipt, or were not even sent."""
        seconds = time.perf_counter() - self.began
        if self._bar and self._next > self.began + 1:
            sys.stderr.write("\r\x1b[K")
        if self._failed > _SAID:
            console.complain(f"{self._failed} messages failed")
        if unsent:
            console.complain(f"{unsent} messages were not sent")
        if pending:
            console.complain(f"{pending} messages have no receipt: they may be stored or not")
        if self._output is not Output.summary or self._quiet:
            sys.stdout.flush()
            return
        for topic, (first, last) in sorted(self._ends.items()):
            count = self._counts[topic]
            rate = f", {count / seconds:,.0f}/s" if count > 1 else ""
            where = first if first == last else f"{first} … {last}"
            text = f"{count} {'message' if count == 1 else 'messages'} to {topic}: {where}"
            sys.stdout.write(f"{console.clean(text)}, {console.human_time(int(seconds * 1e9))}{rate}\n")
        if self._duplicates:
            console.complain(f"{self._duplicates} of them are duplicates by sequence id: not stored again")
        sys.stdout.flush()


def message_id(sent: Sent, index: int) -> str:
    """The id of message `index` of a send."""
    from pulsarctl_wire.wire.names import id_text, partition_index

    ids = [sent.first, (sent.ledger, sent.entry)] if sent.first else [(sent.ledger, sent.entry)]
    return id_text(ids, partition_index(sent.topic), index if sent.batched else None)
