"""Rules about lookups: which broker serves a topic, and whether clients get there."""

from collections import deque
from typing import Any, ClassVar, Final

from pulsarctl_wire.checks.facts import Topic, client_of
from pulsarctl_wire.checks.finding import CERTAIN, SUSPECTED, Sighting, Subject
from pulsarctl_wire.checks.rule import CAPTURE, Findings, Rule
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.commands import FAILED, NUMBERS
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Connection, Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandLookupTopicResponse, ServerError
from pulsarctl_wire.wire.session.counts import error_of
from pulsarctl_wire.wire.session.ending import REFUSED, RESET, UNANSWERED, EndedConnection
from pulsarctl_wire.wire.session.knowledge import bound

_FAILED: Final = FAILED[NUMBERS["PARTITIONED_METADATA_RESPONSE"]]
_FEWEST_REDIRECTS: Final = 4
_MAX_REDIRECTS: Final = 8  # kept of a lookup
_FEWEST_REFUSED: Final = 3
_MAX_LOOKUPS: Final = 4_096  # followed at a time
_MAX_ADDRESSES: Final = 16_384
_MAX_FAILURES: Final = 64  # kept of an address
_FOREVER: Final = 2**63
_COORDINATORS: Final = "persistent://pulsar/system/transaction_coordinator_assign"  # never opened
_PROMISED: Final = "promised"  # mark of a connection: the keys of promises that it carried

_Redirect = tuple[str, str, bool]
"""Who redirects, to which address, and `authoritative`."""


def _address_in(body: Any) -> str:
    """The address that a LOOKUP_RESPONSE names, without its scheme."""
    url = as_text(body.brokerServiceUrl) or as_text(body.brokerServiceUrlTls)
    return url.rpartition("://")[2].rstrip("/")


class _Chain:
    """The redirects of one lookup so far."""

    def __init__(self, state: CheckState, asked: Sighting) -> None:
        self.state = state
        self.asked = asked
        self.redirects: deque[tuple[_Redirect, Sighting]] = deque(maxlen=_MAX_REDIRECTS)

    def is_circle(self) -> bool:
        """Whether the last answer was given before, with another server's answer between."""
        last, *before = [redirect for redirect, _ in reversed(self.redirects)]
        if last not in before:
            return False
        between = before[: before.index(last) + 1]
        servers, names, _ = map(set, zip(*between, strict=True))
        return len(servers) > 1 and len(names) > 1


class RedirectLoop(Rule):
    """The brokers send the client in a circle: each says that another one owns the topic.

    Wire: a client's LOOKUPs of a topic get at least 4 Redirects without a Connect between, each LOOKUP after
    the answer before it, and the same server gives the same answer twice, with another server's between.

    Advice: Check the brokers' metadata and load balancer, and restart the broker whose view is stale.

    Source: https://github.com/apache/pulsar/pull/7096, https://github.com/apache/pulsar-client-cpp/pull/146
    """

    id = "redirect_loop"
    relies_on = CAPTURE
    on: ClassVar = {"LOOKUP_RESPONSE": "answered"}

    def __init__(self, doctor: Findings) -> None:
        super().__init__(doctor)
        self._chains: dict[tuple[str, str], _Chain] = {}  # by client host and topic

    def answered(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """LOOKUP_RESPONSE."""
        body, asked, topic = frame.body, state.request, frame.topic
        if body is None or topic is None or asked is None:
            return
        key = client_of(state.connection), topic
        if body.response == CommandLookupTopicResponse.Connect:
            self._chains.pop(key, None)
        elif body.response == CommandLookupTopicResponse.Redirect:
            redirect = state.connection.server, _address_in(body), body.authoritative
            self._redirected(key, redirect, state, asked, seen)

    def _redirected(
        self, key: tuple[str, str], redirect: _Redirect, state: CheckState, asked: Sighting, seen: Sighting
    ) -> None:
        chain = self._chains.get(key)
        if chain is not None:
            last = chain.redirects[-1][1]
            if asked.number < last.number:
                return  # another lookup, made at the same time
            if asked.time_ns - last.time_ns >= self.thresholds.unanswered:
                chain = None  # another one, made later
        if chain is None:
            chain = self._chains[key] = _Chain(state, asked)
            bound(self._chains, _MAX_LOOKUPS)
        chain.redirects.append((redirect, seen))
        is_long = len(chain.redirects) >= _FEWEST_REDIRECTS
        if is_long and chain.is_circle() and self.can_count(state):
            evidence = [(chain.asked, "asked"), *((each, "redirected") for _, each in chain.redirects)]
            self.found(chain.state, Subject(key[1]), evidence)


class _Address:
    """A server's address, as a client host sees it: its connections there.

    open        number of connections that have not ended
    reached_ns  until when a connection was accepted
    failed_ns   when connections were tried that were not accepted
    how         how the last one of these ended
    """

    __slots__ = ("failed_ns", "how", "open", "reached_ns")

    def __init__(self) -> None:
        self.open = self.reached_ns = 0
        self.failed_ns: list[int] = []
        self.how = ""

    def end(self, ending: EndedConnection) -> None:
        """A connection has ended."""
        self.open -= 1
        if ending.end in (REFUSED, UNANSWERED):
            self.failed_ns = [*self.failed_ns[1 - _MAX_FAILURES :], ending.time_ns or 0]
            self.how = "refused" if ending.end == REFUSED else "SYN not answered"
        elif any(ending.sizes) or not (ending.joined and ending.end == RESET):  # else its SYN was not seen
            self.reached_ns = max(self.reached_ns, ending.end_ns or _FOREVER)


class _Promise:
    """An address in a LOOKUP_RESPONSE where the client should go; `left`: its client has closed."""

    __slots__ = ("left", "name", "seen", "state")

    def __init__(self, state: CheckState, name: str, seen: Sighting) -> None:
        self.state = state
        self.name = name
        self.seen = seen
        self.left = False


def _opened_as(connection: Connection) -> tuple[str, str]:
    """Client host and server as they were named when it was opened: they may have been flipped since."""
    if connection.flipped:
        connection = Connection(connection.index, connection.server, connection.client)
    return client_of(connection), connection.server


class AdvertisedAddressUnreachable(Rule):
    """The broker sends the client to an address that the client cannot reach.

    Wire: LOOKUP_RESPONSE Connect without proxy_through_service_url names another address than the one that
    answered. Connections to it are refused or not answered; or none is tried, and neither PRODUCER nor
    SUBSCRIBE of the topic follows, which may also happen where the capture cannot see.

    Advice: Correct advertisedAddress or advertisedListeners, or the client's listener name, or go through the
    Pulsar proxy.

    Source: https://github.com/apache/pulsar/issues/23, https://github.com/apache/pulsar/issues/4510
    """

    id = "advertised_address_unreachable"
    relies_on = CAPTURE
    on: ClassVar = {"LOOKUP_RESPONSE": "answered", "PRODUCER": "arrived", "SUBSCRIBE": "arrived"}

    def __init__(self, doctor: Findings) -> None:
        super().__init__(doctor)
        self._addresses: dict[tuple[str, str], _Address] = {}  # by client host and address
        self._promises: dict[tuple[str, str], _Promise] = {}  # by client host and topic
        self._all_known = True  # no address was forgotten
        self._now = 0

    def opened(self, state: CheckState) -> None:
        """A connection was opened, maybe to the address."""
        key = _opened_as(state.connection)
        address = self._addresses.get(key)
        if address is None:
            address = self._addresses[key] = _Address()
        address.open += 1
        if len(self._addresses) > _MAX_ADDRESSES:
            bound(self._addresses, _MAX_ADDRESSES)
            self._all_known = False

    def answered(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """LOOKUP_RESPONSE."""
        body, topic = frame.body, frame.topic
        if body is None or topic is None or topic.startswith(_COORDINATORS):
            return
        if body.response != CommandLookupTopicResponse.Connect:
            return
        key, name = (client_of(state.connection), topic), _address_in(body)
        known = self._promises.get(key)
        stays = body.proxy_through_service_url or name == state.connection.server
        if stays or (known is not None and known.name != name):
            self._promises.pop(key, None)
        if not stays and key not in self._promises:
            self._promises[key] = _Promise(state, name, seen)
            bound(self._promises, _MAX_LOOKUPS)
            promised = state.marks.setdefault(_PROMISED, {})
            promised[key] = None
            bound(promised, _MAX_LOOKUPS)

    def arrived(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """PRODUCER or SUBSCRIBE."""
        self._promises.pop((client_of(state.connection), frame.topic or ""), None)

    def closed(self, state: CheckState, ending: EndedConnection) -> None:
        """A connection has ended: it may have failed, or the client gives up."""
        address = self._addresses.get(_opened_as(state.connection))
        if address is not None:
            address.end(ending)
        for key in state.marks.get(_PROMISED, ()):
            promise = self._promises.get(key)
            if promise is not None and promise.state is state:
                promise.left = ending.by_broker is False
                self._judge(key, promise, ending.end_ns or 0)

    def due(self, now_ns: int) -> None:
        """Promises wait, the oldest first."""
        self._now = now_ns
        for key, promise in list(self._promises.items()):
            self._judge(key, promise, now_ns)

    def finished(self) -> None:
        """All connections have ended."""
        self.due(self._now)

    def _judge(self, key: tuple[str, str], promise: _Promise, now_ns: int) -> None:
        """Report a promise if it was not kept."""
        since_ns = promise.seen.time_ns
        if not promise.left and now_ns - since_ns < self.thresholds.unanswered:
            return
        address = self._addresses.get((key[0], promise.name)) or _Address()
        if address.open:
            return  # it is not known yet how that ends
        del self._promises[key]
        tries = sum(each >= since_ns for each in address.failed_ns)
        is_known = tries or self._all_known
        if address.reached_ns >= since_ns or not is_known or not self.can_count(promise.state):
            return
        why, certainty = (address.how, CERTAIN) if tries else ("no connection was seen", SUSPECTED)
        text = f"The broker sends the client to {promise.name}, and the client cannot get there: {why}"
        text += f" ({tries} tries)." if tries > 1 else "."
        self.found(
            promise.state, Subject(key[1]), [(promise.seen, f"{promise.name}: {why}")], text, certainty
        )


class _Refused:
    """The lookups of a connection that were refused, `new` ones that are not reported yet."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.count = 0
        self.new: list[tuple[Sighting, str]] = []


class LookupThrottled(Rule):
    """The broker refuses lookups, because too many are in flight.

    Wire: at least 3 answers with TooManyRequests on a connection: PARTITIONED_METADATA_RESPONSE,
    LOOKUP_RESPONSE or ERROR.

    Advice: Spread the start of clients, lower their concurrent lookups, or raise maxConcurrentLookupRequest.

    Source: https://github.com/apache/pulsar/issues/13664, https://github.com/apache/pulsar/pull/11688
    """

    id = "lookup_throttled"
    on: ClassVar = dict.fromkeys(("PARTITIONED_METADATA_RESPONSE", "LOOKUP_RESPONSE", "ERROR"), "answered")

    def answered(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """An answer that may be a refusal."""
        if error_of(frame) != ServerError.TooManyRequests:
            return
        refused = state.marks.setdefault(self.id, _Refused(Subject(frame.topic)))
        refused.count += 1
        refused.new.append((seen, "refused"))
        if refused.count >= _FEWEST_REFUSED:
            text = f"The broker has refused {refused.count} lookups, because too many are in flight."
            for each in refused.new:
                self.found(state, refused.subject, [each], text)
            refused.new.clear()


class ProducerOnPartitionedParent(Rule):
    """A producer writes to the plain name of a partitioned topic: consumers of the partitions never see it.

    Wire: PRODUCER succeeds for a topic that has partitions, according to a PARTITIONED_METADATA_RESPONSE on
    any connection.

    Advice: Fix the client: it must ask for the number of partitions, and write to NAME-partition-N.

    Source: PARTITIONED_METADATA in PulsarApi.proto; observed on 4.0.8.
    """

    id = "producer_on_partitioned_parent"
    on: ClassVar = {"PARTITIONED_METADATA_RESPONSE": "metadata", "PRODUCER_SUCCESS": "produced"}

    def metadata(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """PARTITIONED_METADATA_RESPONSE."""
        body = frame.body
        if body is None or frame.topic is None or body.response == _FAILED:
            return
        topic = self.facts.topic(frame.topic)
        if topic.partitions != body.partitions:
            topic.partitions, topic.metadata = body.partitions, seen
        self._judge(topic)

    def produced(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """PRODUCER_SUCCESS."""
        asked = state.answered
        if asked is not None and asked.owner is not None and asked.topic is not None:
            topic = self.facts.topic(asked.topic)
            topic.producer = state.connection.index, asked.owner[1]
            self._judge(topic)

    def _judge(self, topic: Topic) -> None:
        if topic.producer is None or topic.metadata is None or not topic.partitions:
            return
        state = self.doctor.states.get(topic.producer[0])
        producer = state.producer(topic.producer[1]) if state is not None else None
        if state is None or producer is None or producer.topic != topic.name or producer.request is None:
            return
        if producer.is_open:
            evidence = [
                (producer.request, "the plain name"),
                (topic.metadata, f"has {topic.partitions} partitions"),
            ]
            self.found(state, Subject(topic.name, producer_id=producer.producer_id), evidence)
