"""What is wrong with captured or live traffic: rules, each a class with its documentation."""

from typing import Final

from pulsarctl_wire.checks.producers import BacklogQuotaExceeded
from pulsarctl_wire.checks.rule import Rule

RULES: Final[tuple[type[Rule], ...]] = (
    # producers
    BacklogQuotaExceeded,
)
"""All rules, in the order of docs/doctor.md."""
