"""The settings: names and defaults of Pulsar, lines of files, and what is said about lines that are wrong."""

from __future__ import annotations

import re
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from pulsarctl_wire.broker.basics import setting_names
from pulsarctl_wire.broker.basics.settings import FIELDS, Settings, list_notes, parse_settings, read_conf
from pulsarctl_wire.broker.shell.running import read_keys
from pulsarctl_wire.conformance.basics.settings import SETTINGS
from pulsarctl_wire.errors import SettingsError

PACKAGE = Path(setting_names.__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("allowAutoTopicCreation", "false", False),
        ("allowAutoTopicCreation", " TRUE ", True),
        ("allowAutoTopicCreation", "", True),
        ("keepAliveIntervalSeconds", "7", 7),
        ("keepAliveIntervalSeconds", "", 30),
        ("keepAliveIntervalSeconds", 7, 7),
        ("brokerServicePortTls", "", None),
        ("brokerServicePortTls", None, None),
        ("brokerServicePortTls", "6651", 6651),
        ("backlogQuotaDefaultLimitGB", "0.5", 0.5),
        ("backlogQuotaDefaultLimitGB", 2, 2.0),
        ("superUserRoles", " admin , root,", ("admin", "root")),
        ("superUserRoles", "", ()),
        ("superUserRoles", ["admin"], ("admin",)),
        ("clusterName", "c", "c"),
        ("allowAutoTopicCreationType", "partitioned", "partitioned"),
    ],
)
def test_values_and_their_texts(name: str, text: object, value: object) -> None:
    found = getattr(parse_settings({name: text}), name)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("allowAutoTopicCreation", "yes", "true or false"),
        ("allowAutoTopicCreation", 1, "true or false"),
        ("keepAliveIntervalSeconds", "30s", "a whole number"),
        ("keepAliveIntervalSeconds", "3.5", "a whole number"),
        ("keepAliveIntervalSeconds", True, "a whole number"),
        ("keepAliveIntervalSeconds", None, "a whole number"),
        ("keepAliveIntervalSeconds", "9999999999999999999", "a number from"),
        ("maxMessageSize", "0", "a number from 1 to 2147483647"),
        ("authenticationRefreshCheckSeconds", "0", "a number from 1 to 2147483647"),
        ("brokerServicePort", "65536", "a number from 0 to 65535"),
        ("backlogQuotaDefaultLimitGB", "lots", "a number"),
        ("superUserRoles", 5, "texts with commas"),
        ("clusterName", 5, "a text"),
        ("allowAutoTopicCreationType", "both", "one of non-partitioned, partitioned"),
    ],
)
def test_a_wrong_value_is_refused_with_key_value_and_what_is_expected(
    name: str, value: object, expected: str
) -> None:
    with pytest.raises(SettingsError) as raised:
        parse_settings({name: value})
    assert str(raised.value).startswith(f"{name}={value}: it must be {expected}")


def test_keys_as_long_as_no_path_may_be() -> None:
    key = b"k" * 200
    settings = {"tokenSecretKey": b64encode(key).decode(), "basicAuthConf": "user:" + "x" * 5_000}
    keys = read_keys(parse_settings(settings))
    assert (keys.token_secret, keys.passwords) == (key, settings["basicAuthConf"])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("c2VjcmV0!", "tokenSecretKey: neither a file nor base64"),
        ("/nowhere/a.key", "tokenSecretKey=/nowhere/a.key: neither a file nor base64"),
        ("file:///nowhere", "tokenSecretKey=file:///nowhere: No such file or directory"),
    ],
)
def test_a_wrong_key_is_shown_only_if_it_is_a_path(text: str, error: str) -> None:
    with pytest.raises(SettingsError) as raised:
        read_keys(parse_settings({"tokenSecretKey": text}))
    assert str(raised.value) == error


def test_defaults_are_valid_texts_too() -> None:
    settings = Settings()
    for name, value in settings.values().items():
        text = ",".join(value) if isinstance(value, tuple) else "" if value is None else str(value)
        assert getattr(parse_settings({name: text}), name) == value, name


def test_settings_of_the_cases_are_known() -> None:
    for lines in SETTINGS.values():
        parse_settings(lines)
        assert lines.keys() <= FIELDS.keys()


def test_lines_without_effect_are_told() -> None:
    assert list_notes({}) == list_notes({"keepAliveIntervalSeconds": "5", "zookeeperServers": ""}) == []
    assert list_notes({"loadBalancerEnabled": "true"}) == [
        "settings of Pulsar without effect here: loadBalancerEnabled"
    ]
    many = dict.fromkeys(sorted(setting_names.NAMES)[:20], "1")
    assert list_notes(many)[0].endswith(" and 12 more")
    assert list_notes({"keepAliveSeconds": "5"}) == [
        "keepAliveSeconds: Pulsar has no such setting; did you mean keepAliveIntervalSeconds?"
    ]
    assert list_notes({"qqqqqqqqqqqqq": 1}) == ["qqqqqqqqqqqqq: Pulsar has no such setting"]


def test_every_setting_is_read() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    read = set(re.findall(r"\.(\w+)", text)) & FIELDS.keys()
    assert read == FIELDS.keys()


def test_a_properties_file(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(
        b"# a comment\r\n! another = one\n\nclusterName=one\\\n    two\n  superUserRoles : a,b \n"
        b"webServicePort 8081\nname\\=\\ x=\\tv\\u00e9\\\\\nempty=\n=nameless\nlone\nlast=end\\"
    )
    expected: dict[str, Any] = {
        **{"clusterName": "onetwo", "superUserRoles": "a,b ", "webServicePort": "8081"},
        **{"name= x": "\tvé\\", "empty": "", "": "nameless", "lone": "", "last": "end"},
    }
    assert read_conf(path) == expected


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file or directory; name another with --conf"):
        read_conf(tmp_path / "none.conf")
