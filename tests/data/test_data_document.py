"""The examples of docs/data.md give what it shows."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```pycon\n(.*?)```", DOCUMENT, re.DOTALL)
OF_SPARK = [example for example in EXAMPLES if "spark=spark" in example]


def run(examples: list[str], names: dict[str, Any]) -> None:
    """Run examples one after the other; they must print what is shown."""
    said: list[str] = []
    test = doctest.DocTestParser().get_doctest("".join(examples), names, "data.md", None, None)
    failed, tried = doctest.DocTestRunner().run(test, out=said.append)
    assert not failed, "".join(said)
    assert tried


def test_the_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    run([example for example in EXAMPLES if example not in OF_SPARK], {})


@pytest.mark.slow
def test_the_examples_with_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    from pulsarctl_wire import data

    monkeypatch.chdir(ROOT)
    run(OF_SPARK, {"data": data, "spark": spark})
