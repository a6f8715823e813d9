"""What all verbs with a session share: their options, the client, and how they run and end.

A verb is an async function of a `Session` and its own options, and returns the exit code. `verb` makes it a
command that also has the options of `ConnectOptions`. Ctrl-C cancels it, so that it closes what it opened.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, get_type_hints

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.options import PRIVATE_KEY, WIDE, Output, TlsOptions
from pulsarctl_wire.cli.signature import flag, group, option, takes
from pulsarctl_wire.net.settings import Settings, gather, make_settings

if TYPE_CHECKING:
    from pulsarctl_wire.net.session.client import Client
    from pulsarctl_wire.wire.encryption import KeyRing
    from pulsarctl_wire.wire.session.sinks import Follower, Sink

CLUSTER, SEEN = "The cluster", "Watching the session"


@dataclass(frozen=True, kw_only=True)
class AuthOptions:
    """How we authenticate to a cluster, and which certificates we trust."""

    conf: str | None = option("--conf FILE", "A client.conf, as used by Pulsar's own tools.", CLUSTER)
    token: str | None = option("--token JWT", "Authenticate with this token.", CLUSTER)
    token_file: str | None = option(
        "--token-file FILE", "File with the token; read again at each authentication.", CLUSTER
    )
    basic: str | None = option("--basic USER:PASSWORD", "Authenticate with user and password.", CLUSTER)
    auth_plugin: str | None = option(
        "--auth-plugin NAME", "As in pulsar-client: token, basic, tls, or a class.", CLUSTER
    )
    auth_params: str | None = option("--auth-params TEXT", "Parameters of --auth-plugin.", CLUSTER)
    trust: TlsOptions = group(TlsOptions, CLUSTER)

    def collect_flags(self) -> dict[str, str | None]:
        """Return the options as `net.settings.gather` takes them."""
        names = ("token", "token_file", "basic", "auth_plugin", "auth_params")
        return {**{name: getattr(self, name) for name in names}, **self.trust.collect_flags()}


@dataclass(frozen=True, kw_only=True)
class ConnectOptions:
    """The options that all sessions share."""

    url: str | None = option(
        "--url -u URL",
        "Service URL: pulsar://host:port, pulsar+ssl://…, or a web service, http(s)://host:8080; "
        "several hosts with commas. Default pulsar://localhost:6650.",
        CLUSTER,
    )
    auth: AuthOptions = group(AuthOptions, CLUSTER)
    listener_name: str | None = option(
        "--listener-name NAME", "Advertised listener to ask for in lookups.", CLUSTER
    )
    timeout: float = option(
        "--timeout SECONDS", "How long an answer may take.", CLUSTER, default=30.0, min=0.1
    )
    connect_timeout: float = option(
        "--connect-timeout SECONDS", "How long connecting may take.", CLUSTER, default=10.0, min=0.1
    )
    keep_alive: float = option("--keep-alive SECONDS", "Time between PINGs.", CLUSTER, default=30.0, min=0.1)
    no_reconnect: bool = flag(
        "--no-reconnect", "End when a connection, a producer or a consumer is lost.", CLUSTER
    )
    trace: bool = flag("--trace", "Show each frame on stderr as it passes.", SEEN)
    trace_form: Output | None = option("--trace-form", "Show frames in this format; implies --trace.", SEEN)
    record: str | None = option("--record FILE", "Record the session as a pcapng capture.", SEEN)
    show_secrets: bool = flag("--show-secrets", "Do not redact credentials in --trace and --record.", SEEN)
    private_keys: list[str] = PRIVATE_KEY(SEEN)
    wide: bool = WIDE()

    def collect_flags(self) -> dict[str, str | None]:
        """Return the options as `net.settings.gather` takes them."""
        return {"url": self.url, "listener_name": self.listener_name, **self.auth.collect_flags()}


class Session:
    """One run of a verb: makes its settings and its client from the options.

    `keys` decrypt what is shown. The sinks of its tap finish when `stack` closes. The constructor raises
    SettingsError for wrong private keys.
    """

    def __init__(self, options: ConnectOptions, stack: ExitStack) -> None:
        self.options = options
        self.keys = _load_keys(options.private_keys)
        self._follower: Follower | None = None
        self._stack = stack

    def make_settings(self) -> Settings:
        """Return the settings from flags, environment and client.conf. Raises SettingsError."""
        options = self.options
        return make_settings(
            gather(options.collect_flags(), os.environ, options.auth.conf),
            timeout=options.timeout,
            connect_timeout=options.connect_timeout,
            keep_alive=options.keep_alive,
            reconnect=not options.no_reconnect,
        )

    def make_tap(self, *extra_sinks: Sink) -> Follower | None:
        """Make a `Follower` for the sinks of the options and `extra_sinks`; return None if there are none."""
        options = self.options
        if not (options.trace or options.trace_form or options.record or extra_sinks):
            return None
        from pulsarctl_wire.cli.recording import RecordingSink, Trace
        from pulsarctl_wire.wire.session.sinks import Follower

        sinks: list[Sink] = []
        if options.trace or options.trace_form:
            form = options.trace_form or "line"
            sinks.append(Trace(form, show_secrets=options.show_secrets, keys=self.keys))
        if options.record:
            secrets = options.show_secrets
            recording = RecordingSink(
                options.record, console.warn, "the session", show_secrets=secrets, at_once=True
            )
            sinks.append(recording)
        self._follower = Follower([*sinks, *extra_sinks])
        self._stack.callback(self._follower.finish)
        return self._follower

    def make_client(self) -> Client:
        """Make a client; the caller must use it as an async context manager."""
        from pulsarctl_wire.net.session.client import Client

        return Client(self.make_settings(), tap=self.make_tap(), warn=console.warn)

    def run(self, verb: Callable[..., Awaitable[int | None]], options: Any) -> int:
        """Run an async verb to its end, or until Ctrl-C; returns the exit code."""
        import asyncio

        async def run() -> int:
            task = asyncio.current_task()
            assert task is not None
            loop = asyncio.get_running_loop()
            is_interrupted = False

            def interrupt() -> None:
                nonlocal is_interrupted
                is_interrupted = True
                loop.remove_signal_handler(signal.SIGINT)  # a second Ctrl-C interrupts at once
                task.cancel()

            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, interrupt)
            try:
                return await verb(self, options) or 0
            except asyncio.CancelledError:
                if not is_interrupted:
                    raise
                return console.EXIT_INTERRUPTED

        code = asyncio.run(run())
        sys.stdout.flush()
        if self._follower is not None and self._follower.failed:
            return code or console.EXIT_OUTPUT
        return code


def _load_keys(paths: list[str]) -> KeyRing | None:
    if not paths:
        return None
    from pulsarctl_wire.capture.private_keys import read_private_keys

    return read_private_keys(paths)


def verb(function: Callable[..., Awaitable[int | None]]) -> Callable[..., int]:
    """Make a command of `async def function(session, options)`, with the options of `ConnectOptions`."""

    @wraps(function)
    def command(options: Any, connecting: ConnectOptions) -> int:
        with console.errors_reported(), ExitStack() as stack:
            return Session(connecting, stack).run(function, options)

    options_type = get_type_hints(function)["options"]
    return takes(command, {"options": options_type, "connecting": ConnectOptions})


def parse_topic(text: str) -> str:
    """Return the full name of a topic. An invalid name ends the command."""
    from pulsarctl_wire.wire.names import check_topic

    return _check(check_topic, text)


def parse_namespace(text: str) -> str:
    """Return the name of a namespace. An invalid name ends the command."""
    from pulsarctl_wire.wire.names import check_namespace

    return _check(check_namespace, text)


def _check(check: Callable[[str], str], text: str) -> str:
    try:
        return check(text)
    except ValueError as error:
        console.fail(str(error))
