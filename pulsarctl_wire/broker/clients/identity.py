"""The identity of a connection's client: credentials, their refresh, and authorization.

Sources: b/ServerCnx, b/authorization/PulsarAuthorizationProvider (4.0).
"""

from typing import Any, Final, Protocol

from pulsarctl_wire.broker.basics.names import TopicName
from pulsarctl_wire.broker.basics.refusal import Refused, Violation
from pulsarctl_wire.broker.basics.scheduler import Scheduler
from pulsarctl_wire.broker.basics.settings import Settings
from pulsarctl_wire.broker.tenancy.access import Access, BadCredentials, Role
from pulsarctl_wire.wire.fields import REFRESH, as_text
from pulsarctl_wire.wire.PulsarApi_pb2 import AuthMethod, CommandAuthResponse, CommandConnect, FeatureFlags

_FAILED: Final = Refused("AuthenticationError", "Failed to authenticate")
_NOT_FOUND: Final = "org.apache.pulsar.common.util.RestException: HTTP 404 Not Found"


class Client(Protocol):
    """The connection of a client."""

    certificate: str
    """The common name of its certificate; empty without one."""
    version: int
    features: FeatureFlags

    @property
    def closed(self) -> bool:
        """Whether the connection is closed."""

    def send(self, name: str, **fields: Any) -> None:
        """Send a command."""

    def close(self) -> None:
        """Close the connection."""


class Identity:
    """The identity of a client: its `role`, and `original`, the role for which it acts if it is a proxy."""

    def __init__(self, client: Client, access: Access, settings: Settings, scheduler: Scheduler) -> None:
        self._client = client
        self._access = access
        self._settings = settings
        self._scheduler = scheduler
        self.role = Role("")
        self.original = Role("")
        self._method = ""
        self._original_method = ""  # empty unless a proxy forwards the credentials of its client
        self._is_challenged = False

    @property
    def principal(self) -> str:
        """The role for which the client acts: `original` if it is a proxy, else `role`.

        "" without authentication.
        """
        return self.original.name or self.role.name

    @property
    def is_super(self) -> bool:
        """Whether the client may do everything."""
        return all(map(self._access.is_super, self._roles))

    # -- authentication

    def establish(self, body: CommandConnect) -> None:
        """Take the credentials in CONNECT. Raises Refused."""
        if body.HasField("auth_method_name"):
            self._method = as_text(body.auth_method_name)
        elif body.HasField("auth_method"):
            self._method = AuthMethod.Name(body.auth_method).removeprefix("AuthMethod").lower()
        else:
            self._method = "tls" if self._client.certificate else "none"
        try:
            self.role = self._authenticate(self._method, body.auth_data)
            if not self._settings.authenticateOriginalAuthData:
                self.original = Role(as_text(body.original_principal))
            elif body.HasField("original_principal"):
                self._original_method = as_text(body.original_auth_method) or "none"
                data = as_text(body.original_auth_data).encode(errors="surrogateescape")
                self.original = self._authenticate(self._original_method, data)
        except BadCredentials:
            raise _FAILED from None
        self._access.check_roles(
            self.role.name, self.original.name, is_proxied=body.HasField("proxy_version")
        )
        self._schedule_check()

    def _authenticate(self, method: str, data: bytes) -> Role:
        return self._access.authenticate(method, data, self._client.certificate, self._scheduler.time_ms)

    def _schedule_check(self) -> None:
        seconds = self._settings.authenticationRefreshCheckSeconds
        self._scheduler.call_later(seconds, self._check_expiry)

    def _check_expiry(self) -> None:
        """Ask for new credentials once the old ones have expired.

        Close if none come by the next check, or the client cannot send any.
        """
        client = self._client
        is_forwarded = bool(self._original_method)
        expiry_ms = (self.original if is_forwarded else self.role).expires_ms
        if client.closed:
            return
        if expiry_ms is not None and expiry_ms <= self._scheduler.time_ms:
            is_unrefreshable = self.original.name and not is_forwarded  # a proxy has no newer credentials
            if is_unrefreshable or self._is_challenged or not client.features.supports_auth_refresh:
                client.close()
                return
            self._is_challenged = True
            challenge = {"auth_method_name": self._method, "auth_data": REFRESH}
            client.send("AUTH_CHALLENGE", challenge=challenge, protocol_version=client.version)
        self._schedule_check()

    def refresh(self, body: CommandAuthResponse) -> None:
        """Take new credentials, which must be of the same role. Raises Refused, Violation."""
        response = body.response
        if not (response.HasField("auth_method_name") and response.HasField("auth_data")):
            raise Violation("AUTH_RESPONSE without credentials")
        if not self._method:  # before CONNECT, or without authentication
            raise _FAILED
        try:
            role = self._authenticate(self._original_method or self._method, response.auth_data)
        except BadCredentials:
            raise _FAILED from None
        if role.name != (self.original if self._original_method else self.role).name:
            raise Violation("the credentials of another role")
        if self._original_method:
            self.original = role
        else:
            self.role = role
        self._is_challenged = False

    # -- authorization

    @property
    def _roles(self) -> set[str]:
        return {self.role.name, self.principal}

    def is_allowed(self, name: TopicName, *actions: str, subscription: str = "") -> bool:
        """Return whether the client may do one of these actions with a topic, or its subscription."""
        access, roles = self._access, self._roles
        return all(access.is_allowed(role, name, *actions, subscription=subscription) for role in roles)

    def authorize(self, operation: str, name: TopicName, *actions: str, subscription: str = "") -> None:
        """Raise Refused if the client may do none of these actions; `operation` names the purpose."""
        if not self.is_allowed(name, *actions, subscription=subscription):
            raise Refused("AuthorizationError", f"Client is not authorized to {operation}")

    def authorize_list(self, namespace: str, text: str) -> None:
        """Raise Refused, with this text, if the client may not list the topics of a namespace."""
        if not all(self._access.can_list(role, namespace) for role in self._roles):
            raise Refused("AuthorizationError", text)

    def check_tenant(self, namespace: str, text: str = _NOT_FOUND, code: str = "AuthorizationError") -> None:
        """Raise Refused if rights depend on a tenant that does not exist."""
        if not all(self._access.has_tenant(role, namespace) for role in self._roles):
            raise Refused(code, text)

    def check_prefix(self, name: TopicName, subscription: str) -> None:
        """Raise Refused if subscription names must begin with the role, and this one does not."""
        for role in self._roles:
            if not self._access.has_prefix(role, name, subscription):
                raise Refused(
                    "AuthorizationError",
                    "org.apache.pulsar.broker.PulsarServerException: Failed to create consumer - The "
                    "subscription name needs to be prefixed by the authentication role, "
                    f"like {role}-xxxx for topic: {name.full}",
                )
