"""Lookups: what is a circle, and when an address cannot be reached."""

from itertools import pairwise

from segments import Tcp, Turn, build
from timeline import Timeline, ids

from pulsarctl_wire.checks.finding import CERTAIN, SUSPECTED

TOPIC = "persistent://public/default/t"
REDIRECT, CONNECT = 0, 1
CLIENT = "10.0.0.1"


def lookup(
    number: int, url: str, response: int = CONNECT, *, topic: str = TOPIC, **fields: object
) -> list[Turn]:
    answer = build(
        "LOOKUP_RESPONSE", request_id=number, response=response, brokerServiceUrl=f"pulsar://{url}", **fields
    )
    return [(True, build("LOOKUP", topic=topic, request_id=number)), (False, answer)]


def produce(number: int, topic: str = TOPIC) -> Turn:
    return True, build("PRODUCER", topic=topic, producer_id=number, request_id=100 + number)


class Cluster:
    """Brokers A, B and C at 10.0.1.1 to 10.0.1.3, and connections of a client to them."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.tcp = {
            name: Tcp(client=(CLIENT, 50_000 + number), server=(f"10.0.1.{number}", 6650))
            for number, name in enumerate("ABC", 1)
        }
        for tcp in self.tcp.values():
            self.timeline.log_in(0, tcp)
        self.lookups = 0

    def redirect(self, path: str, start: float = 1, step: float = 0.01) -> None:
        """Each broker of the path redirects the client to the next one."""
        for number, (server, target) in enumerate(pairwise(path)):
            self.lookups += 1
            turns = lookup(self.lookups, f"broker-{target}:6650", REDIRECT)
            self.timeline.say(start + number * step, self.tcp[server], *turns)

    def found(self) -> list[tuple[str, str]]:
        return ids(self.timeline.findings())


def test_redirected_in_a_circle() -> None:
    for path, expected in (("ABAB", 0), ("ABABA", 1), ("ABCABC", 1), ("ABCBC", 1)):
        cluster = Cluster()
        cluster.redirect(path)
        assert cluster.found() == [("redirect_loop", CERTAIN)] * expected, path


def test_a_client_that_got_there_goes_in_no_circle() -> None:
    cluster = Cluster()
    for number in range(3):
        cluster.redirect("ABA", start=1 + number)
        cluster.timeline.say(1.5 + number, cluster.tcp["A"], *lookup(90, "10.0.1.1:6650"))
    assert cluster.found() == []


def test_lookups_at_the_same_time_are_no_circle() -> None:
    cluster = Cluster()
    a, b = cluster.tcp["A"], cluster.tcp["B"]
    of_a = [lookup(number, "broker-B:6650", REDIRECT) for number in range(4)]
    of_b = [lookup(number, "broker-A:6650", REDIRECT) for number in range(4)]
    cluster.timeline.at(1, *a.say(ask for ask, _ in of_a), *b.say(ask for ask, _ in of_b))
    for (_, one), (_, other) in zip(of_a, of_b, strict=True):
        cluster.timeline.at(2, *a.say([one]), *b.say([other]))
    assert cluster.found() == []


def test_a_broker_that_the_capture_does_not_see_may_own_the_topic() -> None:
    cluster = Cluster()
    for number, server in enumerate("AAAACACACA"):
        turns = lookup(number, "broker-X:6650", REDIRECT)
        cluster.timeline.say(1 + number / 10, cluster.tcp[server], *turns)
    assert cluster.found() == []


def test_redirects_that_are_far_apart_are_no_circle() -> None:
    cluster = Cluster()
    cluster.redirect("ABABABAB", step=4)  # R = 3
    assert cluster.found() == []


def test_a_hole_may_have_had_the_connect() -> None:
    cluster = Cluster()
    cluster.redirect("AB")
    cluster.timeline.at(1.5, cluster.tcp["B"].send(False, b"", missing=70))
    cluster.redirect("BABABA", start=2)
    assert cluster.found() == []


class Promise:
    """A client that opens a topic asks for it, and is told to go to an address."""

    def __init__(
        self, url: str, *, opens: str = TOPIC, creates: bool = True, listener: str = "", **fields: object
    ) -> None:
        self.timeline = Timeline(listener)
        self.tcp = Tcp(client=(CLIENT, 50_000), server=("10.0.1.1", 6650))
        turns = metadata(100, 3, opens, creates=creates) if opens else []
        self.timeline.log_in(0, self.tcp, *turns, *lookup(1, url, **fields))  # type: ignore[arg-type]

    def other(self, number: int = 1, server: str = "10.0.1.2") -> Tcp:
        return Tcp(client=(CLIENT, 50_000 + number), server=(server, 6650))

    def refused(self, seconds: float, tcp: Tcp) -> None:
        self.timeline.at(seconds, tcp.syn(), tcp.rst(False))

    def found(self, until: float = 10) -> list[tuple[str, str]]:
        return ids(self.timeline.findings(until))


UNREACHABLE = "advertised_address_unreachable"


def test_refused_for_a_while() -> None:
    promise = Promise("10.0.1.2:6650")
    for number in range(1, 4):
        promise.refused(number / 2, promise.other(number))
        promise.timeline.say(number, promise.tcp, *lookup(1 + number, "10.0.1.2:6650"))
    [finding] = promise.timeline.findings(3.5)
    assert (finding.rule, finding.certainty) == (UNREACHABLE, CERTAIN)
    assert [each.sighting.ordinal for each in finding.evidence] == [2]
    assert "refused (3 tries)" in finding.explanation


def test_refused_at_first_and_then_accepted() -> None:
    promise = Promise("10.0.1.2:6650")
    promise.refused(1, promise.other())
    promise.timeline.log_in(2, promise.other(2), produce(1))
    assert promise.found() == []


def test_accepted_without_a_producer() -> None:
    promise = Promise("10.0.1.2:6650")
    promise.timeline.log_in(1, promise.other())
    assert promise.found() == []


def test_an_open_connection_needs_no_other() -> None:
    promise = Promise("elsewhere:6650", topic="persistent://public/default/u")
    promise.timeline.log_in(1, promise.other())
    promise.timeline.say(2, promise.tcp, produce(2, "u"), *lookup(2, "10.0.1.2:6650"))
    assert promise.found() == []


def test_refused_before_it_was_named() -> None:
    promise = Promise("10.0.1.1:6650")
    promise.refused(1, promise.other())
    promise.timeline.say(2, promise.tcp, *lookup(2, "10.0.1.2:6650"))
    assert promise.found() == [(UNREACHABLE, SUSPECTED)]


def test_nothing_follows() -> None:
    for name in ("broker-7:6650", "10.0.1.2:6650", "[2001:db8::1]:6650"):
        assert Promise(name).found() == [(UNREACHABLE, SUSPECTED)]
        assert Promise(name).found(until=2) == []  # the end of the capture is no event


def test_client_closes() -> None:
    for by_client in (True, False):
        promise = Promise("broker-7:6650")
        promise.timeline.at(1, promise.tcp.fin(by_client))
        assert promise.found(until=1) == [(UNREACHABLE, SUSPECTED)] * by_client


def test_client_comes_back() -> None:
    promise = Promise("broker-7:6650")
    promise.timeline.at(1, promise.tcp.fin(True))
    promise.timeline.log_in(2, promise.other(), produce(1))
    assert promise.found() == []


def test_a_mere_lookup_makes_no_connection_due() -> None:
    for opens in ("", "persistent://public/default/u"):
        promise = Promise("broker-7:6650", opens=opens)
        assert promise.found() == []
        promise = Promise("broker-7:6650", opens=opens)
        promise.timeline.at(0.5, promise.tcp.fin(True))
        assert promise.found() == []
    asking = Promise("broker-7:6650", creates=False)
    assert asking.found() == []
    refused = Promise("10.0.1.2:6650", opens="")
    refused.refused(1, refused.other())
    assert refused.found() == [(UNREACHABLE, CERTAIN)]


def test_a_partition_is_opened_with_its_topic_or_by_who_had_it_open() -> None:
    partition = f"{TOPIC}-partition-2"
    assert Promise("broker-7:6650", topic=partition).found() == [(UNREACHABLE, SUSPECTED)]
    moved = Promise("10.0.1.1:6650", opens="", topic=partition)
    moved.timeline.say(1, moved.tcp, produce(1, partition), *lookup(2, "broker-7:6650", topic=partition))
    assert moved.found() == [(UNREACHABLE, SUSPECTED)]


def test_the_address_of_our_proxy_is_where_its_connections_lead() -> None:
    assert Promise("127.0.0.1:6649", listener="127.0.0.1:6649").found() == []
    assert Promise("127.0.0.1:7001", listener="127.0.0.1:6649").found() == [(UNREACHABLE, SUSPECTED)]
    assert Promise("127.0.0.1:7001", listener="127.0.0.1:6649").found(until=2) == []
    promise = Promise("127.0.0.1:7001", listener="127.0.0.1:6649")
    promise.timeline.at(0.5, promise.tcp.fin(True))
    assert promise.found() == []
    promise = Promise("127.0.0.1:7001", listener="127.0.0.1:6649")
    promise.timeline.listener = "127.0.0.1:7001"
    promise.timeline.log_in(1, promise.other())
    assert promise.found() == []


def test_a_name_is_reached_if_its_producer_follows_anywhere() -> None:
    promise = Promise("broker-7:6650")
    promise.timeline.log_in(1, promise.other(), produce(1))
    assert promise.found() == []


def test_addresses_that_are_not_dialled() -> None:
    assert Promise("broker-7:6650", proxy_through_service_url=True).found() == []
    assert Promise("10.0.1.1:6650").found() == []
    coordinator = "persistent://pulsar/system/transaction_coordinator_assign-partition-0"
    assert Promise("broker-7:6650", topic=coordinator).found() == []


def test_a_later_lookup_counts() -> None:
    for fields in ({"url": "10.0.1.1:6650"}, {"url": "broker-7:6650", "proxy_through_service_url": True}):
        promise = Promise("broker-7:6650")
        promise.timeline.say(1, promise.tcp, *lookup(2, **fields))
        assert promise.found() == []


def test_a_hole_may_have_had_the_producer() -> None:
    promise = Promise("broker-7:6650")
    promise.timeline.at(1, promise.tcp.send(True, b"", missing=70))
    assert promise.found() == []


def test_hosts_of_their_own_are_one_client_on_all_their_addresses() -> None:
    timeline = Timeline()
    timeline.log_in(0, Tcp(("127.0.0.1", 50_000), ("127.0.0.1", 6650)), *lookup(1, "myhost:6650"))
    timeline.log_in(1, Tcp(("10.0.1.7", 50_001), ("10.0.1.7", 6650)), produce(1))
    assert ids(timeline.findings(10)) == []


def test_throttled() -> None:
    for refused, expected in ((2, []), (3, [("lookup_throttled", CERTAIN)])):
        timeline, tcp = Timeline(), Tcp()
        turns: list[Turn] = []
        for number in range(refused):
            turns += [
                (True, build("LOOKUP", topic="t", request_id=number)),
                (False, build("LOOKUP_RESPONSE", request_id=number, response=2, error=14)),
            ]
        timeline.log_in(0, tcp, *turns)
        findings = timeline.findings()
        assert ids(findings) == expected
        assert [each.count for each in findings] == [3] * len(expected)


def metadata(number: int, partitions: int, topic: str = "t", *, creates: bool = True) -> list[Turn]:
    may_create = {} if creates else {"metadata_auto_creation_enabled": False}
    return [
        (True, build("PARTITIONED_METADATA", topic=topic, request_id=number, **may_create)),
        (
            False,
            build("PARTITIONED_METADATA_RESPONSE", request_id=number, response=0, partitions=partitions),
        ),
    ]


def opened(number: int, topic: str = "t") -> list[Turn]:
    success = build("PRODUCER_SUCCESS", request_id=100 + number, producer_name="p")
    return [produce(number, topic), (False, success)]


def on_parent(*turns: Turn) -> list[tuple[str, str]]:
    timeline = Timeline()
    timeline.log_in(0, Tcp(), *turns)
    return ids(timeline.findings())


def test_producer_on_a_partitioned_parent() -> None:
    rule = [("producer_on_partitioned_parent", CERTAIN)]
    assert on_parent(*metadata(1, 3), *opened(1)) == rule
    assert on_parent(*opened(1), *metadata(1, 3), *metadata(2, 3)) == rule
    assert on_parent(*metadata(1, 3), *opened(1, "t-partition-0")) == []
    assert on_parent(*metadata(1, 0), *opened(1)) == []
    assert on_parent(*metadata(1, 3), *metadata(2, 0), *opened(1)) == []  # made anew
    closed = [
        (True, build("CLOSE_PRODUCER", producer_id=1, request_id=7)),
        (False, build("SUCCESS", request_id=7)),
    ]
    assert on_parent(*opened(1), *closed, *metadata(1, 3)) == []
    refused = False, build("ERROR", request_id=101, error=22, message="no")
    assert on_parent(*metadata(1, 3), produce(1), refused) == []
