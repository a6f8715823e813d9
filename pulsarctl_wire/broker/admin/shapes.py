"""What the bodies of requests for policies must be."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pulsarctl_wire.broker.admin.base import MOST_INT, Problem, integer


class Shape(NamedTuple):
    """An object with these fields and defaults."""

    fields: dict[str, Any]
    check: Callable[[dict[str, Any]], Problem | None] | None = None
    """Why a value is refused, if it is."""

    def read(self, body: Any) -> Any:
        """The value; fields that are unknown are ignored. Raises Problem."""
        if not isinstance(body, dict):
            raise Problem(400, "An object is expected")
        value = {name: body.get(name, default) for name, default in self.fields.items()}
        for name, default in self.fields.items():
            wanted = (int, float) if isinstance(default, float) else type(default)
            fits = default is None or (value[name] is None and isinstance(default, str))
            strict = isinstance(value[name], bool) == isinstance(default, bool)
            if not fits and not (strict and isinstance(value[name], wanted)):
                raise Problem(400, f"{name} is not valid")
        value = {name: each for name, each in value.items() if each is not None}
        problem = self.check(value) if self.check is not None else None
        if problem is not None:
            raise problem
        return value


class Number(NamedTuple):
    """A number; `wrong` is the reason if it is negative."""

    wrong: str
    most: int = MOST_INT

    def read(self, body: Any) -> Any:
        """The value. Raises Problem."""
        if isinstance(body, str):
            try:
                body = integer(body, self.most)
            except Problem:
                raise Problem(400, "A number is expected") from None
        if isinstance(body, bool) or not isinstance(body, int) or abs(body) > self.most:
            raise Problem(400, "A number is expected")
        if body < 0:
            raise Problem(412, self.wrong)
        return body


class Truth(NamedTuple):
    """true or false; `default` if there is no body."""

    default: bool | None = None

    def read(self, body: Any) -> Any:
        """The value. Raises Problem."""
        body = self.default if body is None else body
        if not isinstance(body, bool):
            raise Problem(400, "true or false is expected")
        return body


class OneOf(NamedTuple):
    """One of these strings, or (`many`) a list of them; `unset` is as good as none."""

    values: tuple[str, ...]
    many: bool = False
    unset: str = ""

    def read(self, body: Any) -> Any:
        """The value. Raises Problem."""
        for each in body if self.many and isinstance(body, list) else [body]:
            if each not in self.values:
                raise Problem(400, f"Not one of {', '.join(self.values)}")
        return None if body == self.unset else body


RATE: Final = Shape(
    {
        "dispatchThrottlingRateInMsg": 0,
        "dispatchThrottlingRateInByte": 0,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": 0,
    }
)
NO_RATE: Final = {**RATE.fields, "ratePeriodInSecond": 1}
PUBLISH: Final = Shape({"publishThrottlingRateInMsg": -1, "publishThrottlingRateInByte": -1})
SUBSCRIBE: Final = Shape({"subscribeThrottlingRatePerConsumer": -1, "ratePeriodInSecond": 30})
NO_SUBSCRIBE: Final = {**SUBSCRIBE.fields, "subscribeThrottlingRatePerConsumer": 0}


def _check_retention(value: dict[str, Any]) -> Problem | None:
    time, size = value["retentionTimeInMinutes"], value["retentionSizeInMB"]
    if time < -1 or size < -1:
        return Problem(
            400, f"Invalid retention policy: {'time' if time < -1 else 'size'} limit must be >= -1"
        )
    if (time == 0) != (size == 0):
        return Problem(
            400,
            "Invalid retention policy: Setting a single time or size limit to 0 is invalid when one of the "
            "limits has a non-zero value. Use the value of -1 instead of 0 to ignore a specific limit. "
            "To disable retention both limits must be set to 0.",
        )
    return None


def _check_creation(value: dict[str, Any]) -> Problem | None:
    kind, partitions = value.get("topicType"), value.get("defaultNumPartitions") or 0
    why = ""
    if not value["allowAutoTopicCreation"]:
        return None
    if kind not in ("partitioned", "non-partitioned"):
        why = f"Unknown topic type [{kind or 'null'}]"
    elif kind == "partitioned" and (not isinstance(partitions, int) or partitions < 1):
        why = "[defaultNumPartitions] cannot be less than 1 for partition type."
    elif kind == "non-partitioned" and partitions:
        why = "[defaultNumPartitions] is not allowed to be set when the type is non-partition."
    text = "Invalid configuration for autoTopicCreationOverride. the detail is "
    return Problem(412, text + why) if why else None


def _check_persistence(value: dict[str, Any]) -> Problem | None:
    ensemble, write, ack = (value[f"bookkeeper{name}"] for name in ("Ensemble", "WriteQuorum", "AckQuorum"))
    if ensemble >= write >= ack >= 0:
        return None
    return Problem(400, f"Bookkeeper Ensemble ({ensemble}) >= WriteQuorum ({write}) >= AckQuorum ({ack})")


RETENTION: Final = Shape({"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}, _check_retention)
AUTO_TOPIC: Final = Shape(
    {"allowAutoTopicCreation": False, "topicType": "", "defaultNumPartitions": None}, _check_creation
)
AUTO_SUBSCRIPTION: Final = Shape({"allowAutoSubscriptionCreation": False})
INACTIVE: Final = Shape(
    {"inactiveTopicDeleteMode": "", "maxInactiveDurationSeconds": 0, "deleteWhileInactive": False}
)
DELAYED: Final = Shape({"active": False, "tickTime": 0, "maxDeliveryDelayInMillis": 0})
PERSISTENCE: Final = Shape(
    {
        "bookkeeperEnsemble": 0,
        "bookkeeperWriteQuorum": 0,
        "bookkeeperAckQuorum": 0,
        "managedLedgerMaxMarkDeleteRate": 0.0,
    },
    _check_persistence,
)
TYPES: Final = OneOf(("Exclusive", "Shared", "Failover", "Key_Shared"), many=True)
STRATEGY: Final = OneOf(
    (
        "UNDEFINED",
        "ALWAYS_INCOMPATIBLE",
        "ALWAYS_COMPATIBLE",
        "BACKWARD",
        "FORWARD",
        "FULL",
        "BACKWARD_TRANSITIVE",
        "FORWARD_TRANSITIVE",
        "FULL_TRANSITIVE",
    ),
    unset="UNDEFINED",
)
OLD_STRATEGY: Final = OneOf(
    (
        "AutoUpdateDisabled",
        "Backward",
        "Forward",
        "Full",
        "AlwaysCompatible",
        "BackwardTransitive",
        "ForwardTransitive",
        "FullTransitive",
    )
)
INTERVAL: Final = Number("interval must be greater than or equal to 0")
TTL: Final = Number("Invalid value for message TTL")
