"""Writes what brokers and clients were seen to do into docs/conformance.md:

pwire conform broker pulsar://… --admin-url http://… --level observed -o json > one.json      for each
python tests/conformance/results.py one.json two.json …
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from pulsarctl_wire.render.conformance import comparison_markdown

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "conformance.md"
BEGIN: Final = "<!-- results: written by tests/conformance/results.py -->\n"
END: Final = "<!-- end of results -->\n"


def main() -> None:
    """Replace the results in the document by those of reports."""
    reports = [json.loads(Path(path).read_text()) for path in sys.argv[1:]]
    for report in reports:
        report["target"] = report["target"].rpartition("//")[0] + "//localhost"  # ports say nothing
    head, begin, rest = DOCUMENT.read_text().partition(BEGIN)
    tail = rest.partition(END)[2] if begin else ""
    text = comparison_markdown(reports).replace("\n## ", "\n### ")
    DOCUMENT.write_text(f"{head.rstrip()}\n\n{BEGIN}\n{text.strip()}\n\n{END}{tail}")


if __name__ == "__main__":
    main()
