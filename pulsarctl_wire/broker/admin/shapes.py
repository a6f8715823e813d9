"""What the bodies of requests for policies must be."""

from typing import Any, Final, NamedTuple

from pulsarctl_wire.broker.admin.base import MOST_INT, Problem, integer


class Shape(NamedTuple):
    """An object with these fields and defaults."""

    fields: dict[str, Any]

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
        return value


class Number(NamedTuple):
    """A number; `wrong` is the reason if it is negative."""

    wrong: str
    most: int = MOST_INT

    def read(self, body: Any) -> Any:
        """The value. Raises Problem."""
        if isinstance(body, str):
            body = integer(body, self.most)
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
        "dispatchThrottlingRateInMsg": -1,
        "dispatchThrottlingRateInByte": -1,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": 1,
    }
)
NO_RATE: Final = {**RATE.fields, "dispatchThrottlingRateInMsg": 0, "dispatchThrottlingRateInByte": 0}
PUBLISH: Final = Shape({"publishThrottlingRateInMsg": -1, "publishThrottlingRateInByte": -1})
SUBSCRIBE: Final = Shape({"subscribeThrottlingRatePerConsumer": -1, "ratePeriodInSecond": 30})
NO_SUBSCRIBE: Final = {**SUBSCRIBE.fields, "subscribeThrottlingRatePerConsumer": 0}
RETENTION: Final = Shape({"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
AUTO_TOPIC: Final = Shape({"allowAutoTopicCreation": False, "topicType": "", "defaultNumPartitions": None})
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
    }
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
