"""The options of `proxy`, many of which `broker` has, too: forwarding, watching the traffic, faults."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pulsarctl_wire.cli import completion, console
from pulsarctl_wire.cli.findings import CheckOptions
from pulsarctl_wire.cli.options import (
    WEB,
    WIDE,
    DisplayOptions,
    Output,
    RotateOptions,
    SelectOptions,
    TlsOptions,
)
from pulsarctl_wire.cli.signature import flag, group, option, several

if TYPE_CHECKING:
    from pulsarctl_wire.faults.base import Fault
    from pulsarctl_wire.faults.lanes import Faults
    from pulsarctl_wire.net.settings import Settings

WHERE, CLUSTER, TLS = "Where", "Whole clusters", "TLS"
TAP, CHECK, WATCH, FAULTS = "The tap", "The doctor", "Records and counters", "Faults"

LISTEN: Final = "127.0.0.1:6649"

_FINDING_OPTIONS: Final = ("--output", "--time")  # options of the tap that --doctor uses, too
ENDING: Final = (signal.SIGINT, signal.SIGTERM)
"""The signals that end a proxy or broker."""


@dataclass(frozen=True, kw_only=True)
class ForwardOptions:
    """What to forward, from where and to where."""

    listen: str = option(
        "--listen -l HOST:PORT", "Address for clients; port 0: any port.", WHERE, default=LISTEN
    )
    to: str | None = option(
        "--to URL",
        "Service URL to forward to: pulsar://host:port, pulsar+ssl://…. Default pulsar://localhost:6650.",
        WHERE,
    )
    conf: str | None = option("--conf FILE", "A client.conf, as used by Pulsar's own tools.", WHERE)
    connect_timeout: float = option(
        "--connect-timeout SECONDS", "Timeout of connecting to a broker.", WHERE, default=10.0, min=0.1
    )
    drain: float = option(
        "--drain SECONDS", "At the end: time limit for forwarding the rest.", WHERE, default=5.0, min=0
    )
    http_listen: str | None = option(
        "--http-listen HOST:PORT", "Also answer lookups over HTTP, for clients with an http:// URL.", WHERE
    )
    http_to: str | None = option(
        "--http-to URL",
        "Web service for --http-listen: http://host:8080, https://…. "
        "Default: the hosts of --to, with port 8080, or 8443 for TLS.",
        WHERE,
    )
    proxy_header_in: bool = flag("--proxy-protocol", "Expect a PROXY header (HAProxy) from clients.", WHERE)
    proxy_header_out: int = option(
        "--send-proxy-protocol 1|2", "Send a PROXY header to brokers.", WHERE, default=0, min=0, max=2
    )
    no_rewrite: bool = flag("--no-rewrite", "Do not change the addresses in brokers' answers.", CLUSTER)
    through: bool = flag(
        "--through",
        "One listener for all brokers: clients name the broker in CONNECT (proxy_to_broker_url).",
        CLUSTER,
    )
    map_: list[str] = several(
        "--map BROKER=HOST:PORT",
        "The address that clients get for a broker; pwire listens there if it is on this machine.",
        CLUSTER,
    )
    dial: list[str] = several("--dial BROKER=HOST:PORT", "The address to dial for a broker.", CLUSTER)
    allow_broker: list[str] = several(
        "--allow-broker CIDR|HOST",
        "Addresses from brokers' answers that may be dialled. Default: all but link-local ones.",
        CLUSTER,
    )
    advertise: str | None = option("--advertise HOST", "The host name that clients use for pwire.", CLUSTER)
    ports: str | None = option("--ports FIRST-LAST", "Ports of the listeners for brokers.", CLUSTER)
    tls: bool = flag("--tls", "Use TLS with clients, with a certificate of pwire's own CA.", TLS)
    listen_cert: str | None = option(
        "--listen-cert FILE", "Use TLS with clients, with this certificate (PEM, with chain).", TLS
    )
    listen_key: str | None = option("--listen-key FILE", "Private key of --listen-cert, PEM.", TLS)
    client_ca: str | None = option(
        "--client-ca FILE", "Require client certificates signed by one of these CAs, PEM.", TLS
    )
    ca_dir: str | None = option("--ca-dir DIR", "Directory of pwire's CA. Default ~/.local/share/pwire.", TLS)
    trust: TlsOptions = group(
        TlsOptions,
        TLS,
        tls_ca="CA certificates to trust for brokers, PEM.",
        tls_cert="Our certificate for brokers, PEM.",
        tls_allow_insecure="Do not verify brokers' certificates.",
        keylog="Append the TLS keys of both sides, for decode --keylog or Wireshark.",
    )

    def make_settings(self) -> Settings:
        """Return the settings of connections to brokers. Raises SettingsError."""
        from pulsarctl_wire.net.settings import gather, make_settings

        flags = {"url": self.to, **self.trust.collect_flags()}
        settings = make_settings(gather(flags, os.environ, self.conf), connect_timeout=self.connect_timeout)
        if settings.url.is_web:
            console.fail(f"--to {settings.url}: a web service; name the brokers by pulsar://…")
        return settings


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """What to show, record and count of the traffic."""

    tap: bool = flag("--tap", "Show the decoded frames.", TAP)
    tui: bool = flag(
        "--tui", "Look around in the traffic with the keyboard, and stop frames: pwire tui.", TAP
    )
    web: int | None = WEB(panel=TAP)
    store: str | None = option("--store DIR", "Where --tui keeps events.", hidden=True)
    output: Output = option("-o --output", "Output format of the tap.", TAP, default="line")
    selection: SelectOptions = group(
        SelectOptions, TAP, expression="Show matching frames, as in decode.", commands="As in decode."
    )
    display: DisplayOptions = group(
        DisplayOptions,
        TAP,
        schema="Decode payloads by this schema, as in decode.",
        time_format="Time format.",
        show_secrets="Do not redact credentials in the tap and the record.",
    )
    wide: bool = WIDE()
    record: str | None = option("--record -w FILE", "Record the traffic as pcapng.", WATCH)
    rotation: RotateOptions = group(RotateOptions)
    doctor: bool = flag(
        "--doctor", "Say what is wrong, as soon as it is known: on stdout, with --tap on stderr.", CHECK
    )
    checks: CheckOptions = group(CheckOptions, CHECK)
    stats: bool = flag("--stats", "Show a live table on the terminal (stderr).", WATCH)
    metrics: str | None = option("--metrics :PORT", "Serve metrics to Prometheus, on loopback: :9464.", WATCH)

    @property
    def has_screen(self) -> bool:
        """Whether the traffic is shown on a screen."""
        return self.tui or self.web is not None

    @property
    def is_needed(self) -> bool:
        """Whether anything is to be done with the traffic."""
        return bool(self.tap or self.doctor or self.record or self.stats or self.metrics or self.store)


@dataclass(frozen=True, kw_only=True)
class FaultOptions:
    """Which faults to inject."""

    fault: list[str] = several(
        "--fault FAULT",
        "A fault such as 'drop command=SEND_RECEIPT nth=1'; pwire proxy faults lists them.",
        FAULTS,
        autocompletion=completion.faults,
    )
    scenario: str | None = option("--scenario FILE", "YAML file with faults and their seed.", FAULTS)
    script: list[str] = several(
        "--script FILE", "Python script that sees and changes each frame; see docs/scripts.md.", FAULTS
    )
    seed: int | None = option("--seed N", "Seed of all random choices. Default: a random one.", FAULTS)
    control: str | None = option(
        "--control PATH", "Unix socket for pwire proxy ctl; '' for no socket.", FAULTS
    )

    @property
    def has_faults(self) -> bool:
        """Whether any faults are given."""
        return bool(self.fault or self.scenario or self.script)

    def make_faults(self) -> Faults:
        """Return the faults of `--fault`, `--scenario` and `--script`. Raises SettingsError, FilterError."""
        from random import SystemRandom

        from pulsarctl_wire.faults.lanes import Faults
        from pulsarctl_wire.faults.text import parse_fault, parse_scenario

        seed = self.seed
        entries: list[Fault] = []
        if self.scenario:
            path = self.scenario
            try:
                text = Path(path).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
                console.fail(f"--scenario {path}: {reason}", console.EXIT_SOURCE)
            scenario = parse_scenario(text)
            seed = scenario.seed if seed is None else seed
            entries += scenario.faults
        entries += map(parse_fault, self.fault)
        if self.script:
            from pulsarctl_wire.scripting.fault import Script
            from pulsarctl_wire.scripting.program import Program

            entries += [Script(program=Program(path), file=path) for path in self.script]
        faults = Faults(SystemRandom().randrange(2**32) if seed is None else seed, make_test)
        for entry in entries:
            faults.add(entry)
        return faults


def make_test(fault: Fault) -> Callable[[Any], bool] | None:
    """Return the test for a fault's topics and filter, which work as in decode; None if it has neither.

    Raises FilterError.
    """
    from pulsarctl_wire.cli.capture import select

    tests = select.tests(SelectOptions(topics=list(fault.topic)))
    if fault.filter:
        from pulsarctl_wire.record import Recorder

        recorder = Recorder(show_secrets=True)
        tests.append(select.Expression(fault.filter, recorder, f"{fault.name}: filter"))
    return (lambda frame: all(test(frame) for test in tests)) if tests else None


def announce_faults(faults: Faults) -> None:
    """Print the faults, and the seed of their random choices."""
    from pulsarctl_wire.faults.text import format_fault

    for active_fault in faults.list_active():
        console.warn(f"fault #{active_fault.number}: {format_fault(active_fault.fault)}")
    console.warn(f"seed {faults.seed}")


def check(options: WatchOptions) -> None:
    """End the command if options contradict each other. Raises SettingsError for wrong private keys."""
    if any(options.rotation.parse_rotation().values()) and not options.record:
        console.fail("--rotate-… needs --record FILE")
    options.checks.check(options.doctor)
    selection, display = options.selection, options.display
    tap_options = {
        "--filter": selection.expression,
        "--command": selection.commands,
        "--topic": selection.topics,
        "--connection": selection.connections,
        "--schema": display.schema,
        "--private-key": display.private_keys,
        "--output": options.output != "line",
        "--time": display.time_format != "utc",
    }
    name = next((name for name, value in tap_options.items() if value), None)
    if name and not (options.tap or options.store or (options.doctor and name in _FINDING_OPTIONS)):
        console.fail(f"{name} needs --tap")
    if options.stats and options.tap and sys.stdout.isatty() and sys.stderr.isatty():
        text = "--stats draws on the terminal that --tap would print to; send the tap elsewhere: > tap.txt"
        console.fail(text)
    if display.private_keys:
        from pulsarctl_wire.capture.private_keys import read_private_keys

        read_private_keys(display.private_keys)  # so that wrong keys fail here, not in the watcher
