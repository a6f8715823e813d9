"""Single messages in the admin API: the payload is the body, the rest is in headers.

A message is an entry here, as in Pulsar: a batch counts as one, and is returned as a whole.
"""

import json
from base64 import b64encode
from datetime import datetime, timezone
from typing import Any, Final

from pulsarctl_wire.broker.admin.base import MAX_LONG, TOPIC, Answer, Problem, Request, Route, parse_integer
from pulsarctl_wire.broker.admin.topics import id_fields
from pulsarctl_wire.broker.storage.log import Entry
from pulsarctl_wire.broker.topics.persistent import PersistentTopic
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.PulsarApi_pb2 import CompressionType, MessageMetadata

_TIMES: Final = ("publish_time", "event_time", "deliver_at_time")
_VALUES: Final = (
    *("null_value", "producer_name", "sequence_id", "replicated_from", "partition_key", "uncompressed_size"),
    *("encryption_algo", "partition_key_b64_encoded", "marker_type", "txnid_least_bits", "txnid_most_bits"),
    *("highest_sequence_id", "uuid", "num_chunks_from_msg", "total_chunk_msg_size", "chunk_id"),
    "null_partition_key",
)
_BYTES: Final = ("encryption_param", "schema_version", "ordering_key")
"""Fields of the metadata that are headers, by how their values are shown."""


def format_time(time_ms: int) -> str:
    """Return a time as Pulsar writes it: 2026-01-02T03:04:05.006Z, without zeros at the end."""
    try:
        time = datetime.fromtimestamp(time_ms / 1000, timezone.utc).replace(microsecond=time_ms % 1000 * 1000)
    except (ValueError, OverflowError, OSError):
        return str(time_ms)
    text = time.strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{time_ms % 1000:03}".rstrip("0").rstrip(".")
    return f"{text}{fraction}Z"


def _header_value(value: Any) -> str:
    """Return a value as the text of a header."""
    if isinstance(value, bool):
        return str(value).lower()
    text = as_text(value) if isinstance(value, (str, bytes)) else str(value)
    return "".join(char if char.isprintable() else " " for char in text)


def _headers(topic: PersistentTopic, entry: Entry, metadata: MessageMetadata) -> dict[str, str]:
    pairs = {as_text(pair.key): as_text(pair.value) for pair in metadata.properties}
    headers = {
        "Message-ID": ":".join(map(str, topic.log.position(entry.index))),
        "PROPERTY": json.dumps(pairs, separators=(",", ":")),
        "Is-Encrypted": _header_value(bool(metadata.encryption_keys)),
    }
    broker_metadata = entry.broker_metadata
    if broker_metadata is not None and broker_metadata.HasField("broker_timestamp"):
        headers["Broker-Entry-METADATA-timestamp"] = format_time(broker_metadata.broker_timestamp)
    if broker_metadata is not None and broker_metadata.HasField("index"):
        headers["Broker-Entry-METADATA-index"] = str(broker_metadata.index)
    if metadata.HasField("num_messages_in_batch"):
        headers["num-batch-message"] = str(metadata.num_messages_in_batch)
        headers["batch-size"] = str(len(entry.data) - metadata.ByteSize())
    if metadata.HasField("num_chunks_from_msg"):
        headers["PROPERTY-TOTAL-CHUNKS"] = str(metadata.num_chunks_from_msg)
        headers["PROPERTY-CHUNK-ID"] = str(metadata.chunk_id)
    if metadata.HasField("compression"):
        headers["compression"] = CompressionType.Name(metadata.compression)
    kinds = (("", _TIMES, format_time), ("", _VALUES, _header_value), ("Base64-", _BYTES, _base64))
    for prefix, fields, show in kinds:
        for field in fields:
            if metadata.HasField(field):  # type: ignore[arg-type]
                headers[prefix + field.replace("_", "-")] = show(getattr(metadata, field))
    for key in metadata.encryption_keys:
        headers["Base64-encryption-keys"] = _base64(key.SerializeToString())
    if metadata.HasField("txnid_most_bits"):
        headers["txn-aborted"] = _header_value(topic.is_aborted(entry.index, metadata))
    headers["txn-uncommitted"] = _header_value(entry.index >= topic.readable_end)
    return {f"X-Pulsar-{name}": value for name, value in headers.items()}


def _base64(value: bytes) -> str:
    return b64encode(value).decode()


def _payload(entry: Entry, metadata: MessageMetadata) -> bytes:
    """Return the payload, decompressed unless it is encrypted. Raises Problem."""
    if not metadata.compression or metadata.encryption_keys:
        return entry.payload
    from pulsarctl_wire.wire.payload import PayloadError, PayloadTooLarge, decompress

    try:
        return decompress(metadata.compression, entry.payload, metadata.uncompressed_size)
    except (PayloadError, PayloadTooLarge, MemoryError) as error:
        raise Problem(500, str(error)) from None


def _message(topic: PersistentTopic, entry: Entry | None) -> Answer:
    if entry is None:
        raise Problem(404, "Message not found")
    metadata = entry.metadata
    if metadata is None:
        raise Problem(500, "The metadata of the message is not readable")
    return Answer(200, _payload(entry, metadata), _headers(topic, entry, metadata))


# -- finding messages


async def peek(request: Request) -> Answer:
    """Return the nth message (from 1) of a backlog. A missing subscription is created, as in Pulsar."""
    request.refuse_partitioned("Peek messages on a partitioned topic is not allowed")
    topic = await request.load_persistent_topic("Peek messages")
    number = request.get_number("number")
    if number < 1:
        raise Problem(400, "Messages are numbered from 1")
    name = request.parts["subscription"]
    subscription = topic.subscriptions.get(name)
    if subscription is None:
        subscription = topic.create_subscription(name, topic.log.first)
        await topic.journal.sync()
    index = subscription.find_nth_open(number)
    return _message(topic, None if index is None else await topic.log.load_entry(index, topic.scheduler))


async def get_by_id(request: Request) -> Answer:
    """Return a message by its ledger and entry."""
    request.refuse_partitioned("GetMessageById is not allowed on partitioned-topic")
    topic = await request.load_persistent_topic("GetMessageById")
    ledger, number = request.get_number("ledger"), request.get_number("entry")
    index, is_stored = topic.log.locate(ledger, number)
    if not any(item.id == ledger for item in topic.log.ledgers):
        raise Problem(404, "Message id not found")
    if not is_stored or index >= topic.log.stored_end:
        last = ":".join(map(str, topic.log.position_before(topic.log.stored_end)))
        raise Problem(500, f"LastConfirmedEntry is {last} when reading entry {number}")
    return _message(topic, await topic.log.load_entry(index, topic.scheduler))


async def examine(request: Request) -> Answer:
    """Return a message by its number, from 1, from the start or the end of a topic."""
    request.refuse_partitioned(
        "Examine messages on a partitioned topic is not allowed, "
        "please try examine message on specific topic partition"
    )
    topic = await request.load_persistent_topic("Examine messages")
    number = max(parse_integer(request.query.get("messagePosition", "1"), MAX_LONG), 1)
    first, stop = topic.log.first, topic.log.stored_end
    if stop <= first:
        raise Problem(412, "Could not examine messages due to the total message is zero")
    is_from_start = request.query.get("initialPosition") == "earliest"
    index = min(first + number - 1, stop - 1) if is_from_start else max(stop - number, first)
    return _message(topic, await topic.log.load_entry(index, topic.scheduler))


async def find_by_time(request: Request) -> Answer:
    """Return the id of the first message not older than a time, else of the next one to be sent."""
    request.refuse_partitioned(
        "Get message ID by timestamp on a partitioned topic is not allowed, "
        "please try do it on specific topic partition"
    )
    topic = await request.load_persistent_topic("Get message ID by timestamp")
    index = await topic.find_index_at(request.get_number("timestamp"))
    return Answer(200, id_fields(topic.log.position(index), topic.partition))


async def get_last_id(request: Request) -> Answer:
    """Return the id of the last message."""
    topic = await request.load_persistent_topic("Get last message ID")
    entry = await topic.read_last_entry()
    if entry is None:
        return Answer(200, id_fields(topic.log.position_before(topic.log.first), topic.partition))
    fields = id_fields(topic.log.position(entry.index), topic.partition)
    metadata = entry.metadata
    if metadata is not None and metadata.HasField("num_messages_in_batch"):
        fields |= {"batchIndex": metadata.num_messages_in_batch - 1}
        fields |= {"outstandingAcksInSameBatch": 0, "originalBatchSize": 0}
    return Answer(200, fields)


async def get_size_from(request: Request) -> Answer:
    """Return an estimate of the bytes of all messages after a given one."""
    request.refuse_partitioned("Get backlog size on a partitioned topic is not allowed")
    topic = await request.load_persistent_topic("Get backlog size")
    fields = request.read_fields()
    ids = [fields.get(key) for key in ("ledgerId", "entryId")]
    if not all(isinstance(number, int) and -1 <= number <= MAX_LONG for number in ids):
        raise Problem(400, "A message id is expected")
    index, is_stored = topic.log.locate(int(ids[0] or 0), int(ids[1] or 0))
    return Answer(200, topic.log.estimate_size_from(index + is_stored))


ROUTES: Final[tuple[Route, ...]] = (
    ("GET", f"{TOPIC}/subscription/{{subscription}}/position/{{number}}", peek),
    ("GET", f"{TOPIC}/ledger/{{ledger}}/entry/{{entry}}", get_by_id),
    ("GET", f"{TOPIC}/examinemessage", examine),
    ("GET", f"{TOPIC}/messageid/{{timestamp}}", find_by_time),
    ("GET", f"{TOPIC}/lastMessageId", get_last_id),
    ("PUT", f"{TOPIC}/backlogSize", get_size_from),
)
