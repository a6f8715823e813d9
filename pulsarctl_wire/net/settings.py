"""Settings for connecting to a cluster: service URL, credentials, TLS, timeouts.

A setting comes from a flag, else from the environment (`PWIRE_NAME` before `PULSAR_NAME`), else from a
file in the format of Pulsar's own client.conf. Source of the file's keys and of the formats of authParams:
Pulsar's client configuration reference.
"""

import json
import os
import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pulsarctl_wire.errors import SettingsError

MAX_REDIRECTS: Final = 20
"""Maximum number of redirects of one lookup, as in Pulsar's clients."""

DEFAULT_URL: Final = "pulsar://localhost:6650"
_PORTS: Final = {"pulsar": 6650, "pulsar+ssl": 6651}
_WEB_PORTS: Final = {"http": 80, "https": 443}
_CONF_KEYS: Final = {
    "brokerServiceUrl": "url",
    "authPlugin": "auth_plugin",
    "authParams": "auth_params",
    "tlsAllowInsecureConnection": "tls_allow_insecure",
    "tlsEnableHostnameVerification": "tls_hostname_check",
    "tlsTrustCertsFilePath": "tls_ca",
    "tlsCertificateFilePath": "tls_cert",
    "tlsKeyFilePath": "tls_key",
}
_PLUGINS: Final = {
    "authenticationtoken": "token",
    "authenticationbasic": "basic",
    "authenticationtls": "tls",
    "authenticationdisabled": "none",
}


class Address(NamedTuple):
    """A host and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class ServiceUrl:
    """A parsed service URL: whether it asks for TLS, and its hosts in the order to be tried.

    `is_web`: the hosts are web services (http:// or https://), which name brokers over HTTP.
    """

    tls: bool
    addresses: tuple[Address, ...]
    is_web: bool = False

    @property
    def scheme(self) -> str:
        """The scheme: pulsar, pulsar+ssl, http or https."""
        return ("https" if self.tls else "http") if self.is_web else f"pulsar{'+ssl' if self.tls else ''}"

    def __str__(self) -> str:
        return f"{self.scheme}://{','.join(map(str, self.addresses))}"


def parse_url(text: str) -> ServiceUrl:
    """Parse `pulsar://host:port,host2:port2` or `pulsar+ssl://…`; ports default to 6650 and 6651.

    Raises SettingsError for anything else.
    """
    url = parse_service_url(text)
    if url.is_web:
        raise SettingsError(f"{text} is a web service URL; give one of the binary protocol, as {DEFAULT_URL}")
    return url


def parse_service_url(text: str) -> ServiceUrl:
    """Parse a service URL as `parse_url` does, or a web service's: `http://…` (port 80), `https://…` (443).

    Raises SettingsError for anything else.
    """
    scheme, separator, hosts = text.strip().partition("://")
    if not separator:
        scheme, hosts = "pulsar", scheme
    port = (_PORTS | _WEB_PORTS).get(scheme)
    if port is None:
        raise SettingsError(
            f"{text}: a service URL begins with pulsar:// or pulsar+ssl://, or with http:// or https://"
        )
    if "@" in hosts:
        raise SettingsError("a service URL cannot have a user and password; see --basic and --token")
    addresses = tuple(_parse_address(host, port, text) for host in hosts.rstrip("/").split(","))
    return ServiceUrl(scheme in ("pulsar+ssl", "https"), addresses, scheme in _WEB_PORTS)


def _parse_address(text: str, port: int, url: str) -> Address:
    host, colon, tail = text.strip().rpartition(":")
    if not colon or tail.endswith("]"):
        host, tail = text.strip(), str(port)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise SettingsError(f"{url}: put an IPv6 address in brackets, as in pulsar://[::1]:6650")
    port_text = re.fullmatch("[0-9]{1,5}", tail)
    is_invalid = not host.isprintable() or set(host) & {"/", " "}
    if is_invalid or not (host and port_text and 0 < int(tail) < 65_536):
        raise SettingsError(f"{url}: {text.strip() or 'nothing'} is not host:port")
    return Address(host, int(tail))


@dataclass(frozen=True)
class Auth:
    """An authentication method: its name in the protocol, and `data`, which reads the credentials anew."""

    method: str = "none"
    data: Callable[[], bytes] = field(default=bytes, repr=False)


@dataclass(frozen=True)
class Settings:
    """All settings of a session; times in seconds.

    `timeout` is how long an answer may take. `connect_timeout` is how long TCP with TLS may take, and
    then as long again for CONNECT. `keep_alive` is the pause between PINGs. `reconnect`: lost connections are
    opened again. `listener` is the name of the advertised listener whose addresses lookups ask for. `keylog`
    is as in `make_tls_context`.
    """

    url: ServiceUrl
    auth: Auth = Auth()
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_allow_insecure: bool = False
    tls_hostname_check: bool = True
    keylog: str | None = None
    listener: str | None = None
    timeout: float = 30.0
    connect_timeout: float = 10.0
    keep_alive: float = 30.0
    reconnect: bool = True

    def tls_context(self) -> ssl.SSLContext:
        """Return the context for TLS connections. Raises SettingsError for unreadable certificates."""
        try:
            context = make_tls_context(ssl.Purpose.SERVER_AUTH, self.tls_ca, self.keylog)
            if self.tls_cert:
                context.load_cert_chain(self.tls_cert, self.tls_key)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(filter(None, (self.tls_ca, self.tls_cert, self.tls_key)))
            reason = getattr(error, "strerror", None) or error
            raise SettingsError(
                f"TLS certificates {files} cannot be used: {reason}; they must be PEM files"
            ) from None
        context.check_hostname = self.tls_hostname_check and not self.tls_allow_insecure
        if self.tls_allow_insecure:
            context.verify_mode = ssl.CERT_NONE
        return context


def make_tls_context(purpose: ssl.Purpose, ca: str | None, keylog: str | None) -> ssl.SSLContext:
    """Return a TLS context that trusts the CAs in the file `ca` (None: those of the system), and logs keys.

    The keys of its connections are appended to `keylog` (default: $SSLKEYLOGFILE; if neither is set, there
    is no log) in NSS format. The file is created so that only the user can read it. Raises SettingsError if
    it cannot be written, and OSError for `ca`.
    """
    path = keylog or os.environ.get("SSLKEYLOGFILE")
    try:
        if path:
            number = os.open(path, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o600)
            with open(number, "rb", closefd=True) as file:
                if b"\0" in file.read(1_024):
                    raise SettingsError(f"the key log {path} is another file, with binary data")
    except OSError as error:
        raise SettingsError(f"the key log {path} cannot be written: {error.strerror}") from None
    context = ssl.create_default_context(purpose, cafile=ca)
    if keylog:
        context.keylog_filename = keylog
    return context


def gather(
    flags: Mapping[str, str | None], environment: Mapping[str, str], conf: str | None = None
) -> dict[str, str]:
    """Return settings by name (`url`, `token`, `tls_ca`, …) from flags, environment and client.conf.

    `flags` are those of the command line (None: not given), `conf` is the path of client.conf (default:
    PWIRE_CLIENT_CONF or PULSAR_CLIENT_CONF). Raises SettingsError if that cannot be read.
    """
    path = conf or environment.get("PWIRE_CLIENT_CONF") or environment.get("PULSAR_CLIENT_CONF")
    layers = [
        _read_conf(path) if path else {},
        *(_read_variables(flags, environment, prefix) for prefix in ("PULSAR", "PWIRE")),
        {name: value for name, value in flags.items() if value is not None},
    ]
    texts: dict[str, str] = {}
    certificate: dict[str, str] = {}  # the certificate named by auth_params
    for layer in layers:
        if not _CREDENTIAL_NAMES.isdisjoint(layer):  # credentials replace those of another kind, too
            texts = {
                name: value
                for name, value in texts.items()
                if name not in _CREDENTIAL_NAMES | {"auth_params"}
            }
            certificate = {}
        texts |= layer
        if "auth_params" in layer and _find_plugin(texts) == "tls":
            certificate = _find_certificate(layer["auth_params"])
        if "tls_cert" in layer:
            certificate = {}
    return texts | certificate


_CREDENTIAL_NAMES: Final = frozenset({"token", "token_file", "basic", "auth_plugin"})


def _read_variables(names: Iterable[str], environment: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return settings from variables that begin with `prefix`, `<prefix>_SERVICE_URL` included."""
    texts = {name: environment.get(f"{prefix}_{name.upper()}", "") for name in names}
    texts["url"] = texts.get("url") or environment.get(f"{prefix}_SERVICE_URL", "")
    return {name: value for name, value in texts.items() if value}


def _find_certificate(parameters: str) -> dict[str, str]:
    """Return the certificate and key in the parameters of TLS authentication."""
    pairs = _parse_pairs(parameters)
    names = {"tls_cert": "tlsCertFile", "tls_key": "tlsKeyFile"}
    return {name: pairs[key] for name, key in names.items() if key in pairs}


def _read_conf(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read(1 << 20).splitlines()
    except OSError as error:
        raise SettingsError(f"client.conf {path}: {error.strerror}; name another with --conf") from None
    texts = {}
    for line in lines:
        key, equals, value = line.partition("=")
        name = _CONF_KEYS.get(key.strip())
        if equals and name and value.strip() and not line.lstrip().startswith(("#", "!")):
            texts[name] = value.strip()
    return texts


def make_settings(texts: Mapping[str, str], **fields: object) -> Settings:
    """Return settings built from the texts of `gather`; `fields` are further fields of Settings.

    Raises SettingsError for an invalid value.
    """
    url = parse_service_url(texts.get("url", DEFAULT_URL))
    return Settings(
        url=url,
        auth=_make_auth(texts),
        tls_ca=texts.get("tls_ca"),
        tls_cert=texts.get("tls_cert"),
        tls_key=texts.get("tls_key"),
        tls_allow_insecure=_read_boolean(texts, "tls_allow_insecure", False),
        tls_hostname_check=_read_boolean(texts, "tls_hostname_check", True),
        keylog=texts.get("keylog"),
        listener=texts.get("listener_name"),
        **fields,  # type: ignore[arg-type]
    )


def _read_boolean(texts: Mapping[str, str], name: str, default: bool) -> bool:
    value = texts.get(name, str(default)).lower()
    if value not in ("true", "false", "1", "0", "yes", "no"):
        raise SettingsError(f"{name}: {value!r} is neither true nor false")
    return value in ("true", "1", "yes")


def _find_plugin(texts: Mapping[str, str]) -> str:
    """Return the short name of the requested authentication plugin."""
    name = texts.get("auth_plugin", "").rpartition(".")[2].lower()
    return _PLUGINS.get(name, name)


def _make_auth(texts: Mapping[str, str]) -> Auth:
    if "token" in texts:
        return _make_token_auth("token:" + texts["token"])
    if "token_file" in texts:
        return _make_token_auth("file:" + texts["token_file"])
    if "basic" in texts:
        return _make_basic_auth(texts["basic"])
    plugin, parameters = texts.get("auth_plugin", ""), texts.get("auth_params", "")
    if not plugin:
        return Auth("tls") if texts.get("tls_cert") else Auth()
    kind = _find_plugin(texts)
    if kind == "token":
        return _make_token_auth(parameters)
    if kind == "basic":
        return _make_basic_auth(parameters)
    if kind in ("tls", "none"):
        return Auth(kind)
    raise SettingsError(f"auth plugin {plugin}: pwire supports token, basic, tls and none")


def _parse_pairs(text: str) -> dict[str, str]:
    if text.lstrip().startswith("{"):
        try:
            return {str(key): str(value) for key, value in json.loads(text).items()}
        except ValueError:
            raise SettingsError("auth params: they begin like JSON, but are not valid JSON") from None
    return {key: value for key, _, value in (pair.partition(":") for pair in text.split(","))}


def _make_token_auth(text: str) -> Auth:
    if text.lstrip().startswith("{"):
        text = "token:" + _parse_pairs(text).get("token", "")
    if text.startswith("file:"):
        path = text.removeprefix("file:")
        path = path.removeprefix("//") if path.startswith("///") else path
        return Auth("token", lambda: _read_token(path))
    token = text.removeprefix("token:").strip().encode("utf-8", "surrogateescape")
    if not token:
        raise SettingsError("the token is empty; give it with --token, --token-file or PULSAR_TOKEN")
    return Auth("token", lambda: token)


def _read_token(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            token = file.read(1 << 20).strip()
    except OSError as error:
        raise SettingsError(f"token file {path}: {error.strerror}") from None
    if not token:
        raise SettingsError(f"token file {path} is empty")
    return token


def _make_basic_auth(text: str) -> Auth:
    if text.lstrip().startswith("{"):
        pairs = _parse_pairs(text)
        text = f"{pairs.get('userId', '')}:{pairs.get('password', '')}"
    user, colon, _ = text.partition(":")
    if not colon or not user:
        raise SettingsError("basic authentication is given as USER:PASSWORD")
    return Auth("basic", lambda: text.encode("utf-8", "surrogateescape"))
