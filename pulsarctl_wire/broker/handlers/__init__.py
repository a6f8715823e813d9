"""The handler of each command that a connected client may send.

A handler gets the broker, the connection, the command's sub-message and the frame. It answers at once, or
returns a coroutine that does. What it raises is the answer: `Refused` becomes ERROR, `Violation` closes the
connection. The connection itself handles CONNECT, AUTH_RESPONSE, PING and PONG; any other command closes it.
"""

from collections.abc import Callable
from typing import Any, Final

from pulsarctl_wire.broker.clients.connection import Connection, Deferred
from pulsarctl_wire.broker.cluster.cluster import Broker
from pulsarctl_wire.broker.handlers import consumers, lookups, producers, schemas, transactions
from pulsarctl_wire.wire.commands import NUMBERS
from pulsarctl_wire.wire.frame import Frame

Handler = Callable[[Broker, Connection, Any, Frame], Deferred | None]

_BY_NAME: Final[dict[str, Handler]] = {
    "LOOKUP": lookups.lookup,
    "PARTITIONED_METADATA": lookups.get_partitioned_metadata,
    "GET_TOPICS_OF_NAMESPACE": lookups.get_topics,
    "WATCH_TOPIC_LIST": lookups.watch,
    "WATCH_TOPIC_LIST_CLOSE": lookups.close_watch,
    "GET_SCHEMA": schemas.get_schema,
    "GET_OR_CREATE_SCHEMA": schemas.get_or_create_schema,
    "PRODUCER": producers.open_producer,
    "SEND": producers.send,
    "CLOSE_PRODUCER": producers.close_producer,
    "SUBSCRIBE": consumers.subscribe,
    "FLOW": consumers.flow,
    "ACK": consumers.ack,
    "REDELIVER_UNACKNOWLEDGED_MESSAGES": consumers.redeliver,
    "SEEK": consumers.seek,
    "UNSUBSCRIBE": consumers.unsubscribe,
    "CLOSE_CONSUMER": consumers.close_consumer,
    "CONSUMER_STATS": consumers.get_consumer_stats,
    "GET_LAST_MESSAGE_ID": consumers.get_last_message_id,
    "TC_CLIENT_CONNECT_REQUEST": transactions.connect,
    "NEW_TXN": transactions.begin,
    "ADD_PARTITION_TO_TXN": transactions.add_partition,
    "ADD_SUBSCRIPTION_TO_TXN": transactions.add_subscription,
    "END_TXN": transactions.end,
    "END_TXN_ON_PARTITION": transactions.end_on_partition,
    "END_TXN_ON_SUBSCRIPTION": transactions.end_on_subscription,
}

HANDLERS: Final[dict[int, Handler]] = {NUMBERS[name]: handler for name, handler in _BY_NAME.items()}
"""Type number -> handler. CONNECT, AUTH_RESPONSE, PING and PONG are the connection's own."""
