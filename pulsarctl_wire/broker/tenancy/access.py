"""Authentication and authorization of clients.

Authentication: tokens (JWT), user and password, client certificates; each gives a role. Authorization:
superusers may do everything, and admins of a tenant everything in it. Other roles may do what the policy
`auth_policies: {namespace_auth: {role: [actions]}, destination_auth: {topic: {role: [actions]}}}` of the
namespace grants them.
Sources: the packages broker.authentication and broker.authorization of Pulsar, and its ServerCnx (4.0).
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
"""Algorithm -> the least bytes of its key."""

_PUBLIC_KEY_ALGORITHMS: Final = ["RS256", "RS384", "RS512", "ES256", "ES384", "ES512"]
_NOT_BASE64: Final = bytes(set(range(256)) - set(f"{ascii_letters}{digits}-_".encode()))
_METHODS: Final = {"Token": "token", "Basic": "basic", "Tls": "tls"}
"""The end of a provider's class name -> the authentication method."""


class BadCredentials(WireError):
    """Credentials are not accepted; the text is not for the client."""


class Role(NamedTuple):
    """A client's role; valid until `expires_ms`, None: for ever."""

    name: str
    expires_ms: int | None = None


class Keys(NamedTuple):
    """The keys that credentials are checked with; the owner of the core reads them from files.

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
        ends = [(method, end) for end, method in _METHODS.items()]
        self.methods = {
            method for method, end in ends if any(provider.endswith(end) for provider in providers)
        }

    def find_gaps(self) -> Iterator[str]:
        """Yield the gaps in the settings because of which all clients of a method are refused."""
        if self.authenticates and not self.methods and not self._settings.anonymousUserRole:
            yield "authenticationProviders has none that is supported here: all clients are refused"
        if "token" in self.methods and not (self._keys.token_secret or self._keys.token_public):
            yield "AuthenticationProviderToken has no tokenSecretKey or tokenPublicKey: it refuses all tokens"
        if "basic" in self.methods and not self._keys.passwords:
            yield "AuthenticationProviderBasic has no basicAuthConf: it refuses all passwords"

    # -- authentication

    def authenticate(self, method: str, data: bytes, common_name: str, now_ms: int) -> Role:
        """Return a client's role; `common_name` is that of its certificate. Raises BadCredentials."""
        if method in self.methods:
            if method == "token":
                return self._check_token(data, now_ms)
            if method == "basic":
                return self._check_password(data.decode(errors="replace"))
            if common_name:
                return Role(common_name)
        elif self._settings.anonymousUserRole:
            return Role(self._settings.anonymousUserRole)
        raise BadCredentials(f"no credentials for the method {method!r}")

    def _check_token(self, data: bytes, now_ms: int) -> Role:
        import jwt

        key, algorithms = self._keys.token_public, _PUBLIC_KEY_ALGORITHMS
        if self._keys.token_secret:
            key = self._keys.token_secret
            algorithms = [name for name, min_bytes in _HMAC.items() if len(key) >= min_bytes]
        options = {f"verify_{claim}": False for claim in ("exp", "nbf", "iat", "aud", "sub")}
        try:
            claims = jwt.decode(_strip(data), key, algorithms, options=options)  # type: ignore[arg-type]
        except (jwt.PyJWTError, ValueError) as error:
            raise BadCredentials(str(error)) from None
        self._check_audience(claims)
        name = _role(claims.get(self._settings.tokenAuthClaim or "sub"))
        valid_from, expiry = claims.get("nbf"), claims.get("exp")
        if isinstance(valid_from, (int, float)) and valid_from * 1000 > now_ms:
            raise BadCredentials("the token is not valid yet")
        if expiry is None:
            return Role(name)
        if not isinstance(expiry, (int, float)) or expiry * 1000 <= now_ms:
            raise BadCredentials("the token has expired")
        return Role(name, int(expiry * 1000))

    def _check_audience(self, claims: Mapping[str, object]) -> None:
        """Raise BadCredentials if a token is for other brokers."""
        if self._settings.tokenAudienceClaim:
            audience = claims.get(self._settings.tokenAudienceClaim)
            if self._settings.tokenAudience not in (audience if isinstance(audience, list) else [audience]):
                raise BadCredentials("the token is for another audience")

    def _check_password(self, text: str) -> Role:
        from passlib.apache import HtpasswdFile

        user, separator, password = text.partition(":")
        passwords = HtpasswdFile.from_string(self._keys.passwords.encode())
        if not separator or not passwords.check_password(user, password):
            raise BadCredentials("wrong user or password")
        return Role(user)

    def check_roles(self, role: str, original: str, *, is_proxied: bool) -> None:
        """Raise Refused if a connection of `role` may not act for the role `original` ("": for itself).

        `is_proxied`: CONNECT says that a proxy sends it.
        """
        if not self.authorizes:
            return
        is_proxy = role in self.proxies
        if bool(original) != is_proxy or original in self.proxies:
            raise Refused("AuthorizationError", "Invalid roles.")
        if is_proxied and not is_proxy:
            text = "Must not set proxyVersion without connecting as a ProxyRole."
            raise Refused("AuthorizationError", text)

    # -- authorization

    def is_super(self, role: str) -> bool:
        """Return whether a role may do everything."""
        return not self.authorizes or role in self.superusers

    def is_allowed(self, role: str, name: TopicName, *actions: str, subscription: str = "") -> bool:
        """Return whether a role may do one of these actions ("produce", "consume") with a topic.

        A subscription may be limited to some roles.
        """
        if self.is_super(role) or self._is_tenant_admin(role, name.namespace):
            return True
        policies = self._namespaces.get_policies(name.namespace).get("auth_policies", {})
        roles = policies.get("subscription_auth_roles", {}).get(subscription)
        if (roles and role not in roles) or not self.has_prefix(role, name, subscription):
            return False
        topics = policies.get("destination_auth", {})
        grants = (
            policies.get("namespace_auth", {}),
            topics.get(name.parent.full, {}),
            topics.get(name.full, {}),
        )
        return not self._granted_actions(role, *grants).isdisjoint(actions)

    def can_list(self, role: str, namespace: str) -> bool:
        """Return whether a role may list the topics of a namespace."""
        policies = self._namespaces.get_policies(namespace).get("auth_policies", {})
        actions = self._granted_actions(role, policies.get("namespace_auth", {}))
        is_granted = not actions.isdisjoint(("produce", "consume"))
        return is_granted or self.is_super(role) or self._is_tenant_admin(role, namespace)

    def has_prefix(self, role: str, name: TopicName, subscription: str) -> bool:
        """Return whether a subscription's name, if any, begins with the role, where that is required."""
        policies = self._namespaces.get_policies(name.namespace)
        is_required = bool(subscription) and policies.get("subscription_auth_mode") == "Prefix"
        is_exempt = self.is_super(role) or self._is_tenant_admin(role, name.namespace)
        return is_exempt or not is_required or subscription.startswith(role)

    def has_tenant(self, role: str, namespace: str) -> bool:
        """Return whether a namespace's tenant exists, without which only superusers have rights."""
        return self.is_super(role) or namespace.partition("/")[0] in self._namespaces.tenants

    def _is_tenant_admin(self, role: str, namespace: str) -> bool:
        tenant = self._namespaces.tenants.get(namespace.partition("/")[0], {})
        return role in tenant.get("adminRoles", ())

    def _granted_actions(self, role: str, *grants: Mapping[str, list[str]]) -> set[str]:
        """Return the actions granted to a role; a grant may be for a pattern of roles."""
        has_wildcards = self._settings.authorizationAllowWildcardsMatching
        return {
            action
            for grant in grants
            for pattern, actions in grant.items()
            if pattern == role or (has_wildcards and _matches(pattern, role))
            for action in actions
        }


def _role(claim: object) -> str:
    """Return the (first) role in a token's claim; "" (no rights) without one. Raises BadCredentials."""
    if isinstance(claim, list):
        claim = claim[0] if claim and isinstance(claim[0], str) else None
    if claim is not None and not isinstance(claim, str):
        raise BadCredentials("the token's role is no text")
    return claim or ""


def _strip(token: bytes) -> bytes:
    """Return a token without what Pulsar's JWT library ignores, such as the newline of a file."""
    *parts, signature = token.split(b".")
    return b".".join([*map(bytes.strip, parts), signature.strip(_NOT_BASE64)])


def _matches(pattern: str, role: str) -> bool:
    """Return whether a role matches a pattern that ends or begins with *."""
    return (pattern.endswith("*") and role.startswith(pattern[:-1])) or (
        pattern.startswith("*") and role.endswith(pattern[1:])
    )


def get_common_name(certificate: Any) -> str:
    """Return the common name in a client's certificate (as ssl shows it); "" if there is none."""
    pairs = [pair for part in (certificate or {}).get("subject", ()) for pair in part]
    return str(dict(pairs).get("commonName", ""))
