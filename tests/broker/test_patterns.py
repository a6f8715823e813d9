"""Regular expressions of clients: what they match, in bounded time."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pulsarctl_wire.broker.basics.patterns import Pattern, TooComplex

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
def test_what_matches(pattern: str) -> None:
    texts = [text for text in TEXTS if len(text) < 20 or not any(it in pattern for it in (")+", ")*"))]
    assert Pattern(pattern).select(texts) == [re.fullmatch(pattern, text) is not None for text in texts]


@pytest.mark.filterwarnings("ignore:Possible (nested set|set union):FutureWarning")  # `re` says so of [[, [||
@given(st.text("ab(|)*+?.[]^$", max_size=10), st.text("ab", max_size=8))
@example("[?||", "a")
@example("[[a]", "a")
def test_any_pattern(pattern: str, text: str) -> None:
    try:
        plain = re.compile(pattern)
        ours = Pattern(pattern)
    except re.error:
        return
    assert ours.select([text]) == [plain.fullmatch(text) is not None]


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(a|aa)+b", "(a{1,30}){1,30}b", "(.*)*c", "(?=(a+)+b).*", ".*(?=.*.*.*.*b).*"]
)
def test_bombs_match_nothing(pattern: str) -> None:
    assert not any(Pattern(pattern).select(["a" * 5_000] * 100))


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        *(
            ("[{]", "{"),
            ("[(?]", "?"),
            (r"[a\]{]", "{"),
            ("[]a{]", "]"),
            ("[[:alpha:]{]", "{"),
            (r"[\p{L}{]", "{"),
        ),
        *(("a{b}", "a{b}"), ("a{,3}", "a{,3}"), ("a{e}", "a{e}"), ("(?:a){e<=1}", "a{e<=1}"), ("a{}", "a{}")),
        *((r"\Q{(?\E", "{(?"), (r"\Q[\E{", "[{"), (r"\Qa+", "a+"), ("(?P<n>a)", "a"), (r"\pL{2}", "ab")),
        ("a{0003}", "aaa"),
    ],
)
def test_literals_as_re2j_reads_them(pattern: str, text: str) -> None:
    """The texts that RE2/J 1.8 matches by these patterns."""
    assert Pattern(pattern).select([text, text + "a", "a" * 9]) == [True, False, False]


@pytest.mark.parametrize(
    "pattern",
    ["(((a{999}){999}){999}){999}", "a{1001}", f"a{{{'9' * 4_500}}}", "(" * 2_000 + ")" * 2_000, "a" * 5_001],
)
def test_what_is_too_large(pattern: str) -> None:
    with pytest.raises(TooComplex):
        Pattern(pattern)


@pytest.mark.parametrize("pattern", ["(", "a**", "(?R)", "(?&x)", "(?(1)a|b)", "(?P>x)", "(?1)", "[{](?R)"])
def test_what_is_wrong(pattern: str) -> None:
    with pytest.raises(re.error):
        Pattern(pattern)
