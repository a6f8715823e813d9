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
