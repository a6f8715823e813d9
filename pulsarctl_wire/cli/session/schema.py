"""`pwire schema get` and `pwire schema put`: show and register schemas of a topic."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.command import Command, Group
from pulsarctl_wire.cli.options import OUTPUT
from pulsarctl_wire.cli.session.lookup import TOPIC, Output, say
from pulsarctl_wire.cli.session.verb import Session, parse_topic, verb
from pulsarctl_wire.cli.signature import argument, flag, option
from pulsarctl_wire.errors import BrokerError
from pulsarctl_wire.render.text import clean

if TYPE_CHECKING:
    from pulsarctl_wire.net.session.client import Client
    from pulsarctl_wire.wire.PulsarApi_pb2 import Schema

app = typer.Typer(
    name="schema", cls=Group, help="Show the schemas of a topic, or register one.", no_args_is_help=True
)


@dataclass(frozen=True, kw_only=True)
class GetOptions:
    """The options of `schema get`."""

    topic: str = TOPIC()
    version: str = option("--version N|latest", "Version of the schema; the first is 0.", default="latest")
    raw: bool = flag("--raw", "Write only the bytes of schema_data.")
    output: Output = OUTPUT(default="text")


async def get(session: Session, options: GetOptions) -> None:
    """Print a topic's schema: its type, name, version, properties and definition."""
    from pulsarctl_wire.wire.fields import as_base64, as_text
    from pulsarctl_wire.wire.PulsarApi_pb2 import Schema

    version = options.version
    is_number = version.isascii() and version.isdigit() and len(version) < 20 and int(version) < 2**63
    if version != "latest" and not is_number:
        console.fail(f"--version {version}: use latest, or a number from 0 on")
    if options.raw and options.output == "json":
        console.fail("schema get: --raw cannot be combined with -o json")
    name = parse_topic(options.topic)
    version_bytes = None if version == "latest" else int(version).to_bytes(8, "big")
    async with session.make_client() as client:
        body = await client.get_schema(name, version_bytes)
    schema = body.schema
    if options.raw:
        sys.stdout.buffer.write(schema.schema_data)
        return
    definition = _read_definition(schema)
    record = {
        "topic": name,
        "type": Schema.Type.Name(schema.type),
        "name": as_text(schema.name),
        "version": decode_version(body.schema_version),
        "properties": {as_text(pair.key): as_text(pair.value) for pair in schema.properties},
        "definition": definition,
        "schema_data": as_base64(schema.schema_data),
    }
    lines = [f"{key}: {record[key]}" for key in ("topic", "type", "name", "version")]
    lines += [f"property {key}: {value}" for key, value in record["properties"].items()]
    if definition is not None:
        lines += _format_definition(definition).split("\n")
    say(record, "\n".join(map(clean, lines)), options.output)


@dataclass(frozen=True, kw_only=True)
class PutOptions:
    """The options of `schema put`."""

    topic: str = TOPIC()
    schema: str = argument(
        "TYPE[:FILE]",
        "As for produce --schema: string, int64, json:FILE, avro:FILE, protobuf:FILE:MESSAGE, keyvalue:K,V …",
    )
    output: Output = OUTPUT(default="text")


async def put(session: Session, options: PutOptions) -> None:
    """Register a schema, unless the topic already has it, and print its version.

    All partitions share a topic's schemas. A topic that does not exist is created, as by a producer.
    """
    from pulsarctl_wire.views import parse_schema
    from pulsarctl_wire.wire.names import partition_name
    from pulsarctl_wire.wire.PulsarApi_pb2 import Schema

    name = parse_topic(options.topic)
    try:
        schema = parse_schema(options.schema)
    except ValueError as error:
        console.fail(str(error))
    kind = Schema.Type.Name(schema.type)
    if kind == "None":
        console.fail(f"{options.schema} is not a schema: topics have none by default")
    async with session.make_client() as client:
        target = partition_name(name, 0) if await client.count_partitions(name) else name
        version = decode_version(await _register(client, target, schema))
    record = {"topic": name, "type": kind, "version": version}
    say(record, clean(f"{name}: {kind}, version {version}"), options.output)


async def _register(client: Client, topic: str, schema: Schema) -> bytes:
    """Register `schema`; returns its version. Raises SessionError."""
    from pulsarctl_wire.net.session.producer import Producer
    from pulsarctl_wire.net.session.send_queue import ProducerOptions
    from pulsarctl_wire.wire.commands import build_command

    async def attempt() -> bytes:
        link = await client.open_link(await client.lookup(topic))
        body = (await link.request(build_command("GET_OR_CREATE_SCHEMA", topic=topic, schema=schema))).body
        version: bytes = body.schema_version
        return version

    try:
        return await client.retry(attempt, f"schema of {topic}")
    except BrokerError as error:
        if error.code != "TopicNotFound":
            raise
    # the broker knows only topics that a client has opened
    producer = Producer(client, topic, ProducerOptions(schema=schema), lambda sent: None)
    await producer.open()
    try:
        return await client.retry(attempt, f"schema of {topic}")
    finally:
        await producer.close()


def decode_version(version: bytes) -> int | str | None:
    """Return a schema version as a number; as hex digits if it does not have 8 bytes; None if it is empty."""
    if len(version) == 8:
        return int.from_bytes(version, "big")
    return version.hex() or None


def _read_definition(schema: Schema) -> Any:
    """Return the definition in a schema: JSON if possible, else text or hex digits; None if it is empty."""
    from pulsarctl_wire.wire.PulsarApi_pb2 import Schema as Types

    data = schema.schema_data
    if schema.type == Types.KeyValue:
        size = int.from_bytes(data[:4], "big", signed=True)
        key, value = data[4 : 4 + max(size, 0)], data[8 + max(size, 0) :]
        return {"key": _parse_definition(key), "value": _parse_definition(value)}
    return _parse_definition(data)


def _parse_definition(data: bytes) -> Any:
    if not data:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data.hex()
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _format_definition(definition: Any) -> str:
    return definition if isinstance(definition, str) else json.dumps(definition, indent=2, ensure_ascii=False)


app.command("get", cls=Command)(verb(get))
app.command("put", cls=Command)(verb(put))
