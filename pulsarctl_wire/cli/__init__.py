"""The command `pwire`: one module per verb, which parses options, calls the library and renders."""

import gc

from pulsarctl_wire.cli import console


def main() -> None:
    """Run `pwire`. Ctrl-C and a closed pipe end it quietly."""
    gc.disable()  # imports leave no garbage; `_CommandMixin.invoke` turns collection on again
    console.prepare_streams()
    console.screen.reset()
    try:
        from pulsarctl_wire.cli.command import usage_errors
        from pulsarctl_wire.cli.verbs import app

        with usage_errors():
            raise SystemExit(app(prog_name="pwire", standalone_mode=False))
    except KeyboardInterrupt:
        raise SystemExit(console.EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        console.end_quietly()
    finally:
        if not gc.isenabled():  # no command was invoked
            gc.freeze()  # so that the interpreter finds nothing to collect at exit
            gc.enable()
