"""Ships this package to other machines as one file, from which Python imports it.

Python imports no compiled modules from a zip file. So where they fit, it is unpacked once, beside itself.
"""

import sys
import zipfile
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

_PACKAGE: Final = Path(__file__).parent
_LIBRARY: Final = f"{_PACKAGE.name}__mypyc"
"""The module that has the code of all compiled ones, which hatch_build.py made; it is next to the package."""


def pack(path: Path) -> Path:
    """Write this package to the file `path`: with it others need only its libraries. Raises OSError."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for module in sorted([*_PACKAGE.rglob("*"), *_PACKAGE.parent.glob(f"{_LIBRARY}.*")]):
            if module.is_file() and module.suffix != ".pyc":
                file.write(module, module.relative_to(_PACKAGE.parent))
    return path


def unpack(archive: str) -> str:
    """Return where to import this package from, which `pack` wrote to the file `archive`.

    That is a directory, if the file has compiled modules that run here, otherwise the file. Only Python and
    the linker know what runs here (version, machine, C library), so it is tried.
    """
    directory = Path(f"{archive}.unpacked")
    try:
        if not directory.exists():
            _extract(archive, directory)
        sys.path.insert(0, str(directory))
        import_module(_LIBRARY)
    except (ImportError, OSError):
        with suppress(ValueError):
            sys.path.remove(str(directory))
        return archive
    return str(directory)


def _extract(archive: str, directory: Path) -> None:
    with TemporaryDirectory(dir=directory.parent) as beside, zipfile.ZipFile(archive) as file:
        if not any(name.startswith(f"{_LIBRARY}.") for name in file.namelist()):
            raise ImportError("nothing is compiled")
        complete = Path(beside, "whole")
        file.extractall(complete)
        with suppress(OSError):  # another process was faster
            complete.rename(directory)
