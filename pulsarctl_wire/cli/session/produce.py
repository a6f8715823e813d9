"""`pwire produce`: sends messages from the command line, files or stdin to a topic."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.options import schema_of
from pulsarctl_wire.cli.session.key_uris import ENCRYPTION_KEY_VALUE, load_key
from pulsarctl_wire.cli.session.lookup import TOPIC
from pulsarctl_wire.cli.session.verb import Session, parse_topic
from pulsarctl_wire.cli.signature import flag, option, several
from pulsarctl_wire.errors import LocalProtocolError
from pulsarctl_wire.render.text import clean, human_time

if TYPE_CHECKING:
    import asyncio

    from pulsarctl_wire.net.session.client import Client
    from pulsarctl_wire.net.session.encryption import Recipient
    from pulsarctl_wire.net.session.send_queue import ProducerOptions, SendResult
    from pulsarctl_wire.wire.entry import Outgoing
    from pulsarctl_wire.wire.PulsarApi_pb2 import Schema

WHAT, EACH, HOW, BATCH = "What to send", "Each message", "How to send", "Batches and chunks"
CRYPTO = "Encryption"
_MAX_REPORTED = 10  # failed sends that are reported one by one
_BLOCK = 1_000  # messages between two updates of the progress

Output = Literal["summary", "id", "json"]
"""What to print about the messages sent."""


@dataclass(frozen=True, kw_only=True)
class ProduceOptions:
    """The options of `produce`."""

    topic: str = TOPIC()
    messages: list[str] = several(
        "-m --messages TEXT", "A message; - reads messages from stdin, one per line.", WHAT
    )
    files: list[str] = several("-f --files FILE", "A file with one message.", WHAT)
    envelope: bool = flag(
        "--json",
        "Messages are JSON objects: payload (or payload_base64), key, properties, event_time, "
        "ordering_key, deliver_at, sequence_id. The output of consume -o json can be sent again.",
        WHAT,
    )
    separator: str | None = option("-s --separator TEXT", "Split each -m at this text.", WHAT)
    num_produce: int = option("-n --num-produce N", "Send everything N times.", WHAT, default=1, min=1)
    hexadecimal: bool = flag("--hex", "Messages are hex digits.", WHAT)
    schema: str | None = option(
        "--schema -vs --value-schema TYPE[:FILE]",
        "Register this schema and encode by it: string, int64, json:FILE, avro:FILE, "
        "protobuf:FILE:MESSAGE, keyvalue:K,V …; auto uses the topic's latest schema.",
        WHAT,
    )
    key: str | None = option("-k --key TEXT", "Key.", EACH)
    properties: list[str] = several("-p --properties NAME=VALUE", "A property.", EACH)
    ordering_key: str | None = option("--ordering-key TEXT", "Ordering key.", EACH)
    event_time: int | None = option("--event-time MS", "Event time, ms since 1970.", EACH, min=0)
    deliver_at: int | None = option("--deliver-at MS", "Earliest delivery time, ms since 1970.", EACH, min=0)
    deliver_after: float | None = option("--deliver-after SECONDS", "Delay before delivery.", EACH, min=0)
    disable_replication: bool = flag("-dr --disable-replication", "Do not replicate to other clusters.", EACH)
    rate: float | None = option("-r --rate N", "Maximum number of messages per second.", HOW, min=0.001)
    sync: bool = flag("--sync", "Wait for each receipt before the next message.", HOW)
    compression: Literal["none", "lz4", "zlib", "zstd", "snappy"] = option(
        "--compression", "Compression codec.", HOW, default="none", case_sensitive=False
    )
    producer_name: str | None = option("--producer-name NAME", "Default: a name made by the broker.", HOW)
    initial_sequence_id: int | None = option(
        "--initial-sequence-id N", "Sequence ids start after N.", HOW, min=-1
    )
    access_mode: Literal["shared", "exclusive", "wait-for-exclusive", "exclusive-with-fencing"] = option(
        "--access-mode", "Whether other producers are allowed.", HOW, default="shared"
    )
    routing: Literal["round-robin", "single"] = option(
        "--routing", "How to choose partitions of messages without key.", HOW, default="round-robin"
    )
    hashing: Literal["java", "murmur3"] = option(
        "--hash", "Hash of keys, which chooses the partition.", HOW, default="java"
    )
    max_pending: int = option(
        "--max-pending N", "Maximum number of messages without receipt.", HOW, default=50_000, min=1
    )
    send_timeout: float = option(
        "--send-timeout SECONDS", "How long a receipt may take.", HOW, default=30.0, min=0.1
    )
    disable_batching: bool = flag("-db --disable-batching", "Send each message in its own entry.", BATCH)
    batch_messages: int = option("-bm --batch-messages N", "Messages per batch.", BATCH, default=1000, min=1)
    batch_bytes: int = option(
        "--batch-bytes N", "Bytes per batch, before compression.", BATCH, default=128 * 1024, min=1
    )
    batch_delay: float = option(
        "-b --batch-delay MS", "How long a batch waits for more messages.", BATCH, default=1.0, min=0
    )
    batch_by_key: bool = flag("--batch-by-key", "Only one key per batch, for Key_Shared.", BATCH)
    chunking: bool = flag("-c --chunking", "Split messages that are too large into chunks.", BATCH)
    chunk_size: int | None = option("--chunk-size BYTES", "Largest chunk, with -c.", BATCH, min=1)
    key_names: list[str] = several(
        "-ekn --encryption-key-name NAME", "Encrypt for the owner of this key; with -ekv.", CRYPTO
    )
    key_values: list[str] = several(
        f"{ENCRYPTION_KEY_VALUE} URI",
        "That public key: file:///PATH, data:application/x-pem-file;base64,… or a path; "
        "-ekn and -ekv can be repeated.",
        CRYPTO,
    )
    quiet: bool = flag("-q --quiet", "Print only errors.")
    output: Output = option(
        "-o --output", "What to print: a summary, each id, or JSON lines.", default="summary"
    )

    def make_common(self) -> Outgoing:
        """Make a message, without payload, that has what all messages share."""
        from pulsarctl_wire.wire.entry import Outgoing

        deliver_at, ordering_key = self.deliver_at, self.ordering_key
        if self.deliver_after is not None:
            deliver_at = int((time.time() + self.deliver_after) * 1000)
        return Outgoing(
            b"",
            key=self.key,
            properties=tuple(pair("-p", text) for text in self.properties),
            ordering_key=None if ordering_key is None else ordering_key.encode("utf-8", "surrogateescape"),
            event_time=self.event_time or 0,
            deliver_at=deliver_at,
            replicate=not self.disable_replication,
        )

    def make_producer_options(self, schema: Schema | None) -> ProducerOptions:
        """Return the options as `Publisher` takes them."""
        from pulsarctl_wire.net.session.send_queue import ProducerOptions
        from pulsarctl_wire.wire.PulsarApi_pb2 import CompressionType, ProducerAccessMode

        return ProducerOptions(
            name=self.producer_name,
            access=ProducerAccessMode.Value("".join(map(str.title, self.access_mode.split("-")))),
            initial_sequence_id=self.initial_sequence_id,
            schema=None if schema is None or is_bare_json(schema) else schema,
            codec=CompressionType.Value(self.compression.upper()),
            batch_count=1 if self.disable_batching or self.sync or self.chunking else self.batch_messages,
            batch_bytes=self.batch_bytes,
            batch_delay=self.batch_delay / 1000,
            by_key=self.batch_by_key,
            chunking=self.chunking,
            chunk_bytes=self.chunk_size,
            max_pending=self.max_pending,
            send_timeout=self.send_timeout,
            recipients=self.load_recipients(),
        )

    def load_recipients(self) -> list[Recipient]:
        """Return for whom messages are encrypted. A key without name, or the reverse, ends the command."""
        from pulsarctl_wire.net.session.encryption import Recipient, load_public_key

        if len(self.key_names) != len(self.key_values):
            console.fail("produce: -ekn and -ekv belong together: give both for each key")
        if "" in self.key_names:
            console.fail("produce: -ekn needs a name: consumers find their private key by it")
        keys = [load_key(uri, load_public_key) for uri in self.key_values]
        return [*map(Recipient, self.key_names, keys)]

    def list_sources(self) -> list[tuple[str, bool]]:
        """Return what to send, in order: (text or path, whether it is a path)."""
        messages = self.messages
        if not messages and not self.files:
            if not self.envelope:
                console.fail("produce: give messages with -m TEXT, -m - (stdin) or -f FILE")
            messages = ["-"]
        if self.num_produce > 1 and "-" in messages:
            console.fail("produce: -n repeats -m TEXT and -f FILE; stdin can be read only once")
        return [*((source, False) for source in messages), *((source, True) for source in self.files)]


async def produce(session: Session, options: ProduceOptions) -> int:
    """Produce messages like pulsar-client, and print where they were stored."""
    from pulsarctl_wire.cli.session.envelope import Maker
    from pulsarctl_wire.net.session.producer import Publisher

    sources, common = options.list_sources(), options.make_common()
    name = parse_topic(options.topic)
    async with session.make_client() as client:
        schema = await _fetch_schema(client, name, options.schema)
        maker = Maker(common, schema, envelope=options.envelope, hexadecimal=options.hexadecimal)
        report, pace = Report(options.output, options.quiet), Pace(options.rate) if options.rate else None
        route = {"routing": options.routing, "hashing": options.hashing}
        publisher = Publisher(client, name, options.make_producer_options(schema), report.add, **route)
        await publisher.open()
        report.began = time.perf_counter()
        try:
            async for texts in read_texts(
                sources,
                options.separator,
                options.num_produce,
                skip_blank=options.envelope,
                until=publisher.ended,
            ):
                for text in texts:
                    if pace is not None:
                        await pace.wait()
                    await publisher.send(maker(text))
                    if options.sync:
                        await publisher.flush()
                report.progress()
            await publisher.flush()
            report.progress()
            if publisher.ended.done() and not report.code:
                raise publisher.ended.result()
        except (LocalProtocolError, SystemExit):  # send the valid messages before the error
            await publisher.flush()
            raise
        finally:
            report.close(publisher.pending_messages, publisher.unsent_messages)
        await publisher.close()
    return report.code


def pair(flag: str, text: str) -> tuple[str, str]:
    """Split NAME=VALUE. Any other text ends the command."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        console.fail(f"{flag} {text}: use NAME=VALUE")
    return name, value


async def read_texts(
    sources: list[tuple[str, bool]],
    separator: str | None,
    times: int,
    *,
    skip_blank: bool,
    until: asyncio.Future[Any] | None = None,
) -> AsyncIterator[list[bytes]]:
    """Yield the texts to send, in batches; stdin is read no further when `until` is done.

    `separator` splits the texts of -m. All but stdin is sent `times` times. `skip_blank` leaves out the
    blank lines of stdin.
    """
    from pulsarctl_wire.cli.session.lines import read_lines

    texts: list[bytes] = []
    for source, is_file in sources:
        if source == "-" and not is_file:
            if texts:
                yield texts
                texts = []
            async for lines in read_lines("-", until):
                yield [line for line in lines if line.strip()] if skip_blank else lines
        elif is_file:
            texts.append(_read_file(source))
        else:
            parts = source.split(separator) if separator else [source]
            texts += [part.encode("utf-8", "surrogateescape") for part in parts]
    block = texts * max(1, min(times, _BLOCK // max(len(texts), 1)))
    block_count, remainder = divmod(len(texts) * times, max(len(block), 1))
    for _ in range(block_count):
        yield block
    if remainder:
        yield block[:remainder]


def _read_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        console.fail(f"-f {path}: {error.strerror}", console.EXIT_SOURCE)


async def _fetch_schema(client: Client, topic: str, spec: str | None) -> Schema | None:
    """Return the schema that the user asked for; "auto" is the topic's latest one."""
    if spec is None:
        return None
    if spec == "auto":
        schema: Schema = (await client.get_schema(topic)).schema
        return schema
    return parse_message_schema(spec)


def parse_message_schema(spec: str) -> Schema | None:
    """Parse TYPE[:FILE]; returns None for plain bytes. Raises FilterError."""
    schema: Schema = schema_of(spec)
    return None if schema.type == schema.Type.Value("None") else schema


def is_bare_json(schema: Schema) -> bool:
    """Return whether a schema is JSON without a definition. Brokers do not register such schemas."""
    return schema.type == schema.Json and not schema.schema_data


class Pace:
    """Limits the rate to `rate` messages per second."""

    def __init__(self, rate: float) -> None:
        self._step = 1 / rate
        self._next = 0.0

    async def wait(self) -> None:
        """Wait until the next message is due."""
        import asyncio

        now = time.monotonic()
        self._next = self._next or now
        self._next = max(self._next, now - self._step)  # after a delay, catch up by one message at most
        if self._next > now:
            await asyncio.sleep(self._next - now)
        self._next += self._step


class Report:
    """Counts sent messages, and prints them. `code` is the exit code, `began` when sending began."""

    def __init__(self, output: Output, quiet: bool) -> None:
        self.code = 0
        self.began = time.perf_counter()
        self._output = output
        self._quiet = quiet
        self._ends: dict[str, tuple[str, str]] = {}  # topic -> its first and last message id
        self._counts: dict[str, int] = {}
        self._duplicates = self._failed = self._failed_sends = 0
        self._broken: OSError | None = None
        self._has_progress = sys.stderr.isatty() and not quiet
        self._next = self.began + 1

    def add(self, result: SendResult) -> None:
        """Add the result of a send."""
        if result.error is not None:
            self._failed += result.count
            self._failed_sends += 1
            self.code = self.code or console.find_code(result.error)
            if self._failed_sends <= _MAX_REPORTED:
                console.warn(f"sequence id {result.sequence_id}: {result.error}")
            return
        if result.entry < 0:  # the receipt of a duplicate
            self._duplicates += result.count
        self._counts[result.topic] = self._counts.get(result.topic, 0) + result.count
        first, last = message_id(result, 0), message_id(result, result.count - 1)
        self._ends[result.topic] = self._ends.get(result.topic, (first,))[0], last
        if self._output != "summary" and not self._quiet and self._broken is None:
            try:
                for index in range(result.count):
                    self._print_id(result, index)
                sys.stdout.flush()
            except OSError as error:  # `progress` raises it: here it would look like a connection error
                self._broken = error

    def _print_id(self, result: SendResult, index: int) -> None:
        id_ = message_id(result, index)
        if self._output == "id":
            sys.stdout.write(id_ + "\n")
            return
        from pulsarctl_wire.render.jsonl import json_line

        record: dict[str, Any] = {
            "topic": result.topic,
            "id": id_,
            "ledger": result.ledger,
            "entry": result.entry,
            "batch_index": index if result.batched else None,
            "sequence_id": result.sequence_id + index,
            "duplicate": result.entry < 0,
            "latency_ns": result.latency_ns,
        }
        sys.stdout.flush()
        sys.stdout.buffer.write(json_line(record))

    def progress(self) -> None:
        """Show the progress, once a second, on a terminal. Raises OSError if the output failed."""
        if self._broken is not None:
            raise self._broken
        now = time.perf_counter()
        if self._has_progress and now > self._next:
            self._next = now + 1
            count = sum(self._counts.values())
            sys.stderr.write(f"\r{count} messages, {count / (now - self.began):,.0f}/s ")
            sys.stderr.flush()

    def close(self, pending: int, unsent: int) -> None:
        """Print the summary. `pending` messages were sent but have no receipt, `unsent` were not sent."""
        seconds = time.perf_counter() - self.began
        if self._has_progress and self._next > self.began + 1:
            sys.stderr.write("\r\x1b[K")
        if self._failed > self._failed_sends or self._failed_sends > _MAX_REPORTED:
            console.warn(f"{self._failed} messages failed")
        if unsent:
            console.warn(f"{unsent} messages were not sent")
        if pending:
            console.warn(f"{pending} messages have no receipt: they may or may not be stored")
        if self._output != "summary" or self._quiet:
            sys.stdout.flush()
            return
        for topic, (first, last) in sorted(self._ends.items()):
            count = self._counts[topic]
            rate = f", {count / seconds:,.0f}/s" if count > 1 else ""
            ids = first if first == last else f"{first} … {last}"
            text = f"{count} {'message' if count == 1 else 'messages'} to {topic}: {ids}"
            sys.stdout.write(f"{clean(text)}, {human_time(int(seconds * 1e9))}{rate}\n")
        if self._duplicates:
            console.warn(f"{self._duplicates} of them are duplicates by sequence id, not stored again")
        sys.stdout.flush()


def message_id(result: SendResult, index: int) -> str:
    """Return the id of message `index` of a send."""
    from pulsarctl_wire.wire.names import id_text, partition_index

    ids = [result.first, (result.ledger, result.entry)] if result.first else [(result.ledger, result.entry)]
    return id_text(ids, partition_index(result.topic), index if result.batched else None)
