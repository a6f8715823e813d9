"""The commands that documents show, and what they must print."""

import re
import shlex

TIMES = re.compile(r"\d\d:\d\d:\d\d\.\d{6}|[\d.,]+ (?:ns|µs|ms|s)\b|[\d.,]+/s|localhost:\d+|127\.0\.0\.1:\d+")
"""What differs from run to run."""
NOTHING = re.compile(r"(?!)")


def shown_commands(text: str) -> list[tuple[str, list[str]]]:
    """The commands of console blocks, each with its output. A quoted argument may have many lines."""
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    parts = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE) if part]
    return [_divided(part.splitlines()) for part in parts]


def _divided(lines: list[str]) -> tuple[str, list[str]]:
    """The command that is in the first lines, and the lines after it."""
    for end in range(1, len(lines) + 1):
        command = "\n".join(lines[:end])
        try:
            shlex.split(command)
        except ValueError:  # a quotation that goes on
            continue
        return command, lines[end:]
    raise AssertionError(lines)


def as_pattern(lines: list[str], varying: re.Pattern[str] = TIMES) -> str:
    """What matches the output of another run: … stands for lines, or for the rest of a line."""
    patterns = []
    for line in lines:
        text, cut = (line[:-1], ".*") if line.endswith("…") else (line, "")
        parts = map(re.escape, varying.sub("\0", text).split("\0"))
        patterns.append(r"(?:.*\n)*" if line == "…" else r"\S+(?: \S?s)?".join(parts) + cut + r"\n")
    return "".join(patterns)
