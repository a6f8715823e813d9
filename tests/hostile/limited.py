"""Runs `pwire` many times in processes that may use only so much memory and time, each a fork of one that has
imported it all: a start costs milliseconds.

    python limited.py    a JSON list a line on stdin: CPU seconds, then arguments; an object a line on stdout
"""

import json
import os
import resource
import signal
import sys
import tempfile

PATIENCE = 120
"""Seconds after which a run that waits for something is ended."""


def run(seconds: int, arguments: list[str]) -> dict[str, object]:
    """What became of `pwire ARGUMENTS`: exit code (negative: the signal), CPU seconds, MiB, stderr's end."""
    with tempfile.TemporaryFile() as errors:
        child = os.fork()
        if not child:
            _be_pwire(seconds, arguments, errors.fileno())
        _, status, usage = os.wait4(child, 0)
        size = errors.seek(0, os.SEEK_END)
        errors.seek(max(size - 2000, 0))
        return {
            "code": os.waitstatus_to_exitcode(status),
            "seconds": usage.ru_utime + usage.ru_stime,
            "mib": usage.ru_maxrss / 1024,
            "stderr": errors.read().decode("utf-8", "replace"),
            "stderr_size": size,
        }


def _be_pwire(seconds: int, arguments: list[str], errors: int) -> None:
    code = 1
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for number, descriptor in enumerate((nothing, nothing, errors)):
            os.dup2(descriptor, number)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8")
        sys.stderr = os.fdopen(2, "w", encoding="utf-8")
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(PATIENCE)
        from pulsarctl_wire.cli import main

        sys.argv = ["pwire", *arguments]
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            import traceback

            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    import pulsarctl_wire.cli.consuming
    import pulsarctl_wire.cli.job
    import pulsarctl_wire.cli.send
    import pulsarctl_wire.cli.stats
    import pulsarctl_wire.cli.table_job  # noqa: F401 (each run finds them imported)

    for line in sys.stdin:
        seconds, *arguments = json.loads(line)
        print(json.dumps(run(seconds, arguments)), flush=True)  # noqa: T201
