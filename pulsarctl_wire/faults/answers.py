"""Faults that answer in the broker's place: the request does not go on.

Which command tells of the error follows the tables of `wire/commands.py`, as brokers do it: SEND_ERROR for
SEND, the request's own answer where that has a field for errors, ERROR for all others. What refuses a
handshake has the request id 2^64-1 and closes the connection. Source: the broker's request handlers, as
observed on 4.0.8.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.faults.actions import Close, Note, Send
from pulsarctl_wire.faults.base import TO_BROKER, Fault, Item, Piece, Place, option
from pulsarctl_wire.faults.values import TEXT, one_of
from pulsarctl_wire.wire.commands import ERROR_FIELDS, FAILED, NAMES, NUMBERS, REQUESTS, build_command
from pulsarctl_wire.wire.frame import Frame, build_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, CommandLookupTopicResponse, ServerError
from pulsarctl_wire.wire.session import NO_REQUEST

_HANDSHAKE: Final = frozenset({NUMBERS["CONNECT"], NUMBERS["AUTH_RESPONSE"]})
_ABLE: Final = _HANDSHAKE | REQUESTS.keys() | {NUMBERS["SEND"]}


@dataclass(frozen=True, kw_only=True)
class Answer(Fault):
    """The request does not go on, and is answered with an error as the broker would."""

    name = "answer"

    direction: str = option(TO_BROKER, one_of(TO_BROKER), "requests travel to the broker")
    error: str = option("", one_of(*ServerError.keys()), "the error, as ServiceNotReady")
    message: str = option("answered by pwire", TEXT, "its text")

    def able(self) -> frozenset[int]:
        """All that brokers answer."""
        return _ABLE

    def check(self) -> None:
        """Say which."""
        if not self.command:
            raise SettingsError("answer: say which requests, as in command=LOOKUP")

    def fits(self, frame: Frame) -> bool:
        """Whether it asks for an answer (ACK does so by its request id only), and has the ids for one."""
        if frame.body is None:
            return False
        how = REQUESTS.get(frame.type)
        return (how is None or frame.body.HasField(how.key)) and self._answer(frame).IsInitialized()

    def apply(self, piece: Piece, place: Place) -> Iterator[Item]:
        """The answer; behind the refusal of a handshake the end."""
        assert piece.frame is not None
        yield Send(build_frame(self._answer(piece.frame)), piece.at, back=True)
        if piece.frame.type in _HANDSHAKE:
            yield Close()

    def _answer(self, request: Frame) -> BaseCommand:
        answer = _answer_to(request.type)
        descriptor: Any = BaseCommand.DESCRIPTOR.fields_by_number[answer].message_type
        names = descriptor.fields_by_name
        fields: dict[str, Any] = {ERROR_FIELDS[answer]: ServerError.Value(self.error)}
        if answer in FAILED:
            fields["response"] = FAILED[answer]
        if request.type in _HANDSHAKE:
            fields["request_id"] = NO_REQUEST
        for each in request.body.DESCRIPTOR.fields:  # the ids it is known by
            if each.name in names and each.name.endswith("_id") and request.body.HasField(each.name):
                fields[each.name] = getattr(request.body, each.name)
        text = "message" if "message" in names else "error_message"
        return build_command(NAMES[answer], **fields, **{text: self.message})


def _answer_to(request: int) -> int:
    """Type number of the command that tells a request of type `request` of an error."""
    if request == NUMBERS["SEND"]:
        return NUMBERS["SEND_ERROR"]
    answers = REQUESTS[request].answers if request in REQUESTS else frozenset[int]()
    own = answers & ERROR_FIELDS.keys() - {NUMBERS["ERROR"]}
    # the Pulsar proxy answers PARTITIONED_METADATA with LOOKUP_RESPONSE, brokers with its own
    return min(own, key=lambda answer: not NAMES[answer].startswith(NAMES[request]), default=NUMBERS["ERROR"])


@dataclass(frozen=True, kw_only=True)
class RedirectLoop(Fault):
    """LOOKUP does not go on, and is answered with a redirect to the very address it came by."""

    name = "redirect-loop"

    direction: str = option(TO_BROKER, one_of(TO_BROKER), "lookups travel to the broker")
    to: str = option("", TEXT, "another service URL to redirect to")

    def able(self) -> frozenset[int]:
        """LOOKUP."""
        return frozenset({NUMBERS["LOOKUP"]})

    def check(self) -> None:
        """A URL that is none would hide what this is for."""
        if self.to and not self.to.startswith(("pulsar://", "pulsar+ssl://")):
            raise SettingsError(f"redirect-loop: to={self.to:.60} is no service URL, as pulsar://HOST:PORT")

    def fits(self, frame: Frame) -> bool:
        """Whether there is a lookup in it that can be answered."""
        return frame.body is not None and frame.body.HasField("request_id")

    def apply(self, piece: Piece, place: Place) -> Iterator[Item]:
        """The redirect, as authoritative as the lookup; without an address the lookup goes on."""
        url = self.to or place.url
        if not url:
            yield Note("redirect-loop: the address of the proxy is not known; give it as to=URL")
            yield piece
            return
        assert piece.frame is not None
        body = piece.frame.body
        answer = build_command(
            "LOOKUP_RESPONSE",
            **{"brokerServiceUrlTls" if url.startswith("pulsar+ssl:") else "brokerServiceUrl": url},
            response=CommandLookupTopicResponse.Redirect,
            request_id=body.request_id,
            authoritative=body.authoritative,
        )
        yield Send(build_frame(answer), piece.at, back=True)
