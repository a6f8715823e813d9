"""Short explanations of the broker's error codes, for error messages.

Sources: the broker's mapping of its exceptions to codes, and each code as observed on 4.0.8.
"""

from typing import Final

from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError

MEANINGS: Final = {
    "UnknownError": "the cause is only in the broker's log",
    "MetadataError": "metadata is unavailable, a regular expression is invalid, or a consumer is unknown",
    "PersistenceError": "the entry could not be stored; a retry may succeed",
    "AuthenticationError": "the credentials are missing, wrong or expired",
    "AuthorizationError": "the role of these credentials lacks the permission",
    "ConsumerBusy": "an exclusive consumer, another subscription type, or the limit of consumers",
    "ServiceNotReady": "the broker does not own the topic, does not know the listener, or is starting",
    "ProducerBlockedQuotaExceededError": "the backlog quota is exceeded; its policy makes producers wait",
    "ProducerBlockedQuotaExceededException": "the backlog quota is exceeded; its policy refuses producers",
    "ChecksumError": "the entry's bytes do not match its CRC32-C",
    "UnsupportedVersionError": "the client's protocol version is too old for this",
    "TopicNotFound": "no such topic, namespace, partition or schema, and it is not created automatically",
    "SubscriptionNotFound": "no such subscription, and it is not created automatically",
    "ConsumerNotFound": "no such consumer on this connection",
    "TooManyRequests": "lookups are throttled; send fewer",
    "TopicTerminatedError": "the topic was terminated; it is read-only",
    "ProducerBusy": "the name is taken, the topic has an exclusive producer, or the limit of producers",
    "InvalidTopicName": "this is not a valid topic name",
    "IncompatibleSchema": "the schema is not compatible with the topic's schemas",
    "ConsumerAssignError": "key ranges are missing, reversed or overlap with another consumer's",
    "TransactionCoordinatorNotFound": "no coordinator here; transactions may be off, or it is starting",
    "InvalidTxnStatus": "the transaction has already ended, or is ending",
    "NotAllowedError": "a setting or a limit of the broker or the topic forbids it",
    "TransactionConflict": "another transaction has acknowledged this message",
    "TransactionNotFound": "no such transaction; it may have timed out",
    "ProducerFenced": "exclusive access is not available, or another producer took it",
}
"""ServerError's name -> what it means."""

FINAL: Final = frozenset(
    {
        *("AuthenticationError", "AuthorizationError", "TopicNotFound", "SubscriptionNotFound"),
        *("NotAllowedError", "IncompatibleSchema", "ProducerBusy", "ConsumerBusy", "ConsumerAssignError"),
        *("TransactionConflict", "TopicTerminatedError", "InvalidTopicName", "ProducerFenced"),
        *("UnsupportedVersionError", "ProducerBlockedQuotaExceededException", "InvalidTxnStatus"),
        *("ConsumerNotFound", "TransactionNotFound"),
    }
)
"""Codes for which a retry is useless. The others may be temporary."""

FINAL_LATER: Final = frozenset(
    {"TopicNotFound", "TopicTerminatedError", "ProducerFenced", "AuthorizationError", "AuthenticationError"}
)
"""Codes for which a retry is useless when a producer or consumer that was open is opened again."""


def error_name(code: int) -> str:
    """Return the name of ServerError number `code`, or "ServerError(code)" if it is unknown."""
    member = ServerError.DESCRIPTOR.values_by_number.get(code)
    return member.name if member else f"ServerError({code})"
