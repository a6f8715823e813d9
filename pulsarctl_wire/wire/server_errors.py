"""What the error codes of a broker mean, in a few words for who meets one.

Sources: the broker's mapping of its exceptions to codes, and each code as observed on 4.0.8.
"""

from typing import Final

from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError

MEANINGS: Final = {
    "UnknownError": "nothing more is known; the broker's log has it",
    "MetadataError": "metadata is out of reach, a pattern is no regular expression, or a consumer is unknown",
    "PersistenceError": "the entry could not be stored; sending it again may succeed",
    "AuthenticationError": "the credentials are missing, wrong or expired",
    "AuthorizationError": "the role of these credentials lacks the permission",
    "ConsumerBusy": "another exclusive consumer, another subscription type, or a limit of consumers",
    "ServiceNotReady": "the broker does not own the topic, does not know the listener, or is starting",
    "ProducerBlockedQuotaExceededError": "the backlog quota is exceeded and its policy holds producers back",
    "ProducerBlockedQuotaExceededException": "the backlog quota is exceeded and its policy refuses producers",
    "ChecksumError": "the entry arrived with other bytes than its CRC32-C was taken of",
    "UnsupportedVersionError": "the client's protocol version is too old for this",
    "TopicNotFound": "no such topic, namespace, partition or schema, and nothing creates it",
    "SubscriptionNotFound": "no such subscription, and nothing creates it",
    "ConsumerNotFound": "no such consumer on this connection",
    "TooManyRequests": "lookups are throttled; ask more slowly",
    "TopicTerminatedError": "the topic was ended for good; it can be read only",
    "ProducerBusy": "the name is taken, an exclusive producer holds the topic, or a limit of producers",
    "InvalidTopicName": "no topic may have this name",
    "IncompatibleSchema": "the topic's schemas do not allow this one",
    "ConsumerAssignError": "key ranges are missing, reversed or overlap with another consumer's",
    "TransactionCoordinatorNotFound": "no coordinator here; transactions may be off, or it is starting",
    "InvalidTxnStatus": "the transaction has ended, or is ending, already",
    "NotAllowedError": "a setting or a limit of the broker or the topic forbids it",
    "TransactionConflict": "another transaction has acknowledged this message",
    "TransactionNotFound": "no such transaction; it may have timed out",
    "ProducerFenced": "exclusive access is not to be had, or another producer has taken it",
}
"""ServerError's name -> its meaning."""

FINAL: Final = frozenset(
    {
        *("AuthenticationError", "AuthorizationError", "TopicNotFound", "SubscriptionNotFound"),
        *("NotAllowedError", "IncompatibleSchema", "ProducerBusy", "ConsumerBusy", "ConsumerAssignError"),
        *("TransactionConflict", "TopicTerminatedError", "InvalidTopicName", "ProducerFenced"),
        *("UnsupportedVersionError", "ProducerBlockedQuotaExceededException", "InvalidTxnStatus"),
        *("ConsumerNotFound", "TransactionNotFound"),
    }
)
"""Codes that trying again does not help against; the others may pass."""

FINAL_LATER: Final = frozenset(
    {"TopicNotFound", "TopicTerminatedError", "ProducerFenced", "AuthorizationError", "AuthenticationError"}
)
"""The same, for a producer or consumer that was open before."""


def error_name(code: int) -> str:
    """The name of ServerError number `code`."""
    known = ServerError.DESCRIPTOR.values_by_number.get(code)
    return known.name if known else f"ServerError({code})"
