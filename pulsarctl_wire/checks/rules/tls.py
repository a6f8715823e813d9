"""Rules about TLS: handshakes that fail, and certificates that are not valid. See `pwire explain tls`."""

from datetime import datetime, timedelta, timezone
from typing import Any, Final

from pulsarctl_wire.checks.finding import Sighting
from pulsarctl_wire.checks.rule import CONNECTION, SECOND, ClientRule
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.session.ending import EndedConnection

_HINTS: Final = {
    "unknown_ca": "it does not trust the CA of the other side's certificate",
    "bad_certificate": "it does not accept the other side's certificate",
    "certificate_expired": "the other side's certificate has expired",
    "certificate_unknown": "it does not trust the other side's certificate",
    "certificate_required": "it requires a client certificate",
    "handshake_failure": "the two sides share no cipher suite, or a client certificate is missing",
    "protocol_version": "the two sides share no version of TLS",
    "unrecognized_name": "it does not serve the host name that the client asked for",
    "no_application_protocol": "the two sides share no application protocol (ALPN)",
    "decrypt_error": "a signature or a Finished message does not verify",
    "bad_record_mac": "a record was changed on its way, or the two sides use different keys",
}
"""Alert -> what it means, said of its sender."""
_SIDES: Final = {True: "client", False: "broker"}


class TlsHandshakeFailed(ClientRule):
    """TLS fails: one side sends a fatal alert, or the connection ends before the client has finished.

    Wire: a fatal alert, in clear or in a record that was opened; or the server has answered the handshake,
    and the connection, seen from its beginning, ends before the client sends anything encrypted: mostly the
    client does not accept the server's certificate. In TLS 1.3 most alerts are encrypted, and show only with
    a key log.

    Advice: The alert says what its sender did not accept: for unknown_ca set tlsTrustCertsFilePath, for
    handshake_failure and protocol_version compare tlsProtocols and tlsCiphers, for certificate_required give
    the client a certificate. Without an alert look at the client's log.

    Source: RFC 8446 section 6.2, RFC 5246 section 7.2.2.
    """

    id = "tls_handshake_failed"
    relies_on = CONNECTION

    def on_closed(self, state: CheckState, ending: EndedConnection) -> None:
        """Report the first fatal alert, or a handshake that was broken off."""
        connection, tls = ending.connection, ending.connection.tls
        if tls is None:
            return
        for alert in tls.alerts:
            if alert.level == "fatal":
                to_broker = alert.from_client is not connection.flipped
                hint = _HINTS.get(alert.description)
                text = f"The {_SIDES[to_broker]} ends TLS with the fatal alert {alert.description}"
                text += f": {hint}." if hint else "."
                sighting = Sighting(connection, to_broker, time_ns=alert.time_ns or 0, packet=alert.packet)
                self.report_failure(state, [(sighting, f"alert {alert.description}, {tls.describe()}")], text)
                return
        client = tls.server if connection.flipped else tls.client
        has_finished = client.records or client.closed_records or tls.is_midway or ending.joined
        if ending.by_broker is None or not tls.version or has_finished or not self.can_judge(state):
            return
        text = f"The {_SIDES[not ending.by_broker]} ends the connection before the TLS handshake is finished."
        sighting = Sighting(connection, not ending.by_broker, time_ns=ending.end_ns or 0)
        self.report_failure(state, [(sighting, f"the end of the connection, {tls.describe()}")], text)


class TlsCertificateInvalid(ClientRule):
    """A certificate is used after it has expired, or before it is valid: whoever checks it refuses it.

    Wire: the certificate's times and the time of the packets. In TLS 1.3 certificates are encrypted, and show
    only with a key log. The clock of the host that captured may be wrong.

    Advice: Renew the certificate, and restart or reload whoever serves it; or set the clock.

    Source: RFC 5280 section 4.1.2.5.
    """

    id = "tls_certificate_invalid"

    def on_closed(self, state: CheckState, ending: EndedConnection) -> None:
        """Report certificates whose time is over, or has not begun."""
        tls, time_ns = ending.connection.tls, ending.time_ns
        if tls is None or time_ns is None:
            return
        for side, certificate, to_broker in (
            ("broker", tls.server_certificate, False),
            ("client", tls.client_certificate, True),
        ):
            problem = _find_problem(certificate, time_ns // SECOND)
            if problem:
                sighting = Sighting(ending.connection, to_broker, time_ns=time_ns, packet=ending.packet)
                evidence = f"certificate {certificate.subject}, issued by {certificate.issuer}"
                self.report_failure(state, [(sighting, evidence)], f"The {side}'s certificate {problem}.")


def _find_problem(certificate: Any, now: int) -> str:
    """Return why a certificate is not valid at `now` (s since 1970); "" if it is, or nothing is known."""
    if certificate is None or certificate.problem:
        return ""
    if now > certificate.not_after:
        return f"has expired on {_format(certificate.not_after)}"
    if now < certificate.not_before:
        return f"is not valid before {_format(certificate.not_before)}"
    return ""


def _format(seconds: int) -> str:
    """Return a time in s since 1970 as text, in UTC."""
    moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=seconds)
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
