"""The commands of pulsar-admin 4.0.8 on the embedded broker over HTTP, and on a real one.

All run in one Java process, in this order. A row is a command, its exit code, and what it must write: JSON, a
text that it must contain, or None for anything.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from broker.targets import EmbeddedTarget, RealTarget, real_broker
from interop.releases import program
from net.scripted import run

from pulsarctl_wire.broker.shell.http import serve_http
from pulsarctl_wire.conformance.basics.target import Target

pytestmark = pytest.mark.interop

NS = "public/n"
T = f"persistent://{NS}/t"
PART = f"persistent://{NS}/part"
RATE = {"dispatchThrottlingRateInMsg": 7, "dispatchThrottlingRateInByte": -1}
ALL_RATE = {**RATE, "relativeToPublishRate": False, "ratePeriodInSecond": 1}

ROWS: list[tuple[str, int, Any]] = [
    ("clusters list", 0, "standalone"),
    ("clusters get standalone", 0, "brokerServiceUrl"),
    ("clusters get nope", 1, "Cluster does not exist"),
    ("tenants create t1 --allowed-clusters standalone --admin-roles r", 0, ""),
    ("tenants list", 0, "t1"),
    ("tenants get t1", 0, {"adminRoles": ["r"], "allowedClusters": ["standalone"]}),
    ("tenants update t1 --admin-roles x --allowed-clusters standalone", 0, ""),
    ("tenants get t1", 0, {"adminRoles": ["x"], "allowedClusters": ["standalone"]}),
    ("tenants create t1 --allowed-clusters standalone", 1, "Tenant already exist"),
    ("tenants delete t1", 0, ""),
    ("tenants get t1", 1, "Tenant does not exist"),
    (f"namespaces create {NS} --bundles 4", 0, ""),
    ("namespaces list public", 0, NS),
    (f"namespaces policies {NS}", 0, '"numBundles" : 4'),
    (f"namespaces bundles {NS}", 0, "0x40000000"),
    (f"namespaces set-retention {NS} --time 10m --size 20G", 0, ""),
    (f"namespaces get-retention {NS}", 0, {"retentionTimeInMinutes": 10, "retentionSizeInMB": 20480}),
    (f"namespaces remove-retention {NS}", 0, ""),
    (f"namespaces get-retention {NS}", 0, "null"),
    (f"namespaces set-message-ttl {NS} --messageTTL 100", 0, ""),
    (f"namespaces get-message-ttl {NS}", 0, 100),
    (f"namespaces remove-message-ttl {NS}", 0, ""),
    (f"namespaces set-backlog-quota {NS} --limit 10M --policy producer_exception", 0, ""),
    (f"namespaces get-backlog-quotas {NS}", 0, "producer_exception"),
    (f"namespaces remove-backlog-quota {NS}", 0, ""),
    (f"namespaces set-deduplication {NS} --enable", 0, ""),
    (f"namespaces get-deduplication {NS}", 0, True),
    (f"namespaces remove-deduplication {NS}", 0, ""),
    (f"namespaces set-schema-compatibility-strategy {NS} --compatibility FORWARD", 0, ""),
    (f"namespaces get-schema-compatibility-strategy {NS}", 0, "FORWARD"),
    (f"namespaces set-auto-topic-creation {NS} --enable --type partitioned --num-partitions 3", 0, ""),
    (
        f"namespaces get-auto-topic-creation {NS}",
        0,
        {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
    ),
    (f"namespaces remove-auto-topic-creation {NS}", 0, ""),
    (f"namespaces set-auto-subscription-creation {NS} --enable", 0, ""),
    (f"namespaces get-auto-subscription-creation {NS}", 0, {"allowAutoSubscriptionCreation": True}),
    (f"namespaces remove-auto-subscription-creation {NS}", 0, ""),
    (f"namespaces grant-permission {NS} --actions produce,consume --role joe", 0, ""),
    (f"namespaces permissions {NS}", 0, "joe"),
    (f"namespaces revoke-permission {NS} --role joe", 0, ""),
    (f"namespaces permissions {NS}", 0, ""),
    (f"namespaces set-publish-rate {NS} --msg-publish-rate 7", 0, ""),
    (
        f"namespaces get-publish-rate {NS}",
        0,
        {"publishThrottlingRateInMsg": 7, "publishThrottlingRateInByte": -1},
    ),
    (f"namespaces remove-publish-rate {NS}", 0, ""),
    (f"namespaces set-dispatch-rate {NS} --msg-dispatch-rate 7", 0, ""),
    (f"namespaces get-dispatch-rate {NS}", 0, ALL_RATE),
    (f"namespaces remove-dispatch-rate {NS}", 0, ""),
    (f"namespaces set-subscription-dispatch-rate {NS} --msg-dispatch-rate 7", 0, ""),
    (f"namespaces get-subscription-dispatch-rate {NS}", 0, ALL_RATE),
    (f"namespaces remove-subscription-dispatch-rate {NS}", 0, ""),
    (f"namespaces set-max-producers-per-topic {NS} --max-producers-per-topic 5", 0, ""),
    (f"namespaces get-max-producers-per-topic {NS}", 0, 5),
    (f"namespaces remove-max-producers-per-topic {NS}", 0, ""),
    (f"namespaces set-max-consumers-per-topic {NS} --max-consumers-per-topic 5", 0, ""),
    (f"namespaces get-max-consumers-per-topic {NS}", 0, 5),
    (f"namespaces remove-max-consumers-per-topic {NS}", 0, ""),
    (f"namespaces set-encryption-required {NS} --enable", 0, ""),
    (f"namespaces get-encryption-required {NS}", 0, True),
    (f"namespaces set-encryption-required {NS} --disable", 0, ""),
    (f"namespaces set-compaction-threshold {NS} --threshold 1M", 0, ""),
    (f"namespaces get-compaction-threshold {NS}", 0, 1 << 20),
    (f"namespaces remove-compaction-threshold {NS}", 0, ""),
    (
        f"namespaces set-inactive-topic-policies {NS} --enable-delete-while-inactive "
        "--max-inactive-duration 100s --delete-mode delete_when_no_subscriptions",
        0,
        "",
    ),
    (f"namespaces get-inactive-topic-policies {NS}", 0, "delete_when_no_subscriptions"),
    (f"namespaces remove-inactive-topic-policies {NS}", 0, ""),
    (f"namespaces set-delayed-delivery {NS} --enable --time 1s", 0, ""),
    (f"namespaces get-delayed-delivery {NS}", 0, '"tickTime" : 1000'),
    (f"namespaces remove-delayed-delivery {NS}", 0, ""),
    (f"namespaces unload {NS}", 0, ""),
    (f"namespaces topics {NS}", 0, ""),
    (f"topics create {T}", 0, ""),
    (f"topics create {T}", 1, "This topic already exists"),
    (f"topics list {NS}", 0, T),
    (f"topics create-partitioned-topic {PART} --partitions 2", 0, ""),
    (f"topics list-partitioned-topics {NS}", 0, PART),
    (f"topics get-partitioned-topic-metadata {PART}", 0, {"partitions": 2, "deleted": False}),
    (f"topics update-partitioned-topic {PART} --partitions 3", 0, ""),
    (f"topics get-partitioned-topic-metadata {PART}", 0, {"partitions": 3, "deleted": False}),
    (f"topics partitioned-stats {PART} --per-partition", 0, f"{PART}-partition-2"),
    (f"topics create-subscription {T} --subscription s --messageId earliest", 0, ""),
    (f"topics create-subscription {T} --subscription s", 1, "Subscription already exists for topic"),
    (f"topics subscriptions {T}", 0, "s"),
    ("FILL", 0, None),
    (f"topics stats {T}", 0, '"msgInCounter" : 5'),
    (f"topics stats-internal {T}", 0, '"numberOfEntries" : 5'),
    (f"topics peek-messages {T} --count 2 --subscription s", 0, "m1"),
    (f"topics examine-messages {T} --initialPosition earliest --messagePosition 1", 0, "m0"),
    (f"topics get-message-by-id {T} --ledgerId LEDGER --entryId 2", 0, "m2"),
    (f"topics last-message-id {T}", 0, '"entryId" : 4'),
    (f"topics skip {T} --count 2 --subscription s", 0, ""),
    (f"topics peek-messages {T} --count 1 --subscription s", 0, "m2"),
    (f"topics reset-cursor {T} --subscription s --time 1000w", 0, ""),
    (f"topics peek-messages {T} --count 1 --subscription s", 0, "m0"),
    (f"topics reset-cursor {T} --subscription s --messageId LEDGER:3", 0, ""),
    (f"topics peek-messages {T} --count 1 --subscription s", 0, "m3"),
    (f"topics expire-messages {T} --subscription s --expireTime 100", 0, ""),
    (f"topics clear-backlog {T} --subscription s", 0, ""),
    (f"topics compact {T}", 0, "compaction requested"),
    (f"topics compaction-status {T} --wait-complete", 0, "Compaction was a success"),
    (f"topics lookup {T}", 0, "pulsar://"),
    (f"topics bundle-range {T}", 0, "0x"),
    (f"topics update-properties {T} --property a=b", 0, ""),
    (f"topics get-properties {T}", 0, "b"),
    (f"topics grant-permission {T} --actions produce --role joe", 0, ""),
    (f"topics permissions {T}", 0, "joe"),
    (f"topics revoke-permission {T} --role joe", 0, ""),
    (f"topicPolicies set-retention {T} --time 10m --size 20G", 0, ""),
    (f"topicPolicies get-retention {T}", 0, {"retentionTimeInMinutes": 10, "retentionSizeInMB": 20480}),
    (f"topicPolicies remove-retention {T}", 0, ""),
    (f"topicPolicies set-message-ttl {T} --ttl 100", 0, ""),
    (f"topicPolicies get-message-ttl {T}", 0, 100),
    (f"topicPolicies remove-message-ttl {T}", 0, ""),
    (f"topicPolicies set-publish-rate {T} --msg-publish-rate 7", 0, ""),
    (f"topicPolicies get-publish-rate {T}", 0, '"publishThrottlingRateInMsg" : 7'),
    (f"topicPolicies set-dispatch-rate {T} --msg-dispatch-rate 7", 0, ""),
    (f"topicPolicies get-dispatch-rate {T}", 0, ALL_RATE),
    (f"topicPolicies set-deduplication {T} --enable", 0, ""),
    (f"topicPolicies get-deduplication {T}", 0, True),
    (f"topicPolicies set-max-producers {T} --max-producers 5", 0, ""),
    (f"topicPolicies get-max-producers {T}", 0, 5),
    (f"topicPolicies set-backlog-quota {T} --limit 10M --policy producer_exception", 0, ""),
    (f"topicPolicies get-backlog-quota {T}", 0, "producer_exception"),
    (f"topics unload {T}", 0, ""),
    (f"topics unsubscribe {T} --subscription s", 0, ""),
    (f"topics terminate {T}", 0, "terminated"),
    (f"topics partitioned-terminate {PART}", 0, None),
    (f"topics delete {T}", 0, ""),
    (f"topics delete {T}", 0, "not found"),
    (f"topics delete-partitioned-topic {PART}", 0, ""),
    (f"schemas upload {T} --filename SCHEMA", 0, ""),
    (f"schemas get {T}", 0, '"version": 0'),
    (f"schemas compatibility {T} --filename SCHEMA", 0, None),
    (f"schemas delete {T}", 0, ""),
    (f"schemas get {T}", 1, "Schema not found"),
    ("brokers healthcheck", 0, "ok"),
    ("brokers version", 0, "4.0.8"),
    ("brokers list standalone", 0, "127.0.0.1:"),
    ("brokers leader-broker", 0, "brokerId"),
    ("brokers get-runtime-config", 0, "maxMessageSize"),
    (f"namespaces delete {NS}", 0, ""),
    (f"namespaces policies {NS}", 1, "Namespace does not exist"),
]


class Admin:
    """pulsar-admin, as a Java process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def run(self, words: list[str]) -> tuple[int, str]:
        """The exit code of a command, and what it wrote."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(words).encode() + b"\n")
        line = await self._process.stdout.readline()
        told = json.loads(line)
        return told["code"], told["out"] + told["err"]


@asynccontextmanager
async def admin(url: str) -> AsyncIterator[Admin]:
    source = Path(__file__).with_name("Admin.java")
    command = program(source, url)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=1 << 24)
    try:
        yield Admin(process)
    finally:
        process.kill()
        await process.wait()


def _matches(wanted: Any, out: str) -> bool:
    if isinstance(wanted, str):
        return wanted in out
    try:
        found: Any = json.loads(out)
    except ValueError:
        return False
    return bool(found == wanted)


async def check(target: Target, url: str, place: Path) -> None:
    """All commands, on a broker; fails with all that differ."""
    schema = place / "schema.json"
    schema.write_text(json.dumps({"type": "STRING", "schema": "", "properties": {}}))
    ledger, wrong = 0, []
    async with admin(url) as tool:
        for command, code, wanted in ROWS:
            if command == "FILL":
                producer = await target.produce(T)
                ids = await producer.publish_all(*(b"m%d" % number for number in range(5)))
                ledger = ids[0].ledgerId
                await producer.request("CLOSE_PRODUCER", "SUCCESS", producer_id=1)
                continue
            words = shlex.split(command.replace("LEDGER", str(ledger)).replace("SCHEMA", str(schema)))
            found, out = await tool.run(words)
            if found != code or (wanted is not None and not _matches(wanted, out)):
                wrong.append(f"{command}: {found}, {out[-700:]}")
    assert not wrong, "\n".join(wrong)


def test_the_embedded_broker(tmp_path: Path) -> None:
    async def whole() -> None:
        async with EmbeddedTarget("default") as target:
            sock = socket.create_server(("127.0.0.1", 0))
            runner = await serve_http(target.server, target.server.cluster.brokers[0], sock)
            try:
                await check(target, f"http://127.0.0.1:{sock.getsockname()[1]}", tmp_path)
            finally:
                await runner.cleanup()

    run(whole(), 240)


def test_a_real_broker(tmp_path: Path) -> None:
    with real_broker("default", tmp_path / "pulsar") as broker:

        async def whole() -> None:
            async with RealTarget(broker) as target:
                await check(target, broker.http_url, tmp_path)

        run(whole(), 240)
