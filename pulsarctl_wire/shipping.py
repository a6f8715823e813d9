"""Ships this package to other machines as one file, from which Python imports it.

Python imports no compiled modules from a zip file. So where the compiled modules run, the file is unpacked
once, to a directory next to it.
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
"""The module with the code of all compiled modules. hatch_build.py puts it next to the package."""


def pack(path: Path) -> Path:
    """Write this package, without the libraries that it needs, to the zip file `path`; return `path`.

    Raises OSError.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member in sorted([*_PACKAGE.rglob("*"), *_PACKAGE.parent.glob(f"{_LIBRARY}.*")]):
            if member.is_file() and member.suffix != ".pyc":
                archive.write(member, member.relative_to(_PACKAGE.parent))
    return path


def unpack(archive: str) -> str:
    """Return the path from which to import this package; `archive` is the file that `pack` wrote.

    The path is a directory if the file has compiled modules that run here, otherwise it is `archive`. Only
    Python and the linker know what runs here (version, machine, C library), so an import is tried.
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
    with TemporaryDirectory(dir=directory.parent) as scratch, zipfile.ZipFile(archive) as file:
        if not any(name.startswith(f"{_LIBRARY}.") for name in file.namelist()):
            raise ImportError("nothing is compiled")
        complete = Path(scratch, "whole")
        file.extractall(complete)
        with suppress(OSError):  # another process was faster
            complete.rename(directory)
