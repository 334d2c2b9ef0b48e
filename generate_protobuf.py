"""Generates the protobuf modules (`*_pb2.py`, with their types) beside each .proto file; they are not committed.

    python generate_protobuf.py         needs grpcio-tools

The package build generates all of them, with the release of grpcio-tools that its requirements name. A test run
generates only those that are missing or older than their .proto file.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def generate_protobuf(*, everything: bool = False) -> list[Path]:
    """Generate the missing and outdated modules, or all of them; returns all of them."""
    protos = sorted((ROOT / "tidemill").rglob("*.proto"))
    outdated = [proto for proto in protos if everything or not _is_fresh(proto)]
    if outdated:
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}", f"--python_out={ROOT}", f"--pyi_out={ROOT}"]
        if subprocess.run([*command, *map(str, outdated)], cwd=ROOT, check=False).returncode:
            raise SystemExit(
                "the protobuf modules cannot be generated: pip install grpcio-tools, or see the errors above"
            )
    return [module for proto in protos for module in _modules(proto)]


def _modules(proto: Path) -> list[Path]:
    return [proto.with_name(f"{proto.stem}_pb2{suffix}") for suffix in (".py", ".pyi")]


def _is_fresh(proto: Path) -> bool:
    changed = proto.stat().st_mtime
    return all(module.is_file() and module.stat().st_mtime > changed for module in _modules(proto))


if __name__ == "__main__":
    generate_protobuf()
