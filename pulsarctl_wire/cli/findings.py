"""Options of the doctor that several commands share, and what they print while it looks at live traffic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from pulsarctl_wire.cli import completion, console
from pulsarctl_wire.cli.signature import option, several
from pulsarctl_wire.render.text import count_of, did_you_mean

if TYPE_CHECKING:
    from pulsarctl_wire.checks.doctor import Doctor, OnFinding
    from pulsarctl_wire.checks.finding import Finding
    from pulsarctl_wire.checks.rule import Rule, Thresholds
    from pulsarctl_wire.record import FindPacket
    from pulsarctl_wire.render.findings import Lines
    from pulsarctl_wire.render.line import TimeFormatter
    from pulsarctl_wire.render.text import Paint

FailOn = Literal["any", "certain", "error", "never"]
"""Which findings make the command fail."""

EXIT_FOUND: Final = 1
"""The exit code if something was found."""


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """Which rules apply, and their thresholds in seconds."""

    only: list[str] = several(
        "--only RULE", "Apply only these rules; pwire explain lists them.", autocompletion=completion.rules
    )
    ignore: list[str] = several("--ignore RULE", "Do not apply these rules.", autocompletion=completion.rules)
    quiet_for: float = option(
        "-T --quiet-for SECONDS", "A consumer that gets nothing is stalled.", default=30.0, min=0.1
    )
    unacked_for: float = option(
        "-A --unacked-for SECONDS", "A message is unacknowledged for too long.", default=90.0, min=0.1
    )
    unanswered_for: float = option(
        "-R --unanswered-for SECONDS", "A request or SEND is unanswered for too long.", default=30.0, min=0.1
    )

    def check(self, doctor: bool) -> None:
        """End the command if an option is given without --doctor."""
        if self != CheckOptions() and not doctor:
            console.fail("--only, --ignore, -T, -A and -R need --doctor")

    def pick_rules(self) -> tuple[type[Rule], ...]:
        """Return the rules that apply. Unknown names end the command."""
        from pulsarctl_wire.checks.registry import RULES

        ids = [rule.id for rule in RULES]
        only, ignored = _parse_rules("--only", self.only, ids), _parse_rules("--ignore", self.ignore, ids)
        return tuple(rule for rule in RULES if (not only or rule.id in only) and rule.id not in ignored)

    def make_thresholds(self) -> Thresholds:
        """Return the thresholds in ns."""
        from pulsarctl_wire.checks.rule import SECOND, Thresholds

        seconds = (self.quiet_for, self.unacked_for, self.unanswered_for)
        return Thresholds(*(int(value * SECOND) for value in seconds))

    def make_doctor(self, *, live: bool = False, on_finding: OnFinding | None = None) -> Doctor:
        """Make a doctor with these rules and thresholds."""
        from pulsarctl_wire.checks.doctor import Doctor

        return Doctor(self.pick_rules(), self.make_thresholds(), live=live, on_finding=on_finding or _ignore)


def _ignore(finding: Finding, is_new: bool) -> None:
    pass


class FindingPrinter:
    """Prints each finding at once, and again when it has become certain. Its instances are `OnFinding`s.

    Text output leaves out findings that are like earlier ones, unless `each` is true. `write` gets what is
    printed. `find_packet` is as in `Recorder`.
    """

    def __init__(
        self,
        output: str,
        paint: Paint,
        clock: TimeFormatter,
        write: Callable[[bytes], object],
        width: int | None = None,
        *,
        each: bool = False,
        find_packet: FindPacket | None = None,
    ) -> None:
        from pulsarctl_wire.checks.folding import Folder
        from pulsarctl_wire.render.findings import MAX_ALIKE, FindingText

        self._max_alike = MAX_ALIKE
        self._shows_each = each or output == "json"
        self._folder = Folder()
        self._causes: Counter[int] = Counter()
        self._output = output
        self._find_packet = find_packet
        self._text = FindingText(paint, clock, width)
        self._put = write
        self._alike: Counter[tuple[str, int]] = Counter()
        self._certainty: dict[int, str] = {}  # of findings that were printed, by their identity

    def __call__(self, finding: Finding, is_new: bool) -> None:
        """Print a finding, if anything about it is new."""
        if is_new and not self._shows_each and self._is_left_out(finding):
            return
        printed_certainty = self._certainty.get(id(finding))
        if is_new or (printed_certainty and printed_certainty != finding.certainty):
            self._certainty[id(finding)] = finding.certainty
            self._put(self.format(finding, {}))

    def _is_left_out(self, finding: Finding) -> bool:
        """Return whether to leave out a new finding, as it is like others.

        Print a note when the first one is left out.
        """
        cause, key = self._folder.find_group(finding), (finding.rule, finding.connection.index)
        self._causes[cause] += 1
        if self._causes[cause] > 1:
            count, limit, common = self._causes[cause], 1, "of the same cause"
        else:
            self._alike[key] += 1
            count, limit, common = self._alike[key], self._max_alike, "on this connection"
        if count == limit + 1:
            self._put(f"… more {finding.rule} {common}; the last line counts all\n".encode())
        return count > limit

    def format(self, finding: Finding, lines: Lines) -> bytes:
        """Format a finding as a JSON line or as text; `lines` has the frames that can be shown in full."""
        if self._output == "json":
            from pulsarctl_wire.record import find_no_packet
            from pulsarctl_wire.render.findings import finding_record
            from pulsarctl_wire.render.jsonl import json_line

            return json_line(finding_record(finding, self._find_packet or find_no_packet))
        return self._text(finding, lines).encode("utf-8", "backslashreplace")


def _parse_rules(flag: str, texts: list[str], ids: list[str]) -> set[str]:
    names = {name.strip().lower().replace("-", "_") for text in texts for name in text.split(",")}
    for name in names:
        if name not in ids:
            hint = did_you_mean(name, ids) or "; pwire explain lists them"
            console.fail(f"{flag} {name}: no such rule{hint}")
    return names


def choose_exit_code(findings: Iterable[Finding], fail_on: FailOn) -> int:
    """Return `EXIT_FOUND` if a finding is of a kind that `fail_on` names, otherwise 0."""
    conditions: dict[str, Callable[[Finding], bool]] = {
        "any": lambda finding: True,
        "certain": lambda finding: finding.certainty == "certain",
        "error": lambda finding: finding.severity == "error",
        "never": lambda finding: False,
    }
    return EXIT_FOUND if any(map(conditions[fail_on], findings)) else 0


def summarize(doctor: Doctor, *, each: bool = False) -> str:
    """Summarize in one line: what was examined, what was found, and what could not be judged.

    Findings of one cause count once, unless `each` is true.
    """
    from pulsarctl_wire.checks.folding import fold

    counts = doctor.connection_counts
    findings = list(doctor.findings.values()) if each else fold(doctor.findings.values())
    certain = sum(finding.certainty == "certain" for finding in findings)
    text = f"{count_of(len(findings), 'finding')} ({certain} certain" if findings else "nothing found"
    if findings:
        total = len(doctor.findings)
        text += f"; {total} with all of the same cause)" if total > len(findings) else ")"
    text += f" in {count_of(counts['connections'], 'connection')} by {count_of(doctor.rule_count, 'rule')}"
    limits = {
        "encrypted": "encrypted",
        "joined": "joined midway, so without what began before",
        "holes": "with missing bytes, so without rules that count or pair",
    }
    text += "".join(f"; {counts[name]} {label}" for name, label in limits.items() if counts[name])
    if not doctor.facts.has_all_bytes:
        text += "; rules across connections are off since bytes are missing"
    if doctor.withdrawn_count:
        text += (
            f"; {count_of(doctor.withdrawn_count, 'finding')} withdrawn, as bytes turned out to be missing"
        )
    if doctor.omitted_count:
        text += f"; {doctor.omitted_count} more findings are left out"
    return text
