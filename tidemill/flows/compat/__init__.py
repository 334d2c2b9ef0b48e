"""Run programs that are written for LlamaIndex Workflows or for LlamaIndex itself, unmodified, on Tidemill.

    python -m tidemill.flows.compat program.py arguments...

`install()` makes the public module names of `workflows` (and of its alias `llama_agents.workflows`) resolve to
Tidemill's modules: call it before the program imports them. `llama_index.core` and its agents then run on Tidemill.
Importing a name that Tidemill does not provide raises an ImportError.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tidemill.core.errors import ConfigError
from tidemill.flows.compat.names import ALIAS, PACKAGE, modules

_MARK = "__tidemill__"


def install() -> None:
    """Make `import workflows` import Tidemill's modules. A second call does nothing."""
    known = sys.modules.get(PACKAGE)
    if known is not None and not hasattr(known, _MARK):
        raise ConfigError(
            f"the package `{PACKAGE}` is already imported; call tidemill.flows.compat.install() before anything "
            "imports it"
        )
    if known is not None:
        return
    for name, members in modules().items():
        sys.modules[name] = _module(name, members)
        sys.modules[ALIAS + name.removeprefix(PACKAGE)] = sys.modules[name]
    above = ALIAS.rpartition(".")[0]
    if above not in sys.modules:
        sys.modules[above] = _module(above, {})
    for name in modules():
        parent, _, child = name.rpartition(".")
        setattr(sys.modules[parent or above], child, sys.modules[name])


def run_program(path: str | Path, argv: Sequence[str] = ()) -> None:
    """Run a program file as `__main__` with these arguments, with `workflows` provided by Tidemill."""
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"the program file {file} does not exist")
    install()
    before = sys.argv, sys.path[:]
    sys.argv = [str(file), *argv]
    sys.path.insert(0, str(file.parent.resolve()))
    try:
        runpy.run_path(str(file), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before


def _module(name: str, members: Mapping[str, Any]) -> ModuleType:
    made = ModuleType(name, "Tidemill's implementation of this module of `workflows`.")
    made.__path__ = []  # type: ignore[attr-defined]  # every module may have submodules
    vars(made).update(members)
    vars(made)["__all__"] = [each for each in members if not each.startswith("_")]
    setattr(made, _MARK, True)
    return made
