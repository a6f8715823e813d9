"""Requests with their answers, by the rules of `wire/session.py`, in windows instead of state tables.

    publishes   SEND with SEND_RECEIPT or SEND_ERROR: first in, first out, among those with one key
    requests    all else: an answer belongs to the newest request of its id that has none yet

Both give one row an answer: the columns of `ASKED` say what the request was, those of `ANSWERED` what
came of it, `latency_ns` how long it took. Frames are compared with frames of their own key alone, and no
table is joined with itself: it costs no more where keys are used again and again.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from pulsarctl_wire.spark.reports.base import CAPTURED, messages, size
from pulsarctl_wire.wire.commands import ANSWERS, NAMES, REQUESTS

ASKED: Final = (
    *("time_ns", "command", "connection", "to_broker", "file", "packet_offset", "topic", "subscription"),
    *("producer", "request_id", "producer_id", "sequence_id", "bytes", "messages"),
)
"""Columns that tell what a request was."""

ANSWERED: Final = {
    "answered_ns": "time_ns",
    **{"answer": "command", "error": "error", "ledger_id": "ledger_id", "entry_id": "entry_id"},
}
"""Columns that tell its answer -> the columns of the answer's frame."""

_SEND_KEY: Final = ("connection", "producer_id", "_opening", "sequence_id")
_QUEUE: Final = 2_048  # rows of one key that are looked back at
_BEFORE: Final = (Window.unboundedPreceding, -1)
_SO_FAR: Final = (Window.unboundedPreceding, 0)
_ALL: Final = (Window.unboundedPreceding, Window.unboundedFollowing)

_FAMILIES: Final = {NAMES[number]: how.family for number, how in REQUESTS.items()} | {
    NAMES[number]: pairs[0][0] for number, pairs in ANSWERS.items()
}
"""Command -> the family of its ids; ERROR answers "request" and, if it finds nothing there, "lookup"."""

_KEYS: Final = {NAMES[number]: how.key for number, how in REQUESTS.items() if how.key != "request_id"} | {
    NAMES[number]: pairs[0][1] for number, pairs in ANSWERS.items() if pairs[0][1] != "request_id"
}
"""Command -> the field that pairs it, where that is no request id."""

_PAIRS: Final = [
    *(f"{NAMES[number]} {NAMES[answer]}" for number, how in REQUESTS.items() for answer in how.answers),
    *(
        f"{asks} {gives}"
        for asks in ("CONNECT", "AUTH_RESPONSE")
        for gives in ("CONNECTED", "AUTH_CHALLENGE")
    ),
    *("CONNECT ERROR", "AUTH_RESPONSE ERROR", "AUTH_CHALLENGE AUTH_RESPONSE"),
]
"""Which request a frame may answer: "REQUEST ANSWER"."""

_HANDSHAKE: Final = ["CONNECT", "CONNECTED", "AUTH_CHALLENGE", "AUTH_RESPONSE"]


def publishes(frames: DataFrame, asked: Sequence[str] = ASKED) -> DataFrame:
    """Each SEND that was answered, with its SEND_RECEIPT or SEND_ERROR; of `ASKED` only what is wanted."""
    command = F.col("command")
    rows = _prepared(frames, ["SEND", "SEND_RECEIPT", "SEND_ERROR"]).withColumn("asks", command == "SEND")
    return _fifo(_in_their_openings(rows, frames), _SEND_KEY, asked)


def requests(frames: DataFrame) -> DataFrame:
    """Each request other than SEND that was answered, with its answer."""
    pings = _prepared(frames, ["PING", "PONG"]).withColumn("asks", F.col("command") == "PING")
    side = F.col("to_broker") == F.col("asks")
    return _by_id(frames).unionByName(_fifo(pings.withColumn("_side", side), ["connection", "_side"]))


def _prepared(frames: DataFrame, commands: Sequence[str]) -> DataFrame:
    """Frames of some commands, cut ones too, with the columns that pairing and its reports need."""
    if "SEND" in commands:
        entry = {
            "producer": F.col("metadata.producer_name"),
            "messages": messages(),
            "chunked": F.coalesce(F.col("metadata.num_chunks_from_msg"), F.lit(1)) > 1,
        }
    else:  # metadata costs most of the time that reading takes
        entry = {"producer": F.lit(None).cast("string"), "messages": F.lit(0), "chunked": F.lit(False)}
    return frames.where(F.col("command").isin(*commands)).select(
        *(name for name in ASKED if name not in (*entry, "bytes")),
        *("stream_offset", "error", "ledger_id", "entry_id", "command_json"),
        *(column.alias(name) for name, column in entry.items()),
        size().alias("bytes"),
    )


def _fifo(rows: DataFrame, key: Sequence[str], asked: Sequence[str] = ASKED) -> DataFrame:
    """Rows that ask with rows that answer: the n-th with the n-th of their key.

    Answers that find nothing waiting are passed over, as a queue would do it: they are those with which the
    balance of both falls lower than ever. What a balance is above that is how many wait. The chunks of a
    message share a key, and one that was not captured would shift all others: they are paired only if there
    are as many answers.
    """
    order = Window.partitionBy(*key).orderBy(*CAPTURED)
    asks = F.col("asks")
    balance = F.sum(F.when(asks, 1).otherwise(-1))
    request = F.when(
        asks, F.struct(*asked, "chunked")
    )  # what answers have in these columns need not be moved
    rows = rows.select(*key, *CAPTURED, "asks", request.alias("_asks"), *_answering()).withColumns(
        {
            "_balance": balance.over(order.rowsBetween(*_SO_FAR)),
            "_left": balance.over(order.rowsBetween(*_ALL)),
            "_alone": F.count("_asks").over(order.rowsBetween(*_ALL)) == 1,
        }
    )
    # nearly always a key is used once, and what an answer answers is the row before
    queue = F.collect_list(F.when(~F.col("_alone"), F.col("_asks"))).over(order.rowsBetween(-_QUEUE, -1))
    lowest = F.coalesce(F.min("_balance").over(order.rowsBetween(*_BEFORE)), F.lit(0))
    rows = rows.withColumns(
        {
            "_waiting": F.col("_balance") + 1 - F.least(F.lit(0), lowest),
            "_queue": queue,
            "_before": F.lag("_asks").over(order),
        }
    ).where("not asks and _waiting > 0")
    oldest = F.when(F.col("_alone"), F.col("_before")).otherwise(
        F.try_element_at("_queue", -F.greatest(F.lit(1), F.col("_waiting")).cast("int"))
    )
    pairs = rows.withColumn("_request", oldest).where(
        "_request is not null and (not _request.chunked or _left = 0)"
    )
    return _paired(pairs, asked)


def _answering() -> list[Column]:
    return [F.col(name).alias(alias) for alias, name in ANSWERED.items()]


def _paired(pairs: DataFrame, asked: Sequence[str] = ASKED) -> DataFrame:
    """Rows of `_request` and `ANSWERED` as the columns that this module promises."""
    request = F.col("_request")
    latency = F.col("answered_ns") - request["time_ns"]
    return pairs.select(
        *(request[name].alias(name) for name in asked), *ANSWERED, latency.alias("latency_ns")
    )


def _in_their_openings(rows: DataFrame, frames: DataFrame) -> DataFrame:
    """Rows with `_opening`: how often their producer was reopened before.

    What was sent before a producer was closed is not answered any more once it is open again, and its
    sequence ids begin anew. Openings are few: they are broadcast.
    """
    opened = (
        frames.where("command in ('PRODUCER', 'PRODUCER_SUCCESS')")
        .groupBy("connection", "request_id")
        .agg(
            F.max("producer_id").alias("producer_id"),
            F.min(F.when(F.col("command") == "PRODUCER_SUCCESS", F.col("time_ns"))).alias("from_ns"),
        )
        .where("producer_id is not null and from_ns is not null")
    )
    closed = frames.where("command = 'CLOSE_PRODUCER'")
    order = Window.partitionBy("connection", "producer_id").orderBy("from_ns")
    reopened = (
        opened.selectExpr("connection", "producer_id", "from_ns", "true opened")
        .unionByName(closed.selectExpr("connection", "producer_id", "time_ns from_ns", "false opened"))
        .withColumn("again", ~F.lag("opened").over(order))
        .where("opened and again")
        .select(
            F.col("connection").alias("_connection"),
            F.col("producer_id").alias("_producer"),
            F.col("from_ns"),
            F.lead("from_ns").over(order).alias("until_ns"),
            F.row_number().over(order).alias("_opening"),
        )
    )
    here = (F.col("connection") == F.col("_connection")) & (F.col("producer_id") == F.col("_producer"))
    then = (F.col("time_ns") >= F.col("from_ns")) & (
        F.col("until_ns").isNull() | (F.col("time_ns") < F.col("until_ns"))
    )
    joined = rows.join(F.broadcast(reopened), here & then, "left")
    return joined.withColumn("_opening", F.coalesce("_opening", F.lit(0)))


def _by_id(frames: DataFrame) -> DataFrame:
    """Requests and answers that are paired by an id, or by being the only one at a time (the handshake).

    A request replaces one of the same id that still waits. An ERROR looks among the requests first, and
    among the lookups if it finds none.
    """
    rows = _tagged(_prepared(frames, (*_FAMILIES, *_HANDSHAKE)))
    order = Window.partitionBy("connection", "_group", "_key").orderBy(*CAPTURED)
    request = F.struct(*ASKED)
    mine, error = F.col("_family") == "request", F.col("command") == "ERROR"
    rows = rows.withColumn("_first", _waiting(order, mine, request))
    found = _answers(F.col("_first")) & mine
    rows = rows.withColumn("_found", F.coalesce(found, F.lit(False)))
    others = ~mine | (error & ~F.col("_found"))
    rows = rows.withColumn("_second", _waiting(order, others, request))
    late = _answers(F.col("_second")) & others
    rows = rows.withColumn(
        "_request", F.when(F.col("_found"), F.col("_first")).when(late, F.col("_second"))
    ).where("_request is not null")
    return _paired(rows.select("_request", *_answering()))


def _waiting(order: WindowSpec, mine: Column, request: Column) -> Column:
    """The request that waits when a row comes, among the rows that are `mine`; null command: none does."""
    nothing = F.struct(*(F.lit(None).alias(name) for name in ASKED))
    # a producer that waits for its turn is answered twice
    keeps = F.get_json_object("command_json", "$.producer_ready") == "false"
    answered = F.when(mine & ~F.coalesce(keeps, F.lit(False)), nothing)
    state = F.when(mine & F.col("asks"), request).otherwise(answered)
    return F.last(state, ignorenulls=True).over(order.rowsBetween(*_BEFORE))


def _answers(request: Column) -> Column:
    """Whether a row is an answer to `request`."""
    pair = F.concat_ws(" ", request["command"], F.col("command"))
    refresh = F.get_json_object("command_json", "$.challenge.auth_data") == "PulsarAuthRefresh"
    return ~F.col("asks") & pair.isin(_PAIRS) & ~F.coalesce(refresh, F.lit(False))


def _tagged(rows: DataFrame) -> DataFrame:
    """Rows with `_family` of their ids, `_key` among those, `_group` of families, and whether they ask."""
    command, unasked = F.col("command"), F.col("request_id") == -1
    family = F.create_map(*(F.lit(each) for pair in _FAMILIES.items() for each in pair))
    handshake = command.isin(_HANDSHAKE) | ((command == "ERROR") & unasked)
    key = reduce(
        lambda other, pair: F.when(command == pair[0], _json_number(pair[1])).otherwise(other),
        _KEYS.items(),
        F.col("request_id"),
    )
    listed = command.isin([NAMES[number] for number in REQUESTS])  # a broker may say them too, asking nothing
    rows = rows.withColumns(
        {
            "_family": F.when(handshake, F.lit("handshake")).otherwise(family[command]),
            "_key": F.when(handshake, F.lit(0)).otherwise(key),
            "asks": (listed & F.col("to_broker")) | command.isin("CONNECT", "AUTH_RESPONSE"),
        }
    ).where(F.col("_key").isNotNull() & (F.col("asks") | ~listed))
    challenges = rows.where("command in ('AUTH_CHALLENGE', 'AUTH_RESPONSE')").withColumns(
        {"_family": F.lit("challenge"), "asks": command == "AUTH_CHALLENGE"}
    )
    ids = F.col("_family").isin("request", "lookup")
    return rows.unionByName(challenges).withColumn(
        "_group", F.when(ids, F.lit("ids")).otherwise(F.col("_family"))
    )


def _json_number(name: str) -> Column:
    return F.get_json_object("command_json", f"$.{name}").try_cast("bigint")
