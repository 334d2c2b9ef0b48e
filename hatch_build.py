"""What the package build does besides packing: it generates the protobuf modules, and builds the console.

A clone that is installed with `-e` serves the console that `make web` has built. `TIDEMILL_WITHOUT_CONSOLE=1` leaves
the console out, for machines that cannot fetch its parts. It imports nothing of Tidemill, which is not installed yet.
"""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface  # pyright: ignore[reportMissingImports]


class BuildHook(BuildHookInterface[Any]):
    """What hatchling calls before it packs a wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        generated = self._run("generate_protobuf.py", "generate_protobuf", everything=True)
        build_data["artifacts"] += [module.relative_to(self.root).as_posix() for module in generated]
        if version == "editable" or os.environ.get("TIDEMILL_WITHOUT_CONSOLE"):
            return
        self._run("web/build.py", "build_console")
        build_data["artifacts"].append("tidemill/server/static/**")

    def _run(self, script: str, function: str, **options: bool) -> Any:
        return runpy.run_path(str(Path(self.root) / script))[function](**options)
