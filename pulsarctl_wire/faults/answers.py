"""Faults that answer a request in the broker's place; the request is not passed on.

The error is sent in the command that brokers use for it, by the tables of `wire/commands.py`: SEND_ERROR for
SEND, the request's own answer if that has a field for errors, otherwise ERROR. An error for a handshake
has the request id 2^64-1 and closes the connection. Source: the broker's request handlers, as observed on
4.0.8.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.faults.base import TO_BROKER, Close, Fault, Item, LaneContext, Note, Send, Unit, option
from pulsarctl_wire.faults.values import TEXT, one_of
from pulsarctl_wire.wire.commands import ERROR_FIELDS, FAILED, NAMES, NUMBERS, REQUESTS, build_command
from pulsarctl_wire.wire.frame import Frame, build_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, CommandLookupTopicResponse, ServerError
from pulsarctl_wire.wire.session.state import NO_REQUEST

_HANDSHAKE: Final = frozenset({NUMBERS["CONNECT"], NUMBERS["AUTH_RESPONSE"]})
_ANSWERABLE: Final = _HANDSHAKE | REQUESTS.keys() | {NUMBERS["SEND"]}


@dataclass(frozen=True, kw_only=True)
class Answer(Fault):
    """The request is not passed on, but answered with an error, as a broker would."""

    name = "answer"

    direction: str = option(TO_BROKER, one_of(TO_BROKER), "requests travel to the broker")
    error: str = option("", one_of(*ServerError.keys()), "the error, such as ServiceNotReady")
    message: str = option("answered by pwire", TEXT, "its text")

    def find_possible_types(self) -> frozenset[int]:
        """Return the commands that brokers answer."""
        return _ANSWERABLE

    def check(self) -> None:
        """Require `command`."""
        if not self.command:
            raise SettingsError("answer: say which requests, as in command=LOOKUP")

    def can_apply(self, frame: Frame) -> bool:
        """Return whether a broker would answer this request (an ACK only if it has a request id)."""
        if frame.body is None:
            return False
        exchange = REQUESTS.get(frame.type)
        if exchange is not None and not frame.body.HasField(exchange.key):
            return False
        return build_refusal(frame, self.error, self.message).IsInitialized()

    def apply(self, unit: Unit, context: LaneContext) -> Iterator[Item]:
        """Yield the answer; for a handshake, also close the connection."""
        assert unit.frame is not None
        answer = build_refusal(unit.frame, self.error, self.message)
        yield Send(build_frame(answer), unit.at, back=True)
        if unit.frame.type in _HANDSHAKE:
            yield Close()


def build_refusal(request: Frame, error: str, message: str) -> BaseCommand:
    """Return the command by which a broker refuses `request`; `error` is the name of a ServerError."""
    answer_type = _find_answer_type(request.type)
    descriptor: Any = BaseCommand.DESCRIPTOR.fields_by_number[answer_type].message_type
    names = descriptor.fields_by_name
    fields: dict[str, Any] = {ERROR_FIELDS[answer_type]: ServerError.Value(error)}
    if answer_type in FAILED:
        fields["response"] = FAILED[answer_type]
    if request.type in _HANDSHAKE:
        fields["request_id"] = NO_REQUEST
    for field in request.body.DESCRIPTOR.fields:  # the ids that identify the request
        if field.name in names and field.name.endswith("_id") and request.body.HasField(field.name):
            fields[field.name] = getattr(request.body, field.name)
    text = "message" if "message" in names else "error_message"
    return build_command(NAMES[answer_type], **fields, **{text: message})


def _find_answer_type(request: int) -> int:
    """Return the type number of the command that reports an error of a request of type `request`."""
    if request == NUMBERS["SEND"]:
        return NUMBERS["SEND_ERROR"]
    answers = REQUESTS[request].answers if request in REQUESTS else frozenset[int]()
    own_types = answers & ERROR_FIELDS.keys() - {NUMBERS["ERROR"]}
    # the Pulsar proxy answers PARTITIONED_METADATA with LOOKUP_RESPONSE, brokers with its own response
    return min(
        own_types, key=lambda answer: not NAMES[answer].startswith(NAMES[request]), default=NUMBERS["ERROR"]
    )


@dataclass(frozen=True, kw_only=True)
class RedirectLoop(Fault):
    """LOOKUP is not passed on, but answered with a redirect to the address that the client already uses."""

    name = "redirect-loop"

    direction: str = option(TO_BROKER, one_of(TO_BROKER), "lookups travel to the broker")
    to: str = option("", TEXT, "another service URL to redirect to")

    def find_possible_types(self) -> frozenset[int]:
        """Return only LOOKUP."""
        return frozenset({NUMBERS["LOOKUP"]})

    def check(self) -> None:
        """Require a service URL: clients cannot follow anything else."""
        if self.to and not self.to.startswith(("pulsar://", "pulsar+ssl://")):
            raise SettingsError(f"redirect-loop: to={self.to:.60} is not a URL such as pulsar://HOST:PORT")

    def can_apply(self, frame: Frame) -> bool:
        """Return whether a frame has a request id, without which it cannot be answered."""
        return frame.body is not None and frame.body.HasField("request_id")

    def apply(self, unit: Unit, context: LaneContext) -> Iterator[Item]:
        """Yield the redirect, with the lookup's authoritative flag; without an address, the lookup itself."""
        url = self.to or context.url
        if not url:
            yield Note("redirect-loop: the address of the proxy is not known; give it as to=URL")
            yield unit
            return
        assert unit.frame is not None
        body = unit.frame.body
        answer = build_command(
            "LOOKUP_RESPONSE",
            **{"brokerServiceUrlTls" if url.startswith("pulsar+ssl:") else "brokerServiceUrl": url},
            response=CommandLookupTopicResponse.Redirect,
            request_id=body.request_id,
            authoritative=body.authoritative,
        )
        yield Send(build_frame(answer), unit.at, back=True)
