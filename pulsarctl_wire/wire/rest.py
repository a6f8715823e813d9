"""The calls of Pulsar's REST API that clients make instead of commands: lookup, partitions, topics, schema.

    LOOKUP                    GET /lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}
    PARTITIONED_METADATA      GET /admin/v2/{domain}/{tenant}/{namespace}/{topic}/partitions
    GET_TOPICS_OF_NAMESPACE   GET /admin/v2/namespaces/{tenant}/{namespace}/topics
    GET_SCHEMA                GET /admin/v2/schemas/{tenant}/{namespace}/{topic}/schema[/{version}]

Older names have a cluster between tenant and namespace. Source: reference of the REST API, v2.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlencode

from pulsarctl_wire.wire.names import MAX_NAME_LENGTH

_PATHS: Final = {
    "lookup": re.compile(r"/lookup/v2/(?:topic|destination)/(?P<topic>[\w-]+(?:/[^/]+){3,4})"),
    "partitions": re.compile(r"/admin(?:/v2)?/(?P<topic>(?:non-)?persistent(?:/[^/]+){3,4})/partitions"),
    "topics": re.compile(r"/admin/v2/namespaces/(?P<namespace>[^/]+(?:/[^/]+){1,2})/topics"),
    "schema": re.compile(r"/admin/v2/schemas/(?P<topic>[^/]+(?:/[^/]+){2,3})/schema(?:/(?P<version>\d+))?"),
}
"""Kind of call -> its path."""

COMMANDS: Final = {
    "lookup": "LOOKUP",
    "partitions": "PARTITIONED_METADATA",
    "topics": "GET_TOPICS_OF_NAMESPACE",
    "schema": "GET_SCHEMA",
}
"""Kind of call -> the command that asks the same."""

_SHOWN: Final = frozenset(
    {"authoritative", "listenerName", "checkAllowAutoCreation", "mode", "includeSystemTopic", "bundle"}
)
"""Parameters whose values are shown; others may be credentials."""

_HARMLESS_FIELDS: Final = frozenset(
    {
        *("brokerUrl", "brokerUrlTls", "brokerUrlSsl", "httpUrl", "httpUrlTls", "nativeUrl"),
        *("partitions", "deleted", "reason"),
    }
)
"""Fields of answers that hold no credentials."""

_USER: Final = re.compile(r"(?<=//)[^\s/@]+(?=@)")
_QUERY: Final = re.compile(r"\?\S*")
_PAIR: Final = re.compile(r"[^&\s]+")
_NAME: Final = re.compile(r"[A-Za-z_-]{1,32}")

_ERRORS: Final = {
    401: "AuthenticationError",
    403: "AuthorizationError",
    404: "TopicNotFound",
    405: "NotAllowedError",
    409: "NotAllowedError",
    412: "InvalidTopicName",
    429: "TooManyRequests",
    503: "ServiceNotReady",
}
_MESSAGE: Final = re.compile(r"^Message: (.+)$", re.MULTILINE)


class Call(NamedTuple):
    """A call: `kind` is a key of `COMMANDS`; the topic's full name, or the namespace."""

    kind: str
    topic: str | None = None
    namespace: str | None = None


def parse_target(target: str) -> Call | None:
    """Return the call that a GET request with this target makes; None for all other requests."""
    path = re.sub(r"^https?://[^/]*", "", target.partition("?")[0])
    if len(path) > MAX_NAME_LENGTH or ".." in unquote(path).split("/"):
        return None
    for kind, pattern in _PATHS.items():
        match = pattern.fullmatch(path)
        if match is None:
            continue
        parts = match.groupdict()
        if kind == "topics":
            return Call(kind, namespace=unquote(parts["namespace"]))
        domain, _, name = (
            parts["topic"].partition("/") if kind != "schema" else ("persistent", "", parts["topic"])
        )
        return Call(kind, f"{domain}://{unquote(name)}")
    return None


def find_url_secrets(line: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of a line with a URL that may be credentials: a user, and most values of the query."""
    for match in _USER.finditer(line):
        yield match.span()
    query = _QUERY.search(line)
    for pair in _PAIR.finditer(line, query.start() + 1, query.end()) if query is not None else ():
        name, equals, _ = pair[0].partition("=")
        if name in _SHOWN and equals:
            continue
        start = pair.start() + (len(name) + 1 if equals and _NAME.fullmatch(name) else 0)
        if start < pair.end():
            yield start, pair.end()


def hide_credentials(target: str) -> str:
    """Return a target or URL with `[redacted]` for what may be credentials."""
    for start, stop in sorted(find_url_secrets(target), reverse=True):
        target = f"{target[:start]}[redacted]{target[stop:]}"
    return target


def is_harmless_answer(body: bytes) -> bool:
    """Return whether a body is certainly the answer to a call, which has no credentials."""
    value = parse_json(body) if b"@" not in body else None
    return isinstance(value, dict) and _HARMLESS_FIELDS.issuperset(value)


def is_authoritative(target: str) -> bool:
    """Return whether the target of a lookup, or the URL of a redirect, says `authoritative`."""
    return parse_qs(target.partition("?")[2]).get("authoritative", [""])[-1].lower() == "true"


# -- requests


def make_lookup_target(topic: str, listener: str | None = None) -> str:
    """Return the target of a lookup of `topic` (a full name)."""
    query = {"authoritative": "false"} | ({"listenerName": listener} if listener else {})
    return f"/lookup/v2/topic/{_quote_topic(topic)}?{urlencode(query)}"


def make_partitions_target(topic: str, *, create: bool) -> str:
    """Return the target of a request for the number of partitions; `create`: they may be auto-created."""
    return f"/admin/v2/{_quote_topic(topic)}/partitions?checkAllowAutoCreation={str(create).lower()}"


def make_topics_target(namespace: str, mode: str) -> str:
    """Return the target of a request for the topics of a namespace; `mode` is PERSISTENT, … or ALL."""
    return f"/admin/v2/namespaces/{quote(namespace)}/topics?mode={mode}"


def make_schema_target(topic: str, version: bytes | None) -> str:
    """Return the target of a request for a topic's schema; `version` as in commands, None: the latest."""
    number = "" if version is None else f"/{int.from_bytes(version, 'big')}"
    return f"/admin/v2/schemas/{_quote_topic(topic).partition('/')[2]}/schema{number}"


def _quote_topic(topic: str) -> str:
    """Return a topic's full name as a path; further slashes belong to the last part of the name."""
    domain, _, name = topic.partition("://")
    return "/".join([domain, *(quote(part, safe="") for part in name.split("/", 3))])


# -- answers


def parse_json(body: bytes) -> Any:
    """Return the value of a JSON body; None if it is not JSON, or if a text in it is not valid Unicode."""
    try:
        value = json.loads(body.decode())
        if b"\\u" in body:  # half of a surrogate pair, alone
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, RecursionError):
        return None


def find_error(status: int) -> str:
    """Return the name of the ServerError that is nearest to the status of a refused call."""
    return _ERRORS.get(status, "UnknownError")


def find_reason(value: Any) -> str:
    """Return the reason in the JSON value of a refused call; "" if there is none."""
    reason = value.get("reason") if isinstance(value, dict) else None
    if not isinstance(reason, str):
        return ""
    message = _MESSAGE.search(reason)  # an unexpected error has a stack trace
    return message[1] if message else reason.strip()


def get_text(value: Any, *names: str) -> str:
    """Return the first of these fields of a JSON object that is a text and not empty; "" if none is."""
    fields = value if isinstance(value, dict) else {}
    return next((text for name in names if isinstance(text := fields.get(name), str) and text), "")


def encode_key_value_schema(text: str) -> bytes:
    """Encode the two definitions in {"key": …, "value": …} as the binary protocol has them.

    Raises ValueError if they are not there.
    """
    try:
        parts = json.loads(text)
        pair = [parts["key"], parts["value"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError("no definitions of key and value") from None
    texts = ["" if part == "" else json.dumps(part, separators=(",", ":")) for part in pair]
    return b"".join(len(data).to_bytes(4, "big") + data for data in (text.encode() for text in texts))
