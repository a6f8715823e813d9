"""The admin API (REST v2 and v3), without HTTP: a request in, an answer out.

A handler is a coroutine of the core; its route is a row of the `ROUTES` of its family. What Pulsar has and
this broker lacks is answered by 501.
"""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

from pulsarctl_wire.broker.admin import namespaces, topics
from pulsarctl_wire.broker.admin.base import Answer, Handler, Problem, Request
from pulsarctl_wire.broker.broker import Broker
from pulsarctl_wire.broker.names import InvalidName
from pulsarctl_wire.broker.refusal import Refused

__all__ = ["Answer", "answer"]

_STATUS: Final = {
    **dict.fromkeys(("TopicNotFound", "SubscriptionNotFound"), 404),
    **dict.fromkeys(("InvalidTopicName", "ConsumerBusy"), 412),
}


def _compiled(template: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", template))


_ROUTES: Final[list[tuple[str, re.Pattern[str], Handler]]] = [
    (method, _compiled(template), handler)
    for family in (namespaces, topics)
    for method, template, handler in family.ROUTES
]


async def answer(broker: Broker, method: str, path: str, query: Mapping[str, str], body: Any) -> Answer:
    """The answer to a request; `path` may be percent-encoded, `body` is JSON that was read, or None."""
    found = False
    for known, pattern, handler in _ROUTES:
        match = pattern.fullmatch(path)
        if match is None:
            continue
        found = True
        if known != method:
            continue
        named = {name: unquote(value) for name, value in match.groupdict().items()}
        try:
            return await handler(Request(broker, named, query, body))
        except Problem as problem:
            return Answer(problem.status, {"reason": str(problem)})
        except Refused as refused:
            return Answer(_STATUS.get(refused.code, 500), {"reason": str(refused)})
        except InvalidName as error:
            return Answer(412, {"reason": str(error)})
    return Answer(405 if found else 404, {"reason": f"HTTP {405 if found else 404} {method} {path}"})
