"""Imports point downwards only, and the core does no I/O: the contracts are in pyproject.toml."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

from tests.support.processes import ROOT

LINT = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"


def test_every_layer_imports_only_what_is_below_it() -> None:
    done = subprocess.run([sys.executable, "-c", LINT], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    kept = re.search(r"Contracts: (\d+) kept, 0 broken", done.stdout)
    assert kept, done.stdout
    assert int(kept[1]) == len(contracts())


def test_the_contracts_name_every_layer_there_is() -> None:
    layers = next(contract["layers"] for contract in contracts() if contract["type"] == "layers")
    named = {name for layer in layers for name in re.split(r"\s*[|:]\s*", layer)}
    rooms = {f"tidemill.{path.stem}" for path in (ROOT / "tidemill").iterdir() if is_room(path.name)}
    assert rooms <= named, f"{rooms - named} is in no layer"


def is_room(name: str) -> bool:
    return not name.startswith("_") and name not in ("py.typed", "version.py")


def contracts() -> list[dict]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
