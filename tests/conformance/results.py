"""Writes what brokers and clients were seen to do into docs/conformance.md, one section or both:

pwire conform broker pulsar://… --admin-url http://… --level observed -o json > reports/broker.json  # each
PWIRE_REPORTS=$PWD/reports python -m pytest -m '' tests/interop/test_client_conform.py  # all clients
PYTHONPATH=tests python tests/conformance/results.py reports/*.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from conformance.client_failures import FAILURES

from pulsarctl_wire.conformance.report import Report
from pulsarctl_wire.render.conformance import comparison_markdown

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "conformance.md"
CLIENTS: Final = {"java": "Java", "wheel": "Python (C++)", "go": "Go", "pwire": "pwire"}
"""Names of the clients in `FAILURES`."""


def write(section: str, text: str) -> None:
    """Replace a section of the document, which stands between two comments."""
    begin, end = (
        f"<!-- {section}: written by tests/conformance/results.py -->\n",
        f"<!-- end of {section} -->\n",
    )
    head, _, rest = DOCUMENT.read_text().partition(begin)
    tail = rest.partition(end)[2]
    DOCUMENT.write_text(f"{head}{begin}\n{text.strip()}\n\n{end}{tail}")


def compare(reports: Sequence[Report]) -> str:
    """Return reports side by side, as parts of a section."""
    return comparison_markdown(reports).replace("\n## ", "\n### ")


def explain(client: str, report: Report) -> list[str]:
    """Return rows that say what a client does in the cases that it fails."""
    levels = {case["id"].removeprefix("client/"): case["level"] for case in report["cases"]}
    return [
        f"| {CLIENTS[client]} | `{name}` | {levels[name]} | {does} |"
        for name, does in FAILURES[client].items()
    ]


def main() -> None:
    """Replace the results in the document by those of reports."""
    brokers: list[Report] = []
    clients: dict[str, Report] = {}
    for path in map(Path, sys.argv[1:]):
        report = json.loads(path.read_text())
        _, _, client = path.stem.partition("client-")
        if client:
            clients[client] = report | {"target": CLIENTS[client]}
        else:
            scheme = report["target"].rpartition("//")[0]
            brokers.append(report | {"target": f"{scheme}//localhost"})  # ports say nothing
    if brokers:
        write("results of brokers", compare(brokers))
    if clients:
        order = [client for client in CLIENTS if client in clients]
        rows = [row for client in order for row in explain(client, clients[client])]
        table = [
            "### Causes",
            "",
            "| client | case | level | what it does instead |",
            "|---|---|---|---|",
            *rows,
        ]
        write("results of clients", "\n".join([compare([clients[client] for client in order]), *table]))


if __name__ == "__main__":
    main()
