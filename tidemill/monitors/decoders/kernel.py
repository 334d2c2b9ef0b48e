"""The compiled kernel of the tree edit distance: built when Tidemill is installed, if there is a C compiler.

It is a plain shared library without Python in it, loaded by ctypes. Without it everything works, more slowly:
`python -m tidemill.monitors.decoders.kernel` builds it later.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE / "treekernel.c"
LIBRARY = HERE / "treekernel.so"
OFF = "TIDEMILL_PURE_PYTHON"


def build(target: Path = LIBRARY) -> str | None:
    """Compile the kernel; returns why that could not be done, or None."""
    compiler = os.environ.get("CC") or next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    if compiler is None:
        return "there is no C compiler"
    unfinished = target.with_suffix(f".{os.getpid()}.tmp")
    command = [compiler, "-O3", "-shared", "-fPIC", "-o", str(unfinished), str(SOURCE)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            return f"{compiler} failed: {done.stderr.strip()[-500:]}"
        unfinished.replace(target)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{compiler} failed: {error}"
    finally:
        unfinished.unlink(missing_ok=True)
    return None


def load() -> Callable[..., float] | None:
    """The compiled distance, or None where there is none."""
    if os.environ.get(OFF) or not LIBRARY.exists():
        return None
    try:
        found = ctypes.CDLL(str(LIBRARY)).tree_distance
    except (OSError, AttributeError):
        return None
    found.restype = ctypes.c_double
    side = [ctypes.c_int32, ctypes.c_int32, *[ctypes.c_void_p] * 4]
    found.argtypes = [*side, *side, ctypes.c_double, ctypes.c_double]
    return found


if __name__ == "__main__":
    why = build()
    sys.stdout.write(f"{why or f'built {LIBRARY}'}\n")
    sys.exit(why is not None)
