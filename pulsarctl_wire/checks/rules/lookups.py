"""Rules about lookups: which broker serves a topic, and whether clients get there."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

from pulsarctl_wire.checks.facts import Topic, find_client_host
from pulsarctl_wire.checks.finding import CERTAIN, SUSPECTED, Sighting, Subject
from pulsarctl_wire.checks.rule import CAPTURE, Reporter, Rule, locate_bytes
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.commands import FAILED, NUMBERS
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Connection, Frame, HttpMessage
from pulsarctl_wire.wire.names import without_partition
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandLookupTopicResponse, ServerError
from pulsarctl_wire.wire.rest import get_text, is_authoritative
from pulsarctl_wire.wire.session.counts import error_of
from pulsarctl_wire.wire.session.ending import REFUSED, RESET, UNANSWERED, EndedConnection
from pulsarctl_wire.wire.session.knowledge import bound

_FAILED: Final = FAILED[NUMBERS["PARTITIONED_METADATA_RESPONSE"]]
_OK: Final = 200
_TOO_MANY_REQUESTS: Final = 429
_MIN_REDIRECTS: Final = 4
_MAX_REDIRECTS: Final = 8  # kept of a lookup
_MIN_REFUSALS: Final = 3
_MAX_LOOKUPS: Final = 4_096  # followed at a time
_MAX_ADDRESSES: Final = 16_384
_MAX_FAILURES: Final = 64  # kept of an address
_FOREVER: Final = 2**63  # ns: in place of the time of an end that was not seen
_COORDINATORS: Final = "persistent://pulsar/system/transaction_coordinator_assign"  # never opened
_PROMISED: Final = "promised"  # key in `state.notes`: the keys of promises that the connection carried

_Redirect = tuple[str, str, bool]
"""Who redirects, to which address, and `authoritative`."""


def _parse_address(body: Any) -> str:
    """Return the address that a LOOKUP_RESPONSE names, without its scheme."""
    url = as_text(body.brokerServiceUrl) or as_text(body.brokerServiceUrlTls)
    return url.rpartition("://")[2].rstrip("/")


class _Chain(NamedTuple):
    """The redirects of one lookup so far."""

    state: CheckState
    request: Sighting
    redirects: deque[tuple[_Redirect, Sighting]]

    def is_circle(self) -> bool:
        """Return whether the last answer came before, with another server's answer between."""
        last, *earlier = [redirect for redirect, _ in reversed(self.redirects)]
        if last not in earlier:
            return False
        between = earlier[: earlier.index(last) + 1]
        servers, targets, _ = map(set, zip(*between, strict=True))
        return len(servers) > 1 and len(targets) > 1


class RedirectLoop(Rule):
    """The brokers send the client in a circle: each says that another one owns the topic.

    Wire: a client's LOOKUPs of a topic get at least 4 Redirects without a Connect between, each LOOKUP after
    the answer before it, and the same server gives the same answer twice, with another server's between. The
    same over HTTP, with 307 and 200.

    Advice: Check the brokers' metadata and load balancer, and restart the broker whose view is stale.

    Source: https://github.com/apache/pulsar/pull/7096, https://github.com/apache/pulsar-client-cpp/pull/146
    """

    id = "redirect_loop"
    cause = ("server",)
    relies_on = CAPTURE
    handlers: ClassVar = {"LOOKUP_RESPONSE": "on_answer"}

    def __init__(self, doctor: Reporter) -> None:
        super().__init__(doctor)
        self._chains: dict[tuple[str, str], _Chain] = {}  # by client host and topic

    def on_answer(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Add a redirect to its lookup, or forget a lookup that has ended."""
        body, request, topic = frame.body, state.request_sighting, frame.topic
        if body is None or topic is None or request is None:
            return
        key = find_client_host(state.connection), topic
        if body.response == CommandLookupTopicResponse.Connect:
            self._chains.pop(key, None)
        elif body.response == CommandLookupTopicResponse.Redirect:
            redirect = state.connection.server, _parse_address(body), body.authoritative
            self._add_redirect(key, redirect, state, request, sighting)

    def on_http(self, state: CheckState, message: HttpMessage, number: int) -> None:
        """Do as `on_answer` does, for an answer over HTTP."""
        if message.kind != "lookup" or message.request is None or message.topic is None:
            return
        key, location = (find_client_host(state.connection), message.topic), message.fields.get("location")
        if message.status == _OK:
            self._chains.pop(key, None)
        elif location is not None:
            target = location.partition("://")[2].partition("/")[0]
            redirect = state.connection.server, target, is_authoritative(location)
            self._add_redirect(key, redirect, state, locate_bytes(message.request), locate_bytes(message))

    def _add_redirect(
        self,
        key: tuple[str, str],
        redirect: _Redirect,
        state: CheckState,
        request: Sighting,
        sighting: Sighting,
    ) -> None:
        chain = self._chains.get(key)
        if chain is not None:
            last = chain.redirects[-1][1]
            is_parallel = request.time_ns < last.time_ns
            if request.number and last.number:  # not over HTTP
                is_parallel = request.number < last.number
            if is_parallel:
                return  # another lookup, made at the same time
            if request.time_ns - last.time_ns >= self.thresholds.unanswered:
                chain = None  # this is another lookup, made later
        if chain is None:
            chain = self._chains[key] = _Chain(state, request, deque(maxlen=_MAX_REDIRECTS))
            bound(self._chains, _MAX_LOOKUPS)
        chain.redirects.append((redirect, sighting))
        is_long = len(chain.redirects) >= _MIN_REDIRECTS
        if is_long and chain.is_circle() and self.can_judge(state):
            rows = [(chain.request, "asked")]
            rows += [(sighting, "redirected") for _, sighting in chain.redirects]
            self.report(chain.state, Subject(key[1]), rows)


@dataclass(slots=True)
class _Address:
    """A server's address, as a client host sees it: its connections there.

    open        number of connections that have not ended
    reached_ns  the latest end of a connection that was accepted
    failed_ns   the times of connections that were not accepted
    failure     how the last one of these ended
    """

    open: int = 0
    reached_ns: int = 0
    failed_ns: list[int] = field(default_factory=list)
    failure: str = ""

    def end(self, ending: EndedConnection) -> None:
        """Record a connection that has ended."""
        self.open -= 1
        if ending.end in (REFUSED, UNANSWERED):
            self.failed_ns = [*self.failed_ns[1 - _MAX_FAILURES :], ending.time_ns or 0]
            self.failure = "refused" if ending.end == REFUSED else "SYN not answered"
        elif any(ending.sizes) or not (ending.joined and ending.end == RESET):  # RESET, no SYN: says nothing
            self.reached_ns = max(self.reached_ns, ending.end_ns or _FOREVER)


@dataclass(slots=True)
class _Promise:
    """The address to which the answer to a lookup sends the client.

    `has_left`: the client has closed the connection that carried the answer.
    `is_http`: the lookup was over HTTP, where administrators look up topics that they do not use.
    """

    state: CheckState
    address: str
    sighting: Sighting
    has_left: bool = False
    is_http: bool = False


def _find_opening_addresses(connection: Connection) -> list[tuple[str, str]]:
    """Return pairs of client host and server address, as at the opening: the ends may have flipped since.

    For a connection through our proxy, one of them has the proxy's address.
    """
    opening = connection
    if connection.flipped:
        opening = Connection(connection.index, connection.server, connection.client)
        opening.listener = connection.listener
    host = find_client_host(opening)
    return [(host, address) for address in (opening.server, opening.listener) if address]


class AdvertisedAddressUnreachable(Rule):
    """The broker sends the client to an address that the client cannot reach.

    Wire: LOOKUP_RESPONSE Connect without proxy_through_service_url names another address than the one
    that answered. Connections to it are refused or not answered. Or no connection to it is seen for R
    (until the capture ends, if the client has closed the connection with the answer), although the client
    was going to open the topic: at some time its host has sent PRODUCER or SUBSCRIBE for the topic, or a
    PARTITIONED_METADATA that may create it, but since this answer neither PRODUCER nor SUBSCRIBE. It may
    also have connected where the capture cannot see. A recording of pwire proxy says which of the proxy's
    addresses each connection came to; there a client that closes within R is not reported. After a lookup
    over HTTP only failed connections count.

    Advice: Correct advertisedAddress or advertisedListeners, or the client's listener name, or go through the
    Pulsar proxy.

    Source: https://github.com/apache/pulsar/issues/23, https://github.com/apache/pulsar/issues/4510
    """

    id = "advertised_address_unreachable"
    cause = ("reason",)
    relies_on = CAPTURE
    handlers: ClassVar = {
        "PARTITIONED_METADATA": "on_metadata",
        "LOOKUP_RESPONSE": "on_answer",
        **dict.fromkeys(("PRODUCER", "SUBSCRIBE"), "on_arrival"),
    }

    def __init__(self, doctor: Reporter) -> None:
        super().__init__(doctor)
        self._addresses: dict[tuple[str, str], _Address] = {}  # by client host and address
        self._promises: dict[tuple[str, str], _Promise] = {}  # by client host and topic
        self._used_addresses: dict[tuple[str, str], None] = {}  # client hosts, and where they opened a topic
        self._opening: dict[tuple[str, str], None] = {}  # client hosts, and topics that they open
        self._has_all_addresses = True  # no address was forgotten
        self._now = 0

    def on_opened(self, state: CheckState) -> None:
        """Count an open connection to its server's address."""
        for key in _find_opening_addresses(state.connection):
            address = self._addresses.get(key)
            if address is None:
                address = self._addresses[key] = _Address()
            address.open += 1
        if len(self._addresses) > _MAX_ADDRESSES:
            bound(self._addresses, _MAX_ADDRESSES)
            self._has_all_addresses = False

    def on_metadata(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note that a client host opens a topic, unless its request must not create it: then it only asks."""
        if frame.body is None or frame.body.metadata_auto_creation_enabled:
            self._note_opening(state, frame)

    def _note_opening(self, state: CheckState, frame: Frame) -> None:
        self._opening[find_client_host(state.connection), without_partition(frame.topic or "")] = None
        bound(self._opening, _MAX_LOOKUPS)

    def on_answer(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note where a LOOKUP_RESPONSE sends the client."""
        body, topic = frame.body, frame.topic
        if body is None or topic is None or topic.startswith(_COORDINATORS):
            return
        if body.response != CommandLookupTopicResponse.Connect:
            return
        key, address = (find_client_host(state.connection), topic), _parse_address(body)
        is_here = body.proxy_through_service_url
        is_here = is_here or address in (state.connection.server, state.connection.listener)
        if self._add_promise(key, None if is_here else _Promise(state, address, sighting)):
            promised = state.notes.setdefault(_PROMISED, {})
            promised[key] = None
            bound(promised, _MAX_LOOKUPS)

    def on_http(self, state: CheckState, message: HttpMessage, number: int) -> None:
        """Note where an answer over HTTP sends the client."""
        url = get_text(message.fields, "brokerUrl", "nativeUrl", "brokerUrlTls")
        if message.kind != "lookup" or message.topic is None or not url:
            return
        key = find_client_host(state.connection), message.topic
        previous = self._promises.get(key)
        if previous is None or previous.is_http:
            promise = _Promise(state, url.rpartition("://")[2], locate_bytes(message), is_http=True)
            self._add_promise(key, promise)

    def _add_promise(self, key: tuple[str, str], promise: _Promise | None) -> bool:
        """Add a promise unless there is the same one; None ends the one before. Return whether it is new."""
        previous = self._promises.get(key)
        if promise is None or (previous is not None and previous.address != promise.address):
            self._promises.pop(key, None)
        if promise is None or key in self._promises:
            return False
        self._promises[key] = promise
        bound(self._promises, _MAX_LOOKUPS)
        return True

    def on_arrival(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Forget a promise that was kept."""
        self._note_opening(state, frame)
        host = find_client_host(state.connection)
        promise = self._promises.pop((host, frame.topic or ""), None)
        if promise is not None:
            self._used_addresses[host, promise.address] = None
            bound(self._used_addresses, _MAX_LOOKUPS)

    def on_closed(self, state: CheckState, ending: EndedConnection) -> None:
        """Record the end of a connection, and that the client of its promises has left."""
        for address_key in _find_opening_addresses(state.connection):
            address = self._addresses.get(address_key)
            if address is not None:
                address.end(ending)
        for key in state.notes.get(_PROMISED, ()):
            promise = self._promises.get(key)
            if promise is not None and promise.state is state:
                promise.has_left = ending.by_broker is False

    def on_due(self, now_ns: int) -> None:
        """Judge the promises that were due for long enough."""
        self._now = now_ns
        for key, promise in list(self._promises.items()):
            state, until_ns = promise.state, now_ns
            if state.connection.listener and state.closed_ns is not None:
                until_ns = state.closed_ns  # a client that closes within R counts as gone, not as failing
            if until_ns - promise.sighting.time_ns >= self.thresholds.unanswered:
                self._judge(key, promise)

    def on_finished(self) -> None:
        """Judge also the promises whose clients have left: until now they might have come back."""
        self.on_due(self._now)
        for key, promise in list(self._promises.items()):
            if promise.has_left and not promise.state.connection.listener:
                self._judge(key, promise)

    def _judge(self, key: tuple[str, str], promise: _Promise) -> None:
        """Report a promise if it was not kept."""
        since_ns = promise.sighting.time_ns
        address = self._addresses.get((key[0], promise.address)) or _Address()
        if address.open:
            return  # the open connection may still be accepted or fail
        del self._promises[key]
        tries = sum(time_ns >= since_ns for time_ns in address.failed_ns)
        is_due = tries or (self._has_all_addresses and (key[0], without_partition(key[1])) in self._opening)
        if not tries and (
            promise.is_http or promise.state.has_erred or (key[0], promise.address) in self._used_addresses
        ):
            return
        if address.reached_ns >= since_ns or not is_due or not self.can_judge(promise.state):
            return
        reason, certainty = (address.failure, CERTAIN) if tries else ("no connection was seen", SUSPECTED)
        text = f"The broker sends the client to {promise.address}, and the client cannot get there: {reason}"
        text += f" ({tries} tries)." if tries > 1 else "."
        rows = [(promise.sighting, f"{promise.address}: {reason}")]
        self.report(promise.state, Subject(key[1]), rows, text, certainty)


@dataclass(slots=True)
class _Refusals:
    """The lookups of a connection that were refused; `sightings` are those that are not reported yet."""

    subject: Subject
    count: int = 0
    sightings: list[Sighting] = field(default_factory=list)


class LookupThrottled(Rule):
    """The broker refuses lookups, because too many are in flight.

    Wire: at least 3 answers with TooManyRequests on a connection: PARTITIONED_METADATA_RESPONSE,
    LOOKUP_RESPONSE or ERROR; or at least 3 with status 429 to a client over HTTP.

    Advice: Spread the start of clients, lower their concurrent lookups, or raise maxConcurrentLookupRequest.

    Source: https://github.com/apache/pulsar/issues/13664, https://github.com/apache/pulsar/pull/11688
    """

    id = "lookup_throttled"
    cause = ("server",)
    handlers: ClassVar = dict.fromkeys(
        ("PARTITIONED_METADATA_RESPONSE", "LOOKUP_RESPONSE", "ERROR"), "on_answer"
    )

    def __init__(self, doctor: Reporter) -> None:
        super().__init__(doctor)
        self._over_http: dict[tuple[str, str], _Refusals] = {}

    def on_answer(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Count a refusal."""
        if error_of(frame) == ServerError.TooManyRequests:
            refusals = state.notes.setdefault(self.id, _Refusals(Subject(frame.topic)))
            self._count(state, refusals, sighting)

    def on_http(self, state: CheckState, message: HttpMessage, number: int) -> None:
        """Count a refusal over HTTP, where each call may have a connection of its own."""
        if message.kind in ("lookup", "partitions") and message.status == _TOO_MANY_REQUESTS:
            key = find_client_host(state.connection), state.connection.server
            refusals = self._over_http.setdefault(key, _Refusals(Subject(message.topic)))
            bound(self._over_http, _MAX_LOOKUPS)
            self._count(state, refusals, locate_bytes(message))

    def _count(self, state: CheckState, refusals: _Refusals, sighting: Sighting) -> None:
        """Count a refusal; report the refusals once they are many."""
        refusals.count += 1
        refusals.sightings.append(sighting)
        if refusals.count >= _MIN_REFUSALS:
            text = f"The broker has refused {refusals.count} lookups, because too many are in flight."
            for refusal in refusals.sightings:
                self.report(state, refusals.subject, [(refusal, "refused")], text)
            refusals.sightings.clear()


class ProducerOnPartitionedParent(Rule):
    """A producer writes to the plain name of a partitioned topic: consumers of the partitions never see it.

    Must: open a producer for each partition of a partitioned topic, by its name.

    Wire: PRODUCER succeeds for a topic that has partitions, according to a PARTITIONED_METADATA_RESPONSE, or
    an answer over HTTP, on any connection.

    Advice: Fix the client: it must ask for the number of partitions, and write to NAME-partition-N.

    Source: PARTITIONED_METADATA in PulsarApi.proto; observed on 4.0.8.
    """

    id = "producer_on_partitioned_parent"
    cause = ("topic",)
    handlers: ClassVar = {"PARTITIONED_METADATA_RESPONSE": "on_metadata", "PRODUCER_SUCCESS": "on_producer"}

    def on_metadata(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note the number of partitions of a topic."""
        body = frame.body
        if body is None or frame.topic is None or body.response == _FAILED:
            return
        self._note_partitions(frame.topic, body.partitions, sighting)

    def on_http(self, state: CheckState, message: HttpMessage, number: int) -> None:
        """Note the number of partitions in an answer over HTTP."""
        partitions = message.fields.get("partitions")
        if message.kind == "partitions" and message.topic is not None and isinstance(partitions, int):
            self._note_partitions(message.topic, partitions, locate_bytes(message))

    def _note_partitions(self, name: str, partitions: int, sighting: Sighting) -> None:
        topic = self.facts.get_topic(name)
        if topic.partitions != partitions:
            topic.partitions, topic.metadata = partitions, sighting
        self._judge(topic)

    def on_producer(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note the last producer of a topic."""
        request = state.answered_request
        if request is not None and request.owner is not None and request.topic is not None:
            topic = self.facts.get_topic(request.topic)
            topic.producer = state.connection.index, request.owner[1]
            self._judge(topic)

    def _judge(self, topic: Topic) -> None:
        if topic.producer is None or topic.metadata is None or not topic.partitions:
            return
        state = self.doctor.states.get(topic.producer[0])
        producer = state.producer(topic.producer[1]) if state is not None else None
        if state is None or producer is None or producer.topic != topic.name or producer.request is None:
            return
        if producer.is_open:
            rows = [
                (producer.request, "the plain name"),
                (topic.metadata, f"has {topic.partitions} partitions"),
            ]
            self.report(state, Subject(topic.name, producer_id=producer.producer_id), rows)
