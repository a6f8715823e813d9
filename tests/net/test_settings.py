"""How to reach a cluster: what flags, environment and client.conf come to. No sockets here."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.net.settings import Address, ServiceUrl, Settings, gather, make_settings, parse_url

NAMES = (
    *("url", "token", "token_file", "basic", "auth_plugin", "auth_params", "tls_ca", "tls_cert", "tls_key"),
    *("listener_name", "tls_allow_insecure", "tls_hostname_check"),
)
SECRET = "eyJhbGciOiJIUzI1NiJ9.s3cret"
JAVA = "org.apache.pulsar.client.impl.auth."


def gathered(
    environment: Mapping[str, str] | None = None, conf: str | None = None, /, **flags: str
) -> dict[str, str]:
    """What `gather` makes of flags as the command line gives them: those not used are None."""
    return gather({**dict.fromkeys(NAMES), **flags}, environment or {}, conf)


def settings(
    environment: Mapping[str, str] | None = None, conf: str | None = None, /, **flags: str
) -> Settings:
    return make_settings(gathered(environment, conf, **flags))


def sent(environment: Mapping[str, str] | None = None, conf: str | None = None, /, **flags: str) -> object:
    """Method and data that CONNECT would have."""
    auth = settings(environment, conf, **flags).auth
    return auth.method, auth.data()


def variables(prefix: str, found: Mapping[str, str]) -> dict[str, str]:
    """The same settings as environment variables."""
    return {f"{prefix}_{name.upper()}": value for name, value in found.items()}


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


# ---- Service URLs ----


@pytest.mark.parametrize(
    ("text", "tls", "addresses"),
    [
        ("pulsar://h:1", False, [("h", 1)]),
        ("pulsar://h", False, [("h", 6650)]),
        ("pulsar+ssl://h", True, [("h", 6651)]),
        ("pulsar+ssl://h:6650", True, [("h", 6650)]),
        ("h", False, [("h", 6650)]),
        ("h:65535", False, [("h", 65535)]),
        ("  pulsar://h:1/ ", False, [("h", 1)]),
        ("pulsar://a,b:2, c:3", False, [("a", 6650), ("b", 2), ("c", 3)]),
        ("pulsar+ssl://a,b:2", True, [("a", 6651), ("b", 2)]),
        ("pulsar://127.0.0.1:6650", False, [("127.0.0.1", 6650)]),
        ("pulsar://[::1]:7000", False, [("::1", 7000)]),
        ("pulsar://[::1]", False, [("::1", 6650)]),
        ("[::1]", False, [("::1", 6650)]),
        ("pulsar+ssl://[fe80::1%eth0],h:1", True, [("fe80::1%eth0", 6651), ("h", 1)]),
    ],
)
def test_url(text: str, tls: bool, addresses: list[tuple[str, int]]) -> None:
    assert parse_url(text) == ServiceUrl(tls, tuple(Address(*each) for each in addresses))


@pytest.mark.parametrize(
    "text",
    [
        *("", "   ", "pulsar://", "pulsar:///", "pulsar://,", "pulsar://a,", "pulsar://,a", "pulsar://:6650"),
        *("pulsar://h:", "pulsar://h:0", "pulsar://h:65536", "pulsar://h:-1", "pulsar://h:+1"),
        *("pulsar://h:x", "pulsar://h:1_0", "pulsar://h:\u0661", "pulsar://h:\u00b2", "pulsar://h:1:2"),
        *("pulsar://h:1/path", "pulsar://h/path", "pulsar://[]", "pulsar://[]:1", "pulsar://[::1", "://h"),
        *("kafka://h:1", "ssl://h:1", "pulsar+tls://h:1", "ws://h"),
    ],
)
def test_url_that_is_none(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_url(text)
    assert "\n" not in str(caught.value)
    assert text.strip() in str(caught.value)


@pytest.mark.parametrize("text", ["::1", "pulsar://::1", "pulsar://::1:6650", "pulsar://a,fe80::1:6650"])
def test_url_of_an_ipv6_address_without_brackets(text: str) -> None:
    with pytest.raises(SettingsError, match=r"in brackets, as in pulsar://\[::1\]:6650"):
        parse_url(text)


@pytest.mark.parametrize("text", ["http://localhost:8080", "https://h:8443", "http://h"])
def test_url_of_the_web_service(text: str) -> None:
    with pytest.raises(SettingsError, match="web service URL; give one of the binary protocol, as pulsar://"):
        parse_url(text)


URLS = st.one_of(
    st.text(),
    st.builds("{}://{}".format, st.sampled_from(["pulsar", "pulsar+ssl", "http", ""]), st.text()),
    st.text(alphabet="pulsar+ssl:/[],%.0123456789 ").map("pulsar://{}".format),
)


@given(URLS)
def test_url_or_settings_error(text: str) -> None:
    """Any text is a service URL, which says itself again, or a SettingsError."""
    try:
        url = parse_url(text)
    except SettingsError:
        return
    assert url.addresses
    assert all(host and 0 < port < 65536 for host, port in url.addresses)
    assert parse_url(str(url)) == url


def test_url_with_a_port_of_many_digits() -> None:
    with pytest.raises(SettingsError):
        parse_url("pulsar://h:" + "1" * 5000)


def test_url_by_default() -> None:
    assert str(settings().url) == "pulsar://localhost:6650"


# ---- Which source counts ----


def test_sources_by_strength(tmp_path: Path) -> None:
    """Flag, PWIRE_, PULSAR_, client.conf, in this order."""
    conf = write(tmp_path / "client.conf", "brokerServiceUrl=pulsar://conf\ntlsTrustCertsFilePath=conf.pem\n")
    environment = {"PULSAR_URL": "pulsar://pulsar", "PULSAR_TLS_CA": "pulsar.pem"}
    assert settings({}, conf).url.addresses[0].host == "conf"
    assert settings(environment, conf).url.addresses[0].host == "pulsar"
    environment["PWIRE_URL"] = "pulsar://pwire"
    assert settings(environment, conf).url.addresses[0].host == "pwire"
    assert settings(environment, conf, url="pulsar://flag").url.addresses[0].host == "flag"
    assert settings(environment, conf).tls_ca == "pulsar.pem"  # each setting on its own
    assert settings({}, conf, tls_ca="flag.pem").tls_ca == "flag.pem"


def test_empty_variables_are_none() -> None:
    assert settings({"PULSAR_TOKEN": "", "PWIRE_URL": ""}) == Settings(parse_url("pulsar://localhost:6650"))


@pytest.mark.parametrize(
    "name", ["listener_name", "tls_ca", "tls_cert", "tls_key", "auth_plugin", "token_file", "basic"]
)
def test_every_flag_is_a_variable(name: str) -> None:
    assert gathered({f"PULSAR_{name.upper()}": "x"}) == {name: "x"}
    assert gathered({f"PWIRE_{name.upper()}": "x"}) == {name: "x"}


def test_service_url_variable() -> None:
    assert settings({"PULSAR_SERVICE_URL": "pulsar://h"}).url.addresses == (("h", 6650),)
    both = {"PULSAR_SERVICE_URL": "pulsar://h", "PULSAR_URL": "pulsar://i"}
    assert settings(both).url.addresses == (("i", 6650),)


def test_service_url_variable_before_conf(tmp_path: Path) -> None:
    conf = write(tmp_path / "client.conf", "brokerServiceUrl=pulsar://conf\n")
    assert settings({"PULSAR_SERVICE_URL": "pulsar://h"}, conf).url.addresses == (("h", 6650),)


def test_conf_by_variable(tmp_path: Path) -> None:
    """The file that --conf names counts, else that of PWIRE_CLIENT_CONF, else of PULSAR_CLIENT_CONF."""
    names = ("flag", "pwire", "pulsar")
    files = [write(tmp_path / name, f"brokerServiceUrl=pulsar://{name}\n") for name in names]
    environment = {"PULSAR_CLIENT_CONF": files[2]}
    assert settings(environment).url.addresses[0].host == "pulsar"
    environment["PWIRE_CLIENT_CONF"] = files[1]
    assert settings(environment).url.addresses[0].host == "pwire"
    assert settings(environment, files[0]).url.addresses[0].host == "flag"


def test_conf(tmp_path: Path) -> None:
    """A file as a release has it: comments, empty values, keys that pwire has no use for."""
    text = f"""
# Configuration for pulsar-client and pulsar-admin
webServiceUrl=http://localhost:8080/
brokerServiceUrl = pulsar+ssl://h:6651/
! brokerServiceUrl=pulsar://comment
#brokerServiceUrl=pulsar://comment
authPlugin={JAVA}AuthenticationToken
authParams=token:a.b=c==
tlsAllowInsecureConnection=false
tlsEnableHostnameVerification=FALSE
tlsTrustCertsFilePath=
tlsCertificateFilePath=cert.pem
tlsKeyFilePath=key.pem
useKeyStoreTls=false
no equals sign
"""
    conf = write(tmp_path / "client.conf", text)
    found = settings({}, conf)
    assert str(found.url) == "pulsar+ssl://h:6651"
    assert (found.auth.method, found.auth.data()) == ("token", b"a.b=c==")
    assert (found.tls_allow_insecure, found.tls_hostname_check) == (False, False)
    assert (found.tls_ca, found.tls_cert, found.tls_key) == (None, "cert.pem", "key.pem")


@pytest.mark.parametrize("value", ["true", "TRUE", "1", "yes"])
def test_truth(value: str) -> None:
    assert settings({"PWIRE_TLS_ALLOW_INSECURE": value}).tls_allow_insecure


@pytest.mark.parametrize("value", ["maybe", "2", " "])
def test_neither_true_nor_false(value: str) -> None:
    with pytest.raises(SettingsError, match=r"tls_allow_insecure: .* is neither true nor false"):
        settings({"PWIRE_TLS_ALLOW_INSECURE": value})


# ---- Credentials ----


def test_none() -> None:
    assert sent() == ("none", b"")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"token": "t"}, ("token", b"t")),
        ({"token": " t\n"}, ("token", b"t")),
        ({"token": "file:t"}, ("token", b"file:t")),  # a token, not a file
        ({"basic": "u:p:w"}, ("basic", b"u:p:w")),
        ({"basic": "u:"}, ("basic", b"u:")),
    ],
)
def test_credentials_by_flag(flags: dict[str, str], expected: object) -> None:
    assert sent(**flags) == expected


@pytest.mark.parametrize("name", ["token", "AuthenticationToken", JAVA + "AuthenticationToken", "TOKEN"])
@pytest.mark.parametrize("text", ["t", "token:t", '{"token":"t"}', ' {"token": "t", "other": 1}'])
def test_token_parameters(name: str, text: str) -> None:
    assert sent(auth_plugin=name, auth_params=text) == ("token", b"t")


@pytest.mark.parametrize("form", ["file:{}", "file://{}"])
def test_token_parameters_with_a_file(tmp_path: Path, form: str) -> None:
    """file:/path and file:///path; the file is read when its token is wanted, each time."""
    path = tmp_path / "token"
    auth = settings(auth_plugin="token", auth_params=form.format(path)).auth
    path.write_text("one\n")
    assert auth.data() == b"one"
    path.write_text("two")
    assert auth.data() == b"two"


def test_token_file_that_is_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("t")
    monkeypatch.chdir(tmp_path)
    assert sent(token_file="token") == ("token", b"t")
    assert sent(auth_plugin="token", auth_params="file:token") == ("token", b"t")


@pytest.mark.parametrize("name", ["basic", JAVA + "AuthenticationBasic"])
@pytest.mark.parametrize("text", ["u:p", '{"userId":"u","password":"p"}'])
def test_basic_parameters(name: str, text: str) -> None:
    assert sent(auth_plugin=name, auth_params=text) == ("basic", b"u:p")


@pytest.mark.parametrize("name", ["tls", JAVA + "AuthenticationTls"])
@pytest.mark.parametrize(
    "text", ["tlsCertFile:c.pem,tlsKeyFile:k.pem", '{"tlsCertFile": "c.pem", "tlsKeyFile": "k.pem"}']
)
def test_tls_parameters(name: str, text: str) -> None:
    found = settings(auth_plugin=name, auth_params=text)
    assert (found.auth.method, found.auth.data()) == ("tls", b"")
    assert (found.tls_cert, found.tls_key) == ("c.pem", "k.pem")


def test_tls_by_a_certificate_alone() -> None:
    found = settings(tls_cert="c.pem", tls_key="k.pem")
    assert (found.auth.method, found.tls_cert, found.tls_key) == ("tls", "c.pem", "k.pem")
    found = settings(tls_cert="c.pem", tls_key="k.pem", token="t")
    assert (found.auth.method, found.tls_cert, found.tls_key) == ("token", "c.pem", "k.pem")


@pytest.mark.parametrize(
    "name",
    [
        "none",
        "None",
        "AuthenticationDisabled",
        pytest.param(JAVA + "AuthenticationDisabled"),
    ],
)
def test_plugin_that_is_none(name: str) -> None:
    assert sent(auth_plugin=name, auth_params="whatever") == ("none", b"")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"token": " "}, "the token is empty"),
        ({"auth_plugin": "token"}, "the token is empty"),
        ({"auth_plugin": "token", "auth_params": "token:"}, "the token is empty"),
        ({"auth_plugin": "token", "auth_params": "{}"}, "the token is empty"),
        ({"auth_plugin": "token", "auth_params": '{"token": '}, "begin like JSON"),
        ({"auth_plugin": "basic"}, "USER:PASSWORD"),
        ({"auth_plugin": "basic", "auth_params": "{}"}, "USER:PASSWORD"),
        ({"auth_plugin": "basic", "auth_params": '{"userId"}'}, "begin like JSON"),
        ({"auth_plugin": "tls", "auth_params": "{x"}, "begin like JSON"),
        ({"basic": "u"}, "USER:PASSWORD"),
        ({"basic": ":p"}, "USER:PASSWORD"),
        ({"auth_plugin": JAVA + "AuthenticationSasl"}, "AuthenticationSasl: pwire supports token, basic"),
    ],
)
def test_credentials_that_are_none(flags: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        settings(**flags)


KINDS = {
    "token": {"token": "T"},
    "basic": {"basic": "U:P"},
    "plugin": {"auth_plugin": "basic", "auth_params": "V:W"},
}
MEANT = {"token": ("token", b"T"), "basic": ("basic", b"U:P"), "plugin": ("basic", b"V:W")}


@pytest.mark.parametrize("weak", KINDS)
@pytest.mark.parametrize("strong", KINDS)
def test_credentials_of_a_stronger_source(strong: str, weak: str) -> None:
    """They stand in for those of a weaker one, whatever their kind."""

    others = {name: value.lower() for name, value in KINDS[weak].items()}
    assert sent(variables("PULSAR", others), **KINDS[strong]) == MEANT[strong]
    if strong == weak:
        both = variables("PULSAR", others) | variables("PWIRE", KINDS[strong])
        assert sent(both) == MEANT[strong]


@pytest.mark.parametrize(("strong", "weak"), [("token", "basic"), ("token", "plugin"), ("basic", "plugin")])
def test_credentials_of_pwire_before_those_of_pulsar(strong: str, weak: str) -> None:
    assert sent(variables("PULSAR", KINDS[weak]) | variables("PWIRE", KINDS[strong])) == MEANT[strong]


def test_credentials_before_conf(tmp_path: Path) -> None:
    conf = write(tmp_path / "client.conf", f"authPlugin={JAVA}AuthenticationBasic\nauthParams=u:p\n")
    assert sent({}, conf) == ("basic", b"u:p")
    assert sent({}, conf, token="t") == ("token", b"t")
    assert sent({"PULSAR_TOKEN": "t"}, conf) == ("token", b"t")
    assert sent({}, conf, auth_params="v:w") == ("basic", b"v:w")  # other parameters of the same plugin
    assert sent({}, conf, auth_plugin="none") == ("none", b"")
    with pytest.raises(SettingsError, match="the token is empty"):  # not that of basic
        settings({}, conf, auth_plugin="token")


def test_certificate_of_a_stronger_source(tmp_path: Path) -> None:
    conf = write(tmp_path / "client.conf", "tlsCertificateFilePath=old.pem\ntlsKeyFilePath=old.key\n")
    found = settings({}, conf, auth_plugin="tls", auth_params="tlsCertFile:new.pem,tlsKeyFile:new.key")
    assert (found.tls_cert, found.tls_key) == ("new.pem", "new.key")


@pytest.mark.parametrize("flags", [{"token": "t"}, {"basic": "u:p"}, {"auth_plugin": "none"}])
def test_certificate_of_credentials_that_give_way(tmp_path: Path, flags: dict[str, str]) -> None:
    params = "authParams=tlsCertFile:c.pem,tlsKeyFile:k.pem"
    conf = write(tmp_path / "client.conf", f"authPlugin={JAVA}AuthenticationTls\n{params}\n")
    found = settings({}, conf, **flags)
    assert (found.tls_cert, found.tls_key) == (None, None)


def test_parameters_that_give_way_may_be_anything() -> None:
    assert sent({"PULSAR_AUTH_PLUGIN": "basic", "PULSAR_AUTH_PARAMS": "{"}, token="t") == ("token", b"t")


@pytest.mark.parametrize("flags", [{"token": "\udcff"}, {"basic": "u:\udcff"}])
def test_credentials_with_bytes_that_are_no_text(flags: dict[str, str]) -> None:
    """As the command line gives them: the bytes are meant."""
    assert settings(**flags).auth.data()[-1:] == b"\xff"


ODD = ("token:x", "file:", "{", "{}", "u:p", "tls", "basic", "token", "x,y")
VALUES = st.one_of(st.text(max_size=20), st.sampled_from(ODD))


@given(st.dictionaries(st.sampled_from(NAMES), VALUES))
@example({"auth_plugin": "tls", "auth_params": ","})
def test_settings_or_settings_error(found: dict[str, str]) -> None:
    """Whatever texts there are, they are settings, or a SettingsError; no secret is seen in either."""
    found = {name: SECRET + value if name in ("token", "basic") else value for name, value in found.items()}
    try:
        told = repr(make_settings(found))
    except SettingsError as error:
        told = str(error)
    assert SECRET not in told


# ---- Files ----


def test_conf_that_cannot_be_read(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(SettingsError, match=f"client.conf {path}: {why}.*; name another with --conf"):
            gathered({}, str(path))
        with pytest.raises(SettingsError, match=f"client.conf {path}: {why}"):
            gathered({"PULSAR_CLIENT_CONF": str(path)})


def test_conf_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "client.conf"
    path.write_bytes(b"\xff\xfe\0junk=\xff\nbrokerServiceUrl=pulsar://h\n")
    assert settings({}, str(path)).url.addresses[0].host == "h"


def test_token_file_that_cannot_be_read(tmp_path: Path) -> None:
    """It is read when the session begins, not before; then it is said what is wrong with it."""
    empty = write(tmp_path / "empty", " \n")
    odd = {str(tmp_path / "none"): ": No such file", str(tmp_path): ": Is a directory", empty: " is empty"}
    for path, why in odd.items():
        auth = settings(token_file=path).auth
        with pytest.raises(SettingsError, match=f"token file {path}{why}"):
            auth.data()


def test_certificates_that_cannot_be_read(tmp_path: Path) -> None:
    junk = write(tmp_path / "junk.pem", "no PEM")
    for path, why in (("none.pem", "No such file"), (junk, "")):
        with pytest.raises(SettingsError, match=f"TLS certificates {path} cannot be used: {why}.*PEM files"):
            settings(tls_ca=path).tls_context()
        with pytest.raises(SettingsError, match=f"TLS certificates {path} cannot be used: {why}.*PEM files"):
            settings(tls_cert=path).tls_context()


@pytest.mark.parametrize(
    ("flags", "verified", "by_name"),
    [
        ({}, ssl.CERT_REQUIRED, True),
        ({"tls_hostname_check": "false"}, ssl.CERT_REQUIRED, False),
        ({"tls_allow_insecure": "true"}, ssl.CERT_NONE, False),
        ({"tls_allow_insecure": "true", "tls_hostname_check": "true"}, ssl.CERT_NONE, False),
    ],
)
def test_tls_context(flags: dict[str, str], verified: ssl.VerifyMode, by_name: bool) -> None:
    context = settings(**flags).tls_context()
    assert (context.verify_mode, context.check_hostname) == (verified, by_name)


# ---- Secrets ----


@pytest.mark.parametrize(
    "flags",
    [
        {"token": SECRET},
        {"basic": f"u:{SECRET}"},
        {"auth_plugin": "token", "auth_params": f"token:{SECRET}"},
        {"auth_plugin": "token", "auth_params": json.dumps({"token": SECRET})},
        {"auth_plugin": "basic", "auth_params": json.dumps({"userId": "u", "password": SECRET})},
    ],
)
def test_no_secret_in_repr(flags: dict[str, str]) -> None:
    found = settings(**flags)
    assert SECRET.encode() in found.auth.data()
    for text in (repr(found), str(found), repr(found.auth), str(found.auth)):
        assert "s3cret" not in text


@pytest.mark.parametrize(
    "flags",
    [
        {"basic": SECRET},
        {"auth_plugin": "basic", "auth_params": SECRET},
        {"auth_plugin": "sasl", "auth_params": SECRET},
        {"auth_plugin": "token", "auth_params": "{" + SECRET},
        {"auth_plugin": "tls", "auth_params": "{" + SECRET},
    ],
)
def test_no_secret_in_errors(flags: dict[str, str]) -> None:
    with pytest.raises(SettingsError) as caught:
        settings(**flags)
    assert "s3cret" not in str(caught.value)
