"""Lookups over HTTP: which broker serves a topic, partitions, topics and schemas, from the web service.

For service URLs with http:// or https://; the brokers that are found speak the binary protocol.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

from pulsarctl_wire.errors import BrokerError, RequestTimeout, Unreachable
from pulsarctl_wire.net.frame_socket import Tap
from pulsarctl_wire.net.session.hop import Hop
from pulsarctl_wire.net.settings import Settings
from pulsarctl_wire.net.web import Reply, WebCaller, make_headers
from pulsarctl_wire.wire import rest
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandGetSchemaResponse, KeyValue, Schema

_TYPES: Final = {name.upper().replace("_", ""): number for name, number in Schema.Type.items()} | {
    "BYTES": Schema.Type.Value("None")
}
"""A schema's type in the REST API, without underscores -> its Schema.Type, in which BYTES is called None."""
_MAX_REASON: Final = 300  # characters


class WebLookup:
    """Asks the web services of the service URL; `close` it."""

    def __init__(self, settings: Settings, tap: Tap | None, numbers: Iterator[int]) -> None:
        self._settings = settings
        self._caller = WebCaller(settings, tap=tap, numbers=numbers)
        self._preferred = 0

    async def close(self) -> None:
        """Close all connections."""
        await self._caller.close()

    async def trace_lookup(self, topic: str) -> AsyncIterator[Hop]:
        """Do what `Client.trace_lookup` does."""
        async for reply in self._follow(rest.make_lookup_target(topic, self._settings.listener)):
            value = None if reply.location else self._read(reply, "lookup", topic)
            yield Hop(
                reply.address,
                reply.peer,
                rest.is_authoritative(reply.target),
                "Redirect" if reply.location else "Connect",
                reply.location or rest.get_text(value, "brokerUrl", "nativeUrl"),
                rest.get_text(value, "brokerUrlTls", "brokerUrlSsl"),
                bool(reply.location) and rest.is_authoritative(reply.location),
                False,
                reply.latency_ns,
                f"GET {reply.target}",
                reply.status,
            )

    async def count_partitions(self, topic: str, create: bool) -> int:
        """Do what `Client.count_partitions` does, but without retries and a limit. Raises SessionError."""
        value = await self._ask(rest.make_partitions_target(topic, create=create), "partitions", topic)
        count = value.get("partitions") if isinstance(value, dict) else None
        if not isinstance(count, int):
            raise Unreachable(f"{topic}: the web service has not answered with a number of partitions")
        return count

    async def list_topics(self, namespace: str, mode: str) -> list[str]:
        """Return the topics of a namespace; `mode` is a name of a `CommandGetTopicsOfNamespace.Mode`.

        Raises SessionError.
        """
        value = await self._ask(rest.make_topics_target(namespace, mode), "topics", namespace)
        if not isinstance(value, list):
            raise Unreachable(f"{namespace}: the web service has not answered with a list of topics")
        return [name for name in value if isinstance(name, str)]

    async def get_schema(self, topic: str, version: bytes | None) -> CommandGetSchemaResponse:
        """Return the answer that GET_SCHEMA would have. Raises SessionError."""
        value = await self._ask(rest.make_schema_target(topic, version), "schema", topic)
        kind = rest.get_text(value, "type").replace("_", "")
        number = value["version"] if isinstance(value, dict) and "version" in value else None
        if kind not in _TYPES or not isinstance(number, int):
            raise Unreachable(f"{topic}: the web service has not answered with a schema")
        text, properties = rest.get_text(value, "data"), value.get("properties") or {}
        try:
            data = rest.encode_key_value_schema(text) if kind == "KEYVALUE" else text.encode()
            schema = Schema(
                name=topic.partition("://")[2],
                type=_TYPES[kind],
                schema_data=data,
                properties=[KeyValue(key=key, value=text) for key, text in properties.items()],
            )
            version = number.to_bytes(8, "big", signed=True)
            return CommandGetSchemaResponse(request_id=0, schema=schema, schema_version=version)
        except (ValueError, TypeError, AttributeError, OverflowError):
            raise Unreachable(f"{topic}: the web service has answered with an invalid schema") from None

    # -- calls

    async def _ask(self, target: str, kind: str, subject: str) -> Any:
        """Return the JSON value of the last answer to a call; `kind` and `subject` are as in `_read`."""
        *_, reply = [reply async for reply in self._follow(target)]
        return self._read(reply, kind, subject)

    def _read(self, reply: Reply, kind: str, subject: str) -> Any:
        """Return the JSON value of an answer. Raises BrokerError if the call was refused.

        The error names `subject` and the command that `rest.COMMANDS` has for the call's `kind`.
        """
        value = rest.parse_json(reply.body)
        if reply.status == 200:
            return value
        reason = rest.find_reason(value) or reply.reason
        detail = f"HTTP {reply.status} {reason[:_MAX_REASON]}".rstrip()
        raise BrokerError(rest.find_error(reply.status), detail, rest.COMMANDS[kind], "", subject)

    async def _follow(self, target: str) -> AsyncIterator[Reply]:
        """Yield the answers to a GET of `target` and its redirects, from the first host that is reached."""
        addresses, errors = self._settings.url.addresses, []
        headers = make_headers(self._settings.auth)
        for turn in range(len(addresses)):
            index = (self._preferred + turn) % len(addresses)
            replies = self._caller.follow(addresses[index], target, headers)
            try:
                reply = await anext(replies)
            except (Unreachable, RequestTimeout) as error:
                errors.append(error)
                continue
            self._preferred = index + (reply.status >= 500)  # after a server error, the next host comes first
            yield reply
            async for reply in replies:
                yield reply
            return
        text = "; ".join(map(str, errors))
        raise type(errors[0])(f"{text} (tried {self._settings.url}; another: --url)")
