"""The manual is complete, has nothing that does not exist, and everything in it is found by its names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pulsarctl_wire.checks.registry import RULES
from pulsarctl_wire.manual.explanations import (
    COMMANDS,
    ENUMS,
    ERRORS,
    FIELDS,
    MESSAGES,
    VERSIONS,
    Explanation,
    find_explanations,
    list_explanations,
    list_names,
    read_pages,
)
from pulsarctl_wire.wire.commands import NAMES, NUMBERS, REQUESTS
from pulsarctl_wire.wire.PulsarApi_pb2 import ProtocolVersion, ServerError

TABLE = Path(__file__).parents[1] / "wire" / "pulsar_api_fields.tsv"
ROWS = [line.split("\t") for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]
ALL = list_explanations()
BY_KIND = {kind: [each for each in ALL if each.kind == kind] for kind in {each.kind for each in ALL}}


def found(term: str) -> list[str]:
    return [f"{each.kind} {each.name}" for each in find_explanations(term)]


def one(term: str) -> Explanation:
    (only,) = find_explanations(term)
    return only


def test_pages() -> None:
    text = "A: One thing: really.\n  wrong: what is\n    wrong.\n\nB\n  sent: now.\n"
    assert read_pages(text) == {
        "A": {"about": "One thing: really.", "wrong": "what is wrong."},
        "B": {"about": "", "sent": "now."},
    }


# -- complete


def test_every_command_has_a_page() -> None:
    assert sorted(COMMANDS) == sorted(NUMBERS)
    assert len(NUMBERS) == 70
    for page in COMMANDS.values():
        assert {"about", "sent"} <= page.keys() <= {"about", "sent", "answer", "wrong", "source"}
        assert page["about"].endswith(".")


def test_every_error_and_every_version_has_a_page() -> None:
    assert list(ERRORS) == ServerError.keys()
    for page in ERRORS.values():
        assert page.keys() - {"java", "cpp"} == {"about", "gets", "clients", "advice"}
    assert list(VERSIONS) == ProtocolVersion.keys()
    for page in VERSIONS.values():
        assert {"about", "below"} <= page.keys() <= {"about", "adds", "below"}
        assert {*filter(None, page.get("adds", "").split(", "))} <= {each.name for each in ALL}


def test_everything_is_explained_in_sentences() -> None:
    for each in ALL:
        assert each.about, each.name
        assert re.fullmatch(r"\S.*[.…]", each.about), each.name
        for text in (each.about, *each.sections.values()):
            assert text.isprintable(), each.name
            assert "  " not in text, each.name


OTHERS = {
    *("MiB", "KiB", "ZooKeeper", "BookKeeper", "transaction_coordinator_assign", "PulsarAuthRefresh"),
    *("AUTO_PRODUCE", "maxConcurrentLookupRequest", "ChaCha20"),
    *(
        "acknowledgmentAtBatchIndexLevelEnabled",
        "allowAutoSubscriptionCreation",
        "maxConcurrentLookupRequest",
    ),
    *("exposingBrokerEntryMetadataToClientEnabled", "authenticationRefreshCheckSeconds"),
    *("transactionCoordinatorEnabled", "PulsarClientException", "hasMessageAvailable", "isAckReceiptEnabled"),
}
"""Settings of brokers, methods of clients and so on."""


def test_what_texts_mention_exists() -> None:
    used = set()
    for each in ALL:
        if each.kind != "rule":
            for text in (each.about, *each.sections.values()):
                used |= {*re.findall(r"\b[A-Za-z]+_\w+(?:\.\w+)*|\b\w*[a-z][A-Z]\w*(?:\.\w+)*", text)}
    assert {word for word in used if not find_explanations(word)} == OTHERS


def test_no_page_is_about_something_that_does_not_exist() -> None:
    places = {each.name for each in BY_KIND["field"]} | {name.rpartition(".")[2] for name in FIELDS}
    assert {*FIELDS} <= places
    assert {name for name in FIELDS if "." not in name} <= {row[4] for row in ROWS if row[0] == "field"}
    assert {*MESSAGES} == {each.name for each in BY_KIND["message"]}
    enums = {each.name.rpartition(".")[2] for each in BY_KIND["enum"]}
    known = {".".join(each.name.split(".")[-2:]) for each in BY_KIND["value"]}
    assert {*ENUMS} == enums | known


def test_every_rule_is_explained() -> None:
    assert [each.name for each in BY_KIND["rule"]] == [rule.id for rule in RULES]
    for each in BY_KIND["rule"]:
        assert {"wire", "advice", "source"} <= each.sections.keys()


# -- found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[1]}.{row[4]}")
def test_every_name_of_the_schema_is_found(row: list[str]) -> None:
    kind, owner, _, _, name, number, _ = row
    if number == "-":  # a message without fields
        assert find_explanations(owner)
        return
    short = owner.removeprefix("pulsar.proto.")
    for term in (
        f"{owner}.{name}",
        f"{short}.{name}",
        name,
        name.upper(),
        name.replace("_", "-"),
        owner,
        short,
    ):
        assert find_explanations(term), term
    explained = one(f"{short}.{name}")
    assert explained.number == int(number)
    if kind == "field" and explained.kind == "field":
        assert row[2] in explained.sections["type"]
        assert row[3].rpartition(".")[2] in explained.sections["type"]


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        *(
            (term, ["command SEND_RECEIPT"])
            for term in ("SEND_RECEIPT", "send-receipt", "CommandSendReceipt")
        ),
        *(
            (term, ["command SEND_RECEIPT"])
            for term in ("sendReceipt", "send receipt", "command 7", "type=7")
        ),
        *((term, ["error TopicNotFound"]) for term in ("error 11", "ServerError(11)", "TOPIC_NOT_FOUND")),
        *((term, ["error TopicNotFound"]) for term in ("TopicDoesNotExistException", "ResultTopicNotFound")),
        ("PulsarClientException$ProducerBusyException", ["error ProducerBusy"]),
        ("org.apache.pulsar.client.api.PulsarClientException.ConsumerBusyException", ["error ConsumerBusy"]),
        *((term, ["version v12"]) for term in ("v12", "V12", "v=12", "version 12", "protocol version 12")),
        ("6", ["command SEND", "error ServiceNotReady", "version v6"]),
        (
            "22",
            ["command PARTITIONED_METADATA_RESPONSE", "error NotAllowedError", "value MarkerType.TXN_ABORT"],
        ),
        ("marker 22", ["value MarkerType.TXN_ABORT"]),
        ("CompressionType 1", ["value CompressionType.LZ4"]),
        ("Failover", ["value SubType.Failover"]),
        ("exclusive", ["value ProducerAccessMode.Exclusive", "value SubType.Exclusive"]),
        ("SEND.sequence_id", ["field SEND.sequence_id"]),
        ("CommandSend.sequenceId", ["field SEND.sequence_id"]),
        ("SEND_RECEIPT.message_id.ledgerId", ["field MessageIdData.ledgerId"]),
        (
            "fields.message_id.ledgerId",
            ["field MarkersMessageIdData.ledger_id", "field MessageIdData.ledgerId"],
        ),
        ("metadata.deliver_at_time", ["field MessageMetadata.deliver_at_time"]),
        ("broker_entry_metadata.index", ["field BrokerEntryMetadata.index"]),
        ("num_messages", ["field SEND.num_messages"]),
        ("watcher_id", ["field watcher_id"]),
        ("backlog_quota_exceeded", ["rule backlog_quota_exceeded"]),
        ("ERROR", ["command ERROR"]),
        ("Error", ["command ERROR", "field error"]),
        *(
            (term, [])
            for term in ("", ".", "..", "nonsense", "SEND.topic", "SEND.topic.x", "99", "v22", "x" * 9999)
        ),
    ],
)
def test_names_and_numbers_as_people_write_them(term: str, expected: list[str]) -> None:
    assert found(term) == expected


def test_every_name_that_is_suggested_is_found() -> None:
    assert [name for name in list_names() if not find_explanations(name)] == []


# -- what it says


def test_answers_come_from_the_table() -> None:
    for number, how in REQUESTS.items():
        request = one(NAMES[number])
        for answer in how.answers:
            assert NAMES[answer] in request.sections["answered by"].partition(".")[0].split(", ")
            assert NAMES[number] in one(NAMES[answer]).sections["answer to"].split(", ")
    assert one("PING").sections["answered by"] == "PONG"
    assert one("SEND").sections["answered by"].startswith("SEND_RECEIPT, SEND_ERROR. ")
    assert one("FLOW").sections["answered by"] == "nothing"
    assert "answered by" not in one("SEND_RECEIPT").sections


def test_a_command_names_its_version_and_its_rules() -> None:
    assert one("GET_OR_CREATE_SCHEMA").sections["since"] == "v15"
    assert one("ACK.request_id").sections["since"] == "v17"
    assert one("ZLIB").sections["since"] == "v3"
    assert "backlog_quota_exceeded" in one("SEND_ERROR").sections["rules"]
    assert "backlog_quota_exceeded" in one("ProducerBlockedQuotaExceededError").sections["rules"]
    assert "rules" not in one("SCALABLE_TOPIC_CLOSE").sections


def test_a_field_has_its_type_and_the_values_of_its_enum() -> None:
    compression = one("MessageMetadata.compression")
    assert compression.sections["type"] == "optional CompressionType, default NONE"
    assert [each.name for each in compression.members] == ["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"]
    assert one("SUBSCRIBE.durable").sections["type"] == "optional bool, default true"
    assert one("ACK.message_id").sections["type"] == "repeated MessageIdData"
    assert one("LZ4").sections["used in"] == "MessageMetadata.compression"


def test_a_shared_field_has_all_its_places() -> None:
    shared = one("watcher_id")
    assert shared.number is None
    assert [(each.name, each.number) for each in shared.members] == [
        ("WATCH_TOPIC_LIST.watcher_id", 2),
        ("WATCH_TOPIC_LIST_SUCCESS.watcher_id", 2),
        ("WATCH_TOPIC_UPDATE.watcher_id", 1),
        ("WATCH_TOPIC_LIST_CLOSE.watcher_id", 2),
    ]
