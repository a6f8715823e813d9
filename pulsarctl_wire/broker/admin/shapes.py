"""The shapes of policies in request bodies."""

from collections.abc import Callable
from types import NoneType
from typing import Any, Final, NamedTuple

from pulsarctl_wire.broker.admin.base import MAX_INT, MAX_LONG, Problem
from pulsarctl_wire.broker.basics.settings import CHOICES

_TRUTH: Final = {"true": True, "false": False}


def read_scalar(value: Any, kind: type) -> Any:
    """Read a JSON value as Pulsar reads a bool, int or float: it may be a string, and null counts as 0.

    Fractions of an int are cut. Raises Problem.
    """
    text = value.strip() if isinstance(value, str) else value
    try:
        if text is None or text == "":
            return kind()
        if kind is bool:
            return bool(text) if isinstance(text, int) else _TRUTH[text.lower()]
        number = kind(text)
        if isinstance(text, bool) or not abs(number) <= MAX_LONG:
            raise ValueError
        return number
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        raise Problem(400, f"Cannot deserialize value of type `{kind.__name__}`") from None


class Shape(NamedTuple):
    """An object with these fields and defaults; a type stands for a field without default."""

    fields: dict[str, Any]
    check: Callable[[dict[str, Any]], Problem | None] | None = None
    """Returns why a value is refused, if it is."""

    def read(self, body: Any) -> Any:
        """Return the value; unknown fields are ignored. Raises Problem."""
        if not isinstance(body, dict):
            raise Problem(400, "An object is expected")
        value = {name: self._read_field(name, default, body) for name, default in self.fields.items()}
        value = {name: item for name, item in value.items() if item is not None}
        problem = self.check(value) if self.check is not None else None
        if problem is not None:
            raise problem
        return value

    @staticmethod
    def _read_field(name: str, default: Any, body: dict[str, Any]) -> Any:
        if isinstance(default, type):
            return None if body.get(name) is None else read_scalar(body[name], default)
        value = body.get(name, default)
        if not isinstance(default, str):
            return read_scalar(value, type(default))
        if not isinstance(value, (str, NoneType)):
            raise Problem(400, f"{name} is not valid")
        return value


class Number(NamedTuple):
    """A number. `refusal` is said of a negative one. If `is_optional`, a request may have no body."""

    refusal: str
    limit: int = MAX_INT
    is_optional: bool = False

    def read(self, body: Any) -> Any:
        """Return the value. Raises Problem."""
        if body is None and self.is_optional:
            return None
        number = None if body is None else read_scalar(body, int)
        if number is None or abs(number) > self.limit:
            raise Problem(400, "A number is expected")
        if number < 0:
            raise Problem(412, self.refusal)
        return number


class Truth(NamedTuple):
    """true or false; `default` if there is no body."""

    default: bool | None = None

    def read(self, body: Any) -> Any:
        """Return the value. Raises Problem."""
        body = self.default if body is None else body
        if body is None:
            raise Problem(400, "true or false is expected")
        return read_scalar(body, bool)


class OneOf(NamedTuple):
    """One of these strings, or (`many`) a list of them; `unset` counts as none."""

    values: tuple[str, ...]
    many: bool = False
    unset: str = ""

    def read(self, body: Any) -> Any:
        """Return the value. Raises Problem."""
        for value in body if self.many and isinstance(body, list) else [body]:
            if value not in self.values:
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
    kind, partitions = value.get("topicType"), value.get("defaultNumPartitions")
    reason = ""
    if not value["allowAutoTopicCreation"]:
        return None
    if kind not in ("partitioned", "non-partitioned"):
        reason = f"Unknown topic type [{kind or 'null'}]"
    elif kind == "partitioned" and partitions is None:
        reason = "[defaultNumPartitions] cannot be null when the type is partitioned."
    elif kind == "partitioned" and (partitions or 0) < 1:
        reason = "[defaultNumPartitions] cannot be less than 1 for partition type."
    elif kind == "non-partitioned" and partitions is not None:
        reason = "[defaultNumPartitions] is not allowed to be set when the type is non-partition."
    text = "Invalid configuration for autoTopicCreationOverride. the detail is "
    return Problem(412, text + reason) if reason else None


def _check_persistence(value: dict[str, Any]) -> Problem | None:
    ensemble, write, ack = (value[f"bookkeeper{name}"] for name in ("Ensemble", "WriteQuorum", "AckQuorum"))
    for name, number in (("Ensemble", ensemble), ("WriteQuorum", write), ("AckQuorum", ack)):
        if not 0 < number <= 5:
            return Problem(400, f"Bookkeeper-{name} must be <= 5 and > 0.")
    if ensemble >= write >= ack:
        return None
    return Problem(400, f"Bookkeeper Ensemble ({ensemble}) >= WriteQuorum ({write}) >= AckQuorum ({ack})")


QUOTA: Final = Shape({"limit": int, "limitSize": int, "limitTime": 0, "policy": ""})
RETENTION: Final = Shape({"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}, _check_retention)
AUTO_TOPIC: Final = Shape(
    {"allowAutoTopicCreation": False, "topicType": "", "defaultNumPartitions": int}, _check_creation
)
AUTO_SUBSCRIPTION: Final = Shape({"allowAutoSubscriptionCreation": False})
INACTIVE: Final = Shape(
    {"inactiveTopicDeleteMode": "", "maxInactiveDurationSeconds": 0, "deleteWhileInactive": False}
)
DELAYED: Final = Shape({"tickTime": 0, "active": False, "maxDeliveryDelayInMillis": 0})
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
STRATEGY: Final = OneOf(CHOICES["schemaCompatibilityStrategy"], unset="UNDEFINED")
OLD_STRATEGY: Final = OneOf(
    (
        *("AutoUpdateDisabled", "Backward", "Forward", "Full", "AlwaysCompatible"),
        *("BackwardTransitive", "ForwardTransitive", "FullTransitive"),
    )
)
INTERVAL: Final = Number("interval must be greater than or equal to 0", is_optional=True)
TTL: Final = Number("Invalid value for message TTL")
