"""What is wrong with captured or live traffic: rules, each a class with its documentation."""

from typing import Final

from pulsarctl_wire.checks import acks, flow, payloads, producers
from pulsarctl_wire.checks.rule import Rule

RULES: Final[tuple[type[Rule], ...]] = (
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
)
"""All rules, in the order of docs/doctor.md."""
