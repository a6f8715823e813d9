"""The keys that `-ekv` names, as in pulsar-client: file:///PATH, data:TYPE;base64,… or a path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from pulsarctl_wire.errors import SettingsError

ENCRYPTION_KEY_VALUE: Final = "-ekv --encryption-key-value"

K = TypeVar("K")


def load_key(uri: str, load: Callable[[bytes], K]) -> K:
    """Read the key that a URI names. `load` parses it, and may raise ValueError. Raises SettingsError."""
    is_data = uri[:5].lower() == "data:"
    shown = "data:…" if is_data else uri  # the key itself may be secret
    try:
        return load(_read_data(uri) if is_data else _read_file(uri))
    except OSError as error:
        raise SettingsError(f"-ekv {shown}: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"-ekv {shown}: {error}") from None


def _read_data(uri: str) -> bytes:
    from base64 import b64decode
    from urllib.parse import unquote_to_bytes

    head, comma, text = uri.partition(",")
    if not comma:
        raise ValueError("no comma; use data:application/x-pem-file;base64,…")
    data = unquote_to_bytes(text)
    if not head.lower().endswith(";base64"):
        return data
    try:
        return b64decode(data, validate=True)
    except ValueError:
        raise ValueError("what follows the comma is not base64") from None


def _read_file(uri: str) -> bytes:
    from urllib.parse import unquote, urlsplit

    from pulsarctl_wire.capture.private_keys import read_key_file

    path = unquote(urlsplit(uri).path) if uri[:5].lower() == "file:" else uri
    return read_key_file(path)
