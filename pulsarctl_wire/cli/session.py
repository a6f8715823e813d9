"""What every verb of a session shares: its options, the client they make, how it runs and ends.

A verb is an async function of a `Session` and its own options; `verb` makes it a command that also has
the options of `_shared`. Ctrl-C cancels it, so that it closes what it opened; what it gives is the exit code.
"""

from __future__ import annotations

import inspect
import math
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.options import WIDE, option

if TYPE_CHECKING:
    from pulsarctl_wire.cli.trace import Recording, Taps, Trace
    from pulsarctl_wire.net.client import Client
    from pulsarctl_wire.net.settings import Settings

CLUSTER, SEEN = "The cluster", "Seeing the session"


class TraceForm(str, Enum):
    """How traced frames are shown."""

    line = "line"
    tree = "tree"
    json = "json"
    hex = "hex"


def _shared(
    url: Annotated[
        str | None,
        option(
            CLUSTER,
            "--url",
            "-u",
            metavar="URL",
            help="Service URL: pulsar://host:port, pulsar+ssl://…; several hosts with commas. "
            "Default pulsar://localhost:6650.",
        ),
    ] = None,
    conf: Annotated[
        str | None,
        option(CLUSTER, "--conf", metavar="FILE", help="A client.conf, as Pulsar's own tools read it."),
    ] = None,
    token: Annotated[
        str | None, option(CLUSTER, "--token", metavar="JWT", help="Authenticate by this token.")
    ] = None,
    token_file: Annotated[
        str | None,
        option(CLUSTER, "--token-file", metavar="FILE", help="The same, read anew whenever it is asked for."),
    ] = None,
    basic: Annotated[
        str | None,
        option(CLUSTER, "--basic", metavar="USER:PASSWORD", help="Authenticate by user and password."),
    ] = None,
    auth_plugin: Annotated[
        str | None,
        option(
            CLUSTER, "--auth-plugin", metavar="NAME", help="As pulsar-client: token, basic, tls, a class."
        ),
    ] = None,
    auth_params: Annotated[
        str | None, option(CLUSTER, "--auth-params", metavar="TEXT", help="Parameters of --auth-plugin.")
    ] = None,
    tls_ca: Annotated[
        str | None,
        option(
            CLUSTER,
            "--tls-ca",
            "--tlsTrustCertsFilePath",
            metavar="FILE",
            help="Whom to trust: CA certificates, PEM.",
        ),
    ] = None,
    tls_cert: Annotated[
        str | None, option(CLUSTER, "--tls-cert", metavar="FILE", help="Client certificate, PEM.")
    ] = None,
    tls_key: Annotated[str | None, option(CLUSTER, "--tls-key", metavar="FILE", help="Its key, PEM.")] = None,
    tls_allow_insecure: Annotated[
        bool, option(CLUSTER, "--tls-allow-insecure", help="Do not verify the broker's certificate.")
    ] = False,
    no_tls_hostname_check: Annotated[
        bool, option(CLUSTER, "--no-tls-hostname-check", help="Take a certificate for another host name.")
    ] = False,
    listener_name: Annotated[
        str | None,
        option(CLUSTER, "--listener-name", metavar="NAME", help="Advertised listener that lookups ask for."),
    ] = None,
    timeout: Annotated[
        float,
        option(CLUSTER, "--timeout", metavar="SECONDS", min=0.1, help="How long an answer may take."),
    ] = 30.0,
    connect_timeout: Annotated[
        float,
        option(CLUSTER, "--connect-timeout", metavar="SECONDS", min=0.1, help="The same of a connection."),
    ] = 10.0,
    keep_alive: Annotated[
        float,
        option(CLUSTER, "--keep-alive", metavar="SECONDS", min=0.1, help="Between PINGs."),
    ] = 30.0,
    no_reconnect: Annotated[
        bool,
        option(CLUSTER, "--no-reconnect", help="End when a connection, a producer or a consumer is lost."),
    ] = False,
    trace: Annotated[bool, option(SEEN, "--trace", help="Show each frame on stderr as it passes.")] = False,
    trace_form: Annotated[
        TraceForm | None,
        option(SEEN, "--trace-form", help="The same, in this form."),
    ] = None,
    record: Annotated[
        str | None,
        option(SEEN, "--record", metavar="FILE", help="Write the session as a pcapng capture."),
    ] = None,
    show_secrets: Annotated[bool, option(SEEN, "--show-secrets", help="Leave credentials in both.")] = False,
    wide: Annotated[bool, WIDE] = False,
) -> None: ...


_FLAGS = (
    *("url", "token", "token_file", "basic", "auth_plugin", "auth_params"),
    *("tls_ca", "tls_cert", "tls_key", "listener_name"),
)


def flags_of(options: dict[str, Any], names: tuple[str, ...]) -> dict[str, str | None]:
    """The options `names`, and the two about trusting certificates, as `net.settings.gather` takes them."""
    flags: dict[str, str | None] = {name: options[name] for name in names}
    flags["tls_allow_insecure"] = "true" if options["tls_allow_insecure"] else None
    flags["tls_hostname_check"] = "false" if options["no_tls_hostname_check"] else None
    return flags


class Session:
    """One run of a verb: the settings its options mean, and the client made of them."""

    def __init__(self, options: dict[str, Any], stack: ExitStack) -> None:
        self.options = options
        self._recording: Recording | None = None
        self._stack = stack

    def settings(self) -> Settings:
        """The settings out of flags, environment and client.conf. Raises SettingsError."""
        from pulsarctl_wire.net.settings import gather, settings_from

        options = self.options
        return settings_from(
            gather(flags_of(options, _FLAGS), os.environ, options["conf"]),
            timeout=options["timeout"],
            connect_timeout=options["connect_timeout"],
            keep_alive=options["keep_alive"],
            reconnect=not options["no_reconnect"],
        )

    def tap(self) -> Taps | None:
        """What sees the session's bytes, if anything is to."""
        options = self.options
        if not (options["trace"] or options["trace_form"] or options["record"]):
            return None
        from pulsarctl_wire.cli.trace import Recording, Taps, Trace

        taps: list[Trace | Recording] = []
        if options["trace"] or options["trace_form"]:
            form = (options["trace_form"] or TraceForm.line).value
            taps.append(Trace(form, show_secrets=options["show_secrets"]))
        if options["record"]:
            self._recording = Recording(options["record"], self._stack, show_secrets=options["show_secrets"])
            taps.append(self._recording)
        return Taps(taps)

    def client(self) -> Client:
        """A client, to be used as an async context manager."""
        from pulsarctl_wire.net.client import Client

        return Client(self.settings(), tap=self.tap(), warn=console.complain)

    def run(self, verb: Callable[..., Awaitable[int | None]], arguments: dict[str, Any]) -> int:
        """Run an async verb to its end, or until Ctrl-C; give the exit code."""
        import asyncio
        import signal

        async def run() -> int:
            task = asyncio.current_task()
            assert task is not None
            loop = asyncio.get_running_loop()
            interrupted = False

            def interrupt() -> None:
                nonlocal interrupted
                interrupted = True
                loop.remove_signal_handler(signal.SIGINT)  # a second one ends it at once
                task.cancel()

            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, interrupt)
            try:
                return await verb(self, **arguments) or 0
            except asyncio.CancelledError:
                if not interrupted:
                    raise
                return console.EXIT_INTERRUPTED

        code = asyncio.run(run())
        sys.stdout.flush()
        if self._recording is not None and self._recording.failed:
            return code or console.EXIT_OUTPUT
        return code


def verb(function: Callable[..., Awaitable[int | None]]) -> Callable[..., None]:
    """A command out of `async def function(session, …)`, with the options of every session as well."""
    own = [
        each
        for each in inspect.signature(function, eval_str=True).parameters.values()
        if each.name != "session"
    ]
    shared = list(inspect.signature(_shared, eval_str=True).parameters.values())

    def command(**given: Any) -> None:
        options = {each.name: given.pop(each.name) for each in shared}
        for name, value in {**options, **given}.items():
            if isinstance(value, float) and not math.isfinite(value):
                console.fail(f"--{name.replace('_', '-')} {value}: a number is wanted", console.EXIT_USAGE)
        with console.errors_said(), ExitStack() as stack:
            code = Session(options, stack).run(function, given)
        raise SystemExit(code)

    command.__name__ = function.__name__
    command.__doc__ = function.__doc__
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in [*own, *shared]]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def topic_name(text: str) -> str:
    """The full name of the topic a user named; ends the command where it is none."""
    from pulsarctl_wire.wire.names import check_topic

    return _checked(check_topic, text)


def namespace_name(text: str) -> str:
    """The namespace a user named; ends the command where it is none."""
    from pulsarctl_wire.wire.names import check_namespace

    return _checked(check_namespace, text)


def _checked(check: Callable[[str], str], text: str) -> str:
    try:
        return check(text)
    except ValueError as error:
        console.fail(str(error), console.EXIT_USAGE)
