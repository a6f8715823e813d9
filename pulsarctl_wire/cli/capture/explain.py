"""`pwire explain`: what a command, a field, an error, a protocol version or a rule means."""

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
    """Explain a command, field, error, protocol version or rule of doctor, by name or number.

    Without a TERM, list what can be explained.
    """
    from pulsarctl_wire.manual.explanations import everything, explanations_of, names

    found: list[Explanation] = []
    for term in _joined(options.terms):
        explanations = explanations_of(term)
        if not explanations:
            hint = did_you_mean(term, names()) or "; pwire explain lists what is known"
            console.fail(f"explain: {term[:100]} is unknown{hint}")
        found += explanations
    with console.errors_reported():
        if options.output == "json":
            from pulsarctl_wire.render.jsonl import json_line

            out = b"".join(json_line(_record(each)) for each in found or everything())
        else:
            paint = Paint(console.use_colour(sys.stdout))
            width = min(console.terminal_width(sys.stdout) or _WIDTH, _WIDTH)
            texts = [_text(each, paint, width) for each in found] or [_list(everything(), paint, width)]
            out = "\n".join(texts).encode("utf-8", "backslashreplace")
        sys.stdout.buffer.write(out)
        sys.stdout.buffer.flush()


def _joined(words: list[str]) -> Iterator[str]:
    """Yield the terms. A number may belong to the words before it: `command 7`, `protocol version 12`."""
    from pulsarctl_wire.manual.explanations import explanations_of

    at = 0
    while at < len(words):
        ends = [end for end in (at + 3, at + 2) if words[at:end][-1].isdigit()]
        term = next((" ".join(words[at:end]) for end in ends), "")
        if not explanations_of(term):
            term = words[at]
        yield term
        at += term.count(" ") + 1


def _record(found: Explanation) -> dict[str, object]:
    """Return a line of `-o json`."""
    return {**found._asdict(), "members": [each._asdict() for each in found.members]}


def _text(found: Explanation, paint: Paint, width: int) -> str:
    """Format an explanation as lines."""
    kind = found.kind if found.number is None else f"{found.kind} {found.number}"
    lines = [f"{paint('bold', found.name)}  {kind}", *_wrapped(found.about, 2, width)]
    margin = max(map(len, found.sections), default=0) + 4
    for label, text in found.sections.items():
        first, *rest = _wrapped(text, margin, width)
        lines += [f"  {paint('dim', label)}{first[len(label) + 2 :]}", *rest]
    for each in found.members:
        about = ". ".join(filter(None, (each.type, each.about)))
        first, *rest = _wrapped(f"{each.name}: {about}" if about else each.name, 7, width)
        lines += [f"{each.number:>6} {paint('cyan', each.name)}{first[7 + len(each.name) :]}", *rest]
    return "".join(f"{line}\n" for line in lines)


_TOO_MANY: Final = {
    "field": "COMMAND.FIELD, MESSAGE.FIELD or FIELD, as in SEND.sequence_id, sequence_id",
    "value": "ENUM.VALUE or VALUE, as in SubType.Failover, Failover",
}
"""Kinds that are not listed -> how to name them."""


def _list(known: list[Explanation], paint: Paint, width: int) -> str:
    """List what can be explained, by kind."""
    lines = []
    ordered = sorted(known, key=lambda each: (each.kind, each.number or 0))
    for kind, found in groupby(ordered, lambda each: each.kind):
        names = _TOO_MANY.get(kind) or ", ".join(each.name for each in found)
        lines += [paint("bold", f"{kind}s"), *_wrapped(names, 2, width)]
    return "".join(f"{line}\n" for line in lines)


def _wrapped(text: str, margin: int, width: int) -> list[str]:
    indent = " " * margin
    return wrap(
        text,
        max(width, margin + 20),
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
