"""What is wrong with captured or live traffic: rules, each a class with its documentation."""

from typing import Final

from pulsarctl_wire.checks import acks, auth, flow, liveness, lookups, payloads, peers, producers
from pulsarctl_wire.checks.rule import Rule

RULES: Final[tuple[type[Rule], ...]] = (
    peers.TlsClientOnPlainPort,
    peers.PlainClientOnTlsPort,
    peers.HttpClientOnBinaryPort,
    peers.ProxyHeaderRefused,
    payloads.ResponseOverFrameLimit,
    payloads.MessageOverFrameLimit,
    payloads.SendCorruptAtSource,
    payloads.SendCorruptInTransit,
    payloads.SendCorrupt,
    payloads.MessageCorrupt,
    payloads.ClientDiscardedMessage,
    payloads.BadUncompressedSize,
    payloads.PayloadDoesNotDecompress,
    payloads.UndecodableMetadata,
    flow.PermitLeak,
    flow.ApplicationNotReceiving,
    flow.PermitsOverGranted,
    flow.PermitOverflow,
    flow.BlockedOnUnacked,
    acks.AckHole,
    acks.PartialAcksIgnored,
    acks.EndlessRedelivery,
    producers.ReceiptMismatch,
    producers.SendUnanswered,
    producers.DroppedAsDuplicate,
    producers.StoredTwice,
    producers.ProducerFenced,
    producers.BacklogQuotaExceeded,
    lookups.ProducerOnPartitionedParent,
    lookups.RedirectLoop,
    lookups.AdvertisedAddressUnreachable,
    lookups.LookupThrottled,
    liveness.ClientSilent,
    liveness.BrokerSilent,
    auth.AuthChallengeUnanswered,
    auth.AuthRefreshRefused,
    auth.TokenExpired,
    auth.AuthenticationRefused,
    auth.NotAuthorized,
)
"""All rules, in the order of docs/doctor.md."""
