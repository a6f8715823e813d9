"""Private keys in files, which open payloads that are encrypted end to end."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.wire.encryption import KeyRing, load_private_key

if TYPE_CHECKING:
    from pulsarctl_wire.wire.encryption import PrivateKey

_MAX_KEY: Final = 1024 * 1024  # bytes of a file that are read


def read_private_keys(paths: Sequence[str]) -> KeyRing | None:
    """Read the private keys in these files; None if there are none. Raises SettingsError."""
    return KeyRing(map(_read, paths)) if paths else None


def read_key_file(path: str) -> bytes:
    """Return what a file with a key holds, up to a bound. Raises OSError."""
    with open(path, "rb") as file:
        return file.read(_MAX_KEY)


def _read(path: str) -> "PrivateKey":
    try:
        return load_private_key(read_key_file(path))
    except OSError as error:
        raise SettingsError(f"--private-key {path}: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"--private-key {path}: {error}") from None
