"""Options that several commands share, alone and in groups, and the parsing of their values."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import Any, Final, Literal

from pulsarctl_wire.cli import completion, console
from pulsarctl_wire.cli.signature import argument, flag, option, several
from pulsarctl_wire.errors import FilterError, SettingsError

LOOPBACK: Final = "127.0.0.1"
"""The address to listen on if only a port is given, so that nobody else can connect by default."""

SOURCES: Final = partial(
    argument,
    "SOURCE...",
    "As for decode: pcap or pcapng files (also .gz, .zst), directories, hex dumps and other text, frames; "
    "- is stdin.",
)
MAX_FRAME_SIZE: Final = partial(
    option,
    "--max-frame-size BYTES",
    "Largest valid frame, whatever limit the broker announces.",
    min=16,
    show_default="5 MiB + 10 KiB",
)
KEEP_DUPLICATES: Final = partial(
    flag, "--keep-duplicates", "Keep connections that were captured again before or after NAT."
)
OUTPUT: Final = partial(option, "-o --output", "Output format.")
JOBS: Final = partial(
    option, "-j --jobs N", "Number of processes for large files.", min=1, show_default="all cores"
)
PAYLOAD_RATIO: Final = partial(
    option,
    "--payload-ratio N",
    "Most bytes of payloads to open per byte read, beyond the first 160 MiB.",
    min=1,
    show_default="1024",
)
KEYLOG: Final = partial(
    several,
    "--keylog FILE",
    "Read TLS with the keys in this log (SSLKEYLOGFILE). Keys inside a pcapng need no option.",
)
PRIVATE_KEY: Final = partial(
    several,
    "--private-key FILE",
    "Decrypt payloads that are encrypted for this key: RSA or EC, in PEM.",
)


def _widen(wide: bool) -> None:
    console.screen.wide = wide


WIDE: Final = partial(flag, "--wide", "Do not cut lines at the width of the terminal.", callback=_widen)
WEB: Final = partial(
    option, "--web PORT", "Show the screen in a browser, on loopback; 0: any free port.", min=0, max=65535
)
LOCAL: Final = "local[*]"
"""Where Spark runs by default."""
EngineName = Literal["duckdb", "spark"]
"""What runs queries."""
ENGINE: Final = partial(
    option,
    "--engine NAME",
    "What runs queries: duckdb, spark.",
    show_default="duckdb; spark with --master",
)
MASTER: Final = partial(option, "--master URL", f"Where Spark runs: {LOCAL}, spark://HOST:7077, yarn.")
CONF: Final = partial(several, "--conf KEY=VALUE", "A Spark setting, such as spark.driver.memory=8g.")
DEFAULT_BUFFER: Final = "64MB"
BUFFER: Final = partial(
    option, "--buffer SIZE", "Memory for packets that wait to be read.", default=DEFAULT_BUFFER
)

_SIZES: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_DURATION_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600}
_AGE_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def parse_conf(conf: list[str]) -> dict[str, str]:
    """Parse KEY=VALUE texts as Spark's settings. Any other text ends the command."""
    settings = {}
    for text in conf:
        key, equals, value = text.partition("=")
        if not equals or not key:
            console.fail(f"--conf {text.partition(':')[0]}: use KEY=VALUE, as in spark.driver.memory=4g")
        settings[key] = value
    return settings


def parse_time(text: str, alternatives: str = "") -> int:
    """Return a time in ns since the epoch. `text` is ISO 8601, seconds since 1970, or an age: -10m or 10m.

    A time without a zone is UTC. Raises SettingsError, whose text names `alternatives`: what else the option
    takes.
    """
    age = re.fullmatch(r"-?(\d{1,9}(?:\.\d{1,9})?)([smhd])", text)
    if age:
        return time.time_ns() - int(float(age[1]) * _AGE_UNITS[age[2]] * 1e9)
    if re.fullmatch(r"\d{1,11}(\.\d{1,9})?", text):
        seconds, _, fraction = text.partition(".")
        return int(seconds + fraction.ljust(9, "0"))
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
        return round(moment.timestamp() * 1e6) * 1_000
    except (ValueError, OverflowError):
        problem = f"neither {alternatives} nor a time" if alternatives else "not a time"
        raise SettingsError(f"{text}: {problem} (ISO 8601, seconds since 1970, -10m)") from None


Output = Literal["line", "tree", "json", "hex"]
"""How events are shown."""
TimeFormat = Literal["utc", "local", "date", "epoch", "relative"]
"""How times are shown (line and tree)."""
TIME: Final = partial(
    option,
    "-t --time",
    "Time format: time of day (UTC or local), UTC date, epoch, relative.",
    default="utc",
)


@dataclass(frozen=True, kw_only=True)
class SelectOptions:
    """Which events are shown; see `cli/capture/select.py`."""

    expression: str | None = option(
        "-f --filter EXPR", "An expression over the JSON fields: 'command == \"SEND\" and total_size > 1000'."
    )
    commands: list[str] = several(
        "--command NAME", "Commands such as SEND,MESSAGE or 'LOOKUP*'.", autocompletion=completion.commands
    )
    topics: list[str] = several(
        "--topic TOPIC", "A topic, short or full, or a pattern with *.", autocompletion=completion.topics
    )
    connections: list[str] = several(
        "--connection N|ADDRESS", "A connection's number, or part of its addresses."
    )


@dataclass(frozen=True, kw_only=True)
class DisplayOptions:
    """How events are shown, apart from the output format."""

    schema: str | None = option(
        "--schema TYPE[:FILE]",
        "Decode payloads by this schema: json, string, avro:user.avsc, protobuf:set.desc:pkg.Message.",
    )
    time_format: TimeFormat = TIME()
    show_secrets: bool = flag("--show-secrets", "Do not redact credentials.")
    private_keys: list[str] = PRIVATE_KEY()


def parse_address(flag: str, text: str) -> tuple[str, int]:
    """Parse HOST:PORT, [IPV6]:PORT, :PORT or PORT; the default host is the loopback address.

    Any other text ends the command.
    """
    host, _, digits = text.rpartition(":")
    has_brackets = host.startswith("[") and host.endswith("]")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 6 and int(digits) < 65_536) or (
        ":" in host and not has_brackets
    ):
        problem = "not an address to listen on; use HOST:PORT, [IPV6]:PORT or :PORT"
        console.fail(f"{flag} {text}: {problem}")
    return (host[1:-1] if has_brackets else host) or LOOPBACK, int(digits)


def parse_size(flag: str, text: str) -> int:
    """Parse a size such as 64MB or 128Mi; return it in bytes. Any other text ends the command."""
    return int(_parse_amount(flag, text.lower().removesuffix("b"), _SIZES))


def parse_partition_columns(text: str) -> tuple[str, ...]:
    """Parse --partition-by: columns, or none. Any other text ends the command."""
    from pulsarctl_wire.pipeline.decoding.edges import PARTITIONS

    names = tuple(text.split(",")) if text != "none" else ()
    if not {*names} <= {*PARTITIONS} or len({*names}) < len(names):
        console.fail(f"--partition-by {text}: use {', '.join(PARTITIONS)} (as date,hour), or none")
    return names


def take_interface(names: list[str]) -> str | None:
    """Return the interface that -i names, or None without -i. Several interfaces end the command."""
    if len(names) > 1:
        flags = " ".join(f"-i {name}" for name in names)
        console.fail(f"{flags}: only one interface can be read at a time")
    return names[0] if names else None


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How captures are read."""

    keylogs: list[str] = KEYLOG()
    max_frame_size: int | None = MAX_FRAME_SIZE()
    keep_duplicates: bool = KEEP_DUPLICATES()

    @property
    def reading(self) -> Any:
        """The options as the `Reading` of a `Decoder`."""
        from pulsarctl_wire.capture.sources import Reading

        return Reading(self.max_frame_size, tuple(self.keylogs), self.keep_duplicates)


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """What the rows of tables have."""

    cluster: str | None = option("--cluster NAME", "A label for all rows: the cluster that was captured.")
    host: str | None = option(
        "--host NAME",
        "The host that captured; or where it is in the paths of files: 'captures/{host}/*'.",
        show_default="the NAME of a directory host=NAME",
    )
    detail: Literal["frames", "messages", "exchanges", "connections"] = option(
        "--detail WHAT",
        "What tables hold: frames; messages, too; exchanges (requests and answers) without deliveries; "
        "or only connections.",
        default="frames",
    )
    payload: bool = flag("--payload", "Add a column with the raw payload of each frame.")
    messages: bool = flag(
        "--messages", "Write a table of messages, too (--detail messages): their keys, properties and sizes."
    )
    values: Literal["raw", "json"] | None = option(
        "--values FORM", "With --messages: payloads, as they are or as JSON: raw, json.", show_default="none"
    )
    max_value: str = option(
        "--max-value SIZE", "With --values: the largest payload that is kept.", default="64Ki"
    )
    hash_keys: bool = flag("--hash-keys", "With --messages: hashes instead of keys.")
    private_keys: list[str] = PRIVATE_KEY()
    keylogs: list[str] = KEYLOG()
    max_frame_size: int | None = MAX_FRAME_SIZE()
    keep_duplicates: bool = KEEP_DUPLICATES()

    def check_host(self, files: Iterable[str]) -> None:
        """Warn if neither --host nor a directory `host=NAME` tells the host of any of `files`."""
        from pulsarctl_wire.capture.hosts import host_of

        if self.host is not None and not any(host_of(path, self.host) for path in files):
            console.warn(f"--host {self.host}: no file is at such a path, so the column host is null")

    def make_options(self, split_size: int) -> Any:
        """Make the `Options` of the pipeline; `split_size` is in bytes. Contradictions end the command."""
        from pulsarctl_wire.capture.private_keys import read_private_keys
        from pulsarctl_wire.pipeline.decoding.edges import Options
        from pulsarctl_wire.wire.detail import MessageOptions

        has_messages = self.messages or self.detail == "messages"
        if not has_messages and (self.values or self.hash_keys or self.private_keys):
            console.fail("--values, --hash-keys and --private-key need --messages")
        if has_messages and self.detail not in ("frames", "messages"):
            console.fail(f"--messages cannot be combined with --detail {self.detail}")
        with console.errors_reported():
            read_private_keys(self.private_keys)  # so that wrong keys fail here, not in a worker
        message_options = MessageOptions(
            self.values or "",
            parse_size("--max-value", self.max_value),
            self.hash_keys,
            tuple(map(os.path.abspath, self.private_keys)),
        )
        return Options(
            split_size,
            self.max_frame_size,
            self.payload,
            self.cluster,
            message_options if has_messages else None,
            host=self.host,
            detail="frames" if has_messages else self.detail,
            keep_duplicates=self.keep_duplicates,
            keylog=tuple(map(os.path.abspath, self.keylogs)) or None,
        )


@dataclass(frozen=True, kw_only=True)
class TlsOptions:
    """TLS: which brokers we trust, our own certificate, and a log of keys."""

    tls_ca: str | None = option("--tls-ca --tlsTrustCertsFilePath FILE", "CA certificates to trust, PEM.")
    tls_cert: str | None = option("--tls-cert FILE", "Client certificate, PEM.")
    tls_key: str | None = option("--tls-key FILE", "Private key of the certificate, PEM.")
    tls_allow_insecure: bool = flag("--tls-allow-insecure", "Do not verify the broker's certificate.")
    no_tls_hostname_check: bool = flag("--no-tls-hostname-check", "Accept certificates of other host names.")

    keylog: str | None = option(
        "--keylog FILE", "Append the keys of TLS connections, for decode --keylog or Wireshark."
    )

    def collect_flags(self) -> dict[str, str | None]:
        """Return the options as `net.settings.gather` takes them."""
        return {
            "tls_ca": self.tls_ca,
            "tls_cert": self.tls_cert,
            "tls_key": self.tls_key,
            "tls_allow_insecure": "true" if self.tls_allow_insecure else None,
            "keylog": self.keylog,
            "tls_hostname_check": "false" if self.no_tls_hostname_check else None,
        }


@dataclass(frozen=True, kw_only=True)
class RotateOptions:
    """When to start a new file."""

    rotate_size: str | None = option("--rotate-size BYTES", "New file after this size: 100MB.", "Rotation")
    rotate_time: str | None = option("--rotate-time TIME", "New file after this time: 10m.", "Rotation")
    rotate_files: int = option("--rotate-files N", "Keep the newest N; 0: all.", "Rotation", default=0, min=0)

    def parse_rotation(self) -> dict[str, Any]:
        """Return the options as `RotatingFiles` takes them. Invalid ones end the command."""
        size = parse_size("--rotate-size", self.rotate_size or "0")
        period_ns = int(_parse_amount("--rotate-time", self.rotate_time or "0", _DURATION_UNITS) * 1e9)
        if self.rotate_files and not (size or period_ns):
            console.fail("--rotate-files needs --rotate-size or --rotate-time")
        return {"size": size, "period_ns": period_ns, "keep": self.rotate_files}


def _parse_amount(flag: str, text: str, units: dict[str, int]) -> float:
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)\s*([a-z]*)", text.lower())
    if not match or match[2] not in units:
        unit_names = ", ".join(unit for unit in units if unit)
        console.fail(f"{flag} {text}: not a number, with or without a unit ({unit_names})")
    return float(match[1]) * units[match[2]]


def schema_of(text: str | None) -> Any:
    """Parse --schema, by which payloads are decoded; None without it. Raises FilterError."""
    if text is None:
        return None
    from pulsarctl_wire.views import parse_schema

    try:
        return parse_schema(text)
    except ValueError as error:
        raise FilterError(f"--schema {error}") from error
