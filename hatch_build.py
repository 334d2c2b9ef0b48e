"""What the package build does besides packing: the console is built and goes into the wheel, and so does the kernel
that compares trees, where there is a C compiler.

A checkout that is installed with `-e` serves what `make web` has built. `TIDEMILL_WITHOUT_CONSOLE=1` leaves the
console out, for those who have no use for it or cannot fetch its parts.
"""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ConsoleHook(BuildHookInterface[Any]):
    """What hatchling calls before it packs a wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        why = runpy.run_path(str(Path(self.root) / "tidemill" / "monitors" / "decoders" / "build.py"))["build"]()
        if why is None:
            build_data["artifacts"].append("tidemill/monitors/decoders/treekernel.so")
            build_data["pure_python"], build_data["infer_tag"] = False, True
        else:
            self.app.display_info(f"trees will be compared in plain Python: {why}")
        if version == "editable" or os.environ.get("TIDEMILL_WITHOUT_CONSOLE"):
            return
        runpy.run_path(str(Path(self.root) / "web" / "build.py"))["build_console"]()
        build_data["artifacts"].append("tidemill/server/static/**")
