"""Faults as lines and scenarios: what they mean, and what is said of those that mean nothing."""

from contextlib import suppress

import pytest
from faults.traffic import any_fault
from hypothesis import example, given
from hypothesis import strategies as st

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.faults import FAULTS
from pulsarctl_wire.faults.base import Fault
from pulsarctl_wire.faults.content import Flip
from pulsarctl_wire.faults.ends import BlackholeFault
from pulsarctl_wire.faults.order import Drop, Reorder
from pulsarctl_wire.faults.pace import Bandwidth, Delay, Slice
from pulsarctl_wire.faults.text import LARGEST_SCENARIO, Scenario, format_fault, parse_fault, parse_scenario

SCENARIO = """
seed: 7
faults:
  - drop: {command: SEND_RECEIPT, nth: 1}
  - delay: {time: 200ms, jitter: 50ms, direction: to-client}
  - flip: {command: [SEND, MESSAGE]}
  - swallow command=PONG
  - blackhole
  - bandwidth:
"""


@given(any_fault())
@example(Delay(time=1e-05, jitter=86_400.0))
@example(Delay(time=0.001, jitter=1 / 3))
@example(Bandwidth(rate=1_000_000_000))
@example(Drop(command=("SEND", " PING,PONG ")))
@example(Drop(filter="payload == 'it''s'", topic=("a b", "*é*")))
def test_a_fault_as_text_is_that_fault(fault: Fault) -> None:
    assert parse_fault(format_fault(fault)) == fault


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("drop command=SEND_RECEIPT nth=1", Drop(command=("SEND_RECEIPT",), nth=1)),
        ("  DROP   command='SEND, PING'", Drop(command=("SEND", "PING"))),
        ("swallow command=PONG", Drop(command=("PONG",))),
        ("delay time=200ms jitter=1.5s", Delay(time=0.2, jitter=1.5)),
        ("delay time=2 jitter=7m", Delay(time=2.0, jitter=420.0)),
        ("bandwidth rate=64KB/s", Bandwidth(rate=64_000)),
        ("bandwidth rate=1.5MiB", Bandwidth(rate=1_572_864)),
        ("slice size=10k", Slice(size=10_000)),
        ("reorder hold=100ms behind=3", Reorder(hold=0.1, behind=3)),
        ("flip where=Metadata crc=FIX", Flip(where="metadata", crc="fix")),
        ("drop filter=\"a = 'b c'\"", Drop(filter="a = 'b c'")),
        ("drop nth=", None),
    ],
)
def test_lines(text: str, fault: Fault | None) -> None:
    if fault is None:
        with pytest.raises(SettingsError, match="say which frames"):
            parse_fault(text)
    else:
        assert parse_fault(text) == fault


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (Drop(command=("SEND", "PONG"), nth=1), "drop command=SEND,PONG nth=1"),
        (Delay(time=0.2, jitter=1.5), "delay time=200ms jitter=1.5s"),
        (Delay(), "delay"),
        (Bandwidth(rate=2_000_000), "bandwidth rate=2MB/s"),
        (Drop(filter="a = 'b'"), """drop 'filter=a = '"'"'b'"'"''"""),
    ],
)
def test_texts(fault: Fault, text: str) -> None:
    assert format_fault(fault) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "unknown fault; give one of delay, "),
        ("dorp command=SEND", "fault dorp: unknown fault; did you mean drop"),
        ("drop nht=1", "drop: it has no parameter nht; did you mean nth"),
        ("drop nth", "fault drop: nth is not a parameter; give KEY=VALUE"),
        ("drop nth=1 nth=2", "fault drop: nth is given twice"),
        ("drop 'nth=1", "no closing quotation"),
        ("drop nth=0", "drop: nth=0: give a whole number from 1"),
        ("drop nth=-1", "drop: nth=-1: give a whole number"),
        ("drop nth=1.0", "drop: nth=1.0: give a whole number"),
        ("drop nth=\u0661", "give a whole number"),
        ("drop nth=99999999999999999999999", "give a whole number"),
        ("drop probability=1.1", "probability=1.1: give a number from 0 to 1"),
        ("drop probability=nan", "give a number from 0 to 1"),
        ("drop probability=50%", "give a number from 0 to 1"),
        ("delay time=-1s", "time=-1s: give a time of at most 24 hours, as in 200ms"),
        ("delay time=25000m", "give a time of at most 24 hours"),
        ("delay time=1e999s", "give a time of at most 24 hours"),
        ("delay time=1h", "give a time of at most 24 hours"),
        ("delay time=1.2.3", "give a time of at most 24 hours"),
        ("slice size=0", "size=0: give a size from 1 byte to 1 GB"),
        ("slice size=2GB", "give a size from 1 byte to 1 GB"),
        ("slice size=1e999", "give a size from 1 byte to 1 GB"),
        ("bandwidth rate=0/s", "rate=0/s: give bytes a second"),
        ("bandwidth rate=fast", "rate=fast: give bytes a second"),
        ("flip where=head", "where=head: give one of payload, metadata, command, checksum"),
        ("flip where=playload", "where=playload: did you mean payload"),
        ("duplicate copies=1001", "copies=1001: give a whole number from 1 to 1,000"),
        ("answer command=LOOKUP error=TopicNotFound message=\udc80", "give a text in UTF-8"),
    ],
)
def test_lines_that_mean_nothing(text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as error:
        parse_fault(text)
    assert len(str(error.value)) < 400


@given(st.text())
@example("delay time=%1000000000d")
def test_no_line_does_worse_than_be_refused(text: str) -> None:
    for line in (text, f"delay {text}", f"drop command={text}", f"slice size={text} pause={text}"):
        try:
            fault = parse_fault(line)
        except SettingsError:
            continue
        assert parse_fault(format_fault(fault)) == fault


@given(st.floats(0, 86_400))
@example(1 / 3)
@example(1e-320)
def test_times_are_kept_exactly(seconds: float) -> None:
    assert Delay(time=seconds).time == seconds


@given(st.integers(1, 10**9))
def test_sizes_are_kept_exactly(size: int) -> None:
    assert (Slice(size=size).size, Bandwidth(rate=size).rate) == (size, size)


def test_a_scenario() -> None:
    lines = ["drop command=SEND_RECEIPT nth=1", "delay time=200ms jitter=50ms direction=to-client"]
    lines += ["flip command=SEND,MESSAGE", "drop command=PONG", "blackhole", "bandwidth"]
    assert parse_scenario(SCENARIO) == Scenario(7, tuple(map(parse_fault, lines)))


@given(st.none() | st.integers(0, 10**18), st.lists(any_fault(), max_size=5))
def test_a_scenario_of_lines(seed: int | None, faults: list[Fault]) -> None:
    import yaml

    document = {"faults": [format_fault(fault) for fault in faults]} | (
        {} if seed is None else {"seed": seed}
    )
    assert parse_scenario(yaml.safe_dump(document)) == Scenario(seed, tuple(faults))


@pytest.mark.parametrize("word", ["yes", "null", "2001-01-01", "0x10", "1_000", "~", "1:30"])
def test_values_are_what_is_written(word: str) -> None:
    (fault,) = parse_scenario(f"faults: [drop: {{filter: {word}}}]").faults
    assert fault == Drop(filter=word)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a scenario is a mapping with a list `faults`"),
        ("drop", "a scenario is a mapping"),
        ("faults: drop", "a scenario is a mapping"),
        ("fualts: []", "fualts is unknown; did you mean faults"),
        ("seed: x\nfaults: []", "seed: x is not a whole number"),
        ("seed: -1\nfaults: []", "seed: -1 is not a whole number"),
        ("seed: [1]\nfaults: []", "is not a whole number"),
        ("seed: 1\nseed: 2", "a duplicate key in the mapping of line 1"),
        ("faults:\n- blackhole\n- drop: {nth: 1, nth: 2}", "a duplicate key in the mapping of line 3"),
        ("faults: [blackhole, drop: {nth: 0}]", "fault 2 of the scenario: drop: nth=0: give"),
        ("faults: [dorp]", "fault 1 of the scenario: fault dorp: unknown fault"),
        ("faults: [{drop: , delay: }]", "fault 1 of the scenario: give a name"),
        ("faults: [[drop]]", "fault 1 of the scenario: give a name"),
        ("faults: [drop: 1]", "fault 1 of the scenario: the parameters of drop must be a mapping"),
        ("faults: [drop: {nth: {a: b}}]", "fault 1 of the scenario: nth must be a value, or a list"),
        ("faults: [drop: {command: [[SEND]]}]", "command must be a value, or a list"),
        ("a: b: c", "not valid YAML in line 1: mapping values are not allowed"),
        ("faults: []\n---\nfaults: []", "found another document"),
        ("\x00", "special characters are not allowed"),
        ("faults: [&a blackhole, *a]", "the scenario has an alias"),
        ("faults: &a [*a]", "the scenario has an alias"),
        ("[" * 5_000, "nested too deeply"),
        ("{a: " * 5_000, "nested too deeply"),
        (" " * (LARGEST_SCENARIO + 1), "the limit is 1,048,576"),
        ("!!python/object/apply:os.system [ls]", "a scenario is a mapping"),
    ],
)
def test_scenarios_that_mean_nothing(text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as error:
        parse_scenario(text)
    assert "\n" not in str(error.value)


@given(st.text(alphabet="fault:s{}[]-&*!?|>'\"\n #,adropnth1é\t", max_size=60))
def test_no_scenario_does_worse_than_be_refused(text: str) -> None:
    for document in (text, f"faults: {text}", f"faults:\n- {text}"):
        with suppress(SettingsError):
            parse_scenario(document)


def test_every_fault_and_parameter_is_described() -> None:
    for each in FAULTS:
        assert each.describe().endswith(".")
        assert "\n" not in each.describe()
        assert all(text for _, _, text in each.list_parameters())
    assert [(name, default) for name, default, _ in Delay.list_parameters()] == [
        ("time", "100ms"),
        ("jitter", "0s"),
    ]
    assert BlackholeFault.list_parameters() == []
    common = [name for name, _, _ in Fault.list_parameters()]
    assert common[:4] == ["command", "topic", "filter", "direction"]
    assert not any(name in common for each in FAULTS for name, _, _ in each.list_parameters())
