"""The examples of docs/extending.md as modules."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCUMENT = Path(__file__).parent.parent / "docs" / "extending.md"


def _examples() -> dict[str, str]:
    """Heading -> the code below it."""
    sections = [part.partition("\n") for part in DOCUMENT.read_text("utf-8").split("\n## ")[1:]]
    return {heading: text.split("```python\n")[1].split("```\n")[0] for heading, _, text in sections}


EXAMPLES = _examples()


def module(heading: str, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example below a heading, imported as the module of this name."""
    made = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, made)
    exec(compile(EXAMPLES[heading], f"{DOCUMENT.name}: {heading}", "exec"), made.__dict__)
    return made
