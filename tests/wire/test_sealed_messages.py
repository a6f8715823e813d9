"""Encrypted payloads open with the right private key, stay closed with others, and never break anything."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from hypothesis import given
from hypothesis import strategies as st

from pulsarctl_wire import read_events
from pulsarctl_wire.net.session.encryption import Encryptor, Recipient, load_public_key
from pulsarctl_wire.record import Recorder
from pulsarctl_wire.wire import encryption
from pulsarctl_wire.wire.chunks import ChunkJoiner
from pulsarctl_wire.wire.encryption import MAX_RECIPIENTS, KeyRing, Opened, load_private_key, read_seal
from pulsarctl_wire.wire.entry import chunk
from pulsarctl_wire.wire.frame import Connection, Frame, build_frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.payload import open_entry
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, EncryptionKeys, MessageMetadata

KEYS: Final = Path(__file__).parents[1] / "encrypted"
CONNECTION: Final = Connection(0)
OAEP, ECIES = "AES-256-GCM, RSA-OAEP", "AES-256-GCM, ECIES"
CAPTURES: Final = {
    "wheel": ("rsa", OAEP),
    "go": ("rsa", OAEP),
    "java": ("other", OAEP),
    "java-ec": ("ec", ECIES),
}
"""Captures by client, each with a key that opens it."""


@cache
def private_key(name: str) -> Any:
    return load_private_key((KEYS / f"{name}.pem").read_bytes())


@cache
def recipient(name: str) -> Recipient:
    return Recipient(name, load_public_key((KEYS / f"{name}.pub").read_bytes()))


def ring(*names: str) -> KeyRing:
    return KeyRing(map(private_key, names))


@cache
def entries(client: str) -> list[Frame]:
    """The SEND and MESSAGE frames of a capture."""
    events = read_events(KEYS / f"{client}.pcapng")
    return [event for event in events if isinstance(event, Frame) and event.metadata is not None]


def sent(metadata: MessageMetadata, payload: bytes) -> Frame:
    base = BaseCommand(type=BaseCommand.SEND)
    base.send.producer_id = base.send.sequence_id = 1
    (frame,) = FrameStream(CONNECTION, True).feed(build_frame(base, metadata, payload))
    assert isinstance(frame, Frame)
    return frame


def new_metadata(**fields: Any) -> MessageMetadata:
    return MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, **fields)


def sealed_for(*values: bytes) -> Frame:
    """A frame with these encrypted data keys."""
    keys = [EncryptionKeys(key=f"k{number}", value=value) for number, value in enumerate(values)]
    return sent(new_metadata(encryption_keys=keys, encryption_param=bytes(12)), bytes(40))


def note_of(frame: Frame, keys: KeyRing) -> str:
    """Why an entry stays closed."""
    (note,) = open_entry(frame, keys=keys).notes
    return note.removeprefix("still encrypted: ")


def encrypted(payload: bytes = b"secret", *names: str) -> Frame:
    metadata = new_metadata()
    names = names or ("rsa",)
    return sent(metadata, Encryptor([*map(recipient, names)]).encrypt(metadata, payload, 0))


# -- what clients encrypted


@pytest.mark.parametrize("client", CAPTURES)
def test_what_clients_encrypted(client: str) -> None:
    name, algorithm = CAPTURES[client]
    keys = ring(name)
    forms: dict[tuple[str, int, bool], list[str]] = {}
    for frame in entries(client):
        metadata = frame.metadata
        assert metadata is not None
        entry = open_entry(frame, keys=keys)
        assert entry.notes == []
        if not entry.messages:  # a chunk that is not the last one
            continue
        assert entry.opened == Opened(name, algorithm)
        is_chunked = metadata.num_chunks_from_msg > 1
        texts = forms.setdefault((frame.command, metadata.compression, is_chunked), [])
        texts += [(message.payload or b"")[:9].decode() for message in entry.messages]
    assert {form[1] for form in forms} == {0, 1, 2, 3, 4}
    assert {form[2] for form in forms} == {False, True}
    for texts in forms.values():
        assert texts == [f"secret {number} " for number in range(3)] * (len(texts) // 3)


def test_the_cpp_client_repeats_the_recipients_of_chunks() -> None:
    last = [frame for frame in entries("wheel") if frame.joined is not None][-1]
    assert [len(frame.encryption_keys) for frame in [last.metadata] if frame is not None] == [3]
    assert [len(seal.recipients) for seal, _ in last.seals if seal is not None] == [1, 1, 1]


@pytest.mark.parametrize("name", ["rsa", "other"])
def test_each_recipient_opens_it(name: str) -> None:
    for frame in entries("java"):
        entry = open_entry(frame, keys=ring(name))
        assert not entry.messages or entry.opened == Opened(name, OAEP)


def test_without_a_private_key_it_is_shown_as_it_is() -> None:
    frame = entries("go")[0]
    entry = open_entry(frame)
    assert (entry.messages[0].payload, entry.notes, entry.opened) == (frame.payload, [], None)


@pytest.mark.parametrize(("client", "names"), [("wheel", ["ec"]), ("java-ec", ["rsa", "p256", "other"])])
def test_a_wrong_key_leaves_it_closed(client: str, names: list[str]) -> None:
    keys = ring(*names)
    name = CAPTURES[client][0]
    reason = f"no private key opens the data key of {name}"
    for frame in entries(client):
        entry = open_entry(frame, keys=keys)
        if entry.messages:
            assert entry.notes == [f"still encrypted: {reason}"]
            assert entry.messages[0].payload == (frame.joined or frame.payload)
    assert list(keys.problems) == [reason]


def test_records_say_what_opened_an_entry() -> None:
    frame = entries("java-ec")[0]
    opened, closed = (Recorder(keys=ring(name))(frame) for name in ("ec", "rsa"))
    assert opened["decrypted"] == {"key": "ec", "algorithm": ECIES}
    assert opened["messages"][0]["payload"]["view"] == "text"
    assert "decrypted" not in closed
    assert closed["messages"][0]["payload"]["view"] == "encrypted"
    assert closed["messages"][0]["payload"]["keys"] == ["ec"]


def test_secrets_are_in_no_output() -> None:
    frame = encrypted(b"plain")
    assert frame.metadata is not None
    wrapped = frame.metadata.encryption_keys[0].value
    data_key = private_key("rsa").decrypt(wrapped, encryption.make_oaep())
    text = json.dumps(Recorder(keys=ring("rsa"))(frame))
    assert "plain" in text
    body = "".join((KEYS / "rsa.pem").read_text().splitlines()[1:-1])
    for secret in (data_key.hex(), *re.findall(".{60}", body)):
        assert secret not in text


# -- round trips


@pytest.mark.parametrize(
    "curve", [ec.SECP256R1, ec.SECP384R1, ec.SECP521R1, ec.SECP256K1, ec.BrainpoolP256R1]
)
def test_other_curves(curve: type[ec.EllipticCurve]) -> None:
    key = ec.generate_private_key(curve())
    metadata = new_metadata()
    frame = sent(metadata, Encryptor([Recipient("a", key.public_key())]).encrypt(metadata, b"secret", 0))
    entry = open_entry(frame, keys=KeyRing([key]))
    assert (entry.messages[0].payload, entry.opened) == (b"secret", Opened("a", ECIES))


def test_the_overhead_of_encryption() -> None:
    names = ("rsa", "other", "ec", "p256")
    encryptor, metadata = Encryptor([*map(recipient, names)]), new_metadata()
    size = metadata.ByteSize()
    payload = encryptor.encrypt(metadata, b"secret", 0)
    overhead = metadata.ByteSize() - size + len(payload) - len(b"secret")
    assert encryptor.overhead - 2 * len(names) * 2 <= overhead <= encryptor.overhead


def chunks(*encryptors: Encryptor | None) -> list[Frame]:
    """The chunks of a message, each encrypted by one of these, or not at all."""
    joiner, frames = ChunkJoiner(), []
    parts = chunk(new_metadata(), b"abcdefghi", 3)
    for encryptor, (metadata, part) in zip(encryptors, parts, strict=True):
        del metadata.encryption_keys[:]
        frame = sent(metadata, part if encryptor is None else encryptor.encrypt(metadata, part, 0))
        assert frame.metadata is not None
        joiner.add(frame, frame.metadata, 1)
        frames.append(frame)
    return frames


def test_chunks_may_have_different_data_keys() -> None:
    frames = chunks(*(Encryptor([recipient(name)]) for name in ("rsa", "ec", "rsa")))
    entry = open_entry(frames[-1], keys=ring("ec", "rsa"))
    assert entry.messages[0].payload == b"abcdefghi"
    closed = open_entry(frames[-1], keys=ring("rsa"))
    assert closed.messages[0].payload == frames[-1].joined
    assert closed.notes == ["still encrypted: no private key opens the data key of ec"]


def test_a_chunk_that_is_not_encrypted_is_taken_as_it_is() -> None:
    encryptor = Encryptor([recipient("rsa")])
    entry = open_entry(chunks(encryptor, None, encryptor)[-1], keys=ring("rsa"))
    assert entry.messages[0].payload == b"abcdefghi"


# -- lies


def test_a_payload_that_was_changed() -> None:
    frame = encrypted()
    assert frame.metadata is not None
    changed = sent(frame.metadata, frame.payload[:-1] + bytes([frame.payload[-1] ^ 1]))
    expected = "the data key of rsa is open, but its payload is damaged or another's"
    assert note_of(changed, ring("rsa")) == expected


@pytest.mark.parametrize("size", [0, 1, 11, 13, 64])
def test_a_nonce_of_another_size(size: int) -> None:
    metadata = encrypted().metadata
    assert metadata is not None
    metadata.encryption_param = bytes(size)
    note = note_of(sent(metadata, bytes(40)), ring("rsa"))
    assert note == f"encryption_param has {size} bytes; a nonce has 12"


@pytest.mark.parametrize("size", [0, 15])
def test_a_payload_shorter_than_its_tag(size: int) -> None:
    metadata = encrypted().metadata
    assert metadata is not None
    note = note_of(sent(metadata, bytes(size)), ring("rsa"))
    assert note == f"{size} bytes are too few: the tag alone has 16"


def test_a_data_key_of_another_size() -> None:
    key = private_key("rsa").public_key()
    for size in (0, 15, 33):
        frame = sealed_for(key.encrypt(bytes(size), encryption.make_oaep()))
        assert note_of(frame, ring("rsa")) == "no private key opens the data key of k0"


def test_recipients_are_tried_up_to_a_bound() -> None:
    metadata = encrypted().metadata
    assert metadata is not None
    many = sealed_for(*(b"%d" % number for number in range(10_000)), metadata.encryption_keys[0].value)
    assert len(read_seal(many.metadata).recipients) == MAX_RECIPIENTS
    assert read_seal(sealed_for(bytes(3_000)).metadata).recipients == ()
    assert note_of(many, ring("rsa")) == "no private key opens the data key of k0, k1, k2 and 61 more"


def test_data_keys_are_tried_in_vain_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encryption, "MAX_FAILURES", 3)
    keys = ring("rsa")
    frames = [sealed_for(bytes([number]) * 256, bytes(9)) for number in range(5)]
    notes = [note_of(frame, keys) for frame in frames * 2]
    expected = "no private key opened 3 data keys: further ones are not tried"
    assert [note == expected for note in notes] == [False, False, *[True] * 8]
    assert open_entry(encrypted(), keys=keys).opened is None


def test_data_keys_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encryption, "_CACHED", 2)
    keys = ring("rsa")
    frames = [encrypted() for _ in range(3)]
    for frame in frames * 2:
        assert open_entry(frame, keys=keys).opened is not None
    assert keys._unwrap.cache_info().currsize == 2


@pytest.mark.hypothesis
@given(
    st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=300)), max_size=4),
    st.binary(max_size=20),
    st.binary(max_size=64),
    st.integers(0, 4),
    st.integers(0, 3),
    st.data(),
)
def test_no_metadata_breaks_anything(
    pairs: list[tuple[str, bytes]], nonce: bytes, payload: bytes, codec: int, count: int, data: st.DataObject
) -> None:
    """Real recipients among made-up ones, and real ones with a byte changed; any nonce, payload and codec."""
    frame = encrypted(payload, "rsa", "p256")
    assert frame.metadata is not None
    keys = list(frame.metadata.encryption_keys)
    for key in keys:
        value = bytearray(key.value)
        place = data.draw(st.integers(0, len(value) * 2))
        if place < len(value):
            value[place] ^= 1 << (place & 7)
        key.value = bytes(value)
    keys = [*(EncryptionKeys(key=name, value=value) for name, value in pairs), *keys]
    is_real = data.draw(st.booleans())
    metadata = new_metadata(
        encryption_keys=keys,
        encryption_param=frame.metadata.encryption_param if is_real else nonce,
        compression=codec,
        uncompressed_size=data.draw(st.integers(0, 2**32 - 1)),
    )
    if count:
        metadata.num_messages_in_batch = count
    both = ring("rsa", "p256")
    broken = sent(metadata, frame.payload if is_real else payload)
    entry = open_entry(broken, keys=both)
    assert (entry.opened is None) == any(note.startswith("still encrypted: ") for note in entry.notes)
    Recorder(keys=both)(broken)


# -- keys


def in_pem(key: Any, passphrase: bytes = b"", form: PrivateFormat = PrivateFormat.PKCS8) -> bytes:
    lock = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
    data: bytes = key.private_bytes(Encoding.PEM, form, lock)
    return data


def test_private_keys_in_every_form() -> None:
    key = rsa.generate_private_key(65537, 1024)
    for form in (PrivateFormat.TraditionalOpenSSL, PrivateFormat.PKCS8):
        data = in_pem(key, form=form)
        assert load_private_key(b"some text\n" + data).private_numbers() == key.private_numbers()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a private key"),
        (b"\xff\x00 no key", "not a private key"),
        ((KEYS / "rsa.pem").read_bytes()[:900], "the private key cannot be read: "),
        ((KEYS / "rsa.pub").read_bytes(), "a public key; give an RSA or EC private key in PEM"),
        (in_pem(private_key("p256"), b"x"), "the key has a passphrase; write it without one"),
        (in_pem(ed25519.Ed25519PrivateKey.generate()), "neither an RSA nor an EC key"),
    ],
    ids=["empty", "bytes", "cut", "public", "passphrase", "ed25519"],
)
def test_what_is_no_private_key(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        load_private_key(data)


def test_what_is_no_public_key() -> None:
    for name, reason in (("rsa.pem", "a private key"), ("go.pcapng", "not a public key")):
        with pytest.raises(ValueError, match=reason):
            load_public_key((KEYS / name).read_bytes())
    with pytest.raises(ValueError, match="the public key cannot be read: "):
        load_public_key((KEYS / "rsa.pub").read_bytes()[:300])
