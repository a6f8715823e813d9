"""What happens again and again is said a few times, and counted."""

from pulsarctl_wire.net.driver import LONGEST, MAX_WARNINGS, Warnings


def test_repeated_warnings_are_counted() -> None:
    said: list[str] = []
    warn = Warnings(said.append)
    for number in range(MAX_WARNINGS + 1234):
        warn(f"frame {number}", "odd frames")
        warn("another", "others") if number < MAX_WARNINGS else None
    warn.close()
    assert said.count("another") == MAX_WARNINGS
    assert [each for each in said if each.startswith("frame")] == [f"frame {n}" for n in range(MAX_WARNINGS)]
    assert said[-1] == "odd frames: 1,234 more times"
    assert len(said) == 2 * MAX_WARNINGS + 1
    warn.close()  # nothing is left to be said
    assert len(said) == 2 * MAX_WARNINGS + 1


def test_what_has_no_kind_is_always_said() -> None:
    said: list[str] = []
    warn = Warnings(said.append)
    for number in range(2 * MAX_WARNINGS):
        warn(str(number))
    warn.close()
    assert said == [str(number) for number in range(2 * MAX_WARNINGS)]


def test_a_warning_has_a_length() -> None:
    said: list[str] = []
    Warnings(said.append)("x" * 2 * LONGEST)
    assert said == ["x" * LONGEST + "…"]
