"""The cases of all rows of reactions.tsv: importing this registers them."""

from importlib import import_module
from pathlib import Path

from broker.probe import CASES

for _path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
    import_module(f"broker.cases.{_path.stem}")

__all__ = ["CASES"]
