"""`pwire explain`: what a command, a field, an error, a protocol version, a rule or a case means."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING, Final, Literal

from pulsarctl_wire.cli import completion, console
from pulsarctl_wire.cli.options import OUTPUT
from pulsarctl_wire.cli.signature import argument
from pulsarctl_wire.render.text import Paint, did_you_mean

if TYPE_CHECKING:
    from pulsarctl_wire.manual.explanations import Explanation

_WIDTH: Final = 100  # cells of a line, unless the terminal is narrower


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    """The command line of `explain`."""

    terms: list[str] = argument(
        "TERM...",
        "SEND_RECEIPT, SEND.sequence_id, TopicNotFound, Failover, v12, command 7, error 11, 6 …",
        default=list,
        autocompletion=completion.terms,
    )
    output: Literal["text", "json"] = OUTPUT(default="text")


def explain(options: ExplainOptions) -> None:
    """Explain a command, field, error, version, rule of doctor or case of conform, by name.

    Without a TERM, list what can be explained.
    """
    from pulsarctl_wire.manual.explanations import find_explanations, list_explanations, list_names

    entries: list[Explanation] = []
    for term in _join_terms(options.terms):
        matches = find_explanations(term) or _find_case(term)
        if not matches:
            hint = did_you_mean(term, list_names()) or "; pwire explain lists what is known"
            console.fail(f"explain: {term[:100]} is unknown{hint}")
        entries += matches
    with console.errors_reported():
        if options.output == "json":
            from pulsarctl_wire.render.jsonl import json_line

            out = b"".join(json_line(_record(entry)) for entry in entries or list_explanations())
        else:
            paint = Paint(console.has_colour(sys.stdout))
            width = min(console.terminal_width(sys.stdout) or _WIDTH, _WIDTH)
            texts = [_text(entry, paint, width) for entry in entries]
            texts = texts or [_list(list_explanations(), paint, width)]
            out = "\n".join(texts).encode("utf-8", "backslashreplace")
        sys.stdout.buffer.write(out)
        sys.stdout.buffer.flush()


def _join_terms(words: list[str]) -> Iterator[str]:
    """Yield the terms. A number may belong to the words before it: `command 7`, `protocol version 12`."""
    from pulsarctl_wire.manual.explanations import find_explanations

    index = 0
    while index < len(words):
        ends = [end for end in (index + 2, index + 3) if words[index:end][-1].isdigit()]
        end = next((end for end in ends if find_explanations(" ".join(words[index:end]))), index + 1)
        yield " ".join(words[index:end])
        index = end


def explain_rule(rule: str) -> list[str]:
    """Return lines about a rule of the doctor, for people, with escape sequences for colours."""
    from pulsarctl_wire.manual.explanations import find_explanations

    return "".join(_text(entry, Paint(True), _WIDTH) for entry in find_explanations(rule)).splitlines()


def _find_case(term: str) -> list[Explanation]:
    """Return the case of `pwire conform` with this id, if there is one."""
    if "/" not in term:
        return []
    from pulsarctl_wire.conformance.catalog import CASES, load_client_cases
    from pulsarctl_wire.manual.explanations import Explanation

    case = CASES.get(term) or load_client_cases().get(term)
    if case is None:
        return []
    texts = case.paragraphs
    sections = {"expected": texts["Expected"], "level": case.level, "needs": ", ".join(case.needs)}
    sections |= {"without": ", ".join(case.without), "since": case.since, "source": texts["Source"]}
    nonempty = {label: text for label, text in sections.items() if text}
    return [Explanation("case", case.id, None, texts[""], nonempty, [])]


def _record(explanation: Explanation) -> dict[str, object]:
    """Return the record of an explanation for `-o json`."""
    return {**explanation._asdict(), "members": [member._asdict() for member in explanation.members]}


def _text(explanation: Explanation, paint: Paint, width: int) -> str:
    """Format an explanation as lines."""
    kind = explanation.kind if explanation.number is None else f"{explanation.kind} {explanation.number}"
    lines = [f"{paint('bold', explanation.name)}  {kind}", *_wrap(explanation.about, 2, width)]
    margin = max(map(len, explanation.sections), default=0) + 4
    for label, text in explanation.sections.items():
        first, *tail = _wrap(text, margin, width)
        lines += [f"  {paint('dim', label)}{first[len(label) + 2 :]}", *tail]
    for member in explanation.members:
        about = ". ".join(filter(None, (member.type, member.about)))
        first, *tail = _wrap(f"{member.name}: {about}" if about else member.name, 7, width)
        lines += [f"{member.number:>6} {paint('cyan', member.name)}{first[7 + len(member.name) :]}", *tail]
    return "".join(f"{line}\n" for line in lines)


_TOO_MANY: Final = {
    "field": "COMMAND.FIELD, MESSAGE.FIELD or FIELD, as in SEND.sequence_id, sequence_id",
    "value": "ENUM.VALUE or VALUE, as in SubType.Failover, Failover",
}
"""Kinds with too many members to list -> how to name one of them."""


def _list(explanations: list[Explanation], paint: Paint, width: int) -> str:
    """List what can be explained, by kind."""
    lines = []
    ordered = sorted(explanations, key=lambda entry: (entry.kind, entry.number or 0))
    for kind, group in groupby(ordered, lambda entry: entry.kind):
        names = _TOO_MANY.get(kind) or ", ".join(entry.name for entry in group)
        lines += [paint("bold", f"{kind}s"), *_wrap(names, 2, width)]
    return "".join(f"{line}\n" for line in lines)


def _wrap(text: str, margin: int, width: int) -> list[str]:
    indent = " " * margin
    return wrap(
        text,
        max(width, margin + 20),
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
