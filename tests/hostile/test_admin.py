"""Whatever callers of the admin API send, each route answers, and nothing is raised."""

from __future__ import annotations

import json
import random
import re
from typing import Any, Final
from urllib.parse import quote, urlencode

import pytest
from net.scripted import run

from pulsarctl_wire.broker.admin import _FAMILIES
from pulsarctl_wire.broker.basics.settings import Settings
from pulsarctl_wire.broker.shell.server import Server

ODD: Final[list[Any]] = [
    *(None, True, False, 0, 1, -1, 1 << 31, -(1 << 31), (1 << 63) - 1, 1 << 63, 1 << 64, 10**400, 0.5, 1e308),
    *("", "x", "1", "-1", "true", "1.5", "9" * 25, "\0", "é", "٣", "a/b", "a" * 5_000, "\ud800"),
    *([], {}, [[]], [None], ["x"], [1], {"": None}, {"a": {"a": [1]}}, ["x"] * 1_000),
    *("latest", "AVRO", "Shared", "persistent://public/default/t", "0x00000000_0xffffffff"),
]
NAMES: Final = {
    "domain": ["persistent", "non-persistent"],
    "tenant": ["public"],
    "namespace": ["default", "n"],
    "topic": ["t", "p", "p-partition-0", "np", "new"],
    "subscription": ["s", "new"],
    "bundle": ["0x00000000_0xffffffff"],
    "cluster": ["standalone"],
}
FIELDS: Final = (
    "type schema properties ledgerId entryId partitionIndex batchIndex isExcluded limitSize limitTime policy "
    "retentionTimeInMinutes retentionSizeInMB dispatchThrottlingRateInMsg ratePeriodInSecond bundles "
    "boundaries numBundles adminRoles allowedClusters serviceUrl topicType defaultNumPartitions active "
    "tickTime inactiveTopicDeleteMode maxInactiveDurationSeconds replication_clusters retention_policies"
)
QUERY: Final = (
    "force numPartitions backlogQuotaType applied initialPosition messagePosition timestamp partition mode "
    "bundle ledgerId entryId perPartition getPreciseBacklog metadata unload splitAlgorithmName"
)
START: Final = [
    ("PUT", "/admin/v2/namespaces/public/n", None),
    ("PUT", "/admin/v2/persistent/public/default/t", None),
    ("PUT", "/admin/v2/persistent/public/default/p/partitions", 2),
    ("PUT", "/admin/v2/non-persistent/public/default/np", None),
    ("PUT", "/admin/v2/persistent/public/default/t/subscription/s", None),
]


class Caller:
    """Makes requests up, by a seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._routes = sorted((method, path) for family in _FAMILIES for method, path, _ in family.ROUTES)

    def _text(self, value: Any) -> str:
        return value if isinstance(value, str) else json.dumps(value)

    def _part(self, match: re.Match[str]) -> str:
        odd = [each for each in ODD if not isinstance(each, (list, dict))]
        usual = self._chance.random() < 0.95
        part = self._chance.choice(NAMES.get(match[1], odd) if usual else odd)
        return quote(self._text(part), safe="", errors="replace")

    def _body(self) -> Any:
        names = self._chance.sample(FIELDS.split(), self._chance.randrange(1, 25))
        return self._chance.choice([self._chance.choice(ODD), dict.fromkeys(names, 1), self._object(names)])

    def _object(self, names: list[str]) -> dict[str, Any]:
        return {name: self._chance.choice(ODD) for name in names}

    def request(self) -> tuple[str, str, Any]:
        method, path = self._chance.choice(self._routes)
        names = self._chance.sample(QUERY.split(), self._chance.choice([0, 1, 5]))
        query = urlencode(
            {key: self._text(each) for key, each in self._object(names).items()}, errors="replace"
        )
        return method, re.sub(r"{(\w+)}", self._part, path) + "?" + query, self._body()


@pytest.mark.parametrize("seed", range(2))
def test_odd_requests(seed: int) -> None:
    async def call() -> None:
        server, caller = Server(Settings(transactionCoordinatorEnabled=True)), Caller(seed)
        for number in range(1_000):
            if number % 50 == 0:
                for request in START:
                    await server.admin(*request)
            answer = await server.admin(*caller.request())
            if not isinstance(answer.value, bytes):
                json.dumps(answer.value, allow_nan=False)
        await server.close()

    run(call())


SCHEMAS: Final = "/admin/v2/schemas/public/default/t"


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", f"{SCHEMAS}/schema", {"type": {}, "schema": ""}, 500),  # as for any text that is no type
        ("POST", f"{SCHEMAS}/version", {"type": ["AVRO"], "schema": ""}, 500),
        ("PUT", "/admin/v2/persistent/public/default/t/subscription/s", {"properties": 5}, 400),
        ("PUT", "/admin/v2/persistent/public/default/t/subscription/s", {"properties": ["a"]}, 400),
        ("DELETE", "/admin/v2/namespaces/public%2Fdefault/n/property/a", None, 404),
    ],
)
def test_values_of_a_wrong_kind(method: str, path: str, body: Any, status: int) -> None:
    async def call() -> int:
        server = Server(Settings())
        answer = await server.admin(method, path, body)
        await server.close()
        return answer.status

    assert run(call()) == status
