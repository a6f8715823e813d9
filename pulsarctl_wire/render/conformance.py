"""Reports of `pwire conform`: as text, Markdown and JUnit's XML; and several of them side by side.

A report is a dict of JSON values (docs/conformance.md). Its texts may be a broker's: they are made safe here.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final
from xml.etree import ElementTree

from pulsarctl_wire.checks.requirement import LEVELS
from pulsarctl_wire.render.text import Paint, clean, count_of

Report = dict[str, Any]
Rows = list[list[str]]

_VERDICTS: Final = ("passed", "failed", "error", "not applicable")
_COLOURS: Final = {"passed": "green", "failed": "red", "error": "yellow", "not applicable": "dim"}
_ABSENT: Final = "—"
_SHOWN: Final = 10  # lines that a client has written last


def text_of(report: Report, paint: Paint, *, frames: bool = False) -> str:
    """Return a report as text: counts, what has failed (with its `frames`), what was not judged, and why."""
    lines = [f"{paint('bold', clean(report['target']))}  {clean(_about(report))}"]
    if report["settings"]:
        lines.append(f"settings: {', '.join(report['settings'])}")
    lines += ["", *_align([["", *_VERDICTS], *_count_rows(report)]), ""]
    for level in LEVELS:
        failures = _select(report, "failed", level)
        if failures:
            lines += [paint("bold", f"failed, {level}")]
            for case in failures:
                lines += _describe(case, paint, frames)
            lines.append("")
    errors = _select(report, "error")
    if errors:
        lines.append(paint("bold", "not judged"))
        lines += [f"  {paint('yellow', case['id'])}  {clean(case['reason'])}" for case in errors]
        lines.append("")
    obstacles = Counter(case["reason"] for case in _select(report, "not applicable"))
    if obstacles:
        lines.append(paint("bold", "not applicable"))
        lines += [f"  {number:>4}  {clean(reason)}" for reason, number in obstacles.most_common()]
        lines.append("")
    return "\n".join(lines)


def _about(report: Report) -> str:
    date = report["date"].replace("T", " ").partition(".")[0]
    version = f"protocol version {report['protocol_version']}"
    return f"{report['server']}, {version}; {date}, {report['seconds']:.0f} s; pwire {report['pwire']}"


def _select(report: Report, verdict: str, level: str = "") -> list[dict[str, Any]]:
    return [case for case in report["cases"] if case["verdict"] == verdict and level in ("", case["level"])]


def _count_rows(report: Report) -> Rows:
    counts = report["counts"]
    return [[level, *(str(counts[level][verdict]) for verdict in _VERDICTS)] for level in counts]


def _align(rows: Rows) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            text.rjust(width) if index else text.ljust(width)
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _describe(case: dict[str, Any], paint: Paint, frames: bool) -> list[str]:
    lines = [f"  {paint('red', case['id'])}  {clean(case['requirement'])}"]
    expected = clean(case["expected"])
    what = f" ({clean(case['what'])})" if "what" in case else ""
    lines += [f"    expected  {expected}{what}", f"    actual    {clean(case['actual'])}"]
    if frames:
        lines += [paint("dim", f"      {clean(line)}") for line in case["frames"]]
    lines += [paint("dim", f"    client    {clean(line)}") for line in case.get("output", [])[-_SHOWN:]]
    return lines


# -- Markdown


def markdown_of(report: Report) -> str:
    """Return a report as Markdown."""
    lines = [f"# {_escape(report['target'])}", "", _escape(_about(report)), ""]
    lines += _table(["level", *_VERDICTS], _count_rows(report))
    for level in LEVELS:
        failures = _select(report, "failed", level)
        if failures:
            rows = [
                [f"`{case['id']}`", _escape(case["expected"]), _escape(case["actual"])] for case in failures
            ]
            lines += [f"## Failed: {level}", "", *_table(["case", "expected", "actual"], rows)]
    errors = [_code_row(case, "reason") for case in _select(report, "error")]
    if errors:
        lines += ["## Not judged", "", *_table(["case", "reason"], errors)]
    obstacles = Counter(case["reason"] for case in _select(report, "not applicable"))
    if obstacles:
        rows = [[str(number), _escape(reason)] for reason, number in obstacles.most_common()]
        lines += ["## Not applicable", "", *_table(["cases", "reason"], rows)]
    return "\n".join(lines)


def _code_row(case: dict[str, Any], *keys: str) -> list[str]:
    return [f"`{case['id']}`", *(_escape(case[key]) for key in keys)]


def _table(head: Sequence[str], rows: Rows) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)] + [""]


def _escape(text: str) -> str:
    return "".join(f"\\{char}" if char in r"\`*_{}[]<>|#" else char for char in clean(text))


# -- JUnit


def junit_of(report: Report) -> bytes:
    """Return a report as JUnit's XML: a suite for each topic of cases."""
    root = ElementTree.Element("testsuites", name=clean(report["target"]), time=f"{report['seconds']:.3f}")
    topics = dict.fromkeys(case["id"].partition("/")[0] for case in report["cases"])
    for topic in topics:
        cases = [case for case in report["cases"] if case["id"].partition("/")[0] == topic]
        verdicts = Counter(case["verdict"] for case in cases)
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=topic,
            tests=str(len(cases)),
            failures=str(verdicts["failed"]),
            errors=str(verdicts["error"]),
            skipped=str(verdicts["not applicable"]),
            timestamp=report["date"],
        )
        for case in cases:
            _add_case(suite, case)
    ElementTree.indent(root)
    data: bytes = ElementTree.tostring(root, "utf-8", xml_declaration=True)
    return data + b"\n"


def _add_case(suite: ElementTree.Element, case: dict[str, Any]) -> None:
    topic, _, name = case["id"].partition("/")
    seconds = f"{case['seconds']:.3f}"
    element = ElementTree.SubElement(suite, "testcase", classname=topic, name=name, time=seconds)
    if case["verdict"] == "failed":
        expected, actual = clean(case["expected"]), clean(case["actual"])
        failure = ElementTree.SubElement(
            element, "failure", message=f"expected {expected}; {actual}", type=case["level"]
        )
        lines = [case["requirement"], *case["frames"], *case.get("output", [])]
        failure.text = "\n".join(map(clean, lines))
    elif case["verdict"] == "error":
        ElementTree.SubElement(element, "error", message=clean(case["reason"]), type=case["level"])
    elif case["verdict"] == "not applicable":
        ElementTree.SubElement(element, "skipped", message=clean(case["reason"]))


# -- several reports


def _compare(reports: Sequence[Report]) -> tuple[Rows, Counter[tuple[str, str]]]:
    """Return a row for each case whose verdicts differ, and how many have the same, by level and verdict."""
    verdicts = [{case["id"]: case["verdict"] for case in report["cases"]} for report in reports]
    levels = {case["id"]: case["level"] for report in reports for case in report["cases"]}
    rows, alike = [], Counter[tuple[str, str]]()
    for level in LEVELS:
        for name in (name for name in levels if levels[name] == level):
            cells = [of_report.get(name, _ABSENT) for of_report in verdicts]
            if len(set(cells)) > 1:
                rows.append([name, level, *cells])
            else:
                alike[level, cells[0]] += 1
    return rows, alike


def _targets(reports: Sequence[Report]) -> Iterator[str]:
    for number, report in enumerate(reports, 1):
        yield f"{number}: {clean(report['target'])}, {clean(_about(report))}"


def comparison_text(reports: Sequence[Report], paint: Paint) -> str:
    """Return several reports side by side, as text: what differs, then how much is the same."""
    rows, alike = _compare(reports)
    lines = [*_targets(reports), ""]
    if rows:
        head = ["case", "level", *(str(number) for number in range(1, len(reports) + 1))]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        for row in (head, *rows):
            cells = [
                paint(_COLOURS[text], text.ljust(width)) if text in _COLOURS else text.ljust(width)
                for text, width in zip(row, widths, strict=True)
            ]
            lines.append("  ".join(cells).rstrip())
    lines += [f"{count_of(len(rows), 'difference')}", "", "alike:"]
    lines += [f"  {number:>4}  {level}, {verdict}" for (level, verdict), number in alike.items()]
    return "\n".join(lines) + "\n"


def comparison_markdown(reports: Sequence[Report]) -> str:
    """Return several reports side by side, as Markdown."""
    rows, alike = _compare(reports)
    lines = [f"- {_escape(target)}" for target in _targets(reports)]
    head = ["case", "level", *(str(number) for number in range(1, len(reports) + 1))]
    lines += ["", "## Differences", "", *_table(head, [[f"`{row[0]}`", *row[1:]] for row in rows])]
    same = [[level, verdict, str(number)] for (level, verdict), number in alike.items()]
    lines += ["## Alike", "", *_table(["level", "verdict", "cases"], same)]
    return "\n".join(lines)
