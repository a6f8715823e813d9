"""Connections as plain records, for `decode --connections`, its filters and lines. See docs/json.md."""

from typing import Any, Final

from pulsarctl_wire.record import FindPacket, Record, find_no_packet
from pulsarctl_wire.wire.frame import Connection, Frame, Gap, Malformed
from pulsarctl_wire.wire.session.ending import PULSAR, Contents, EndedConnection

CONNECTION_NAMES: Final = frozenset(
    (
        *("number", "time_ns", "connection", "packet", "wireshark", "file", "client", "server"),
        *("end", "by_broker", "how", "end_ns", "last_ns", "syns", "joined_midway", "protocol"),
        *("frames_to_broker", "frames_to_client", "bytes_to_broker", "bytes_to_client"),
        *("malformed_to_broker", "malformed_to_client", "gaps_to_broker", "gaps_to_client"),
        *("copies", "copied_as", "has_longer_copy"),
        *("client_version", "protocol_version", "proxy_to_broker_url", "tls"),
    )
)
"""The names in the record of a connection."""


def connection_record(ending: EndedConnection, find_packet: FindPacket = find_no_packet) -> Record:
    """Return the record of a connection. Its state must be a `Contents`."""
    contents, connection = ending.state, ending.connection
    file, number = find_packet(ending.packet)
    assert isinstance(contents, Contents)
    counts = {
        "frames": contents.count(Frame),
        "bytes": ending.sizes,
        "malformed": contents.count(Malformed),
        "gaps": contents.count(Gap),
    }
    return {
        "number": None,
        "time_ns": ending.time_ns,
        "connection": connection.index,
        "packet": ending.packet,
        "wireshark": number,
        "file": file,
        "client": connection.client,
        "server": connection.server,
        "end": ending.end,
        "by_broker": ending.by_broker,
        "how": ending.how,
        "end_ns": ending.end_ns,
        "last_ns": ending.last_ns,
        "syns": ending.syns,
        "joined_midway": ending.joined,
        "protocol": PULSAR if any(counts["frames"]) else ending.protocol,
        **{f"{name}_to_broker": pair[True] for name, pair in counts.items()},
        **{f"{name}_to_client": pair[False] for name, pair in counts.items()},
        "copies": ending.copies,
        "has_longer_copy": ending.has_longer_copy,
        "copied_as": [{"client": client, "server": server} for client, server in ending.also],
        "client_version": contents.greeting.client_version,
        "protocol_version": contents.greeting.protocol_version,
        "proxy_to_broker_url": contents.greeting.proxy_to_broker_url,
        "tls": None if connection.tls is None else _tls_record(connection),
    }


def _tls_record(connection: Connection) -> Record:
    """Return the record of a connection's `TlsFacts`."""
    facts = connection.tls
    sides = (facts.server, facts.client) if connection.flipped else (facts.client, facts.server)
    directions = dict(zip(("to_broker", "to_client"), sides, strict=True))
    counts = ("records", "closed_records", "failed_tags", "key_updates", "first_number", "has_close_notify")
    return {
        "version": facts.version or None,
        "cipher": facts.cipher or None,
        "server_name": facts.server_name or None,
        "alpn": facts.alpn or None,
        "client_random": facts.client_random or None,
        "resumed": facts.resumed or None,
        "joined_midway": facts.is_midway,
        "opened": facts.is_opened,
        "server_certificate": _certificate_record(facts.server_certificate),
        "client_certificate": _certificate_record(facts.client_certificate),
        "alerts": [
            {
                "to_broker": alert.from_client is not connection.flipped,
                "level": alert.level,
                "description": alert.description,
                "time_ns": alert.time_ns,
                "packet": alert.packet,
            }
            for alert in facts.alerts
        ],
        **{
            f"{name.removeprefix('has_')}_{way}": getattr(direction, name)
            for name in counts
            for way, direction in directions.items()
        },
        "trial": facts.trial or None,
        "reason": facts.reason or None,
    }


def _certificate_record(certificate: Any) -> Record | None:
    """Return the record of a `Certificate`; None without one."""
    if certificate is None:
        return None
    return {
        "subject": certificate.subject,
        "names": list(certificate.names),
        "issuer": certificate.issuer,
        "not_before": certificate.not_before,
        "not_after": certificate.not_after,
        "problem": certificate.problem or None,
    }
