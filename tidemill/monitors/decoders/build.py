"""Builds the compiled kernel: `python tidemill/monitors/decoders/build.py`, or by itself when Tidemill is installed.

It imports nothing of Tidemill, so that an installation can run it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("treekernel.c")
LIBRARY = SOURCE.with_suffix(".so")
PATIENCE = 120


def build(target: Path = LIBRARY) -> str | None:
    """Compile the kernel; returns why that could not be done, or None."""
    compiler = os.environ.get("CC") or next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    if compiler is None:
        return "there is no C compiler"
    unfinished = target.with_suffix(f".{os.getpid()}.tmp")
    command = [*compiler.split(), "-O3", "-shared", "-fPIC", "-o", str(unfinished), str(SOURCE)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        if done.returncode:
            return f"{compiler} failed: {done.stderr.strip()[-500:]}"
        unfinished.replace(target)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{compiler} failed: {error}"
    finally:
        unfinished.unlink(missing_ok=True)
    return None


if __name__ == "__main__":
    why = build()
    sys.stdout.write(f"{why or f'built {LIBRARY.name}'}\n")
    sys.exit(why is not None)
