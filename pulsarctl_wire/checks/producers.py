"""Rules about producers: receipts, duplicates, fences, quotas."""

from typing import Any, ClassVar, Final

from pulsarctl_wire.checks.finding import Sighting
from pulsarctl_wire.checks.rule import Rule, about_answer
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.commands import ERROR_FIELDS
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError

_OVER_QUOTA: Final = {
    ServerError.ProducerBlockedQuotaExceededError,
    ServerError.ProducerBlockedQuotaExceededException,
}


class BacklogQuotaExceeded(Rule):
    """The topic's backlog has reached its quota, so the broker refuses producers.

    Wire: ERROR or SEND_ERROR with ProducerBlockedQuotaExceededError or ProducerBlockedQuotaExceededException.

    Advice: Find the subscription whose backlog grows, and consume or delete it, or raise the quota.

    Source: ServerError in PulsarApi.proto; policy producer_request_hold or producer_exception.
    """

    id = "backlog_quota_exceeded"
    on: ClassVar = {"ERROR": "refused", "SEND_ERROR": "refused"}

    def refused(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """ERROR or SEND_ERROR."""
        body: Any = frame.body
        error = getattr(body, ERROR_FIELDS[frame.type]) if body is not None else None
        if error in _OVER_QUOTA:
            self.found(state, about_answer(state, frame), [(seen, ServerError.Name(error))])
