"""What --fault and --scenario mean."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.options import SelectOptions

if TYPE_CHECKING:
    from pulsarctl_wire.cli.proxy.options import FaultOptions
    from pulsarctl_wire.faults.base import Fault
    from pulsarctl_wire.faults.lanes import Faults


def faults_of(options: FaultOptions) -> Faults:
    """The faults of `--fault` and `--scenario`. Raises SettingsError, FilterError."""
    from random import SystemRandom

    from pulsarctl_wire.faults.lanes import Faults
    from pulsarctl_wire.faults.text import parse_fault, parse_scenario

    seed = options.seed
    wanted: list[Fault] = []
    if options.scenario:
        path = options.scenario
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not UTF-8 text"
            console.fail(f"--scenario {path}: {why}", console.EXIT_SOURCE)
        found = parse_scenario(text)
        seed = found.seed if seed is None else seed
        wanted += found.faults
    wanted += map(parse_fault, options.fault)
    faults = Faults(SystemRandom().randrange(2**32) if seed is None else seed, tester)
    for fault in wanted:
        faults.add(fault)
    return faults


def tester(fault: Fault) -> Callable[[Any], bool] | None:
    """The test for a fault's topics and filter, which work as in decode. Raises FilterError."""
    from pulsarctl_wire.cli.capture import select

    tests = select.tests(SelectOptions(topics=list(fault.topic)))
    if fault.filter:
        from pulsarctl_wire.record import Recorder

        recorder = Recorder(show_secrets=True)
        tests.append(select.Expression(fault.filter, recorder, f"{fault.name}: filter"))
    return (lambda frame: all(test(frame) for test in tests)) if tests else None
