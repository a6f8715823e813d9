"""`--private-key` opens payloads in every form of output, and says what it does not open."""

from __future__ import annotations

from pathlib import Path

import pytest
from pwire_run import pwire

KEYS = Path(__file__).parents[1] / "encrypted"
CAPTURE = KEYS / "java-ec.pcapng"
SENDS = ["--command", "SEND", "--topic", "*-batched-ZSTD"]
PROXY = ["proxy", "--to", "pulsar://none"]
TABLE = ["table", str(CAPTURE), "--out", "/none/t"]
EC, RSA = (["--private-key", str(KEYS / f"{name}.pem")] for name in ("ec", "rsa"))
CLOSED = "still encrypted: no private key opens the data key of ec"


def test_lines() -> None:
    (line,) = pwire("decode", CAPTURE, *SENDS, *EC).lines
    assert 'batch=3 ZSTD encrypted=ec key=k0 decrypted "secret 0 ssxvnjhpdqdxvcrastvybcw…" … ' in line
    assert "!" not in line
    run = pwire("decode", CAPTURE, *SENDS, *RSA)
    assert run.code == 0
    assert run.lines[0].endswith(f" crc=ok ! {CLOSED}")
    assert "decrypted" not in run.lines[0]
    assert run.complaints == [f"pwire: --private-key: some payloads stay encrypted: {CLOSED[17:]}"]
    (line,) = pwire("decode", CAPTURE, *SENDS).lines
    assert line.endswith(" crc=ok")


def test_json() -> None:
    (record,) = pwire("decode", CAPTURE, *SENDS, *RSA, *EC, "-o", "json").records
    assert [message["payload"]["value"][:9] for message in record["messages"]] == [
        "secret 0 ",
        "secret 1 ",
        "secret 2 ",
    ]
    assert record["decrypted"] == {"key": "ec", "algorithm": "AES-256-GCM, ECIES"}
    assert record["notes"] == []
    (record,) = pwire("decode", CAPTURE, *SENDS, *RSA, "-o", "json").records
    assert [message["payload"]["view"] for message in record["messages"]] == ["encrypted"]
    assert record["notes"] == [CLOSED]


def test_trees() -> None:
    text = pwire("decode", CAPTURE, *SENDS, *EC, "-o", "tree").out.decode()
    assert "├── decrypted\n│   ├── key: ec\n│   └── algorithm: AES-256-GCM, ECIES\n├── message 0" in text
    assert "payload (text): secret 2 " in text
    text = pwire("decode", CAPTURE, *SENDS, *RSA, "-o", "tree").out.decode()
    assert text.endswith(f"└── ! {CLOSED}\n")
    assert "payload (encrypted): " in text


def test_chunks_are_joined() -> None:
    run = pwire("decode", CAPTURE, "--topic", "*-chunked-LZ4", "--command", "SEND", *EC, "-o", "json")
    messages = [record["messages"] for record in run.records]
    assert [len(each) for each in messages] == [0, 0, 1] * 3
    texts = [each[0]["payload"]["value"][:9] for each in messages[2::3]]
    assert texts == ["secret 0 ", "secret 1 ", "secret 2 "]


def test_filters() -> None:
    asked = ["--filter", "decrypted != null and messages[0].payload.value =~~ 'secret 1'", "-o", "json"]
    records = pwire("decode", CAPTURE, *EC, *asked).records
    assert {record["messages"][0]["payload"]["value"][:9] for record in records} == {"secret 1 "}
    assert not pwire("decode", CAPTURE, *RSA, *asked).records


def test_diagrams() -> None:
    asked: list[str | Path] = ["sequence", CAPTURE, *SENDS, "-o", "svg"]
    assert "encrypted=ec key=k0 decrypted" in pwire(*asked, *EC).out.decode()
    assert "decrypted" not in pwire(*asked).out.decode()


def test_what_is_still_encrypted_is_an_error_to_find() -> None:
    run = pwire("decode", CAPTURE, *RSA, "--first-error")
    assert run.lines[0].startswith(f"{CLOSED} | ")
    assert "no errors in 256 frames" in pwire("decode", CAPTURE, *EC, "--first-error").err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["decode", CAPTURE, "--private-key", "/none"], "--private-key /none: No such file or directory"),
        (["decode", CAPTURE, "--private-key", CAPTURE], f"--private-key {CAPTURE}: not a private key; "),
        (["decode", CAPTURE, "--private-key", KEYS], f"--private-key {KEYS}: Is a directory"),
        (["decode", CAPTURE, "--connections", *EC], "cannot be combined with --private-key"),
        (["doctor", CAPTURE, "--private-key", "/none"], "--private-key /none: No such file"),
        (["sequence", CAPTURE, "--private-key", "/none"], "--private-key /none: No such file"),
        (["ping", "--private-key", "/none"], "--private-key /none: No such file"),
        ([*PROXY, *EC], "--private-key needs --tap"),
        ([*PROXY, "--tap", "--private-key", "/none"], "--private-key /none: No such file"),
        ([*TABLE, *EC], "--values, --hash-keys and --private-key need --messages"),
        ([*TABLE, "--messages", "--private-key", "/none"], "--private-key /none: No such file"),
    ],
    ids=[
        "missing",
        "no-key",
        "directory",
        "connections",
        "doctor",
        "sequence",
        "ping",
        "no-tap",
        "tap",
        "no-messages",
        "table",
    ],
)
def test_wrong_options_are_one_line(words: list[str | Path], complaint: str) -> None:
    run = pwire(*words)
    assert (run.code, run.out) == (2, b"")
    assert complaint in run.err
    assert run.err.count("\n") == 1
