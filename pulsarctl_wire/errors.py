"""The errors pwire raises, all of them.

    WireError
    ├── CaptureError        a source that cannot be read, or not further
    │   └── DamagedCapture  what came before the damage was read and given
    ├── LocalProtocolError  we were asked to build what the protocol does not allow
    ├── FilterError         a filter expression that is not one
    ├── ProxyHeaderError    a PROXY header that is none (wire/proxy_header.py)
    ├── SettingsError       a flag, variable or line of client.conf that makes no sense
    └── SessionError        a session with a broker that cannot go on
        ├── Unreachable     no connection could be made
        ├── LinkClosed      a connection ended while somebody needed it
        ├── Unanswered      an answer did not come in time
        └── BrokerError     the broker refused a request

Damaged traffic is no error: the decoder yields `Malformed` and `Gap` values for it. Exit codes
live in `pulsarctl_wire.cli.console` alone.
"""

from typing import Any


class WireError(Exception):
    """The root: one line that names the cause and the way out."""


class CaptureError(WireError):
    """A source that cannot be opened, is no capture, or cannot be read."""


class DamagedCapture(CaptureError):
    """A capture that ends or breaks in its middle: everything before the damage was yielded."""


class LocalProtocolError(WireError):
    """A frame we were asked to build cannot exist (too large, a required field missing)."""


class FilterError(WireError):
    """A filter expression that does not parse or does not fit the fields."""


class SettingsError(WireError):
    """A setting of a session (flag, environment variable, client.conf) that makes no sense."""


class SessionError(WireError):
    """A session with a broker that cannot go on."""


class Unreachable(SessionError):
    """No connection: refused, not resolved, another protocol there, a certificate not trusted."""


class LinkClosed(SessionError):
    """A connection ended while an answer or a receipt was still awaited."""


class Unanswered(SessionError):
    """An answer did not come in time; the text says which."""


class BrokerError(SessionError):
    """The broker refused.

    `code` is the ServerError's name ("TopicNotFound"), `detail` the broker's own text, `request` the
    name of the command that was refused ("LOOKUP"), `meaning` what the code usually means, or "", `about`
    the topic it was about, if it names one.
    """

    def __init__(self, code: str, detail: str, request: str, meaning: str = "", about: str = "") -> None:
        self.code = code
        self.detail = detail
        self.request = request
        self.meaning = meaning
        said = f": {detail}" if detail else ""
        of = f" of {about}" if about else ""
        super().__init__(f"{request}{of} refused, {code}{said}{f' ({meaning})' if meaning else ''}")


def how_to_install(extra: str) -> str:
    """The command that adds the extra `extra` to this installation: by the same tool, from the same place.

    Tools leave their mark in the environment (pipx_metadata.json, uv-receipt.toml), and the place of whatever
    came from no index stands in direct_url.json (PEP 610).
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
        found = (checkout / "pyproject.toml").exists()
        origin = {"url": checkout.as_uri(), "dir_info": {"editable": True}} if found else {}
    url = origin.get("url", "")
    what = f"{name}[{extra}]"
    editable: list[str] = []
    if "dir_info" in origin:
        what = f"{unquote(urlsplit(url).path)}[{extra}]"
        editable = ["-e"] if origin["dir_info"].get("editable") else []
    elif "vcs_info" in origin:
        vcs = origin["vcs_info"]
        what += f" @ {vcs.get('vcs', 'git')}+{url}@{vcs.get('commit_id', 'HEAD')}"
    elif url:
        what += f" @ {url}"
    prefix = Path(sys.prefix)
    tool = ["pip", "install"] if find_spec("pip") else ["uv", "pip", "install"]
    if (prefix / "pipx_metadata.json").exists():
        tool = ["pipx", "install", "--force"]
    elif (prefix / "uv-receipt.toml").exists():
        tool = ["uv", "tool", "install", "--force"]
    return shlex.join([*tool, *editable, what])
