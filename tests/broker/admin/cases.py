"""All cases of the admin API: importing this registers them."""

from broker.admin import brokers, messages, namespaces, policies, schemas, subscriptions, topics, transactions
from broker.admin.calls import CALLS

__all__ = [
    "CALLS",
    "brokers",
    "messages",
    "namespaces",
    "policies",
    "schemas",
    "subscriptions",
    "topics",
    "transactions",
]
