"""Who a client is, and what it may do. Sources: b/authentication, b/authorization, b/ServerCnx (4.0).

Authentication: tokens (JWT), user and password, client certificates; each gives a role. Authorization:
superusers may do everything; others what their role was granted for a namespace or topic, by its policy
`auth_policies: {namespace_auth: {role: [actions]}, destination_auth: {topic: {role: [actions]}}}`.
"""

from collections.abc import Iterator, Mapping
from string import ascii_letters, digits
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pulsarctl_wire.broker.basics.names import TopicName
from pulsarctl_wire.broker.basics.refusal import Refused
from pulsarctl_wire.broker.basics.settings import Settings
from pulsarctl_wire.errors import WireError

if TYPE_CHECKING:
    from pulsarctl_wire.broker.tenancy.namespaces import Namespaces

_HMAC: Final = {"HS256": 0, "HS384": 48, "HS512": 64}
"""Algorithm -> the bytes that its key must have."""

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

    def gaps(self) -> Iterator[str]:
        """What is missing in the settings, so that clients are refused who should not be."""
        if self.authenticates and not self.methods and not self._settings.anonymousUserRole:
            yield "authenticationProviders has none that is supported here: all clients are refused"
        if "token" in self.methods and not (self._keys.token_secret or self._keys.token_public):
            yield "AuthenticationProviderToken has no tokenSecretKey or tokenPublicKey: it refuses all tokens"
        if "basic" in self.methods and not self._keys.passwords:
            yield "AuthenticationProviderBasic has no basicAuthConf: it refuses all passwords"

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

        key, algorithms = self._keys.token_public, _SIGNED
        if self._keys.token_secret:
            key = self._keys.token_secret
            algorithms = [name for name, least in _HMAC.items() if len(key) >= least]
        checks = {f"verify_{claim}": False for claim in ("exp", "nbf", "iat", "aud", "sub")}
        try:
            claims = jwt.decode(_without_spaces(data), key, algorithms, options=checks)  # type: ignore[arg-type]
        except (jwt.PyJWTError, ValueError) as error:
            raise Refusal(str(error)) from None
        self._check_audience(claims)
        name = _role(claims.get(self._settings.tokenAuthClaim or "sub"))
        begins, expires = claims.get("nbf"), claims.get("exp")
        if isinstance(begins, (int, float)) and begins * 1000 > now_ms:
            raise Refusal("the token is not valid yet")
        if expires is None:
            return Role(name)
        if not isinstance(expires, (int, float)) or expires * 1000 <= now_ms:
            raise Refusal("the token has expired")
        return Role(name, int(expires * 1000))

    def _check_audience(self, claims: Mapping[str, object]) -> None:
        """Raises Refusal if a token is for other brokers."""
        if self._settings.tokenAudienceClaim:
            found = claims.get(self._settings.tokenAudienceClaim)
            if self._settings.tokenAudience not in (found if isinstance(found, list) else [found]):
                raise Refusal("the token is for another audience")

    def _basic(self, text: str) -> Role:
        from passlib.apache import HtpasswdFile

        user, found, password = text.partition(":")
        known = HtpasswdFile.from_string(self._keys.passwords.encode())
        if not found or not known.check_password(user, password):
            raise Refusal("wrong user or password")
        return Role(user)

    def check_roles(self, role: str, original: str, *, proxied: bool) -> None:
        """Raises Refused if a connection of `role` may not act for the role `original` ("": for itself)."""
        if not self.authorizes:
            return
        is_proxy = role in self.proxies
        if bool(original) != is_proxy or original in self.proxies:
            raise Refused("AuthorizationError", "Invalid roles.")
        if proxied and not is_proxy:
            text = "Must not set proxyVersion without connecting as a ProxyRole."
            raise Refused("AuthorizationError", text)

    # -- authorization

    def is_super(self, role: str) -> bool:
        """Whether a role may do everything."""
        return not self.authorizes or role in self.superusers

    def may(self, role: str, name: TopicName, *actions: str, subscription: str = "") -> bool:
        """Whether a role may do one of these actions ("produce", "consume") with a topic.

        Those of a subscription may be some of the roles only.
        """
        if self.is_super(role) or self._rules_tenant(role, name.namespace):
            return True
        policies = self._namespaces.policies(name.namespace).get("auth_policies", {})
        chosen = policies.get("subscription_auth_roles", {}).get(subscription)
        if (chosen and role not in chosen) or not self.has_prefix(role, name, subscription):
            return False
        topics = policies.get("destination_auth", {})
        grants = (
            policies.get("namespace_auth", {}),
            topics.get(name.parent.full, {}),
            topics.get(name.full, {}),
        )
        return not self._granted(role, *grants).isdisjoint(actions)

    def may_list(self, role: str, namespace: str) -> bool:
        """Whether a role may list the topics of a namespace."""
        policies = self._namespaces.policies(namespace).get("auth_policies", {})
        granted = self._granted(role, policies.get("namespace_auth", {}))
        lists = not granted.isdisjoint(("produce", "consume"))
        return lists or self.is_super(role) or self._rules_tenant(role, namespace)

    def has_prefix(self, role: str, name: TopicName, subscription: str) -> bool:
        """Whether a subscription's name, if there is one, begins with the role, if it must."""
        policies = self._namespaces.policies(name.namespace)
        needed = bool(subscription) and policies.get("subscription_auth_mode") == "Prefix"
        free = self.is_super(role) or self._rules_tenant(role, name.namespace)
        return free or not needed or subscription.startswith(role)

    def knows(self, role: str, namespace: str) -> bool:
        """Whether there is the tenant that the rights of a role depend on."""
        return self.is_super(role) or namespace.partition("/")[0] in self._namespaces.tenants

    def _rules_tenant(self, role: str, namespace: str) -> bool:
        tenant = self._namespaces.tenants.get(namespace.partition("/")[0], {})
        return role in tenant.get("adminRoles", ())

    def _granted(self, role: str, *grants: Mapping[str, list[str]]) -> set[str]:
        """The actions granted to a role; a grant may be for all roles that begin or end alike."""
        wild = self._settings.authorizationAllowWildcardsMatching
        return {
            action
            for granted in grants
            for pattern, actions in granted.items()
            if pattern == role or (wild and _matches(pattern, role))
            for action in actions
        }


def _role(claim: object) -> str:
    """The role that a token names, or the first of several; "", which has no rights, if it names none."""
    if isinstance(claim, list):
        claim = claim[0] if claim and isinstance(claim[0], str) else None
    if claim is not None and not isinstance(claim, str):
        raise Refusal("the token's role is no text")
    return claim or ""


def _without_spaces(token: bytes) -> bytes:
    """A token without what Pulsar's JWT library ignores, such as the line end of a file."""
    *parts, signature = token.split(b".")
    return b".".join([*map(bytes.strip, parts), signature.strip(_NOT_BASE64)])


def _matches(pattern: str, role: str) -> bool:
    """Whether a role matches a pattern that ends or begins with *."""
    return (pattern.endswith("*") and role.startswith(pattern[:-1])) or (
        pattern.startswith("*") and role.endswith(pattern[1:])
    )


def common_name(certificate: Any) -> str:
    """The common name of the subject of a client's certificate, as ssl shows it; "" if there is none."""
    pairs = [pair for part in (certificate or {}).get("subject", ()) for pair in part]
    return str(dict(pairs).get("commonName", ""))
