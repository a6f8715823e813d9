"""Who a client is, and what it may do. Sources: b/authentication, b/authorization, b/ServerCnx (4.0).

Authentication: tokens (JWT), user and password, client certificates; each gives a role. Authorization:
superusers may do everything; others what their role was granted for a namespace or topic, by its policy
`auth_policies: {namespace_auth: {role: [actions]}, destination_auth: {topic: {role: [actions]}}}`.
"""

from collections.abc import Mapping
from string import ascii_letters, digits
from typing import TYPE_CHECKING, Final, NamedTuple

from pulsarctl_wire.broker.names import TopicName
from pulsarctl_wire.broker.settings import Settings
from pulsarctl_wire.errors import WireError

if TYPE_CHECKING:
    from pulsarctl_wire.broker.namespaces import Namespaces

_HMAC: Final = ["HS256", "HS384", "HS512"]
_SIGNED: Final = ["RS256", "RS384", "RS512", "ES256", "ES384", "ES512"]
_NOT_BASE64: Final = bytes(set(range(256)) - set(f"{ascii_letters}{digits}-_".encode()))
_CLASSES: Final = {"Token": "token", "Basic": "basic", "Tls": "tls"}


class Refusal(WireError):
    """Credentials are not accepted; the text is not for the client."""


class Role(NamedTuple):
    """Who a client is; `expires_ms`: until when, None for ever."""

    name: str
    expires_ms: int | None = None


class Keys(NamedTuple):
    """What credentials are checked with; the owner of the core reads it from files.

    `token_secret` and `token_public` check tokens, `passwords` are lines of a password file.
    """

    token_secret: bytes = b""
    token_public: bytes = b""
    passwords: str = ""


class Access:
    """Authentication and authorization of all brokers of a cluster."""

    def __init__(self, settings: Settings, keys: Keys, namespaces: "Namespaces") -> None:
        self._settings = settings
        self._keys = keys
        self._namespaces = namespaces
        self.authenticates = settings.authenticationEnabled
        self.authorizes = settings.authenticationEnabled and settings.authorizationEnabled
        self.superusers = frozenset(settings.superUserRoles)
        self.proxies = frozenset(settings.proxyRoles)
        providers = settings.authenticationProviders
        ends = [(method, end) for end, method in _CLASSES.items()]
        self.methods = {method for method, end in ends if any(it.endswith(end) for it in providers)}

    # -- authentication

    def authenticate(self, method: str, data: bytes, certificate: str, now_ms: int) -> Role:
        """The role of a client. `certificate` is the common name in its certificate. Raises Refusal."""
        if method in self.methods:
            if method == "token":
                return self._token(data, now_ms)
            if method == "basic":
                return self._basic(data.decode(errors="replace"))
            if certificate:
                return Role(certificate)
        elif self._settings.anonymousUserRole:
            return Role(self._settings.anonymousUserRole)
        raise Refusal(f"no credentials for the method {method!r}")

    def _token(self, data: bytes, now_ms: int) -> Role:
        import jwt

        key, algorithms = self._keys.token_secret, _HMAC
        if self._keys.token_public:
            key, algorithms = self._keys.token_public, _SIGNED
        checks = {"verify_exp": False, "verify_nbf": False, "verify_iat": False, "verify_aud": False}
        try:
            claims = jwt.decode(_without_spaces(data), key, algorithms, options=checks)  # type: ignore[arg-type]
        except (jwt.PyJWTError, ValueError) as error:
            raise Refusal(str(error)) from None
        name, expires = claims.get(self._settings.tokenAuthClaim or "sub"), claims.get("exp")
        if not isinstance(name, str):
            raise Refusal("the token names no role")
        if expires is None:
            return Role(name)
        if not isinstance(expires, (int, float)) or expires * 1000 <= now_ms:
            raise Refusal("the token has expired")
        return Role(name, int(expires * 1000))

    def _basic(self, text: str) -> Role:
        from passlib.apache import HtpasswdFile

        user, found, password = text.partition(":")
        known = HtpasswdFile.from_string(self._keys.passwords.encode())
        if not found or not known.check_password(user, password):
            raise Refusal("wrong user or password")
        return Role(user)

    def roles_fit(self, role: str, original: str, *, proxied: bool) -> bool:
        """Whether a connection of `role` may act for the role `original` ("": for itself)."""
        if role in self.proxies:
            return proxied and bool(original) and original not in self.proxies
        return not proxied and original in ("", role)

    # -- authorization

    def is_super(self, role: str) -> bool:
        """Whether a role may do everything."""
        return not self.authorizes or role in self.superusers

    def may(self, role: str, name: TopicName, *actions: str) -> bool:
        """Whether a role was granted one of these actions ("produce", "consume") for a topic."""
        if self.is_super(role) or self._rules_tenant(role, name.namespace):
            return True
        policies = self._namespaces.policies(name.namespace).get("auth_policies", {})
        of_topic = policies.get("destination_auth", {}).get(name.parent.full, {})
        granted = {*_granted(policies.get("namespace_auth", {}), role), *_granted(of_topic, role)}
        granted |= set(_granted(policies.get("destination_auth", {}).get(name.full, {}), role))
        return not granted.isdisjoint(actions)

    def may_list(self, role: str, namespace: str) -> bool:
        """Whether a role may list the topics of a namespace."""
        policies = self._namespaces.policies(namespace).get("auth_policies", {})
        granted = _granted(policies.get("namespace_auth", {}), role)
        return self.is_super(role) or self._rules_tenant(role, namespace) or bool(granted)

    def _rules_tenant(self, role: str, namespace: str) -> bool:
        tenant = self._namespaces.tenants.get(namespace.partition("/")[0], {})
        return role in tenant.get("adminRoles", ())


def _without_spaces(token: bytes) -> bytes:
    """A token without what Pulsar's JWT library ignores, such as the line end of a file."""
    *parts, signature = token.split(b".")
    return b".".join([*map(bytes.strip, parts), signature.strip(_NOT_BASE64)])


def _granted(policies: Mapping[str, list[str]], role: str) -> list[str]:
    """The actions granted to a role; a grant may end or begin with *."""
    granted = list(policies.get(role, ()))
    for pattern, actions in policies.items():
        if (pattern.endswith("*") and role.startswith(pattern[:-1])) or (
            pattern.startswith("*") and role.endswith(pattern[1:])
        ):
            granted += actions
    return granted
