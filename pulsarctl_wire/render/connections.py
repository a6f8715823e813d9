"""`decode --connections -o line`: one line per connection, with or without frames, and how it ended.

1 17:43:05.622138 10.0.0.7:40198 → 10.0.0.9:6650  no data  SYN sent 4 times, never answered  7.01 s
"""

from datetime import datetime, timedelta, timezone
from typing import Final

from pulsarctl_wire.record import Record
from pulsarctl_wire.render.line import TimeFormatter
from pulsarctl_wire.render.text import Paint, clean, count_of, cut_line, human_bytes, human_time
from pulsarctl_wire.wire.session.ending import CLOSED, OPEN, PULSAR

_NORMAL_ENDS: Final = {CLOSED, OPEN}
_ALERTS: Final = 3  # of a connection that are shown
_DAMAGE: Final = ("malformed_to_broker", "malformed_to_client", "gaps_to_broker", "gaps_to_client")


def connection_line(record: Record, paint: Paint, clock: TimeFormatter, width: int | None) -> str:
    """Format the line of a connection, cut to `width` cells; what went wrong keeps half of them."""
    is_normal = record["end"] in _NORMAL_ENDS
    parts = [
        f"{record['connection']:6} {clock(record['time_ns'])} {record['client']} → {record['server']}",
        paint("bold" if record["protocol"] == PULSAR else "yellow", record["protocol"] or "no data"),
        paint("" if is_normal else "red", record["how"]),
    ]
    if record["time_ns"] is not None and record["last_ns"] is not None:
        parts.append(human_time(record["last_ns"] - record["time_ns"]))
    first_kept = len(parts) if is_normal else 2
    if record["protocol"]:
        parts += [_traffic(record, paint, "→", "broker"), _traffic(record, paint, "←", "client")]
    if record["client_version"] is not None:
        version = record["protocol_version"]
        parts.append(clean(record["client_version"]) + ("" if version is None else f" v{version}"))
    if record["proxy_to_broker_url"] is not None:
        parts.append(f"to {clean(record['proxy_to_broker_url'])}")
    if record["tls"] is not None:
        parts.append(clean(_describe_tls(record["tls"])))
    if record["copies"]:
        ends = ", ".join(f"{ends['client']} → {ends['server']}" for ends in record["copied_as"])
        packets = count_of(record["copies"], "packet")
        parts.append(f"{packets} captured again" + (f" as {ends}" if ends else ""))
        if record["has_longer_copy"]:
            parts[-1] += paint("yellow", ", which go on after the original: see --keep-duplicates")
    line = "  ".join(parts)
    if width is None:
        return line
    if is_normal and not any(record[name] for name in _DAMAGE):
        return cut_line(line, width)
    return cut_line(line, width, "".join(f"  {part}" for part in parts[first_kept:]))


def _describe_tls(tls: Record) -> str:
    """Return what is known: version, names, cipher, alerts, what was found by trial, and why it is closed."""
    certificate, client = tls["server_certificate"], tls["client_certificate"]
    words = [
        " ".join(filter(None, (tls["version"] or "TLS", tls["server_name"] and f"to {tls['server_name']}"))),
        tls["cipher"],
        certificate and f"certificate {certificate['subject'] or certificate['problem']}",
        certificate and certificate["not_after"] and f"valid until {_date(certificate['not_after'])}",
        client and f"client certificate {client['subject'] or client['problem']}",
        tls["resumed"] and f"resumed by {tls['resumed']}",
        *(f"{alert['level']} alert {alert['description']}" for alert in tls["alerts"][:_ALERTS]),
        tls["trial"],
        tls["reason"],
    ]
    return ", ".join(filter(None, words))


def _date(seconds: int) -> str:
    """Return the UTC date of a time in s since 1970."""
    return f"{datetime.fromtimestamp(0, timezone.utc) + timedelta(seconds=seconds):%Y-%m-%d}"


def _traffic(record: Record, paint: Paint, arrow: str, receiver: str) -> str:
    """Format the traffic in one direction."""
    size = human_bytes(record[f"bytes_to_{receiver}"])
    if record["protocol"] != PULSAR:
        return f"{arrow} {size}"
    frames, malformed, gaps = (record[f"{name}_to_{receiver}"] for name in ("frames", "malformed", "gaps"))
    text = f"{arrow} {count_of(frames, 'frame')} {size}"
    if malformed:
        text += paint("red", f" {malformed} malformed")
    if gaps:
        text += paint("red", f" {count_of(gaps, 'gap')}")
    return text
