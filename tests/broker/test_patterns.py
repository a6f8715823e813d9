"""Regular expressions of clients: what they match, in bounded time."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsarctl_wire.broker.patterns import Pattern, TooMuch

TEXTS = ["", "a", "b", "ab", "aab", "abc", "A-b_1", "public/default/t", "a\n", "x" * 300, "ab" * 200]
PATTERNS = [
    *("a*", "(a|b)+", "a?b{2,3}", "[^a]*", "[a-c]+", ".*", "^a.*b$", r"\w+\W\w+", r".*\d", "(?i)a-B.1"),
    *("(?!a).*", "(?!.*b).*", "a(?=b).*", ".*(?<=b)c", ".*(?<!a)b", r"\bpublic\b.*", "(a+)+", "(x|xx)*"),
    *(
        "public/default/(t|u)",
        ".*/.*/.*",
        "(?s).*",
        "(?:ab){200}",
        "((a*)*)*b",
        "a{0}",
        "",
        r"\S*",
        "(ab|a)*b?",
    ),
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_automaton_matches_as_re_does(pattern: str) -> None:
    quick, ours = re.compile(pattern), Pattern(pattern)
    ours._is_harmless = False
    texts = [text for text in TEXTS if len(text) < 20 or not any(it in pattern for it in (")+", ")*"))]
    assert ours.select(texts) == [quick.fullmatch(text) is not None for text in texts]


@given(st.text("ab(|)*+?.[]^$", max_size=10), st.text("ab", max_size=8))
def test_any_pattern(pattern: str, text: str) -> None:
    try:
        quick = re.compile(pattern)
    except re.error:
        return
    try:
        ours = Pattern(pattern)
    except TooMuch:
        return
    ours._is_harmless = False
    assert ours.select([text]) == [quick.fullmatch(text) is not None]


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|a)*b", "(a|aa)+b", "(.*)*c", "(a*a*)*b", "(?=(a+)+b).*", "a?" * 25 + "a" * 25]
)
def test_bombs_take_no_time(pattern: str) -> None:
    wanted = "b" not in pattern and "c" not in pattern
    assert Pattern(pattern).select(["a" * 5_000, "a" * 40]) == [wanted and "?" not in pattern, wanted]


def test_a_list_of_bombs_is_given_up() -> None:
    found = Pattern(".*(?=.*.*.*.*b).*").select(["a" * 5_000] * 1000)
    assert not any(found)


@pytest.mark.parametrize(
    "pattern", ["((((a{999}){999}){999}){999}){999}", "((((){999}){999}){999}){999}", r"(a)\1"]
)
def test_what_is_not_supported(pattern: str) -> None:
    with pytest.raises(TooMuch):
        Pattern(pattern)
