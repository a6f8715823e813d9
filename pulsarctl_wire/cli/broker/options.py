"""The options of `broker`."""

from __future__ import annotations

from dataclasses import dataclass

from pulsarctl_wire.cli.options import LOOPBACK
from pulsarctl_wire.cli.proxy.options import FaultOptions
from pulsarctl_wire.cli.signature import flag, group, option, several

WHERE, DATA, SETTINGS = "Where", "Topics and data", "Settings"


@dataclass(frozen=True, kw_only=True)
class PlaceOptions:
    """Where the broker listens, and who ends it."""

    host: str | None = option(
        "--host HOST", "Address to listen on.", WHERE, show_default=f"bindAddress of --conf, or {LOOPBACK}"
    )
    port: int | None = option(
        "--port -p PORT",
        "Port of the binary protocol; 0: any.",
        WHERE,
        min=0,
        max=65_535,
        show_default="6650",
    )
    http_port: int | None = option(
        "--http-port PORT", "Port of the admin API; 0: any.", WHERE, min=0, max=65_535, show_default="8080"
    )
    tls_port: int | None = option(
        "--tls-port PORT", "Port of pulsar+ssl://; 0: any.", WHERE, min=0, max=65_535
    )
    https_port: int | None = option(
        "--https-port PORT", "Port of https://; 0: any.", WHERE, min=0, max=65_535
    )
    brokers: int = option(
        "--brokers N", "A cluster of several brokers, with ports in a row.", WHERE, default=1, min=1, max=100
    )
    json: bool = flag("--json", "Print a line of JSON on stdout when ready: URLs and process id.", WHERE)
    exit_with_parent: bool = flag("--exit-with-parent", "End when the process that started it ends.", WHERE)


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """What is stored, where, and how the broker behaves."""

    data: str | None = option(
        "--data DIR",
        "Directory of the data, which stays. Default: a temporary one.",
        DATA,
        show_default=False,
    )
    memory: bool = flag("--memory", "Keep the data in memory.", DATA)
    partitions: list[str] = several(
        "--partitions TOPIC=N", "Have this partitioned topic from the start.", DATA
    )
    no_auto_create: bool = flag("--no-auto-create", "Topics have to be created by the admin API.", DATA)
    conf: str | None = option(
        "--conf FILE", "A file such as Pulsar's standalone.conf.", SETTINGS, show_default=False
    )
    set_: list[str] = several(
        "--set KEY=VALUE", "A line of standalone.conf: brokerDeduplicationEnabled=true.", SETTINGS
    )


@dataclass(frozen=True, kw_only=True)
class InjectOptions:
    """Which faults to inject."""

    faults: FaultOptions = group(FaultOptions, control="Unix socket for pwire broker ctl; '' for no socket.")
