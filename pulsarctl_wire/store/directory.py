"""Files of JSON in the directory of a store, by which processes tell others how far they are."""

from pathlib import Path
from typing import Any, Final

from msgspec import MsgspecError, json

from pulsarctl_wire.errors import StoreError

ENDED: Final = "ended"
"""The file with the exit code of the server that fills a store, once it has ended."""


def write_json(directory: Path, name: str, value: Any) -> None:
    """Write `name`.json atomically, so that nobody reads half of it."""
    temporary = directory / f"{name}.json.new"
    temporary.write_bytes(json.encode(value))
    temporary.replace(directory / f"{name}.json")


def read_json(directory: Path, name: str, default: Any = None) -> Any:
    """Return the contents of `name`.json, or `default` if it is not there. Raises StoreError."""
    try:
        return json.decode((directory / f"{name}.json").read_bytes())
    except FileNotFoundError:
        return default
    except (OSError, MsgspecError) as error:
        raise StoreError(f"{directory}/{name}.json: {error}") from error
