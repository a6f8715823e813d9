"""Compile PulsarApi.proto into pulsarctl_wire/wire/, with type stubs: `python proto/compile.py [OUT_DIR]`."""

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "pulsarctl_wire" / "wire"


def compile_schema(out: Path) -> None:
    """Write PulsarApi_pb2.py and PulsarApi_pb2.pyi into the existing directory `out`.

    Raises RuntimeError if protoc refuses the schema.
    """
    include = files("grpc_tools") / "_proto"
    plugin = Path(sys.executable).with_name("protoc-gen-mypy")
    arguments = [
        f"--proto_path={HERE}",
        f"--proto_path={include}",
        f"--plugin=protoc-gen-mypy={plugin}",
        f"--python_out={out}",
        f"--mypy_out=quiet:{out}",
    ]
    if protoc.main(["protoc", *arguments, "PulsarApi.proto"]) != 0:
        raise RuntimeError("protoc could not compile PulsarApi.proto")


if __name__ == "__main__":
    compile_schema(Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGE)
